//! The importance of each column of a weight.
//!
//! A model reads text, and the squares of the inputs of each linear layer are added up. The sums show which columns are
//! used most; their weights are then quantised with more care. The files are llama.cpp's, in its GGUF format and its
//! older binary one, so either program reads the other's files.
//!
//! GGUF: for each weight `NAME` a tensor `NAME.in_sum2` (columns, experts) of sums of squares and
//! one `NAME.counts` (1, experts) of how many rows were added, all f32; metadata `imatrix.datasets`,
//! `imatrix.chunk_count`, `imatrix.chunk_size`. Down projections have a tensor `NAME.active` (columns, experts) in addition:
//! the rows in which each neuron was not 0. A file of which the neurons have another order than the model's gives
//! `imatrix.neuron_order`, a number of that order. llama.cpp ignores both.

mod legacy;

use sluice::file::{
    FileError, GgufHeader, LoadMode, MetaValue, ModelFile, OutputError, OutputFile,
};
use sluice_core::gguf::source::{SliceSource, TensorSource};
use sluice_core::gguf::{Gguf, GgufErrorKind, TensorInfo, optional};
use sluice_core::kernels::GgmlType;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The importance of one weight's columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    /// Sums of squares: (matrices, columns), row-major.
    pub sums: Vec<f32>,
    /// Rows that were added up, for each matrix.
    pub counts: Vec<f32>,
    /// Of down projections, the rows in which each column was not 0: (matrices, columns). Empty if they were not counted.
    pub active: Vec<f32>,
}

/// Importance by name of weight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportanceMatrix {
    /// The weights, by name.
    pub weights: BTreeMap<String, Importance>,
    /// The texts that the model read.
    pub datasets: Vec<String>,
    /// Number of chunks that it read.
    pub chunk_count: u32,
    /// Tokens per chunk.
    pub chunk_size: u32,
    /// [`NeuronOrder::digest`](sluice::neurons::NeuronOrder::digest) of the model's file; `None` for a model's own order.
    pub neuron_order: Option<u64>,
    /// The file it was read from.
    pub file: String,
}

/// How an importance matrix is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportanceFormat {
    /// GGUF.
    Gguf,
    /// The older binary format, usually `.dat`. It has means, no counts for each expert, and only the last text's name.
    Legacy,
}

/// Why an importance matrix cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum ImportanceError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// The file is not an importance matrix.
    #[error("{}: not an importance matrix: {reason}", path.display())]
    Malformed { path: PathBuf, reason: String },
}

impl Importance {
    /// Mean squares of the columns of matrix `index`; 1 if it has no inputs.
    ///
    /// # Panics
    /// If `n_columns` does not match the sums, or `index` is out of range.
    #[must_use]
    pub fn columns(&self, index: usize, n_columns: usize) -> Vec<f32> {
        assert_eq!(self.sums.len(), n_columns * self.counts.len());
        let sums = &self.sums[index * n_columns..(index + 1) * n_columns];
        match self.counts[index] {
            count if count > 0.0 => sums.iter().map(|sum| sum / count).collect(),
            _ => vec![1.0; n_columns],
        }
    }
}

impl Importance {
    /// Adds the sums of another run. An error has the numbers of columns or matrices that differ.
    fn add(&mut self, mut other: Self) -> Result<(), String> {
        // The older format has one count for all experts.
        let n_matrices = self.counts.len().max(other.counts.len());
        for counts in [&mut self.counts, &mut other.counts] {
            if let [count] = **counts {
                counts.resize(n_matrices, count);
            }
        }
        let [ours, theirs] = [&*self, &other].map(|weight| weight.sums.len());
        if ours != theirs {
            return Err(format!("{theirs} columns, others {ours}"));
        }
        let [ours, theirs] = [&*self, &other].map(|weight| weight.counts.len());
        if ours != theirs {
            return Err(format!("{theirs} matrices, others {ours}"));
        }
        let add = |into: &mut Vec<f32>, more: Vec<f32>| {
            into.iter_mut().zip(more).for_each(|(into, x)| *into += x);
        };
        add(&mut self.sums, other.sums);
        add(&mut self.counts, other.counts);
        if other.active.is_empty() {
            self.active.clear();
        }
        add(&mut self.active, other.active);
        Ok(())
    }

    /// Mean squares of the columns of each of `n_matrices`. A single count applies to all of them.
    pub(super) fn by_matrix(&self, n_matrices: usize) -> Vec<Vec<f32>> {
        let n_columns = self.sums.len() / n_matrices;
        if self.counts.len() == n_matrices {
            return (0..n_matrices)
                .map(|i| self.columns(i, n_columns))
                .collect();
        }
        let all = self.columns(0, self.sums.len());
        all.chunks(n_columns).map(<[f32]>::to_vec).collect()
    }
}

impl ImportanceMatrix {
    /// Reads a file in either format.
    ///
    /// # Errors
    /// [`ImportanceError`], naming the file.
    pub fn open(path: &Path) -> Result<Self, ImportanceError> {
        let matrix = match ModelFile::open(path, LoadMode::Read) {
            Ok(file) => Self::from_gguf(&file.parse()?, file.source()),
            Err(FileError::Header { error, .. }) if is_not_gguf(&error) => {
                legacy::parse(&read_bounded(path)?)
            }
            Err(error) => return Err(error.into()),
        };
        let matrix = matrix.and_then(Self::checked);
        let mut matrix = matrix.map_err(|reason| malformed(path, reason))?;
        matrix.file = path.display().to_string();
        Ok(matrix)
    }

    /// Parses a file in either format from memory.
    ///
    /// # Errors
    /// A description of the problem.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let matrix = match Gguf::parse(bytes, bytes.len() as u64) {
            Ok(gguf) => Self::from_gguf(&gguf, &SliceSource(bytes))?,
            Err(error) if is_not_gguf(&error) => legacy::parse(bytes)?,
            Err(error) => return Err(error.to_string()),
        };
        matrix.checked()
    }

    /// Checks that the numbers can be sums of squares and counts.
    ///
    /// # Errors
    /// The name of the first weight whose numbers cannot.
    pub fn checked(self) -> Result<Self, String> {
        let is_none = |x: &f32| !x.is_finite() || *x < 0.0;
        let wrong = |weight: &Importance| {
            let numbers = weight.sums.iter().chain(&weight.counts);
            numbers.chain(&weight.active).any(is_none)
        };
        match self.weights.iter().find(|(_, weight)| wrong(weight)) {
            Some((name, _)) => Err(format!("{name} has values that are not sums of squares")),
            None => Ok(self),
        }
    }

    fn from_gguf(gguf: &Gguf<'_>, source: &dyn TensorSource) -> Result<Self, String> {
        let missing = |key: &str| format!("{key} is missing");
        let number = |key: &str| gguf.u32(key).map_err(|_| missing(key));
        let datasets = gguf
            .get(DATASETS)
            .and_then(|value| value.as_array()?.strings());
        let datasets = datasets.ok_or_else(|| missing(DATASETS))?;
        let datasets = datasets.map(|text| String::from_utf8_lossy(text).into_owned());
        let mut matrix = Self {
            datasets: datasets.collect(),
            chunk_count: number(CHUNK_COUNT)?,
            chunk_size: number(CHUNK_SIZE)?,
            neuron_order: optional(gguf.u64(ORDER)).map_err(|error| error.to_string())?,
            ..Self::default()
        };
        // Looking up one tensor scans the file; for a hostile file with many, that would take minutes.
        let all = gguf.tensors();
        let all: BTreeMap<&str, TensorInfo<'_>> = all.map(|tensor| (tensor.name, tensor)).collect();
        for (full_name, sums) in &all {
            let Some(name) = full_name.strip_suffix(SUMS) else {
                continue;
            };
            let counts_name = format!("{name}{COUNTS}");
            let counts = all
                .get(&*counts_name)
                .ok_or_else(|| missing(&counts_name))?;
            let (sums, counts) = (read_floats(source, sums)?, read_floats(source, counts)?);
            if counts.is_empty() || sums.len() % counts.len() != 0 {
                return Err(format!("{name}: {} counts", counts.len()));
            }
            let active = all.get(&*format!("{name}{ACTIVE}"));
            let active = active.map(|active| read_floats(source, active));
            let active = active.transpose()?.unwrap_or_default();
            if !active.is_empty() && active.len() != sums.len() {
                return Err(format!("{name}: {} counts of active neurons", active.len()));
            }
            let weight = Importance {
                sums,
                counts,
                active,
            };
            matrix.weights.insert(name.into(), weight);
        }
        if matrix.weights.is_empty() {
            return Err("it names no weights".into());
        }
        Ok(matrix)
    }

    /// Adds the sums of another run. Neurons that one of the two did not count are not counted in the sum.
    ///
    /// # Errors
    /// The two are for different models; the error names the weight.
    pub fn merge(&mut self, other: Self) -> Result<(), ImportanceError> {
        if !self.weights.is_empty() && self.neuron_order != other.neuron_order {
            let reason = "its model has another order of neurons than the others'";
            return Err(malformed(Path::new(&other.file), reason.into()));
        }
        self.neuron_order = other.neuron_order;
        for (name, weight) in other.weights {
            let Some(into) = self.weights.get_mut(&name) else {
                self.weights.insert(name, weight);
                continue;
            };
            let added = into.add(weight);
            added.map_err(|why| malformed(Path::new(&other.file), format!("{name} has {why}")))?;
        }
        self.datasets.extend(other.datasets);
        self.chunk_count = self.chunk_count.saturating_add(other.chunk_count);
        self.chunk_size = other.chunk_size;
        Ok(())
    }

    /// Writes the file in `format`.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn write(&self, output: OutputFile, format: ImportanceFormat) -> Result<(), OutputError> {
        match format {
            ImportanceFormat::Gguf => self.write_gguf(output),
            ImportanceFormat::Legacy => {
                output.write_at(0, &legacy::bytes(self))?;
                output.finish()
            }
        }
    }

    fn write_gguf(&self, output: OutputFile) -> Result<(), OutputError> {
        let mut header = GgufHeader::new();
        header.set("general.type", "imatrix");
        header.set(DATASETS, MetaValue::strings(&self.datasets));
        header.set(CHUNK_COUNT, self.chunk_count);
        header.set(CHUNK_SIZE, self.chunk_size);
        if let Some(order) = self.neuron_order {
            header.set(ORDER, order);
        }
        for (name, weight) in &self.weights {
            let n_matrices = weight.counts.len() as u64;
            let n_columns = weight.sums.len() as u64 / n_matrices;
            let mut add = |suffix, n| {
                // ggml does not count trailing dimensions of 1.
                let dims = [n, n_matrices];
                let dims = &dims[..if n_matrices > 1 { 2 } else { 1 }];
                header.add_tensor(&format!("{name}{suffix}"), dims, GgmlType::F32)
            };
            add(SUMS, n_columns);
            add(COUNTS, 1);
            if !weight.active.is_empty() {
                add(ACTIVE, n_columns);
            }
        }
        let writer = header.start(output)?;
        let bytes =
            |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|x| x.to_le_bytes()).collect() };
        let tensors = self.weights.values().flat_map(|weight| {
            let active = (!weight.active.is_empty()).then_some(&weight.active);
            [&weight.sums, &weight.counts].into_iter().chain(active)
        });
        for (i, numbers) in tensors.enumerate() {
            writer.write(i, 0, &bytes(numbers))?;
        }
        writer.finish()
    }

    /// Records the source of the importance in a quantised file, as llama.cpp does.
    pub(super) fn describe(&self, header: &mut GgufHeader) {
        header.set("quantize.imatrix.file", self.file.as_str());
        if let Some(dataset) = self.datasets.first() {
            header.set("quantize.imatrix.dataset", dataset.as_str());
        }
        let n_weights = u32::try_from(self.weights.len()).unwrap_or(u32::MAX);
        header.set("quantize.imatrix.entries_count", n_weights);
        if self.chunk_count > 0 {
            header.set("quantize.imatrix.chunks_count", self.chunk_count);
        }
    }
}

fn is_not_gguf(error: &sluice_core::gguf::GgufError) -> bool {
    matches!(error.kind(), GgufErrorKind::NotGguf { .. })
}

fn malformed(path: &Path, reason: String) -> ImportanceError {
    let path = path.to_path_buf();
    ImportanceError::Malformed { path, reason }
}

/// Reads a file in the older format, which has a few bytes for each column of a model.
fn read_bounded(path: &Path) -> Result<Vec<u8>, ImportanceError> {
    let read_error = |error| ImportanceError::Read {
        path: path.to_path_buf(),
        error,
    };
    let len = std::fs::metadata(path).map_err(read_error)?.len();
    if len > LEGACY_BYTES_MAX {
        return Err(malformed(path, "the file is too long".into()));
    }
    std::fs::read(path).map_err(read_error)
}

fn read_floats(source: &dyn TensorSource, tensor: &TensorInfo<'_>) -> Result<Vec<f32>, String> {
    let name = tensor.name;
    if tensor.ty != GgmlType::F32 {
        return Err(format!("{name} is {}, expected F32", tensor.ty));
    }
    let len = usize::try_from(tensor.len_bytes).map_err(|_| format!("{name} is too long"))?;
    let mut bytes = vec![0; len];
    let read = source.read(tensor.offset, &mut bytes);
    read.map_err(|error| format!("{name}: {error}"))?;
    let floats = bytes.as_chunks::<4>().0.iter();
    Ok(floats.map(|x| f32::from_le_bytes(*x)).collect())
}

const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const ACTIVE: &str = ".active";
const ORDER: &str = "imatrix.neuron_order";
/// Far above the largest model's.
const LEGACY_BYTES_MAX: u64 = 1 << 32;

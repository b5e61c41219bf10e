//! Adapters in an INFQ v1 directory: `manifest.json`, and files of 8-bit or 4-bit numbers with a scale for each row.
//!
//! INFQ computes y += A · (B · x): its A is LoRA's B and its B LoRA's A, and α / r is part of A. Each entry is one
//! pair, whose name gives the model's matrix: `<adapter>/<tensor>`, or `<adapter>/<tensor>[3]` in a stack, with GGUF's
//! names. Entries with other names are refused.
//!
//! | part | bytes |
//! |---|---|
//! | int8_rowwise | rows · columns, row by row |
//! | int4_rowwise | rows · ⌈columns / 2⌉, the even column in the low nibble, two's complement |
//! | scales | rows · 2, f16 |
//! | outliers | records of 8: row u32, column u16, value f16; they stand in place of a 0 |
#![forbid(unsafe_code)]

use super::error::AdapterLoadError;
use super::factors::Factors;
use super::numbers::usize_of;
use super::sink::{AdapterOrigin, PairOrder, PairSink};
use crate::file::ReadFile;
use serde_json::Value;
use sluice_core::gguf::source::TensorSource as _;
use sluice_core::kernels::half::f16_to_f32;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::{fs, io};

/// The layout of matrices.
pub const LAYOUT: &str = "rowmajor_blocked";
/// The layout of an outlier.
pub const RECORD_LAYOUT: &str = "row:u32,col:u16,val:fp16";
/// Bytes of an outlier.
pub const RECORD_BYTES: u64 = 8;
/// Outliers begin at multiples of this.
pub const ALIGN: u64 = 64;
/// Far more than a manifest of any real adapter has.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

struct Manifest {
    /// The number of tensors of a model.
    n_tensors: usize,
    adapters: Vec<Entry>,
}

struct Entry {
    name: String,
    rank: u64,
    a: Matrix,
    b: Matrix,
}

struct Matrix {
    dtype: String,
    rows: u64,
    cols: u64,
    scale_dtype: String,
    layout: String,
    data_file: String,
    offset_data: u64,
    offset_scales: u64,
    outliers: Option<Outliers>,
}

struct Outliers {
    data_file: String,
    offset: u64,
    count: u64,
    record_bytes: u64,
    layout: String,
}

/// An object of the manifest, with its place for messages.
struct Object<'m> {
    manifest: &'m Path,
    place: String,
    value: &'m Value,
}

impl<'m> Object<'m> {
    fn part(&self, key: &str) -> Option<Self> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(Self {
            place: format!("{}{key}.", self.place),
            value,
            ..*self
        })
    }

    fn number(&self, key: &str, default: Option<u64>) -> Result<u64, AdapterLoadError> {
        self.get(key, default, serde_json::from_value)
    }

    fn text(&self, key: &str, default: Option<&str>) -> Result<String, AdapterLoadError> {
        self.get(key, default.map(str::to_owned), serde_json::from_value)
    }

    fn get<T>(
        &self,
        key: &str,
        default: Option<T>,
        read: impl Fn(Value) -> serde_json::Result<T>,
    ) -> Result<T, AdapterLoadError> {
        let value = match (self.value.get(key), default) {
            (None, Some(default)) => return Ok(default),
            (value, _) => value.cloned().unwrap_or_default(),
        };
        read(value).map_err(|error| {
            let (key, what) = (
                format!("{}{key}", self.place),
                format!("is malformed: {error}"),
            );
            AdapterLoadError::key(self.manifest, key, what)
        })
    }

    fn list(&self, key: &str) -> &'m [Value] {
        let list = self.value.get(key).and_then(Value::as_array);
        list.map(Vec::as_slice).unwrap_or_default()
    }

    fn entry(&self) -> Result<Entry, AdapterLoadError> {
        let matrix = |key| match self.part(key) {
            Some(matrix) => matrix.matrix(),
            None => {
                let key = format!("{}{key}", self.place);
                Err(AdapterLoadError::key(self.manifest, key, "is missing"))
            }
        };
        Ok(Entry {
            name: self.text("name", None)?,
            rank: self.number("rank", None)?,
            a: matrix("A")?,
            b: matrix("B")?,
        })
    }

    fn matrix(&self) -> Result<Matrix, AdapterLoadError> {
        let outliers = self.part("outliers").map(|outliers| outliers.outliers());
        Ok(Matrix {
            dtype: self.text("dtype", None)?,
            rows: self.number("rows", None)?,
            cols: self.number("cols", None)?,
            scale_dtype: self.text("scale_dtype", Some("fp16"))?,
            layout: self.text("layout", Some(LAYOUT))?,
            data_file: self.text("data_file", None)?,
            offset_data: self.number("offset_data", None)?,
            offset_scales: self.number("offset_scales", None)?,
            outliers: outliers.transpose()?,
        })
    }

    fn outliers(&self) -> Result<Outliers, AdapterLoadError> {
        Ok(Outliers {
            data_file: self.text("data_file", None)?,
            offset: self.number("offset", None)?,
            count: self.number("count", None)?,
            record_bytes: self.number("record_bytes", Some(RECORD_BYTES))?,
            layout: self.text("layout", Some(RECORD_LAYOUT))?,
        })
    }
}

/// The names of a directory's adapters.
pub(super) fn names(folder: &Path) -> Result<BTreeSet<String>, AdapterLoadError> {
    let manifest = manifest(&folder.join("manifest.json"))?;
    let names = manifest.adapters.iter();
    let names = names.filter_map(|entry| Some(parse_name(&entry.name)?.0.to_owned()));
    Ok(names.collect())
}

fn manifest(path: &Path) -> Result<Manifest, AdapterLoadError> {
    let unreadable = |error: io::Error| AdapterLoadError::Read {
        path: path.display().to_string(),
        error,
    };
    let n_bytes = fs::metadata(path).map_err(unreadable)?.len();
    if n_bytes > MANIFEST_BYTES_MAX {
        let what = format!("it has {n_bytes} bytes, over the limit of {MANIFEST_BYTES_MAX}");
        return Err(AdapterLoadError::not_an_adapter(path, what));
    }
    let text = fs::read(path).map_err(unreadable)?;
    let value: Value = serde_json::from_slice(&text).map_err(|error| unreadable(error.into()))?;
    let whole = Object {
        manifest: path,
        place: String::new(),
        value: &value,
    };
    let version = whole.number("version", None)?;
    if version != 1 {
        let what = format!("is {version}; only 1 is supported");
        return Err(AdapterLoadError::key(path, "version", what));
    }
    let endianness = whole.text("endianness", None)?;
    if endianness != "LE" {
        let what = format!("is {endianness:?}; only LE is supported");
        return Err(AdapterLoadError::key(path, "endianness", what));
    }
    let entries = whole.list("adapters").iter().enumerate();
    let entries = entries.map(|(i, value)| {
        let place = format!("adapters[{i}].");
        Object {
            place,
            value,
            ..whole
        }
        .entry()
    });
    Ok(Manifest {
        n_tensors: whole.list("tensors").len(),
        adapters: entries.collect::<Result<_, _>>()?,
    })
}

/// Reads a directory. It may hold several adapters; `name` selects one.
pub(super) fn read(
    folder: &Path,
    name: Option<&str>,
    sink: &mut dyn PairSink,
) -> Result<Vec<String>, AdapterLoadError> {
    let path = folder.join("manifest.json");
    let manifest = manifest(&path)?;
    let mut warnings = Vec::new();
    if manifest.n_tensors > 0 {
        warnings.push(format!(
            "{}: the directory has {} tensors of a model, which are ignored",
            path.display(),
            manifest.n_tensors
        ));
    }
    let mut reader = Reader {
        folder,
        manifest: &path,
        files: HashMap::new(),
    };
    let chosen = chosen(&manifest.adapters, name, &path)?;
    sink.begin(AdapterOrigin::default())?;
    for (tensor, (entry, place)) in chosen.into_iter().enumerate() {
        let order = PairOrder { tensor, part: 0 };
        sink.take(order, &reader.factors(entry, place)?)?;
    }
    Ok(warnings)
}

/// Whether a folder is an INFQ directory.
pub(super) fn is_one(folder: &Path) -> bool {
    folder.join("manifest.json").is_file() && folder.join("adapters.bin").exists()
}

/// The matrix that an entry is for.
struct Place<'e> {
    tensor: &'e str,
    part: Option<u32>,
}

/// The entries of one adapter.
fn chosen<'e>(
    entries: &'e [Entry],
    name: Option<&str>,
    path: &Path,
) -> Result<Vec<(&'e Entry, Place<'e>)>, AdapterLoadError> {
    let (mut found, mut names, mut seen) = (Vec::new(), BTreeSet::new(), HashSet::new());
    for entry in entries {
        let error = |what: &str| Err(AdapterLoadError::tensor(path, &*entry.name, what));
        let Some((adapter, place)) = parse_name(&entry.name) else {
            return error(
                "is an adapter whose name does not state its matrix: expected <adapter>/<tensor>, with GGUF's names",
            );
        };
        names.insert(adapter);
        if name.is_none_or(|name| name == adapter) {
            if !seen.insert(entry.name.as_str()) {
                return error("is defined twice");
            }
            found.push((entry, place));
        }
    }
    let names: Vec<_> = names.into_iter().collect();
    let folder = path.parent().unwrap_or(path);
    let not = |what: String| Err(AdapterLoadError::not_an_adapter(folder, what));
    match (found.is_empty(), name) {
        (true, None) => not("the directory has no adapters".into()),
        (true, Some(name)) => not(format!(
            "the directory has no adapter {name:?}, only {}",
            names.join(", ")
        )),
        (false, None) if names.len() > 1 => not(format!(
            "the directory has several adapters ({}): select one as {}#NAME",
            names.join(", "),
            folder.display()
        )),
        _ => Ok(found),
    }
}

/// Parses `<adapter>/<tensor>` or `<adapter>/<tensor>[part]`.
fn parse_name(name: &str) -> Option<(&str, Place<'_>)> {
    let (adapter, tensor) = name.rsplit_once('/')?;
    let (tensor, part) = match tensor
        .strip_suffix(']')
        .and_then(|rest| rest.rsplit_once('['))
    {
        Some((tensor, part)) => (tensor, Some(part.parse().ok()?)),
        None => (tensor, None),
    };
    let is_tensor = tensor.ends_with(".weight") && tensor.len() > ".weight".len();
    (is_tensor && !adapter.is_empty()).then_some((adapter, Place { tensor, part }))
}

struct Reader<'r> {
    folder: &'r Path,
    manifest: &'r Path,
    /// Files, and how many of their bytes have been read: matrices do not share bytes.
    files: HashMap<String, (ReadFile, u64)>,
}

impl Reader<'_> {
    fn factors(&mut self, entry: &Entry, place: Place<'_>) -> Result<Factors, AdapterLoadError> {
        let (a, b, rank) = (&entry.a, &entry.b, entry.rank);
        if rank == 0 || a.cols != rank || b.rows != rank || a.rows == 0 || b.cols == 0 {
            let what = format!(
                "has rank {rank}, but matrices A of {} x {} and B of {} x {}",
                a.rows, a.cols, b.rows, b.cols
            );
            return Err(AdapterLoadError::tensor(self.manifest, &*entry.name, what));
        }
        Ok(Factors {
            tensor: place.tensor.into(),
            part: place.part,
            a: self.numbers(b, &format!("{} B", entry.name))?,
            b: self.numbers(a, &format!("{} A", entry.name))?,
            rank: usize_of(rank),
            scale: 1.0,
        })
    }

    fn numbers(&mut self, matrix: &Matrix, name: &str) -> Result<Vec<f32>, AdapterLoadError> {
        let error = |what: String| AdapterLoadError::tensor(self.manifest, name, what);
        let row_bytes = match matrix.dtype.as_str() {
            "int8_rowwise" => matrix.cols,
            "int4_rowwise" => matrix.cols.div_ceil(2),
            other => return Err(error(format!("has the unknown dtype {other:?}"))),
        };
        if matrix.scale_dtype != "fp16" || matrix.layout != LAYOUT {
            return Err(error(format!(
                "has scales of {:?} and layout {:?}; only fp16 and {LAYOUT} are supported",
                matrix.scale_dtype, matrix.layout
            )));
        }
        let too_large = || error(format!("is too large: {} x {}", matrix.rows, matrix.cols));
        let data_bytes = matrix.rows.checked_mul(row_bytes).ok_or_else(too_large)?;
        let scale_bytes = matrix.rows.checked_mul(2).ok_or_else(too_large)?;
        let data = self.bytes(&matrix.data_file, matrix.offset_data, data_bytes, name)?;
        let scales = self.bytes(&matrix.data_file, matrix.offset_scales, scale_bytes, name)?;
        let (row_bytes, cols) = (usize_of(row_bytes), usize_of(matrix.cols));
        let mut numbers = Vec::with_capacity(usize_of(matrix.rows) * cols);
        for (row, scale) in data.chunks_exact(row_bytes).zip(scales.as_chunks::<2>().0) {
            let scale = f16_to_f32(u16::from_le_bytes(*scale));
            if !scale.is_finite() {
                return Err(AdapterLoadError::tensor(
                    self.manifest,
                    name,
                    "has a scale that is not finite",
                ));
            }
            match matrix.dtype.as_str() {
                "int8_rowwise" => {
                    numbers.extend(row.iter().map(|q| scale * f32::from(q.cast_signed())));
                }
                _ => numbers.extend((0..cols).map(|col| scale * f32::from(nibble(row, col)))),
            }
        }
        if let Some(outliers) = &matrix.outliers {
            self.put_outliers(outliers, &mut numbers, [matrix.rows, matrix.cols], name)?;
        }
        Ok(numbers)
    }

    fn put_outliers(
        &mut self,
        outliers: &Outliers,
        numbers: &mut [f32],
        [rows, cols]: [u64; 2],
        name: &str,
    ) -> Result<(), AdapterLoadError> {
        let manifest = self.manifest;
        let error = |what: String| Err(AdapterLoadError::tensor(manifest, name, what));
        let is_known = outliers.record_bytes == RECORD_BYTES && outliers.layout == RECORD_LAYOUT;
        if !is_known || !outliers.offset.is_multiple_of(ALIGN) {
            return error(format!(
                "has outliers at byte {} in records of {} bytes, {:?}: only multiples of {ALIGN} and \
                 {RECORD_LAYOUT:?} are supported",
                outliers.offset, outliers.record_bytes, outliers.layout
            ));
        }
        let Some(len) = outliers.count.checked_mul(RECORD_BYTES) else {
            return error(format!(
                "has {} outliers, which is too many",
                outliers.count
            ));
        };
        let bytes = self.bytes(&outliers.data_file, outliers.offset, len, name)?;
        for record in bytes.as_chunks::<8>().0 {
            let [r0, r1, r2, r3, c0, c1, v0, v1] = *record;
            let row = u64::from(u32::from_le_bytes([r0, r1, r2, r3]));
            let col = u64::from(u16::from_le_bytes([c0, c1]));
            let value = f16_to_f32(u16::from_le_bytes([v0, v1]));
            if row >= rows || col >= cols || !value.is_finite() {
                return error(format!("has an outlier {value} at row {row}, column {col}"));
            }
            numbers[usize_of(row * cols + col)] = value;
        }
        Ok(())
    }

    /// Reads bytes of a file in the directory, each of which belongs to a single matrix.
    fn bytes(
        &mut self,
        file: &str,
        offset: u64,
        len: u64,
        name: &str,
    ) -> Result<Vec<u8>, AdapterLoadError> {
        let error = |what: String| Err(AdapterLoadError::tensor(self.manifest, name, what));
        // Must be a plain file name: a foreign directory cannot open files outside itself.
        if Path::new(file).file_name() != Some(file.as_ref()) {
            return error(format!("is in {file:?}, which is not a file name"));
        }
        if !self.files.contains_key(file) {
            let opened = ReadFile::open(&self.folder.join(file))?;
            self.files.insert(file.into(), (opened, 0));
        }
        let Some((source, n_read)) = self.files.get_mut(file) else {
            return Ok(Vec::new());
        };
        let file_bytes = source.len_bytes();
        *n_read = n_read.saturating_add(len);
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > file_bytes) {
            return error(format!(
                "has {len} bytes from byte {offset} on, but {file} has {file_bytes}"
            ));
        }
        if *n_read > file_bytes {
            return error(format!("overlaps other matrices in {file}"));
        }
        let mut bytes = vec![0; usize_of(len)];
        source
            .read(offset, &mut bytes)
            .map_err(|error| AdapterLoadError::data(source.path(), name, error))?;
        Ok(bytes)
    }
}

/// A 4-bit number.
fn nibble(row: &[u8], col: usize) -> i8 {
    let byte = row[col / 2];
    let high = if col.is_multiple_of(2) {
        byte << 4
    } else {
        byte
    };
    high.cast_signed() >> 4
}

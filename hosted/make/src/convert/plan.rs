//! From a folder to the layout of a GGUF file.
#![forbid(unsafe_code)]

use super::config::Config;
use super::encode::can_encode;
use super::family::{Family, Kind, Shape, Wanted, narrow, wanted, write_parameters};
use super::folder::{Weights, read_json, read_object_if_there};
use super::rope::Rope;
use super::safetensors::Dtype;
use super::special::Special;
use super::vocabulary::{Rules, TokenizerFiles, Vocabulary};
use super::{ConvertError, naming};
use core::fmt;
use serde_json::{Map, Value};
use sluice::file::GgufHeader;
use sluice_core::kernels::GgmlType;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// A folder that has been read and checked, and the GGUF file that it becomes.
#[derive(Debug)]
pub struct Conversion {
    pub(super) weights: Weights,
    pub(super) header: GgufHeader,
    /// Of each tensor of the header.
    pub(super) sources: Vec<Source>,
}

/// Where a tensor's numbers come from.
#[derive(Debug)]
pub(super) enum Source {
    /// Tensors of the folder, one after the other.
    Parts {
        /// Into [`Weights::tensors`].
        parts: Vec<usize>,
        /// Of each part.
        rows: u64,
        columns: u64,
        /// Heads whose rows go from halves to pairs.
        permute_heads: Option<u32>,
    },
    /// Computed.
    Numbers(Vec<f32>),
}

/// The type of a tensor to be, from its GGUF name and its dimensions (the row length first).
pub type TypeOf<'a> = dyn Fn(&str, &[u64]) -> GgmlType + 'a;

/// What a conversion is asked for.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Types of the tensors, and llama.cpp's number of them all (`general.file_type`); none for
    /// the type of the folder's first matrix.
    pub types: Option<(u32, &'a TypeOf<'a>)>,
    /// `tokenizer.ggml.pre`, where the tokenizer's own rules are not to decide.
    pub pre: Option<&'a str>,
    /// `general.name`; by default from the folder's.
    pub name: Option<&'a str>,
}

impl fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("file_type", &self.types.map(|(number, _)| number))
            .field("pre", &self.pre)
            .field("name", &self.name)
            .finish()
    }
}

/// The types that most tensors of a converted file can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatType {
    /// All of it.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 8 bits with a scale for 32.
    Q8_0,
}

impl FloatType {
    /// llama.cpp's number of a file of this type (`LLAMA_FTYPE_…`).
    #[must_use]
    pub const fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// As llama.cpp's converter chooses: [`keeps_f32`], and rows that are no whole number of
    /// blocks become F16. A [`TypeOf`] by itself.
    #[must_use]
    pub fn type_of(self, name: &str, dims: &[u64]) -> GgmlType {
        if keeps_f32(name, dims) {
            return GgmlType::F32;
        }
        match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::Bf16 => GgmlType::BF16,
            Self::Q8_0 if dims[0].is_multiple_of(32) => GgmlType::Q8_0,
            Self::Q8_0 => GgmlType::F16,
        }
    }

    const fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::BF16 => Self::Bf16,
            _ => Self::F16,
        }
    }
}

/// Whether a tensor is stored as F32 in files of every type: vectors, norms, biases, the routers of
/// experts.
#[must_use]
pub fn keeps_f32(name: &str, dims: &[u64]) -> bool {
    dims.len() < 2
        || !name.ends_with(".weight")
        || name.ends_with("_norm.weight")
        || name.ends_with("ffn_gate_inp.weight")
}

impl Conversion {
    /// Reads and checks a folder. No weights are read yet.
    ///
    /// # Errors
    /// [`ConvertError`].
    pub fn plan(folder: &Path, options: &Options<'_>) -> Result<Self, ConvertError> {
        if !folder.is_dir() {
            let path = folder.into();
            return match folder.try_exists() {
                Ok(true) => Err(ConvertError::NotAFolder { path }),
                Ok(false) => Err(ConvertError::Read {
                    path,
                    error: std::io::ErrorKind::NotFound.into(),
                }),
                Err(error) => Err(ConvertError::Read { path, error }),
            };
        }
        let path = folder.join("config.json");
        let config = Config::new(&path, read_json(&path)?);
        let family = Family::of(&config, &path)?;
        let shape = Shape::read(family, &config)?;
        let rope = Rope::read(family, &config)?;
        let weights = Weights::open(folder)?;
        shape.check_counts(&config, weights.tensors.len())?;
        let generation = generation_config(folder)?;

        let mut header = GgufHeader::new();
        header.set("general.architecture", family.architecture);
        let factors = rope.factors(&mut header, &shape)?;
        let mut layout = Layout::new(&weights, header);
        let guessed = FloatType::of(layout.first_matrix_dtype());
        let guessed_type = |name: &str, dims: &[u64]| guessed.type_of(name, dims);
        let (file_type, type_of) = options
            .types
            .unwrap_or((guessed.file_type(), &guessed_type));
        for (name, numbers) in factors {
            layout
                .header
                .add_tensor(name, &[numbers.len() as u64], GgmlType::F32);
            layout.sources.push(Source::Numbers(numbers));
        }
        layout.place(folder, family, wanted(family, &shape), type_of)?;
        let Layout {
            mut header,
            sources,
            ..
        } = layout;

        header.set("general.type", "model");
        write_sampling(&mut header, &generation);
        let name = options
            .name
            .map_or_else(|| naming::title(folder), str::to_owned);
        header.set("general.name", name.as_str());
        header.set("general.size_label", size_label(&header).as_str());
        if let Some(license) = naming::license(folder)? {
            header.set("general.license", license.as_str());
        }
        write_parameters(&mut header, family, &config, &shape, &rope, file_type)?;
        header.set("general.quantization_version", QUANTIZATION_VERSION);
        write_tokenizer(&mut header, folder, family, &config, &generation, options)?;
        Ok(Self {
            weights,
            header,
            sources,
        })
    }

    /// What the file will hold.
    #[must_use]
    pub const fn header(&self) -> &GgufHeader {
        &self.header
    }
}

/// Of the layout of quantised blocks; 2 since 2023 (`GGML_QNT_VERSION`).
const QUANTIZATION_VERSION: u32 = 2;

/// Tensors finding their places.
struct Layout<'w> {
    weights: &'w Weights,
    /// Hugging Face's names to places in the folder.
    places: HashMap<&'w str, usize>,
    header: GgufHeader,
    sources: Vec<Source>,
}

impl<'w> Layout<'w> {
    fn new(weights: &'w Weights, header: GgufHeader) -> Self {
        let names = weights.tensors.iter().enumerate();
        Self {
            weights,
            places: names
                .map(|(i, tensor)| (tensor.entry.name.as_str(), i))
                .collect(),
            header,
            sources: Vec::new(),
        }
    }

    fn first_matrix_dtype(&self) -> Dtype {
        let mut tensors = self.weights.tensors.iter();
        let first = tensors.find(|tensor| tensor.entry.shape.len() > 1);
        first.map_or(Dtype::F16, |tensor| tensor.entry.dtype)
    }

    /// Places all wanted tensors in the order in which the folder has them; experts of a layer
    /// together, where the last of them is.
    fn place(
        &mut self,
        folder: &Path,
        family: &'static Family,
        wanted: Vec<Wanted>,
        type_of: &TypeOf<'_>,
    ) -> Result<(), ConvertError> {
        let mut ordered = BTreeMap::new();
        for (rank, tensor) in wanted.into_iter().enumerate() {
            let Some(last) = self.check(folder, &tensor)? else {
                continue;
            };
            // The three stacks of a layer's experts are complete together.
            let group = tensor.parts.len() > 1 || tensor.name.contains("_exps.");
            ordered.insert((last, rank), (group, tensor));
        }
        let mut layers = HashMap::new();
        for ((last, _), (group, tensor)) in &ordered {
            if *group {
                let layer = tensor.name.split('.').nth(1).unwrap_or_default().to_owned();
                let at = layers.entry(layer).or_insert(*last);
                *at = (*at).max(*last);
            }
        }
        let mut placed: Vec<_> = ordered
            .into_iter()
            .map(|((last, rank), (group, tensor))| {
                let layer = tensor.name.split('.').nth(1).unwrap_or_default();
                let last = if group { layers[layer] } else { last };
                (last, rank, tensor)
            })
            .collect();
        placed.sort_by_key(|(last, rank, _)| (*last, *rank));
        for (_, _, tensor) in placed {
            self.add(tensor, type_of)?;
        }
        self.check_rest(family)
    }

    /// The last place of a tensor's parts; none for an optional one that is not there.
    fn check(&self, folder: &Path, wanted: &Wanted) -> Result<Option<usize>, ConvertError> {
        let mut last = None;
        for part in &wanted.parts {
            let Some(&place) = self.places.get(part.as_str()) else {
                if wanted.is_optional {
                    return Ok(None);
                }
                return Err(ConvertError::MissingTensor {
                    path: folder.into(),
                    tensor: part.clone(),
                    expected: wanted.shape.clone(),
                });
            };
            let tensor = &self.weights.tensors[place];
            if tensor.entry.shape != wanted.shape {
                return Err(ConvertError::WrongShape {
                    path: self.weights.path_of(tensor).into(),
                    tensor: part.clone(),
                    found: tensor.entry.shape.clone(),
                    expected: wanted.shape.clone(),
                });
            }
            last = last.max(Some(place));
        }
        Ok(last)
    }

    fn add(&mut self, wanted: Wanted, type_of: &TypeOf<'_>) -> Result<(), ConvertError> {
        let places = wanted.parts.iter().map(|part| {
            let place = self.places.remove(part.as_str());
            place.expect("the part was found before, and has one use")
        });
        let parts: Vec<_> = places.collect();
        let mut dims: Vec<u64> = wanted.shape.iter().rev().copied().collect();
        if wanted.name.contains("_exps.") {
            dims.push(parts.len() as u64);
        }
        let ty = type_of(&wanted.name, &dims);
        if !can_encode(ty) || ty.row_bytes(dims[0]).is_none() {
            return Err(ConvertError::CannotEncode {
                tensor: wanted.name,
                row_len: dims[0],
                ty,
            });
        }
        self.header.add_tensor(&wanted.name, &dims, ty);
        let (rows, columns) = match *wanted.shape {
            [rows, columns] => (rows, columns),
            // Elements of a vector that is reordered are rows of one.
            [rows] if wanted.permute_heads.is_some() => (rows, 1),
            [columns] => (1, columns),
            _ => unreachable!("families have vectors and matrices"),
        };
        self.sources.push(Source::Parts {
            parts,
            rows,
            columns,
            permute_heads: wanted.permute_heads,
        });
        Ok(())
    }

    /// What has no place: buffers that are computed anew are left out, anything else is an error.
    fn check_rest(&self, family: &Family) -> Result<(), ConvertError> {
        let computed = [
            ".rotary_emb.inv_freq",
            ".attention.bias",
            ".attention.masked_bias",
        ];
        let rest = self.places.iter();
        let rest = rest.filter(|(name, _)| !computed.iter().any(|end| name.ends_with(end)));
        match rest.min_by_key(|(_, place)| **place) {
            Some((name, &place)) => Err(ConvertError::ExtraTensor {
                path: self.weights.path_of(&self.weights.tensors[place]).into(),
                tensor: (*name).into(),
                architecture: family.architecture,
            }),
            None => Ok(()),
        }
    }
}

/// `generation_config.json`. Published ones are not always well formed; nothing depends on them.
fn generation_config(folder: &Path) -> Result<Map<String, Value>, ConvertError> {
    match read_object_if_there(&folder.join("generation_config.json")) {
        Err(ConvertError::Json { .. }) => Ok(Map::new()),
        read => read,
    }
}

/// The sampling that the model's authors recommend.
fn write_sampling(header: &mut GgufHeader, generation: &Map<String, Value>) {
    let count = |key: &str| {
        generation
            .get(key)?
            .as_i64()
            .and_then(|n| i32::try_from(n).ok())
    };
    let number = |key: &str| generation.get(key).and_then(Value::as_f64).map(narrow);
    if let Some(k) = count("top_k") {
        header.set("general.sampling.top_k", k);
    }
    for (from, to) in [
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("temperature", "temp"),
    ] {
        if let Some(x) = number(from) {
            header.set(&format!("general.sampling.{to}"), x);
        }
    }
    if let Some(x) = number("penalty_repeat").or_else(|| number("repetition_penalty")) {
        header.set("general.sampling.penalty_repeat", x);
    }
}

fn size_label(header: &GgufHeader) -> String {
    let (mut shared, mut expert, mut n_expert) = (0, 0, 0);
    for tensor in header.tensors() {
        let n = tensor.dims.iter().product::<u64>();
        if tensor.name.contains("_exps.") {
            n_expert = tensor.dims[2];
            expert += n / n_expert;
        } else {
            shared += n;
        }
    }
    naming::size_label(shared, expert, n_expert)
}

fn write_tokenizer(
    header: &mut GgufHeader,
    folder: &Path,
    family: &Family,
    config: &Config,
    generation: &Map<String, Value>,
    options: &Options<'_>,
) -> Result<(), ConvertError> {
    let files = TokenizerFiles::read(folder)?;
    let rules = Rules {
        n_vocab: config.maybe_count(&["vocab_size"])?,
        is_phi3: family.kind == Kind::Phi3,
        pre: options.pre,
    };
    let vocabulary = Vocabulary::read(folder, &files, rules)?;
    if family.is_llama() {
        let flag = files.about.get("add_prefix_space").and_then(Value::as_bool);
        if let Some(flag) = flag {
            header.set("tokenizer.ggml.add_space_prefix", flag);
        }
    }
    vocabulary.write(header);
    let n_vocab = vocabulary.n_vocab();
    let mut special = Special::read(folder, &files, config, generation, n_vocab)?;
    // Two vocabularies that llama.cpp knows by their size: CodeLlama, Granite's small models.
    match n_vocab {
        32_016 if family.is_llama() && vocabulary.is_sentencepiece() => {
            special.set_id("eot", Some(32_010), n_vocab);
        }
        49_152 if family.is_llama() => special.set_add("bos", false),
        _ => {}
    }
    special.write(header);
    Ok(())
}

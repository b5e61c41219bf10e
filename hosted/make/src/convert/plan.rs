//! From a folder to the layout of a GGUF file.

use super::folder::Weights;
use super::generation::{end_tokens, read_generation, write_sampling, write_suppressed};
use super::layout::{Layout, Source};
use super::reranker::{answers, is_reranker};
use super::special::Special;
use super::types::{FloatType, TypeOf};
use super::vocabulary::{Rules, TokenizerFiles, Vocabulary};
use super::{ConvertError, naming};
use core::fmt;
use sluice::check_header;
use sluice::file::GgufHeader;
use sluice_core::gguf::Gguf;
use sluice_hf::{
    Config, Description, Family, HfError, RotarySettings, Shape, Words, all_tensors, check_config,
    read_dense, read_json, scale_block,
};
use std::path::Path;

/// A folder that has been read and checked, and the GGUF file that it becomes.
#[derive(Debug)]
pub struct Conversion {
    pub(super) weights: Weights,
    pub(super) header: GgufHeader,
    /// For each tensor of the header.
    pub(super) sources: Vec<Source>,
    warnings: Vec<String>,
}

/// Options of a conversion.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// The tensors' types, and llama.cpp's number for the file's type (`general.file_type`); `None`
    /// for the type of the folder's first matrix.
    pub types: Option<(u32, &'a TypeOf<'a>)>,
    /// `tokenizer.ggml.pre`, to override the tokenizer's own rules.
    pub pre: Option<&'a str>,
    /// `general.name`; by default derived from the folder's name.
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

/// Reads the sizes of a model. Weights in separate folders are added to `weights`.
fn read_shape(
    folder: &Path,
    family: &Family,
    config: &Config,
    files: &TokenizerFiles,
    weights: &mut Weights,
    warnings: &mut Vec<String>,
) -> Result<Shape, ConvertError> {
    let mut shape = Shape::read(family, config)?;
    if family.has_dense() {
        shape.dense = read_dense(folder)?;
        for dense in shape.dense.iter().rev() {
            weights.put_first(dense.weights.clone(), &format!("{}.", dense.name))?;
        }
    }
    if family.may_rerank() && is_reranker(folder, config)? {
        let found = answers(files.json.as_ref(), shape.n_vocab);
        let error = |what| ConvertError::Tokenizer {
            path: folder.join("tokenizer.json"),
            what,
        };
        shape.answers = Some(found.map_err(error)?);
    }
    shape.count_nextn(family, config, weights.names(), warnings)?;
    shape.check_counts(family, config, weights.tensors.len())?;
    Ok(shape)
}

/// Writes the model's names and its sampling defaults.
fn write_names(
    header: &mut GgufHeader,
    folder: &Path,
    options: &Options<'_>,
    generation: &Config,
    warnings: &mut Vec<String>,
) -> Result<(), ConvertError> {
    header.set("general.type", "model");
    write_sampling(header, generation, warnings);
    let name = options
        .name
        .map_or_else(|| naming::title(folder), str::to_owned);
    header.set("general.name", name.as_str());
    header.set("general.size_label", size_label(header).as_str());
    if let Some(license) = naming::license(folder)? {
        header.set("general.license", license.as_str());
    }
    Ok(())
}

/// Checks that the path is a folder that holds a model.
fn check_folder(folder: &Path) -> Result<(), ConvertError> {
    let path = || folder.into();
    if !folder.is_dir() {
        let error = match folder.try_exists() {
            Ok(true) => return Err(ConvertError::NotAFolder { path: path() }),
            Ok(false) => std::io::ErrorKind::NotFound.into(),
            Err(error) => error,
        };
        let path = path();
        return Err(HfError::Read { path, error }.into());
    }
    let is_adapter = folder.join("adapter_config.json").exists();
    if is_adapter && !folder.join("config.json").exists() {
        return Err(ConvertError::Adapter { path: path() });
    }
    Ok(())
}

impl Conversion {
    /// Reads and checks a folder. No weights are read yet.
    ///
    /// # Errors
    /// [`ConvertError`].
    pub fn plan(folder: &Path, options: &Options<'_>) -> Result<Self, ConvertError> {
        check_folder(folder)?;
        let mut warnings = Vec::new();
        let path = folder.join("config.json");
        let whole = Config::new(&path, read_json(&path)?);
        let family = Family::of(&whole, &path)?;
        let config = family.text_config(whole)?;
        family.check(&config)?;
        let rope = RotarySettings::read(family, &config)?;
        let mut weights = Weights::open(folder)?;
        let files = TokenizerFiles::read(folder)?;
        let mut shape = read_shape(folder, family, &config, &files, &mut weights, &mut warnings)?;
        let generation = read_generation(folder, &mut warnings)?;

        let mut header = GgufHeader::new();
        header.set("general.architecture", family.architecture);
        let factors = rope.factors(&mut header, &shape)?;
        let block = scale_block(&config)?;
        let n_layer = shape.n_layer;
        let mut layout = Layout::new(&weights, header, family, n_layer, block, &mut warnings);
        use_own_head(&mut layout, family, &mut shape, &mut warnings)?;
        let guessed = FloatType::of(&weights);
        let guessed_type = |name: &str, dims: &[u64]| guessed.type_of(name, dims);
        let types = (guessed.file_type(), &guessed_type as &TypeOf<'_>);
        let (file_type, type_of) = options.types.unwrap_or(types);
        layout.add_numbers(factors);
        let all = all_tensors(family, &shape, &|name| layout.dims(name));
        layout.place(folder, all, type_of)?;
        layout.warn_of_ignored(&mut warnings);
        layout.check_rest(family, shape.is_tied)?;
        let Layout {
            mut header,
            sources,
            ..
        } = layout;

        write_names(&mut header, folder, options, &generation, &mut warnings)?;
        Description {
            folder,
            family,
            config: &config,
            shape: &shape,
            rope: &rope,
            file_type,
            header: &mut header,
            warnings: &mut warnings,
        }
        .write()?;
        header.set("general.quantization_version", QUANTIZATION_VERSION);
        let vocabulary = write_tokenizer(
            &mut header,
            &files,
            family,
            &config,
            &generation,
            options,
            &mut warnings,
        )?;
        write_suppressed(&mut header, &generation, &vocabulary, &mut warnings)?;
        files.check_rest(&mut warnings)?;
        rope.check_rest(family, &mut warnings)?;
        check_config(&config, family.architecture, &mut warnings)?;
        check_opens(folder, &header)?;
        Ok(Self {
            weights,
            header,
            sources,
            warnings,
        })
    }

    /// Information in the folder that the file does not keep, a sentence each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The header of the file to write.
    #[must_use]
    pub const fn header(&self) -> &GgufHeader {
        &self.header
    }
}

/// Uses an output matrix that differs from the embedding, although the two are tied by config.json.
fn use_own_head(
    layout: &mut Layout<'_>,
    family: &Family,
    shape: &mut Shape,
    warnings: &mut Vec<String>,
) -> Result<(), ConvertError> {
    if shape.is_tied && layout.has_own_head(family)? {
        shape.is_tied = false;
        let what = "lm_head.weight is the output matrix, since it differs from the embedding, although config.json \
                    says that they are one (tie_word_embeddings)";
        warnings.push(what.into());
    }
    Ok(())
}

/// Whether the engine can open the file, before the weights are written.
fn check_opens(folder: &Path, header: &GgufHeader) -> Result<(), ConvertError> {
    let bytes = header.bytes();
    let gguf = Gguf::parse(&bytes, header.file_bytes()).map_err(|error| error.to_string());
    gguf.and_then(|gguf| check_header(&gguf))
        .map_err(|reason| ConvertError::WouldNotOpen {
            path: folder.into(),
            reason,
        })
}

/// Version of the layout of quantised blocks; 2 since 2023 (`GGML_QNT_VERSION`).
const QUANTIZATION_VERSION: u32 = 2;

fn size_label(header: &GgufHeader) -> String {
    let (mut shared, mut expert, mut n_expert) = (0, 0, 0);
    for tensor in header.tensors() {
        let n = tensor.dims.iter().product::<u64>();
        // Biases and scales of experts have fewer dimensions.
        if tensor.name.contains("_exps.") && tensor.dims.len() > 2 {
            n_expert = tensor.dims[2];
            expert += n / n_expert;
        } else {
            shared += n;
        }
    }
    naming::size_label(shared, expert, n_expert)
}

/// Writes the vocabulary and the special tokens.
fn write_tokenizer(
    header: &mut GgufHeader,
    files: &TokenizerFiles,
    family: &Family,
    config: &Config,
    generation: &Config,
    options: &Options<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vocabulary, ConvertError> {
    let own = family.vocabulary();
    let rules = Rules {
        n_vocab: config.maybe_count(&["vocab_size"])?,
        words: own.words,
        pre: options.pre,
    };
    let vocabulary = Vocabulary::read(files, rules, warnings)?;
    // Written before the tokens for Llama-like models, after them for others that have it.
    let prefix = "tokenizer.ggml.add_space_prefix";
    let flag = files.about.bool("add_prefix_space");
    let flag = flag.filter(|_| vocabulary.is_sentencepiece());
    if let Some(flag) = flag.filter(|_| family.is_llama()) {
        header.set(prefix, flag);
    }
    for &(key, flag) in own.flags {
        header.set(&format!("tokenizer.ggml.{key}"), flag);
    }
    vocabulary.write(header);
    let ends = end_tokens(generation, config);
    let mut special = Special::read(
        files.folder(),
        files,
        config,
        &ends,
        family,
        &vocabulary,
        warnings,
    )?;
    // llama.cpp recognises two vocabularies by their size: CodeLlama and Granite's small models.
    match vocabulary.n_vocab() {
        n_vocab @ 32_016 if family.is_llama() && vocabulary.is_sentencepiece() => {
            special.set_id("eot", Some(32_010), n_vocab);
        }
        49_152 if family.is_llama() => special.set_add("bos", false),
        _ => {}
    }
    special.write(header);
    if let Some(flag) = flag.filter(|_| own.has_space_flag) {
        header.set(prefix, flag);
    }
    if own.words == Words::Gemma4 {
        header.set(prefix, false);
        header.set("tokenizer.ggml.add_bos_token", true);
    }
    Ok(vocabulary)
}

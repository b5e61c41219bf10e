//! Models: opened from a file, and loaded into memory.

mod loading;
mod sparse;

use crate::encode::{EncodeError, encode};
use crate::experts::{ExpertStore, HeadExperts};
use crate::file::{FileError, LoadMode, ModelFile};
use crate::head::Heads;
use crate::identity::{Identity, ModelIdentity};
use crate::load::ModelMemory;
use crate::owned::{Borrower, Owned};
use crate::sparse_modes::{SparseError, SparsePlan, SparseSetup};
use crate::team::Team;
use core::error::Error;
use core::fmt;
use core::ops::{Deref, Range};
use sha2::{Digest as _, Sha256};
use sluice_core::engine::ExpertSource;
use sluice_core::gguf::{Gguf, optional};
use sluice_core::head;
use sluice_core::model::{self, Activation, ModelConfig, ModelError, ModelPlan};
use sluice_core::tokenizer::{self, EncodeOptions, Tokenizer};
use std::path::Path;
use std::sync::Arc;

pub use crate::load::LoadError;
pub use loading::LoadOptions;

/// A model in memory: weights, tokenizer, and the file they are from. A clone is the same model; the
/// memory is freed with the last one, or with the last session over it.
///
/// For queries about its file, see [`ModelSource`].
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) weights: Arc<Owned<Weights, WeightsMemory>>,
    pub(crate) heads: Arc<Heads>,
    pub(crate) opened: ModelSource,
    /// The store of its experts, if they stay on disk.
    pub(crate) experts: Option<Arc<ExpertStore>>,
    /// For a head that predicts a token further, the place of its experts in the trunk's store.
    pub(crate) head_experts: Option<HeadExperts>,
    /// The longest part of weight memory without experts, if these are stored in between and stay on disk.
    pub(crate) dense: Option<Range<usize>>,
    /// Whether its weights are a `.slc` file's bytes, rather than converted from the file.
    pub(crate) is_in_place: bool,
    pub(crate) identity: ModelIdentity,
    /// The neurons that its steps leave out.
    pub(crate) sparse: Option<SparsePlan>,
}

/// What weights borrow from; for a head that predicts a token further, its trunk too.
pub(crate) type WeightsMemory = (ModelMemory, ModelSource, Option<Model>);

/// A model's file, read up to its tokenizer: enough to count tokens and to determine what a model
/// needs. A clone is the same file.
#[derive(Clone, Debug)]
pub struct ModelSource {
    head: Arc<Owned<Head<'static>, (ModelFile, Vec<u32>)>>,
    /// The shape, and what it stands for, of a model that runs differently from what its file says.
    variant: Option<(Arc<ModelConfig>, Arc<str>)>,
    /// The mode that leaves neurons out, if results differ by it.
    pub(crate) sparse: Option<Arc<SparseSetup>>,
}

/// Why a model was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file cannot be read, or is not a model file.
    #[error(transparent)]
    File(#[from] FileError),
    /// It does not hold a model that can be run.
    #[error("{name}: {reason}")]
    Unusable {
        /// The file.
        name: String,
        /// Why not.
        reason: Box<dyn Error + Send + Sync>,
    },
    /// The weights were not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The mode that leaves neurons out does not fit.
    #[error(transparent)]
    Sparse(#[from] SparseError),
    /// No threads to load them with.
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
}

impl Model {
    /// Opens the GGUF or `.slc` file at `path` and loads it with the threads of this machine. The
    /// file is mapped, so it must not change meanwhile ([`LoadMode::Map`]); a `.slc` file stays
    /// mapped.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let opened = ModelSource::open(path, LoadMode::Map)?;
        let team = Team::of_machine().map_err(OpenError::Threads)?;
        Ok(opened.load(&team)?)
    }

    /// The weights, as core uses them.
    #[must_use]
    pub fn weights(&self) -> &model::ModelWeights<'_> {
        self.weights.get()
    }

    /// Memory that steps read weights from, to measure how fast that is: without experts that stay on disk.
    #[must_use]
    pub fn probe_memory(&self) -> &[u8] {
        let memory = self.weights().weight_memory();
        match &self.dense {
            Some(range) => &memory[range.clone()],
            None => memory,
        }
    }

    /// The model's shape. A head that predicts a token further has another shape than the file.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        self.weights().config()
    }

    /// The store of its experts, if they stay on disk.
    #[must_use]
    pub fn experts(&self) -> Option<&ExpertStore> {
        self.experts.as_deref()
    }

    /// Lends experts that stay on disk to its steps.
    pub(crate) fn expert_source(&self) -> Option<&dyn ExpertSource> {
        let own = self.experts().map(|store| store as _);
        let of_head = self.head_experts.as_ref();
        of_head.map_or(own, |experts| Some(experts))
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }

    /// What stands for its weights: the SHA-256 of its file, where that is known.
    #[must_use]
    pub const fn identity(&self) -> &ModelIdentity {
        &self.identity
    }

    /// One text for as long as the model is loaded: the SHA-256 of its GGUF file if it was known when loading ended,
    /// otherwise the hash of the file's header and `-u` (unverified).
    #[must_use]
    pub fn fingerprint(&self) -> String {
        match self.identity.hash_at_load() {
            Some(hash) => hash.to_string(),
            None => {
                let header = Sha256::digest(self.gguf().header_bytes());
                let header = self.identity.of_variant(Identity(header.into()));
                format!("{header}-u")
            }
        }
    }
}

impl Deref for Model {
    type Target = ModelSource;

    fn deref(&self) -> &ModelSource {
        &self.opened
    }
}

impl ModelSource {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// [`OpenError`]: it cannot be read, is not a model file, or not one that can be run.
    pub fn open(path: impl AsRef<Path>, mode: LoadMode) -> Result<Self, OpenError> {
        Self::of_file(ModelFile::open(path.as_ref(), mode)?)
    }

    /// From an open file, or a model that is part of the program.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of_file(file: ModelFile) -> Result<Self, OpenError> {
        let owned = Owned::new((file, Vec::new()), |(file, words)| Head::new(file, words))?;
        Ok(Self {
            head: Arc::new(owned),
            variant: None,
            sparse: None,
        })
    }

    /// The model with another activation of its gates than its file says, as a part of its identity: for files of
    /// models with zeros that do not name their activation. The file's own changes nothing.
    ///
    /// # Errors
    /// [`OpenError::Unusable`]: another activation cannot take the place of the model's own.
    pub fn with_activation(&self, activation: Activation) -> Result<Self, OpenError> {
        let own = &self.head.get().config;
        if own.activation() == Some(activation) {
            return Ok(Self {
                variant: None,
                ..self.clone()
            });
        }
        let changed = own.clone().with_activation(activation);
        let config = changed.map_err(|error| OpenError::Unusable {
            name: self.name().to_owned(),
            reason: Box::new(error),
        })?;
        let text = format!("activation {activation}");
        Ok(Self {
            variant: Some((Arc::new(config), text.into())),
            ..self.clone()
        })
    }

    /// The activation that the file names, or that its architecture implies, if it has zeros and another one replaces it.
    #[must_use]
    pub fn replaced_activation(&self) -> Option<Activation> {
        let own = self.head.get().config.activation();
        own.filter(|own| self.variant.is_some() && own.has_zeros())
    }

    /// The activation that is not the file's own, as a text.
    pub(crate) fn activation_variant(&self) -> Option<Arc<str>> {
        self.variant.as_ref().map(|(_, text)| Arc::clone(text))
    }

    /// What the model differs by from what its file says.
    pub(crate) fn variant(&self) -> Option<Arc<str>> {
        let activation = self.activation_variant();
        let Some(sparse) = &self.sparse else {
            return activation;
        };
        let activation = activation
            .map(|text| format!("{text}; "))
            .unwrap_or_default();
        Some(format!("{activation}{}", sparse.text).into())
    }

    /// The same file again, as long as it is open.
    pub(crate) fn weak(&self) -> impl Fn() -> Option<Self> + Send + use<> {
        let (weak, variant) = (Arc::downgrade(&self.head), self.variant.clone());
        let sparse = self.sparse.clone();
        move || {
            Some(Self {
                head: weak.upgrade()?,
                variant: variant.clone(),
                sparse: sparse.clone(),
            })
        }
    }

    /// The path as given, or the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.file().name()
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &ModelFile {
        self.head.get().file
    }

    /// The file's header.
    #[must_use]
    pub fn gguf(&self) -> &Gguf<'_> {
        &self.head.get().gguf
    }

    /// The shape of the model itself, without a head that may follow it.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        match &self.variant {
            Some((config, _)) => config,
            None => &self.head.get().config,
        }
    }

    /// The vocabulary.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer<'_> {
        &self.head.get().tokenizer
    }

    /// The Jinja template that makes prompts of conversations, if the file has one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        optional(self.gguf().str("tokenizer.chat_template")).ok()?
    }

    /// Whether it is an encoder: it gives embeddings, and cannot continue a text.
    #[must_use]
    pub fn embeds(&self) -> bool {
        !self.config().is_causal
    }

    /// The tokens of `text`, with the tokens that the model expects around it. `parse_special` reads names of
    /// control tokens in it as those tokens: for text that the program wrote itself.
    ///
    /// # Errors
    /// [`EncodeError`].
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, EncodeError> {
        let options = EncodeOptions {
            add_special: true,
            parse_special,
        };
        self.encode_with(text, options)
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// [`EncodeError`].
    pub fn encode_with(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, EncodeError> {
        encode(self.tokenizer(), text, options)
    }
}

/// Contents of a file's header.
#[derive(Debug)]
struct Head<'a> {
    file: &'a ModelFile,
    gguf: Gguf<'a>,
    config: ModelConfig,
    tokenizer: Tokenizer<'a>,
}

impl<'a> Head<'a> {
    /// Reads the header; `words` is resized for the vocabulary's tables.
    fn new(file: &'a ModelFile, words: &'a mut Vec<u32>) -> Result<Self, OpenError> {
        let gguf = file.parse()?;
        let unusable = |reason: String| OpenError::Unusable {
            name: file.name().to_owned(),
            reason: reason.into(),
        };
        let (config, tokenizer) = read_header(&gguf, words).map_err(unusable)?;
        Ok(Self {
            file,
            gguf,
            config,
            tokenizer,
        })
    }
}

/// The model and its tokenizer; `words` is resized for the vocabulary's tables.
fn read_header<'a>(
    gguf: &Gguf<'a>,
    words: &'a mut Vec<u32>,
) -> Result<(ModelConfig, Tokenizer<'a>), String> {
    let config = ModelConfig::from_gguf(gguf).map_err(|error| error.to_string())?;
    let plan = tokenizer::plan(gguf).map_err(|error| error.to_string())?;
    words.resize(plan.words, 0);
    let tokenizer = Tokenizer::new(gguf, words).map_err(|error| error.to_string())?;
    // Every token that can be read or chosen must have an embedding and a piece.
    match (config.n_vocab, tokenizer.n_vocab() as usize) {
        (rows, tokens) if rows != tokens => Err(format!(
            "the vocabulary has {tokens} tokens, but the embedding {rows} rows"
        )),
        _ => Ok((config, tokenizer)),
    }
}

/// Reads a header as opening its file does, and finds every tensor of the model.
///
/// # Errors
/// Why a file with this header could not be used.
pub fn check_header(gguf: &Gguf<'_>) -> Result<(), String> {
    let mut words = Vec::new();
    let (config, _) = read_header(gguf, &mut words)?;
    let told = |error: ModelError| error.to_string();
    ModelPlan::new(gguf, &config).map_err(told)?;
    head::Head::of_embeddings(gguf, &config).map_err(told)?;
    head::Head::of_ranking(gguf, &config).map_err(told)?;
    Ok(())
}

impl Borrower for Head<'static> {
    type Of<'a> = Head<'a>;

    fn shorten<'s, 'a: 's>(value: &'s Head<'a>) -> &'s Head<'s> {
        value
    }
}

/// Weights in memory.
pub(crate) struct Weights;

impl Borrower for Weights {
    type Of<'a> = model::ModelWeights<'a>;

    fn shorten<'s, 'a: 's>(value: &'s model::ModelWeights<'a>) -> &'s model::ModelWeights<'s> {
        value
    }
}

impl fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadOptions").finish_non_exhaustive()
    }
}

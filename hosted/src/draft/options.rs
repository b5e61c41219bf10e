//! What a program chooses of drafting, before a model is named.

use super::{DraftSource, SpeculationSetup};
use crate::file::LoadMode;
use crate::speculate::SpeculationOptions;
use core::str::FromStr;
use sluice_core::kernels::KvType;
use std::path::PathBuf;

/// A source of draft tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    /// Nothing drafts.
    None,
    /// [`Self::Ngram`], with [`Self::Model`] where a draft model is given, else with [`Self::Head`] where the file has
    /// one.
    Auto,
    /// Repetitions in the text and earlier texts.
    Ngram,
    /// A smaller model.
    Model,
    /// A 2-bit copy of the model itself.
    Copy,
    /// The model's own head for further tokens.
    Head,
}

/// Parses llama.cpp's names, and `draft-self`.
impl FromStr for DraftKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "none" => Self::None,
            "auto" => Self::Auto,
            "ngram" | "ngram-simple" | "ngram-map-k" | "ngram-map-k4v" | "ngram-mod"
            | "ngram-cache" => Self::Ngram,
            "draft-simple" | "draft" => Self::Model,
            "draft-self" | "self" => Self::Copy,
            "draft-mtp" | "mtp" => Self::Head,
            "draft-eagle3" | "draft-dflash" | "draft-dspark" => {
                return Err("models that are trained to draft for another are not supported");
            }
            _ => return Err("expected auto, ngram, draft-simple, draft-mtp, draft-self or none"),
        })
    }
}

/// What drafts, and how far.
#[derive(Clone, Debug)]
pub struct DraftOptions {
    /// The sources; [`DraftKind::Auto`] by default.
    pub kinds: Vec<DraftKind>,
    /// The file of a draft model, which needs the same vocabulary.
    pub model: Option<PathBuf>,
    /// Maximum number of draft tokens per text and step; by default 8, or 4 if the model is recurrent.
    pub n_max: Option<usize>,
    /// Minimum number of draft tokens that is worth verifying; 0 by default.
    pub n_min: usize,
    /// Drafting stops at a token that the draft model finds less probable; 0 by default.
    pub p_min: f32,
    /// Whether all draft tokens are verified, even where it does not pay; false by default.
    pub is_fixed: bool,
    /// Number of threads of the draft model; `None` for the model's.
    pub n_threads: Option<usize>,
    /// Context of the draft model in tokens; 0 (the default) for the model's. Longer texts continue without it.
    pub n_ctx: usize,
    /// Type of the draft model's keys; `None` for the model's.
    pub type_k: Option<KvType>,
    /// Type of the draft model's values; `None` for the model's.
    pub type_v: Option<KvType>,
}

impl Default for DraftOptions {
    fn default() -> Self {
        Self {
            kinds: vec![DraftKind::Auto],
            model: None,
            n_max: None,
            n_min: 0,
            p_min: 0.0,
            is_fixed: false,
            n_threads: None,
            n_ctx: 0,
            type_k: None,
            type_v: None,
        }
    }
}

impl DraftOptions {
    /// Whether `kind` is among the sources.
    #[must_use]
    pub fn has(&self, kind: DraftKind) -> bool {
        self.kinds.contains(&kind)
    }

    /// The file of the draft model, if it drafts.
    #[must_use]
    pub fn draft_model(&self) -> Option<&PathBuf> {
        let is_used = self.has(DraftKind::Model) || self.has(DraftKind::Auto);
        self.model.as_ref().filter(|_| is_used)
    }

    /// # Errors
    /// What is wrong with [`Self::kinds`]: they contradict each other, or do not go with [`Self::model`].
    pub fn check(&self) -> Result<(), &'static str> {
        let models = [
            self.draft_model().is_some(),
            self.has(DraftKind::Copy),
            self.has(DraftKind::Head),
        ];
        if self.kinds.len() > 1 && (self.has(DraftKind::None) || self.has(DraftKind::Auto)) {
            Err("none and auto cannot be combined with other types")
        } else if self.has(DraftKind::Model) && self.model.is_none() {
            Err("draft-simple needs a draft model")
        } else if self.model.is_some() && self.draft_model().is_none() {
            Err("a draft model is given, but draft-simple is not among the types")
        } else if models.into_iter().filter(|&is_one| is_one).count() > 1 {
            Err("only one model can draft: choose one of draft-simple, draft-mtp and draft-self")
        } else {
            Ok(())
        }
    }

    /// How to draft for a model whose weights are loaded with `load_mode`; `None` if nothing drafts. A 2-bit copy is
    /// not included: [`Self::copied`] is its source.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn setup(&self, load_mode: LoadMode) -> Result<Option<SpeculationSetup>, &'static str> {
        self.check()?;
        if self.has(DraftKind::None) {
            return Ok(None);
        }
        let path = self.draft_model().cloned();
        Ok(Some(SpeculationSetup {
            options: SpeculationOptions {
                n_min: self.n_min.max(1),
                p_min: self.p_min,
                ngrams: self.has(DraftKind::Ngram) || self.has(DraftKind::Auto),
                is_fixed: self.is_fixed,
                ..SpeculationOptions::default()
            },
            n_max: self.n_max,
            draft: path.map(|path| self.source(path, "draft-simple", load_mode)),
            head: self.has(DraftKind::Auto) || self.has(DraftKind::Head),
        }))
    }

    /// The 2-bit copy of a model at `path` as its draft model.
    #[must_use]
    pub fn copied(&self, path: PathBuf) -> DraftSource {
        DraftSource {
            rescores: true,
            ..self.source(path, "draft-self", LoadMode::Read)
        }
    }

    fn source(&self, path: PathBuf, name: &'static str, load_mode: LoadMode) -> DraftSource {
        DraftSource {
            path,
            name,
            rescores: false,
            load_mode,
            n_threads: self.n_threads,
            n_ctx: self.n_ctx,
            type_k: self.type_k,
            type_v: self.type_v,
        }
    }
}

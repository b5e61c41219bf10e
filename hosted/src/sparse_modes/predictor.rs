//! Predictors of active neurons, read from their files: MODEL.sparse.gguf, or the model's own of PowerInfer.

use super::error::{SparseError, Subject};
use crate::file::{LoadMode, ModelFile};
use crate::host::memory::AlignedMemory;
use crate::identity::identify;
use crate::owned::{Borrower, Owned};
use core::fmt;
use sluice_core::gguf::Gguf;
use sluice_core::model::{ModelError, PowerInfer, Predictor, PredictorPlan};
use std::path::{Path, PathBuf};

/// The key of the fingerprint of the model that a predictor was made for.
pub const PREDICTOR_MODEL: &str = "predictor.model";
/// `general.architecture` of a predictor's file.
pub const PREDICTOR_ARCHITECTURE: &str = "predictor";

/// Where the predictor of the model at `model` is found by itself: `MODEL.sparse.gguf` next to it.
#[must_use]
pub fn predictor_beside(model: &Path) -> PathBuf {
    model.with_extension("sparse.gguf")
}

/// A predictor in memory.
pub(crate) struct LoadedPredictor {
    predictor: Owned<Predictors, AlignedMemory>,
    /// What stands for it in the model's identity.
    pub(crate) text: String,
}

impl LoadedPredictor {
    /// The predictor of a model: of the file at `path`, else the model's own, else of the file next to the model.
    pub(crate) fn open(subject: &Subject<'_>, path: Option<&Path>) -> Result<Self, SparseError> {
        if path.is_none() && has_predictor(subject.file) {
            let text = "own predictor".to_owned();
            return Self::read(subject, subject.file, text);
        }
        let path = match path {
            Some(path) => path.to_path_buf(),
            None => predictor_beside(Path::new(subject.name)),
        };
        let shown = path.display().to_string();
        if !path.exists() {
            return Err(SparseError::NoPredictor {
                path: shown,
                model: subject.name.to_owned(),
            });
        }
        let file = ModelFile::open(&path, LoadMode::Read)?;
        let gguf = file.parse()?;
        let lacks = |why: &str| SparseError::Lacks {
            path: shown.clone(),
            why: why.to_owned(),
        };
        if gguf.str("general.architecture").ok() != Some(PREDICTOR_ARCHITECTURE) {
            let why = "expected a predictor's file, as sluice sparsify --predictor writes it";
            return Err(lacks(why));
        }
        let Ok(found) = gguf.str(PREDICTOR_MODEL) else {
            return Err(lacks("predictor.model is missing"));
        };
        let expected = (subject.fingerprint)()?.to_string();
        if found != expected {
            return Err(SparseError::OtherModel {
                path: shown,
                model: subject.name.to_owned(),
                expected,
                found: found.to_owned(),
            });
        }
        let text = format!("predictor {}", identify(&file, None, |_| true)?);
        Self::read(subject, &file, text)
    }

    fn read(subject: &Subject<'_>, file: &ModelFile, text: String) -> Result<Self, SparseError> {
        let gguf = file.parse()?;
        let wrong = |error: ModelError| SparseError::Lacks {
            path: file.name().to_owned(),
            why: error.to_string(),
        };
        let plan = PredictorPlan::new(&gguf, subject.config).map_err(wrong)?;
        let memory =
            AlignedMemory::zeroed(plan.memory_bytes).map_err(SparseError::PredictorMemory)?;
        let predictor = Owned::new(memory, |memory| {
            Predictor::load(&gguf, subject.config, file.source(), memory)
        });
        Ok(Self {
            predictor: predictor.map_err(wrong)?,
            text,
        })
    }

    pub(crate) fn get(&self) -> &Predictor<'_> {
        self.predictor.get()
    }
}

impl fmt::Debug for LoadedPredictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.get(), f)
    }
}

/// Whether a model's file has a predictor of its own, as PowerInfer's have.
fn has_predictor(file: &ModelFile) -> bool {
    let of = |gguf: &Gguf<'_>| PowerInfer::of(gguf).is_some_and(|own| own.n_predictors > 0);
    file.parse().is_ok_and(|gguf| of(&gguf))
}

/// Predictors.
struct Predictors;

impl Borrower for Predictors {
    type Of<'a> = Predictor<'a>;

    fn shorten<'s, 'a: 's>(value: &'s Predictor<'a>) -> &'s Predictor<'s> {
        value
    }
}

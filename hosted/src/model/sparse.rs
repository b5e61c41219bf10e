//! Models of which neurons are left out.

use super::{Model, ModelSource};
use crate::experts::ExpertStore;
use crate::file::HashRecords;
use crate::identity::{HashError, Identity, ModelIdentity, identify};
use crate::sparse_modes::{
    NormsError, SparseError, SparseMode, SparsePlan, SparseSetup, Subject, neuron_norms,
};
use sluice_core::kernels::neuron::Form;
use std::path::Path;
use std::sync::Arc;

impl ModelSource {
    /// The model with a mode that leaves neurons out, as a part of its identity; [`SparseMode::Exact`] and
    /// [`SparseMode::Off`] change nothing. `file` is the calibration file of modes that need one, by default the one next to
    /// the model ([`crate::sparse_modes::SparseFile::next_to`]).
    ///
    /// # Errors
    /// [`SparseError`]: the file is missing, or another model's; the model does not allow the mode.
    pub fn with_sparse(&self, mode: SparseMode, file: Option<&Path>) -> Result<Self, SparseError> {
        if !mode.is_approximate() {
            return match file {
                Some(_) => Err(SparseError::NeedlessFile(mode)),
                None => Ok(self.clone()),
            };
        }
        let subject = Subject {
            config: self.config(),
            name: self.name(),
            file: self.file(),
            fingerprint: &|| self.calibrated_fingerprint(),
        };
        Ok(Self {
            sparse: Some(Arc::new(SparseSetup::new(&subject, mode, file)?)),
            ..self.clone()
        })
    }

    /// The fingerprint that calibration files of this model have: the SHA-256 of its file, and its activation where that is
    /// not the file's own. The file is read once where that hash is not known.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn calibrated_fingerprint(&self) -> Result<Identity, HashError> {
        let records = HashRecords::of_user();
        let known = ModelIdentity::of_file(self.file(), records.clone());
        let hash = match known.hash() {
            Some(hash) => hash,
            None => identify(self.file(), records.as_ref(), |_| true)?,
        };
        Ok(known
            .with_variant(self.activation_variant())
            .of_variant(hash))
    }

    /// Whether its file stores tensors of feed-forward networks by neuron: others have none to leave unread.
    #[must_use]
    pub fn is_by_neuron(&self) -> bool {
        let slc = self.file().slc().ok().flatten();
        slc.is_some_and(|slc| slc.tensors().any(|(_, tensor)| tensor.form != Form::Panels))
    }
}

impl Model {
    /// The mode that its steps leave neurons out by, if it changes results.
    #[must_use]
    pub const fn sparse_plan(&self) -> Option<&SparsePlan> {
        self.sparse.as_ref()
    }

    /// Norms of the columns of all down matrices, as [`sluice_core::engine::Approximation::norms`] has them; by `n_threads`.
    ///
    /// # Errors
    /// [`NormsError`]: experts or neurons stay on disk, or memory is short.
    pub fn neuron_norms(&self, n_threads: usize) -> Result<Vec<f32>, NormsError> {
        match self.has_cold_neurons() {
            true => Err(NormsError::OnDisk),
            false => neuron_norms(self.weights(), n_threads),
        }
    }

    /// Whether some of its weights are zeros until a step needs them.
    pub(crate) fn has_cold_neurons(&self) -> bool {
        self.experts().is_some_and(ExpertStore::lends_neurons)
    }

    /// The same model in memory with a mode, as [`ModelSource::with_sparse`].
    ///
    /// # Errors
    /// As [`ModelSource::with_sparse`].
    pub fn with_sparse(
        &self,
        mode: SparseMode,
        file: Option<&Path>,
        n_threads: usize,
    ) -> Result<Self, SparseError> {
        let opened = self.opened.with_sparse(mode, file)?;
        let has_cold = self.has_cold_neurons();
        let plan = opened.sparse.as_ref();
        let plan = plan.map(|setup| SparsePlan::new(setup, self.weights(), n_threads, has_cold));
        Ok(Self {
            sparse: plan.transpose()?,
            identity: self.identity.clone().with_variant(opened.variant()),
            opened,
            ..self.clone()
        })
    }
}

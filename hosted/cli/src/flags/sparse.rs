//! Flags of neurons that are left unread, or out.

use clap::Args;
use sluice::model::ModelSource;
use sluice::sparse::{SparseError, SparseMode};
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
pub(crate) struct SparseArgs {
    /// Set which neurons of feed-forward networks are left unread: exact, off, or a mode that changes results
    ///
    /// exact skips those that change no bit of a result, in a file of `sluice pack --ffn neuron` and for few tokens at a
    /// time: `--sparse exact` refuses other files. By default exact where the file allows it.
    ///
    /// These change results, by a signal of each neuron (gate, product or contribution, appended as in `top-k:512:gate`;
    /// by default gate where the activation has zeros, else contribution): threshold leaves out those below a threshold
    /// of their layer, from the file of `sluice sparsify`, or below threshold:X in all layers. target keeps the share of
    /// neurons that the file was made for, or target:SHARE, the largest of each row. top-k:N keeps N of each network.
    /// budget:SHARE leaves out the smallest contributions, up to an error of that share of the root of the sum of their
    /// squares. predictor computes the neurons that a predictor chooses from what the network reads, of
    /// `sluice sparsify --predictor` or of a file of PowerInfer. Prompt caches are kept apart by mode.
    #[arg(long, value_name = "MODE[:VALUE]")]
    pub(crate) sparse: Option<SparseMode>,
    /// Set the calibration file of --sparse threshold and target, or the predictor
    ///
    /// As `sluice sparsify` writes them. By default MODEL.sparse.json and MODEL.sparse.gguf next to the model.
    #[arg(long, value_name = "FILE", requires = "sparse")]
    pub(crate) sparse_file: Option<PathBuf>,
}

impl SparseArgs {
    /// The model with the mode, if it changes results.
    ///
    /// # Errors
    /// The calibration file is missing or another model's; the model does not allow the mode.
    pub(crate) fn of(&self, file: &ModelSource) -> Result<ModelSource, SparseError> {
        let mode = self.sparse.unwrap_or(SparseMode::Exact);
        file.with_sparse(mode, self.sparse_file.as_deref())
    }
}

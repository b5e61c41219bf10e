//! What is known of a model while it sleeps.

use super::Loaded;
use sluice::sparse::SparseMode;

/// What `/props` shows of a model. It is kept while the model sleeps.
#[derive(Clone, Debug)]
pub(crate) struct Outline {
    pub(crate) name: String,
    /// Maximum number of tokens of all texts together.
    pub(crate) n_ctx: usize,
    /// Maximum number of texts at once.
    pub(crate) n_seq: usize,
    pub(crate) speculates: bool,
    /// Which neurons are left unread, or out: the mode.
    pub(crate) sparse: String,
    pub(crate) fingerprint: String,
    /// The chat template.
    pub(crate) template: String,
    /// The texts of the first and the last token.
    pub(crate) ends: [Option<String>; 2],
}

impl Outline {
    pub(crate) fn of(loaded: &Loaded) -> Self {
        let (bos, eos) = loaded.prompts().ends();
        Self {
            name: loaded.name().to_owned(),
            n_ctx: loaded.n_ctx(),
            n_seq: loaded.n_seq(),
            speculates: loaded.speculates(),
            sparse: {
                let mode = loaded.model().sparse_mode(loaded.limits().sparse);
                mode.unwrap_or(SparseMode::Off).to_string()
            },
            fingerprint: loaded.fingerprint().to_owned(),
            template: loaded.prompts().source().to_owned(),
            ends: [bos, eos].map(|text| text.map(str::to_owned)),
        }
    }
}

//! The model embedded in the program, so that it runs without any file.

use sluice::file::{FileError, ModelFile};

/// A 5.8M-parameter story model trained for this project, in Q4_K_M.
static TALE: &[u8] = include_bytes!("../../../models/tale-5.8m-Q4_K_M.gguf");

/// The default prompt.
pub(crate) const DEFAULT_PROMPT: &str = "Once upon a time";

pub(crate) fn open() -> Result<ModelFile, FileError> {
    ModelFile::from_static("tale-5.8m-Q4_K_M.gguf (embedded)", TALE)
}

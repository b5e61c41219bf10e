//! Requests to load adapters.

use std::path::PathBuf;

/// A request to read an adapter, which requests for text can name then.
#[derive(Clone, Debug)]
pub struct AdapterRequest {
    /// The name it gets, which no model has.
    pub name: String,
    /// Its file or folder.
    pub path: PathBuf,
    /// The model that it is for; `None` for the first one, or the replaced adapter's.
    pub model: Option<String>,
    /// Whether it replaces an adapter of the same name, which is an error otherwise.
    pub replaces: bool,
}

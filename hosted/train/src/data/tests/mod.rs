mod labels;
mod sets;

use super::{Dataset, prepare};
use crate::test_vocabulary::TestFolder;

impl TestFolder {
    /// The rows of a configuration, or the error without the folder's path.
    fn prepare(&self, text: &str) -> Result<Dataset, String> {
        let prepared = prepare(&self.config(text), &self.vocabulary("vocabulary.gguf"));
        prepared.map_err(|error| self.shortened(&error.to_string()))
    }
}

//! A model as families see it: to list its tensors, and to describe it in metadata.

use super::rope::Rope;
use super::{Family, Shape};
use crate::HfError;
use crate::config::Config;
use sluice::file::GgufHeader;
use std::path::Path;

/// A model whose tensors are listed.
pub(super) struct Model<'a> {
    pub(super) family: &'a Family,
    pub(super) shape: &'a Shape,
    /// Whether the folder has a tensor with this name.
    pub(super) has: &'a dyn Fn(&str) -> bool,
}

/// A model that is described.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The folder that describes an encoder's pooling.
    pub folder: &'a Path,
    /// Its family.
    pub family: &'a Family,
    /// Its configuration.
    pub config: &'a Config,
    /// Its sizes.
    pub shape: &'a Shape,
    /// Its rotary embedding.
    pub rope: &'a Rope,
    /// llama.cpp's file type number.
    pub file_type: u32,
}

impl Parts<'_> {
    /// Writes the family's metadata.
    ///
    /// # Errors
    /// [`HfError`], with the file and the key.
    pub fn write(
        &self,
        header: &mut GgufHeader,
        warnings: &mut Vec<String>,
    ) -> Result<(), HfError> {
        (self.family.traits.write)(header, self, warnings)?;
        header.set("general.file_type", self.file_type);
        Ok(())
    }
}

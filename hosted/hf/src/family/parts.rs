//! A model as families see it: to list its tensors, and to describe it in metadata.

use super::super::ConvertError;
use super::super::config::Config;
use super::rope::Rope;
use super::{Family, Shape};
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
pub(in crate::convert) struct Parts<'a> {
    /// The folder that describes an encoder's pooling.
    pub(in crate::convert) folder: &'a Path,
    pub(in crate::convert) family: &'a Family,
    pub(in crate::convert) config: &'a Config,
    pub(in crate::convert) shape: &'a Shape,
    pub(in crate::convert) rope: &'a Rope,
    /// llama.cpp's file type number.
    pub(in crate::convert) file_type: u32,
}

impl Parts<'_> {
    /// Writes the family's metadata.
    pub(in crate::convert) fn write(
        &self,
        header: &mut GgufHeader,
        warnings: &mut Vec<String>,
    ) -> Result<(), ConvertError> {
        (self.family.traits.write)(header, self, warnings)?;
        header.set("general.file_type", self.file_type);
        Ok(())
    }
}

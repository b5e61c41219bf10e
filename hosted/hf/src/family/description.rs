//! A model as families see it: to list its tensors, and to describe it in metadata.

use super::rope::RotarySettings;
use super::{Family, Shape};
use crate::config::Config;
use sluice::file::{GgufHeader, MetaValue};
use std::path::Path;

/// A model that is described in a file's header.
#[derive(Debug)]
pub struct Description<'a> {
    /// The folder that describes an encoder's pooling.
    pub folder: &'a Path,
    /// Its family.
    pub family: &'a Family,
    /// Its configuration.
    pub config: &'a Config,
    /// Its sizes.
    pub shape: &'a Shape,
    /// Its rotary embedding.
    pub rope: &'a RotarySettings,
    /// llama.cpp's file type number.
    pub file_type: u32,
    /// Where the metadata is written.
    pub header: &'a mut GgufHeader,
    /// What the metadata cannot say.
    pub warnings: &'a mut Vec<String>,
}

impl Description<'_> {
    /// Sets a key of the architecture.
    pub(super) fn set(&mut self, key: &str, value: impl Into<MetaValue>) {
        let key = format!("{}.{key}", self.family.architecture);
        self.header.set(&key, value);
    }

    /// Sets a key of the architecture to a size.
    pub(super) fn set_size(&mut self, key: &str, size: u64) {
        self.set(key, u32::try_from(size).unwrap_or(u32::MAX));
    }
}

//! Metadata keys of a family, without the family's prefix.

use crate::gguf::{Array, Gguf, GgufError, optional};
use crate::model::{ModelError, Name};

/// The metadata of a file under the name of its family: `block_count` is `llama.block_count`.
pub(in crate::model) struct Keys<'g, 'a> {
    gguf: &'g Gguf<'a>,
    prefix: &'static str,
}

impl<'g, 'a> Keys<'g, 'a> {
    pub(in crate::model) const fn new(gguf: &'g Gguf<'a>, prefix: &'static str) -> Self {
        Self { gguf, prefix }
    }

    pub(in crate::model) const fn gguf(&self) -> &'g Gguf<'a> {
        self.gguf
    }

    /// The whole key.
    pub(in crate::model) fn name(&self, key: &str) -> Name {
        Name::format(format_args!("{}.{key}", self.prefix))
    }

    pub(in crate::model) fn size(&self, key: &str) -> Result<usize, GgufError> {
        Ok(self.gguf.u32(self.name(key).as_str())? as usize)
    }

    pub(in crate::model) fn size_or(&self, key: &str, default: usize) -> Result<usize, GgufError> {
        Ok(optional(self.size(key))?.unwrap_or(default))
    }

    pub(in crate::model) fn f32(&self, key: &str) -> Result<f32, GgufError> {
        self.gguf.f32(self.name(key).as_str())
    }

    pub(in crate::model) fn f32_or(&self, key: &str, default: f32) -> Result<f32, GgufError> {
        Ok(optional(self.f32(key))?.unwrap_or(default))
    }

    pub(in crate::model) fn bool_or(&self, key: &str, default: bool) -> Result<bool, GgufError> {
        Ok(optional(self.gguf.bool(self.name(key).as_str()))?.unwrap_or(default))
    }

    pub(in crate::model) fn text(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        optional(self.gguf.str(self.name(key).as_str()))
    }

    /// An array, if the key is present and holds one.
    pub(in crate::model) fn array(&self, key: &str) -> Option<Array<'a>> {
        self.gguf.get(self.name(key).as_str())?.as_array()
    }

    /// A setting out of its range.
    pub(in crate::model) fn refuse(
        &self,
        key: &str,
        value: impl Into<f64>,
        expected: &'static str,
    ) -> ModelError {
        ModelError::Setting {
            key: self.name(key),
            value: value.into(),
            expected,
        }
    }
}

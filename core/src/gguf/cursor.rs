//! Reading forward through header bytes, with every bound checked before use.

use super::HEADER_BYTES_MAX;
use super::error::{GgufError, GgufErrorKind, GgufPlace};

/// A position in the header's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    /// Up to `bytes.len()`, and up to [`HEADER_BYTES_MAX`].
    position: usize,
    /// Length of the file that `bytes` is the start of.
    file_len: u64,
    /// Which part is being read, for error messages.
    place: GgufPlace,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], file_len: u64) -> Self {
        Self {
            bytes,
            position: 0,
            file_len,
            place: GgufPlace::Header,
        }
    }

    /// Over bytes that are complete.
    pub(super) fn at(bytes: &'a [u8], position: u32) -> Self {
        let position = bytes.len().min(position as usize);
        Self {
            bytes,
            position,
            file_len: bytes.len() as u64,
            place: GgufPlace::Header,
        }
    }

    pub(super) fn set_place(&mut self, place: GgufPlace) {
        self.place = place;
    }

    /// Checks that `len` more bytes are there and returns the position after them.
    pub(super) fn room(&self, len: u64) -> Result<usize, GgufError> {
        let end = (self.position as u64).saturating_add(len);
        if end > self.bytes.len() as u64 || end > self.file_len || end > HEADER_BYTES_MAX {
            return Err(self.no_room(end));
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most bytes.len(), a usize"
        )]
        Ok(end as usize)
    }

    #[cold]
    fn no_room(&self, needed: u64) -> GgufError {
        let file_len = self.file_len;
        self.error(
            self.position,
            if needed > file_len {
                GgufErrorKind::Truncated { needed, file_len }
            } else if needed > HEADER_BYTES_MAX {
                GgufErrorKind::OverLimit {
                    what: "header length",
                    value: needed,
                    max: HEADER_BYTES_MAX,
                }
            } else {
                GgufErrorKind::NeedMore { at_least: needed }
            },
        )
    }

    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], GgufError> {
        let end = self.room(len)?;
        let taken = &self.bytes[self.position..end];
        self.position = end;
        Ok(taken)
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64)?);
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, GgufError> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, GgufError> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// A `u64` of at most `max`, which fits in a `u32`.
    pub(super) fn count(&mut self, what: &'static str, max: u64) -> Result<u32, GgufError> {
        let at = self.position;
        let value = self.u64()?;
        match u32::try_from(value) {
            Ok(count) if value <= max => Ok(count),
            _ => Err(self.error(at, GgufErrorKind::OverLimit { what, value, max })),
        }
    }

    /// A string of any bytes, at most `max` long.
    pub(super) fn string(&mut self, what: &'static str, max: u64) -> Result<&'a [u8], GgufError> {
        let at = self.position;
        let value = self.u64()?;
        if value > max {
            return Err(self.error(at, GgufErrorKind::OverLimit { what, value, max }));
        }
        self.take(value)
    }

    /// A key or tensor name: UTF-8, not empty.
    pub(super) fn name(&mut self, what: &'static str, max: u64) -> Result<&'a str, GgufError> {
        let at = self.position;
        let name = self.string(what, max)?;
        if name.is_empty() {
            return Err(self.error(at, GgufErrorKind::EmptyName));
        }
        core::str::from_utf8(name).map_err(|error| {
            let byte = error.valid_up_to();
            self.error(at + 8 + byte, GgufErrorKind::NotUtf8 { byte })
                .named(name)
        })
    }

    /// Everything read so far.
    pub(super) fn taken(&self) -> &'a [u8] {
        &self.bytes[..self.position]
    }

    /// What was read from `start` on.
    pub(super) fn taken_from(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.position]
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn position_u32(&self) -> u32 {
        u32::try_from(self.position).expect("`room` refuses positions past HEADER_BYTES_MAX")
    }

    pub(super) fn error(&self, at: usize, kind: GgufErrorKind) -> GgufError {
        GgufError::new(kind, self.place, at as u64)
    }

    /// An error in the field of `len` bytes that was read last.
    pub(super) fn error_behind(&self, len: usize, kind: GgufErrorKind) -> GgufError {
        self.error(self.position.saturating_sub(len), kind)
    }
}

//! From `.slc` to GGUF.

use super::{SlcFileError, SlcWatch, hash_through};
use sluice::file::{GgufInSlc, OutputFile, damaged_payload};
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::slc::Slc;
use sluice_core::state::Identity;

/// Writes the GGUF file from which `slc`, with the bytes `packed`, was made.
///
/// # Errors
/// [`SlcFileError`]; it names a damaged payload, or a tensor that only `.slc` files can hold. No output remains.
pub fn unpack(
    packed: &dyn TensorSource,
    slc: &Slc<'_>,
    output: OutputFile,
    watch: &SlcWatch<'_>,
) -> Result<(), SlcFileError> {
    if let Some(tensor) = slc.gguf().tensors().find(|tensor| tensor.ty.is_lane()) {
        return Err(SlcFileError::Lane {
            name: tensor.name.escape_debug().to_string(),
            ty: tensor.ty,
        });
    }
    output.reserve(slc.header().gguf_len)?;
    pass(packed, slc, watch, &mut |at, piece| {
        Ok(output.write_at(at, piece)?)
    })?;
    Ok(output.finish_with(Some(Identity(slc.header().gguf_sha256)))?)
}

/// Checks by SHA-256 that a `.slc` file holds the GGUF file it claims to, without writing that
/// file.
///
/// # Errors
/// As [`unpack`].
pub fn verify(
    packed: &dyn TensorSource,
    slc: &Slc<'_>,
    watch: &SlcWatch<'_>,
) -> Result<(), SlcFileError> {
    pass(packed, slc, watch, &mut |_, _| Ok(()))
}

fn pass(
    packed: &dyn TensorSource,
    slc: &Slc<'_>,
    watch: &SlcWatch<'_>,
    sink: super::Sink<'_>,
) -> Result<(), SlcFileError> {
    let map = GgufInSlc::new(slc)?;
    let gguf = Inside { map, packed };
    let found = hash_through(&gguf, watch, sink)?;
    let expected = slc.header().gguf_sha256;
    if found == expected {
        return Ok(());
    }
    // Another pass over the checksums finds the damaged part.
    if let Some(part) = damaged_payload(packed, slc, watch.stop)? {
        return Err(SlcFileError::Damaged { part });
    }
    Err(SlcFileError::Sha256 {
        expected: Identity(expected),
        found: Identity(found),
    })
}

/// The GGUF file inside, as a source.
struct Inside<'p> {
    map: GgufInSlc,
    packed: &'p dyn TensorSource,
}

impl TensorSource for Inside<'_> {
    fn len_bytes(&self) -> u64 {
        self.map.len_bytes()
    }

    fn slice(&self, _: u64, _: usize) -> Option<&[u8]> {
        None
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.map.read(self.packed, offset, into)
    }
}

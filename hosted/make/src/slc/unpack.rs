//! From `.slc` to GGUF.

use super::{SlcFileError, SlcWatch, checksum_of, hash_through, pieces};
use sluice::file::{GgufInSlc, OutputFile};
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::hash::Hash64;
use sluice_core::slc::Slc;
use sluice_core::state::Identity;

/// Writes the GGUF file from which `slc`, with the bytes `packed`, was made.
///
/// # Errors
/// [`SlcFileError`]; it names a damaged payload. No output remains.
pub fn unpack(
    packed: &dyn TensorSource,
    slc: &Slc<'_>,
    output: OutputFile,
    watch: &SlcWatch<'_>,
) -> Result<(), SlcFileError> {
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
    check_payloads(packed, slc)?;
    Err(SlcFileError::Sha256 {
        expected: Identity(expected),
        found: Identity(found),
    })
}

/// Compares every payload with its checksum.
fn check_payloads(packed: &dyn TensorSource, slc: &Slc<'_>) -> Result<(), SlcFileError> {
    let damaged = |part| Err(SlcFileError::Damaged { part });
    for (index, (tensor, header)) in slc.tensors().enumerate() {
        let name = tensor.name.escape_debug();
        if let Some(sums) = slc.matrix_checksums(index) {
            let sums: Vec<_> = sums.collect();
            for (matrix, &sum) in (0..).zip(&sums) {
                let mut hash = Hash64::new();
                let at = header.matrix_offset(matrix);
                add(packed, at, header.matrix_bytes(), &mut hash)?;
                if hash.finish() != sum {
                    return damaged(format!("expert {matrix} of tensor {name}"));
                }
            }
            if checksum_of(&sums) != header.checksum {
                return damaged(format!("tensor {name}"));
            }
            continue;
        }
        let mut hash = Hash64::new();
        for matrix in 0..header.n_matrices() {
            add(
                packed,
                header.matrix_offset(matrix),
                header.matrix_bytes(),
                &mut hash,
            )?;
        }
        if hash.finish() != header.checksum {
            return damaged(format!("tensor {name}"));
        }
    }
    for gap in slc.gaps() {
        let mut hash = Hash64::new();
        add(packed, gap.offset, gap.len_bytes, &mut hash)?;
        if hash.finish() != gap.checksum {
            let at = gap.gguf_offset;
            return damaged(format!("the gap at byte {at} of the GGUF file"));
        }
    }
    Ok(())
}

/// Adds a range of a file to a checksum. The range must be whole words unless it is the last one.
fn add(
    packed: &dyn TensorSource,
    offset: u64,
    len: u64,
    hash: &mut Hash64,
) -> Result<(), SlcFileError> {
    pieces(packed, offset, len, &mut |_, piece| {
        hash.write(piece);
        Ok(())
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

//! Rotary frequencies of a model, with the divisors in its file, if any.

use super::arch::{ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT, ROPE_FREQS};
use super::check::check_shape;
use super::config::ModelConfig;
use super::error::{ModelError, Name};
use super::rope::{self, RopeScalingKind};
use crate::gguf::source::SourceError;
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::GgmlType;

/// The total length of all frequencies: for each rotation, up to the original context and beyond it.
pub(super) fn frequencies_len(config: &ModelConfig) -> usize {
    config.ropes.iter().map(|rope| rope.n_rot).sum()
}

/// Computes the rotary frequencies, with the divisors in the file, if any; returns whether there
/// are frequencies for contexts beyond the original one. `read` fills bytes from an offset of the tensor
/// with an index. `out` is as long as [`frequencies_len`] says.
pub(super) fn fill_frequencies(
    gguf: &Gguf<'_>,
    config: &ModelConfig,
    read: impl Fn(usize, &TensorInfo<'_>, u64, &mut [u8]) -> Result<(), SourceError>,
    out: &mut [f64],
) -> Result<bool, ModelError> {
    // Divisors apply to the model's first rotation, and to others with the same number of dimensions.
    let half = config.ropes.first().map_or(0, |rope| rope.n_rot / 2);
    let mut room = [1f32; ROPE_FACTORS_MAX];
    let mut load = |name: &str| {
        let mut tensors = gguf.tensors().enumerate();
        let Some((index, tensor)) = tensors.find(|(_, tensor)| tensor.name == name) else {
            return Ok(None);
        };
        let name = Name::from(name);
        let factors = factors_of(&tensor, name, half, &mut room)?;
        for (at, factor) in (0..).step_by(4).zip(factors.iter_mut()) {
            let mut bytes = [0; 4];
            read(index, &tensor, at, &mut bytes)
                .map_err(|error| ModelError::Source { name, error })?;
            *factor = f32::from_le_bytes(bytes);
            if !(factor.is_normal() && *factor > 0.0) {
                return Err(ModelError::WeightNotFinite { name });
            }
        }
        Ok(Some(room))
    };
    let missing = |name: &str| ModelError::MissingTensor { name: name.into() };
    let short = load(ROPE_FACTORS_SHORT)?;
    let long = load(ROPE_FACTORS_LONG)?;
    let is_needed = config.rope_scaling.kind == RopeScalingKind::LongRope;
    if short.is_none() && (is_needed || long.is_some()) {
        return Err(missing(ROPE_FACTORS_SHORT));
    }
    if long.is_none() && short.is_some() {
        return Err(missing(ROPE_FACTORS_LONG));
    }
    let any = match short {
        Some(short) => Some(short),
        None => load(ROPE_FREQS)?,
    };
    let mut rest = out;
    for rope in &config.ropes {
        for factors in [&any, &long] {
            let (set, behind) = core::mem::take(&mut rest).split_at_mut(rope.n_rot / 2);
            rest = behind;
            let factors = factors.as_ref().filter(|_| set.len() == half);
            let factors = factors.map(|all| &all[..half]);
            rope::frequencies(rope, &config.rope_scaling, factors, set);
        }
    }
    Ok(long.is_some())
}

/// Room for a tensor of rotary divisors, whose shape and type are checked.
fn factors_of<'r>(
    tensor: &TensorInfo<'_>,
    name: Name,
    len: usize,
    room: &'r mut [f32; ROPE_FACTORS_MAX],
) -> Result<&'r mut [f32], ModelError> {
    check_shape(tensor, name, [1, len])?;
    if tensor.ty != GgmlType::F32 {
        return Err(ModelError::TensorType {
            name,
            expected: GgmlType::F32,
            found: tensor.ty,
        });
    }
    room.get_mut(..len).ok_or(ModelError::NotImplemented {
        what: "more than 256 rotary factors",
        name,
    })
}

/// Rotary factors kept on the stack while frequencies are computed.
const ROPE_FACTORS_MAX: usize = 256;

//! The memory of an engine: its size, and its parts.

use super::batch::EngineError;
use super::blocks::Rooms;
use super::limits::EngineLimits;
use super::output::OutputRoom;
use super::pass::Common;
use super::scratch::{Carve, Count, Room};
use crate::memory::{Arena, MemoryError};
use crate::model::ModelConfig;
use crate::state::HEAD_DIM_MAX;

/// Memory that an engine needs in addition to the weights, each part aligned to [`crate::memory::ALIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnginePlan {
    /// Bytes of the KV cache and recurrent states with their tables.
    pub kv_bytes: usize,
    /// Bytes of activations, outputs and the workers' own room.
    pub scratch_bytes: usize,
}

impl EnginePlan {
    /// Pure arithmetic on the model's shape and the limits.
    ///
    /// # Errors
    /// A limit out of range, heads that are too long, or sizes beyond the address space.
    pub fn new(model: &ModelConfig, limits: &EngineLimits) -> Result<Self, EngineError> {
        limits.check()?;
        let lengths = model
            .attentions()
            .map(|shape| shape.head_dim_k.max(shape.head_dim_v));
        if let Some(head_dim) = lengths.max().filter(|&len| len > HEAD_DIM_MAX) {
            return Err(EngineError::HeadTooLong {
                head_dim,
                max: HEAD_DIM_MAX,
            });
        }
        let kv_bytes = limits.state_config(model).plan()?.bytes();
        let mut count = Count::default();
        Scratch::with_room(model, limits, &mut count)?;
        Ok(Self {
            kv_bytes,
            scratch_bytes: count.bytes(),
        })
    }
}

/// Scratch memory, shared by the workers of a step.
#[derive(Debug)]
pub(super) struct Scratch<'m> {
    pub(super) rooms: Rooms<'m>,
    pub(super) output: OutputRoom<'m>,
    pub(super) common: Common<'m>,
}

impl<'m> Scratch<'m> {
    // A frame of its own, which has ended when the engine is put together.
    #[inline(never)]
    pub(super) fn new(
        model: &ModelConfig,
        limits: &EngineLimits,
        memory: &'m mut [u8],
    ) -> Result<Self, MemoryError> {
        Self::with_room(model, limits, &mut Carve(Arena::new(memory)?))
    }

    fn with_room(
        model: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let rooms = Rooms::new(model, limits, room)?;
        let output = OutputRoom::new(model, limits, room)?;
        let needs = rooms.needs().and(output.needs());
        Ok(Self {
            common: Common::new(model, limits, &needs, room)?,
            rooms,
            output,
        })
    }
}

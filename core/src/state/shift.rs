//! Removal of a range of positions: the tokens after it move down.

use super::config::{HEAD_DIM_MAX, Place, StateConfig};
use super::error::StateError;
use super::pages::Pages;
use super::{PAGE_TOKENS, Scratch, State};
use crate::kernels::KernelTable;
use crate::kernels::hadamard::hadamard;
use crate::kernels::kv::KV_ROW_BYTES_MAX;
use crate::model::{ModelWeights, ROPES_MAX};
use core::ops::Range;
use heapless::Vec;

impl State<'_> {
    /// Removes the tokens at `range` and moves the tokens after it down: their keys are rotated
    /// back by the length of the range. Deterministic, and for all types but f32 one rounding
    /// more for every key that moves; values move as they are.
    ///
    /// # Errors
    /// An unknown sequence, a range beyond its end, a model whose state does not allow it, or too few pages
    /// to copy shared ones.
    pub(crate) fn remove(
        &mut self,
        sequence: u32,
        range: Range<usize>,
        model: &ModelWeights<'_>,
        table: &KernelTable,
    ) -> Result<(), StateError> {
        let s = self.check(sequence)?;
        let len = self.lens[s] as usize;
        if range.end > len || range.start > range.end {
            return Err(StateError::OutOfRange {
                end: range.end.max(range.start),
                len,
            });
        }
        let (start, end) = (range.start, range.end);
        if start == end {
            return Ok(());
        }
        let new_len = len - (end - start);
        if new_len > start {
            if !model.config().can_remove() {
                return Err(StateError::CannotRemove);
            }
            self.check_removable(s)?;
            let pages = start / PAGE_TOKENS..new_len.div_ceil(PAGE_TOKENS);
            for group in &self.groups {
                group.check_room_to_own(s, pages.clone())?;
            }
            for (index, group) in self.groups.iter_mut().enumerate() {
                group.own(s, pages.clone());
                let shift = Shift {
                    to: start..new_len,
                    by: end - start,
                    is_long: self.long[s] == 1,
                };
                move_down(group, &self.config, index, s, &shift, model, table);
            }
        }
        self.rewind(sequence, new_len)
    }

    /// Whether later tokens of a sequence may move down.
    pub(super) fn check_removable(&self, s: usize) -> Result<(), StateError> {
        let gave_back = self.groups.iter().any(|group| group.first(s) > 0);
        match gave_back || !self.slots.is_empty() {
            true => Err(StateError::CannotRemove),
            false => Ok(()),
        }
    }
}

/// Tokens that move down by `by` positions, and where they move to.
struct Shift {
    to: Range<usize>,
    by: usize,
    /// Whether its keys are rotated with the long divisors.
    is_long: bool,
}

/// Moves tokens of a sequence down, and rotates their keys back.
fn move_down(
    group: &mut Pages<'_>,
    config: &StateConfig,
    index: usize,
    s: usize,
    shift: &Shift,
    model: &ModelWeights<'_>,
    table: &KernelTable,
) {
    const HALF: usize = HEAD_DIM_MAX / 2;
    let back = -i64::try_from(shift.by).unwrap_or(i64::MAX);
    let ropes = &model.config().ropes;
    let mut angles: Vec<([f32; HALF], [f32; HALF]), ROPES_MAX> = Vec::new();
    let mut known: Vec<usize, ROPES_MAX> = Vec::new();
    // The rotation of a layer's keys, and the offset of the rotated part.
    let turned = |layer: usize| -> Option<(usize, usize)> {
        let is_it = |place: &Place| {
            matches!(place, Place::Keys { group, index: at }
                if usize::from(*group) == index && usize::from(*at) == layer)
        };
        let layer = config.places.iter().position(is_it)?;
        let attention = model.config().kind(layer).attention()?;
        let start = attention.latent.map_or(0, |latent| latent.kv_rank);
        Some((attention.rope?, start))
    };
    for layer in 0..group.config.n_layer {
        let rope = turned(layer).map(|(rope, _)| rope);
        let Some(rope) = rope.filter(|rope| !known.contains(rope)) else {
            continue;
        };
        let (mut cos, mut sin) = ([0f32; HALF], [0f32; HALF]);
        let half = ropes[rope].n_rot / 2;
        // Keys have been scaled when they were stored.
        let turn = model.rope(rope, shift.is_long).unscaled();
        turn.angles(back, &mut cos[..half], &mut sin[..half]);
        known
            .push(rope)
            .unwrap_or_else(|_| unreachable!("as many as a model has"));
        angles
            .push((cos, sin))
            .unwrap_or_else(|_| unreachable!("as many as known"));
    }
    let mut scratch = Scratch {
        key: [0f32; HEAD_DIM_MAX],
        value: [0f32; HEAD_DIM_MAX],
        value_row: [0; KV_ROW_BYTES_MAX],
    };
    let rotation = group.config.rotation.k;
    for position in shift.to.clone() {
        group.move_token(
            table,
            s,
            position + shift.by,
            position,
            &mut scratch,
            |layer, key| {
                let Some((rope, start)) = turned(layer) else {
                    return;
                };
                let half = ropes[rope].n_rot / 2;
                let at = known.iter().position(|other| *other == rope);
                let (cos, sin) = &angles[at.expect("all were listed")];
                hadamard(key, rotation);
                model.rope(rope, shift.is_long).rotate(
                    table,
                    &mut key[start..],
                    &cos[..half],
                    &sin[..half],
                );
                hadamard(key, rotation);
            },
        );
    }
}

//! The shape of the state of sequences: groups of layers with pages alike, and recurrent layers.

use super::{PAGE_TOKENS, RUN_PAGES};
use crate::hash::Hash64;
use crate::kernels::hadamard::{HADAMARD_MIN, hadamard_len};
use crate::kernels::kv::KV_HEAD_DIM_MAX;
use crate::kernels::{KvLayout, KvType};
use crate::memory::MemoryError;
use crate::model::{KINDS_MAX, LAYERS_MAX, LayerKind, ModelConfig};
use heapless::Vec;

/// Maximum number of groups of layers.
pub(super) const GROUPS_MAX: usize = KINDS_MAX;
/// Maximum head length that the cache's own operations handle, in dimensions.
pub const HEAD_DIM_MAX: usize = KV_HEAD_DIM_MAX;

/// Limits of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLimits {
    /// Tokens over all sequences.
    pub n_ctx: usize,
    /// Tokens beyond them in pages that a host holds.
    pub n_held: usize,
    /// Maximum tokens of a step.
    pub n_batch: usize,
    /// Sequences, numbered from 0.
    pub n_seq: usize,
    /// Element type of keys.
    pub type_k: KvType,
    /// Element type of values.
    pub type_v: KvType,
    /// Whether keys and values of coarse types are rotated ([`KvRotation`]).
    pub kv_rotation: bool,
    /// Number of tokens before the end of a sequence whose recurrent states are kept, so that it can be rewound
    /// to them.
    pub n_behind: usize,
    /// Checkpoints of recurrent states.
    pub n_checkpoints: usize,
    /// Whether layers with a window give back the pages that it has left.
    pub windows_give_back: bool,
}

/// Number of dimensions of keys and of values that are rotated together before they are stored
/// ([`crate::kernels::hadamard`]); 0 for none. Queries are rotated as keys are, and outputs back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvRotation {
    /// Of keys: the largest power of two that divides a head.
    pub k: usize,
    /// Of values: 64, as in llama.cpp.
    pub v: usize,
}

impl KvRotation {
    const fn new(layout: &KvLayout, is_on: bool) -> Self {
        let k = if is_on && layout.type_k.is_coarse() {
            hadamard_len(layout.head_dim_k)
        } else {
            0
        };
        let v = if is_on && layout.type_v.is_coarse() {
            hadamard_len(layout.head_dim_v)
        } else {
            0
        };
        Self {
            k,
            v: if v > HADAMARD_MIN { HADAMARD_MIN } else { v },
        }
    }
}

/// Layers whose pages are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Element types and head lengths.
    pub layout: KvLayout,
    /// How both are rotated.
    pub rotation: KvRotation,
    /// Layers.
    pub n_layer: usize,
    /// KV heads of each.
    pub n_head_kv: usize,
    /// The window beyond which pages are given back; `None` where they are kept.
    pub window: Option<usize>,
    /// Pages.
    pub n_pages: usize,
}

impl GroupConfig {
    /// Bytes of a page.
    pub const fn page_bytes(&self) -> usize {
        self.layout.block_bytes() * self.n_layer * self.n_head_kv
    }

    /// Bytes of the rows of a token.
    pub(super) const fn token_bytes(&self) -> usize {
        let head = self.layout.k_row_bytes() + self.layout.v_row_bytes();
        head * self.n_layer * self.n_head_kv
    }

    /// Index of block `block` (layer · n_head_kv + head) of page `page`, counted in blocks.
    pub(super) const fn block_index(&self, page: usize, block: usize) -> usize {
        let first = page / RUN_PAGES * RUN_PAGES;
        let n_after = self.n_pages - first;
        let run = if n_after < RUN_PAGES {
            n_after
        } else {
            RUN_PAGES
        };
        first * self.n_layer * self.n_head_kv + block * run + page - first
    }

    /// Bytes of all pages.
    pub(super) fn pages_bytes(&self) -> Result<usize, MemoryError> {
        let factors = [self.n_layer, self.n_head_kv, self.n_pages];
        factors
            .iter()
            .try_fold(self.layout.block_bytes(), |n, &factor| {
                n.checked_mul(factor)
            })
            .ok_or(MemoryError::TooLarge)
    }
}

/// The place of a layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Keys and values: the group, and the layer's number in it.
    Keys { group: u8, index: u16 },
    /// A recurrent state: its offset in the state of its sequence, in floats.
    Recurrent { offset: u32 },
}

/// Shape of the state.
#[derive(Clone, Debug, PartialEq)]
pub struct StateConfig {
    pub(super) groups: Vec<GroupConfig, GROUPS_MAX>,
    /// For each layer.
    pub(super) places: Vec<Place, LAYERS_MAX>,
    /// Floats of a sequence's recurrent state, over all layers.
    pub(super) state_len: usize,
    /// Entries of a sequence's list of pages.
    pub(super) n_table: usize,
    pub(super) limits: StateLimits,
}

impl StateConfig {
    /// The state that sequences of `model` have. Each sequence may leave its last page partly empty, so
    /// there is a page more for every further sequence.
    pub fn new(model: &ModelConfig, limits: &StateLimits) -> Self {
        let n_table =
            (limits.n_ctx.div_ceil(PAGE_TOKENS)).saturating_add(limits.n_seq.saturating_sub(1));
        let mut config = Self {
            groups: Vec::new(),
            places: Vec::new(),
            state_len: 0,
            n_table,
            limits: *limits,
        };
        (0..model.n_layer()).for_each(|layer| config.add(model, layer));
        config
    }

    fn add(&mut self, model: &ModelConfig, layer: usize) {
        let place = self.place(model, model.kind(layer));
        self.places
            .push(place)
            .unwrap_or_else(|_| unreachable!("as many as layers"));
    }

    /// Gives a layer its place.
    fn place(&mut self, model: &ModelConfig, kind: &LayerKind) -> Place {
        let Some(shape) = kind.attention() else {
            // An offset that does not fit makes the plan fail.
            let offset = u32::try_from(self.state_len).unwrap_or(u32::MAX);
            self.state_len = self.state_len.saturating_add(kind.state_len(model.n_embd));
            return Place::Recurrent { offset };
        };
        // Checked by the model: an earlier layer with keys of its own.
        if let Some(owner) = shape.keys_of {
            return self.places[owner];
        }
        let limits = &self.limits;
        let layout = KvLayout {
            type_k: limits.type_k,
            type_v: limits.type_v,
            head_dim_k: shape.head_dim_k,
            head_dim_v: shape.head_dim_v,
        };
        let window = shape.window.filter(|_| limits.windows_give_back);
        let n_pages = match window {
            // Tokens of a step, the window's reach, and two partly used pages at the ends.
            Some(window) => {
                let behind = limits.n_batch.saturating_add(limits.n_behind);
                let reach = window.saturating_add(behind);
                let pages = reach.div_ceil(PAGE_TOKENS) + 1;
                pages.saturating_mul(limits.n_seq).min(self.n_table)
            }
            None => self.n_table,
        }
        .saturating_add(limits.n_held.div_ceil(PAGE_TOKENS));
        let is_alike = |group: &GroupConfig| {
            (group.layout, group.n_head_kv, group.window) == (layout, shape.n_head_kv, window)
        };
        let group = self.groups.iter().position(is_alike).unwrap_or_else(|| {
            let group = GroupConfig {
                layout,
                rotation: KvRotation::new(&layout, limits.kv_rotation),
                n_layer: 0,
                n_head_kv: shape.n_head_kv,
                window,
                n_pages,
            };
            self.groups
                .push(group)
                .unwrap_or_else(|_| unreachable!("as many as kinds"));
            self.groups.len() - 1
        });
        let index = u16::try_from(self.groups[group].n_layer).expect("layers are few");
        self.groups[group].n_layer += 1;
        Place::Keys {
            group: u8::try_from(group).expect("groups are few"),
            index,
        }
    }

    /// Groups of layers whose pages are alike.
    pub fn groups(&self) -> &[GroupConfig] {
        &self.groups
    }

    /// Sequences, numbered from 0.
    pub const fn n_seq(&self) -> usize {
        self.limits.n_seq
    }

    /// Floats of a sequence's recurrent state, over all layers; 0 in a model with attention only.
    pub const fn state_len(&self) -> usize {
        self.state_len
    }

    /// Slots for recurrent states: for every sequence, one at its end, `n_behind` before it and one more; and
    /// the checkpoints. A step that writes several states evicts as many before the end.
    pub(super) const fn n_slots(&self) -> usize {
        if self.state_len == 0 {
            return 0;
        }
        self.limits.n_seq * (self.limits.n_behind + 2) + self.limits.n_checkpoints
    }

    /// Hash of everything that a state and its replacement must have in common.
    pub(crate) fn layout_fingerprint(&self) -> u64 {
        let mut hash = Hash64::new();
        let mut add = |n: usize| hash.write(&(n as u64).to_le_bytes());
        for group in &self.groups {
            add(group.n_pages);
            add(group.window.unwrap_or(usize::MAX));
        }
        for place in &self.places {
            match *place {
                Place::Keys { group, index } => [usize::from(group), index.into()].map(&mut add),
                Place::Recurrent { offset } => [usize::MAX, offset as usize].map(&mut add),
            };
        }
        add(self.limits.n_seq);
        add(self.limits.n_behind);
        add(self.n_table);
        hash.finish() ^ self.fingerprint()
    }

    /// Hash of everything that a saved sequence or page must have in common with the state that it is restored to.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hash = Hash64::new();
        let mut add = |n: usize| hash.write(&(n as u64).to_le_bytes());
        for group in &self.groups {
            add(group.layout.type_k as usize);
            add(group.layout.type_v as usize);
            add(group.layout.head_dim_k);
            add(group.layout.head_dim_v);
            add(group.rotation.k);
            add(group.rotation.v);
            add(group.n_layer);
            add(group.n_head_kv);
        }
        add(self.state_len);
        hash.finish()
    }
}

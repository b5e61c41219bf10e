//! The KV cache: many sequences in pages of 64 positions, shared by reference count.
//!
//! A page holds the keys and values of 64 positions for all layers and KV heads
//! ([`crate::kernels::KvLayout`]). Blocks of one head in neighbouring pages lie side by side, up to
//! `RUN_PAGES` of them: attention reads a head's blocks one after the other, and memory gives more
//! to those who read on than to those who jump. A sequence is a list of pages and a length. A fork
//! shares the pages of its origin; a page is copied when a sequence is about to write into it while
//! another holds it too. Pages are interchangeable, so the cache never fragments.
//!
//! Positions of a sequence are always `0..len`: removing a range moves what follows down and
//! rotates its keys back (context shift).

mod snapshot;

pub use snapshot::SnapshotError;

use crate::kernels::contract::{KV_BLOCK, KV_SPLIT};
use crate::kernels::kv::{KV_HEAD_DIM_MAX, KV_ROW_BYTES_MAX};
use crate::kernels::{KernelTable, KvLayout};
use crate::memory::{Arena, MemoryError, MemoryPlan, Shared};
use crate::model::{Model, ModelConfig};
use core::fmt;
use core::ops::Range;

/// Positions in a page.
pub const PAGE_TOKENS: usize = KV_BLOCK;
/// Pages whose blocks lie side by side: a split of attention. More of them would bring memory into
/// use sooner than tokens are there for it.
const RUN_PAGES: usize = KV_SPLIT / KV_BLOCK;
/// Longest head that the cache's own operations handle, in dimensions.
pub const HEAD_DIM_MAX: usize = KV_HEAD_DIM_MAX;

/// Shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Element type and head lengths.
    pub layout: KvLayout,
    /// Layers of the model.
    pub n_layer: usize,
    /// KV heads of the model.
    pub n_head_kv: usize,
    /// Pages.
    pub n_pages: usize,
    /// Sequences, numbered from 0.
    pub n_seq: usize,
}

impl KvConfig {
    /// A cache for `n_ctx` tokens in all, in up to `n_seq` sequences. Each sequence may leave
    /// its last page partly empty, so there is a page more for every further sequence.
    pub const fn new(model: &ModelConfig, layout: KvLayout, n_ctx: usize, n_seq: usize) -> Self {
        let n_pages = n_ctx
            .div_ceil(PAGE_TOKENS)
            .saturating_add(n_seq.saturating_sub(1));
        let (n_layer, n_head_kv) = (model.n_layer, model.n_head_kv);
        Self {
            layout,
            n_layer,
            n_head_kv,
            n_pages,
            n_seq,
        }
    }

    /// Bytes of a page, of a shape for which [`Self::plan`] succeeds.
    pub const fn page_bytes(&self) -> usize {
        self.layout.block_bytes() * self.n_layer * self.n_head_kv
    }

    /// Where block `block` (layer · n_head_kv + head) of page `page` lies, counted in blocks.
    const fn block_index(&self, page: usize, block: usize) -> usize {
        let first = page / RUN_PAGES * RUN_PAGES;
        let n_after = self.n_pages - first;
        let run = if n_after < RUN_PAGES {
            n_after
        } else {
            RUN_PAGES
        };
        first * self.n_layer * self.n_head_kv + block * run + page - first
    }

    /// Memory for pages and tables.
    ///
    /// # Errors
    /// [`MemoryError::TooLarge`], also for heads above [`HEAD_DIM_MAX`].
    pub fn plan(&self) -> Result<MemoryPlan, MemoryError> {
        if self.layout.head_dim_k.max(self.layout.head_dim_v) > HEAD_DIM_MAX {
            return Err(MemoryError::TooLarge);
        }
        let mut plan = MemoryPlan::new();
        let factors = [self.n_layer, self.n_head_kv, self.n_pages];
        let pages = factors
            .iter()
            .try_fold(self.layout.block_bytes(), |n, &factor| {
                n.checked_mul(factor)
            })
            .ok_or(MemoryError::TooLarge)?;
        let table = self
            .n_seq
            .checked_mul(self.n_pages)
            .ok_or(MemoryError::TooLarge)?;
        plan.slice::<u8>(pages)?;
        plan.slice::<u32>(table)?;
        plan.slice::<u32>(self.n_seq)?;
        plan.slice::<u32>(self.n_pages)?;
        plan.slice::<u32>(self.n_pages)?;
        Ok(plan)
    }
}

/// Why an operation on the cache did not happen. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvError {
    /// No sequence has this number.
    UnknownSequence {
        /// The number.
        sequence: u32,
        /// Sequences are numbered below this.
        n_seq: usize,
    },
    /// There are not enough free pages.
    Full {
        /// Pages needed.
        needed: usize,
        /// Pages free.
        free: usize,
    },
    /// The target of a fork or restore holds tokens already.
    NotEmpty {
        /// The sequence.
        sequence: u32,
    },
    /// A range or length beyond the sequence's end.
    OutOfRange {
        /// The end asked for.
        end: usize,
        /// Tokens in the sequence.
        len: usize,
    },
    /// A saved sequence cannot be restored here.
    Snapshot(SnapshotError),
}

impl fmt::Display for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSequence { sequence, n_seq } => {
                write!(
                    f,
                    "sequence {sequence} does not exist; the cache has {n_seq}"
                )
            }
            Self::Full { needed, free } => write!(
                f,
                "the KV cache is full: {needed} pages of {PAGE_TOKENS} tokens needed, {free} free"
            ),
            Self::NotEmpty { sequence } => write!(f, "sequence {sequence} is not empty"),
            Self::OutOfRange { end, len } => {
                write!(f, "position {end} is beyond the sequence's {len} tokens")
            }
            Self::Snapshot(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for KvError {}

/// Keys and values of many sequences.
#[derive(Debug)]
pub struct KvCache<'m> {
    config: KvConfig,
    pages: Shared<'m, u8>,
    /// Page numbers of each sequence, (n_seq, n_pages).
    tables: &'m mut [u32],
    /// Tokens of each sequence.
    lens: &'m mut [u32],
    /// Sequences that hold each page.
    holders: &'m mut [u32],
    /// Numbers of the free pages; the first `n_free` count.
    free: &'m mut [u32],
    n_free: usize,
}

impl<'m> KvCache<'m> {
    /// An empty cache in `memory` ([`KvConfig::plan`]). The memory need not be zeroed.
    ///
    /// # Errors
    /// Memory that is misaligned or too small.
    pub fn new(config: KvConfig, memory: &'m mut [u8]) -> Result<Self, MemoryError> {
        let mut arena = Arena::new(memory)?;
        config.plan()?;
        let pages = arena.bytes(config.page_bytes() * config.n_pages)?;
        let tables = arena.slice(config.n_seq * config.n_pages, 0u32)?;
        let lens = arena.slice(config.n_seq, 0u32)?;
        let holders = arena.slice(config.n_pages, 0u32)?;
        let free = arena.slice(config.n_pages, 0u32)?;
        for (page, slot) in free.iter_mut().rev().enumerate() {
            *slot = u32::try_from(page).map_err(|_| MemoryError::TooLarge)?;
        }
        let n_free = config.n_pages;
        Ok(Self {
            config,
            pages: Shared::new(pages),
            tables,
            lens,
            holders,
            free,
            n_free,
        })
    }

    /// The cache's shape.
    pub const fn config(&self) -> &KvConfig {
        &self.config
    }

    /// Tokens in a sequence; 0 for one that does not exist.
    pub fn len(&self, sequence: u32) -> usize {
        self.lens
            .get(sequence as usize)
            .map_or(0, |&len| len as usize)
    }

    /// Whether a sequence has no tokens.
    pub fn is_empty(&self, sequence: u32) -> bool {
        self.len(sequence) == 0
    }

    /// Pages that no sequence holds.
    pub const fn free_pages(&self) -> usize {
        self.n_free
    }

    /// Forgets all tokens of a sequence.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`].
    pub fn clear(&mut self, sequence: u32) -> Result<(), KvError> {
        self.truncate(sequence, 0)
    }

    /// Keeps the first `len` tokens of a sequence.
    ///
    /// # Errors
    /// An unknown sequence, or one shorter than `len`.
    pub fn truncate(&mut self, sequence: u32, len: usize) -> Result<(), KvError> {
        let s = self.check(sequence)?;
        let old = self.lens[s] as usize;
        if len > old {
            return Err(KvError::OutOfRange { end: len, len: old });
        }
        // The last first, so that pages are taken again in the order that they lie in.
        for index in (len.div_ceil(PAGE_TOKENS)..old.div_ceil(PAGE_TOKENS)).rev() {
            self.drop_page(self.tables[s * self.config.n_pages + index]);
        }
        self.set_len(s, len);
        Ok(())
    }

    /// Makes the empty sequence `to` a copy of `from`. Costs no page until one of them grows.
    ///
    /// # Errors
    /// An unknown sequence, or a target that is not empty.
    pub fn fork(&mut self, from: u32, to: u32) -> Result<(), KvError> {
        let (s, t) = (self.check(from)?, self.check(to)?);
        if self.lens[t] != 0 {
            return Err(KvError::NotEmpty { sequence: to });
        }
        for index in 0..self.len(from).div_ceil(PAGE_TOKENS) {
            let page = self.tables[s * self.config.n_pages + index];
            self.tables[t * self.config.n_pages + index] = page;
            self.holders[page as usize] += 1;
        }
        self.lens[t] = self.lens[s];
        Ok(())
    }

    /// Removes the tokens at `range` and moves those behind it down: their keys are rotated
    /// back by the length of the range. Deterministic, and for all types but f32 one rounding
    /// more for every key that moves; values move as they are.
    ///
    /// # Errors
    /// An unknown sequence, a range beyond its end, or too few pages to copy shared ones.
    pub(crate) fn remove(
        &mut self,
        sequence: u32,
        range: Range<usize>,
        model: &Model<'_>,
        table: &KernelTable,
    ) -> Result<(), KvError> {
        let s = self.check(sequence)?;
        let len = self.lens[s] as usize;
        if range.end > len || range.start > range.end {
            return Err(KvError::OutOfRange {
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
            self.own(s, start / PAGE_TOKENS..new_len.div_ceil(PAGE_TOKENS))?;
            let back = -i64::try_from(end - start).unwrap_or(i64::MAX);
            let mut angles = [([0f32; HEAD_DIM_MAX / 2], [0f32; HEAD_DIM_MAX / 2]); 2];
            let half = model.config().n_rot / 2;
            for (i, (cos, sin)) in angles.iter_mut().enumerate().take(model.n_ropes()) {
                // Keys have been scaled when they were stored.
                let rope = model.rope(i).unscaled();
                rope.angles(back, &mut cos[..half], &mut sin[..half]);
            }
            for position in start..new_len {
                let from = position + (end - start);
                self.move_token(table, s, (from, position), |layer, key| {
                    let i = model.rope_index(layer);
                    let (cos, sin) = (&angles[i].0[..half], &angles[i].1[..half]);
                    model.rope(i).rotate(table, key, cos, sin);
                });
            }
        }
        self.truncate(sequence, new_len)
    }

    /// Copies the keys and values at `from` to `to`, changing keys on the way.
    fn move_token(
        &mut self,
        table: &KernelTable,
        s: usize,
        (from, to): (usize, usize),
        mut change: impl FnMut(usize, &mut [f32]),
    ) {
        let layout = self.config.layout;
        let (mut key, mut value) = ([0f32; HEAD_DIM_MAX], [0f32; HEAD_DIM_MAX]);
        let mut value_row = [0; KV_ROW_BYTES_MAX];
        let (key, value) = (
            &mut key[..layout.head_dim_k],
            &mut value[..layout.head_dim_v],
        );
        let view = self.view();
        for layer in 0..self.config.n_layer {
            for head in 0..self.config.n_head_kv {
                // SAFETY: `&mut self`: no worker writes to the cache.
                let block = unsafe { view.block(s, from / PAGE_TOKENS, layer, head) };
                layout.load(block, from % PAGE_TOKENS, key, value);
                change(layer, key);
                let value_row = &mut value_row[..layout.v_row_bytes()];
                layout.value_row(block, from % PAGE_TOKENS, value_row);
                let target = view.pointer(s, to / PAGE_TOKENS, layer, head);
                // SAFETY: as above; the page is this sequence's alone (`own`).
                unsafe { table.store_key(&layout, target, to % PAGE_TOKENS, key) };
                // SAFETY: as above.
                unsafe { layout.put_value_row(target, to % PAGE_TOKENS, value_row) };
            }
        }
    }

    /// Makes room for `n` more tokens of `sequence`: they may be stored, and count once
    /// [`Self::commit`] is called. Pages taken stay with the sequence's unused end otherwise
    /// and are given back by [`Self::release_unused`].
    pub(crate) fn reserve(&mut self, sequence: u32, n: usize) -> Result<(), KvError> {
        let s = self.check(sequence)?;
        let len = self.lens[s] as usize;
        let first_new = len.div_ceil(PAGE_TOKENS);
        let end = (len + n).div_ceil(PAGE_TOKENS);
        if end > self.config.n_pages {
            return Err(KvError::Full {
                needed: end - first_new,
                free: self.n_free,
            });
        }
        // The last page is written to if it is partly filled.
        let partial = len / PAGE_TOKENS..first_new;
        let shared = self.shared_pages(s, partial.clone());
        if shared + (end - first_new) > self.n_free {
            return Err(KvError::Full {
                needed: shared + (end - first_new),
                free: self.n_free,
            });
        }
        self.own(s, partial)?;
        for index in first_new..end {
            self.tables[s * self.config.n_pages + index] = self.take_page();
        }
        Ok(())
    }

    /// The `n` tokens reserved last now belong to the sequence.
    pub(crate) fn commit(&mut self, sequence: u32, n: usize) {
        let s = sequence as usize;
        self.set_len(s, self.lens[s] as usize + n);
    }

    /// Gives back the pages of `n` tokens that were reserved and not committed.
    pub(crate) fn release_unused(&mut self, sequence: u32, n: usize) {
        let s = sequence as usize;
        let len = self.lens[s] as usize;
        for index in (len.div_ceil(PAGE_TOKENS)..(len + n).div_ceil(PAGE_TOKENS)).rev() {
            self.drop_page(self.tables[s * self.config.n_pages + index]);
        }
    }

    /// How workers see the cache during a step.
    pub(crate) const fn view(&self) -> KvView<'_> {
        KvView {
            config: self.config,
            block_bytes: self.config.layout.block_bytes(),
            pages: self.pages,
            tables: self.tables,
        }
    }

    fn check(&self, sequence: u32) -> Result<usize, KvError> {
        let n_seq = self.config.n_seq;
        if (sequence as usize) < n_seq {
            Ok(sequence as usize)
        } else {
            Err(KvError::UnknownSequence { sequence, n_seq })
        }
    }

    fn set_len(&mut self, s: usize, len: usize) {
        self.lens[s] = u32::try_from(len).expect("positions are 32-bit, checked on entry");
    }

    /// Pages of the sequence in `range` that another sequence holds too.
    fn shared_pages(&self, s: usize, range: Range<usize>) -> usize {
        let table = &self.tables[s * self.config.n_pages..][range];
        table
            .iter()
            .filter(|&&page| self.holders[page as usize] > 1)
            .count()
    }

    /// Replaces shared pages of the sequence in `range` by copies of its own.
    fn own(&mut self, s: usize, range: Range<usize>) -> Result<(), KvError> {
        let needed = self.shared_pages(s, range.clone());
        if needed > self.n_free {
            return Err(KvError::Full {
                needed,
                free: self.n_free,
            });
        }
        for index in range {
            let at = s * self.config.n_pages + index;
            let page = self.tables[at];
            if self.holders[page as usize] > 1 {
                let copy = self.take_page();
                self.copy_page(page, copy);
                self.drop_page(page);
                self.tables[at] = copy;
            }
        }
        Ok(())
    }

    fn copy_page(&mut self, from: u32, to: u32) {
        let bytes = self.config.layout.block_bytes();
        for block in 0..self.config.n_layer * self.config.n_head_kv {
            let at = |page: u32| {
                let start = self.config.block_index(page as usize, block) * bytes;
                start..start + bytes
            };
            // SAFETY: `&mut self`: no worker accesses the cache.
            let from = unsafe { self.pages.read(at(from)) };
            // SAFETY: as above; the pages differ.
            let to = unsafe { self.pages.write(at(to)) };
            to.copy_from_slice(from);
        }
    }

    fn take_page(&mut self) -> u32 {
        self.n_free -= 1;
        let page = self.free[self.n_free];
        self.holders[page as usize] = 1;
        page
    }

    fn drop_page(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free[self.n_free] = page;
            self.n_free += 1;
        }
    }
}

/// Where blocks lie, for workers that read and write them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvView<'a> {
    pub(crate) config: KvConfig,
    block_bytes: usize,
    pages: Shared<'a, u8>,
    tables: &'a [u32],
}

impl<'a> KvView<'a> {
    /// [`KvLayout::block_bytes`].
    pub(crate) const fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Offset of the block of 64 positions `index` of sequence `s`.
    fn offset(&self, s: usize, index: usize, layer: usize, head: usize) -> usize {
        let page = self.tables[s * self.config.n_pages + index] as usize;
        let block = layer * self.config.n_head_kv + head;
        self.config.block_index(page, block) * self.block_bytes
    }

    /// A block to read.
    ///
    /// # Safety
    /// - No worker writes to the positions that are read while the slice lives.
    pub(crate) unsafe fn block(
        &self,
        s: usize,
        index: usize,
        layer: usize,
        head: usize,
    ) -> &'a [u8] {
        let start = self.offset(s, index, layer, head);
        // SAFETY: by the caller.
        unsafe { self.pages.read(start..start + self.block_bytes) }
    }

    /// A block to write positions into: [`KvLayout::block_bytes`] from here on.
    pub(crate) fn pointer(&self, s: usize, index: usize, layer: usize, head: usize) -> *mut u8 {
        let start = self.offset(s, index, layer, head);
        self.pages.part(start..start + self.block_bytes).pointer(0)
    }
}

#[cfg(test)]
mod tests;

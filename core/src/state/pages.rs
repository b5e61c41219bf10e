//! Pages of keys and values of a group of layers, shared by reference count.
//!
//! A page holds the keys and values of 64 positions for the layers and KV heads of its group
//! ([`crate::kernels::KvLayout`]). Blocks of one head in neighbouring pages are adjacent, up to
//! `RUN_PAGES` of them: attention reads a head's blocks one after the other, and memory serves a
//! contiguous read faster than jumps. Pages are interchangeable, so a pool never fragments.

use super::config::{GroupConfig, HEAD_DIM_MAX};
use super::error::StateError;
use super::{PAGE_TOKENS, Scratch};
use crate::kernels::KernelTable;
use crate::memory::{Arena, MemoryError, MemoryPlan, Shared};
use core::ops::Range;

/// The entry of a sequence's list whose page was given back.
pub(super) const GIVEN_BACK: u32 = u32::MAX;

/// The pages of a group.
#[derive(Debug)]
pub(super) struct Pages<'m> {
    pub(super) config: GroupConfig,
    /// Entries of a sequence's list.
    n_table: usize,
    memory: Shared<'m, u8>,
    /// Page numbers of each sequence, (n_seq, n_table).
    tables: &'m mut [u32],
    /// First page that each sequence still holds.
    firsts: &'m mut [u32],
    /// Holders of each page.
    holders: &'m mut [u32],
    /// Numbers of the free pages; the first `n_free` are valid.
    free: &'m mut [u32],
    n_free: usize,
}

impl<'m> Pages<'m> {
    pub(super) fn plan(
        config: &GroupConfig,
        n_seq: usize,
        n_table: usize,
        plan: &mut MemoryPlan,
    ) -> Result<(), MemoryError> {
        if config.layout.head_dim_k.max(config.layout.head_dim_v) > HEAD_DIM_MAX {
            return Err(MemoryError::TooLarge);
        }
        plan.slice::<u8>(config.pages_bytes()?)?;
        let table = n_seq.checked_mul(n_table).ok_or(MemoryError::TooLarge)?;
        plan.slice::<u32>(table)?;
        plan.slice::<u32>(n_seq)?;
        plan.slice::<u32>(config.n_pages)?;
        plan.slice::<u32>(config.n_pages)
    }

    pub(super) fn new(
        config: &GroupConfig,
        n_seq: usize,
        n_table: usize,
        arena: &mut Arena<'m>,
    ) -> Result<Self, MemoryError> {
        let memory = arena.bytes(config.pages_bytes()?)?;
        let tables = arena.slice(n_seq * n_table, 0u32)?;
        let firsts = arena.slice(n_seq, 0u32)?;
        let holders = arena.slice(config.n_pages, 0u32)?;
        let free = arena.slice(config.n_pages, 0u32)?;
        for (page, slot) in free.iter_mut().rev().enumerate() {
            *slot = u32::try_from(page).map_err(|_| MemoryError::TooLarge)?;
        }
        Ok(Self {
            config: *config,
            n_table,
            memory: Shared::new(memory),
            tables,
            firsts,
            holders,
            free,
            n_free: config.n_pages,
        })
    }

    pub(super) const fn n_free(&self) -> usize {
        self.n_free
    }

    /// The first page that a sequence still holds.
    pub(super) fn first(&self, s: usize) -> usize {
        self.firsts[s] as usize
    }

    /// Positions whose keys a query at `position` sees.
    fn first_seen(&self, position: usize) -> usize {
        let window = self.config.window.unwrap_or(usize::MAX);
        (position + 1).saturating_sub(window)
    }

    /// Whether a sequence that held more tokens can continue after `len` tokens.
    pub(super) fn can_rewind(&self, s: usize, len: usize) -> bool {
        self.sees_from(self.first(s), len)
    }

    /// Whether pages from `first` on are all that a token at `position` sees.
    pub(super) fn sees_from(&self, first: usize, position: usize) -> bool {
        first * PAGE_TOKENS <= self.first_seen(position)
    }

    /// Drops the pages after the first `len` tokens of a sequence of `old`.
    pub(super) fn truncate(&mut self, s: usize, old: usize, len: usize) {
        let first = len.div_ceil(PAGE_TOKENS).max(self.first(s));
        // Last page first, so that pages are taken again in memory order.
        for index in (first..old.div_ceil(PAGE_TOKENS)).rev() {
            self.drop_page(self.tables[s * self.n_table + index]);
        }
        if len == 0 {
            self.firsts[s] = 0;
        }
    }

    /// Drops the pages that no query from `position` on sees.
    pub(super) fn give_back(&mut self, s: usize, position: usize) {
        let end = self.first_seen(position) / PAGE_TOKENS;
        for index in self.first(s)..end {
            let entry = &mut self.tables[s * self.n_table + index];
            let page = core::mem::replace(entry, GIVEN_BACK);
            self.drop_page(page);
        }
        self.firsts[s] = self.firsts[s].max(u32::try_from(end).expect("as tables are"));
    }

    /// Makes the empty sequence `t` hold the pages of `s`, which has `len` tokens.
    pub(super) fn fork(&mut self, s: usize, t: usize, len: usize) {
        for index in 0..len.div_ceil(PAGE_TOKENS) {
            let page = self.tables[s * self.n_table + index];
            self.tables[t * self.n_table + index] = page;
            if page != GIVEN_BACK {
                self.holders[page as usize] += 1;
            }
        }
        self.firsts[t] = self.firsts[s];
    }

    /// Number of pages that `n` more tokens after `len` need: copies of shared pages, and new pages.
    pub(super) fn needed(&self, s: usize, len: usize, n: usize) -> usize {
        let first_new = len.div_ceil(PAGE_TOKENS);
        let end = (len + n).div_ceil(PAGE_TOKENS);
        // The last page is written to if it is partly filled.
        self.shared_pages(s, len / PAGE_TOKENS..first_new) + end - first_new
    }

    /// Takes the pages of `n` more tokens, which are free ([`Self::needed`]).
    pub(super) fn reserve(&mut self, s: usize, len: usize, n: usize) {
        let first_new = len.div_ceil(PAGE_TOKENS);
        self.own(s, len / PAGE_TOKENS..first_new);
        for index in first_new..(len + n).div_ceil(PAGE_TOKENS) {
            self.tables[s * self.n_table + index] = self.take_page();
        }
    }

    /// Lets the empty sequence begin after `n` pages that it does not hold.
    pub(super) fn skip(&mut self, s: usize, n: usize) {
        self.tables[s * self.n_table..][..n].fill(GIVEN_BACK);
        self.firsts[s] = u32::try_from(n).expect("as tables are");
    }

    /// Gives back the pages that were reserved for `n` tokens after `len`.
    pub(super) fn release_unused(&mut self, s: usize, len: usize, n: usize) {
        for index in (len.div_ceil(PAGE_TOKENS)..(len + n).div_ceil(PAGE_TOKENS)).rev() {
            self.drop_page(self.tables[s * self.n_table + index]);
        }
    }

    /// Pages of the sequence in `range` that another holder has too.
    pub(super) fn shared_pages(&self, s: usize, range: Range<usize>) -> usize {
        let table = &self.tables[s * self.n_table..][range];
        table
            .iter()
            .filter(|&&page| self.holders[page as usize] > 1)
            .count()
    }

    /// Replaces shared pages of the sequence in `range` by copies of its own, for which there are free
    /// pages.
    pub(super) fn own(&mut self, s: usize, range: Range<usize>) {
        for index in range {
            let at = s * self.n_table + index;
            let page = self.tables[at];
            if self.holders[page as usize] > 1 {
                let copy = self.take_page();
                self.copy_page(page, copy);
                self.drop_page(page);
                self.tables[at] = copy;
            }
        }
    }

    fn copy_page(&mut self, from: u32, to: u32) {
        for block in 0..self.config.n_layer * self.config.n_head_kv {
            let at = |page: u32| self.block_range(page, block);
            // SAFETY: `&mut self`: no worker accesses the pages.
            let from = unsafe { self.memory.read(at(from)) };
            // SAFETY: as above; the pages differ.
            let to = unsafe { self.memory.write(at(to)) };
            to.copy_from_slice(from);
        }
    }

    /// Bytes of a page's block.
    fn block_range(&self, page: u32, block: usize) -> Range<usize> {
        let bytes = self.config.layout.block_bytes();
        let start = self.config.block_index(page as usize, block) * bytes;
        start..start + bytes
    }

    fn take_page(&mut self) -> u32 {
        self.n_free -= 1;
        let page = self.free[self.n_free];
        self.holders[page as usize] = 1;
        page
    }

    pub(super) fn drop_page(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free[self.n_free] = page;
            self.n_free += 1;
        }
    }

    /// The page of a sequence's list, held once more.
    pub(super) fn retain(&mut self, s: usize, index: usize) -> u32 {
        let page = self.tables[s * self.n_table + index];
        if page != GIVEN_BACK {
            self.holders[page as usize] += 1;
        }
        page
    }

    /// A free page, held once.
    pub(super) fn take(&mut self) -> Option<u32> {
        (self.n_free > 0).then(|| self.take_page())
    }

    /// Puts a held page at the end of a sequence's list of `index` pages; both hold it then.
    pub(super) fn attach(&mut self, s: usize, index: usize, page: u32) {
        self.tables[s * self.n_table + index] = page;
        self.holders[page as usize] += 1;
    }

    /// Copies a page, block by block in the order of layers and heads, to `out` ([`GroupConfig::page_bytes`]).
    pub(super) fn read_page(&self, page: u32, out: &mut [u8]) {
        let blocks = out.chunks_exact_mut(self.config.layout.block_bytes());
        for (block, out) in blocks.enumerate() {
            // SAFETY: outside of a step: a step borrows the state exclusively.
            let from = unsafe { self.memory.read(self.block_range(page, block)) };
            out.copy_from_slice(from);
        }
    }

    /// The reverse of [`Self::read_page`].
    pub(super) fn write_page(&mut self, page: u32, bytes: &[u8]) {
        let blocks = bytes.chunks_exact(self.config.layout.block_bytes());
        for (block, from) in blocks.enumerate() {
            // SAFETY: `&mut self`: no worker accesses the pages.
            let to = unsafe { self.memory.write(self.block_range(page, block)) };
            to.copy_from_slice(from);
        }
    }

    /// How workers see the pages during a step.
    pub(super) const fn view(&self) -> PagesView<'_> {
        PagesView {
            config: &self.config,
            block_bytes: self.config.layout.block_bytes(),
            n_table: self.n_table,
            memory: self.memory,
            tables: self.tables,
        }
    }

    /// Copies the keys and values at `from` to `to`, changing keys on the way.
    pub(super) fn move_token(
        &mut self,
        table: &KernelTable,
        s: usize,
        from: usize,
        to: usize,
        scratch: &mut Scratch,
        mut change: impl FnMut(usize, &mut [f32]),
    ) {
        let layout = self.config.layout;
        let key = &mut scratch.key[..layout.head_dim_k];
        let value = &mut scratch.value[..layout.head_dim_v];
        let value_row = &mut scratch.value_row[..layout.v_row_bytes()];
        let view = self.view();
        for layer in 0..self.config.n_layer {
            for head in 0..self.config.n_head_kv {
                // SAFETY: `&mut self`: no worker writes to the pages.
                let block = unsafe { view.block(s, from / PAGE_TOKENS, layer, head) };
                layout.load(block, from % PAGE_TOKENS, key, value);
                change(layer, key);
                layout.value_row(block, from % PAGE_TOKENS, value_row);
                let target = view.pointer(s, to / PAGE_TOKENS, layer, head);
                // SAFETY: as above; the page is this sequence's alone (`own`).
                unsafe { table.store_key(&layout, target, to % PAGE_TOKENS, key) };
                // SAFETY: as above.
                unsafe { layout.put_value_row(target, to % PAGE_TOKENS, value_row) };
            }
        }
    }

    /// Whether there are pages to copy the shared ones of a sequence in `range`.
    pub(super) fn check_room_to_own(
        &self,
        s: usize,
        range: Range<usize>,
    ) -> Result<(), StateError> {
        let needed = self.shared_pages(s, range);
        if needed > self.n_free {
            return Err(StateError::Full {
                needed,
                free: self.n_free,
            });
        }
        Ok(())
    }
}

/// The memory of blocks, for workers that read and write them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagesView<'a> {
    pub(crate) config: &'a GroupConfig,
    block_bytes: usize,
    n_table: usize,
    memory: Shared<'a, u8>,
    tables: &'a [u32],
}

impl<'a> PagesView<'a> {
    /// [`crate::kernels::KvLayout::block_bytes`].
    pub(crate) const fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Offset of the block of 64 positions `index` of sequence `s`.
    fn offset(&self, s: usize, index: usize, layer: usize, head: usize) -> usize {
        let page = self.tables[s * self.n_table + index] as usize;
        let block = layer * self.config.n_head_kv + head;
        self.config.block_index(page, block) * self.block_bytes
    }

    /// A block to read; `layer` counts within the group.
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
        unsafe { self.memory.read(start..start + self.block_bytes) }
    }

    /// A block to write positions into: [`crate::kernels::KvLayout::block_bytes`] from here on.
    pub(crate) fn pointer(&self, s: usize, index: usize, layer: usize, head: usize) -> *mut u8 {
        let start = self.offset(s, index, layer, head);
        self.memory.part(start..start + self.block_bytes).pointer(0)
    }
}

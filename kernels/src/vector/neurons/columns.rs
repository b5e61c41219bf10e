//! Products that read only columns whose activation codes are not 0, in the order of memory.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::active::{Active, Columns};
use super::dots::{Ahead, Chunks, DOTS, Dots, PANELS};
use super::finish::Panel;
use super::{Skip, TOKENS};
use crate::args::{Matmul, TileRange};
use crate::contract::GROUP;
use crate::neuron::ChunkCodes;
use crate::panel::PANEL_ROWS;
use crate::panel::form::{CHUNK, STRIPE, format_of, group_cols, head_at};
use crate::prefetch::{prefetch_line_to_l2, prefetch_to_l2};
use crate::vector::unpack::SubBlockBytes;
use core::ops::Range;

/// # Safety
/// - The contract of [`crate::KernelTable::matmul_skipping`], whose checks have passed; the CPU has what `skip`'s functions
///   need.
pub(crate) unsafe fn products(args: &Matmul<'_>, skip: &Skip, groups: TileRange) {
    let n_tokens = args.tokens.end - args.tokens.start;
    for first in (0..n_tokens).step_by(TOKENS) {
        let tokens = args.tokens.start + first..args.tokens.start + n_tokens.min(first + TOKENS);
        let part = Matmul {
            out: args.out.wrapping_add(first * args.out_stride),
            tokens: tokens.into(),
            ..*args
        };
        // SAFETY: by the caller.
        unsafe { few_tokens(&part, skip, groups) };
    }
}

/// # Safety
/// - As [`products`], for at most [`TOKENS`] tokens.
#[inline(never)]
unsafe fn few_tokens(args: &Matmul<'_>, skip: &Skip, groups: TileRange) {
    let n_tokens = args.tokens.end - args.tokens.start;
    let n_rows = args.rows.end - args.rows.start;
    for t in (0..n_tokens).filter(|_| groups.start == 0) {
        let out = args.out.wrapping_add(t * args.out_stride);
        // SAFETY: the outputs are writable, by the caller.
        unsafe { core::slice::from_raw_parts_mut(out, n_rows).fill(0.0) };
    }
    let mut active = [const { Active::EMPTY }; ACTIVE];
    let mut dots = [Dots([0; _]); DOTS];
    let step = ACTIVE / n_tokens.max(1);
    for g in (groups.start..groups.end).step_by(step) {
        let span = Span {
            groups: g..groups.end.min(g + step),
            n_tokens,
        };
        // SAFETY: by the caller.
        unsafe { span.multiply(args, skip, &mut active, &mut dots) };
    }
}

/// Rows' groups whose active columns are kept at once.
const ACTIVE: usize = 2 * TOKENS;

/// Groups of columns that are multiplied with a unit of outputs after another, in the order of memory.
struct Span {
    groups: Range<usize>,
    n_tokens: usize,
}

impl Span {
    /// # Safety
    /// - As [`few_tokens`].
    unsafe fn multiply(
        &self,
        args: &Matmul<'_>,
        skip: &Skip,
        active: &mut [Active; ACTIVE],
        dots: &mut [Dots; DOTS],
    ) {
        for (g, active) in (self.groups.clone()).zip(active.chunks_exact_mut(self.n_tokens)) {
            let x = skip.rows(args, g);
            for (t, active) in active.iter_mut().enumerate() {
                // SAFETY: rows have whole groups of codes.
                let q = unsafe { &*x.tokens(t).q.cast::<[i8; GROUP]>() };
                active.find(q, group_cols(&args.layout, g), skip.sub_cols);
            }
        }
        let of = |g: usize| &active[(g - self.groups.start) * self.n_tokens..][..self.n_tokens];
        let first_of = |outputs| (outputs, self.groups.start);
        let mut next = stripe_from(args, args.rows.start).map(first_of);
        let mut ahead = Ahead::EMPTY;
        if let Some((outputs, g)) = next.clone() {
            ahead.start(args, g, outputs, of(g));
        }
        while let Some((outputs, g)) = next {
            // What was not prefetched while the group before was multiplied.
            while ahead.prefetch_piece() {}
            next = match g + 1 < self.groups.end {
                true => Some((outputs.clone(), g + 1)),
                false => stripe_from(args, outputs.end).map(first_of),
            };
            if let Some((outputs, g)) = next.clone() {
                ahead.start(args, g, outputs, of(g));
            }
            let mut first = outputs.start;
            while first < outputs.end {
                let unit = Unit::new(skip, first..outputs.end);
                // SAFETY: by the caller.
                unsafe { one_unit(args, skip, g, unit, of(g), &mut ahead, dots) };
                first = unit.end();
            }
        }
    }
}

/// The outputs of a tile from `first` on that are in its stripe, if there are any.
fn stripe_from(args: &Matmul<'_>, first: usize) -> Option<Range<usize>> {
    let end = args.rows.end.min((first / STRIPE + 1) * STRIPE);
    (first < end).then_some(first..end)
}

impl Ahead {
    /// Starts with the active columns of group `g`, for `outputs` of a stripe.
    fn start(&mut self, args: &Matmul<'_>, g: usize, outputs: Range<usize>, active: &[Active]) {
        let mut all = Columns::NONE;
        for active in active {
            all.add(&active.columns);
        }
        self.n = all.list(&mut self.columns);
        (self.next, self.at) = (0, 0);
        let chunk = ChunkCodes::new(&args.layout, outputs.start);
        self.first = (args.panels.as_ptr()).wrapping_add(chunk.at + g * GROUP * chunk.stride);
        (self.stride, self.piece) = (chunk.stride, 4 * chunk.bytes());
        self.bytes = outputs.len().div_ceil(CHUNK) * chunk.bytes();
        // Addresses of all pages are looked up at once: one by one, each would be waited for.
        let mut page = 0;
        for column in &self.columns[..self.n] {
            let at = (self.first).wrapping_add(usize::from(*column) * chunk.stride);
            if at.addr() / PAGE_BYTES != page {
                prefetch_line_to_l2(at);
                page = at.addr() / PAGE_BYTES;
            }
        }
    }
}

/// Chunks that are multiplied together: whole ones of a stripe, or the last one.
#[derive(Clone, Copy)]
struct Unit {
    /// The first output.
    first: usize,
    n_chunks: usize,
}

impl Unit {
    /// The first unit of `outputs`, which are in one stripe.
    fn new(skip: &Skip, outputs: Range<usize>) -> Self {
        let n_chunks = (outputs.len() / CHUNK).min(skip.sub_cols / 8);
        Self {
            first: outputs.start,
            n_chunks: n_chunks.max(1),
        }
    }

    /// The output after its last one, or beyond the matrix's.
    const fn end(&self) -> usize {
        self.first + CHUNK * self.n_chunks
    }
}

/// The products of a unit with group `g`, whose active columns are given by token; prefetches `ahead`.
///
/// # Safety
/// - As [`few_tokens`].
unsafe fn one_unit(
    args: &Matmul<'_>,
    skip: &Skip,
    g: usize,
    unit: Unit,
    active: &[Active],
    ahead: &mut Ahead,
    dots: &mut [Dots; DOTS],
) {
    let n_cols = group_cols(&args.layout, g);
    let n_subs = n_cols / skip.sub_cols;
    let codes = ChunkCodes::new(&args.layout, unit.first);
    let head_bytes = format_of(&args.layout).head_bytes(n_cols);
    let heads = &args.panels[head_at(&args.layout, unit.first / PANEL_ROWS, g)..];
    let mut numbers = [SubBlockBytes::EMPTY; 2];
    let n_panels = ((unit.n_chunks - 1) * CHUNK + codes.n_outputs) / PANEL_ROWS;
    for (t, active) in active.iter().enumerate() {
        let chunks = Chunks {
            codes,
            first: args.panels[codes.at + g * GROUP * codes.stride..].as_ptr(),
            n_chunks: unit.n_chunks,
            active,
            n_subs,
            x: skip.rows(args, g).tokens(t),
        };
        // SAFETY: the chunks' columns are in the matrix; the CPU has the features.
        unsafe { (skip.kernels.dots)(skip, &chunks, ahead, dots) };
        let out = (args.out).wrapping_add(t * args.out_stride + unit.first - args.rows.start);
        for (p, head) in heads.chunks_exact(head_bytes).take(n_panels).enumerate() {
            if t == 0 {
                // Heads of a stripe follow each other.
                prefetch_to_l2(head.as_ptr().wrapping_add(HEADS_AHEAD), head_bytes);
            }
            let panel = Panel {
                head,
                dots: &raw const dots[p],
                stride: unit.n_chunks * PANELS,
                n_subs,
                x: chunks.x,
            };
            // SAFETY: the unit's outputs are writable, 16 of each panel; the CPU has the features.
            unsafe {
                let sums = &mut *out.add(p * PANEL_ROWS).cast::<[f32; PANEL_ROWS]>();
                (skip.finish)(skip, &panel, &mut numbers, sums);
            }
        }
    }
}

/// How far ahead heads are prefetched, in bytes.
const HEADS_AHEAD: usize = 4096;

/// Bytes of a small page.
const PAGE_BYTES: usize = 4096;

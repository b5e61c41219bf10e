//! Products that read only some neurons: columns whose activation codes are not 0, of matrices in
//! [`Form::Neurons`](crate::neuron::Form), or rows that are listed, of matrices in `Form::Rows`.
//!
//! Of columns ([`columns`]), up to four chunks of 128 outputs and a group at a time: the exact dots of each sub-block,
//! four columns interleaved into lines of panels ([`dots`]); then the scales, in the order and with the operations of the
//! dense product ([`finish`]). A code of 0 adds nothing to an exact sum, so both have the same bits. Meanwhile the columns
//! that follow in memory are prefetched: the CPU's own prefetchers do not see which is next. Rows: see [`listed`].
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

mod active;
pub(crate) mod columns;
pub(crate) mod dots;
pub(crate) mod finish;
mod kernels;
pub(crate) mod listed;
pub(crate) mod panels;

pub(crate) use kernels::skip_kernels;

use super::rows::Int8Rows;
use super::unpack::{Line, SubBlockBytes, SuperBlock};
use crate::activation::{ActivationKinds, BLOCK_COLS};
use crate::args::{Matmul, Store};
use crate::contract::GROUP;
use crate::neuron::{LinesFn, Strip, Transpose, put_numbers};
use crate::panel::form::format_of;
use crate::panel::group::GroupFormat;
use crate::panel::{LINE_BYTES, Mxfp4, PANEL_ROWS, WeightType};
use crate::scalar::matmul::IQ4_TABLE;
use dots::{Dots, DotsFn, WidenFn};
use finish::{FinishFn, Panel};
use listed::{BLOCKS, ListedFn, RowsAhead, STEPS};

/// What these products need of vectors that hold a line.
pub(crate) trait NeuronLine: Line {
    /// Interleaves the bytes of four vectors within each 16 bytes: of `c[0][p], c[1][p], c[2][p], c[3][p]` for
    /// position `p = 16 k + 4 q + l`, vector `q` has in 32-bit lane `4 k + l`.
    fn interleave(columns: [Self; 4]) -> [Self; 4];

    /// Adds the dots of four unsigned bytes with four signed ones, in every 32-bit lane.
    fn dot(self, codes: Self, q: Self) -> Self;

    /// The words of 32 bits with even numbers, and those with odd ones.
    fn by_words(of: [Self; 2]) -> [Self; 2];

    /// The quarters with even numbers, and those with odd ones.
    fn by_quarters(of: [Self; 2]) -> [Self; 2];

    /// The sum of the four integers in each quarter of vector `i` in lane `i` of that quarter.
    fn sums(of: [Self; 4]) -> Self;

    /// The first quarter of each, then the second ones, …
    fn transpose_quarters(of: [Self; 4]) -> [Self; 4];

    /// The same integer in every lane.
    fn ints(n: i32) -> Self;

    /// `self + other` in integers of 32 bits.
    fn plus(self, other: Self) -> Self;

    /// `self + a · b` in integers of 32 bits.
    fn add_product(self, a: Self, b: Self) -> Self;

    /// Adds the dots of pairs of signed words, in every 32-bit lane.
    fn add_words(self, a: Self, b: Self) -> Self;

    /// Integers as f32.
    fn to_floats(self) -> Self::Floats;

    /// The same number in every lane.
    fn float(x: f32) -> Self::Floats;

    /// `a · b`.
    fn product(a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// `a · b + c`, or `c - a · b`, rounded once.
    fn fma<const NEGATIVE: bool>(a: Self::Floats, b: Self::Floats, c: Self::Floats)
    -> Self::Floats;

    /// 32 bytes, twice.
    ///
    /// # Safety
    /// - 32 bytes are readable at `p`; the CPU has the features.
    unsafe fn twice(p: *const u8) -> Self;

    /// `byte` in the lower 32 bytes and 0 in the upper ones, and the other way round.
    fn halves_of(byte: u8) -> [Self; 2];

    /// Each bit as a byte.
    fn bits(word: u64) -> Self;
}

/// Tokens whose columns are found together: they share what is read.
const TOKENS: usize = 8;

/// The kernels of an instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    pub(crate) dots: DotsFn,
    pub(crate) widen: WidenFn,
    pub(crate) listed: ListedFn,
    pub(crate) lines: LinesFn,
    pub(crate) blocks: FinishFn,
    pub(crate) super_blocks: FinishFn,
}

/// What the products of one type need.
pub(crate) struct Skip {
    pub(crate) kernels: Kernels,
    finish: FinishFn,
    /// Bits of each part of a code.
    planes: &'static [usize],
    per_32: bool,
    sub_cols: usize,
    /// Bytes of a block's numbers in the head of a panel, in types with a scale per 32 columns.
    block_bytes: usize,
    has_min: bool,
    /// What to subtract from a code, after the table.
    offset: i32,
    table: Option<&'static [u8; 16]>,
    /// Unpacks the scales, and perhaps minima, of a type with exact sums over 256 columns.
    scales: Option<ScalesFn>,
    /// Where `d` and `dmin` are in the head of such a type.
    d: (usize, usize),
    /// Where the scales are.
    start: usize,
}

/// [`SuperBlock::scale_lines`].
pub(crate) type ScalesFn = unsafe fn(&[u8], &mut [SubBlockBytes; 2]);

impl Skip {
    /// Of a type with integer codes, as if it had a scale per 32 columns.
    pub(crate) fn of_blocks(ty: WeightType, kernels: Kernels) -> Option<Self> {
        let format = GroupFormat::of(ty)?;
        let (offset, table) = match ty {
            WeightType::Q8_0 => (128, None),
            WeightType::Q4_0 => (8, None),
            WeightType::Q5_0 => (16, None),
            WeightType::Q6_K => (32, None),
            WeightType::Q3_K => (4, None),
            WeightType::IQ4_NL | WeightType::IQ4_XS => (128, Some(&IQ4_TABLE)),
            WeightType::MXFP4 => (128, Mxfp4::TABLE.as_ref()),
            _ => (0, None),
        };
        Some(Self {
            kernels,
            finish: kernels.blocks,
            planes: format.planes,
            per_32: ActivationKinds::for_weights(ty).contains(ActivationKinds::INT8_32),
            sub_cols: BLOCK_COLS,
            block_bytes: format.numbers_of_row(BLOCK_COLS) * PANEL_ROWS,
            has_min: matches!(ty, WeightType::Q4_1 | WeightType::Q5_1),
            offset,
            table,
            scales: None,
            d: (0, 0),
            start: 0,
        })
    }

    /// Whether there are products of rows as they lie, for a product of `args`.
    pub(crate) fn lists(&self, args: &Matmul<'_>) -> bool {
        let is_plain = self.planes == [4] || self.planes == [8];
        let n_tokens = args.tokens.end - args.tokens.start;
        let is_whole = args.layout.n_cols().is_multiple_of(GROUP);
        is_plain && is_whole && n_tokens <= TOKENS && args.store == Store::Set
    }

    /// The rows of activations from group `g` on.
    fn rows(&self, args: &Matmul<'_>, g: usize) -> Int8Rows {
        let x = Int8Rows::new(args, args.tokens.start, self.per_32);
        match self.per_32 {
            true => x.skip_blocks(GROUP / BLOCK_COLS * g),
            false => x.skip_groups(g),
        }
    }

    /// The same with exact sums over 256 columns.
    pub(crate) fn of_sums<B: SuperBlock>(self, scales: ScalesFn) -> Self {
        Self {
            finish: self.kernels.super_blocks,
            sub_cols: B::SUB_COLS,
            has_min: B::MIN,
            scales: Some(scales),
            d: B::d(GROUP, 0),
            start: B::start(GROUP, 0),
            ..self
        }
    }
}

/// Products with a strip of up to 16 rows as they lie; `next` is the strip after it. Element (t, row) goes to
/// `out[t * args.out_stride + row]`.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul_listed`], whose checks have passed, for these rows; [`Skip::lists`]; the
///   CPU has what `skip`'s functions and `transpose` need.
#[inline(never)]
pub(crate) unsafe fn listed_strip(
    args: &Matmul<'_>,
    skip: &Skip,
    transpose: &Transpose,
    strip: &Strip<'_>,
    next: &Strip<'_>,
    out: *mut f32,
) {
    let n_tokens = args.tokens.end - args.tokens.start;
    let (format, n_groups) = (format_of(&args.layout), args.layout.n_cols() / GROUP);
    let row_bytes = args.layout.gguf_row_bytes();
    let mut ahead = RowsAhead::new(next.each_row(), row_bytes, n_groups * STEPS);
    let mut sums = [[0f32; PANEL_ROWS]; TOKENS];
    let mut head = Head([0; _]);
    let mut dots = [Dots([0; _]); BLOCKS];
    let mut numbers = [SubBlockBytes::EMPTY; 2];
    for g in 0..n_groups {
        // SAFETY: the rows have this group; the CPU has the features.
        unsafe {
            let rows = put_numbers(&format, GROUP, &strip.groups(0, g), &mut head.0, transpose);
            for (t, sums) in sums[..n_tokens].iter_mut().enumerate() {
                let x = skip.rows(args, g).tokens(t);
                (skip.kernels.listed)(skip, &rows, &x, &mut ahead, &mut dots);
                let panel = Panel {
                    head: &head.0,
                    dots: dots.as_ptr(),
                    stride: 1,
                    n_subs: BLOCKS,
                    x,
                };
                (skip.finish)(skip, &panel, &mut numbers, sums);
            }
        }
    }
    for (t, sums) in sums[..n_tokens].iter().enumerate() {
        let out = out.wrapping_add(t * args.out_stride);
        // SAFETY: the outputs are writable, by the caller.
        unsafe { out.copy_from_nonoverlapping(sums.as_ptr(), strip.n_rows()) };
    }
}

/// The numbers of 16 rows, and room for a line.
#[repr(C, align(64))]
struct Head([u8; HEAD_BYTES_MAX + LINE_BYTES]);

/// Bytes of the largest head, Q4_1's.
const HEAD_BYTES_MAX: usize = 8 * 4 * PANEL_ROWS;

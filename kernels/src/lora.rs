//! Matrices of adapters (LoRA, Hu et al. 2021), and what their products take.
//!
//! A matrix is stored as panels of 16 rows, one after the other; rows past the last are zero. As in the model's own
//! weights, a lane is an output row. In a panel of floats the 16 elements of a column are adjacent, column after
//! column. In a panel of int8 a line of 64 bytes holds four columns of each row, as codes + 128; the lines are followed
//! by the scales of the rows, 16 bf16.

use crate::activation::ActivationKinds;
use crate::args::{Activations, TileRange};
use crate::contract::LANES;
use crate::cpu::with_avx2;
use crate::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::panel::LINE_BYTES;

/// Columns of `A` that are summed by themselves: sums of parts are added in their order. Several workers can share
/// a row.
pub const PART: usize = 512;

/// How the elements of an adapter's matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LoraType {
    /// Signed bytes within ±127, with one bf16 scale for each row. They multiply rows of
    /// [`ActivationKinds::INT8_256`], and factors that are rounded likewise ([`quantize_factors`]).
    Int8,
    /// bfloat16.
    Bf16,
    /// Half precision.
    F16,
    /// As computed.
    F32,
}

impl LoraType {
    /// All of them, smallest first.
    pub const ALL: [Self; 4] = [Self::Int8, Self::Bf16, Self::F16, Self::F32];

    /// The name, as `--lora-dtype` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of an element.
    pub const fn element_bytes(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Whether every one of these numbers is stored as it is. For int8 that is true of zeros only.
    pub fn holds(self, values: &[f32]) -> bool {
        values.iter().all(|&x| match self {
            Self::Int8 => x == 0.0,
            Self::Bf16 => bf16_to_f32(f32_to_bf16(x)).to_bits() == x.to_bits(),
            Self::F16 => f16_to_f32(f32_to_f16(x)).to_bits() == x.to_bits(),
            Self::F32 => true,
        })
    }

    /// The kind of rows that `A` of this type multiplies.
    pub const fn activations(self) -> ActivationKinds {
        match self {
            Self::Int8 => ActivationKinds::INT8_256,
            Self::Bf16 | Self::F16 | Self::F32 => ActivationKinds::F32,
        }
    }
}

/// A matrix of an adapter in the caller's memory, (n_rows, n_cols).
#[derive(Clone, Copy, Debug)]
pub struct LoraMatrix<'a> {
    ty: LoraType,
    n_rows: usize,
    n_cols: usize,
    bytes: &'a [u8],
}

impl<'a> LoraMatrix<'a> {
    /// Bytes of a matrix; `None` if that is more than memory holds.
    pub const fn bytes_of(ty: LoraType, n_rows: usize, n_cols: usize) -> Option<usize> {
        if n_cols > isize::MAX as usize / (4 * LANES) - LANES {
            return None;
        }
        panel_bytes(ty, n_cols).checked_mul(n_rows.div_ceil(LANES))
    }

    /// A matrix stored in `bytes`; `None` if their number differs from [`Self::bytes_of`], or there are no rows or
    /// columns.
    pub fn new(ty: LoraType, [n_rows, n_cols]: [usize; 2], bytes: &'a [u8]) -> Option<Self> {
        let is_whole = Self::bytes_of(ty, n_rows, n_cols)? == bytes.len();
        (is_whole && n_rows > 0 && n_cols > 0).then_some(Self {
            ty,
            n_rows,
            n_cols,
            bytes,
        })
    }

    /// Packs `values`, (n_rows, n_cols) row by row, into `memory`; `None` if sizes do not go together, there are
    /// no elements, or one is not finite or too large for the type.
    pub fn pack(
        ty: LoraType,
        [n_rows, n_cols]: [usize; 2],
        values: &[f32],
        memory: &'a mut [u8],
    ) -> Option<Self> {
        if values.len() != n_rows.checked_mul(n_cols)?
            || memory.len() != Self::bytes_of(ty, n_rows, n_cols)?
        {
            return None;
        }
        memory.fill(0);
        pack_rows(ty, n_cols, values, memory)?;
        Self::new(ty, [n_rows, n_cols], memory)
    }

    /// How elements are stored.
    pub const fn ty(&self) -> LoraType {
        self.ty
    }

    /// Rows.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Columns.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// All panels.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Panels of 16 rows.
    pub const fn n_panels(&self) -> usize {
        self.n_rows.div_ceil(LANES)
    }

    /// Bytes of a panel.
    pub(crate) const fn panel_bytes(&self) -> usize {
        panel_bytes(self.ty, self.n_cols)
    }

    /// The bytes of panels `panels`.
    pub fn panels(&self, panels: core::ops::Range<usize>) -> &'a [u8] {
        let n = self.panel_bytes();
        &self.bytes[panels.start * n..panels.end * n]
    }

    /// An element, as products take it.
    ///
    /// # Panics
    /// If it is out of range.
    pub fn element(&self, row: usize, column: usize) -> f32 {
        assert!(row < self.n_rows && column < self.n_cols);
        let (panel, lane) = (self.panels(row / LANES..row / LANES + 1), row % LANES);
        let at = &panel[place(self.ty, column, lane)..][..self.ty.element_bytes()];
        let code = element(self.ty, at);
        match self.ty {
            LoraType::Int8 => code * scale(panel, lane),
            LoraType::Bf16 | LoraType::F16 | LoraType::F32 => code,
        }
    }
}

const fn panel_bytes(ty: LoraType, n_cols: usize) -> usize {
    match ty {
        LoraType::Int8 => LINE_BYTES * n_cols.div_ceil(4) + SCALES_BYTES,
        LoraType::Bf16 | LoraType::F16 | LoraType::F32 => LANES * n_cols * ty.element_bytes(),
    }
}

/// The index of an element in its panel.
const fn place(ty: LoraType, column: usize, lane: usize) -> usize {
    match ty {
        LoraType::Int8 => column / 4 * LINE_BYTES + 4 * lane + column % 4,
        LoraType::Bf16 | LoraType::F16 | LoraType::F32 => {
            (column * LANES + lane) * ty.element_bytes()
        }
    }
}

/// Bytes of the scales of a panel of int8.
pub(crate) const SCALES_BYTES: usize = 2 * LANES;
/// What codes of int8 have more than their numbers.
pub(crate) const OFFSET: i32 = 128;

/// The number in the bytes of an element; int8's without its scale.
fn element(ty: LoraType, at: &[u8]) -> f32 {
    let half = || u16::from_le_bytes([at[0], at[1]]);
    match ty {
        LoraType::Int8 => f32::from((at[0] ^ 0x80).cast_signed()),
        LoraType::Bf16 => bf16_to_f32(half()),
        LoraType::F16 => f16_to_f32(half()),
        LoraType::F32 => f32::from_le_bytes([at[0], at[1], at[2], at[3]]),
    }
}

/// The scale of a row of a panel of int8.
fn scale(panel: &[u8], lane: usize) -> f32 {
    let at = &panel[panel.len() - SCALES_BYTES..][2 * lane..];
    bf16_to_f32(u16::from_le_bytes([at[0], at[1]]))
}

/// The largest magnitude of numbers: NaN where one is NaN, 0 of none.
pub fn largest_magnitude(values: &[f32]) -> f32 {
    with_avx2!(largest(values: &[f32]) -> f32)
}

#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    // As whole numbers, which are as ordered as the floats are: NaN is above infinity.
    let magnitudes = values.iter().map(|x| x.abs().to_bits().cast_signed());
    f32::from_bits(magnitudes.fold(0, i32::max).cast_unsigned())
}

/// Writes all rows into panels; `None` if a number is not finite then.
fn pack_rows(ty: LoraType, n_cols: usize, values: &[f32], memory: &mut [u8]) -> Option<()> {
    with_avx2!(
        pack_each(ty: LoraType, n_cols: usize, values: &[f32], memory: &mut [u8]) -> Option<()>
    )
}

#[inline(always)]
pub(crate) fn pack_each(
    ty: LoraType,
    n_cols: usize,
    values: &[f32],
    memory: &mut [u8],
) -> Option<()> {
    let panel_bytes = panel_bytes(ty, n_cols);
    for (i, row) in values.chunks_exact(n_cols.max(1)).enumerate() {
        let panel = &mut memory[i / LANES * panel_bytes..][..panel_bytes];
        pack_row(ty, row, i % LANES, panel)?;
    }
    Some(())
}

/// Writes a row into its lane of a panel; `None` if a number is not finite then.
#[inline(always)]
fn pack_row(ty: LoraType, row: &[f32], lane: usize, panel: &mut [u8]) -> Option<()> {
    let largest = largest(row);
    if !largest.is_finite() {
        return None;
    }
    match ty {
        LoraType::Int8 => pack_codes(row, largest, lane, panel),
        LoraType::Bf16 => {
            if !bf16_to_f32(f32_to_bf16(largest)).is_finite() {
                return None;
            }
            put(row, lane, panel, |x| f32_to_bf16(x).to_le_bytes());
        }
        LoraType::F16 => {
            if !f16_to_f32(f32_to_f16(largest)).is_finite() {
                return None;
            }
            put(row, lane, panel, |x| f32_to_f16(x).to_le_bytes());
        }
        LoraType::F32 => put(row, lane, panel, f32::to_le_bytes),
    }
    Some(())
}

/// Writes the elements of a row of floats, of `N` bytes each.
#[inline(always)]
fn put<const N: usize>(
    row: &[f32],
    lane: usize,
    panel: &mut [u8],
    encode: impl Fn(f32) -> [u8; N],
) {
    let places = panel.as_chunks_mut::<N>().0.iter_mut();
    for (at, x) in places.skip(lane).step_by(LANES).zip(row) {
        *at = encode(*x);
    }
}

/// Writes the codes of a row, four at a time, and its scale.
#[inline(always)]
fn pack_codes(row: &[f32], largest: f32, lane: usize, panel: &mut [u8]) {
    // The scale is rounded up, so that no code is above 127.
    let up = (largest / 127.0).to_bits().saturating_add(0xffff) & 0xffff_0000;
    let d = f32::from_bits(up);
    let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
    let n = panel.len() - SCALES_BYTES;
    let (lines, scales) = panel.split_at_mut(n);
    scales[2 * lane..][..2].copy_from_slice(&f32_to_bf16(d).to_le_bytes());
    let words = lines.as_chunks_mut::<4>().0.iter_mut();
    let mut places = words.skip(lane).step_by(LANES);
    // Of the smallest scales the inverse is beyond f32.
    let is_finite = inverse.is_finite();
    let code = |x: f32| low_byte(if is_finite { x * inverse } else { x / d }) ^ 0x80;
    let (fours, rest) = row.as_chunks::<4>();
    for (four, word) in fours.iter().zip(places.by_ref()) {
        *word = four.map(code);
    }
    if let Some(word) = places.next() {
        word.iter_mut().zip(rest).for_each(|(to, &x)| *to = code(x));
    }
}

/// [`round`], of which the last bits of the sum are the code's.
#[inline(always)]
fn low_byte(x: f32) -> u8 {
    (x + ROUNDS).to_bits().to_le_bytes()[0]
}

/// The nearest integer of a number within ±127, the even one of two: adding and taking off 1.5 · 2^23 leaves it.
#[inline(always)]
fn round(x: f32) -> i8 {
    #[expect(clippy::cast_possible_truncation, reason = "within ±127")]
    let code = ((x + ROUNDS) - ROUNDS) as i8;
    code
}

const ROUNDS: f32 = 12_582_912.0;

/// Rounds the factors of a row to what `B` of int8 multiplies, in place: codes within ±127, four in the bits of a
/// float from the front; in the last two floats the scale, and as bits the codes' sum.
///
/// `t` is as long as the ranks of whole panels; those past `rank` count as zero.
///
/// # Panics
/// If `t` is shorter than `rank`, or than 16.
pub fn quantize_factors(t: &mut [f32], rank: usize) {
    assert!(t.len() >= LANES);
    let largest = t[..rank].iter().fold(0f32, |max, x| max.max(x.abs()));
    let inverse = 127.0 / largest;
    let (d, inverse) = match inverse.is_finite() {
        true => (largest / 127.0, inverse),
        // Nothing, or next to it.
        false => (0.0, 0.0),
    };
    let mut sum = 0;
    for word in 0..rank.div_ceil(4) {
        let mut codes = [0i8; 4];
        for (code, x) in codes.iter_mut().zip(&t[4 * word..rank.min(4 * word + 4)]) {
            *code = round(x * inverse);
            sum += i32::from(*code);
        }
        t[word] = f32::from_bits(u32::from_le_bytes(codes.map(i8::cast_unsigned)));
    }
    let n = t.len();
    t[n - 2] = d;
    t[n - 1] = f32::from_bits(sum.cast_unsigned());
}

/// The scale and the sum of rounded factors.
#[inline(always)]
pub(crate) fn factor_numbers(t: &[f32]) -> (f32, i32) {
    match t {
        [.., d, sum] => (*d, sum.to_bits().cast_signed()),
        _ => (0.0, 0),
    }
}

/// The product `A · x` of some rows of activations.
#[derive(Clone, Copy, Debug)]
pub struct LoraDown<'a> {
    /// `A`, (rank, n_cols).
    pub matrix: LoraMatrix<'a>,
    /// Panels of 16 ranks.
    pub panels: TileRange,
    /// Columns that are summed; begin at a multiple of [`PART`].
    pub columns: TileRange,
    /// Rows, kept in the type's kind ([`LoraType::activations`]).
    pub activations: Activations<'a>,
    /// Which of them.
    pub tokens: TileRange,
    /// Element (token t, rank r) goes to `out[(t - tokens.start) * out_stride + r - 16 * panels.start]`; the
    /// ranks of whole panels are written.
    pub out: *mut f32,
    /// Distance between the outputs of two tokens, in elements.
    pub out_stride: usize,
}

/// The product `B · t`, added to some outputs.
#[derive(Clone, Copy, Debug)]
pub struct LoraUp<'a> {
    /// `B`, (n_outputs, rank).
    pub matrix: LoraMatrix<'a>,
    /// Outputs; begin at a multiple of 16.
    pub rows: TileRange,
    /// (n_tokens, t_stride): the first `rank` of each are multiplied; of int8 as [`quantize_factors`] leaves them, the
    /// ranks of whole panels.
    pub t: &'a [f32],
    /// Distance between the factors of two tokens.
    pub t_stride: usize,
    /// Tokens.
    pub n_tokens: usize,
    /// Element (token t, output r) is `out[t * out_stride + r - rows.start]`.
    pub out: *mut f32,
    /// Distance between the outputs of two tokens, in elements.
    pub out_stride: usize,
}

//! Layout of keys and values: per (layer, KV head) and block of 64 positions.
//!
//! ```text
//! keys    f32, f16, fp8  [head_dim][64]
//!         bf16           [head_dim / 2][64][2]
//!         q8_0           scales [head_dim / 32][64], then [head_dim / 4][64][4]
//!         q4_0           the same, then [head_dim / 8][64][4], nibbles 4 dimensions apart
//! values  f32, f16, fp8  [64][head_dim]
//!         bf16           [32][head_dim][2]
//!         q8_0           scales [head_dim / 32][64], then [16][head_dim][4]
//!         q4_0           the same, then [16][head_dim / 32][16][4], nibbles 16 dimensions apart
//! ```
//!
//! A vector lane is a key while scores are computed, and a dimension while values are summed,
//! so no score or output is ever a sum over lanes. A kernel that takes all 64 keys of a step reads
//! a block from its first byte to its last. bf16 pairs are what `vdpbf16ps` takes, four codes what
//! `vpdpbusd` does. Codes are stored with their offset (128 and 8) for keys, where lanes want them
//! unsigned, and for values of q4_0; heads are padded to whole blocks of 32 with zeros. Everything
//! is little endian.
//!
//! The bytes of one key or value in order (its *row*) have the same content as a GGUF row: a scale per 32 dimensions
//! and the codes. Rows move between blocks and snapshots unchanged.

use crate::contract::{KV_BLOCK, round_ties_even, round_to_byte};
use crate::half::{bf16_to_f32, e4m3_to_f32, f16_to_f32, f32_to_bf16, f32_to_e4m3, f32_to_f16};
use core::fmt;
use core::mem::MaybeUninit;

/// Element type of keys or values in a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KvType {
    /// As computed.
    F32 = 0,
    /// IEEE half precision; llama.cpp's default.
    F16 = 1,
    /// bfloat16.
    BF16 = 2,
    /// Signed bytes with a scale (f16) per 32 dimensions.
    Q8_0 = 3,
    /// Signed nibbles with a scale (f16) per 32 dimensions.
    Q4_0 = 4,
    /// FP8 E4M3 without a scale: to ±448, three bits of mantissa.
    FP8 = 5,
}

impl KvType {
    /// Every type, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::FP8,
    ];

    /// The name on the command line: `f32`, `f16`, `bf16`, `q8_0`, `q4_0`, `fp8`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::FP8 => "fp8",
        }
    }

    /// Whether a number takes fewer bits than half precision: what rotation is for
    /// ([`crate::hadamard`]).
    pub const fn is_coarse(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q4_0 | Self::FP8)
    }

    /// The type with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.name() == name)
    }

    /// Bytes of a row of `head_dim` dimensions.
    const fn row_bytes(self, head_dim: usize) -> usize {
        let n_scales = head_dim.div_ceil(KV_SCALE_DIMS);
        match self {
            Self::F32 => 4 * head_dim,
            Self::F16 | Self::BF16 => 2 * head_dim,
            Self::Q8_0 => n_scales * (2 + KV_SCALE_DIMS),
            Self::Q4_0 => n_scales * (2 + KV_SCALE_DIMS / 2),
            Self::FP8 => head_dim,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Shape of a block of [`KV_BLOCK`] keys and values of one KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Element type of keys.
    pub type_k: KvType,
    /// Element type of values.
    pub type_v: KvType,
    /// Dimensions of a key.
    pub head_dim_k: usize,
    /// Dimensions of a value.
    pub head_dim_v: usize,
}

/// Alignment of blocks, in bytes.
pub const KV_ALIGN: usize = 64;
/// Dimensions that share a scale in q8_0 and q4_0.
pub const KV_SCALE_DIMS: usize = 32;
/// Longest head whose rows are stored and loaded, in dimensions.
pub const KV_HEAD_DIM_MAX: usize = 1024;
/// Maximum number of bytes of a row: a head of f32.
pub const KV_ROW_BYTES_MAX: usize = 4 * KV_HEAD_DIM_MAX;
/// Dimensions between the two codes of a byte of q4_0, in keys …
const K_NIBBLES: usize = 4;
/// … and in values, where it is GGUF's.
const V_NIBBLES: usize = KV_SCALE_DIMS / 2;
/// Blocks take at most 2 × 64 × 4 bytes a dimension, padded: up to here no size overflows.
const HEAD_DIM_MAX: usize = isize::MAX as usize / 1024;

impl KvLayout {
    /// Keys and values of one type and length.
    pub const fn uniform(ty: KvType, head_dim: usize) -> Self {
        Self {
            type_k: ty,
            type_v: ty,
            head_dim_k: head_dim,
            head_dim_v: head_dim,
        }
    }

    /// Bytes of the keys of a block.
    ///
    /// # Panics
    /// If [`Self::head_dim_k`] is above `isize::MAX / 1024`, more than memory holds.
    pub const fn k_bytes(&self) -> usize {
        assert!(self.head_dim_k <= HEAD_DIM_MAX, "keys larger than memory");
        self.k_row_bytes() * KV_BLOCK
    }

    /// Bytes of the values of a block.
    ///
    /// # Panics
    /// If [`Self::head_dim_v`] is above `isize::MAX / 1024`.
    pub const fn v_bytes(&self) -> usize {
        assert!(self.head_dim_v <= HEAD_DIM_MAX, "values larger than memory");
        self.v_row_bytes() * KV_BLOCK
    }

    /// Bytes of a block: keys, then values; a multiple of [`KV_ALIGN`].
    ///
    /// # Panics
    /// As [`Self::k_bytes`] and [`Self::v_bytes`].
    pub const fn block_bytes(&self) -> usize {
        self.k_bytes() + self.v_bytes()
    }

    /// Bytes of one key as a row.
    pub const fn k_row_bytes(&self) -> usize {
        match self.type_k {
            // Pairs are of dimensions: an odd last one has a partner of zero.
            KvType::BF16 => 2 * self.head_dim_k.next_multiple_of(2),
            ty => ty.row_bytes(self.head_dim_k),
        }
    }

    /// Bytes of one value as a row.
    pub const fn v_row_bytes(&self) -> usize {
        self.type_v.row_bytes(self.head_dim_v)
    }

    /// [`crate::KernelTable::store_key`], given how numbers become halves.
    ///
    /// # Safety
    /// - As there; the CPU has what `halves` needs.
    pub(crate) unsafe fn store_key(
        &self,
        halves: Halves,
        block: *mut u8,
        slot: usize,
        key: &[f32],
    ) {
        assert_eq!(key.len(), self.head_dim_k);
        let mut room = MaybeUninit::uninit();
        let row = zeroed(&mut room, self.k_row_bytes());
        // SAFETY: by the caller.
        unsafe { encode(self.type_k, K_NIBBLES, halves, key, row) };
        // SAFETY: by the caller.
        unsafe { self.put_key_row(block, slot, row) };
    }

    /// The value of one position: [`crate::KernelTable::store_value`].
    ///
    /// # Safety
    /// - As there; the CPU has what `halves` needs.
    pub(crate) unsafe fn store_value(
        &self,
        halves: Halves,
        block: *mut u8,
        slot: usize,
        value: &[f32],
    ) {
        assert_eq!(value.len(), self.head_dim_v);
        let mut room = MaybeUninit::uninit();
        let row = zeroed(&mut room, self.v_row_bytes());
        // SAFETY: by the caller.
        unsafe { encode(self.type_v, V_NIBBLES, halves, value, row) };
        // SAFETY: by the caller.
        unsafe { self.put_value_row(block, slot, row) };
    }

    /// Writes a key's row, as [`Self::key_row`] gave it.
    ///
    /// # Safety
    /// - As [`crate::KernelTable::store_key`].
    ///
    /// # Panics
    /// If `slot` or the row's length does not fit the layout.
    pub unsafe fn put_key_row(&self, block: *mut u8, slot: usize, row: &[u8]) {
        assert_eq!(row.len(), self.k_row_bytes());
        let mut rest = row;
        self.key_pieces(slot, |at, len| {
            let (piece, after) = rest.split_at(len);
            // SAFETY: pieces lie within the keys of a block; by the caller.
            unsafe { core::ptr::copy_nonoverlapping(piece.as_ptr(), block.wrapping_add(at), len) };
            rest = after;
        });
    }

    /// Writes a value's row, as [`Self::value_row`] gave it.
    ///
    /// # Safety
    /// - As [`crate::KernelTable::store_value`].
    ///
    /// # Panics
    /// If `slot` or the row's length does not fit the layout.
    pub unsafe fn put_value_row(&self, block: *mut u8, slot: usize, row: &[u8]) {
        assert_eq!(row.len(), self.v_row_bytes());
        let values = block.wrapping_add(self.k_bytes());
        let mut rest = row;
        self.value_pieces(slot, |at, len| {
            let (piece, after) = rest.split_at(len);
            // SAFETY: pieces lie within the values of a block; by the caller.
            unsafe { core::ptr::copy_nonoverlapping(piece.as_ptr(), values.wrapping_add(at), len) };
            rest = after;
        });
    }

    /// Reads the row of the key at `slot`.
    ///
    /// # Panics
    /// If `slot` or a slice's length does not fit the layout.
    pub fn key_row(&self, block: &[u8], slot: usize, row: &mut [u8]) {
        assert_eq!(block.len(), self.block_bytes());
        assert_eq!(row.len(), self.k_row_bytes());
        let mut to = 0;
        self.key_pieces(slot, |at, len| {
            row[to..to + len].copy_from_slice(&block[at..at + len]);
            to += len;
        });
    }

    /// Reads the row of the value at `slot`.
    ///
    /// # Panics
    /// If `slot` or a slice's length does not fit the layout.
    pub fn value_row(&self, block: &[u8], slot: usize, row: &mut [u8]) {
        assert_eq!(block.len(), self.block_bytes());
        assert_eq!(row.len(), self.v_row_bytes());
        let values = &block[self.k_bytes()..];
        let mut to = 0;
        self.value_pieces(slot, |at, len| {
            row[to..to + len].copy_from_slice(&values[at..at + len]);
            to += len;
        });
    }

    /// Reads the key and the value at `slot` of a block back as f32.
    ///
    /// # Panics
    /// If `slot` or a slice's length does not fit the layout, or a head is longer than
    /// [`KV_HEAD_DIM_MAX`].
    pub fn load(&self, block: &[u8], slot: usize, key: &mut [f32], value: &mut [f32]) {
        assert_eq!(key.len(), self.head_dim_k);
        assert_eq!(value.len(), self.head_dim_v);
        let mut row = [0; KV_ROW_BYTES_MAX];
        let k_row = &mut row[..self.k_row_bytes()];
        self.key_row(block, slot, k_row);
        decode(self.type_k, K_NIBBLES, k_row, key);
        let v_row = &mut row[..self.v_row_bytes()];
        self.value_row(block, slot, v_row);
        decode(self.type_v, V_NIBBLES, v_row, value);
    }

    /// Positions of the parts of a key's row among the keys of a block: (offset, bytes) in order.
    #[inline]
    fn key_pieces(&self, slot: usize, mut piece: impl FnMut(usize, usize)) {
        assert!(slot < KV_BLOCK);
        let column = |bytes: usize, n: usize| (0..n).map(move |i| (i * KV_BLOCK + slot) * bytes);
        let n_scales = self.head_dim_k.div_ceil(KV_SCALE_DIMS);
        let codes_at = self.k_codes_at();
        match self.type_k {
            KvType::F32 => column(4, self.head_dim_k).for_each(|at| piece(at, 4)),
            KvType::F16 => column(2, self.head_dim_k).for_each(|at| piece(at, 2)),
            KvType::BF16 => column(4, self.head_dim_k.div_ceil(2)).for_each(|at| piece(at, 4)),
            KvType::FP8 => column(1, self.head_dim_k).for_each(|at| piece(at, 1)),
            KvType::Q8_0 | KvType::Q4_0 => {
                column(2, n_scales).for_each(|at| piece(at, 2));
                let n = n_scales * if self.type_k == KvType::Q8_0 { 8 } else { 4 };
                column(4, n).for_each(|at| piece(codes_at + at, 4));
            }
        }
    }

    /// Positions of the parts of a value's row among the values of a block.
    #[inline]
    fn value_pieces(&self, slot: usize, mut piece: impl FnMut(usize, usize)) {
        assert!(slot < KV_BLOCK);
        let dim = self.head_dim_v;
        let n_scales = dim.div_ceil(KV_SCALE_DIMS);
        let codes_at = self.v_codes_at();
        match self.type_v {
            KvType::F32 => piece(slot * dim * 4, 4 * dim),
            KvType::F16 => piece(slot * dim * 2, 2 * dim),
            KvType::FP8 => piece(slot * dim, dim),
            KvType::BF16 => {
                let start = (slot / 2 * dim * 2 + slot % 2) * 2;
                (0..dim).for_each(|d| piece(start + 4 * d, 2));
            }
            KvType::Q8_0 | KvType::Q4_0 => {
                (0..n_scales).for_each(|i| piece((i * KV_BLOCK + slot) * 2, 2));
                let n = n_scales * if self.type_v == KvType::Q8_0 { 32 } else { 16 };
                let start = codes_at + slot / 4 * n * 4 + slot % 4;
                (0..n).for_each(|i| piece(start + 4 * i, 1));
            }
        }
    }

    /// Bytes of the scales before the codes of keys, in the types that have them.
    pub(crate) const fn k_codes_at(&self) -> usize {
        self.head_dim_k.div_ceil(KV_SCALE_DIMS) * KV_BLOCK * 2
    }

    /// Bytes of the scales before the codes of values, in the types that have them.
    pub(crate) const fn v_codes_at(&self) -> usize {
        self.head_dim_v.div_ceil(KV_SCALE_DIMS) * KV_BLOCK * 2
    }
}

/// Room for a row: all of it zeroed takes longer than to convert a head of usual length.
type RowRoom = MaybeUninit<[u8; KV_ROW_BYTES_MAX]>;

/// The first `len` bytes of `room`, zeros.
fn zeroed(room: &mut RowRoom, len: usize) -> &mut [u8] {
    assert!(len <= KV_ROW_BYTES_MAX);
    let start = room.as_mut_ptr().cast::<u8>();
    // SAFETY: `room` has at least `len` bytes, as just checked.
    unsafe { start.write_bytes(0, len) };
    // SAFETY: they have just been initialised, and are borrowed with the room.
    unsafe { core::slice::from_raw_parts_mut(start, len) }
}

/// Writes numbers as little-endian halves ([`put_halves`]), compiled for a table.
pub(crate) type Halves = unsafe fn(&[f32], &mut [u8]);

/// Writes each number as a half; [`f32_to_f16`].
#[inline(always)]
pub(crate) fn put_halves(x: &[f32], out: &mut [u8]) {
    put_each(x, out, |x| f32_to_f16(x).to_le_bytes());
}

/// Writes `x` as a row of type `ty`. Numbers that are not finite stay so, if only as NaN.
///
/// # Safety
/// - The CPU has what `halves` needs.
unsafe fn encode(ty: KvType, nibbles: usize, halves: Halves, x: &[f32], row: &mut [u8]) {
    match ty {
        KvType::F32 => put_each(x, row, f32::to_le_bytes),
        // SAFETY: by the caller.
        KvType::F16 => unsafe { halves(x, row) },
        KvType::BF16 => put_each(x, row, |x| f32_to_bf16(x).to_le_bytes()),
        KvType::FP8 => put_each(x, row, |x| [f32_to_e4m3(x)]),
        KvType::Q8_0 => encode_q8_0(x, row),
        KvType::Q4_0 => encode_q4_0(nibbles, x, row),
    }
}

#[inline(always)]
fn put_each<const N: usize>(x: &[f32], row: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (x, out) in x.iter().zip(row.as_chunks_mut::<N>().0) {
        *out = bytes(*x);
    }
}

/// Scale and its inverse for the f32 `d`: rounded to f16, and 0 for 0. NaN where a number of the
/// block is not finite, or too large.
fn scale(d: f32) -> (u16, f32) {
    let half = f32_to_f16(d);
    let d = f16_to_f32(half);
    if !d.is_finite() {
        return (f32_to_f16(f32::NAN), 0.0);
    }
    (half, if d == 0.0 { 0.0 } else { 1.0 / d })
}

/// The number of largest magnitude, NaN if one is not finite.
fn largest(x: &[f32]) -> f32 {
    let wider = |m: f32, x: &f32| if x.abs() > m.abs() { *x } else { m };
    if x.iter().all(|x| x.is_finite()) {
        x.iter().fold(0.0, wider)
    } else {
        f32::NAN
    }
}

/// `d = amax / 127` rounded to f16, `q = round(x / d)` within ±127, stored +128.
fn encode_q8_0(x: &[f32], row: &mut [u8]) {
    let (scales, codes) = row.split_at_mut(2 * x.len().div_ceil(KV_SCALE_DIMS));
    codes.fill(128);
    let blocks = x.chunks(KV_SCALE_DIMS).zip(codes.chunks_mut(KV_SCALE_DIMS));
    for (d_out, (x, codes)) in scales.as_chunks_mut::<2>().0.iter_mut().zip(blocks) {
        let (d, inverse) = scale(largest(x).abs() / 127.0);
        *d_out = d.to_le_bytes();
        for (code, x) in codes.iter_mut().zip(x) {
            let q = if inverse == 0.0 { 0.0 } else { x * inverse };
            *code = round_to_byte(q.clamp(-127.0, 127.0)).cast_unsigned() ^ 0x80;
        }
    }
}

/// Computes the same codes as GGUF's quantiser: `d = (the number of largest magnitude) / -8`, `q = round(x / d)` within
/// -8..=7, stored +8. The stored scale is the least-squares fit for them ([`fit`]).
fn encode_q4_0(nibbles: usize, x: &[f32], row: &mut [u8]) {
    let (scales, codes) = row.split_at_mut(2 * x.len().div_ceil(KV_SCALE_DIMS));
    let blocks = x
        .chunks(KV_SCALE_DIMS)
        .zip(codes.chunks_mut(KV_SCALE_DIMS / 2));
    for (d_out, (block, codes)) in scales.as_chunks_mut::<2>().0.iter_mut().zip(blocks) {
        let mut x = [0f32; KV_SCALE_DIMS];
        x[..block.len()].copy_from_slice(block);
        let d = largest(block) / -8.0;
        let (_, inverse) = scale(d);
        let mut q = [0f32; KV_SCALE_DIMS];
        for (q, x) in q.iter_mut().zip(&x) {
            let x = if inverse == 0.0 { 0.0 } else { x * inverse };
            *q = round_ties_even(x.clamp(-8.0, 7.0));
        }
        let (d, _) = scale(fit(&x, &q, d));
        *d_out = d.to_le_bytes();
        let code = |i: usize| (round_to_byte(q[i]) + 8).cast_unsigned();
        for (i, out) in codes.iter_mut().enumerate() {
            let low = i / nibbles * 2 * nibbles + i % nibbles;
            *out = code(low) | code(low + nibbles) << 4;
        }
    }
}

/// The `d` for which the squares of `x - d * q` add up to the least: `x · q / q · q`; `otherwise` where all codes
/// are 0 or a number is not finite. The sums have eight parts, which are added by halves.
fn fit(x: &[f32; KV_SCALE_DIMS], q: &[f32; KV_SCALE_DIMS], otherwise: f32) -> f32 {
    let (mut xq, mut qq) = ([0f32; 8], [0f32; 8]);
    for (x, q) in x.as_chunks::<8>().0.iter().zip(q.as_chunks::<8>().0) {
        for lane in 0..8 {
            xq[lane] += x[lane] * q[lane];
            qq[lane] += q[lane] * q[lane];
        }
    }
    let sum = |s: [f32; 8]| ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    let (xq, qq) = (sum(xq), sum(qq));
    if qq > 0.0 && xq.is_finite() && otherwise.is_finite() {
        xq / qq
    } else {
        otherwise
    }
}

/// The numbers of a row of type `ty`.
fn decode(ty: KvType, nibbles: usize, row: &[u8], x: &mut [f32]) {
    match ty {
        KvType::F32 => take_each(row, x, f32::from_le_bytes),
        KvType::F16 => take_each(row, x, |b| f16_to_f32(u16::from_le_bytes(b))),
        KvType::BF16 => take_each(row, x, |b| bf16_to_f32(u16::from_le_bytes(b))),
        KvType::FP8 => take_each(row, x, |[b]: [u8; 1]| e4m3_to_f32(b)),
        KvType::Q8_0 | KvType::Q4_0 => {
            let (scales, codes) = row.split_at(2 * x.len().div_ceil(KV_SCALE_DIMS));
            for (i, x) in x.iter_mut().enumerate() {
                let at = i / KV_SCALE_DIMS * 2;
                let d = f16_to_f32(u16::from_le_bytes([scales[at], scales[at + 1]]));
                let q = match ty {
                    KvType::Q8_0 => i16::from(codes[i]) - 128,
                    _ => {
                        let (pair, high) = (i / (2 * nibbles), i / nibbles % 2);
                        i16::from(codes[pair * nibbles + i % nibbles] >> (4 * high) & 0xf) - 8
                    }
                };
                *x = d * f32::from(q);
            }
        }
    }
}

fn take_each<const N: usize>(row: &[u8], x: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    for (x, bytes) in x.iter_mut().zip(row.as_chunks::<N>().0) {
        *x = number(*bytes);
    }
}

#[cfg(test)]
mod tests;

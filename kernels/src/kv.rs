//! Layout of keys and values: per (layer, KV head) and block of 64 positions.
//!
//! ```text
//! keys    4 × 16 positions:  f32, f16  [head_dim][16]        bf16  [head_dim/2][16][2]
//! values  64 positions:      f32, f16  [64][head_dim]        bf16  [32][head_dim][2]
//! ```
//!
//! A vector lane is a key while scores are computed, and a dimension while values are summed,
//! so no score or output is ever a sum over lanes. bf16 pairs are what `vdpbf16ps` takes; an
//! odd last dimension has a partner of zeros. Halves are stored little endian.

use crate::bytes::{cast, u16_at};
use crate::contract::{KV_BLOCK, LANES};
use crate::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use core::fmt;

/// Element type of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KvType {
    /// As computed.
    F32 = 0,
    /// IEEE half precision; llama.cpp's default.
    F16 = 1,
    /// bfloat16.
    BF16 = 2,
}

impl KvType {
    /// Every type, in the order of kernel tables.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::BF16];

    /// The name on the command line: `f32`, `f16`, `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
        }
    }

    /// The type with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.name() == name)
    }

    /// Bytes of an element.
    pub const fn element_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
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
    /// Element type.
    pub ty: KvType,
    /// Dimensions of a key.
    pub head_dim_k: usize,
    /// Dimensions of a value.
    pub head_dim_v: usize,
}

/// Alignment of blocks, in bytes.
pub const KV_ALIGN: usize = 64;
/// Blocks take at most 2 × 64 × 4 bytes a dimension: up to here no size overflows.
const HEAD_DIM_MAX: usize = isize::MAX as usize / 1024;

impl KvLayout {
    /// Bytes of the keys of a block.
    ///
    /// # Panics
    /// If [`Self::head_dim_k`] is above `isize::MAX / 1024`, more than memory holds.
    pub const fn k_bytes(&self) -> usize {
        assert!(self.head_dim_k <= HEAD_DIM_MAX, "keys larger than memory");
        let dims = match self.ty {
            KvType::BF16 => self.head_dim_k.next_multiple_of(2),
            KvType::F32 | KvType::F16 => self.head_dim_k,
        };
        dims * KV_BLOCK * self.ty.element_bytes()
    }

    /// Bytes of the values of a block, padded to [`KV_ALIGN`].
    ///
    /// # Panics
    /// If [`Self::head_dim_v`] is above `isize::MAX / 1024`.
    pub const fn v_bytes(&self) -> usize {
        assert!(self.head_dim_v <= HEAD_DIM_MAX, "values larger than memory");
        (self.head_dim_v * KV_BLOCK * self.ty.element_bytes()).next_multiple_of(KV_ALIGN)
    }

    /// Bytes of a block: keys, then values; a multiple of [`KV_ALIGN`].
    ///
    /// # Panics
    /// As [`Self::k_bytes`] and [`Self::v_bytes`].
    pub const fn block_bytes(&self) -> usize {
        self.k_bytes() + self.v_bytes()
    }

    /// Element number of dimension `d` of the key at `slot` (`0..64`).
    #[inline(always)]
    const fn k_at(&self, slot: usize, d: usize) -> usize {
        let (lanes, lane) = (slot / LANES, slot % LANES);
        match self.ty {
            KvType::F32 | KvType::F16 => (lanes * self.head_dim_k + d) * LANES + lane,
            KvType::BF16 => {
                let pairs = self.head_dim_k.div_ceil(2);
                ((lanes * pairs + d / 2) * LANES + lane) * 2 + d % 2
            }
        }
    }

    /// Element number of dimension `d` of the value at `slot`.
    #[inline(always)]
    const fn v_at(&self, slot: usize, d: usize) -> usize {
        match self.ty {
            KvType::F32 | KvType::F16 => slot * self.head_dim_v + d,
            KvType::BF16 => (slot / 2 * self.head_dim_v + d) * 2 + slot % 2,
        }
    }

    /// Writes the key of one position into a block.
    ///
    /// # Safety
    /// - `block` points to [`Self::block_bytes`] writable bytes, aligned to [`KV_ALIGN`].
    /// - Nobody else accesses the key at `slot` of the block meanwhile.
    ///
    /// # Panics
    /// If `slot` or the slice's length does not fit the layout.
    pub unsafe fn store_key(&self, block: *mut u8, slot: usize, key: &[f32]) {
        assert!(slot < KV_BLOCK);
        assert_eq!(key.len(), self.head_dim_k);
        for (d, &x) in key.iter().enumerate() {
            // SAFETY: k_at stays below k_bytes / element size for d < head_dim_k, slot < 64.
            unsafe { self.put(block, self.k_at(slot, d), x) };
        }
        if self.ty == KvType::BF16 && !self.head_dim_k.is_multiple_of(2) {
            // SAFETY: k_bytes counts the partner of an odd last dimension.
            unsafe { self.put(block, self.k_at(slot, self.head_dim_k), 0.0) };
        }
    }

    /// Writes the value of one position into a block.
    ///
    /// # Safety
    /// - As [`Self::store_key`], for the value at `slot`.
    ///
    /// # Panics
    /// If `slot` or the slice's length does not fit the layout.
    pub unsafe fn store_value(&self, block: *mut u8, slot: usize, value: &[f32]) {
        assert!(slot < KV_BLOCK);
        assert_eq!(value.len(), self.head_dim_v);
        let values = block.wrapping_add(self.k_bytes());
        for (d, &x) in value.iter().enumerate() {
            // SAFETY: v_at stays below v_bytes / element size for d < head_dim_v, slot < 64.
            unsafe { self.put(values, self.v_at(slot, d), x) };
        }
    }

    /// # Safety
    /// - Element `at` of `base` is writable and aligned for the type.
    #[inline(always)]
    unsafe fn put(&self, base: *mut u8, at: usize, x: f32) {
        let half = base.cast::<u16>().wrapping_add(at);
        match self.ty {
            // SAFETY: by the caller.
            KvType::F32 => unsafe { base.cast::<f32>().wrapping_add(at).write(x) },
            // SAFETY: by the caller.
            KvType::F16 => unsafe { half.write(f32_to_f16(x).to_le()) },
            // SAFETY: by the caller.
            KvType::BF16 => unsafe { half.write(f32_to_bf16(x).to_le()) },
        }
    }

    /// Reads the key and the value at `slot` of a block back as f32.
    ///
    /// # Panics
    /// If `slot` or a slice's length does not fit the layout.
    pub fn load(&self, block: &[u8], slot: usize, key: &mut [f32], value: &mut [f32]) {
        assert!(slot < KV_BLOCK);
        assert_eq!(block.len(), self.block_bytes());
        assert_eq!(key.len(), self.head_dim_k);
        assert_eq!(value.len(), self.head_dim_v);
        let (keys, values) = block.split_at(self.k_bytes());
        for (d, x) in key.iter_mut().enumerate() {
            *x = self.take(keys, self.k_at(slot, d));
        }
        for (d, x) in value.iter_mut().enumerate() {
            *x = self.take(values, self.v_at(slot, d));
        }
    }

    fn take(&self, elements: &[u8], at: usize) -> f32 {
        let half = || u16_at(elements, 2 * at);
        match self.ty {
            KvType::F32 => cast(&elements[4 * at..][..4])[0],
            KvType::F16 => f16_to_f32(half()),
            KvType::BF16 => bf16_to_f32(half()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Aligned, Noise, bits};
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn every_slot_gives_back_what_it_was_given() {
        let mut noise = Noise(41);
        for ty in KvType::ALL {
            for (head_dim_k, head_dim_v) in [(1, 1), (5, 3), (64, 64), (7, 80)] {
                let layout = KvLayout {
                    ty,
                    head_dim_k,
                    head_dim_v,
                };
                assert!(layout.block_bytes().is_multiple_of(KV_ALIGN));
                let mut block = Aligned::new(layout.block_bytes());
                let mut slots = vec![(Vec::new(), Vec::new()); KV_BLOCK];
                for slot in (0..KV_BLOCK).rev() {
                    let (key, value) = (noise.values(head_dim_k), noise.values(head_dim_v));
                    // SAFETY: the block is exclusively borrowed.
                    unsafe { layout.store_key(block.bytes_mut().as_mut_ptr(), slot, &key) };
                    // SAFETY: as above.
                    unsafe { layout.store_value(block.bytes_mut().as_mut_ptr(), slot, &value) };
                    slots[slot] = (key, value);
                }
                let round = |x: &f32| match ty {
                    KvType::F32 => *x,
                    KvType::F16 => f16_to_f32(f32_to_f16(*x)),
                    KvType::BF16 => bf16_to_f32(f32_to_bf16(*x)),
                };
                let (mut key, mut value) = (vec![0.0; head_dim_k], vec![0.0; head_dim_v]);
                for (slot, expected) in slots.iter().enumerate() {
                    layout.load(block.bytes(), slot, &mut key, &mut value);
                    let rounded = |x: &[f32]| x.iter().map(round).collect::<Vec<_>>();
                    assert_eq!(bits(&key), bits(&rounded(&expected.0)), "{ty} {slot}");
                    assert_eq!(bits(&value), bits(&rounded(&expected.1)), "{ty} {slot}");
                }
            }
        }
    }
}

//! Rows of keys and values: what they hold, and how near to what was stored.

use super::*;
use crate::tests::{Aligned, Noise, bits, scalar};
extern crate std;
use std::vec;
use std::vec::Vec;

/// Every pair of types with a few lengths of heads.
fn layouts() -> impl Iterator<Item = KvLayout> {
    let types = KvType::ALL.into_iter();
    let pairs = types.flat_map(|type_k| KvType::ALL.map(move |type_v| (type_k, type_v)));
    let all = pairs.flat_map(|(type_k, type_v)| {
        [(1, 1), (5, 3), (64, 64), (7, 80), (72, 33)].map(move |(head_dim_k, head_dim_v)| {
            KvLayout {
                type_k,
                type_v,
                head_dim_k,
                head_dim_v,
            }
        })
    });
    // Miri is slow: every type of keys with some values, every length.
    all.step_by(if cfg!(miri) { 29 } else { 1 })
}

/// What a number may move by, given the largest of its block.
fn tolerance(ty: KvType, x: f32, largest: f32) -> f32 {
    match ty {
        KvType::F32 => 0.0,
        KvType::F16 => x.abs() / 2048.0,
        KvType::BF16 => x.abs() / 256.0,
        KvType::Q8_0 => largest * (0.501 / 127.0),
        // The far end of the range has no code of its own, and the scale is fitted to all numbers.
        KvType::Q4_0 => largest * (1.5 / 8.0),
        KvType::FP8 => (x.abs() / 16.0).max(1.0 / 1024.0),
    }
}

#[test]
fn every_slot_gives_back_what_it_was_given() {
    let (table, mut noise) = (scalar(), Noise(41));
    for layout in layouts() {
        assert!(layout.block_bytes().is_multiple_of(KV_ALIGN));
        assert!(layout.k_bytes().is_multiple_of(KV_ALIGN));
        let mut block = Aligned::new(layout.block_bytes());
        block.bytes_mut().fill(0xff);
        let at = block.bytes_mut().as_mut_ptr();
        let mut slots = vec![(Vec::new(), Vec::new()); KV_BLOCK];
        for slot in (0..KV_BLOCK).rev() {
            let key = noise.values(layout.head_dim_k);
            let value = noise.values(layout.head_dim_v);
            // SAFETY: the block is exclusively borrowed.
            unsafe { table.store_key(&layout, at, slot, &key) };
            // SAFETY: as above.
            unsafe { table.store_value(&layout, at, slot, &value) };
            slots[slot] = (key, value);
        }
        let mut key = vec![0.0; layout.head_dim_k];
        let mut value = vec![0.0; layout.head_dim_v];
        let block = block.bytes();
        for (slot, expected) in slots.iter().enumerate() {
            layout.load(block, slot, &mut key, &mut value);
            let near = |ty, found: &[f32], expected: &[f32]| {
                let blocks = expected
                    .chunks(KV_SCALE_DIMS)
                    .zip(found.chunks(KV_SCALE_DIMS));
                for (expected, found) in blocks {
                    let largest = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
                    for (found, x) in found.iter().zip(expected) {
                        let error = (found - x).abs();
                        assert!(error <= tolerance(ty, *x, largest), "{layout:?} {slot}");
                    }
                }
            };
            near(layout.type_k, &key, &expected.0);
            near(layout.type_v, &value, &expected.1);
        }
    }
}

#[test]
fn rows_move_unchanged_and_hold_every_byte_of_a_block() {
    for layout in layouts() {
        let mut block = Aligned::new(layout.block_bytes());
        for (i, byte) in block.bytes_mut().iter_mut().enumerate() {
            *byte = (i * 7 + i / 251).to_le_bytes()[0];
        }
        let mut copy = Aligned::new(layout.block_bytes());
        let mut row = vec![0; layout.k_row_bytes().max(layout.v_row_bytes())];
        for slot in 0..KV_BLOCK {
            let k_row = &mut row[..layout.k_row_bytes()];
            layout.key_row(block.bytes(), slot, k_row);
            // SAFETY: the copy is exclusively borrowed.
            unsafe { layout.put_key_row(copy.bytes_mut().as_mut_ptr(), slot, k_row) };
            let v_row = &mut row[..layout.v_row_bytes()];
            layout.value_row(block.bytes(), slot, v_row);
            // SAFETY: as above.
            unsafe { layout.put_value_row(copy.bytes_mut().as_mut_ptr(), slot, v_row) };
        }
        assert_eq!(copy.bytes(), block.bytes(), "{layout:?}");
    }
}

/// `dequantize_row` is checked against ggml's own results.
#[test]
fn rows_of_q8_0_and_q4_0_are_ggufs() {
    let mut noise = Noise(42);
    for (ty, ggml) in [
        (KvType::Q8_0, crate::GgmlType::Q8_0),
        (KvType::Q4_0, crate::GgmlType::Q4_0),
    ] {
        let x = noise.values(96);
        let mut row = vec![0; ty.row_bytes(96)];
        // SAFETY: halves of plain code.
        unsafe { encode(ty, V_NIBBLES, put_halves, &x, &mut row) };
        let mut found = vec![0.0; 96];
        decode(ty, V_NIBBLES, &row, &mut found);
        // GGUF keeps the scale of a block before its codes, and signed bytes as they are.
        let (scales, codes) = row.split_at(6);
        let mut gguf = Vec::new();
        for (scale, codes) in scales.chunks(2).zip(codes.chunks(codes.len() / 3)) {
            gguf.extend(scale);
            let signed = if ty == KvType::Q8_0 { 0x80 } else { 0 };
            gguf.extend(codes.iter().map(|code| code ^ signed));
        }
        let mut expected = vec![0.0; 96];
        crate::blocks::dequantize_row(ggml, &gguf, &mut expected);
        assert_eq!(bits(&found), bits(&expected), "{ty}");
    }
}

/// The scale that a block of q4_0 has fits its codes better than the one that they were found with.
#[test]
fn scales_of_q4_0_are_of_least_squares() {
    let mut noise = Noise(43);
    let errors = |x: &[f32], found: &[f32]| -> f32 {
        x.iter().zip(found).map(|(x, y)| (x - y) * (x - y)).sum()
    };
    let mut gains = 0;
    for _ in 0..200 {
        let x = noise.values(KV_SCALE_DIMS);
        let mut row = [0; 2 + KV_SCALE_DIMS / 2];
        // SAFETY: halves of plain code.
        unsafe { encode(KvType::Q4_0, V_NIBBLES, put_halves, &x, &mut row) };
        let mut found = [0.0; KV_SCALE_DIMS];
        decode(KvType::Q4_0, V_NIBBLES, &row, &mut found);
        let (widest, _) = scale(largest(&x) / -8.0);
        row[..2].copy_from_slice(&widest.to_le_bytes());
        let mut plain = [0.0; KV_SCALE_DIMS];
        decode(KvType::Q4_0, V_NIBBLES, &row, &mut plain);
        // The scale is a half: at the optimum its rounding is more than what is gained.
        assert!(errors(&x, &found) <= 1.001 * errors(&x, &plain));
        gains += usize::from(errors(&x, &found) < 0.99 * errors(&x, &plain));
    }
    assert!(gains > 100, "{gains}");
}

#[test]
fn what_is_not_finite_stays_so() {
    for ty in KvType::ALL {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [0.5; 40];
            x[3] = bad;
            let mut row = [0; 160];
            let row = &mut row[..ty.row_bytes(40)];
            // SAFETY: halves of plain code.
            unsafe { encode(ty, V_NIBBLES, put_halves, &x, row) };
            let mut found = [0.0; 40];
            decode(ty, V_NIBBLES, row, &mut found);
            assert!(!found[3].is_finite(), "{ty} {bad}");
            assert!(found[39].is_finite());
        }
        // Zeros, and numbers too small for a scale.
        for x in [0.0, 1e-30, -1e-40] {
            let mut row = [0; 160];
            let row = &mut row[..ty.row_bytes(40)];
            // SAFETY: as above.
            unsafe { encode(ty, V_NIBBLES, put_halves, &[x; 40], row) };
            let mut found = [1.0; 40];
            decode(ty, V_NIBBLES, row, &mut found);
            assert!(found.iter().all(|found| found.abs() <= x.abs()), "{ty} {x}");
        }
    }
}

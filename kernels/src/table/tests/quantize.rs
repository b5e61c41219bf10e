//! Activation rows: what is written for every length and for awkward values.

use crate::activation::{ActivationKinds, ActivationLayout};
use crate::contract::GROUP;
use crate::half::f32_to_bf16;
use crate::table::Quantize;
use crate::tests::{Aligned, Noise, bits, quantized, scalar, tables};
extern crate std;
use std::vec;
use std::vec::Vec;

/// The scale and the codes of every group of a row.
fn int8_groups(layout: &ActivationLayout, row: &[u8]) -> Vec<(f32, [i8; GROUP])> {
    let groups = 0..layout.n_cols().div_ceil(GROUP);
    let read = |g| {
        let (numbers, q) = layout.int8_256(row, g);
        let wide = q.map(i16::from);
        for (sum, q) in numbers.sums.iter().zip(wide.as_chunks::<16>().0) {
            assert_eq!(*sum, q.iter().sum());
        }
        for (sum, q) in numbers.sums_of_32.iter().zip(wide.as_chunks::<32>().0) {
            assert_eq!(*sum, q.iter().sum());
        }
        let magnitudes = wide.map(i16::unsigned_abs);
        let of_16 = magnitudes.as_chunks::<16>().0.iter();
        let most = of_16.map(|q| q.iter().sum()).max();
        assert_eq!(Some(numbers.most_of_16), most);
        let of_sign = |q: &[i16; 32], sign: i16| q.iter().map(|q| (sign * q).max(0)).sum::<i16>();
        let of_32 = wide.as_chunks::<32>().0.iter();
        let most = of_32.map(|q| of_sign(q, 1).max(of_sign(q, -1))).max();
        assert_eq!(Some(numbers.most_of_32.cast_signed()), most);
        (numbers.d, *q)
    };
    groups.map(read).collect()
}

#[test]
fn rows_of_every_length_hold_what_the_contract_says() {
    let mut noise = Noise(11);
    for n in (0..=3 * 16).chain(GROUP - 17..=GROUP + 3 * 16) {
        let layout = ActivationLayout::new(n, ActivationKinds::all());
        let x = noise.values(n);
        for table in tables() {
            let mut row = Aligned::new(layout.row_bytes());
            // Whatever was there before must not show.
            row.bytes_mut().fill(0xff);
            let args = Quantize {
                x: &x,
                first_col: 0,
                layout: &layout,
                row: row.bytes_mut().as_mut_ptr(),
            };
            // SAFETY: the row is exclusively borrowed.
            unsafe { table.quantize(&args) };
            assert_eq!(bits(layout.f32(row.bytes())), bits(&x));
            let mut rounded: Vec<u16> = x.iter().map(|x| f32_to_bf16(*x)).collect();
            rounded.resize(n.next_multiple_of(2), 0);
            assert_eq!(layout.bf16(row.bytes()), rounded);
            let groups = int8_groups(&layout, row.bytes());
            for ((d, q), x) in groups.iter().zip(x.chunks(GROUP)) {
                let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
                assert_eq!(
                    d.to_bits(),
                    (amax / 127.0).to_bits(),
                    "{} {n}",
                    table.name()
                );
                for (x, q) in x.iter().zip(q) {
                    let exact = f64::from(*x) / f64::from(amax) * 127.0;
                    assert!(
                        (f64::from(*q) - exact).abs() < 0.5001,
                        "{} {n}",
                        table.name()
                    );
                }
                assert!(q[x.len()..].iter().all(|&q| q == 0));
            }
        }
    }
}

#[test]
fn awkward_groups_get_the_scale_that_the_contract_says() {
    let layout = ActivationLayout::new(GROUP, ActivationKinds::INT8_256);
    let denormal = f32::from_bits(1);
    for (value, d, code) in [
        (0.0, 0.0, 0),
        (-0.0, 0.0, 0),
        (denormal, 0.0, 0),
        // Just below and at the smallest magnitude whose inverse is taken.
        (9.9e-31, 0.0, 0),
        (1e-30, 1e-30 / 127.0, 127),
        (f32::MAX, f32::MAX / 127.0, 127),
        (-f32::MAX, f32::MAX / 127.0, -127),
        (f32::INFINITY, f32::NAN, 0),
        (f32::NEG_INFINITY, f32::NAN, 0),
        (f32::NAN, f32::NAN, 0),
        (-f32::NAN, f32::NAN, 0),
    ] {
        for at in [0, 1, 100, GROUP - 1] {
            let mut x = vec![denormal; GROUP];
            x[at] = value;
            for table in tables() {
                let row = quantized(table, &layout, &x);
                let (found, q) = int8_groups(&layout, row.bytes())[0];
                let same = found.to_bits() == d.to_bits() || (found.is_nan() && d.is_nan());
                assert!(same, "{} {value:e}: {found:e}, not {d:e}", table.name());
                let mut expected = [0; GROUP];
                expected[at] = code;
                assert_eq!(q, expected, "{} {value:e}", table.name());
            }
        }
    }
}

#[test]
fn codes_round_to_nearest_even() {
    let layout = ActivationLayout::new(GROUP, ActivationKinds::INT8_256);
    let mut x = vec![0.0; GROUP];
    x[0] = 127.0;
    for (i, x) in x[1..].iter_mut().enumerate() {
        *x = i as f32 / 2.0 - 63.5;
    }
    for table in tables() {
        let row = quantized(table, &layout, &x);
        let (d, q) = int8_groups(&layout, row.bytes())[0];
        assert_eq!(d.to_bits(), 1f32.to_bits());
        for (x, q) in x.iter().zip(q) {
            let exact = f64::from(*x).round_ties_even();
            assert_eq!(f64::from(q).to_bits(), (exact + 0.0).to_bits(), "{x}");
        }
    }
}

#[test]
fn groups_written_apart_make_the_same_row() {
    let n = 2 * GROUP + 77;
    let layout = ActivationLayout::new(n, ActivationKinds::all());
    let x = Noise(12).values(n);
    for table in tables() {
        let whole = quantized(table, &layout, &x);
        let mut row = Aligned::new(layout.row_bytes());
        for first_col in [2 * GROUP, 0, GROUP] {
            let args = Quantize {
                x: &x[first_col..n.min(first_col + GROUP)],
                first_col,
                layout: &layout,
                row: row.bytes_mut().as_mut_ptr(),
            };
            // SAFETY: the row is exclusively borrowed.
            unsafe { table.quantize(&args) };
        }
        assert_eq!(row.bytes(), whole.bytes(), "{}", table.name());
    }
}

#[test]
fn every_table_writes_the_same_row_whatever_the_numbers() {
    let n = 2 * GROUP + 77;
    let layout = ActivationLayout::new(n, ActivationKinds::INT8_256 | ActivationKinds::INT8_32);
    let awkward = [
        f32::NAN,
        -f32::INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        9.9e-31,
        1e-30,
        -0.0,
    ];
    let mut noise = Noise(13);
    for round in 0..400 {
        let mut x = match round % 3 {
            0 => noise.values(n),
            1 => noise.wide_values(n),
            // Blocks of zeros, and tiny ones.
            _ => noise.values(n).iter().map(|x| x * 1e-30).collect(),
        };
        for _ in 0..round % 5 {
            let (at, which) = (noise.u32() as usize % n, noise.u32() as usize);
            x[at] = awkward[which % awkward.len()];
        }
        let expected = quantized(scalar(), &layout, &x);
        for table in tables() {
            let row = quantized(table, &layout, &x);
            assert_eq!(row.bytes(), expected.bytes(), "{} {round}", table.name());
        }
    }
}

#[test]
fn parts_of_a_kind_are_the_same_in_all_layouts() {
    let mut noise = Noise(12);
    for n in [1, 31, 256, 300, 513] {
        let x = noise.values(n);
        let row_of = |kinds| {
            let layout = ActivationLayout::new(n, kinds);
            let mut row = Aligned::new(layout.row_bytes());
            let args = Quantize {
                x: &x,
                first_col: 0,
                layout: &layout,
                row: row.bytes_mut().as_mut_ptr(),
            };
            // SAFETY: the row is exclusively borrowed.
            unsafe { scalar().quantize(&args) };
            (layout, row)
        };
        let all = (0..16).map(|kinds| row_of(ActivationKinds::from_bits_truncate(kinds)));
        let all: Vec<_> = all.collect();
        for (from, row) in &all {
            for (to, expected) in &all {
                let parts = from.part_ranges().into_iter().zip(to.part_ranges());
                for (kind, (from_part, to_part)) in parts.enumerate() {
                    assert_eq!(to_part.is_empty(), to.kinds().bits() >> kind & 1 == 0);
                    if !from_part.is_empty() && !to_part.is_empty() {
                        let found = &row.bytes()[from_part];
                        assert_eq!(*found, expected.bytes()[to_part], "{n} {from:?} {to:?}");
                    }
                }
            }
        }
    }
}

//! Products of adapters.

use crate::KernelTable;
use crate::activation::{ActivationKinds, ActivationLayout};
use crate::lora::{LoraDown, LoraMatrix, LoraType, LoraUp, PART, pack_each, quantize_factors};
use crate::table::{Activations, Quantize};
use crate::tests::{Aligned, Noise, bits, scalar, tables};
extern crate std;
use std::vec;
use std::vec::Vec;

/// A matrix with what it was made of.
struct Case {
    ty: LoraType,
    shape: [usize; 2],
    values: Vec<f32>,
    memory: Vec<u8>,
}

impl Case {
    fn new(ty: LoraType, shape: [usize; 2], noise: &mut Noise) -> Self {
        let values = noise.values(shape[0] * shape[1]);
        let n = LoraMatrix::bytes_of(ty, shape[0], shape[1]).expect("a small one");
        let mut memory = vec![7; n];
        LoraMatrix::pack(ty, shape, &values, &mut memory).expect("sound");
        Self {
            ty,
            shape,
            values,
            memory,
        }
    }

    fn matrix(&self) -> LoraMatrix<'_> {
        LoraMatrix::new(self.ty, self.shape, &self.memory).expect("as it was packed")
    }

    /// The largest error of an element that its type allows, relative to the row's largest.
    fn error(&self) -> f32 {
        match self.ty {
            LoraType::Int8 => 0.0042,
            LoraType::Bf16 => 0.002,
            LoraType::F16 => 0.0003,
            LoraType::F32 => 0.0,
        }
    }
}

/// Rows in f32.
struct Rows {
    layout: ActivationLayout,
    memory: Aligned,
    values: Vec<f32>,
}

impl Rows {
    fn new(n: usize, n_cols: usize, noise: &mut Noise) -> Self {
        let layout =
            ActivationLayout::new(n_cols, ActivationKinds::F32 | ActivationKinds::INT8_256);
        let mut memory = Aligned::new(n * layout.row_bytes());
        let values = noise.values(n * n_cols);
        for (x, row) in values
            .chunks(n_cols)
            .zip(memory.bytes_mut().chunks_mut(layout.row_bytes()))
        {
            // SAFETY: a whole row of the layout.
            unsafe {
                scalar().quantize(&Quantize {
                    x,
                    first_col: 0,
                    layout: &layout,
                    row: row.as_mut_ptr(),
                });
            }
        }
        Self {
            layout,
            memory,
            values,
        }
    }

    fn activations(&self) -> Activations<'_> {
        Activations {
            layout: self.layout,
            bytes: self.memory.bytes(),
        }
    }
}

/// `A · x` of tokens `first..n`, in parts of `step` columns that are added here.
fn down(
    table: &KernelTable,
    a: &Case,
    x: &Rows,
    (first, n): (usize, usize),
    step: usize,
) -> Vec<f32> {
    let matrix = a.matrix();
    let stride = 16 * matrix.n_panels();
    let mut all = vec![0f32; (n - first) * stride];
    for start in (0..matrix.n_cols()).step_by(step) {
        let mut out = vec![f32::NAN; (n - first) * stride];
        let args = LoraDown {
            matrix,
            panels: (0..matrix.n_panels()).into(),
            columns: (start..(start + step).min(matrix.n_cols())).into(),
            activations: x.activations(),
            tokens: (first..n).into(),
            out: out.as_mut_ptr(),
            out_stride: stride,
        };
        // SAFETY: as many outputs as tokens × whole panels.
        unsafe { table.lora_down(&args) };
        match start {
            0 => all = out,
            _ => all.iter_mut().zip(out).for_each(|(x, out)| *x += out),
        }
    }
    all
}

const SHAPES: [[usize; 2]; 6] = [[16, 64], [8, 2048], [1, 7], [33, 600], [64, 513], [5, 1]];

#[test]
fn products_are_the_references_however_they_are_cut() {
    let noise = &mut Noise(0x10a);
    for ty in LoraType::ALL {
        for shape in SHAPES {
            let (a, x) = (Case::new(ty, shape, noise), Rows::new(7, shape[1], noise));
            let expected = down(scalar(), &a, &x, (0, 7), shape[1]);
            let stride = 16 * shape[0].div_ceil(16);
            for table in tables() {
                let name = (table.name(), ty, shape);
                let whole = down(table, &a, &x, (0, 7), shape[1]);
                assert_eq!(bits(&whole), bits(&expected), "{name:?}");
                let cut = down(table, &a, &x, (2, 7), PART);
                assert_eq!(bits(&cut), bits(&expected[2 * stride..]), "{name:?}");
            }
            let b = Case::new(ty, [shape[1], shape[0]], noise);
            let mut factors = expected;
            if ty == LoraType::Int8 {
                let rows = factors.chunks_mut(stride);
                rows.for_each(|t| quantize_factors(t, shape[0]));
            }
            let before = noise.values(7 * shape[1]);
            let run = |table: &KernelTable, n: usize| {
                let mut out = before.clone();
                for token in (0..7).step_by(n) {
                    let n_tokens = n.min(7 - token);
                    let args = LoraUp {
                        matrix: b.matrix(),
                        rows: (0..shape[1]).into(),
                        t: &factors[token * stride..],
                        t_stride: stride,
                        n_tokens,
                        out: out[token * shape[1]..].as_mut_ptr(),
                        out_stride: shape[1],
                    };
                    // SAFETY: rows of as many outputs.
                    unsafe { table.lora_up(&args) };
                }
                out
            };
            let expected = run(scalar(), 7);
            for table in tables() {
                for n in [7, 1, 4] {
                    assert_eq!(
                        bits(&run(table, n)),
                        bits(&expected),
                        "{} {ty:?} {shape:?}",
                        table.name()
                    );
                }
            }
        }
    }
}

/// What is packed with AVX2 are the bytes that are packed without.
#[test]
fn matrices_are_packed_the_same_everywhere() {
    let noise = &mut Noise(0x10d);
    for ty in LoraType::ALL {
        for shape in SHAPES {
            let case = Case::new(ty, shape, noise);
            let mut memory = vec![0; case.memory.len()];
            pack_each(ty, shape[1], &case.values, &mut memory).expect("sound");
            assert_eq!(memory, case.memory, "{ty:?} {shape:?}");
        }
    }
}

/// Computing some outputs gives the same values as computing all, and writes nothing else.
#[test]
fn parts_of_the_outputs_are_those_of_the_whole() {
    let noise = &mut Noise(0x10b);
    let b = Case::new(LoraType::Int8, [70, 16], noise);
    let mut t = noise.values(16);
    quantize_factors(&mut t, 16);
    for table in tables() {
        let run = |rows: core::ops::Range<usize>| {
            let mut out = vec![1f32; rows.len() + 1];
            let args = LoraUp {
                matrix: b.matrix(),
                rows: rows.into(),
                t: &t,
                t_stride: 16,
                n_tokens: 1,
                out: out.as_mut_ptr(),
                out_stride: 0,
            };
            // SAFETY: a row of as many outputs.
            unsafe { table.lora_up(&args) };
            out
        };
        let whole = run(0..70);
        assert_eq!(whole[70].to_bits(), 1f32.to_bits());
        for rows in [0..16, 16..48, 48..70, 64..70, 16..19] {
            let part = run(rows.clone());
            assert_eq!(bits(&part[..rows.len()]), bits(&whole[rows.clone()]));
            assert_eq!(part[rows.len()].to_bits(), 1f32.to_bits());
        }
    }
}

#[test]
fn products_are_near_f64() {
    let noise = &mut Noise(0x10c);
    for ty in LoraType::ALL {
        let (a, x) = (Case::new(ty, [9, 700], noise), Rows::new(2, 700, noise));
        let found = down(scalar(), &a, &x, (0, 2), 700);
        for (t, x) in x.values.chunks(700).enumerate() {
            for (r, row) in a.values.chunks(700).enumerate() {
                let exact: f64 = row
                    .iter()
                    .zip(x)
                    .map(|(a, x)| f64::from(*a) * f64::from(*x))
                    .sum();
                let largest = row.iter().fold(0f32, |max, x| max.max(x.abs()));
                let size: f32 = x.iter().map(|x| x.abs()).sum();
                let largest_x = x.iter().fold(0f32, |max, x| max.max(x.abs()));
                // Rows are rounded, too, where the type asks for that.
                let of_rows = if ty == LoraType::Int8 {
                    0.0042 * largest_x * 700.0
                } else {
                    0.0
                };
                let allowed = f64::from((size + of_rows) * largest * (a.error() + 1e-6))
                    + f64::from(of_rows * largest);
                let distance = (f64::from(found[16 * t + r]) - exact).abs();
                assert!(distance <= allowed, "{ty:?} {distance} {allowed}");
            }
        }
    }
}

/// What is packed is read back: exactly by the types that hold it, within half a step by int8, of any size.
#[test]
fn elements_are_those_that_were_packed() {
    let noise = &mut Noise(0x10d);
    for scale in [1e-30f32, 1e-6, 1.0, 1e20] {
        for ty in LoraType::ALL {
            let mut values: Vec<f32> = noise.values(5 * 30).iter().map(|x| x * scale).collect();
            values[..30].fill(0.0);
            if ty == LoraType::F16 && scale > 1.0 {
                let mut memory = vec![0; LoraMatrix::bytes_of(ty, 5, 30).unwrap()];
                assert!(LoraMatrix::pack(ty, [5, 30], &values, &mut memory).is_none());
                continue;
            }
            let mut memory = vec![0; LoraMatrix::bytes_of(ty, 5, 30).unwrap()];
            let matrix = LoraMatrix::pack(ty, [5, 30], &values, &mut memory).unwrap();
            for (i, row) in values.chunks(30).enumerate() {
                let largest = row.iter().fold(0f32, |max, x| max.max(x.abs()));
                for (k, x) in row.iter().enumerate() {
                    let found = matrix.element(i, k);
                    if ty.holds(&[*x]) {
                        assert_eq!(found.to_bits(), x.to_bits(), "{ty:?}");
                    } else if ty == LoraType::Int8 {
                        assert!(
                            (found - x).abs() <= 0.51 * 1.008 * largest / 127.0,
                            "{found} {x}"
                        );
                    } else if ty == LoraType::Bf16 {
                        assert!((found - x).abs() <= x.abs() / 250.0, "{found} {x}");
                    }
                }
            }
        }
    }
    let mut memory = vec![0; 64];
    for broken in [f32::NAN, f32::INFINITY] {
        assert!(LoraMatrix::pack(LoraType::F32, [1, 1], &[broken], &mut memory).is_none());
    }
    assert!(LoraMatrix::pack(LoraType::F32, [1, 2], &[1.0], &mut memory).is_none());
    assert!(LoraMatrix::new(LoraType::F32, [0, 1], &[]).is_none());
}

/// Rounded factors are within half a step, and the stored sum is the sum of the codes.
#[test]
fn factors_are_rounded_to_the_nearest() {
    let noise = &mut Noise(0x10e);
    for rank in [1, 4, 7, 16, 40] {
        let exact = noise.values(rank);
        let mut t = exact.clone();
        t.resize(rank.next_multiple_of(16), f32::NAN);
        quantize_factors(&mut t, rank);
        let n = t.len();
        let (d, mut sum) = (t[n - 2], 0);
        for (k, x) in exact.iter().enumerate() {
            let code = t[k / 4].to_bits().to_le_bytes()[k % 4].cast_signed();
            assert!((f32::from(code) * d - x).abs() <= 0.5001 * d, "{rank} {k}");
            sum += i32::from(code);
        }
        assert_eq!(t[n - 1].to_bits().cast_signed(), sum);
    }
    let mut zeros = [0f32; 16];
    quantize_factors(&mut zeros, 16);
    assert!(zeros.iter().all(|x| x.to_bits() == 0));
}

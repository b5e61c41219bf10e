//! Matrix products.

use crate::WeightType;
use crate::activation::ActivationKinds;
use crate::contract::GROUP;
use crate::table::{Beside, Matmul, Prefetch, Store};
use crate::tests::{Aligned, Matrix, Noise, bits, quantized, scalar, set_scale, tables};
extern crate std;
use std::vec::Vec;

/// Column counts: within a group, whole groups, a short last group.
fn widths(ty: WeightType) -> &'static [usize] {
    match ty.ggml().block_len() {
        1 => &[1, 2, 17, 172, 256, 257, 600],
        32 => &[32, 64, 224, 256, 288, 896],
        64 => &[64, 192, 256, 320, 896],
        _ => &[256, 512, 768],
    }
}

#[test]
fn products_equal_the_reference_and_are_near_f64() {
    const TOKENS: usize = 7;
    let mut noise = Noise(1);
    for ty in WeightType::ALL {
        for (&n_cols, n_rows) in widths(ty).iter().zip([16, 5, 33, 16, 48, 64, 20]) {
            let matrix = Matrix::random(ty, n_rows, n_cols, &mut noise);
            let x = noise.values(TOKENS * n_cols);
            let layout = matrix.activation_layout();
            let reference = quantized(scalar(), &layout, &x);
            let expected = matrix.multiply(scalar(), &reference, TOKENS, Store::Set);
            for table in tables() {
                let case = std::format!("{} {ty:?} {n_rows}x{n_cols}", table.name());
                let rows = quantized(table, &layout, &x);
                assert_eq!(rows.bytes(), reference.bytes(), "{case}");
                for count in [1, 2, 3, 4, 5, TOKENS] {
                    let out = matrix.multiply(table, &rows, count, Store::Set);
                    let same = bits(&out) == bits(&expected[..out.len()]);
                    assert!(same, "{case} {count} tokens");
                }
                let added = matrix.multiply(table, &rows, TOKENS, Store::Add);
                let sum: Vec<f32> = expected.iter().map(|x| 0.25 + x).collect();
                assert_eq!(bits(&added), bits(&sum), "{case}");
            }
            check_against_f64(&matrix, &x, &expected);
        }
    }
}

/// One token, a few in one pass, whole and broken tiles of every kernel.
#[test]
fn the_number_of_tokens_does_not_show() {
    const TOKENS: usize = 70;
    let mut noise = Noise(16);
    for ty in WeightType::ALL {
        let n_cols = *widths(ty).last().expect("some widths");
        let matrix = Matrix::random(ty, 7 * 16 + 8, n_cols, &mut noise);
        let x = noise.values(TOKENS * n_cols);
        let rows = quantized(scalar(), &matrix.activation_layout(), &x);
        let expected = matrix.multiply(scalar(), &rows, TOKENS, Store::Set);
        // Every number where that is quick; elsewhere those around the sizes of tiles.
        let is_main = matches!(
            ty,
            WeightType::Q4_0 | WeightType::Q8_0 | WeightType::Q4_K | WeightType::Q6_K
        );
        for table in tables() {
            let all = is_main && !cfg!(debug_assertions) && table.name() != "amx-emulated";
            let chosen = |n: &usize| all || *n < 9 || n % 16 < 2 || n % 6 == 5 && *n < 40;
            for count in (1..=TOKENS).filter(chosen) {
                let out = matrix.multiply(table, &rows, count, Store::Set);
                let same = bits(&out) == bits(&expected[..out.len()]);
                assert!(same, "{} {ty:?} {count} tokens", table.name());
            }
        }
    }
}

/// Long batches are cut into chunks, and a last group of columns may be a single block.
#[test]
fn long_batches_over_groups_of_any_length_equal_the_reference() {
    const TOKENS: usize = 19 * 32 + 5;
    let mut noise = Noise(17);
    for ty in WeightType::ALL {
        let widths: &[usize] = match ty.ggml().block_len() {
            1 => continue,
            32 => &[32, 64, 224, 288],
            64 => &[64, 320],
            _ => &[256, 512],
        };
        for &n_cols in widths {
            // Three panels and a half: the third has no neighbour.
            let matrix = Matrix::random(ty, 56, n_cols, &mut noise);
            let x = noise.values(TOKENS * n_cols);
            let rows = quantized(scalar(), &matrix.activation_layout(), &x);
            let expected = matrix.multiply(scalar(), &rows, TOKENS, Store::Set);
            for table in tables() {
                // An emulated tile is a thousand times slower: enough tokens for two chunks.
                let counts: &[usize] = match table.name() {
                    "amx-emulated" => &[32, 96, 288],
                    _ => &[32, 64, 96, 256, 288, 512, TOKENS],
                };
                for &count in counts {
                    let out = matrix.multiply(table, &rows, count, Store::Set);
                    let same = bits(&out) == bits(&expected[..out.len()]);
                    assert!(same, "{} {ty:?} {n_cols} {count} tokens", table.name());
                }
            }
        }
    }
}

/// `out` is within what the rounding of activations may cost of the product in f64.
fn check_against_f64(matrix: &Matrix, x: &[f32], out: &[f32]) {
    let (ty, n_cols) = (matrix.layout.ty(), matrix.layout.n_cols());
    let tokens = x.chunks(n_cols).zip(out.chunks(matrix.layout.n_rows()));
    for (x, out) in tokens {
        let amax = f64::from(x.iter().fold(0f32, |m, x| m.max(x.abs())));
        for (w, &out) in matrix.values.chunks(n_cols).zip(out) {
            let products = || w.iter().zip(x).map(|(w, &x)| w * f64::from(x));
            let exact: f64 = products().sum();
            let size: f64 = products().map(f64::abs).sum();
            let weight_size: f64 = w.iter().map(|w| w.abs()).sum();
            let bound = match ty {
                WeightType::BF16 => 0.005 * size,
                _ if ActivationKinds::for_weights(ty) == ActivationKinds::F32 => 1e-5 * size,
                _ => weight_size * amax / 127.0 * 0.51 + 1e-5 * size,
            };
            let error = (f64::from(out) - exact).abs();
            assert!(error <= bound + 1e-9, "{ty:?} {n_cols}: {error} > {bound}");
        }
    }
}

/// Types that are dequantised first multiply as their values in an F32 matrix do, bit for bit.
#[test]
fn dequantised_types_multiply_as_f32_weights() {
    const TOKENS: usize = 5;
    let mut noise = Noise(12);
    let first = |ty: &WeightType| {
        ty.ggml().block_len() > 1 && ActivationKinds::for_weights(*ty) == ActivationKinds::F32
    };
    for ty in WeightType::ALL.into_iter().filter(first) {
        for &n_cols in widths(ty) {
            let matrix = Matrix::random(ty, 21, n_cols, &mut noise);
            let floats = Matrix::from_rows(WeightType::F32, 21, n_cols, |row, _| {
                let values = matrix.values[row * n_cols..][..n_cols].iter();
                #[expect(clippy::cast_possible_truncation, reason = "they were f32")]
                values.flat_map(|x| (*x as f32).to_le_bytes()).collect()
            });
            let x = noise.values(TOKENS * n_cols);
            let rows = quantized(scalar(), &matrix.activation_layout(), &x);
            for table in tables() {
                let found = matrix.multiply(table, &rows, TOKENS, Store::Set);
                let expected = floats.multiply(table, &rows, TOKENS, Store::Set);
                assert_eq!(bits(&found), bits(&expected), "{ty:?} {}", table.name());
            }
        }
    }
}

/// Codes, scales and activations all at their limits: integer sums must not wrap.
#[test]
fn the_largest_sums_are_exact() {
    let mut noise = Noise(11);
    // Two, and enough for tiles and a rest; even and odd tokens of both signs.
    let signs: Vec<f32> = (0..34)
        .map(|t| if t % 3 == 0 { 1.0 } else { -1.0 })
        .collect();
    let integer = |ty: &WeightType| ty.ggml().block_len() > 1;
    for ty in WeightType::ALL.into_iter().filter(integer) {
        let matrix = Matrix::from_rows(ty, 48, 512, |r, n_bytes| {
            // Rows of one byte: 0x00, 0xff, 0x7f, 0x80 among them; then of such bytes mixed.
            let mut row: Vec<u8> = match r {
                0..16 => std::vec![(r * 17).to_le_bytes()[0]; n_bytes],
                16 => std::vec![0x7f; n_bytes],
                17 => std::vec![0x80; n_bytes],
                _ => (0..n_bytes)
                    .map(|_| [0, 0x7f, 0x80, 0xff][(noise.u32() % 4) as usize])
                    .collect(),
            };
            for block in row.chunks_exact_mut(ty.ggml().block_bytes()) {
                set_scale(ty, 1.0, block);
            }
            row
        });
        let x: Vec<f32> = signs.iter().flat_map(|&x| [x; 512]).collect();
        for table in tables() {
            let rows = quantized(table, &matrix.activation_layout(), &x);
            let out = [2, signs.len()].map(|n| matrix.multiply(table, &rows, n, Store::Set));
            let tokens = out.iter().flat_map(|out| signs.iter().zip(out.chunks(48)));
            for (&x, out) in tokens {
                for (w, &out) in matrix.values.chunks(512).zip(out) {
                    let exact = f64::from(x) * w.iter().sum::<f64>();
                    let size: f64 = w.iter().map(|w| w.abs()).sum();
                    let error = (f64::from(out) - exact).abs();
                    assert!(error <= 2e-6 * size, "{ty:?}: {out}, not {exact}");
                }
            }
        }
    }
}

/// Dots around the largest that fits into 16 bits, in one tile with dots of other sizes.
#[test]
fn dots_near_16_bits_are_exact() {
    // Sums of codes at which dots come near 2^15: over 32 columns with weights of 4, 5 and 8 bits, and over 16 with
    // weights of 6 bits.
    const SUMS: [i32; 16] = [
        0, 127, 128, 200, 255, 520, 1023, 1024, 1057, 1058, 2032, 2184, 2185, 2186, 3000, 4064,
    ];
    let mut x: Vec<f32> = Vec::new();
    // Tokens of one tile have different sums.
    for (period, signs) in [(32, [1, 1]), (32, [-1, -1]), (16, [1, -1]), (16, [-1, 1])] {
        for sum in SUMS {
            for group in 0..2 {
                for column in 0..GROUP {
                    let code = (sum - 127 * i32::try_from(column % period).unwrap()).clamp(0, 127);
                    // A group of many dots that fit after one of few.
                    let code = if group == 1 { code / 8 } else { code };
                    let sign = signs[column / 16 % 2];
                    x.push(f32::from(i16::try_from(sign * code).unwrap()) / 127.0);
                }
                // The scale is 1 / 127 in every group.
                if sum < 127 || group == 1 {
                    *x.last_mut().unwrap() = 1.0;
                }
            }
        }
    }
    let n_tokens = x.len() / (2 * GROUP);
    for ty in [
        WeightType::Q2_K,
        WeightType::Q3_K,
        WeightType::Q4_K,
        WeightType::Q5_K,
        WeightType::Q6_K,
        WeightType::IQ4_XS,
    ] {
        let matrix = Matrix::from_rows(ty, 48, 2 * GROUP, |r, n_bytes| {
            // Codes and scales at their limits.
            let mut row = std::vec![[0, 0x7f, 0x80, 0xff, 0x0f, 0xf0][r % 6]; n_bytes];
            for block in row.chunks_exact_mut(ty.ggml().block_bytes()) {
                if ty == WeightType::Q6_K {
                    block[192..208].fill(0x7f);
                }
                set_scale(ty, 1.0, block);
            }
            row
        });
        let reference = quantized(scalar(), &matrix.activation_layout(), &x);
        let expected = matrix.multiply(scalar(), &reference, n_tokens, Store::Set);
        check_against_f64(&matrix, &x, &expected);
        for table in tables() {
            let out = matrix.multiply(table, &reference, n_tokens, Store::Set);
            let case = std::format!("{} {ty:?}", table.name());
            assert!(bits(&out) == bits(&expected), "{case}");
            // Each three in one pass, and alone.
            let row_bytes = matrix.activation_layout().row_bytes();
            for first in 0..n_tokens - 2 {
                let mut rows = Aligned::new(3 * row_bytes);
                let of_tokens = &reference.bytes()[first * row_bytes..][..3 * row_bytes];
                rows.bytes_mut()[..3 * row_bytes].copy_from_slice(of_tokens);
                for count in [1, 3] {
                    let out = matrix.multiply(table, &rows, count, Store::Set);
                    let expected = &expected[first * 48..][..out.len()];
                    assert!(bits(&out) == bits(expected), "{case}: {count} from {first}");
                }
            }
        }
    }
}

#[test]
fn a_group_that_is_not_finite_shows_in_the_result() {
    let mut noise = Noise(4);
    for ty in WeightType::ALL {
        let matrix = Matrix::random(ty, 16, 2 * GROUP, &mut noise);
        let mut x = noise.values(33 * 2 * GROUP);
        x[300] = f32::NAN;
        x[2 * GROUP + 300] = f32::NAN;
        for table in tables() {
            let rows = quantized(table, &matrix.activation_layout(), &x);
            // One token, and enough for tiles and a rest.
            for n in [1, 33] {
                let out = matrix.multiply(table, &rows, n, Store::Set);
                for (token, out) in out.chunks(16).enumerate() {
                    let shows = out.iter().all(|x| x.is_nan() == (token < 2));
                    assert!(shows, "{ty:?} {} {n} tokens, {token}", table.name());
                }
            }
        }
    }
}

#[test]
fn a_tile_writes_its_own_outputs_and_nothing_else() {
    const TOKENS: usize = 9;
    const ROWS: usize = 120;
    const STRIDE: usize = 127;
    let mut noise = Noise(8);
    // Additional memory to prefetch may be anywhere.
    let anywhere = [1, usize::MAX - 99].map(|at| Beside {
        start: core::ptr::without_provenance(at),
        panel_bytes: 288,
    });
    for ty in WeightType::ALL {
        let n_cols = if ty.ggml().block_len() == 1 { 257 } else { 256 };
        let matrix = Matrix::random(ty, ROWS, n_cols, &mut noise);
        let x = noise.values(TOKENS * n_cols);
        let rows = quantized(scalar(), &matrix.activation_layout(), &x);
        let whole = matrix.multiply(scalar(), &rows, TOKENS, Store::Set);
        for table in tables() {
            for (rows_start, rows_end) in [(0, 1), (16, 33), (16, 101), (48, 48), (96, 120)] {
                for (first, last, prefetch) in [
                    (0, 1, Prefetch::Near),
                    (0, 1, Prefetch::Far),
                    (2, 7, Prefetch::Near),
                    (3, 3, Prefetch::Near),
                    (2, 9, Prefetch::Far),
                ] {
                    let mut out = [f32::INFINITY; TOKENS * STRIDE];
                    let args = Matmul {
                        prefetch,
                        beside: if prefetch == Prefetch::Far {
                            &anywhere
                        } else {
                            &[]
                        },
                        rows: (rows_start..rows_end).into(),
                        tokens: (first..last).into(),
                        out: out.as_mut_ptr(),
                        out_stride: STRIDE,
                        ..matrix.product(&rows, TOKENS)
                    };
                    // SAFETY: `out` has room for every token at this stride.
                    unsafe { table.matmul(&args) };
                    let mut expected = [f32::INFINITY; TOKENS * STRIDE];
                    for t in first..last {
                        let from = &whole[t * ROWS + rows_start..t * ROWS + rows_end];
                        expected[(t - first) * STRIDE..][..from.len()].copy_from_slice(from);
                    }
                    assert_eq!(bits(&out), bits(&expected), "{} {ty:?}", table.name());
                }
            }
        }
    }
}

/// Products, sums and weights among the denormals, which BF16 takes as zero after each step.
#[test]
fn denormals_of_floats_count_as_the_reference_counts_them() {
    const TOKENS: usize = 13;
    const COLS: usize = 257;
    let mut noise = Noise(61);
    // Exponents: products around the smallest normal number, small weights, small activations.
    for (of_weights, of_x) in [(61..67, 61..67), (0..4, 225..229), (225..229, 0..4)] {
        let mut number = |exponents: &core::ops::Range<u32>| {
            let span = exponents.end - exponents.start;
            let exponent = exponents.start + noise.u32() % span;
            f32::from_bits(noise.u32() & 0x807f_ffff | exponent << 23)
        };
        let x: Vec<f32> = (0..TOKENS * COLS).map(|_| number(&of_x)).collect();
        for ty in [WeightType::F32, WeightType::F16, WeightType::BF16] {
            let mut matrix = Matrix::random(ty, 7 * 16 + 5, COLS, &mut Noise(62));
            let layout = matrix.layout;
            for r in 0..layout.n_rows() {
                let row: Vec<u8> = (0..COLS)
                    .map(|_| number(&of_weights).to_le_bytes())
                    .flat_map(|[a, b, c, d]| match ty {
                        WeightType::F32 => std::vec![a, b, c, d],
                        // The upper half of a float.
                        WeightType::BF16 => std::vec![c, d],
                        // Any below 2.
                        _ => std::vec![a, b & 0xbf],
                    })
                    .collect();
                let band = layout.byte_range(layout.band(r));
                layout.pack_row(r, &row, &mut matrix.panels.bytes_mut()[band]);
            }
            let rows = quantized(scalar(), &matrix.activation_layout(), &x);
            let expected = matrix.multiply(scalar(), &rows, TOKENS, Store::Set);
            for table in tables() {
                for count in [1, 2, 5, 6, 7, TOKENS] {
                    let out = matrix.multiply(table, &rows, count, Store::Set);
                    let same = bits(&out) == bits(&expected[..out.len()]);
                    assert!(same, "{} {ty:?} {count} tokens", table.name());
                }
            }
        }
    }
}

#[test]
fn memory_that_belongs_to_no_weight_does_not_show() {
    const ROWS: usize = 37;
    for ty in WeightType::ALL {
        // Odd numbers of columns and of blocks, so that panels have padding where any do.
        let n_cols = match ty.ggml().block_len() {
            1 => 301,
            block_len => 7 * block_len,
        };
        let x = Noise(9).values(n_cols);
        let matrix = Matrix::random(ty, ROWS, n_cols, &mut Noise(10));
        let rows = quantized(scalar(), &matrix.activation_layout(), &x);
        let layout = matrix.layout;
        let mut dirty = Aligned::new(layout.bytes());
        dirty.bytes_mut().fill(0xff);
        let mut row = std::vec![0; layout.gguf_row_bytes()];
        for r in 0..ROWS {
            let band = layout.byte_range(layout.band(r));
            layout.unpack_row(r, &matrix.panels.bytes()[band.clone()], &mut row);
            layout.pack_row(r, &row, &mut dirty.bytes_mut()[band]);
        }
        for table in tables() {
            let mut out = [0f32; ROWS];
            let args = Matmul {
                panels: dirty.bytes(),
                out: out.as_mut_ptr(),
                ..matrix.product(&rows, 1)
            };
            // SAFETY: `out` has all rows of one token.
            unsafe { table.matmul(&args) };
            let expected = matrix.multiply(table, &rows, 1, Store::Set);
            assert_eq!(bits(&out), bits(&expected), "{} {ty:?}", table.name());
        }
    }
}

/// A row's product is the same in a panel and in a tail, whatever the other rows are.
#[test]
fn the_number_of_rows_does_not_show() {
    const TOKENS: usize = 18;
    const ROWS: usize = 64;
    for ty in WeightType::ALL {
        let widths = widths(ty);
        for n_rows in 1..=50 {
            let n_cols = widths[n_rows % widths.len()];
            let large = Matrix::random(ty, ROWS, n_cols, &mut Noise(14));
            let small = Matrix::random(ty, n_rows, n_cols, &mut Noise(14));
            // One token at most sizes, more than a tile of them at some.
            let n_tokens = if n_rows % 8 == 1 { TOKENS } else { 1 };
            let x = Noise(15).values(n_tokens * n_cols);
            let rows = quantized(scalar(), &large.activation_layout(), &x);
            for table in tables() {
                for store in [Store::Set, Store::Add] {
                    let found = small.multiply(table, &rows, n_tokens, store);
                    let expected = large.multiply(table, &rows, n_tokens, store);
                    for (found, expected) in found.chunks(n_rows).zip(expected.chunks(ROWS)) {
                        let case = (table.name(), ty, n_rows, n_cols);
                        assert_eq!(bits(found), bits(&expected[..n_rows]), "{case:?}");
                    }
                }
            }
        }
    }
}

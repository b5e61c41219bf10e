//! Against ggml: `tests/fixtures/quant` holds 32 × 256 weights (`src.f32`, rows of the story model)
//! as ggml 0.25.3's `ggml_quantize_chunk` quantised them without importance (`TYPE.q`).

use super::*;
use crate::tests::Noise;
#[cfg(test)]
extern crate std;
use std::vec;
use std::vec::Vec;
use std::{format, fs};

const ROWS: usize = 32;
const COLS: usize = 256;

fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/quant");
    let path = format!("{folder}/{name}");
    fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn floats(name: &str) -> Vec<f32> {
    let bytes = fixture(name);
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

fn source() -> Vec<f32> {
    floats("src.f32")
}

fn quantized(ty: GgmlType, x: &[f32], n: usize, importance: Option<&[f32]>) -> Vec<u8> {
    let mut out = vec![0; x.len() / ty.block_len() * ty.block_bytes()];
    quantize_rows(ty, x, n, importance, &mut out).expect("finite numbers in whole rows");
    out
}

#[test]
fn plain_rounding_equals_ggml_byte_for_byte() {
    let x = source();
    use GgmlType as T;
    for ty in [
        T::F16,
        T::BF16,
        T::Q8_0,
        T::Q4_0,
        T::Q4_1,
        T::Q5_0,
        T::Q5_1,
        T::TQ1_0,
        T::TQ2_0,
        T::MXFP4,
        T::NVFP4,
    ] {
        let expected = fixture(&format!("{ty}.q"));
        assert_eq!(x.len(), ROWS * COLS);
        let found = quantized(ty, &x, COLS, None);
        let different = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
        assert_eq!((different, found.len()), (0, expected.len()), "{ty}");
    }
}

/// Types whose scales are searched for.
const SEARCHED: [GgmlType; 12] = [
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
];

/// [`SEARCHED`] and the types that are searched only with importance. MXFP4 is the only one that ggml does not search.
const SEARCHED_WITH_IMPORTANCE: [GgmlType; 17] = [
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::MXFP4,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
];

/// The types of `.slc` files, which ggml does not have.
const LANES: [GgmlType; 3] = [GgmlType::LANE3, GgmlType::LANE5, GgmlType::LANE7];

/// Root of the mean of `importance` · error² over rows of `COLS`, from the values that the
/// panels' tests hold equal to ggml's.
fn rmse(ty: GgmlType, x: &[f32], blocks: &[u8], importance: Option<&[f32]>) -> f64 {
    let mut values = vec![0f32; x.len()];
    let each = blocks.chunks_exact(ty.block_bytes());
    for (block, out) in each.zip(values.chunks_exact_mut(ty.block_len())) {
        crate::blocks::dequantize_block(ty, block, out);
    }
    let weight = |i: usize| importance.map_or(1.0, |w| f64::from(w[i % w.len()]));
    let errors = x.iter().zip(&values).enumerate();
    let sum: f64 = errors
        .map(|(i, (x, y))| weight(i) * (f64::from(*x) - f64::from(*y)).powi(2))
        .sum();
    (sum / x.len() as f64).sqrt()
}

/// Importance as uneven as in real activations: most columns count little, a few much.
fn importance(n: usize) -> Vec<f32> {
    let mut noise = Noise(77);
    (0..n)
        .map(|_| {
            let v = noise.value();
            v * v + 0.01
        })
        .collect()
}

#[test]
fn searches_lose_less_than_ggml() {
    let x = source();
    for ty in SEARCHED {
        let golden = fixture(&format!("{ty}.q"));
        let ggml = rmse(ty, &x, &golden, None);
        let ours = rmse(ty, &x, &quantized(ty, &x, COLS, None), None);
        assert!(ours < 0.99 * ggml, "{ty}: {ours}, ggml {ggml}");
    }
}

/// `importance.tsv` has ggml's root of the mean of importance · error², when given `importance.f32`.
#[test]
fn searches_with_importance_lose_less_than_ggml() {
    let (x, importance) = (source(), floats("importance.f32"));
    let table = std::string::String::from_utf8(fixture("importance.tsv")).expect("text");
    let mut compared = 0;
    for line in table.lines() {
        let (name, ggml) = line.split_once('\t').expect("two fields");
        let Some(ty) = SEARCHED_WITH_IMPORTANCE.iter().find(|ty| ty.name() == name) else {
            continue;
        };
        let ggml: f64 = ggml.parse().expect("a number");
        let blocks = quantized(*ty, &x, COLS, Some(&importance));
        let ours = rmse(*ty, &x, &blocks, Some(&importance));
        assert!(ours <= ggml, "{ty}: {ours}, ggml {ggml}");
        compared += 1;
    }
    assert_eq!(compared, SEARCHED_WITH_IMPORTANCE.len());
}

#[test]
fn importance_moves_the_error_to_where_it_counts_less() {
    let x = Noise(3).values(1024);
    let importance = importance(256);
    for ty in SEARCHED_WITH_IMPORTANCE.into_iter().chain(LANES) {
        let plain = rmse(ty, &x, &quantized(ty, &x, 256, None), Some(&importance));
        let blocks = quantized(ty, &x, 256, Some(&importance));
        let with = rmse(ty, &x, &blocks, Some(&importance));
        // MXFP4 has only powers of two to choose from.
        let moved = with < plain || (ty == GgmlType::MXFP4 && with <= plain);
        assert!(moved, "{ty}: {with}, {plain} without");
        // The scale of the importance does not matter, and uniform importance has no effect.
        let scaled: Vec<f32> = importance.iter().map(|w| w / 2f32.powi(60)).collect();
        assert_eq!(blocks, quantized(ty, &x, 256, Some(&scaled)), "{ty}");
        let zeros = quantized(ty, &x, 256, Some(&[0.0; 256]));
        assert_eq!(zeros, quantized(ty, &x, 256, None), "{ty}");
    }
}

/// On the story model's rows, and on normal numbers. `cargo test --release -p sluice-kernels lanes_lose
/// -- --nocapture` prints all of them.
#[test]
#[expect(clippy::print_stdout, reason = "figures to read")]
fn lanes_lose_little_more_than_the_k_quants_of_their_size() {
    use GgmlType as T;
    let mut noise = Noise(31);
    let mut uniform = || (noise.u32() >> 8) as f32 / 16_777_216.0 - 0.5;
    let mut normal = || (0..12).map(|_| uniform()).sum::<f32>();
    let sources = [
        ("story model", source()),
        ("normal", (0..512 * COLS).map(|_| normal()).collect()),
    ];
    for (name, x) in sources {
        let size = (x.iter().map(|x| f64::from(x * x)).sum::<f64>() / x.len() as f64).sqrt();
        let lost = |ty| rmse(ty, &x, &quantized(ty, &x, COLS, None), None) / size;
        let [three, five, seven] = LANES.map(lost);
        let k_quants = [T::Q3_K, T::Q5_K, T::Q6_K, T::Q8_0, T::Q5_0].map(lost);
        std::println!(
            "{name}: LANE3 {three:.5}, LANE5 {five:.5}, LANE7 {seven:.5}; Q3_K, Q5_K, Q6_K, Q8_0, Q5_0 {k_quants:.5?}"
        );
        assert!(three <= 1.15 * k_quants[0], "{name}: {three}");
        assert!(five <= 1.22 * k_quants[1], "{name}: {five}");
        assert!(five < k_quants[4], "{name}: {five}");
        assert!(seven < 0.7 * k_quants[2], "{name}: {seven}");
    }
}

/// Every type with a quantiser.
fn all() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.iter().copied().filter(|ty| can_quantize(*ty))
}

/// Rows that exposed errors in other code: eight rows of 256 each.
fn awkward_rows() -> Vec<Vec<f32>> {
    let mut noise = Noise(5);
    let mut rows: Vec<Vec<f32>> = [
        0.0, -0.0, 1.0, -2.5, 1e-3, 1e-7, -1e-10, 1e-45, 2000.0, -2688.0,
    ]
    .map(|x| vec![x; 256])
    .into();
    for scale in [1.0, 1e-4, 1e-6, 1e-8, 1e-20, 1e-42, 100.0] {
        rows.push(noise.values(256).iter().map(|x| x * scale).collect());
        rows.push(noise.values(256).iter().map(|x| x.abs() * scale).collect());
        rows.push(noise.values(256).iter().map(|x| -x.abs() * scale).collect());
    }
    for at in [0, 17, 255] {
        let mut row = vec![0.0; 256];
        row[at] = if at == 17 { -3.0 } else { 3.0 };
        rows.push(row.clone());
        row[255 - at] = 1e-5;
        rows.push(row);
    }
    rows.push((0..256).map(|i| [1.0, -1.0][i % 2]).collect());
    rows.push((0..256).map(|i| 1.0 + 1e-6 * (i % 7) as f32).collect());
    rows.push((0..256).map(|i| -1.0 - 1e-6 * (i % 7) as f32).collect());
    rows.push((0..256).map(|i| (i % 9) as f32 - 4.0).collect());
    rows.push(
        noise
            .wide_values(256)
            .iter()
            .map(|x| x.clamp(-2e3, 2e3))
            .collect(),
    );
    rows
}

/// For every type that [`crate::blocks`] can turn into values again.
fn has_values(ty: GgmlType) -> bool {
    !matches!(ty, GgmlType::TQ1_0 | GgmlType::TQ2_0 | GgmlType::NVFP4)
}

/// No value is farther from its number than a code step of the coarsest sub-block can be, none
/// is infinite, and nothing panics.
#[test]
fn awkward_rows_come_back_within_reach() {
    use GgmlType as T;
    let importance = importance(256);
    for (r, row) in awkward_rows().iter().enumerate() {
        let largest = row.iter().fold(0f32, |m, x| m.max(x.abs()));
        for ty in all().filter(|ty| has_values(*ty)) {
            for importance in [None, Some(&importance[..])] {
                let blocks = quantized(ty, row, 256, importance);
                let mut values = vec![0f32; 256];
                let each = blocks.chunks_exact(ty.block_bytes());
                for (block, out) in each.zip(values.chunks_exact_mut(ty.block_len())) {
                    crate::blocks::dequantize_block(ty, block, out);
                }
                // The smallest half is 6e-8; a scale below it is lost.
                // Few codebook entries have a large or small number just where others count more.
                let reach = match ty {
                    T::IQ2_XXS | T::IQ2_XS | T::IQ2_S | T::IQ3_XXS | T::IQ3_S => 1.1,
                    T::Q2_K => 0.7,
                    _ => 0.45,
                };
                let bound = (reach * largest).max(1.3e-5).min(largest.max(1e-30) * 1.1);
                for (c, (x, y)) in row.iter().zip(&values).enumerate() {
                    assert!(
                        (x - y).abs() <= bound,
                        "{ty} row {r} column {c}: {y:e} for {x:e}"
                    );
                }
            }
        }
    }
}

/// The definition and what this CPU runs agree in every byte.
#[test]
fn every_machine_writes_the_same_bytes() {
    let portable = Quantizer::new(CpuFeatures::empty());
    let mut noise = Noise(8);
    let mut x: Vec<f32> = awkward_rows().concat();
    x.extend(noise.values(64 * 256));
    x.extend(
        noise
            .wide_values(64 * 256)
            .iter()
            .map(|x| x.clamp(-2e3, 2e3)),
    );
    for ty in all() {
        for n in [256, 512, 1024] {
            let x = &x[..x.len() / n * n];
            let importance = importance(n);
            for importance in [None, Some(&importance[..])] {
                let fast = quantized(ty, x, n, importance);
                let mut plain = vec![0; fast.len()];
                let result = portable.quantize_rows(ty, x, n, importance, &mut plain);
                assert_eq!(result, Ok(()));
                let different = fast.iter().zip(&plain).filter(|(a, b)| a != b).count();
                assert_eq!(different, 0, "{ty}, rows of {n}");
            }
        }
    }
}

/// A row's bytes do not depend on the rows around it, nor on where it is cut into calls.
#[test]
fn rows_are_independent() {
    let x = Noise(9).values(3 * 1280);
    for (ty, n) in all().flat_map(|ty| [(ty, 256usize), (ty, 1280), (ty, 96), (ty, 32)]) {
        if !n.is_multiple_of(ty.block_len()) {
            continue;
        }
        let x = &x[..3 * n];
        let importance = importance(n);
        let together = quantized(ty, x, n, Some(&importance));
        let apart = x.chunks(n).map(|x| quantized(ty, x, n, Some(&importance)));
        assert_eq!(
            together,
            apart.collect::<Vec<_>>().concat(),
            "{ty}, rows of {n}"
        );
    }
}

/// What was quantised once stays as it is, or very nearly: values on the grid are found again.
#[test]
fn quantising_twice_adds_next_to_nothing() {
    let x = Noise(10).values(16 * 256);
    for ty in all().filter(|ty| has_values(*ty)) {
        let once = quantized(ty, &x, 256, None);
        let mut values = vec![0f32; x.len()];
        let each = once.chunks_exact(ty.block_bytes());
        for (block, out) in each.zip(values.chunks_exact_mut(ty.block_len())) {
            crate::blocks::dequantize_block(ty, block, out);
        }
        let first = rmse(ty, &x, &once, None);
        let second = rmse(ty, &values, &quantized(ty, &values, 256, None), None);
        assert!(second <= 0.6 * first, "{ty}: {second} after {first}");
    }
}

#[test]
fn bad_arguments_are_named() {
    use GgmlType as T;
    let x = [0.5f32; 512];
    let mut out = [0u8; 288];
    let mut call = |ty, x: &[f32], n, importance: Option<&[f32]>| {
        quantize_rows(ty, x, n, importance, &mut out).expect_err("something is wrong")
    };
    let ty = T::Q8_K;
    assert_eq!(call(ty, &x, 256, None), QuantizeError::NoQuantizer { ty });
    let ty = T::Q4_K;
    for n_per_row in [0, 128, 300] {
        let expected = QuantizeError::RowNotWholeBlocks { ty, n_per_row };
        assert_eq!(call(ty, &x, n_per_row, None), expected);
    }
    let expected = QuantizeError::SourceNotWholeRows {
        len: 511,
        n_per_row: 256,
    };
    assert_eq!(call(ty, &x[1..], 256, None), expected);
    let expected = QuantizeError::ImportanceLength {
        len: 255,
        n_per_row: 256,
    };
    assert_eq!(call(ty, &x, 256, Some(&[1.0; 255])), expected);
    let expected = QuantizeError::OutLength {
        len_bytes: 288,
        expected: 144,
    };
    assert_eq!(call(ty, &x[..256], 256, None), expected);
    for bad in [f32::NAN, f32::INFINITY, -f32::INFINITY] {
        let mut x = x;
        (x[300], x[400]) = (bad, bad);
        let expected = QuantizeError::ValueNotFinite { index: 300 };
        assert_eq!(call(ty, &x, 256, None), expected);
    }
    let mut x = x;
    x[7] = -1e6;
    let expected = QuantizeError::ValueTooLarge { ty, index: 7 };
    assert_eq!(call(ty, &x, 256, None), expected);
    for bad in [f32::NAN, f32::INFINITY, -1e-9] {
        let mut importance = [1.0; 256];
        importance[9] = bad;
        let expected = QuantizeError::ImportanceNotValid { index: 9 };
        assert_eq!(call(ty, &[0.5; 512], 256, Some(&importance)), expected);
    }
}

/// The largest numbers a type takes do not make a scale infinite.
#[test]
fn the_largest_numbers_are_kept() {
    for ty in all().filter(|ty| has_values(*ty)) {
        let limit = max_abs(ty);
        for row in [[limit; 256], [-limit; 256]] {
            let mut values = [0f32; 256];
            let blocks = quantized(ty, &row, 256, None);
            let each = blocks.chunks_exact(ty.block_bytes());
            for (block, out) in each.zip(values.chunks_exact_mut(ty.block_len())) {
                crate::blocks::dequantize_block(ty, block, out);
            }
            let worst = values
                .iter()
                .fold(0f32, |m, y| m.max((y / row[0] - 1.0).abs()));
            // MXFP4 holds at most 6 · 2^125, a quarter less than the largest f32.
            let bound = if ty == GgmlType::MXFP4 { 0.26 } else { 0.01 };
            assert!(worst <= bound, "{ty}: off by {worst}");
        }
    }
}

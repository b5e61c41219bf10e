//! Every table computes the scalar table's bits; the scalar table computes what the formats say.

use super::*;
use crate::activation::ActivationKinds;
use crate::contract::{GROUP, bf16_step};
use crate::half::{bf16_to_f32, f32_to_bf16, f32_to_f16};
extern crate std;
use std::vec;
use std::vec::Vec;

/// A counter-based stream of test numbers.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Roughly normal, with an occasional outlier as real activations have.
    fn value(&mut self) -> f32 {
        let sum: f32 = (0..4)
            .map(|_| (self.next() >> 40) as f32 / 16_777_216.0 - 0.5)
            .sum();
        if self.next().is_multiple_of(97) {
            sum * 20.0
        } else {
            sum
        }
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// Zeroed memory aligned to 64 bytes.
#[derive(Clone)]
struct Aligned(Vec<Line>, usize);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Aligned {
    fn new(len: usize) -> Self {
        Self(vec![Line([0; 64]); len.div_ceil(64)], len)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `Line` is plain bytes and there are at least `self.1` of them.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), self.1) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.1) }
    }
}

/// A matrix in panels with plausible scales, and the same values in f64.
fn matrix(
    ty: WeightType,
    n_rows: usize,
    n_cols: usize,
    noise: &mut Noise,
) -> (PanelLayout, Aligned, Vec<f64>) {
    let layout = PanelLayout::new(ty.ggml(), n_rows, n_cols).unwrap();
    let mut panels = Aligned::new(layout.bytes());
    let mut values = Vec::new();
    let block_bytes = ty.ggml().block_bytes();
    for r in 0..n_rows {
        let mut row: Vec<u8> = (0..layout.gguf_row_bytes())
            .map(|_| noise.next() as u8)
            .collect();
        for block in row.chunks_exact_mut(block_bytes) {
            let scale = f32_to_f16(noise.value() * 0.01).to_le_bytes();
            match ty {
                WeightType::F32 => block.copy_from_slice(&noise.value().to_le_bytes()),
                WeightType::F16 => block.copy_from_slice(&f32_to_f16(noise.value()).to_le_bytes()),
                WeightType::BF16 => {
                    block.copy_from_slice(&f32_to_bf16(noise.value()).to_le_bytes())
                }
                WeightType::Q6_K => block[208..].copy_from_slice(&scale),
                WeightType::Q4_K => {
                    block[..2].copy_from_slice(&scale);
                    block[2..4].copy_from_slice(&scale);
                }
                WeightType::Q8_0 | WeightType::Q4_0 => block[..2].copy_from_slice(&scale),
            }
        }
        let mut out = vec![0f32; n_cols];
        panel::dequantize_gguf_row(ty, &row, &mut out);
        values.extend(out.iter().map(|&x| f64::from(x)));
        let panel_bytes = layout.panel_bytes();
        let panel = &mut panels.bytes_mut()[r / 16 * panel_bytes..][..panel_bytes];
        layout.pack_row(r % 16, &row, panel);
    }
    (layout, panels, values)
}

fn quantized(table: &KernelTable, layout: &ActivationLayout, x: &[f32]) -> Aligned {
    let n_rows = x.len() / layout.n_cols();
    let mut rows = Aligned::new(n_rows * layout.row_bytes());
    for (x, row) in x
        .chunks(layout.n_cols())
        .zip(rows.bytes_mut().chunks_mut(layout.row_bytes()))
    {
        let args = Quantize {
            x,
            first_col: 0,
            layout,
            row: row.as_mut_ptr(),
        };
        // SAFETY: the row is exclusively borrowed.
        unsafe { table.quantize(&args) };
    }
    rows
}

fn multiply(
    table: &KernelTable,
    layout: PanelLayout,
    panels: &[u8],
    activations: Activations<'_>,
    n_tokens: usize,
    store: Store,
) -> Vec<f32> {
    let mut out = vec![0.25f32; n_tokens * layout.n_rows()];
    let args = Matmul {
        layout,
        panels,
        rows: (0..layout.n_rows()).into(),
        activations,
        tokens: (0..n_tokens).into(),
        out: out.as_mut_ptr(),
        out_stride: layout.n_rows(),
        store,
    };
    // SAFETY: `out` has tokens × rows elements and is exclusively borrowed.
    unsafe { table.matmul(&args) };
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn tables() -> Vec<&'static KernelTable> {
    KernelTable::available(CpuFeatures::detect()).collect()
}

/// Column counts: within a group, whole groups, a short last group.
fn widths(ty: WeightType) -> &'static [usize] {
    match ty.ggml().block_len() {
        1 => &[1, 2, 17, 172, 256, 257, 600],
        32 => &[32, 64, 224, 256, 288, 896],
        _ => &[256, 512, 768],
    }
}

#[test]
fn products_equal_the_reference_and_are_near_f64() {
    let mut noise = Noise(1);
    for ty in WeightType::ALL {
        for (&n_cols, n_rows) in widths(ty).iter().zip([16, 5, 33, 16, 48, 64, 20]) {
            let (layout, panels, values) = matrix(ty, n_rows, n_cols, &mut noise);
            let n_tokens = 7;
            let x = noise.values(n_tokens * n_cols);
            let act_layout = ActivationLayout::new(n_cols, ActivationKinds::for_weights(ty));
            let reference = quantized(&SCALAR, &act_layout, &x);
            let acts = |rows| Activations {
                layout: act_layout,
                bytes: rows,
            };
            let expected = multiply(
                &SCALAR,
                layout,
                panels.bytes(),
                Activations {
                    layout: act_layout,
                    bytes: reference.bytes(),
                },
                n_tokens,
                Store::Set,
            );
            for table in tables() {
                let rows = quantized(table, &act_layout, &x);
                assert_eq!(
                    rows.bytes(),
                    reference.bytes(),
                    "{} {ty:?} {n_cols}",
                    table.name()
                );
                for count in [1, 2, 3, 4, 5, 7] {
                    let out = multiply(
                        table,
                        layout,
                        panels.bytes(),
                        Activations {
                            layout: act_layout,
                            bytes: rows.bytes(),
                        },
                        count,
                        Store::Set,
                    );
                    let same = bits(&out) == bits(&expected[..out.len()]);
                    assert!(
                        same,
                        "{} {ty:?} {n_rows}x{n_cols} {count} tokens",
                        table.name()
                    );
                }
                let added = multiply(
                    table,
                    layout,
                    panels.bytes(),
                    Activations {
                        layout: act_layout,
                        bytes: rows.bytes(),
                    },
                    7,
                    Store::Add,
                );
                let sum: Vec<f32> = expected.iter().map(|x| 0.25 + x).collect();
                assert_eq!(bits(&added), bits(&sum));
            }
            for (t, x) in x.chunks(n_cols).enumerate() {
                for (r, w) in values.chunks(n_cols).enumerate() {
                    let exact: f64 = w.iter().zip(x).map(|(w, &x)| w * f64::from(x)).sum();
                    let size: f64 = w
                        .iter()
                        .zip(x)
                        .map(|(w, &x)| (w * f64::from(x)).abs())
                        .sum();
                    let amax = x.iter().fold(0f32, |m, x| m.max(x.abs()));
                    let weight_sum: f64 = w.iter().map(|w| w.abs()).sum();
                    let bound = match ty {
                        WeightType::F32 | WeightType::F16 => 1e-5 * size,
                        WeightType::BF16 => 0.005 * size,
                        _ => weight_sum * f64::from(amax) / 127.0 * 0.51 + 1e-5 * size,
                    };
                    let error = (f64::from(expected[t * n_rows + r]) - exact).abs();
                    assert!(error <= bound + 1e-9, "{ty:?} {n_cols}: {error} > {bound}");
                }
            }
        }
    }
}

#[test]
fn elementwise_operations_equal_the_reference() {
    let mut noise = Noise(2);
    for n in (1..=3 * 16).chain([64, 172, 255, 256, 257, 768, 1000]) {
        let (x, w) = (noise.values(n), noise.values(n));
        let run = |table: &KernelTable| {
            let (mut norm, mut silu, mut head) = (vec![0.0; n], vec![0.0; n], x.clone());
            table.rms_norm(&x, &w, 1e-5, &mut norm);
            table.silu_mul(&x, &w, &mut silu);
            let (cos, sin) = (&w[..n / 2], &x[..n / 2]);
            for pairing in [RopePairing::Interleaved, RopePairing::Halves] {
                table.rope(&mut Rope {
                    head: &mut head,
                    cos,
                    sin,
                    pairing,
                });
            }
            (bits(&norm), bits(&silu), bits(&head))
        };
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
        let mut norm = vec![0.0; n];
        SCALAR.rms_norm(&x, &w, 1e-5, &mut norm);
        for i in 0..n {
            let exact = f64::from(x[i]) * f64::from(w[i]) / (mean + 1e-5).sqrt();
            assert!((f64::from(norm[i]) - exact).abs() <= 1e-6 * exact.abs() + 1e-12);
        }
        for table in tables() {
            assert_eq!(run(table), run(&SCALAR), "{} n = {n}", table.name());
        }
    }
}

#[test]
fn attention_equals_the_reference_and_is_near_f64() {
    let mut noise = Noise(3);
    for ty in KvType::ALL {
        for (head_dim, n_keys, n_queries) in [
            (8, 1, 1),
            (64, 63, 2),
            (64, 64, 4),
            (5, 33, 3),
            (16, 130, 1),
        ] {
            let layout = KvLayout {
                ty,
                head_dim_k: head_dim,
                head_dim_v: head_dim,
            };
            let n_blocks = usize::div_ceil(n_keys, KV_BLOCK);
            let mut cache = Aligned::new(n_blocks * layout.block_bytes().next_multiple_of(64));
            // Slots past the end hold anything, NaN included: they must not be seen.
            cache.bytes_mut().fill(0xff);
            let (keys, values) = (
                noise.values(n_keys * head_dim),
                noise.values(n_keys * head_dim),
            );
            let queries = noise.values(n_queries * head_dim);
            let rows = keys.chunks(head_dim).zip(values.chunks(head_dim));
            for (position, (key, value)) in rows.enumerate() {
                let block = &mut cache.bytes_mut()[position / 64 * layout.block_bytes()..];
                // SAFETY: the block is exclusively borrowed and inside the cache.
                unsafe { layout.store(block.as_mut_ptr(), position % 64, key, value) };
            }
            let run = |table: &KernelTable| {
                let (mut max, mut sum) = (vec![0.0; n_queries], vec![0.0; n_queries]);
                let mut out = vec![0.0; n_queries * head_dim];
                let mut state = AttentionState {
                    max: &mut max,
                    sum: &mut sum,
                    out: &mut out,
                };
                state.reset();
                for b in 0..n_blocks {
                    let block = &cache.bytes()[b * layout.block_bytes()..][..layout.block_bytes()];
                    let n_keys = (n_keys - b * 64).min(64);
                    let scale = 0.3;
                    let args = AttentionBlock {
                        layout,
                        block,
                        n_keys,
                        queries: &queries,
                        scale,
                    };
                    table.attention_block(&args, &mut state);
                }
                let (mut max, mut sum) = (vec![0.0; n_queries], vec![0.0; n_queries]);
                let mut merged_out = vec![0.0; n_queries * head_dim];
                let mut merged = AttentionState {
                    max: &mut max,
                    sum: &mut sum,
                    out: &mut merged_out,
                };
                merged.reset();
                table.attention_merge(&state, &mut merged);
                merged.finish();
                state.finish();
                assert_eq!(
                    bits(&out),
                    bits(&merged_out),
                    "a single split merges to itself"
                );
                out
            };
            let expected = run(&SCALAR);
            for table in tables() {
                assert_eq!(bits(&run(table)), bits(&expected), "{} {ty}", table.name());
            }
            let tolerance = match ty {
                KvType::F32 => 1e-5,
                KvType::F16 => 2e-3,
                KvType::BF16 => 3e-2,
            };
            for (query, out) in queries.chunks(head_dim).zip(expected.chunks(head_dim)) {
                let score = |key: &[f32]| -> f64 {
                    query
                        .iter()
                        .zip(key)
                        .map(|(q, k)| f64::from(*q) * f64::from(*k))
                        .sum()
                };
                let weights: Vec<f64> = keys
                    .chunks(head_dim)
                    .map(|k| (0.3 * score(k)).exp())
                    .collect();
                let total: f64 = weights.iter().sum();
                for d in 0..head_dim {
                    let exact: f64 = (0..n_keys)
                        .map(|k| weights[k] * f64::from(values[k * head_dim + d]) / total)
                        .sum();
                    assert!(
                        (f64::from(out[d]) - exact).abs() < tolerance * 4.0,
                        "{ty} {head_dim}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_group_that_is_not_finite_shows_in_the_result() {
    let mut noise = Noise(4);
    for ty in WeightType::ALL {
        let (layout, panels, _) = matrix(ty, 16, 2 * GROUP, &mut noise);
        let mut x = noise.values(2 * GROUP);
        x[300] = f32::NAN;
        let act_layout = ActivationLayout::new(2 * GROUP, ActivationKinds::for_weights(ty));
        for table in tables() {
            let rows = quantized(table, &act_layout, &x);
            let acts = Activations {
                layout: act_layout,
                bytes: rows.bytes(),
            };
            let out = multiply(table, layout, panels.bytes(), acts, 1, Store::Set);
            assert!(out.iter().all(|x| x.is_nan()), "{ty:?} {}", table.name());
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn bf16_step_is_vdpbf16ps() {
    use core::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn hardware(c: __m512, a: __m512i, b: __m512i) -> __m512 {
        // SAFETY: __m512i and __m512bh are both 64 plain bytes.
        let (a, b): (__m512bh, __m512bh) =
            unsafe { (core::mem::transmute_copy(&a), core::mem::transmute_copy(&b)) };
        _mm512_dpbf16_ps(c, a, b)
    }

    if !CpuFeatures::detect().contains(CpuFeatures::AVX512_BF16) {
        std::eprintln!("SKIPPED: this CPU has no AVX-512 BF16");
        return;
    }
    let mut noise = Noise(5);
    for round in 0..60_000 {
        let mut draw = |kind: u64| -> u32 {
            match kind {
                0 => noise.value().to_bits(),
                // Wide range: any exponent that is finite.
                1 => ((noise.next() as u32) & 0xbfff_ffff) | 0x0080_0000,
                // Around the denormal border.
                _ => (noise.next() as u32) & 0x81ff_ffff,
            }
        };
        let kind = round % 3;
        let mut pairs = |_| -> u32 { (draw(kind) >> 16) | (draw(kind) & 0xffff_0000) };
        let a: [u32; 16] = core::array::from_fn(&mut pairs);
        let b: [u32; 16] = core::array::from_fn(&mut pairs);
        let c: [f32; 16] = core::array::from_fn(|_| f32::from_bits(draw(kind)));
        // SAFETY: arrays of 64 bytes; loads and stores are unaligned ones.
        let (a_v, b_v, c_v) = unsafe {
            (
                _mm512_loadu_si512(a.as_ptr().cast()),
                _mm512_loadu_si512(b.as_ptr().cast()),
                _mm512_loadu_ps(c.as_ptr()),
            )
        };
        let mut out = [0f32; 16];
        // SAFETY: AVX-512 BF16 was detected above.
        let result = unsafe { hardware(c_v, a_v, b_v) };
        // SAFETY: `out` has 64 bytes.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), result) };
        for lane in 0..16 {
            let pair = |x: u32| [bf16_to_f32(x as u16), bf16_to_f32((x >> 16) as u16)];
            let expected = bf16_step::<Portable>(pair(a[lane]), pair(b[lane]), c[lane]);
            let equal = out[lane].to_bits() == expected.to_bits()
                || (out[lane].is_nan() && expected.is_nan());
            assert!(
                equal,
                "{:x?} · {:x?} + {:e}: {:e}, not {expected:e}",
                a[lane], b[lane], c[lane], out[lane]
            );
        }
    }
}

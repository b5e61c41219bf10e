// Sparse networks next to ruvector-sparse-inference 2.3.0: `benches/peers/ruvector.py` builds this outside the workspace.
//
// 512 -> 2048 -> 512, f32, SiLU, one thread, the same weights and neurons in both. Each figure is the median of 41 turns of
// about 2 ms, all in turn. Then the recall of both predictors on the same samples, and the time to decode blocks of GGUF files.
use ndarray::{Array1, Array2};
use ruvector_sparse_inference as theirs;
use sluice::sparse::{LowRankPredictor, NeuronPredictor};
use sluice_core::kernels::blocks::dequantize_row;
use sluice_core::kernels::quantize::quantize_rows;
use sluice_core::kernels::{CpuFeatures, GgmlType, KernelTable};
use sluice_core::sparse::pi::PiChaos;
use sluice_core::sparse::*;
use std::hint::black_box;
use std::time::Instant;
use theirs::model::{GgufParser, GgufTensorType};
use theirs::predictor::Predictor as _;

const INPUT: usize = 512;
const HIDDEN: usize = 2048;
const RANK: usize = 64;
const ROUNDS: usize = 41;
/// As in its own benchmarks, data that fits is in the cache.
const TURN_US: f64 = 2000.0;

fn numbers(n: usize, seed: u64, scale: f32) -> Vec<f32> {
    let mut chaos = PiChaos::hashed(seed);
    (0..n).map(|_| (chaos.next_float() * 2.0 - 1.0) * scale).collect()
}

#[derive(Clone)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn bytes_of(lines: &mut [Line]) -> &mut [u8] {
    let n = size_of_val(lines);
    // SAFETY: lines are bytes without padding, borrowed by the result.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), n) }
}

fn floats_of(lines: &mut [Line]) -> &mut [f32] {
    let n = size_of_val(lines) / size_of::<f32>();
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), n) }
}

/// Microseconds of the median turn of each.
fn medians(runs: &mut [&mut dyn FnMut()]) -> Vec<f64> {
    let mut times = vec![Vec::new(); runs.len()];
    let mut counts = vec![1; runs.len()];
    for round in 0..ROUNDS + 3 {
        for ((run, times), n) in runs.iter_mut().zip(&mut times).zip(&mut counts) {
            // Others were there meanwhile.
            run();
            let start = Instant::now();
            for _ in 0..*n {
                run();
            }
            let time = start.elapsed().as_secs_f64() * 1e6 / f64::from(*n);
            if round >= 3 {
                times.push(time);
            } else {
                *n = ((TURN_US / time) as u32).clamp(1, 200).max(*n);
            }
        }
    }
    times
        .iter_mut()
        .map(|times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        })
        .collect()
}

fn main() {
    let table = KernelTable::best(CpuFeatures::detect());
    let (w1, w2_t) = (numbers(HIDDEN * INPUT, 1, 0.05), numbers(HIDDEN * INPUT, 2, 0.05));
    let (b1, b2) = (vec![0.0; HIDDEN], vec![0.0; INPUT]);
    let x = numbers(INPUT, 3, 1.0);
    let dims = FfnDims { input: INPUT, hidden: HIDDEN, output: INPUT };
    let ours = FfnWeights::new(dims, &w1, &w2_t, &b1, &b2, ActivationType::Silu).unwrap();
    // At a cache line, as the weights of `sluice::sparse::SparseFfn` are.
    let n_lines = 2 * HIDDEN * INPUT * size_of::<f32>() / size_of::<Line>();
    let mut bundles = vec![Line([0; 64]); n_lines];
    let bundles = floats_of(&mut bundles);
    for (i, bundle) in bundles.chunks_exact_mut(2 * INPUT).enumerate() {
        bundle[..INPUT].copy_from_slice(&w1[i * INPUT..][..INPUT]);
        bundle[INPUT..].copy_from_slice(&w2_t[i * INPUT..][..INPUT]);
    }
    let bundled = FfnWeights::from_bundles(dims, bundles, false, &b1, &b2, ActivationType::Silu).unwrap();
    let w2 = Array2::from_shape_vec((HIDDEN, INPUT), w2_t.clone()).unwrap().reversed_axes();
    let peer = theirs::SparseFfn::from_weights(
        Array2::from_shape_vec((HIDDEN, INPUT), w1.clone()).unwrap(),
        w2,
        Array1::from_vec(b1.clone()),
        Array1::from_vec(b2.clone()),
        theirs::ActivationType::Silu,
    )
    .unwrap();
    let (p, q) = (numbers(RANK * INPUT, 4, 0.1), numbers(HIDDEN * RANK, 5, 0.1));
    let predictor = PredictorWeights::new(INPUT, RANK, &p, &q).unwrap();
    let mut memory = vec![Line([0; 64]); Int8Predictor::bytes(INPUT, RANK, HIDDEN).unwrap().div_ceil(64)];
    let packed = Int8Predictor::pack(&predictor, bytes_of(&mut memory), &mut [0; 1024]).unwrap();
    let mut scratch = vec![Line([0; 64]); packed.scratch_bytes().div_ceil(64)];
    let mut scratch2 = scratch.clone();
    let scratch = bytes_of(&mut scratch);
    let scratch2 = bytes_of(&mut scratch2);
    let (mut z, mut scores, mut chosen) = (vec![0.0; RANK], vec![0.0; HIDDEN], vec![0; HIDDEN]);
    let mut dense_out = vec![0.0; INPUT];
    println!("table {}", table.name());
    let t = medians(&mut [&mut || { black_box(peer.forward_dense(black_box(&x)).unwrap()); }]);
    println!("their dense network {:.0}", t[0]);
    let mut parts = String::new();
    println!("Times in microseconds. Bars: 5 x theirs at 10%, 2 x at 100%, 1.3 d + 0.1 of our dense, each with our predictor, by bundles.");
    println!("| active | neurons | theirs | ours, by matrices | ours, by bundles | with predictor | x theirs | our dense | of it | bar |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for percent in [10, 30, 50, 70, 100] {
        for kind in ["first", "scattered"] {
            let n = HIDDEN * percent / 100;
            let mut active: Vec<usize> = match kind {
                "first" => (0..n).collect(),
                _ => {
                    let mut order = vec![0; HIDDEN];
                    PiChaos::hashed(9).permutation_into(&mut order);
                    order.truncate(n);
                    order
                }
            };
            active.sort_unstable();
            let config = SparsityConfig::with_top_k(n);
            let (mut out, mut out2, mut out3) = (vec![0.0; INPUT], vec![0.0; INPUT], vec![0.0; INPUT]);
            let (mut z4, mut s4) = (z.clone(), scores.clone());
            let (mut z2, mut s2) = (z.clone(), scores.clone());
            let (s3, mut c3) = (numbers(HIDDEN, 4, 1.0), chosen.clone());
            let t = medians(&mut [
                &mut || { black_box(peer.forward_sparse(black_box(&x), &active).unwrap()); },
                &mut || ours.forward(table, black_box(&x), Selected::Neurons(&active), &mut out).unwrap(),
                &mut || bundled.forward(table, black_box(&x), Selected::Neurons(&active), &mut out3).unwrap(),
                &mut || {
                    packed.scores(table, black_box(&x), &mut z, scratch, &mut scores).unwrap();
                    let n = config.select(table, &scores, None, &mut chosen).unwrap();
                    bundled.forward(table, &x, Selected::Neurons(&chosen[..n]), &mut out2).unwrap();
                },
                &mut || predictor.scores(table, black_box(&x), &mut z2, &mut s2).unwrap(),
                &mut || { config.select(table, &s3, None, &mut c3).unwrap(); },
                &mut || packed.scores(table, black_box(&x), &mut z4, scratch2, &mut s4).unwrap(),
                &mut || bundled.forward(table, black_box(&x), Selected::All, &mut dense_out).unwrap(),
            ]);
            let dense = t[7];
            let d = percent as f64 / 100.0;
            println!(
                "| {percent}% | {kind} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {dense:.1} | {:.2} | {:.2} |",
                t[0], t[1], t[2], t[3], t[0] / t[3], t[3] / dense, 1.3 * d + 0.1,
            );
            if percent == 10 && kind == "scattered" {
                parts = format!("predictor in 8 bits {:.1}, in f32 {:.1}, selection {:.1}", t[6], t[4], t[5]);
            }
            let peer_out = peer.forward_sparse(&x, &active).unwrap();
            let worst = peer_out.iter().zip(&out).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 0.05, "{worst}");
        }
    }
    println!("{parts}");
    activations();
    recall(&w1);
    decode();
}

/// `n` inputs: sums of `n_directions` directions and a tenth of noise, or independent numbers for 0 directions.
fn inputs(n: usize, n_directions: usize, seed: u64) -> Vec<Vec<f32>> {
    let directions = numbers(n_directions * INPUT, 20, 1.0);
    let noise = if n_directions == 0 { 1.0 } else { 0.1 * (n_directions as f32 / 3.0).sqrt() };
    (0..n as u64)
        .map(|i| {
            let mut x = numbers(INPUT, seed + 2 * i, noise);
            let amounts = numbers(n_directions, seed + 2 * i + 1, 1.0);
            for (amount, direction) in amounts.iter().zip(directions.chunks_exact(INPUT)) {
                x.iter_mut().zip(direction).for_each(|(x, d)| *x += amount * d);
            }
            x
        })
        .collect()
}

/// The share of the 204 most active neurons that predictors of rank 64, calibrated on 1,500 inputs, find for 200 others.
fn recall(w1: &[f32]) {
    let k = HIDDEN / 10;
    let table = KernelTable::best(CpuFeatures::detect());
    let activity = |x: &Vec<f32>| -> Vec<f32> {
        let rows = w1.chunks_exact(INPUT);
        let mut h: Vec<f32> = rows.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect();
        ActivationType::Silu.apply_slice(table, &mut h);
        h
    };
    println!("| inputs | chosen | theirs | ours | ours, 8 bits | by chance |");
    println!("|---|---|---|---|---|---|");
    for n_directions in [48, 0] {
        let (samples, held) = (inputs(1500, n_directions, 1000), inputs(200, n_directions, 100_000));
        let [seen, actual] = [&samples, &held].map(|x| x.iter().map(activity).collect::<Vec<_>>());
        for n_chosen in [k, 2 * k] {
            let config = theirs::SparsityConfig::with_top_k(n_chosen);
            let mut peer = theirs::LowRankPredictor::new(INPUT, HIDDEN, RANK, config).unwrap();
            peer.calibrate(&samples, &seen).unwrap();
            let config = SparsityConfig::with_top_k(n_chosen);
            let mut ours = LowRankPredictor::new(INPUT, HIDDEN, RANK, config).unwrap();
            ours.calibrate(&samples, &seen).unwrap();
            let share = |predict: &dyn Fn(&[f32]) -> Vec<usize>| -> f64 {
                let mut found = 0;
                for (x, h) in held.iter().zip(&actual) {
                    let mut order: Vec<usize> = (0..HIDDEN).collect();
                    order.sort_unstable_by(|a, b| h[*b].total_cmp(&h[*a]));
                    let chosen = predict(x);
                    assert_eq!(chosen.len(), n_chosen);
                    found += order[..k].iter().filter(|i| chosen.contains(i)).count();
                }
                found as f64 / (k * held.len()) as f64
            };
            let (a, b) = (share(&|x| peer.predict(x).unwrap()), share(&|x| ours.predict(x).unwrap()));
            ours.quantize().unwrap();
            let c = share(&|x| ours.predict(x).unwrap());
            let kind = if n_directions == 0 { "independent".into() } else { format!("{n_directions} directions") };
            println!("| {kind} | {n_chosen} | {a:.3} | {b:.3} | {c:.3} | {:.2} |", n_chosen as f64 / HIDDEN as f64);
        }
    }
}

/// Blocks of GGUF files to f32, and how far theirs are from the values (root of the squared error over the squared values).
fn decode() {
    const N: usize = 1 << 16;
    let x = numbers(N, 11, 1.0);
    println!("| blocks | theirs, us | ours, us | faster | theirs, relative error |");
    println!("|---|---|---|---|---|");
    for (ty, peer) in [
        (GgmlType::Q4_0, GgufTensorType::Q4_0),
        (GgmlType::Q5_0, GgufTensorType::Q5_0),
        (GgmlType::Q8_0, GgufTensorType::Q8_0),
        (GgmlType::Q4_K, GgufTensorType::Q4_K),
        (GgmlType::Q6_K, GgufTensorType::Q6_K),
    ] {
        let mut bytes = vec![0; ty.row_bytes(N as u64).unwrap() as usize];
        quantize_rows(ty, &x, N, None, &mut bytes).unwrap();
        let mut out = vec![0.0; N];
        let t = medians(&mut [
            &mut || { black_box(GgufParser::dequantize(black_box(&bytes), peer, N).unwrap()); },
            &mut || dequantize_row(ty, black_box(&bytes), &mut out),
        ]);
        let peer_out = GgufParser::dequantize(&bytes, peer, N).unwrap();
        let squares = |of: &mut dyn Iterator<Item = f32>| of.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let lost = squares(&mut out.iter().zip(&peer_out).map(|(x, y)| x - y)) / squares(&mut out.iter().copied());
        println!("| {ty} | {:.1} | {:.1} | {:.1} | {:.2} |", t[0], t[1], t[0] / t[1], lost.sqrt());
    }
}

/// The largest error of theirs and ours over [-50, 50], by max(1, |x|).
fn activations() {
    let table = KernelTable::best(CpuFeatures::detect());
    for (name, peer, ours, exact) in [
        (
            "silu",
            theirs::ActivationType::Silu,
            ActivationType::Silu,
            (|x: f64| x / (1.0 + (-x).exp())) as fn(f64) -> f64,
        ),
        (
            "gelu",
            theirs::ActivationType::Gelu,
            ActivationType::Gelu,
            |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        ),
    ] {
        let mut worst = [0f64; 2];
        for i in -5000..=5000 {
            let x = i as f32 / 100.0;
            let backend = theirs::backend::get_backend();
            let (mut a, mut b) = ([x; 8], [x]);
            backend.activation(&mut a, peer);
            ours.apply_slice(table, &mut b);
            for (worst, y) in worst.iter_mut().zip([a[0], b[0]]) {
                let error = (f64::from(y) - exact(f64::from(x))).abs() / f64::from(x.abs().max(1.0));
                *worst = worst.max(error);
            }
        }
        println!("{name}: largest error over [-50, 50]: theirs {:.1e}, ours {:.1e}", worst[0], worst[1]);
    }
}

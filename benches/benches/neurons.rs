//! A feed-forward network by neuron against panels, from memory: `cargo bench -p sluice-benches --bench neurons`.
//!
//! One token of a network of 4096 and 11008, two threads, the matrices in turn over copies that together are four
//! times the last-level cache. `exact`: gate in panels, up and down of the active neurons; `given`: gate, up and down of
//! these alone. Both are shares of the dense time: medians, taken in turn. A name as argument selects a type, a second
//! one a density in percent, or `prompt`: 512 tokens, all neurons.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use core::hint::spin_loop;
use core::sync::atomic::{AtomicUsize, Ordering};
use sluice_kernels::activation::{ActivationKinds, ActivationLayout};
use sluice_kernels::neuron::Form;
use sluice_kernels::panel::PanelLayout;
use sluice_kernels::table::{Activations, Matmul, Prefetch, Quantize, Store};
use sluice_kernels::{CpuFeatures, GgmlType, KernelTable};
use std::time::Instant;

const N_EMBD: usize = 4096;
const N_FF: usize = 11008;
const THREADS: usize = 2;
const ROUNDS: usize = 15;
/// Tokens of a prompt.
const PROMPT: usize = 512;
/// Bytes that all copies of a matrix have at least.
const FOUR_CACHES: usize = 128 << 20;
const DENSITIES: [u64; 7] = [5, 10, 20, 30, 50, 70, 100];

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Aligned memory.
struct Bytes(Vec<Line>, usize);

impl Bytes {
    fn new(len: usize) -> Self {
        Self(vec![Line([0; 64]); len.div_ceil(64)], len)
    }

    fn get(&self) -> &[u8] {
        // SAFETY: `Line` is plain bytes, and there are at least `self.1` of them.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), self.1) }
    }

    fn get_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `get`, borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.1) }
    }
}

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn value(&mut self) -> f32 {
        (self.next() % 2001) as f32 / 1000.0 - 1.0
    }
}

/// Copies of a matrix of random codes and small scales.
struct Matrix {
    layout: PanelLayout,
    copies: Vec<Bytes>,
}

impl Matrix {
    fn new(layout: PanelLayout) -> Self {
        let mut noise = Noise(7);
        let mut copy = || {
            let mut out = Bytes::new(layout.bytes());
            for word in out.get_mut().chunks_exact_mut(8) {
                word.copy_from_slice(&(noise.next() & 0x3fff_3fff_3fff_3fff).to_le_bytes());
            }
            out
        };
        let n = FOUR_CACHES.div_ceil(layout.bytes());
        let copies = (0..n).map(|_| copy()).collect();
        Self { layout, copies }
    }
}

/// Equal rows of activations.
struct Rows {
    layout: ActivationLayout,
    bytes: Bytes,
    n: usize,
}

impl Rows {
    fn new(table: &KernelTable, kinds: ActivationKinds, x: &[f32], n: usize) -> Self {
        let layout = ActivationLayout::new(x.len(), kinds);
        let mut bytes = Bytes::new(n * layout.row_bytes());
        for row in bytes.get_mut().chunks_exact_mut(layout.row_bytes()) {
            let args = Quantize {
                x,
                first_col: 0,
                layout: &layout,
                row: row.as_mut_ptr(),
            };
            // SAFETY: the row is exclusively borrowed, and as long as the layout says.
            unsafe { table.quantize(&args) };
        }
        Self { layout, bytes, n }
    }
}

/// What a worker does with its half.
enum Part<'a> {
    Dense,
    Listed(&'a [u32]),
    Skipping,
}

/// A product with one copy of a matrix.
fn multiply(
    table: &KernelTable,
    matrix: &Matrix,
    copy: usize,
    rows_in: &Rows,
    part: &Part<'_>,
    rank: usize,
    out: &mut [f32],
) {
    let n_rows = matrix.layout.n_rows();
    let half = n_rows / 2 / 128 * 128;
    let rows = if rank == 0 { 0..half } else { half..n_rows };
    let args = Matmul {
        layout: matrix.layout,
        panels: matrix.copies[copy].get(),
        rows: rows.into(),
        activations: Activations {
            layout: rows_in.layout,
            bytes: rows_in.bytes.get(),
        },
        tokens: (0..rows_in.n).into(),
        out: out.as_mut_ptr(),
        out_stride: n_rows,
        store: Store::Set,
        prefetch: Prefetch::Near,
        beside: &[],
    };
    match part {
        // SAFETY: `out` has as many elements as the matrix has rows; each thread has its own.
        Part::Dense => unsafe { table.matmul(&args) },
        // SAFETY: as above.
        Part::Skipping => unsafe { table.matmul_skipping(&args) },
        Part::Listed(rows) => {
            let (first, second) = rows.split_at(rows.len() / 2);
            let rows = if rank == 0 { first } else { second };
            // SAFETY: as above.
            unsafe { table.matmul_listed(&args, rows) };
        }
    }
}

/// Median times in µs of each of `jobs`, in turn and by all threads together.
fn times(table: &KernelTable, n_rounds: usize, jobs: &[(&Matrix, &Rows, Part<'_>)]) -> Vec<f64> {
    let copies = jobs[0].0.copies.len();
    let n = n_rounds * copies * jobs.len();
    let n_out = N_FF * jobs[0].1.n;
    let (started, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let run = |i: usize, rank: usize, out: &mut [f32]| {
        let (matrix, row, part) = &jobs[i % jobs.len()];
        multiply(table, matrix, i / jobs.len() % copies, row, part, rank, out);
    };
    let mut times = vec![Vec::new(); jobs.len()];
    std::thread::scope(|scope| {
        for rank in 1..THREADS {
            let (started, done, run) = (&started, &done, &run);
            scope.spawn(move || {
                let mut out = vec![0f32; n_out];
                for i in 0..n {
                    while started.load(Ordering::Acquire) <= i {
                        spin_loop();
                    }
                    run(i, rank, &mut out);
                    done.fetch_add(1, Ordering::Release);
                }
            });
        }
        let mut out = vec![0f32; n_out];
        for i in 0..n {
            let start = Instant::now();
            started.store(i + 1, Ordering::Release);
            run(i, 0, &mut out);
            while done.load(Ordering::Acquire) < (i + 1) * (THREADS - 1) {
                spin_loop();
            }
            times[i % jobs.len()].push(start.elapsed().as_secs_f64() * 1e6);
        }
    });
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    times.iter_mut().map(median).collect()
}

/// A prompt's products with up and down, in panels and by neuron.
fn prompts(table: &KernelTable, kinds: ActivationKinds, [up, rows, down, neurons]: [&Matrix; 4]) {
    let mut noise = Noise(5);
    let mut values = |n| (0..n).map(|_| noise.value()).collect::<Vec<_>>();
    let x = Rows::new(table, kinds, &values(N_EMBD), PROMPT);
    let h = Rows::new(table, kinds, &values(N_FF), PROMPT);
    let times = times(
        table,
        1,
        &[
            (up, &x, Part::Dense),
            (rows, &x, Part::Dense),
            (down, &h, Part::Dense),
            (neurons, &h, Part::Dense),
        ],
    );
    let dense = 2.0 * times[0] + times[2];
    let by_neuron = (times[0] + times[1] + times[3]) / dense;
    println!(
        "{} prompt of {PROMPT}: up {:.1} ms, rows {:.1}, down {:.1}, neurons {:.1}; {by_neuron:.3} (bar 1.15)",
        up.layout.ty().ggml(),
        times[0] / 1e3,
        times[1] / 1e3,
        times[2] / 1e3,
        times[3] / 1e3,
    );
}

fn main() {
    let table = KernelTable::best(CpuFeatures::detect());
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    println!("{}, {THREADS} threads", table.name());
    for ty in [GgmlType::Q4_0, GgmlType::Q4_K] {
        if args.first().is_some_and(|name| *name != ty.to_string()) {
            continue;
        }
        let up = PanelLayout::new(ty, N_FF, N_EMBD).expect("whole blocks");
        let down = PanelLayout::new(ty, N_EMBD, N_FF).expect("whole blocks");
        let rows = Matrix::new(up.with_form(Form::Rows).expect("integers"));
        let neurons = Matrix::new(down.with_form(Form::Neurons).expect("integers"));
        let (up, down) = (Matrix::new(up), Matrix::new(down));
        let kinds = ActivationKinds::for_weights(up.layout.ty());
        let mut noise = Noise(99);
        let x: Vec<_> = (0..N_EMBD).map(|_| noise.value()).collect();
        let x = Rows::new(table, kinds, &x, 1);
        if args.get(1).is_none_or(|only| only == "prompt") {
            prompts(table, kinds, [&up, &rows, &down, &neurons]);
        }
        for percent in DENSITIES {
            if args.get(1).is_some_and(|only| *only != percent.to_string()) {
                continue;
            }
            let is_active: Vec<_> = (0..N_FF).map(|_| noise.next() % 100 < percent).collect();
            let h: Vec<_> = is_active
                .iter()
                .map(|&is_active| if is_active { noise.value() + 1.5 } else { 0.0 })
                .collect();
            let h = Rows::new(table, kinds, &h, 1);
            let listed: Vec<_> = (0u32..)
                .zip(&is_active)
                .filter_map(|(i, &is_active)| is_active.then_some(i))
                .collect();
            let times = times(
                table,
                ROUNDS,
                &[
                    (&up, &x, Part::Dense),
                    (&rows, &x, Part::Listed(&listed)),
                    (&down, &h, Part::Dense),
                    (&neurons, &h, Part::Skipping),
                ],
            );
            let d = percent as f64 / 100.0;
            let dense = 2.0 * times[0] + times[2];
            let exact = (times[0] + times[1] + times[3]) / dense;
            let given = (2.0 * times[1] + times[3]) / dense;
            let exact_bar = 1.2 * (1.0 / 3.0 + d / 3.0 + (0.11 + 0.89 * d) / 3.0) + 0.03;
            let given_bar = 1.25 * (0.04 + 0.96 * d) + 0.05;
            println!(
                "{ty} {percent:>3}%: up {:.0} µs, rows {:.0}, down {:.0}, neurons {:.0}; exact {exact:.3} (bar {:.3}), given {given:.3} (bar {:.3})",
                times[0],
                times[1],
                times[2],
                times[3],
                exact_bar.min(1.1),
                given_bar.min(1.1),
            );
        }
    }
}

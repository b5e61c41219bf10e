//! Precision lanes next to the types of their size: `cargo bench -p sluice-benches --bench lanes` prints GB/s of one token from
//! memory; with a GGUF file in F16, BF16 or F32 as argument, the error of each type on its matrices instead.
//!
//! Speed: two threads, each with matrices of its own that together are four times the last-level cache; types in turn, medians, by the time that a thread has a CPU.
//! Error: root of the sum of squared errors over the sum of squared weights, without an importance matrix.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use core::hint::spin_loop;
use core::sync::atomic::{AtomicUsize, Ordering};
use sluice_benches::{Product, tables};
use sluice_core::gguf::{Gguf, TensorInfo};
use sluice_kernels::blocks::dequantize_row;
use sluice_kernels::quantize::quantize_rows;
use sluice_kernels::{FpEnv, GgmlType, KernelTable, WeightType};
use std::collections::BTreeMap;
use std::fs;

const THREADS: usize = 2;
const ROUNDS: usize = 21;
const COLS: usize = 4096;
/// Bytes of each thread's matrix.
const MATRIX_BYTES: usize = 64 << 20;

const SPEED: [WeightType; 5] = [
    WeightType::LANE3,
    WeightType::LANE5,
    WeightType::LANE7,
    WeightType::Q5_0,
    WeightType::Q8_0,
];

const ERROR: [GgmlType; 8] = [
    GgmlType::LANE3,
    GgmlType::Q3_K,
    GgmlType::LANE5,
    GgmlType::Q5_K,
    GgmlType::Q5_0,
    GgmlType::Q6_K,
    GgmlType::LANE7,
    GgmlType::Q8_0,
];

fn main() {
    let _env = FpEnv::enter();
    let args = std::env::args().skip(1);
    match args.into_iter().find(|arg| !arg.starts_with('-')) {
        Some(path) => errors(&path),
        None if std::env::args().any(|arg| arg == "--bench") => speed(),
        None => {}
    }
}

/// GB/s of one token for each table and type.
fn speed() {
    println!(
        "{:>12}{}",
        "GB/s",
        SPEED.map(|ty| format!("{:>9}", ty.ggml().name())).concat()
    );
    let tables = tables().split_off(1);
    let mut rates = vec![SPEED.map(|_| Vec::new()); tables.len()];
    for first in 0..SPEED.len() {
        // Where memory is counts as much as a kernel: each type has its matrices first once.
        let order = core::array::from_fn::<_, { SPEED.len() }, _>(|i| (first + i) % SPEED.len());
        let mut products = order.map(|i| {
            let n_rows = MATRIX_BYTES / row_bytes(SPEED[i]) / 16 * 16;
            [(); THREADS].map(|()| Product::random(SPEED[i], n_rows, COLS, 1))
        });
        for round in 0..ROUNDS {
            for (table, rates) in tables.iter().zip(&mut rates) {
                for at in 0..SPEED.len() {
                    let at = (at + round) % SPEED.len();
                    rates[order[at]].push(rate(table, &mut products[at]));
                }
            }
        }
    }
    for (table, rates) in tables.iter().zip(rates) {
        let medians = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        let cells = medians.map(|rate| format!("{rate:>9.1}")).concat();
        println!("{:>12}{cells}", table.name());
    }
}

/// Bytes of a row.
const fn row_bytes(ty: WeightType) -> usize {
    COLS / ty.ggml().block_len() * ty.ggml().block_bytes()
}

/// GB/s of all threads together, each multiplying its own matrix once, by the time that each has a CPU.
fn rate(table: &KernelTable, products: &mut [Product; THREADS]) -> f64 {
    let ready = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads = products.each_mut().map(|product| {
            scope.spawn(|| {
                let _env = FpEnv::enter();
                ready.fetch_add(1, Ordering::AcqRel);
                while ready.load(Ordering::Acquire) < THREADS {
                    spin_loop();
                }
                let start = cpu_seconds();
                product.run(table);
                product.panel_bytes() as f64 / (cpu_seconds() - start) / 1e9
            })
        });
        let rates = threads.map(|thread| thread.join().expect("a product panicked"));
        rates.iter().sum()
    })
}

/// How long this thread has had a CPU: other programs take it away.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time to what is borrowed.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(done, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The error of each type on the matrices of a file, by their kind.
fn errors(path: &str) {
    let file = fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let gguf =
        Gguf::parse(&file, file.len() as u64).unwrap_or_else(|error| panic!("{path}: {error}"));
    let is_matrix = |tensor: &TensorInfo<'_>| {
        let is_float = matches!(tensor.ty, GgmlType::F16 | GgmlType::BF16 | GgmlType::F32);
        is_float && tensor.n_rows() > 1 && tensor.dims[0].is_multiple_of(32)
    };
    let mut sums: BTreeMap<String, [[f64; 2]; ERROR.len()]> = BTreeMap::new();
    for tensor in gguf.tensors().filter(is_matrix) {
        let size = |n: u64| usize::try_from(n).expect("the file is in memory");
        let data = &file[size(tensor.offset)..][..size(tensor.len_bytes)];
        let mut x = vec![0f32; size(tensor.n_elements())];
        dequantize_row(tensor.ty, data, &mut x);
        let kind = tensor.name.trim_end_matches(".weight").rsplit('.').next();
        for name in [kind.unwrap_or_default(), "all"] {
            let sums = sums.entry(name.to_owned()).or_default();
            for (sums, ty) in sums.iter_mut().zip(ERROR) {
                if tensor.dims[0].is_multiple_of(ty.block_len() as u64) {
                    let [error, norm] = lost(ty, &x, size(tensor.dims[0]));
                    sums[0] += error;
                    sums[1] += norm;
                }
            }
        }
    }
    println!(
        "{:>16}{}",
        "relative RMSE",
        ERROR.map(|ty| format!("{:>9}", ty.name())).concat()
    );
    for (name, sums) in sums {
        let cells = sums.map(|[error, size]| format!("{:>9.5}", (error / size).sqrt()));
        println!("{name:>16}{}", cells.concat());
    }
}

/// The sum of squared errors of a type, and the sum of squares.
fn lost(ty: GgmlType, x: &[f32], n_cols: usize) -> [f64; 2] {
    let mut blocks = vec![0; x.len() / ty.block_len() * ty.block_bytes()];
    quantize_rows(ty, x, n_cols, None, &mut blocks).expect("finite weights in whole blocks");
    let mut back = vec![0f32; x.len()];
    dequantize_row(ty, &blocks, &mut back);
    let square = |x: f32| f64::from(x) * f64::from(x);
    let errors = x.iter().zip(&back).map(|(x, y)| square(x - y));
    [errors.sum(), x.iter().map(|x| square(*x)).sum()]
}

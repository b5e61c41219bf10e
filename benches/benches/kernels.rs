//! Every kernel on every table of this machine, named `op/type/shape/table`.
//!
//! `cargo bench -p sluice-benches` measures (`-- matmul/Q4_K` some of it);
//! `cargo test --benches -p sluice-benches` runs each once. One thread, operands in cache except
//! for large panels: figures are of the kernel, not of memory.

use core::hint::black_box;
use core::time::Duration;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use sluice_benches::limits::{Work, kv_peak, weight_peak};
use sluice_benches::{AttentionSplit, Noise, Product, Quantization, bits, random_row, tables};
use sluice_kernels::activation::ActivationKinds;
use sluice_kernels::blocks::dequantize_row;
use sluice_kernels::panel::PanelLayout;
use sluice_kernels::table::{RopeArgs, RopePairing};
use sluice_kernels::{FpEnv, KernelTable, KvType, WeightType};
use std::time::Instant;

/// Runs `run` on every table: compares what `result` then shows with the scalar table's, and measures. After
/// criterion's output, prints which fraction of the table's limit was reached.
fn on_every_table<P, R: PartialEq>(
    mut group: BenchmarkGroup<'_, WallTime>,
    work: Option<Work>,
    problem: &mut P,
    run: impl Fn(&mut P, &KernelTable),
    result: impl Fn(&P) -> R,
) {
    let _env = FpEnv::enter();
    let mut expected = None;
    for table in tables() {
        run(problem, table);
        let found = result(problem);
        let expected = expected.get_or_insert_with(|| result(problem));
        assert!(found == *expected, "{} differs from scalar", table.name());
        let mut best = Duration::MAX;
        group.bench_function(table.name(), |bencher| {
            bencher.iter_custom(|n| {
                let start = Instant::now();
                (0..n).for_each(|_| run(problem, table));
                let time = start.elapsed();
                best = best.min(time.div_f64(n as f64));
                time
            });
        });
        if let Some(work) = work.filter(|_| best < Duration::MAX && is_measured()) {
            eprintln!("{:>31}  {}", "", work.per(best, table));
        }
    }
    group.finish();
}

/// Whether this is `cargo bench`; a test runs everything once.
fn is_measured() -> bool {
    std::env::args().any(|arg| arg == "--bench")
}

/// A matrix-vector product reads all panels once; a matrix-matrix product computes.
fn matmul(criterion: &mut Criterion) {
    const ROWS: usize = 512;
    const COLS: usize = 2048;
    for ty in WeightType::ALL {
        for n_tokens in [1, 2, 3, 4, 32] {
            let mut product = Product::random(ty, ROWS, COLS, n_tokens);
            let name = format!("matmul/{}/{ROWS}x{COLS}x{n_tokens}", ty.ggml());
            let mut group = criterion.benchmark_group(name);
            group.throughput(if n_tokens == 1 {
                Throughput::Bytes(product.panel_bytes() as u64)
            } else {
                Throughput::Elements(product.operations() as u64)
            });
            let work = Work {
                peak: weight_peak(ty),
                operations: product.operations() as f64,
                bytes: product.panel_bytes() as f64,
            };
            on_every_table(group, Some(work), &mut product, Product::run, |product| {
                bits(&product.out)
            });
        }
    }
}

/// A token that follows the memory, and a tile of a prompt that computes.
fn attention(criterion: &mut Criterion) {
    for ty in KvType::ALL {
        for (n_group, n_rows, head_dim) in [
            (1, 1, 64),
            (4, 1, 64),
            (8, 1, 64),
            (4, 24, 64),
            (4, 24, 128),
        ] {
            let mut split = AttentionSplit::random(ty, head_dim, n_group, n_rows);
            let name = format!("attention/{ty}/{n_rows}x{n_group}x512x{head_dim}");
            let mut group = criterion.benchmark_group(name);
            group.throughput(if n_rows == 1 {
                Throughput::Bytes(split.bytes() as u64)
            } else {
                Throughput::Elements(split.operations() as u64)
            });
            let work = Work {
                peak: kv_peak(ty),
                operations: split.operations() as f64,
                bytes: split.bytes() as f64,
            };
            on_every_table(
                group,
                Some(work),
                &mut split,
                AttentionSplit::run,
                |split| bits(&split.out),
            );
        }
    }
}

fn quantize(criterion: &mut Criterion) {
    const COLS: usize = 2048;
    for (name, kinds) in [
        ("int8_256", ActivationKinds::INT8_256),
        ("int8_32", ActivationKinds::INT8_32),
        ("bf16", ActivationKinds::BF16),
    ] {
        let mut group = criterion.benchmark_group(format!("quantize/{name}/{COLS}"));
        group.throughput(Throughput::Elements(COLS as u64));
        let mut row = Quantization::random(kinds, COLS);
        on_every_table(group, None, &mut row, Quantization::run, |row| {
            row.row.bytes().to_vec()
        });
    }
}

/// GGUF rows to f32, as loaders and converters read them: no table, plain code.
fn dequantize(criterion: &mut Criterion) {
    const COLS: usize = 8192;
    for ty in WeightType::ALL {
        let row = random_row(ty, COLS);
        let mut out = vec![0.0; COLS];
        let mut group = criterion.benchmark_group(format!("dequantize/{}/{COLS}", ty.ggml()));
        group.throughput(Throughput::Elements(COLS as u64));
        group.bench_function("any", |bencher| {
            bencher.iter(|| dequantize_row(ty.ggml(), black_box(&row), black_box(&mut out)));
        });
        group.finish();
    }
}

/// An operation with two inputs and one output of one length.
fn row_operation(
    criterion: &mut Criterion,
    name: &str,
    run: impl Fn(&KernelTable, &[f32], &[f32], &mut [f32]),
) {
    const COLS: usize = 2048;
    let mut group = criterion.benchmark_group(format!("{name}/f32/{COLS}"));
    group.throughput(Throughput::Elements(COLS as u64));
    let mut noise = Noise(4);
    let mut operands = (noise.values(COLS), noise.values(COLS), vec![0.0; COLS]);
    let run = |operands: &mut (Vec<f32>, Vec<f32>, Vec<f32>), table: &KernelTable| {
        run(table, &operands.0, &operands.1, &mut operands.2);
    };
    on_every_table(group, None, &mut operands, run, |operands| {
        bits(&operands.2)
    });
}

fn rows(criterion: &mut Criterion) {
    row_operation(criterion, "rms_norm", |table, x, weight, out| {
        table.rms_norm(x, weight, 1e-5, out);
    });
    row_operation(criterion, "silu_mul", |table, gate, up, out| {
        table.silu_mul(gate, up, out);
    });
    row_operation(criterion, "gelu_mul", |table, gate, up, out| {
        table.gelu_mul(gate, up, out);
    });
    row_operation(criterion, "gelu_erf_mul", |table, gate, up, out| {
        table.gelu_erf_mul(gate, up, out);
    });
    for (name, pairing) in [
        ("rope_interleaved", RopePairing::Interleaved),
        ("rope_halves", RopePairing::Halves),
    ] {
        row_operation(criterion, name, |table, x, angles, out| {
            out.copy_from_slice(x);
            let (cos, sin) = angles.split_at(64);
            for head in out.chunks_exact_mut(128) {
                table.rope(&mut RopeArgs {
                    head,
                    cos,
                    sin: &sin[..64],
                    pairing,
                });
            }
        });
    }
}

/// Rows of a GGUF file become panels, as when a model is loaded; no table has a part in that.
fn pack(criterion: &mut Criterion) {
    const ROWS: usize = 768;
    const COLS: usize = 2048;
    for ty in WeightType::ALL {
        let layout = PanelLayout::new(ty.ggml(), ROWS, COLS).expect("whole blocks");
        let row = random_row(ty, COLS);
        let mut panels = vec![0; layout.bytes()];
        let mut group = criterion.benchmark_group(format!("pack/{}", ty.ggml()));
        group.throughput(Throughput::Bytes((ROWS * row.len()) as u64));
        group.bench_function(format!("{ROWS}x{COLS}"), |bencher| {
            bencher.iter(|| {
                for index in 0..ROWS {
                    let band = layout.byte_range(layout.band(index));
                    layout.pack_row(index, black_box(&row), &mut panels[band]);
                }
            });
        });
        group.finish();
        let mut back = vec![0; row.len()];
        layout.unpack_row(
            ROWS - 1,
            &panels[layout.byte_range(layout.band(ROWS - 1))],
            &mut back,
        );
        assert!(back == row, "{} does not come back", ty.ggml());
    }
}

/// Few and short samples: kernels repeat well, and there are many of them.
fn short() -> Criterion {
    Criterion::default()
        .without_plots()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
}

criterion_group! {
    name = benches;
    config = short();
    targets = matmul, attention, quantize, dequantize, rows, pack
}
criterion_main!(benches);

//! The machine's limits, measured with the workers and the memory of a run, and how close the run
//! came to them.
//!
//! [`Roofline::measure`] takes as long as a few passes over the memory; call it within a minute of
//! the measurement it is compared with. [`PassCost`] is the minimum a pass over a model has to read
//! and compute. It is counted in the GGUF file's own sizes, so that layouts which enlarge the
//! weights do not look faster.
#![forbid(unsafe_code)]

use core::hint::black_box;
use core::time::Duration;
use sluice::Team;
use sluice::core::gguf::Gguf;
use sluice::core::kernels::probe::{Peak, Probe, ReadLoop};
use sluice::core::kernels::{GgmlType, KernelTable, KvType};
use sluice::core::model::{Attention, ModelConfig, Site};
use sluice::host::workers::WorkerPanicked;
use std::time::Instant;

/// The machine's limits, with all workers running.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Roofline {
    /// Memory read bandwidth, in 10⁹ bytes per second.
    pub(crate) read_gb_per_s: f64,
    /// 8-bit integer products, in 10⁹ operations per second; a multiply-add counts as two.
    pub(crate) int8_gops: f64,
    /// bfloat16 products, in 10⁹ operations per second.
    pub(crate) bf16_gops: f64,
    /// f32 products, in 10⁹ operations per second.
    pub(crate) f32_gops: f64,
}

impl Roofline {
    /// Each worker reads a contiguous part of `memory` in several ways, and computes; the best
    /// result of each counts. Memory that fits into caches is read from there, as in a run.
    ///
    /// # Errors
    /// A worker panicked.
    pub(crate) fn measure(
        table: &KernelTable,
        team: &Team,
        memory: &[u8],
    ) -> Result<Self, WorkerPanicked> {
        let probe = Probe::of(table);
        let mut peaks = [0.0f64; 3];
        for (best, peak) in peaks.iter_mut().zip(Peak::ALL) {
            *best = compute(probe, team, peak)?;
        }
        let [int8_gops, bf16_gops, f32_gops] = peaks;
        Ok(Self {
            read_gb_per_s: read(probe, team, memory)?,
            int8_gops,
            bf16_gops: bf16_gops.max(f32_gops),
            f32_gops,
        })
    }

    /// The shortest possible time of such a pass: memory and arithmetic overlap, kinds of
    /// arithmetic do not.
    pub(crate) fn time(&self, cost: &PassCost) -> Duration {
        let reading = cost.bytes / self.read_gb_per_s;
        let computing = cost.int8_ops / self.int8_gops
            + cost.bf16_ops / self.bf16_gops
            + cost.f32_ops / self.f32_gops;
        let ns = reading.max(computing);
        if ns.is_finite() {
            Duration::from_secs_f64(ns.max(0.0) / 1e9)
        } else {
            Duration::ZERO
        }
    }
}

/// Target duration of a round of a compute probe.
const COMPUTE_TIME: Duration = Duration::from_millis(4);
/// Repetitions of each probe; the best counts.
const REPEATS: usize = 4;
/// Minimum number of bytes a read probe reads, so that dispatch time is negligible.
const READ_BYTES_MIN: usize = 256 << 20;

fn compute(probe: Probe, team: &Team, peak: Peak) -> Result<f64, WorkerPanicked> {
    let mut rounds = 1000u32;
    let mut best = 0.0f64;
    // The first runs determine how many rounds fill the time, and wake up wide units.
    for _ in 0..REPEATS + 3 {
        let start = Instant::now();
        team.run(|_| {
            black_box(probe.compute(peak, rounds));
        })?;
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        let operations = probe.compute(peak, 0) as f64;
        let gops = operations * f64::from(rounds) * team.count() as f64 / seconds / 1e9;
        best = best.max(gops);
        let factor = (COMPUTE_TIME.as_secs_f64() / seconds).clamp(0.1, 20.0);
        rounds = scaled(rounds, factor);
    }
    Ok(best)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the range of u32"
)]
fn scaled(rounds: u32, factor: f64) -> u32 {
    (f64::from(rounds) * factor).clamp(100.0, 1e9) as u32
}

fn read(probe: Probe, team: &Team, memory: &[u8]) -> Result<f64, WorkerPanicked> {
    if memory.is_empty() {
        return Ok(0.0);
    }
    let n = team.count();
    let passes = READ_BYTES_MIN.div_ceil(memory.len());
    let mut best = 0.0f64;
    for repeat in 0..REPEATS {
        for how in ReadLoop::ALL {
            let start = Instant::now();
            team.run(|rank| {
                let lines = memory.len() / 64;
                let part = lines * rank / n * 64..lines * (rank + 1) / n * 64;
                for _ in 0..passes {
                    black_box(probe.read(how, &memory[part.clone()]));
                }
            })?;
            let bytes = (memory.len() * passes) as f64;
            let gb_per_s = bytes / start.elapsed().as_secs_f64().max(1e-9) / 1e9;
            // The first round only touches the pages.
            if repeat > 0 {
                best = best.max(gb_per_s);
            }
        }
    }
    Ok(best)
}

/// The minimum a pass reads and computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PassCost {
    /// Bytes of weights, as in the GGUF file, and of the KV cache.
    pub(crate) bytes: f64,
    /// Operations on integer weights and keys.
    pub(crate) int8_ops: f64,
    /// Operations on bf16 weights and keys.
    pub(crate) bf16_ops: f64,
    /// Operations on f32 and f16 weights and keys.
    pub(crate) f32_ops: f64,
}

impl PassCost {
    fn add(&mut self, operations: f64, kind: Peak) {
        match kind {
            Peak::Int8 => self.int8_ops += operations,
            Peak::Bf16 => self.bf16_ops += operations,
            Peak::F32 => self.f32_ops += operations,
        }
    }

    /// All operations.
    pub(crate) fn ops(&self) -> f64 {
        self.int8_ops + self.bf16_ops + self.f32_ops
    }
}

impl core::ops::AddAssign for PassCost {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.int8_ops += other.int8_ops;
        self.bf16_ops += other.bf16_ops;
        self.f32_ops += other.f32_ops;
    }
}

/// The costs of passes over a model.
#[derive(Clone, Debug)]
pub(crate) struct ModelCost {
    matrices: Vec<Matrix>,
    /// Experts per layer, and experts used per token; 1 of 1 in dense models.
    n_expert: f64,
    n_expert_used: f64,
    /// The layers, in order.
    layers: Vec<LayerCost>,
    kv_kind: Peak,
}

/// The cost of a layer's attention; zero in layers without attention.
#[derive(Clone, Copy, Debug, Default)]
struct LayerCost {
    /// Bytes of a position in the KV cache.
    kv_position_bytes: f64,
    /// Multiply-adds of a token with one earlier position.
    attention_macs: f64,
    /// Maximum number of positions that a token attends to.
    window: f64,
}

impl LayerCost {
    fn new(shape: &Attention, type_k: KvType, type_v: KvType) -> Self {
        let layout = sluice::core::kernels::KvLayout {
            type_k,
            type_v,
            head_dim_k: shape.head_dim_k,
            head_dim_v: shape.head_dim_v,
        };
        let block = sluice::core::kernels::contract::KV_BLOCK as f64;
        let dims = (shape.head_dim_k + shape.head_dim_v) as f64;
        Self {
            kv_position_bytes: shape.n_head_kv as f64 * layout.block_bytes() as f64 / block,
            attention_macs: shape.n_head as f64 * dims,
            window: shape.window.map_or(f64::INFINITY, |window| window as f64),
        }
    }

    /// How many of `n_attended` positions a token attends to.
    fn seen(&self, n_attended: f64) -> f64 {
        if n_attended > self.window {
            self.window / n_attended
        } else {
            1.0
        }
    }
}

/// A weight matrix, or the matrices of all experts under one name.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    bytes: f64,
    n_weights: f64,
    kind: Peak,
    /// Whether each token uses only some of its experts.
    is_experts: bool,
    /// The share that only tokens with outputs need: the output layer, and in the last layer
    /// everything except keys and values.
    for_outputs: f64,
}

/// A pass over several tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pass {
    /// Tokens.
    pub(crate) n_tokens: f64,
    /// Tokens with outputs.
    pub(crate) n_outputs: f64,
    /// Mean number of positions that a token attends to.
    pub(crate) n_attended: f64,
    /// Positions read from the KV cache, over all sequences of the pass.
    pub(crate) n_cached: f64,
}

impl ModelCost {
    /// The costs for the model in `gguf`, with a KV cache of the given types of keys and values.
    pub(crate) fn new(
        gguf: &Gguf<'_>,
        config: &ModelConfig,
        type_k: KvType,
        type_v: KvType,
    ) -> Self {
        let tied = gguf.tensor("output.weight").is_none();
        let matrices = gguf.tensors().filter_map(|tensor| {
            let n_weights: u64 = tensor.dims.iter().product();
            let for_outputs = match tensor.name {
                "token_embd.weight" if tied => 1.0,
                "output.weight" => 1.0,
                name if name.starts_with("token_embd") => return None,
                name => share_for_outputs(name, config),
            };
            // The bytes of norms and biases count; their few operations do not.
            let is_matrix = tensor.dims[1] > 1 && !tensor.name.ends_with(".bias");
            Some(Matrix {
                bytes: tensor.len_bytes as f64,
                n_weights: if is_matrix { n_weights as f64 } else { 0.0 },
                kind: weight_kind(tensor.ty),
                is_experts: tensor.name.contains("_exps."),
                for_outputs,
            })
        });
        let key = |suffix: &str| {
            let arch = gguf.str("general.architecture").unwrap_or_default();
            let count = gguf.u32(&format!("{arch}.{suffix}")).unwrap_or(1);
            f64::from(count.max(1))
        };
        let layer = |i| {
            let shape = config.kind(i).attention();
            shape.map_or(LayerCost::default(), |shape| {
                LayerCost::new(shape, type_k, type_v)
            })
        };
        Self {
            matrices: matrices.collect(),
            n_expert: key("expert_count"),
            n_expert_used: key("expert_used_count"),
            layers: (0..config.n_layer()).map(layer).collect(),
            kv_kind: kv_kind(type_k),
        }
    }

    /// The minimum cost of a pass. (For up to eight tokens the engine computes more: all of the last
    /// layer.)
    pub(crate) fn pass(&self, pass: &Pass) -> PassCost {
        let mut cost = PassCost::default();
        let used = (self.n_expert_used / self.n_expert).min(1.0);
        // Operations of `tokens` tokens on their share of the model.
        let mut meet = |tokens: f64, share: &dyn Fn(f64) -> f64, layers: &[LayerCost]| {
            if tokens == 0.0 {
                return;
            }
            // The expected number of experts used by at least one token, if tokens choose
            // independently.
            let read = 1.0 - (1.0 - used).powf(tokens);
            for matrix in &self.matrices {
                let (read, met) = match matrix.is_experts {
                    true => (read, tokens * used),
                    false => (1.0, tokens),
                };
                let share = share(matrix.for_outputs);
                cost.bytes += matrix.bytes * read * share;
                cost.add(2.0 * matrix.n_weights * met * share, matrix.kind);
            }
            for layer in layers {
                let seen = layer.seen(pass.n_attended);
                cost.bytes += pass.n_cached * seen * layer.kv_position_bytes;
                let macs = layer.attention_macs * tokens * pass.n_attended * seen;
                cost.add(2.0 * macs, self.kv_kind);
            }
        };
        // In the last layer, attention is computed only for outputs.
        let (last, others) = self.layers.split_last().expect("a model has layers");
        meet(pass.n_tokens, &|for_outputs| 1.0 - for_outputs, others);
        meet(pass.n_outputs, &|for_outputs| for_outputs, &[*last]);
        cost
    }
}

/// The share of a layer's tensor that only tokens with outputs need.
fn share_for_outputs(name: &str, config: &ModelConfig) -> f64 {
    let last = config.n_layer() - 1;
    let Some(name) = name.strip_prefix(&format!("blk.{last}.")) else {
        return 0.0;
    };
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let rows = |site: &Site| {
        let shape = site.shape(config.kind(last), config.n_embd);
        shape.map_or(0, |[n_rows, _]| n_rows) as f64
    };
    let sites = || {
        Site::IN_LAYER
            .iter()
            .filter(|site| site.tensor(config, last) == Some(stem))
    };
    let all: f64 = sites().map(rows).sum();
    if all > 0.0 {
        let for_state: f64 = sites().filter(|site| site.is_for_state()).map(rows).sum();
        return 1.0 - for_state / all;
    }
    // Vectors: the norms that precede keys and values.
    if ["attn_norm", "attn_k_norm"].contains(&stem) {
        0.0
    } else {
        1.0
    }
}

const fn weight_kind(ty: GgmlType) -> Peak {
    match ty {
        GgmlType::F32 | GgmlType::F16 => Peak::F32,
        GgmlType::BF16 => Peak::Bf16,
        _ => Peak::Int8,
    }
}

fn kv_kind(ty: KvType) -> Peak {
    match ty.name() {
        "f32" | "f16" | "fp8" => Peak::F32,
        "bf16" => Peak::Bf16,
        _ => Peak::Int8,
    }
}

#[cfg(test)]
mod tests;

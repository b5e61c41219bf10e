//! What a run needs before its first step: threads, limits of passes, the tensors of its adapter.

use super::targets::Target;
use crate::config::SftConfig;
use crate::optimizer::TrainedTensor;
use crate::run::TrainError;
use sluice::Team;
use sluice::host::isa::kernel_table;
use sluice::host::process::available_memory_bytes;
use sluice::host::topology::Cores;
use sluice::training::{TrainedAdapter, Training, TrainingLimits};
use sluice_core::engine::backward::GradientType;
use sluice_core::kernels::KvType;
use sluice_core::model::ModelConfig;

/// Share of the available memory that the products of all layers may take before layers are computed twice instead.
const MEMORY_SHARE: f64 = 0.7;

/// Refuses settings that this version does not have.
///
/// # Errors
/// [`TrainError::Later`].
pub(super) fn check(config: &SftConfig) -> Result<(), TrainError> {
    let later = [
        ("lora_dropout above 0", config.lora.dropout > 0.0),
        (
            "neftune_noise_alpha",
            config.lora.neftune_alpha.is_some_and(|alpha| alpha > 0.0),
        ),
        ("eval_table_size above 0", config.eval.table_size > 0),
        ("forward: f32", config.engine.forward_f32),
    ];
    match later.into_iter().find(|(_, is_set)| *is_set) {
        Some((what, _)) => Err(TrainError::Later(what)),
        None => Ok(()),
    }
}

pub(super) fn team(config: &SftConfig) -> Result<Team, TrainError> {
    let team = match config.engine.threads {
        Some(n) => Team::new(n, &Cores::detect()),
        None => Team::of_machine(),
    };
    team.map_err(TrainError::Threads)
}

/// The size of passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassLimits {
    /// Maximum rows.
    pub(super) rows: usize,
    /// Maximum tokens of all of its rows.
    pub(super) tokens: usize,
    /// Tokens of the longest row.
    pub(super) longest: usize,
}

impl PassLimits {
    pub(super) fn new(config: &SftConfig, longest: usize) -> Self {
        let rows = config.optimizer.batch_size;
        let (rows, tokens) = match config.data.packing {
            true => (usize::MAX, config.data.max_length.saturating_mul(rows)),
            false => (rows, longest.saturating_mul(rows)),
        };
        Self {
            rows,
            tokens: tokens.max(longest),
            longest,
        }
    }
}

pub(super) fn limits(
    config: &SftConfig,
    model: &ModelConfig,
    team: &Team,
    rank: usize,
    pass: PassLimits,
) -> Result<TrainingLimits, TrainError> {
    let ty = KvType::from_name(&config.engine.kv_type).unwrap_or(KvType::F16);
    let isa = Some(&*config.engine.isa).filter(|name| *name != "auto");
    let of = |keeps_all| TrainingLimits {
        n_tokens: pass.tokens,
        n_text: pass.longest,
        n_texts: pass
            .rows
            .min(pass.tokens)
            .min(config.optimizer.rows_per_step()),
        keeps_all,
        gradients: match config.engine.grad_f32 {
            true => GradientType::F32,
            false => GradientType::Bf16,
        },
        types: (ty, ty),
        table: None,
    };
    let table = kernel_table(isa)?;
    let bytes =
        |keeps_all| Training::plan(model, team, rank, &of(keeps_all)).map(|plan| plan.bytes);
    let available = available_memory_bytes();
    #[expect(clippy::cast_precision_loss, reason = "a rule of thumb")]
    let fits = |bytes: usize| bytes as f64 <= MEMORY_SHARE * available as f64;
    let keeps_all = match config.engine.gradient_checkpointing {
        Some(computes_twice) => !computes_twice,
        None => fits(bytes(true)?),
    };
    let needed = bytes(keeps_all)?;
    if needed as u64 > available {
        return Err(TrainError::Memory {
            needed: needed as u64,
            available,
        });
    }
    Ok(TrainingLimits {
        table: Some(table),
        ..of(keeps_all)
    })
}

/// The tensors of the factors, by PEFT's names.
pub(super) fn tensors(factors: &TrainedAdapter, targets: &[Target]) -> Vec<TrainedTensor> {
    let pairs = factors.matrices().zip(targets);
    let tensors = pairs.flat_map(|((matrix, [a, b], [n_out, n_in]), target)| {
        let of = |end: &str, shape, range, is_b| TrainedTensor {
            name: format!("base_model.model.{}.{end}.weight", target.module),
            shape,
            range,
            is_b,
        };
        let rank = matrix.rank;
        [
            of("lora_A", [rank, n_in], a, false),
            of("lora_B", [n_out, rank], b, true),
        ]
    });
    tensors.collect()
}

//! The model of a file, and the memory it needs.

use crate::flags::engine::EngineArgs;
use crate::ui::format::{Bytes, CacheTypes};
use core::fmt::Write as _;
use sluice::core::engine::{EngineLimits, EnginePlan};
use sluice::core::gguf::Gguf;
use sluice::core::model::{Activation, LayerKind, Mixer, ModelConfig, ModelPlan, PowerInfer};
use sluice::host::topology::Cores;
use sluice::neurons::NeuronOrder;

/// The model and its memory, or why it cannot be run.
pub(super) fn describe(
    report: &mut String,
    gguf: &Gguf<'_>,
    args: &EngineArgs,
) -> core::fmt::Result {
    let config = ModelConfig::from_gguf(gguf).and_then(|config| match args.activation {
        Some(activation) => config.with_activation(activation),
        None => Ok(config),
    });
    let config = match config {
        Ok(config) => config,
        Err(error) => return writeln!(report, "model       cannot be run: {error}"),
    };
    writeln!(
        report,
        "model       {}: n_layer {}, n_embd {}, n_vocab {}, n_ctx_train {}",
        config.architecture.name(),
        config.n_layer(),
        config.n_embd,
        config.n_vocab,
        config.n_ctx_train
    )?;
    for (index, kind) in config.kinds.iter().enumerate() {
        let n_layer = config
            .layers
            .iter()
            .filter(|layer| usize::from(**layer) == index);
        write!(report, "layers      {} of ", n_layer.count())?;
        kind_of_layer(report, kind)?;
    }
    activation(report, gguf, &config)?;
    neurons(report, gguf, &config)?;
    let n_workers = args.n_workers(Cores::detect().default_workers());
    let (type_k, type_v) = args.cache_types();
    let limits = EngineLimits {
        n_batch: args.n_batch(),
        type_k,
        type_v,
        kv_rotation: !args.no_kv_rotation,
        ..EngineLimits::single(args.n_ctx(&config), n_workers)
    };
    let plans = ModelPlan::new(gguf, &config).map_err(|error| error.to_string());
    let plans = plans.and_then(|model| {
        let engine = EnginePlan::new(&config, &limits).map_err(|error| error.to_string())?;
        Ok((model, engine))
    });
    let (model, engine) = match plans {
        Ok(plans) => plans,
        Err(error) => return writeln!(report, "memory      cannot be run: {error}"),
    };
    let weights = (model.weight_bytes as u64).saturating_add(model.table_bytes as u64);
    let (kv, scratch) = (engine.kv_bytes as u64, engine.scratch_bytes as u64);
    writeln!(
        report,
        "memory      {} = weights {} + KV {} ({} tokens, {}) + scratch {} (batch {}, {} threads)",
        Bytes(weights.saturating_add(kv).saturating_add(scratch)),
        Bytes(weights),
        Bytes(kv),
        limits.n_ctx,
        CacheTypes(limits.type_k, limits.type_v),
        Bytes(scratch),
        limits.n_batch,
        limits.n_workers
    )?;
    next_token(report, gguf, &limits)
}

/// The activation of gates, and what PowerInfer's files have in addition.
fn activation(report: &mut String, gguf: &Gguf<'_>, config: &ModelConfig) -> core::fmt::Result {
    match config.activation() {
        Some(Activation::Relu { threshold }) if threshold > 0.0 => {
            writeln!(report, "activation  fatrelu, threshold {threshold}")?;
        }
        Some(activation) => writeln!(report, "activation  {activation}")?,
        None => {}
    }
    let Some(of_file) = PowerInfer::of(gguf) else {
        return Ok(());
    };
    if of_file.is_down_by_neuron {
        let name = "blk.0.ffn_down_t.weight";
        let ty = gguf.tensor(name).map(|tensor| tensor.ty);
        let ty = ty.map_or_else(String::new, |ty| format!(" in {ty}"));
        writeln!(
            report,
            "PowerInfer  down projections are stored by neuron{ty} and turned when they are loaded"
        )?;
    }
    if of_file.n_predictors > 0 {
        write!(
            report,
            "PowerInfer  predictor of active neurons in {} layers (fc1, fc2), rank {}",
            of_file.n_predictors, of_file.rank
        )?;
        if let Some(threshold) = of_file.threshold {
            write!(report, ", threshold {threshold}")?;
        }
        writeln!(report, ": not loaded")?;
    }
    Ok(())
}

/// The order of neurons, if it is not the model's own.
fn neurons(report: &mut String, gguf: &Gguf<'_>, config: &ModelConfig) -> core::fmt::Result {
    let order = match NeuronOrder::of(gguf, config) {
        Ok(Some(order)) => order,
        Ok(None) => return Ok(()),
        Err(error) => return writeln!(report, "neurons     cannot be used: {error}"),
    };
    let (n, n_hot) = order.n_neurons();
    let counts = order.hot_counts();
    let (least, most) = (counts.iter().min(), counts.iter().max());
    writeln!(
        report,
        "neurons     ordered by activity: {n_hot} of {n} are hot, {} to {} a layer",
        least.copied().unwrap_or(0),
        most.copied().unwrap_or(0)
    )
}

/// The head that predicts further tokens, if the file has one, and the memory it adds.
fn next_token(report: &mut String, gguf: &Gguf<'_>, limits: &EngineLimits) -> core::fmt::Result {
    let planned = |config: &ModelConfig| {
        let model = ModelPlan::new(gguf, config).map_err(|error| error.to_string())?;
        let engine = EnginePlan::new(config, limits).map_err(|error| error.to_string())?;
        Ok::<_, String>((model, engine))
    };
    let config = match ModelConfig::next_token_head(gguf) {
        Ok(Some(config)) => config,
        Ok(None) => return Ok(()),
        Err(error) => return writeln!(report, "head        cannot be run: {error}"),
    };
    let (model, engine) = match planned(&config) {
        Ok(plans) => plans,
        Err(error) => return writeln!(report, "head        cannot be run: {error}"),
    };
    write!(
        report,
        "head        block {} predicts one more token, of ",
        config.block(0)
    )?;
    kind_of_layer(report, config.kind(0))?;
    let weights = (model.weight_bytes as u64).saturating_add(model.table_bytes as u64);
    let shared = match config.next_token {
        Some(head) if head.has_embedding && head.has_output => "",
        _ => ", without the tensors shared with the model",
    };
    writeln!(
        report,
        "            weights {}{shared}; KV {}, scratch {}",
        Bytes(weights),
        Bytes(engine.kv_bytes as u64),
        Bytes(engine.scratch_bytes as u64)
    )
}

/// The parts of a kind of layer, on one line.
fn kind_of_layer(report: &mut String, kind: &LayerKind) -> core::fmt::Result {
    if let Some(shape) = kind.attention() {
        write!(
            report,
            "attention: n_head {}, n_head_kv {}, head_dim {}",
            shape.n_head, shape.n_head_kv, shape.head_dim_k
        )?;
        if let Some(window) = shape.window {
            write!(report, ", window {window}")?;
        }
        if shape.max_alibi_bias > 0.0 {
            write!(report, ", ALiBi")?;
        }
        if shape.has_sink {
            write!(report, ", sinks")?;
        }
        if shape.has_gate {
            write!(report, ", gates")?;
        }
    }
    if let Mixer::ShortConv(shape) = &kind.mixer {
        write!(report, "short convolution: {} taps", shape.n_taps)?;
    }
    if kind.mixer == Mixer::None {
        write!(report, "no mixer")?;
    }
    if let Mixer::DeltaNet(shape) = &kind.mixer {
        write!(
            report,
            "delta net: n_head {}, n_head_k {}, head_dim {}, {} taps",
            shape.n_head_v, shape.n_head_k, shape.head_dim_v, shape.n_taps
        )?;
    }
    if let Mixer::Mamba2(shape) = &kind.mixer {
        write!(
            report,
            "Mamba 2: n_head {}, head_dim {}, n_state {}, n_group {}, {} taps",
            shape.n_head, shape.head_dim, shape.n_state, shape.n_group, shape.n_taps
        )?;
    }
    match kind.experts() {
        Some(shape) => {
            write!(
                report,
                "; experts: n_ff {}, {} of {} used",
                shape.n_ff, shape.n_expert_used, shape.n_expert
            )?;
            if let Some(shared) = shape.shared {
                write!(report, ", n_ff {} for all tokens", shared.n_ff)?;
            }
            if shape.routes_input {
                write!(report, ", chosen before attention")?;
            }
            writeln!(report)
        }
        None if kind.n_ff() == 0 => writeln!(report),
        None => writeln!(report, "; n_ff {}", kind.n_ff()),
    }
}

//! The flags of the engine: sizes, threads, and how weights are read.

use crate::flags::experts::ExpertArgs;
use crate::flags::names::kernels;
use crate::flags::placement::PlacementArgs;
use crate::flags::sparse::SparseArgs;
use crate::ui::output::note;
use clap::builder::{FalseyValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, value_parser};
use sluice::core::kernels::KvType;
use sluice::core::model::{Activation, LongRope, ModelConfig};
use sluice::core::team::WORKERS_MAX;
use sluice::file::LoadMode;
use sluice::session::SessionError;
use sluice::{Limits, Model, Session, Team};

/// Sizes and placement of the engine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Set the context size in tokens; 0 uses the model's own
    #[arg(short, long, value_name = "N", default_value_t = 0,
        value_parser = value_parser!(u32).range(0..=1 << 24))]
    pub(crate) ctx_size: u32,
    /// Set the maximum logical batch size, in tokens
    #[arg(short, long, value_name = "N", default_value_t = 2048,
        value_parser = value_parser!(u32).range(1..=1 << 24))]
    pub(crate) batch_size: u32,
    /// Set the maximum physical batch size, in tokens [short: -ub]
    #[arg(long, value_name = "N", default_value_t = 512,
        value_parser = value_parser!(u32).range(1..=1 << 24))]
    pub(crate) ubatch_size: u32,
    /// Set the number of threads
    ///
    /// By default one per physical core in use (see --cores).
    #[arg(short, long, value_name = "N", allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=WORKERS_MAX as i64))]
    pub(crate) threads: Option<i64>,
    /// Set the KV cache type of keys [short: -ctk]
    ///
    /// q8_0 halves the memory of f16: -ctk q8_0 -ctv q8_0.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_types())]
    pub(crate) cache_type_k: KvType,
    /// Set the KV cache type of values [short: -ctv]
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_types())]
    pub(crate) cache_type_v: KvType,
    /// Do not rotate keys and values before quantizing them
    ///
    /// Applies to the cache types q8_0, q4_0 and fp8.
    #[arg(long, value_parser = FalseyValueParser::new())]
    pub(crate) no_kv_rotation: bool,
    /// Pin the rotary divisors of a longrope model
    ///
    /// By default a text up to the model's original context has the short ones. One that becomes longer is read again,
    /// once, with the long ones.
    #[arg(long, value_name = "FORM", value_parser = long_ropes())]
    pub(crate) longrope: Option<LongRope>,
    /// Select the kernels
    ///
    /// By default the fastest that this CPU supports.
    #[arg(long, value_name = "NAME", value_parser = kernels(), env = "SLUICE_ISA", hide_env_values = true)]
    pub(crate) isa: Option<String>,
    /// Set how weights are loaded [short: -lm]
    ///
    /// none reads the file into memory; mmap maps it, and so does auto without --expert-cache; mlock and mmap+mlock
    /// also lock the weights in memory.
    #[arg(long, value_name = "MODE", default_value = "auto",
        value_parser = PossibleValuesParser::new(LOAD_MODES))]
    pub(crate) load_mode: String,
    /// Read embedding rows from the file on demand
    ///
    /// Per-layer embeddings are most of the bytes of some models. A .slc file's rows are always read on demand.
    #[arg(long, value_parser = FalseyValueParser::new())]
    pub(crate) gather_tables: bool,
    /// Set the activation of the networks' gates: relu, drelu or fatrelu:THRESHOLD
    ///
    /// For files of models with zeros that do not name it, such as llama.cpp's of ReLULLaMA, ProSparse and TurboSparse:
    /// `--activation fatrelu:0.01`. It replaces what the file says. Prompt caches are kept apart by it.
    #[arg(long, value_name = "NAME", value_parser = activation)]
    pub(crate) activation: Option<Activation>,
    #[command(flatten)]
    pub(crate) sparse: SparseArgs,
    /// Check all weights before they are used
    ///
    /// Compares the checksums of a .slc file. A GGUF file has none; its weights have to be finite numbers. A draft model
    /// is checked as well.
    #[arg(long, value_parser = FalseyValueParser::new())]
    pub(crate) check_tensors: bool,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) experts: ExpertArgs,
}

/// How the file of a draft model is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftFile {
    pub(crate) load_mode: LoadMode,
    /// Whether all weights are checked first.
    pub(crate) is_checked: bool,
}

impl EngineArgs {
    /// How a draft model beside the model is opened.
    pub(crate) fn draft_file(&self) -> DraftFile {
        DraftFile {
            load_mode: self.load_mode(),
            is_checked: self.check_tensors,
        }
    }

    /// The types of keys and of values in the KV cache.
    pub(crate) const fn cache_types(&self) -> (KvType, KvType) {
        (self.cache_type_k, self.cache_type_v)
    }

    /// Tokens per step.
    pub(crate) fn n_batch(&self) -> usize {
        self.ubatch_size.min(self.batch_size) as usize
    }

    /// Tokens of context: as asked for, or the model's own.
    pub(crate) fn n_ctx(&self, config: &ModelConfig) -> usize {
        match self.ctx_size {
            0 => config.n_ctx_train.max(1),
            n => n as usize,
        }
    }

    /// [`Self::n_ctx`], with a warning if it is longer than the model knows.
    pub(crate) fn told_n_ctx(&self, config: &ModelConfig) -> usize {
        self.note_trained(config);
        self.n_ctx(config)
    }

    /// Warns if the context is longer than the model knows.
    pub(crate) fn note_trained(&self, config: &ModelConfig) {
        let trained = config.n_ctx_train;
        if self.n_ctx(config) > trained {
            note(format_args!(
                "warning: the model was trained on contexts of only {trained} tokens"
            ));
        }
    }

    /// The name of the kernels; an empty variable counts as unset.
    pub(crate) fn isa(&self) -> Option<&str> {
        self.isa.as_deref().filter(|name| !name.is_empty())
    }

    pub(crate) fn load_mode(&self) -> LoadMode {
        load_mode(&self.load_mode, &self.experts, self.gather_tables)
    }

    /// Whether the load mode locks weights.
    pub(crate) fn locks(&self) -> bool {
        self.load_mode.ends_with("mlock")
    }

    /// A session over `model`.
    ///
    /// # Errors
    /// There is not enough memory, or a limit is out of range.
    pub(crate) fn session(
        &self,
        model: &Model,
        team: &Team,
        limits: Limits,
    ) -> anyhow::Result<Session> {
        if self.longrope.is_some() && !model.weights().has_long() {
            note(format_args!(
                "warning: --longrope has no effect: {} has one set of rotary divisors",
                model.name()
            ));
        }
        let limits = Limits {
            longrope: self.longrope.unwrap_or_default(),
            sparse: self.sparse.sparse,
            ..limits
        };
        match model.session_on(team, limits) {
            Err(error @ SessionError::Memory { .. }) => Err(anyhow::anyhow!("{error} (-c)")),
            Err(error @ SessionError::NotByNeuron) => {
                Err(anyhow::anyhow!("{}: {error}", model.name()))
            }
            session => Ok(session?),
        }
    }

    /// Threads: as asked for, or `default`.
    pub(crate) fn n_workers(&self, default: usize) -> usize {
        let asked = self.threads.and_then(|n| usize::try_from(n).ok());
        asked.filter(|&n| n > 0).unwrap_or(default).min(WORKERS_MAX)
    }
}

/// The supported load modes of llama.cpp.
pub(crate) const LOAD_MODES: [&str; 5] = ["auto", "none", "mmap", "mlock", "mmap+mlock"];

/// How a load mode reads weights. Tables that stay in the file need a map.
pub(crate) fn load_mode(mode: &str, experts: &ExpertArgs, gathers: bool) -> LoadMode {
    match mode {
        "none" | "mlock" => LoadMode::Read,
        "auto" if !gathers => LoadMode::usual(experts.stay_on_disk()),
        _ => LoadMode::Map,
    }
}

fn long_ropes() -> impl TypedValueParser<Value = LongRope> {
    let names = PossibleValuesParser::new(["short", "long"]);
    names.map(|name| match name.as_str() {
        "long" => LongRope::Long,
        _ => LongRope::Short,
    })
}

/// An activation that gates can take.
pub(crate) fn activation(name: &str) -> Result<Activation, String> {
    Activation::parse(name).ok_or_else(|| ACTIVATIONS.to_owned())
}

const ACTIVATIONS: &str =
    "expected silu, relu, drelu, fatrelu, or fatrelu:THRESHOLD with a number of 0 or more";

pub(crate) fn kv_types() -> impl TypedValueParser<Value = KvType> {
    let names = PossibleValuesParser::new(KvType::ALL.map(KvType::name));
    names.try_map(|name| KvType::from_name(&name).ok_or("unknown type"))
}

//! The flags, as llama.cpp spells them.

use super::adapters::AdapterArgs;
use super::expert_cache::ExpertArgs;
use super::model::ModelArgs;
use super::placement::PlacementArgs;
use super::prompt_cache::PromptCacheArgs;
use super::run::prompts::PromptsArgs;
use super::sampling::SamplingArgs;
use super::speculation::SpeculationArgs;
use clap::builder::{FalseyValueParser, PossibleValuesParser};
use clap::{Args, value_parser};
use sluice::core::kernels::KvType;
use sluice::core::model::ModelConfig;
use sluice::core::team::WORKERS_MAX;
use sluice::file::LoadMode;
use sluice::session::SessionError;
use sluice::{Limits, Model, Session, Team};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Text to continue; empty text starts from the beginning-of-sequence token
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) prompt: Option<String>,
    /// File with the text to continue, - for stdin (UTF-8; one newline at its end does not count; escapes are
    /// replaced as in -p: --no-escape takes it as it is)
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(super) file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) prompts: PromptsArgs,
    /// Turn \n, \r, \t, \', \", \\ and \xHH in the prompt into what they stand for (the default)
    #[arg(short, long)]
    pub(super) escape: bool,
    /// Take the prompt as it is written
    #[arg(long, conflicts_with = "escape")]
    pub(super) no_escape: bool,
    /// Tokens to generate; -1 until the model ends the text or the context is full
    #[arg(short, long = "predict", visible_alias = "n-predict", value_name = "N",
        default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=i64::from(i32::MAX)))]
    pub(super) n_predict: i64,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[command(flatten)]
    pub(super) adapters: AdapterArgs,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
    #[command(flatten)]
    pub(super) speculation: SpeculationArgs,
    /// Go on when the context is full: the older half of it goes
    #[arg(long, overrides_with = "no_context_shift")]
    pub(super) context_shift: bool,
    /// End the text when the context is full (the default)
    #[arg(long)]
    pub(super) no_context_shift: bool,
    /// Tokens of the prompt that stay when the context is shifted; -1 all
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=1 << 24))]
    pub(super) keep: i64,
    #[command(flatten)]
    pub(super) prompt_cache: PromptCacheArgs,
    /// Print only what is generated
    #[arg(long, overrides_with = "display_prompt")]
    pub(super) no_display_prompt: bool,
    /// Print the prompt, too (the default)
    #[arg(long)]
    pub(super) display_prompt: bool,
    /// Print one JSON object with the text and what it took, at the end
    #[arg(long, conflicts_with = "logprobs")]
    pub(super) json: bool,
    /// Print the time per operator
    #[arg(long)]
    pub(super) profile: bool,
}

/// What sizes and places the engine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(super) struct EngineArgs {
    /// Context in tokens; 0 is the model's own
    #[arg(short, long, value_name = "N", default_value_t = 0,
        value_parser = value_parser!(u32).range(0..=1 << 24))]
    pub(super) ctx_size: u32,
    /// Most tokens handed to the engine at once
    #[arg(short, long, value_name = "N", default_value_t = 2048,
        value_parser = value_parser!(u32).range(1..=1 << 24))]
    pub(super) batch_size: u32,
    /// Most tokens computed at once [short: -ub]
    #[arg(long, value_name = "N", default_value_t = 512,
        value_parser = value_parser!(u32).range(1..=1 << 24))]
    pub(super) ubatch_size: u32,
    /// Threads; by default one per physical core that is used (--cores)
    #[arg(short, long, value_name = "N", allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=WORKERS_MAX as i64))]
    pub(super) threads: Option<i64>,
    /// Type of keys in the KV cache; q8_0 takes half the room of f16: -ctk q8_0 -ctv q8_0
    /// [short: -ctk]
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_types())]
    pub(super) cache_type_k: String,
    /// Type of values in the KV cache [short: -ctv]
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_types())]
    pub(super) cache_type_v: String,
    /// Do not rotate keys and values of q8_0, q4_0 and fp8 before they are stored
    #[arg(long, value_parser = FalseyValueParser::new())]
    pub(super) no_kv_rotation: bool,
    /// Kernels to use: scalar, avx2, …; by default the fastest this CPU runs
    #[arg(long, value_name = "NAME", env = "SLUICE_ISA", hide_env_values = true)]
    pub(super) isa: Option<String>,
    /// How weights are read: none (plain reads), mmap, or auto, which is mmap; mlock and mmap+mlock
    /// lock them in memory as well [short: -lm]
    #[arg(long, value_name = "MODE", default_value = "auto",
        value_parser = PossibleValuesParser::new(LOAD_MODES))]
    pub(super) load_mode: String,
    /// Read rows of embeddings from the file as tokens name them, instead of loading them: per-layer embeddings take most
    /// of some models' bytes. Those of a .slc file stay there anyway
    #[arg(long, value_parser = FalseyValueParser::new())]
    pub(super) gather_tables: bool,
    #[command(flatten)]
    pub(super) placement: PlacementArgs,
    #[command(flatten)]
    pub(super) experts: ExpertArgs,
}

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// Print one JSON object: metadata and tensors
    #[arg(long)]
    pub(super) json: bool,
    /// GGUF file: a model, or only a vocabulary
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

impl EngineArgs {
    /// The types of keys and of values in the KV cache.
    pub(super) fn cache_types(&self) -> (KvType, KvType) {
        let ty = |name| KvType::from_name(name).expect("clap accepts only names of types");
        (ty(&self.cache_type_k), ty(&self.cache_type_v))
    }

    /// Tokens per step.
    pub(super) fn n_batch(&self) -> usize {
        self.ubatch_size.min(self.batch_size) as usize
    }

    /// Tokens of context: as asked for, or the model's own.
    pub(super) fn n_ctx(&self, config: &ModelConfig) -> usize {
        match self.ctx_size {
            0 => config.n_ctx_train.max(1),
            n => n as usize,
        }
    }

    /// The name of the kernels; an empty variable is none.
    pub(super) fn isa(&self) -> Option<&str> {
        self.isa.as_deref().filter(|name| !name.is_empty())
    }

    pub(super) fn load_mode(&self) -> LoadMode {
        load_mode(&self.load_mode)
    }

    /// Whether the load mode locks weights.
    pub(super) fn locks(&self) -> bool {
        self.load_mode.ends_with("mlock")
    }

    /// A session over `model`.
    ///
    /// # Errors
    /// There is no memory for it, or a limit is out of its range.
    #[expect(
        clippy::unused_self,
        reason = "the flags that a refusal names are these"
    )]
    pub(super) fn session(
        &self,
        model: &Model,
        team: &Team,
        limits: Limits,
    ) -> anyhow::Result<Session> {
        match model.session_on(team, limits) {
            Err(error @ SessionError::Memory { .. }) => Err(anyhow::anyhow!("{error} (-c)")),
            session => Ok(session?),
        }
    }

    /// Threads: as asked for, or `default`.
    pub(super) fn n_workers(&self, default: usize) -> usize {
        let asked = self.threads.and_then(|n| usize::try_from(n).ok());
        asked.filter(|&n| n > 0).unwrap_or(default).min(WORKERS_MAX)
    }
}

/// llama.cpp's load modes that there are here.
pub(super) const LOAD_MODES: [&str; 5] = ["auto", "none", "mmap", "mlock", "mmap+mlock"];

/// How a mode reads weights.
pub(super) fn load_mode(mode: &str) -> LoadMode {
    match mode {
        "none" | "mlock" => LoadMode::Read,
        _ => LoadMode::Map,
    }
}

pub(super) fn kv_types() -> PossibleValuesParser {
    PossibleValuesParser::new(KvType::ALL.map(KvType::name))
}

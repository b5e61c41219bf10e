//! The flags of `sluice bench`, spelled as in llama-bench, with their lists and ranges.

use super::lists::{Numbers, PromptGen};
use crate::flags::adapters::AdapterArgs;
use crate::flags::engine::{LOAD_MODES, activation, kv_types, load_mode};
use crate::flags::experts::ExpertArgs;
use crate::flags::hub::HubArgs;
use crate::flags::names::kernels;
use crate::flags::open::FileUse;
use crate::flags::placement::PlacementArgs;
use crate::flags::sparse::SparseArgs;
use crate::flags::speculation::SpeculationArgs;
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args, ValueEnum, value_parser};
use sluice::Model;
use sluice::adapter::AdapterBlend;
use sluice::core::kernels::KvType;
use sluice::core::kernels::table::Prefetch;
use sluice::core::model::Activation;
use sluice::file::LoadMode;
use std::path::PathBuf;

pub(in super::super) const EXAMPLES: &str = "\
Lists and ranges: 1,2,4 · 1-4 · 0-1024+256 · 1-8*2; a flag given twice adds to its list. Every
combination is a test.

Examples:
  sluice bench -m model.gguf
  sluice bench -m q4.gguf -m q8.gguf -p 512 -n 128 -t 1-4 --isa avx2,avx512
  sluice bench -m model.gguf -p 0 -n 64 -d 1024-8192*2 -ctk f16,q8_0 -ctv f16 -o jsonl
  sluice bench -m model.gguf -p 0 -n 64 -npl 1,2,4,8 -npos 4 --plot out.svg
  sluice bench -m model.gguf --strict -r 10
  sluice bench -m model.gguf -p 0 -n 64 -npl 1,4 --lora-each a,b --lora-dtype int8
  sluice bench -m model.gguf -p 0 -n 256 -r 1 --lora a --in-turn
  sluice bench -m model.gguf -p 0 --prefetch far -o jsonl
  sluice bench -m mixture.slc -p 512 -n 64 --expert-cache 8192 -o jsonl

Columns after llama-bench's: % limit is the part of what memory or arithmetic allow, counted in
the GGUF file's bytes and measured by a probe just before; latencies are of single decode steps.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Set the GGUF or .slc files; by default the built-in model
    #[arg(short, long, value_name = "FILE", value_delimiter = ',')]
    pub(super) model: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) hub: HubArgs,
    /// Set the prompt lengths, in tokens; 0 skips the test [default: 512]
    #[arg(short = 'p', long, value_name = "N", action = ArgAction::Append)]
    pub(super) n_prompt: Vec<Numbers>,
    /// Set the generation lengths, in tokens; 0 skips the test [default: 128]
    #[arg(short = 'n', long, value_name = "N", action = ArgAction::Append)]
    pub(super) n_gen: Vec<Numbers>,
    /// Measure a prompt followed by generation, as one test [short: -pg]
    #[arg(long, value_name = "PP,TG", action = ArgAction::Append)]
    pub(super) n_prompt_gen: Vec<PromptGen>,
    /// Set the number of tokens already in the context [default: 0]
    #[arg(short = 'd', long, value_name = "N", action = ArgAction::Append)]
    pub(super) n_depth: Vec<Numbers>,
    /// Set the numbers of parallel sequences [short: -npl] [default: 1]
    #[arg(long, value_name = "N", action = ArgAction::Append)]
    pub(super) n_parallel: Vec<Numbers>,
    /// Set the positions per sequence and pass [short: -npos] [default: 1]
    ///
    /// More than one corresponds to verifying draft tokens.
    #[arg(long, value_name = "N", action = ArgAction::Append)]
    pub(super) n_positions: Vec<Numbers>,
    /// Set the maximum logical batch sizes [default: 2048]
    #[arg(short = 'b', long, value_name = "N", action = ArgAction::Append)]
    pub(super) batch_size: Vec<Numbers>,
    /// Set the maximum physical batch sizes [short: -ub] [default: 512]
    #[arg(long, value_name = "N", action = ArgAction::Append)]
    pub(super) ubatch_size: Vec<Numbers>,
    /// Set the KV cache types of keys [short: -ctk] [default: f16]
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = kv_types())]
    pub(super) cache_type_k: Vec<KvType>,
    /// Set the KV cache types of values [short: -ctv] [default: f16]
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = kv_types())]
    pub(super) cache_type_v: Vec<KvType>,
    /// Do not rotate keys and values before quantizing them
    ///
    /// Applies to the cache types q8_0, q4_0 and fp8.
    #[arg(long)]
    pub(super) no_kv_rotation: bool,
    /// Set the numbers of threads [default: one per physical core]
    #[arg(short = 't', long, value_name = "N", action = ArgAction::Append)]
    pub(super) threads: Vec<Numbers>,
    /// Select the kernels [default: the fastest of this CPU]
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = kernels(), env = "SLUICE_ISA",
        hide_env_values = true
    )]
    pub(super) isa: Vec<String>,
    /// Set how weights are loaded [short: -lm]
    ///
    /// none reads the file into memory; mmap maps it, and so does auto without --expert-cache.
    #[arg(long, value_name = "MODE", default_value = "auto",
        value_parser = PossibleValuesParser::new(LOAD_MODES))]
    pub(super) load_mode: String,
    #[command(flatten)]
    pub(super) placement: PlacementArgs,
    #[command(flatten)]
    pub(super) experts: ExpertArgs,
    /// Read embedding rows from the file on demand
    #[arg(long)]
    pub(super) gather_tables: bool,
    /// Set the activation of the networks' gates: relu, drelu or fatrelu:THRESHOLD
    #[arg(long, value_name = "NAME", value_parser = activation)]
    pub(super) activation: Option<Activation>,
    #[command(flatten)]
    pub(super) sparse: SparseArgs,
    /// Set the number of repetitions of each test
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5,
        value_parser = value_parser!(u32).range(1..=100_000))]
    pub(super) repetitions: u32,
    /// Set the output format on stdout
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "md")]
    pub(super) output: Format,
    /// Print results on stderr as well, in this format [short: -oe]
    #[arg(long, value_name = "FORMAT")]
    pub(super) output_err: Option<Format>,
    /// Wait this many seconds before each test
    #[arg(long, value_name = "SECONDS", default_value_t = 0,
        value_parser = value_parser!(u32).range(0..=86_400))]
    pub(super) delay: u32,
    /// Skip the warm-up run before each test
    #[arg(long)]
    pub(super) no_warmup: bool,
    /// Report progress on stderr
    #[arg(long)]
    pub(super) progress: bool,
    /// Set how far ahead matrix products of few tokens prefetch weights
    ///
    /// auto uses what was faster in previous steps [default: auto; near with --strict].
    #[arg(long, value_name = "MODE")]
    pub(super) prefetch: Option<PrefetchMode>,
    /// Make the generated tokens reproducible
    ///
    /// Pins all threads or none, fixes the prompt, decodes greedily and fixes the prefetch distance. Prints a
    /// hash of the tokens and the llama-bench command that measures the same.
    #[arg(long)]
    pub(super) strict: bool,
    #[command(flatten)]
    pub(super) adapters: AdapterArgs,
    /// Assign adapters to parallel sequences in turn: -npl 4 --lora-each a,b
    #[arg(long, value_name = "PATH", value_delimiter = ',', action = ArgAction::Append,
        conflicts_with_all = ["lora", "lora_scaled"])]
    pub(super) lora_each: Vec<PathBuf>,
    /// Omit the adapters in every other step and report their cost
    #[arg(long, conflicts_with = "told")]
    pub(super) in_turn: bool,
    /// Measure speculation on texts from JSONL files instead of running tests
    ///
    /// Each object has a prompt and optionally an answer and a schema. Without an answer the model generates
    /// n_predict tokens. Each text is generated with and without draft tokens, in turn.
    #[arg(long, value_name = "FILE", value_delimiter = ',', action = ArgAction::Append)]
    pub(super) told: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) speculation: SpeculationArgs,
    /// Plot the roofline, all tests, and latencies by percentile (SVG)
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    /// Accept llama-bench's flag; attention is always fused [short: -fa]
    #[arg(long, value_name = "on|auto|1", hide = true,
        value_parser = PossibleValuesParser::new(["on", "auto", "1", "-1"]),
        allow_hyphen_values = true)]
    flash_attn: Option<String>,
}

/// The prefetch distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PrefetchMode {
    Near,
    Far,
    Auto,
}

impl BenchArgs {
    /// Maximum number of tokens of a recorded text and its prompt.
    pub(super) fn n_ctx_told(model: &Model) -> usize {
        model.config().n_ctx_train.clamp(1, 4096)
    }

    /// Which weights stay on disk.
    pub(super) const fn file_use(&self) -> FileUse<'_> {
        FileUse {
            experts: &self.experts,
            tables: self.gather_tables,
            check: false,
        }
    }

    /// The adapters of the sequences, in turn.
    ///
    /// # Errors
    /// An adapter cannot be read, or does not match the model.
    pub(super) fn blends(&self, model: &Model) -> anyhow::Result<Vec<AdapterBlend>> {
        let own = self.adapters.blend(model)?;
        let load = |path: &PathBuf| Ok(self.adapters.load.load(model, path)?.into());
        let each = self.lora_each.iter().map(load);
        own.map(Ok).into_iter().chain(each).collect()
    }

    pub(super) fn mode(&self) -> LoadMode {
        load_mode(&self.load_mode, &self.experts, self.gather_tables)
    }

    /// The fixed distance, if it is fixed.
    pub(super) fn prefetch(&self) -> Option<Prefetch> {
        match self.prefetch {
            Some(PrefetchMode::Near) => Some(Prefetch::Near),
            Some(PrefetchMode::Far) => Some(Prefetch::Far),
            Some(PrefetchMode::Auto) => None,
            None => self.strict.then_some(Prefetch::Near),
        }
    }
}

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Csv,
    Json,
    Jsonl,
    Md,
    Sql,
}

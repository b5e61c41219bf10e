//! The flags of `sluice serve`, as llama-server spells them.

use super::adapters::ServeAdapterArgs;
use crate::flags::engine::EngineArgs;
use crate::flags::hub::HubArgs;
use crate::flags::sampling::SamplingArgs;
use crate::flags::speculation::SpeculationArgs;
use clap::builder::{FalseyValueParser, PossibleValuesParser};
use clap::{Args, value_parser};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct ServeArgs {
    /// GGUF or .slc file, or NAME=FILE; may be given several times
    #[arg(short, long, value_name = "[NAME=]FILE")]
    pub(super) model: Vec<String>,
    #[command(flatten)]
    pub(super) hub: HubArgs,
    /// What requests call the first model; several names are separated by commas
    #[arg(short, long, value_name = "NAME")]
    pub(super) alias: Option<String>,
    /// Folder whose .gguf and .slc files are models, loaded when a request names them
    #[arg(long, value_name = "DIR")]
    pub(super) models_dir: Option<PathBuf>,
    /// Most models in memory; the one used longest ago goes first. 0 is no limit
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(super) models_max: usize,
    /// Address to listen on; one that ends with .sock is a socket in the file system
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(super) host: String,
    /// Port to listen on; 0 is any that is free
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub(super) port: u16,
    /// Key that requests must have; several are separated by commas
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub(super) api_key: Option<String>,
    /// File with such keys, one a line
    #[arg(long, value_name = "FILE")]
    pub(super) api_key_file: Option<PathBuf>,
    /// Texts at once; -1 is 4 [short: -np]
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=1024))]
    pub(super) parallel: i64,
    /// Most tokens of an answer, where a request does not say; -1 as many as there is room for
    #[arg(short, long = "predict", visible_alias = "n-predict", value_name = "N",
        default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=i64::from(i32::MAX)))]
    pub(super) n_predict: i64,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    pub(super) scheduling: SchedulingArgs,
    #[command(flatten)]
    pub(super) adapters: ServeAdapterArgs,
    /// Template instead of the models' own: chatml, gemma, llama3, phi3, zephyr, or Jinja text
    #[arg(long, value_name = "NAME|TEXT", conflicts_with = "chat_template_file")]
    pub(super) chat_template: Option<String>,
    /// The same from a file
    #[arg(long, value_name = "FILE")]
    pub(super) chat_template_file: Option<PathBuf>,
    /// More variables for the template, as a JSON object: {"enable_thinking": false}
    #[arg(long, value_name = "JSON")]
    pub(super) chat_template_kwargs: Option<String>,
    /// What becomes of a model's reasoning: none leaves it in the content, auto and deepseek put it into
    /// reasoning_content
    #[arg(long, value_name = "FORMAT", default_value = "auto",
        value_parser = PossibleValuesParser::new(["none", "auto", "deepseek"]))]
    pub(super) reasoning_format: String,
    /// Most tokens of reasoning; 0 ends it at once, -1 is no limit
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=1 << 30))]
    pub(super) reasoning_budget: i64,
    /// From tokens to an embedding, instead of what the file says: none, mean, cls, last
    #[arg(long, value_name = "TYPE",
        value_parser = PossibleValuesParser::new(["none", "mean", "cls", "last"]))]
    pub(super) pooling: Option<String>,
    /// Go on when the context is full: the older half of it goes
    #[arg(long, overrides_with = "no_context_shift", value_parser = FalseyValueParser::new())]
    pub(super) context_shift: bool,
    /// End an answer when the context is full (the default)
    #[arg(long)]
    pub(super) no_context_shift: bool,
    /// Have the route /metrics
    #[arg(long, value_parser = FalseyValueParser::new())]
    pub(super) metrics: bool,
    /// Have the route /slots (the default)
    #[arg(long, overrides_with = "no_slots")]
    pub(super) slots: bool,
    /// Do not have it
    #[arg(long)]
    pub(super) no_slots: bool,
    /// Folder where slots may be saved
    #[arg(long, value_name = "DIR")]
    pub(super) slot_save_path: Option<PathBuf>,
    /// Write prompts to the log
    #[arg(long)]
    pub(super) log_prompts: bool,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
    #[command(flatten)]
    pub(super) speculation: SpeculationArgs,
}

/// What clients may do.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits of clients")]
pub(crate) struct LimitArgs {
    /// Seconds in which a client neither sends nor takes a byte before it is left [short: -to]
    #[arg(long, value_name = "S", default_value_t = 60,
        value_parser = value_parser!(u64).range(1..=86_400))]
    pub(super) timeout: u64,
    /// Seconds that answers may go on when the server ends
    #[arg(long, value_name = "S", default_value_t = 30,
        value_parser = value_parser!(u64).range(0..=86_400))]
    pub(super) drain: u64,
    /// Most connections at once
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(super) connections_max: u32,
    /// Most MiB of a request
    #[arg(long, value_name = "MiB", default_value_t = 32,
        value_parser = value_parser!(u32).range(1..=1024))]
    pub(super) body_max: u32,
    /// Seconds of silence in a stream before a comment is sent; 0 for none
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub(super) sse_ping_interval: u64,
    /// Requests that are prepared at once: templates, tokens, grammars; -1 as many as there are threads
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=256))]
    pub(super) threads_http: i64,
    /// Origin whose pages may use the server from a browser, * for all; by default none
    #[arg(long, value_name = "ORIGIN")]
    pub(super) cors_origins: Option<String>,
}

/// How turns are cut, and what is kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scheduling and caches")]
pub(crate) struct SchedulingArgs {
    /// Length of a turn, which bounds how long one request stops the others
    #[arg(long, value_name = "MS", default_value_t = 50,
        value_parser = value_parser!(u64).range(1..=60_000))]
    pub(super) turn_ms: u64,
    /// Least part of a turn that waiting prompts get
    #[arg(long, value_name = "0..1", default_value_t = 0.25, value_parser = part)]
    pub(super) prompt_share: f64,
    /// Most requests that wait; more are told to come again
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(super) max_queue: usize,
    /// MiB of memory for earlier prompts; 0 none, -1 a quarter of what is available. By default that, or 8192
    /// if that is less [short: -cram]
    #[arg(long, value_name = "MiB", allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=1 << 40))]
    pub(super) cache_ram: Option<i64>,
    /// Folder where earlier prompts are kept over restarts
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// Most MiB there
    #[arg(long, value_name = "MiB", default_value_t = 32_768)]
    pub(super) cache_disk: u64,
    /// File for the time of each stage of the scheduler, one a line: stage,elapsed_us
    #[arg(long, value_name = "FILE")]
    pub(super) telemetry_csv: Option<PathBuf>,
    /// Tokens between two checkpoints of a recurrent model's state
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = value_parser!(u32).range(1..=1 << 24))]
    pub(super) checkpoint_every: u32,
}

fn part(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "a number from 0 to 1 is needed".to_owned())
}

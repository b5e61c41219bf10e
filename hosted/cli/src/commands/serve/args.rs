//! The flags of `sluice serve`, spelled as in llama-server.

use super::adapters::ServeAdapterArgs;
use crate::flags::engine::EngineArgs;
use crate::flags::hub::HubArgs;
use crate::flags::sampling::SamplingArgs;
use crate::flags::speculation::SpeculationArgs;
use clap::builder::{FalseyValueParser, PossibleValuesParser};
use clap::{Args, value_parser};
use sluice_serve::{CacheScope, CorsOrigins, TrustedProxies};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct ServeArgs {
    /// Set a model: a GGUF or .slc file, or NAME=FILE; may be repeated
    #[arg(short, long, value_name = "[NAME=]FILE")]
    pub(super) model: Vec<OsString>,
    #[command(flatten)]
    pub(super) hub: HubArgs,
    /// Set the first model's names in requests, comma-separated
    #[arg(short, long, value_name = "NAME")]
    pub(super) alias: Option<String>,
    /// Offer all .gguf and .slc files of a folder, loaded on demand
    #[arg(long, value_name = "DIR")]
    pub(super) models_dir: Option<PathBuf>,
    /// Read models with flags of their own from an INI file, as llama-server's
    ///
    /// A section is a model, [*] holds for all of them, and keys are flags. docs/serve.md describes it.
    #[arg(long, value_name = "FILE")]
    pub(super) models_preset: Option<PathBuf>,
    /// Load models when a request names them (the default)
    #[arg(long, overrides_with = "no_models_autoload")]
    pub(super) models_autoload: bool,
    /// Load models only at the start and by POST /models/load
    #[arg(long)]
    pub(super) no_models_autoload: bool,
    /// Free a model's memory after this many seconds without a request; -1 is never
    ///
    /// The next request loads it again. /health, /props, /models and /metrics do not.
    #[arg(long, value_name = "S", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=31_536_000))]
    pub(super) sleep_idle_seconds: i64,
    /// The flags of a model that the command line sets, for `--models-preset`.
    #[arg(skip)]
    pub(super) given: Vec<OsString>,
    /// Answer requests for unknown models with the first one
    #[arg(long)]
    pub(super) any_model: bool,
    /// Set the maximum number of models in memory; 0 is unlimited
    ///
    /// The least recently used model is evicted first. If all are in use, models take turns.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(super) models_max: usize,
    /// Set how long a busy model may keep others waiting for its place, in seconds
    ///
    /// Then its requests are parked; they go on at the model's next turn.
    #[arg(long, value_name = "S", default_value_t = 60,
        value_parser = value_parser!(u64).range(0..=86_400))]
    pub(super) model_turn: u64,
    /// Set the addresses: a,b; a Unix socket ends with .sock
    #[arg(
        long,
        value_name = "HOST",
        value_delimiter = ',',
        default_value = "127.0.0.1"
    )]
    pub(super) host: Vec<String>,
    /// Set the port; 0 picks a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub(super) port: u16,
    /// Listen on Ollama's port, which its clients use unless OLLAMA_HOST says otherwise: --port 11434
    #[arg(long, conflicts_with = "port")]
    pub(super) ollama: bool,
    /// Let every client download models of Hugging Face
    ///
    /// By Ollama's /api/pull and by POST /models; DELETE /models removes what clients have downloaded. Without it, only
    /// keys of --keys that have this right may.
    #[arg(long)]
    pub(super) allow_pull: bool,
    /// Set how much clients may download while the server runs, in GiB
    #[arg(long, value_name = "GiB", default_value_t = 64,
        value_parser = value_parser!(u64).range(0..=1 << 20))]
    pub(super) pull_max: u64,
    /// Set the API keys, separated by commas
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub(super) api_key: Option<String>,
    /// Read API keys from a file, one per line
    #[arg(long, value_name = "FILE")]
    pub(super) api_key_file: Option<PathBuf>,
    /// Read keys with names, rights and limits from a TOML file
    ///
    /// SIGHUP reads it again. docs/serve.md describes it.
    #[arg(long, value_name = "FILE")]
    pub(super) keys: Option<PathBuf>,
    /// Set who shares cached prompts: key (the keys of a group) or all
    ///
    /// The default is key with --keys or more than one key. docs/serve.md describes what each reveals.
    #[arg(long, value_name = "SCOPE")]
    pub(super) cache_scope: Option<CacheScope>,
    /// Let every client set priority
    ///
    /// Without it, only keys of --keys that have this right may.
    #[arg(long)]
    pub(super) allow_priority: bool,
    /// Set the number of parallel sequences; -1 is 4 [short: -np]
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=1024))]
    pub(super) parallel: i64,
    /// Set the default maximum of tokens per answer; -1 is unlimited
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
    /// Override the models' chat templates
    ///
    /// chatml, gemma, llama3, phi3, zephyr, or Jinja text.
    #[arg(long, value_name = "NAME|TEXT", conflicts_with = "chat_template_file")]
    pub(super) chat_template: Option<String>,
    /// Read the chat template from a file
    #[arg(long, value_name = "FILE")]
    pub(super) chat_template_file: Option<PathBuf>,
    /// Set template variables as JSON: '{"enable_thinking": false}'
    #[arg(long, value_name = "JSON")]
    pub(super) chat_template_kwargs: Option<String>,
    /// Set where a model's reasoning is returned
    ///
    /// none leaves it in the content; auto and deepseek return it in reasoning_content.
    #[arg(long, value_name = "FORMAT", default_value = "auto",
        value_parser = PossibleValuesParser::new(["none", "auto", "deepseek"]))]
    pub(super) reasoning_format: String,
    /// Tell chat templates whether to reason: on, off or auto (the template's choice) [short: -rea]
    ///
    /// Sets enable_thinking, which --chat-template-kwargs and requests override.
    #[arg(long, value_name = "WHEN", default_value = "auto",
        value_parser = PossibleValuesParser::new(["on", "off", "auto"]))]
    pub(super) reasoning: String,
    /// Set the maximum number of reasoning tokens; 0 disables reasoning, -1 is unlimited
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=1 << 30))]
    pub(super) reasoning_budget: i64,
    /// Set the pooling of token vectors; by default the model file's
    #[arg(long, value_name = "TYPE",
        value_parser = PossibleValuesParser::new(["none", "mean", "cls", "last"]))]
    pub(super) pooling: Option<String>,
    /// When the context is full, drop its older half and continue
    #[arg(long, overrides_with = "no_context_shift", value_parser = FalseyValueParser::new())]
    pub(super) context_shift: bool,
    /// When the context is full, end the answer (the default)
    #[arg(long)]
    pub(super) no_context_shift: bool,
    /// Serve the page for people at / (the default)
    #[arg(long, alias = "webui", overrides_with = "no_ui")]
    pub(super) ui: bool,
    /// Do not serve the page for people
    #[arg(long, alias = "no-webui")]
    pub(super) no_ui: bool,
    /// Enable the /metrics endpoint
    #[arg(long, value_parser = FalseyValueParser::new())]
    pub(super) metrics: bool,
    /// Enable the /slots endpoint (the default)
    #[arg(long, overrides_with = "no_slots")]
    pub(super) slots: bool,
    /// Disable the /slots endpoint
    #[arg(long)]
    pub(super) no_slots: bool,
    /// Set the folder for saved slots
    #[arg(long, value_name = "DIR")]
    pub(super) slot_save_path: Option<PathBuf>,
    /// Log prompts
    #[arg(long)]
    pub(super) log_prompts: bool,
    /// Keep the line with which Claude Code's system text begins
    ///
    /// It changes with every request, so that the whole prompt is read again each time.
    #[arg(long)]
    pub(super) keep_billing_line: bool,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
    #[command(flatten)]
    pub(super) speculation: SpeculationArgs,
}

/// Limits on clients.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits of clients")]
pub(crate) struct LimitArgs {
    /// Set the idle timeout per client, in seconds [short: -to]
    #[arg(long, value_name = "S", default_value_t = 60,
        value_parser = value_parser!(u64).range(1..=86_400))]
    pub(super) timeout: u64,
    /// Set how long answers may continue at shutdown, in seconds
    #[arg(long, value_name = "S", default_value_t = 30,
        value_parser = value_parser!(u64).range(0..=86_400))]
    pub(super) drain: u64,
    /// Set the maximum number of connections
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(super) connections_max: u32,
    /// Set the maximum size of a request, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 32,
        value_parser = value_parser!(u32).range(1..=1024))]
    pub(super) body_max: u32,
    /// Set the maximum memory for the bodies of all requests, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 512,
        value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(super) body_memory: u32,
    /// Send a comment after this many seconds of silence in a stream; 0 is off
    ///
    /// Clients of Anthropic's API get a ping, after 10 seconds at most.
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub(super) sse_ping_interval: u64,
    /// Keep a stream that broke for this many seconds
    ///
    /// Its client goes on with the header Last-Event-ID. Later, the text is computed again. With 0, streams have no event ids.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = value_parser!(u64).range(0..=86_400))]
    pub(super) resume_seconds: u64,
    /// Set how many requests are prepared at once; -1 is the number of threads
    ///
    /// Preparing a request means templates, tokens and grammars.
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=256))]
    pub(super) threads_http: i64,
    /// Set the proxies whose X-Forwarded-For names the client, comma-separated
    ///
    /// IP addresses, networks such as 10.0.0.0/8, or unix for all peers of a Unix socket.
    #[arg(long, value_name = "LIST")]
    pub(super) trusted_proxies: Option<TrustedProxies>,
    /// Allow browser pages of these origins, comma-separated; * allows all
    ///
    /// Origins such as https://app.example; localhost stands for this machine on any port.
    #[arg(long, value_name = "LIST")]
    pub(super) cors_origins: Option<CorsOrigins>,
    /// Set names of the server, comma-separated; * allows any
    ///
    /// Without a key, requests for other names get status 403. Addresses, names without a dot and the
    /// machine's own name need not be listed.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(super) allowed_hosts: Vec<String>,
}

/// Scheduling and caching.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scheduling and caches")]
pub(crate) struct SchedulingArgs {
    /// Set the length of a turn, in milliseconds
    ///
    /// It bounds how long one request delays the others.
    #[arg(long, value_name = "MS", default_value_t = 50,
        value_parser = value_parser!(u64).range(1..=60_000))]
    pub(super) turn_ms: u64,
    /// Set the minimum share of a turn for waiting prompts
    #[arg(long, value_name = "0..1", default_value_t = 0.25, value_parser = part)]
    pub(super) prompt_share: f64,
    /// Set the maximum number of queued requests of one client
    ///
    /// Its further requests get status 429. A client is an address, or a Unix socket's user.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(super) max_queue: usize,
    /// Set the memory for cached prompts, in MiB; 0 disables it [short: -cram]
    ///
    /// -1 uses a quarter of the available memory. The default is the same, but at most 8192.
    #[arg(long, value_name = "MiB", allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=1 << 40))]
    pub(super) cache_ram: Option<i64>,
    /// Set the folder where prompts stay cached across restarts
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// Set the maximum size of that folder, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 32_768)]
    pub(super) cache_disk: u64,
    /// Write the time of each scheduler stage to a file
    ///
    /// One per line: stage,elapsed_us.
    #[arg(long, value_name = "FILE")]
    pub(super) telemetry_csv: Option<PathBuf>,
    /// Set the tokens between checkpoints of a recurrent model's state
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = value_parser!(u32).range(1..=1 << 24))]
    pub(super) checkpoint_every: u32,
}

fn part(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

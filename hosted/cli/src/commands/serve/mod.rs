//! `sluice serve`: creates a server from the flags.

mod adapters;
mod args;
mod each;
mod ini;
mod models;
mod presets;

pub(super) use args::ServeArgs;

use crate::flags::speculation;
use crate::outcome::{Ending, UsageError};
use crate::ui::format::Bytes;
use crate::ui::input;
use crate::ui::output::{note, tell};
use anyhow::{Context as _, anyhow};
use core::time::Duration;
use models::{again, models};
use serde_json::Map;
use sluice::Team;
use sluice::core::team::StopFlag;
use sluice::draft::{DraftKind, DraftOptions};
use sluice::file::ModelFile;
use sluice::host::{interrupt, isa};
use sluice_make::draft_copy::DraftCopy;
use sluice_serve::engine::EngineOptions;
use sluice_serve::{
    CacheScope, Defaults, HttpOptions, KeysOptions, Listen, ModelsOptions, PullOptions,
    ServerConfig, ServerEnd, serve as run,
};
use std::sync::Arc;

impl ServeArgs {
    /// Keeps the flags of a model that the command line sets, for `--models-preset`.
    pub(super) fn settle_presets(&mut self, matches: &clap::ArgMatches) {
        if self.models_preset.is_some() {
            self.given = presets::given(matches);
        }
    }
}

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice serve -m model.gguf
  sluice serve -m small=a.gguf -m large=b.gguf --port 8000 --api-key-file keys.txt --metrics
  sluice serve --models-dir models --models-max 2 -np 8 -c 32768 --cache-dir cache
  sluice serve -m model.gguf --host /run/sluice.sock
  sluice serve -m mixture.slc --expert-cache 65536
  sluice serve -m model.gguf --lora-modules support=adapters/support sql=adapters/sql.gguf --lora-dtype int8

The routes of OpenAI, llama-server, Anthropic and Ollama are served; docs/serve.md and docs/dialects.md list them.
Ctrl-C and SIGTERM let answers end (--drain); a second one ends at once.";

pub(super) fn serve(args: &Arc<ServeArgs>) -> anyhow::Result<Ending> {
    // Until the server installs its own handlers.
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let Setup { config, team, copy } = match Setup::new(args, stop) {
        _ if stop.is_set() => return Ok(Ending::Interrupted),
        made => made?,
    };
    let mut ready = |address: &str| tell(format_args!("listening on {address}"));
    match run(config, team, &mut ready)? {
        ServerEnd::Drained => Ok(Ending::Done),
        // The engine may be in the middle of a step, which is no longer awaited.
        ServerEnd::AtOnce => {
            drop(copy);
            std::process::exit(crate::outcome::EXIT_INTERRUPTED.into())
        }
    }
}

/// The server requested by the flags.
struct Setup {
    config: ServerConfig,
    team: Team,
    /// The 2-bit copy of the first model, if it drafts; it stays on disk until this is dropped.
    copy: Option<DraftCopy>,
}

impl Setup {
    fn new(args: &Arc<ServeArgs>, stop: &StopFlag) -> anyhow::Result<Self> {
        let table =
            isa::kernel_table(args.engine.isa()).map_err(|error| UsageError(error.to_string()))?;
        let cores = args.engine.placement.cores(args.engine.locks());
        let n_workers = args.engine.n_workers(cores.default_workers());
        let team = args.engine.placement.team(n_workers, &cores)?;
        let mut models = models(args, table)?;
        let drafts = args.speculation.options()?;
        let copy = copy_of_first(&drafts, &mut models, &team, stop)?;
        let port = if args.ollama { OLLAMA } else { args.port };
        let config = ServerConfig {
            listen: args
                .host
                .iter()
                .map(|host| Listen::new(host.trim(), port))
                .collect(),
            lists: Some(again(Arc::clone(args), &models, table)),
            models,
            engine: scheduling(args),
            defaults: defaults(args)?,
            http: http(args, table.name(), n_workers)?,
            log: Arc::new(|line: &str| note(format_args!("{line}"))),
        };
        if config.engine.cache_ram > 0 {
            note(format_args!(
                "earlier texts are kept in up to {} of memory for each model (--cache-ram)",
                Bytes(config.engine.cache_ram)
            ));
        }
        Ok(Self { config, team, copy })
    }
}

/// Makes a 2-bit copy of the first model, to draft for it, if requested.
fn copy_of_first(
    drafts: &DraftOptions,
    models: &mut ModelsOptions,
    team: &Team,
    stop: &StopFlag,
) -> anyhow::Result<Option<DraftCopy>> {
    if !drafts.has(DraftKind::Copy) {
        return Ok(None);
    }
    let message = "--spec-type draft-self is for a model that is named: -m FILE";
    let first = models.named.first();
    let first = first.ok_or_else(|| UsageError(message.to_owned()))?;
    let file = ModelFile::open(&first.path, models.load_mode)?;
    let copy = speculation::copy(&file, models.experts.is_some(), team, stop)?;
    let copy = copy.ok_or_else(|| anyhow!("--spec-type draft-self: stopped"))?;
    if let Some(setup) = &mut models.speculation {
        setup.draft = Some(drafts.copied(copy.path().to_path_buf()));
    }
    Ok(Some(copy))
}

fn scheduling(args: &ServeArgs) -> EngineOptions {
    let given = &args.scheduling;
    EngineOptions {
        turn: Duration::from_millis(given.turn_ms),
        prompt_share: given.prompt_share,
        max_queue: given.max_queue,
        cache_ram: EngineOptions::cache_ram_bytes(given.cache_ram),
        cache_dir: given.cache_dir.clone(),
        cache_disk: given.cache_disk.saturating_mul(MIB),
        checkpoint_every: given.checkpoint_every as usize,
        max_adapters: args.adapters.max_loras,
        telemetry: given.telemetry_csv.clone(),
        ..EngineOptions::default()
    }
}

fn defaults(args: &ServeArgs) -> anyhow::Result<Defaults> {
    let sampling = &args.sampling;
    let is_of_requests = sampling.grammar.is_some()
        || sampling.grammar_file.is_some()
        || sampling.json_schema.is_some()
        || sampling.json_schema_file.is_some()
        || sampling.logprobs.is_some()
        || !sampling.stop.is_empty()
        || !sampling.reverse_prompt.is_empty();
    if is_of_requests {
        let message = "grammars, stop strings and log-probabilities can be set only in requests";
        return Err(UsageError(message.to_owned()).into());
    }
    let kwargs = args.chat_template_kwargs.as_deref().unwrap_or("{}");
    let kwargs = serde_json::from_str::<Map<_, _>>(kwargs);
    let mut kwargs = kwargs.map_err(|error| {
        UsageError(format!(
            "--chat-template-kwargs: not a JSON object: {error}"
        ))
    })?;
    if args.reasoning != "auto" {
        let thinks = args.reasoning == "on";
        kwargs.entry("enable_thinking").or_insert(thinks.into());
    }
    Ok(Defaults {
        sampling: sampling.settings(true)?,
        seed: u64::try_from(sampling.seed).ok(),
        n_predict: usize::try_from(args.n_predict).ok(),
        context_shift: args.context_shift && !args.no_context_shift,
        template_kwargs: kwargs,
        splits_reasoning: args.reasoning_format != "none",
        reasoning_budget: usize::try_from(args.reasoning_budget).ok(),
    })
}

fn http(args: &ServeArgs, isa: &str, n_workers: usize) -> anyhow::Result<HttpOptions> {
    let limits = &args.limits;
    Ok(HttpOptions {
        keys: keys(args)?,
        connections_max: limits.connections_max as usize,
        body_max: (limits.body_max as usize) << 20,
        body_memory: (limits.body_memory as usize) << 20,
        stall_timeout: Duration::from_secs(limits.timeout),
        ping: Duration::from_secs(limits.sse_ping_interval),
        resume: Duration::from_secs(limits.resume_seconds),
        patience: Duration::from_secs(limits.drain),
        threads: usize::try_from(limits.threads_http)
            .ok()
            .filter(|&n| n > 0)
            .unwrap_or(n_workers),
        trusted_proxies: limits.trusted_proxies.clone().unwrap_or_default(),
        cors: limits.cors_origins.clone().unwrap_or_default(),
        allowed_hosts: limits.allowed_hosts.clone(),
        page: args.ui || !args.no_ui,
        metrics: args.metrics,
        slots: args.slots || !args.no_slots,
        slot_save_path: args.slot_save_path.clone(),
        log_prompts: args.log_prompts,
        keep_billing_line: args.keep_billing_line,
        pull: PullOptions {
            allowed: args.allow_pull,
            max_bytes: args.pull_max << 30,
            access: args.hub.access(),
        },
        isa: isa.to_owned(),
        max_adapters: args.adapters.max_loras,
        ..HttpOptions::default()
    })
}

/// The keys of the command line and of the files.
fn keys(args: &ServeArgs) -> anyhow::Result<KeysOptions> {
    let mut plain: Vec<_> = match &args.api_key {
        Some(keys) => keys.split(',').map(|key| key.trim().to_owned()).collect(),
        None => Vec::new(),
    };
    // An empty one would be no key at all, contrary to the flag.
    if plain.iter().any(String::is_empty) {
        let message =
            "--api-key, LLAMA_API_KEY: a key is empty; to serve without keys, leave it out";
        return Err(UsageError(message.to_owned()).into());
    }
    if let Some(path) = &args.api_key_file {
        let text = input::text("file", path).context("--api-key-file")?;
        let lines = text.lines().map(|key| key.trim().to_owned());
        let of_file: Vec<_> = lines.filter(|key| !key.is_empty()).collect();
        if of_file.is_empty() {
            let message = format!(
                "--api-key-file {}: the file contains no keys",
                path.display()
            );
            return Err(UsageError(message).into());
        }
        plain.extend(of_file);
    }
    let options = KeysOptions {
        plain,
        file: args.keys.clone(),
        allow_priority: args.allow_priority,
        cache_scope: args.cache_scope,
    };
    if options.cache_scope == Some(CacheScope::Key) && !options.has_keys() {
        let message = "--cache-scope key needs keys: --keys, --api-key-file or --api-key";
        return Err(UsageError(message.to_owned()).into());
    }
    Ok(options)
}

/// Ollama's port.
const OLLAMA: u16 = 11434;
const MIB: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Command;
    use sluice::Limits;
    use sluice::core::kernels::KvType;
    use sluice::host::threads::PlacementOptions;

    #[test]
    fn defaults_of_flags_are_those_of_the_library() {
        let words = ["sluice", "serve", "-m", "a.gguf"].map(Into::into);
        let Command::Serve(args) = crate::parse(words.to_vec()).unwrap().command else {
            panic!("not serve");
        };
        let table = isa::kernel_table(None).unwrap();
        let (found, engine) = (models(&args, table).unwrap(), scheduling(&args));
        let models = ModelsOptions {
            named: found.named.clone(),
            limits: Limits {
                n_batch: 512,
                types: Some((KvType::F16, KvType::F16)),
                table: Some(table),
                ..ModelsOptions::default().limits
            },
            speculation: found.speculation.clone(),
            ..ModelsOptions::default()
        };
        assert_eq!(format!("{found:?}"), format!("{models:?}"));
        let usual = EngineOptions {
            cache_ram: engine.cache_ram,
            ..EngineOptions::default()
        };
        assert_eq!(format!("{engine:?}"), format!("{usual:?}"));
        let (found, mut usual) = (defaults(&args).unwrap(), Defaults::default());
        usual.sampling.config.seed = found.sampling.config.seed;
        assert_eq!(format!("{found:?}"), format!("{usual:?}"));
        let http = http(&args, "", HttpOptions::default().threads).unwrap();
        assert_eq!(format!("{http:?}"), format!("{:?}", HttpOptions::default()));
        let drafts = args.speculation.options().unwrap();
        assert_eq!(
            format!("{drafts:?}"),
            format!("{:?}", DraftOptions::default())
        );
        let placement = args.engine.placement.options(args.engine.locks());
        assert_eq!(placement, PlacementOptions::default());
    }

    #[test]
    fn reasoning_is_a_variable_of_templates() {
        let kwargs = |words: &[&str]| {
            let all = ["sluice", "serve", "-m", "a.gguf"].iter().chain(words);
            let Command::Serve(args) = crate::parse(all.map(Into::into).collect()).unwrap().command
            else {
                panic!("not serve");
            };
            defaults(&args)
                .unwrap()
                .template_kwargs
                .get("enable_thinking")
                .cloned()
        };
        assert_eq!(kwargs(&[]), None);
        assert_eq!(kwargs(&["--reasoning", "auto"]), None);
        assert_eq!(kwargs(&["-rea", "off"]), Some(false.into()));
        assert_eq!(kwargs(&["--reasoning", "on"]), Some(true.into()));
        let own = [
            "-rea",
            "on",
            "--chat-template-kwargs",
            "{\"enable_thinking\": false}",
        ];
        assert_eq!(kwargs(&own), Some(false.into()));
    }
}

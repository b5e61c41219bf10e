//! `sluice run`: continue a prompt.

use super::args::RunArgs;
use super::footer::{self, Setup};
use super::format::{Bytes, CacheTypes, Count};
use super::open::{self, Opened};
use super::output::{TextOutput, note};
use super::{Ending, UsageError, logprobs, prompt};
use anyhow::{Context as _, bail};
use serde_json::json;
use sluice::core::engine::{Engine, EnginePlan, Limits, Wants};
use sluice::core::gguf::optional;
use sluice::core::kernels::KernelTable;
use sluice::core::model::{Model, ModelConfig};
use sluice::core::team::StopFlag;
use sluice::core::trace::Event;
use sluice::generate::{Ended, Generator, Timings, Until};
use sluice::host::memory::AlignedMemory;
use sluice::host::profile::{Profile, events_per_step};
use sluice::host::topology::Cores;
use sluice::host::workers::Workers;
use sluice::host::{interrupt, isa};
use sluice_text::sampling::{Sampler, SamplingSettings};
use std::time::Instant;

pub(super) fn run(args: &RunArgs) -> anyhow::Result<Ending> {
    let start = Instant::now();
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let table =
        isa::kernel_table(args.engine.isa()).map_err(|error| UsageError(error.to_string()))?;
    let settings = args.sampling.settings(!args.no_escape)?;
    args.sampling.stops(!args.no_escape)?;
    let text = prompt::text(args)?;
    open::with_model(args.model.as_deref(), &args.engine, |opened| {
        opened.check_decoder()?;
        let tokens = prompt::encode(opened.tokenizer, &text)?;
        let limits = limits(args, &opened.config, &tokens, &opened.cores)?;
        let tokenizer = opened.tokenizer;
        let sampler = args.sampling.sampler(&settings, tokenizer, limits.n_ctx)?;
        describe(opened, args, &limits, &settings);
        let job = Job {
            args,
            opened,
            text: &text,
            tokens: &tokens,
            table,
            limits,
            stop,
            start,
        };
        let ending = opened.load(limits.n_workers, stop, |model, workers| {
            job.generate(model, workers, sampler)
        })?;
        Ok(ending.unwrap_or(Ending::Interrupted))
    })
}

/// Everything that is decided before the first step.
struct Job<'j> {
    args: &'j RunArgs,
    opened: &'j Opened<'j>,
    text: &'j str,
    tokens: &'j [u32],
    table: &'static KernelTable,
    limits: Limits,
    stop: &'static StopFlag,
    start: Instant,
}

impl Job<'_> {
    fn generate(
        &self,
        model: Model<'_>,
        workers: &mut Workers,
        mut sampler: Sampler,
    ) -> anyhow::Result<Ending> {
        let setup = Setup::pinned(workers, self.table.name());
        let config = *model.config();
        let (limits, n_workers) = (&self.limits, self.limits.n_workers);
        let plan = EnginePlan::new(&config, limits)?;
        let mut kv = AlignedMemory::zeroed(plan.kv_bytes)
            .with_context(|| format!("no memory for a context of {} tokens (-c)", limits.n_ctx))?;
        let mut scratch = AlignedMemory::zeroed(plan.scratch_bytes).context("no memory")?;
        let engine = Engine::new(model, self.table, limits, &mut kv, &mut scratch)?;
        let clock = || u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let n_events = if self.args.profile {
            events_per_step(config.n_layer, n_workers)
        } else {
            0
        };
        let mut events = vec![Event::EMPTY; n_events];
        let profile = self
            .args
            .profile
            .then(|| Profile::new(&mut events, n_workers, &clock));
        let mut generator = Generator::new(engine, workers, self.stop, &mut sampler);
        generator.profile = profile;
        generator.timings.load = self.start.elapsed();
        self.args.prompt_cache.restore(&mut generator)?;
        let ended = self.write_text(&mut generator)?;
        footer::print(&timed(generator.timings, self.start), &setup);
        if let Some(profile) = &generator.profile {
            note(format_args!("\n{profile}"));
        }
        Ok(match ended {
            Ended::Interrupted => Ending::Interrupted,
            _ => Ending::Done,
        })
    }

    /// Prefill and decode until something ends the text.
    fn write_text(&self, generator: &mut Generator<'_, '_>) -> anyhow::Result<Ended> {
        let mut output = TextOutput::new();
        let as_json = self.args.sampling.logprobs.is_some();
        let mut text = String::new();
        if !self.args.no_display_prompt && !as_json && !self.args.json {
            output.write(self.text)?;
        }
        let until = Until {
            n_predict: usize::try_from(self.args.n_predict).ok(),
            ignore_eos: self.args.sampling.ignore_eos,
            shift: self.shift(),
        };
        let cache = &self.args.prompt_cache;
        let wants = match until.n_predict {
            Some(0) => Wants::Nothing,
            _ => Wants::Logits,
        };
        let next = generator.prompt(self.tokens, wants)?;
        if until.shift.is_some() && !cache.keeps_all() {
            // Later the prompt may not be whole.
            cache.save(generator, self.tokens.len())?;
        }
        let mut stops = self.args.sampling.stops(!self.args.no_escape)?;
        let mut written = Ok(());
        let ended = generator.write(next, &until, self.opened.tokenizer, |token| {
            let mut shown = String::new();
            let stopped = stops.push(token.piece, |text| shown.push_str(text));
            if as_json {
                shown = logprobs::line(token, self.opened.tokenizer).unwrap_or_default();
            }
            if self.args.json {
                text.push_str(&shown);
            } else {
                written = output.write(&shown);
            }
            written.is_ok() && !stopped && !output.is_closed()
        })?;
        written?;
        let mut rest = String::new();
        stops.finish(|text| rest.push_str(text));
        if self.args.json {
            text.push_str(&rest);
            output.write(&self.object(&text, ended, generator))?;
        } else if !as_json {
            output.write(&rest)?;
        }
        output.end_line()?;
        if until.shift.is_none() || cache.keeps_all() {
            cache.save(generator, self.tokens.len())?;
        }
        if ended == Ended::ContextFull {
            note(format_args!(
                "the context of {} tokens is full (-c)",
                self.limits.n_ctx
            ));
        }
        Ok(ended)
    }

    /// The text and what it took, by llama.cpp's names.
    fn object(&self, text: &str, ended: Ended, generator: &Generator<'_, '_>) -> String {
        let timings = &generator.timings;
        let object = json!({
            "content": text,
            "prompt": self.text,
            "model": self.opened.file.name(),
            "stop_type": ended.name(),
            "tokens_evaluated": self.tokens.len(),
            "timings": {
                "cache_n": timings.reused,
                "prompt_n": timings.prompt.count,
                "prompt_ms": timings.prompt.ms(),
                "prompt_per_second": timings.prompt.per_second(),
                "predicted_n": timings.eval.count,
                "predicted_ms": timings.eval.ms(),
                "predicted_per_second": timings.eval.per_second(),
            },
        });
        format!("{object}\n")
    }

    /// Tokens that stay when the context is full; `None` ends the text then.
    fn shift(&self) -> Option<usize> {
        let n_prompt = self.tokens.len();
        let keep = usize::try_from(self.args.keep).unwrap_or(n_prompt);
        let bos = self.opened.tokenizer.bos();
        // As in llama.cpp, the token that begins texts stays always.
        let keep = keep + usize::from(self.tokens.first() == bos.as_ref());
        let shifts = self.args.context_shift && !self.args.no_context_shift;
        shifts.then_some(keep.min(n_prompt))
    }
}

/// How large the engine is made.
///
/// # Errors
/// The prompt does not fit into the context, or the KV types differ.
fn limits(
    args: &RunArgs,
    config: &ModelConfig,
    tokens: &[u32],
    cores: &Cores,
) -> anyhow::Result<Limits> {
    let n_ctx = args.engine.n_ctx(config);
    let n_workers = args.engine.n_workers(cores.default_workers());
    if tokens.len() > n_ctx {
        bail!(
            "the prompt has {} tokens, more than the context of {n_ctx}: \
             give a shorter one or a larger -c",
            tokens.len()
        );
    }
    let (type_k, type_v) = args.engine.cache_types();
    Ok(Limits {
        n_batch: args.engine.n_batch().min(tokens.len()),
        type_k,
        type_v,
        ..Limits::single(n_ctx, n_workers)
    })
}

/// A line about what will be run.
fn describe(opened: &Opened<'_>, args: &RunArgs, limits: &Limits, settings: &SamplingSettings) {
    let gguf = opened.gguf;
    let n_params: u64 = gguf
        .tensors()
        .map(|tensor| tensor.dims.iter().product::<u64>())
        .sum();
    let size: u64 = gguf.tensors().map(|tensor| tensor.len_bytes).sum();
    let name = optional(gguf.bytes("general.name")).ok().flatten();
    let name = name.map_or_else(String::new, |name| super::format::shown(name, 60) + ", ");
    note(format_args!(
        "model {}: {name}{} parameters, {}; context {} ({} KV), batch {}; seed {}",
        opened.file.name(),
        Count(n_params),
        Bytes(size),
        limits.n_ctx,
        CacheTypes(limits.type_k, limits.type_v),
        args.engine.n_batch(),
        settings.config.seed
    ));
    if limits.n_ctx > opened.config.n_ctx_train {
        let trained = opened.config.n_ctx_train;
        note(format_args!(
            "warning: the model was trained on contexts of {trained} tokens only"
        ));
    }
}

fn timed(timings: Timings, start: Instant) -> Timings {
    Timings {
        total: start.elapsed(),
        ..timings
    }
}

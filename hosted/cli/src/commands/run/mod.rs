//! `sluice run`: continue a prompt, or several.

mod args;
mod logprobs;
mod prompts;
mod together;

pub(crate) use args::RunArgs;

use crate::flags::open::LocalModel;
use crate::flags::{experts, prompt, speculation};
use crate::outcome::{Ending, UsageError};
use crate::ui::footer::{self, Setup};
use crate::ui::format::{Bytes, CacheTypes, Count};
use crate::ui::output::{TextOutput, note};
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use sluice::core::engine::Wants;
use sluice::core::gguf::optional;
use sluice::generate::{EndReason, GeneratorTimings, Until};
use sluice::host::profile::Profile;
use sluice::host::{interrupt, isa};
use sluice::{Generator, Limits, Model, Session};
use sluice_text::sampling::SamplingSettings;
use std::time::Instant;

pub(super) fn run(args: &RunArgs) -> anyhow::Result<Ending> {
    if let Some(path) = &args.prompts.prompts {
        return together::run(args, path);
    }
    if args.prompts.parallel > 0 {
        let n = args.prompts.parallel;
        note(format_args!(
            "note: --parallel {n} has no effect without --prompts: there is only one text"
        ));
    }
    let start = Instant::now();
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let table =
        isa::kernel_table(args.engine.isa()).map_err(|error| UsageError(error.to_string()))?;
    let settings = args.sampling.settings(!args.no_escape)?;
    args.speculation.check()?;
    args.adapters.check()?;
    args.prompt_cache.check()?;
    args.sampling.stops(!args.no_escape)?;
    let text = args::text(args)?;
    let path = args.model.path()?;
    let opened = LocalModel::open(path.as_deref(), &args.engine)?;
    opened.check_decoder()?;
    let tokens = prompt::encode(&opened, &text)?;
    let (limits, n_workers) = limits(args, &opened, &tokens)?;
    let limits = Limits {
        table: Some(table),
        ..limits
    };
    let sampler = args
        .sampling
        .sampler(&settings, opened.tokenizer(), limits.n_ctx)?;
    describe(&opened, args, &limits, &settings);
    let Some((model, team)) = opened.load(n_workers, stop)? else {
        return Ok(Ending::Interrupted);
    };
    let setup = Setup::pinned(&team, table.name());
    let mut session = args.adapters.session(&args.engine, &model, &team, limits)?;
    session.set_stop(stop);
    if !args
        .speculation
        .begin(&mut session, args.engine.draft_file(), &limits, stop)?
    {
        return Ok(Ending::Interrupted);
    }
    if args.profile {
        session.set_profile(Some(Profile::new(model.config().n_layer(), n_workers)));
    }
    let mut generator = Generator::new(session, Box::new(sampler))?;
    generator.timings.load = start.elapsed();
    args.prompt_cache.restore(&mut generator)?;
    let job = Job {
        args,
        model: &model,
        text: &text,
        tokens: &tokens,
    };
    let ended = job.write_text(&mut generator)?;
    footer::print(&timed(generator.timings, start), &setup);
    footer::print_neurons(generator.session().neurons());
    experts::say_end(&model, &setup, &generator.timings);
    if let Some(profile) = generator.session().profile() {
        note(format_args!("\n{profile}"));
    }
    speculation::say(generator.session_mut(), args.profile);
    Ok(match ended {
        EndReason::Interrupted => Ending::Interrupted,
        _ => Ending::Done,
    })
}

/// A prompt and the model that continues it.
struct Job<'j> {
    args: &'j RunArgs,
    model: &'j Model,
    text: &'j str,
    tokens: &'j [u32],
}

impl Job<'_> {
    /// Prefills and decodes until the text ends.
    fn write_text(&self, generator: &mut Generator) -> anyhow::Result<EndReason> {
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
            // Later the context may no longer contain the whole prompt.
            cache.save(generator, self.n_cached())?;
        }
        let mut stops = self.args.sampling.stops(!self.args.no_escape)?;
        let mut written = Ok(());
        let ended = generator.write(next, &until, |token| {
            let mut shown = String::new();
            let stopped = stops.push(token.piece, |text| shown.push_str(text));
            if as_json {
                shown = logprobs::line(token, self.model.tokenizer()).unwrap_or_default();
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
            cache.save(generator, self.n_cached())?;
        }
        if ended == EndReason::ContextFull {
            note(format_args!(
                "the context of {} tokens is full (raise -c)",
                generator.n_ctx()
            ));
        }
        Ok(ended)
    }

    /// Number of prompt tokens to save in a prompt cache. To reuse the same prompt, the logits of its last
    /// token have to be computed again, and a recurrent state cannot be rewound to the token before.
    fn n_cached(&self) -> usize {
        let is_recurrent = self.model.config().is_recurrent();
        self.tokens.len().saturating_sub(usize::from(is_recurrent))
    }

    /// The text and its timings, with llama.cpp's names.
    fn object(&self, text: &str, ended: EndReason, generator: &Generator) -> String {
        let timings = &generator.timings;
        let object = json!({
            "content": text,
            "prompt": self.text,
            "model": self.model.name(),
            "stop_type": ended.name(),
            "tokens_evaluated": self.tokens.len(),
            "timings": {
                "cache_n": timings.reused,
                "prompt_n": timings.prompt.count,
                "prompt_ms": timings.prompt.ms(),
                "prompt_per_second": timings.prompt.per_second(),
                // The first token comes from the prompt, so the time covers one fewer.
                "predicted_n": self.n_predicted(generator),
                "predicted_ms": timings.eval.ms(),
                "predicted_per_second": timings.eval.per_second(),
            },
            "experts": experts::object(self.model),
            "neurons": neurons(generator.session()),
        });
        format!("{object}\n")
    }

    /// Number of generated tokens.
    fn n_predicted(&self, generator: &Generator) -> usize {
        let n_entered = generator.tokens().len() + generator.n_shifted();
        let n_entered = n_entered.saturating_sub(self.tokens.len());
        n_entered + usize::from(generator.pending().is_some())
    }

    /// Number of tokens kept when the context is full; `None` ends the text then.
    fn shift(&self) -> Option<usize> {
        let n_prompt = self.tokens.len();
        let keep = usize::try_from(self.args.keep).unwrap_or(n_prompt);
        let bos = self.model.tokenizer().bos();
        // As in llama.cpp, the beginning-of-sequence token is always kept.
        let keep = keep + usize::from(self.tokens.first() == bos.as_ref());
        let shifts = self.args.context_shift && !self.args.no_context_shift;
        shifts.then_some(keep.min(n_prompt))
    }
}

/// Tokens of a step: not more than the prompts', unless a text may have to be read again.
fn n_batch(args: &RunArgs, opened: &LocalModel<'_>, n_prompt: usize) -> usize {
    let is_read_again = opened.gguf().tensor("rope_factors_long.weight").is_some();
    match is_read_again {
        true => args.engine.n_batch(),
        false => args.engine.n_batch().min(n_prompt),
    }
}

/// The size of the session, and its threads.
///
/// # Errors
/// The prompt does not fit into the context, or the KV types differ.
fn limits(
    args: &RunArgs,
    opened: &LocalModel<'_>,
    tokens: &[u32],
) -> anyhow::Result<(Limits, usize)> {
    let n_ctx = args.engine.n_ctx(opened.config());
    let n_workers = args.engine.n_workers(opened.cores.default_workers());
    if tokens.len() > n_ctx {
        bail!(
            "the prompt has {} tokens, more than the context of {n_ctx}: shorten it or raise -c",
            tokens.len()
        );
    }
    let asked = args.context_shift && !args.no_context_shift;
    if let Some(reason) = opened.config().why_not_remove().filter(|_| asked) {
        bail!(
            "--context-shift: {} {reason}, so older tokens cannot be removed from its state: raise the context size \
             (-c)",
            opened.name()
        );
    }
    let limits = Limits {
        n_ctx,
        n_batch: n_batch(args, opened, tokens.len()),
        types: Some(args.engine.cache_types()),
        kv_rotation: !args.engine.no_kv_rotation,
        n_checkpoints: 1,
        ..Limits::default()
    };
    Ok((args.speculation.limits(opened, limits)?, n_workers))
}

/// A line about the run.
fn describe(opened: &LocalModel<'_>, args: &RunArgs, limits: &Limits, settings: &SamplingSettings) {
    let gguf = opened.gguf();
    let n_params: u64 = gguf
        .tensors()
        .map(|tensor| tensor.dims.iter().product::<u64>())
        .sum();
    let size: u64 = gguf.tensors().map(|tensor| tensor.len_bytes).sum();
    let name = optional(gguf.bytes("general.name")).ok().flatten();
    let name = name.map_or_else(String::new, |name| {
        crate::ui::format::shown(name, 60) + ", "
    });
    let (type_k, type_v) = args.engine.cache_types();
    note(format_args!(
        "model {}: {name}{} parameters, {}; context {} ({} KV), batch {}; seed {}",
        opened.name(),
        Count(n_params),
        Bytes(size),
        limits.n_ctx,
        CacheTypes(type_k, type_v),
        args.engine.n_batch(),
        settings.config.seed
    ));
    args.engine.note_trained(opened.config());
}

fn timed(timings: GeneratorTimings, start: Instant) -> GeneratorTimings {
    GeneratorTimings {
        total: start.elapsed(),
        ..timings
    }
}

/// The neurons that were left out or unread, where any could be.
fn neurons(session: &Session) -> Option<Value> {
    let neurons = session.neurons();
    let mode = session.sparse().to_string();
    (neurons.n > 0).then(|| json!({"mode": mode, "n": neurons.n, "n_skipped": neurons.n_skipped}))
}

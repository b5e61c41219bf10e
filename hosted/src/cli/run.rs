//! `sluice run`: continue a prompt.

use super::args::RunArgs;
use super::footer::{self, Setup, Timings};
use super::format::{Bytes, Count};
use super::generate::{Generator, Next};
use super::output::{TextOutput, note};
use super::profile::{Profile, events_per_step};
use super::progress::LoadBar;
use super::{Ending, UsageError, embedded, prompt};
use anyhow::{Context as _, bail};
use core::hash::{BuildHasher as _, Hasher as _};
use sluice::core::engine::{Engine, EnginePlan, Limits, Wants};
use sluice::core::gguf::{Gguf, optional};
use sluice::core::kernels::KernelTable;
use sluice::core::model::{Model, ModelConfig};
use sluice::core::sampler::{Candidate, LogitBias, SampleError, SamplerChain, SamplerConfig};
use sluice::core::team::StopFlag;
use sluice::core::tokenizer::{Detokenizer, Tokenizer};
use sluice::core::trace::Event;
use sluice::file::ModelFile;
use sluice::load::{LoadError, ModelMemory, load};
use sluice::memory::AlignedMemory;
use sluice::topology::{Cores, pin_current_thread};
use sluice::workers::Workers;
use sluice::{interrupt, isa};
use std::time::Instant;

pub(super) fn run(args: &RunArgs) -> anyhow::Result<Ending> {
    let start = Instant::now();
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    args.engine.kv_type()?;
    let table =
        isa::kernel_table(args.engine.isa()).map_err(|error| UsageError(error.to_string()))?;
    let sampler = sampler(args)?;
    let text = prompt::text(args)?;

    let file = match &args.model {
        Some(path) => ModelFile::open(path, args.engine.load_mode())?,
        None => embedded::open()?,
    };
    let gguf = file.parse()?;
    let of_file = || file.name().to_owned();
    check_whole(&gguf).with_context(of_file)?;
    let config = ModelConfig::from_gguf(&gguf).with_context(of_file)?;
    let mut words = prompt::tokenizer_memory(&gguf).with_context(of_file)?;
    let tokenizer = Tokenizer::new(&gguf, &mut words).with_context(of_file)?;
    check_vocabulary(&config, &tokenizer).with_context(of_file)?;
    let tokens = prompt::encode(&tokenizer, &text)?;

    let cores = Cores::detect();
    let limits = limits(args, &config, &tokens, &cores)?;
    let mut workers = Workers::new(limits.n_workers, &cores).context("cannot start threads")?;
    let setup = Setup {
        n_workers: workers.count(),
        n_pinned: pin(&workers),
        isa: table.name(),
    };
    describe(&file, &gguf, args, &limits, &sampler);
    if limits.n_ctx > config.n_ctx_train {
        let trained = config.n_ctx_train;
        note(format_args!(
            "warning: the model was trained on contexts of {trained} tokens only"
        ));
    }

    let mut memory = ModelMemory::for_file(&file, &gguf, &config, limits.n_workers)?;
    let mut bar = LoadBar::new();
    let progress = |progress| bar.update(progress);
    let loaded = load(
        &file,
        &gguf,
        &config,
        &mut memory,
        &mut workers,
        stop,
        progress,
    );
    drop(bar);
    let model = match loaded {
        Err(LoadError::Stopped) => {
            footer::print(&timed(Timings::default(), start), &setup);
            return Ok(Ending::Interrupted);
        }
        result => result?,
    };
    let job = Job {
        args,
        tokenizer: &tokenizer,
        text: &text,
        tokens: &tokens,
        table,
        limits,
        stop,
        start,
    };
    job.generate(model, &mut workers, sampler, &setup)
}

/// Everything that is decided before the first step.
struct Job<'j> {
    args: &'j RunArgs,
    tokenizer: &'j Tokenizer<'j>,
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
        sampler: SamplerChain,
        setup: &Setup,
    ) -> anyhow::Result<Ending> {
        let config = *model.config();
        let (limits, n_workers) = (&self.limits, self.limits.n_workers);
        let plan = EnginePlan::new(&config, limits)?;
        let mut kv = AlignedMemory::zeroed(plan.kv_bytes)
            .with_context(|| format!("no memory for a context of {} tokens (-c)", limits.n_ctx))?;
        let mut scratch = AlignedMemory::zeroed(plan.scratch_bytes).context("no memory")?;
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
        let mut generator = Generator {
            engine: Engine::new(model, self.table, limits, &mut kv, &mut scratch)?,
            workers,
            stop: self.stop,
            sampler,
            forbidden: self.forbidden(),
            candidates: vec![Candidate::default(); config.n_vocab],
            profile,
            timings: Timings::default(),
            history: Vec::with_capacity(limits.n_ctx.min(1 << 16)),
        };
        generator.timings.load = self.start.elapsed();
        let ending = self.write_text(&mut generator)?;
        footer::print(&timed(generator.timings, self.start), setup);
        if let Some(profile) = &generator.profile {
            profile.print();
        }
        Ok(ending)
    }

    /// Prefill and decode until something ends the text.
    fn write_text(&self, generator: &mut Generator<'_, '_>) -> anyhow::Result<Ending> {
        let mut output = TextOutput::new();
        if !self.args.no_display_prompt {
            output.write(self.text)?;
        }
        let mut left = usize::try_from(self.args.n_predict).unwrap_or(usize::MAX);
        let wants = if left > 0 {
            Wants::Logits
        } else {
            Wants::Nothing
        };
        let mut detokenizer = Detokenizer::continuing();
        let mut next = generator.prefill(self.tokens, self.limits.n_batch, wants)?;
        let mut full = false;
        while let Next::Token(token) = next {
            if self.tokenizer.is_end_of_generation(token) && !self.args.ignore_eos {
                break;
            }
            let mut piece = String::new();
            detokenizer.push(self.tokenizer, token, |part| piece.push_str(part))?;
            output.write(&piece)?;
            left -= 1;
            full = generator.history.len() == self.limits.n_ctx;
            if left == 0 || full || output.is_closed() {
                break;
            }
            next = generator.decode(token)?;
        }
        let mut rest = String::new();
        detokenizer.finish(|part| rest.push_str(part));
        output.write(&rest)?;
        output.end_line()?;
        if full && left > 0 {
            note(format_args!(
                "the context of {} tokens is full (-c)",
                self.limits.n_ctx
            ));
        }
        Ok(match next {
            Next::Interrupted => Ending::Interrupted,
            _ => Ending::Done,
        })
    }

    /// With `--ignore-eos`, the tokens that would end the text.
    fn forbidden(&self) -> Vec<LogitBias> {
        let ids = 0..self.tokenizer.n_vocab();
        let ends =
            ids.filter(|&id| self.args.ignore_eos && self.tokenizer.is_end_of_generation(id));
        let bias = f32::NEG_INFINITY;
        ends.map(|id| LogitBias { id, bias }).collect()
    }
}

/// The sampling flags; the seed is drawn where none is given.
fn sampler(args: &RunArgs) -> Result<SamplerChain, UsageError> {
    let flags = &args.sampling;
    // Every RandomState has keys of its own, from the kernel's random numbers.
    let drawn = || std::hash::RandomState::new().build_hasher().finish() >> 32;
    let config = SamplerConfig {
        seed: u64::try_from(args.seed).unwrap_or_else(|_| drawn()),
        temperature: flags.temp,
        top_k: u32::try_from(flags.top_k).unwrap_or(0),
        top_p: flags.top_p,
        min_p: flags.min_p,
        repeat_last_n: u32::try_from(flags.repeat_last_n).unwrap_or(u32::MAX),
        repeat_penalty: flags.repeat_penalty,
        frequency_penalty: flags.frequency_penalty,
        presence_penalty: flags.presence_penalty,
    };
    SamplerChain::new(config).map_err(|error| match error {
        SampleError::Setting { name } => {
            let flag = if name == "temperature" { "temp" } else { name }.replace('_', "-");
            UsageError(format!("--{flag} is out of range"))
        }
        error => UsageError(error.to_string()),
    })
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
    Ok(Limits {
        n_batch: args.engine.n_batch().min(tokens.len()),
        kv_type: args.engine.kv_type()?,
        ..Limits::single(n_ctx, n_workers)
    })
}

/// A part of a split model lacks tensors that are in the other files.
fn check_whole(gguf: &Gguf<'_>) -> anyhow::Result<()> {
    let n_parts = optional(gguf.u32("split.count"))?.unwrap_or(1);
    if n_parts > 1 {
        bail!("it is one of {n_parts} files of a split model, which cannot be read yet");
    }
    Ok(())
}

/// Every token that can be read or chosen must have an embedding and a piece.
fn check_vocabulary(config: &ModelConfig, tokenizer: &Tokenizer<'_>) -> anyhow::Result<()> {
    let (rows, tokens) = (config.n_vocab, tokenizer.n_vocab() as usize);
    if rows != tokens {
        bail!("the vocabulary has {tokens} tokens, the embedding {rows} rows");
    }
    Ok(())
}

/// Pins this thread, which is rank 0, too. Says which ranks could not be; returns how many are.
fn pin(workers: &Workers) -> usize {
    for (rank, error) in workers.refusals() {
        note(format_args!(
            "warning: thread {rank} is not pinned to a core: {error}"
        ));
    }
    let Some(cpu) = workers.first_cpu() else {
        return workers.pinned_count();
    };
    match pin_current_thread(cpu) {
        Ok(()) => workers.pinned_count() + 1,
        Err(error) => {
            note(format_args!(
                "warning: thread 0 is not pinned to a core: {error}"
            ));
            workers.pinned_count()
        }
    }
}

/// A line about what will be run.
fn describe(
    file: &ModelFile,
    gguf: &Gguf<'_>,
    args: &RunArgs,
    limits: &Limits,
    sampler: &SamplerChain,
) {
    let n_params: u64 = gguf
        .tensors()
        .map(|tensor| tensor.dims.iter().product::<u64>())
        .sum();
    let size: u64 = gguf.tensors().map(|tensor| tensor.len_bytes).sum();
    let name = optional(gguf.bytes("general.name")).ok().flatten();
    let name = name.map_or_else(String::new, |name| super::format::shown(name, 60) + ", ");
    note(format_args!(
        "model {}: {name}{} parameters, {}; context {} ({} KV), batch {}; seed {}",
        file.name(),
        Count(n_params),
        Bytes(size),
        limits.n_ctx,
        limits.kv_type,
        args.engine.n_batch(),
        sampler.config().seed
    ));
}

fn timed(timings: Timings, start: Instant) -> Timings {
    Timings {
        total: start.elapsed(),
        ..timings
    }
}

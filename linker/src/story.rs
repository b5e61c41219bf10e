//! A model in memory, run to text on the caller's cores.
//!
//! The caller brings everything: the model's bytes, free memory, cores, a clock and a console.
//! What comes out is what `sluice run` prints for the same model, prompt, settings and seed,
//! and a hash over the bits of all logits that tokens were drawn from.

use core::fmt;
use heapless::Vec;
use sluice_core::engine::{BatchEntry, Engine, EngineError, EnginePlan, Limits};
use sluice_core::engine::{StepOptions, Wants};
use sluice_core::gguf::source::SliceSource;
use sluice_core::gguf::{Gguf, GgufError};
use sluice_core::hash::Hash64;
use sluice_core::kernels::bytes::Pod;
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::memory::{ALIGN, Arena};
use sluice_core::model::{Loader, Model, ModelConfig, ModelError, ModelPlan};
use sluice_core::sampler::{Candidate, SampleError, SamplerChain, SamplerConfig};
use sluice_core::slc::{Slc, SlcError};
use sluice_core::sort::heap_sort_by_key;
use sluice_core::team::{StopFlag, WORKERS_MAX, WaitPolicy};
use sluice_core::tokenizer::{self, Detokenizer, EncodeOptions, Tokenizer, TokenizerError};
use spin::Once;

use crate::options::Options;

/// What the story needs of the machine.
pub trait Machine {
    /// Cores that [`Self::spread`] can use; at least 1.
    fn n_cores(&self) -> usize;

    /// Calls `job` with every rank below `n_ranks` (at most [`Self::n_cores`]), each on a core
    /// of its own, all at the same time, and waits for them. Rank 0 is the caller's core.
    fn spread(&self, n_ranks: usize, job: &(dyn Fn(usize) + Sync));

    /// How ranks wait for each other.
    fn wait(&self) -> &dyn WaitPolicy;

    /// Time in ticks.
    fn ticks(&self) -> u64;

    /// Ticks a second.
    fn ticks_per_second(&self) -> u64;

    /// Writes text to the console.
    fn print(&self, text: fmt::Arguments<'_>);

    /// Reads a line from the console into `line`, without its end; returns its length in bytes,
    /// or `None` at the end of input.
    fn read_line(&self, line: &mut [u8]) -> Option<usize>;
}

/// Why the story ends early.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoryError {
    /// The module is not a GGUF file, or a broken one.
    Gguf(GgufError),
    /// The module is a broken `.slc` file.
    Slc(SlcError),
    /// The model cannot be loaded.
    Model(ModelError),
    /// The vocabulary cannot be used.
    Tokenizer(TokenizerError),
    /// The engine refuses.
    Engine(EngineError),
    /// A sampler setting, or logits that cannot be drawn from.
    Sample(SampleError),
    /// There is not enough memory.
    Memory {
        /// What for.
        what: &'static str,
        /// Bytes that it takes.
        needed_bytes: usize,
        /// Bytes that are left.
        free_bytes: usize,
    },
    /// A size is beyond the address space.
    TooLarge,
    /// The CPU has no AVX2, FMA and F16C.
    NoVectors,
    /// No such kernel table, or not on this CPU, or the scalar one.
    Isa,
    /// More threads than cores.
    Threads {
        /// Number of cores.
        n_cores: usize,
    },
    /// The prompt has more tokens than the context.
    PromptTooLong {
        /// Tokens of the prompt.
        n_tokens: usize,
        /// Tokens of the context.
        n_ctx: usize,
    },
}

impl fmt::Display for StoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gguf(error) => {
                write!(f, "the model is not a GGUF file that can be read: {error}")
            }
            Self::Slc(error) => write!(f, "the model is a broken .slc file: {error}"),
            Self::Model(error) => write!(f, "cannot load the model: {error}"),
            Self::Tokenizer(error) => write!(f, "cannot use the model's vocabulary: {error}"),
            Self::Engine(error) => write!(f, "cannot run the model: {error}"),
            Self::Sample(error) => write!(f, "cannot choose a token: {error}"),
            Self::Memory {
                what,
                needed_bytes,
                free_bytes,
            } => write!(
                f,
                "not enough memory: {what} takes {} KiB, {} KiB are free",
                needed_bytes.div_ceil(1024),
                free_bytes / 1024
            ),
            Self::TooLarge => f.write_str("a size is beyond the address space"),
            Self::NoVectors => {
                f.write_str("the CPU lacks AVX2, FMA or F16C, and nothing else is in the image")
            }
            Self::Isa => f.write_str("isa= names no kernel table of the image that this CPU runs"),
            Self::Threads { n_cores } => {
                write!(
                    f,
                    "threads= asks for more than the {n_cores} cores there are"
                )
            }
            Self::PromptTooLong { n_tokens, n_ctx } => write!(
                f,
                "the prompt has {n_tokens} tokens, more than the context of {n_ctx} (ctx=)"
            ),
        }
    }
}

impl core::error::Error for StoryError {}

macro_rules! from {
    ($($error:ty => $variant:ident),*) => {$(
        impl From<$error> for StoryError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        }
    )*};
}
from!(GgufError => Gguf, SlcError => Slc, ModelError => Model, TokenizerError => Tokenizer,
    EngineError => Engine, SampleError => Sample);

/// Longest line that is read from the console, in bytes.
const LINE_BYTES: usize = 4096;

/// Runs the model in `file` (GGUF, or `.slc`, which must be aligned to 64 bytes and is used
/// in place) as `options` say. `memory` is aligned to 64 bytes; `start_ticks` is when the
/// loader handed over.
///
/// # Errors
/// [`StoryError`]; the text so far has been printed.
pub fn tell(
    machine: &dyn Machine,
    file: &[u8],
    memory: &mut [u8],
    options: &Options<'_>,
    start_ticks: u64,
) -> Result<(), StoryError> {
    let mut room = Room::new(memory)?;
    let slc = if Slc::is_slc(file) {
        Some(Slc::parse(file, file.len() as u64)?)
    } else {
        None
    };
    let gguf = match &slc {
        Some(slc) => *slc.gguf(),
        None => Gguf::parse(file, file.len() as u64)?,
    };
    let config = ModelConfig::from_gguf(&gguf)?;
    let table = table(options)?;
    let n_workers = n_workers(machine, options)?;
    let words = tokenizer::plan(&gguf)?.words;
    let tokenizer = Tokenizer::new(&gguf, room.slice("the vocabulary", words)?)?;
    let model = load(
        machine,
        file,
        slc.as_ref(),
        &gguf,
        &config,
        &mut room,
        n_workers,
    )?;
    machine.print(format_args!(
        "model {} layers of {}, {} KiB of weights; {} kernels, {n_workers} threads\n",
        config.n_layer(),
        config.n_embd,
        model.weight_bytes() / 1024,
        table.name(),
    ));
    let line = room.bytes("a line", if options.chat { LINE_BYTES } else { 0 })?;
    let mut encoder = Encoder::new(&tokenizer, options.prompt.len().max(line.len()), &mut room)?;
    let mut prompt = Some(options.prompt);
    if options.chat {
        prompt = ask(machine, line);
    }
    let n_prompt = encoder.encode(prompt.unwrap_or(""), true)?.len();
    let n_ctx = match options.n_ctx {
        0 if options.chat => config.n_ctx_train,
        0 => n_prompt
            .saturating_add(options.n_predict)
            .min(config.n_ctx_train)
            .max(n_prompt),
        n => n,
    };
    let mut teller = Teller::new(
        machine,
        model,
        table,
        options,
        (n_ctx, n_workers),
        &mut room,
    )?;
    teller.timings.loaded = machine.ticks().wrapping_sub(start_ticks);
    let mut is_first = true;
    while let Some(words) = prompt {
        if !options.chat && !options.bench {
            machine.print(format_args!("{words}"));
        }
        let ids = encoder.encode(words, is_first)?;
        teller.tell(&tokenizer, ids, options.n_predict, start_ticks)?;
        machine.print(format_args!("\n"));
        is_first = false;
        prompt = options.chat.then(|| ask(machine, line)).flatten();
    }
    teller.print_footer();
    Ok(())
}

fn table(options: &Options<'_>) -> Result<&'static KernelTable, StoryError> {
    let tables = || KernelTable::vectorized(CpuFeatures::detect());
    let best = tables().next_back().ok_or(StoryError::NoVectors)?;
    if options.isa.is_empty() {
        return Ok(best);
    }
    tables()
        .find(|table| table.name() == options.isa)
        .ok_or(StoryError::Isa)
}

fn n_workers(machine: &dyn Machine, options: &Options<'_>) -> Result<usize, StoryError> {
    let n_cores = machine.n_cores().min(WORKERS_MAX);
    match options.n_threads {
        0 => Ok(n_cores),
        n if n <= n_cores => Ok(n),
        _ => Err(StoryError::Threads { n_cores }),
    }
}

/// The weights: in place, or converted on all cores.
fn load<'m>(
    machine: &dyn Machine,
    file: &'m [u8],
    slc: Option<&Slc<'_>>,
    gguf: &Gguf<'_>,
    config: &ModelConfig,
    room: &mut Room<'m>,
    n_workers: usize,
) -> Result<Model<'m>, StoryError> {
    if let Some(slc) = slc {
        let plan = ModelPlan::in_place(slc, config)?;
        let tables = room.bytes("the model's tables", plan.table_bytes)?;
        let start = usize::try_from(slc.header().payload_offset());
        let start = start.map_err(|_| StoryError::TooLarge)?;
        let payloads = file.get(start..).unwrap_or(&[]);
        return Ok(Model::in_place(slc, config, payloads, tables)?);
    }
    let plan = ModelPlan::new(gguf, config)?;
    let weights = room.bytes("the weights", plan.weight_bytes)?;
    let tables = room.bytes("the model's tables", plan.table_bytes)?;
    let source = SliceSource(file);
    let loader = Loader::new(gguf, config, weights, tables)?;
    let failure = Once::new();
    machine.spread(n_workers, &|_| {
        if let Err(error) = loader.work(&source, &mut [], || true) {
            failure.call_once(|| error);
        }
    });
    match failure.try_into_inner() {
        Some(error) => Err(error.into()),
        None => Ok(loader.finish(&source)?),
    }
}

/// The next line that is typed, if it has text.
fn ask<'l>(machine: &dyn Machine, line: &'l mut [u8]) -> Option<&'l str> {
    machine.print(format_args!("> "));
    let len = machine.read_line(line)?;
    let line = core::str::from_utf8(&line[..len]);
    line.ok().filter(|line| !line.is_empty())
}

/// Prompts to tokens, in room for the longest.
struct Encoder<'t, 'm> {
    tokenizer: &'t Tokenizer<'m>,
    workspace: &'m mut [u32],
    ids: &'m mut [u32],
}

impl<'t, 'm> Encoder<'t, 'm> {
    fn new(
        tokenizer: &'t Tokenizer<'m>,
        text_bytes: usize,
        room: &mut Room<'m>,
    ) -> Result<Self, StoryError> {
        let words = tokenizer.encode_workspace_words(text_bytes);
        Ok(Self {
            tokenizer,
            workspace: room.slice("the prompt", words)?,
            ids: room.slice("the prompt", tokenizer.max_tokens(text_bytes))?,
        })
    }

    fn encode(&mut self, text: &str, add_special: bool) -> Result<&[u32], StoryError> {
        let options = EncodeOptions {
            add_special,
            parse_special: true,
        };
        let (workspace, ids) = (&mut *self.workspace, &mut *self.ids);
        Ok(self.tokenizer.encode(text, options, workspace, ids)?)
    }
}

/// Free memory, handed out piece by piece.
struct Room<'m> {
    arena: Arena<'m>,
    free_bytes: usize,
}

impl<'m> Room<'m> {
    fn new(memory: &'m mut [u8]) -> Result<Self, StoryError> {
        let free_bytes = memory.len();
        let arena = Arena::new(memory).map_err(|_| StoryError::TooLarge)?;
        Ok(Self { arena, free_bytes })
    }

    /// `len` bytes, not initialised.
    fn bytes(&mut self, what: &'static str, len: usize) -> Result<&'m mut [u8], StoryError> {
        let free_bytes = self.free_bytes;
        self.free_bytes = free_bytes.saturating_sub(len.next_multiple_of(ALIGN));
        self.arena.bytes(len).map_err(|_| StoryError::Memory {
            what,
            needed_bytes: len,
            free_bytes,
        })
    }

    /// `len` numbers.
    fn slice<T: Pod + Default>(
        &mut self,
        what: &'static str,
        len: usize,
    ) -> Result<&'m mut [T], StoryError> {
        let free_bytes = self.free_bytes;
        let needed_bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(StoryError::TooLarge)?;
        self.free_bytes = free_bytes.saturating_sub(needed_bytes.next_multiple_of(ALIGN));
        self.arena
            .slice(len, T::default())
            .map_err(|_| StoryError::Memory {
                what,
                needed_bytes,
                free_bytes,
            })
    }
}

/// Ticks that things took.
#[derive(Clone, Copy, Debug, Default)]
struct Timings {
    /// From the loader's hand-over to the model being ready.
    loaded: u64,
    /// From the loader's hand-over to the first token.
    first_token: u64,
    prompt: Span,
    eval: Span,
    sampling: Span,
}

/// A number of things and the ticks they took together.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    count: usize,
    ticks: u64,
}

/// A model at work on one sequence.
struct Teller<'t, 'm> {
    machine: &'t dyn Machine,
    engine: Engine<'m>,
    sampler: SamplerChain<'m>,
    candidates: &'m mut [Candidate],
    /// Tokens entered so far, with room for a whole context.
    history: &'m mut [u32],
    n_history: usize,
    /// Whether only times are wanted: nothing is shown, and nothing ends it before `n`.
    bench: bool,
    /// Over all logits that were drawn from.
    hash: Hash64,
    timings: Timings,
    /// Ticks of every step of one token, as many as fit.
    latencies: &'m mut [u64],
}

impl<'t, 'm> Teller<'t, 'm> {
    fn new(
        machine: &'t dyn Machine,
        model: Model<'m>,
        table: &'static KernelTable,
        options: &Options<'_>,
        (n_ctx, n_workers): (usize, usize),
        room: &mut Room<'m>,
    ) -> Result<Self, StoryError> {
        let config = model.config().clone();
        let limits = Limits {
            n_batch: N_BATCH.min(n_ctx.max(1)),
            ..Limits::single(n_ctx.max(1), n_workers)
        };
        let n_times = if options.bench {
            options.n_predict
        } else {
            n_ctx
        };
        let plan = EnginePlan::new(&config, &limits)?;
        let kv = room.bytes("the context (ctx=)", plan.kv_bytes)?;
        let scratch = room.bytes("the engine", plan.scratch_bytes)?;
        Ok(Self {
            machine,
            engine: Engine::new(model, table, &limits, kv, scratch)?,
            sampler: SamplerChain::new(SamplerConfig {
                seed: options.seed,
                temperature: options.temperature,
                ..SamplerConfig::default()
            })?,
            candidates: room.slice("candidates", config.n_vocab)?,
            history: room.slice("the text's tokens", n_ctx)?,
            n_history: 0,
            bench: options.bench,
            hash: Hash64::new(),
            timings: Timings::default(),
            latencies: room.slice("times", n_times)?,
        })
    }

    /// Enters `prompt` and prints what follows, at most `n_predict` tokens.
    fn tell(
        &mut self,
        tokenizer: &Tokenizer<'_>,
        prompt: &[u32],
        n_predict: usize,
        start: u64,
    ) -> Result<(), StoryError> {
        let room = self.history.len() - self.n_history;
        if prompt.len() > room {
            return Err(StoryError::PromptTooLong {
                n_tokens: self.n_history + prompt.len(),
                n_ctx: self.history.len(),
            });
        }
        let mut next = None;
        let n_chunks = prompt.len().div_ceil(N_BATCH);
        for (i, chunk) in prompt.chunks(N_BATCH).enumerate() {
            let wants = i + 1 == n_chunks && n_predict > 0;
            let (token, ticks) = self.step(chunk, wants)?;
            next = token;
            self.timings.prompt.count += chunk.len();
            self.timings.prompt.ticks += ticks;
        }
        if self.timings.first_token == 0 && next.is_some() {
            self.timings.first_token = self.machine.ticks().wrapping_sub(start);
        }
        let mut detokenizer = Detokenizer::continuing();
        let mut left = n_predict;
        let (machine, is_shown) = (self.machine, !self.bench);
        let print = |text: &str| {
            if is_shown {
                machine.print(format_args!("{text}"));
            }
        };
        while let Some(token) = next {
            if tokenizer.is_end_of_generation(token) && !self.bench {
                break;
            }
            detokenizer.push(tokenizer, token, print)?;
            left -= 1;
            if left == 0 {
                break;
            }
            if self.n_history == self.history.len() {
                if !self.bench {
                    break;
                }
                self.engine
                    .state_mut()
                    .clear(0)
                    .map_err(EngineError::from)?;
                self.n_history = 0;
            }
            let (token, ticks) = self.step(&[token], true)?;
            next = token;
            if let Some(latency) = self.latencies.get_mut(self.timings.eval.count) {
                *latency = ticks;
            }
            self.timings.eval.count += 1;
            self.timings.eval.ticks += ticks;
        }
        detokenizer.finish(print);
        Ok(())
    }

    /// Runs one step over `ids` on all cores; draws the next token if that is wanted. Returns
    /// the step's ticks, without the draw's.
    fn step(&mut self, ids: &[u32], wants: bool) -> Result<(Option<u32>, u64), StoryError> {
        let first = u32::try_from(self.n_history).map_err(|_| StoryError::TooLarge)?;
        let entry = |(&id, position)| BatchEntry::new(id, 0, position, Wants::Nothing);
        let mut entries: Vec<_, N_BATCH> = ids.iter().zip(first..).map(entry).collect();
        if let Some(last) = entries.last_mut().filter(|_| wants) {
            last.wants = Wants::Logits;
        }
        self.history[self.n_history..][..ids.len()].copy_from_slice(ids);
        self.n_history += ids.len();
        let stop = StopFlag::new();
        let start = self.machine.ticks();
        let options = StepOptions::new(self.machine.wait(), &stop);
        let step = self.engine.step(&entries, options)?;
        self.machine.spread(step.n_workers(), &|rank| {
            if let Some(worker) = step.join(rank) {
                // Why it stopped is what `finish` says.
                let _stopped = worker.run();
            }
        });
        let outputs = step.finish()?;
        let ticks = self.machine.ticks().wrapping_sub(start);
        let Some(logits) = outputs.logits(ids.len() - 1) else {
            return Ok((None, ticks));
        };
        self.hash.write_f32(logits);
        let start = self.machine.ticks();
        let history = &self.history[..self.n_history];
        let position = u32::try_from(history.len()).map_err(|_| StoryError::TooLarge)?;
        let context = self.sampler.context(history, 0, position);
        let token = self
            .sampler
            .sample(logits, self.candidates, &mut [], &context)?;
        self.timings.sampling.count += 1;
        self.timings.sampling.ticks += self.machine.ticks().wrapping_sub(start);
        Ok((Some(token), ticks))
    }

    /// The lines after the text, in the words of `sluice run`.
    fn print_footer(&mut self) {
        let n_latencies = self.timings.eval.count.min(self.latencies.len());
        let latencies = &mut self.latencies[..n_latencies];
        heap_sort_by_key(latencies, |ticks| *ticks);
        // The smallest time that this many thousandths of the tokens stay within.
        let percentile = |thousandths: usize| {
            let rank = (latencies.len() * thousandths).div_ceil(1000);
            latencies.get(rank.saturating_sub(1)).copied().unwrap_or(0)
        };
        let percentiles = [500, 990, 999].map(percentile);
        let timings = &self.timings;
        let us = |ticks: u64| self.microseconds(ticks);
        let line = |name: &str, us: u64| {
            let (ms, fraction) = (us / 1000, us % 1000 / 10);
            self.machine
                .print(format_args!("{name:>19} = {ms:>7}.{fraction:02} ms\n"));
        };
        let span = |name: &str, span: Span| {
            let us = us(span.ticks);
            let (ms, fraction) = (us / 1000, us % 1000 / 10);
            let rate = (span.count as u64).saturating_mul(100_000_000) / us.max(1);
            self.machine.print(format_args!(
                "{name:>19} = {ms:>7}.{fraction:02} ms / {:>5} ({:>6}.{:02} per second)\n",
                span.count,
                rate / 100,
                rate % 100
            ));
        };
        self.machine.print(format_args!("\n"));
        line("load time", us(timings.loaded));
        span("sampling time", timings.sampling);
        span("prompt eval time", timings.prompt);
        span("eval time", timings.eval);
        line("time to first token", us(timings.first_token));
        let [p50, p99, p999] = percentiles.map(us);
        self.machine.print(format_args!(
            "      token latency = p50 {p50} us, p99 {p99} us, p99.9 {p999} us\n"
        ));
        let hash = self.hash.finish();
        self.machine
            .print(format_args!("        logits hash = {hash:#018x}\n"));
    }

    fn microseconds(&self, ticks: u64) -> u64 {
        let us = u128::from(ticks) * 1_000_000 / u128::from(self.machine.ticks_per_second().max(1));
        u64::try_from(us).unwrap_or(u64::MAX)
    }
}

/// Tokens in a step of the prompt. Results do not depend on it.
const N_BATCH: usize = 256;

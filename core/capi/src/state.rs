//! An engine with everything it needs, in memory provided by the host.

use crate::{Core, Params, SLUICE_CORE_ABI_VERSION, SLUICE_CORE_ALIGN, Spread, Status};
use core::ffi::c_void;
use core::fmt::{self, Write as _};
use heapless::{String, Vec};
use sluice_core::engine::{BatchEntry, Engine, EngineError, EngineLimits, EnginePlan};
use sluice_core::engine::{Step, StepOptions, Wants};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::hash::Hash64;
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::memory::{Arena, MemoryPlan};
use sluice_core::model::{Loader, ModelConfig, ModelPlan, ModelWeights};
use sluice_core::sampler::{Candidate, SamplerChain, SamplerConfig};
use sluice_core::team::{SpinWait, Stop, StopFlag, WORKERS_MAX};
use sluice_core::tokenizer::{self, Detokenizer, EncodeOptions, Tokenizer};
use static_assertions::const_assert_eq;

/// Maximum number of tokens in a step.
const N_BATCH_MAX: u16 = 256;
/// Maximum number of threads, in the integer type of C programs.
const THREADS_MAX: u32 = 256;
const_assert_eq!(THREADS_MAX as usize, WORKERS_MAX);

/// Why a call failed.
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: Message,
}

impl Failure {
    pub(crate) fn new(status: Status, what: &dyn fmt::Display) -> Self {
        let mut message = Message(String::new());
        // A message that is too long is truncated.
        let _written = write!(message, "{what}");
        Self { status, message }
    }
}

/// A short text.
pub(crate) struct Message(String<243>);

impl Message {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Text that does not fit is truncated at a character, not at a piece.
impl fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut chars = text.chars();
        chars.try_for_each(|c| self.0.push(c).map_err(|_| fmt::Error))
    }
}

/// Validated settings.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    n_ctx: usize,
    n_batch: usize,
    n_threads: usize,
    prompt_bytes: usize,
    sampler: SamplerConfig,
    spread: Spread,
    host: *mut c_void,
    parse_special: bool,
}

impl Settings {
    pub(crate) fn new(params: &Params) -> Result<Self, Failure> {
        let ranges = [
            (
                "abi_version",
                params.abi_version,
                SLUICE_CORE_ABI_VERSION,
                SLUICE_CORE_ABI_VERSION,
            ),
            ("n_ctx", params.n_ctx, 0, 1 << 24),
            ("n_batch", params.n_batch, 1, N_BATCH_MAX.into()),
            ("n_threads", params.n_threads, 1, THREADS_MAX),
            ("prompt_bytes", params.prompt_bytes, 1, 1 << 24),
            ("parse_special", params.parse_special, 0, 1),
            ("reserved", params.reserved, 0, 0),
        ];
        for (name, value, min, max) in ranges {
            if value < min || value > max {
                return Err(Failure::new(
                    Status::SLUICE_CORE_INVALID_ARGUMENT,
                    &format_args!("{name} is {value}, expected {min} to {max}"),
                ));
            }
        }
        if params.n_threads > 1 && params.spread.is_none() {
            let what = &"n_threads is more than 1, but spread is null";
            return Err(Failure::new(Status::SLUICE_CORE_INVALID_ARGUMENT, what));
        }
        let sampler = SamplerConfig {
            seed: params.seed,
            temperature: params.temperature,
            ..SamplerConfig::default()
        };
        SamplerChain::new(sampler)
            .map_err(|error| Failure::new(Status::SLUICE_CORE_INVALID_ARGUMENT, &error))?;
        Ok(Self {
            n_ctx: params.n_ctx as usize,
            n_batch: params.n_batch as usize,
            n_threads: params.n_threads as usize,
            prompt_bytes: params.prompt_bytes as usize,
            sampler,
            spread: params.spread,
            host: params.host,
            parse_special: params.parse_special != 0,
        })
    }

    /// Calls `job` with every rank, on as many cores as requested.
    fn spread(&self, job: &(dyn Fn(usize) + Sync)) {
        unsafe extern "C" fn call(argument: *mut c_void, rank: usize) {
            // SAFETY: the pointer is the reference below, which lives until `spread` returns.
            let job = unsafe { *argument.cast::<&(dyn Fn(usize) + Sync)>() };
            job(rank);
        }
        let mut job = job;
        match self.spread {
            // SAFETY: the host guaranteed the behaviour of its function when it passed it.
            Some(spread) if self.n_threads > 1 => unsafe {
                spread(self.host, self.n_threads, call, (&raw mut job).cast());
            },
            _ => job(0),
        }
    }
}

/// The memory that a model with these settings needs.
struct Sizes {
    n_ctx: usize,
    limits: EngineLimits,
    words: usize,
    workspace_words: usize,
    prompt_tokens: usize,
    model: ModelPlan,
    engine: EnginePlan,
}

impl Sizes {
    fn new(gguf: &Gguf<'_>, config: &ModelConfig, settings: &Settings) -> Result<Self, Failure> {
        let n_ctx = match settings.n_ctx {
            0 => config.n_ctx_train.max(1),
            n => n,
        };
        let limits = EngineLimits {
            n_batch: settings.n_batch.min(n_ctx),
            ..EngineLimits::single(n_ctx, settings.n_threads)
        };
        let engine = EnginePlan::new(config, &limits)
            .map_err(|error| Failure::new(Status::SLUICE_CORE_INVALID_ARGUMENT, &error))?;
        Ok(Self {
            n_ctx,
            limits,
            words: tokenizer::plan(gguf)
                .map_err(|error| invalid(&error))?
                .words,
            // Bounds of `Tokenizer::encode_workspace_words` and `max_tokens` for any vocabulary, as
            // the vocabulary is not known yet. `init` checks them.
            workspace_words: settings.prompt_bytes * 6 + 64,
            prompt_tokens: settings.prompt_bytes * 4 + 8,
            model: ModelPlan::new(gguf, config).map_err(|error| invalid(&error))?,
            engine,
        })
    }

    /// The parts, in the order in which `init` takes them.
    fn total(&self, config: &ModelConfig) -> Result<usize, Failure> {
        let mut plan = MemoryPlan::new();
        let added = (|| {
            plan.slice::<u8>(size_of::<Core>())?;
            plan.slice::<u32>(self.words)?;
            plan.slice::<u8>(self.model.weight_bytes)?;
            plan.slice::<u8>(self.model.table_bytes)?;
            plan.slice::<u8>(self.engine.kv_bytes)?;
            plan.slice::<u8>(self.engine.scratch_bytes)?;
            plan.slice::<u32>(self.workspace_words)?;
            plan.slice::<u32>(self.prompt_tokens)?;
            plan.slice::<Candidate>(config.n_vocab)?;
            plan.slice::<u32>(self.n_ctx)
        })();
        added.map_err(|error| Failure::new(Status::SLUICE_CORE_OUT_OF_MEMORY, &error))?;
        Ok(plan.bytes())
    }
}

fn invalid(error: &dyn fmt::Display) -> Failure {
    Failure::new(Status::SLUICE_CORE_INVALID_MODEL, error)
}

fn header(file: &[u8]) -> Result<(Gguf<'_>, ModelConfig), Failure> {
    let gguf = Gguf::parse(file, file.len() as u64).map_err(|error| invalid(&error))?;
    let config = ModelConfig::from_gguf(&gguf).map_err(|error| invalid(&error))?;
    if !config.is_causal {
        return Err(invalid(
            &"the model is an encoder, which does not generate text",
        ));
    }
    Ok((gguf, config))
}

pub(crate) fn memory_bytes(file: &[u8], settings: &Settings) -> Result<usize, Failure> {
    let (gguf, config) = header(file)?;
    Sizes::new(&gguf, &config, settings)?.total(&config)
}

/// The state after a [`Core`], which is at the beginning of the host's memory.
pub(crate) struct State {
    engine: Engine<'static>,
    pub(crate) hash: Hash64,
    tokenizer: Tokenizer<'static>,
    settings: Settings,
    workspace: &'static mut [u32],
    prompt: &'static mut [u32],
    candidates: &'static mut [Candidate],
    /// The tokens of the text, with room for a whole context.
    history: &'static mut [u32],
    n_history: usize,
}

pub(crate) fn init(
    file: &'static [u8],
    settings: Settings,
    memory: &'static mut [u8],
) -> Result<*mut Core, Failure> {
    let (gguf, config) = header(file)?;
    let sizes = Sizes::new(&gguf, &config, &settings)?;
    let (needed, given) = (sizes.total(&config)?, memory.len());
    if given < needed {
        let what = &format_args!("{needed} bytes of memory are needed, but {given} were given");
        return Err(Failure::new(Status::SLUICE_CORE_OUT_OF_MEMORY, what));
    }
    if !memory.as_ptr().addr().is_multiple_of(SLUICE_CORE_ALIGN) {
        let what = &format_args!("the memory is not aligned to {SLUICE_CORE_ALIGN} bytes");
        return Err(Failure::new(Status::SLUICE_CORE_BAD_POINTER, what));
    }
    let lack = |error| Failure::new(Status::SLUICE_CORE_BAD_POINTER, &error);
    let mut arena = Arena::new(memory).map_err(lack)?;
    let core = arena.bytes(size_of::<Core>()).map_err(lack)?;
    let words = arena.slice(sizes.words, 0u32).map_err(lack)?;
    let weights = arena.bytes(sizes.model.weight_bytes).map_err(lack)?;
    let tables = arena.bytes(sizes.model.table_bytes).map_err(lack)?;
    let tokenizer = Tokenizer::new(&gguf, words).map_err(|error| invalid(&error))?;
    let (rows, tokens) = (config.n_vocab, tokenizer.n_vocab());
    if rows != tokens as usize {
        return Err(invalid(&format_args!(
            "the vocabulary has {tokens} tokens, but the embedding {rows} rows"
        )));
    }
    let text = settings.prompt_bytes;
    assert!(tokenizer.encode_workspace_words(text) <= sizes.workspace_words);
    assert!(tokenizer.max_tokens(text) <= sizes.prompt_tokens);
    let model = load(file, &gguf, &config, &settings, weights, tables)?;
    let kv = arena.bytes(sizes.engine.kv_bytes).map_err(lack)?;
    let scratch = arena.bytes(sizes.engine.scratch_bytes).map_err(lack)?;
    let table = KernelTable::best(CpuFeatures::detect());
    let engine = Engine::new(model, table, &sizes.limits, kv, scratch)
        .map_err(|error| Failure::new(Status::SLUICE_CORE_INVALID_ARGUMENT, &error))?;
    let state = State {
        engine,
        hash: Hash64::new(),
        tokenizer,
        settings,
        workspace: arena.slice(sizes.workspace_words, 0).map_err(lack)?,
        prompt: arena.slice(sizes.prompt_tokens, 0).map_err(lack)?,
        candidates: arena
            .slice(config.n_vocab, Candidate::default())
            .map_err(lack)?,
        history: arena.slice(sizes.n_ctx, 0).map_err(lack)?,
        n_history: 0,
    };
    let at = core.as_mut_ptr().cast::<Core>();
    const { assert!(align_of::<Core>() <= SLUICE_CORE_ALIGN) }
    // SAFETY: the bytes are exclusively ours, as many as a Core has, and aligned.
    unsafe {
        at.write(Core {
            stop: StopFlag::new(),
            isa: table.name(),
            state,
        });
    }
    Ok(at)
}

fn load(
    file: &'static [u8],
    gguf: &Gguf<'_>,
    config: &ModelConfig,
    settings: &Settings,
    weights: &'static mut [u8],
    tables: &'static mut [u8],
) -> Result<ModelWeights<'static>, Failure> {
    let source = SliceSource(file);
    let loader = Loader::new(gguf, config, weights, tables).map_err(|error| invalid(&error))?;
    settings.spread(&|_| {
        // If a rank fails, the model is left unfinished, which `finish` reports.
        let _failed = loader.work(&source, &mut [], || true);
    });
    loader.finish(&source).map_err(|error| invalid(&error))
}

impl State {
    /// Enters `prompt` and passes on the generated text.
    pub(crate) fn generate(
        &mut self,
        stop: &StopFlag,
        prompt: &str,
        n_predict: usize,
        mut each: impl FnMut(&str) -> bool,
    ) -> Result<(), Failure> {
        let most = self.settings.prompt_bytes;
        if prompt.len() > most {
            let len = prompt.len();
            let what = &format_args!("the prompt has {len} bytes, but prompt_bytes is {most}");
            return Err(Failure::new(Status::SLUICE_CORE_INVALID_ARGUMENT, what));
        }
        let options = EncodeOptions {
            add_special: self.n_history == 0,
            parse_special: self.settings.parse_special,
        };
        let encoded = self
            .tokenizer
            .encode(prompt, options, self.workspace, self.prompt);
        let encoded =
            encoded.map_err(|error| Failure::new(Status::SLUICE_CORE_INVALID_ARGUMENT, &error))?;
        let n_prompt = encoded.len();
        if self.n_history + n_prompt > self.history.len() {
            let (n, n_ctx) = (self.n_history + n_prompt, self.history.len());
            let what = &format_args!("{n} tokens exceed the context of {n_ctx}");
            return Err(Failure::new(Status::SLUICE_CORE_CONTEXT_FULL, what));
        }
        let first = self.n_history;
        self.history[first..][..n_prompt].copy_from_slice(&self.prompt[..n_prompt]);
        let mut next = self.read(stop, first + n_prompt, n_predict > 0)?;
        let mut detokenizer = Detokenizer::continuing();
        let mut wants_more = true;
        let mut n_generated = 0;
        while let Some(token) = next.filter(|_| wants_more) {
            if self.tokenizer.is_end_of_generation(token) {
                break;
            }
            let show = |piece: &str| wants_more = wants_more && each(piece);
            detokenizer
                .push(&self.tokenizer, token, show)
                .map_err(|error| invalid(&error))?;
            n_generated += 1;
            if n_generated == n_predict || self.n_history == self.history.len() {
                break;
            }
            if wants_more {
                self.history[self.n_history] = token;
                next = self.read(stop, self.n_history + 1, true)?;
            }
        }
        detokenizer.finish(|piece| wants_more = wants_more && each(piece));
        if wants_more {
            return Ok(());
        }
        let what = &format_args!("cancelled by the callback after {n_generated} generated tokens");
        Err(Failure::new(Status::SLUICE_CORE_CANCELLED, what))
    }

    /// Reads the history up to `end`, again from its beginning where its length asks for it, and draws the next token if
    /// requested.
    fn read(&mut self, stop: &StopFlag, end: usize, wants: bool) -> Result<Option<u32>, Failure> {
        self.engine.fit(0, end).map_err(failed)?;
        let (mut next, n_batch) = (None, self.engine.limits().n_batch);
        // If this is cancelled, the history stays, and the next call reads the rest of it.
        while self.n_read() < end {
            let n = n_batch.min(end - self.n_read());
            next = self.step(stop, n, self.n_read() + n == end && wants)?;
        }
        Ok(next)
    }

    /// Tokens of the history that the engine has read.
    fn n_read(&self) -> usize {
        self.engine.state().len(0)
    }

    /// Runs a step over the next `n` tokens of the history on all cores, and draws the next token
    /// if requested.
    fn step(&mut self, stop: &StopFlag, n: usize, wants: bool) -> Result<Option<u32>, Failure> {
        // Contexts are below 2^24 tokens.
        #[expect(clippy::cast_possible_truncation, reason = "said above")]
        let first = self.n_read() as u32;
        let ids = self.history[first as usize..][..n].iter();
        let entry = |(&id, position)| BatchEntry::new(id, 0, position, Wants::Nothing);
        let mut entries: Vec<_, { N_BATCH_MAX as usize }> = ids.zip(first..).map(entry).collect();
        if let Some(last) = entries.last_mut().filter(|_| wants) {
            last.wants = Wants::Logits;
        }
        let options = StepOptions::new(&SpinWait, stop);
        let step: Step<'_, '_> = self.engine.step(&entries, options).map_err(failed)?;
        self.settings.spread(&|rank| {
            if let Some(worker) = step.join(rank) {
                // `finish` reports why it stopped.
                let _stopped = worker.run();
            }
        });
        let outputs = step.finish().map_err(|error| {
            if error == EngineError::Stopped(Stop::Cancelled) {
                stop.clear();
            }
            failed(error)
        })?;
        self.n_history = self.n_history.max(first as usize + n);
        let Some(logits) = outputs.logits(n - 1) else {
            return Ok(None);
        };
        self.hash.write_f32(logits);
        let mut sampler = SamplerChain::new(self.settings.sampler).map_err(|e| invalid(&e))?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "contexts are below 2^24 tokens"
        )]
        let position = self.n_history as u32;
        let context = sampler.context(&self.history[..self.n_history], 0, position);
        let token = sampler.sample(logits, self.candidates, &mut [], &context);
        token.map(Some).map_err(|error| invalid(&error))
    }

    pub(crate) fn reset(&mut self) {
        // Truncating a sequence to zero tokens always succeeds.
        let _cut = self.engine.state_mut().rewind(0, 0);
        self.n_history = 0;
        self.hash = Hash64::new();
    }
}

fn failed(error: EngineError) -> Failure {
    let status = match error {
        EngineError::Stopped(Stop::Cancelled) => Status::SLUICE_CORE_CANCELLED,
        EngineError::State(_) => Status::SLUICE_CORE_CONTEXT_FULL,
        _ => Status::SLUICE_CORE_INVALID_ARGUMENT,
    };
    Failure::new(status, &error)
}

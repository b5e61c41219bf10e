//! Contexts: a model at work on one text.

use crate::arguments::{Versioned, c_text, check_out, fill, give, params, slice, text};
use crate::model::{Model, encode_failure, hand_out, handle, start_team};
use crate::status::{Failure, Status, guard};
use core::ffi::{c_char, c_void};
use core::ptr;
use sluice::core::engine::{EngineError, Wants};
use sluice::core::hash::Hash64;
use sluice::core::kernels::KvType;
use sluice::core::team::StopFlag;
use sluice::generate::{self, GenerateError, Next, Timings, Until};
use sluice::host::isa;
use sluice::sequence::{Choice, ChoiceError, Choose};
use sluice::session::{SessionError, StepError};
use sluice::{Generator, Limits};
use sluice_text::sampling::{Sampler, SamplingSettings};
use static_assertions::{assert_impl_all, const_assert_eq};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// A text in the making: KV cache, threads, and room to compute in.
#[derive(Debug)]
pub struct Context {
    stop: Arc<StopFlag>,
    work: Mutex<Work>,
}

/// How a context is made. Begin with `sluice_context_params_default()`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ContextParams {
    /// `sizeof` this struct.
    pub struct_bytes: usize,
    /// Tokens that fit; 0 is what the model was trained on.
    pub n_ctx: u32,
    /// Most tokens of a prompt that are computed at once.
    pub n_batch: u32,
    /// Threads, the calling one among them; 0 is one for each physical core. They are not pinned.
    pub n_threads: u32,
    /// 0.
    pub reserved: u32,
    /// Kernels by name (`scalar`, `avx2`, …); null for the fastest. All give the same bits.
    pub isa: *const c_char,
    /// Type of keys in the KV cache (`f32`, `f16`, `bf16`, `q8_0`, …); null is `f16`.
    pub type_k: *const c_char,
    /// Type of values; null is `f16`.
    pub type_v: *const c_char,
}

// SAFETY: numbers and pointers without padding.
unsafe impl Versioned for ContextParams {
    const NAME: &'static str = "sluice_context_params";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        n_ctx: 0,
        n_batch: 512,
        n_threads: 0,
        reserved: 0,
        isa: ptr::null(),
        type_k: ptr::null(),
        type_v: ptr::null(),
    };
}

/// How text is made. Begin with `sluice_generate_params_default()`; names and defaults are
/// llama.cpp's.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GenerateParams {
    /// `sizeof` this struct.
    pub struct_bytes: usize,
    /// Key of the random numbers: the same one gives the same text.
    pub seed: u64,
    /// Most tokens; -1 for as many as fit.
    pub n_predict: i32,
    /// 0 chooses the best token.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// Latest tokens that are penalised.
    pub repeat_last_n: u32,
    /// 1 is none.
    pub repeat_penalty: f32,
    /// 0 is none.
    pub frequency_penalty: f32,
    /// 0 is none.
    pub presence_penalty: f32,
    /// 1 goes on behind tokens that end a text.
    pub ignore_eos: u32,
}

// SAFETY: numbers without padding.
unsafe impl Versioned for GenerateParams {
    const NAME: &'static str = "sluice_generate_params";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        seed: 0,
        n_predict: -1,
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        repeat_last_n: 64,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        ignore_eos: 0,
    };
}

/// Why a text ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "the names that C programs use")]
pub enum Ended {
    /// The model ended it.
    SLUICE_ENDED_BY_MODEL = 0,
    /// It has `n_predict` tokens.
    SLUICE_ENDED_BY_LENGTH = 1,
    /// The context is full.
    SLUICE_ENDED_BY_CONTEXT = 2,
    /// It was cancelled.
    SLUICE_ENDED_BY_CANCEL = 3,
}

/// What came of a generation. Set `struct_bytes` before it is filled in.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GenerateResult {
    /// `sizeof` this struct.
    pub struct_bytes: usize,
    /// Over the bits of all logits that tokens were drawn from: the same on every CPU, with any
    /// number of threads.
    pub logits_hash: u64,
    /// Nanoseconds for the prompt.
    pub prompt_ns: u64,
    /// Nanoseconds for the tokens behind the first one.
    pub eval_ns: u64,
    /// Tokens of the prompt.
    pub n_prompt: u32,
    /// Of these, tokens that the context had already.
    pub n_reused: u32,
    /// Tokens that were generated.
    pub n_generated: u32,
    /// Why it ended.
    pub ended: Ended,
}

// SAFETY: numbers without padding. Never read from a C program: see `give`.
unsafe impl Versioned for GenerateResult {
    const NAME: &'static str = "sluice_generate_result";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        logits_hash: 0,
        prompt_ns: 0,
        eval_ns: 0,
        n_prompt: 0,
        n_reused: 0,
        n_generated: 0,
        ended: Ended::SLUICE_ENDED_BY_LENGTH,
    };
}

// What C programs were compiled with.
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<ContextParams>(), 48);
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<GenerateParams>(), 56);
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<GenerateResult>(), 48);
// A handle may be used from any thread.
assert_impl_all!(Context: Send, Sync);

/// Is handed a text as it comes: a token, and the whole characters that it completes, `piece_len`
/// bytes of UTF-8 and a zero behind them. What is left over at the end comes with the last token
/// once more. Returns whether it wants more. Called on the thread that generates; it must not
/// throw, and must not use the context but for `sluice_cancel`.
pub type TokenCallback = Option<
    unsafe extern "C" fn(
        token: u32,
        piece: *const c_char,
        piece_len: usize,
        user_data: *mut c_void,
    ) -> bool,
>;

/// A text, and what its tokens are chosen with.
#[derive(Debug)]
struct Work {
    generator: Generator,
    drawing: Arc<Mutex<Drawing>>,
}

/// How the tokens of the next text are chosen.
#[derive(Debug, Default)]
struct Drawing {
    /// `None` keeps the logits instead.
    sampler: Option<Sampler>,
    logits: Vec<f32>,
    hash: Hash64,
}

#[derive(Debug)]
struct Chooser(Arc<Mutex<Drawing>>);

impl Choose for Chooser {
    fn begin(&mut self) {
        if let Some(sampler) = &mut lock(&self.0).sampler {
            sampler.restart();
        }
    }

    fn choose(&mut self, logits: &[f32], choice: &Choice<'_>) -> Result<u32, ChoiceError> {
        let drawing = &mut *lock(&self.0);
        drawing.hash.write_f32(logits);
        if let Some(sampler) = &mut drawing.sampler {
            return sampler.choose(logits, choice);
        }
        drawing.logits.clear();
        drawing.logits.extend_from_slice(logits);
        Ok(0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// # Safety
    /// - The texts in `params` are null or end with a zero.
    unsafe fn new(model: &Model, params: &ContextParams) -> Result<Self, Failure> {
        let invalid =
            |error: &dyn core::fmt::Display| Failure::new(Status::SLUICE_INVALID_ARGUMENT, error);
        // SAFETY: by the caller.
        let isa = unsafe { c_text("isa", params.isa)? };
        // SAFETY: by the caller.
        let types = unsafe {
            [
                c_text("type_k", params.type_k)?,
                c_text("type_v", params.type_v)?,
            ]
        };
        let [type_k, type_v] = types.map(|name| {
            let name = name.unwrap_or("f16");
            KvType::from_name(name).ok_or_else(|| invalid(&format_args!("no KV type '{name}'")))
        });
        let table = isa::kernel_table(isa).map_err(|error| invalid(&error))?;
        let n_ctx = match params.n_ctx as usize {
            0 => model.model.config().n_ctx_train.max(1),
            n => n,
        };
        let limits = Limits {
            n_ctx,
            n_batch: (params.n_batch as usize).min(n_ctx),
            type_k: type_k?,
            type_v: type_v?,
            table: Some(table),
            ..Limits::default()
        };
        if model.model.embeds() {
            let name = model.model.name();
            return Err(invalid(&format_args!(
                "{name} is an encoder, which generates no text"
            )));
        }
        let team = start_team(params.n_threads)?;
        let session = model.model.session_on(&team, limits);
        let mut session = session.map_err(|error| match error {
            SessionError::Memory { .. } => Failure::new(Status::SLUICE_OUT_OF_MEMORY, error),
            error => invalid(&error),
        })?;
        let stop = Arc::new(StopFlag::new());
        session.set_stop(Arc::clone(&stop));
        let drawing = Arc::<Mutex<Drawing>>::default();
        let chooser = Chooser(Arc::clone(&drawing));
        let generator = Generator::new(session, Box::new(chooser)).map_err(generate_failure)?;
        Ok(Self {
            stop,
            work: Mutex::new(Work { generator, drawing }),
        })
    }

    /// The work, for one thread at a time.
    fn take(&self) -> Result<MutexGuard<'_, Work>, Failure> {
        match self.work.try_lock() {
            Ok(work) => Ok(work),
            // A panic inside a call leaves the KV cache at a whole token.
            Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                Status::SLUICE_BUSY,
                "another thread is using the context, or this one from its callback",
            )),
        }
    }
}

impl Work {
    fn generate(
        &mut self,
        prompt: &str,
        params: &GenerateParams,
        mut each: impl FnMut(u32, &str) -> bool,
    ) -> Result<GenerateResult, Failure> {
        let tokens = self.prompt_tokens(prompt)?;
        let sampler = self.sampler(params)?;
        *lock(&self.drawing) = Drawing {
            sampler: Some(sampler),
            ..Drawing::default()
        };
        let until = Until {
            n_predict: usize::try_from(params.n_predict).ok(),
            ignore_eos: params.ignore_eos != 0,
            shift: None,
        };
        let wants = match until.n_predict {
            Some(0) => Wants::Nothing,
            _ => Wants::Logits,
        };
        let generator = &mut self.generator;
        generator.timings = Timings::default();
        let next = generator.prompt(&tokens, wants).map_err(generate_failure)?;
        let ended = generator
            .write(next, &until, |written| each(written.token, written.piece))
            .map_err(generate_failure)?;
        let entered = generator.tokens().len().saturating_sub(tokens.len());
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let ns = |span: generate::Span| u64::try_from(span.ns).unwrap_or(u64::MAX);
        Ok(GenerateResult {
            logits_hash: lock(&self.drawing).hash.finish(),
            prompt_ns: ns(generator.timings.prompt),
            eval_ns: ns(generator.timings.eval),
            n_prompt: number(tokens.len()),
            n_reused: number(generator.timings.reused),
            n_generated: number(entered + usize::from(generator.pending().is_some())),
            ended: match ended {
                generate::Ended::EndOfText => Ended::SLUICE_ENDED_BY_MODEL,
                generate::Ended::Length => Ended::SLUICE_ENDED_BY_LENGTH,
                generate::Ended::ContextFull => Ended::SLUICE_ENDED_BY_CONTEXT,
                generate::Ended::Closed | generate::Ended::Interrupted => {
                    Ended::SLUICE_ENDED_BY_CANCEL
                }
            },
            ..GenerateResult::DEFAULT
        })
    }

    fn model(&self) -> &sluice::Model {
        self.generator.session().model()
    }

    /// The tokens of a prompt; the token that begins texts for none.
    fn prompt_tokens(&self, prompt: &str) -> Result<Vec<u32>, Failure> {
        let model = self.model();
        let mut tokens = model.encode(prompt, true).map_err(encode_failure)?;
        if tokens.is_empty() {
            let message = "the prompt is empty, and the model has no token to begin a text with";
            let bos = model.tokenizer().bos();
            tokens.push(bos.ok_or(Failure::new(Status::SLUICE_INVALID_ARGUMENT, message))?);
        }
        Ok(tokens)
    }

    fn sampler(&self, params: &GenerateParams) -> Result<Sampler, Failure> {
        let mut settings = SamplingSettings::default();
        let config = &mut settings.config;
        config.seed = params.seed;
        config.temperature = params.temperature;
        config.top_k = params.top_k;
        config.top_p = params.top_p;
        config.min_p = params.min_p;
        config.repeat_last_n = params.repeat_last_n;
        config.repeat_penalty = params.repeat_penalty;
        config.frequency_penalty = params.frequency_penalty;
        config.presence_penalty = params.presence_penalty;
        let sampler = Sampler::new(&settings, self.model().tokenizer(), self.generator.n_ctx());
        sampler.map_err(|error| Failure::new(Status::SLUICE_INVALID_ARGUMENT, error))
    }
}

fn generate_failure(error: GenerateError) -> Failure {
    let status = match &error {
        GenerateError::TooLong { .. } => Status::SLUICE_CONTEXT_FULL,
        GenerateError::Step(StepError::Engine(EngineError::UnknownToken { .. })) => {
            Status::SLUICE_INVALID_ARGUMENT
        }
        _ => Status::SLUICE_INTERNAL,
    };
    Failure::new(status, error)
}

/// The settings that most programs want.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_context_params_default() -> ContextParams {
    ContextParams::DEFAULT
}

/// llama.cpp's settings, with seed 0.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_generate_params_default() -> GenerateParams {
    GenerateParams::DEFAULT
}

/// A context over a model. `params` may be null. On failure `*context` is null.
///
/// # Safety
/// - `model` is a handle, `params` null or a struct that begins with its size and whose texts
///   are null or end with a zero, `context` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_context_new(
    model: *const Model,
    params: *const ContextParams,
    context: *mut *mut Context,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        hand_out(context, || {
            let model = handle("model", model)?;
            Context::new(model, &self::params(params)?)
        })
    })
}

/// Gives a context back. Null is allowed.
///
/// # Safety
/// - `context` is null or a handle that no thread is using, and that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_context_free(context: *mut Context) {
    guard(|| {
        if !context.is_null() {
            // SAFETY: made by `hand_out`, and by the caller not freed yet.
            drop(unsafe { Box::from_raw(context) });
        }
        Ok(())
    });
}

/// Forgets the text, and a request to cancel.
///
/// # Safety
/// - `context` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_context_reset(context: *const Context) -> Status {
    guard(|| {
        // SAFETY: by the caller.
        let context = unsafe { handle("context", context)? };
        let mut work = context.take()?;
        context.stop.clear();
        work.generator.truncate(0).map_err(generate_failure)?;
        Ok(())
    })
}

/// Asks the call that is running on the context, or else the next one, to end: it returns
/// `SLUICE_CANCELLED` within a barrier of the engine, a few microseconds to milliseconds, and the
/// request is done with. May be called from any thread and from a signal handler. Null is allowed.
///
/// # Safety
/// - `context` is null or a handle that is not freed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_cancel(context: *const Context) {
    // SAFETY: by the caller. Storing a flag cannot panic.
    if let Some(context) = unsafe { context.as_ref() } {
        context.stop.stop();
    }
}

/// Goes on from `prompt`, handing tokens to `callback` as they come. What the context begins with
/// already is not computed again, so a longer prompt continues a conversation cheaply.
/// `params`, `callback` and `result` may be null. After `SLUICE_CANCELLED` too `*result` is filled
/// in.
///
/// # Safety
/// - `context` is a handle, `prompt` points to `prompt_len` bytes, `params` is null or begins with
///   its size, `result` as well and is writable; `callback` may be called with `user_data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_generate(
    context: *const Context,
    prompt: *const c_char,
    prompt_len: usize,
    params: *const GenerateParams,
    callback: TokenCallback,
    user_data: *mut c_void,
    result: *mut GenerateResult,
) -> Status {
    guard(|| {
        // SAFETY: by the caller.
        let (context, prompt, params) = unsafe {
            check_out(result)?;
            let context = handle("context", context)?;
            (
                context,
                text("prompt", prompt, prompt_len)?,
                self::params(params)?,
            )
        };
        let mut work = context.take()?;
        let mut piece = Vec::new();
        let mut closed = false;
        let made = work.generate(prompt, &params, |token, text| {
            let Some(callback) = callback else {
                return true;
            };
            piece.clear();
            piece.extend_from_slice(text.as_bytes());
            piece.push(0);
            // SAFETY: by the caller; the text lives during the call.
            closed |= !unsafe { callback(token, piece.as_ptr().cast(), text.len(), user_data) };
            !closed
        })?;
        // SAFETY: by the caller.
        unsafe { give(result, &made)? };
        if made.ended != Ended::SLUICE_ENDED_BY_CANCEL {
            return Ok(());
        }
        let by = if closed {
            "the callback"
        } else {
            context.stop.clear();
            "sluice_cancel"
        };
        let n = made.n_generated;
        let message = format_args!("cancelled by {by} after {n} generated tokens");
        Err(Failure::new(Status::SLUICE_CANCELLED, message))
    })
}

/// The logits behind a text of tokens, `n_vocab` numbers. What the context begins with already is
/// not computed again. With a null `logits` only their number is written.
///
/// # Safety
/// - `context` is a handle, `tokens` points to `n_tokens` tokens, `logits` is null or has room for
///   `capacity` numbers, `n_logits` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_eval(
    context: *const Context,
    tokens: *const u32,
    n_tokens: usize,
    logits: *mut f32,
    capacity: usize,
    n_logits: *mut usize,
) -> Status {
    guard(|| {
        // SAFETY: by the caller.
        let (context, tokens) = unsafe {
            (
                handle("context", context)?,
                slice("tokens", tokens, n_tokens)?,
            )
        };
        let mut work = context.take()?;
        if tokens.is_empty() {
            return Err(Failure::new(
                Status::SLUICE_INVALID_ARGUMENT,
                "there are no tokens",
            ));
        }
        *lock(&work.drawing) = Drawing::default();
        let next = work.generator.prompt(tokens, Wants::Logits);
        if next.map_err(generate_failure)? == Next::Interrupted {
            context.stop.clear();
            let message = "cancelled by sluice_cancel";
            return Err(Failure::new(Status::SLUICE_CANCELLED, message));
        }
        let drawing = lock(&work.drawing);
        // SAFETY: by the caller.
        unsafe { fill(("logits", &drawing.logits), logits, capacity, n_logits) }
    })
}

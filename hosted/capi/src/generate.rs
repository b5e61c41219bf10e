//! Generation of text by a context, and its results.

use crate::arguments::{Versioned, c_text, check_memory, check_out, give, params, text};
use crate::context::{Context, Drawing, Work, generate_failure, lock};
use crate::model::{encode_failure, handle};
use crate::status::{Failure, Status, guard};
use core::ffi::{c_char, c_void};
use core::ptr;
use sluice::Session;
use sluice::core::engine::Wants;
use sluice::core::sampler::SamplerConfig;
use sluice::core::tokenizer::EncodeOptions;
use sluice::generate::{self, GeneratorTimings, Until};
use sluice_text::grammar::{Grammar, GrammarSource};
use sluice_text::sampling::{Sampler, SamplingSettings};
use static_assertions::const_assert_eq;

/// Settings for generating text. Begin with `sluice_generate_params_default()`; names and defaults
/// are llama.cpp's.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GenerateParams {
    /// Set to `sizeof` this struct.
    pub struct_bytes: usize,
    /// Random seed: the same seed gives the same text.
    pub seed: u64,
    /// Maximum number of tokens; -1 for as many as fit.
    pub n_predict: i32,
    /// Temperature; 0 always picks the most likely token.
    pub temperature: f32,
    /// Number of most likely tokens to sample from; 0 keeps all.
    pub top_k: u32,
    /// Total probability of the most likely tokens to keep; 1 keeps all.
    pub top_p: f32,
    /// Minimum probability relative to the most likely token; 0 keeps all.
    pub min_p: f32,
    /// Number of most recent tokens to penalise.
    pub repeat_last_n: u32,
    /// Repetition penalty; 1 is off.
    pub repeat_penalty: f32,
    /// Frequency penalty; 0 is off.
    pub frequency_penalty: f32,
    /// Presence penalty; 0 is off.
    pub presence_penalty: f32,
    /// 1 continues after tokens that end a text.
    pub ignore_eos: u32,
    /// 1 adds the special tokens that the model needs around the prompt; use 0 for a prompt that
    /// contains them, such as one from `sluice_chat_render`.
    pub add_special: u32,
    /// 1 parses the names of control tokens in the prompt; use 0 for text from other people.
    pub parse_special: u32,
    /// A grammar in GBNF that constrains the text; null for none.
    pub grammar: *const c_char,
    /// A JSON schema that constrains the text; null for none. Cannot be combined with `grammar`.
    pub json_schema: *const c_char,
}

// SAFETY: numbers and pointers without padding.
unsafe impl Versioned for GenerateParams {
    const NAME: &'static str = "sluice_generate_params";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        seed: 0,
        n_predict: -1,
        temperature: SAMPLING.temperature,
        top_k: SAMPLING.top_k,
        top_p: SAMPLING.top_p,
        min_p: SAMPLING.min_p,
        repeat_last_n: SAMPLING.repeat_last_n,
        repeat_penalty: SAMPLING.repeat_penalty,
        frequency_penalty: SAMPLING.frequency_penalty,
        presence_penalty: SAMPLING.presence_penalty,
        ignore_eos: 0,
        add_special: 1,
        parse_special: 1,
        grammar: ptr::null(),
        json_schema: ptr::null(),
    };
}

const SAMPLING: SamplerConfig = SamplerConfig::DEFAULT;

/// Why a text ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "the names that C programs use")]
pub enum GenerateEnd {
    /// The model ended it.
    SLUICE_ENDED_BY_MODEL = 0,
    /// It has `n_predict` tokens.
    SLUICE_ENDED_BY_LENGTH = 1,
    /// The context is full.
    SLUICE_ENDED_BY_CONTEXT = 2,
    /// It was cancelled.
    SLUICE_ENDED_BY_CANCEL = 3,
}

/// The result of a generation. Set `struct_bytes` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GenerateResult {
    /// Set to `sizeof` this struct.
    pub struct_bytes: usize,
    /// Hash over the bits of all logits from which tokens were drawn: equal on every CPU, with any
    /// number of threads.
    pub logits_hash: u64,
    /// Time for the prompt, in nanoseconds.
    pub prompt_ns: u64,
    /// Time for the tokens after the first one, in nanoseconds.
    pub eval_ns: u64,
    /// Number of prompt tokens.
    pub n_prompt: u32,
    /// How many of them the context already held.
    pub n_reused: u32,
    /// Number of generated tokens.
    pub n_generated: u32,
    /// Why it ended.
    pub ended: GenerateEnd,
    /// Number of draft tokens that were verified; `eval_ns` includes their rows.
    pub n_draft: u32,
    /// How many of them were accepted, and thus took no step of their own.
    pub n_accepted: u32,
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
        ended: GenerateEnd::SLUICE_ENDED_BY_LENGTH,
        n_draft: 0,
        n_accepted: 0,
    };
}

// The layout that C programs were compiled with.
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<GenerateParams>(), 80);
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<GenerateResult>(), 56);

/// Receives text as it is generated: a token, and the whole characters that it completes, as
/// `piece_len` bytes of UTF-8 followed by a zero. Bytes left over at the end are passed with the
/// last token once more. Returns whether to continue. Called on the generating thread; it must not
/// throw, and the only function it may call with this context is `sluice_cancel`.
pub type TokenCallback = Option<
    unsafe extern "C" fn(
        token: u32,
        piece: *const c_char,
        piece_len: usize,
        user_data: *mut c_void,
    ) -> bool,
>;

impl Work {
    /// # Safety
    /// - The texts in `params` are null or zero-terminated.
    unsafe fn generate(
        &mut self,
        prompt: &str,
        params: &GenerateParams,
        mut each: impl FnMut(u32, &str) -> bool,
    ) -> Result<GenerateResult, Failure> {
        let tokens = self.prompt_tokens(prompt, params)?;
        // SAFETY: by the caller.
        let grammar = unsafe { grammar(params)? };
        let sampler = self.sampler(params, grammar.as_ref())?;
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
        generator.timings = GeneratorTimings::default();
        let figures = |session: &Session| session.speculation().map(|known| *known.figures());
        let before = figures(generator.session()).unwrap_or_default();
        let next = generator.prompt(&tokens, wants).map_err(generate_failure)?;
        let ended = generator
            .write(next, &until, |written| each(written.token, written.piece))
            .map_err(generate_failure)?;
        let entered = generator.tokens().len().saturating_sub(tokens.len());
        let drafted = figures(generator.session()).map(|now| now.since(&before));
        let drafted = drafted.unwrap_or_default();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let ns = |span: generate::Span| u64::try_from(span.ns).unwrap_or(u64::MAX);
        let n_generated = entered + usize::from(generator.pending().is_some());
        // Tokens drawn after the callback ended the text are not part of it.
        let n_drawn = Some(n_generated).filter(|_| ended == generate::EndReason::Closed);
        Ok(GenerateResult {
            logits_hash: lock(&self.drawing).hash_of(n_drawn),
            prompt_ns: ns(generator.timings.prompt),
            eval_ns: ns(generator.timings.eval),
            n_prompt: number(tokens.len()),
            n_reused: number(generator.timings.reused),
            n_generated: number(n_generated),
            ended: match ended {
                generate::EndReason::EndOfText => GenerateEnd::SLUICE_ENDED_BY_MODEL,
                generate::EndReason::Length => GenerateEnd::SLUICE_ENDED_BY_LENGTH,
                generate::EndReason::ContextFull => GenerateEnd::SLUICE_ENDED_BY_CONTEXT,
                // A failed text is an error of the generator, not an end of the text.
                generate::EndReason::Closed
                | generate::EndReason::Interrupted
                | generate::EndReason::Failed => GenerateEnd::SLUICE_ENDED_BY_CANCEL,
            },
            n_draft: count(drafted.n_draft),
            n_accepted: count(drafted.n_accepted),
            ..GenerateResult::DEFAULT
        })
    }

    /// The tokens of a prompt; for an empty prompt, the beginning-of-sequence token.
    fn prompt_tokens(&self, prompt: &str, params: &GenerateParams) -> Result<Vec<u32>, Failure> {
        let model = self.model();
        let options = EncodeOptions {
            add_special: params.add_special != 0,
            parse_special: params.parse_special != 0,
        };
        let tokens = model.encode_with(prompt, options);
        let mut tokens = tokens.map_err(encode_failure)?;
        if tokens.is_empty() {
            let message = "the prompt is empty, and the model has no beginning-of-sequence token";
            let bos = model.tokenizer().bos();
            tokens.push(bos.ok_or(Failure::new(Status::SLUICE_INVALID_ARGUMENT, message))?);
        }
        Ok(tokens)
    }

    fn sampler(
        &self,
        params: &GenerateParams,
        grammar: Option<&GrammarSource>,
    ) -> Result<Sampler, Failure> {
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
        let invalid =
            |error: &dyn core::fmt::Display| Failure::new(Status::SLUICE_INVALID_ARGUMENT, error);
        let tokenizer = self.model().tokenizer();
        let sampler = Sampler::new(&settings, tokenizer, self.generator.n_ctx());
        let sampler = sampler.map_err(|error| invalid(&error))?;
        Ok(match grammar {
            None => sampler,
            Some(source) => {
                let grammar = Grammar::new(source, tokenizer).map_err(|error| invalid(&error))?;
                sampler.with_grammar(grammar)
            }
        })
    }
}

/// The constraint on the text.
///
/// # Safety
/// - The texts in `params` are null or zero-terminated.
unsafe fn grammar(params: &GenerateParams) -> Result<Option<GrammarSource>, Failure> {
    // SAFETY: by the caller.
    let texts = unsafe {
        (
            c_text("grammar", params.grammar)?,
            c_text("json_schema", params.json_schema)?,
        )
    };
    let longest = texts.0.map_or(0, str::len).max(texts.1.map_or(0, str::len));
    check_memory("the grammar", longest)?;
    match texts {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(GrammarSource::Gbnf(text.to_owned()))),
        (None, Some(text)) => Ok(Some(GrammarSource::JsonSchema(text.to_owned()))),
        (Some(_), Some(_)) => Err(Failure::new(
            Status::SLUICE_INVALID_ARGUMENT,
            "grammar and json_schema cannot be combined",
        )),
    }
}

/// llama.cpp's defaults, with seed 0.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_generate_params_default() -> GenerateParams {
    GenerateParams::DEFAULT
}

/// Generates a continuation of `prompt` and passes tokens to `callback`. A prefix that the context
/// already holds is not computed again, so a longer prompt continues a conversation cheaply.
/// `params`, `callback` and `result` may be null. `*result` is filled in even after
/// `SLUICE_CANCELLED`.
///
/// # Safety
/// - `context` is a handle, `prompt` points to `prompt_len` bytes, `params` is null or begins with
///   its size and its texts are null or zero-terminated, `result` begins with its size and is
///   writable; `callback` may be called with `user_data`.
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
        let each = |token: u32, text: &str| {
            let Some(callback) = callback else {
                return true;
            };
            piece.clear();
            piece.extend_from_slice(text.as_bytes());
            piece.push(0);
            // SAFETY: by the caller; the text is valid during the call.
            closed |= !unsafe { callback(token, piece.as_ptr().cast(), text.len(), user_data) };
            !closed
        };
        // SAFETY: by the caller.
        let made = unsafe { work.generate(prompt, &params, each)? };
        // SAFETY: by the caller.
        unsafe { give(result, &made)? };
        if made.ended != GenerateEnd::SLUICE_ENDED_BY_CANCEL {
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

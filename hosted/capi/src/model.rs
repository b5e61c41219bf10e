//! Models: opening, information and vocabulary.

use crate::arguments::{Versioned, c_text, check_out, fill, give, params, slice, text};
use crate::model_params::{self, ModelParams};
use crate::process::Process;
use crate::status::{Failure, Status, guard};
use core::ffi::c_char;
use core::ptr;
use sluice::Team;
use sluice::core::tokenizer::{Detokenizer, EncodeOptions};
use sluice::encode::EncodeError;
use sluice::experts::ExpertError;
use sluice::file::{FileError, LoadMode, ModelFile};
use sluice::host::placement::{Bind, WorkerOptions};
use sluice::host::topology::Cores;
use sluice::host::workers::WORKERS_MAX;
use sluice::model::{LoadError, LoadOptions, ModelSource, OpenError};
use sluice::session::SessionError;
use sluice_text::chat::PromptMaker;
use sluice_text::chat_template::{ChatTemplate, ChatTemplateError};
use static_assertions::{assert_impl_all, const_assert_eq};
use std::path::Path;
use std::sync::OnceLock;

/// A model in memory. Contexts share it and keep it alive.
#[derive(Debug)]
pub struct ModelHandle {
    pub(crate) model: sluice::Model,
    process: Process,
    /// Of the model's own template, once a prompt was asked for.
    prompts: OnceLock<PromptMaker>,
}

// A handle may be used from any thread.
assert_impl_all!(ModelHandle: Send, Sync);

/// Information about a model. Set `struct_bytes` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ModelInfo {
    /// Set to `sizeof` this struct.
    pub struct_bytes: usize,
    /// Bytes of weights in memory.
    pub weight_bytes: u64,
    /// Number of tokens in the vocabulary.
    pub n_vocab: u32,
    /// Context size that it was trained with, in tokens.
    pub n_ctx_train: u32,
    /// Length of the hidden state.
    pub n_embd: u32,
    /// Number of layers.
    pub n_layer: u32,
    /// The beginning-of-sequence token, or -1.
    pub token_bos: i32,
    /// The end-of-sequence token, or -1.
    pub token_eos: i32,
}

// SAFETY: numbers without padding.
unsafe impl Versioned for ModelInfo {
    const NAME: &'static str = "sluice_model_info";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        weight_bytes: 0,
        n_vocab: 0,
        n_ctx_train: 0,
        n_embd: 0,
        n_layer: 0,
        token_bos: -1,
        token_eos: -1,
    };
}

// The layout that C programs were compiled with.
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<ModelInfo>(), 40);

impl ModelHandle {
    /// # Safety
    /// - The texts in `params` are null or zero-terminated.
    unsafe fn load(file: ModelFile, params: &ModelParams) -> Result<Self, Failure> {
        // SAFETY: by the caller.
        let experts = unsafe { model_params::experts(params)? };
        // SAFETY: by the caller.
        let activation = unsafe { model_params::activation(params)? };
        let mut opened = ModelSource::of_file(file).map_err(open_failure)?;
        if let Some(activation) = activation {
            opened = opened.with_activation(activation).map_err(open_failure)?;
        }
        let team = start_team(params.n_threads)?;
        let load = LoadOptions {
            experts,
            ..LoadOptions::default()
        };
        let model = opened.load_with(&team, load).map_err(load_failure)?;
        Ok(Self {
            model,
            process: Process::current(),
            prompts: OnceLock::new(),
        })
    }

    /// What makes prompts with the model's own template.
    ///
    /// # Errors
    /// The file has no template, or it is not well formed.
    pub(crate) fn prompts(&self) -> Result<&PromptMaker, ChatTemplateError> {
        if let Some(prompts) = self.prompts.get() {
            return Ok(prompts);
        }
        let template = ChatTemplate::from_gguf(self.model.gguf(), None)?;
        let made = || PromptMaker::new(template, self.model.tokenizer());
        Ok(self.prompts.get_or_init(made))
    }

    /// # Errors
    /// Its experts are read by threads of the parent process.
    pub(crate) fn check_process(&self) -> Result<(), Failure> {
        match self.model.experts() {
            Some(_) => self.process.check(),
            None => Ok(()),
        }
    }

    fn info(&self) -> ModelInfo {
        let (config, tokenizer) = (self.model.config(), self.model.tokenizer());
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let token = |token: Option<u32>| token.and_then(|t| i32::try_from(t).ok()).unwrap_or(-1);
        ModelInfo {
            weight_bytes: self.model.weights().weight_bytes() as u64,
            n_vocab: tokenizer.n_vocab(),
            n_ctx_train: number(config.n_ctx_train),
            n_embd: number(config.n_embd),
            n_layer: number(config.n_layer()),
            token_bos: token(tokenizer.bos()),
            token_eos: token(tokenizer.eos()),
            ..ModelInfo::DEFAULT
        }
    }
}

/// Threads that may move among all CPUs of the process, as the host decides how its cores are
/// shared. As many as requested; 0 is one per physical core.
pub(crate) fn start_team(asked: u32) -> Result<Team, Failure> {
    let cores = Cores::detect();
    let n = match asked as usize {
        0 => cores.default_workers(),
        n if n <= WORKERS_MAX => n,
        n => {
            let message = format_args!("n_threads is {n}, more than the maximum of {WORKERS_MAX}");
            return Err(Failure::new(Status::SLUICE_INVALID_ARGUMENT, message));
        }
    };
    let options = WorkerOptions {
        bind: Bind::Together,
        ..WorkerOptions::default()
    };
    Team::with_options(n, &cores, options).map_err(|error| {
        let message = format_args!("cannot start {n} threads: {error}");
        Failure::new(Status::SLUICE_OUT_OF_MEMORY, message)
    })
}

fn open_failure(error: OpenError) -> Failure {
    match error {
        OpenError::Load(error) => load_failure(error),
        error => Failure::new(Status::SLUICE_INVALID_MODEL, error),
    }
}

fn file_failure(error: FileError) -> Failure {
    Failure::new(Status::SLUICE_INVALID_MODEL, error)
}

/// A text cannot be tokenized.
pub(crate) fn encode_failure(error: EncodeError) -> Failure {
    let status = match error {
        EncodeError::Memory { .. } => Status::SLUICE_OUT_OF_MEMORY,
        _ => Status::SLUICE_INVALID_ARGUMENT,
    };
    Failure::new(status, format_args!("cannot encode the text: {error}"))
}

pub(crate) fn load_failure(error: LoadError) -> Failure {
    let status = match error {
        LoadError::Memory { .. } => Status::SLUICE_OUT_OF_MEMORY,
        LoadError::Experts(ExpertError::Memory(_)) => Status::SLUICE_OUT_OF_MEMORY,
        LoadError::Experts(
            ExpertError::NoExperts { .. }
            | ExpertError::NoFile { .. }
            | ExpertError::TooSmall { .. }
            | ExpertError::TooSmallForLayer { .. }
            | ExpertError::Device { .. },
        ) => Status::SLUICE_INVALID_ARGUMENT,
        LoadError::Panicked(_) => Status::SLUICE_INTERNAL,
        _ => Status::SLUICE_INVALID_MODEL,
    };
    Failure::new(status, error)
}

/// A session cannot be created.
pub(crate) fn session_failure(error: SessionError) -> Failure {
    let status = match error {
        SessionError::Memory { .. } => Status::SLUICE_OUT_OF_MEMORY,
        _ => Status::SLUICE_INVALID_ARGUMENT,
    };
    Failure::new(status, error)
}

/// The handle behind a pointer.
///
/// # Safety
/// - `handle` is null or a handle of this library that was not freed.
pub(crate) unsafe fn handle<'h, T>(name: &str, handle: *const T) -> Result<&'h T, Failure> {
    // SAFETY: by the caller.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::null(name))
}

/// Stores a new handle for the caller.
///
/// # Safety
/// - `out` is null or writable.
pub(crate) unsafe fn hand_out<T>(
    out: *mut *mut T,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::null("the pointer to the handle"));
    }
    // SAFETY: not null, so writable. A program that ignores the status finds null.
    unsafe { out.write(ptr::null_mut()) };
    let made = Box::into_raw(Box::new(make()?));
    // SAFETY: as above.
    unsafe { out.write(made) };
    Ok(())
}

/// The default settings.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_model_params_default() -> ModelParams {
    ModelParams::DEFAULT
}

/// Opens the GGUF or .slc file at `path` and loads its weights. `params` may be null. On failure
/// `*model` is null. A model whose experts stay on disk cannot be used in a child created by fork.
///
/// # Safety
/// - `path` is a zero-terminated text, `params` null or a struct that begins with its size, whose texts
///   are null or zero-terminated, `model` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_model_open(
    path: *const c_char,
    params: *const ModelParams,
    model: *mut *mut ModelHandle,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        hand_out(model, || {
            let path = c_text("path", path)?.ok_or_else(|| Failure::null("path"))?;
            let params = self::params(params)?;
            let mode = match params.use_mmap {
                0 => LoadMode::Read,
                _ => LoadMode::usual(params.expert_cache_bytes > 0),
            };
            let file = ModelFile::open(Path::new(path), mode).map_err(file_failure)?;
            ModelHandle::load(file, &params)
        })
    })
}

/// Like `sluice_model_open`, but for a GGUF file in memory. The bytes must not change until the
/// model and its contexts are freed.
///
/// # Safety
/// - `bytes` points to `len` bytes that do not change during that time; otherwise as for
///   `sluice_model_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_model_from_bytes(
    bytes: *const u8,
    len: usize,
    params: *const ModelParams,
    model: *mut *mut ModelHandle,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        hand_out(model, || {
            if bytes.is_null() {
                return Err(Failure::null("bytes"));
            }
            let params = self::params(params)?;
            let bytes: &'static [u8] = slice("bytes", bytes, len)?;
            let file = ModelFile::from_static("the model in memory", bytes);
            let file = file.map_err(file_failure)?;
            ModelHandle::load(file, &params)
        })
    })
}

/// Frees a model; contexts that use it keep it in memory. `model` may be null.
///
/// # Safety
/// - `model` is null or a handle, which must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_model_free(model: *mut ModelHandle) {
    guard(|| {
        if !model.is_null() {
            // SAFETY: created by `hand_out`, and by the caller not freed yet.
            let model = unsafe { Box::from_raw(model) };
            if model.check_process().is_err() {
                // Its threads could not be joined.
                Box::leak(model);
            }
        }
        Ok(())
    });
}

/// Fills in `*info`.
///
/// # Safety
/// - `model` is a handle, `info` a struct that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_model_get_info(
    model: *const ModelHandle,
    info: *mut ModelInfo,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        let model = handle("model", model)?;
        if info.is_null() {
            return Err(Failure::null("info"));
        }
        check_out(info)?;
        give(info, &model.info())
    })
}

/// Tokenizes `text`. `add_special` adds the special tokens that the model needs around it;
/// `parse_special` parses the names of control tokens in it. Writes the number of tokens to
/// `*n_tokens`; with a null `tokens` only the number is written.
///
/// # Safety
/// - `model` is a handle, `text` points to `text_len` bytes, `tokens` is null or has room for
///   `capacity` tokens, `n_tokens` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_tokenize(
    model: *const ModelHandle,
    text: *const c_char,
    text_len: usize,
    add_special: bool,
    parse_special: bool,
    tokens: *mut u32,
    capacity: usize,
    n_tokens: *mut usize,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        let model = handle("model", model)?;
        let text = self::text("text", text, text_len)?;
        let options = EncodeOptions {
            add_special,
            parse_special,
        };
        let found = model.model.encode_with(text, options);
        let found = found.map_err(encode_failure)?;
        fill("tokens", &found, tokens, capacity, n_tokens)
    })
}

/// Converts tokens to text, without a terminating zero, and writes its length in bytes to
/// `*text_len`; with a null `text` only the length is written.
///
/// # Safety
/// - `model` is a handle, `tokens` points to `n_tokens` tokens, `text` is null or has room for
///   `capacity` bytes, `text_len` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_detokenize(
    model: *const ModelHandle,
    tokens: *const u32,
    n_tokens: usize,
    text: *mut c_char,
    capacity: usize,
    text_len: *mut usize,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        let model = handle("model", model)?;
        let mut whole = String::new();
        let tokenizer = model.model.tokenizer();
        let mut detokenizer = Detokenizer::new(tokenizer);
        // Each byte may become a replacement character, and so may those of an incomplete
        // character.
        let room = 3 * (tokenizer.piece_len_max() + 4);
        for &token in slice("tokens", tokens, n_tokens)? {
            let reserved = whole.try_reserve(room);
            reserved.map_err(|error| Failure::new(Status::SLUICE_OUT_OF_MEMORY, error))?;
            let pushed = detokenizer.push(tokenizer, token, |part| whole.push_str(part));
            pushed.map_err(|error| Failure::new(Status::SLUICE_INVALID_ARGUMENT, error))?;
        }
        detokenizer.finish(|part| whole.push_str(part));
        fill(
            "text",
            whole.as_bytes(),
            text.cast::<u8>(),
            capacity,
            text_len,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_is_too_small_is_the_arguments_fault() {
        let too_small = ExpertError::TooSmallForLayer {
            cache_bytes: 1,
            layer_bytes: 2,
        };
        let failure = load_failure(LoadError::Experts(too_small));
        assert_eq!(failure.status, Status::SLUICE_INVALID_ARGUMENT);
    }
}

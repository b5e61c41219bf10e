//! Contexts: a model that processes one text.

use crate::arguments::{Versioned, c_text, fill, params, slice};

use crate::model::{ModelHandle, hand_out, handle, session_failure, start_team};
use crate::process::Process;
use crate::speculation::{Asked, Speculation};
use crate::status::{Failure, Status, guard};
use core::ffi::c_char;
use core::ptr;
use sluice::core::engine::{EngineError, Wants};
use sluice::core::hash::Hash64;
use sluice::core::kernels::KvType;
use sluice::core::team::StopFlag;
use sluice::generate::{GenerateError, Next};
use sluice::host::isa;
use sluice::sequence::{ChoiceContext, ChoiceError, Choose};
use sluice::session::StepError;
use sluice::sparse::SparseMode;
use sluice::{Generator, Limits};
use sluice_text::sampling::Sampler;
use static_assertions::{assert_impl_all, const_assert_eq};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The state of one text: its KV cache, threads and working memory.
#[derive(Debug)]
pub struct Context {
    pub(crate) stop: Arc<StopFlag>,
    process: Process,
    work: Mutex<Work>,
}

/// Settings of a context. Begin with `sluice_context_params_default()`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ContextParams {
    /// Set to `sizeof` this struct.
    pub struct_bytes: usize,
    /// Context size in tokens; 0 is the size that the model was trained with.
    pub n_ctx: u32,
    /// Maximum number of prompt tokens per step.
    pub n_batch: u32,
    /// Number of threads, including the calling one; 0 is one per physical core. They are not
    /// pinned.
    pub n_threads: u32,
    /// 1 stores keys and values of q8_0, q4_0 and fp8 as they are; 0 rotates them first, which preserves more
    /// accuracy.
    pub no_kv_rotation: u32,
    /// Kernels by name (`scalar`, `avx2`, …); null for the fastest. All give identical bits.
    pub isa: *const c_char,
    /// Type of keys in the KV cache (`f32`, `f16`, `bf16`, `q8_0`, …); null is `f16`.
    pub type_k: *const c_char,
    /// Type of values; null is `f16`.
    pub type_v: *const c_char,
    /// Room for adapters: the total of those that are set at once (`sluice_adapter_info`); 0 for
    /// none.
    pub adapter_rank: u32,
    /// Maximum number of draft tokens per step, 1 to 16; 0 is 8, or 4 if the model is recurrent.
    pub n_draft: u32,
    /// Source of draft tokens that a step verifies. `auto` uses the text itself, earlier texts of the context, and
    /// `draft_model` or else the model's own head for further tokens if its file has one; `none` uses nothing. Null is
    /// `auto`. Texts, logits and hashes do not depend on it.
    pub speculation: *const c_char,
    /// A smaller model with the same vocabulary that drafts on the threads of the context; null for none. The
    /// context keeps it alive, and has a KV cache for it.
    pub draft_model: *const ModelHandle,
    /// Minimum number of draft tokens that is worth verifying, 0 to 16; fewer are discarded.
    pub n_draft_min: u32,
    /// A draft ends at a token that is less probable than this, 0 to 1.
    pub draft_p_min: f32,
    /// Which neurons are left unread: `exact`, which changes no bit and takes a file packed by neuron, or `off`. Null is
    /// `exact` where the file allows it; given by name, `exact` refuses other files. `threshold`, `target`, `top-k:N` and
    /// `budget:SHARE` change results (docs/sparsity.md), and the fingerprint of states.
    pub sparse: *const c_char,
    /// The calibration file of `threshold` and `target`; null is the one next to the model.
    pub sparse_file: *const c_char,
}

// SAFETY: numbers and pointers without padding.
unsafe impl Versioned for ContextParams {
    const NAME: &'static str = "sluice_context_params";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        n_ctx: 0,
        n_batch: 512,
        n_threads: 0,
        no_kv_rotation: 0,
        isa: ptr::null(),
        type_k: ptr::null(),
        type_v: ptr::null(),
        adapter_rank: 0,
        n_draft: 0,
        speculation: ptr::null(),
        draft_model: ptr::null(),
        n_draft_min: 0,
        draft_p_min: 0.0,
        sparse: ptr::null(),
        sparse_file: ptr::null(),
    };
}

// The layout that C programs were compiled with.
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<ContextParams>(), 96);
// A handle may be used from any thread.
assert_impl_all!(Context: Send, Sync);

/// A text, and the sampler of its tokens.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) generator: Generator,
    pub(crate) drawing: Arc<Mutex<Drawing>>,
}

/// How the tokens of the next text are chosen.
#[derive(Debug, Default)]
pub(crate) struct Drawing {
    /// `None` keeps the logits instead.
    pub(crate) sampler: Option<Sampler>,
    pub(crate) logits: Vec<f32>,
    pub(crate) hash: Hash64,
    /// The hash after each token.
    pub(crate) hashes: Vec<u64>,
}

impl Drawing {
    /// The hash over the logits of the first `n` tokens, or of all.
    pub(crate) fn hash_of(&self, n: Option<usize>) -> u64 {
        let n = n.unwrap_or(self.hashes.len());
        let last = n.checked_sub(1).and_then(|last| self.hashes.get(last));
        last.copied().unwrap_or_else(|| Hash64::new().finish())
    }
}

#[derive(Debug)]
struct Chooser(Arc<Mutex<Drawing>>);

impl Choose for Chooser {
    fn begin(&mut self) {
        if let Some(sampler) = &mut lock(&self.0).sampler {
            sampler.restart();
        }
    }

    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        let drawing = &mut *lock(&self.0);
        drawing.hash.write_f32(logits);
        drawing.hashes.push(drawing.hash.finish());
        if let Some(sampler) = &mut drawing.sampler {
            return sampler.choose(logits, choice);
        }
        drawing.logits.clear();
        drawing.logits.extend_from_slice(logits);
        Ok(0)
    }

    fn forced(&mut self) -> Vec<u32> {
        let sampler = &mut lock(&self.0).sampler;
        sampler.as_mut().map_or_else(Vec::new, Choose::forced)
    }

    fn n_allowed(&mut self, tokens: &[u32]) -> usize {
        let sampler = &mut lock(&self.0).sampler;
        let n_allowed = |sampler: &mut Sampler| sampler.n_allowed(tokens);
        sampler.as_mut().map_or(tokens.len(), n_allowed)
    }

    fn copy(&self) -> Option<Box<dyn Choose + Send>> {
        lock(&self.0).sampler.as_ref()?.copy()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// # Safety
    /// - The texts in `params` are null or zero-terminated, and its model is null or a handle.
    unsafe fn new(model: &ModelHandle, params: &ContextParams) -> Result<Self, Failure> {
        let invalid =
            |error: &dyn core::fmt::Display| Failure::new(Status::SLUICE_INVALID_ARGUMENT, error);
        model.check_process()?;
        // SAFETY: by the caller.
        let isa = unsafe { c_text("isa", params.isa)? };
        // SAFETY: by the caller.
        let types = unsafe { kv_types(params)? };
        if params.no_kv_rotation > 1 {
            let given = params.no_kv_rotation;
            return Err(invalid(&format_args!(
                "no_kv_rotation is {given}, expected 0 or 1"
            )));
        }
        // SAFETY: by the caller.
        let (kind, draft) = unsafe {
            (
                c_text("speculation", params.speculation)?,
                params.draft_model.as_ref(),
            )
        };
        // SAFETY: by the caller.
        let sparse = unsafe { sparse(params)? };
        let speculation = Speculation::new(&Asked {
            kind,
            draft: draft.map(|draft| &draft.model),
            n_max: params.n_draft,
            n_min: params.n_draft_min,
            p_min: params.draft_p_min,
        })?;
        let table = isa::kernel_table(isa).map_err(|error| invalid(&error))?;
        let n_ctx = match params.n_ctx as usize {
            0 => model.model.config().n_ctx_train.max(1),
            n => n,
        };
        let limits = Limits {
            n_ctx,
            n_batch: (params.n_batch as usize).min(n_ctx),
            types: Some(types),
            kv_rotation: params.no_kv_rotation == 0,
            adapter_rank: params.adapter_rank as usize,
            n_checkpoints: 1,
            sparse,
            table: Some(table),
            ..Limits::default()
        };
        if model.model.embeds() {
            let name = model.model.name();
            return Err(invalid(&format_args!(
                "{name} is an encoder, which does not generate text"
            )));
        }
        let limits = speculation.limits(&model.model, limits);
        let team = start_team(params.n_threads)?;
        // SAFETY: by the caller.
        let own = unsafe { with_sparse(&model.model, sparse, params, team.count())? };
        let session = own.session_on(&team, limits);
        let mut session = session.map_err(session_failure)?;
        speculation.begin(&mut session, &limits)?;
        let stop = Arc::new(StopFlag::new());
        session.set_stop(Arc::clone(&stop));
        let drawing = Arc::<Mutex<Drawing>>::default();
        let chooser = Chooser(Arc::clone(&drawing));
        let generator = Generator::new(session, Box::new(chooser)).map_err(generate_failure)?;
        Ok(Self {
            stop,
            process: Process::current(),
            work: Mutex::new(Work { generator, drawing }),
        })
    }

    /// The state, for one thread at a time.
    pub(crate) fn take(&self) -> Result<MutexGuard<'_, Work>, Failure> {
        self.process.check()?;
        match self.work.try_lock() {
            Ok(work) => Ok(work),
            // A panic during a call leaves the KV cache at a whole token.
            Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                Status::SLUICE_BUSY,
                "the context is in use by another thread, or by this one in a callback",
            )),
        }
    }
}

/// The types of keys and of values.
///
/// # Safety
/// - `type_k` and `type_v` are null or zero-terminated.
unsafe fn kv_types(params: &ContextParams) -> Result<(KvType, KvType), Failure> {
    // SAFETY: by the caller.
    let names = unsafe {
        [
            c_text("type_k", params.type_k)?,
            c_text("type_v", params.type_v)?,
        ]
    };
    let [type_k, type_v] = names.map(|name| {
        let name = name.unwrap_or("f16");
        KvType::from_name(name).ok_or_else(|| {
            let message = format_args!("unknown KV type '{name}'");
            Failure::new(Status::SLUICE_INVALID_ARGUMENT, message)
        })
    });
    Ok((type_k?, type_v?))
}

/// Which neurons are left unread, if that is set.
///
/// # Safety
/// - `sparse` is null or zero-terminated.
unsafe fn sparse(params: &ContextParams) -> Result<Option<SparseMode>, Failure> {
    // SAFETY: by the caller.
    let name = unsafe { c_text("sparse", params.sparse)? };
    let mode = name.map(str::parse::<SparseMode>).transpose();
    mode.map_err(|error| {
        let message = format_args!("sparse: {error}");
        Failure::new(Status::SLUICE_INVALID_ARGUMENT, message)
    })
}

/// The model with the mode, if it changes results.
///
/// # Safety
/// - `sparse_file` is null or zero-terminated.
unsafe fn with_sparse(
    model: &sluice::Model,
    mode: Option<SparseMode>,
    params: &ContextParams,
    n_threads: usize,
) -> Result<sluice::Model, Failure> {
    // SAFETY: by the caller.
    let file = unsafe { c_text("sparse_file", params.sparse_file)? };
    let mode = mode.unwrap_or(SparseMode::Exact);
    let model = model.with_sparse(mode, file.map(Path::new), n_threads);
    model.map_err(|error| Failure::new(Status::SLUICE_INVALID_ARGUMENT, error))
}

impl Work {
    pub(crate) fn model(&self) -> &sluice::Model {
        self.generator.session().model()
    }
}

pub(crate) fn generate_failure(error: GenerateError) -> Failure {
    let status = match &error {
        GenerateError::TooLong { .. } => Status::SLUICE_CONTEXT_FULL,
        GenerateError::Step(StepError::Engine(EngineError::UnknownToken { .. })) => {
            Status::SLUICE_INVALID_ARGUMENT
        }
        GenerateError::Step(StepError::Experts(_)) => Status::SLUICE_EXPERT_FAILED,
        _ => Status::SLUICE_INTERNAL,
    };
    Failure::new(status, error)
}

/// The default settings.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_context_params_default() -> ContextParams {
    ContextParams::DEFAULT
}

/// Creates a context over a model. `params` may be null. On failure `*context` is null. A child
/// created by fork has no threads of its parent's contexts: it can free them and create new ones
/// from the model.
///
/// # Safety
/// - `model` is a handle, `params` null or a struct that begins with its size, whose texts are null or
///   zero-terminated and whose model is null or a handle, `context` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_context_new(
    model: *const ModelHandle,
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

/// Frees a context. `context` may be null.
///
/// # Safety
/// - `context` is null or a handle that no thread is using, and that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_context_free(context: *mut Context) {
    guard(|| {
        if !context.is_null() {
            // SAFETY: created by `hand_out`, and by the caller not freed yet.
            drop(unsafe { Box::from_raw(context) });
        }
        Ok(())
    });
}

/// Discards the text and a pending cancellation.
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

/// Cancels the current call on the context, or the next one if none is running: it returns
/// `SLUICE_CANCELLED` at the engine's next barrier, within microseconds to a few milliseconds, and
/// the request is consumed. May be called from any thread and from a signal handler. `context` may
/// be null.
///
/// # Safety
/// - `context` is null or a handle that is not freed during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_cancel(context: *const Context) {
    // SAFETY: by the caller. Storing a flag cannot panic.
    if let Some(context) = unsafe { context.as_ref() } {
        context.stop.stop();
    }
}

/// Computes the logits after a text of tokens, `n_vocab` numbers. A prefix that the context already
/// holds is not computed again. With a null `logits` only their number is written.
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
                "there are no tokens to decode",
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
        unsafe { fill("logits", &drawing.logits, logits, capacity, n_logits) }
    })
}

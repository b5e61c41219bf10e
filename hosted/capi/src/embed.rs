//! Embeddings of texts.

use crate::adapter::{AdapterHandle, blend, parts};
use crate::arguments::{Versioned, c_text, fill, no_room, params, slice};
use crate::model::{ModelHandle, encode_failure, hand_out, handle, session_failure, start_team};
use crate::process::Process;
use crate::status::{Failure, Status, guard};
use core::ffi::c_char;
use core::ptr;
use sluice::core::pooling::Pooling;
use sluice::embed::{EmbedOptions, Normalization};
use sluice::evaluate::EvaluateError;
use sluice::session::StepError;
use sluice::{Limits, Session};
use static_assertions::{assert_impl_all, const_assert_eq};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A model that computes embeddings. Threads that use it at the same time wait for each other.
#[derive(Debug)]
pub struct Embedder {
    session: Mutex<Session>,
    process: Process,
    n_embd: usize,
    options: EmbedOptions,
}

// A handle may be used from any thread.
assert_impl_all!(Embedder: Send, Sync);

/// Settings of an embedder. Begin with `sluice_embedder_params_default()`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EmbedderParams {
    /// Set to `sizeof` this struct.
    pub struct_bytes: usize,
    /// Maximum number of tokens per text; 0 is the size that the model was trained with.
    pub n_ctx: u32,
    /// Maximum number of tokens per step; encoders use more if a text is longer.
    pub n_batch: u32,
    /// Number of threads, including the calling one; 0 is one per physical core. They are not
    /// pinned.
    pub n_threads: u32,
    /// Vectors are divided by their p-norm with this p; 0 leaves them unscaled.
    pub norm: u32,
    /// Pooling of token vectors: `mean`, `cls` (the first) or `last`; null is the model file's
    /// setting, or else `mean`.
    pub pooling: *const c_char,
    /// Room for adapters: the total of those that are set at once (`sluice_adapter_info`); 0 for
    /// none.
    pub adapter_rank: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: numbers and pointers without padding.
unsafe impl Versioned for EmbedderParams {
    const NAME: &'static str = "sluice_embedder_params";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        n_ctx: 0,
        n_batch: 512,
        n_threads: 0,
        norm: 2,
        pooling: ptr::null(),
        adapter_rank: 0,
        reserved: 0,
    };
}

// The layout that C programs were compiled with.
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<EmbedderParams>(), 40);

impl Embedder {
    /// # Safety
    /// - The text in `params` is null or zero-terminated.
    unsafe fn new(model: &ModelHandle, params: &EmbedderParams) -> Result<Self, Failure> {
        model.check_process()?;
        let model = &model.model;
        let mut options = EmbedOptions::of(model);
        // SAFETY: by the caller.
        if let Some(name) = unsafe { c_text("pooling", params.pooling)? } {
            let known = Pooling::from_name(name).filter(|&pooling| pooling != Pooling::None);
            options.pooling = known.ok_or_else(|| {
                let message = format_args!("unknown pooling '{name}': expected mean, cls or last");
                Failure::new(Status::SLUICE_INVALID_ARGUMENT, message)
            })?;
        }
        let n_embd = model.config().n_embd;
        options.normalization = match params.norm {
            0 => Normalization::None,
            p => Normalization::PNorm(p),
        };
        let longest = match params.n_ctx as usize {
            0 => model.config().n_ctx_train,
            n => n,
        };
        let limits = Limits {
            adapter_rank: params.adapter_rank as usize,
            ..Limits::for_embedding(model, longest, (params.n_batch as usize).max(1))
        };
        let team = start_team(params.n_threads)?;
        let session = model.session_on(&team, limits).map_err(session_failure)?;
        Ok(Self {
            session: Mutex::new(session),
            process: Process::current(),
            n_embd,
            options,
        })
    }

    /// The session, behind the lock of its current user.
    fn take(&self) -> Result<MutexGuard<'_, Session>, Failure> {
        self.process.check()?;
        Ok(self.session.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<f32>, Failure> {
        let mut session = self.take()?;
        let model = session.model().clone();
        let invalid =
            |error: &dyn core::fmt::Display| Failure::new(Status::SLUICE_INVALID_ARGUMENT, error);
        let tokens = texts.iter().map(|text| model.encode(text, false));
        let tokens: Vec<_> = tokens.collect::<Result<_, _>>().map_err(encode_failure)?;
        let mut all = Vec::new();
        let reserved = all.try_reserve_exact(texts.len() * model.config().n_embd);
        reserved.map_err(|error| Failure::new(Status::SLUICE_OUT_OF_MEMORY, error))?;
        let each = |_: usize, vector: &[f32]| all.extend_from_slice(vector);
        let made = session.embed_tokens(&tokens, &self.options, each);
        made.map_err(|error| match error {
            EvaluateError::Step(error @ StepError::Experts(_)) => {
                Failure::new(Status::SLUICE_EXPERT_FAILED, error)
            }
            EvaluateError::Step(error) => Failure::new(Status::SLUICE_INTERNAL, error),
            error => invalid(&error),
        })?;
        Ok(all)
    }
}

/// The default settings: vectors of length 1.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_embedder_params_default() -> EmbedderParams {
    EmbedderParams::DEFAULT
}

/// Creates an embedder over a model: an encoder or any other. `params` may be null. On failure
/// `*embedder` is null. Like a context, it cannot be used in a child created by fork.
///
/// # Safety
/// - `model` is a handle, `params` null or a struct that begins with its size and whose text is null
///   or zero-terminated, `embedder` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_embedder_new(
    model: *const ModelHandle,
    params: *const EmbedderParams,
    embedder: *mut *mut Embedder,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        hand_out(embedder, || {
            let model = handle("model", model)?;
            Embedder::new(model, &self::params(params)?)
        })
    })
}

/// Frees an embedder. `embedder` may be null.
///
/// # Safety
/// - `embedder` is null or a handle that no thread is using, and that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_embedder_free(embedder: *mut Embedder) {
    guard(|| {
        if !embedder.is_null() {
            // SAFETY: created by `hand_out`, and by the caller not freed yet.
            drop(unsafe { Box::from_raw(embedder) });
        }
        Ok(())
    });
}

/// Applies adapters from now on, as `sluice_context_set_adapters` does for contexts.
///
/// # Safety
/// - `embedder` is a handle, `adapters` points to `n_adapters` handles, `scales` is null or points to
///   as many numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_embedder_set_adapters(
    embedder: *const Embedder,
    adapters: *const *const AdapterHandle,
    scales: *const f32,
    n_adapters: usize,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        let embedder = handle("embedder", embedder)?;
        let parts = parts(adapters, scales, n_adapters)?;
        let mut session = embedder.take()?;
        let blend = blend(&parts, &session, EmbedderParams::NAME)?;
        session.set_adapter(blend);
        Ok(())
    })
}

/// Computes a vector for each text, stored consecutively: (n_texts, n_embd). Writes the number of
/// floats to `*n_numbers`; with a null `vectors` nothing else is done.
///
/// # Safety
/// - `embedder` is a handle, `texts` points to `n_texts` zero-terminated texts, `vectors` is null
///   or has room for `capacity` numbers, `n_numbers` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_embed(
    embedder: *const Embedder,
    texts: *const *const c_char,
    n_texts: usize,
    vectors: *mut f32,
    capacity: usize,
    n_numbers: *mut usize,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        let embedder = handle("embedder", embedder)?;
        let texts = slice("texts", texts, n_texts)?.iter();
        let texts = texts.map(|&text| c_text("text", text)?.ok_or_else(|| Failure::null("text")));
        let texts: Vec<&str> = texts.collect::<Result<_, _>>()?;
        let n = texts.len().saturating_mul(embedder.n_embd);
        if vectors.is_null() || capacity < n {
            // Nothing is computed if the buffer is too small.
            return no_room("vectors", n, vectors, capacity, n_numbers);
        }
        let made = embedder.embed(&texts)?;
        fill("vectors", &made, vectors, capacity, n_numbers)
    })
}

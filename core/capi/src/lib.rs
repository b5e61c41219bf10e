//! The Sluice engine for C programs without a C library: firmware, kernels, other runtimes. The
//! header is `include/sluice_core.h`; `docs/embedding.md` shows how to link.
//!
//! The library allocates nothing and calls only the functions passed to it. The host provides the
//! model's bytes, memory of the size returned by `sluice_core_memory_bytes`, a stack of 64 KiB and,
//! to use several cores, a function that runs jobs on them. All state is in that memory: to end,
//! stop using it.
#![no_std]
#![expect(
    clippy::result_large_err,
    reason = "a message cannot be allocated without a heap"
)]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a function hands all of its arguments on under one promise of the caller's"
)]

#[cfg(all(sluice_freestanding, target_arch = "x86_64"))]
mod freestanding;
mod state;

use core::ffi::{c_char, c_void};
use core::fmt;
use sluice_core::team::StopFlag;
use state::{Failure, Settings, State};
use static_assertions::const_assert_eq;

/// The version of this interface.
pub const SLUICE_CORE_ABI_VERSION: u32 = 2;

/// Required alignment of the host's memory, in bytes.
pub const SLUICE_CORE_ALIGN: usize = 128;

/// The result of a function.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "the names that C programs use")]
pub enum Status {
    /// Success.
    SLUICE_CORE_OK = 0,
    /// A required pointer is null, or the memory is misaligned.
    SLUICE_CORE_BAD_POINTER = 1,
    /// A setting is out of range.
    SLUICE_CORE_INVALID_ARGUMENT = 2,
    /// The bytes are not a model that can be run.
    SLUICE_CORE_INVALID_MODEL = 3,
    /// The memory is too small.
    SLUICE_CORE_OUT_OF_MEMORY = 4,
    /// The text does not fit into the context.
    SLUICE_CORE_CONTEXT_FULL = 5,
    /// Ended by the callback or by `sluice_core_cancel`.
    SLUICE_CORE_CANCELLED = 6,
}

/// An error. Functions fill it in on failure unless the pointer is null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Error {
    /// The status that is returned.
    pub status: Status,
    /// What failed and where, terminated by a zero.
    pub message: [c_char; 244],
}

// The layout that C programs were compiled with.
const_assert_eq!(size_of::<Status>(), 4);
const_assert_eq!(size_of::<Error>(), 248);
const_assert_eq!(align_of::<Error>(), 4);

/// A part of a step: call it as `job(argument, rank)`.
pub type Job = unsafe extern "C" fn(argument: *mut c_void, rank: usize);

/// Calls `job(argument, rank)` for every rank below `n_ranks`, all at the same time, each on a core
/// or thread of its own, and returns when all have returned. Null to use one core.
pub type Spread = Option<
    unsafe extern "C" fn(host: *mut c_void, n_ranks: usize, job: Job, argument: *mut c_void),
>;

/// Receives text as it is generated, in whole UTF-8 characters; returns whether to continue.
pub type Callback = Option<
    unsafe extern "C" fn(piece: *const c_char, piece_len: usize, user_data: *mut c_void) -> bool,
>;

/// Settings of an engine. Begin with `sluice_core_params_default()`, and pass the same settings to
/// `sluice_core_memory_bytes` and `sluice_core_init`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// `SLUICE_CORE_ABI_VERSION`.
    pub abi_version: u32,
    /// Context size in tokens; 0 is the size that the model was trained with.
    pub n_ctx: u32,
    /// Maximum number of prompt tokens per step, 1 to 256. Does not change the results.
    pub n_batch: u32,
    /// Number of cores per step, 1 to 256; more than 1 requires `spread`. Does not change the
    /// results.
    pub n_threads: u32,
    /// Maximum length of a prompt, in bytes.
    pub prompt_bytes: u32,
    /// Temperature; 0 always picks the most likely token.
    pub temperature: f32,
    /// Random seed.
    pub seed: u64,
    /// Runs a step on several cores.
    pub spread: Spread,
    /// Passed to `spread`.
    pub host: *mut c_void,
    /// 1 parses the names of control tokens in a prompt; use 0 for text from other people.
    pub parse_special: u32,
    /// Must be 0.
    pub reserved: u32,
}

#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<Params>(), 56);

/// An engine in the host's memory. It runs only the model; adapters (LoRA) are available in `sluice.h` and in Rust.
// No reference to a whole one is created: `state` is borrowed exclusively during generation, while
// the rest is used from other cores and interrupts.
pub struct Core {
    /// Set by `sluice_core_cancel`.
    stop: StopFlag,
    /// The kernels in use. Never changes.
    isa: &'static str,
    /// Exclusive to its user.
    state: State,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

/// One core, the model's own context size, prompts of up to 4096 bytes, temperature 0.8, seed 0.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_core_params_default() -> Params {
    Params {
        abi_version: SLUICE_CORE_ABI_VERSION,
        n_ctx: 0,
        n_batch: 256,
        n_threads: 1,
        prompt_bytes: 4096,
        temperature: 0.8,
        seed: 0,
        spread: None,
        host: core::ptr::null_mut(),
        parse_special: 1,
        reserved: 0,
    }
}

/// Computes the memory needed for the model in `bytes`, including its weights, from the header
/// alone.
///
/// # Safety
/// - `bytes` points to `len` bytes; `params`, `memory_bytes` and `error` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_core_memory_bytes(
    bytes: *const u8,
    len: usize,
    params: *const Params,
    memory_bytes: *mut usize,
    error: *mut Error,
) -> Status {
    let outcome = (|| {
        // SAFETY: by the caller.
        let (file, settings) = unsafe { (file(bytes, len)?, settings(params)?) };
        // SAFETY: by the caller.
        let out = unsafe { memory_bytes.as_mut() }.ok_or_else(null)?;
        *out = state::memory_bytes(file, &settings)?;
        Ok(())
    })();
    // SAFETY: by the caller.
    unsafe { report(outcome, error) }
}

/// Loads the GGUF model in `bytes` into `memory`, which must be aligned to `SLUICE_CORE_ALIGN`. Both
/// belong to the library as long as `*core` is used; the bytes must not change.
///
/// # Safety
/// - `bytes` points to `len` bytes, `memory` to `memory_len` bytes that nothing else uses; the
///   other pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_core_init(
    bytes: *const u8,
    len: usize,
    params: *const Params,
    memory: *mut c_void,
    memory_len: usize,
    core: *mut *mut Core,
    error: *mut Error,
) -> Status {
    let outcome = (|| {
        // SAFETY: by the caller.
        let (file, settings) = unsafe { (file(bytes, len)?, settings(params)?) };
        // SAFETY: by the caller.
        let out = unsafe { core.as_mut() }.ok_or_else(null)?;
        *out = core::ptr::null_mut();
        if memory.is_null() {
            return Err(null());
        }
        // SAFETY: by the caller.
        let memory = unsafe { core::slice::from_raw_parts_mut(memory.cast::<u8>(), memory_len) };
        *out = state::init(file, settings, memory)?;
        Ok(())
    })();
    // SAFETY: by the caller.
    unsafe { report(outcome, error) }
}

/// Continues the text so far with `prompt`, and generates at most `n_predict` tokens. The callback
/// may be null.
///
/// # Safety
/// - `core` is null or was returned by `sluice_core_init`, and during the call only
///   `sluice_core_cancel` and `sluice_core_isa` use it; `prompt` points to `prompt_len` bytes; the
///   callback may be called with `user_data`; `error` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_core_generate(
    core: *mut Core,
    prompt: *const c_char,
    prompt_len: usize,
    n_predict: usize,
    callback: Callback,
    user_data: *mut c_void,
    error: *mut Error,
) -> Status {
    let outcome = (|| {
        // SAFETY: by the caller.
        let (stop, state) = unsafe { parts(core) }.ok_or_else(null)?;
        // SAFETY: by the caller.
        let prompt = unsafe { file(prompt.cast::<u8>(), prompt_len)? };
        let not_utf8 = Failure::new(
            Status::SLUICE_CORE_INVALID_ARGUMENT,
            &"the prompt is not UTF-8",
        );
        let prompt = core::str::from_utf8(prompt).map_err(|_| not_utf8)?;
        state.generate(stop, prompt, n_predict, |piece| {
            let Some(callback) = callback else {
                return true;
            };
            // SAFETY: by the caller; the piece is valid during the call.
            unsafe { callback(piece.as_ptr().cast(), piece.len(), user_data) }
        })
    })();
    // SAFETY: by the caller.
    unsafe { report(outcome, error) }
}

/// Discards the text and a pending cancellation. `core` may be null.
///
/// # Safety
/// - `core` is null or was returned by `sluice_core_init`, and nothing else is using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_core_reset(core: *mut Core) {
    // SAFETY: by the caller.
    if let Some((stop, state)) = unsafe { parts(core) } {
        state.reset();
        stop.clear();
    }
}

/// Ends the current generation, or the next one if none is running, with `SLUICE_CORE_CANCELLED`.
/// May be called from another core or an interrupt. `core` may be null.
///
/// # Safety
/// - `core` is null or was returned by `sluice_core_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_core_cancel(core: *const Core) {
    if core.is_null() {
        return;
    }
    // SAFETY: by the caller it points to a Core. Only the flag is borrowed, to which no
    // exclusive reference (see `parts`), and its store is atomic.
    let stop = unsafe { &(*core).stop };
    stop.stop();
}

/// A hash over the bits of all logits since the last reset from which tokens were drawn: equal on
/// every CPU, with any number of cores. 0 if `core` is null.
///
/// # Safety
/// - `core` is null or was returned by `sluice_core_init`, and nothing else is using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_core_logits_hash(core: *const Core) -> u64 {
    // SAFETY: by the caller, if it is not null, it points to a Core whose state is not in use.
    let state = (!core.is_null()).then(|| unsafe { &(*core).state });
    state.map_or(0, |state| state.hash.finish())
}

/// The name of the kernels in use, such as `avx2`, with its length in `*len`. Null if `core` is
/// null.
///
/// # Safety
/// - `core` is null or was returned by `sluice_core_init`; `len` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_core_isa(core: *const Core, len: *mut usize) -> *const c_char {
    // SAFETY: by the caller, if it is not null, it points to a Core, whose `isa` never changes.
    let name = (!core.is_null()).then(|| unsafe { (*core).isa });
    // SAFETY: by the caller.
    if let Some(len) = unsafe { len.as_mut() } {
        *len = name.map_or(0, str::len);
    }
    name.map_or(core::ptr::null(), |name| name.as_ptr().cast())
}

/// The flag, which is shared, and the state, which is exclusive; `None` for null.
///
/// # Safety
/// - `core` is null or was returned by `sluice_core_init`; while the state is borrowed, only the
///   other fields are used.
unsafe fn parts<'c>(core: *mut Core) -> Option<(&'c StopFlag, &'c mut State)> {
    if core.is_null() {
        return None;
    }
    // SAFETY: by the caller it points to a Core; two fields are borrowed, not the whole.
    Some(unsafe { (&(*core).stop, &mut (*core).state) })
}

fn null() -> Failure {
    let what = &"a pointer that has to point somewhere is null";
    Failure::new(Status::SLUICE_CORE_BAD_POINTER, what)
}

/// # Safety
/// - `bytes` is null or points to `len` bytes that live for the stated lifetime.
unsafe fn file<'f>(bytes: *const u8, len: usize) -> Result<&'f [u8], Failure> {
    match (bytes.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null()),
        // SAFETY: by the caller.
        (false, _) => Ok(unsafe { core::slice::from_raw_parts(bytes, len) }),
    }
}

/// # Safety
/// - `params` is null or points to settings.
unsafe fn settings(params: *const Params) -> Result<Settings, Failure> {
    // SAFETY: by the caller.
    let params = unsafe { params.as_ref() };
    let params = params
        .copied()
        .unwrap_or_else(|| sluice_core_params_default());
    Settings::new(&params)
}

/// # Safety
/// - `error` is null or writable.
unsafe fn report(outcome: Result<(), Failure>, error: *mut Error) -> Status {
    let Err(failure) = outcome else {
        return Status::SLUICE_CORE_OK;
    };
    let mut message = [0; 244];
    let text = failure.message.as_bytes();
    for (to, &from) in message[..243].iter_mut().zip(text) {
        *to = c_char::from_ne_bytes([from]);
    }
    if !error.is_null() {
        let status = failure.status;
        // SAFETY: not null, so by the caller writable.
        unsafe { error.write(Error { status, message }) };
    }
    failure.status
}

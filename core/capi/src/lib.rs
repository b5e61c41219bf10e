//! The Sluice engine for C programs that have no C library: firmware, kernels, other runtimes.
//! The header is `include/sluice_core.h`; `docs/embedding.md` shows how to link.
//!
//! The library allocates nothing and calls nobody but what it is handed. The host brings the
//! model's bytes, memory of the size that `sluice_core_memory_bytes` says, a stack of 64 KiB, and
//! for more than one core a way to run a function on them. Everything lies in that memory: to
//! end, stop using it.
#![no_std]
#![expect(
    clippy::result_large_err,
    reason = "there is no heap to put a message on"
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

/// What the host's memory is aligned to, in bytes.
pub const SLUICE_CORE_ALIGN: usize = 128;

/// What a function returns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "the names that C programs use")]
pub enum Status {
    /// It is done.
    SLUICE_CORE_OK = 0,
    /// A pointer that has to point somewhere is null, or the memory is misaligned.
    SLUICE_CORE_BAD_POINTER = 1,
    /// A setting is outside its range.
    SLUICE_CORE_INVALID_ARGUMENT = 2,
    /// The bytes are no model that can be run.
    SLUICE_CORE_INVALID_MODEL = 3,
    /// The memory is too small.
    SLUICE_CORE_OUT_OF_MEMORY = 4,
    /// The text does not fit into the context.
    SLUICE_CORE_CONTEXT_FULL = 5,
    /// The callback or `sluice_core_cancel` ended it.
    SLUICE_CORE_CANCELLED = 6,
}

/// What went wrong. Functions fill it in where they fail and the pointer is not null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Error {
    /// As returned.
    pub status: Status,
    /// Names what and where; a zero ends it.
    pub message: [c_char; 244],
}

// What C programs were compiled with.
const_assert_eq!(size_of::<Status>(), 4);
const_assert_eq!(size_of::<Error>(), 248);
const_assert_eq!(align_of::<Error>(), 4);

/// A part of a step: calls `job(argument, rank)`.
pub type Job = unsafe extern "C" fn(argument: *mut c_void, rank: usize);

/// Calls `job(argument, rank)` with every rank below `n_ranks`, all at the same time, each on a
/// core or thread of its own, and returns when all have returned. Null for one core.
pub type Spread = Option<
    unsafe extern "C" fn(host: *mut c_void, n_ranks: usize, job: Job, argument: *mut c_void),
>;

/// Is handed a text as it comes, in whole characters of UTF-8; returns whether it wants more.
pub type Callback = Option<
    unsafe extern "C" fn(piece: *const c_char, piece_len: usize, user_data: *mut c_void) -> bool,
>;

/// How the engine is made. Begin with `sluice_core_params_default()`, and hand the same to
/// `sluice_core_memory_bytes` and `sluice_core_init`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// `SLUICE_CORE_ABI_VERSION`.
    pub abi_version: u32,
    /// Tokens of context; 0 is what the model was trained on.
    pub n_ctx: u32,
    /// Most tokens of a prompt that are computed at once, 1 to 256. The results are the same.
    pub n_batch: u32,
    /// Cores that a step runs on, 1 to 256; more than 1 needs `spread`. The results are the same.
    pub n_threads: u32,
    /// Most bytes of a prompt.
    pub prompt_bytes: u32,
    /// 0 chooses the best token.
    pub temperature: f32,
    /// Key of the random numbers.
    pub seed: u64,
    /// Runs a step on several cores.
    pub spread: Spread,
    /// Handed to `spread`.
    pub host: *mut c_void,
    /// 1 reads names of control tokens in a prompt as those tokens; 0 is for text that others wrote.
    pub parse_special: u32,
    /// 0.
    pub reserved: u32,
}

#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<Params>(), 56);

/// An engine in the host's memory. It runs the model alone: adapters (LoRA) are not offered here, but in `sluice.h` and
/// to programs in Rust.
// No reference is made to the whole of one: `state` is borrowed exclusively while it generates, and
// the rest is used meanwhile, from other cores and interrupts.
pub struct Core {
    /// What `sluice_core_cancel` sets.
    stop: StopFlag,
    /// The kernels in use. Does not change.
    isa: &'static str,
    /// Who uses it has it alone.
    state: State,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

/// One core, the model's own context, prompts of 4096 bytes, temperature 0.8, seed 0.
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

/// How much memory the model in `bytes` takes, with its weights: arithmetic on the header.
///
/// # Safety
/// - `bytes` points to `len` bytes; `params`, `memory_bytes` and `error` are null or point to what
///   they say.
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

/// Loads the GGUF model in `bytes` into `memory`, which is aligned to `SLUICE_CORE_ALIGN`. Both stay the
/// library's for as long as `*core` is used; the bytes must not change.
///
/// # Safety
/// - `bytes` points to `len` bytes, `memory` to `memory_len` that nobody else uses; the other
///   pointers are null or point to what they say.
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

/// Goes on from `prompt`, with at most `n_predict` tokens, behind what was said before. The
/// callback may be null.
///
/// # Safety
/// - `core` is null or came from `sluice_core_init`, and meanwhile it is used for
///   `sluice_core_cancel` and `sluice_core_isa` alone; `prompt` points to `prompt_len` bytes; the
///   callback may be called with `user_data`; `error` is null or points to one.
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
            // SAFETY: by the caller; the piece lives during the call.
            unsafe { callback(piece.as_ptr().cast(), piece.len(), user_data) }
        })
    })();
    // SAFETY: by the caller.
    unsafe { report(outcome, error) }
}

/// Forgets what was said, and a request to cancel. Null is allowed.
///
/// # Safety
/// - `core` is null or came from `sluice_core_init`, and nobody else is using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_core_reset(core: *mut Core) {
    // SAFETY: by the caller.
    if let Some((stop, state)) = unsafe { parts(core) } {
        state.reset();
        stop.clear();
    }
}

/// Asks the generation that is running, or else the next one, to end with
/// `SLUICE_CORE_CANCELLED`. From another core or an interrupt. Null is allowed.
///
/// # Safety
/// - `core` is null or came from `sluice_core_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_core_cancel(core: *const Core) {
    if core.is_null() {
        return;
    }
    // SAFETY: by the caller it points to a Core. The flag alone is borrowed, to which nobody has an
    // exclusive reference (see `parts`), and its store is atomic.
    let stop = unsafe { &(*core).stop };
    stop.stop();
}

/// A hash over the bits of all logits that tokens were drawn from since the last reset: the same on
/// every CPU, with any number of cores. 0 for null.
///
/// # Safety
/// - `core` is null or came from `sluice_core_init`, and nobody else is using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_core_logits_hash(core: *const Core) -> u64 {
    // SAFETY: by the caller, if it is not null, it points to a Core whose state nobody uses.
    let state = (!core.is_null()).then(|| unsafe { &(*core).state });
    state.map_or(0, |state| state.hash.finish())
}

/// The kernels in use, such as `avx2`: a text that is `*len` bytes long. Null for null.
///
/// # Safety
/// - `core` is null or came from `sluice_core_init`; `len` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_core_isa(core: *const Core, len: *mut usize) -> *const c_char {
    // SAFETY: by the caller, if it is not null, it points to a Core, whose `isa` nobody writes.
    let name = (!core.is_null()).then(|| unsafe { (*core).isa });
    // SAFETY: by the caller.
    if let Some(len) = unsafe { len.as_mut() } {
        *len = name.map_or(0, str::len);
    }
    name.map_or(core::ptr::null(), |name| name.as_ptr().cast())
}

/// The flag, which is shared, and the state, which is not; `None` for null.
///
/// # Safety
/// - `core` is null or came from `sluice_core_init`; while the state is borrowed, nobody else uses
///   it: the other fields alone.
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
/// - `bytes` is null or points to `len` bytes that live as long as is said.
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
/// - `error` is null or points to room for one.
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

//! Settings for opening a model.

use crate::arguments::{Versioned, c_text};
use crate::status::{Failure, Status};
use core::ffi::c_char;
use core::fmt::Display;
use core::ptr;
use core::str::FromStr;
use sluice::core::model::Activation;
use sluice::experts::ExpertOptions;
use sluice::experts::policy::{EvictionPolicy, ExpertProfile};
use static_assertions::const_assert_eq;
use std::path::Path;

/// Settings for opening a model. Begin with `sluice_model_params_default()`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ModelParams {
    /// Set to `sizeof` this struct.
    pub struct_bytes: usize,
    /// Number of threads that load the model; 0 is one per physical core.
    pub n_threads: u32,
    /// 0 reads the file into memory, 1 maps it unless its experts stay on disk. If a mapped file is truncated while it
    /// is in use, the process gets a SIGBUS: the library installs no signal handler.
    pub use_mmap: u32,
    /// Memory for a mixture's experts, in bytes: experts stay on disk, and as many as fit are cached. 0 keeps all in
    /// memory. Also for the cold neurons of a dense model by neuron, of which 64 count as an expert.
    pub expert_cache_bytes: u64,
    /// How experts are read: `uring`, `pread` or `mmap`; null is the first that works.
    pub expert_io: *const c_char,
    /// Eviction policy: `aged`, `lru`, `lfu`, `fifo`, `heat`, or `static` with a profile; null is `aged`.
    pub expert_policy: *const c_char,
    /// Profile of the experts that `static` keeps; null for none.
    pub expert_profile: *const c_char,
    /// 1 reads experts only when their layer is reached; 0 also prefetches them by prediction.
    pub no_expert_prefetch: u32,
    /// 1 verifies the checksums of experts as they are read.
    pub expert_check: u32,
    /// The activation of the networks' gates instead of the file's: `relu`, `drelu`, or `fatrelu:0.01` with a threshold,
    /// for files of models with zeros that do not name it; null is the file's.
    pub activation: *const c_char,
}

// SAFETY: numbers and pointers without padding.
unsafe impl Versioned for ModelParams {
    const NAME: &'static str = "sluice_model_params";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        n_threads: 0,
        use_mmap: 1,
        expert_cache_bytes: 0,
        expert_io: ptr::null(),
        expert_policy: ptr::null(),
        expert_profile: ptr::null(),
        no_expert_prefetch: 0,
        expert_check: 0,
        activation: ptr::null(),
    };
}

// The layout that C programs were compiled with.
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<ModelParams>(), 64);

/// How experts are read, if they stay on disk.
///
/// # Safety
/// - The texts in `params` are null or zero-terminated.
pub(crate) unsafe fn experts(params: &ModelParams) -> Result<Option<ExpertOptions>, Failure> {
    // SAFETY: by the caller.
    let [io, policy, profile] = unsafe {
        [
            c_text("expert_io", params.expert_io)?,
            c_text("expert_policy", params.expert_policy)?,
            c_text("expert_profile", params.expert_profile)?,
        ]
    };
    let flags = [
        ("no_expert_prefetch", params.no_expert_prefetch),
        ("expert_check", params.expert_check),
    ];
    for (name, given) in flags {
        if given > 1 {
            return Err(invalid(format_args!("{name} is {given}, expected 0 or 1")));
        }
    }
    if params.expert_cache_bytes == 0 {
        return Ok(None);
    }
    let io = io.map(|name| named("expert_io", name)).transpose()?;
    let policy = match policy {
        Some(name) => named("expert_policy", name)?,
        None => EvictionPolicy::default(),
    };
    if (policy == EvictionPolicy::Static) != profile.is_some() {
        return Err(invalid(
            "expert_policy 'static' requires expert_profile, and expert_profile requires it",
        ));
    }
    let profile = profile.map(|path| ExpertProfile::read(Path::new(path)));
    let profile = profile.transpose().map_err(invalid)?;
    let bytes = usize::try_from(params.expert_cache_bytes).unwrap_or(usize::MAX);
    Ok(Some(ExpertOptions {
        io,
        policy,
        profile,
        prefetch: params.no_expert_prefetch == 0,
        check: params.expert_check == 1,
        ..ExpertOptions::new(bytes)
    }))
}

/// The activation in place of the file's, if there is one.
///
/// # Safety
/// - `activation` is null or zero-terminated.
pub(crate) unsafe fn activation(params: &ModelParams) -> Result<Option<Activation>, Failure> {
    // SAFETY: by the caller.
    let Some(name) = (unsafe { c_text("activation", params.activation)? }) else {
        return Ok(None);
    };
    let found = Activation::parse(name);
    found.map(Some).ok_or_else(|| {
        invalid(format_args!(
            "activation is '{name}', expected relu, drelu, silu, fatrelu or fatrelu:THRESHOLD"
        ))
    })
}

fn named<T: FromStr<Err: Display>>(field: &str, name: &str) -> Result<T, Failure> {
    let found = name.parse();
    found.map_err(|error| invalid(format_args!("{field} is '{name}', {error}")))
}

fn invalid(message: impl ToString) -> Failure {
    Failure::new(Status::SLUICE_INVALID_ARGUMENT, message)
}

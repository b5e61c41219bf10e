//! Adapters (LoRA): loaded for a model, and set on its contexts and embedders.

use crate::arguments::{Versioned, c_text, check_out, give, params, slice};
use crate::context::{Context, ContextParams, generate_failure};
use crate::model::{ModelHandle, hand_out, handle};
use crate::status::{Failure, Status, guard};
use core::ffi::c_char;
use core::ptr;
use sluice::Session;
use sluice::adapter::{self, AdapterBlend, AdapterLoadError, Precision};
use sluice::core::kernels::lora::LoraType;
use sluice::identity::Identity;
use static_assertions::{assert_impl_all, const_assert_eq};
use std::ffi::CString;
use std::path::Path;

/// An adapter in memory, for one model. Contexts and embedders that use it keep it alive.
#[derive(Debug)]
pub struct AdapterHandle {
    adapter: adapter::LoadedAdapter,
    /// The identity of its model.
    model: Identity,
    warnings: CString,
}

// A handle may be used from any thread.
assert_impl_all!(AdapterHandle: Send, Sync);

/// Settings for loading an adapter. Begin with `sluice_adapter_params_default()`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AdapterParams {
    /// Set to `sizeof` this struct.
    pub struct_bytes: usize,
    /// Type in memory: `int8`, `bf16`, `f16`, `f32`, or `auto`, which is the smallest of the last three
    /// that represents a matrix exactly; null is `auto`.
    pub dtype: *const c_char,
    /// Folder of the Hugging Face model that a PEFT adapter belongs to (its config.json is enough);
    /// null takes the sizes from the model.
    pub base: *const c_char,
}

// SAFETY: numbers and pointers without padding.
unsafe impl Versioned for AdapterParams {
    const NAME: &'static str = "sluice_adapter_params";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        dtype: ptr::null(),
        base: ptr::null(),
    };
}

/// Information about an adapter. Set `struct_bytes` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AdapterInfo {
    /// Set to `sizeof` this struct.
    pub struct_bytes: usize,
    /// Bytes of its matrices in memory.
    pub n_bytes: u64,
    /// Its largest rank.
    pub rank: u32,
    /// Its share of a context's `adapter_rank`: the rank, rounded up to 16.
    pub adapter_rank: u32,
    /// Parts of its file that have no effect, one sentence per line; empty if there are none. Valid
    /// as long as the handle.
    pub warnings: *const c_char,
}

// SAFETY: numbers and pointers without padding. Never read from a C program: see `give`.
unsafe impl Versioned for AdapterInfo {
    const NAME: &'static str = "sluice_adapter_info";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        n_bytes: 0,
        rank: 0,
        adapter_rank: 0,
        warnings: ptr::null(),
    };
}

// The layout that C programs were compiled with.
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<AdapterParams>(), 24);
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<AdapterInfo>(), 32);

impl AdapterHandle {
    /// # Safety
    /// - The texts in `params` are null or zero-terminated.
    unsafe fn load(
        model: &ModelHandle,
        path: &str,
        params: &AdapterParams,
    ) -> Result<Self, Failure> {
        // SAFETY: by the caller.
        let (dtype, base) =
            unsafe { (c_text("dtype", params.dtype)?, c_text("base", params.base)?) };
        let precision = precision(dtype.unwrap_or("auto"))?;
        let model = &model.model;
        let (path, base) = (Path::new(path), base.map(Path::new));
        let loaded = sluice_hf::adapter::load(path, base, model, precision);
        let (adapter, warnings) = loaded.map_err(adapter_failure)?;
        let mut warnings = warnings.join("\n").into_bytes();
        warnings.retain(|&byte| byte != 0);
        Ok(Self {
            adapter,
            model: model.identity().at_load(),
            warnings: CString::new(warnings).unwrap_or_default(),
        })
    }

    /// Its share of an `adapter_rank`.
    fn room(&self) -> usize {
        AdapterBlend::from(self.adapter.clone()).rank()
    }
}

fn precision(dtype: &str) -> Result<Precision, Failure> {
    let known = LoraType::ALL.into_iter().find(|ty| ty.name() == dtype);
    match (known, dtype) {
        (Some(ty), _) => Ok(Precision::Type(ty)),
        (None, "auto") => Ok(Precision::Exact),
        (None, _) => Err(Failure::new(
            Status::SLUICE_INVALID_ARGUMENT,
            format_args!("unknown adapter type '{dtype}': expected auto, int8, bf16, f16 or f32"),
        )),
    }
}

fn adapter_failure(error: AdapterLoadError) -> Failure {
    let status = match error {
        AdapterLoadError::Memory { .. } => Status::SLUICE_OUT_OF_MEMORY,
        _ => Status::SLUICE_INVALID_ADAPTER,
    };
    Failure::new(status, error)
}

/// The adapters and their factors as passed by a program; the factors are 1 if `scales` is null.
///
/// # Safety
/// - `adapters` points to `n` handles, `scales` is null or points to `n` numbers.
pub(crate) unsafe fn parts<'a>(
    adapters: *const *const AdapterHandle,
    scales: *const f32,
    n: usize,
) -> Result<Vec<(&'a AdapterHandle, f32)>, Failure> {
    // SAFETY: by the caller.
    let adapters = unsafe { slice("adapters", adapters, n)? };
    let scales = match scales.is_null() {
        true => None,
        // SAFETY: by the caller.
        false => Some(unsafe { slice("scales", scales, n)? }),
    };
    let parts = adapters.iter().enumerate().map(|(i, &adapter)| {
        // SAFETY: by the caller.
        let adapter = unsafe { handle(&format!("adapters[{i}]"), adapter)? };
        let scale = scales.map_or(1.0, |scales| scales[i]);
        if !scale.is_finite() {
            let message = format_args!("scales[{i}] is {scale}, expected a finite number");
            return Err(Failure::new(Status::SLUICE_INVALID_ARGUMENT, message));
        }
        Ok((adapter, scale))
    });
    parts.collect()
}

/// The blend for a session; `None` for the model alone. `params` is the name of the struct whose
/// `adapter_rank` the session was created with.
///
/// # Errors
/// An adapter belongs to another model, or there is not enough room.
pub(crate) fn blend(
    parts: &[(&AdapterHandle, f32)],
    session: &Session,
    params: &str,
) -> Result<Option<AdapterBlend>, Failure> {
    let invalid =
        |error: &dyn core::fmt::Display| Failure::new(Status::SLUICE_INVALID_ARGUMENT, error);
    if parts.is_empty() {
        return Ok(None);
    }
    let model = session.model();
    for (adapter, _) in parts {
        if adapter.model != model.identity().at_load() {
            let (path, name) = (adapter.adapter.path(), model.name());
            return Err(invalid(&format_args!(
                "{path} was loaded for a different model than {name}"
            )));
        }
    }
    let pairs = parts
        .iter()
        .map(|(adapter, scale)| (adapter.adapter.clone(), *scale));
    let blend = AdapterBlend::new(pairs.collect());
    let (needed, room) = (blend.rank(), session.limits().adapter_rank);
    if needed > room {
        let each = parts.iter().map(|(adapter, _)| {
            let path = adapter.adapter.path();
            format!("{path} needs {}", adapter.room())
        });
        let each = each.collect::<Vec<_>>().join(", ");
        return Err(invalid(&format_args!(
            "the adapters need an adapter_rank of {needed}, but {params}.adapter_rank was {room}: {each}"
        )));
    }
    Ok(Some(blend))
}

/// The default settings.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_adapter_params_default() -> AdapterParams {
    AdapterParams::DEFAULT
}

/// Loads the adapter at `path` for a model: a PEFT folder, or llama.cpp's GGUF file. `params` may be
/// null. On failure `*adapter` is null. The model may be freed before the adapter.
///
/// # Safety
/// - `model` is a handle, `path` a zero-terminated text, `params` null or a struct that begins with
///   its size and whose texts are null or zero-terminated, `adapter` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_adapter_load(
    model: *const ModelHandle,
    path: *const c_char,
    params: *const AdapterParams,
    adapter: *mut *mut AdapterHandle,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        hand_out(adapter, || {
            let model = handle("model", model)?;
            let path = c_text("path", path)?.ok_or_else(|| Failure::null("path"))?;
            AdapterHandle::load(model, path, &self::params(params)?)
        })
    })
}

/// Frees an adapter; contexts and embedders that use it keep it in memory. `adapter` may be null.
///
/// # Safety
/// - `adapter` is null or a handle, which must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_adapter_free(adapter: *mut AdapterHandle) {
    guard(|| {
        if !adapter.is_null() {
            // SAFETY: created by `hand_out`, and by the caller not freed yet.
            drop(unsafe { Box::from_raw(adapter) });
        }
        Ok(())
    });
}

/// Fills in `*info`.
///
/// # Safety
/// - `adapter` is a handle, `info` a struct that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_adapter_get_info(
    adapter: *const AdapterHandle,
    info: *mut AdapterInfo,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        let adapter = handle("adapter", adapter)?;
        if info.is_null() {
            return Err(Failure::null("info"));
        }
        check_out(info)?;
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let known = AdapterInfo {
            n_bytes: adapter.adapter.n_bytes() as u64,
            rank: number(adapter.adapter.rank()),
            adapter_rank: number(adapter.room()),
            warnings: adapter.warnings.as_ptr(),
            ..AdapterInfo::DEFAULT
        };
        give(info, &known)
    })
}

/// Applies adapters from now on, each multiplied by its factor, to generated text and to the logits of
/// `sluice_eval`. `n_adapters` 0 selects the model alone; if `scales` is null, all factors are 1. If the
/// context holds a text that was computed with other adapters, the text is discarded, because a text is
/// always computed with the same ones. The adapters must fit into the `adapter_rank` of
/// `sluice_context_params`. On failure nothing changes.
///
/// # Safety
/// - `context` is a handle, `adapters` points to `n_adapters` handles, `scales` is null or points to as
///   many numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_context_set_adapters(
    context: *const Context,
    adapters: *const *const AdapterHandle,
    scales: *const f32,
    n_adapters: usize,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        let context = handle("context", context)?;
        let parts = parts(adapters, scales, n_adapters)?;
        let mut work = context.take()?;
        let blend = blend(&parts, work.generator.session(), ContextParams::NAME)?;
        work.generator.set_adapter(blend).map_err(generate_failure)
    })
}

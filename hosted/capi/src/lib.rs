//! Sluice as a C library. The header is `include/sluice.h`; `docs/embedding.md` shows how to link.
//!
//! All objects are opaque handles. Functions return a [`Status`]; [`sluice_last_error`] has the
//! message. Panics do not cross the interface, and do not leave a handle half changed. A context is
//! used by one thread at a time ([`sluice_cancel`] may be called from any); different contexts run
//! at the same time, even over one model.
//!
//! [`sluice_last_error`]: status::sluice_last_error
//! [`sluice_cancel`]: context::sluice_cancel
//! [`Status`]: status::Status
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a function hands all of its arguments on under one promise of the caller's"
)]

pub mod adapter;
mod arguments;
pub mod chat;
pub mod context;
pub mod embed;
pub mod experts;
pub mod generate;
pub mod model;
pub mod model_params;
mod process;
mod speculation;
pub mod status;

use core::ffi::{CStr, c_char};

/// The version of this interface. A program compiled against another version must not use the
/// library.
pub const SLUICE_ABI_VERSION: u32 = 5;

/// The [`SLUICE_ABI_VERSION`] of the loaded library.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_abi_version() -> u32 {
    SLUICE_ABI_VERSION
}

/// The library's version, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("cargo's versions have no zero bytes"),
        };
    VERSION.as_ptr()
}

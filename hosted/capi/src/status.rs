//! The results of functions, and the interface that panics do not cross.

use core::cell::RefCell;
use core::ffi::{CStr, c_char};
use core::panic::AssertUnwindSafe;
use sluice::host::workers::drop_payload;
use std::ffi::CString;
use std::panic::catch_unwind;

/// The result of a function. `sluice_last_error()` describes every result except `SLUICE_OK`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "the names that C programs use")]
pub enum Status {
    /// Success.
    SLUICE_OK = 0,
    /// A required pointer is null.
    SLUICE_NULL_POINTER = 1,
    /// A setting is out of range, or a struct has another version.
    SLUICE_INVALID_ARGUMENT = 2,
    /// A text is not UTF-8.
    SLUICE_INVALID_UTF8 = 3,
    /// The file does not exist, cannot be read, or is not a model that can be run.
    SLUICE_INVALID_MODEL = 4,
    /// Not enough memory.
    SLUICE_OUT_OF_MEMORY = 5,
    /// A text has more tokens than the context.
    SLUICE_CONTEXT_FULL = 6,
    /// Ended by the callback or by `sluice_cancel`. What was done before remains valid.
    SLUICE_CANCELLED = 7,
    /// Another thread is using the context.
    SLUICE_BUSY = 8,
    /// The caller's buffer is too small; the required length was written.
    SLUICE_BUFFER_TOO_SMALL = 9,
    /// The library failed. The process is unharmed, and other handles can still be used.
    SLUICE_INTERNAL = 10,
    /// The adapter does not exist, cannot be read, or does not match the model.
    SLUICE_INVALID_ADAPTER = 11,
    /// An expert could not be read from disk. What was done before remains valid, and the next call
    /// tries again.
    SLUICE_EXPERT_FAILED = 12,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl ToString) -> Self {
        let message = message.to_string();
        Self { status, message }
    }

    /// The argument `name` is null.
    pub(crate) fn null(name: &str) -> Self {
        Self::new(Status::SLUICE_NULL_POINTER, format_args!("{name} is null"))
    }
}

/// Runs the body of a function of the library: failures and panics become a status and a message.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Failure>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return Status::SLUICE_OK,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            let text = text.unwrap_or("without a message");
            let message = format_args!("the library panicked: {text}");
            let failure = Failure::new(Status::SLUICE_INTERNAL, message);
            drop_payload(payload);
            failure
        }
    };
    let mut bytes = failure.message.into_bytes();
    bytes.retain(|&byte| byte != 0);
    let text = CString::new(bytes).unwrap_or_default();
    // A thread that is ending no longer has a message.
    let _kept = LAST_ERROR.try_with(|last| last.replace(text));
    failure.status
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Describes the last failed call of this thread; an empty text if none has failed. Valid until
/// another call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_last_error() -> *const c_char {
    LAST_ERROR
        .try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// The name of a status, such as `SLUICE_CANCELLED`.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_status_name(status: i32) -> *const c_char {
    NAMES
        .iter()
        .find(|(known, _)| *known as i32 == status)
        .map_or(c"unknown status", |(_, name)| name)
        .as_ptr()
}

const NAMES: [(Status, &CStr); 13] = [
    (Status::SLUICE_OK, c"SLUICE_OK"),
    (Status::SLUICE_NULL_POINTER, c"SLUICE_NULL_POINTER"),
    (Status::SLUICE_INVALID_ARGUMENT, c"SLUICE_INVALID_ARGUMENT"),
    (Status::SLUICE_INVALID_UTF8, c"SLUICE_INVALID_UTF8"),
    (Status::SLUICE_INVALID_MODEL, c"SLUICE_INVALID_MODEL"),
    (Status::SLUICE_OUT_OF_MEMORY, c"SLUICE_OUT_OF_MEMORY"),
    (Status::SLUICE_CONTEXT_FULL, c"SLUICE_CONTEXT_FULL"),
    (Status::SLUICE_CANCELLED, c"SLUICE_CANCELLED"),
    (Status::SLUICE_BUSY, c"SLUICE_BUSY"),
    (Status::SLUICE_BUFFER_TOO_SMALL, c"SLUICE_BUFFER_TOO_SMALL"),
    (Status::SLUICE_INTERNAL, c"SLUICE_INTERNAL"),
    (Status::SLUICE_INVALID_ADAPTER, c"SLUICE_INVALID_ADAPTER"),
    (Status::SLUICE_EXPERT_FAILED, c"SLUICE_EXPERT_FAILED"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: a text of this thread, read before another call.
        let text = unsafe { CStr::from_ptr(sluice_last_error()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_ends_at_the_border() {
        let status = guard(|| panic!("a bug, on purpose"));
        assert_eq!(status, Status::SLUICE_INTERNAL);
        assert_eq!(last_error(), "the library panicked: a bug, on purpose");
        let status = guard(|| std::panic::panic_any(7));
        assert_eq!(status, Status::SLUICE_INTERNAL);
        assert_eq!(last_error(), "the library panicked: without a message");
    }

    #[test]
    fn messages_are_each_threads_own_and_whole() {
        assert_eq!(
            guard(|| Err(Failure::null("x"))),
            Status::SLUICE_NULL_POINTER
        );
        std::thread::spawn(|| assert_eq!(last_error(), ""))
            .join()
            .unwrap();
        assert_eq!(last_error(), "x is null");
        // A zero byte would end the text for a C program.
        let zero = Failure::new(Status::SLUICE_INVALID_UTF8, "a\0b");
        assert_eq!(guard(|| Err(zero)), Status::SLUICE_INVALID_UTF8);
        assert_eq!(last_error(), "ab");
        assert_eq!(guard(|| Ok(())), Status::SLUICE_OK);
        assert_eq!(last_error(), "ab");
    }

    #[test]
    fn every_status_has_its_name() {
        for (i, (status, name)) in NAMES.iter().enumerate() {
            assert_eq!(*status as usize, i);
            assert_eq!(format!("{status:?}"), name.to_str().unwrap());
        }
        for unknown in [-1, 13] {
            // SAFETY: a text of the program.
            let name = unsafe { CStr::from_ptr(sluice_status_name(unknown)) };
            assert_eq!(name, c"unknown status");
        }
    }
}

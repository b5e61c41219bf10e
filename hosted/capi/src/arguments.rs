//! Arguments from C programs, validated before they are used.

use crate::status::{Failure, Status};
use core::ffi::{CStr, c_char};

/// A struct that grows with the library: its first field is the number of bytes in the caller's
/// version of it.
///
/// # Safety
/// - `repr(C)`, begins with a `usize`, and consists of numbers and pointers without padding that
///   matters: any bytes from a C program are a valid value.
pub(crate) unsafe trait Versioned: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// The defaults, which also apply to fields that the caller does not know.
    const DEFAULT: Self;
}

/// The settings at `params`; the defaults for null, and for fields that the caller's version lacks.
///
/// # Safety
/// - `params` is null or points to a struct of the size in its first field.
pub(crate) unsafe fn params<T: Versioned>(params: *const T) -> Result<T, Failure> {
    let mut all = T::DEFAULT;
    if params.is_null() {
        return Ok(all);
    }
    // SAFETY: not null, and every version begins with its size.
    let bytes = unsafe { params.cast::<usize>().read() };
    check_size::<T>(bytes)?;
    // SAFETY: the caller's struct has that many bytes, and ours has room for them.
    unsafe { params.cast::<u8>().copy_to((&raw mut all).cast(), bytes) };
    Ok(all)
}

/// Writes as much of `value` to `out` as the caller's version has room for; does nothing for null.
///
/// # Safety
/// - `out` is null or points to a writable struct whose first field is its size.
pub(crate) unsafe fn give<T: Versioned>(out: *mut T, value: &T) -> Result<(), Failure> {
    if out.is_null() {
        return Ok(());
    }
    // SAFETY: not null, and every version begins with its size.
    let bytes = unsafe { out.cast::<usize>().read() };
    check_size::<T>(bytes)?;
    let (from, to) = ((&raw const *value).cast::<u8>(), out.cast::<u8>());
    let first = size_of::<usize>();
    // SAFETY: both have `bytes` bytes; the first field, the caller's own, is not overwritten.
    unsafe { from.add(first).copy_to(to.add(first), bytes - first) };
    Ok(())
}

/// Whether `out` can be passed to [`give`].
///
/// # Safety
/// - As for [`give`].
pub(crate) unsafe fn check_out<T: Versioned>(out: *mut T) -> Result<(), Failure> {
    if out.is_null() {
        return Ok(());
    }
    // SAFETY: not null, and every version begins with its size.
    check_size::<T>(unsafe { out.cast::<usize>().read() })
}

fn check_size<T: Versioned>(bytes: usize) -> Result<(), Failure> {
    let ours = size_of::<T>();
    if (size_of::<usize>()..=ours).contains(&bytes) {
        return Ok(());
    }
    let name = T::NAME;
    Err(Failure::new(
        Status::SLUICE_INVALID_ARGUMENT,
        format_args!(
            "{name}.struct_bytes is {bytes}, but this library's is {ours}: initialise it with {name}_default()"
        ),
    ))
}

/// A zero-terminated text.
///
/// # Safety
/// - `text` is null or points to such a text, which lives for the stated lifetime.
pub(crate) unsafe fn c_text<'t>(
    name: &str,
    text: *const c_char,
) -> Result<Option<&'t str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    check_len(name, text.count_bytes())?;
    let utf8 = text.to_str().map_err(|error| not_utf8(name, error))?;
    Ok(Some(utf8))
}

/// # Errors
/// Texts of `len` bytes are not read: they would take many times as much memory.
fn check_len(name: &str, len: usize) -> Result<(), Failure> {
    if len <= TEXT_LEN_MAX {
        return Ok(());
    }
    let message = format_args!("{name} has {len} bytes, more than the maximum of {TEXT_LEN_MAX}");
    Err(Failure::new(Status::SLUICE_INVALID_ARGUMENT, message))
}

/// Checks that `bytes` bytes of memory are available for work whose own allocations cannot fail.
pub(crate) fn check_memory(what: &str, bytes: usize) -> Result<(), Failure> {
    let mut probe = Vec::<u8>::new();
    probe.try_reserve_exact(bytes).map_err(|_| {
        let message = format_args!("not enough memory for {what}: {bytes} bytes");
        Failure::new(Status::SLUICE_OUT_OF_MEMORY, message)
    })
}

/// Maximum length of a text: the tokenizer's own limit.
const TEXT_LEN_MAX: usize = 1 << 29;

/// The text of `len` bytes.
///
/// # Safety
/// - `text` is null or points to `len` bytes, which live for the stated lifetime.
pub(crate) unsafe fn text<'t>(
    name: &str,
    text: *const c_char,
    len: usize,
) -> Result<&'t str, Failure> {
    check_len(name, len)?;
    // SAFETY: by the caller.
    let bytes = unsafe { slice(name, text.cast::<u8>(), len)? };
    core::str::from_utf8(bytes).map_err(|error| not_utf8(name, error))
}

/// `len` elements; may be null if there are none.
///
/// # Safety
/// - `start` is null or points to `len` elements, which live for the stated lifetime.
pub(crate) unsafe fn slice<'t, T>(
    name: &str,
    start: *const T,
    len: usize,
) -> Result<&'t [T], Failure> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::null(name)),
        // SAFETY: by the caller.
        (false, _) => Ok(unsafe { core::slice::from_raw_parts(start, len) }),
    }
}

/// Copies `values` to the caller's buffer and writes their number to `len`, even if the buffer is
/// too small. With a null buffer only the number is written.
///
/// # Safety
/// - `buffer` is null or points to room for `capacity` elements; `len` points to a number.
pub(crate) unsafe fn fill<T: Copy>(
    name: &str,
    values: &[T],
    buffer: *mut T,
    capacity: usize,
    len: *mut usize,
) -> Result<(), Failure> {
    if buffer.is_null() || capacity < values.len() {
        // SAFETY: by the caller.
        return unsafe { no_room(name, values.len(), buffer, capacity, len) };
    }
    if len.is_null() {
        return Err(Failure::null("the pointer to the length"));
    }
    // SAFETY: not null, by the caller writable.
    unsafe { len.write(values.len()) };
    // SAFETY: there is room, and a buffer of the caller does not overlap ours.
    unsafe { buffer.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Ok(())
}

/// Reports the number `n` of required elements to a caller whose buffer is too small, or null, which
/// only queries the number.
///
/// # Safety
/// - `len` is null or points to a number.
pub(crate) unsafe fn no_room<T>(
    name: &str,
    n: usize,
    buffer: *mut T,
    capacity: usize,
    len: *mut usize,
) -> Result<(), Failure> {
    if len.is_null() {
        return Err(Failure::null("the pointer to the length"));
    }
    // SAFETY: not null, by the caller writable.
    unsafe { len.write(n) };
    if buffer.is_null() {
        return Ok(());
    }
    Err(Failure::new(
        Status::SLUICE_BUFFER_TOO_SMALL,
        format_args!("{name} has room for {capacity}, but {n} are needed"),
    ))
}

fn not_utf8(name: &str, error: core::str::Utf8Error) -> Failure {
    Failure::new(Status::SLUICE_INVALID_UTF8, format_args!("{name}: {error}"))
}

//! Checked views of byte memory as numbers: the one place where bytes become typed slices.

/// Plain numbers: any bit pattern is a valid value, without padding.
///
/// # Safety
/// - Every bit pattern of the type's size is a valid value.
/// - The type has no padding, no pointers and no interior mutability.
pub unsafe trait Pod: Copy + Send + Sync + 'static {}

// SAFETY: primitive integers and floats have no invalid bit patterns and no padding.
unsafe impl Pod for u8 {}
// SAFETY: as for u8.
unsafe impl Pod for i8 {}
// SAFETY: as for u8.
unsafe impl Pod for u16 {}
// SAFETY: as for u8.
unsafe impl Pod for i16 {}
// SAFETY: as for u8.
unsafe impl Pod for u32 {}
// SAFETY: as for u8.
unsafe impl Pod for u64 {}
// SAFETY: as for u8.
unsafe impl Pod for f32 {}
// SAFETY: as for u8.
unsafe impl Pod for f64 {}

/// `bytes` as a slice of `T`.
///
/// # Panics
/// If `bytes` is not aligned for `T` or not a whole number of them long.
#[inline]
pub fn cast<T: Pod>(bytes: &[u8]) -> &[T] {
    check::<T>(bytes);
    // SAFETY: alignment and length were just checked, `T` is valid for any bits, and the lifetime is tied to `bytes`.
    unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// `bytes` as a mutable slice of `T`.
///
/// # Panics
/// As [`cast`].
#[inline]
pub fn cast_mut<T: Pod>(bytes: &mut [u8]) -> &mut [T] {
    check::<T>(bytes);
    // SAFETY: as in `cast`; the borrow of `bytes` is exclusive.
    unsafe {
        core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>())
    }
}

/// The bytes of `values`, in this machine's order.
#[inline]
pub const fn of<T: Pod>(values: &[T]) -> &[u8] {
    // SAFETY: a Pod has no padding, bytes have no alignment, and the length is the size of `values`.
    unsafe { core::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

#[inline]
fn check<T>(bytes: &[u8]) {
    assert!(
        bytes.len().is_multiple_of(size_of::<T>()),
        "length is not a multiple of the element"
    );
    assert!(
        bytes.as_ptr().cast::<T>().is_aligned(),
        "bytes are misaligned for the element type"
    );
}

/// A little-endian u16 at `at`.
#[inline(always)]
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

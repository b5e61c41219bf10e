//! Values that stay at one address until their owner goes, so that others may borrow from them
//! for as long.

use core::ptr::NonNull;

/// A value on the heap. The struct that holds it holds its borrowers too, declared *before* it:
/// fields are dropped in the order of their declaration.
#[derive(Debug)]
pub(crate) struct Leaked<T>(NonNull<T>);

impl<T> Leaked<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    /// # Safety
    /// - The borrow ends before `self` is dropped, and there is no exclusive one meanwhile.
    pub(crate) const unsafe fn borrow(&self) -> &'static T {
        // SAFETY: the value lives until the drop; by the caller nobody writes to it.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    /// - The borrow ends before `self` is dropped, and there is no other meanwhile.
    pub(crate) const unsafe fn borrow_mut(&mut self) -> &'static mut T {
        // SAFETY: the value lives until the drop; by the caller this is the only access.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Leaked<T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak`, and dropped once; by the callers of the borrows none is left.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: it owns the value, like a box.
unsafe impl<T: Send> Send for Leaked<T> {}
// SAFETY: it owns the value, like a box.
unsafe impl<T: Sync> Sync for Leaked<T> {}

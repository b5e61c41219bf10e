//! A value together with what it borrows from: the one self-reference of the shell.

use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// A kind of borrowing value.
pub(crate) trait Borrower {
    /// The value that borrows for `'a`.
    type Of<'a>;

    /// Shortens the lifetime: returns `value` itself, if the compiler accepts it.
    fn shorten<'s, 'a: 's>(value: &'s Self::Of<'a>) -> &'s Self::Of<'s>;
}

/// A value of kind `K`, and the memory on the heap that it borrows from. It may be moved.
pub(crate) struct Owned<K: Borrower, M: 'static> {
    /// Dropped before the memory. Not a plain field: a reference in it must not be taken for valid
    /// while the whole is being dropped.
    value: MaybeUninit<K::Of<'static>>,
    _memory: Memory<M>,
}

/// A box that does not claim to be the only one to access its value.
struct Memory<M>(NonNull<M>);

impl<K: Borrower, M: 'static> Owned<K, M> {
    /// Stores the result of `make` together with `memory`, which it borrows.
    ///
    /// # Errors
    /// As `make`.
    pub(crate) fn new<E>(
        memory: M,
        make: impl for<'a> FnOnce(&'a mut M) -> Result<K::Of<'a>, E>,
    ) -> Result<Self, E> {
        let memory = Memory(NonNull::from(Box::leak(Box::new(memory))));
        let mut at = memory.0;
        // SAFETY: the value lives on the heap until `memory` is dropped, which is after its borrower.
        // `make` cannot keep the reference elsewhere: it takes one of any lifetime.
        let value = make(unsafe { at.as_mut() })?;
        Ok(Self {
            value: MaybeUninit::new(value),
            _memory: memory,
        })
    }

    /// The value.
    pub(crate) fn get(&self) -> &K::Of<'_> {
        // SAFETY: initialised by `new`, until the drop.
        K::shorten(unsafe { self.value.assume_init_ref() })
    }

    /// Calls `f` with the value.
    pub(crate) fn with_mut<R>(&mut self, f: impl for<'a> FnOnce(&mut K::Of<'a>) -> R) -> R {
        // SAFETY: initialised by `new`, until the drop.
        f(unsafe { self.value.assume_init_mut() })
    }
}

impl<K: Borrower, M> Drop for Owned<K, M> {
    fn drop(&mut self) {
        // SAFETY: initialised by `new`, and dropped once, before `memory`.
        unsafe { self.value.assume_init_drop() };
    }
}

impl<M> Drop for Memory<M> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak`, and dropped once; nothing borrows from it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: it owns both, like a pair of boxes.
unsafe impl<K: Borrower, M: Send> Send for Owned<K, M> where K::Of<'static>: Send {}
// SAFETY: through a shared one, only the value can be reached; the memory is freed where it is dropped.
unsafe impl<K: Borrower, M: Send> Sync for Owned<K, M> where K::Of<'static>: Sync {}

impl<K: Borrower, M> fmt::Debug for Owned<K, M>
where
    for<'a> K::Of<'a>: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.get(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;
    use std::rc::Rc;

    type Log = Rc<RefCell<Vec<&'static str>>>;

    struct Word(String, Log);
    struct Letters<'a>(&'a mut String, Log);

    impl Drop for Word {
        fn drop(&mut self) {
            self.1.borrow_mut().push("memory");
        }
    }

    impl Drop for Letters<'_> {
        fn drop(&mut self) {
            self.0.push('!');
            self.1.borrow_mut().push("value");
        }
    }

    struct Kind;

    impl Borrower for Kind {
        type Of<'a> = Letters<'a>;

        fn shorten<'s, 'a: 's>(value: &'s Letters<'a>) -> &'s Letters<'s> {
            value
        }
    }

    #[test]
    fn a_value_goes_before_what_it_borrows_from() {
        let log = Log::default();
        let word = || Word("sea".to_owned(), Rc::clone(&log));
        let refused = Owned::<Kind, _>::new(word(), |_| Err(()));
        assert!(refused.is_err());
        assert_eq!(log.take(), ["memory"]);

        let made: Result<Owned<Kind, _>, ()> =
            Owned::new(word(), |word| Ok(Letters(&mut word.0, Rc::clone(&word.1))));
        let Ok(mut owned) = made else {
            panic!("nothing failed")
        };
        owned.with_mut(|letters| letters.0.push('t'));
        let moved = Box::new(owned);
        assert_eq!(moved.get().0, "seat");
        drop(moved);
        assert_eq!(log.take(), ["value", "memory"]);
    }
}

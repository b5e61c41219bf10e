//! A sampler whose panics end its own text alone.

use super::choose::{ChoiceContext, ChoiceError, Choose, TokenReport};
use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use std::io;
use std::panic::catch_unwind;

/// A sampler that fails at its next choice after a panic in any of its methods, and is not called again.
pub(crate) struct Guarded {
    sampler: Box<dyn Choose + Send>,
    has_panicked: Cell<bool>,
}

impl Guarded {
    pub(crate) const fn new(sampler: Box<dyn Choose + Send>) -> Self {
        Self {
            sampler,
            has_panicked: Cell::new(false),
        }
    }
}

/// The result of `call`, unless it panics or an earlier one has.
fn guarded<T>(has_panicked: &Cell<bool>, call: impl FnOnce() -> T) -> Option<T> {
    let called = (!has_panicked.get()).then(|| catch_unwind(AssertUnwindSafe(call)));
    let done = called.and_then(Result::ok);
    has_panicked.set(done.is_none());
    done
}

impl Choose for Guarded {
    fn begin(&mut self) {
        guarded(&self.has_panicked, || self.sampler.begin());
    }

    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        let chosen = guarded(&self.has_panicked, || self.sampler.choose(logits, choice));
        let panicked = || ChoiceError::new(io::Error::other("the sampler panicked"));
        chosen.unwrap_or_else(|| Err(panicked()))
    }

    fn is_complete(&self) -> bool {
        guarded(&self.has_panicked, || self.sampler.is_complete()).unwrap_or(false)
    }

    fn forced(&mut self) -> Vec<u32> {
        guarded(&self.has_panicked, || self.sampler.forced()).unwrap_or_default()
    }

    fn n_allowed(&mut self, tokens: &[u32]) -> usize {
        guarded(&self.has_panicked, || self.sampler.n_allowed(tokens)).unwrap_or(0)
    }

    fn copy(&self) -> Option<Box<dyn Choose + Send>> {
        let copy = guarded(&self.has_panicked, || self.sampler.copy()).flatten()?;
        Some(Box::new(Self::new(copy)))
    }

    fn report(&self) -> Option<&TokenReport> {
        guarded(&self.has_panicked, || self.sampler.report()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken;

    impl Choose for Broken {
        fn choose(&mut self, _: &[f32], _: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
            Ok(5)
        }

        fn is_complete(&self) -> bool {
            panic!("is_complete")
        }

        fn forced(&mut self) -> Vec<u32> {
            panic!("forced")
        }

        fn n_allowed(&mut self, _: &[u32]) -> usize {
            panic!("n_allowed")
        }
    }

    #[test]
    fn a_sampler_that_panics_anywhere_fails_at_its_next_choice() {
        let choice = ChoiceContext {
            history: &[],
            position: 0,
            number: 0,
            hidden: None,
        };
        let calls: [fn(&mut Guarded) -> bool; 3] = [
            |sampler| !sampler.is_complete(),
            |sampler| sampler.forced().is_empty(),
            |sampler| sampler.n_allowed(&[1]) == 0,
        ];
        for call in calls {
            let mut sampler = Guarded::new(Box::new(Broken));
            assert!(sampler.choose(&[], &choice).is_ok());
            assert!(call(&mut sampler));
            let failed = sampler.choose(&[], &choice);
            assert!(failed.is_err_and(|error| error.to_string() == "the sampler panicked"));
        }
    }
}

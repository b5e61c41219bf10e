//! The grammar of a text. Another thread can make its next mask while the model reads the token.
#![forbid(unsafe_code)]

use crate::grammar::{Grammar, GrammarError};
use core::fmt;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard};

/// Runs work on another thread, soon or never.
pub type Helper = Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

/// Masks that take less time are made where they are needed: waking a thread takes a good part of that.
const WORTH_A_THREAD: Duration = Duration::from_micros(100);

/// A grammar, with an optional helper.
pub(super) struct Guide {
    grammar: Arc<Mutex<Grammar>>,
    /// Known without waiting for a mask.
    is_complete: bool,
    helper: Option<Helper>,
    /// Minimum time of a mask for which the helper is asked.
    pub(super) worth: Duration,
}

impl Guide {
    pub(super) fn new(grammar: Grammar) -> Self {
        Self {
            is_complete: grammar.is_complete(),
            grammar: Arc::new(Mutex::new(grammar)),
            helper: None,
            worth: WORTH_A_THREAD,
        }
    }

    pub(super) fn set_helper(&mut self, helper: Helper) {
        self.helper = Some(helper);
    }

    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The grammar, after waiting for a mask that is being made.
    ///
    /// # Errors
    /// Making a mask panicked.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, Grammar>, GrammarError> {
        let lost = || GrammarError::Run("the mask of a token could not be computed".to_owned());
        self.grammar.lock().map_err(|_| lost())
    }

    /// Changes the grammar. `prepares`: the next mask needed is the one for the changed grammar, so make it in advance.
    pub(super) fn change<T>(
        &mut self,
        prepares: bool,
        change: impl FnOnce(&mut Grammar) -> T,
    ) -> Result<T, GrammarError> {
        let mut grammar = self.lock()?;
        let changed = change(&mut grammar);
        let is_complete = grammar.is_complete();
        let is_long = grammar.mask_time() >= self.worth;
        drop(grammar);
        self.is_complete = is_complete;
        if let Some(helper) = &self.helper
            && prepares
            && is_long
            && !is_complete
        {
            let grammar = Arc::downgrade(&self.grammar);
            helper(Box::new(move || {
                // Meanwhile the text may have ended, or continued without this mask.
                if let Some(grammar) = grammar.upgrade()
                    && let Ok(mut grammar) = grammar.lock()
                {
                    // An error occurs again when the mask is needed, and is reported then.
                    let _made = grammar.mask();
                }
            }));
        }
        Ok(changed)
    }
}

impl Clone for Guide {
    /// A clone has no helper, because it is used at once.
    fn clone(&self) -> Self {
        let grammar = match self.grammar.lock() {
            Ok(grammar) => grammar.clone(),
            // The error is reported when a mask is requested.
            Err(poisoned) => poisoned.into_inner().clone(),
        };
        Self::new(grammar)
    }
}

impl fmt::Debug for Guide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guide")
            .field("is_complete", &self.is_complete)
            .finish_non_exhaustive()
    }
}

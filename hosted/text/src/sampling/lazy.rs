//! A grammar that starts in the middle of an answer, after a trigger.

use super::scan::{Found, Scan};
use crate::assistant::Triggers;
use crate::grammar::Grammar;

/// Watches a text for a trigger.
#[derive(Clone, Debug)]
pub(super) struct Lazy {
    scan: Scan,
    is_awake: bool,
}

impl Lazy {
    pub(super) fn new(triggers: Triggers) -> Self {
        Self {
            scan: Scan::new(triggers.reasoning, triggers.all),
            is_awake: false,
        }
    }

    pub(super) fn restart(&mut self) {
        self.scan.restart();
        self.is_awake = false;
    }

    /// Whether the grammar applies.
    pub(super) const fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// Adds the text of a token. Any text after a trigger is the grammar's first; if the grammar does not
    /// accept it, the trigger does not count.
    pub(super) fn push(&mut self, piece: &[u8], grammar: &mut Grammar) {
        self.scan.push(piece);
        while let Some(found) = self.scan.next() {
            let Found::Trigger(begin, end) = found else {
                continue;
            };
            let rest = self.scan.text_from(end);
            if rest.is_empty() || grammar.accept_bytes(rest) {
                self.is_awake = true;
                return;
            }
            self.scan.pass(begin);
        }
    }
}

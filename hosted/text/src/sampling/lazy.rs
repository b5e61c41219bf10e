//! A grammar that begins in the midst of an answer, behind a trigger.

use super::scan::{Found, Scan};
use crate::assistant::Triggers;
use crate::grammar::Grammar;

/// Waits for a trigger.
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

    /// Whether the grammar holds.
    pub(super) const fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// Goes on by the text of a token. What it has behind a trigger is the grammar's first; where it
    /// does not fit, there was no trigger.
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

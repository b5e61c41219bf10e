//! Scans an answer as it grows: its text including control tokens, whether reasoning is open, and
//! where a trigger ends.

use crate::assistant::{Reasoning, Trigger};

/// The state of the scan.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    reasoning: Option<Reasoning>,
    triggers: Vec<Trigger>,
    text: Vec<u8>,
    /// No mark or trigger begins before this position.
    from: usize,
    /// Start of the text outside reasoning.
    start: usize,
    is_inside: bool,
}

/// What [`Scan::next`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The beginning or end of reasoning.
    Mark,
    /// A trigger: its start and end.
    Trigger(usize, usize),
}

impl Scan {
    pub(super) fn new(reasoning: Option<Reasoning>, triggers: Vec<Trigger>) -> Self {
        Self {
            is_inside: reasoning.as_ref().is_some_and(|marks| marks.is_open),
            reasoning,
            triggers,
            text: Vec::new(),
            from: 0,
            start: 0,
        }
    }

    pub(super) fn restart(&mut self) {
        let triggers = core::mem::take(&mut self.triggers);
        *self = Self::new(self.reasoning.take(), triggers);
    }

    pub(super) fn push(&mut self, piece: &[u8]) {
        self.text.extend_from_slice(piece);
    }

    pub(super) const fn is_inside(&self) -> bool {
        self.is_inside
    }

    /// Ends reasoning, regardless of the text.
    pub(super) fn leave(&mut self) {
        self.is_inside = false;
        self.start = self.text.len();
        self.from = self.start;
    }

    /// The text from `at` on.
    pub(super) fn text_from(&self, at: usize) -> &[u8] {
        &self.text[at..]
    }

    /// Rejects the trigger found at `at` and continues after it.
    pub(super) fn pass(&mut self, at: usize) {
        self.from = at + 1;
    }

    /// Whether the text ends within a character.
    pub(super) fn is_mid_char(&self) -> bool {
        let tail = &self.text[self.text.len().saturating_sub(3)..];
        let lead = tail.iter().rposition(|byte| byte & 0xc0 != 0x80);
        lead.is_some_and(|at| {
            let expected = match tail[at] {
                0xc0..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf7 => 4,
                _ => 1,
            };
            tail.len() - at < expected
        })
    }

    /// Finds the next mark or trigger and continues after it.
    pub(super) fn next(&mut self) -> Option<Found> {
        let rest = &self.text[self.from..];
        if let Some(marks) = self.reasoning.as_ref().filter(|_| self.is_inside) {
            let close = marks.close.as_bytes();
            if let Some(at) = position(rest, close) {
                self.is_inside = false;
                self.start = self.from + at + close.len();
                self.from = self.start;
                return Some(Found::Mark);
            }
            self.keep(marks.close.len());
            return None;
        }
        let is_first = |at: usize| {
            let before = &self.text[self.start..self.from + at];
            before.iter().all(u8::is_ascii_whitespace)
        };
        let triggers = self.triggers.iter().filter_map(|trigger| {
            let at = position(rest, trigger.text.as_bytes())?;
            (!trigger.is_first || is_first(at)).then_some((at, trigger.text.len(), false))
        });
        let open = self.reasoning.iter().filter_map(|marks| {
            let at = position(rest, marks.open.as_bytes())?;
            // In the middle of content, text that looks like a mark does not count.
            let is_control = marks.open.starts_with('[') || marks.open.starts_with("<|");
            (is_control || is_first(at)).then_some((at, marks.open.len(), true))
        });
        let Some((at, len, is_open)) = triggers.chain(open).min() else {
            let texts = self.triggers.iter().map(|trigger| trigger.text.len());
            let open = self.reasoning.iter().map(|marks| marks.open.len());
            self.keep(texts.chain(open).max().unwrap_or(0));
            return None;
        };
        let begin = self.from + at;
        self.from = begin + len;
        if is_open {
            self.is_inside = true;
            return Some(Found::Mark);
        }
        Some(Found::Trigger(begin, begin + len))
    }

    /// Continues where a mark of this length may have begun.
    fn keep(&mut self, len: usize) {
        let end = self.text.len().saturating_sub(len.saturating_sub(1));
        self.from = self.from.max(end);
    }
}

fn position(text: &[u8], mark: &[u8]) -> Option<usize> {
    if mark.is_empty() {
        return None;
    }
    text.windows(mark.len()).position(|window| window == mark)
}

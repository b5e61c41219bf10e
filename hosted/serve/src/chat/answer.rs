//! An answer taken apart as it comes: content, reasoning, calls.

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delta {
    /// Of its text.
    Content(String),
}

/// Takes the answer of one choice apart.
#[derive(Debug, Default)]
pub(crate) struct Answer {}

impl Answer {
    /// What is known with the next piece of text.
    pub(crate) fn push(&mut self, piece: &str) -> Vec<Delta> {
        let _ = self;
        if piece.is_empty() {
            return Vec::new();
        }
        vec![Delta::Content(piece.to_owned())]
    }

    /// What is known when nothing more comes.
    pub(crate) fn finish(&mut self) -> Vec<Delta> {
        let _ = self;
        Vec::new()
    }
}

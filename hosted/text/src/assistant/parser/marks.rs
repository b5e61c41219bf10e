//! Marks in a text that is still coming.

/// What is known of the marks in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The mark of this number begins here.
    Mark { at: usize, number: usize },
    /// None, and none begins before this byte.
    None { clear: usize },
}

/// Looks for the first of `marks`, none of which may begin with, or lie in, another.
pub(super) fn find<'m>(text: &str, marks: impl Iterator<Item = &'m str> + Clone) -> Found {
    let found = marks
        .clone()
        .enumerate()
        .filter_map(|(number, mark)| Some((text.find(mark)?, number)))
        .min();
    if let Some((at, number)) = found {
        return Found::Mark { at, number };
    }
    let held = marks.map(|mark| overlap(text, mark)).max().unwrap_or(0);
    let clear = text.len() - held;
    Found::None { clear }
}

/// Bytes at the end of `text` with which `mark` begins, short of all of it.
pub(super) fn overlap(text: &str, mark: &str) -> usize {
    let most = text.len().min(mark.len().saturating_sub(1));
    let ends = |n: &usize| mark.is_char_boundary(*n) && text.ends_with(&mark[..*n]);
    (1..=most).rev().find(ends).unwrap_or(0)
}

/// Text that is handed on without the white space at its beginning and end.
#[derive(Clone, Debug, Default)]
pub(super) struct Trimmed {
    /// White space of which it is not known whether text follows.
    space: String,
    /// White space is not wanted before the next text.
    skips: bool,
}

impl Trimmed {
    /// Goes on: the part that is to be shown now.
    pub(super) fn push(&mut self, text: &str) -> Option<String> {
        let text = if self.skips { text.trim_start() } else { text };
        if text.is_empty() {
            return None;
        }
        self.skips = false;
        let end = text.trim_end().len();
        if end == 0 {
            self.space.push_str(text);
            return None;
        }
        let shown = core::mem::take(&mut self.space) + &text[..end];
        self.space.push_str(&text[end..]);
        Some(shown)
    }

    /// Something else comes: white space before it and behind it is not shown.
    pub(super) fn interrupt(&mut self) {
        self.space.clear();
        self.skips = true;
    }

    /// The end: white space that is left.
    pub(super) fn finish(&mut self) -> Option<String> {
        Some(core::mem::take(&mut self.space)).filter(|space| !space.is_empty())
    }
}

//! Marks in a text that is still arriving.

/// The result of a search for marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The mark with this number begins here.
    Mark { at: usize, number: usize },
    /// No mark, and none begins before this byte.
    None { clear: usize },
}

/// Finds the first of `marks`. No mark may be part of another.
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

/// The length of the end of `text` that is an incomplete beginning of `mark`.
pub(super) fn overlap(text: &str, mark: &str) -> usize {
    let most = text.len().min(mark.len().saturating_sub(1));
    let ends = |n: &usize| mark.is_char_boundary(*n) && text.ends_with(&mark[..*n]);
    (1..=most).rev().find(ends).unwrap_or(0)
}

/// Text that is passed on without leading and trailing white space.
#[derive(Clone, Debug, Default)]
pub(super) struct Trimmed {
    /// White space that is held back until text follows.
    space: String,
    /// Whether to skip white space before the next text.
    skips: bool,
}

impl Trimmed {
    /// Adds text; returns the part to be shown now.
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

    /// Marks an interruption: white space before and after it is not shown.
    pub(super) fn interrupt(&mut self) {
        self.space.clear();
        self.skips = true;
    }

    /// Ends the text; returns the remaining white space.
    pub(super) fn finish(&mut self) -> Option<String> {
        Some(core::mem::take(&mut self.space)).filter(|space| !space.is_empty())
    }
}

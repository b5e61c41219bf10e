//! Strings that end a text, found while it is being generated.

/// Watches a text for the first of some strings.
///
/// A text that may be the beginning of one is held back until it is clear that it is not, so
/// nothing of a stop string is ever shown. The result depends on the text alone, not on how
/// it was cut into pieces: the string that is complete first, or the longest of several that are
/// complete at the same place. Emitted pieces are whole characters.
///
/// ```
/// use sluice::sequence::StopStrings;
///
/// let mut stops = StopStrings::new();
/// stops.add("\nUser:", false);
/// let mut shown = String::new();
/// assert!(!stops.push("Hello.\nUs", |text| shown.push_str(text)));
/// assert_eq!(shown, "Hello.");
/// assert!(stops.push("er: more", |text| shown.push_str(text)));
/// assert_eq!(shown, "Hello.");
/// assert_eq!(stops.found(), Some("\nUser:"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Vec<StopString>,
    /// Text not emitted yet: the longest end that may begin a stop string.
    held: String,
    found: Option<usize>,
}

#[derive(Clone, Debug)]
struct StopString {
    text: String,
    is_shown: bool,
}

impl StopStrings {
    /// Without any strings: every piece passes at once.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a string; an empty one is ignored. `is_shown` emits it when it is found.
    pub fn add(&mut self, text: &str, is_shown: bool) {
        if !text.is_empty() {
            let text = text.to_owned();
            self.strings.push(StopString { text, is_shown });
        }
    }

    /// Whether there is nothing to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    /// Adds text; emits what is not part of a stop string. True when a stop string is complete: the
    /// text ends there, and anything after it is dropped.
    pub fn push(&mut self, piece: &str, mut emit: impl FnMut(&str)) -> bool {
        if self.strings.is_empty() {
            if !piece.is_empty() {
                emit(piece);
            }
            return false;
        }
        if self.found.is_some() {
            return true;
        }
        let before = self.held.len();
        self.held.push_str(piece);
        if let Some((index, end)) = self.first_complete(before) {
            let stop = &self.strings[index];
            let shown = if stop.is_shown {
                end
            } else {
                end - stop.text.len()
            };
            if shown > 0 {
                emit(&self.held[..shown]);
            }
            self.held.clear();
            self.found = Some(index);
            return true;
        }
        let free = self.free_len();
        if free > 0 {
            emit(&self.held[..free]);
            self.held.drain(..free);
        }
        false
    }

    /// Ends the text: emits what was held back.
    pub fn finish(&mut self, mut emit: impl FnMut(&str)) {
        if !self.held.is_empty() {
            emit(&self.held);
        }
        self.held.clear();
    }

    /// The string that ended the text.
    #[must_use]
    pub fn found(&self) -> Option<&str> {
        self.found.map(|index| &*self.strings[index].text)
    }

    /// Begins another text.
    pub fn restart(&mut self) {
        self.held.clear();
        self.found = None;
    }

    /// The string that is complete first, with its end in `held`, of which the first `searched`
    /// bytes hold none.
    fn first_complete(&self, searched: usize) -> Option<(usize, usize)> {
        let held = self.held.as_bytes();
        (searched + 1..=held.len()).find_map(|end| {
            let complete = self.strings.iter().enumerate();
            complete
                .filter(|(_, stop)| held[..end].ends_with(stop.text.as_bytes()))
                .max_by_key(|(index, stop)| (stop.text.len(), usize::MAX - index))
                .map(|(index, _)| (index, end))
        })
    }

    /// How much of `held` cannot be the beginning of a stop string.
    fn free_len(&self) -> usize {
        let held = self.held.as_bytes();
        let longest = self.strings.iter().map(|stop| stop.text.len()).max();
        let reach = longest.unwrap_or(0).saturating_sub(1);
        (held.len().saturating_sub(reach)..held.len())
            .find(|&start| {
                let end = &held[start..];
                let mut strings = self.strings.iter();
                strings.any(|stop| stop.text.as_bytes().starts_with(end))
            })
            .unwrap_or(held.len())
    }
}

#[cfg(test)]
mod tests;

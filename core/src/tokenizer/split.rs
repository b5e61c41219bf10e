//! Splitting a text by one rule after the other.
//!
//! A pre-tokenizer is a list of rules. The first splits the text into pieces; each further one
//! splits those pieces, and sees only the piece that it splits. Text that a rule's expression
//! does not match is a piece too. No piece is stored: every rule remembers where its current
//! piece ends, so that the words are found one by one, in order.

/// Length in bytes of the first piece of a text that is not empty: at least one character.
/// The rest is split without regard to it, as expressions look ahead only.
pub(super) type Rule = fn(&str) -> usize;

/// The words of a text.
#[derive(Clone, Debug)]
pub(super) struct Words<'t> {
    rules: &'static [Rule],
    text: &'t str,
    at: usize,
    /// For each rule, the end of its current piece.
    ends: [usize; RULES_MAX],
}

impl<'t> Words<'t> {
    pub(super) fn new(rules: &'static [Rule], text: &'t str) -> Self {
        debug_assert!(rules.len() <= RULES_MAX);
        Self {
            rules,
            text,
            at: 0,
            ends: [0; RULES_MAX],
        }
    }
}

impl<'t> Iterator for Words<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let start = self.at;
        if start == self.text.len() {
            return None;
        }
        let mut end = self.text.len();
        for (rule, piece_end) in self.rules.iter().zip(&mut self.ends) {
            if *piece_end <= start {
                let len = rule(&self.text[start..end]);
                debug_assert!(len > 0);
                *piece_end = start + len;
            }
            end = *piece_end;
        }
        self.at = end;
        Some(&self.text[start..end])
    }
}

/// Length of the first piece, where both the matches and the text between matches are pieces.
/// `matched` is the length of a match at the front of its argument, 0 for none.
///
/// Linear in the text if a failed match looks at a bounded number of characters.
#[inline]
pub(super) fn isolate(text: &str, matched: impl Fn(&str) -> usize) -> usize {
    match matched(text) {
        0 => {
            let mut starts = text.char_indices().map(|(at, _)| at).skip(1);
            let next = starts.find(|&at| matched(&text[at..]) > 0);
            next.unwrap_or(text.len())
        }
        len => len,
    }
}

/// `x+`, isolated.
#[inline]
pub(super) fn runs(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    let first = text.chars().next().is_some_and(&belongs);
    prefix_len(text, |c| belongs(c) == first)
}

/// `x{1,count}`, isolated.
#[inline]
pub(super) fn groups(text: &str, count: usize, belongs: impl Fn(char) -> bool) -> usize {
    match text.chars().next() {
        Some(first) if belongs(first) => group_len(text, count, belongs),
        _ => prefix_len(text, |c| !belongs(c)),
    }
}

/// Length in bytes of the longest prefix of at most `count` characters that all satisfy
/// `belongs`.
#[inline]
pub(super) fn group_len(text: &str, count: usize, belongs: impl Fn(char) -> bool) -> usize {
    let group = text.chars().take(count).take_while(|&c| belongs(c));
    group.map(char::len_utf8).sum()
}

/// Length in bytes of the longest prefix of characters that all satisfy `belongs`.
#[inline]
pub(super) fn prefix_len(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

/// Chameleon's is the longest list.
const RULES_MAX: usize = 6;

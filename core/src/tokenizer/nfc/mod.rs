//! Canonical composition (NFC), which some vocabularies apply to their texts.
//!
//! A character that may change, and the one before it, are decomposed, marks are sorted, and characters
//! that compose are composed. All other characters are copied.
//!
//! Sources: Unicode Standard Annex 15; The Unicode Standard, 3.11 (order of marks) and 3.12 (Hangul).

mod tables;

use crate::kernels::bytes;
use tables::{CLASSES, COMPOSITIONS, DECOMPOSITIONS, MAY_CHANGE};

/// [`DECOMPOSITIONS`], the three characters of 21 bits in a word: 8 KB less in the bare-metal image.
static STEPS: [u64; DECOMPOSITIONS.len()] = {
    let mut steps = [0; DECOMPOSITIONS.len()];
    let mut i = 0;
    while i < steps.len() {
        let [code, first, second] = DECOMPOSITIONS[i];
        steps[i] = (code as u64) << 42 | (first as u64) << 21 | second as u64;
        i += 1;
    }
    steps
};

/// A character of [`STEPS`] and what it decomposes to.
fn unpacked(step: u64) -> [u32; 3] {
    #[expect(clippy::cast_possible_truncation, reason = "of 21 bits")]
    [42, 21, 0].map(|shift| (step >> shift) as u32 & 0x1f_ffff)
}

/// Whether composing leaves every character of `text` alone. Also false for some texts in NFC.
pub(super) fn is_stable(text: &str) -> bool {
    text.is_ascii() || !text.chars().any(may_change)
}

/// Maximum factor by which a text grows.
pub(super) const GROWTH: usize = 3;

/// Maximum factor by which a text shrinks: seven bytes of U+1FBE, U+0308 and U+0301 become U+0390.
pub(super) const SHRINKAGE: usize = 4;

/// Words that suffice to compose a text of `len_bytes`: the text itself, and twice what it decomposes to,
/// at most three characters of two bytes.
pub(super) fn words_for(len_bytes: usize) -> usize {
    let text = len_bytes.saturating_mul(GROWTH) / 4;
    text.saturating_add(len_bytes.saturating_mul(3))
        .saturating_add(8)
}

/// Writes a text in NFC to the front of some words.
#[derive(Debug)]
pub(super) struct Composer<'w> {
    words: &'w mut [u32],
    len_bytes: usize,
}

impl<'w> Composer<'w> {
    pub(super) fn new(words: &'w mut [u32]) -> Self {
        Self {
            words,
            len_bytes: 0,
        }
    }

    /// Adds a text as it is; `None` if it does not fit.
    pub(super) fn push(&mut self, text: &str) -> Option<()> {
        for &byte in text.as_bytes() {
            let word = self.words.get_mut(self.len_bytes / 4)?;
            let mut bytes = word.to_ne_bytes();
            bytes[self.len_bytes % 4] = byte;
            *word = u32::from_ne_bytes(bytes);
            self.len_bytes += 1;
        }
        Some(())
    }

    /// Adds a text in NFC; `None` if it does not fit.
    pub(super) fn compose(&mut self, text: &str) -> Option<()> {
        let mut rest = text;
        while let Some(at) = rest.find(may_change) {
            let before = rest[..at].char_indices().next_back();
            let start = before.map_or(at, |(start, _)| start);
            let end = rest[at..].find(|c| !may_change(c));
            let end = end.map_or(rest.len(), |len| at + len);
            self.push(&rest[..start])?;
            self.compose_piece(&rest[start..end])?;
            rest = &rest[end..];
        }
        self.push(rest)
    }

    /// Adds characters that belong together.
    fn compose_piece(&mut self, piece: &str) -> Option<()> {
        // Far enough after the text that a written character does not overwrite the next one to be read.
        let from = self.len_bytes / 4 + 2;
        let room = self.words.get_mut(from..)?;
        let mut count = 0;
        for c in piece.chars() {
            decompose(c.into(), &mut |code| {
                *room.get_mut(count)? = u32::from(class(code)) << CLASS_SHIFT | code;
                count += 1;
                Some(())
            })?;
        }
        put_in_order(room, count)?;
        let count = join(room.get_mut(..count)?);
        for i in from..from + count {
            let c = char::from_u32(self.words[i] & CODE)?;
            self.push(c.encode_utf8(&mut [0; 4]))?;
        }
        Some(())
    }

    /// The text, and the words after it; never `None`.
    pub(super) fn finish(self) -> Option<(&'w str, &'w mut [u32])> {
        let used = self.len_bytes.div_ceil(4);
        let (text, rest) = self.words.split_at_mut_checked(used)?;
        let text = bytes::of(text).get(..self.len_bytes)?;
        Some((core::str::from_utf8(text).ok()?, rest))
    }
}

fn may_change(c: char) -> bool {
    // Most texts end here.
    c >= '\u{300}' && find(&MAY_CHANGE, c.into(), |run| [run[0], run[1]]).is_some()
}

/// The canonical combining class.
fn class(code: u32) -> u8 {
    let run = find(&CLASSES, code, |run| [run[0], run[1]]);
    run.map_or(0, |run| u8::try_from(run[2]).unwrap_or(0))
}

/// The run that a character is in.
fn find<T>(runs: &'static [T], code: u32, ends: impl Fn(&T) -> [u32; 2]) -> Option<&'static T> {
    let at = runs.partition_point(|run| ends(run)[1] < code);
    runs.get(at).filter(|run| ends(run)[0] <= code)
}

/// The canonical decomposition of a character, of at most four.
pub(super) fn decomposition(c: char) -> [Option<char>; 4] {
    let mut found = [Some(c), None, None, None];
    let mut places = found.iter_mut();
    if !c.is_ascii() {
        let _fits = decompose(c.into(), &mut |code| {
            *places.next()? = char::from_u32(code);
            Some(())
        });
    }
    found
}

/// All steps of the canonical decomposition; only the first resulting character may decompose further.
fn decompose(code: u32, push: &mut impl FnMut(u32) -> Option<()>) -> Option<()> {
    if let Some(syllable) = code.checked_sub(SYLLABLES).filter(|&n| n < SYLLABLE_COUNT) {
        push(LEADS + syllable / (VOWEL_COUNT * TRAIL_COUNT))?;
        push(VOWELS + syllable / TRAIL_COUNT % VOWEL_COUNT)?;
        let trail = syllable % TRAIL_COUNT;
        return if trail == 0 {
            Some(())
        } else {
            push(TRAILS + trail)
        };
    }
    let Ok(at) = STEPS.binary_search_by_key(&code, |step| unpacked(*step)[0]) else {
        return push(code);
    };
    let [_, first, second] = unpacked(STEPS[at]);
    decompose(first, push)?;
    if second == 0 { Some(()) } else { push(second) }
}

/// The composition of two characters.
fn composed(first: u32, second: u32) -> Option<u32> {
    let within = |code: u32, from, count| code.checked_sub(from).filter(|&n| n < count);
    if let (Some(lead), Some(vowel)) = (
        within(first, LEADS, LEAD_COUNT),
        within(second, VOWELS, VOWEL_COUNT),
    ) {
        return Some(SYLLABLES + (lead * VOWEL_COUNT + vowel) * TRAIL_COUNT);
    }
    if let (Some(syllable), Some(trail)) = (
        within(first, SYLLABLES, SYLLABLE_COUNT),
        within(second, TRAILS + 1, TRAIL_COUNT - 1),
    ) {
        return (syllable % TRAIL_COUNT == 0).then_some(first + trail + 1);
    }
    let entry = |[at]: &[u32; 1]| unpacked(STEPS[*at as usize]);
    let found = COMPOSITIONS.binary_search_by_key(&[first, second], |at| {
        let [_, first, second] = entry(at);
        [first, second]
    });
    found.ok().map(|at| entry(&COMPOSITIONS[at])[0])
}

/// Sorts consecutive marks by their class, stably. The words after the characters are room for long
/// rows.
fn put_in_order(room: &mut [u32], count: usize) -> Option<()> {
    let class = |entry: u32| entry >> CLASS_SHIFT;
    let mut start = 0;
    while start < count {
        let row = room[start..count].iter();
        let len = row.take_while(|&&entry| class(entry) != 0).count();
        let (row, behind) = room[start..].split_at_mut(len);
        if len <= SHORT_ROW {
            for end in 1..len {
                let mut at = end;
                while at > 0 && class(row[at - 1]) > class(row[at]) {
                    row.swap(at - 1, at);
                    at -= 1;
                }
            }
        } else {
            let sorted = behind.get_mut(count - start - len..)?.get_mut(..len)?;
            let (mut filled, mut last) = (0, 0);
            while filled < len {
                let higher = row.iter().map(|&entry| class(entry));
                let next = higher.filter(|&class| class > last).min()?;
                for &entry in row.iter().filter(|&&entry| class(entry) == next) {
                    sorted[filled] = entry;
                    filled += 1;
                }
                last = next;
            }
            row.copy_from_slice(sorted);
        }
        start += len + 1;
    }
    Some(())
}

/// Composes characters in order, and returns how many are left. One composes with the last of class 0 before it,
/// if nothing between them has no lower class.
fn join(entries: &mut [u32]) -> usize {
    let (mut count, mut starter, mut last_class) = (0, None, 0);
    for at in 0..entries.len() {
        let entry = entries[at];
        let class = entry >> CLASS_SHIFT;
        if let Some(starter) = starter {
            let is_next = count == starter + 1;
            let joined = (is_next || last_class < class)
                .then(|| composed(entries[starter], entry & CODE))
                .flatten();
            if let Some(code) = joined {
                entries[starter] = code;
                continue;
            }
        }
        if class == 0 {
            starter = Some(count);
        }
        last_class = class;
        entries[count] = entry;
        count += 1;
    }
    count
}

/// An entry is a character with its class above.
const CLASS_SHIFT: u32 = 24;
const CODE: u32 = (1 << CLASS_SHIFT) - 1;

/// Texts have a few marks in a row.
const SHORT_ROW: usize = 32;

const SYLLABLES: u32 = 0xac00;
const LEADS: u32 = 0x1100;
const VOWELS: u32 = 0x1161;
/// One before the first: a syllable may have none.
const TRAILS: u32 = 0x11a7;
const LEAD_COUNT: u32 = 19;
const VOWEL_COUNT: u32 = 21;
const TRAIL_COUNT: u32 = 28;
const SYLLABLE_COUNT: u32 = LEAD_COUNT * VOWEL_COUNT * TRAIL_COUNT;

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::{String, ToString as _};
    use std::vec;

    fn nfc(text: &str) -> String {
        let mut words = vec![u32::MAX; words_for(text.len())];
        let mut composer = Composer::new(&mut words);
        composer.compose(text).expect("there is room");
        let (composed, _) = composer.finish().expect("it is UTF-8");
        assert!(composed.len() <= GROWTH * text.len());
        assert!(text.len() <= SHRINKAGE * composed.len());
        assert!(!is_stable(text) || composed == text);
        composed.to_string()
    }

    /// Against Python's unicodedata: `tests/tools/nfc_tables.py --cases`.
    #[test]
    fn texts_by_chance_are_composed() {
        let mut lines = include_str!("cases.txt").split('\n');
        let mut n_changed = 0;
        while let (Some(text), Some(expected)) = (lines.next(), lines.next()) {
            assert_eq!(nfc(text), expected, "{}", text.escape_unicode());
            assert_eq!(nfc(expected), expected, "{}", expected.escape_unicode());
            n_changed += usize::from(text != expected);
        }
        assert!(n_changed > 800, "{n_changed}");
    }

    #[test]
    fn every_character_alone() {
        for c in '\0'..=char::MAX {
            let text = c.to_string();
            let composed = nfc(&text);
            assert_eq!(nfc(&composed), composed, "{c:?}");
            assert!(composed == text || may_change(c), "{c:?}");
        }
    }

    #[test]
    fn long_rows_of_marks() {
        // Above, below, above, below: the marks below come first.
        let marks = "\u{301}\u{323}".repeat(20_000);
        let composed = nfc(&std::format!("x{marks}y"));
        let expected = "\u{323}".repeat(20_000) + &"\u{301}".repeat(20_000);
        assert!(composed == std::format!("x{expected}y"));
        let composed = nfc(&std::format!("o{marks}"));
        assert!(composed.starts_with("\u{1ecd}\u{323}"));
        assert_eq!(composed.chars().count(), 40_000);
    }

    #[test]
    fn little_room_is_said() {
        let text = "xo\u{302}\u{301}y";
        let needed = (0..40).find(|&n| {
            let mut words = vec![0; n];
            let mut composer = Composer::new(&mut words);
            composer.compose(text).is_some() && composer.finish().is_some()
        });
        assert!((2..=words_for(text.len())).contains(&needed.expect("it fits")));
    }
}

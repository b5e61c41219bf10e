//! Properties of characters for tokenizers: class and base, from Unicode 15.1.0.
//!
//! One sorted table of runs answers for all classes, because a character is of exactly one of
//! them. The version is that of llama.cpp's tables: characters younger than it are
//! [`Class::Unassigned`] there, and so they must be here for texts to split alike.
//!
//! The tables are written by `tests/tools/unicode_tables.py`.

mod tables;

use super::nfc;
use tables::{RUNS, SMALL_UNCASED, SPACING_MARKS, TITLE};

/// Properties of a character that pre-tokenizers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// No character of this Unicode version.
    Unassigned,
    /// General category L.
    Letter,
    /// General category N.
    Number,
    /// Property White_Space: all of category Z, and some of category C.
    Space,
    /// General category M.
    Mark,
    /// General category P.
    Punctuation,
    /// General category S.
    Symbol,
    /// General category C, without white space and what is not assigned.
    Control,
}

/// The class of `c`.
#[inline]
pub(super) fn class(c: char) -> Class {
    match ASCII.get(c as usize) {
        Some(&class) => class,
        None => class_beyond_ascii(c),
    }
}

fn class_beyond_ascii(c: char) -> Class {
    let code = u32::from(c);
    // The run that `c` is in starts at the last entry that is not after it. Entry 0 starts at
    // code point 0, so there always is one.
    class_of(RUNS[RUNS.partition_point(|[entry]| entry >> 3 <= code) - 1][0])
}

/// Which case a letter is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// General categories Lu and Lt.
    Upper,
    /// General category Ll.
    Lower,
    /// General categories Lm and Lo; also all characters that are not letters.
    None,
}

/// The case of a letter.
pub(super) fn case(c: char) -> Case {
    // The properties Uppercase and Lowercase have more than the categories.
    match class(c) {
        Class::Letter if c.is_ascii_lowercase() => Case::Lower,
        Class::Letter if c.is_uppercase() || is_in(&TITLE, c) => Case::Upper,
        Class::Letter if c.is_lowercase() && !is_in(&SMALL_UNCASED, c) => Case::Lower,
        _ => Case::None,
    }
}

/// Whether `c` is of general category Mn.
fn is_nonspacing_mark(c: char) -> bool {
    class(c) == Class::Mark && !is_in(&SPACING_MARKS, c)
}

/// The canonical decomposition of `c` without marks of category Mn: at most three characters.
pub(super) fn without_accents(c: char) -> impl Iterator<Item = char> + Clone {
    let all = nfc::decomposition(c).into_iter().flatten();
    all.filter(|&c| !is_nonspacing_mark(c))
}

fn is_in(ranges: &[[u32; 2]], c: char) -> bool {
    let code = u32::from(c);
    let at = ranges.partition_point(|&[_, last]| last < code);
    ranges.get(at).is_some_and(|&[first, _]| first <= code)
}

/// The first character of the canonical decomposition of `c`: the letter without its accents,
/// for a syllable of Hangul its first sound, and `c` itself where nothing is to be decomposed.
pub(super) fn base(c: char) -> char {
    nfc::decomposition(c)[0].unwrap_or(c)
}

/// `c` in lower case. What this Unicode version does not know has none.
pub(super) fn lower(c: char) -> impl Iterator<Item = char> + Clone {
    let is_known = class(c) != Class::Unassigned;
    let lower = is_known.then(|| c.to_lowercase());
    let itself = if is_known { None } else { Some(c) };
    lower.into_iter().flatten().chain(itself)
}

const fn class_of(entry: u32) -> Class {
    match entry & 7 {
        0 => Class::Unassigned,
        1 => Class::Letter,
        2 => Class::Number,
        3 => Class::Space,
        4 => Class::Mark,
        5 => Class::Punctuation,
        6 => Class::Symbol,
        _ => Class::Control,
    }
}

/// The classes of ASCII, which most texts consist of.
static ASCII: [Class; 128] = {
    let mut classes = [Class::Unassigned; 128];
    let mut run = 0;
    let mut code = 0;
    while code < classes.len() {
        if (RUNS[run + 1][0] >> 3) as usize == code {
            run += 1;
        }
        classes[code] = class_of(RUNS[run][0]);
        code += 1;
    }
    classes
};

const _: () = assert!(RUNS[0][0] >> 3 == 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_ascend() {
        assert!(
            RUNS.windows(2)
                .all(|pair| pair[0][0] >> 3 < pair[1][0] >> 3)
        );
        assert!(RUNS.windows(2).all(|pair| pair[0][0] & 7 != pair[1][0] & 7));
    }

    /// The standard library's `White_Space` is the same set; its tables of letters and numbers
    /// are of a younger Unicode, so only ranges that were complete long ago are compared.
    #[test]
    fn agrees_with_the_standard_library() {
        for c in '\0'..='\u{10ffff}' {
            assert_eq!(class(c) == Class::Space, c.is_whitespace(), "{c:?}");
        }
        for c in '\0'..='\u{24f}' {
            // Outside \p{L}, only U+0345 and circled letters are alphabetic: none in here.
            assert_eq!(class(c) == Class::Letter, c.is_alphabetic(), "{c:?}");
            assert_eq!(class(c) == Class::Number, c.is_numeric(), "{c:?}");
        }
    }

    #[test]
    fn known_characters() {
        for c in "azAZéßЖאกក我あ가𐐀ªʰ".chars() {
            assert_eq!(class(c), Class::Letter, "{c}");
        }
        for c in "09½²Ⅷ٣९㊿".chars() {
            assert_eq!(class(c), Class::Number, "{c}");
        }
        for c in "_-'!«。".chars() {
            assert_eq!(class(c), Class::Punctuation, "{c}");
        }
        for c in "$+<=>^`|~￥🦙".chars() {
            assert_eq!(class(c), Class::Symbol, "{c}");
        }
        for c in "\u{300}\u{17b6}".chars() {
            assert_eq!(class(c), Class::Mark, "{c:?}");
        }
        for c in "\0\u{7f}\u{200b}\u{e000}".chars() {
            assert_eq!(class(c), Class::Control, "{c:?}");
        }
        // U+1C89 is a letter since Unicode 16 only.
        for c in "\u{1c89}\u{378}\u{10ffff}".chars() {
            assert_eq!(class(c), Class::Unassigned, "{c:?}");
        }
        // The first and last of the block that Unicode 15.1 added.
        assert_eq!(class('\u{2ebf0}'), Class::Letter);
        assert_eq!(class('\u{2ee5d}'), Class::Letter);
        assert_eq!(class('\u{2ee5e}'), Class::Unassigned);
    }

    #[test]
    fn known_bases_and_lower_cases() {
        let cases = [
            ('à', 'a'),
            ('Ǟ', 'A'),
            ('é', 'e'),
            ('각', 'ᄀ'),
            ('힣', 'ᄒ'),
            ('\u{f900}', '豈'),
            ('a', 'a'),
            ('\0', '\0'),
            ('ø', 'ø'),
            ('\u{10ffff}', '\u{10ffff}'),
        ];
        for (c, expected) in cases {
            assert_eq!(base(c), expected, "{c:?}");
        }
        for (c, expected) in [
            ('A', "a"),
            ('Я', "я"),
            ('İ', "i\u{307}"),
            ('ß', "ß"),
            ('1', "1"),
        ] {
            assert!(lower(c).eq(expected.chars()), "{c:?}");
        }
    }

    #[test]
    fn known_cases_and_decompositions() {
        for (letters, expected) in [
            ("AÅЯǅᾼ𐐀", Case::Upper),
            ("aåяßﬁ𐐨", Case::Lower),
            ("ªʰᵃǀאक我あ", Case::None),
            ("1\u{300}Ⅷⓐ", Case::None),
        ] {
            assert!(letters.chars().all(|c| case(c) == expected), "{letters}");
        }
        for (c, expected) in [
            ('a', "a"),
            ('Ǟ', "A"),
            ('각', "\u{1100}\u{1161}\u{11a8}"),
            ('거', "\u{1100}\u{1165}"),
            ('\u{bcb}', "\u{bc7}\u{bbe}"),
            ('\u{93f}', "\u{93f}"),
            ('\u{94d}', ""),
            ('\u{344}', ""),
        ] {
            assert!(without_accents(c).eq(expected.chars()), "{c:?}");
        }
    }
}

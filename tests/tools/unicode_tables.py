#!/usr/bin/env python3
"""Writes core/src/tokenizer/unicode.rs: what tokenizers ask of a character.

    python3.13 tests/tools/unicode_tables.py > core/src/tokenizer/unicode.rs

One table holds the starts of runs of equal class, three bits of class under the code point;
others what a class does not say: title case, small letters without case, spacing marks, and what
characters are when they are decomposed and have lost their accents. They must be made with a
Python whose unicodedata is of version 15.1.0: llama.cpp's own tables (src/unicode-data.cpp)
are of that version, and a letter that one of the two does not know as a letter would split
words differently.
"""

import sys
import unicodedata

VERSION = "15.1.0"
UNASSIGNED, LETTER, NUMBER, SPACE, MARK, PUNCTUATION, SYMBOL, CONTROL = range(8)
CATEGORIES = {
    "L": LETTER, "N": NUMBER, "M": MARK, "P": PUNCTUATION, "S": SYMBOL, "C": CONTROL, "Z": SPACE,
}

# Unicode's White_Space property, which unicodedata does not hold (PropList.txt; stable).
WHITE_SPACE = {
    *range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
    0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
}

HEADER = '''\
//! Properties of characters for tokenizers: class and base, from Unicode {version}.
//!
//! One sorted table of runs answers for all classes, because a character is of exactly one of
//! them. The version is that of llama.cpp's tables: characters younger than it are
//! [`Class::Unassigned`] there, and so they must be here for texts to split alike.
//!
//! Written by `tests/tools/unicode_tables.py`, with Python 3.13; do not edit by hand.

/// Properties of a character that pre-tokenizers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {{
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
}}

/// The class of `c`.
#[inline]
pub(super) fn class(c: char) -> Class {{
    match ASCII.get(c as usize) {{
        Some(&class) => class,
        None => class_beyond_ascii(c),
    }}
}}

fn class_beyond_ascii(c: char) -> Class {{
    let code = u32::from(c);
    // The run that `c` is in starts at the last entry that is not after it. Entry 0 starts at
    // code point 0, so there always is one.
    class_of(RUNS[RUNS.partition_point(|entry| entry >> 3 <= code) - 1])
}}

/// Which case a letter is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {{
    /// General categories Lu and Lt.
    Upper,
    /// General category Ll.
    Lower,
    /// General categories Lm and Lo; also all characters that are not letters.
    None,
}}

/// The case of a letter.
pub(super) fn case(c: char) -> Case {{
    // The properties Uppercase and Lowercase have more than the categories.
    match class(c) {{
        Class::Letter if c.is_ascii_lowercase() => Case::Lower,
        Class::Letter if c.is_uppercase() || is_in(&TITLE, c) => Case::Upper,
        Class::Letter if c.is_lowercase() && !is_in(&SMALL_UNCASED, c) => Case::Lower,
        _ => Case::None,
    }}
}}

/// Whether `c` is of general category Mn.
fn is_nonspacing_mark(c: char) -> bool {{
    class(c) == Class::Mark && !is_in(&SPACING_MARKS, c)
}}

/// The canonical decomposition of `c` without marks of category Mn: at most three characters.
pub(super) fn without_accents(c: char) -> impl Iterator<Item = char> + Clone {{
    let code = u32::from(c);
    let first = Some(base(c)).filter(|&base| !is_nonspacing_mark(base));
    let more = match code.checked_sub(HANGUL_FIRST) {{
        Some(syllable) if syllable < HANGUL_COUNT => {{
            let (vowel, last) = (syllable / 28 % 21, syllable % 28);
            [0x1161 + vowel, if last == 0 {{ 0 }} else {{ 0x11a7 + last }}]
        }}
        _ => match MORE.binary_search_by_key(&code, |entry| entry[0]) {{
            Ok(at) => [MORE[at][1], MORE[at][2]],
            Err(_) => [0, 0],
        }},
    }};
    let more = more.into_iter().filter(|&code| code != 0);
    first.into_iter().chain(more.filter_map(char::from_u32))
}}

/// Syllables of Hangul are decomposed by arithmetic (Unicode 3.12).
const HANGUL_FIRST: u32 = 0xac00;
const HANGUL_COUNT: u32 = 19 * 21 * 28;

fn is_in(ranges: &[[u32; 2]], c: char) -> bool {{
    let code = u32::from(c);
    let at = ranges.partition_point(|&[_, last]| last < code);
    ranges.get(at).is_some_and(|&[first, _]| first <= code)
}}

/// The first character of the canonical decomposition of `c`: the letter without its accents,
/// for a syllable of Hangul its first sound, and `c` itself where nothing is to be decomposed.
pub(super) fn base(c: char) -> char {{
    let code = u32::from(c);
    let [entry, base] = BASES[BASES.partition_point(|entry| entry[0] >> 10 <= code).max(1) - 1];
    let within = (entry >> 10..=(entry >> 10) + (entry & 0x3ff)).contains(&code);
    if within {{ char::from_u32(base).unwrap_or(c) }} else {{ c }}
}}

/// `c` in lower case. What this Unicode version does not know has none.
pub(super) fn lower(c: char) -> impl Iterator<Item = char> + Clone {{
    let is_known = class(c) != Class::Unassigned;
    let lower = is_known.then(|| c.to_lowercase());
    let itself = if is_known {{ None }} else {{ Some(c) }};
    lower.into_iter().flatten().chain(itself)
}}

const fn class_of(entry: u32) -> Class {{
    match entry & 7 {{
        0 => Class::Unassigned,
        1 => Class::Letter,
        2 => Class::Number,
        3 => Class::Space,
        4 => Class::Mark,
        5 => Class::Punctuation,
        6 => Class::Symbol,
        _ => Class::Control,
    }}
}}

/// The classes of ASCII, which most texts consist of.
static ASCII: [Class; 128] = {{
    let mut classes = [Class::Unassigned; 128];
    let mut run = 0;
    let mut code = 0;
    while code < classes.len() {{
        if (RUNS[run + 1] >> 3) as usize == code {{
            run += 1;
        }}
        classes[code] = class_of(RUNS[run]);
        code += 1;
    }}
    classes
}};

/// `code point of the first character << 3 | class`, ascending; {count} runs.
#[rustfmt::skip]
static RUNS: [u32; {count}] = [
{rows}
];

/// `code point of the first character << 10 | number of characters - 1` and the base that they
/// have in common, ascending; {base_count} entries.
#[rustfmt::skip]
static BASES: [[u32; 2]; {base_count}] = [
{base_rows}
];

/// First and last of the letters of general category Lt.
#[rustfmt::skip]
static TITLE: [[u32; 2]; {title_count}] = [
{title_rows}
];

/// The same of letters that have the property Lowercase and are of category Lm or Lo.
#[rustfmt::skip]
static SMALL_UNCASED: [[u32; 2]; {small_count}] = [
{small_rows}
];

/// The same of marks of the categories Mc and Me.
#[rustfmt::skip]
static SPACING_MARKS: [[u32; 2]; {spacing_count}] = [
{spacing_rows}
];

/// A character, and what follows the first of its canonical decomposition without Mn; Hangul apart.
#[rustfmt::skip]
static MORE: [[u32; 3]; {more_count}] = [
{more_rows}
];

const _: () = assert!(RUNS[0] >> 3 == 0);

#[cfg(test)]
mod tests {{
    use super::*;

    #[test]
    fn runs_ascend() {{
        assert!(RUNS.windows(2).all(|pair| pair[0] >> 3 < pair[1] >> 3));
        assert!(RUNS.windows(2).all(|pair| pair[0] & 7 != pair[1] & 7));
        let end = |entry: [u32; 2]| (entry[0] >> 10) + (entry[0] & 0x3ff);
        assert!(BASES.windows(2).all(|pair| end(pair[0]) < pair[1][0] >> 10));
    }}

    /// The standard library's `White_Space` is the same set; its tables of letters and numbers
    /// are of a younger Unicode, so only ranges that were complete long ago are compared.
    #[test]
    fn agrees_with_the_standard_library() {{
        for c in '\\0'..='\\u{{10ffff}}' {{
            assert_eq!(class(c) == Class::Space, c.is_whitespace(), "{{c:?}}");
        }}
        for c in '\\0'..='\\u{{24f}}' {{
            // Outside \\p{{L}}, only U+0345 and circled letters are alphabetic: none in here.
            assert_eq!(class(c) == Class::Letter, c.is_alphabetic(), "{{c:?}}");
            assert_eq!(class(c) == Class::Number, c.is_numeric(), "{{c:?}}");
        }}
    }}

    #[test]
    fn known_characters() {{
        for c in "azAZéßЖאกក我あ가𐐀ªʰ".chars() {{
            assert_eq!(class(c), Class::Letter, "{{c}}");
        }}
        for c in "09½²Ⅷ٣९㊿".chars() {{
            assert_eq!(class(c), Class::Number, "{{c}}");
        }}
        for c in "_-'!«。".chars() {{
            assert_eq!(class(c), Class::Punctuation, "{{c}}");
        }}
        for c in "$+<=>^`|~￥🦙".chars() {{
            assert_eq!(class(c), Class::Symbol, "{{c}}");
        }}
        for c in "\\u{{300}}\\u{{17b6}}".chars() {{
            assert_eq!(class(c), Class::Mark, "{{c:?}}");
        }}
        for c in "\\0\\u{{7f}}\\u{{200b}}\\u{{e000}}".chars() {{
            assert_eq!(class(c), Class::Control, "{{c:?}}");
        }}
        // U+1C89 is a letter since Unicode 16 only.
        for c in "\\u{{1c89}}\\u{{378}}\\u{{10ffff}}".chars() {{
            assert_eq!(class(c), Class::Unassigned, "{{c:?}}");
        }}
        // The first and last of the block that Unicode 15.1 added.
        assert_eq!(class('\\u{{2ebf0}}'), Class::Letter);
        assert_eq!(class('\\u{{2ee5d}}'), Class::Letter);
        assert_eq!(class('\\u{{2ee5e}}'), Class::Unassigned);
    }}

    #[test]
    fn known_bases_and_lower_cases() {{
        let cases = [
            ('à', 'a'),
            ('Ǟ', 'A'),
            ('é', 'e'),
            ('각', 'ᄀ'),
            ('힣', 'ᄒ'),
            ('\\u{{f900}}', '豈'),
            ('a', 'a'),
            ('\\0', '\\0'),
            ('ø', 'ø'),
            ('\\u{{10ffff}}', '\\u{{10ffff}}'),
        ];
        for (c, expected) in cases {{
            assert_eq!(base(c), expected, "{{c:?}}");
        }}
        for (c, expected) in [('A', "a"), ('Я', "я"), ('İ', "i\\u{{307}}"), ('ß', "ß"), ('1', "1")] {{
            assert!(lower(c).eq(expected.chars()), "{{c:?}}");
        }}
    }}

    #[test]
    fn known_cases_and_decompositions() {{
        for (letters, expected) in [
            ("AÅЯǅᾼ𐐀", Case::Upper),
            ("aåяßﬁ𐐨", Case::Lower),
            ("ªʰᵃǀאक我あ", Case::None),
            ("1\\u{{300}}Ⅷⓐ", Case::None),
        ] {{
            assert!(letters.chars().all(|c| case(c) == expected), "{{letters}}");
        }}
        for (c, expected) in [
            ('a', "a"),
            ('Ǟ', "A"),
            ('각', "\\u{{1100}}\\u{{1161}}\\u{{11a8}}"),
            ('거', "\\u{{1100}}\\u{{1165}}"),
            ('\\u{{bcb}}', "\\u{{bc7}}\\u{{bbe}}"),
            ('\\u{{93f}}', "\\u{{93f}}"),
            ('\\u{{94d}}', ""),
            ('\\u{{344}}', ""),
        ] {{
            assert!(without_accents(c).eq(expected.chars()), "{{c:?}}");
        }}
    }}
}}'''


def class_of(code):
    if code in WHITE_SPACE:
        return SPACE
    category = unicodedata.category(chr(code))
    return UNASSIGNED if category == "Cn" else CATEGORIES[category[0]]


def class_runs():
    runs, last = [], None
    for code in range(0x110000):
        here = class_of(code)
        if here != last:
            runs.append(code << 3 | here)
            last = here
    return runs


def bases():
    entries = []
    for code in range(0x110000):
        base = ord(unicodedata.normalize("NFD", chr(code))[0])
        if base == code:
            continue
        if entries and entries[-1][2] == base and entries[-1][1] == code - 1:
            entries[-1][1] = code
        else:
            entries.append([code, code, base])
    return [(first << 10 | last - first, base) for first, last, base in entries]


def ranges(belongs):
    entries = []
    for code in range(0x110000):
        if not belongs(code):
            continue
        if entries and entries[-1][1] == code - 1:
            entries[-1][1] = code
        else:
            entries.append([code, code])
    return [f"[{first:#x}, {last:#x}]," for first, last in entries]


def category(code):
    return unicodedata.category(chr(code))


def more():
    entries = []
    for code in range(0x110000):
        if 0xAC00 <= code < 0xAC00 + 19 * 21 * 28:
            continue
        rest = [c for c in unicodedata.normalize("NFD", chr(code))[1:] if category(ord(c)) != "Mn"]
        if rest:
            assert len(rest) <= 2
            entries.append([code, *map(ord, rest), *[0] * (2 - len(rest))])
    return ["[" + ", ".join(f"{code:#x}" for code in entry) + "]," for entry in entries]


def rows(items, width):
    return "\n".join(
        "    " + " ".join(items[i : i + width]) for i in range(0, len(items), width)
    )


def main():
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"this Python knows Unicode {unicodedata.unidata_version}, not {VERSION}")
    runs = [f"{run:#08x}," for run in class_runs()]
    pairs = [f"[{entry:#010x}, {base:#x}]," for entry, base in bases()]
    title = ranges(lambda code: category(code) == "Lt")
    # Python's islower() of a character is the property Lowercase.
    small = ranges(lambda code: category(code) in ("Lm", "Lo") and chr(code).islower())
    spacing = ranges(lambda code: category(code) in ("Mc", "Me"))
    others = more()
    print(
        HEADER.format(
            version=VERSION,
            count=len(runs),
            rows=rows(runs, 9),
            base_count=len(pairs),
            base_rows=rows(pairs, 4),
            title_count=len(title),
            title_rows=rows(title, 5),
            small_count=len(small),
            small_rows=rows(small, 5),
            spacing_count=len(spacing),
            spacing_rows=rows(spacing, 5),
            more_count=len(others),
            more_rows=rows(others, 4),
        )
    )


main()

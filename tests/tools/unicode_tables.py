#!/usr/bin/env python3
"""Writes core/src/tokenizer/unicode.rs: the character classes that pre-tokenizers ask for.

    python3.13 tests/tools/unicode_tables.py > core/src/tokenizer/unicode.rs

The table holds the starts of runs of equal class, two bits of class under the code point.
It must be made with a Python whose unicodedata is of version 15.1.0: llama.cpp's own table
(src/unicode-data.cpp) is of that version, and a letter that one of the two does not know as
a letter would split words differently.
"""

import sys
import unicodedata

VERSION = "15.1.0"
OTHER, LETTER, NUMBER, SPACE = range(4)

# Unicode's White_Space property, which unicodedata does not hold (PropList.txt; stable).
WHITE_SPACE = {
    *range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
    0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
}

HEADER = '''\
//! Character classes for the pre-tokenizers: `\\p{{L}}`, `\\p{{N}}` and `\\s` of Unicode {version}.
//!
//! One sorted table of runs answers all three, because a character is at most one of them.
//! The version is that of llama.cpp's table: characters younger than it are [`Class::Other`]
//! there, and so they must be here for texts to split alike.
//!
//! Written by `tests/tools/unicode_tables.py`, with Python 3.13; do not edit by hand.

/// What a pre-tokenizer wants to know of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {{
    /// Anything else: punctuation, symbols, marks, controls, unassigned code points.
    Other,
    /// General category L.
    Letter,
    /// General category N.
    Number,
    /// Property White_Space.
    Space,
}}

/// The class of `c`.
pub(super) fn class(c: char) -> Class {{
    let code = u32::from(c);
    // The run that `c` is in starts at the last entry that is not after it. Entry 0 starts at
    // code point 0, so there always is one.
    let run = RUNS.partition_point(|entry| entry >> 2 <= code) - 1;
    match RUNS[run] & 3 {{
        0 => Class::Other,
        1 => Class::Letter,
        2 => Class::Number,
        _ => Class::Space,
    }}
}}

/// `code point of the first character << 2 | class`, ascending; {count} runs.
#[rustfmt::skip]
static RUNS: [u32; {count}] = [
{rows}
];

const _: () = assert!(RUNS[0] >> 2 == 0);

#[cfg(test)]
mod tests {{
    use super::*;

    #[test]
    fn runs_ascend() {{
        assert!(RUNS.windows(2).all(|pair| pair[0] >> 2 < pair[1] >> 2));
        assert!(RUNS.windows(2).all(|pair| pair[0] & 3 != pair[1] & 3));
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
        // U+17B6 is a spacing mark, U+1C89 a letter since Unicode 16 only.
        for c in "_-'!￥🦙\\u{{200b}}\\u{{300}}\\u{{17b6}}\\u{{1c89}}\\u{{10ffff}}".chars() {{
            assert_eq!(class(c), Class::Other, "{{c:?}}");
        }}
        // The first and last of the block that Unicode 15.1 added.
        assert_eq!(class('\\u{{2ebf0}}'), Class::Letter);
        assert_eq!(class('\\u{{2ee5d}}'), Class::Letter);
        assert_eq!(class('\\u{{2ee5e}}'), Class::Other);
    }}
}}'''


def class_of(code):
    if code in WHITE_SPACE:
        return SPACE
    return {"L": LETTER, "N": NUMBER}.get(unicodedata.category(chr(code))[0], OTHER)


def main():
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"this Python knows Unicode {unicodedata.unidata_version}, not {VERSION}")
    runs, last = [], None
    for code in range(0x110000):
        here = class_of(code)
        if here != last:
            runs.append(code << 2 | here)
            last = here
    rows = "\n".join(
        "    " + " ".join(f"{run:#08x}," for run in runs[i : i + 9])
        for i in range(0, len(runs), 9)
    )
    print(HEADER.format(version=VERSION, count=len(runs), rows=rows))


main()

#!/usr/bin/env python3
"""Writes core/src/tokenizer/unicode/tables.rs: the classes of characters.

    python3.13 tests/tools/unicode_tables.py > core/src/tokenizer/unicode/tables.rs

One table holds the starts of runs of equal class, three bits of class under the code point; others what a class
does not say: title case, small letters without case, spacing marks. They must be made with a
Python whose unicodedata is of version 15.1.0: llama.cpp's own tables (src/unicode-data.cpp)
are of that version, and a letter that one of the two does not know as a letter would split
words differently.
"""

import sys
import unicodedata

from digits import static

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
            runs.append([code << 3 | here])
            last = here
    return runs


def ranges(belongs):
    entries = []
    for code in range(0x110000):
        if not belongs(code):
            continue
        if entries and entries[-1][1] == code - 1:
            entries[-1][1] = code
        else:
            entries.append([code, code])
    return entries


def category(code):
    return unicodedata.category(chr(code))


def main():
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"this Python knows Unicode {unicodedata.unidata_version}, not {VERSION}")
    print(f"""\
//! Classes of characters, from Unicode {VERSION}.
//!
//! Written by `tests/tools/unicode_tables.py`, with Python 3.13; do not edit by hand.

use crate::kernels::literals::table;""")
    print(static("`code point of the first character << 3 | class`, ascending.", "RUNS", class_runs()))
    title = ranges(lambda code: category(code) == "Lt")
    print(static("First and last of the letters of general category Lt.", "TITLE", title))
    # Python's islower() of a character is the property Lowercase.
    small = ranges(lambda code: category(code) in ("Lm", "Lo") and chr(code).islower())
    doc = "The same of letters that have the property Lowercase and are of category Lm or Lo."
    print(static(doc, "SMALL_UNCASED", small))
    spacing = ranges(lambda code: category(code) in ("Mc", "Me"))
    print(static("The same of marks of the categories Mc and Me.", "SPACING_MARKS", spacing))


main()

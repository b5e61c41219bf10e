#!/usr/bin/env python3
"""Writes core/src/tokenizer/nfc/tables.rs: what canonical composition asks of a character.

    python3.13 tests/tools/nfc_tables.py > core/src/tokenizer/nfc/tables.rs

With `--cases` it writes what core/src/tokenizer/nfc/cases.txt holds: texts by chance and their composed form,
two lines each. The version is that of unicode_tables.py, for the same reason.
"""

import random
import sys
import unicodedata

from digits import static

VERSION = "15.1.0"
HANGUL = range(0xAC00, 0xAC00 + 19 * 21 * 28)
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def decompositions():
    """One step of the canonical decomposition; Hangul is by arithmetic."""
    steps = {}
    for code in CODES:
        step = unicodedata.decomposition(chr(code))
        if step and not step.startswith("<") and code not in HANGUL:
            parts = [int(part, 16) for part in step.split()]
            steps[code] = (parts + [0])[:2]
    return steps


def runs(codes):
    """First and last of neighbours."""
    found = []
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def tables():
    steps = decompositions()
    listed = sorted(steps)
    index = {code: i for i, code in enumerate(listed)}
    composed = [code for code in listed if steps[code][1] and unicodedata.normalize("NFC", chr(code)) == chr(code)]
    composed.sort(key=lambda code: steps[code])
    seconds = {steps[code][1] for code in composed}
    classes = []
    for code in CODES:
        combining = unicodedata.combining(chr(code))
        if combining and classes and classes[-1][1] == code - 1 and classes[-1][2] == combining:
            classes[-1][1] = code
        elif combining:
            classes.append([code, code, combining])
    may_change = [
        code for code in CODES
        if unicodedata.combining(chr(code)) or code in seconds
        or 0x1161 <= code < 0x1176 or 0x11A8 <= code < 0x11C3
        or unicodedata.normalize("NFC", chr(code)) != chr(code)
    ]
    return f"""\
//! Tables for canonical composition, from Unicode {VERSION}.
//!
//! Written by `tests/tools/nfc_tables.py`, with Python 3.13; do not edit by hand.

use crate::kernels::literals::table;
""" + "".join(static(doc, name, rows) + "\n" for doc, name, rows in [
        ("First and last character of a run that texts in NFC may lack, or that composes with what is before it.",
         "MAY_CHANGE", runs(may_change)),
        ("First and last character of a run, and its canonical combining class, where that is not 0.",
         "CLASSES", classes),
        ("A character and one step of its canonical decomposition, whose second character may be none; Hangul apart.",
         "DECOMPOSITIONS", [[code, *steps[code]] for code in listed]),
        ("Those of the decompositions that are undone, by what they decompose to.",
         "COMPOSITIONS", [[index[code]] for code in composed]),
    ])


def cases():
    chance = random.Random(20261126)
    steps = decompositions()
    marks = [code for code in CODES if unicodedata.combining(chr(code))]
    letters = [code for code in steps] + [code for pair in steps.values() for code in pair if code]
    pools = [
        marks, letters, list(HANGUL), list(range(0x1100, 0x1200)), list(range(0x20, 0x7F)),
        [0x44, 0x307, 0x323, 0x31B, 0x6F, 0x302, 0x301, 0x300, 0x344, 0x345, 0x3B9, 0x1D157, 0x1D165],
        [code for code in range(0x900, 0xE00) if unicodedata.category(chr(code)) != "Cn"],
    ]
    lines = ["", ""]
    for _ in range(3000):
        pool = chance.choices(pools, k=3)
        text = "".join(chr(chance.choice(chance.choice(pool))) for _ in range(chance.randrange(1, 9)))
        lines += [text, unicodedata.normalize("NFC", text)]
    return "".join(f"{line}\n" for line in lines)


if unicodedata.unidata_version != VERSION:
    sys.exit(f"this Python has Unicode {unicodedata.unidata_version}, not {VERSION}")
sys.stdout.reconfigure(encoding="utf-8")
sys.stdout.write(cases() if "--cases" in sys.argv else tables())

//! Decimal numbers in groups of three as counted from their end: `\d{1,3}(?=(?:\d{3})*\b)`, of Cohere's models.
//!
//! A number before a letter has no boundary at its end, and is left to the next expression.

use super::classes::is_letter_or_mark;
use super::split::{group_len, prefix_len};

/// The first of two rules. The groups after the first stay together here.
pub(super) fn heads(text: &str) -> usize {
    let mut at = 0;
    while let Some(next) = text[at..].find(is_decimal) {
        at += next;
        let end = at + prefix_len(&text[at..], is_decimal);
        if text[end..].starts_with(is_of_word) {
            at = end;
            continue;
        }
        let number = &text[at..end];
        return match (at, number.chars().count() % 3) {
            (0, 0) => end,
            (0, head) => group_len(number, head, is_decimal),
            _ => at,
        };
    }
    text.len()
}

/// The second: only whole numbers end with a digit.
pub(super) fn groups(text: &str) -> usize {
    match text.ends_with(is_decimal) {
        true => group_len(text, 3, is_decimal),
        false => text.len(),
    }
}

/// General category Nd.
fn is_decimal(c: char) -> bool {
    let code = u32::from(c);
    let at = ZEROS.partition_point(|&zero| zero <= code);
    at > 0 && code - ZEROS[at - 1] < 10
}

/// What `\b` takes for a part of a word, as Oniguruma has it.
fn is_of_word(c: char) -> bool {
    const OTHERS: &str =
        "_\u{203f}\u{2040}\u{2054}\u{fe33}\u{fe34}\u{fe4d}\u{fe4e}\u{fe4f}\u{ff3f}²³¹¼½¾";
    is_letter_or_mark(c) || c.is_alphabetic() || OTHERS.contains(c)
}

/// The zeros of Unicode 15.1.0; nine more digits follow each.
#[rustfmt::skip]
static ZEROS: [u32; 68] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
    0xde6, 0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
    0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0,
    0xff10, 0x1_04a0, 0x1_0d30, 0x1_1066, 0x1_10f0, 0x1_1136, 0x1_11d0, 0x1_12f0, 0x1_1450,
    0x1_14d0, 0x1_1650, 0x1_16c0, 0x1_1730, 0x1_18e0, 0x1_1950, 0x1_1c50, 0x1_1d50, 0x1_1da0,
    0x1_1f50, 0x1_6a60, 0x1_6ac0, 0x1_6b50, 0x1_d7ce, 0x1_d7d8, 0x1_d7e2, 0x1_d7ec, 0x1_d7f6,
    0x1_e140, 0x1_e2f0, 0x1_e4f0, 0x1_e950, 0x1_fbf0,
];

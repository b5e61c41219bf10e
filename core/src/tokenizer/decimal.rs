//! Decimal numbers in groups of three as counted from their end: `\d{1,3}(?=(?:\d{3})*\b)`, of Cohere's models.
//!
//! A number before a letter has no boundary at its end, and is left to the next expression.

use super::classes::{is_in, is_letter_or_mark};

/// The first of two rules. The groups after the first stay together here.
pub(super) fn heads(text: &str) -> usize {
    let (mut start, mut n_digits) = (0, 0);
    let end = text.char_indices().find(|&(at, c)| {
        if is_decimal(c) {
            start = if n_digits == 0 { at } else { start };
            n_digits += 1;
            return false;
        }
        let ends_number = n_digits > 0 && !(is_letter_or_mark(c) || is_in(&OF_WORDS, c));
        n_digits = if ends_number { n_digits } else { 0 };
        ends_number
    });
    let end = end.map_or(text.len(), |(at, _)| at);
    match (n_digits, n_digits % 3) {
        (0, _) => text.len(),
        _ if start > 0 => start,
        (_, 0) => end,
        (_, head) => place_of(text, head),
    }
}

/// The second: only whole numbers end with a digit.
pub(super) fn groups(text: &str) -> usize {
    match text.chars().next_back() {
        Some(c) if is_decimal(c) => place_of(text, 3),
        _ => text.len(),
    }
}

/// Where the `n`th character begins.
fn place_of(text: &str, n: usize) -> usize {
    text.char_indices().nth(n).map_or(text.len(), |(at, _)| at)
}

/// General category Nd.
fn is_decimal(c: char) -> bool {
    let code = u32::from(c);
    let at = ZEROS.partition_point(|&zero| zero <= code);
    at > 0 && code - ZEROS[at - 1] < 10
}

/// What `\b` takes for a part of a word in addition to letters, marks and digits, as Oniguruma has it: connecting
/// punctuation, numbers that are letters, circled letters, and six numbers of Latin 1.
#[rustfmt::skip]
static OF_WORDS: [(u32, u32); 24] = [
    (0x5f, 0x5f), (0xb2, 0xb3), (0xb9, 0xb9), (0xbc, 0xbe), (0x16ee, 0x16f0), (0x203f, 0x2040), (0x2054, 0x2054),
    (0x2160, 0x2188), (0x24b6, 0x24e9), (0x3007, 0x3007), (0x3021, 0x3029), (0x3038, 0x303a), (0xa6e6, 0xa6ef),
    (0xfe33, 0xfe34), (0xfe4d, 0xfe4f), (0xff3f, 0xff3f), (0x1_0140, 0x1_0174), (0x1_0341, 0x1_0341),
    (0x1_034a, 0x1_034a), (0x1_03d1, 0x1_03d5), (0x1_2400, 0x1_246e), (0x1_f130, 0x1_f149), (0x1_f150, 0x1_f169),
    (0x1_f170, 0x1_f189),
];

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

//! Long tables of numbers and lists of words, written as text and read at compile time.

/// Reads a table at compile time. A number is its difference to the one above it, zigzag, in digits of base64url of
/// five bits, the lowest first; all but its last digit have 32 added. Line breaks mean nothing.
///
/// # Panics
/// The text does not have exactly `ROWS * COLUMNS` numbers.
#[must_use]
pub const fn table<const COLUMNS: usize, const ROWS: usize>(text: &str) -> [[u32; COLUMNS]; ROWS] {
    let text = text.as_bytes();
    let mut rows = [[0_u32; COLUMNS]; ROWS];
    let (mut at, mut i, mut number, mut shift) = (0, 0, 0, 0);
    while at < text.len() {
        if text[at] != b'\n' {
            let digit = digit(text[at]);
            number |= (digit & 31) << shift;
            shift += 5;
            if digit < 32 {
                let (row, column) = (i / COLUMNS, i % COLUMNS);
                let above = if row == 0 { 0 } else { rows[row - 1][column] };
                rows[row][column] = above.wrapping_add((number >> 1) ^ (number & 1).wrapping_neg());
                i += 1;
                (number, shift) = (0, 0);
            }
        }
        at += 1;
    }
    assert!(i == ROWS * COLUMNS);
    rows
}

const fn digit(byte: u8) -> u32 {
    let digit = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'-' => 62,
        _ => 63,
    };
    digit as u32
}

/// The words of a text, as a list of any length: `words!("a b c")`.
#[macro_export]
macro_rules! words {
    ($text:expr) => {{
        const WORDS: [&str; $crate::literals::n_words($text)] = $crate::literals::words($text);
        &WORDS
    }};
}

/// The words of a text, between white space.
///
/// # Panics
/// There are fewer or more than `N`.
#[must_use]
pub const fn words<const N: usize>(text: &'static str) -> [&'static str; N] {
    let mut words = [""; N];
    let (mut rest, mut i) = (text.trim_ascii(), 0);
    while !rest.is_empty() {
        let (word, behind) = rest.split_at(word_len(rest));
        words[i] = word;
        rest = behind.trim_ascii_start();
        i += 1;
    }
    assert!(i == N);
    words
}

/// The number of words of a text.
#[must_use]
pub const fn n_words(text: &str) -> usize {
    let (mut rest, mut n) = (text.trim_ascii(), 0);
    while !rest.is_empty() {
        rest = rest.split_at(word_len(rest)).1.trim_ascii_start();
        n += 1;
    }
    n
}

const fn word_len(text: &str) -> usize {
    let mut len = 0;
    while len < text.len() && !text.as_bytes()[len].is_ascii_whitespace() {
        len += 1;
    }
    len
}

#[cfg(test)]
mod tests {
    use super::{table, words};

    #[test]
    fn words_are_between_white_space() {
        assert_eq!(words("a bé\n  c "), ["a", "bé", "c"]);
        assert_eq!(words!(" a b"), &["a", "b"]);
        assert!(words!("").is_empty());
    }

    #[test]
    fn numbers_are_differences_to_those_above() {
        // 1, 40; then 0 more and 41 less.
        assert_eq!(table("CwC\nAxC"), [[1, 40], [1, u32::MAX]]);
    }
}

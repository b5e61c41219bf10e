//! GPT-2's byte-level alphabet: every byte is written as one printable character.
//!
//! Printable bytes of Latin-1 (0x21-0x7e, 0xa1-0xac, 0xae-0xff) stand for themselves; the other
//! 68 are numbered in ascending order from U+0100. So every character takes one or two bytes of
//! UTF-8. Source: `bytes_to_unicode` in the GPT-2 encoder.

/// The character that stands for `byte` in GPT-2's byte-level alphabet: U+0021 to U+0143.
#[must_use]
pub fn char_of(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match byte {
        0x00..=0x20 => 0x100 + code,
        0x7f..=0xa0 => 0x121 + (code - 0x7f),
        0xad => 0x143,
        _ => code,
    };
    // In range for a character, as the largest code is 0x143.
    char::from_u32(code).unwrap_or('\0')
}

/// The byte that `c` stands for, if it is in the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// The UTF-8 bytes of the characters that stand for `bytes`.
pub(super) fn encode(bytes: &[u8]) -> impl Iterator<Item = u8> + Clone {
    bytes.iter().flat_map(|&byte| {
        let mut utf8 = [0; 2];
        let len = char_of(byte).encode_utf8(&mut utf8).len();
        utf8.into_iter().take(len)
    })
}

/// Removes from `rest` the first byte that it stands for, and returns it. Bytes that are not of the alphabet
/// stand for themselves, so that no piece is unprintable.
pub(super) fn decode_next(rest: &mut &[u8]) -> Option<u8> {
    let (&first, tail) = rest.split_first()?;
    // Beyond ASCII, the alphabet's characters begin with 0xc2 to 0xc5 and take two bytes.
    if let (0xc2..=0xc5, Some((&second @ 0x80..=0xbf, tail))) = (first, tail.split_first()) {
        let code = u32::from(first & 0x1f) << 6 | u32::from(second & 0x3f);
        if let Some(byte) = char::from_u32(code).and_then(byte_of) {
            *rest = tail;
            return Some(byte);
        }
    }
    *rest = tail;
    Some(first)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::String;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn the_alphabet_is_gpt2s() {
        let all: String = (0..=255).map(char_of).collect();
        assert!(all.starts_with("ĀāĂăĄąĆćĈĉĊċČčĎďĐđĒēĔĕĖėĘęĚěĜĝĞğĠ!\"#"));
        assert!(all.contains("|}~ġĢģ"));
        assert!(all.contains("ł¡¢"));
        assert!(all.contains("¬Ń®"));
        assert!(all.ends_with('ÿ'));
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(
            (0..0x11_0000)
                .filter_map(char::from_u32)
                .filter_map(byte_of)
                .count(),
            256
        );
    }

    #[test]
    fn decoding_undoes_encoding_and_keeps_the_rest() {
        let bytes: Vec<u8> = (0..=255).collect();
        let encoded: Vec<u8> = encode(&bytes).collect();
        let mut rest = encoded.as_slice();
        let decoded: Vec<u8> = core::iter::from_fn(|| decode_next(&mut rest)).collect();
        assert_eq!(decoded, bytes);

        let foreign = "a 我\u{144}".as_bytes();
        let mut rest = foreign;
        let decoded: Vec<u8> = core::iter::from_fn(|| decode_next(&mut rest)).collect();
        assert_eq!(decoded, foreign);
    }
}

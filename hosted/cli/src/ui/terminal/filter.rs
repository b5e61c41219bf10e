//! Converts what a terminal sends to what a line editor can process.

use std::collections::VecDeque;

/// Converts bytes to UTF-8, and cuts them after everything that makes an editor return a line.
///
/// An editor reads several bytes at once and would lose those that follow a line. Bytes that are not
/// UTF-8 become U+FFFD, and so does an escape within a paste, which editors would take for a key.
/// Between the marks of a paste, nothing ends a line. Text that arrives faster than anybody types is
/// treated as a paste and marked as one: an editor then redraws it once, not once per character.
#[derive(Debug)]
pub(super) struct Filter {
    pieces: VecDeque<Piece>,
    len_bytes: usize,
    /// The beginning of a multi-byte character.
    partial: Vec<u8>,
    /// How many bytes of the next mark have arrived.
    matched: usize,
    is_paste: bool,
    /// After an escape: the following bytes are part of a key.
    is_escaped: bool,
    /// After Ctrl-V: the next byte is literal.
    is_literal: bool,
    /// Characters that discard a line: Ctrl-C, Ctrl-\.
    interrupts: [u8; 2],
}

/// A piece that may be passed on at once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    /// The editor returns a line after it.
    pub(super) is_line: bool,
}

impl Filter {
    pub(super) fn new(interrupts: [u8; 2]) -> Self {
        Self {
            pieces: VecDeque::new(),
            len_bytes: 0,
            partial: Vec::new(),
            matched: 0,
            is_paste: false,
            is_escaped: false,
            is_literal: false,
            interrupts,
        }
    }

    /// Adds typed bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.partial.extend(bytes);
        let partial = core::mem::take(&mut self.partial);
        let mut rest = &partial[..];
        while !rest.is_empty() {
            let text = match core::str::from_utf8(rest) {
                Ok(text) => text,
                Err(error) => {
                    let valid = &rest[..error.valid_up_to()];
                    core::str::from_utf8(valid).unwrap_or_default()
                }
            };
            self.text(text);
            rest = &rest[text.len()..];
            match core::str::from_utf8(rest).map_err(|error| error.error_len()) {
                Ok(_) => {}
                Err(Some(wrong)) => {
                    self.character('\u{fffd}');
                    rest = &rest[wrong..];
                }
                // The character may be completed by the next bytes.
                Err(None) => {
                    self.partial = rest.to_vec();
                    break;
                }
            }
        }
    }

    /// The available part of the first piece.
    pub(super) fn front(&self) -> Option<&Piece> {
        self.pieces.front().filter(|piece| !piece.bytes.is_empty())
    }

    /// Removes `n` bytes of the first piece. Returns whether they ended a line.
    pub(super) fn consume(&mut self, n: usize) -> bool {
        let Some(piece) = self.pieces.front_mut() else {
            return false;
        };
        piece.bytes.drain(..n);
        self.len_bytes -= n;
        if !piece.bytes.is_empty() {
            return false;
        }
        let ended = piece.is_line;
        self.pieces.pop_front();
        ended
    }

    pub(super) const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn text(&mut self, mut rest: &str) {
        while let Some(first) = rest.chars().next() {
            let run = rest.find(|c: char| c.is_control() && c != '\t');
            let run = run.unwrap_or(rest.len());
            let is_key = self.is_escaped || self.is_literal || self.matched > 0;
            let is_marked = run >= PASTED_BYTES_MIN && !self.is_paste && !is_key;
            let (now, later) = rest.split_at(run.max(first.len_utf8()));
            if is_marked {
                PASTE_BEGIN.iter().for_each(|&c| self.emit(c));
                now.chars().for_each(|c| self.emit(c));
                PASTE_END.iter().for_each(|&c| self.emit(c));
            } else {
                now.chars().for_each(|c| self.character(c));
            }
            rest = later;
        }
    }

    fn character(&mut self, c: char) {
        let is_escaped = core::mem::replace(&mut self.is_escaped, c == '\x1b');
        let mark = if self.is_paste {
            PASTE_END
        } else {
            PASTE_BEGIN
        };
        if c == mark[self.matched] {
            self.matched += 1;
            if !self.is_paste {
                self.emit(c);
            }
            if self.matched == mark.len() {
                if self.is_paste {
                    mark.iter().for_each(|&c| self.emit(c));
                }
                self.is_paste = !self.is_paste;
                self.matched = 0;
            }
            return;
        }
        let matched = core::mem::take(&mut self.matched);
        if self.is_paste {
            for (i, &held) in mark[..matched].iter().enumerate() {
                self.emit(if i == 0 { '\u{fffd}' } else { held });
            }
        }
        if matched > 0 {
            return self.character(c);
        }
        if c == '\t' && !self.is_paste && !is_escaped && !self.is_literal {
            // There is no completion, so an editor would drop it.
            self.emit('\x16');
        }
        self.emit(if self.is_paste && c == '\x1b' {
            '\u{fffd}'
        } else {
            c
        });
        let is_literal = self.is_literal;
        self.is_literal = c == '\x16' && !is_literal;
        let is_interrupt = self.interrupts.iter().any(|&i| char::from(i) == c);
        if !self.is_paste && !is_literal && (is_interrupt || matches!(c, '\r' | '\n')) {
            self.last().is_line = true;
            self.pieces.push_back(Piece::default());
        }
    }

    fn emit(&mut self, c: char) {
        self.len_bytes += c.len_utf8();
        let mut room = [0; 4];
        let bytes = c.encode_utf8(&mut room).as_bytes();
        self.last().bytes.extend_from_slice(bytes);
    }

    /// The unfinished piece.
    fn last(&mut self) -> &mut Piece {
        if self.pieces.back().is_none_or(|piece| piece.is_line) {
            self.pieces.push_back(Piece::default());
        }
        self.pieces.back_mut().expect("just made")
    }
}

/// Printable text of at least this many bytes at once was not typed.
const PASTED_BYTES_MIN: usize = 64;

/// What a terminal sends before and after a paste, if requested.
const PASTE_BEGIN: &[char] = &['\x1b', '[', '2', '0', '0', '~'];
const PASTE_END: &[char] = &['\x1b', '[', '2', '0', '1', '~'];

#[cfg(test)]
mod tests {
    use super::*;

    type Expected<'e> = (&'e [u8], &'e [(&'e str, bool)]);

    /// The pieces of `bytes`, however they are split on arrival.
    fn pieces(bytes: &[u8]) -> Vec<(String, bool)> {
        let cut = |sizes: &[usize]| {
            let mut filter = Filter::new([3, 28]);
            let (mut rest, mut sizes) = (bytes, sizes.iter().cycle());
            while let Some(&n) = sizes.next().filter(|_| !rest.is_empty()) {
                let (now, later) = rest.split_at(n.min(rest.len()));
                filter.push(now);
                rest = later;
            }
            let mut found = Vec::new();
            while let Some(piece) = filter.front() {
                let text = String::from_utf8(piece.bytes.clone()).expect("UTF-8");
                let n = piece.bytes.len();
                let half = n / 2;
                assert!(half == 0 || !filter.consume(half));
                found.push((text, filter.consume(n - half)));
            }
            assert_eq!(filter.len_bytes(), 0);
            found
        };
        let whole = cut(&[usize::MAX]);
        for sizes in [&[1][..], &[2], &[3, 1], &[7, 2]] {
            assert_eq!(cut(sizes), whole, "{sizes:?}");
        }
        whole
    }

    fn owned(expected: &[(&str, bool)]) -> Vec<(String, bool)> {
        let owned = |(text, ended): &(&str, bool)| ((*text).to_owned(), *ended);
        expected.iter().map(owned).collect()
    }

    #[test]
    fn lines_end_where_an_editor_returns() {
        let cases: [Expected<'_>; 6] = [
            (
                b"one\rtwo\nthree",
                &[("one\r", true), ("two\n", true), ("three", false)],
            ),
            (
                b"half\x03new\x1cx\x04y",
                &[("half\x03", true), ("new\x1c", true), ("x\x04y", false)],
            ),
            (
                b"a\x1b[200~b\r\x03c\x1b[201~d\re",
                &[("a\x1b[200~b\r\x03c\x1b[201~d\r", true), ("e", false)],
            ),
            // Ctrl-V makes the next one literal; two of them are one literal character.
            (
                b"a\x16\rb\x16\x16\rc",
                &[("a\x16\rb\x16\x16\r", true), ("c", false)],
            ),
            (b"\x1b[A\x1b[20\r", &[("\x1b[A\x1b[20\r", true)]),
            (b"", &[]),
        ];
        for (bytes, expected) in cases {
            assert_eq!(pieces(bytes), owned(expected), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_burst_is_a_paste_and_tabs_are_text() {
        let long = "many words ".repeat(10);
        let mut filter = Filter::new([3, 28]);
        filter.push(format!("{long}\r\tx\x1b[A{long}\x16{long}").as_bytes());
        let mut pieces = Vec::new();
        while let Some(piece) = filter.front() {
            pieces.push(String::from_utf8(piece.bytes.clone()).expect("UTF-8"));
            let n = piece.bytes.len();
            filter.consume(n);
        }
        let expected = [
            format!("\x1b[200~{long}\x1b[201~\r"),
            format!("\x16\tx\x1b[A{long}\x16{long}"),
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn what_is_no_text_is_replaced_and_nothing_around_it_is_lost() {
        let cases: [(&[u8], &str); 7] = [
            (b"caf\xe9 dog\xff\xfe!", "caf\u{fffd} dog\u{fffd}\u{fffd}!"),
            (
                b"\xe2\x82 \xe2\x82\xac \xf0\x9f\x98x",
                "\u{fffd} \u{20ac} \u{fffd}x",
            ),
            (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"),
            (
                b"\x1b[200~\x1b[31mred\x1b\x1b[0m\xff\x1b[201~x",
                "\x1b[200~\u{fffd}[31mred\u{fffd}\u{fffd}[0m\u{fffd}\x1b[201~x",
            ),
            (
                b"\x1b[200~\x1b[20\x1b[201~\x1b[C",
                "\x1b[200~\u{fffd}[20\x1b[201~\x1b[C",
            ),
            (
                b"\x1b\x1b[200~\x1b[200~\x1b[201~",
                "\x1b\x1b[200~\u{fffd}[200~\x1b[201~",
            ),
            // Part of a character: the rest is awaited.
            (b"abc\xf0\x9f", "abc"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(
                pieces(bytes),
                owned(&[(expected, false)]),
                "{}",
                bytes.escape_ascii()
            );
        }
    }
}

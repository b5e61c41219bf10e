//! The input of a custom tool, taken out of the arguments as they are written.

/// Reads `{"input": "..."}` piece by piece.
#[derive(Debug, Default)]
pub(super) struct InputReader {
    state: State,
    /// The beginning of what is not complete: the name of the argument, or an escape.
    held: String,
    /// The first half of a character outside the basic plane.
    high: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before the text.
    #[default]
    Begin,
    Text,
    /// After a backslash.
    Escape,
    /// After `\u`.
    Digits,
    End,
}

impl InputReader {
    /// The part of the input that `piece` completes.
    pub(super) fn push(&mut self, piece: &str) -> String {
        let mut input = String::new();
        for c in piece.chars() {
            self.next(c, &mut input);
        }
        input
    }

    fn next(&mut self, c: char, input: &mut String) {
        match self.state {
            State::Begin => {
                self.held.push(c);
                // `{"input": "`: the fourth quote is the text's.
                if c == '"' && self.held.matches('"').count() == 3 {
                    self.held.clear();
                    self.state = State::Text;
                }
            }
            State::Text => match c {
                '"' => self.state = State::End,
                '\\' => self.state = State::Escape,
                c => input.push(c),
            },
            State::Escape => {
                self.state = State::Text;
                match c {
                    'n' => input.push('\n'),
                    't' => input.push('\t'),
                    'r' => input.push('\r'),
                    'b' => input.push('\u{8}'),
                    'f' => input.push('\u{c}'),
                    'u' => self.state = State::Digits,
                    c => input.push(c),
                }
            }
            State::Digits => {
                self.held.push(c);
                if self.held.len() == 4 {
                    let code = u32::from_str_radix(&self.held, 16).unwrap_or(0xfffd);
                    self.held.clear();
                    self.state = State::Text;
                    self.unit(code, input);
                }
            }
            State::End => {}
        }
    }

    /// A unit of UTF-16.
    fn unit(&mut self, code: u32, input: &mut String) {
        match (self.high.take(), code) {
            (_, 0xd800..=0xdbff) => self.high = Some(code),
            (Some(high), 0xdc00..=0xdfff) => {
                let code = 0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00);
                input.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (_, code) => input.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_input_is_the_same_however_it_is_cut() {
        for text in [
            "",
            "ls -l",
            "a\n\"b\"\\\t\u{8}/é",
            "*** Begin\n+\u{1f30a}\n",
        ] {
            let plain = json!({"input": text}).to_string();
            let escaped: String = text
                .encode_utf16()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect();
            for arguments in [plain, format!("{{ \"input\" :\"{escaped}\"}}")] {
                for len in 1..=arguments.chars().count() {
                    let mut reader = InputReader::default();
                    let chars: Vec<char> = arguments.chars().collect();
                    let pieces = chars
                        .chunks(len)
                        .map(|piece| piece.iter().collect::<String>());
                    let input: String = pieces.map(|piece| reader.push(&piece)).collect();
                    assert_eq!(input, text, "{arguments} in pieces of {len}");
                }
            }
        }
    }
}

//! One JSON value in a text, found by its brackets and quotes.

/// Follows a JSON value.
#[derive(Clone, Debug, Default)]
pub(super) struct Value {
    /// The text of the value so far.
    pub(super) text: String,
    depth: usize,
    is_quoted: bool,
    is_escaped: bool,
}

/// The position of a character relative to the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Inside the value, which continues.
    Inside,
    /// The last character of the value.
    Last,
    /// After the value.
    Behind,
}

impl Value {
    /// Adds the next character. White space before the value is not part of it.
    pub(super) fn push(&mut self, c: char) -> Place {
        if self.text.is_empty() && c.is_whitespace() {
            return Place::Inside;
        }
        let place = self.place(c);
        if place != Place::Behind {
            self.text.push(c);
        }
        place
    }

    fn place(&mut self, c: char) -> Place {
        if self.is_quoted {
            let closes = c == '"' && !self.is_escaped;
            self.is_escaped = c == '\\' && !self.is_escaped;
            if !closes {
                return Place::Inside;
            }
            self.is_quoted = false;
            return if self.depth == 0 {
                Place::Last
            } else {
                Place::Inside
            };
        }
        match c {
            '"' if self.depth > 0 || self.text.is_empty() => self.is_quoted = true,
            '{' | '[' if self.depth > 0 || self.text.is_empty() => self.depth += 1,
            '}' | ']' if self.depth > 0 => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Place::Last;
                }
            }
            _ if self.depth > 0 => {}
            // Numbers and words have no closing character.
            c if c.is_ascii_alphanumeric() || "+-.".contains(c) => {}
            _ => return Place::Behind,
        }
        Place::Inside
    }

    /// Whether it is, so far, an object.
    pub(super) fn is_object(&self) -> bool {
        self.text.starts_with('{')
    }
}

/// Whether `text` is one JSON value.
pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

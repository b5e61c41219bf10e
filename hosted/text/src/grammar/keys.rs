//! Prevents duplicate keys in an object.
//!
//! A grammar cannot track names that it does not know. So if a schema allows arbitrary names, the
//! document is tracked here, byte by byte, and tokens that would end a duplicate key are
//! removed from the mask.

/// The state of a JSON document that is being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    /// Open arrays and objects; an object has the keys it contains so far.
    open: Vec<Option<Vec<String>>>,
    /// The string that is being written, as it appears between its quotes.
    text: Option<Vec<u8>>,
    is_escaped: bool,
    /// Whether a string that begins now is a key.
    expects_key: bool,
}

impl Keys {
    /// Whether the next tokens must be checked: an open object has keys.
    pub(super) fn is_watching(&self) -> bool {
        let last = self.open.last();
        let has_keys = last.is_some_and(|keys| keys.as_ref().is_some_and(|keys| !keys.is_empty()));
        has_keys || self.text.is_some()
    }

    /// Adds `bytes`; `false` if a key is repeated.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| self.byte(byte))
    }

    fn byte(&mut self, byte: u8) -> bool {
        if let Some(text) = &mut self.text {
            if !self.is_escaped && byte == b'"' {
                let text = self.text.take().unwrap_or_default();
                return !self.expects_key || self.end_key(&text);
            }
            self.is_escaped = !self.is_escaped && byte == b'\\';
            if self.expects_key {
                text.push(byte);
            }
            return true;
        }
        match byte {
            b'"' => self.text = Some(Vec::new()),
            b'{' => {
                self.open.push(Some(Vec::new()));
                self.expects_key = true;
            }
            b'[' => {
                self.open.push(None);
                self.expects_key = false;
            }
            b'}' | b']' => {
                self.open.pop();
                self.expects_key = false;
            }
            b',' => self.expects_key = matches!(self.open.last(), Some(Some(_))),
            b':' => self.expects_key = false,
            _ => {}
        }
        true
    }

    fn end_key(&mut self, written: &[u8]) -> bool {
        let quoted = [b"\"", written, b"\""].concat();
        // Decode escapes: "\u0061" is "a".
        let key = serde_json::from_slice::<String>(&quoted);
        let key = key.unwrap_or_else(|_| String::from_utf8_lossy(written).into_owned());
        let Some(Some(keys)) = self.open.last_mut() else {
            return true;
        };
        if keys.contains(&key) {
            return false;
        }
        keys.push(key);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Keys;

    #[test]
    fn keys_come_once() {
        let first_wrong = |text: &str| {
            let mut keys = Keys::default();
            text.bytes().position(|byte| !keys.push(&[byte]))
        };
        assert_eq!(first_wrong(r#"{"a":1,"b":{"a":["a","a"]},"c":"a"}"#), None);
        assert_eq!(first_wrong(r#"{"a":1,"a":2}"#), Some(9));
        assert_eq!(first_wrong(r#"{"a":1,"\u0061":2}"#), Some(14));
        assert_eq!(
            first_wrong(r#"[{"a\"":1},{"a\"":{"b":1,"b":1}}]"#),
            Some(27)
        );
    }
}

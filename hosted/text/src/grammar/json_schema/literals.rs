//! What stands in the source where parsed JSON has a rounded number.

use serde_json::Value;
use std::collections::HashMap;

/// The text of every number that became a double, by the place of its value.
#[derive(Debug, Default)]
pub(super) struct Literals {
    written: HashMap<*const Value, String>,
}

impl Literals {
    /// Of `root`, which was parsed from `source`.
    pub(super) fn new(source: &str, root: &Value) -> Self {
        let mut scan = Scan {
            rest: source,
            found: Self::default(),
        };
        scan.value(Some(root));
        scan.found
    }

    /// The number as it was written, or as it is written if nothing was lost.
    pub(super) fn of(&self, value: &Value) -> String {
        let written = self.written.get(&core::ptr::from_ref(value));
        written.cloned().unwrap_or_else(|| value.to_string())
    }
}

/// Walks over text that is known to be JSON.
struct Scan<'t> {
    rest: &'t str,
    found: Literals,
}

impl<'t> Scan<'t> {
    /// What is next, which is `value` unless a later member has the same name.
    fn value(&mut self, value: Option<&Value>) {
        match self.peek() {
            Some(b'{') => {
                self.take(1);
                while self.peek().is_some_and(|byte| byte != b'}') {
                    let name: Option<String> = serde_json::from_str(self.text()).ok();
                    self.skip(b':');
                    let map = value.and_then(Value::as_object);
                    self.value(map.zip(name).and_then(|(map, name)| map.get(&name)));
                    self.skip(b',');
                }
                self.skip(b'}');
            }
            Some(b'[') => {
                self.take(1);
                let mut n = 0;
                while self.peek().is_some_and(|byte| byte != b']') {
                    let items = value.and_then(Value::as_array);
                    self.value(items.and_then(|items| items.get(n)));
                    n += 1;
                    self.skip(b',');
                }
                self.skip(b']');
            }
            Some(b'"') => {
                self.text();
            }
            _ => {
                let end = self.rest.find(|c: char| ",]}".contains(c) || is_space(c));
                let word = self.take(end.unwrap_or(self.rest.len()));
                if let Some(value) = value {
                    let place = core::ptr::from_ref(value);
                    // Of several members of one name the last one counts.
                    self.found.written.remove(&place);
                    if value.is_f64() {
                        self.found.written.insert(place, word.to_owned());
                    }
                }
            }
        }
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_start_matches(is_space);
        self.rest.bytes().next()
    }

    fn take(&mut self, n: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at(n);
        self.rest = rest;
        taken
    }

    fn skip(&mut self, byte: u8) {
        if self.peek() == Some(byte) {
            self.take(1);
        }
    }

    /// A text with its quotes.
    fn text(&mut self) -> &'t str {
        let mut is_escaped = false;
        let mut end = self.rest.len();
        for (at, byte) in self.rest.bytes().enumerate().skip(1) {
            match byte {
                b'"' if !is_escaped => {
                    end = at + 1;
                    break;
                }
                b'\\' => is_escaped = !is_escaped,
                _ => is_escaped = false,
            }
        }
        self.take(end)
    }
}

/// Space as JSON has it.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

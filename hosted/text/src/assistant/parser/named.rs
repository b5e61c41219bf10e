//! Calls that are a name followed by a JSON object: the formats of newer Mistral models, DeepSeek, Kimi and gpt-oss.

use super::event::{Event, Step};
use super::value::{Place, Value, is_json};
use crate::assistant::dialect::MISTRAL_ARGS;
use crate::assistant::marks::NameMarks;

/// Parses one call.
#[derive(Clone, Debug)]
pub(super) struct Named {
    at: At,
    /// The text before the arguments.
    head: String,
    /// Separates the head from the arguments, or is the beginning of the arguments.
    separator: &'static str,
    /// The mark that ends the call; empty if the call ends with its object.
    close: &'static str,
    /// The marks of a format that has more of them.
    marks: Option<&'static NameMarks>,
    value: Value,
    /// The text read after the arguments.
    tail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Head,
    Arguments,
    Tail,
}

impl Named {
    pub(super) fn mistral() -> Self {
        Self::new(At::Head, String::new(), MISTRAL_ARGS, "")
    }

    pub(super) fn marked(marks: &'static NameMarks) -> Self {
        Self {
            marks: Some(marks),
            ..Self::new(At::Head, String::new(), marks.separator, marks.call_end)
        }
    }

    pub(super) fn of_message(name: String) -> Self {
        Self::new(At::Head, name, "", "")
    }

    fn new(at: At, head: String, separator: &'static str, close: &'static str) -> Self {
        Self {
            at,
            head,
            separator,
            close,
            marks: None,
            value: Value::default(),
            tail: String::new(),
        }
    }

    pub(super) fn push(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        match self.at {
            At::Head if c == '{' => {
                let Some(name) = self.name() else {
                    return Step::Bad;
                };
                self.at = At::Arguments;
                events.push(Event::Begin(name));
                self.value.push(c);
                events.push(Event::Arguments(c.into()));
                Step::More
            }
            At::Head => {
                self.head.push(c);
                let is_name = self.head.len() <= HEAD_BYTES_MAX;
                let is_space = c.is_whitespace();
                if is_name && (is_space || !self.separator.is_empty()) {
                    return Step::More;
                }
                Step::Bad
            }
            At::Arguments => {
                events.push(Event::Arguments(c.into()));
                if self.value.push(c) != Place::Last {
                    return Step::More;
                }
                if !is_json(&self.value.text) {
                    return Step::Bad;
                }
                events.push(Event::End);
                self.at = At::Tail;
                if self.close.is_empty() {
                    Step::Done
                } else {
                    Step::More
                }
            }
            At::Tail => {
                self.tail.push(c);
                // The arguments may have been in a code block.
                let rest = self.tail.trim_start();
                let rest = rest.strip_prefix("```").unwrap_or(rest).trim_start();
                if rest == self.close {
                    return Step::Done;
                }
                if self.close.starts_with(rest) || "```".starts_with(self.tail.trim()) {
                    return Step::More;
                }
                self.tail.pop();
                Step::Over
            }
        }
    }

    pub(super) fn unread(&self) -> &str {
        &self.tail
    }

    pub(super) fn is_between(&self) -> bool {
        self.at == At::Tail
    }

    /// The function's name in the head.
    fn name(&self) -> Option<String> {
        let head = &*self.head;
        let name = if let Some(marks) = self.marks {
            let (before, behind) = head.split_once(self.separator)?;
            // Older models of DeepSeek write the kind of the tool before the separator.
            let behind = behind.trim();
            let behind = behind.strip_suffix("```json").unwrap_or(behind).trim();
            let name = if behind.is_empty() {
                before.trim()
            } else {
                behind
            };
            let name = name.strip_prefix(marks.lead).unwrap_or(name);
            match name.rsplit_once(':').filter(|_| marks.is_numbered) {
                Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
                _ => name,
            }
        } else {
            // An id may follow the name.
            head.split(['[', '<']).next()?
        };
        let name = name.trim();
        let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
        is_name.then(|| name.to_owned())
    }
}

/// Maximum length of the text before the arguments; longer text cannot be a name.
const HEAD_BYTES_MAX: usize = 512;

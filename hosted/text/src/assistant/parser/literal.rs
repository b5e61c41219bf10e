//! Gemma 4's calls, which are converted to JSON: `call:name{key:<|"|>text<|"|>,other:[1,true]}`.

use super::event::{Event, Step};
use super::marks::overlap;
use super::xml::{escaped, json_of};
use crate::assistant::marks::GEMMA4;
use serde_json::Value;

/// Parses one call and its closing mark.
#[derive(Clone, Debug)]
pub(super) struct Literal {
    at: At,
    /// A name, a word, or the part of a text that has not been reported.
    text: String,
    /// What ends the values around this place.
    closers: Vec<char>,
    /// Whether a comma awaits an item: a model may write one too many, which JSON does not allow.
    is_listed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Lead,
    Name,
    /// Before a key, or in it.
    Key,
    /// Before a value.
    Value,
    Word,
    Text,
    /// After a value.
    Behind,
    /// After the call.
    Tail,
}

impl Literal {
    pub(super) fn new() -> Self {
        Self {
            at: At::Lead,
            text: String::new(),
            closers: Vec::new(),
            is_listed: false,
        }
    }

    pub(super) fn push(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let is_empty = self.text.is_empty();
        match self.at {
            At::Word if c == ',' || self.closers.last() == Some(&c) => {
                let word = core::mem::take(&mut self.text);
                self.tell(events, json_of(&word));
                self.at = At::Behind;
                return self.push(c, events);
            }
            At::Name if c == GEMMA4_OPEN => {
                let name = core::mem::take(&mut self.text);
                if name.trim().is_empty() {
                    return Step::Bad;
                }
                events.push(Event::Begin(name.trim().to_owned()));
                return self.open(c, '}', events);
            }
            At::Text => self.in_text(c, events),
            _ if is_empty && c.is_whitespace() => {}
            At::Name | At::Key if self.text.len() > NAME_BYTES_MAX || c == '\n' => {
                return Step::Bad;
            }
            At::Name | At::Word => self.text.push(c),
            At::Lead | At::Tail => return self.around(c),
            At::Key | At::Behind if is_empty && self.closers.last() == Some(&c) => {
                return self.close(c, events);
            }
            At::Key if c == ':' => {
                let key = core::mem::take(&mut self.text);
                let key = key.trim().trim_start_matches(QUOTE).trim_end_matches(QUOTE);
                self.tell(events, format!("{}: ", Value::from(key)));
                self.at = At::Value;
            }
            At::Key => self.text.push(c),
            At::Value => return self.begin_value(c, events),
            At::Behind if c == ',' => {
                self.is_listed = true;
                self.at = self.next();
            }
            At::Behind => return Step::Bad,
        }
        Step::More
    }

    pub(super) fn unread(&self) -> &str {
        &self.text
    }

    pub(super) fn is_between(&self) -> bool {
        self.at == At::Tail
    }

    /// The text before the name, or after the call.
    fn around(&mut self, c: char) -> Step {
        let wanted = match self.at {
            At::Lead => GEMMA4.call,
            _ => GEMMA4.close,
        };
        self.text.push(c);
        if self.text == wanted {
            self.text.clear();
            if self.at == At::Tail {
                return Step::Done;
            }
            self.at = At::Name;
        } else if !wanted.starts_with(&*self.text) {
            self.text.pop();
            return match self.at {
                At::Tail => Step::Over,
                _ => Step::Bad,
            };
        }
        Step::More
    }

    fn begin_value(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        match c {
            _ if !self.text.is_empty() => {}
            '{' => return self.open(c, '}', events),
            '[' => return self.open(c, ']', events),
            ']' if self.closers.last() == Some(&c) => return self.close(c, events),
            _ => {}
        }
        self.text.push(c);
        if self.text == QUOTE {
            self.text.clear();
            self.tell(events, "\"".into());
            self.at = At::Text;
        } else if !QUOTE.starts_with(&*self.text) {
            self.text.pop();
            self.at = At::Word;
            return self.push(c, events);
        }
        Step::More
    }

    fn in_text(&mut self, c: char, events: &mut Vec<Event>) {
        self.text.push(c);
        if let Some(rest) = self.text.strip_suffix(QUOTE) {
            let told = escaped(rest) + "\"";
            self.tell(events, told);
            self.text.clear();
            self.at = At::Behind;
            return;
        }
        let clear = self.text.len() - overlap(&self.text, QUOTE);
        if clear > 0 {
            let told = escaped(&self.text[..clear]);
            self.tell(events, told);
            self.text.drain(..clear);
        }
    }

    fn open(&mut self, c: char, closer: char, events: &mut Vec<Event>) -> Step {
        if self.closers.len() == DEPTH_MAX {
            return Step::Bad;
        }
        self.tell(events, c.into());
        self.closers.push(closer);
        self.at = self.next();
        Step::More
    }

    fn close(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        self.is_listed = false;
        self.tell(events, c.into());
        self.closers.pop();
        self.at = At::Behind;
        if self.closers.is_empty() {
            events.push(Event::End);
            self.at = At::Tail;
        }
        Step::More
    }

    fn tell(&mut self, events: &mut Vec<Event>, json: String) {
        let comma = if core::mem::take(&mut self.is_listed) {
            ", "
        } else {
            ""
        };
        events.push(Event::Arguments(comma.to_owned() + &json));
    }

    /// Where the next item of the innermost value begins.
    fn next(&self) -> At {
        match self.closers.last() {
            Some(']') => At::Value,
            _ => At::Key,
        }
    }
}

const GEMMA4_OPEN: char = '{';
const QUOTE: &str = GEMMA4.value_end;
const NAME_BYTES_MAX: usize = 256;
const DEPTH_MAX: usize = 100;

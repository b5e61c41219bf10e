//! Calls as JSON objects: `{"name": .., "arguments": {..}}`, one by one or in a list.

use super::event::{Event, Step};
use super::value::{Place, Value, is_json};

/// Parses objects up to a closing mark, or up to something that is not an object.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    /// The closing mark; empty if the format does not have one.
    close: &'static str,
    /// Whether an object with a key that calls do not have is refused as a call.
    is_strict: bool,
    /// Whether the only key of an object is the name, and its value the arguments.
    is_keyed: bool,
    at: At,
    list: List,
    n_calls: usize,
    /// The part of the closing mark read so far.
    closing: String,
    /// The part of a key or value read so far.
    value: Value,
    field: Field,
    name: Option<String>,
    arguments: Arguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Between objects.
    Gap,
    /// Before a key or the end of the object.
    Key,
    InKey,
    Colon,
    InValue,
    /// After a value.
    Behind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    None,
    Open,
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Arguments {
    None,
    /// Arguments that came before the name.
    Held(String),
    Told,
}

impl Objects {
    pub(super) fn new(close: &'static str, is_strict: bool) -> Self {
        Self {
            close,
            is_strict,
            is_keyed: false,
            at: At::Gap,
            list: List::None,
            n_calls: 0,
            closing: String::new(),
            value: Value::default(),
            field: Field::Other,
            name: None,
            arguments: Arguments::None,
        }
    }

    pub(super) fn keyed(close: &'static str) -> Self {
        Self {
            is_keyed: true,
            ..Self::new(close, false)
        }
    }

    pub(super) fn push(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        match self.at {
            At::Gap => return self.gap(c),
            At::InKey => return self.in_key(c, events),
            At::InValue => return self.in_value(c, events),
            _ if c.is_whitespace() => {}
            At::Key if c == '"' => {
                self.value = Value::default();
                self.at = At::InKey;
                self.value.push(c);
            }
            At::Colon if c == ':' => {
                self.value = Value::default();
                self.at = At::InValue;
            }
            At::Behind if c == ',' => self.at = At::Key,
            At::Key | At::Behind if c == '}' => return self.end(events),
            _ => return Step::Bad,
        }
        Step::More
    }

    pub(super) fn unread(&self) -> &str {
        &self.closing
    }

    pub(super) fn is_between(&self) -> bool {
        self.at == At::Gap && self.n_calls > 0 && self.closing.is_empty()
    }

    fn gap(&mut self, c: char) -> Step {
        if !self.closing.is_empty() || (!self.close.is_empty() && self.close.starts_with(c)) {
            self.closing.push(c);
            if self.closing == self.close {
                return Step::Done;
            }
            if self.close.starts_with(&*self.closing) {
                return Step::More;
            }
            self.closing.pop();
            return self.over();
        }
        match c {
            '{' if self.list != List::Closed => {
                self.at = At::Key;
                self.name = None;
                self.arguments = Arguments::None;
            }
            '[' if self.list == List::None && self.n_calls == 0 && !self.is_strict => {
                self.list = List::Open;
            }
            ']' if self.list == List::Open => {
                self.list = List::Closed;
                if self.close.is_empty() {
                    return Step::Done;
                }
            }
            ',' | ';' if self.n_calls > 0 && self.list != List::Closed => {}
            c if c.is_whitespace() => {}
            _ => return self.over(),
        }
        Step::More
    }

    fn over(&self) -> Step {
        if self.n_calls > 0 && self.list != List::Open {
            Step::Over
        } else {
            Step::Bad
        }
    }

    fn in_key(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        if self.value.push(c) != Place::Last {
            return Step::More;
        }
        let Ok(key) = serde_json::from_str::<String>(&self.value.text) else {
            return Step::Bad;
        };
        self.field = match key.as_str() {
            _ if self.is_keyed && self.name.is_none() => {
                events.push(Event::Begin(key.clone()));
                self.name = Some(key);
                Field::Arguments
            }
            _ if self.is_keyed => return Step::Bad,
            "name" | "tool_name" => Field::Name,
            "arguments" | "parameters" => Field::Arguments,
            "type" | "id" | "tool_call_id" => Field::Other,
            _ if self.is_strict => return Step::Bad,
            _ => Field::Other,
        };
        let again = match self.field {
            _ if self.is_keyed => false,
            Field::Name => self.name.is_some(),
            Field::Arguments => self.arguments != Arguments::None,
            Field::Other => false,
        };
        self.at = At::Colon;
        if again { Step::Bad } else { Step::More }
    }

    fn in_value(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let place = self.value.push(c);
        let is_told = self.field == Field::Arguments && self.name.is_some();
        if is_told && self.value.is_object() {
            self.arguments = Arguments::Told;
            if place != Place::Behind {
                events.push(Event::Arguments(c.into()));
            }
        }
        if place == Place::Inside {
            return Step::More;
        }
        self.at = At::Behind;
        if !is_json(&self.value.text) || !self.take(events) {
            return Step::Bad;
        }
        match place {
            Place::Behind => self.push(c, events),
            _ => Step::More,
        }
    }

    /// Handles a complete value; `false` if a call cannot have it.
    fn take(&mut self, events: &mut Vec<Event>) -> bool {
        let text = core::mem::take(&mut self.value.text);
        match self.field {
            Field::Other => true,
            Field::Name => {
                let name = serde_json::from_str::<String>(&text);
                let Some(name) = name.ok().filter(|name| !name.is_empty()) else {
                    return false;
                };
                events.push(Event::Begin(name.clone()));
                self.name = Some(name);
                if let Arguments::Held(text) = &mut self.arguments {
                    events.push(Event::Arguments(core::mem::take(text)));
                    self.arguments = Arguments::Told;
                }
                true
            }
            Field::Arguments if self.arguments == Arguments::Told => true,
            Field::Arguments => {
                // Some models write the object as a string.
                let inner = serde_json::from_str::<String>(&text).unwrap_or(text);
                let inner = if inner == "null" { "{}".into() } else { inner };
                if !inner.trim_start().starts_with('{') || !is_json(&inner) {
                    return false;
                }
                if self.name.is_some() {
                    events.push(Event::Arguments(inner));
                    self.arguments = Arguments::Told;
                } else {
                    self.arguments = Arguments::Held(inner);
                }
                true
            }
        }
    }

    fn end(&mut self, events: &mut Vec<Event>) -> Step {
        if self.name.is_none() {
            return Step::Bad;
        }
        if self.arguments != Arguments::Told {
            events.push(Event::Arguments("{}".into()));
        }
        events.push(Event::End);
        self.n_calls += 1;
        self.at = At::Gap;
        Step::More
    }
}

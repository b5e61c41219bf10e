//! Calls as tags, which are converted to JSON: `<function=f>`, then `<parameter=p>`, a value and
//! `</parameter>` for each argument, then `</function>`, and the like.

use super::event::{Event, Step};
use super::marks::overlap;
use crate::assistant::marks::TagMarks;
use crate::assistant::tool::Tool;
use serde_json::Value;

/// Parses such calls up to a closing mark.
#[derive(Clone, Debug)]
pub(super) struct Xml {
    marks: &'static TagMarks,
    at: At,
    /// The beginning of a tag, a name, or the part of a value that has not been reported.
    text: String,
    name: String,
    /// Whether the value is a string, which is reported as it arrives.
    is_text: bool,
    /// Whether nothing of the value has been read.
    is_first: bool,
    /// Whether it is in the format's wrapper.
    is_wrapped: bool,
    n_parameters: usize,
    n_calls: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before a function or the closing mark.
    Gap,
    Name,
    /// Before a parameter or the end of the function.
    Parameters,
    ParameterName,
    /// Before the mark of a value.
    Open,
    Value,
}

impl Xml {
    pub(super) fn new(marks: &'static TagMarks) -> Self {
        Self {
            marks,
            // Without a mark of its own, a call begins with its name.
            at: if marks.call.is_empty() {
                At::Name
            } else {
                At::Gap
            },
            text: String::new(),
            name: String::new(),
            is_text: false,
            is_first: false,
            is_wrapped: false,
            n_parameters: 0,
            n_calls: 0,
        }
    }

    pub(super) fn push(&mut self, c: char, tools: &[Tool], events: &mut Vec<Event>) -> Step {
        match self.at {
            At::Gap | At::Parameters | At::Open if self.text.is_empty() && c.is_whitespace() => {
                Step::More
            }
            At::Gap => self.gap(c),
            At::Parameters => self.parameters(c, events),
            At::Name => self.name(c, events),
            At::ParameterName => self.parameter_name(c, tools, events),
            At::Open => {
                self.text.push(c);
                if self.text == self.marks.value {
                    self.text.clear();
                    self.at = At::Value;
                } else if !self.marks.value.starts_with(&*self.text) {
                    return Step::Bad;
                }
                Step::More
            }
            At::Value => {
                self.value(c, events);
                Step::More
            }
        }
    }

    pub(super) fn unread(&self) -> &str {
        &self.text
    }

    pub(super) fn is_between(&self) -> bool {
        self.at == At::Gap && self.n_calls > 0 && self.text.is_empty()
    }

    fn gap(&mut self, c: char) -> Step {
        let (call, close) = (self.marks.call, self.marks.close);
        self.text.push(c);
        if self.text == close && self.n_calls > 0 {
            return Step::Done;
        }
        if self.text == call {
            self.text.clear();
            self.at = At::Name;
        } else if !call.starts_with(&*self.text) && !close.starts_with(&*self.text) {
            self.text.pop();
            return if self.n_calls > 0 {
                Step::Over
            } else {
                Step::Bad
            };
        }
        Step::More
    }

    fn name(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let end = self.marks.name_end.trim_end();
        // A name without an end of its own ends at a line break or a tag.
        let ends_here = end.is_empty() && (c == '<' || c == '\n' && !self.text.is_empty());
        if !ends_here {
            self.text.push(c);
            if end.is_empty() || !self.text.ends_with(end) {
                return self.may_be_name(end);
            }
            self.text.truncate(self.text.len() - end.len());
        }
        let name = core::mem::take(&mut self.text).trim().to_owned();
        if name.is_empty() {
            return Step::Bad;
        }
        events.push(Event::Begin(name.clone()));
        self.name = name;
        self.n_parameters = 0;
        self.at = At::Parameters;
        match c {
            '<' if ends_here => self.parameters(c, events),
            _ => Step::More,
        }
    }

    fn parameter_name(&mut self, c: char, tools: &[Tool], events: &mut Vec<Event>) -> Step {
        self.text.push(c);
        let ends = self.marks.key_ends.map(str::trim_end);
        let Some(end) = ends.iter().position(|end| self.text.ends_with(end)) else {
            return self.may_be_name(ends[0]);
        };
        self.text.truncate(self.text.len() - ends[end].len());
        let name = core::mem::take(&mut self.text).trim().to_owned();
        if name.is_empty() {
            return Step::Bad;
        }
        let tool = tools.iter().find(|tool| tool.name == self.name);
        let schema = tool.and_then(|tool| tool.property(&name));
        self.is_text = match ends[0] == ends[1] {
            true => schema.is_none_or(is_text),
            false => end == 0,
        };
        self.begin_value(&name, events);
        Step::More
    }

    /// Whether the text may become a name with this end.
    fn may_be_name(&self, end: &str) -> Step {
        let is_tag = self.text.contains('<') && !end.starts_with('<');
        if self.text.len() > NAME_BYTES_MAX || is_tag || self.text.trim_start().contains('\n') {
            return Step::Bad;
        }
        Step::More
    }

    fn parameters(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let (key, call_end) = (self.marks.key, self.marks.call_end);
        self.text.push(c);
        if self.text == key {
            self.text.clear();
            self.at = At::ParameterName;
        } else if self.text == call_end {
            self.text.clear();
            self.at = At::Gap;
            self.n_calls += 1;
            let end = if self.n_parameters == 0 { "{}" } else { "}" };
            events.extend([Event::Arguments(end.into()), Event::End]);
            if self.marks.close.is_empty() {
                return Step::Done;
            }
        } else if !key.starts_with(&*self.text) && !call_end.starts_with(&*self.text) {
            return Step::Bad;
        }
        Step::More
    }

    fn begin_value(&mut self, name: &str, events: &mut Vec<Event>) {
        self.is_first = true;
        self.is_wrapped = false;
        let begin = if self.n_parameters == 0 { "{" } else { ", " };
        let quote = if self.is_text { "\"" } else { "" };
        let key = Value::from(name);
        events.push(Event::Arguments(format!("{begin}{key}: {quote}")));
        self.n_parameters += 1;
        self.at = match self.marks.value {
            "" => At::Value,
            _ => At::Open,
        };
    }

    fn value(&mut self, c: char, events: &mut Vec<Event>) {
        let (end, mark) = (self.marks.value_end.trim_end(), self.marks.value_end.trim());
        // A line break after the tag is not part of the value, if the format has one.
        let is_lined = end.len() > mark.len();
        let is_first = core::mem::take(&mut self.is_first);
        if is_first && is_lined && c == '\n' {
            return;
        }
        self.text.push(c);
        let [open, close] = self.marks.wrapper;
        if is_first && !open.is_empty() && open.starts_with(&*self.text) {
            self.is_wrapped = self.text == open;
            self.is_first = !self.is_wrapped;
            if self.is_wrapped {
                self.text.clear();
            }
            return;
        }
        let wrapped_end;
        let (end, mark) = if self.is_wrapped {
            wrapped_end = [close, mark].concat();
            (&*wrapped_end, &*wrapped_end)
        } else {
            (end, mark)
        };
        if let Some(rest) = self.text.strip_suffix(mark) {
            let rest = rest.strip_suffix('\n').filter(|_| is_lined).unwrap_or(rest);
            let told = if self.is_text {
                escaped(rest) + "\""
            } else {
                json_of(rest)
            };
            events.push(Event::Arguments(told));
            self.text.clear();
            self.at = At::Parameters;
        } else if self.is_text {
            // The one before the closing tag is not, either.
            let held = overlap(&self.text, end).max(overlap(&self.text, mark));
            let clear = self.text.len() - held;
            if clear > 0 {
                events.push(Event::Arguments(escaped(&self.text[..clear])));
                self.text.drain(..clear);
            }
        }
    }
}

/// Whether values of this schema are strings, which are written without quotes.
pub(in crate::assistant) fn is_text(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(_) => false,
        None => {
            let only = |value: &Value| value.is_string();
            let values = schema.get("enum").and_then(Value::as_array);
            values.map_or(schema.get("const").is_some_and(only), |values| {
                values.iter().all(only)
            })
        }
    }
}

/// A text as it is written between the quotes of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The JSON of a value that is not declared as a string; if it is not valid JSON, it becomes a string.
pub(super) fn json_of(text: &str) -> String {
    let trimmed = text.trim();
    match trimmed {
        "True" => "true".into(),
        "False" => "false".into(),
        "None" => "null".into(),
        _ if super::value::is_json(trimmed) => trimmed.to_owned(),
        _ => Value::from(text).to_string(),
    }
}

const NAME_BYTES_MAX: usize = 256;

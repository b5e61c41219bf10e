//! Calls as tags, which are converted to JSON: `<function=f>`, then `<parameter=p>`, a value and
//! `</parameter>` for each argument, then `</function>`.

use super::event::{Event, Step};
use super::marks::overlap;
use crate::assistant::tool::Tool;
use serde_json::Value;

/// Parses such calls up to a closing mark.
#[derive(Clone, Debug)]
pub(super) struct Xml {
    close: &'static str,
    at: At,
    /// The beginning of a tag, a name, or the part of a value that has not been reported.
    text: String,
    name: String,
    /// Whether the value is a string, which is reported as it arrives.
    is_text: bool,
    /// Whether nothing of the value has been read.
    is_first: bool,
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
    Value,
}

impl Xml {
    pub(super) fn new(close: &'static str) -> Self {
        Self {
            close,
            at: At::Gap,
            text: String::new(),
            name: String::new(),
            is_text: false,
            is_first: false,
            n_parameters: 0,
            n_calls: 0,
        }
    }

    pub(super) fn push(&mut self, c: char, tools: &[Tool], events: &mut Vec<Event>) -> Step {
        match self.at {
            At::Gap | At::Parameters if self.text.is_empty() && c.is_whitespace() => Step::More,
            At::Gap => self.gap(c),
            At::Parameters => self.parameters(c, events),
            At::Name | At::ParameterName if c == '>' => {
                let name = core::mem::take(&mut self.text).trim().to_owned();
                if name.is_empty() {
                    return Step::Bad;
                }
                if self.at == At::Name {
                    events.push(Event::Begin(name.clone()));
                    self.name = name;
                    self.n_parameters = 0;
                    self.at = At::Parameters;
                } else {
                    self.begin_value(&name, tools, events);
                }
                Step::More
            }
            At::Name | At::ParameterName => {
                self.text.push(c);
                if self.text.len() > NAME_BYTES_MAX || c == '<' || c == '\n' {
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
        self.text.push(c);
        if self.text == self.close && self.n_calls > 0 {
            return Step::Done;
        }
        if self.text == FUNCTION {
            self.text.clear();
            self.at = At::Name;
        } else if !FUNCTION.starts_with(&*self.text) && !self.close.starts_with(&*self.text) {
            self.text.pop();
            return if self.n_calls > 0 {
                Step::Over
            } else {
                Step::Bad
            };
        }
        Step::More
    }

    fn parameters(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        self.text.push(c);
        if self.text == PARAMETER {
            self.text.clear();
            self.at = At::ParameterName;
        } else if self.text == FUNCTION_END {
            self.text.clear();
            self.at = At::Gap;
            self.n_calls += 1;
            let end = if self.n_parameters == 0 { "{}" } else { "}" };
            events.extend([Event::Arguments(end.into()), Event::End]);
        } else if !PARAMETER.starts_with(&*self.text) && !FUNCTION_END.starts_with(&*self.text) {
            return Step::Bad;
        }
        Step::More
    }

    fn begin_value(&mut self, name: &str, tools: &[Tool], events: &mut Vec<Event>) {
        let tool = tools.iter().find(|tool| tool.name == self.name);
        let schema = tool.and_then(|tool| tool.property(name));
        self.is_text = schema.is_none_or(is_text);
        self.is_first = true;
        let begin = if self.n_parameters == 0 { "{" } else { ", " };
        let quote = if self.is_text { "\"" } else { "" };
        let key = Value::from(name);
        events.push(Event::Arguments(format!("{begin}{key}: {quote}")));
        self.n_parameters += 1;
        self.at = At::Value;
    }

    fn value(&mut self, c: char, events: &mut Vec<Event>) {
        // The line break after the tag is not part of the value.
        if core::mem::take(&mut self.is_first) && c == '\n' {
            return;
        }
        self.text.push(c);
        if let Some(rest) = self.text.strip_suffix(PARAMETER_END) {
            let rest = rest.strip_suffix('\n').unwrap_or(rest);
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
            let held = overlap(&self.text, VALUE_END).max(overlap(&self.text, PARAMETER_END));
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
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The JSON of a value that is not declared as a string; if it is not valid JSON, it becomes a string.
fn json_of(text: &str) -> String {
    let trimmed = text.trim();
    match trimmed {
        "True" => "true".into(),
        "False" => "false".into(),
        "None" => "null".into(),
        _ if super::value::is_json(trimmed) => trimmed.to_owned(),
        _ => Value::from(text).to_string(),
    }
}

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const VALUE_END: &str = "\n</parameter>";
const NAME_BYTES_MAX: usize = 256;

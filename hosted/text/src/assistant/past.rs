//! Past calls and their results as text, for templates that do not write them.

use super::dialect::{
    Dialect, Format, MISTRAL_ARGS, MISTRAL_CALLS, TOOL_CALL, TOOL_CODE, command_r, harmony,
};
use super::marks::{DEEPSEEK_V31, GEMMA4, NameMarks, ObjectMarks, TagMarks};
use serde_json::{Map, Value};

impl Dialect {
    /// A call as the model would write it; `arguments` are the JSON of an object.
    #[must_use]
    pub fn call_text(&self, name: &str, arguments: &str) -> String {
        let key = Value::from(name);
        let block = |(open, close): (&str, &str), call: String| format!("{open}\n{call}\n{close}");
        match self.format {
            Format::Hermes | Format::Generic => {
                let call = format!("{{\"name\": {key}, \"arguments\": {arguments}}}");
                block(TOOL_CALL, call)
            }
            Format::Tags(marks) if *marks == GEMMA4 => {
                let arguments = serde_json::from_str(arguments).unwrap_or_default();
                format!(
                    "{}call:{name}{}{}",
                    marks.open,
                    literal(&arguments),
                    marks.close
                )
            }
            Format::Tags(marks) => tags(marks, name, arguments),
            Format::Named(marks) => {
                let NameMarks {
                    open,
                    close,
                    call,
                    lead,
                    separator,
                    call_end,
                    ..
                } = marks;
                let number = if marks.is_numbered { ":0" } else { "" };
                format!("{open}{call}{lead}{name}{number}{separator}{arguments}{call_end}{close}")
            }
            Format::Objects(marks) => objects(marks, &key, arguments),
            Format::Llama3 => format!("{{\"name\": {key}, \"parameters\": {arguments}}}"),
            Format::Mistral => {
                format!("{MISTRAL_CALLS}[{{\"name\": {key}, \"arguments\": {arguments}}}]")
            }
            Format::MistralArgs => format!("{MISTRAL_CALLS}{name}{MISTRAL_ARGS}{arguments}"),
            Format::Gemma => {
                let call = format!("{{\"name\": {key}, \"parameters\": {arguments}}}");
                block(TOOL_CODE, call)
            }
            Format::DeepSeekV3 => {
                let NameMarks {
                    open,
                    close,
                    call,
                    separator,
                    call_end,
                    ..
                } = DEEPSEEK_V31;
                format!(
                    "{open}{call}function{separator}{name}\n```json\n{arguments}\n```{call_end}{close}"
                )
            }
            Format::Harmony => {
                let (channel, functions) = (harmony::CHANNEL, harmony::FUNCTIONS);
                let (constrain, message) = (harmony::CONSTRAIN, harmony::MESSAGE);
                format!(
                    "{channel}commentary to={functions}{name} {constrain}json{message}{arguments}"
                )
            }
            Format::CommandR => {
                let call = format!("\"tool_name\": {key}, \"parameters\": {arguments}");
                let (open, close) = (command_r::ACTION, command_r::ACTION_END);
                format!("{open}[\n    {{\"tool_call_id\": \"0\", {call}}}\n]{close}")
            }
        }
    }

    /// The result of such a call.
    #[must_use]
    pub fn result_text(&self, result: &str) -> String {
        match self.format {
            Format::Gemma => format!("```tool_output\n{result}\n```"),
            _ => format!("<tool_response>\n{result}\n</tool_response>"),
        }
    }
}

/// A call in which each argument is between tags; strings have no quotes there.
fn tags(marks: &TagMarks, name: &str, arguments: &str) -> String {
    let arguments: Map<String, Value> = serde_json::from_str(arguments).unwrap_or_default();
    let mut text = String::from(marks.open);
    if !marks.close.is_empty() {
        text.push('\n');
    }
    text.extend([marks.call, name, marks.name_end]);
    for (key, value) in arguments {
        let key_end = marks.key_ends[usize::from(!value.is_string())];
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), |text| marks.wrapped(text));
        text.extend([
            marks.key,
            &key,
            key_end,
            marks.value,
            &value,
            marks.value_end,
        ]);
    }
    text.push_str(marks.call_end);
    if !marks.close.is_empty() {
        text.extend(["\n", marks.close]);
    }
    text
}

/// An object between two marks.
fn objects(marks: &ObjectMarks, key: &Value, arguments: &str) -> String {
    let call = match marks.is_keyed {
        true => format!("{{{key}: {arguments}}}"),
        false => format!("{{\"name\": {key}, \"arguments\": {arguments}}}"),
    };
    match marks.separator {
        "\n" => format!("{}\n{call}\n{}", marks.open, marks.close),
        _ => format!("{}[{call}]{}", marks.open, marks.close),
    }
}

/// A value in the notation of Gemma 4.
fn literal(value: &Value) -> String {
    let joined = |items: Vec<String>| items.join(",");
    match value {
        Value::String(text) => format!("{quote}{text}{quote}", quote = GEMMA4.value_end),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(literal).collect())),
        Value::Object(pairs) => {
            let pairs = pairs
                .iter()
                .map(|(key, value)| format!("{key}:{}", literal(value)));
            format!("{{{}}}", joined(pairs.collect()))
        }
        other => other.to_string(),
    }
}

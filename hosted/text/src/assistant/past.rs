//! Past calls and their results as text, for templates that do not write them.

use super::dialect::{
    Dialect, Format, MISTRAL_ARGS, MISTRAL_CALLS, TOOL_CALL, TOOL_CODE, command_r, deepseek,
    harmony,
};
use core::fmt::Write as _;
use serde_json::{Map, Value};

impl Dialect {
    /// A call as the model would write it; `arguments` are the JSON of an object.
    #[must_use]
    pub fn call_text(&self, name: &str, arguments: &str) -> String {
        let key = Value::from(name);
        let block = |(open, close): (&str, &str), call: String| format!("{open}\n{call}\n{close}");
        let deepseek = |call: String| {
            let (open, close) = (deepseek::CALLS, deepseek::CALLS_END);
            format!(
                "{open}{}{call}{}{close}",
                deepseek::CALL,
                deepseek::CALL_END
            )
        };
        match self.format {
            Format::Hermes | Format::Generic => {
                let call = format!("{{\"name\": {key}, \"arguments\": {arguments}}}");
                block(TOOL_CALL, call)
            }
            Format::QwenCoder => block(TOOL_CALL, tags(name, arguments)),
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
                let separator = deepseek::SEPARATOR;
                deepseek(format!(
                    "function{separator}{name}\n```json\n{arguments}\n```"
                ))
            }
            Format::DeepSeekV31 => deepseek(format!("{name}{}{arguments}", deepseek::SEPARATOR)),
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
fn tags(name: &str, arguments: &str) -> String {
    let arguments: Map<String, Value> = serde_json::from_str(arguments).unwrap_or_default();
    let mut text = format!("<function={name}>\n");
    for (key, value) in arguments {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        // Writing to a string cannot fail.
        let _ = write!(text, "<parameter={key}>\n{value}\n</parameter>\n");
    }
    text + "</function>"
}

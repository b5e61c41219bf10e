//! The tools of a request, as functions of Chat Completions.

use super::super::fields::{Fields, shown, within, wrong};
use crate::api::{ApiError, ChatRequest};
use serde_json::{Value, json};
use sluice_text::assistant::{Tool, ToolChoice, ToolError};

type Result<T> = core::result::Result<T, ApiError>;

/// What a reply says about the tools of its request.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// The tools that the model may call, as the client gave them.
    pub(super) tools: Vec<Value>,
    /// The names of those whose input is a text.
    pub(super) custom: Vec<String>,
    pub(super) choice: Value,
}

/// Parses `tools` and `tool_choice`.
pub(super) fn read(fields: Fields<'_>, request: &mut ChatRequest) -> Result<Asked> {
    let mut asked = Asked::default();
    let (mut tools, mut left_out) = (Vec::<Tool>::new(), Vec::new());
    for (field, tool) in fields.objects("tools", "a tool, which is an object")? {
        let within = |error| within(&field, error);
        let kind = tool.str("type").map_err(within)?;
        let parameters = match kind {
            Some("function") => tool.value("parameters").cloned(),
            Some("custom") => Some(input(tool).map_err(within)?),
            Some(kind) => {
                left_out.push(kind.to_owned());
                continue;
            }
            None => return Err(ApiError::field(format!("{field}.type"), "is missing")),
        };
        let Some(name) = tool.str("name").map_err(within)? else {
            return Err(ApiError::field(format!("{field}.name"), "is missing"));
        };
        let mut function = json!({"name": name});
        for (name, value) in [
            ("description", tool.value("description").cloned()),
            ("parameters", parameters),
        ] {
            if let Some(value) = value {
                function[name] = value;
            }
        }
        let function = json!({"type": "function", "function": function});
        let parsed = Tool::parse(&function, &field).map_err(of_tools)?;
        if tools.iter().any(|tool| tool.name == parsed.name) {
            let what = format!("{:?} is defined twice", parsed.name);
            return Err(ApiError::field(format!("{field}.name"), what));
        }
        if kind == Some("custom") {
            asked.custom.push(parsed.name.clone());
        }
        tools.push(parsed);
        request.tools.push(function);
        asked.tools.push(Value::Object(tool.map().clone()));
    }
    asked.choice = choice(fields, request)?;
    request.tool_choice.check(&tools).map_err(of_tools)?;
    if !left_out.is_empty() {
        let kinds = left_out.join(", ");
        let note = format!("tools that only OpenAI's servers can run are left out: {kinds}");
        request.left_out.push(note);
    }
    Ok(asked)
}

/// The parameters of a tool whose input is a text: the one argument `input`.
fn input(tool: Fields<'_>) -> Result<Value> {
    let mut input = json!({"type": "string"});
    if let Some(format) = tool.object("format")? {
        match format.word("type", &["text", "grammar"])? {
            Some("grammar") => match format.word("syntax", &["lark", "regex"])? {
                Some("regex") => {
                    let definition = format.str("definition")?;
                    let missing = || ApiError::field("format.definition", "is missing");
                    let definition = definition.ok_or_else(missing)?;
                    input["pattern"] = format!("^(?:{definition})$").into();
                }
                _ => {
                    let what = "lark is not supported yet; use regex";
                    return Err(ApiError::field("format.syntax", what));
                }
            },
            Some(_) => {}
            None => return Err(ApiError::field("format.type", "is missing")),
        }
    }
    Ok(json!({
        "type": "object",
        "properties": {"input": input},
        "required": ["input"],
        "additionalProperties": false,
    }))
}

/// Parses `tool_choice`; returns it as the reply shows it.
fn choice(fields: Fields<'_>, request: &mut ChatRequest) -> Result<Value> {
    let given = fields.value("tool_choice");
    request.tool_choice = match given {
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match &**word {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => {
                let what = format!(
                    "{} is not one of none, auto, required",
                    shown(&word.as_str().into())
                );
                return Err(ApiError::field("tool_choice", what));
            }
        },
        Some(Value::Object(choice)) => {
            let kind = choice.get("type").unwrap_or(&Value::Null);
            match (kind.as_str(), choice.get("name").and_then(Value::as_str)) {
                (Some("function" | "custom"), Some(name)) => ToolChoice::Named(name.to_owned()),
                (Some("function" | "custom"), None) => {
                    return Err(ApiError::field("tool_choice.name", "is missing"));
                }
                _ => {
                    let what = format!("{} is not function or custom", shown(kind));
                    return Err(ApiError::field("tool_choice.type", what));
                }
            }
        }
        Some(other) => return Err(wrong("tool_choice", other, "a string or an object")),
    };
    Ok(given.cloned().unwrap_or_else(|| "auto".into()))
}

/// An error of Chat Completions' functions, in this API's names.
fn of_tools(error: ToolError) -> ApiError {
    ApiError::field(error.field.replace(".function", ""), error.what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Defaults;

    fn of(body: &Value) -> Result<(ChatRequest, Asked)> {
        let mut request = ChatRequest::new(&Defaults::default());
        let asked = read(Fields::of_body(body).unwrap(), &mut request)?;
        Ok((request, asked))
    }

    fn tide() -> Value {
        json!({"type": "function", "name": "tide", "parameters": {"type": "object"}, "strict": true})
    }

    #[test]
    fn functions_and_custom_tools_become_functions() {
        let digits = json!({"type": "grammar", "syntax": "regex", "definition": "[0-9]+"});
        let dial = json!({"type": "custom", "name": "dial", "format": digits});
        let search = json!({"type": "web_search"});
        let (request, asked) = of(&json!({"tools": [tide(), dial, search]})).unwrap();
        assert_eq!(request.tools[0]["function"]["name"], "tide");
        let input = &request.tools[1]["function"]["parameters"]["properties"]["input"];
        assert_eq!(*input, json!({"type": "string", "pattern": "^(?:[0-9]+)$"}));
        assert_eq!(
            (asked.tools, asked.custom),
            (vec![tide(), dial], vec!["dial".to_owned()])
        );
        assert!(request.left_out[0].ends_with(": web_search"));
    }

    #[test]
    fn what_is_wrong_with_a_tool_is_named() {
        for (body, field) in [
            (json!({"tools": [3]}), "tools[0]"),
            (json!({"tools": [tide(), tide()]}), "tools[1].name"),
            (json!({"tools": [{"name": "x"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "custom"}]}), "tools[0].name"),
            (
                json!({"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "lark"}}]}),
                "tools[0].format.syntax",
            ),
            (json!({"tool_choice": "some"}), "tool_choice"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tool_choice": {"type": "mcp"}}), "tool_choice.type"),
            (
                json!({"tool_choice": {"type": "function", "name": "x"}}),
                "tool_choice",
            ),
        ] {
            let error = of(&body).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{body}");
        }
    }
}

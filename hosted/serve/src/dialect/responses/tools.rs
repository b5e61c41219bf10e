//! The tools of a request, as functions of Chat Completions.

use super::super::fields::{Fields, shown, within, wrong};
use crate::api::{ApiError, ChatRequest, InputGrammar};
use serde_json::{Value, json};
use sluice_text::assistant::{Tool, ToolChoice, ToolError};
use sluice_text::grammar::check_lark;

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
        let mut lark = None;
        let parameters = match kind {
            Some("function") => tool.value("parameters").cloned(),
            Some("custom") => {
                let input = Input::read(tool).map_err(within)?;
                lark = input.lark;
                Some(input.parameters)
            }
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
        let tool_name = || parsed.name.clone();
        let grammar = lark.map(|lark| InputGrammar {
            tool: tool_name(),
            lark,
        });
        request.input_grammars.extend(grammar);
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

/// What a tool takes whose input is a text.
struct Input {
    /// The schema of the one argument `input`.
    parameters: Value,
    /// The grammar of the text, in Lark's notation.
    lark: Option<String>,
}

impl Input {
    fn read(tool: Fields<'_>) -> Result<Self> {
        let mut input = json!({"type": "string"});
        let mut lark = None;
        if let Some(format) = tool.object("format")? {
            match format.word("type", &["text", "grammar"])? {
                Some("grammar") => {
                    let definition = format.str("definition")?;
                    let missing = || ApiError::field("format.definition", "is missing");
                    let definition = definition.ok_or_else(missing)?;
                    let wrong = |why: String| ApiError::field("format.definition", why);
                    match format.word("syntax", &["lark", "regex"])? {
                        Some("regex") => input["pattern"] = format!("^(?:{definition})$").into(),
                        Some(_) => {
                            check_lark(definition).map_err(wrong)?;
                            let what = "A text that this grammar in Lark's notation matches:\n";
                            input["description"] = format!("{what}{definition}").into();
                            lark = Some(definition.to_owned());
                        }
                        None => return Err(ApiError::field("format.syntax", "is missing")),
                    }
                }
                Some(_) => {}
                None => return Err(ApiError::field("format.type", "is missing")),
            }
        }
        let parameters = json!({
            "type": "object",
            "properties": {"input": input},
            "required": ["input"],
            "additionalProperties": false,
        });
        Ok(Self { parameters, lark })
    }
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
                "tools[0].format.definition",
            ),
            (
                json!({"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "lark",
                    "definition": "start: <think>"}}]}),
                "tools[0].format.definition",
            ),
            (
                json!({"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar",
                    "definition": "start: \"a\""}}]}),
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

//! The tools of a request, as OpenAI's functions.

use super::super::fields::{Fields, shown, within, wrong};
use crate::api::{ApiError, ChatRequest};
use serde_json::{Value, json};
use sluice_text::assistant::{Tool, ToolChoice, ToolError};

type Result<T> = core::result::Result<T, ApiError>;

/// Parses `tools` and `tool_choice`.
pub(super) fn read(fields: Fields<'_>, request: &mut ChatRequest) -> Result<()> {
    let (mut tools, mut left_out) = (Vec::<Tool>::new(), Vec::new());
    for (field, tool) in fields.objects("tools", "a tool, which is an object")? {
        let Some(function) = function(tool).map_err(|error| within(&field, error))? else {
            left_out.extend(tool.str("name").ok().flatten().map(str::to_owned));
            continue;
        };
        let parsed = Tool::parse(&function, &field).map_err(of_tools)?;
        if tools.iter().any(|tool| tool.name == parsed.name) {
            let what = format!("{:?} is defined twice", parsed.name);
            return Err(ApiError::field(format!("{field}.name"), what));
        }
        tools.push(parsed);
        request.tools.push(function);
    }
    if let Some(choice) = fields.object("tool_choice")? {
        let read = self::choice(choice, request, &left_out);
        read.map_err(|error| within("tool_choice", error))?;
    }
    request.tool_choice.check(&tools).map_err(of_tools)?;
    if !left_out.is_empty() {
        let names = left_out.join(", ");
        let note = format!("tools that only Anthropic's servers can run are left out: {names}");
        request.left_out.push(note);
    }
    Ok(())
}

/// A tool as OpenAI's function; `None` for one that Anthropic's servers or its clients define, known by a dated type.
fn function(tool: Fields<'_>) -> Result<Option<Value>> {
    let kind = tool.str("type")?.unwrap_or("custom");
    if kind != "custom" {
        let date = kind.rsplit_once('_').map_or("", |(_, date)| date);
        if date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(None);
        }
        let what = format!("{} is not custom", shown(&kind.into()));
        return Err(ApiError::field("type", what));
    }
    let Some(name) = tool.str("name")? else {
        return Err(ApiError::field("name", "is missing"));
    };
    let schema = match tool.value("input_schema") {
        Some(schema @ Value::Object(_)) => schema,
        Some(other) => return Err(wrong("input_schema", other, "a JSON schema")),
        None => return Err(ApiError::field("input_schema", "is missing")),
    };
    let mut function = json!({"name": name});
    if let Some(description) = tool.str("description")? {
        function["description"] = description.into();
    }
    function["parameters"] = schema.clone();
    if let Some(strict) = tool.bool("strict")? {
        function["strict"] = strict.into();
    }
    Ok(Some(json!({"type": "function", "function": function})))
}

fn choice(choice: Fields<'_>, request: &mut ChatRequest, left_out: &[String]) -> Result<()> {
    let kind = choice.word("type", &["auto", "any", "tool", "none"])?;
    request.tool_choice = match kind {
        None => return Err(ApiError::field("type", "is missing")),
        Some("any") => ToolChoice::Required,
        Some("none") => ToolChoice::None,
        Some("tool") => {
            let name = choice.str("name")?;
            let name = name.ok_or_else(|| ApiError::field("name", "is missing"))?;
            if left_out.iter().any(|left| left == name) {
                let what = format!("{name} is a tool that only Anthropic's servers can run");
                return Err(ApiError::field("name", what));
            }
            ToolChoice::Named(name.to_owned())
        }
        Some(_) => ToolChoice::Auto,
    };
    if choice.bool("disable_parallel_tool_use")? == Some(true) {
        request.parallel_calls = false;
    }
    Ok(())
}

/// An error of OpenAI's functions, in Anthropic's names.
fn of_tools(error: ToolError) -> ApiError {
    let field = error.field.replace(".function", "");
    ApiError::field(field.replace("parameters", "input_schema"), error.what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Defaults;

    fn of(body: &Value) -> Result<ChatRequest> {
        let mut request = ChatRequest::new(&Defaults::default());
        read(Fields::of_body(body).unwrap(), &mut request).map(|()| request)
    }

    fn tool() -> Value {
        json!({"name": "tide", "description": "How high?", "input_schema": {"type": "object"},
            "cache_control": {"type": "ephemeral"}})
    }

    #[test]
    fn tools_become_functions() {
        let dated = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 3});
        let request = of(&json!({"tools": [tool(), dated]})).unwrap();
        let function =
            json!({"name": "tide", "description": "How high?", "parameters": {"type": "object"}});
        let expected = json!([{"type": "function", "function": function}]);
        assert_eq!(Value::from(request.tools), expected);
        assert!(
            request.left_out[0].ends_with(": web_search"),
            "{:?}",
            request.left_out
        );
    }

    #[test]
    fn each_choice_is_kept() {
        for (choice, expected) in [
            (json!({"type": "auto"}), ToolChoice::Auto),
            (json!({"type": "any"}), ToolChoice::Required),
            (json!({"type": "none"}), ToolChoice::None),
            (
                json!({"type": "tool", "name": "tide"}),
                ToolChoice::Named("tide".into()),
            ),
        ] {
            let body = json!({"tools": [tool()], "tool_choice": choice});
            assert_eq!(of(&body).unwrap().tool_choice, expected);
        }
        let single = json!({"type": "auto", "disable_parallel_tool_use": true});
        let body = json!({"tools": [tool()], "tool_choice": single});
        assert!(!of(&body).unwrap().parallel_calls);
    }

    #[test]
    fn what_is_wrong_with_a_tool_is_named() {
        let dated = json!({"type": "bash_20250124", "name": "bash"});
        for (body, field) in [
            (json!({"tools": [3]}), "tools[0]"),
            (
                json!({"tools": [tool(), {"name": "x"}]}),
                "tools[1].input_schema",
            ),
            (json!({"tools": [{"input_schema": {}}]}), "tools[0].name"),
            (json!({"tools": [{"type": "mcp_toolset"}]}), "tools[0].type"),
            (json!({"tools": [tool(), tool()]}), "tools[1].name"),
            (
                json!({"tools": [tool(), dated], "tool_choice": {"type": "tool", "name": "bash"}}),
                "tool_choice.name",
            ),
            (json!({"tool_choice": {"type": "some"}}), "tool_choice.type"),
            (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        ] {
            let error = of(&body).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{body}");
        }
    }
}

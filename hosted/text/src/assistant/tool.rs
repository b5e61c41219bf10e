//! Functions that a model may call, in the format of the OpenAI API.

use serde_json::{Map, Value, json};

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The name used in calls.
    pub name: String,
    /// Its purpose.
    pub description: Option<String>,
    /// The JSON schema of its arguments, an object.
    pub parameters: Value,
    /// The grammar of its only argument, a text, in Lark's notation.
    pub input_grammar: Option<String>,
}

/// Which functions an answer has to call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// No function.
    None,
    /// The model decides.
    #[default]
    Auto,
    /// At least one function.
    Required,
    /// This function.
    Named(String),
}

/// An invalid tool, or an invalid choice of tools.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct ToolError {
    /// The field, such as `tools[0].function.name`.
    pub field: String,
    /// The reason.
    pub what: String,
}

impl ToolError {
    fn new(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            what: what.into(),
        }
    }
}

impl Tool {
    /// Parses a request's `tools`: a list of `{"type": "function", "function": {..}}`, or null.
    ///
    /// # Errors
    /// A field is missing or invalid, or a name occurs twice.
    pub fn all_of(tools: &Value) -> Result<Vec<Self>, ToolError> {
        let list = match tools {
            Value::Null => return Ok(Vec::new()),
            Value::Array(list) => list,
            _ => return Err(ToolError::new("tools", "must be a list")),
        };
        if list.len() > TOOLS_MAX {
            let what = format!("has more than {TOOLS_MAX} tools");
            return Err(ToolError::new("tools", what));
        }
        let mut all: Vec<Self> = Vec::with_capacity(list.len());
        for (n, value) in list.iter().enumerate() {
            let tool = Self::parse(value, &format!("tools[{n}]"))?;
            if all.iter().any(|other| other.name == tool.name) {
                let field = format!("tools[{n}].function.name");
                return Err(ToolError::new(
                    field,
                    format!("{:?} is defined twice", tool.name),
                ));
            }
            all.push(tool);
        }
        Ok(all)
    }

    /// Parses one tool; errors name it `field`.
    ///
    /// # Errors
    /// A field is missing or invalid.
    pub fn parse(value: &Value, field: &str) -> Result<Self, ToolError> {
        let object = object_of(value, field)?;
        match object.get("type").map(Value::as_str) {
            None | Some(Some("function")) => {}
            _ => {
                let what = "only \"function\" is supported";
                return Err(ToolError::new(format!("{field}.type"), what));
            }
        }
        let field = format!("{field}.function");
        let function = object.get("function");
        let function = object_of(function.unwrap_or(&Value::Null), &field)?;
        let name = function.get("name").and_then(Value::as_str);
        let name = name.filter(|name| is_name(name)).ok_or_else(|| {
            let what =
                format!("must be 1 to {NAME_BYTES_MAX} letters, digits, '_', '-', '.', '/' or ':'");
            ToolError::new(format!("{field}.name"), what)
        })?;
        let description = match function.get("description") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => {
                return Err(ToolError::new(
                    format!("{field}.description"),
                    "must be a string",
                ));
            }
        };
        let parameters = match function.get("parameters") {
            None | Some(Value::Null) => json!({"type": "object", "properties": {}}),
            Some(schema @ Value::Object(_)) => schema.clone(),
            Some(_) => {
                let what = "must be a JSON schema, which is an object";
                return Err(ToolError::new(format!("{field}.parameters"), what));
            }
        };
        Ok(Self {
            name: name.to_owned(),
            description,
            parameters,
            input_grammar: None,
        })
    }

    /// The tool in the format of a request, which templates expect.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), self.name.clone().into());
        if let Some(description) = &self.description {
            function.insert("description".into(), description.clone().into());
        }
        function.insert("parameters".into(), self.parameters.clone());
        json!({"type": "function", "function": function})
    }

    /// The schema of an argument, if it is a top-level property of the parameters.
    pub(super) fn property(&self, name: &str) -> Option<&Value> {
        self.parameters.get("properties")?.get(name)
    }
}

impl ToolChoice {
    /// Parses a request's `tool_choice`: `"none"`, `"auto"`, `"required"`, or
    /// `{"type": "function", "function": {"name": ..}}`. Null means auto.
    ///
    /// # Errors
    /// It has another value, or names a tool that is not in `tools`.
    pub fn parse(value: &Value, tools: &[Tool]) -> Result<Self, ToolError> {
        let wrong = |what: String| ToolError::new("tool_choice", what);
        let choice = match value {
            Value::Null => Self::Auto,
            Value::String(text) => match text.as_str() {
                "none" => Self::None,
                "auto" => Self::Auto,
                "required" | "any" => Self::Required,
                _ => return Err(wrong(format!("{text:?} is not none, auto or required"))),
            },
            Value::Object(object) => {
                let function = object.get("function").unwrap_or(value);
                let name = function.get("name").and_then(Value::as_str);
                let name = name.ok_or_else(|| {
                    ToolError::new("tool_choice.function.name", "must be a string")
                })?;
                Self::Named(name.to_owned())
            }
            _ => return Err(wrong("must be a string or an object".into())),
        };
        choice.check(tools)?;
        Ok(choice)
    }

    /// Checks that an answer with these tools can satisfy it.
    ///
    /// # Errors
    /// It names a tool that is not in `tools`.
    pub fn check(&self, tools: &[Tool]) -> Result<(), ToolError> {
        let wrong = |what: String| Err(ToolError::new("tool_choice", what));
        match self {
            Self::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
                wrong(format!("no tool is named {name:?}"))
            }
            Self::Required if tools.is_empty() => wrong("requires tools".into()),
            _ => Ok(()),
        }
    }
}

fn object_of<'v>(value: &'v Value, field: &str) -> Result<&'v Map<String, Value>, ToolError> {
    let object = value.as_object();
    object.ok_or_else(|| ToolError::new(field, "must be an object"))
}

/// Quotes, blanks and brackets are refused, because names are written between the marks of every format.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:".contains(&byte);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain)
}

const TOOLS_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 128;

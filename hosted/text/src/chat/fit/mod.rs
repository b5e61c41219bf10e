//! Fits a conversation to what its template can take.
//!
//! Clients send one kind of message; templates differ in the roles, contents and calls that they know. What a template
//! takes is found once, by rendering made-up conversations ([`takes`]). A message that it takes goes in unchanged.
//! Others are rewritten:
//!
//! - tools of a template that does not describe them: the system message does;
//! - tools without a description or parameters, where the template needs them;
//! - calls, and their results, of a template that cannot write them: as text, in the format which that message asks for;
//! - arguments as text or as an object, content that is missing, several calls in one message, long ids ([`calls`]);
//! - content in parts, and system and developer messages ([`contents`]).

mod calls;
mod contents;
mod takes;
#[cfg(test)]
mod tests;

use crate::assistant::{Dialect, Tool, ToolError};
use crate::chat_template::{ChatTemplate, Message, RenderOptions};
use serde_json::{Value, json};
use takes::Takes;

/// What one template can take.
#[derive(Clone, Debug)]
pub(super) struct Fit {
    dialect: Dialect,
    takes: Takes,
}

impl Fit {
    /// Renders made-up conversations with `template`; `options` has the tokens that begin and end texts.
    pub(super) fn of(template: &ChatTemplate, options: RenderOptions) -> Self {
        let dialect = Dialect::of_template(template.source());
        let takes = Takes::of(template, options, &dialect);
        Self { dialect, takes }
    }

    /// How the model writes reasoning and calls.
    pub(super) const fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    /// Whether the template itself describes tools, in the format that answers are parsed in.
    pub(super) const fn writes_tools(&self) -> bool {
        self.takes.tools
    }

    /// Rewrites the messages and tools that the template cannot take.
    ///
    /// # Errors
    /// The system message has to describe the tools, and one is invalid.
    pub(super) fn fit(
        &self,
        messages: &mut Vec<Message>,
        options: &mut RenderOptions,
    ) -> Result<(), ToolError> {
        let tools = options.tools.take().filter(|tools| !tools.is_empty());
        let takes = &self.takes;
        let mut asks = false;
        match tools {
            Some(tools) if !takes.tools => {
                let tools = Tool::all_of(&Value::Array(tools))?;
                contents::instruct(messages, &self.dialect.system_text(&tools));
                asks = !self.dialect.is_native();
            }
            tools => options.tools = tools,
        }
        for tool in options.tools.iter_mut().flatten() {
            complete(tool, &takes.needs_of_tool);
        }
        if options.tools.is_none() && takes.needs_tools {
            options.tools = Some(Vec::new());
        }
        calls::fit(messages, takes, &self.dialect, asks);
        contents::fit(messages, takes);
        Ok(())
    }
}

/// Adds what a tool must have: nothing to say, and no parameters.
fn complete(tool: &mut Value, keys: &[&str]) {
    let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) else {
        return;
    };
    for key in keys {
        let missing = match *key {
            "description" => "".into(),
            _ => json!({"type": "object", "properties": {}}),
        };
        let value = function.entry(*key).or_insert(Value::Null);
        if value.is_null() {
            *value = missing;
        }
    }
}

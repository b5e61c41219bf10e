//! An answer taken apart as it comes: content, reasoning, calls.

use super::messages::Conversation;
use super::prompt::Prompts;
use crate::api::error::ApiError;
use crate::api::fields::Fields;
use crate::api::request::Defaults;
use serde_json::Value;
use sluice_text::assistant::{
    AnswerParser, CallGrammar, Dialect, ParserOptions, Tool, ToolChoice, ToolError,
};
use sluice_text::chat_template::Message;

pub(crate) use sluice_text::assistant::Delta;

/// How the answers of a request are read.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    dialect: Dialect,
    tools: Vec<Tool>,
    choice: ToolChoice,
    parallel: bool,
    splits_reasoning: bool,
    /// Most tokens of reasoning.
    budget: Option<usize>,
}

/// Takes the answer of one choice apart.
#[derive(Debug)]
pub(crate) struct Answer(AnswerParser);

/// What answers keep to besides the grammar that a request may bring.
#[derive(Clone, Debug, Default)]
pub(crate) struct Constraint {
    /// Of calls.
    pub(crate) calls: Option<CallGrammar>,
    /// The mark that ends the reasoning in which the answer begins: a grammar is for what follows it.
    pub(crate) begins_behind: Option<&'static str>,
    /// Most tokens of reasoning, how it is marked, and the prompt, which may have begun it.
    pub(crate) budget: Option<(usize, Dialect, String)>,
}

impl Answers {
    /// Reads tools and what is said of reasoning, and tells the model of the tools where its template does not.
    pub(crate) fn read(
        fields: Fields<'_>,
        defaults: &Defaults,
        prompts: &Prompts,
        conversation: &mut Conversation,
    ) -> Result<Self, ApiError> {
        let dialect = prompts.dialect().clone();
        let given = fields.value("tools").unwrap_or(&Value::Null);
        let mut tools = Tool::all_of(given).map_err(of_tools)?;
        let asked = fields.value("tool_choice").unwrap_or(&Value::Null);
        let choice = ToolChoice::parse(asked, &tools).map_err(of_tools)?;
        if choice == ToolChoice::None {
            tools.clear();
        }
        if tools.is_empty() || !dialect.writes_tools() {
            conversation.options.tools = None;
        }
        if let Some(text) = dialect.system_text(&tools) {
            say(&mut conversation.messages, &text);
        }
        let formats = ["none", "auto", "deepseek"];
        let format = fields.word("reasoning_format", &formats)?;
        let format = format.or(defaults.reasoning_format.as_deref());
        Ok(Self {
            parallel: fields.bool("parallel_tool_calls")?.unwrap_or(true),
            splits_reasoning: format != Some("none"),
            budget: budget(fields)?.or(defaults.reasoning_budget),
            dialect,
            tools,
            choice,
        })
    }

    /// For choice `number` of an answer to a prompt.
    pub(crate) fn answer(&self, prompt: &str, seed: u64, number: u64) -> Answer {
        Answer(AnswerParser::new(
            &self.dialect,
            &ParserOptions {
                prompt_end: prompt,
                tools: &self.tools,
                parallel: self.parallel,
                split_reasoning: self.splits_reasoning,
                // A grammar keeps to them, whoever chose to call.
                stream_arguments: true,
                id_seed: seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            },
        ))
    }

    /// What answers to a prompt keep to; `asked` is the field of the grammar that the request brings.
    pub(crate) fn constraint(
        &self,
        prompt: &str,
        asked: Option<&'static str>,
    ) -> Result<Constraint, ApiError> {
        if let Some(field) = asked.filter(|_| !self.tools.is_empty()) {
            let what = format!("cannot be combined with {field}, unless tool_choice is \"none\"");
            return Err(ApiError::field("tools", what));
        }
        let is_open = self.dialect.is_reasoning_open(prompt);
        let calls = self
            .dialect
            .call_grammar(&self.tools, &self.choice, self.parallel, is_open);
        let close = self.dialect.reasoning_marks().map(|(_, close)| close);
        let budget = self
            .budget
            .map(|n| (n, self.dialect.clone(), prompt.to_owned()));
        Ok(Constraint {
            calls,
            begins_behind: close.filter(|_| is_open),
            budget,
        })
    }

    /// Whether marks may be control tokens that have to be seen.
    pub(crate) fn reads_marks(&self) -> bool {
        !self.tools.is_empty()
            || (self.splits_reasoning && self.dialect.reasoning_marks().is_some())
    }
}

impl Answer {
    /// What is known with the next piece of text.
    pub(crate) fn push(&mut self, piece: &str) -> Vec<Delta> {
        let mut deltas = Vec::new();
        self.0.push(piece, &mut |delta| deltas.push(delta));
        deltas
    }

    /// What is known when nothing more comes.
    pub(crate) fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        self.0.finish(&mut |delta| deltas.push(delta));
        deltas
    }
}

/// -1 is no limit.
fn budget(fields: Fields<'_>) -> Result<Option<usize>, ApiError> {
    let names = [
        "reasoning_budget",
        "reasoning_budget_tokens",
        "thinking_budget_tokens",
    ];
    let Some(name) = fields.first(&names) else {
        return Ok(None);
    };
    let asked = fields.int(name, -1..=1 << 30)?;
    Ok(asked.and_then(|n| usize::try_from(n).ok()))
}

/// Adds `text` to the system message.
fn say(messages: &mut Vec<Message>, text: &str) {
    match messages.first_mut().filter(|first| first.role == "system") {
        Some(first) => {
            let said = first
                .content
                .as_ref()
                .and_then(Value::as_str)
                .unwrap_or_default();
            first.content = Some(format!("{said}\n\n{text}").into());
        }
        None => messages.insert(0, Message::new("system", text)),
    }
}

fn of_tools(error: ToolError) -> ApiError {
    ApiError::field(error.field, error.what)
}

//! An answer taken apart as it comes: content, reasoning, calls.

use super::conversation::Conversation;
use super::prompt::Prompts;
use crate::api::{ApiError, ChatRequest};
use core::mem::take;
use serde_json::Value;
use sluice_text::assistant::{
    AnswerParser, CallGrammar, Delta, Dialect, ParserOptions, Tool, ToolChoice, ToolError,
};

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
    /// Takes tools and how reasoning is treated out of a request, and tells the model of the tools where its template
    /// does not.
    pub(crate) fn take(
        request: &mut ChatRequest,
        prompts: &Prompts,
        conversation: &mut Conversation,
    ) -> Result<Self, ApiError> {
        let dialect = prompts.dialect().clone();
        let mut tools = Tool::all_of(&Value::Array(take(&mut request.tools))).map_err(of_tools)?;
        let choice = take(&mut request.tool_choice);
        choice.check(&tools).map_err(of_tools)?;
        if choice == ToolChoice::None {
            tools.clear();
        }
        if tools.is_empty() || !dialect.writes_tools() {
            conversation.options.tools = None;
        }
        if let Some(text) = dialect.system_text(&tools) {
            conversation.instruct(&text);
        }
        Ok(Self {
            parallel: request.parallel_calls,
            splits_reasoning: request.splits_reasoning,
            budget: request.reasoning_budget,
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

    /// What answers to a prompt keep to; `has_grammar` where the request brings a grammar.
    pub(crate) fn constraint(
        &self,
        prompt: &str,
        has_grammar: bool,
    ) -> Result<Constraint, ApiError> {
        if has_grammar && !self.tools.is_empty() {
            let what = "cannot be combined with a grammar, unless none of them may be called";
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

fn of_tools(error: ToolError) -> ApiError {
    ApiError::field(error.field, error.what)
}

//! Splits an answer into content, reasoning and calls as it is generated.

use super::conversation::Conversation;
use super::prompt::Prompts;
use crate::api::{ApiError, ChatRequest};
use core::mem::take;
use serde_json::Value;
use sluice_text::assistant::{
    AnswerParser, CallGrammar, Delta, Dialect, ParserOptions, ReasoningState, Tool, ToolChoice,
    ToolError, Triggers,
};
use sluice_text::grammar::GrammarSource;

/// How the answers of a request are parsed.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    dialect: Dialect,
    tools: Vec<Tool>,
    choice: ToolChoice,
    parallel: bool,
    splits_reasoning: bool,
    /// Maximum number of reasoning tokens.
    budget: Option<usize>,
}

/// Parses the answer of one choice.
#[derive(Debug)]
pub(crate) struct Answer(AnswerParser);

/// Constraints on an answer in addition to the request's own grammar.
#[derive(Clone, Debug, Default)]
pub(crate) struct Constraint {
    /// The grammar of calls, or of calls and content.
    pub(crate) calls: Option<CallGrammar>,
    /// The mark that ends the reasoning in which the answer begins; the grammar applies after it.
    pub(crate) begins_behind: Option<&'static str>,
    /// Maximum number of reasoning tokens, the dialect that marks them, and the prompt, which may have begun them.
    pub(crate) budget: Option<(usize, Dialect, String)>,
}

impl Answers {
    /// Takes the tools and the reasoning options out of a request. With a choice of none, the prompt has no tools.
    pub(crate) fn take(
        request: &mut ChatRequest,
        prompts: &Prompts,
        conversation: &mut Conversation,
    ) -> Result<Self, ApiError> {
        let dialect = prompts.dialect().clone();
        let mut tools = Tool::all_of(&Value::Array(take(&mut request.tools))).map_err(of_tools)?;
        for grammar in take(&mut request.input_grammars) {
            let mut named = tools.iter_mut().filter(|tool| tool.name == grammar.tool);
            if let Some(tool) = named.next() {
                tool.input_grammar = Some(grammar.lark);
            }
        }
        let choice = take(&mut request.tool_choice);
        choice.check(&tools).map_err(of_tools)?;
        if choice == ToolChoice::None {
            tools.clear();
        }
        if tools.is_empty() {
            conversation.options.tools = None;
        }
        Ok(Self {
            // A named function is called once, as with OpenAI and vLLM.
            parallel: request.parallel_calls && !matches!(choice, ToolChoice::Named(_)),
            splits_reasoning: request.splits_reasoning,
            budget: request.reasoning_budget,
            dialect,
            tools,
            choice,
        })
    }

    /// The parser for choice `number` of the answer to a prompt.
    pub(crate) fn answer(&self, prompt: &str, seed: u64, number: u64) -> Answer {
        Answer(AnswerParser::new(
            &self.dialect,
            &ParserOptions {
                prompt_end: prompt,
                tools: &self.tools,
                parallel: self.parallel,
                split_reasoning: self.splits_reasoning,
                // The grammar guarantees well-formed arguments, both for forced and for voluntary calls.
                stream_arguments: true,
                id_seed: seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            },
        ))
    }

    /// The constraints on answers to a prompt; `content` is the request's own grammar.
    pub(crate) fn constraint(
        &self,
        prompt: &str,
        content: Option<&GrammarSource>,
    ) -> Result<Constraint, ApiError> {
        let reasoning = self.dialect.reasoning_state(prompt);
        let (dialect, tools) = (&self.dialect, &*self.tools);
        // An answer that has to call a function has no content.
        let may_have_content = tools.is_empty() || self.choice == ToolChoice::Auto;
        let calls = match content.filter(|_| may_have_content) {
            None => dialect.call_grammar(tools, &self.choice, self.parallel, reasoning),
            Some(content) => {
                let both = dialect.answer_grammar(tools, self.parallel, content, reasoning);
                if both.is_none() && !tools.is_empty() {
                    let what = "cannot be combined with GBNF or structural tags unless tool_choice is none";
                    return Err(ApiError::field("tools", what));
                }
                both.map(|source| CallGrammar {
                    source,
                    triggers: Triggers::default(),
                })
            }
        };
        let close = self.dialect.reasoning_marks().map(|(_, close)| close);
        let budget = self
            .budget
            .map(|n| (n, self.dialect.clone(), prompt.to_owned()));
        Ok(Constraint {
            calls,
            begins_behind: close.filter(|_| reasoning == ReasoningState::Open),
            budget,
        })
    }

    /// Whether marks may be control tokens, which then have to be part of the text.
    pub(crate) fn reads_marks(&self) -> bool {
        !self.tools.is_empty()
            || (self.splits_reasoning && self.dialect.reasoning_marks().is_some())
    }
}

impl Answer {
    /// The deltas that the next piece of text completes.
    pub(crate) fn push(&mut self, piece: &str) -> Vec<Delta> {
        let mut deltas = Vec::new();
        self.0.push(piece, &mut |delta| deltas.push(delta));
        deltas
    }

    /// The remaining deltas at the end of the text; `is_cut` if the model did not end it.
    pub(crate) fn finish(&mut self, is_cut: bool) -> Vec<Delta> {
        let mut deltas = Vec::new();
        self.0.finish(is_cut, &mut |delta| deltas.push(delta));
        deltas
    }
}

fn of_tools(error: ToolError) -> ApiError {
    ApiError::field(error.field, error.what)
}

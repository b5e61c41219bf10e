//! Requests for the next message of a conversation.

use super::{Defaults, Generation, ModelChoice};
use serde_json::{Map, Value};
use sluice_text::assistant::ToolChoice;
use sluice_text::chat_template::Message;

/// A request for the next message of a conversation.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// The model.
    pub model: ModelChoice,
    /// The conversation, at least one message. Contents are text, parts of type `text`, null, or `None`.
    pub messages: Vec<Message>,
    /// Whether the last message, which is the assistant's, is the beginning of the answer.
    pub continues_last: bool,
    /// Whether the prompt ends with the beginning of the assistant's turn; true by default.
    pub add_generation_prompt: bool,
    /// Functions that the answer may call, as OpenAI's `tools`: JSON, because templates print it.
    pub tools: Vec<Value>,
    /// Grammars of the texts that some of them take.
    pub input_grammars: Vec<InputGrammar>,
    /// Which of them the answer calls.
    pub tool_choice: ToolChoice,
    /// Whether the answer may contain several calls; true by default.
    pub parallel_calls: bool,
    /// Documents to answer from, for templates that print them.
    pub documents: Vec<Value>,
    /// Variables of the template.
    pub template_kwargs: Map<String, Value>,
    /// Whether reasoning is separated from the content.
    pub splits_reasoning: bool,
    /// Maximum number of reasoning tokens; 0 ends reasoning at once, `None` for no limit.
    pub reasoning_budget: Option<usize>,
    /// How the answer is generated.
    pub generation: Generation,
    /// Whether the oldest messages are left out if the conversation does not fit into the context.
    pub drops_oldest: bool,
    /// Whether a model that does not reason is refused.
    pub must_reason: bool,
    /// What of the client's request has no effect, for the log.
    pub left_out: Vec<String>,
}

/// The grammar of the only argument of a tool, which is a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputGrammar {
    /// The name of the tool.
    pub tool: String,
    /// The grammar, in Lark's notation.
    pub lark: String,
}

/// A conversation as the model reads it.
#[derive(Clone, Debug)]
pub struct ChatPrompt {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The text that ends an answer, if no token of the vocabulary does.
    pub stop: Option<String>,
}

impl ChatRequest {
    /// A request without messages, with a server's defaults.
    #[must_use]
    pub fn new(defaults: &Defaults) -> Self {
        Self {
            model: ModelChoice::default(),
            messages: Vec::new(),
            continues_last: false,
            add_generation_prompt: true,
            tools: Vec::new(),
            input_grammars: Vec::new(),
            tool_choice: ToolChoice::Auto,
            parallel_calls: true,
            documents: Vec::new(),
            template_kwargs: defaults.template_kwargs.clone(),
            splits_reasoning: defaults.splits_reasoning,
            reasoning_budget: defaults.reasoning_budget,
            generation: Generation::new(defaults),
            drops_oldest: false,
            must_reason: false,
            left_out: Vec::new(),
        }
    }
}

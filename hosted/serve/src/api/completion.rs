//! Requests for the continuation of texts.

use super::{Defaults, Generation, ModelChoice};

/// A request for the continuation of texts.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    /// The model.
    pub model: ModelChoice,
    /// The prompts, at least one.
    pub prompts: Vec<CompletionPrompt>,
    /// The number of likely tokens, up to 1000, to report with each token of a prompt; `None` for no scores.
    pub prompt_logprobs: Option<usize>,
    /// Whether [`Start`](super::Start) has the text of the prompts.
    pub returns_prompts: bool,
    /// How the texts are written.
    pub generation: Generation,
}

/// What a text continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletionPrompt {
    /// Texts and tokens, one after the other. The first text begins with the vocabulary's first token.
    Parts(Vec<PromptPart>),
    /// The text between two others.
    Infill(Infill),
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptPart {
    /// Text, in which the names of control tokens are those tokens.
    Text(String),
    /// Tokens of the model.
    Tokens(Vec<u32>),
}

/// What surrounds a text that is to be written, for models with tokens for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Infill {
    /// The text before it.
    pub prefix: String,
    /// The text after it.
    pub suffix: String,
    /// Other files.
    pub extra: Vec<InfillFile>,
}

/// A file that goes with an [`Infill`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfillFile {
    /// Its name.
    pub name: String,
    /// Its content.
    pub text: String,
}

impl CompletionRequest {
    /// A request without prompts, with the defaults of a server.
    #[must_use]
    pub fn new(defaults: &Defaults) -> Self {
        Self {
            model: ModelChoice::default(),
            prompts: Vec::new(),
            prompt_logprobs: None,
            returns_prompts: false,
            generation: Generation::new(defaults),
        }
    }
}

impl CompletionPrompt {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Parts(vec![PromptPart::Text(text.into())])
    }

    /// Tokens.
    #[must_use]
    pub fn tokens(tokens: Vec<u32>) -> Self {
        Self::Parts(vec![PromptPart::Tokens(tokens)])
    }
}

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
    /// Whether [`Start`](super::Start) includes the text of the prompts.
    pub returns_prompts: bool,
    /// How the texts are generated.
    pub generation: Generation,
    /// What of the request has no effect, for the log.
    pub left_out: Vec<String>,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletionPrompt {
    /// Texts and tokens, concatenated. The first text begins with the vocabulary's first token.
    Parts(Vec<PromptPart>),
    /// The text between two others.
    Infill(Infill),
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptPart {
    /// Text, in which names of control tokens are parsed as these tokens.
    Text(String),
    /// Tokens of the model.
    Tokens(Vec<u32>),
}

/// The surroundings of a text to be generated, for models with infill tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Infill {
    /// The text before it.
    pub prefix: String,
    /// The text after it.
    pub suffix: String,
    /// Other files.
    pub extra: Vec<InfillFile>,
}

/// An extra file of an [`Infill`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfillFile {
    /// Its name.
    pub name: String,
    /// Its content.
    pub text: String,
}

impl CompletionRequest {
    /// A request without prompts, with a server's defaults.
    #[must_use]
    pub fn new(defaults: &Defaults) -> Self {
        Self {
            model: ModelChoice::default(),
            prompts: Vec::new(),
            prompt_logprobs: None,
            returns_prompts: false,
            generation: Generation::new(defaults),
            left_out: Vec::new(),
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

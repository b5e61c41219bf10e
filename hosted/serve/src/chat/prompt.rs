//! Renders messages and tokenizes the prompt.

use super::conversation::Conversation;
use crate::api::ApiError;
use serde_json::Value;
use sluice::Model;
use sluice::generate::common_prefix;
use sluice::model::ModelSource;
use sluice_text::assistant::Dialect;
use sluice_text::chat::{ChatError, Prompt, PromptMaker, end_of_turn, template};
use sluice_text::chat_template::ChatTemplate;

/// Makes the prompts for one model.
#[derive(Clone, Debug)]
pub(crate) struct Prompts {
    maker: PromptMaker,
    source: String,
    /// The text that ends a turn if the vocabulary has no token for that.
    stop: Option<&'static str>,
}

impl Prompts {
    /// Uses the template named `given` or with the source `given`; by default the model's own, or else `chatml`.
    pub(crate) fn new(model: &ModelSource, given: Option<&str>) -> Result<Self, String> {
        let own = model.chat_template();
        let given = given.or_else(|| own.is_none().then_some("chatml"));
        let source = given
            .and_then(template)
            .or(given)
            .or(own)
            .unwrap_or_default();
        let parsed = ChatTemplate::parse(source);
        let parsed = parsed.map_err(|error| format!("chat template: {error}"))?;
        let tokenizer = model.tokenizer();
        let is_token = |text: &&str| tokenizer.token(text.as_bytes()).is_some();
        Ok(Self {
            maker: PromptMaker::new(parsed, tokenizer),
            source: source.to_owned(),
            stop: given.and_then(end_of_turn).filter(|text| !is_token(text)),
        })
    }

    /// The template's source.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// How the model writes reasoning and calls.
    pub(crate) const fn dialect(&self) -> &Dialect {
        self.maker.dialect()
    }

    /// Whether the model reasons: the template has marks of reasoning, or a variable for it.
    pub(crate) fn reasons(&self) -> bool {
        self.dialect().reasoning_marks().is_some() || self.source.contains("enable_thinking")
    }

    /// Whether its answers can call functions in a format that its template describes.
    pub(crate) fn calls(&self) -> bool {
        self.maker.writes_tools() && self.dialect().is_native()
    }

    /// The texts of the tokens that begin and end a sequence.
    pub(crate) fn ends(&self) -> (Option<&str>, Option<&str>) {
        self.maker.ends()
    }

    /// A text that ends each answer.
    pub(crate) const fn stop(&self) -> Option<&'static str> {
        self.stop
    }

    /// The prompt of a conversation, with the beginning of the answer if it has one. If `n_ctx` is given, a text that
    /// cannot have fewer tokens is refused before it is tokenized.
    pub(crate) fn prompt(
        &self,
        model: &Model,
        conversation: &Conversation,
        n_ctx: Option<usize>,
    ) -> Result<Prompt, ApiError> {
        let Conversation {
            messages,
            options,
            begun,
        } = conversation;
        let tokenizer = model.tokenizer();
        let each = tokenizer.text_len_max().zip(n_ctx);
        let len_max = each.map_or(usize::MAX, |(len, n_ctx)| len.saturating_mul(n_ctx));
        let prompt = self
            .maker
            .prompt(messages, options, begun, tokenizer, len_max);
        let prompt = prompt.map_err(|error| match (error, each) {
            (ChatError::TooLong { len_bytes }, Some((len, n_ctx))) => {
                ApiError::too_long(len_bytes, len, n_ctx)
            }
            (error, _) => ApiError::field("messages", error.to_string()),
        })?;
        if prompt.tokens.is_empty() {
            return Err(ApiError::field(
                "messages",
                "the chat template produces an empty prompt",
            ));
        }
        Ok(prompt)
    }

    /// The length of the part of `tokens` that does not depend on the user's last message: later requests are likely to
    /// diverge there.
    pub(crate) fn borders(
        &self,
        model: &Model,
        conversation: &Conversation,
        tokens: &[u32],
    ) -> Vec<usize> {
        let messages = &conversation.messages;
        let Some(last) = messages.iter().rposition(|message| message.role == "user") else {
            return Vec::new();
        };
        // The same conversation with another word instead; templates may refuse a conversation without one.
        let mut before = Conversation {
            messages: messages[..=last].to_vec(),
            begun: String::new(),
            options: conversation.options.clone(),
        };
        before.messages[last].content = Some(Value::from("?"));
        let Ok(prompt) = self.prompt(model, &before, None) else {
            return Vec::new();
        };
        let border = common_prefix(tokens, &prompt.tokens);
        (border > 0 && border < tokens.len())
            .then_some(border)
            .into_iter()
            .collect()
    }
}

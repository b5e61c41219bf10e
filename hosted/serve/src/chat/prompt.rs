//! From messages to the tokens of a prompt.

use super::messages::Conversation;
use crate::api::error::ApiError;
use serde_json::Value;
use sluice::Model;
use sluice::generate::common_prefix;
use sluice_core::tokenizer::EncodeOptions;
use sluice_text::chat::{end_of_turn, template};
use sluice_text::chat_template::ChatTemplate;

/// Makes the prompts of one model.
#[derive(Clone, Debug)]
pub(crate) struct Prompts {
    template: ChatTemplate,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
    /// What ends a turn where no token does.
    stop: Option<&'static str>,
}

/// A prompt.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
}

impl Prompts {
    /// With the template that is called `given` or is `given`, or else the model's own, or else `chatml`.
    pub(crate) fn new(model: &Model, given: Option<&str>) -> Result<Self, String> {
        let own = model.chat_template();
        let given = given.or_else(|| own.is_none().then_some("chatml"));
        let source = given
            .and_then(template)
            .or(given)
            .or(own)
            .unwrap_or_default();
        let parsed = ChatTemplate::parse(source);
        let tokenizer = model.tokenizer();
        let text = |id: Option<u32>| {
            let piece = tokenizer.piece(id?);
            Some(String::from_utf8_lossy(piece).into_owned())
        };
        let is_token = |text: &&str| tokenizer.token(text.as_bytes()).is_some();
        Ok(Self {
            template: parsed.map_err(|error| format!("chat template: {error}"))?,
            source: source.to_owned(),
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
            stop: given.and_then(end_of_turn).filter(|text| !is_token(text)),
        })
    }

    /// The template's source.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// The texts of the tokens that begin and end a sequence.
    pub(crate) fn ends(&self) -> (Option<&str>, Option<&str>) {
        (self.bos.as_deref(), self.eos.as_deref())
    }

    /// A text that ends every answer.
    pub(crate) const fn stop(&self) -> Option<&'static str> {
        self.stop
    }

    /// The prompt of a conversation, with the beginning of the answer if it has one.
    pub(crate) fn prompt(
        &self,
        model: &Model,
        conversation: &Conversation,
    ) -> Result<Prompt, ApiError> {
        let Conversation {
            messages,
            options,
            begun,
        } = conversation;
        let mut options = options.clone();
        options.bos_token = options.bos_token.or_else(|| self.bos.clone());
        options.eos_token = options.eos_token.or_else(|| self.eos.clone());
        let rendered = self.template.render(messages, &options);
        let mut text = rendered
            .map_err(|error| ApiError::field("messages", format!("chat template: {error}")))?;
        text.push_str(begun);
        let bos = options.bos_token.as_deref().unwrap_or_default();
        let encode = EncodeOptions {
            // A template that writes the token that begins texts makes a prompt that has it.
            add_special: bos.is_empty() || !text.starts_with(bos),
            parse_special: true,
        };
        let tokens = model.encode_with(&text, encode);
        let mut tokens = tokens.map_err(|error| ApiError::field("messages", error.to_string()))?;
        let tokenizer = model.tokenizer();
        if encode.add_special && tokenizer.adds_eos() && tokens.last().copied() == tokenizer.eos() {
            tokens.pop();
        }
        Ok(Prompt { text, tokens })
    }

    /// The length of the part of `tokens` that stays when the last message of the user is another one: later
    /// requests are likely to part from it there.
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
        // The same conversation with another word in its place; templates may refuse one without it.
        let mut before = Conversation {
            messages: messages[..=last].to_vec(),
            begun: String::new(),
            options: conversation.options.clone(),
        };
        before.messages[last].content = Some(Value::from("?"));
        let Ok(prompt) = self.prompt(model, &before) else {
            return Vec::new();
        };
        let border = common_prefix(tokens, &prompt.tokens);
        (border > 0 && border < tokens.len())
            .then_some(border)
            .into_iter()
            .collect()
    }
}

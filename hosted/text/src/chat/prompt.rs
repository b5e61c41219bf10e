//! Prompts: fits messages to a template, renders them with it, and tokenizes the result, in which only the template's
//! own text can have control tokens.

use super::ChatError;
use super::fit::Fit;
use super::forged::{self, Controls, Part};
use crate::assistant::Dialect;
use crate::chat_template::{ChatTemplate, Message, RenderOptions};
use core::ops::Range;
use serde_json::Value;
use sluice::encode::{EncodeError, encode, token_ends};
use sluice_core::kernels::words;
use sluice_core::tokenizer::{EncodeOptions, Tokenizer};

/// Makes the prompts for one model. It collects the vocabulary's control tokens, and finds what the template takes,
/// once.
#[derive(Clone, Debug)]
pub struct PromptMaker {
    template: ChatTemplate,
    fit: Fit,
    controls: Controls,
    /// The control tokens that text of the assistant's cannot have, if that differs.
    of_answers: Option<Controls>,
    bos: Option<String>,
    eos: Option<String>,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The text that the template wrote.
    pub text: String,
    /// The tokens, including those that the vocabulary adds around each text.
    pub tokens: Vec<u32>,
}

/// A conversation as a model reads it, whose tokens know their places in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlignedPrompt {
    /// The text that the template wrote.
    pub text: String,
    /// The tokens, including those that the vocabulary adds around each text.
    pub tokens: Vec<u32>,
    /// Where each token ends in the text, in bytes; it begins where the one before it ends ([`token_ends`]).
    pub ends: Vec<usize>,
    /// Byte ranges of the text that the template marks as generated ([`ChatTemplate::marks_generated`]).
    pub generated: Vec<Range<usize>>,
}

impl PromptMaker {
    /// A maker for a template and a vocabulary.
    #[must_use]
    pub fn new(template: ChatTemplate, tokenizer: &Tokenizer<'_>) -> Self {
        let text = |id: Option<u32>| {
            let piece = tokenizer.piece(id?);
            Some(String::from_utf8_lossy(piece).into_owned())
        };
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let options = RenderOptions {
            bos_token: bos.clone(),
            eos_token: eos.clone(),
            ..RenderOptions::default()
        };
        Self {
            fit: Fit::of(&template, options),
            template,
            controls: Controls::of(tokenizer),
            of_answers: None,
            bos,
            eos,
        }
    }

    /// A maker that takes the assistant's messages for what the model wrote, for training: they may have control tokens,
    /// such as those around reasoning and calls, except those that end an answer or begin a text.
    #[must_use]
    pub fn trusting_answers(mut self, tokenizer: &Tokenizer<'_>) -> Self {
        self.of_answers = Some(Controls::of_ends(tokenizer));
        self
    }

    /// The texts of the tokens that begin and end a sequence.
    #[must_use]
    pub fn ends(&self) -> (Option<&str>, Option<&str>) {
        (self.bos.as_deref(), self.eos.as_deref())
    }

    /// The template.
    #[must_use]
    pub const fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// Whether the template itself describes tools, in the format that answers are parsed in.
    #[must_use]
    pub const fn writes_tools(&self) -> bool {
        self.fit.writes_tools()
    }

    /// How the model writes reasoning and calls.
    #[must_use]
    pub const fn dialect(&self) -> &Dialect {
        self.fit.dialect()
    }

    /// The prompt for `messages` and the beginning of an answer, which may be empty. Messages and tools that the template
    /// cannot take are rewritten. The tokens that begin and end a sequence default to the vocabulary's if `options`
    /// does not set them. Text in messages, tools, documents, variables and the beginning never becomes a control token.
    ///
    /// # Errors
    /// The template refuses the messages, a tool is invalid, or the vocabulary cannot encode them; or the text is longer
    /// than `len_max` bytes: then it is not tokenized, which takes time.
    pub fn prompt(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        begun: &str,
        tokenizer: &Tokenizer<'_>,
        len_max: usize,
    ) -> Result<Prompt, ChatError> {
        let marked = self.render(messages, options)? + &self.marked_text(begun);
        let text = forged::unmarked(&marked);
        if text.len() > len_max {
            let len_bytes = text.len();
            return Err(ChatError::TooLong { len_bytes });
        }
        let tokens = self.encode(&marked, true, options, tokenizer)?;
        Ok(Prompt { text, tokens })
    }

    /// The text of the prompt for `messages`, as [`Self::prompt`] without the tokens.
    ///
    /// # Errors
    /// The template refuses the messages, or a tool is invalid.
    pub fn text(&self, messages: &[Message], options: &RenderOptions) -> Result<String, ChatError> {
        Ok(forged::unmarked(&self.render(messages, options)?))
    }

    /// The prompt for `messages` as [`Self::prompt`] makes it, whose tokens are found in its text.
    ///
    /// # Errors
    /// As [`Self::prompt`]; or the template changes what it has marked as generated, or the vocabulary changes a text
    /// so much that its tokens cannot be found in it.
    pub fn aligned(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        tokenizer: &Tokenizer<'_>,
    ) -> Result<AlignedPrompt, ChatError> {
        let (messages, options) = self.fitted(messages, options)?;
        let marked = self.template.render_generated(&messages, &options)?;
        let place = |at: usize| forged::unmarked(&marked.text[..at]).len();
        let generated = marked.generated.iter();
        let generated = generated.map(|range| place(range.start)..place(range.end));
        let mut prompt = AlignedPrompt {
            generated: generated.collect(),
            text: String::new(),
            tokens: Vec::new(),
            ends: Vec::new(),
        };
        for (text, tokens) in self.encoded_parts(&marked.text, true, &options, tokenizer)? {
            let ends = token_ends(tokenizer, &text, &tokens).ok_or(ChatError::Unaligned)?;
            let before = prompt.text.len();
            prompt.ends.extend(ends.into_iter().map(|end| before + end));
            prompt.tokens.extend(tokens);
            prompt.text.push_str(&text);
        }
        Ok(prompt)
    }

    /// The template's output, with marks where text from others looks like a control token.
    pub(super) fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<String, ChatError> {
        let (messages, options) = self.fitted(messages, options)?;
        Ok(self.template.render(&messages, &options)?)
    }

    /// What the template is rendered with: messages that it can take, with marks.
    fn fitted(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<(Vec<Message>, RenderOptions), ChatError> {
        check_media(messages)?;
        let mut options = options.clone();
        let lists = [&mut options.tools, &mut options.documents];
        let values = lists.into_iter().flatten().flatten();
        let mark = |value: &mut Value| self.controls.mark(value);
        values.chain(options.extra.values_mut()).for_each(mark);
        options.bos_token = options.bos_token.or_else(|| self.bos.clone());
        options.eos_token = options.eos_token.or_else(|| self.eos.clone());
        // The calls that are written as text have marks only in what others wrote.
        let mut messages: Vec<Message> = messages
            .iter()
            .map(|message| self.marked_message(message))
            .collect();
        self.fit.fit(&mut messages, &mut options)?;
        Ok((messages, options))
    }

    fn marked_message(&self, message: &Message) -> Message {
        let of_answers = self.of_answers.as_ref();
        let controls = of_answers.filter(|_| message.role == "assistant");
        controls.unwrap_or(&self.controls).marked_message(message)
    }

    /// A text with marks, as if it were part of a message.
    pub(super) fn marked_text(&self, text: &str) -> String {
        self.controls.marked_text(text)
    }

    /// The tokens of a text with marks, or of the end of such a text.
    pub(super) fn encode(
        &self,
        text: &str,
        is_beginning: bool,
        options: &RenderOptions,
        tokenizer: &Tokenizer<'_>,
    ) -> Result<Vec<u32>, EncodeError> {
        let parts = self.encoded_parts(text, is_beginning, options, tokenizer)?;
        Ok(parts.into_iter().flat_map(|(_, tokens)| tokens).collect())
    }

    /// The parts of a text with marks, without them, and the tokens of each.
    fn encoded_parts(
        &self,
        text: &str,
        is_beginning: bool,
        options: &RenderOptions,
        tokenizer: &Tokenizer<'_>,
    ) -> Result<Vec<(String, Vec<u32>)>, EncodeError> {
        // If the template writes the token that begins texts, the prompt already has it.
        let bos = options.bos_token.as_deref().or(self.bos.as_deref());
        let has_bos = bos.is_some_and(|bos| !bos.is_empty() && text.starts_with(bos));
        let mut encoded: Vec<(String, Vec<u32>)> = Vec::new();
        for (n, part) in self.controls.parts(text).into_iter().enumerate() {
            let (text, parse_special) = match part {
                Part::Written(text) => (text.to_owned(), true),
                Part::Text(text) => (forged::unmarked(text), false),
            };
            let options = EncodeOptions {
                add_special: is_beginning && !has_bos && n == 0,
                parse_special,
            };
            let mut tokens = encode(tokenizer, &text, options)?;
            let ends = options.add_special && tokenizer.adds_eos();
            if ends && tokens.last().copied() == tokenizer.eos() {
                tokens.pop();
            }
            encoded.push((text, tokens));
        }
        Ok(encoded)
    }
}

/// Refuses pictures and the like, which a template would give a place that nothing fills.
fn check_media(messages: &[Message]) -> Result<(), ChatError> {
    const MEDIA: [&str; 9] =
        words("image image_url input_image audio audio_url input_audio video video_url file");
    for (message, told) in messages.iter().enumerate() {
        let parts = told.content.as_ref().and_then(Value::as_array);
        for (part, value) in parts.into_iter().flatten().enumerate() {
            let named = MEDIA.iter().find(|name| match value.get("type") {
                Some(kind) => kind.as_str() == Some(**name),
                None => value.get(**name).is_some(),
            });
            if let Some(kind) = named.map(|&name| name.to_owned()) {
                return Err(ChatError::Media {
                    message,
                    part,
                    kind,
                });
            }
        }
    }
    Ok(())
}

//! A conversation with a model: its messages, the prompt that the template renders from them, and a
//! context that is read only once.
//!
//! Each turn renders all messages and reads only what is new, after the longest common prefix of
//! tokens, so that an edit costs only the text after it. When the context is full, its older half is
//! dropped ([`Generator::shift`]), except everything before the first user message; from then on,
//! turns are appended to the remaining tokens.
#![forbid(unsafe_code)]

mod fit;
mod forged;
mod prompt;
mod templates;

pub use prompt::{AlignedPrompt, Prompt, PromptMaker};
pub use templates::{TEMPLATES, UnknownTemplateError, check_template, end_of_turn, template};

use crate::assistant::ToolError;
use crate::chat_template::{ChatTemplate, ChatTemplateError, Message, RenderOptions};
use sluice::encode::EncodeError;
use sluice::generate::{EndReason, GenerateError, Generator, Next, Until, common_prefix};
use sluice::sequence::StopStrings;
use sluice_core::engine::Wants;

/// Why an answer could not be generated. The messages are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum ChatError {
    /// The template refused the messages.
    #[error("chat template: {0}")]
    Template(#[from] ChatTemplateError),
    /// A part of a message is not text.
    #[error("message {message}, part {part}: {kind} is not supported, only text is")]
    Media {
        message: usize,
        part: usize,
        kind: String,
    },
    /// A tool is invalid.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The vocabulary cannot encode a character.
    #[error("cannot encode the message: {0}")]
    Encode(#[from] EncodeError),
    /// The engine failed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The conversation does not fit, and shortening it is not allowed or not possible.
    #[error("{n_tokens} tokens do not fit into the context of {n_ctx}: {what}")]
    Full {
        n_tokens: usize,
        n_ctx: usize,
        what: &'static str,
    },
    /// Tokens cannot be found in the text, because the vocabulary changes it.
    #[error("the vocabulary changes the text, so that its tokens cannot be found in it")]
    Unaligned,
    /// The prompt is longer than the caller allows.
    #[error("the prompt has {len_bytes} bytes")]
    TooLong { len_bytes: usize },
    /// The conversation has no user message to answer.
    #[error("there is no message to answer yet")]
    Nothing,
}

/// How answers are generated.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// What the template is rendered with in addition to the messages.
    pub render: RenderOptions,
    /// Maximum number of tokens of an answer; `None` for as many as the context has room for.
    pub n_predict: Option<usize>,
    /// Whether to continue after tokens that end a text.
    pub ignore_eos: bool,
    /// Whether to make room when the context is full. If the model cannot be shifted, the oldest turns are removed
    /// instead, between answers.
    pub shift: bool,
    /// Number of initial tokens to keep then; `None` for everything before the first user message.
    pub keep: Option<usize>,
    /// Stop texts.
    pub stops: StopStrings,
}

/// A conversation.
#[derive(Debug)]
pub struct Chat {
    generator: Generator,
    maker: PromptMaker,
    /// How answers are generated.
    pub options: ChatOptions,
    messages: Vec<Message>,
    /// The text of the context and the generator's pending token.
    seen: String,
}

impl Chat {
    /// A conversation without messages.
    #[must_use]
    pub fn new(generator: Generator, template: ChatTemplate, options: ChatOptions) -> Self {
        let maker = PromptMaker::new(template, generator.session().model().tokenizer());
        Self {
            maker,
            generator,
            options,
            messages: Vec::new(),
            seen: String::new(),
        }
    }

    /// The messages.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Replaces the messages.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
    }

    /// The generator.
    pub const fn generator(&mut self) -> &mut Generator {
        &mut self.generator
    }

    /// Replaces or removes the system message.
    pub fn set_system(&mut self, text: Option<&str>) {
        self.messages.retain(|message| message.role != "system");
        if let Some(text) = text {
            self.messages.insert(0, Message::new("system", text));
        }
    }

    /// Removes all messages except the system message.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == "system");
    }

    /// Adds the user message `text` and answers it; `each` is called with each piece of the answer and returns
    /// whether to continue. The text of a stopped answer is kept.
    ///
    /// # Errors
    /// [`ChatError`]; the message is not added.
    pub fn say(
        &mut self,
        text: &str,
        each: impl FnMut(&str) -> bool,
    ) -> Result<EndReason, ChatError> {
        // If its answer was stopped before the first word, the last message is joined with this one.
        let unanswered = self.messages.pop_if(|message| message.role == "user");
        let before = unanswered
            .as_ref()
            .and_then(|message| message.content.as_ref());
        let text = match before.and_then(|text| text.as_str()) {
            Some(before) => format!("{before}\n{text}"),
            None => text.to_owned(),
        };
        self.messages.push(Message::new("user", &text));
        let answered = self.answer(String::new(), each);
        if answered.is_err() {
            self.messages.pop();
            self.messages.extend(unanswered);
        }
        answered
    }

    /// Answers the last user message again, with other random numbers.
    ///
    /// # Errors
    /// [`ChatError`]; the last answer is kept.
    pub fn regenerate(&mut self, each: impl FnMut(&str) -> bool) -> Result<EndReason, ChatError> {
        let last = self.take_answer()?;
        self.generator.choose_anew();
        let answered = self.answer(String::new(), each);
        if answered.is_err() {
            self.messages.extend(last);
        }
        answered
    }

    /// Continues the last answer.
    ///
    /// # Errors
    /// [`ChatError`]; the answer is unchanged.
    pub fn resume(&mut self, each: impl FnMut(&str) -> bool) -> Result<EndReason, ChatError> {
        let last = self.take_answer()?;
        let begun = last.as_ref().and_then(|message| message.content.as_ref());
        let begun = begun.and_then(|text| text.as_str()).unwrap_or_default();
        let answered = self.answer(begun.to_owned(), each);
        if answered.is_err() {
            self.messages.extend(last);
        }
        answered
    }

    /// Removes the answer to the last user message, if there is one.
    fn take_answer(&mut self) -> Result<Option<Message>, ChatError> {
        let last = self.messages.pop_if(|message| message.role == "assistant");
        if self
            .messages
            .last()
            .is_some_and(|message| message.role == "user")
        {
            return Ok(last);
        }
        self.messages.extend(last);
        Err(ChatError::Nothing)
    }

    /// Continues after the messages and `begun`; `begun` and the generated text become a message.
    fn answer(
        &mut self,
        begun: String,
        mut each: impl FnMut(&str) -> bool,
    ) -> Result<EndReason, ChatError> {
        let begun_text = self.maker.marked_text(&begun);
        let text = self.render(&self.messages)? + &begun_text;
        let tokens = self.fit(&text, &begun_text)?;
        self.seen.clear();
        let next = self.generator.prompt(&tokens, Wants::Logits)?;
        if next == Next::Interrupted {
            if !begun.is_empty() {
                self.messages.push(Message::new("assistant", &begun));
            }
            return Ok(EndReason::Interrupted);
        }
        let until = Until {
            n_predict: Some(self.options.n_predict.unwrap_or(self.generator.n_ctx())),
            ignore_eos: self.options.ignore_eos,
            shift: (self.options.shift && self.can_shift()).then(|| self.keep()),
        };
        let mut answer = begun;
        // All generated text, without the token or text that ends the answer.
        let mut raw = String::new();
        let stops = &mut self.options.stops;
        stops.restart();
        let ended = self.generator.write(next, &until, |written| {
            raw.push_str(written.piece);
            let mut shown = String::new();
            let stopped = stops.push(written.piece, |part| shown.push_str(part));
            answer.push_str(&shown);
            let wants_more = shown.is_empty() || each(&shown);
            wants_more && !stopped
        })?;
        let mut rest = String::new();
        stops.finish(|part| rest.push_str(part));
        answer.push_str(&rest);
        if !rest.is_empty() {
            each(&rest);
        }
        let ended = match ended {
            EndReason::Closed if stops.found().is_some() => EndReason::EndOfText,
            ended => ended,
        };
        self.seen = text + &self.maker.marked_text(&raw);
        self.messages.push(Message::new("assistant", &answer));
        Ok(ended)
    }

    fn render(&self, messages: &[Message]) -> Result<String, ChatError> {
        let mut options = self.options.render.clone();
        options.add_generation_prompt = true;
        self.maker.render(messages, &options)
    }

    /// The tokens that the context needs for `text`, which ends with `begun`, leaving room for an answer.
    fn fit(&mut self, text: &str, begun: &str) -> Result<Vec<u32>, ChatError> {
        let n_ctx = self.generator.n_ctx();
        let limit = n_ctx - (n_ctx / 8).clamp(1, 256).min(n_ctx - 1);
        let appended = text
            .strip_prefix(&*self.seen)
            .filter(|_| !self.seen.is_empty());
        if self.generator.n_shifted() == 0 || appended.is_none() {
            let tokens = self.encode(text, true)?;
            if tokens.len() <= limit {
                return Ok(tokens);
            }
            if !self.options.shift {
                let n_tokens = tokens.len();
                let what = "start a new conversation or use a larger context";
                return Err(ChatError::Full {
                    n_tokens,
                    n_ctx,
                    what,
                });
            }
            if appended.is_none() || !self.can_shift() {
                return self.without_oldest(limit, begun, tokens.len());
            }
        }
        let mut new: Vec<u32> = self.generator.pending().into_iter().collect();
        new.extend(self.encode(appended.unwrap_or_default(), false)?);
        let keep = self.keep();
        while self.generator.tokens().len() + new.len() > limit {
            if self.generator.shift(keep)? == 0 {
                let n_tokens = self.generator.tokens().len() + new.len();
                let what = "the message is too long";
                return Err(ChatError::Full {
                    n_tokens,
                    n_ctx,
                    what,
                });
            }
        }
        let mut tokens = self.generator.tokens().to_vec();
        tokens.extend(new);
        Ok(tokens)
    }

    /// The tokens of the messages after removing as many of the oldest turns as necessary.
    fn without_oldest(
        &mut self,
        limit: usize,
        begun: &str,
        mut n_tokens: usize,
    ) -> Result<Vec<u32>, ChatError> {
        let mut messages = self.messages.clone();
        let is_user = |message: &Message| message.role == "user";
        let turns = messages.iter().filter(|message| is_user(message)).count();
        for _ in 1..turns {
            let from = messages.iter().position(is_user).unwrap_or(0);
            let later = messages.iter().skip(from + 1).position(is_user);
            messages.drain(from..=from + later.unwrap_or(0));
            let tokens = self.encode(&(self.render(&messages)? + begun), true)?;
            n_tokens = tokens.len();
            if n_tokens <= limit {
                return Ok(tokens);
            }
        }
        let n_ctx = self.generator.n_ctx();
        let what = "the message is too long";
        Err(ChatError::Full {
            n_tokens,
            n_ctx,
            what,
        })
    }

    fn can_shift(&self) -> bool {
        self.generator.session().can_shift()
    }

    /// The number of initial tokens to keep when the context is shifted.
    fn keep(&self) -> usize {
        self.options.keep.or_else(|| self.beginning()).unwrap_or(0)
    }

    /// The length of the prefix that two conversations share up to the first user message; `None` if the
    /// template refuses these made-up conversations.
    fn beginning(&self) -> Option<usize> {
        let system = self
            .messages
            .iter()
            .filter(|message| message.role == "system");
        let mut messages: Vec<_> = system.cloned().collect();
        let mut beginning = |text| {
            messages.push(Message::new("user", text));
            let text = self.render(&messages);
            messages.pop();
            self.encode(&text.ok()?, true).ok()
        };
        Some(common_prefix(&beginning("a")?, &beginning("b")?))
    }

    /// Encodes a prompt, or the end of one. Text in messages is never encoded as a control token.
    fn encode(&self, text: &str, is_beginning: bool) -> Result<Vec<u32>, ChatError> {
        let tokenizer = self.generator.session().model().tokenizer();
        let render = &self.options.render;
        Ok(self.maker.encode(text, is_beginning, render, tokenizer)?)
    }
}

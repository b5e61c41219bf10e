//! A conversation with a model: messages, the prompt that its template makes of them, and a context
//! that is read once.
//!
//! Each turn renders all messages and enters what is new: by the longest common prefix of tokens, so
//! an edited past costs what follows the edit. When the context is full, its older half goes
//! ([`Generator::shift`]) while everything before the first message of the user stays; from then on
//! turns are appended to what is left.
#![forbid(unsafe_code)]

mod forged;
mod prompt;
mod templates;

pub use prompt::{Prompt, PromptMaker};
pub use templates::{TEMPLATES, end_of_turn, template};

use crate::chat_template::{ChatTemplate, ChatTemplateError, Message, RenderOptions};
use sluice::encode::EncodeError;
use sluice::generate::{Ended, GenerateError, Generator, Next, Until, common_prefix};
use sluice::sequence::StopStrings;
use sluice_core::engine::Wants;

/// Why there was no answer. The messages are as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum ChatError {
    /// The template refuses the messages.
    #[error("chat template: {0}")]
    Template(#[from] ChatTemplateError),
    /// A character that the vocabulary cannot write.
    #[error("cannot encode the message: {0}")]
    Encode(#[from] EncodeError),
    /// The engine failed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The conversation does not fit, and may not be shortened or cannot be.
    #[error("{n_tokens} tokens leave no room in the context of {n_ctx}: {what}")]
    Full {
        n_tokens: usize,
        n_ctx: usize,
        what: &'static str,
    },
    /// There is no message of the user to answer.
    #[error("there is nothing to answer yet")]
    Nothing,
}

/// How answers are made.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// What the template is told besides the messages.
    pub render: RenderOptions,
    /// Most tokens of an answer; `None` for as many as the context has.
    pub n_predict: Option<usize>,
    /// Go on behind tokens that end a text.
    pub ignore_eos: bool,
    /// Make room when the context is full. Where the model cannot be shifted, the oldest turns go instead,
    /// between answers.
    pub shift: bool,
    /// Tokens at the beginning that stay then; `None` for all before the first message of the user.
    pub keep: Option<usize>,
    /// Texts that end an answer.
    pub stops: StopStrings,
}

/// A conversation.
#[derive(Debug)]
pub struct Chat {
    generator: Generator,
    maker: PromptMaker,
    /// How answers are made.
    pub options: ChatOptions,
    messages: Vec<Message>,
    /// The text that the context and the generator's pending token stand for.
    seen: String,
}

impl Chat {
    /// Without messages.
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

    /// What was said.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Replaces what was said.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
    }

    /// The generator.
    pub const fn generator(&mut self) -> &mut Generator {
        &mut self.generator
    }

    /// Replaces the system message, or takes it away.
    pub fn set_system(&mut self, text: Option<&str>) {
        self.messages.retain(|message| message.role != "system");
        if let Some(text) = text {
            self.messages.insert(0, Message::new("system", text));
        }
    }

    /// Forgets everything but the system message.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == "system");
    }

    /// Says `text` and answers it; `each` is handed the answer as it comes and says whether it
    /// wants more. What came of an answer that was stopped is kept.
    ///
    /// # Errors
    /// [`ChatError`]; nothing was said then.
    pub fn say(&mut self, text: &str, each: impl FnMut(&str) -> bool) -> Result<Ended, ChatError> {
        // A message whose answer was stopped before its first word is part of this one.
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

    /// Answers the last message of the user anew, with other random numbers.
    ///
    /// # Errors
    /// [`ChatError`]; the last answer is still there then.
    pub fn regenerate(&mut self, each: impl FnMut(&str) -> bool) -> Result<Ended, ChatError> {
        let last = self.take_answer()?;
        self.generator.choose_anew();
        let answered = self.answer(String::new(), each);
        if answered.is_err() {
            self.messages.extend(last);
        }
        answered
    }

    /// Goes on with the last answer.
    ///
    /// # Errors
    /// [`ChatError`]; the answer is as before then.
    pub fn resume(&mut self, each: impl FnMut(&str) -> bool) -> Result<Ended, ChatError> {
        let last = self.take_answer()?;
        let begun = last.as_ref().and_then(|message| message.content.as_ref());
        let begun = begun.and_then(|text| text.as_str()).unwrap_or_default();
        let answered = self.answer(begun.to_owned(), each);
        if answered.is_err() {
            self.messages.extend(last);
        }
        answered
    }

    /// Takes the answer from behind the last message of the user, if there is one.
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

    /// Goes on behind the messages and `begun`; the whole becomes a message.
    fn answer(
        &mut self,
        begun: String,
        mut each: impl FnMut(&str) -> bool,
    ) -> Result<Ended, ChatError> {
        let begun_text = self.maker.marked_text(&begun);
        let text = self.render(&self.messages)? + &begun_text;
        let tokens = self.fit(&text, &begun_text)?;
        self.seen.clear();
        let next = self.generator.prompt(&tokens, Wants::Logits)?;
        if next == Next::Interrupted {
            if !begun.is_empty() {
                self.messages.push(Message::new("assistant", &begun));
            }
            return Ok(Ended::Interrupted);
        }
        let until = Until {
            n_predict: Some(self.options.n_predict.unwrap_or(self.generator.n_ctx())),
            ignore_eos: self.options.ignore_eos,
            shift: (self.options.shift && self.can_shift()).then(|| self.keep()),
        };
        let mut answer = begun;
        // All that was generated; what ends the answer is not part of it.
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
            Ended::Closed if stops.found().is_some() => Ended::EndOfText,
            ended => ended,
        };
        self.seen = text + &self.maker.marked_text(&raw);
        self.messages.push(Message::new("assistant", &answer));
        Ok(ended)
    }

    fn render(&self, messages: &[Message]) -> Result<String, ChatError> {
        let mut options = self.options.render.clone();
        options.add_generation_prompt = true;
        Ok(self.maker.render(messages, &options)?)
    }

    /// The tokens to be in the context for `text`, which ends with `begun`, with room for an answer.
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
                let what = "a new conversation, or a larger context";
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

    /// The tokens of the messages without as many of the oldest turns as it takes.
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

    /// Tokens at the beginning that stay when the context is shifted.
    fn keep(&self) -> usize {
        self.options.keep.or_else(|| self.beginning()).unwrap_or(0)
    }

    /// What two conversations have in common before anything is said; `None` if the template
    /// does not render conversations that nobody had.
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

    /// The tokens of a prompt, or of the end of one. What messages say is no control token.
    fn encode(&self, text: &str, is_beginning: bool) -> Result<Vec<u32>, ChatError> {
        let tokenizer = self.generator.session().model().tokenizer();
        let render = &self.options.render;
        Ok(self.maker.encode(text, is_beginning, render, tokenizer)?)
    }
}

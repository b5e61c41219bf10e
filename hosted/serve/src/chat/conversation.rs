//! A conversation as templates render it.

use crate::api::{ApiError, ChatRequest};
use core::mem::take;
use serde_json::Value;
use sluice_text::chat_template::{Message, RenderOptions};
use std::time::SystemTime;

/// A conversation, and how it continues.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    pub(crate) options: RenderOptions,
    /// The beginning of the answer, taken from the last message.
    pub(crate) begun: String,
}

impl Conversation {
    /// Takes the conversation out of a request.
    ///
    /// # Errors
    /// It has no messages, or cannot continue as requested.
    pub(crate) fn take(request: &mut ChatRequest) -> Result<Self, ApiError> {
        if request.messages.is_empty() {
            let what = "needs at least one message";
            return Err(ApiError::field("messages", what));
        }
        let mut messages = take(&mut request.messages);
        let begun = match request.continues_last {
            true => begun(&mut messages)?,
            false => String::new(),
        };
        if request.continues_last && !request.add_generation_prompt {
            let what = "false cannot be combined with continuing the last message";
            return Err(ApiError::field("add_generation_prompt", what));
        }
        let list = |list: &Vec<Value>| (!list.is_empty()).then(|| list.clone());
        Ok(Self {
            messages,
            options: RenderOptions {
                add_generation_prompt: request.add_generation_prompt,
                tools: list(&request.tools),
                documents: list(&request.documents),
                extra: take(&mut request.template_kwargs),
                now: Some(SystemTime::now()),
                ..RenderOptions::default()
            },
            begun,
        })
    }

    /// How many parts [`Self::without_oldest`] can leave out: turns before the last one, then steps of that one.
    pub(crate) fn n_droppable(&self) -> usize {
        let (n_turns, n_steps) = self.n_parts();
        n_turns.saturating_sub(1) + n_steps.saturating_sub(1)
    }

    /// The conversation without its `n` oldest parts, from 1 to [`Self::n_droppable`]: what is left begins with a message
    /// of the user's, as templates want it. Turns are left out before steps of the last one, which are the assistant's
    /// messages, each with the results of its calls. The system's messages are kept, and the last step.
    pub(crate) fn without_oldest(&self, n: usize) -> Self {
        let n_turns = n.min(self.n_parts().0.saturating_sub(1));
        let n_steps = n - n_turns;
        let (mut n_begun, mut n_begun_steps) = (0, 0);
        let kept = self.messages.iter().filter(|message| {
            let is_user = message.role == "user";
            n_begun += usize::from(is_user);
            let is_of_last = n_begun > n_turns;
            n_begun_steps += usize::from(is_of_last && message.role == "assistant");
            let is_kept_step = is_user || n_begun_steps == 0 || n_begun_steps > n_steps;
            (is_of_last && is_kept_step) || is_of_system(message)
        });
        Self {
            messages: kept.cloned().collect(),
            options: self.options.clone(),
            begun: self.begun.clone(),
        }
    }

    /// The number of turns, and of steps of the last one.
    fn n_parts(&self) -> (usize, usize) {
        let (mut n_turns, mut n_steps) = (0, 0);
        for message in &self.messages {
            match &*message.role {
                "user" => (n_turns, n_steps) = (n_turns + 1, 0),
                "assistant" if n_turns > 0 => n_steps += 1,
                _ => {}
            }
        }
        (n_turns, n_steps)
    }
}

/// Whether a message is always kept.
fn is_of_system(message: &Message) -> bool {
    matches!(&*message.role, "system" | "developer")
}

/// Takes the assistant's last message as the beginning of the answer.
fn begun(messages: &mut Vec<Message>) -> Result<String, ApiError> {
    let last = messages.pop_if(|message| message.role == "assistant");
    let content = last.and_then(|message| message.content);
    match content {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            Ok(texts.collect())
        }
        _ => {
            let what = "the last message must be an assistant message with text";
            Err(ApiError::field("continues_last", what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Defaults;

    fn request(messages: &[(&str, &str)]) -> ChatRequest {
        let mut request = ChatRequest::new(&Defaults::default());
        let messages = messages.iter().map(|(role, text)| Message::new(role, text));
        request.messages = messages.collect();
        request
    }

    /// The texts that remain, after each number of oldest parts that may be left out.
    fn shortened(conversation: &Conversation) -> Vec<String> {
        let left = (1..=conversation.n_droppable()).map(|n| conversation.without_oldest(n));
        let texts = |left: Conversation| {
            let texts = left.messages.iter();
            let texts = texts.filter_map(|message| message.content.as_ref()?.as_str());
            texts.collect()
        };
        left.map(texts).collect()
    }

    #[test]
    fn the_oldest_turns_are_left_out_whole() {
        let mut asked = request(&[
            ("system", "s"),
            ("user", "1"),
            ("assistant", "2"),
            ("tool", "3"),
            ("user", "4"),
            ("assistant", "5"),
            ("user", "6"),
            ("assistant", "7"),
            ("tool", "8"),
        ]);
        let read = Conversation::take(&mut asked).unwrap();
        assert_eq!(shortened(&read), ["s45678", "s678"]);
    }

    #[test]
    fn steps_of_the_last_turn_are_left_out_after_all_others() {
        let mut asked = request(&[
            ("system", "s"),
            ("user", "1"),
            ("assistant", "2"),
            ("user", "3"),
            ("assistant", "4"),
            ("tool", "5"),
            ("assistant", "6"),
            ("tool", "7"),
            ("tool", "8"),
        ]);
        let read = Conversation::take(&mut asked).unwrap();
        assert_eq!(shortened(&read), ["s345678", "s3678"]);
        let mut asked = request(&[("user", "1")]);
        assert_eq!(Conversation::take(&mut asked).unwrap().n_droppable(), 0);
    }

    #[test]
    fn the_last_message_may_be_a_beginning() {
        let mut asked = request(&[("user", "Count."), ("assistant", "One, ")]);
        asked.continues_last = true;
        let read = Conversation::take(&mut asked).unwrap();
        assert_eq!((read.messages.len(), &*read.begun), (1, "One, "));
        assert!(read.options.add_generation_prompt);
        for (messages, field) in [(&[][..], "messages"), (&[("user", "x")], "continues_last")] {
            let mut asked = request(messages);
            asked.continues_last = true;
            let error = Conversation::take(&mut asked).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field));
        }
    }
}

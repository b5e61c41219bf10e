//! Calls that no mark begins: an answer in JSON begins like them.

use super::event::Event;
use super::reader::{Kind, Reader};
use super::{AnswerParser, Call};
use crate::assistant::dialect::Format;
use crate::assistant::tool::Tool;

impl AnswerParser {
    pub(super) fn has_bare_calls(&self) -> bool {
        self.dialect.format == Format::Llama3 && !self.tools.is_empty()
    }

    pub(super) fn bare(&mut self, is_last: bool) -> bool {
        match self.buffer.trim_start().chars().next() {
            None if !is_last => return false,
            Some('{') => self.begin_call(Reader::Undecided(Kind::Bare), ""),
            _ => self.may_be_bare = false,
        }
        true
    }

    pub(super) fn is_of_no_tool(&self, event: &Event) -> bool {
        matches!(event, Event::Begin(name) if self.tools.iter().all(|tool| tool.name != *name))
    }

    /// Whether a text that was cut off may have become a call.
    pub(super) fn may_be_call(&self, call: &Call) -> bool {
        let raw = call.raw.trim_start();
        let begins = |head: String| head.starts_with(raw) || raw.starts_with(&head);
        let mut tools = self.tools.iter();
        let of_tool = |tool: &Tool| {
            let heads = ["{\"name\": \"", "{\"type\": \"function\", \"name\": \""];
            heads
                .iter()
                .any(|head| begins(format!("{head}{}\"", tool.name)))
        };
        !call.is_bare || self.n_calls > 0 || tools.any(of_tool)
    }
}

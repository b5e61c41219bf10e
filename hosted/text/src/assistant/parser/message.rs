//! Headers of gpt-oss's messages: speaker, channel and recipient.

use super::{AnswerParser, State};
use crate::assistant::dialect::harmony;

/// The kind of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Content,
    Reasoning,
    /// A call of this function.
    Call(String),
    /// Unknown: its header is not complete yet.
    Between,
}

impl AnswerParser {
    /// Parses the text after a message of gpt-oss.
    pub(super) fn between(&mut self, is_last: bool) -> bool {
        let rest = self.buffer.trim_start();
        let space = self.buffer.len() - rest.len();
        let is_open = |mark: &str| mark.starts_with(rest);
        if let Some(end) = harmony::ENDS.iter().find(|end| rest.starts_with(**end)) {
            self.buffer.drain(..space + end.len());
            return true;
        }
        if HEADS.iter().any(|head| rest.starts_with(head)) {
            self.buffer.drain(..space);
            self.state = State::Header;
            return true;
        }
        let mut marks = HEADS.iter().chain(&harmony::ENDS);
        if (!is_last || self.is_cut) && marks.any(|mark| is_open(mark)) {
            return false;
        }
        self.state = State::Content;
        true
    }

    /// Parses the text before a message of gpt-oss.
    pub(super) fn header(&mut self, is_last: bool) -> bool {
        let Some(at) = self.buffer.find(harmony::MESSAGE) else {
            let is_none = self.buffer.len() > HEADER_BYTES_MAX;
            if is_last || is_none {
                // It never became a message, and its marks must not be shown.
                let rest = without_marks(&self.buffer);
                self.buffer.clear();
                if is_none {
                    self.show(&rest);
                }
                self.state = State::Content;
            }
            return is_last || is_none;
        };
        let header: String = self.buffer.drain(..at + harmony::MESSAGE.len()).collect();
        let kind = kind_of(&header);
        if kind == Kind::Reasoning && !self.split_reasoning {
            self.show(&header);
        }
        self.enter(kind);
        true
    }
}

/// The kind of a message with this header: `assistant<|channel|>commentary to=functions.f <|constrain|>json`.
/// The recipient may also precede the channel.
pub(super) fn kind_of(header: &str) -> Kind {
    let word = |behind: &str| {
        let (_, rest) = header.split_once(behind)?;
        let end = |c: char| c.is_whitespace() || c == '<';
        rest.split(end).next().filter(|word| !word.is_empty())
    };
    if let Some(to) = word("to=") {
        let name = to.strip_prefix(harmony::FUNCTIONS).unwrap_or(to);
        return Kind::Call(name.to_owned());
    }
    match word(harmony::CHANNEL) {
        Some("analysis") => Kind::Reasoning,
        _ => Kind::Content,
    }
}

/// The kind of message that an answer to this prompt begins with.
pub(super) fn state_of_prompt(prompt_end: &str) -> Kind {
    let prompt = prompt_end.trim_end();
    let header = prompt
        .rfind(harmony::START)
        .map_or(prompt, |at| &prompt[at..]);
    if header.ends_with(harmony::MESSAGE) {
        kind_of(header)
    } else {
        Kind::Between
    }
}

/// The visible text of something that looked like a header.
pub(super) fn without_marks(header: &str) -> String {
    let marks = [harmony::START, harmony::CHANNEL, harmony::CONSTRAIN];
    marks
        .iter()
        .fold(header.to_owned(), |text, mark| text.replace(mark, ""))
}

/// What headers begin with: the prompt may already contain `<|start|>assistant`.
pub(super) const HEADS: [&str; 4] = [harmony::START, harmony::CHANNEL, harmony::MESSAGE, "to="];
pub(super) const HEADER_BYTES_MAX: usize = 512;

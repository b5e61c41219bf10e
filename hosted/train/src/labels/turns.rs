//! The assistant's turns in a rendered conversation.
//!
//! If the template marks what the model generates, its marks are used. Else renderings that grow by a message show where
//! a turn begins and ends: it begins where the rendering of the messages before it, with the start of an answer, stops
//! to agree with the whole, and it ends where the rendering that includes it ends, or at the token that ends a turn. A
//! turn that a template writes in another way once others follow it (without its reasoning, say) is learned as it
//! stands in the whole.

use super::starts;
use crate::row::ChatRow;
use core::ops::Range;
use sluice_core::tokenizer::Tokenizer;
use sluice_text::chat::{AlignedPrompt, PromptMaker};
use sluice_text::chat_template::{Message, RenderOptions};

/// A conversation, rendered.
pub(super) struct Turns<'r> {
    pub(super) maker: &'r PromptMaker,
    pub(super) tokenizer: &'r Tokenizer<'r>,
    pub(super) options: &'r RenderOptions,
    pub(super) messages: &'r [Message],
    pub(super) row: &'r ChatRow,
    pub(super) prompt: &'r AlignedPrompt,
    /// Whether the turns that are marked as not learned are asked for, instead of those that are.
    pub(super) unlearned: bool,
}

/// The turns that were asked for.
#[derive(Default)]
pub(super) struct FoundTurns {
    /// Byte ranges of the text, ascending.
    pub(super) spans: Vec<Range<usize>>,
    /// Number of turns that were not found.
    pub(super) n_lost: usize,
}

impl Turns<'_> {
    pub(super) fn spans(&self) -> FoundTurns {
        match self.marked() {
            Some(spans) => FoundTurns {
                spans: spans.into_iter().map(|span| self.ended(span)).collect(),
                n_lost: 0,
            },
            None => self.grown(),
        }
    }

    /// A marked range with the token that ends the turn, which a few templates leave out of their marks.
    fn ended(&self, span: Range<usize>) -> Range<usize> {
        let mut places = starts(&self.prompt.ends)
            .zip(&self.prompt.ends)
            .zip(&self.prompt.tokens);
        let next = places.find(|((start, end), _)| *start == span.end && *end > start);
        match next {
            Some(((_, end), id)) if self.tokenizer.is_end_of_generation(*id) => span.start..*end,
            _ => span,
        }
    }

    /// Whether the message is a turn that is asked for.
    fn is_asked(&self, at: usize) -> bool {
        let turn = &self.row.turns[at];
        let is_assistant = turn.message.role == "assistant";
        is_assistant
            && match self.unlearned {
                true => !turn.train,
                false => turn.train && at >= self.row.completion_from,
            }
    }

    /// What the template marks as generated, if it marks anything here, and each mark belongs to a message.
    fn marked(&self) -> Option<Vec<Range<usize>>> {
        let all: Vec<_> = self
            .prompt
            .generated
            .iter()
            .filter(|range| !range.is_empty())
            .cloned()
            .collect();
        if all.is_empty() {
            return None;
        }
        let of_assistant = |at: &usize| self.messages[*at].role == "assistant";
        let assistants: Vec<usize> = (0..self.messages.len()).filter(of_assistant).collect();
        if assistants.iter().all(|at| self.is_asked(*at)) {
            return Some(all);
        }
        // One range per turn, as nearly all templates have it; else renderings that grow say whose a range is.
        if all.len() != assistants.len() {
            return None;
        }
        let learned = assistants
            .iter()
            .zip(all)
            .filter(|(at, _)| self.is_asked(**at));
        Some(learned.map(|(_, range)| range).collect())
    }

    /// What growing renderings add.
    fn grown(&self) -> FoundTurns {
        let mut found = FoundTurns {
            spans: Vec::new(),
            n_lost: 0,
        };
        for at in (0..self.messages.len()).filter(|at| self.is_asked(*at)) {
            let from = found.spans.last().map_or(0, |span: &Range<usize>| span.end);
            let span = self.begin(at).filter(|start| *start >= from);
            match span.and_then(|start| Some(start..self.end(at, start)?)) {
                Some(span) => found.spans.push(span),
                None => found.n_lost += 1,
            }
        }
        found
    }

    fn rendered(&self, n_messages: usize, begins_answer: bool) -> Option<String> {
        let options = RenderOptions {
            add_generation_prompt: begins_answer,
            ..self.options.clone()
        };
        self.maker.text(&self.messages[..n_messages], &options).ok()
    }

    /// Where the turn begins: after what a request with the messages before it would end with.
    fn begin(&self, at: usize) -> Option<usize> {
        let before = self.rendered(at, false)?;
        let asked = self.rendered(at, true)?;
        // Without the start of an answer, some templates end the text.
        let header = common(&before, &asked);
        let start = common(&asked, &self.prompt.text);
        (start >= header).then_some(start)
    }

    /// Where the turn that begins at `start` ends, with the token that ends it.
    fn end(&self, at: usize, start: usize) -> Option<usize> {
        let text = &*self.prompt.text;
        let until = self.rendered(at + 1, false);
        let until = until.as_deref().filter(|until| until.len() > start);
        let bound = self.bound(at);
        if let Some(until) = until {
            let agrees = common(until, text);
            if agrees >= until.trim_end().len() {
                return Some(self.trimmed(start..agrees.min(bound)));
            }
            // The last turn may end with another token than those that others follow.
            let agrees = self.token_start(agrees);
            let has_end = agrees > start && self.last_end(start..agrees).is_some();
            if agrees > start && !has_end && self.is_one_token(&until[agrees..]) {
                return Some(self.token_end(agrees).min(bound));
            }
        }
        let ends = starts(&self.prompt.ends)
            .zip(&self.prompt.ends)
            .zip(&self.prompt.tokens);
        let mut ends = ends.filter(|((from, end), id)| {
            *from >= start && **end <= bound && self.tokenizer.is_end_of_generation(**id)
        });
        ends.next().map(|((_, end), _)| *end)
    }

    /// A place after the turn's end: where the next message's own text begins.
    fn bound(&self, at: usize) -> usize {
        let text = &*self.prompt.text;
        let Some(next) = self.messages.get(at + 1) else {
            return text.len();
        };
        let mut messages = self.messages[..=at].to_vec();
        messages.push(Message::new(&next.role, OTHER));
        match self.maker.text(&messages, self.options) {
            Ok(other) => common(&other, text),
            Err(_) => text.len(),
        }
    }

    /// A range without what the template writes after the token that ends the turn.
    fn trimmed(&self, span: Range<usize>) -> usize {
        self.last_end(span.clone()).unwrap_or(span.end)
    }

    /// Where a token that ends a turn ends, if nothing but space follows it in the range.
    fn last_end(&self, span: Range<usize>) -> Option<usize> {
        let text = &self.prompt.text[span.clone()];
        let stop = span.start + text.trim_end().len();
        let ends = self.prompt.ends.iter().zip(&self.prompt.tokens);
        let mut ends = ends.filter(|(end, id)| {
            **end > span.start && **end <= span.end && self.tokenizer.is_end_of_generation(**id)
        });
        let (last, _) = ends.next_back()?;
        (*last >= stop).then_some(*last)
    }

    /// Whether a text is a control token and space.
    fn is_one_token(&self, text: &str) -> bool {
        let id = self.tokenizer.token(text.trim().as_bytes());
        id.is_some_and(|id| self.tokenizer.is_control(id))
    }

    /// Where the token that has the byte `at` starts.
    fn token_start(&self, at: usize) -> usize {
        let index = self.prompt.ends.partition_point(|end| *end <= at);
        index
            .checked_sub(1)
            .map_or(0, |before| self.prompt.ends[before])
    }

    /// Where the token that has the byte `at` ends, if it is a control token.
    fn token_end(&self, at: usize) -> usize {
        let index = self.prompt.ends.partition_point(|end| *end <= at);
        let control = |id: &&u32| self.tokenizer.is_control(**id);
        match self.prompt.tokens.get(index).filter(control) {
            Some(_) => self.prompt.ends[index],
            None => at,
        }
    }
}

/// The length of what two texts begin with, up to a whole character.
fn common(a: &str, b: &str) -> usize {
    let equal = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    (0..=equal)
        .rev()
        .find(|at| a.is_char_boundary(*at))
        .unwrap_or(0)
}

/// A text that no message begins with.
const OTHER: &str = "\u{2063}";

//! A job of an answer while it runs, and its texts.

use super::clock::Clock;
use crate::api::{AnswerPiece, ApiError, End, Reason};
use crate::chat::answer::Answer;
use crate::engine::{Event, JobError, Timings, Why};
use core::time::Duration;
use sluice::sequence::TokenReport;
use std::vec;
use tokio::sync::mpsc;

pub(super) struct Running {
    pub(super) events: Option<mpsc::Receiver<Vec<Event>>>,
    /// The rest of the events that were received together.
    pub(super) held: vec::IntoIter<Event>,
    pub(super) n_prompt: usize,
    pub(super) slot: u32,
    pub(super) is_started: bool,
    pub(super) texts: Vec<Text>,
}

pub(super) struct Text {
    pub(super) clock: Clock,
    pub(super) parser: Option<Answer>,
}

impl Running {
    /// Returns the tokens that were found for the request: none if a text goes on, which starts again.
    pub(super) fn start(&mut self, cached: usize, slot: u32, queued: Duration) -> usize {
        self.slot = slot;
        if core::mem::replace(&mut self.is_started, true) {
            return 0;
        }
        for text in &mut self.texts {
            text.clock.start(cached, queued);
        }
        cached
    }

    pub(super) fn end(
        &mut self,
        choice: usize,
        why: Why,
        timings: Timings,
    ) -> Result<End, ApiError> {
        let text = &mut self.texts[choice];
        let reason = Reason::of(&why).ok_or_else(|| failed(why))?;
        if reason == Reason::Late && text.clock.n_predicted() == 0 {
            return Err(ApiError::late());
        }
        let is_cut = reason != Reason::EndOfText;
        let parser = text.parser.as_mut();
        let deltas = parser.map(|parser| parser.finish(is_cut));
        Ok(End {
            reason,
            deltas: deltas.unwrap_or_default(),
            timings,
            slot: self.slot,
            n_prompt: self.n_prompt,
        })
    }
}

impl Text {
    /// The piece of a token that counts, with the times so far if they are asked for.
    pub(super) fn next(
        &mut self,
        token: u32,
        text: String,
        report: Option<TokenReport>,
        is_timed: bool,
    ) -> AnswerPiece {
        self.clock.token();
        AnswerPiece {
            timings: is_timed.then(|| self.clock.timings()),
            ..self.piece(token, text, report)
        }
    }

    pub(super) fn piece(
        &mut self,
        token: u32,
        text: String,
        report: Option<TokenReport>,
    ) -> AnswerPiece {
        let parser = self.parser.as_mut().filter(|_| !text.is_empty());
        AnswerPiece {
            token,
            deltas: parser.map(|parser| parser.push(&text)).unwrap_or_default(),
            text,
            report,
            timings: None,
        }
    }
}

fn failed(why: Why) -> ApiError {
    match why {
        Why::Failed(error) => error.into(),
        _ => JobError::Gone.into(),
    }
}

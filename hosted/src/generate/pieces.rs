//! A text as an iterator.

use crate::sequence::{EndReason, Sequence, Settings};
use crate::session::{GenerateError, Session};

/// The text after a prompt, piece by piece: whole characters, without any stop text. Dropped, it
/// leaves the session as it was.
#[derive(Debug)]
pub struct Pieces<'s> {
    session: &'s mut Session,
    state: State,
}

#[derive(Debug)]
enum State {
    Refused(GenerateError),
    Writing(Box<Sequence>),
    Over(Option<EndReason>),
}

impl Session {
    /// Continues `prompt` with `settings`. If the prompt cannot be continued, the iterator yields only
    /// an error.
    pub fn generate(&mut self, prompt: &str, settings: Settings) -> Pieces<'_> {
        let state = match self.begin(prompt, &settings) {
            Ok(sequence) => State::Writing(Box::new(sequence)),
            Err(error) => State::Refused(error),
        };
        Pieces {
            session: self,
            state,
        }
    }
}

impl Pieces<'_> {
    /// Why the text ended; `None` before its end, and after an error.
    #[must_use]
    pub const fn ended(&self) -> Option<EndReason> {
        match self.state {
            State::Over(ended) => ended,
            State::Refused(_) | State::Writing(_) => None,
        }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Result<String, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match core::mem::replace(&mut self.state, State::Over(None)) {
                State::Refused(error) => return Some(Err(error)),
                State::Over(ended) => {
                    self.state = State::Over(ended);
                    return None;
                }
                State::Writing(mut sequence) => {
                    if let Some(ended) = sequence.ended() {
                        self.state = State::Over(Some(ended));
                        continue;
                    }
                    let events = match self.session.step(&mut [&mut sequence]) {
                        Ok(events) => events,
                        Err(error) => return Some(Err(error)),
                    };
                    if let Some(error) = sequence.failure() {
                        return Some(Err(error.into()));
                    }
                    self.state = State::Writing(sequence);
                    let piece: String = events.into_iter().map(|event| event.piece).collect();
                    if !piece.is_empty() {
                        return Some(Ok(piece));
                    }
                }
            }
        }
    }
}

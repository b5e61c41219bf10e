//! A choice that is being read or written.

use super::entry::Entry;
use super::job::{Event, Timings, Why};
use super::pool::{Pool, Text};
use super::request::{PendingChoice, Request};
use super::view::SlotView;
use crate::metrics::EndFigures;
use core::time::Duration;
use sluice::sequence::EndReason;
use sluice::session::TokenEvent as Chosen;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// A choice that is being read or written.
#[derive(Debug)]
pub(super) struct Run {
    text: Text,
    /// Index of the choice.
    choice: usize,
    /// Choices that continue from the end of its prompt.
    followers: VecDeque<PendingChoice>,
    began: Instant,
    first_token: Option<Instant>,
    last_token: Instant,
    /// Whether the last step chose a token.
    has_new: bool,
    /// Since when its text is read again.
    again_since: Option<Instant>,
    /// Time of reading it again, so far.
    again: Duration,
    timings: Timings,
    /// The last turn in which it could take part.
    last_turn: u64,
    /// Why it ends, once that is known.
    end: Option<Why>,
}

impl Run {
    pub(super) fn new(text: Text, choice: usize, followers: VecDeque<PendingChoice>) -> Self {
        let now = Instant::now();
        let timings = Timings {
            queued: now - text.request().arrived,
            ..Timings::default()
        };
        Self {
            text,
            choice,
            followers,
            began: now,
            first_token: None,
            last_token: now,
            has_new: false,
            again_since: None,
            again: Duration::ZERO,
            timings,
            last_turn: 0,
            end: None,
        }
    }

    /// Another choice, whose text continues from the end of this one's prompt.
    pub(super) fn fork(&self, text: Text, choice: usize) -> Self {
        Self {
            began: self.began,
            timings: self.timings,
            ..Self::new(text, choice, VecDeque::new())
        }
    }

    pub(super) fn request(&self) -> &Request {
        self.text.request()
    }

    pub(super) const fn text(&self) -> &Text {
        &self.text
    }

    pub(super) const fn text_mut(&mut self) -> &mut Text {
        &mut self.text
    }

    /// Whether it can take part in a step: it has a place, and its reader keeps up.
    pub(super) fn can_step(&self) -> bool {
        !self.text.is_parked() && self.text.n_queued() > 0 && !self.request().is_stalled()
    }

    /// Whether it is writing: one token has to be read and the next one sampled.
    pub(super) fn is_writing(&self) -> bool {
        self.text.n_queued() == 1 && self.followers.is_empty()
    }

    /// Number of tokens that it may read: the last token of a prompt waits until the followers have been forked.
    pub(super) fn n_readable(&self) -> usize {
        self.text.n_queued() - usize::from(!self.followers.is_empty())
    }

    /// Number of its tokens that were computed rather than found in the cache.
    pub(super) fn n_computed(&self) -> usize {
        self.text.n_read().saturating_sub(self.timings.cached)
    }

    /// The last turn in which it could take part.
    pub(super) const fn last_turn(&self) -> u64 {
        self.last_turn
    }

    /// Records that it can take part in this turn.
    pub(super) const fn take_part(&mut self, turn: u64) {
        self.last_turn = turn;
    }

    /// Takes the choices that continue from the end of its prompt, once it has been read up to its last token.
    pub(super) fn take_followers(&mut self) -> VecDeque<PendingChoice> {
        match self.text.n_queued() {
            1 => core::mem::take(&mut self.followers),
            _ => VecDeque::new(),
        }
    }

    /// Starts it: `cached` tokens of its prompt were found in the cache.
    pub(super) fn start(&mut self, cached: usize, entry: &Entry) {
        self.timings.cached = cached;
        let request = self.text.request();
        // The others of its choices may start later.
        if self.choice == 0 {
            request.send(Event::Started {
                cached,
                slot: self.text.sequence().slot(),
                queued: self.timings.queued,
            });
        }
        let (metrics, n_prompt) = (entry.metrics(), request.prompt.len());
        metrics.started(self.timings.queued, n_prompt, cached);
        if let Some(meter) = &request.meter {
            meter.prompt(n_prompt - cached, cached);
        }
        if request.uses_cache {
            metrics.prefix(n_prompt, cached);
        }
        self.send_progress();
    }

    /// Takes its place to make room; it goes on later.
    pub(super) fn park(&mut self, pool: &mut Pool, entry: &Entry) {
        match pool.park(&mut self.text) {
            Ok(()) => {
                self.timings.n_preempted += 1;
                entry.metrics().preempted();
                entry.requeue(&self.request().share);
            }
            Err(error) => self.end(Why::failed(&error)),
        }
    }

    /// Gives it a place again.
    pub(super) fn resume(&mut self, pool: &mut Pool, entry: &Entry) {
        let slot = self.text.sequence().slot();
        let resumed = pool.resume(&mut self.text);
        if !self.text.is_parked() {
            entry.unqueue(&self.request().share, 1);
        }
        match resumed {
            Ok(()) if self.text.sequence().slot() == slot => {}
            Ok(()) => {
                let slot = self.text.sequence().slot();
                self.request().send(Event::Moved { slot });
            }
            Err(error) => self.end(Why::failed(&error)),
        }
    }

    /// Notes that the older half of its context was dropped.
    pub(super) const fn shifted(&mut self) {
        self.timings.n_shifts += 1;
    }

    /// Reports how far its prompt has been read, if requested.
    pub(super) fn send_progress(&self) {
        let request = self.request();
        if request.tells_progress && self.first_token.is_none() {
            request.send(Event::Progress {
                total: request.prompt.len(),
                cached: self.timings.cached,
                // Drafted tokens may have been read with the end of the prompt.
                processed: self.text.n_read().min(request.prompt.len()),
                time: self.began.elapsed(),
            });
        }
    }

    /// Sends a sampled token. `is_hidden`: it ends the text and is not part of it.
    pub(super) fn deliver(&mut self, chosen: Chosen, is_hidden: bool, entry: &Entry) {
        let Chosen {
            token,
            piece,
            report,
            ended,
            ..
        } = chosen;
        let (last, choice) = (self.last_token, self.choice);
        let is_first = self.first_token.is_none();
        if is_first {
            self.timings.n_prompt = self.request().prompt.len() - self.timings.cached;
        }
        self.end_again();
        let event = if is_hidden {
            Event::EndToken {
                choice,
                token,
                piece,
                report,
            }
        } else {
            self.count_token();
            if let Some(meter) = &self.request().meter {
                meter.token();
            }
            Event::Token {
                choice,
                token,
                piece,
                report,
            }
        };
        self.request().send(event);
        let now = Instant::now();
        self.has_new = true;
        if is_first {
            entry.metrics().first_token(now - self.request().arrived);
        } else if !is_hidden {
            entry.metrics().token(now - last);
        }
        if let Some(ended) = ended {
            self.end(match self.text.sequence().stopped_by() {
                Some(stop) => Why::Stop(stop.to_owned()),
                None => Why::Ended(ended),
            });
        }
    }

    /// Counts a token of its text.
    fn count_token(&mut self) {
        let now = Instant::now();
        if self.first_token.is_none() {
            self.first_token = Some(now);
            self.timings.prompt = now - self.began;
        }
        self.timings.n_predicted += 1;
        (self.timings.n_drafted, self.timings.n_accepted) = self.text.sequence().drafts();
        let since_first = self.first_token.map_or(Duration::ZERO, |first| now - first);
        self.timings.predict = since_first.saturating_sub(self.again);
        self.last_token = now;
    }

    /// After a step: if it chose a token, and more than that is to be read next, the text is read again.
    fn begin_again(&mut self) {
        let has_new = core::mem::take(&mut self.has_new);
        let n_tokens = self.text.n_queued().saturating_sub(1);
        if has_new && n_tokens > 0 {
            self.again_since = Some(Instant::now());
            self.timings.n_prompt += n_tokens;
            let choice = self.choice;
            self.request().send(Event::ReadAgain { choice, n_tokens });
        }
    }

    /// The next token is chosen: a text that was read again has been read.
    fn end_again(&mut self) {
        let time = self.again_since.take().map(|since| since.elapsed());
        let time = time.unwrap_or_default();
        self.again += time;
        self.timings.prompt += time;
    }

    /// After a step: ends it if sampling failed, or if its prompt was only to be read.
    pub(super) fn check(&mut self) {
        self.begin_again();
        if let Some(error) = self.text.sequence_mut().failure() {
            self.end(Why::failed(&error));
        } else if self.end.is_none() && self.text.n_queued() == 0 {
            self.timings.n_prompt = self.request().prompt.len() - self.timings.cached;
            self.timings.prompt = self.began.elapsed();
            self.end(Why::Ended(EndReason::Length));
        }
    }

    /// Whether its deadline has passed, or the time for writing it.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.request().is_late(now, self.first_token)
    }

    pub(super) const fn is_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Marks it as ended; it is removed later.
    pub(super) fn end(&mut self, why: Why) {
        self.end = Some(why);
    }

    /// Sends its end, and ends the choices that can no longer continue from it.
    pub(super) fn finish(mut self, entry: &Entry) -> Text {
        let why = self.end.take();
        let why = why.unwrap_or(Why::Ended(EndReason::Closed));
        entry.finished(self.figures(&why));
        if matches!(why, Why::Ended(EndReason::Closed)) {
            let request = Rc::clone(self.text.request());
            request.keep_unfinished(self.text.sequence_mut());
        }
        let request = self.text.request();
        let n_waiting = self.followers.len() + usize::from(self.text.is_parked());
        entry.unqueue(&request.share, n_waiting);
        for pending in &self.followers {
            request.end(pending.index, why.clone());
        }
        request.send(Event::Ended {
            choice: self.choice,
            why,
            timings: self.timings,
        });
        self.text
    }

    fn figures(&self, why: &Why) -> EndFigures {
        let (timings, inference) = (&self.timings, self.began.elapsed());
        EndFigures {
            reason: match why {
                Why::Ended(EndReason::EndOfText) | Why::Stop(_) => "stop",
                Why::Ended(EndReason::Length | EndReason::ContextFull) => "length",
                Why::Ended(EndReason::Closed | EndReason::Interrupted) | Why::Late => "abort",
                Why::Ended(EndReason::Failed) | Why::Failed(_) => "error",
            },
            e2e: self.request().arrived.elapsed(),
            inference,
            prefill: if timings.n_predicted > 0 {
                timings.prompt
            } else {
                inference
            },
            decode: timings.predict,
            n_prompt: self.request().prompt.len(),
            n_predicted: timings.n_predicted,
        }
    }

    /// The state of its slot.
    pub(super) fn view(&self) -> SlotView {
        let n_left = self.text.sequence().n_left();
        SlotView {
            id: self.text.sequence().slot(),
            is_processing: true,
            group: Some(Arc::clone(&self.request().domain.group)),
            request: Some(Arc::clone(&self.request().id)),
            n_past: self.text.n_read(),
            n_prompt: self.request().prompt.len(),
            n_decoded: self.timings.n_predicted,
            n_remain: Some(n_left).filter(|left| *left != usize::MAX),
            speculates: false,
        }
    }
}

//! The texts that are being read and written.

use super::entry::Entry;
use super::job::{Event, JobError, Timings, Why};
use super::pool::{Pool, Text};
use super::request::{PendingChoice, Request};
use super::share::{Places, Share};
use super::view::SlotView;
use crate::metrics::EndFigures;
use core::cmp::Ordering;
use core::time::Duration;
use sluice::Sequence;
use sluice::sequence::EndReason;
use sluice::session::TokenEvent as Chosen;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Number of a running text, in the order in which texts started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunId(u64);

/// All running texts of a model.
#[derive(Debug, Default)]
pub(super) struct Running {
    runs: BTreeMap<RunId, Run>,
    n_begun: u64,
    /// Requests whose texts have ended but whose last events have not been sent.
    ending: Vec<Rc<Request>>,
}

impl Running {
    /// The number of texts that have a place.
    pub(super) fn n_in_memory(&self) -> usize {
        self.in_memory().count()
    }

    pub(super) fn n_parked(&self) -> usize {
        self.runs.len() - self.n_in_memory()
    }

    /// Whether there are neither running texts nor events to send.
    pub(super) fn is_done(&self) -> bool {
        self.runs.is_empty() && self.ending.is_empty()
    }

    pub(super) fn push(&mut self, run: Run) {
        self.n_begun += 1;
        self.runs.insert(RunId(self.n_begun), run);
    }

    pub(super) fn ids(&self) -> Vec<RunId> {
        self.runs.keys().copied().collect()
    }

    pub(super) fn get_mut(&mut self, id: RunId) -> Option<&mut Run> {
        self.runs.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RunId, &Run)> {
        self.runs.iter().map(|(id, run)| (*id, run))
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.values()
    }

    pub(super) fn runs_mut(&mut self) -> impl Iterator<Item = &mut Run> {
        self.runs.values_mut()
    }

    /// The sequences of the texts with these ids, which must ascend.
    pub(super) fn sequences(&mut self, ids: impl Iterator<Item = RunId>) -> Vec<&mut Sequence> {
        let mut wanted = ids.peekable();
        let runs = self.runs.iter_mut();
        let taken = runs.filter(|(id, _)| wanted.next_if(|next| next == *id).is_some());
        taken.map(|(_, run)| run.text.sequence_mut()).collect()
    }

    /// The texts that have a place.
    pub(super) fn in_memory(&self) -> impl Iterator<Item = (RunId, &Run)> {
        self.iter().filter(|(_, run)| !run.text.is_parked())
    }

    /// The parked texts whose readers keep up.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (RunId, &Run)> {
        let runs = self.iter();
        runs.filter(|(_, run)| {
            run.text.is_parked() && run.end.is_none() && !run.request().is_stalled()
        })
    }

    /// The places that each share has.
    pub(super) fn places(&self) -> Places {
        let mut places = Places::default();
        for (_, run) in self.in_memory() {
            places.take(&run.request().share);
        }
        places
    }

    /// The text to park next, of those that `yields` allows: the last one of the largest share.
    pub(super) fn victim(
        &self,
        places: &Places,
        yields: impl Fn(RunId, &Share) -> bool,
    ) -> Option<RunId> {
        let runs = self.in_memory();
        let runs = runs.filter(|(id, run)| run.end.is_none() && yields(*id, &run.request().share));
        let ranked = runs.map(|(id, run)| {
            let ((load, n), rank) = (places.size(&run.request().share), run.request().rank());
            (load, n, rank, id)
        });
        let last = ranked.max_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
        last.map(|(_, _, _, id)| id)
    }

    /// Marks texts as ended whose client has disconnected or whose time is over.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.ending
            .retain(|request| !request.flush() && !request.is_closed());
        for run in self.runs.values_mut() {
            if run.request().is_closed() {
                run.end(Why::Ended(EndReason::Closed));
            } else if run.request().is_late(now, run.first_token) {
                run.end(Why::Late);
            }
        }
    }

    /// Removes the texts that have ended, and returns their sequences to the pool.
    pub(super) fn take_out(&mut self, pool: &mut Pool, entry: &Entry) {
        for text in self.take_ended(entry) {
            pool.close(text);
        }
    }

    /// Removes the texts that have ended, and sends their ends.
    pub(super) fn take_ended(&mut self, entry: &Entry) -> Vec<Text> {
        let mut ended = Vec::new();
        let is_ended = |run: &Run| run.end.is_some();
        while let Some((&id, _)) = self.runs.iter().find(|(_, run)| is_ended(run))
            && let Some(mut run) = self.runs.remove(&id)
            && let Some(why) = run.end.take()
        {
            let text = run.finish(why, entry);
            let request = text.request();
            if !request.flush() && !request.is_closed() {
                self.ending.push(Rc::clone(request));
            }
            ended.push(text);
        }
        ended
    }

    /// Sends the events. Readers that have not yet seen the previous ones are waiting for a CPU, possibly for
    /// milliseconds: yield this one to them.
    pub(super) fn send_events(&self) {
        let mut is_late = false;
        for run in self.runs() {
            is_late |= run.request().is_reader_late();
            run.request().flush();
        }
        if is_late {
            std::thread::yield_now();
        }
    }
}

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
        request.send(Event::Started {
            cached,
            slot: self.text.sequence().slot(),
        });
        let (metrics, n_prompt) = (entry.metrics(), request.prompt.len());
        metrics.started(self.timings.queued, n_prompt, cached);
        if let Some(meter) = &request.meter {
            meter.prompt(n_prompt - cached, cached);
        }
        if request.uses_cache {
            metrics.prefix(n_prompt, cached);
        }
    }

    /// Takes its place to make room; it goes on later.
    pub(super) fn park(&mut self, pool: &mut Pool, entry: &Entry) {
        match pool.park(&mut self.text) {
            Ok(()) => {
                self.timings.n_preempted += 1;
                entry.metrics().preempted();
            }
            Err(error) => self.end(Why::failed(&error)),
        }
    }

    /// Gives it a place again.
    pub(super) fn resume(&mut self, pool: &mut Pool) {
        let slot = self.text.sequence().slot();
        match pool.resume(&mut self.text) {
            Ok(()) if self.text.sequence().slot() == slot => {}
            Ok(()) => {
                let slot = self.text.sequence().slot();
                self.request().send(Event::Moved { slot });
            }
            Err(error) => self.end(Why::failed(&error)),
        }
    }

    /// Reports how far its prompt has been read, if requested.
    pub(super) fn send_progress(&self) {
        let request = self.request();
        if request.tells_progress && self.first_token.is_none() {
            request.send(Event::Progress {
                total: request.prompt.len(),
                cached: self.timings.cached,
                processed: self.text.n_read(),
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
        self.timings.predict = self.first_token.map_or(Duration::ZERO, |first| now - first);
        self.last_token = now;
    }

    /// Ends it if sampling failed, or if its prompt was only to be read.
    pub(super) fn check(&mut self) {
        if let Some(error) = self.text.sequence_mut().failure() {
            self.end(Why::failed(&error));
        } else if self.end.is_none() && self.text.n_queued() == 0 {
            self.timings.n_prompt = self.request().prompt.len() - self.timings.cached;
            self.timings.prompt = self.began.elapsed();
            self.end(Why::Ended(EndReason::Length));
        }
    }

    /// Marks it as ended; it is removed later.
    pub(super) fn end(&mut self, why: Why) {
        self.end = Some(why);
    }

    /// Sends its end, and the ends of choices that can no longer continue from it.
    fn finish(mut self, why: Why, entry: &Entry) -> Text {
        entry.finished(self.figures(&why));
        let request = self.text.request();
        for pending in self.followers.drain(..) {
            entry.unqueue(&self.text.request().share, 1);
            let error = JobError::Failed("the first choice failed".to_owned());
            request.end(pending.index, Why::Failed(error));
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
            request: Some(Arc::clone(&self.request().id)),
            n_past: self.text.n_read(),
            n_prompt: self.request().prompt.len(),
            n_decoded: self.timings.n_predicted,
            n_remain: Some(n_left).filter(|left| *left != usize::MAX),
            speculates: false,
        }
    }
}

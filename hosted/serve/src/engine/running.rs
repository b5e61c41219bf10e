//! The texts that are being read and written.

use super::entry::Entry;
use super::job::{JobError, Why};
use super::pool::{Pool, Text};
use super::request::Request;
use super::run::Run;
use super::share::{Places, Share};
use core::cmp::Ordering;
use sluice::Sequence;
use sluice::sequence::EndReason;
use std::collections::BTreeMap;
use std::rc::Rc;
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

    pub(super) fn get(&self, id: RunId) -> Option<&Run> {
        self.runs.get(&id)
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
        taken
            .map(|(_, run)| run.text_mut().sequence_mut())
            .collect()
    }

    /// The texts that have a place.
    pub(super) fn in_memory(&self) -> impl Iterator<Item = (RunId, &Run)> {
        self.iter().filter(|(_, run)| !run.text().is_parked())
    }

    /// The parked texts whose readers keep up.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (RunId, &Run)> {
        let runs = self.iter();
        runs.filter(|(_, run)| {
            run.text().is_parked() && !run.is_ended() && !run.request().is_stalled()
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
        let runs = runs.filter(|(id, run)| !run.is_ended() && yields(*id, &run.request().share));
        last_of_largest(runs, places)
    }

    /// Of the shifted texts whose readers do not read, the last one of the share with most of them.
    pub(super) fn last_stalled(&self) -> Option<RunId> {
        let stalled = || {
            self.iter().filter(|(_, run)| {
                let is_shifted = run.text().sequence().n_shifted() > 0;
                is_shifted && !run.is_ended() && run.request().is_stalled()
            })
        };
        let mut places = Places::default();
        stalled().for_each(|(_, run)| places.take(&run.request().share));
        last_of_largest(stalled(), &places)
    }

    /// Marks texts as ended whose client has disconnected or whose time is over.
    pub(super) fn sweep(&mut self, now: Instant, entry: &Entry) {
        self.ending.retain(|request| {
            let is_over = request.flush() || request.is_closed();
            if is_over {
                entry.unqueue(&request.share, 1);
            }
            !is_over
        });
        for run in self.runs.values_mut() {
            if run.request().is_closed() {
                run.end(Why::Ended(EndReason::Closed));
            } else if run.is_late(now) {
                run.end(Why::Late);
            }
        }
    }

    /// Ends all texts. Their sequences are dropped with the session.
    pub(super) fn close(mut self, error: &JobError, entry: &Entry) -> Unread {
        for run in self.runs_mut() {
            run.end(Why::Failed(error.clone()));
        }
        drop(self.take_ended(entry));
        // The entry may go on with another session, which knows nothing of them.
        for request in &self.ending {
            entry.unqueue(&request.share, 1);
        }
        Unread(self.ending)
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
        while let Some((&id, _)) = self.runs.iter().find(|(_, run)| run.is_ended())
            && let Some(run) = self.runs.remove(&id)
        {
            let text = run.finish(entry);
            let request = text.request();
            if !request.flush() && !request.is_closed() {
                entry.requeue(&request.share);
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

/// The last events of texts whose model is gone.
#[derive(Debug)]
pub(super) struct Unread(Vec<Rc<Request>>);

impl Unread {
    /// Sends what readers take; false if that was all.
    pub(super) fn send(&mut self) -> bool {
        self.0
            .retain(|request| !request.flush() && !request.is_closed());
        !self.0.is_empty()
    }
}

/// The last one of the largest share.
fn last_of_largest<'r>(
    runs: impl Iterator<Item = (RunId, &'r Run)>,
    places: &Places,
) -> Option<RunId> {
    let ranked = runs.map(|(id, run)| {
        let ((load, n), rank) = (places.size(&run.request().share), run.request().rank());
        (load, n, rank, id)
    });
    let last = ranked.max_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    last.map(|(_, _, _, id)| id)
}

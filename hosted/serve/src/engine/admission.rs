//! Assigns sequences and room to parked and waiting texts, fairly among shares.

use super::entry::Entry;
use super::job::{JobError, Why};
use super::pool::{Pool, n_pages};
use super::queue::{Fetch, Queue, Waiting};
use super::run::Run;
use super::running::{RunId, Running};
use super::share::Ledger;
use core::cmp::Ordering;
use sluice::sequence::EndReason;
use std::rc::Rc;

/// Admits texts to the running ones, as far as there is room.
pub(super) struct Admission<'s> {
    pub(super) queue: &'s mut Queue,
    pub(super) pool: &'s mut Pool,
    pub(super) running: &'s mut Running,
    pub(super) ledger: &'s Ledger,
    pub(super) entry: &'s Entry,
}

/// A text that has no place.
#[derive(Clone, Copy, Debug)]
enum Candidate {
    Parked(RunId),
    /// The request with this arrival number.
    Waiting(u64),
}

impl Admission<'_> {
    /// Parks texts whose readers do not read, then gives places to parked and waiting texts.
    pub(super) fn admit(&mut self) {
        self.park_stalled();
        while let Some(next) = self.next() {
            let Some(victims) = self.victims(next) else {
                return;
            };
            if self.is_on_disk(next) {
                continue;
            }
            for id in victims {
                self.park(id);
            }
            match next {
                Candidate::Parked(id) => {
                    if let Some(run) = self.running.get_mut(id) {
                        run.resume(self.pool, self.entry);
                    }
                }
                Candidate::Waiting(arrival) => {
                    if let Some(waiting) = self.queue.take(arrival) {
                        self.begin(waiting);
                    }
                }
            }
        }
    }

    /// Parks texts whose readers do not read. If there are too many states to keep, one of the share with most ends.
    fn park_stalled(&mut self) {
        let stalled = self.running.in_memory();
        let stalled = stalled.filter(|(_, run)| run.request().is_stalled());
        let stalled: Vec<_> = stalled.map(|(id, _)| id).collect();
        for id in stalled {
            if !self.may_park(id)
                && let Some(last) = self.running.last_stalled()
                && let Some(run) = self.running.get_mut(last)
            {
                run.end(Why::Failed(JobError::Failed(NOT_READ.to_owned())));
            }
            if self.may_park(id) {
                self.park(id);
            }
        }
    }

    /// Whether a text may be parked for the sake of others: the state of a shifted one takes memory, of which there are
    /// few.
    fn may_park(&self, id: RunId) -> bool {
        let runs = self.running.runs().filter(|run| !run.is_ended());
        let n_saved = runs.filter(|run| run.text().is_saved()).count();
        let run = self.running.get(id).filter(|run| !run.is_ended());
        run.is_some_and(|run| {
            let is_shifted = run.text().sequence().n_shifted() > 0;
            !is_shifted || n_saved < SAVED_MAX * self.pool.n_sequences()
        })
    }

    fn park(&mut self, id: RunId) {
        if let Some(run) = self.running.get_mut(id) {
            run.park(self.pool, self.entry);
        }
    }

    /// The text that gets the next place: of a share that has none, if there is one, or else of the share with least.
    /// A more urgent priority goes first, until the oldest text of another has waited longer by as many seconds.
    fn next(&self) -> Option<Candidate> {
        let places = self.running.places();
        let taken = self.running.in_memory();
        let taken: Vec<u32> = taken.map(|(_, run)| run.text().sequence().slot()).collect();
        let waiting = self.queue.heads(&taken).map(|waiting| {
            let request = &*waiting.request;
            (Candidate::Waiting(request.arrival), request)
        });
        let parked = self.running.waiting();
        let parked = parked.filter(|(_, run)| !run.text().waits_for(&taken));
        let parked = parked.map(|(id, run)| (Candidate::Parked(id), run.request()));
        let mut all: Vec<_> = waiting.chain(parked).collect();
        if all
            .iter()
            .any(|(_, request)| places.of(&request.share) == 0)
        {
            all.retain(|(_, request)| places.of(&request.share) == 0);
        }
        let oldest = all.iter().min_by_key(|(_, request)| request.rank())?;
        let priority = oldest.1.priority;
        let urgent = all
            .iter()
            .filter(|(_, request)| request.priority == priority);
        let ranked = urgent.map(|(candidate, request)| {
            let standing = self.ledger.standing(&request.share, &places);
            (standing, request.rank(), *candidate)
        });
        let least = ranked.min_by(|(a, first, _), (b, second, _)| {
            let by_share = a.partial_cmp(b).unwrap_or(Ordering::Equal);
            by_share.then(first.cmp(second))
        });
        least.map(|(_, _, candidate)| candidate)
    }

    /// The texts of larger shares that make place for this one when they are parked, none if there is a place; `None` if
    /// it has to wait.
    fn victims(&mut self, next: Candidate) -> Option<Vec<RunId>> {
        let (share, n_tokens) = match next {
            Candidate::Parked(id) => {
                let run = self.running.get_mut(id)?;
                (run.request().share.clone(), run.text().n_tokens() + 1)
            }
            Candidate::Waiting(arrival) => {
                let request = &self.queue.get_mut(arrival)?.request;
                (request.share.clone(), request.prompt.len() + 1)
            }
        };
        let mut places = self.running.places();
        let mut victims = Vec::new();
        while !self.has_place(&victims, n_tokens) {
            if places.of(&share) > 0 {
                return None;
            }
            let victim = self.running.victim(&places, |id, owner| {
                !victims.contains(&id) && places.yields(owner, &share) && self.may_park(id)
            })?;
            if let Some(run) = self.running.get_mut(victim) {
                places.give(&run.request().share);
            }
            victims.push(victim);
        }
        Some(victims)
    }

    /// Whether a text of `n_tokens` fits in addition to the running ones without `victims`, counting their whole
    /// prompts and one more token.
    fn has_place(&self, victims: &[RunId], n_tokens: usize) -> bool {
        let others = self.running.in_memory();
        let others = others.filter(|(id, _)| !victims.contains(id));
        let (mut n_texts, mut n_taken) = (0, 0);
        for (_, run) in others {
            n_texts += 1;
            n_taken += n_pages(run.text().n_tokens() + 1);
        }
        n_texts < self.pool.n_sequences() && (n_texts == 0 || self.pool.fits(n_taken, n_tokens))
    }

    /// Whether pages of a prompt have to be read from disk before it starts.
    fn is_on_disk(&mut self, next: Candidate) -> bool {
        let waiting = match next {
            Candidate::Parked(_) => None,
            Candidate::Waiting(arrival) => self.queue.get_mut(arrival),
        };
        let Some(waiting) = waiting.filter(|waiting| waiting.fetch == Fetch::NotYet) else {
            return false;
        };
        let is_reading = self.pool.fetch(&waiting.request, &mut waiting.chain);
        waiting.fetch = if is_reading {
            Fetch::Reading
        } else {
            Fetch::Done
        };
        is_reading
    }

    /// Starts a waiting text.
    fn begin(&mut self, waiting: Waiting) {
        let Waiting {
            request,
            mut choices,
            pinned,
            chain,
            ..
        } = waiting;
        let Some(first) = choices.pop_front() else {
            return;
        };
        self.entry.unqueue(&request.share, 1);
        let text = match self.pool.open(&request, pinned, first.choice, chain) {
            Ok(text) => text,
            Err(error) => {
                request.end(first.index, Why::failed(&error));
                self.entry.unqueue(&request.share, choices.len());
                for pending in choices {
                    request.end(pending.index, Why::failed(&error));
                }
                return;
            }
        };
        let mut run = Run::new(text, first.index, choices);
        match self.pool.enter_prompt(run.text_mut()) {
            Ok(cached) => run.start(cached, self.entry),
            Err(error) => run.end(Why::failed(&error)),
        }
        self.running.push(run);
    }

    /// Starts the other choices at the end of a prompt that has been read up to its last token. Choices that find no
    /// free sequence wait for any; they will find the pages in the cache.
    pub(super) fn fork_followers(&mut self) {
        let n_places = self.pool.n_sequences();
        let mut n_free = n_places.saturating_sub(self.running.n_in_memory());
        for id in self.running.ids() {
            let leader = self.running.get_mut(id);
            let Some(leader) = leader.filter(|leader| !leader.text().is_parked()) else {
                continue;
            };
            let mut choices = leader.take_followers();
            if choices.is_empty() {
                continue;
            }
            let mut forks = Vec::new();
            while n_free > 0
                && let Some(pending) = choices.pop_front()
            {
                n_free -= 1;
                self.entry.unqueue(&leader.request().share, 1);
                let index = pending.index;
                match self.pool.fork(leader.text(), pending) {
                    Ok(text) => forks.push(leader.fork(text, index)),
                    Err(error) => leader.request().end(index, Why::failed(&error)),
                }
            }
            if !choices.is_empty() {
                self.queue.put(Waiting {
                    request: Rc::clone(leader.text().request()),
                    choices,
                    pinned: None,
                    chain: leader.text().chain().clone(),
                    fetch: Fetch::Done,
                });
            }
            for fork in forks {
                self.running.push(fork);
            }
        }
    }

    /// Shifts the context of texts that continue when it is full.
    pub(super) fn shift(&mut self) {
        let n_ctx = self.pool.session().limits().n_ctx;
        for run in self.running.runs_mut() {
            let is_full = run.text().n_read() >= n_ctx && !run.text().is_parked();
            let Some(n_keep) = run.request().shift.filter(|_| is_full) else {
                continue;
            };
            match self.pool.shift(run.text_mut(), n_keep) {
                Ok(0) => run.end(Why::Ended(EndReason::ContextFull)),
                Ok(_) => run.shifted(),
                Err(error) => run.end(Why::failed(&error)),
            }
        }
        self.running.take_out(self.pool, self.entry);
    }
}

/// States of shifted texts that may be parked for the sake of others, for each sequence.
const SAVED_MAX: usize = 4;
const NOT_READ: &str =
    "the answer is not read, and too many such answers with a shifted context are waiting";

//! Assigns sequences and room: first to preempted texts, then to waiting ones in order.

use super::entry::Entry;
use super::job::Why;
use super::pool::{Pool, n_pages};
use super::queue::{Fetch, Queue, Waiting};
use super::running::{Run, Running};
use sluice::sequence::EndReason;
use std::rc::Rc;

/// Admits texts to the running ones, as far as there is room.
pub(super) struct Admission<'s> {
    pub(super) queue: &'s mut Queue,
    pub(super) pool: &'s mut Pool,
    pub(super) running: &'s mut Running,
    pub(super) entry: &'s Entry,
}

impl Admission<'_> {
    /// Resumes preempted texts, then starts waiting ones.
    pub(super) fn admit(&mut self) {
        if !self.resume() {
            return;
        }
        while let Some(waiting) = self.queue.first() {
            let n_tokens = waiting.request.prompt.len() + 1;
            if !self.pool.has_sequence() || !has_room(self.running, self.pool, n_tokens) {
                return;
            }
            if waiting.fetch == Fetch::NotYet {
                let is_reading = self.pool.fetch(&waiting.request, &mut waiting.chain);
                waiting.fetch = if is_reading {
                    Fetch::Reading
                } else {
                    Fetch::Done
                };
                if is_reading {
                    continue;
                }
            }
            if let Some(waiting) = self.queue.pop() {
                self.begin(waiting);
            }
        }
    }

    /// Restores preempted texts, in order of rank. False if some cannot be restored yet.
    fn resume(&mut self) -> bool {
        while let Some(parked) = self.running.first_parked() {
            let n_tokens = parked.text().n_tokens() + 1;
            if !has_room(self.running, self.pool, n_tokens) {
                return false;
            }
            if let Some(run) = self.running.first_parked()
                && let Err(error) = self.pool.resume(run.text_mut())
            {
                run.end(Why::failed(&error));
            }
        }
        true
    }

    /// Starts a waiting text.
    fn begin(&mut self, waiting: Waiting) {
        let Waiting {
            request,
            mut choices,
            chain,
            ..
        } = waiting;
        let Some(first) = choices.pop_front() else {
            return;
        };
        self.entry.unqueue(1);
        let text = match self.pool.open(&request, first.choice, chain) {
            Ok(text) => text,
            Err(error) => {
                request.end(first.index, Why::failed(&error));
                self.entry.unqueue(choices.len());
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
    /// free sequence wait; they will find the pages in the cache.
    pub(super) fn fork_followers(&mut self) {
        for id in self.running.ids() {
            let Some(leader) = self.running.get_mut(id) else {
                continue;
            };
            let mut choices = leader.take_followers();
            if choices.is_empty() {
                continue;
            }
            let mut forks = Vec::new();
            while self.pool.has_sequence()
                && let Some(pending) = choices.pop_front()
            {
                self.entry.unqueue(1);
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
                Ok(_) => {}
                Err(error) => run.end(Why::failed(&error)),
            }
        }
        self.running.take_out(self.pool, self.entry);
    }
}

/// Whether a text of `n_tokens` fits in addition to the running ones, counting their whole prompts and one more token.
fn has_room(running: &Running, pool: &Pool, n_tokens: usize) -> bool {
    let taken = running.n_tokens_each().map(n_pages).sum();
    pool.fits(taken, n_tokens) || running.len() == 0
}

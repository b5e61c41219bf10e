//! A model's part of the engine: its texts, its caches, and one turn of it.

use super::cost::Costs;
use super::disk::DiskCache;
use super::embedding::Embedding;
use super::job::{EmbedJob, Event, Job, JobError, ModelId, Timings, Why};
use super::prefix::{Chain, Key, PrefixCache};
use super::running::{Fetch, Request, Running, Waiting};
use super::thread::Command;
use super::turn::{Pace, Reading, shares};
use super::{EngineOptions, Entry, ModelView, SlotView};
use crate::Log;
use crate::metrics::Step;
use core::sync::atomic::Ordering;
use sha2::{Digest as _, Sha256};
use sluice::sequence::Ended;
use sluice::session::{Entered, Event as Chosen, GenerateError, StepHooks};
use sluice::{Sequence, Session};
use sluice_core::state::{PAGE_TOKENS, PAGE_VERSION};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

/// A text that has ended, kept as long as its sequence is not needed: the next turn of a conversation goes on
/// from it.
#[derive(Debug)]
pub(super) struct Idle {
    pub(super) sequence: Sequence,
    pub(super) salt: Arc<str>,
}

/// A model at work.
pub(super) struct Served {
    pub(super) id: ModelId,
    pub(super) session: Session,
    pub(super) entry: Arc<Entry>,
    pub(super) waiting: Vec<Waiting>,
    pub(super) running: Vec<Running>,
    /// Those that ended and whose last events are not out.
    pub(super) ending: Vec<Rc<Request>>,
    /// Used longest ago first.
    pub(super) idle: VecDeque<Idle>,
    pub(super) cache: PrefixCache,
    pub(super) disk: Option<DiskCache>,
    /// Pages to be written to disk, when there is time.
    pub(super) unwritten: VecDeque<Key>,
    /// What keys depend on besides tokens.
    pub(super) base: Key,
    pub(super) embedding: Embedding,
    /// Pages in all.
    pub(super) n_pages: usize,
    pub(super) checkpoint_every: usize,
    pub(super) commands: Sender<Command>,
    pub(super) log: Log,
    costs: Costs,
    pace: Pace,
    n_arrived: u64,
}

impl Served {
    pub(super) fn new(
        (id, session): (ModelId, Session),
        entry: Arc<Entry>,
        disk: Option<DiskCache>,
        options: &EngineOptions,
        (commands, log): (Sender<Command>, Log),
    ) -> Self {
        let limits = *session.limits();
        let is_recurrent = session.model().config().is_recurrent();
        let n_pages = session.state().free_pages();
        let mut hash = Sha256::new();
        hash.update(b"sluice prefix");
        hash.update(PAGE_VERSION.to_le_bytes());
        hash.update(session.model().fingerprint().to_le_bytes());
        hash.update(format!("{:?} {:?}", limits.type_k, limits.type_v));
        // Angles of some models depend on the length of the context.
        hash.update(limits.n_ctx.to_le_bytes());
        Self {
            id,
            cache: PrefixCache::new(
                limits.n_held / PAGE_TOKENS,
                limits.n_checkpoints,
                is_recurrent,
            ),
            base: hash.finalize().into(),
            embedding: Embedding::new(
                session.model().clone(),
                session.team().clone(),
                limits.n_ctx,
                options.turn,
            ),
            n_pages,
            checkpoint_every: options.checkpoint_every.max(PAGE_TOKENS) / PAGE_TOKENS * PAGE_TOKENS,
            pace: Pace {
                turn: options.turn.as_secs_f64() * 1e9,
                share: options.prompt_share.clamp(0.0, 1.0),
                n_batch: limits.n_batch,
            },
            session,
            entry,
            waiting: Vec::new(),
            running: Vec::new(),
            ending: Vec::new(),
            idle: VecDeque::new(),
            disk,
            unwritten: VecDeque::new(),
            commands,
            log,
            costs: Costs::new(),
            n_arrived: 0,
        }
    }

    /// Takes a job.
    pub(super) fn push(&mut self, job: Job) {
        let chain = Chain::new(&self.base, &job.salt);
        self.n_arrived += 1;
        let (request, choices) = Request::new(job, self.n_arrived);
        self.waiting.push(Waiting {
            request,
            choices,
            fetch: Fetch::Not,
            chain,
        });
    }

    pub(super) fn push_embedding(&mut self, job: EmbedJob) {
        self.embedding.push(job);
    }

    /// Whether there is anything to do, now or later.
    pub(super) fn has_work(&self) -> bool {
        !self.waiting.is_empty()
            || !self.running.is_empty()
            || !self.ending.is_empty()
            || !self.unwritten.is_empty()
            || self.embedding.has_work()
    }

    /// One turn; false if nothing could be done at the moment.
    pub(super) fn turn(&mut self) -> bool {
        self.sweep(Instant::now());
        self.admit();
        self.fork_followers();
        self.shift();
        let (indexes, parts) = self.plan();
        let mut worked = !indexes.is_empty();
        if worked {
            self.step(&indexes, &parts);
        }
        worked |= self.embedding.turn(&self.entry);
        self.take_out();
        worked |= self.write_behind(if indexes.is_empty() { 64 } else { 2 });
        self.show();
        worked
    }

    /// Ends what nobody waits for any more, and what is late.
    fn sweep(&mut self, now: Instant) {
        self.ending
            .retain(|request| !request.flush() && !request.is_closed());
        let entry = &self.entry;
        self.waiting.retain(|waiting| {
            let request = &waiting.request;
            let is_late = request.is_late(now);
            if is_late {
                for (choice, _) in &waiting.choices {
                    request.send(Event::Ended {
                        choice: *choice,
                        why: Why::Late,
                        timings: Timings::default(),
                    });
                }
            }
            let goes = is_late || request.is_closed();
            if goes {
                entry
                    .n_waiting
                    .fetch_sub(waiting.choices.len(), Ordering::Relaxed);
            }
            !goes
        });
        for running in &mut self.running {
            if running.request.is_closed() {
                running.end = Some(Why::Ended(Ended::Closed));
            } else if running.is_late(now) {
                running.end = Some(Why::Late);
            }
        }
        self.take_out();
    }

    /// Choices go on from the end of a prompt that was read up to its last token. Those for which there is no
    /// sequence wait, and find the pages in the cache.
    fn fork_followers(&mut self) {
        for i in 0..self.running.len() {
            let leader = &mut self.running[i];
            if leader.followers.is_empty() || leader.sequence.queue().len() != 1 {
                continue;
            }
            let mut followers = core::mem::take(&mut leader.followers);
            while let Some((index, choice)) = followers.pop_front() {
                let leader = &self.running[i];
                let settings = super::running::settings(&choice, &leader.request);
                if self.session.n_free_sequences() == 0 && self.idle.pop_front().is_none() {
                    followers.push_front((index, choice));
                    break;
                }
                let shows_special = choice.shows_special;
                let forked = self
                    .session
                    .fork_with(&leader.sequence, &settings, choice.sampler);
                self.entry.n_waiting.fetch_sub(1, Ordering::Relaxed);
                match forked {
                    Ok(mut sequence) => {
                        if shows_special {
                            sequence.show_special();
                        }
                        let request = Rc::clone(&leader.request);
                        let chain = leader.chain.clone();
                        let mut running =
                            Running::new(request, index, sequence, chain, VecDeque::new());
                        running.n_kept = leader.n_kept;
                        running.began = leader.began;
                        running.timings = leader.timings;
                        self.running.push(running);
                    }
                    Err(error) => fail(&leader.request, index, &error),
                }
            }
            if !followers.is_empty() {
                let request = Rc::clone(&self.running[i].request);
                let chain = self.running[i].chain.clone();
                self.waiting.push(Waiting {
                    request,
                    choices: followers,
                    fetch: Fetch::Done,
                    chain,
                });
            }
        }
    }

    /// Makes room in texts that go on when their context is full.
    fn shift(&mut self) {
        let n_ctx = self.session.limits().n_ctx;
        for i in 0..self.running.len() {
            let running = &self.running[i];
            let is_full = running.sequence.tokens().len() >= n_ctx && !running.is_parked;
            let Some(n_keep) = running.request.shift.filter(|_| is_full) else {
                continue;
            };
            // Pages that are shared are copied before they change.
            self.ensure_free(super::admission::n_pages(n_ctx));
            let running = &mut self.running[i];
            let n_keep = n_keep.min(n_ctx / 2);
            running.end = match self.session.shift(&mut running.sequence, n_keep) {
                Ok(0) => Some(Why::Ended(Ended::ContextFull)),
                Ok(_) => None,
                Err(error) => Some(Why::Failed(JobError::Failed(error.to_string()))),
            };
        }
        self.take_out();
    }

    /// Who takes part in the next step, and with how many tokens.
    fn plan(&mut self) -> (Vec<usize>, Vec<usize>) {
        let mut readers = Vec::new();
        let (mut indexes, mut prompts) = (Vec::new(), Vec::new());
        let mut n_positions = 0;
        for (i, running) in self.running.iter().enumerate() {
            if running.is_parked || running.sequence.queue().is_empty() || !running.request.flush()
            {
                continue;
            }
            let position = running.sequence.tokens().len();
            if running.is_writing() {
                indexes.push(i);
                n_positions += position + 1;
                continue;
            }
            readers.push(i);
            prompts.push(Reading {
                priority: running.request.priority,
                arrival: running.request.arrival,
                position,
                served: position.saturating_sub(running.timings.cached),
                wanted: self.wanted(running),
            });
        }
        let n_writing = indexes.len();
        let mut parts = vec![1; n_writing];
        let read = shares(self.pace, &self.costs, (n_writing, n_positions), &prompts);
        for (i, n) in readers.into_iter().zip(read).filter(|(_, n)| *n > 0) {
            indexes.push(i);
            parts.push(n);
        }
        self.make_room(&mut indexes, &mut parts);
        (indexes, parts)
    }

    /// Tokens that a prompt may read up to the next place where its state is to be kept.
    fn wanted(&self, running: &Running) -> usize {
        let (at, n) = (
            running.sequence.tokens().len(),
            running.sequence.queue().len(),
        );
        let n = if running.followers.is_empty() {
            n
        } else {
            n - 1
        };
        let next = self.next_checkpoint(running, at);
        next.map_or(n, |next| n.min(next - at)).max(1)
    }

    /// Runs a step over those texts, and tells what came of it.
    fn step(&mut self, indexes: &[usize], parts: &[usize]) {
        let start = Instant::now();
        let mut order: Vec<usize> = (0..indexes.len()).collect();
        order.sort_unstable_by_key(|&i| indexes[i]);
        let sorted: Vec<usize> = order.iter().map(|&i| indexes[i]).collect();
        let sorted_parts: Vec<usize> = order.iter().map(|&i| parts[i]).collect();
        let mut sequences = Vec::with_capacity(sorted.len());
        let mut taken = sorted.iter().peekable();
        for (i, running) in self.running.iter_mut().enumerate() {
            if taken.next_if(|next| **next == i).is_some() {
                sequences.push(&mut running.sequence);
            }
        }
        let n_writing = sequences
            .iter()
            .filter(|sequence| sequence.queue().len() == 1)
            .count();
        let hooks = StepHooks {
            shares: Some(&sorted_parts),
            ..StepHooks::default()
        };
        let stepped = self.session.step_with(&mut sequences, &hooks);
        match stepped {
            Ok((events, entered)) => {
                self.deliver(&sorted, events);
                let time = start.elapsed();
                self.note(&entered, n_writing, sorted.len(), time);
                for &i in &sorted {
                    self.keep_pages(i);
                    self.tell_progress(i);
                }
            }
            Err(error) => self.fail_all(&sorted, &error),
        }
    }

    fn note(
        &mut self,
        entered: &Entered,
        n_writing: usize,
        n_busy: usize,
        time: core::time::Duration,
    ) {
        let ns = time.as_secs_f64() * 1e9;
        self.costs.note(entered.n_tokens, entered.n_positions, ns);
        self.entry.metrics.step(Step {
            n_prompt_tokens: entered.n_tokens - n_writing.min(entered.n_tokens),
            n_decode_tokens: n_writing,
            n_busy,
            time,
        });
    }

    fn deliver(&mut self, stepped: &[usize], events: Vec<Chosen>) {
        for event in events {
            let running = &mut self.running[stepped[event.sequence]];
            let last = running.last_token;
            let is_first = running.first_token.is_none();
            let is_end = event.ended == Some(Ended::EndOfText) && event.piece.is_empty();
            let is_hidden = is_end
                && self
                    .session
                    .model()
                    .tokenizer()
                    .is_end_of_generation(event.token);
            if is_first {
                running.timings.n_prompt = running.request.prompt.len() - running.timings.cached;
            }
            if !is_hidden {
                running.tell(event.token, event.piece);
            }
            let now = Instant::now();
            if is_first {
                self.entry
                    .metrics
                    .first_token(now - running.request.arrived);
            } else if !is_hidden {
                self.entry.metrics.token(now - last);
            }
            if let Some(ended) = event.ended {
                running.end = Some(match running.sequence.stopped_by() {
                    Some(stop) => Why::Stop(stop.to_owned()),
                    None => Why::Ended(ended),
                });
            }
        }
        for &i in stepped {
            let running = &mut self.running[i];
            if let Some(error) = running.sequence.failure() {
                running.end = Some(Why::Failed(JobError::Failed(error.to_string())));
            }
        }
    }

    fn tell_progress(&mut self, i: usize) {
        let running = &self.running[i];
        let (processed, total) = (
            running.sequence.tokens().len(),
            running.request.prompt.len(),
        );
        if running.request.tells_progress && processed <= total && running.timings.n_predicted <= 1
        {
            running.request.send(Event::Progress {
                total,
                cached: running.timings.cached,
                processed,
                time: running.began.elapsed(),
            });
        }
    }

    /// A step failed as a whole: its texts cannot go on.
    fn fail_all(&mut self, stepped: &[usize], error: &GenerateError) {
        (self.log)(&format!("a step failed: {error}"));
        for &i in stepped {
            self.running[i].end = Some(Why::Failed(JobError::Failed(error.to_string())));
        }
    }

    /// Takes out the texts that have ended.
    fn take_out(&mut self) {
        let mut i = 0;
        while i < self.running.len() {
            let Some(why) = self.running[i].end.take() else {
                i += 1;
                continue;
            };
            let running = self.running.remove(i);
            self.finish(running, why);
        }
    }

    fn finish(&mut self, mut running: Running, why: Why) {
        self.entry.finished(&running, &why);
        let request = Rc::clone(&running.request);
        for (choice, _) in running.followers.drain(..) {
            self.entry.n_waiting.fetch_sub(1, Ordering::Relaxed);
            request.send(Event::Ended {
                choice,
                why: Why::Failed(JobError::Failed("the first choice failed".to_owned())),
                timings: Timings::default(),
            });
        }
        request.send(Event::Ended {
            choice: running.choice,
            why,
            timings: running.timings,
        });
        if !request.flush() && !request.is_closed() {
            self.ending.push(Rc::clone(&request));
        }
        let is_kept = running.request.uses_cache && !running.is_parked;
        if is_kept && running.sequence.n_shifted() == 0 && !running.sequence.tokens().is_empty() {
            self.idle.push_back(Idle {
                sequence: running.sequence,
                salt: Arc::clone(&running.request.salt),
            });
        } else if let Err(error) = self.session.remove(running.sequence) {
            (self.log)(&format!("{error}"));
        }
    }

    /// Ends everything: the model goes.
    pub(super) fn close(&mut self, error: &JobError) {
        for waiting in self.waiting.drain(..) {
            for (choice, _) in &waiting.choices {
                waiting.request.send(Event::Ended {
                    choice: *choice,
                    why: Why::Failed(error.clone()),
                    timings: Timings::default(),
                });
            }
        }
        for running in &mut self.running {
            running.end = Some(Why::Failed(error.clone()));
        }
        self.take_out();
        self.embedding.close(error);
    }

    /// Publishes what is going on.
    fn show(&self) {
        let mut slots: Vec<_> = self
            .idle
            .iter()
            .map(|idle| SlotView {
                id: idle.sequence.slot(),
                n_past: idle.sequence.tokens().len(),
                ..SlotView::default()
            })
            .collect();
        slots.extend(self.running.iter().map(|running| SlotView {
            id: running.sequence.slot(),
            is_processing: true,
            request: Some(Arc::clone(&running.request.id)),
            n_past: running.sequence.tokens().len(),
            n_prompt: running.request.prompt.len(),
            n_decoded: running.timings.n_predicted,
            n_remain: Some(running.sequence.n_left()).filter(|left| *left != usize::MAX),
        }));
        let n_seq = self.session.limits().n_seq;
        for id in (0u32..).take(n_seq) {
            if !slots.iter().any(|slot| slot.id == id) {
                slots.push(SlotView {
                    id,
                    ..SlotView::default()
                });
            }
        }
        slots.sort_unstable_by_key(|slot| slot.id);
        let held: usize = self
            .running
            .iter()
            .map(|running| running.sequence.tokens().len().div_ceil(PAGE_TOKENS))
            .sum();
        let n_ctx_pages = self.session.limits().n_ctx.div_ceil(PAGE_TOKENS).max(1);
        #[expect(clippy::cast_precision_loss, reason = "a part of one")]
        let kv_usage = (held as f64 / n_ctx_pages as f64).min(1.0);
        let view = ModelView {
            slots,
            n_waiting: self
                .waiting
                .iter()
                .map(|waiting| waiting.choices.len())
                .sum::<usize>()
                + self.embedding.len(),
            n_running: self.running.len(),
            kv_usage,
            cached_pages: self.cache.len(),
            cache_pages_max: self.cache.n_pages_max(),
        };
        self.entry
            .metrics
            .gauges(view.n_running, view.n_waiting, view.kv_usage);
        self.entry.show(view);
    }
}

/// A choice could not be begun.
pub(super) fn fail(request: &Request, choice: usize, error: &GenerateError) {
    request.send(Event::Ended {
        choice,
        why: Why::Failed(JobError::Failed(error.to_string())),
        timings: Timings::default(),
    });
}

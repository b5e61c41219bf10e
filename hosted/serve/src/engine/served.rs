//! A model's part of the engine: its texts, its caches, and one turn of it.

use super::company::adapters_of;
use super::disk::DiskCache;
use super::embedding::Embedding;
use super::ending::fail;
use super::job::{EmbedJob, Job, JobError, ModelId, ScoreJob, Why};
use super::prefix::{Chain, Key, PrefixCache};
use super::running::{Fetch, Request, Running, Waiting};
use super::scoring::Scoring;
use super::telemetry::{Stage, Stages};
use super::thread::Command;
use super::turn::{Pace, Reading, reads_whole, shares};
use super::{EngineOptions, Entry, ModelView, SlotView};
use crate::Log;
use core::sync::atomic::Ordering;
use core::time::Duration;
use sha2::{Digest as _, Sha256};
use sluice::sequence::Ended;
use sluice::speculate::Speculation;
use sluice::{Limits, Sequence, Session};
use sluice_core::costs::Costs;
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

/// What leads out of the engine's thread.
pub(super) struct Ways {
    pub(super) commands: Sender<Command>,
    pub(super) log: Log,
    pub(super) stages: Arc<Stages>,
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
    pub(super) scoring: Scoring,
    /// Pages in all.
    pub(super) n_pages: usize,
    pub(super) checkpoint_every: usize,
    pub(super) commands: Sender<Command>,
    pub(super) log: Log,
    stages: Arc<Stages>,
    pub(super) costs: Costs,
    pace: Pace,
    n_arrived: u64,
    /// Tokens of prompts in the last step that read any.
    pub(super) n_last_read: usize,
    /// Steps that were planned.
    pub(super) n_turns: u64,
    /// Most adapters of a step; 0 for no limit.
    pub(super) max_adapters: usize,
}

impl Served {
    pub(super) fn new(
        (id, session, scored): (ModelId, Session, Limits),
        entry: Arc<Entry>,
        disk: Option<DiskCache>,
        options: &EngineOptions,
        ways: Ways,
    ) -> Self {
        let limits = *session.limits();
        let is_recurrent = session.model().config().is_recurrent();
        let is_whole = reads_whole(session.model());
        let turn = if is_whole {
            Duration::MAX
        } else {
            options.turn
        };
        let n_pages = session.state().free_pages();
        let mut hash = Sha256::new();
        hash.update(b"sluice prefix");
        hash.update(PAGE_VERSION.to_le_bytes());
        hash.update(session.model().fingerprint().to_le_bytes());
        hash.update(format!("{:?} {:?}", limits.type_k, limits.type_v));
        hash.update([u8::from(limits.kv_rotation)]);
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
                (session.model().clone(), session.team().clone()),
                &limits,
                turn,
            ),
            scoring: Scoring::new(
                (session.model().clone(), session.team().clone()),
                scored,
                turn,
            ),
            n_pages,
            checkpoint_every: options.checkpoint_every.max(PAGE_TOKENS) / PAGE_TOKENS * PAGE_TOKENS,
            pace: Pace {
                turn: options.turn.as_secs_f64() * 1e9,
                share: options.prompt_share.clamp(0.0, 1.0),
                n_batch: limits.n_batch,
                is_whole,
            },
            session,
            entry,
            waiting: Vec::new(),
            running: Vec::new(),
            ending: Vec::new(),
            idle: VecDeque::new(),
            disk,
            unwritten: VecDeque::new(),
            commands: ways.commands,
            log: ways.log,
            stages: ways.stages,
            costs: Costs::new(),
            n_arrived: 0,
            n_last_read: 0,
            n_turns: 0,
            max_adapters: options.max_adapters,
        }
    }

    /// Takes a job.
    pub(super) fn push(&mut self, job: Job) {
        let adapter = job.adapter.as_ref();
        let adapter = adapter.map_or(0, |(blend, _)| blend.fingerprint());
        let chain = Chain::new(&self.base, adapter, &job.salt);
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

    pub(super) fn push_scoring(&mut self, job: ScoreJob) {
        self.scoring.push(job);
    }

    /// Whether there is anything to do, now or later.
    pub(super) fn has_work(&self) -> bool {
        !self.waiting.is_empty()
            || !self.running.is_empty()
            || !self.ending.is_empty()
            || !self.unwritten.is_empty()
            || self.embedding.has_work()
            || self.scoring.has_work()
    }

    /// One turn; false if nothing could be done at the moment.
    pub(super) fn turn(&mut self) -> bool {
        let start = Instant::now();
        self.sweep(start);
        self.admit();
        self.fork_followers();
        self.shift();
        let (indexes, parts) = self.plan();
        let mut worked = !indexes.is_empty();
        let mut end = start;
        if worked {
            let planned = self.stages.note(Stage::Build, start);
            self.step(&indexes, &parts);
            end = self.stages.note(Stage::Enqueue, planned);
        }
        let stepped = worked;
        self.take_out();
        // Who hears of a token can see it in the slots and the counters, too.
        self.show();
        self.send_events();
        let has_more =
            self.embedding.turn(&self.entry, &self.log) | self.scoring.turn(&self.entry, &self.log);
        if has_more {
            self.show();
        }
        worked |= has_more;
        worked |= self.write_behind(if indexes.is_empty() { 64 } else { 2 });
        if stepped {
            self.stages.note(Stage::Flush, end);
        }
        worked
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
        let left_out = self.left_out();
        let (mut indexes, mut prompts) = (Vec::new(), Vec::new());
        let mut n_positions = 0;
        for (i, running) in self.running.iter().enumerate() {
            if !running.can_step() || left_out.contains(&running.request.adapter_key()) {
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
        let mut parts = vec![1; indexes.len()];
        let (n_rows, n_positions) = self.draft(&indexes, n_positions, !readers.is_empty());
        let read = shares(self.pace, &self.costs, (n_rows, n_positions), &prompts);
        for (i, n) in readers.into_iter().zip(read).filter(|(_, n)| *n > 0) {
            indexes.push(i);
            parts.push(n);
        }
        self.make_room(&mut indexes, &mut parts);
        (indexes, parts)
    }

    /// Drafts what follows the texts at `indexes`, which are being written. Returns the rows that they take with
    /// that, and the positions those look back at.
    fn draft(&mut self, indexes: &[usize], n_positions: usize, is_read: bool) -> (usize, usize) {
        let n_writing = indexes.len();
        if n_writing == 0 || self.session.speculation().is_none() {
            return (n_writing, n_positions);
        }
        // Draft tokens may need a page of each text, and give it back at once.
        let state = self.session.state();
        let n_most = 1 + self
            .session
            .speculation()
            .map_or(0, |all| all.options().n_max);
        let slots = indexes.iter().map(|&i| self.running[i].sequence.slot());
        let needed: usize = slots.map(|slot| state.pages_needed(slot, n_most)).sum();
        self.ensure_free(needed + 1);
        let beside = if is_read { self.n_last_read } else { 0 };
        let mut wanted = indexes.iter().peekable();
        let mut sequences = Vec::with_capacity(n_writing);
        for (i, running) in self.running.iter_mut().enumerate() {
            if wanted.next_if(|next| **next == i).is_some() {
                sequences.push(&mut running.sequence);
            }
        }
        let n_draft = self.session.draft(&mut sequences, beside);
        if let Some(failure) = self
            .session
            .speculation_mut()
            .and_then(Speculation::failure)
        {
            (self.log)(&format!("drafts ended: {failure}"));
        }
        (
            n_writing + n_draft,
            n_positions + n_draft * (n_positions / n_writing),
        )
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
            speculates: false,
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
        let speculates = self.session.speculation().is_some();
        slots
            .iter_mut()
            .for_each(|slot| slot.speculates = speculates);
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
                + self.embedding.len()
                + self.scoring.len(),
            n_running: self.running.len(),
            kv_usage,
            cached_pages: self.cache.len(),
            cache_pages_max: self.cache.n_pages_max(),
        };
        if self.session.limits().adapter_rank > 0 {
            let running = self.running.iter().map(|running| &*running.request);
            let waiting = self.waiting.iter().map(|waiting| &*waiting.request);
            let metrics = &self.entry.metrics;
            metrics.adapters(adapters_of(running), adapters_of(waiting));
        }
        self.entry
            .metrics
            .gauges(view.n_running, view.n_waiting, view.kv_usage);
        self.entry.show(view);
    }
}

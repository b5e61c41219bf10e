//! Chooses the texts of the next step, and their numbers of tokens.

use super::entry::Entry;
use super::options::EngineOptions;
use super::pace::{Owner, Pace, Reading, WritingLoad, shares};
use super::pool::{Pool, n_pages};
use super::run::Run;
use super::running::{RunId, Running};
use super::share::{Share, parts};
use core::time::Duration;
use sluice::session::BatchStats;
use sluice_core::costs::Costs;
use sluice_core::state::Identity;
use sluice_core::state::PAGE_TOKENS;
use std::collections::HashMap;

/// A step: its texts, in the order in which they started.
#[derive(Debug)]
pub(super) struct Plan {
    rows: Vec<PlanRow>,
}

/// A text's part of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanRow {
    pub(super) run: RunId,
    /// Number of tokens that it reads.
    pub(super) n_tokens: usize,
}

/// The state for planning: the length of turns, and the measured costs of steps.
pub(super) struct Planner {
    pace: Pace,
    costs: Costs,
    /// Number of prompt tokens in the last step that read any.
    n_last_read: usize,
    /// Number of plans made.
    n_turns: u64,
    /// Maximum number of adapters in a step; 0 for no limit.
    max_adapters: usize,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn rows(&self) -> &[PlanRow] {
        &self.rows
    }

    /// Makes room for the step: drops the state of the last texts until the others fit.
    fn make_room(&mut self, running: &mut Running, pool: &mut Pool, entry: &Entry) {
        while let Some(needed) = self.n_pages_needed(running) {
            // One page more, so that no text ends because others have taken the last one.
            if pool.ensure_free(needed + 1) > needed {
                break;
            }
            // A single text may use all remaining pages.
            if running.n_in_memory() == 1 && pool.n_free_pages() >= needed {
                break;
            }
            let Some(victim) = running.victim(&running.places(), |_, _| true) else {
                break;
            };
            self.rows.retain(|row| row.run != victim);
            if let Some(run) = running.get_mut(victim) {
                run.park(pool, entry);
            }
        }
    }

    /// Maximum number of pages that the step may take; `None` if it is empty.
    fn n_pages_needed(&self, running: &mut Running) -> Option<usize> {
        let needed = self.rows.iter().map(|row| {
            running.get_mut(row.run).map_or(0, |run| {
                let len = run.text().n_read();
                // The last page may be shared, and then has to be copied first.
                let is_copied = !len.is_multiple_of(PAGE_TOKENS) && run.request().shift.is_some();
                n_pages(len + row.n_tokens) - n_pages(len) + usize::from(is_copied)
            })
        });
        (!self.rows.is_empty()).then(|| needed.sum())
    }
}

impl Planner {
    /// A planner for a model with steps of up to `n_batch` tokens; for `is_whole` see [`Pace`].
    pub(super) fn new(options: &EngineOptions, n_batch: usize, is_whole: bool) -> Self {
        Self {
            pace: Pace {
                turn: options.turn.as_secs_f64() * 1e9,
                share: options.prompt_share.clamp(0.0, 1.0),
                n_batch,
                is_whole,
            },
            costs: Costs::new(),
            n_last_read: 0,
            n_turns: 0,
            max_adapters: options.max_adapters,
        }
    }

    /// Plans a step, and makes room for it.
    pub(super) fn plan(&mut self, running: &mut Running, pool: &mut Pool, entry: &Entry) -> Plan {
        let left_out = self.left_out(running);
        let (mut rows, mut readers, mut prompts) = (Vec::new(), Vec::new(), Vec::new());
        let (mut n_positions, mut owners) = (0, Owners::default());
        for (id, run) in running.iter() {
            if !run.can_step() || left_out.contains(&run.request().adapter_key()) {
                continue;
            }
            let position = run.text().n_read();
            if run.is_writing() {
                owners.writes(run);
                rows.push(PlanRow {
                    run: id,
                    n_tokens: 1,
                });
                n_positions += position + 1;
                continue;
            }
            readers.push(id);
            prompts.push(Reading {
                owner: owners.of(run),
                rank: run.request().rank(),
                priority: run.request().priority,
                position,
                n_computed: run.n_computed(),
                wanted: wanted(run, pool),
            });
        }
        let n_beside = if readers.is_empty() {
            0
        } else {
            self.n_last_read
        };
        let n_draft = draft(&rows, n_beside, running, pool);
        let writing = WritingLoad {
            n_rows: rows.len() + n_draft,
            n_positions: n_positions + n_draft * (n_positions / rows.len().max(1)),
        };
        let read = shares(self.pace, &self.costs, writing, &prompts, &owners.done());
        let read = readers.into_iter().zip(read).filter(|(_, n)| *n > 0);
        rows.extend(read.map(|(run, n_tokens)| PlanRow { run, n_tokens }));
        rows.sort_unstable_by_key(|row| row.run);
        let mut plan = Plan { rows };
        plan.make_room(running, pool, entry);
        plan
    }

    /// The adapters to leave out of the next step. Those whose texts have waited for the most turns take precedence, so
    /// that each gets its turn; texts without an adapter always take part.
    fn left_out(&mut self, running: &mut Running) -> Vec<Option<Identity>> {
        self.n_turns += 1;
        if self.max_adapters == 0 {
            return Vec::new();
        }
        let mut oldest = HashMap::new();
        for run in running.runs().filter(|run| run.can_step()) {
            let since = (run.last_turn(), run.request().arrival);
            let known = oldest.entry(run.request().adapter_key()).or_insert(since);
            *known = since.min(*known);
        }
        oldest.remove(&None);
        let mut order: Vec<_> = oldest.into_iter().collect();
        order.sort_by_key(|(_, since)| *since);
        let left_out = order.split_off(self.max_adapters.min(order.len()));
        let left_out: Vec<_> = left_out.into_iter().map(|(key, _)| key).collect();
        for run in running.runs_mut() {
            if run.can_step() && !left_out.contains(&run.request().adapter_key()) {
                run.take_part(self.n_turns);
            }
        }
        left_out
    }

    /// Learns the cost of a step in which `n_writing` texts were being written. Returns the number of prompt tokens
    /// that it read.
    pub(super) fn note(&mut self, entered: &BatchStats, n_writing: usize, time: Duration) -> usize {
        let ns = time.as_secs_f64() * 1e9;
        self.costs.note(entered.n_tokens, entered.n_positions, ns);
        let n_read = entered.n_tokens.saturating_sub(n_writing + entered.n_draft);
        if n_read > 0 {
            self.n_last_read = n_read;
        }
        n_read
    }
}

/// The shares whose texts take part in a step.
#[derive(Default)]
struct Owners {
    shares: Vec<Share>,
    n_rows: Vec<usize>,
}

impl Owners {
    /// The index of a text's share.
    fn of(&mut self, run: &Run) -> usize {
        let share = &run.request().share;
        let known = self.shares.iter().position(|known| known == share);
        known.unwrap_or_else(|| {
            self.shares.push(share.clone());
            self.n_rows.push(0);
            self.shares.len() - 1
        })
    }

    /// Counts a text that is being written.
    fn writes(&mut self, run: &Run) {
        let owner = self.of(run);
        self.n_rows[owner] += 1;
    }

    fn done(self) -> Vec<Owner> {
        let both = parts(&self.shares).into_iter().zip(self.n_rows);
        both.map(|(part, n_rows)| Owner { part, n_rows }).collect()
    }
}

/// Drafts continuations for the texts of `rows` that are being written. Returns the number of draft tokens.
fn draft(rows: &[PlanRow], n_beside: usize, running: &mut Running, pool: &mut Pool) -> usize {
    if rows.is_empty() || pool.session().speculation().is_none() {
        return 0;
    }
    let mut sequences = running.sequences(rows.iter().map(|row| row.run));
    pool.draft(&mut sequences, n_beside)
}

/// The number of tokens that a prompt may read up to the next place where its state is to be saved.
fn wanted(run: &Run, pool: &Pool) -> usize {
    let n = run.n_readable();
    let next = pool.next_checkpoint(run.text());
    next.map_or(n, |next| n.min(next - run.text().n_read()))
        .max(1)
}

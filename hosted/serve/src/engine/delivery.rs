//! One step, and what came of it: tokens, progress, failures.

use super::job::{Event, JobError, Why};
use super::served::Served;
use crate::metrics::Step;
use core::time::Duration;
use sluice::experts::ExpertStore;
use sluice::sequence::Ended;
use sluice::session::{Entered, Event as Chosen, GenerateError, StepHooks};
use std::time::Instant;

impl Served {
    /// Runs a step over those texts, and tells what came of it.
    pub(super) fn step(&mut self, indexes: &[usize], parts: &[usize]) {
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
                sorted.iter().for_each(|&i| self.tell_progress(i));
                self.deliver(&sorted, events);
                let time = start.elapsed();
                self.note(&entered, n_writing, sorted.len(), time);
                if let Some(speculation) = self.session.speculation() {
                    self.entry.metrics.drafted(speculation.figures());
                }
                sorted.iter().for_each(|&i| self.keep_pages(i));
                self.tell_of_experts();
            }
            Err(error) => self.fail_all(&sorted, &error),
        }
    }

    fn note(&mut self, entered: &Entered, n_writing: usize, n_busy: usize, time: Duration) {
        let ns = time.as_secs_f64() * 1e9;
        self.costs.note(entered.n_tokens, entered.n_positions, ns);
        let n_read = entered.n_tokens.saturating_sub(n_writing + entered.n_draft);
        if n_read > 0 {
            self.n_last_read = n_read;
        }
        self.entry.metrics.step(Step {
            n_prompt_tokens: n_read,
            n_decode_tokens: n_writing + entered.n_accepted,
            n_busy,
            time,
        });
    }

    fn deliver(&mut self, stepped: &[usize], events: Vec<Chosen>) {
        for event in events {
            let running = &mut self.running[stepped[event.sequence]];
            let last = running.last_token;
            let is_first = running.first_token.is_none();
            let is_end = event.ended == Some(Ended::EndOfText);
            let tokenizer = self.session.model().tokenizer();
            let is_hidden = is_end && running.sequence.is_hidden_end(event.token, tokenizer);
            if is_first {
                running.timings.n_prompt = running.request.prompt.len() - running.timings.cached;
            }
            if is_hidden {
                running.request.send(Event::EndToken {
                    choice: running.choice,
                    token: event.token,
                    piece: event.piece,
                    report: event.report,
                });
            } else {
                running.tell((event.token, event.piece), event.report);
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

    /// Sends what happened. Where readers have not yet seen what was sent before, they wait for a CPU, and the
    /// scheduler might let them wait for milliseconds: it is offered this one.
    pub(super) fn send_events(&self) {
        let mut is_late = false;
        for running in &self.running {
            is_late |= running.request.is_reader_late();
            running.request.flush();
        }
        if is_late {
            std::thread::yield_now();
        }
    }

    fn tell_progress(&mut self, i: usize) {
        let running = &self.running[i];
        let (processed, total) = (
            running.sequence.tokens().len(),
            running.request.prompt.len(),
        );
        if running.request.tells_progress && running.first_token.is_none() {
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
        let step = match error {
            GenerateError::Step(step) => Some(step),
            _ => None,
        };
        let told = JobError::of_step(step, error);
        for &i in stepped {
            self.running[i].end = Some(Why::Failed(told.clone()));
        }
    }

    /// A step was well, but not all about its experts was: the trace cannot be written.
    fn tell_of_experts(&self) {
        let experts = self.session.model().experts();
        if let Some(error) = experts.and_then(ExpertStore::take_error) {
            (self.log)(&format!("warning: {error}"));
        }
    }
}

//! How texts end: by themselves, because nobody waits for them, or because the model goes.

use super::job::{Event, JobError, Timings, Why};
use super::running::{Request, Running};
use super::served::{Idle, Served};
use core::sync::atomic::Ordering;
use sluice::sequence::Ended;
use sluice::session::GenerateError;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

impl Served {
    /// Ends what nobody waits for any more, and what is late.
    pub(super) fn sweep(&mut self, now: Instant) {
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
                waiting.choices.iter().for_each(|_| entry.left(request));
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

    /// Takes out the texts that have ended.
    pub(super) fn take_out(&mut self) {
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
            // Who asks next brings the same adapter, or another.
            running.sequence.release_adapter();
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
        self.scoring.close(error);
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

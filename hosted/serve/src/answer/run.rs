//! A request's jobs at work.

use super::clock::Clock;
use super::stream::Written;
use super::{End, Piece, Progress, Reason, Shape, Total};
use crate::api::error::ApiError;
use crate::api::request::Asked;
use crate::engine::{Choice, Event, Job, JobError, Timings, Why};
use crate::http::sse::Stream;
use crate::models::Lease;
use crate::{Log, http};
use core::future::poll_fn;
use core::task::{Context, Poll};
use core::time::Duration;
use serde_json::Value;
use sluice::sequence::Choose;
use std::sync::Arc;
use std::time::Instant;
use std::vec;
use tokio::sync::mpsc;

/// A prompt that is ready, with a sampler for each choice.
pub(crate) struct Prompted {
    pub(crate) tokens: Vec<u32>,
    pub(crate) borders: Vec<usize>,
    pub(crate) samplers: Vec<Box<dyn Choose + Send>>,
    /// Control tokens are part of the answer.
    pub(crate) shows_special: bool,
}

/// The jobs of a request, and how its reply is written.
pub(crate) struct Run<S> {
    shape: S,
    jobs: Vec<Running>,
    /// Choices of each job.
    n: usize,
    /// The job that is asked first for its next event.
    turn: usize,
    total: Total,
    n_ended: usize,
    timings_per_token: bool,
    arrived: Instant,
    request: Arc<str>,
    log: Log,
    /// The model stays in memory.
    _lease: Lease,
}

struct Running {
    events: Option<mpsc::Receiver<Vec<Event>>>,
    /// Those that came with the last one.
    held: vec::IntoIter<Event>,
    n_prompt: usize,
    slot: u32,
    clocks: Vec<Clock>,
}

impl<S: Shape> Run<S> {
    /// Hands the prompts to the engine. If one is refused, all are.
    pub(crate) fn submit(
        lease: Lease,
        asked: &Asked,
        prompts: Vec<Prompted>,
        context: &http::Context,
        shape: S,
    ) -> Result<Self, ApiError> {
        let mut jobs = Vec::with_capacity(prompts.len());
        let mut total = Total::default();
        for prompt in prompts {
            let (sender, receiver) = mpsc::channel(EVENTS);
            let n_prompt = prompt.tokens.len();
            let n = prompt.samplers.len();
            total.usage.n_prompt += n_prompt;
            context
                .app
                .models()
                .engine()
                .submit(job(&lease, asked, prompt, context, sender))?;
            lease.metrics().asked(n, asked.n_predict);
            jobs.push(Running {
                events: Some(receiver),
                held: Vec::new().into_iter(),
                n_prompt,
                slot: 0,
                clocks: vec![Clock::new(context.arrived, n_prompt); n],
            });
        }
        Ok(Self {
            shape,
            jobs,
            n: asked.n,
            turn: 0,
            total,
            n_ended: 0,
            timings_per_token: asked.timings_per_token,
            arrived: context.arrived,
            request: context.request.clone(),
            log: context.app.log().clone(),
            _lease: lease,
        })
    }

    /// The reply, when all choices have ended.
    pub(crate) async fn whole(mut self) -> Result<Value, ApiError> {
        while let Some((job, event)) = poll_fn(|context| self.poll_event(context)).await {
            self.take(job, event)?;
        }
        self.check_complete()?;
        self.tell("done");
        Ok(self.shape.whole(&self.total))
    }

    /// The reply as it comes. When nobody reads it any more, the jobs end.
    pub(crate) fn stream(self, ping: Duration) -> Stream<Written<S>> {
        Stream::new(Written::new(self), ping)
    }

    /// The next event of any job; `None` when all have ended.
    pub(super) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Event)>> {
        let mut is_open = false;
        for i in 0..self.jobs.len() {
            let job = (self.turn + i) % self.jobs.len();
            let running = &mut self.jobs[job];
            while let Some(events) = &mut running.events {
                if let Some(event) = running.held.next() {
                    self.turn = job + 1;
                    return Poll::Ready(Some((job, event)));
                }
                match events.poll_recv(context) {
                    Poll::Ready(Some(events)) => running.held = events.into_iter(),
                    Poll::Ready(None) => running.events = None,
                    Poll::Pending => {
                        is_open = true;
                        break;
                    }
                }
            }
        }
        if is_open {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    }

    pub(super) fn take(&mut self, job: usize, event: Event) -> Result<Vec<Value>, ApiError> {
        let first = job * self.n;
        let running = &mut self.jobs[job];
        match event {
            Event::Started { cached, slot } => {
                running.slot = slot;
                running
                    .clocks
                    .iter_mut()
                    .for_each(|clock| clock.start(cached));
                self.total.usage.n_cached += cached;
                Ok(Vec::new())
            }
            Event::Progress {
                total,
                cached,
                processed,
                time,
            } => {
                let progress = Progress {
                    total,
                    cached,
                    processed,
                    time,
                };
                Ok(self.shape.progress(first, &progress))
            }
            Event::Token {
                choice,
                token,
                piece,
                report,
            } => {
                let clock = &mut running.clocks[choice];
                clock.token();
                self.total.usage.n_predicted += 1;
                let piece = Piece {
                    token,
                    text: &piece,
                    report: report.as_ref(),
                    timings: self.timings_per_token.then(|| clock.timings()),
                };
                Ok(self.shape.piece(first + choice, &piece))
            }
            Event::EndToken {
                choice,
                token,
                piece,
                report,
            } => {
                let end = Piece {
                    token,
                    text: &piece,
                    report: report.as_ref(),
                    timings: None,
                };
                Ok(self.shape.end_token(first + choice, &end))
            }
            Event::Ended {
                choice,
                why,
                timings,
            } => self.ended(job, choice, (why, timings)),
        }
    }

    fn ended(
        &mut self,
        job: usize,
        choice: usize,
        (why, timings): (Why, Timings),
    ) -> Result<Vec<Value>, ApiError> {
        let running = &self.jobs[job];
        let reason = Reason::of(&why).ok_or_else(|| failed(why))?;
        if reason == Reason::Late && running.clocks[choice].n_predicted() == 0 {
            return Err(ApiError::late());
        }
        let end = End {
            reason,
            timings,
            slot: running.slot,
            n_prompt: running.n_prompt,
        };
        self.n_ended += 1;
        self.total.timings = timings;
        Ok(self.shape.ended(job * self.n + choice, &end))
    }

    /// The chunks behind the last event.
    pub(super) fn finish(&mut self) -> Result<Vec<Value>, ApiError> {
        self.check_complete()?;
        Ok(self.shape.last(&self.total))
    }

    pub(super) fn says_done(&self) -> bool {
        self.shape.says_done()
    }

    fn check_complete(&self) -> Result<(), ApiError> {
        let n: usize = self.jobs.iter().map(|job| job.clocks.len()).sum();
        if self.n_ended == n {
            return Ok(());
        }
        Err(ApiError::from(JobError::Gone))
    }

    /// One line of the log. What was asked and answered is not in it.
    pub(super) fn tell(&self, end: &str) {
        let usage = self.total.usage;
        (self.log)(&format!(
            "{} {end}: prompt {} ({} cached), answer {}, {:.1} ms",
            self.request,
            usage.n_prompt,
            usage.n_cached,
            usage.n_predicted,
            self.arrived.elapsed().as_secs_f64() * 1e3,
        ));
    }
}

fn job(
    lease: &Lease,
    asked: &Asked,
    prompt: Prompted,
    context: &http::Context,
    events: mpsc::Sender<Vec<Event>>,
) -> Job {
    let choice = |(number, sampler): (u32, Box<dyn Choose + Send>)| Choice {
        number,
        sampler,
        n_predict: asked.n_predict,
        ignore_eos: asked.settings.ignore_eos,
        stops: asked.stops.clone(),
        shows_special: prompt.shows_special,
    };
    Job {
        request: context.request.clone(),
        model: lease.id(),
        prompt: prompt.tokens,
        choices: (0..).zip(prompt.samplers).map(choice).collect(),
        priority: asked.priority,
        arrived: context.arrived,
        deadline: asked.deadline,
        predict_for: asked.predict_for,
        uses_cache: asked.uses_cache,
        salt: asked.salt.clone(),
        shift: asked.shift,
        borders: prompt.borders,
        tells_progress: asked.returns_progress,
        slot: asked.slot,
        adapter: lease.blend().cloned().zip(lease.adapter_name().cloned()),
        gathers: !asked.stream,
        events,
    }
}

fn failed(why: Why) -> ApiError {
    match why {
        Why::Failed(error) => error.into(),
        _ => JobError::Gone.into(),
    }
}

/// Times that something may wait for a client; beyond them its job stands still.
const EVENTS: usize = 64;

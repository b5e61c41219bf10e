//! The texts of a request while they are being generated.

use super::app::Context;
use super::clock::Clock;
use super::running::{Running, Text};
use super::sampler::Terms;
use super::streams::{Keep, StreamPlace};
use crate::Log;
use crate::api::{AnswerEvent, ApiError, PromptProgress, Start, Total};
use crate::chat::answer::Answer;
use crate::engine::{Choice, Event, Job, JobError, Score, Stops, Timings};
use crate::keys::Admitted;
use crate::models::ModelUse;
use core::fmt;
use core::task::{Context as Waiting, Poll, ready};
use sluice::sequence::Choose;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// A prompt that is ready, with a sampler for each of its texts.
pub(super) struct ReadyPrompt {
    pub(super) tokens: Vec<u32>,
    pub(super) borders: Vec<usize>,
    pub(super) samplers: Vec<Box<dyn Choose + Send>>,
    /// Parse the answers of a chat.
    pub(super) parsers: Vec<Answer>,
}

/// Tokens of a prompt, with a score for all but the first.
pub(super) struct ScoredPrompt {
    pub(super) tokens: Vec<u32>,
    pub(super) scores: Vec<Score>,
}

/// The texts of a request as a sequence of events, until all texts have ended. Dropping it cancels the request.
pub(crate) struct TextAnswer {
    start: Start,
    jobs: Vec<Running>,
    /// The number of texts of each job.
    n: usize,
    /// The job to poll first for the next event.
    turn: usize,
    /// Events to return before any event of the jobs.
    first: VecDeque<AnswerEvent>,
    total: Total,
    n_ended: usize,
    is_over: bool,
    times_pieces: bool,
    /// What was used for it by requests before this one.
    spent: Timings,
    arrived: Instant,
    request: Arc<str>,
    log: Log,
    _use: ModelUse,
    _place: Option<StreamPlace>,
}

impl TextAnswer {
    /// Submits the prompts to the engine. If one is refused, all are.
    pub(super) fn submit(
        in_use: ModelUse,
        start: Start,
        terms: &Terms,
        prompts: Vec<ReadyPrompt>,
        context: &Context,
        admitted: Option<Arc<Admitted>>,
        mut keep: Option<Keep>,
    ) -> Result<Self, ApiError> {
        let record = keep
            .as_mut()
            .map(|keep| core::mem::take(&mut keep.part.record));
        let record = record.unwrap_or_default();
        let mut jobs = Vec::with_capacity(prompts.len());
        let mut total = Total::default();
        for mut prompt in prompts {
            let (sender, receiver) = mpsc::channel(EVENTS);
            let n_prompt = prompt.tokens.len();
            let n = prompt.samplers.len();
            total.usage.n_prompt += n_prompt;
            let mut parsers = core::mem::take(&mut prompt.parsers).into_iter();
            let engine = context.app.models().engine();
            let mut job = job(&in_use, terms, prompt, context, sender);
            if let Some(keep) = &mut keep {
                let unfinished = keep.part.unfinished.take();
                if let Some(text) = &unfinished {
                    job.prompt = text.tokens().to_vec();
                    job.tells_progress = false;
                }
                job.keeper = Some(keep.text.keeper(unfinished));
            }
            let meter = admitted.clone().map(|admitted| admitted as _);
            let is_over = record.is_ended();
            if !is_over {
                engine.submit(Job { meter, ..job })?;
                in_use.metrics().asked(n, terms.generation.max_tokens);
            }
            let text = |_| Text {
                clock: Clock::new(context.arrived, n_prompt),
                parser: parsers.next(),
            };
            jobs.push(Running {
                events: Some(receiver),
                held: record.events().into_iter(),
                n_prompt,
                slot: 0,
                is_started: false,
                texts: (0..n).map(text).collect(),
            });
        }
        Ok(Self {
            start,
            jobs,
            n: terms.generation.n,
            turn: 0,
            first: VecDeque::new(),
            total,
            n_ended: 0,
            is_over: false,
            times_pieces: terms.generation.times_pieces,
            spent: *record.spent(),
            arrived: context.arrived,
            request: context.request.clone(),
            log: context.app.log().clone(),
            _use: in_use,
            _place: keep.map(|keep| keep.place),
        })
    }

    /// Queues the scores of each prompt ahead of all other events, once for each of its texts.
    pub(super) fn add_scores(&mut self, prompts: &[ScoredPrompt]) {
        for (i, prompt) in prompts.iter().enumerate() {
            let scored = (i * self.n..(i + 1) * self.n).map(|at| AnswerEvent::Scores {
                at,
                tokens: prompt.tokens.clone(),
                scores: prompt.scores.clone(),
            });
            self.first.extend(scored);
        }
    }

    /// The next event of any text; `None` when all have ended. Must not be called again after that, or after an error.
    ///
    /// # Errors
    /// A text failed. The others are cancelled.
    pub(crate) fn poll_next(
        &mut self,
        context: &mut Waiting<'_>,
    ) -> Poll<Option<Result<AnswerEvent, ApiError>>> {
        if let Some(event) = self.first.pop_front() {
            return Poll::Ready(Some(Ok(event)));
        }
        loop {
            let next = match ready!(self.poll_event(context)) {
                Some((job, event)) => self.taken(job, event).transpose(),
                None => {
                    let complete = self.check_complete();
                    self.end(if complete.is_ok() { "done" } else { "failed" });
                    return Poll::Ready(complete.err().map(Err));
                }
            };
            match next {
                None => {}
                Some(Ok(event)) => return Poll::Ready(Some(Ok(event))),
                Some(Err(error)) => {
                    self.end("failed");
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    /// Details known when the request started.
    pub(crate) const fn start(&self) -> &Start {
        &self.start
    }

    /// The resources used so far.
    pub(crate) const fn total(&self) -> &Total {
        &self.total
    }

    /// The next event of any job; `None` when all have ended.
    fn poll_event(&mut self, context: &mut Waiting<'_>) -> Poll<Option<(usize, Event)>> {
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

    /// Translates a job's event; `None` if it has nothing for the client.
    fn taken(&mut self, job: usize, event: Event) -> Result<Option<AnswerEvent>, ApiError> {
        let first = job * self.n;
        let running = &mut self.jobs[job];
        Ok(Some(match event {
            Event::Started {
                cached,
                slot,
                queued,
            } => {
                self.total.usage.n_cached += running.start(cached, slot, queued);
                return Ok(None);
            }
            Event::Moved { slot } => {
                running.slot = slot;
                return Ok(None);
            }
            Event::Progress {
                total,
                cached,
                processed,
                time,
            } => AnswerEvent::Progress {
                at: first,
                progress: PromptProgress {
                    total,
                    cached,
                    processed,
                    time,
                },
            },
            Event::Token {
                choice,
                token,
                piece,
                report,
            } => {
                self.total.usage.n_predicted += 1;
                let (at, text) = (first + choice, &mut running.texts[choice]);
                let piece = text.next(token, piece, report, self.times_pieces);
                AnswerEvent::Piece { at, piece }
            }
            Event::ReadAgain { choice, n_tokens } => {
                running.texts[choice].clock.read_again(n_tokens);
                return Ok(None);
            }
            Event::EndToken {
                choice,
                token,
                piece,
                report,
            } => AnswerEvent::EndToken {
                at: first + choice,
                piece: running.texts[choice].piece(token, piece, report),
            },
            Event::Ended {
                choice,
                why,
                timings,
            } => {
                let timings = self.spent.plus(&timings);
                let end = running.end(choice, why, timings)?;
                self.n_ended += 1;
                self.total.timings = timings;
                AnswerEvent::End {
                    at: first + choice,
                    end,
                }
            }
        }))
    }

    fn check_complete(&self) -> Result<(), ApiError> {
        let n: usize = self.jobs.iter().map(|job| job.texts.len()).sum();
        if self.n_ended == n {
            return Ok(());
        }
        Err(ApiError::from(JobError::Gone))
    }

    /// Logs how the request ended. The log contains neither the prompt nor the answer.
    fn end(&mut self, word: &str) {
        if core::mem::replace(&mut self.is_over, true) {
            return;
        }
        let usage = self.total.usage;
        (self.log)(&format!(
            "{} {word}: prompt {} ({} cached), answer {}, {:.1} ms",
            self.request,
            usage.n_prompt,
            usage.n_cached,
            usage.n_predicted,
            self.arrived.elapsed().as_secs_f64() * 1e3,
        ));
    }
}

impl Drop for TextAnswer {
    fn drop(&mut self) {
        self.end("left");
    }
}

impl fmt::Debug for TextAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextAnswer")
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

fn job(
    in_use: &ModelUse,
    terms: &Terms,
    prompt: ReadyPrompt,
    context: &Context,
    events: mpsc::Sender<Vec<Event>>,
) -> Job {
    let generation = &terms.generation;
    let choice = |(number, sampler): (u32, Box<dyn Choose + Send>)| Choice {
        number,
        sampler,
        n_predict: generation.max_tokens,
        ignore_eos: generation.sampling.ignore_eos,
        stops: Stops {
            texts: generation.stop.clone(),
            tokens: generation.stop_tokens.clone(),
            are_shown: generation.shows_stop,
            n_min: generation.min_tokens,
        },
        shows_special: generation.shows_special,
    };
    Job {
        request: context.request.clone(),
        model: in_use.id(),
        prompt: prompt.tokens,
        choices: (0..).zip(prompt.samplers).map(choice).collect(),
        share: context.share.clone(),
        priority: generation.priority,
        arrived: context.arrived,
        deadline: terms.deadline,
        predict_for: generation.predict_for,
        uses_cache: generation.uses_cache,
        domain: context.domain(&generation.cache_salt),
        meter: None,
        shift: terms.shift,
        borders: prompt.borders,
        tells_progress: generation.reports_progress,
        slot: generation.slot,
        adapter: in_use.blend().cloned().zip(in_use.adapter_name().cloned()),
        gathers: !generation.streams,
        keeper: None,
        events,
    }
}

/// Maximum number of event batches that wait for a client; at the limit its job pauses.
const EVENTS: usize = 64;

//! A request on the engine's thread: the data that its choices share, and the outlet of its events.

use super::domain::CacheDomain;
use super::job::{Choice, Event, Job, TextKeeper, Timings, Why};
use super::meter::TokenMeter;
use super::share::Share;
use crate::metrics::EndFigures;
use core::cell::RefCell;
use core::time::Duration;
use sluice::Sequence;
use sluice::adapter::AdapterBlend;
use sluice::sequence::{Settings, UnfinishedText};
use sluice_core::state::Identity;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// The outlet of a request's events. The engine never waits for a reader: events that do not fit into the channel are
/// kept here. When these are many, the request is stalled: its texts are parked until the reader has taken half.
#[derive(Debug)]
struct Outlet {
    events: mpsc::Sender<Vec<Event>>,
    held: VecDeque<Event>,
    /// Approximate size of the held events in bytes.
    n_held: usize,
    /// Maximum size before its texts are parked.
    n_held_max: usize,
    is_stalled: bool,
    /// Whether events may be held back even if the channel has room.
    gathers: bool,
    /// Whether the held-back events have to be sent.
    is_due: bool,
}

/// The data that all choices of a request share.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: Arc<str>,
    /// Number in the order of arrival.
    pub(super) arrival: u64,
    pub(super) share: Share,
    pub(super) priority: i32,
    pub(super) arrived: Instant,
    deadline: Option<Instant>,
    predict_for: Option<Duration>,
    pub(super) uses_cache: bool,
    pub(super) domain: CacheDomain,
    pub(super) meter: Option<Arc<dyn TokenMeter>>,
    pub(super) shift: Option<usize>,
    pub(super) borders: Vec<usize>,
    pub(super) tells_progress: bool,
    adapter: Option<(AdapterBlend, Arc<str>)>,
    pub(super) prompt: Vec<u32>,
    keeper: Option<Box<dyn TextKeeper>>,
    outlet: RefCell<Outlet>,
}

/// A choice that has not started.
#[derive(Debug)]
pub(super) struct PendingChoice {
    /// Its index in [`Job::choices`].
    pub(super) index: usize,
    pub(super) choice: Choice,
}

/// The order in which requests of a share are served: lower ranks come first. A step of priority is worth a second of
/// waiting, so that every request's turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    due: Instant,
    arrival: u64,
}

impl Rank {
    pub(super) fn new(arrived: Instant, priority: i32, arrival: u64) -> Self {
        let steps = i64::from(priority) - i64::from(i32::MIN);
        let later = Duration::from_secs(steps.unsigned_abs());
        Self {
            due: arrived.checked_add(later).unwrap_or(arrived),
            arrival,
        }
    }
}

impl Request {
    /// Splits a job into shared data and choices. Up to `n_held_max` bytes are held for a reader that does not read.
    pub(super) fn new(
        job: Job,
        arrival: u64,
        n_held_max: usize,
    ) -> (Rc<Self>, VecDeque<PendingChoice>) {
        let request = Self {
            id: job.request,
            arrival,
            share: job.share,
            priority: job.priority,
            arrived: job.arrived,
            deadline: job.deadline,
            predict_for: job.predict_for,
            uses_cache: job.uses_cache,
            domain: job.domain,
            meter: job.meter,
            shift: job.shift,
            borders: job.borders,
            tells_progress: job.tells_progress,
            adapter: job.adapter,
            prompt: job.prompt,
            keeper: job.keeper,
            outlet: RefCell::new(Outlet {
                events: job.events,
                held: VecDeque::new(),
                n_held: 0,
                n_held_max,
                is_stalled: false,
                gathers: job.gathers,
                is_due: false,
            }),
        };
        let choices = job.choices.into_iter().enumerate();
        let choices = choices.map(|(index, choice)| PendingChoice { index, choice });
        (Rc::new(request), choices.collect())
    }

    /// Queues an event to be sent with the others of its turn; the end of a choice is sent at once.
    pub(super) fn send(&self, event: Event) {
        if let Some(keeper) = &self.keeper {
            keeper.record(&event);
        }
        let mut outlet = self.outlet.borrow_mut();
        let is_end = matches!(event, Event::Ended { .. });
        outlet.n_held += event.n_bytes();
        outlet.held.push_back(event);
        outlet.is_due |= !outlet.gathers || is_end || outlet.held.len() >= GATHERED;
        if is_end {
            outlet.flush();
        }
    }

    /// Ends a choice that has not started.
    pub(super) fn end(&self, choice: usize, why: Why) {
        self.send(Event::Ended {
            choice,
            why,
            timings: Timings::default(),
        });
    }

    /// Whether its texts have to wait for the reader.
    pub(super) fn is_stalled(&self) -> bool {
        self.outlet.borrow().is_stalled
    }

    /// Sends the events that are due; false if some do not fit yet.
    pub(super) fn flush(&self) -> bool {
        self.outlet.borrow_mut().flush()
    }

    /// Whether there are events to send while the reader has not taken all earlier ones. A reader that has let the
    /// channel fill up does not count.
    pub(super) fn is_reader_late(&self) -> bool {
        let outlet = self.outlet.borrow();
        outlet.is_due && (1..outlet.events.max_capacity()).contains(&outlet.events.capacity())
    }

    /// Whether the receiver of its events was dropped, or its stream was taken up by another request.
    pub(super) fn is_closed(&self) -> bool {
        let is_left = self.keeper.as_ref().is_some_and(|keeper| keeper.is_left());
        is_left || self.outlet.borrow().events.is_closed()
    }

    /// What continues a text that was broken off, if that is what it is.
    pub(super) fn take_unfinished(&self) -> Option<UnfinishedText> {
        self.keeper.as_ref()?.take_unfinished()
    }

    /// Keeps what continues the text of `sequence`, whose client has disconnected.
    pub(super) fn keep_unfinished(&self, sequence: &mut Sequence) {
        if let Some(keeper) = &self.keeper {
            keeper.keep_unfinished(sequence.take_unfinished());
        }
    }

    /// Whether its deadline has passed, or whether its text with the first token at `first_token` has reached its
    /// maximum time.
    pub(super) fn is_late(&self, now: Instant, first_token: Option<Instant>) -> bool {
        let since = first_token.map(|first| now - first);
        let over = since.zip(self.predict_for);
        self.deadline.is_some_and(|deadline| now >= deadline)
            || over.is_some_and(|(since, limit)| since >= limit)
    }

    /// Identity of its adapters, if it has any: texts with different ones share no state.
    pub(super) fn adapter_key(&self) -> Option<Identity> {
        self.adapter.as_ref().map(|(blend, _)| blend.identity())
    }

    /// The name of its adapters.
    pub(super) fn adapter_name(&self) -> Option<&Arc<str>> {
        self.adapter.as_ref().map(|(_, name)| name)
    }

    /// The prompt without its last token: the part that can be cached.
    pub(super) fn head(&self) -> &[u32] {
        &self.prompt[..self.prompt.len() - 1]
    }

    pub(super) fn rank(&self) -> Rank {
        Rank::new(self.arrived, self.priority, self.arrival)
    }

    /// The settings for the sequence of one of its choices.
    pub(super) fn settings(&self, choice: &Choice) -> Settings {
        Settings {
            number: choice.number,
            n_predict: choice.n_predict,
            ignore_eos: choice.ignore_eos,
            shifts: self.shift.is_some(),
            stops: choice.stops.texts.clone(),
            stop_tokens: choice.stops.tokens.clone(),
            shows_stops: choice.stops.are_shown,
            n_unstopped: choice.stops.n_min,
            adapter: self.adapter.as_ref().map(|(blend, _)| blend.clone()),
            domain: self.domain.number(),
            ..Settings::default()
        }
    }

    /// The figures of a choice that ended before it started, because of a disconnect or a deadline.
    pub(super) fn abandoned(&self) -> EndFigures {
        EndFigures {
            reason: "abort",
            e2e: self.arrived.elapsed(),
            inference: Duration::ZERO,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
            n_prompt: self.prompt.len(),
            n_predicted: 0,
        }
    }
}

impl Outlet {
    fn flush(&mut self) -> bool {
        while self.is_due
            && let Ok(room) = self.events.try_reserve()
        {
            let n = self.held.len().min(BATCH);
            let batch: Vec<Event> = self.held.drain(..n).collect();
            self.n_held -= batch.iter().map(Event::n_bytes).sum::<usize>();
            room.send(batch);
            self.is_due = !self.held.is_empty();
        }
        let limit = if self.is_stalled {
            self.n_held_max / 2
        } else {
            self.n_held_max
        };
        self.is_stalled = self.n_held > limit;
        !self.is_due
    }
}

/// Number of events sent at once for an answer that is read as a whole, because waking a reader takes time on both
/// threads.
const GATHERED: usize = 32;
/// Maximum number of events that a full channel's reader gets at once.
const BATCH: usize = 64;

//! Requests on the engine's side: waiting, running, and how they tell what happens.

use super::job::{Choice, Event, Timings, Why};
use super::prefix::Chain;
use core::cell::RefCell;
use core::time::Duration;
use sluice::Sequence;
use sluice::adapter::Blend;
use sluice::sequence::{Settings, TokenReport};
use sluice_core::hash::Hash64;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// The way out of a request's events. The engine never waits for a reader: what does not fit stays here, and its
/// texts are not stepped until it is gone.
#[derive(Debug)]
struct Post {
    events: mpsc::Sender<Vec<Event>>,
    held: Vec<Event>,
    /// Whether events may be held back although they would fit, and whether those that are held no longer may.
    gathers: bool,
    is_due: bool,
}

/// What all choices of a request share.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: Arc<str>,
    /// Number in the order of arrival.
    pub(super) arrival: u64,
    pub(super) priority: i32,
    pub(super) arrived: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) predict_for: Option<Duration>,
    pub(super) uses_cache: bool,
    pub(super) salt: Arc<str>,
    pub(super) shift: Option<usize>,
    pub(super) borders: Vec<usize>,
    pub(super) tells_progress: bool,
    pub(super) slot: Option<u32>,
    pub(super) adapter: Option<(Blend, Arc<str>)>,
    pub(super) prompt: Vec<u32>,
    post: RefCell<Post>,
}

impl Request {
    pub(super) fn new(job: super::Job, arrival: u64) -> (Rc<Self>, VecDeque<(usize, Choice)>) {
        let request = Self {
            id: job.request,
            arrival,
            priority: job.priority,
            arrived: job.arrived,
            deadline: job.deadline,
            predict_for: job.predict_for,
            uses_cache: job.uses_cache,
            salt: job.salt,
            shift: job.shift,
            borders: job.borders,
            tells_progress: job.tells_progress,
            slot: job.slot,
            adapter: job.adapter,
            prompt: job.prompt,
            post: RefCell::new(Post {
                events: job.events,
                held: Vec::new(),
                gathers: job.gathers,
                is_due: false,
            }),
        };
        (
            Rc::new(request),
            job.choices.into_iter().enumerate().collect(),
        )
    }

    /// Tells an event with the others of its turn; the end of a choice at once.
    pub(super) fn send(&self, event: Event) {
        let mut post = self.post.borrow_mut();
        let is_end = matches!(event, Event::Ended { .. });
        post.held.push(event);
        post.is_due |= !post.gathers || is_end || post.held.len() >= GATHERED;
        if is_end {
            post.flush();
        }
    }

    /// Sends what is due; whether nothing of it is left.
    pub(super) fn flush(&self) -> bool {
        self.post.borrow_mut().flush()
    }

    /// Whether there is something to send while its reader has not seen all that was sent before. One that does not
    /// read at all, until there is no more room, does not count.
    pub(super) fn is_reader_late(&self) -> bool {
        let post = self.post.borrow();
        post.is_due && (1..post.events.max_capacity()).contains(&post.events.capacity())
    }

    /// Whether nobody listens any more.
    pub(super) fn is_closed(&self) -> bool {
        self.post.borrow().events.is_closed()
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// What tells texts apart that share no state: adapters. 0 for the model alone.
    pub(super) fn adapter_key(&self) -> u64 {
        let blend = self.adapter.as_ref();
        blend.map_or(0, |(blend, _)| blend.fingerprint())
    }

    /// What comes first.
    pub(super) fn rank(&self) -> (i32, u64) {
        (self.priority, self.arrival)
    }
}

impl Post {
    fn flush(&mut self) -> bool {
        if !self.is_due {
            return true;
        }
        let held = core::mem::take(&mut self.held);
        if let Err(mpsc::error::TrySendError::Full(held)) = self.events.try_send(held) {
            self.held = held;
            return false;
        }
        self.is_due = false;
        true
    }
}

/// Waking a reader costs time of both threads: events of an answer that is read as a whole have it once in so many.
const GATHERED: usize = 32;

/// Choices that wait for a sequence: the first reads the prompt, the others go on from it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Rc<Request>,
    pub(super) choices: VecDeque<(usize, Choice)>,
    pub(super) fetch: Fetch,
    pub(super) chain: Chain,
}

/// Whether pages were looked for on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    Not,
    Asked,
    Done,
}

/// A choice that is being read or written.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) request: Rc<Request>,
    /// Index of the choice.
    pub(super) choice: usize,
    pub(super) sequence: Sequence,
    pub(super) chain: Chain,
    /// Pages of it that were offered to the prefix cache.
    pub(super) n_kept: usize,
    /// Choices that go on from the end of its prompt.
    pub(super) followers: VecDeque<(usize, Choice)>,
    /// Its state was dropped to make room: all of its text is to be read again.
    pub(super) is_parked: bool,
    /// The state of a text that cannot be read again, because it was shifted.
    pub(super) saved: Option<(Vec<u32>, Vec<u8>)>,
    pub(super) began: Instant,
    pub(super) first_token: Option<Instant>,
    pub(super) last_token: Instant,
    pub(super) timings: Timings,
    /// The last step that it could take part in.
    pub(super) last_turn: u64,
    /// Why it ends.
    pub(super) end: Option<Why>,
}

impl Running {
    pub(super) fn new(
        request: Rc<Request>,
        choice: usize,
        sequence: Sequence,
        chain: Chain,
        followers: VecDeque<(usize, Choice)>,
    ) -> Self {
        let now = Instant::now();
        let timings = Timings {
            queued: now - request.arrived,
            ..Timings::default()
        };
        Self {
            request,
            choice,
            sequence,
            chain,
            n_kept: 0,
            followers,
            is_parked: false,
            saved: None,
            began: now,
            first_token: None,
            last_token: now,
            timings,
            end: None,
            last_turn: 0,
        }
    }

    /// Whether it can take part in a step: it is in memory, and its reader keeps up.
    pub(super) fn can_step(&self) -> bool {
        !self.is_parked && !self.sequence.queue().is_empty() && self.request.flush()
    }

    /// Whether it writes: one token is to be read and the next to be chosen.
    pub(super) fn is_writing(&self) -> bool {
        self.sequence.queue().len() == 1 && self.followers.is_empty()
    }

    /// Tokens of it when all that is queued was read.
    pub(super) fn n_tokens(&self) -> usize {
        self.sequence.tokens().len() + self.sequence.queue().len()
    }

    /// Whether its time is over.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        let since = self.first_token.map(|first| now - first);
        let over = since.zip(self.request.predict_for);
        self.request.is_late(now) || over.is_some_and(|(since, limit)| since >= limit)
    }

    /// Tells a token.
    pub(super) fn tell(&mut self, (token, piece): (u32, String), report: Option<TokenReport>) {
        let now = Instant::now();
        if self.first_token.is_none() {
            self.first_token = Some(now);
            self.timings.prompt = now - self.began;
        }
        self.timings.n_predicted += 1;
        (self.timings.n_drafted, self.timings.n_accepted) = self.sequence.drafts();
        self.timings.predict = self.first_token.map_or(Duration::ZERO, |first| now - first);
        self.last_token = now;
        self.request.send(Event::Token {
            choice: self.choice,
            token,
            piece,
            report,
        });
    }
}

/// How a choice's sequence is made.
pub(super) fn settings(choice: &Choice, request: &Request) -> Settings {
    Settings {
        number: choice.number,
        n_predict: choice.n_predict,
        ignore_eos: choice.ignore_eos,
        shifts: request.shift.is_some(),
        stops: choice.stops.texts.clone(),
        stop_tokens: choice.stops.tokens.clone(),
        shows_stops: choice.stops.are_shown,
        n_unstopped: choice.stops.n_min,
        adapter: request.adapter.as_ref().map(|(blend, _)| blend.clone()),
        domain: domain(&request.salt),
        ..Settings::default()
    }
}

/// Texts of a salt learn from each other what follows what, and from no others.
fn domain(salt: &str) -> u64 {
    let mut hash = Hash64::new();
    hash.write(salt.as_bytes());
    hash.finish()
}

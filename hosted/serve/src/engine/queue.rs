//! Waiting work: texts without a sequence, in order for each share, and tasks.

use super::entry::Entry;
use super::job::{Job, JobError, Why};
use super::pool::Chain;
use super::request::{PendingChoice, Request};
use super::share::{Ledger, Places, Share};
use super::tasks::{Task, TaskKind};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// The work of a model that has not started, or that continues later.
pub(super) struct Queue {
    lanes: Vec<Lane>,
    /// In order of arrival within each kind.
    tasks: VecDeque<Task>,
    /// A task of each kind that holds its session: its kind's next step is its own.
    holding: Vec<Task>,
    n_arrived: u64,
    reader_buffer: usize,
    entry: Arc<Entry>,
}

/// The waiting texts of a share, sorted by rank.
struct Lane {
    share: Share,
    texts: Vec<Waiting>,
}

/// Choices that wait for a sequence: the first one reads the prompt, the others continue from it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Rc<Request>,
    pub(super) choices: VecDeque<PendingChoice>,
    /// The slot that the first one runs in.
    pub(super) pinned: Option<u32>,
    pub(super) chain: Chain,
    pub(super) fetch: Fetch,
}

/// Whether the disk has been searched for pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    NotYet,
    Reading,
    Done,
}

impl Queue {
    pub(super) const fn new(entry: Arc<Entry>, reader_buffer: usize) -> Self {
        Self {
            lanes: Vec::new(),
            tasks: VecDeque::new(),
            holding: Vec::new(),
            n_arrived: 0,
            reader_buffer,
            entry,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.tasks.is_empty() && self.holding.is_empty()
    }

    /// The number of choices and tasks.
    pub(super) fn len(&self) -> usize {
        let choices = self.texts().map(|waiting| waiting.choices.len());
        choices.sum::<usize>() + self.tasks.len() + self.holding.len()
    }

    fn texts(&self) -> impl Iterator<Item = &Waiting> {
        self.lanes.iter().flat_map(|lane| &lane.texts)
    }

    /// The requests of the waiting texts.
    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.texts().map(|waiting| &*waiting.request)
    }

    /// The shares that have waiting work.
    pub(super) fn shares(&self) -> impl Iterator<Item = &Share> {
        let tasks = self.holding.iter().chain(&self.tasks);
        let lanes = self.lanes.iter().map(|lane| &lane.share);
        lanes.chain(tasks.map(Task::share))
    }

    /// Adds a job; `chain` has the keys of its pages.
    pub(super) fn push(&mut self, job: Job, chain: Chain) {
        self.n_arrived += 1;
        let pinned = job.slot;
        let (request, choices) = Request::new(job, self.n_arrived, self.reader_buffer);
        self.put(Waiting {
            request,
            choices,
            pinned,
            chain,
            fetch: Fetch::NotYet,
        });
    }

    /// Inserts choices after all others of the same share and rank.
    pub(super) fn put(&mut self, waiting: Waiting) {
        let (share, rank) = (&waiting.request.share, waiting.request.rank());
        let known = self.lanes.iter().position(|lane| lane.share == *share);
        let lane = known.unwrap_or_else(|| {
            self.lanes.push(Lane {
                share: share.clone(),
                texts: Vec::new(),
            });
            self.lanes.len() - 1
        });
        let texts = &mut self.lanes[lane].texts;
        let at = texts.partition_point(|other| other.request.rank() <= rank);
        texts.insert(at, waiting);
    }

    /// Of each share, the first choices that wait neither for the disk nor for one of the slots in `taken`.
    pub(super) fn heads(&self, taken: &[u32]) -> impl Iterator<Item = &Waiting> {
        self.lanes.iter().filter_map(|lane| {
            let mut texts = lane.texts.iter();
            texts.find(|waiting| {
                let is_taken = waiting.pinned.is_some_and(|slot| taken.contains(&slot));
                waiting.fetch != Fetch::Reading && !is_taken
            })
        })
    }

    /// The waiting choices of the request with arrival number `arrival`.
    pub(super) fn get_mut(&mut self, arrival: u64) -> Option<&mut Waiting> {
        let mut texts = self.lanes.iter_mut().flat_map(|lane| &mut lane.texts);
        texts.find(|waiting| waiting.request.arrival == arrival)
    }

    /// Removes the waiting choices of the request with arrival number `arrival`.
    pub(super) fn take(&mut self, arrival: u64) -> Option<Waiting> {
        let is_it = |waiting: &Waiting| waiting.request.arrival == arrival;
        let taken = self.lanes.iter_mut().find_map(|lane| {
            let at = lane.texts.iter().position(is_it)?;
            Some(lane.texts.remove(at))
        });
        self.lanes.retain(|lane| !lane.texts.is_empty());
        taken
    }

    /// Forgets what depends on the session: searches of the disk, and halves of tasks.
    pub(super) fn leave_session(&mut self) {
        for waiting in self.lanes.iter_mut().flat_map(|lane| &mut lane.texts) {
            waiting.fetch = Fetch::NotYet;
        }
        for mut task in self.holding.drain(..) {
            task.leave_session();
            self.tasks.push_front(task);
        }
    }

    /// Removes work whose client has disconnected or whose deadline has passed.
    pub(super) fn sweep(&mut self, now: Instant) {
        let entry = &self.entry;
        for lane in &mut self.lanes {
            lane.texts.retain(|waiting| {
                let request = &waiting.request;
                let is_late = request.is_late(now, None);
                if is_late {
                    for pending in &waiting.choices {
                        request.end(pending.index, Why::Late);
                    }
                }
                let is_over = is_late || request.is_closed();
                if is_over {
                    entry.unqueue(&request.share, waiting.choices.len());
                    for _ in &waiting.choices {
                        entry.metrics().finished(request.abandoned());
                    }
                }
                !is_over
            });
        }
        self.lanes.retain(|lane| !lane.texts.is_empty());
        let is_open = |task: &Task| {
            let is_closed = task.is_closed();
            if is_closed {
                entry.unqueue(task.share(), 1);
            }
            !is_closed
        };
        self.holding.retain(is_open);
        self.tasks.retain(is_open);
    }

    /// Adds a task as the last of its kind.
    pub(super) fn push_task(&mut self, task: Task) {
        self.tasks.push_back(task);
    }

    /// Removes and returns the next task of a kind: the one that holds the session, or the first one of the share that
    /// was served least.
    pub(super) fn pop_task(&mut self, kind: TaskKind, ledger: &Ledger) -> Option<Task> {
        if let Some(at) = self.holding.iter().position(|task| task.kind() == kind) {
            return Some(self.holding.swap_remove(at));
        }
        let nothing = Places::default();
        let of_kind = self.tasks.iter().enumerate();
        let of_kind = of_kind.filter(|(_, task)| task.kind() == kind);
        let standings = of_kind.map(|(at, task)| (ledger.standing(task.share(), &nothing), at));
        let next = standings.min_by(|a, b| a.partial_cmp(b).unwrap_or(core::cmp::Ordering::Equal));
        self.tasks.remove(next?.1)
    }

    /// Puts a task back that holds its kind's session.
    pub(super) fn hold_task(&mut self, task: Task) {
        self.holding.push(task);
    }

    /// Ends all waiting work.
    pub(super) fn close(&mut self, error: &JobError) {
        for waiting in self.lanes.drain(..).flat_map(|lane| lane.texts) {
            let share = &waiting.request.share;
            self.entry.unqueue(share, waiting.choices.len());
            for pending in &waiting.choices {
                let why = Why::Failed(error.clone());
                waiting.request.end(pending.index, why);
            }
        }
        for task in self.holding.drain(..).chain(self.tasks.drain(..)) {
            self.entry.unqueue(task.share(), 1);
            task.answer(Err(error.clone()));
        }
    }
}

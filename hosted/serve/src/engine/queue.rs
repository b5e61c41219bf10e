//! Waiting work: texts without a sequence, in order, and tasks.

use super::entry::Entry;
use super::job::{Job, JobError, Why};
use super::pool::Chain;
use super::request::{PendingChoice, Request};
use super::tasks::{Task, TaskKind};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// The work of a model that has not started, or that continues later.
pub(super) struct Queue {
    /// Sorted by rank.
    texts: Vec<Waiting>,
    /// In order of arrival within each kind.
    tasks: VecDeque<Task>,
    n_arrived: u64,
    entry: Arc<Entry>,
}

/// Choices that wait for a sequence: the first one reads the prompt, the others continue from it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Rc<Request>,
    pub(super) choices: VecDeque<PendingChoice>,
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
    pub(super) const fn new(entry: Arc<Entry>) -> Self {
        Self {
            texts: Vec::new(),
            tasks: VecDeque::new(),
            n_arrived: 0,
            entry,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.tasks.is_empty()
    }

    /// The number of choices and tasks.
    pub(super) fn len(&self) -> usize {
        let choices = self.texts.iter().map(|waiting| waiting.choices.len());
        choices.sum::<usize>() + self.tasks.len()
    }

    /// The requests of the waiting texts.
    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.texts.iter().map(|waiting| &*waiting.request)
    }

    /// Adds a job; `chain` has the keys of its pages.
    pub(super) fn push(&mut self, job: Job, chain: Chain) {
        self.n_arrived += 1;
        let (request, choices) = Request::new(job, self.n_arrived);
        self.put(Waiting {
            request,
            choices,
            chain,
            fetch: Fetch::NotYet,
        });
    }

    /// Inserts choices after all others of the same rank.
    pub(super) fn put(&mut self, waiting: Waiting) {
        let rank = waiting.request.rank();
        let at = self
            .texts
            .partition_point(|other| other.request.rank() <= rank);
        self.texts.insert(at, waiting);
    }

    /// The first choices that do not wait for the disk.
    pub(super) fn first(&mut self) -> Option<&mut Waiting> {
        let mut texts = self.texts.iter_mut();
        texts.find(|waiting| waiting.fetch != Fetch::Reading)
    }

    /// Removes the choices that [`Self::first`] returns.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let mut texts = self.texts.iter();
        let at = texts.position(|waiting| waiting.fetch != Fetch::Reading)?;
        Some(self.texts.remove(at))
    }

    /// The choices of the request with arrival number `arrival`, which wait for the disk.
    pub(super) fn reading(&mut self, arrival: u64) -> Option<&mut Waiting> {
        let mut texts = self.texts.iter_mut();
        texts.find(|waiting| waiting.request.arrival == arrival)
    }

    /// Removes choices whose client has disconnected or whose deadline has passed.
    pub(super) fn sweep(&mut self, now: Instant) {
        let entry = &self.entry;
        self.texts.retain(|waiting| {
            let request = &waiting.request;
            let is_late = request.is_late(now, None);
            if is_late {
                for pending in &waiting.choices {
                    request.end(pending.index, Why::Late);
                }
            }
            let is_over = is_late || request.is_closed();
            if is_over {
                entry.unqueue(waiting.choices.len());
                for _ in &waiting.choices {
                    entry.metrics().finished(request.abandoned());
                }
            }
            !is_over
        });
    }

    /// Adds a task as the last of its kind.
    pub(super) fn push_task(&mut self, task: Task) {
        self.tasks.push_back(task);
    }

    /// Removes and returns the first task of a kind.
    pub(super) fn pop_task(&mut self, kind: TaskKind) -> Option<Task> {
        let at = self.tasks.iter().position(|task| task.kind() == kind)?;
        self.tasks.remove(at)
    }

    /// Puts a task back, first of its kind, so that it gets the kind's next step.
    pub(super) fn put_task_first(&mut self, task: Task) {
        self.tasks.push_front(task);
    }

    /// Ends all waiting work.
    pub(super) fn close(&mut self, error: &JobError) {
        for waiting in self.texts.drain(..) {
            for pending in &waiting.choices {
                let why = Why::Failed(error.clone());
                waiting.request.end(pending.index, why);
            }
        }
        for task in self.tasks.drain(..) {
            task.answer(Err(error.clone()));
        }
    }
}

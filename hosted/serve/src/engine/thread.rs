//! The engine's thread: handles commands between turns, and gives a turn to each model that has work.

use super::job::{Job, JobError, ModelId};
use super::pool::StoredFile;
use super::running::Unread;
use super::scheduler::{ModelScheduler, SchedulerParts};
use super::slot::{SlotAction, SlotDone};
use super::suspended::Suspended;
use super::tasks::Task;
use super::telemetry::{Stage, Stages};
use crate::Log;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;
use tokio::sync::oneshot;

/// A command to the thread.
pub(super) enum Command {
    /// Add a model, which has no texts yet unless it was suspended.
    Add(Box<SchedulerParts>),
    Remove(ModelId),
    /// Park all texts of a model, free its memory, and answer.
    Suspend(ModelId, oneshot::Sender<()>),
    Job(Box<Job>),
    Task(ModelId, Task),
    Slot(ModelId, SlotCommand),
    /// Take the pages that the disk has read for the request with this arrival number.
    PagesRead(ModelId, u64, Vec<StoredFile>),
    /// End when nothing is running any more, but no later than this.
    Stop(Instant),
}

/// A command for a slot.
pub(super) struct SlotCommand {
    pub(super) slot: u32,
    /// The client's.
    pub(super) group: Arc<str>,
    pub(super) action: SlotAction,
    pub(super) answer: oneshot::Sender<Result<SlotDone, JobError>>,
}

/// The first pause if there is work but none can be done, because of a slow reader or the disk. The next ones are
/// longer.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The models of the thread.
#[derive(Default)]
struct Models {
    loaded: Vec<ModelScheduler>,
    suspended: Vec<Suspended>,
    unread: Vec<Unread>,
    /// Index of the model whose turn was last.
    next: usize,
    stop: Option<Instant>,
}

/// Runs until it is asked to stop.
pub(super) fn run(commands: &Receiver<Command>, log: &Log, stages: &Stages) {
    let mut models = Models::default();
    let mut pause = Duration::ZERO;
    loop {
        let has_work = models.has_work();
        if let Some(until) = models.stop
            && (!has_work || Instant::now() >= until)
        {
            break;
        }
        let wait = match has_work || !models.unread.is_empty() {
            true => pause,
            false => Duration::MAX,
        };
        match receive(commands, wait) {
            Ok(Some(command)) => {
                let start = Instant::now();
                models.take(command);
                while let Ok(command) = commands.try_recv() {
                    models.take(command);
                }
                stages.note(Stage::Pop, start);
                pause = Duration::ZERO;
            }
            Ok(None) => {}
            // All handles were dropped.
            Err(()) => break,
        }
        pause = match models.turn(log) {
            true => Duration::ZERO,
            false => (2 * pause).clamp(PAUSE, PAUSE_MAX),
        };
    }
    for model in models.loaded {
        drop(model.close(&JobError::Gone));
    }
    for model in models.suspended {
        drop(model.close(&JobError::Gone));
    }
}

fn receive(commands: &Receiver<Command>, wait: Duration) -> Result<Option<Command>, ()> {
    if wait == Duration::MAX {
        return commands.recv().map(Some).map_err(drop);
    }
    match commands.recv_timeout(wait) {
        Ok(command) => Ok(Some(command)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(()),
    }
}

impl Models {
    /// Whether there is a reason not to stop. What readers have not read of models that are gone is none.
    fn has_work(&self) -> bool {
        self.loaded.iter().any(ModelScheduler::has_work)
            || self.suspended.iter().any(Suspended::has_work)
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Add(parts) => {
                let mut model = ModelScheduler::new(*parts);
                if let Some(suspended) = self.take_suspended(model.id()) {
                    self.unread.extend(model.resume(suspended));
                }
                self.loaded.push(model);
            }
            Command::Remove(id) => {
                if let Some(model) = self.take_loaded(id) {
                    self.unread.push(model.close(&JobError::Gone));
                }
                if let Some(suspended) = self.take_suspended(id) {
                    self.unread.push(suspended.close(&JobError::Gone));
                }
            }
            Command::Suspend(id, answer) => {
                if let Some(model) = self.take_loaded(id) {
                    self.suspended.push(model.suspend());
                    let _sent = answer.send(());
                }
            }
            // If the job is dropped, its receivers see a closed channel.
            Command::Job(job) => match self.find(job.model) {
                Some(model) => model.push(*job),
                None => {
                    if let Some(model) = self.find_suspended(job.model) {
                        model.push(*job);
                    }
                }
            },
            Command::Task(id, task) => match self.find(id) {
                Some(model) => model.push_task(task),
                None => match self.find_suspended(id) {
                    Some(model) => model.push_task(task),
                    None => task.answer(Err(JobError::Gone)),
                },
            },
            Command::Slot(id, command) => {
                let SlotCommand {
                    slot,
                    group,
                    action,
                    answer,
                } = command;
                let act = |model: &mut ModelScheduler| model.act(slot, &group, &action);
                let _sent = answer.send(self.find(id).map_or(Err(JobError::Gone), act));
            }
            Command::PagesRead(id, arrival, files) => {
                if let Some(model) = self.find(id) {
                    model.put_pages(arrival, files);
                }
            }
            Command::Stop(until) => self.stop = Some(until),
        }
    }

    fn find(&mut self, id: ModelId) -> Option<&mut ModelScheduler> {
        self.loaded.iter_mut().find(|model| model.id() == id)
    }

    fn find_suspended(&mut self, id: ModelId) -> Option<&mut Suspended> {
        self.suspended.iter_mut().find(|model| model.id == id)
    }

    fn take_loaded(&mut self, id: ModelId) -> Option<ModelScheduler> {
        let at = self.loaded.iter().position(|model| model.id() == id)?;
        Some(self.loaded.remove(at))
    }

    fn take_suspended(&mut self, id: ModelId) -> Option<Suspended> {
        let at = self.suspended.iter().position(|model| model.id == id)?;
        Some(self.suspended.remove(at))
    }

    /// Runs a turn of the next model that has work; false if nothing could be done for any.
    fn turn(&mut self, log: &Log) -> bool {
        self.suspended.iter_mut().for_each(Suspended::sweep);
        self.unread.retain_mut(Unread::send);
        let models = &mut self.loaded;
        for _ in 0..models.len() {
            self.next = (self.next + 1) % models.len();
            let model = &mut models[self.next];
            if !model.has_work() {
                continue;
            }
            let worked = std::panic::catch_unwind(AssertUnwindSafe(|| model.turn()));
            match worked {
                Ok(true) => return true,
                Ok(false) => {}
                Err(_) => {
                    // After a panic, the model's state cannot be trusted. Other models do not share it.
                    model.lose();
                    log("the engine panicked; its model is unloaded");
                    let broken = models.remove(self.next);
                    let error = JobError::Failed("the engine failed".to_owned());
                    let closed = AssertUnwindSafe(|| broken.close(&error));
                    self.unread.extend(std::panic::catch_unwind(closed));
                    self.next = 0;
                    return true;
                }
            }
        }
        false
    }
}

//! The engine's thread: handles commands between turns, and gives a turn to each model that has work.

use super::job::{Job, JobError, ModelId};
use super::pool::StoredFile;
use super::scheduler::{ModelScheduler, SchedulerParts};
use super::slot::{SlotAction, SlotDone};
use super::tasks::Task;
use super::telemetry::{Stage, Stages};
use crate::Log;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;
use tokio::sync::oneshot;

/// A command to the thread.
pub(super) enum Command {
    /// Add a model, which has no texts yet.
    Add(Box<SchedulerParts>),
    Remove(ModelId),
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
    pub(super) action: SlotAction,
    pub(super) answer: oneshot::Sender<Result<SlotDone, JobError>>,
}

/// Pause if there is work but none can be done, because of a slow reader or the disk.
const PAUSE: Duration = Duration::from_millis(2);

/// Runs until it is asked to stop.
pub(super) fn run(commands: &Receiver<Command>, log: &Log, stages: &Stages) {
    let mut models: Vec<ModelScheduler> = Vec::new();
    let mut next = 0;
    let (mut stop, mut is_stuck) = (None::<Instant>, false);
    loop {
        let has_work = models.iter().any(ModelScheduler::has_work);
        if let Some(until) = stop
            && (!has_work || Instant::now() >= until)
        {
            break;
        }
        let wait = match (has_work, is_stuck) {
            (true, false) => Duration::ZERO,
            (true, true) => PAUSE,
            (false, _) => Duration::MAX,
        };
        match receive(commands, wait) {
            Ok(Some(command)) => {
                let start = Instant::now();
                take(command, &mut models, &mut stop);
                while let Ok(command) = commands.try_recv() {
                    take(command, &mut models, &mut stop);
                }
                stages.note(Stage::Pop, start);
            }
            Ok(None) => {}
            // All handles were dropped.
            Err(()) => break,
        }
        is_stuck = !turn(&mut models, &mut next, log);
    }
    for mut model in models {
        model.close(&JobError::Gone);
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

fn take(command: Command, models: &mut Vec<ModelScheduler>, stop: &mut Option<Instant>) {
    match command {
        Command::Add(parts) => models.push(ModelScheduler::new(*parts)),
        Command::Remove(id) => {
            if let Some(at) = models.iter().position(|model| model.id() == id) {
                models.remove(at).close(&JobError::Gone);
            }
        }
        // If the job is dropped, its receivers see a closed channel.
        Command::Job(job) => {
            if let Some(model) = find(models, job.model) {
                model.push(*job);
            }
        }
        Command::Task(id, task) => match find(models, id) {
            Some(model) => model.push_task(task),
            None => task.answer(Err(JobError::Gone)),
        },
        Command::Slot(id, command) => {
            let SlotCommand {
                slot,
                action,
                answer,
            } = command;
            let act = |model: &mut ModelScheduler| model.act(slot, &action);
            let _sent = answer.send(find(models, id).map_or(Err(JobError::Gone), act));
        }
        Command::PagesRead(id, arrival, files) => {
            if let Some(model) = find(models, id) {
                model.put_pages(arrival, files);
            }
        }
        Command::Stop(until) => *stop = Some(until),
    }
}

fn find(models: &mut [ModelScheduler], id: ModelId) -> Option<&mut ModelScheduler> {
    models.iter_mut().find(|model| model.id() == id)
}

/// Runs a turn of the next model that has work; false if nothing could be done for any.
fn turn(models: &mut Vec<ModelScheduler>, next: &mut usize, log: &Log) -> bool {
    for _ in 0..models.len() {
        *next = (*next + 1) % models.len();
        let model = &mut models[*next];
        if !model.has_work() {
            continue;
        }
        let worked = std::panic::catch_unwind(AssertUnwindSafe(|| model.turn()));
        match worked {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_) => {
                // After a panic, the model's state cannot be trusted. Other models do not share it.
                log("the engine panicked; its model is unloaded");
                let mut broken = models.remove(*next);
                let error = JobError::Failed("the engine failed".to_owned());
                broken.lose();
                let closed = AssertUnwindSafe(|| broken.close(&error));
                let _ended = std::panic::catch_unwind(closed);
                *next = 0;
                return true;
            }
        }
    }
    false
}

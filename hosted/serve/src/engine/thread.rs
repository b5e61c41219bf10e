//! The thread: takes commands between turns, and gives each model that has work a turn.

use super::disk::Read;
use super::job::{EmbedJob, Job, JobError, ModelId, ScoreJob};
use super::served::Served;
use super::slot::{SlotAction, SlotAnswer};
use super::telemetry::{Stage, Stages};
use crate::Log;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

/// What the thread is told.
pub(super) enum Command {
    /// A model, which has no texts yet.
    Add(Box<dyn FnOnce() -> Served + Send>),
    Remove(ModelId),
    Job(Box<Job>),
    Embed(EmbedJob),
    Score(ScoreJob),
    Slot(ModelId, u32, SlotAction, SlotAnswer),
    /// What the disk has read for a request.
    Fetched(ModelId, u64, Read),
    /// To end when nothing runs any more, or then.
    Stop(Instant),
}

/// Where nothing can be done although there is work (a reader is slow, the disk reads), it is looked at again after
/// so long.
const PAUSE: Duration = Duration::from_millis(2);

/// Runs until it is told to stop.
pub(super) fn run(commands: &Receiver<Command>, log: &Log, stages: &Stages) {
    let mut models: Vec<Served> = Vec::new();
    let mut next = 0;
    let (mut stop, mut is_stuck) = (None::<Instant>, false);
    loop {
        let has_work = models.iter().any(Served::has_work);
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
            // Nobody can ask for anything any more.
            Err(()) => break,
        }
        is_stuck = !turn(&mut models, &mut next, log);
    }
    for mut served in models {
        served.close(&JobError::Gone);
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

fn take(command: Command, models: &mut Vec<Served>, stop: &mut Option<Instant>) {
    match command {
        Command::Add(served) => models.push(served()),
        Command::Remove(id) => {
            if let Some(at) = models.iter().position(|served| served.id == id) {
                models.remove(at).close(&JobError::Gone);
            }
        }
        // The receivers of a job that is dropped see that its channel is closed.
        Command::Job(job) => {
            if let Some(served) = find(models, job.model) {
                served.push(*job);
            }
        }
        Command::Embed(job) => match find(models, job.model) {
            Some(served) => served.push_embedding(job),
            None => {
                let _sent = job.answer.send(Err(JobError::Gone));
            }
        },
        Command::Score(job) => match find(models, job.model) {
            Some(served) => served.push_scoring(job),
            None => {
                let _sent = job.answer.send(Err(JobError::Gone));
            }
        },
        Command::Slot(id, slot, action, answer) => {
            let done =
                find(models, id).map_or(Err(JobError::Gone), |served| served.slot(slot, &action));
            let _sent = answer.send(done);
        }
        Command::Fetched(id, arrival, read) => {
            if let Some(served) = find(models, id) {
                served.fetched(arrival, read);
            }
        }
        Command::Stop(until) => *stop = Some(until),
    }
}

fn find(models: &mut [Served], id: ModelId) -> Option<&mut Served> {
    models.iter_mut().find(|served| served.id == id)
}

/// A turn of the next model that has work; false if nothing could be done for any.
fn turn(models: &mut Vec<Served>, next: &mut usize, log: &Log) -> bool {
    for _ in 0..models.len() {
        *next = (*next + 1) % models.len();
        let served = &mut models[*next];
        if !served.has_work() {
            continue;
        }
        let worked = std::panic::catch_unwind(AssertUnwindSafe(|| served.turn()));
        match worked {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_) => {
                // Its state is not to be trusted. The others do not share it.
                log("the engine panicked; the model is taken out");
                let mut broken = models.remove(*next);
                let error = JobError::Failed("the engine failed".to_owned());
                let closed = AssertUnwindSafe(|| broken.close(&error));
                let _ended = std::panic::catch_unwind(closed);
                broken.entry.lose();
                *next = 0;
                return true;
            }
        }
    }
    false
}

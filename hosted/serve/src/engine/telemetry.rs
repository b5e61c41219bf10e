//! Measures how the engine's thread spends its time: a ring of stages that is always on, written to a file on request.

use crate::Log;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// A part of a turn, named as in avxLLM's scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stage {
    /// Commands are taken.
    Pop,
    /// Texts are admitted, and the step's rows chosen.
    Build,
    /// The step: the model runs, tokens are sampled, events are made.
    Enqueue,
    /// Ended texts are removed; pages are cached.
    Flush,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Pop, Self::Build, Self::Enqueue, Self::Flush];

    const fn name(self) -> &'static str {
        match self {
            Self::Pop => "scheduler.decode_pop",
            Self::Build => "scheduler.build_microbatch",
            Self::Enqueue => "scheduler.enqueue_microbatch",
            Self::Flush => "scheduler.enqueue_flush",
        }
    }
}

/// The most recent stages. One thread writes, in a few nanoseconds; a slow reader may miss some.
#[derive(Debug)]
pub(super) struct Stages {
    /// The stage in the lowest byte, nanoseconds above.
    slots: Box<[AtomicU64]>,
    /// Total number of stages written.
    next: AtomicU64,
}

impl Stages {
    pub(super) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicU64::new(0),
        }
    }

    /// Records a stage that began at `start`. Returns its end.
    pub(super) fn note(&self, stage: Stage, start: Instant) -> Instant {
        let end = Instant::now();
        let ns = u64::try_from((end - start).as_nanos()).unwrap_or(u64::MAX) & (u64::MAX >> 8);
        let next = self.next.load(Ordering::Relaxed);
        if let Some(slot) = self.slots.get(usize::try_from(next % SLOTS).unwrap_or(0)) {
            slot.store(ns << 8 | stage as u64, Ordering::Relaxed);
        }
        self.next.store(next + 1, Ordering::Release);
        end
    }

    /// Reads the stages after the first `read`, the oldest first, except those that were overwritten.
    fn read(&self, read: &mut u64, mut each: impl FnMut(Stage, u64)) -> u64 {
        let next = self.next.load(Ordering::Acquire);
        let first = next.saturating_sub(SLOTS / 2).max(*read);
        let n_lost = first - *read;
        for at in first..next {
            let slot = self.slots.get(usize::try_from(at % SLOTS).unwrap_or(0));
            let word = slot.map_or(0, |slot| slot.load(Ordering::Relaxed));
            let stage = Stage::ALL.get(usize::try_from(word & 0xff).unwrap_or(0));
            if let Some(stage) = stage {
                each(*stage, word >> 8);
            }
        }
        *read = next;
        n_lost
    }
}

/// Number of stages kept. A reader may lag by half of them: more than a minute of short turns.
const SLOTS: u64 = 1 << 16;

/// The header of avxLLM's runtime telemetry.
const HEADER: &str = "stage,elapsed_us\n";

/// Writes stages to a file until it is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// # Errors
    /// The file cannot be created.
    pub(super) fn start(stages: Arc<Stages>, path: PathBuf, log: Log) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(&path)?);
        file.write_all(HEADER.as_bytes())?;
        let ends = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&ends);
        let run = move || {
            let mut read = 0;
            loop {
                let is_over = asked.load(Ordering::Relaxed);
                let written = write(&stages, &mut read, &mut file);
                match written {
                    Ok(0) => {}
                    Ok(n) => log(&format!(
                        "{}: {n} stages were dropped because the queue was full",
                        path.display()
                    )),
                    Err(error) => {
                        log(&format!("{}: {error}; tracing stops", path.display()));
                        return;
                    }
                }
                if is_over {
                    return;
                }
                std::thread::park_timeout(EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("telemetry".into());
        Ok(Self {
            ends,
            thread: Some(thread.spawn(run)?),
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

/// Writes new stages. Returns how many were lost.
fn write(stages: &Stages, read: &mut u64, file: &mut BufWriter<File>) -> io::Result<u64> {
    let mut written = Ok(());
    let n_lost = stages.read(read, |stage, ns| {
        let (us, rest) = (ns / 1000, ns % 1000);
        if written.is_ok() {
            written = writeln!(file, "{},{us}.{rest:03}", stage.name());
        }
    });
    written?;
    file.flush()?;
    Ok(n_lost)
}

const EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_read_in_their_order_and_the_oldest_are_lost() {
        let stages = Stages::new();
        let start = Instant::now();
        for i in 0..10 {
            stages.note(Stage::ALL[i % 4], start);
        }
        let (mut read, mut seen) = (0, Vec::new());
        assert_eq!(stages.read(&mut read, |stage, _| seen.push(stage)), 0);
        assert_eq!(seen[..4], Stage::ALL);
        assert_eq!((seen.len(), read), (10, 10));
        for _ in 0..SLOTS {
            stages.note(Stage::Pop, start);
        }
        let mut n = 0;
        assert_eq!(stages.read(&mut read, |_, _| n += 1), SLOTS / 2);
        assert_eq!(n, SLOTS / 2);
    }

    #[test]
    fn a_file_has_the_header_and_a_line_a_stage() {
        let path = std::env::temp_dir().join(format!("sluice-stages-{}.csv", std::process::id()));
        let stages = Arc::new(Stages::new());
        let log: Log = Arc::new(|_: &str| {});
        let writer = Writer::start(Arc::clone(&stages), path.clone(), log).unwrap();
        stages.note(Stage::Build, Instant::now());
        drop(writer);
        let text = std::fs::read_to_string(&path).unwrap();
        let (header, line) = text.split_once('\n').unwrap();
        assert_eq!(header, "stage,elapsed_us");
        assert!(line.starts_with("scheduler.build_microbatch,0."), "{line}");
        std::fs::remove_file(path).unwrap();
    }
}

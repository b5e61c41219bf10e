//! What the image runs, in this process.

use core::sync::atomic::{AtomicU64, Ordering};
use sluice_core::team::WaitPolicy;
use sluice_metal::options::Options;
use sluice_metal::story::{self, StoryError};
use sluice_tests::run::{Aligned, YieldWait};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::time::Instant;

/// Generates the same story in this process.
pub(super) fn hosted(model: &[u8], line: &str, n_cores: usize) -> Result<String, StoryError> {
    run(model, line, n_cores, &[])
}

/// The same, with lines typed on the console, each after 1000 s.
pub(super) fn talk(model: &[u8], line: &str, typed: &[&str]) -> Result<String, StoryError> {
    run(model, line, 1, typed)
}

fn run(model: &[u8], line: &str, n_cores: usize, typed: &[&str]) -> Result<String, StoryError> {
    let machine = Hosted {
        n_cores,
        start: Instant::now(),
        text: Mutex::new(String::new()),
        typed: Mutex::new(typed.iter().map(ToString::to_string).collect()),
        typing: AtomicU64::new(0),
    };
    let options = Options::parse(line).unwrap();
    let mut file = Aligned::new(model.len());
    file.bytes_mut().copy_from_slice(model);
    let mut memory = Aligned::new(64 << 20);
    story::tell(&machine, file.bytes_mut(), memory.bytes_mut(), &options, 0)?;
    Ok(machine.text.into_inner().unwrap())
}

/// Threads, a clock and a string.
struct Hosted {
    n_cores: usize,
    start: Instant,
    text: Mutex<String>,
    typed: Mutex<VecDeque<String>>,
    /// Ticks that typing took.
    typing: AtomicU64,
}

impl story::Machine for Hosted {
    fn n_cores(&self) -> usize {
        self.n_cores
    }

    fn spread(&self, n_ranks: usize, job: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for rank in 1..n_ranks {
                scope.spawn(move || job(rank));
            }
            job(0);
        });
    }

    fn wait(&self) -> &dyn WaitPolicy {
        &YieldWait
    }

    fn ticks(&self) -> u64 {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap();
        elapsed + self.typing.load(Ordering::Relaxed)
    }

    fn ticks_per_second(&self) -> u64 {
        1_000_000_000
    }

    fn print(&self, text: fmt::Arguments<'_>) {
        fmt::Write::write_fmt(&mut *self.text.lock().unwrap(), text).unwrap();
    }

    fn read_line(&self, line: &mut [u8]) -> Option<usize> {
        let typed = self.typed.lock().unwrap().pop_front()?;
        self.typing.fetch_add(1_000_000_000_000, Ordering::Relaxed);
        line[..typed.len()].copy_from_slice(typed.as_bytes());
        Some(typed.len())
    }
}

/// The text between the model's line and the footer.
pub(super) fn story_of(text: &str) -> &str {
    let start = text
        .find("threads\n")
        .map_or(0, |at| at + "threads\n".len());
    let text = &text[start..];
    text[..text.find("load time").unwrap()].trim()
}

pub(super) fn hash_of(text: &str) -> &str {
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("logits hash = "));
    line.unwrap_or_else(|| panic!("no logits hash in: {text}"))
}

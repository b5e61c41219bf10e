//! Work in pieces, shared between threads.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sluice_core::team::StopFlag;
use std::sync::Mutex;
use std::thread;

/// How work without an error ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The file is complete and has its final name.
    Complete,
    /// The stop flag was set; no file remains.
    Stopped,
}

/// Processes every piece on `n_threads` threads, including this one; each thread has its own buffer `R`. `act` returns
/// the number of bytes it has processed, and `progress` is called on this thread with their total so far.
///
/// # Errors
/// The first error of `act`; no thread starts another piece after it.
///
/// # Panics
/// If `act` or `progress` panics.
pub(crate) fn share<P: Copy + Sync, R: Default, E: Send>(
    pieces: &[P],
    n_threads: usize,
    stop: &StopFlag,
    progress: &mut dyn FnMut(u64),
    act: impl Fn(P, &mut R) -> Result<u64, E> + Sync,
) -> Result<Outcome, E> {
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let (is_over, failure) = (AtomicBool::new(false), Mutex::new(None));
    let work = |report: &mut dyn FnMut(u64)| {
        let mut room = R::default();
        while !stop.is_set() && !is_over.load(Ordering::Relaxed) {
            let Some(&piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            match act(piece, &mut room) {
                Ok(len) => report(done.fetch_add(len, Ordering::Relaxed) + len),
                Err(error) => {
                    is_over.store(true, Ordering::Relaxed);
                    let mut failure = failure.lock().expect("no holder panics");
                    failure.get_or_insert(error);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..n_threads {
            scope.spawn(|| work(&mut |_| {}));
        }
        work(progress);
    });
    match failure.into_inner().expect("no holder panics") {
        Some(error) => Err(error),
        None if stop.is_set() => Ok(Outcome::Stopped),
        None => Ok(Outcome::Complete),
    }
}

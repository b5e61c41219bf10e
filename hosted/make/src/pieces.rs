//! Work in pieces, shared among threads.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sluice_core::team::StopFlag;
use std::sync::Mutex;
use std::thread;

/// How work ended that met no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The file is complete and has its name.
    Complete,
    /// It was asked to stop; no file is left.
    Stopped,
}

/// Does every piece on `n_threads` threads, this one among them; each has a room `R` of its own. `act` says how many
/// bytes it did, and `progress` is told on this thread how many are done.
///
/// # Errors
/// The first of `act`; nobody begins another piece then.
///
/// # Panics
/// If `act` or `progress` does.
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

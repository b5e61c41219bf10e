//! Reads that fail: retried, read from another drive, given up.
#![forbid(unsafe_code)]

use super::super::error::ExpertError;
use super::slots::Progress;
use super::{Shared, State};
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Why a read is to be retried.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// The system's error number.
    Errno(i32),
    /// The bytes do not match the checksum.
    Bytes,
}

/// A file's drive.
#[derive(Debug)]
pub(super) struct Drive {
    pub(super) path: PathBuf,
    /// Failures in a row.
    pub(super) n_failures: u32,
    /// It is not used before this time.
    pub(super) closed_until: Option<Instant>,
}

/// Number of tries of a read.
const N_TRIES: u32 = 3;
/// Pauses before the second and the third try.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(50)];
/// Number of failures in a row after which a drive is given up for a while.
const BREAKER_FAILURES: u32 = 3;
const BREAKER_PAUSE: Duration = Duration::from_millis(500);
/// Maximum time without an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

impl Drive {
    /// How long it is still given up, if it is.
    pub(super) fn closed_for(&self, now: Instant) -> Option<Duration> {
        self.closed_until?.checked_duration_since(now)
    }

    fn failed(&mut self, now: Instant) {
        self.n_failures += 1;
        if self.n_failures >= BREAKER_FAILURES {
            self.closed_until = Some(now + BREAKER_PAUSE);
        }
    }
}

impl Shared {
    /// A read failed: retries it after a pause, maybe from another drive.
    pub(super) fn has_failed(&self, state: &mut State, token: usize, trouble: Trouble) {
        let flights = &mut state.flights;
        let Some(flight) = &mut flights.flights[token] else {
            return;
        };
        if let Trouble::Errno(libc::EINTR | libc::EAGAIN) = trouble {
            flight.retry = Some(Instant::now());
            // It was not tried.
            flight.n_tries -= 1;
            return;
        }
        flight.done = 0;
        state.stats.retries += 1;
        let now = Instant::now();
        let drive = &mut flights.drives[flight.file];
        drive.failed(now);
        if flight.n_tries < N_TRIES {
            flight.retry = Some(now + PAUSES[flight.n_tries as usize - 1]);
            return;
        }
        let (layer, expert) = self.places.of_id(flight.id);
        let (path, offset) = (drive.path.clone(), flight.offset);
        let error = match trouble {
            Trouble::Errno(errno) => ExpertError::Read {
                path,
                layer,
                expert,
                offset,
                n_tries: flight.n_tries,
                error: Arc::new(io::Error::from_raw_os_error(errno)),
            },
            Trouble::Bytes => ExpertError::Checksum {
                path,
                layer,
                expert,
                offset,
            },
        };
        self.give_up(state, token, error);
    }

    pub(super) fn give_up(&self, state: &mut State, token: usize, error: ExpertError) {
        let Some(flight) = state.flights.flights[token] else {
            return;
        };
        if !flight.is_guess || state.need.has(flight.id) {
            state.error = Some(error);
            state.stats.failures += 1;
        }
        self.slots
            .set_progress(flight.slot, flight.part, Progress::Failed);
        self.end(state, token);
        self.forget_guess(state, flight.slot);
    }

    /// The pause before a try is over.
    pub(super) fn try_again(&self, state: &mut State, token: usize) {
        let flights = &mut state.flights;
        let Some(mut flight) = flights.flights[token] else {
            return;
        };
        if self.is_closing.load(Ordering::Relaxed) {
            return self.end(state, token);
        }
        let (layer, expert) = self.places.of_id(flight.id);
        let places = self.places.layers[layer].as_ref();
        let part = places.map(|places| &places.parts[flight.part as usize]);
        let file = part.map_or(0, |part| part.pieces[flight.piece].place_of(expert).0);
        flight.file = flights.file(file, flight.id, flight.n_tries);
        flight.retry = None;
        flight.n_tries += 1;
        flights.flights[token] = Some(flight);
        self.go_on(state, token);
    }

    /// No answer: the step does not wait for the read. It stays under way, and keeps its slot.
    pub(super) fn lose_patience(&self, state: &mut State, token: usize) {
        let flights = &mut state.flights;
        let Some(flight) = &mut flights.flights[token] else {
            return;
        };
        flight.is_overdue = true;
        let is_awaited = !flight.is_guess || state.need.has(flight.id);
        self.slots
            .set_progress(flight.slot, flight.part, Progress::Failed);
        if is_awaited {
            self.tell_silence(state, token);
        }
    }

    /// A layer needs what has been given up already, because no answer came to a guess.
    pub(super) fn needs_silent(&self, state: &mut State, slot: usize) {
        let mut flights = state.flights.flights.iter();
        let silent = flights.position(|flight| {
            flight.is_some_and(|flight| flight.slot == slot && flight.is_overdue)
        });
        if let Some(token) = silent {
            self.tell_silence(state, token);
        }
    }

    fn tell_silence(&self, state: &mut State, token: usize) {
        let Some(flight) = &state.flights.flights[token] else {
            return;
        };
        let (layer, expert) = self.places.of_id(flight.id);
        state.stats.failures += 1;
        state.error = Some(ExpertError::NoAnswer {
            path: state.flights.drives[flight.file].path.clone(),
            layer,
            expert,
            after: PATIENCE,
        });
    }
}

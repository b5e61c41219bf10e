//! Reads under way: started, continued, retried, given up.

use super::super::device::{Completions, DIRECT_ALIGN, Read};
use super::super::error::ExpertError;
use super::slots::Progress;
use super::trouble::{Drive, PATIENCE, Trouble};
use super::{Shared, State};
use crate::host::memory::AlignedMemory;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use core::time::Duration;
use sluice_core::engine::ExpertPart;
use sluice_core::kernels::panel::{PANEL_ROWS, PanelLayout};
use std::path::PathBuf;
use std::sync::MutexGuard;
use std::time::Instant;

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) slot: usize,
    pub(super) id: u32,
    pub(super) part: ExpertPart,
    /// Index of the piece in the part.
    pub(super) piece: usize,
    /// File by the device's count.
    pub(super) file: usize,
    pub(super) offset: u64,
    /// Bytes to ask for, and how many of them must come.
    pub(super) len: usize,
    pub(super) needed: usize,
    pub(super) done: usize,
    /// Bytes before the piece.
    pub(super) skip: usize,
    /// Room for rows that become panels.
    pub(super) staging: Option<usize>,
    /// Number of tries in a row without progress.
    pub(super) n_stuck: u32,
    pub(super) n_tries: u32,
    pub(super) is_guess: bool,
    pub(super) begun: Instant,
    /// When it is tried again, if it waits for that.
    pub(super) retry: Option<Instant>,
    /// The missing answer was reported.
    pub(super) is_overdue: bool,
}

/// All reads.
#[derive(Debug)]
pub(super) struct Flights {
    pub(super) flights: Box<[Option<Flight>]>,
    free: Vec<usize>,
    staging: AlignedMemory,
    staging_bytes: usize,
    free_staging: Vec<usize>,
    n_guesses: usize,
    /// By the device's files.
    pub(super) drives: Box<[Drive]>,
    /// Copies of each of the model's files, by the device's count.
    copies: Box<[Vec<usize>]>,
}

/// Maximum reads at once.
pub(super) const N_READS: usize = 64;
/// After this number of tries without progress, a read is at the end of its file.
const STUCK_MAX: u32 = 4;

impl Flights {
    pub(super) fn new(
        staging: AlignedMemory,
        staging_bytes: usize,
        drives: Vec<PathBuf>,
        copies: Vec<Vec<usize>>,
    ) -> Self {
        let n_staging = staging.len().checked_div(staging_bytes).unwrap_or(0);
        let drive = |path| Drive {
            path,
            n_failures: 0,
            closed_until: None,
        };
        Self {
            flights: vec![None; N_READS].into(),
            free: (0..N_READS).rev().collect(),
            staging,
            staging_bytes,
            free_staging: (0..n_staging).rev().collect(),
            n_guesses: 0,
            drives: drives.into_iter().map(drive).collect(),
            copies: copies.into(),
        }
    }

    pub(super) fn len(&self) -> usize {
        N_READS - self.free.len()
    }

    /// Reads into a slot are no guess's any more. How many they are.
    pub(super) fn await_guess(&mut self, slot: usize) -> usize {
        let mut n = 0;
        for flight in self.flights.iter_mut().flatten() {
            if flight.slot == slot && flight.is_guess {
                flight.is_guess = false;
                n += 1;
            }
        }
        self.n_guesses -= n;
        n
    }

    /// Reads that a layer waits for.
    pub(super) fn n_awaited(&self) -> usize {
        self.len() - self.n_guesses
    }

    /// The memory for rows, for the device to know.
    pub(super) fn staging(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut *self.staging).cast(), self.staging.len())
    }

    fn staging_at(&mut self, index: usize) -> NonNull<u8> {
        NonNull::from(&mut self.staging[index * self.staging_bytes]).cast()
    }

    /// The file for try `n` of an expert's read: files on working drives first.
    pub(super) fn file(&self, file: usize, id: u32, n_tries: u32) -> usize {
        let copies = &self.copies[file];
        let order =
            (0..copies.len()).map(|i| copies[(id as usize + n_tries as usize + i) % copies.len()]);
        let now = Instant::now();
        let works = |file: &usize| self.drives[*file].closed_for(now).is_none();
        let mut order = order.filter(works);
        order.next().unwrap_or(copies[id as usize % copies.len()])
    }
}

impl Shared {
    /// Starts the reads of a missing part. False if room for them is short.
    pub(super) fn read_part(
        &self,
        state: &mut State,
        slot: usize,
        id: u32,
        part: ExpertPart,
        is_guess: bool,
    ) -> bool {
        let (layer, expert) = self.places.of_id(id);
        let places = self.places.layers[layer]
            .as_ref()
            .expect("an expert's layer has experts");
        let pieces = &places.parts[part as usize].pieces;
        let n_staging = pieces.iter().filter(|piece| piece.rows.is_some()).count();
        let n_reads = pieces
            .iter()
            .filter(|piece| piece.len_of(expert) > 0)
            .count();
        if state.flights.free.len() < pieces.len() || state.flights.free_staging.len() < n_staging {
            return false;
        }
        let progress = match n_reads {
            // Of a cluster all of whose pages stay in memory.
            0 => Progress::Ready,
            _ => Progress::Coming,
        };
        self.slots.set_progress(slot, part, progress);
        state.info[slot].n_reading[part as usize] = u8::try_from(n_reads).unwrap_or(u8::MAX);
        for (index, piece) in pieces.iter().enumerate() {
            let len = piece.len_of(expert);
            if len == 0 {
                continue;
            }
            let (file, offset) = piece.place_of(expert);
            let aligned = offset - offset % DIRECT_ALIGN as u64;
            let skip = usize::try_from(offset - aligned).unwrap_or(0);
            let flights = &mut state.flights;
            let flight = Flight {
                slot,
                id,
                part,
                piece: index,
                file: flights.file(file, id, 0),
                offset: aligned,
                len: (skip + len).next_multiple_of(DIRECT_ALIGN),
                needed: skip + len,
                done: 0,
                skip,
                staging: piece.rows.and_then(|_| flights.free_staging.pop()),
                n_stuck: 0,
                n_tries: 1,
                is_guess,
                begun: Instant::now(),
                retry: None,
                is_overdue: false,
            };
            let token = flights.free.pop().expect("there are enough");
            flights.flights[token] = Some(flight);
            match is_guess {
                true => {
                    flights.n_guesses += 1;
                    state.ahead.n_reading += 1;
                }
                false => state.ahead.governor.has_to_read(),
            }
            self.go_on(state, token);
        }
        true
    }

    /// Hands the rest of a read to the device, or fails it if its drive is given up for now.
    pub(super) fn go_on(&self, state: &mut State, token: usize) {
        let flights = &mut state.flights;
        let Some(flight) = flights.flights[token] else {
            return;
        };
        let drive = &mut flights.drives[flight.file];
        if let Some(retry_in) = drive.closed_for(Instant::now()) {
            let path = drive.path.clone();
            return self.give_up(state, token, ExpertError::Broken { path, retry_in });
        }
        drive.closed_until = None;
        let done = flight.done - flight.done % DIRECT_ALIGN;
        let to = match flight.staging {
            Some(index) => flights.staging_at(index),
            None => {
                let (layer, _) = self.places.of_id(flight.id);
                let places = self.places.layers[layer].as_ref();
                let part = places.map(|places| &places.parts[flight.part as usize]);
                let offset = part.map_or(0, |part| part.pieces[flight.piece].slot_offset);
                self.place_of(&flight, offset)
            }
        };
        if let Some(device) = self.device.get() {
            device.start(Read {
                token: u32::try_from(token).unwrap_or(u32::MAX),
                file: flight.file,
                offset: flight.offset + done as u64,
                // SAFETY: inside the room for the read, which is `len` bytes.
                into: unsafe { to.add(done) },
                len: flight.len - done,
            });
        }
    }

    /// Where a read without staging memory begins: in its slot, or among the model's weights.
    fn place_of(&self, flight: &Flight, slot_offset: usize) -> NonNull<u8> {
        match &self.home {
            Some(home) => home.at(flight.offset),
            None => self.slots.at(flight.slot, slot_offset),
        }
    }

    pub(super) fn flush(&self) {
        if let Some(device) = self.device.get() {
            device.flush();
        }
    }

    /// A read has got `n` bytes more. True if it has all of them now.
    fn has_come(&self, state: &mut State, token: usize, n: usize) -> bool {
        let flights = &mut state.flights;
        let Some(flight) = &mut flights.flights[token] else {
            return false;
        };
        flights.drives[flight.file].n_failures = 0;
        let done = flight.done - flight.done % DIRECT_ALIGN + n;
        flight.n_stuck = if done > flight.done {
            0
        } else {
            flight.n_stuck + 1
        };
        flight.done = done;
        if flight.done >= flight.needed {
            return true;
        }
        // A read that repeatedly returns the same bytes is at the end of the file.
        if n > 0 && flight.n_stuck < STUCK_MAX {
            self.go_on(state, token);
            return false;
        }
        let (layer, expert) = self.places.of_id(flight.id);
        let error = ExpertError::EndOfFile {
            path: flights.drives[flight.file].path.clone(),
            layer,
            expert,
            offset: flight.offset + flight.done as u64,
        };
        self.give_up(state, token, error);
        false
    }

    /// A read is over, well or not. Gives it back.
    pub(super) fn end(&self, state: &mut State, token: usize) {
        let flights = &mut state.flights;
        let Some(flight) = flights.flights[token].take() else {
            return;
        };
        flights.free.push(token);
        flights.free_staging.extend(flight.staging);
        if flight.is_guess {
            flights.n_guesses -= 1;
            state.ahead.n_reading -= 1;
            // A read that was retried or given up does not show how long a read takes.
            let was_plain = flight.n_tries == 1 && flight.done >= flight.needed;
            if state.ahead.n_reading == 0 && was_plain {
                let is_alone = flights.n_awaited() == 0;
                let time = flight.begun.elapsed();
                state.ahead.governor.has_read(time, is_alone);
            }
        } else if flights.n_awaited() == 0 {
            state.ahead.governor.is_idle(Instant::now());
        }
        let left = &mut state.info[flight.slot].n_reading[flight.part as usize];
        *left -= 1;
        let is_coming = self.slots.progress(flight.slot, flight.part) == Progress::Coming;
        if *left == 0 && is_coming {
            self.slots
                .set_progress(flight.slot, flight.part, Progress::Ready);
        }
    }

    /// Turns the rows of a read into panels.
    fn pack(&self, flight: &Flight, layout: &PanelLayout, from: NonNull<u8>, slot_offset: usize) {
        let row_bytes = layout.gguf_row_bytes();
        let len = layout.n_rows() * row_bytes;
        // SAFETY: the read is done, and its room is given back only after this.
        let rows = unsafe { core::slice::from_raw_parts(from.as_ptr(), len) };
        let to = self.slots.at(flight.slot, slot_offset);
        // SAFETY: nothing reads this part of the slot before it is ready, and this read alone fills these bytes.
        let panels = unsafe { core::slice::from_raw_parts_mut(to.as_ptr(), layout.bytes()) };
        for (band, rows) in layout.bands().zip(rows.chunks(PANEL_ROWS * row_bytes)) {
            let bytes = layout.byte_range(band.clone());
            for (index, row) in band.zip(rows.chunks_exact(row_bytes)) {
                layout.pack_row(index, row, &mut panels[bytes.clone()]);
            }
        }
    }
}

impl Shared {
    /// A read has all its bytes: checks them, makes panels of rows, and wakes the waiting threads.
    fn land<'s>(&'s self, mut state: MutexGuard<'s, State>, token: usize) -> MutexGuard<'s, State> {
        let Some(flight) = state.flights.flights[token] else {
            return state;
        };
        let (layer, expert) = self.places.of_id(flight.id);
        let places = self.places.layers[layer]
            .as_ref()
            .expect("an expert's layer has experts");
        let piece = &places.parts[flight.part as usize].pieces[flight.piece];
        let from = match flight.staging {
            Some(index) => {
                let start = state.flights.staging_at(index);
                // SAFETY: inside the room, which is as long as the read.
                unsafe { start.add(flight.skip) }
            }
            None => self.place_of(&flight, piece.slot_offset),
        };
        if self.checks.is_some() || piece.rows.is_some() {
            // Others need not wait for this.
            drop(state);
            let checks = self.checks.as_ref();
            // SAFETY: the read is done, and its room is given back only after this.
            let is_right = checks
                .is_none_or(|checks| unsafe { checks.are_right(&flight, piece, expert, from) });
            if let (true, Some(layout)) = (is_right, &piece.rows) {
                self.pack(&flight, layout, from, piece.slot_offset);
            }
            state = self.lock();
            if !is_right {
                self.has_failed(&mut state, token, Trouble::Bytes);
                return state;
            }
        }
        let stats = &mut state.stats;
        stats.reads += 1;
        stats.read_bytes += flight.needed as u64;
        match flight.is_guess {
            true => stats.guessed_bytes += flight.needed as u64,
            false => stats.note_read_time(flight.begun.elapsed()),
        }
        self.end(&mut state, token);
        state
    }
}

impl Completions for Shared {
    fn completed(&self, token: u32, result: Result<usize, i32>) {
        let token = token as usize;
        let mut state = self.lock();
        let flight = state.flights.flights[token];
        match result {
            Ok(n) => {
                if self.has_come(&mut state, token, n) {
                    state = self.land(state, token);
                }
            }
            Err(errno) => self.has_failed(&mut state, token, Trouble::Errno(errno)),
        }
        if !self.is_closing.load(Ordering::Relaxed) {
            self.ask_for_more(&mut state);
        }
        drop(state);
        // Workers wait for whole parts, of several reads, or for room.
        let is_coming = flight.is_some_and(|flight| {
            self.slots.progress(flight.slot, flight.part) == Progress::Coming
        });
        if !is_coming || self.is_short.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    fn tick(&self) -> Duration {
        let (now, mut next) = (Instant::now(), Duration::from_secs(1));
        let mut state = self.lock();
        if state.flights.len() == 0 {
            return next;
        }
        let mut has_changed = false;
        for token in 0..N_READS {
            let Some(flight) = state.flights.flights[token] else {
                continue;
            };
            match flight.retry {
                Some(due) if due > now && !self.is_closing.load(Ordering::Relaxed) => {
                    next = next.min(due - now);
                }
                Some(_) => {
                    self.try_again(&mut state, token);
                    has_changed = true;
                }
                None if now - flight.begun > PATIENCE && !flight.is_overdue => {
                    self.lose_patience(&mut state, token);
                    has_changed = true;
                }
                None => {}
            }
        }
        if has_changed {
            self.flush();
        }
        drop(state);
        if has_changed {
            self.wake();
        }
        next
    }
}

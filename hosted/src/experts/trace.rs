//! Traces: which experts each layer chose for each token, one JSON object a line.
//!
//! ```json
//! {"token":0,"layer":3,"experts":[17,4],"cache_hit":[true,false],"predicted":[4,9]}
//! ```
//!
//! A line is a step: one layer at work on one token. `cache_hit` has a value for each of `experts`, or is empty;
//! `predicted` was expected before the router chose, the likeliest first. Ids are a layer's own (`0..n_expert`).
#![forbid(unsafe_code)]

use core::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

/// Why a trace cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("cannot open trace {file}: {error}")]
    Open { file: String, error: io::Error },
    /// It is a directory.
    #[error("trace {file} is a directory")]
    Directory { file: String },
    /// It exists and is not a trace.
    #[error("{file} exists already and is not a trace; it was not changed")]
    Foreign { file: String },
}

/// Appends steps to a trace.
///
/// [`record`](Self::record) formats into memory allocated before, and touches no file: it may run between the layers
/// of a step. [`flush`](Self::flush) writes the recorded steps; call it between tokens. Steps that do not fit are
/// dropped and counted.
#[derive(Debug)]
pub struct TraceWriter {
    file: File,
    buffer: String,
    n_lost: u64,
}

impl TraceWriter {
    /// Appends to the file `path`, or creates it.
    ///
    /// # Errors
    /// [`TraceError`]: it cannot be written, or is not a trace.
    pub fn append(path: &Path) -> Result<Self, TraceError> {
        let name = || path.display().to_string();
        let opened = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(path);
        let mut file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::IsADirectory => TraceError::Directory { file: name() },
            _ => TraceError::Open {
                file: name(),
                error,
            },
        })?;
        let is_file = file.metadata().is_ok_and(|found| found.is_file());
        if is_file && !begins_as_a_trace(&mut file) {
            return Err(TraceError::Foreign { file: name() });
        }
        Ok(Self {
            file,
            buffer: String::with_capacity(BUFFER_BYTES),
            n_lost: 0,
        })
    }

    /// Keeps a step for the next [`flush`](Self::flush). `cache_hit` has a value for each of `experts`, or is empty.
    /// False if there was no room for the step. Nothing is allocated.
    pub fn record(
        &mut self,
        token: u64,
        layer: u32,
        experts: &[u32],
        cache_hit: &[bool],
        predicted: &[u32],
    ) -> bool {
        let n_ids = experts.len() + predicted.len();
        let len_max = NAMES_BYTES + n_ids * ID_BYTES + cache_hit.len() * "false,".len();
        if len_max > self.buffer.capacity() - self.buffer.len() {
            self.n_lost += 1;
            return false;
        }
        let text = &mut self.buffer;
        // Writing to a string cannot fail.
        let _ = write!(text, "{{\"token\":{token},\"layer\":{layer},\"experts\":[");
        list(text, experts);
        text.push_str("],\"cache_hit\":[");
        list(text, cache_hit);
        text.push_str("],\"predicted\":[");
        list(text, predicted);
        text.push_str("]}\n");
        true
    }

    /// Writes the recorded steps.
    ///
    /// # Errors
    /// The file cannot be written, for example because the disk is full. The recorded steps are lost then.
    pub fn flush(&mut self) -> io::Result<()> {
        let written = self.file.write_all(self.buffer.as_bytes());
        self.buffer.clear();
        written
    }

    /// Number of steps dropped for lack of room.
    #[must_use]
    pub const fn n_lost(&self) -> u64 {
        self.n_lost
    }
}

#[cfg(test)]
impl TraceWriter {
    /// Address and length of the buffer: neither changes.
    fn buffer_address(&self) -> (*const u8, usize) {
        (self.buffer.as_ptr(), self.buffer.capacity())
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        // An error is ignored here: call `flush` to see it.
        let _written = self.flush();
    }
}

fn list<T: fmt::Display>(text: &mut String, values: &[T]) {
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        let _ = write!(text, "{value}");
    }
}

/// Whether a file is empty or starts like a trace.
fn begins_as_a_trace(file: &mut File) -> bool {
    let mut head = Vec::new();
    let read = file.take(HEAD.len() as u64).read_to_end(&mut head);
    read.is_ok() && (head.is_empty() || head == HEAD)
}

/// The maximum number of layers of a model, as in core.
pub const LAYERS_MAX: u32 = 512;
/// The maximum number of experts of a layer.
pub const EXPERTS_MAX: u32 = 1024;
/// Ids are below this.
pub const IDS_MAX: u32 = LAYERS_MAX * EXPERTS_MAX;
const _: () = assert!(LAYERS_MAX as usize == sluice_core::model::LAYERS_MAX);

const HEAD: &[u8] = b"{\"token\":";
/// More than 50 tokens of a model with 61 layers and 8 experts in each step.
const BUFFER_BYTES: usize = 1 << 20;
/// Names, brackets, and two numbers.
const NAMES_BYTES: usize = 100;
/// An id and its comma.
const ID_BYTES: usize = 11;

#[cfg(test)]
mod tests;

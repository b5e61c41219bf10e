//! Traces, read line by line: the steps that [`TraceWriter`](sluice::experts::trace::TraceWriter) writes.

mod error;

pub use error::{LineError, TraceReadError};

use serde_json::{Map, Value};
use sluice::experts::trace::{EXPERTS_MAX, IDS_MAX, LAYERS_MAX};
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

/// A line of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceStep {
    /// Number of the token.
    pub token: u64,
    /// The layer.
    pub layer: u32,
    /// The router's choice, without duplicates.
    pub experts: Vec<u32>,
    /// Whether each of `experts` was in memory; empty if that is not known.
    pub cache_hit: Vec<bool>,
    /// The predictions, the likeliest first, without duplicates.
    pub predicted: Vec<u32>,
}

/// Reads a trace line by line.
#[derive(Debug)]
pub struct TraceReader<R> {
    name: String,
    lines: R,
    line: u64,
    text: Vec<u8>,
}

impl TraceReader<BufReader<File>> {
    /// Opens the file `path`.
    ///
    /// # Errors
    /// [`TraceReadError`]: it cannot be opened, or is a directory.
    pub fn open(path: &Path) -> Result<Self, TraceReadError> {
        let name = path.display().to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.is_dir(), file)));
        match opened {
            Ok((false, file)) => Ok(Self::new(&name, BufReader::new(file))),
            Ok((true, _)) => Err(TraceReadError::Directory { file: name }),
            Err(error) => Err(TraceReadError::Open { file: name, error }),
        }
    }
}

impl<R: BufRead> TraceReader<R> {
    /// Reads `lines`; errors call the source `name`.
    pub fn new(name: &str, lines: R) -> Self {
        Self {
            name: name.to_owned(),
            lines,
            line: 0,
            text: Vec::new(),
        }
    }

    /// Its name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the last line that was read, from 1.
    pub const fn line(&self) -> u64 {
        self.line
    }

    /// Reads the next line into `step`; false at the end. Empty lines are skipped.
    ///
    /// # Errors
    /// [`TraceReadError`], with the line's number.
    pub fn read(&mut self, step: &mut TraceStep) -> Result<bool, TraceReadError> {
        loop {
            self.text.clear();
            self.line += 1;
            let mut rest = (&mut self.lines).take(LINE_BYTES_MAX + 1);
            let n = rest.read_until(b'\n', &mut self.text);
            let n = n.map_err(|error| TraceReadError::Read {
                file: self.name.clone(),
                error,
            })?;
            if n == 0 {
                return Ok(false);
            }
            let parsed = match n as u64 > LINE_BYTES_MAX {
                true => Err(LineError::TooLong),
                false if self.text.trim_ascii().is_empty() => continue,
                false => step.parse(self.text.trim_ascii_end()),
            };
            return parsed.map(|()| true).map_err(|error| TraceReadError::Line {
                file: self.name.clone(),
                line: self.line,
                error,
            });
        }
    }
}

impl TraceStep {
    /// Parses a line.
    fn parse(&mut self, text: &[u8]) -> Result<(), LineError> {
        let value = serde_json::from_slice(text).map_err(|error| LineError::Json {
            column: error.column(),
            error: error.to_string(),
        })?;
        let Value::Object(line) = value else {
            return Err(LineError::NotAnObject);
        };
        let number = |field: &'static str| {
            let value = line.get(field).ok_or(LineError::Absent { field })?;
            value.as_u64().ok_or(LineError::NotANumber { field })
        };
        self.token = number("token")?;
        let layer = u32::try_from(number("layer")?).unwrap_or(u32::MAX);
        if layer >= LAYERS_MAX {
            return Err(LineError::LayerTooLarge);
        }
        self.layer = layer;
        ids(&line, "experts", true, &mut self.experts)?;
        ids(&line, "predicted", false, &mut self.predicted)?;
        self.cache_hit.clear();
        for hit in list(&line, "cache_hit", false)? {
            let hit = hit.as_bool().ok_or(LineError::NotHits)?;
            self.cache_hit.push(hit);
        }
        let (n_hits, n_experts) = (self.cache_hit.len(), self.experts.len());
        if n_hits > 0 && n_hits != n_experts {
            return Err(LineError::HitsOfOthers { n_hits, n_experts });
        }
        Ok(())
    }
}

/// The list `field` of a line; an absent optional list counts as empty.
fn list<'l>(
    line: &'l Map<String, Value>,
    field: &'static str,
    is_needed: bool,
) -> Result<&'l [Value], LineError> {
    let list = match line.get(field) {
        None | Some(Value::Null) if !is_needed => return Ok(&[]),
        None => return Err(LineError::Absent { field }),
        Some(value) => value.as_array().ok_or(LineError::NotAList { field })?,
    };
    if list.len() > EXPERTS_MAX as usize {
        return Err(LineError::ListTooLong { field });
    }
    Ok(list)
}

/// The ids in the list `field`.
fn ids(
    line: &Map<String, Value>,
    field: &'static str,
    is_needed: bool,
    into: &mut Vec<u32>,
) -> Result<(), LineError> {
    into.clear();
    for value in list(line, field, is_needed)? {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.filter(|&id| id < IDS_MAX);
        into.push(id.ok_or(LineError::NotAnId { field })?);
    }
    if let Some(id) = twice(into) {
        return Err(LineError::Twice { field, id });
    }
    Ok(())
}

/// An id that is in a list more than once.
fn twice(ids: &[u32]) -> Option<u32> {
    if ids.len() <= 16 {
        let again = |&(i, id): &(usize, &u32)| ids[..i].contains(id);
        return ids.iter().enumerate().find(again).map(|(_, &id)| id);
    }
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted
        .windows(2)
        .find(|two| two[0] == two[1])
        .map(|two| two[0])
}

/// Upper limit: three lists of all experts of a layer take less.
const LINE_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests;

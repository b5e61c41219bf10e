//! Errors of experts on disk.
#![forbid(unsafe_code)]

use crate::host::memory::OutOfMemory;
use crate::host::process::TooManyFiles;
use crate::neurons::NeuronOrderError;
use core::error::Error;
use core::fmt;
use core::time::Duration;
use sluice_core::model::ModelError;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why experts cannot be read from disk, or one of them was not.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum ExpertError {
    /// The model has no experts.
    NoExperts { name: String },
    /// The file's experts cannot be found.
    Model {
        name: String,
        error: Box<ModelError>,
    },
    /// The model is part of the program, not a file to read experts from.
    NoFile { name: String },
    /// Weights are read from elsewhere than the model's file, so its experts may differ from the file's.
    OtherSource { name: String },
    /// The memory is less than one expert takes.
    TooSmall {
        cache_bytes: usize,
        expert_bytes: usize,
    },
    /// The memory is less than the cold neurons of a layer take, all of which a prompt needs at once.
    TooSmallForLayer {
        cache_bytes: usize,
        layer_bytes: usize,
    },
    /// The keys of the order of neurons do not fit the model.
    Order {
        name: String,
        error: NeuronOrderError,
    },
    /// Not enough memory for the pools.
    Memory(Arc<OutOfMemory>),
    /// A file cannot be opened.
    Open {
        path: PathBuf,
        error: Arc<io::Error>,
    },
    /// The process may not open that many files.
    Files { n_files: usize, error: TooManyFiles },
    /// A file in a directory of copies is not the model's file.
    OtherFile { path: PathBuf, reason: String },
    /// The requested way to read does not work here.
    Device { what: &'static str, reason: String },
    /// The trace cannot be written.
    Trace { path: PathBuf, reason: String },
    /// Reading failed at every try.
    Read {
        path: PathBuf,
        layer: usize,
        expert: u32,
        offset: u64,
        n_tries: u32,
        error: Arc<io::Error>,
    },
    /// The file has become shorter.
    EndOfFile {
        path: PathBuf,
        layer: usize,
        expert: u32,
        offset: u64,
    },
    /// The drive has failed too often and is not used at the moment.
    Broken { path: PathBuf, retry_in: Duration },
    /// The drive does not answer.
    NoAnswer {
        path: PathBuf,
        layer: usize,
        expert: u32,
        after: Duration,
    },
    /// The bytes do not match the file's checksum.
    Checksum {
        path: PathBuf,
        layer: usize,
        expert: u32,
        offset: u64,
    },
}

impl fmt::Display for ExpertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoExperts { name } => {
                write!(
                    f,
                    "{name}: the model has no experts to keep on disk, nor cold neurons (of files by `sluice quantize --hot` \
                     and `sluice pack --ffn neuron`)"
                )
            }
            Self::Model { name, error } => write!(f, "{name}: {error}"),
            Self::NoFile { name } => write!(
                f,
                "{name}: embedded in the program; its experts are in memory"
            ),
            Self::OtherSource { name } => write!(
                f,
                "{name}: experts cannot stay on disk if weights are computed from the file's"
            ),
            Self::TooSmall {
                cache_bytes,
                expert_bytes,
            } => write!(
                f,
                "a cache of {cache_bytes} bytes cannot hold a single expert of {expert_bytes} bytes"
            ),
            Self::TooSmallForLayer {
                cache_bytes,
                layer_bytes,
            } => write!(
                f,
                "a cache of {cache_bytes} bytes cannot hold the cold neurons of one layer, {layer_bytes} bytes"
            ),
            Self::Order { name, error } => write!(f, "{name}: {error}"),
            Self::Memory(error) => write!(f, "not enough memory for experts: {error}"),
            Self::Open { path, error } => write!(f, "cannot open {}: {error}", path.display()),
            Self::Files { n_files, error } => {
                write!(f, "the model's experts are in {n_files} files: {error}")
            }
            Self::OtherFile { path, reason } => {
                write!(f, "{} is not a copy of the model: {reason}", path.display())
            }
            Self::Device { what, reason } => {
                write!(f, "experts cannot be read by {what}: {reason}")
            }
            Self::Trace { path, reason } => {
                write!(f, "cannot write the trace {}: {reason}", path.display())
            }
            of_read => of_read.of_read(f),
        }
    }
}

impl ExpertError {
    /// Of the errors of a read.
    fn of_read(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read {
                path,
                layer,
                expert,
                offset,
                n_tries,
                error,
            } => write!(
                f,
                "cannot read expert {expert} of layer {layer} ({} at byte {offset}) after {n_tries} tries: {error}",
                path.display()
            ),
            Self::EndOfFile {
                path,
                layer,
                expert,
                offset,
            } => write!(
                f,
                "{} ends at byte {offset}, within expert {expert} of layer {layer}: the file was truncated",
                path.display()
            ),
            Self::Broken { path, retry_in } => write!(
                f,
                "{} could not be read several times in a row; retrying in {} ms",
                path.display(),
                retry_in.as_millis()
            ),
            Self::NoAnswer {
                path,
                layer,
                expert,
                after,
            } => write!(
                f,
                "a read of expert {expert} of layer {layer} from {} has not completed for {} s",
                after.as_secs(),
                path.display()
            ),
            Self::Checksum {
                path,
                layer,
                expert,
                offset,
            } => write!(
                f,
                "expert {expert} of layer {layer} ({} at byte {offset}) does not match its checksum",
                path.display()
            ),
            _ => Ok(()),
        }
    }
}

impl Error for ExpertError {}

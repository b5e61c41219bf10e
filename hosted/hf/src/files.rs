//! Files of a folder: JSON, text, and headers of safetensors files.

use crate::HfError;
use crate::python_json::standard;
use crate::safetensors::{Header, PREFIX_BYTES};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sluice::file::{ReadFile, mistaken};
use sluice_core::gguf::source::TensorSource as _;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// The longest file of JSON or text that is read: vocabularies take up to about 35 MB.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// The header of an open safetensors file.
///
/// # Errors
/// [`HfError`].
pub fn read_header(path: &Path, file: &ReadFile) -> Result<Header, HfError> {
    let header_error = |error| HfError::Header {
        path: path.into(),
        error,
    };
    let file_bytes = file.len_bytes();
    let prefix_bytes = usize::try_from(file_bytes).unwrap_or(PREFIX_BYTES);
    let mut head = vec![0; prefix_bytes.min(PREFIX_BYTES)];
    let read_error = |error| HfError::Data {
        path: path.into(),
        tensor: "header".into(),
        error,
    };
    file.read(0, &mut head).map_err(read_error)?;
    let mut start = vec![0; usize::try_from(file_bytes).map_or(256, |n| n.min(256))];
    file.read(0, &mut start).map_err(read_error)?;
    if let Some(what) = mistaken(&start) {
        let path = path.into();
        return Err(HfError::Mistaken { path, what });
    }
    let json_bytes = Header::json_bytes(&head, file_bytes).map_err(header_error)?;
    head.resize(head.len() + json_bytes, 0);
    file.read(PREFIX_BYTES as u64, &mut head[PREFIX_BYTES..])
        .map_err(read_error)?;
    Header::parse(&head, file_bytes).map_err(header_error)
}

/// Whether a file exists. One that cannot be accessed is reported when it is read.
#[must_use]
pub fn exists(path: &Path) -> bool {
    path.is_file()
}

/// Reads a whole text file, up to 64 MiB.
///
/// # Errors
/// [`HfError`].
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, HfError> {
    let read_error = |error| HfError::Read {
        path: path.into(),
        error,
    };
    if !fs::metadata(path).map_err(read_error)?.is_file() {
        return Err(read_error(io::Error::other("not a regular file")));
    }
    let file = File::open(path).map_err(read_error)?;
    let mut bytes = Vec::new();
    let mut limited = file.take(TEXT_BYTES_MAX + 1);
    let len_bytes = limited.read_to_end(&mut bytes).map_err(read_error)? as u64;
    if len_bytes > TEXT_BYTES_MAX {
        return Err(HfError::TooLarge {
            path: path.into(),
            len_bytes,
            bytes_max: TEXT_BYTES_MAX,
        });
    }
    Ok(bytes)
}

/// Reads a whole text file.
///
/// # Errors
/// [`HfError`].
pub fn read_text(path: &Path) -> Result<String, HfError> {
    let text = String::from_utf8(read_bytes(path)?);
    text.map_err(|error| HfError::Read {
        path: path.into(),
        error: io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()),
    })
}

/// Describes what a text is if it does not match its file name.
#[must_use]
pub fn mistaken_text(bytes: &[u8]) -> Option<&'static str> {
    mistaken(&bytes[..bytes.len().min(256)])
}

/// The bytes of a JSON file, converted to standard JSON.
///
/// # Errors
/// [`HfError`].
pub fn read_text_bytes(path: &Path) -> Result<Vec<u8>, HfError> {
    let bytes = read_bytes(path)?;
    match mistaken_text(&bytes) {
        Some(what) => Err(HfError::Mistaken {
            path: path.into(),
            what,
        }),
        None => Ok(standard(bytes)),
    }
}

/// Reads a JSON file.
///
/// # Errors
/// [`HfError`].
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, HfError> {
    serde_json::from_slice(&read_text_bytes(path)?).map_err(|error| HfError::Json {
        path: path.into(),
        error,
    })
}

/// Reads the object in a file; empty if the file does not exist.
///
/// # Errors
/// [`HfError`].
pub fn read_object_if_there(path: &Path) -> Result<Map<String, Value>, HfError> {
    match exists(path) {
        true => read_json(path),
        false => Ok(Map::new()),
    }
}

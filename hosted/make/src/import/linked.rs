//! Experts that are not copied: a GGUF file refers to their files.

use super::directory::Directory;
use super::error::ImportError;
use super::experts::Experts;
use sluice::file::ExpertLinks;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The positions of all experts' matrices, for a GGUF file in `folder`.
pub(super) fn links(
    directory: &Directory,
    experts: &Experts<'_>,
    folder: &Path,
) -> Result<ExpertLinks, ImportError> {
    let folder = canonical(folder)?;
    let mut files = Files {
        folder,
        links: ExpertLinks::default(),
        found: HashMap::new(),
    };
    let tensors = experts.tensors();
    for (layer, of_layer) in (0..).zip(tensors.chunks(3)) {
        let mut places = [const { Vec::new() }; 3];
        for local in 0..directory.facts().n_expert {
            let (path, offsets) = experts.place(layer, local)?;
            let (file, len_bytes) = files.add(&path)?;
            for (i, offset) in offsets.into_iter().enumerate() {
                let (_, [n_cols, n_rows, _], ty) = &of_layer[i];
                let row_bytes = ty.row_bytes(*n_cols).unwrap_or(u64::MAX);
                let expected = offset.saturating_add(row_bytes.saturating_mul(*n_rows));
                if expected > len_bytes {
                    return Err(ImportError::Length {
                        path,
                        found: len_bytes,
                        expected,
                    });
                }
                places[i].push((file, offset));
            }
        }
        for ((name, dims, ty), places) in of_layer.iter().zip(&places) {
            files.links.add_tensor(name, *dims, *ty, places);
        }
    }
    Ok(files.links)
}

/// The files found so far.
struct Files {
    /// The folder of the GGUF file, with symbolic links resolved.
    folder: PathBuf,
    links: ExpertLinks,
    /// Index and length.
    found: HashMap<PathBuf, (u32, u64)>,
}

impl Files {
    /// Index and length of a file. Its name is relative if it is in the GGUF file's folder, so that both can be moved
    /// together.
    fn add(&mut self, path: &Path) -> Result<(u32, u64), ImportError> {
        if let Some(found) = self.found.get(path) {
            return Ok(*found);
        }
        let metadata = fs::metadata(path).map_err(|error| read_error(path, error))?;
        // A file that is a symbolic link is not resolved: its target may be replaced.
        let full = canonical(path.parent().unwrap_or(Path::new("")))?;
        let full = full.join(path.file_name().unwrap_or_default());
        let name = full.strip_prefix(&self.folder).unwrap_or(&full).to_str();
        let name = name.ok_or_else(|| ImportError::Utf8 { path: full.clone() })?;
        let index = self.links.add_file(name.to_owned(), metadata.len());
        self.found.insert(path.to_owned(), (index, metadata.len()));
        Ok((index, metadata.len()))
    }
}

/// A folder, with symbolic links resolved.
fn canonical(folder: &Path) -> Result<PathBuf, ImportError> {
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    fs::canonicalize(folder).map_err(|error| read_error(folder, error))
}

fn read_error(path: &Path, error: io::Error) -> ImportError {
    let path = path.to_owned();
    ImportError::Read { path, error }
}

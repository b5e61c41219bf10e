//! The files that a configuration's paths stand for: folders have one for training and one for evaluation.

use super::error::DataError;
use crate::config::{DataFile, DataSettings};
use std::path::Path;

/// Files by what they are for.
pub(super) struct Paths {
    pub(super) train: Vec<DataFile>,
    pub(super) eval: Vec<DataFile>,
    /// Files of folders that are not used.
    pub(super) unused: Vec<std::path::PathBuf>,
}

pub(super) fn of(settings: &DataSettings) -> Result<Paths, DataError> {
    let mut paths = Paths {
        train: Vec::new(),
        eval: Vec::new(),
        unused: Vec::new(),
    };
    for file in &settings.files {
        if !file.path.is_dir() {
            paths.train.push(file.clone());
            continue;
        }
        let train = in_folder(file, &["train"]).ok_or_else(|| DataError::Folder {
            path: file.path.clone(),
        })?;
        paths.train.push(train);
        // Files that are named take the place of a folder's.
        let valid = in_folder(file, &["valid", "validation", "val", "dev"]);
        match settings.eval_files.is_empty() {
            true => paths.eval.extend(valid),
            false => paths.unused.extend(valid.map(|file| file.path)),
        }
        paths
            .unused
            .extend(in_folder(file, &["test"]).map(|file| file.path));
    }
    for file in &settings.eval_files {
        let is_folder = file.path.is_dir();
        let found = match is_folder {
            true => in_folder(file, &["valid", "validation", "val", "dev", "test"]),
            false => Some(file.clone()),
        };
        paths.eval.push(found.ok_or_else(|| DataError::Folder {
            path: file.path.clone(),
        })?);
    }
    Ok(paths)
}

/// The first file of a folder with one of these names.
fn in_folder(folder: &DataFile, names: &[&str]) -> Option<DataFile> {
    let path = |name: &str, extension: &str| folder.path.join(format!("{name}.{extension}"));
    let all = names
        .iter()
        .flat_map(|name| ["jsonl", "json", "csv", "tsv"].map(|ext| path(name, ext)));
    let path = all
        .into_iter()
        .find(|path: &std::path::PathBuf| Path::is_file(path))?;
    Some(DataFile {
        path,
        ..folder.clone()
    })
}

//! Folders of several files that are written as a unit.

use super::LoraError;
use sluice::file::{OutputError, OutputFile};
use std::fs;
use std::path::{Path, PathBuf};

/// Writes files into a folder, which is created if necessary: either all of them, or no new file. The last file is the
/// one that identifies the folder's format.
pub(super) fn write_all(
    folder: &Path,
    contents: &[(&str, &Vec<u8>)],
    overwrite: bool,
) -> Result<(), LoraError> {
    let is_new = !folder.exists();
    if is_new {
        fs::create_dir(folder).map_err(|error| OutputError::Create {
            path: folder.into(),
            error,
        })?;
    }
    let written = write_into(folder, contents, overwrite);
    if written.is_err() && is_new {
        let _removed = fs::remove_dir(folder);
    }
    Ok(written?)
}

fn write_into(
    folder: &Path,
    contents: &[(&str, &Vec<u8>)],
    overwrite: bool,
) -> Result<(), OutputError> {
    let path = |name: &str| folder.join(name);
    let create = |&(name, _): &(&str, _)| OutputFile::create(&path(name), overwrite);
    let outputs = contents.iter().map(create).collect::<Result<Vec<_>, _>>()?;
    for (output, (_, bytes)) in outputs.iter().zip(contents) {
        output.write_at(0, bytes)?;
    }
    let mut finished: Vec<PathBuf> = Vec::new();
    for (output, (name, _)) in outputs.into_iter().zip(contents) {
        let path = path(name);
        let is_new = !path.exists();
        if let Err(error) = output.finish() {
            for path in finished {
                let _removed = fs::remove_file(path);
            }
            return Err(error);
        }
        finished.extend(is_new.then_some(path));
    }
    Ok(())
}

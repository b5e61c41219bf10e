//! Under which identity a model's pages are in a folder.
//!
//! A file that was not hashed yet is known by its place, and so are its pages. Once its hash is known, they stay as
//! they are: `models/HASH` then says that this model's pages lie under the place. Each such file has an identity of
//! 32 bytes, and a tag of both (HMAC-SHA256 with the folder's key).

use sluice::file::{FolderKey, open_plain};
use sluice::identity::{Identity, ModelIdentity};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The owners of pages in a folder.
pub(super) struct Owners<'f> {
    pub(super) folder: &'f Path,
    pub(super) key: &'f FolderKey,
}

impl Owners<'_> {
    /// The identity of a model's pages: the place of its file if it has left pages there before its hash was known.
    pub(super) fn of(&self, model: &ModelIdentity) -> Identity {
        let place = model.place();
        let Some(hash) = model.hash_at_load() else {
            self.note(place, place);
            return place;
        };
        if let Some(owner) = self.find(hash) {
            return owner;
        }
        let owner = self.find(place).unwrap_or(hash);
        self.note(hash, owner);
        // Another server may have been faster.
        self.find(hash).unwrap_or(owner)
    }

    fn find(&self, model: Identity) -> Option<Identity> {
        let mut bytes = Vec::new();
        let file = open_plain(&self.path_of(model)).ok()?;
        file.take(64).read_to_end(&mut bytes).ok()?;
        let (owner, tag) = bytes.split_first_chunk()?;
        let is_ours = self
            .key
            .verifies(&[b"model", &model.0, owner], tag.try_into().ok()?);
        is_ours.then_some(Identity(*owner))
    }

    /// Notes the owner unless there is one. Where that fails, pages are found until the hash becomes known.
    fn note(&self, model: Identity, owner: Identity) {
        let path = self.path_of(model);
        if self.find(model).is_some() {
            return;
        }
        let write = || -> io::Result<()> {
            let folder = self.folder.join("models");
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)?;
            if !fs::symlink_metadata(&folder)?.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            let (part, mut file) = create_part(&folder)?;
            let note = [&owner.0[..], &self.key.tag(&[b"model", &model.0, &owner.0])].concat();
            // A file that is there was not written with this key: `find` has looked.
            let linked = file
                .write_all(&note)
                .and_then(|()| fs::hard_link(&part, &path));
            let noted = match linked {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    fs::rename(&part, &path)
                }
                _ if self.find(model).is_some() => Ok(()),
                _ => fs::rename(&part, &path),
            };
            let _gone = fs::remove_file(&part);
            noted
        };
        let _noted = write();
    }

    fn path_of(&self, model: Identity) -> PathBuf {
        self.folder.join("models").join(model.to_string())
    }
}

/// A new file: processes of different containers may have the same number.
fn create_part(folder: &Path) -> io::Result<(PathBuf, File)> {
    let mut n = 0;
    loop {
        n += 1;
        let path = folder.join(format!(".{}-{n}", std::process::id()));
        let mut options = File::options();
        let options = options.write(true).create_new(true).mode(0o600);
        match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n < PARTS_MAX => {}
            opened => return Ok((path, opened?)),
        }
    }
}

/// Unfinished files of killed processes that may lie there.
const PARTS_MAX: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_place_stay_the_models_own_once_it_is_hashed() {
        let folder = std::env::temp_dir().join(format!("sluice-owners-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let key = FolderKey::open(&folder).unwrap();
        let owners = Owners {
            folder: &folder,
            key: &key,
        };
        let [place, hash, other] = [1, 2, 3].map(|byte| Identity([byte; 32]));
        owners.note(place, place);
        owners.note(hash, place);
        // The first note holds.
        owners.note(hash, hash);
        assert_eq!(owners.find(hash), Some(place));
        // A note under another key, or under another name, does not count.
        let forged = folder.join("models").join(other.to_string());
        fs::copy(owners.path_of(hash), &forged).unwrap();
        assert_eq!(owners.find(other), None);
        owners.note(other, other);
        assert_eq!(owners.find(other), Some(other));
        // Nothing but notes stays, and nothing is written through a link.
        assert_eq!(fs::read_dir(folder.join("models")).unwrap().count(), 3);
        let elsewhere = folder.join("elsewhere");
        fs::rename(folder.join("models"), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.join("models")).unwrap();
        owners.note(Identity([4; 32]), other);
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 3);
        fs::remove_dir_all(&folder).unwrap();
    }
}

//! Files of this user alone, and the key of a folder of caches.
//!
//! Any user who may write to a folder may put files there. The pages, prompt caches and slots that we read back as our
//! own are therefore authenticated with a key in the folder's `.sluice-key`: 32 random bytes that no other user may read or write.
#![forbid(unsafe_code)]

use super::{OutputError, OutputFile};
use core::fmt;
use hmac::{Hmac, KeyInit as _, Mac as _};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
use sha2::Sha256;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A folder's key. Clones are equal.
#[derive(Clone, PartialEq, Eq)]
pub struct FolderKey([u8; KEY_BYTES]);

/// Why a file is not used as this user's own.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct PrivateFileError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub problem: PrivateFileProblem,
}

/// The reason why a file is not used as this user's own.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum PrivateFileProblem {
    /// It cannot be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It cannot be created.
    #[error(transparent)]
    Create(#[from] OutputError),
    /// A link, folder, device or pipe has its name.
    #[error("it is not a regular file")]
    NotRegular,
    /// Another user's.
    #[error(
        "it belongs to user {found}, and this process runs as user {expected}: use another folder"
    )]
    Owner { found: u32, expected: u32 },
    /// Others may read or write it.
    #[error(
        "others may read or write it (mode {mode:o}): remove it; what is cached in its folder is then made again"
    )]
    Exposed { mode: u32 },
    /// A key of another length.
    #[error(
        "it has {found} bytes instead of {KEY_BYTES}: remove it; what is cached in its folder is then made again"
    )]
    Length { found: u64 },
}

/// A folder that other users may write to: they can remove and replace what is there, but not make others believe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFolder {
    path: PathBuf,
    mode: u32,
}

impl SharedFolder {
    /// Whether `path` is one; not if it does not exist.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        let owner = found.uid();
        let is_shared = found.mode() & 0o022 != 0 || ![0, user()].contains(&owner);
        is_shared.then(|| Self {
            path: path.into(),
            mode: found.mode() & 0o7777,
        })
    }
}

impl fmt::Display for SharedFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, mode) = (self.path.display(), self.mode);
        write!(
            f,
            "{path}: other users may write to this folder (mode {mode:o}) and remove what is cached there"
        )
    }
}

impl FolderKey {
    /// The key of a folder. Makes one if the folder has no key yet.
    ///
    /// # Errors
    /// [`PrivateFileError`]: the folder must not be used.
    pub fn open(folder: &Path) -> Result<Self, PrivateFileError> {
        if let Some(key) = Self::existing(folder)? {
            return Ok(key);
        }
        let path = folder.join(KEY_NAME);
        let made = random()
            .map_err(PrivateFileProblem::Io)
            .and_then(|bytes| Ok(make(&path, &bytes)?));
        if let Err(problem) = made {
            return Err(PrivateFileError { path, problem });
        }
        let missing = || PrivateFileError {
            path,
            problem: io::Error::from(io::ErrorKind::NotFound).into(),
        };
        Self::existing(folder)?.ok_or_else(missing)
    }

    /// The key of a folder; `None` if it has no key yet.
    ///
    /// # Errors
    /// [`PrivateFileError`].
    pub fn existing(folder: &Path) -> Result<Option<Self>, PrivateFileError> {
        let path = folder.join(KEY_NAME);
        let file = match open_private(&path, File::options().read(true)) {
            Err(PrivateFileError {
                problem: PrivateFileProblem::Io(error),
                ..
            }) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result?,
        };
        let read = || -> Result<Self, PrivateFileProblem> {
            let mut bytes = Vec::new();
            let found = file.metadata()?.len();
            file.take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes)?;
            let key = bytes.try_into();
            key.map(Self)
                .map_err(|_| PrivateFileProblem::Length { found })
        };
        read()
            .map(Some)
            .map_err(|problem| PrivateFileError { path, problem })
    }

    /// The tag of some parts (HMAC-SHA256), which only holders of the key can make. Different lists of parts have
    /// different tags.
    #[must_use]
    pub fn tag(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Whether a tag was made of these parts, in a time that does not depend on where they differ.
    #[must_use]
    pub fn verifies(&self, parts: &[&[u8]], tag: &[u8; 32]) -> bool {
        self.mac(parts).verify_slice(tag).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mac = Hmac::new_from_slice(&self.0);
        let mut mac: Hmac<Sha256> = mac.expect("HMAC takes keys of any length");
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for FolderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolderKey").finish_non_exhaustive()
    }
}

/// Opens a file that belongs to this process's user and that no other user may read or write. Neither follows a link
/// nor waits for a pipe.
///
/// # Errors
/// [`PrivateFileError`].
pub fn open_private(path: &Path, options: &mut OpenOptions) -> Result<File, PrivateFileError> {
    let mut checked = || {
        let (file, found) = opened(path, options.mode(0o600))?;
        let (owner, mode) = (found.uid(), found.mode() & 0o7777);
        if owner != user() {
            let (found, expected) = (owner, user());
            return Err(PrivateFileProblem::Owner { found, expected });
        }
        if mode & 0o077 != 0 {
            return Err(PrivateFileProblem::Exposed { mode });
        }
        Ok(file)
    };
    checked().map_err(|problem| PrivateFileError {
        path: path.into(),
        problem,
    })
}

/// Opens a regular file for reading. Neither follows a link nor waits for a pipe.
///
/// # Errors
/// What the kernel says; [`PrivateFileProblem::NotRegular`].
pub fn open_plain(path: &Path) -> Result<File, PrivateFileProblem> {
    Ok(opened(path, File::options().read(true))?.0)
}

fn opened(
    path: &Path,
    options: &mut OpenOptions,
) -> Result<(File, fs::Metadata), PrivateFileProblem> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = options.custom_flags(flags.cast_signed()).open(path);
    let file = file.map_err(|error| match Errno::from_io_error(&error) {
        // A link; a socket, or a pipe without a reader; a folder.
        Some(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => PrivateFileProblem::NotRegular,
        _ => PrivateFileProblem::Io(error),
    })?;
    let found = file.metadata()?;
    match found.is_file() {
        true => Ok((file, found)),
        false => Err(PrivateFileProblem::NotRegular),
    }
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes the key's file, unless another process is faster: then its key is the folder's.
fn make(path: &Path, key: &[u8]) -> Result<(), OutputError> {
    let made = OutputFile::create_private(path).and_then(|output| {
        output.write_at(0, key)?;
        output.finish()
    });
    match made {
        Err(OutputError::Exists { .. }) => Ok(()),
        result => result,
    }
}

/// As many bytes as the key has, from the kernel's generator.
fn random() -> io::Result<[u8; KEY_BYTES]> {
    let mut bytes = [0; KEY_BYTES];
    // Requests of up to 256 bytes are answered whole.
    rustix::rand::getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    Ok(bytes)
}

const KEY_NAME: &str = ".sluice-key";
const KEY_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    fn folder(name: &str) -> PathBuf {
        let name = format!("sluice-private-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _gone = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn processes_that_start_together_agree_on_a_key() {
        for round in 0..20 {
            let folder = folder(&format!("agree-{round}"));
            let open = || FolderKey::open(&folder).unwrap();
            let keys: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
                threads.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert!(keys.iter().all(|key| *key == keys[0]));
            let found = fs::metadata(folder.join(KEY_NAME)).unwrap();
            assert_eq!((found.mode() & 0o777, found.len()), (0o600, 32));
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
            fs::remove_dir_all(&folder).unwrap();
        }
    }

    #[test]
    fn a_key_of_others_is_not_used() {
        let folder = folder("others");
        let key = FolderKey::open(&folder).unwrap();
        let path = folder.join(KEY_NAME);
        let refused = |expected: &str| {
            let error = FolderKey::open(&folder).unwrap_err().to_string();
            let shown = path.display().to_string();
            assert!(
                error.starts_with(&shown) && error.contains(expected),
                "{error}"
            );
        };
        for mode in [0o640, 0o604, 0o620, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            refused(&format!("(mode {mode:o})"));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(FolderKey::open(&folder).unwrap(), key);
        match user() {
            0 => {
                chown(&path, Some(1), None).unwrap();
                refused("belongs to user 1, and this process runs as user 0");
            }
            _ => eprintln!("SKIPPED: only root can give a file to another user"),
        }
        let moved = folder.join("moved");
        fs::rename(&path, &moved).unwrap();
        symlink(&moved, &path).unwrap();
        refused("not a regular file");
        fs::remove_file(&path).unwrap();
        // Opening a pipe would block.
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        refused("not a regular file");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        refused("not a regular file");
        fs::remove_dir(&path).unwrap();
        for len in [0, 31, 33] {
            fs::write(&path, vec![7; len]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            refused(&format!("it has {len} bytes instead of 32"));
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_tag_is_of_its_parts_and_key() {
        let (key, other) = (FolderKey([1; 32]), FolderKey([2; 32]));
        let tag = key.tag(&[b"ab", b"c"]);
        assert!(key.verifies(&[b"ab", b"c"], &tag));
        assert!(!key.verifies(&[b"a", b"bc"], &tag) && !key.verifies(&[b"abc"], &tag));
        assert!(!key.verifies(&[b"ab", b"c", b""], &tag) && !other.verifies(&[b"ab", b"c"], &tag));
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_known() {
        let folder = folder("shared");
        for (mode, is_shared) in [(0o700, false), (0o755, false), (0o775, true), (0o777, true)] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(SharedFolder::of(&folder).is_some(), is_shared, "{mode:o}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}

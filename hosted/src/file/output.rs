//! Files that appear only when they are complete.
#![forbid(unsafe_code)]

use super::follow::HashFollower;
use super::partial::PartialFile;
use super::{FileStamp, HashRecords};
use rustix::fs::{self as sys, FallocateFlags, RenameFlags};
use rustix::io::Errno;
use sluice_core::gguf::source::SourceError;
use sluice_core::kernels::GgmlType;
use sluice_core::state::Identity;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// A file that appears under its name when it is complete, or never.
///
/// It is written as `.NAME.partial-PID` in the same folder, by any number of threads at once, and
/// [`finish`](Self::finish) renames it. Dropped before, it is removed: after a full disk, an error or
/// an interruption the previous file is still there; so it is after SIGTERM and SIGHUP where
/// [`interrupt::install`](crate::host::interrupt::install) was called. Only a killed process leaves
/// the partial file, which disturbs nothing. A link is followed: its target is replaced.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    partial: PartialFile,
    overwrite: bool,
}

/// Why a file cannot be written, with its path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum OutputError {
    /// The file exists, and is not to be replaced.
    #[error("{path} exists already; use --overwrite to replace it")]
    Exists { path: PathBuf },
    /// The file exists and is of another kind, which must not be lost.
    #[error("{path} exists already and is not such a file; it was not changed")]
    Foreign { path: PathBuf },
    /// A directory, device or pipe has the name, or it names no file at all.
    #[error("{path} is not a valid name for an output file")]
    NotRegular { path: PathBuf },
    /// The folder does not exist or is not writable.
    #[error("cannot create {path}: {error}")]
    Create { path: PathBuf, error: io::Error },
    /// A GGUF file with a tensor that only `.slc` files can hold.
    #[error(
        "{path}: {tensor} is of type {ty}, which GGUF has no number for; it exists in .slc files only"
    )]
    Lane {
        path: PathBuf,
        tensor: String,
        ty: GgmlType,
    },
    /// Writing failed, for example because the disk is full.
    #[error("cannot write {path}: {error}; the incomplete file was removed")]
    Write { path: PathBuf, error: io::Error },
}

impl OutputFile {
    /// Begins a file that will be called `path`. An existing one is an error, unless it is to be
    /// overwritten; then it stays until the new one is complete. A model is not replaced.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn create(path: &Path, overwrite: bool) -> Result<Self, OutputError> {
        Self::create_with(path, overwrite, PUBLIC, None)
    }

    /// As [`Self::create`], for a model file that begins with `magic`: it may replace another one of its kind.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn create_model(path: &Path, overwrite: bool, magic: [u8; 4]) -> Result<Self, OutputError> {
        Self::create_with(path, overwrite, PUBLIC, Some(magic))
    }

    /// Begins a file that will be called `path`, which does not exist, and that only this user may read.
    ///
    /// # Errors
    /// [`OutputError`].
    pub(super) fn create_private(path: &Path) -> Result<Self, OutputError> {
        Self::create_with(path, false, PRIVATE, None)
    }

    /// A file that never gets a name, in the folder of `path`: room for what becomes the file there.
    ///
    /// # Errors
    /// [`OutputError::Create`].
    pub fn scratch(path: &Path) -> Result<Self, OutputError> {
        let partial = PartialFile::create(path, PRIVATE);
        Ok(Self {
            path: path.to_path_buf(),
            partial: partial.map_err(|error| OutputError::Create {
                path: path.to_path_buf(),
                error,
            })?,
            overwrite: false,
        })
    }

    /// With the permissions `mode`, or the replaced file's.
    fn create_with(
        path: &Path,
        overwrite: bool,
        mode: u32,
        replaces: Option<[u8; 4]>,
    ) -> Result<Self, OutputError> {
        let path_buf = || path.to_path_buf();
        let kept = check_output(path, overwrite, replaces)?;
        let path = &fs::canonicalize(path).unwrap_or_else(|_| path_buf());
        let made = PartialFile::create(path, mode).and_then(|partial| {
            if let Some(kept) = kept {
                partial.file.set_permissions(kept)?;
            }
            Ok(partial)
        });
        let partial = made.map_err(|error| OutputError::Create {
            path: path_buf(),
            error,
        })?;
        Ok(Self {
            path: path.clone(),
            partial,
            overwrite,
        })
    }

    /// Begins a file that will be called `path` and replaces one that begins with `magic`, or is
    /// empty. An existing file that begins otherwise is an error. The contents may be private
    /// (caches, conversations), so other users of the machine cannot read a new one.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn replacing(path: &Path, magic: &[u8]) -> Result<Self, OutputError> {
        let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
        if is_file {
            let head = head(path, magic.len());
            let path = path.to_path_buf();
            match head {
                Ok(head) if head.is_empty() || head == magic => {}
                Ok(_) => return Err(OutputError::Foreign { path }),
                Err(error) => return Err(OutputError::Create { path, error }),
            }
        }
        Self::create_with(path, is_file, PRIVATE, None)
    }

    /// The final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reserves room for the whole file, so that a full disk is found before the work is done. File
    /// systems that cannot reserve room are assumed to have it.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    pub fn reserve(&self, len_bytes: u64) -> Result<(), OutputError> {
        match sys::fallocate(
            &self.partial.file,
            FallocateFlags::empty(),
            0,
            len_bytes.max(1),
        ) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(self.write_error(error.into())),
        }
        let sized = self.partial.file.set_len(len_bytes);
        sized.map_err(|error| self.write_error(error))
    }

    /// Writes `bytes` from byte `offset` on.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), OutputError> {
        let written = self.partial.file.write_all_at(bytes, offset);
        written.map_err(|error| self.write_error(error))
    }

    /// Reads back written bytes.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        super::read::read_exactly(&self.partial.file, u64::MAX, offset, into)
    }

    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    /// [`OutputError::Write`], or [`OutputError::Exists`] where another process was faster.
    pub fn finish(mut self) -> Result<(), OutputError> {
        let synced = self.partial.file.sync_all();
        synced.map_err(|error| self.write_error(error))?;
        self.partial.is_renamed = self.rename()?;
        // Sync the name, too. Some file systems have no folders to sync.
        let folder = self
            .path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let _synced =
            File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        Ok(())
    }

    /// As [`Self::finish`]; then records that the GGUF file that this one reads as has the SHA-256 `hash`, if it is
    /// known, for this machine. A record that cannot be written is ignored.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn finish_with(self, hash: Option<Identity>) -> Result<(), OutputError> {
        // Another process may already have replaced what is at the path.
        let file = self.partial.file.try_clone();
        self.finish()?;
        if let (Some(hash), Ok(file)) = (hash, file) {
            HashRecords::note_stamp(FileStamp::of_open(&file), hash);
        }
        Ok(())
    }

    /// Hashes the file while it is written.
    pub(super) fn follow(&self) -> io::Result<HashFollower> {
        HashFollower::start(&self.partial.file)
    }

    /// False if the temporary name is still there, too.
    fn rename(&self) -> Result<bool, OutputError> {
        let renamed = |result: io::Result<()>| match result {
            Ok(()) => Ok(true),
            Err(error) => Err(self.write_error(error)),
        };
        if self.overwrite {
            return renamed(fs::rename(&self.partial.path, &self.path));
        }
        let (from, to) = (&self.partial.path, &self.path);
        match sys::renameat_with(sys::CWD, from, sys::CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Err(self.exists()),
            // The file system does not support such a rename: another name, or else check, then rename.
            Err(Errno::INVAL | Errno::NOSYS) if !self.path.exists() => {
                match fs::hard_link(from, to) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        Err(self.exists())
                    }
                    Err(_) => renamed(fs::rename(from, to)),
                    Ok(()) => Ok(false),
                }
            }
            Err(error) => Err(self.write_error(error.into())),
        }
    }

    fn exists(&self) -> OutputError {
        OutputError::Exists {
            path: self.path.clone(),
        }
    }

    fn write_error(&self, error: io::Error) -> OutputError {
        OutputError::Write {
            path: self.path.clone(),
            error,
        }
    }
}

/// Whether a file may be called `path`, and replace what is there. Returns the permissions of a replaced file.
pub(super) fn check_output(
    path: &Path,
    overwrite: bool,
    replaces: Option<[u8; 4]>,
) -> Result<Option<Permissions>, OutputError> {
    let path_buf = || path.to_path_buf();
    // `-` is stdout to other programs, and cannot be it here: a file is written in any order.
    if path.file_name().is_none() || path.as_os_str() == "-" {
        return Err(OutputError::NotRegular { path: path_buf() });
    }
    let there = fs::metadata(path).ok();
    match &there {
        Some(there) if !there.is_file() => {
            return Err(OutputError::NotRegular { path: path_buf() });
        }
        Some(_) if !overwrite => return Err(OutputError::Exists { path: path_buf() }),
        Some(_) => {
            let head = head(path, 4);
            let head = head.map_err(|error| OutputError::Create {
                path: path_buf(),
                error,
            })?;
            let is_model = MODELS.iter().any(|magic| head == magic);
            if is_model && replaces.is_none_or(|magic| head != magic) {
                return Err(OutputError::Foreign { path: path_buf() });
            }
        }
        None => {}
    }
    Ok(there.map(|there| there.permissions()))
}

/// The first `len` bytes of a file, or all of a shorter one.
fn head(path: &Path, len: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(len as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// The first bytes of model files: GGUF's, and `.slc`'s.
const MODELS: [[u8; 4]; 3] = [*b"GGUF", *b"PWRI", sluice_core::slc::MAGIC];

/// Permissions of a new file, before the process's mask takes some away.
pub(super) const PUBLIC: u32 = 0o666;

/// Permissions of a new file for its owner alone, before the process's mask.
const PRIVATE: u32 = 0o600;

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::fs::PermissionsExt as _;

    /// A folder of its own, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let id = std::process::id();
            let path = std::env::temp_dir().join(format!("sluice-output-{name}-{id}"));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<OsString> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|entry| entry.unwrap().file_name()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _removed = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn complete_or_not_there() {
        let folder = Folder::new("complete");
        let path = folder.0.join("out");
        let output = OutputFile::create(&path, false).unwrap();
        output.reserve(6).unwrap();
        output.write_at(3, b"def").unwrap();
        output.write_at(0, b"abc").unwrap();
        assert!(!path.exists());
        output.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abcdef");
        drop(OutputFile::create(&path, true).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"abcdef");
        assert_eq!(folder.names(), ["out"]);
    }

    #[test]
    fn what_is_there_stays_unless_told() {
        let folder = Folder::new("there");
        let path = folder.0.join("out");
        let late = OutputFile::create(&path, false).unwrap();
        fs::write(&path, b"old").unwrap();
        let exists = OutputFile::create(&path, false).unwrap_err();
        assert!(exists.to_string().contains("--overwrite"), "{exists}");
        assert!(matches!(late.finish(), Err(OutputError::Exists { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let output = OutputFile::create(&path, true).unwrap();
        output.write_at(0, b"new").unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(folder.names(), ["out"]);
    }

    #[test]
    fn only_files_of_the_same_kind_are_replaced() {
        let folder = Folder::new("replacing");
        let path = folder.0.join("out");
        for (there, replaced) in [
            (&b"MAGIC old"[..], true),
            (b"", true),
            (b"MAG", false),
            (b"GGUF...", false),
        ] {
            fs::write(&path, there).unwrap();
            match OutputFile::replacing(&path, b"MAGIC") {
                Ok(output) => {
                    output.write_at(0, b"MAGIC new").unwrap();
                    output.finish().unwrap();
                    assert!(replaced);
                    assert_eq!(fs::read(&path).unwrap(), b"MAGIC new");
                }
                Err(error) => {
                    assert!(
                        !replaced && matches!(error, OutputError::Foreign { .. }),
                        "{error}"
                    );
                    assert_eq!(fs::read(&path).unwrap(), there);
                }
            }
        }
        assert_eq!(folder.names(), ["out"]);
    }

    #[test]
    fn what_a_killed_process_left_is_in_nobodys_way() {
        let folder = Folder::new("stale");
        let path = folder.0.join("out");
        let stale = folder
            .0
            .join(format!(".out.partial-{}", std::process::id()));
        fs::write(&stale, b"half").unwrap();
        let output = OutputFile::create(&path, false).unwrap();
        output.write_at(0, b"whole").unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read(&stale).unwrap(), b"half");
    }

    #[test]
    fn models_are_replaced_by_models_alone() {
        let folder = Folder::new("models");
        let path = folder.0.join("model");
        fs::write(&path, b"GGUF...").unwrap();
        let foreign = |made| matches!(made, Err(OutputError::Foreign { .. }));
        assert!(foreign(OutputFile::create(&path, true)));
        assert!(foreign(OutputFile::create_model(&path, true, *b"SLCM")));
        assert!(foreign(OutputFile::replacing(&path, b"<svg")));
        assert_eq!(fs::read(&path).unwrap(), b"GGUF...");
        OutputFile::create_model(&path, true, *b"GGUF")
            .unwrap()
            .finish()
            .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn permissions_and_links_stay() {
        let folder = Folder::new("modes");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let private = folder.0.join("cache");
        OutputFile::replacing(&private, b"M")
            .unwrap()
            .finish()
            .unwrap();
        assert_eq!(mode(&private), 0o600);
        let path = folder.0.join("out");
        fs::write(&path, b"old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let link = folder.0.join("link");
        std::os::unix::fs::symlink("out", &link).unwrap();
        let output = OutputFile::create(&link, true).unwrap();
        output.write_at(0, b"new").unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(mode(&path), 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn names_that_are_no_files() {
        let folder = Folder::new("names");
        for path in [folder.0.to_str().unwrap(), "/dev/null", "/", "-", ""] {
            let error = OutputFile::create(Path::new(path), true).unwrap_err();
            assert!(matches!(error, OutputError::NotRegular { .. }), "{error}");
        }
        let error = OutputFile::create(&folder.0.join("no/such"), true).unwrap_err();
        assert!(matches!(error, OutputError::Create { .. }), "{error}");
    }

    #[test]
    fn a_full_disk_is_named() {
        let folder = Folder::new("full");
        let path = folder.0.join("out");
        let output = OutputFile::create(&path, false).unwrap();
        let error = output.reserve(1 << 60).unwrap_err();
        assert!(matches!(error, OutputError::Write { .. }), "{error}");
        drop(output);
        assert!(folder.names().is_empty());
    }
}

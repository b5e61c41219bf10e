//! A file in the making.
#![forbid(unsafe_code)]

use core::error::Error;
use core::fmt;
use rustix::fs::{self as sys, FallocateFlags, RenameFlags};
use rustix::io::Errno;
use sluice_core::gguf::source::SourceError;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// A file that appears under its name when it is complete, or never.
///
/// It is written beside its name as `.NAME.partial-PID`, by any number of threads at once, and
/// [`finish`](Self::finish) renames it. Dropped before, it is removed: a full disk, an error or
/// an interruption leave what was there before. Only a process that is killed leaves the partial file.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    overwrite: bool,
    finished: bool,
}

/// Why a file cannot be written, with its path.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum OutputError {
    /// There is one already, and it is not to be replaced.
    Exists { path: PathBuf },
    /// There is one already that is something else, which is not to be lost.
    Foreign { path: PathBuf },
    /// A directory, device or pipe has the name, or it names no file at all.
    NotRegular { path: PathBuf },
    /// The folder is absent or not ours to write.
    Create { path: PathBuf, error: io::Error },
    /// Writing failed: the disk is full, say.
    Write { path: PathBuf, error: io::Error },
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists { path } => write!(
                f,
                "{} exists already; --overwrite replaces it",
                path.display()
            ),
            Self::Foreign { path } => write!(
                f,
                "{} exists already and is something else; it was left as it is",
                path.display()
            ),
            Self::NotRegular { path } => {
                write!(f, "{} is not a name for a file to write", path.display())
            }
            Self::Create { path, error } => write!(f, "cannot create {}: {error}", path.display()),
            Self::Write { path, error } => write!(
                f,
                "cannot write {}: {error}; nothing was left there",
                path.display()
            ),
        }
    }
}

impl Error for OutputError {}

impl OutputFile {
    /// Begins a file that will be called `path`. One that is there is an error, unless it is to
    /// be overwritten; then it stays until the new one is complete.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn create(path: &Path, overwrite: bool) -> Result<Self, OutputError> {
        let path_buf = || path.to_path_buf();
        let Some(name) = path.file_name() else {
            return Err(OutputError::NotRegular { path: path_buf() });
        };
        match fs::metadata(path).map(|found| found.is_file()) {
            Ok(false) => return Err(OutputError::NotRegular { path: path_buf() }),
            Ok(true) if !overwrite => return Err(OutputError::Exists { path: path_buf() }),
            _ => {}
        }
        let mut partial_name = OsString::from(".");
        partial_name.push(name);
        partial_name.push(format!(".partial-{}", std::process::id()));
        let partial = path.with_file_name(partial_name);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&partial)
            .map_err(|error| OutputError::Create {
                path: path_buf(),
                error,
            })?;
        Ok(Self {
            path: path_buf(),
            partial,
            file,
            overwrite,
            finished: false,
        })
    }

    /// Begins a file that will be called `path` and replaces one that begins with `magic`, or is
    /// empty. One that begins otherwise is an error: it is no such file.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn replacing(path: &Path, magic: &[u8]) -> Result<Self, OutputError> {
        let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
        if is_file {
            let head = File::open(path).and_then(|file| {
                let mut head = Vec::new();
                file.take(magic.len() as u64).read_to_end(&mut head)?;
                Ok(head)
            });
            let path = path.to_path_buf();
            match head {
                Ok(head) if head.is_empty() || head == magic => {}
                Ok(_) => return Err(OutputError::Foreign { path }),
                Err(error) => return Err(OutputError::Create { path, error }),
            }
        }
        Self::create(path, is_file)
    }

    /// What it will be called.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes room for the whole file, so that a full disk is found before the work is done. File
    /// systems that cannot promise room are believed to have it.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    pub fn reserve(&self, len_bytes: u64) -> Result<(), OutputError> {
        match sys::fallocate(&self.file, FallocateFlags::empty(), 0, len_bytes.max(1)) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(self.write_error(error.into())),
        }
        let sized = self.file.set_len(len_bytes);
        sized.map_err(|error| self.write_error(error))
    }

    /// Writes `bytes` from byte `offset` on.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), OutputError> {
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|error| self.write_error(error))
    }

    /// Reads back what was written.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        super::read::read_exactly(&self.file, u64::MAX, offset, into)
    }

    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    /// [`OutputError::Write`], or [`OutputError::Exists`] where another process was faster.
    pub fn finish(mut self) -> Result<(), OutputError> {
        let synced = self.file.sync_all();
        synced.map_err(|error| self.write_error(error))?;
        self.rename()?;
        self.finished = true;
        Ok(())
    }

    fn rename(&self) -> Result<(), OutputError> {
        if self.overwrite {
            let renamed = fs::rename(&self.partial, &self.path);
            return renamed.map_err(|error| self.write_error(error));
        }
        let (from, to) = (&self.partial, &self.path);
        match sys::renameat_with(sys::CWD, from, sys::CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(OutputError::Exists {
                path: self.path.clone(),
            }),
            // The file system knows no such rename: look, then leap.
            Err(Errno::INVAL | Errno::NOSYS) if !self.path.exists() => {
                let renamed = fs::rename(from, to);
                renamed.map_err(|error| self.write_error(error))
            }
            Err(error) => Err(self.write_error(error.into())),
        }
    }

    fn write_error(&self, error: io::Error) -> OutputError {
        OutputError::Write {
            path: self.path.clone(),
            error,
        }
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.finished {
            let _removed = fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn names_that_are_no_files() {
        let folder = Folder::new("names");
        for path in [folder.0.as_path(), Path::new("/dev/null"), Path::new("/")] {
            let error = OutputFile::create(path, true).unwrap_err();
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

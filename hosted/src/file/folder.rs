//! Folders of several files that replace each other as one.
#![forbid(unsafe_code)]

use super::output::{OutputError, PUBLIC, check_output};
use super::partial::{PartialFile, PartialFolder};
use rustix::fs::{self as sys, RenameFlags};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// A file of a folder, and its contents.
#[derive(Clone, Copy, Debug)]
pub struct FolderFile<'b> {
    /// Its name.
    pub name: &'b str,
    /// Its contents.
    pub bytes: &'b [u8],
}

/// Writes files into the folder at `path`, which is created if it does not exist, without its parents. Readers, also
/// after a crash, find all of the old files or all of the new ones: a new folder takes the old one's
/// place. If that is impossible (others' files are in it, it is mounted), the last file, by which readers know the
/// folder, is removed first and added last. A link is followed.
///
/// # Errors
/// [`OutputError`]. The folder is as before, or without its last file.
pub fn write_folder(
    path: &Path,
    files: &[FolderFile<'_>],
    overwrite: bool,
) -> Result<(), OutputError> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let there = fs::metadata(&path).ok();
    if there.as_ref().is_some_and(|there| !there.is_dir()) || path.file_name().is_none() {
        return Err(OutputError::NotRegular { path });
    }
    let kept = |file: &FolderFile<'_>| check_output(&path.join(file.name), overwrite, None);
    let kept = files.iter().map(kept).collect::<Result<_, _>>()?;
    let target = Target {
        path,
        there,
        files,
        kept,
    };
    let path = || target.path.clone();
    let partial = target.partial().map_err(|error| OutputError::Create {
        path: path(),
        error,
    })?;
    let filled = target.fill_and_place(partial);
    filled.map_err(|error| OutputError::Write {
        path: path(),
        error,
    })
}

/// The folder to write.
struct Target<'f> {
    path: PathBuf,
    /// What is there.
    there: Option<Metadata>,
    files: &'f [FolderFile<'f>],
    /// The permissions of the files that are replaced.
    kept: Vec<Option<Permissions>>,
}

impl Target<'_> {
    /// The folder to write the files into: beside the other one if it can take its place, or else in it.
    fn partial(&self) -> io::Result<PartialFolder> {
        let beside = || PartialFolder::create(&self.path);
        let name = self.path.file_name().unwrap_or_default();
        let inside = || PartialFolder::create(&self.path.join(name));
        match &self.there {
            None => beside(),
            Some(there) if self.is_exchangeable(there) => beside().or_else(|_| inside()),
            Some(_) => inside(),
        }
    }

    /// Whether another folder can take its place: it is the user's, has no files but those to be replaced, is not
    /// mounted, and this process does not stand in it.
    fn is_exchangeable(&self, there: &Metadata) -> bool {
        let parent = fs::metadata(parent(&self.path));
        let is_mounted = parent.is_ok_and(|parent| parent.dev() != there.dev());
        let is_own = there.uid() == rustix::process::geteuid().as_raw();
        let is_here = std::env::current_dir().is_ok_and(|here| here.starts_with(&self.path));
        let own: HashSet<_> = self
            .files
            .iter()
            .map(|file| OsStr::new(file.name))
            .collect();
        let is_whole = fs::read_dir(&self.path).is_ok_and(|mut entries| {
            entries.all(|entry| entry.is_ok_and(|entry| own.contains(&*entry.file_name())))
        });
        is_own && is_whole && !is_mounted && !is_here
    }

    fn fill_and_place(&self, mut partial: PartialFolder) -> io::Result<()> {
        let files = self.files.iter().zip(&self.kept);
        let write = |(file, kept): (&FolderFile<'_>, &Option<Permissions>)| {
            let new = PartialFile::create_as(partial.path.join(file.name), PUBLIC)?;
            if let Some(kept) = kept {
                new.file.set_permissions(kept.clone())?;
            }
            new.file.write_all_at(file.bytes, 0)?;
            new.file.sync_all().and(Ok(new))
        };
        let mut written = files.map(write).collect::<io::Result<Vec<_>>>()?;
        sync(&partial.path)?;
        if self.place_folder(&partial.path).is_ok() {
            for file in &mut written {
                file.is_renamed = true;
            }
            if self.there.is_some() {
                self.clear(&partial.path)?;
            }
            partial.is_renamed = self.there.is_none();
        } else {
            self.place_files(&mut written)?;
        }
        sync(parent(&self.path))
    }

    /// Puts the new folder in the old one's place; the old one then has the new one's name.
    fn place_folder(&self, new: &Path) -> io::Result<()> {
        if new.starts_with(&self.path) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let flags = match &self.there {
            Some(there) => {
                fs::set_permissions(new, there.permissions())?;
                RenameFlags::EXCHANGE
            }
            None => RenameFlags::NOREPLACE,
        };
        Ok(sys::renameat_with(
            sys::CWD,
            new,
            sys::CWD,
            &self.path,
            flags,
        )?)
    }

    /// Removes what was in the old folder. What others have put there meanwhile stays with the new one.
    fn clear(&self, old: &Path) -> io::Result<()> {
        for entry in fs::read_dir(old)? {
            let (path, name) = {
                let entry = entry?;
                (entry.path(), entry.file_name())
            };
            match self.files.iter().any(|file| *file.name == *name) {
                true => fs::remove_file(path)?,
                false => fs::rename(path, self.path.join(name))?,
            }
        }
        Ok(())
    }

    /// Replaces one file after the other. Until the last one is there, no reader takes the folder for one of its kind.
    fn place_files(&self, written: &mut [PartialFile]) -> io::Result<()> {
        match &self.there {
            Some(_) => {
                let last = self.files.last().map(|file| self.path.join(file.name));
                match last.map(fs::remove_file) {
                    Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(error);
                    }
                    _ => sync(&self.path)?,
                }
            }
            None => fs::create_dir(&self.path)?,
        }
        for (file, FolderFile { name, .. }) in written.iter_mut().zip(self.files) {
            fs::rename(&file.path, self.path.join(name))?;
            file.is_renamed = true;
        }
        sync(&self.path)
    }
}

fn parent(path: &Path) -> &Path {
    let parent = path.parent();
    let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Makes the names in a folder durable. Some file systems have no folders to sync.
fn sync(folder: &Path) -> io::Result<()> {
    let _synced = File::open(folder)?.sync_all();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    /// A folder for a test's folder, removed at the end.
    struct Around(PathBuf);

    impl Around {
        fn new(name: &str) -> Self {
            let name = format!("sluice-folder-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _gone = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn own(&self) -> PathBuf {
            self.0.join("own")
        }

        fn names(&self, folder: &Path) -> Vec<String> {
            let entries = fs::read_dir(self.0.join(folder)).unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }

        fn contents(&self) -> [Vec<u8>; 2] {
            ["data", "head"].map(|name| fs::read(self.own().join(name)).unwrap())
        }
    }

    impl Drop for Around {
        fn drop(&mut self) {
            let _removed = fs::remove_dir_all(&self.0);
        }
    }

    fn files<'b>(data: &'b [u8], head: &'b [u8]) -> [FolderFile<'b>; 2] {
        let file = |name, bytes| FolderFile { name, bytes };
        [file("data", data), file("head", head)]
    }

    #[test]
    fn a_folder_takes_the_place_of_the_old_one() {
        let around = Around::new("whole");
        let own = around.own();
        write_folder(&own, &files(b"1", b"one"), false).unwrap();
        assert_eq!(around.contents(), [b"1".to_vec(), b"one".to_vec()]);
        let error = write_folder(&own, &files(b"2", b"two"), false).unwrap_err();
        assert!(matches!(error, OutputError::Exists { .. }), "{error}");
        for (path, mode) in [("", 0o750), ("data", 0o640)] {
            fs::set_permissions(own.join(path), Permissions::from_mode(mode)).unwrap();
        }
        let link = around.0.join("link");
        symlink("own", &link).unwrap();
        let before = fs::metadata(&own).unwrap().ino();
        write_folder(&link, &files(b"2", b"two"), true).unwrap();
        assert_eq!(around.contents(), [b"2".to_vec(), b"two".to_vec()]);
        assert_ne!(fs::metadata(&own).unwrap().ino(), before);
        let mode = |path| fs::metadata(own.join(path)).unwrap().mode() & 0o777;
        assert_eq!((mode(""), mode("data")), (0o750, 0o640));
        assert_eq!(around.names(Path::new("")), ["link", "own"]);
        fs::remove_dir_all(&own).unwrap();
        fs::create_dir(&own).unwrap();
        write_folder(&own, &files(b"3", b"three"), false).unwrap();
        assert_eq!(around.contents()[1], b"three");
    }

    #[test]
    fn files_of_others_stay() {
        let around = Around::new("others");
        let own = around.own();
        write_folder(&own, &files(b"1", b"one"), false).unwrap();
        fs::create_dir(own.join("more")).unwrap();
        fs::write(own.join("README"), "mine").unwrap();
        write_folder(&own, &files(b"2", b"two"), true).unwrap();
        assert_eq!(around.contents(), [b"2".to_vec(), b"two".to_vec()]);
        assert_eq!(around.names(&own), ["README", "data", "head", "more"]);
        assert_eq!(around.names(Path::new("")), ["own"]);
        for wrong in ["README", "no/such"] {
            assert!(write_folder(&own.join(wrong), &files(b"", b""), true).is_err());
        }
        assert_eq!(around.names(&own), ["README", "data", "head", "more"]);
    }

    #[test]
    fn a_replacement_that_ends_between_two_files_leaves_no_last_one() {
        let around = Around::new("between");
        let own = around.own();
        write_folder(&own, &files(b"1", b"one"), false).unwrap();
        let there = fs::metadata(&own).ok();
        let new = files(b"2", b"two");
        let target = Target {
            path: own.clone(),
            there,
            files: &new,
            kept: vec![None, None],
        };
        let create = |name: &str| PartialFile::create_as(around.0.join(name), PUBLIC).unwrap();
        let mut written = ["data", "head"].map(create);
        fs::remove_file(&written[1].path).unwrap();
        assert!(target.place_files(&mut written).is_err());
        assert_eq!(around.names(&own), ["data"]);
    }
}

//! How a drive can be read: past the page cache, and through io_uring. Both are tried.

use crate::host::measures::HostMeasure;
use crate::host::memory::AlignedMemory;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Bytes of the read that is tried, and its alignment: the block of any drive of today.
const BLOCK_BYTES: usize = 4096;

/// Reads the beginning of a file, or of a folder's first non-empty file, with `O_DIRECT`; `None` without a
/// file to try.
pub fn direct_reads(path: &Path) -> Option<HostMeasure> {
    let file = readable(path)?;
    let name = "direct reads (O_DIRECT)";
    let requested = format!("{BLOCK_BYTES} bytes of {}", file.display());
    Some(match direct_read(&file) {
        Ok(_) => HostMeasure::held(name, requested, "work"),
        Err(why) => HostMeasure::refused(name, requested, "not supported", why),
    })
}

/// Number of bytes read, or why the read failed.
fn direct_read(file: &Path) -> Result<usize, String> {
    let mut options = File::options();
    let opened = options.read(true).custom_flags(libc::O_DIRECT).open(file);
    let mut file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => {
            "not supported by the file system: reads go through the page cache".into()
        }
        _ => format!("cannot open the file: {error}"),
    })?;
    let mut block = AlignedMemory::zeroed(BLOCK_BYTES).map_err(|error| error.to_string())?;
    let read = file.read(&mut block);
    read.map_err(|error| format!("cannot read the file: {error}"))
}

/// The file itself, or the first non-empty one of a folder. Not a pipe, which would wait, and in a folder
/// not a link, which would lead elsewhere.
fn readable(path: &Path) -> Option<PathBuf> {
    let has_bytes = |of: &fs::Metadata| of.is_file() && of.len() > 0;
    if !path.is_dir() {
        let of = path.metadata().ok()?;
        return has_bytes(&of).then(|| path.to_path_buf());
    }
    let entries = fs::read_dir(path).ok()?.flatten();
    let files = entries.filter(|entry| entry.metadata().is_ok_and(|of| has_bytes(&of)));
    files.map(|entry| entry.path()).min()
}

/// Makes a ring of four entries and closes it again.
pub fn io_uring() -> HostMeasure {
    let (name, requested) = ("io_uring", "a ring");
    let Err(error) = ring() else {
        return HostMeasure::held(name, requested, "works");
    };
    let line = |path: &str, prefix: &str| {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(prefix));
        line.map(|line| line.trim().to_owned())
    };
    let disabled = line("/proc/sys/kernel/io_uring_disabled", "");
    let filter = line("/proc/self/status", "Seccomp:");
    let has_filter = filter.is_some_and(|mode| mode != "0");
    let (why, remedy) = refusal(&error, disabled.as_deref(), has_filter);
    let measure = HostMeasure::refused(name, requested, "does not work", why);
    match remedy {
        Some(remedy) => measure.with_remedy(remedy),
        None => measure,
    }
}

/// Why a ring cannot be made, and the command to fix it: from the error, `kernel.io_uring_disabled`, and whether
/// the process has a seccomp filter.
fn refusal(
    error: &io::Error,
    disabled: Option<&str>,
    has_filter: bool,
) -> (String, Option<&'static str>) {
    const ENABLE: &str = "sudo sysctl kernel.io_uring_disabled=0";
    const ALLOW: &str = "docker run --security-opt seccomp=PROFILE, with a profile that allows \
        io_uring_setup, io_uring_enter and io_uring_register";
    match (error.raw_os_error(), disabled) {
        (Some(libc::EPERM), Some("2")) => {
            let why = "kernel.io_uring_disabled is 2: disabled for all processes";
            (why.into(), Some(ENABLE))
        }
        (Some(libc::EPERM), Some("1")) => {
            let why = "kernel.io_uring_disabled is 1: only processes with CAP_SYS_ADMIN or in kernel.io_uring_group \
                 may use it";
            (why.into(), Some(ENABLE))
        }
        (Some(libc::EPERM | libc::ENOSYS), _) if has_filter => (
            format!("a seccomp filter refuses it ({error})"),
            Some(ALLOW),
        ),
        (Some(libc::ENOSYS), _) => {
            let why = "the kernel was built without it, or is older than 5.1";
            (why.into(), None)
        }
        (Some(libc::EPERM), _) => {
            let why = format!("a security module refuses it ({error})");
            (why, None)
        }
        // Kernels before 5.12 count rings as locked memory.
        (Some(libc::ENOMEM), _) => (error.to_string(), Some("ulimit -l unlimited")),
        _ => (error.to_string(), None),
    }
}

fn ring() -> io::Result<OwnedFd> {
    // `struct io_uring_params` of linux/io_uring.h: 120 bytes, all zero asks for nothing.
    let mut parameters = [0u32; 30];
    let n_entries: libc::c_long = 4;
    let at = parameters.as_mut_ptr();
    // SAFETY: the call writes at most 120 bytes there, and they live through it.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, n_entries, at) };
    match libc::c_int::try_from(fd) {
        // SAFETY: a new descriptor that nothing else has.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_reads_of_files_and_folders() {
        let folder = std::env::temp_dir().join(format!("sluice-direct-{}", std::process::id()));
        fs::create_dir_all(folder.join("a-folder")).unwrap();
        assert_eq!(direct_reads(&folder), None);
        fs::write(folder.join("empty"), "").unwrap();
        for none in [folder.clone(), folder.join("empty"), folder.join("missing")] {
            assert_eq!(direct_reads(&none), None, "{none:?}");
        }
        assert_eq!(direct_reads(Path::new("/dev/zero")), None);
        let file = folder.join("file");
        fs::write(&file, [7; 5000]).unwrap();
        let measure = direct_reads(&folder).unwrap();
        assert!(measure.requested.ends_with("file"), "{measure}");
        assert_eq!(measure.is_held(), direct_read(&file).is_ok());
        assert_eq!(direct_reads(&file), Some(measure));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_ring_is_made_or_the_reason_named() {
        let measure = io_uring();
        assert_eq!(measure.is_held(), ring().is_ok(), "{measure}");
    }

    #[test]
    fn reasons() {
        let why = |error, disabled, has_filter| {
            let error = io::Error::from_raw_os_error(error);
            refusal(&error, disabled, has_filter)
        };
        for n in ["1", "2"] {
            let (reason, remedy) = why(libc::EPERM, Some(n), true);
            assert!(
                reason.contains(&format!("io_uring_disabled is {n}")),
                "{reason}"
            );
            assert!(remedy.unwrap().contains("sysctl"));
        }
        for error in [libc::EPERM, libc::ENOSYS] {
            let (reason, remedy) = why(error, Some("0"), true);
            assert!(reason.contains("seccomp"), "{reason}");
            assert!(remedy.is_some());
        }
        assert!(why(libc::ENOSYS, None, false).0.contains("5.1"));
        assert!(why(libc::EPERM, None, false).0.contains("security module"));
        assert!(why(libc::ENOMEM, None, false).1.unwrap().contains("ulimit"));
        assert_eq!(why(libc::EMFILE, None, true).1, None);
    }
}

//! `/proc/self/mountinfo`: the mounts of this process.
//!
//! A line is `36 35 0:43 / /mnt rw,noatime shared:1 - overlay overlay rw,lowerdir=/a:/b`: two
//! numbers, the device, the mounted part of the file system, the mount point, options, any number of tags, a
//! dash, the kind, the source, the kind's own options. Spaces and the like are written `\040`.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// The number of a device; major 0 is not a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The driver's device.
    pub minor: u32,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) device: DeviceNumber,
    /// The folder of the file system that is mounted at `point`.
    root: PathBuf,
    /// The mount point.
    point: PathBuf,
    /// `ext4`, `overlay`.
    pub(super) kind: String,
    /// `/dev/sda1`, or a word.
    pub(super) source: PathBuf,
    /// Options of the file system, as written.
    options: Vec<u8>,
}

/// All mounts of a file, in order; empty if it cannot be read.
pub(super) fn read(mountinfo: &Path) -> Vec<Mount> {
    let text = std::fs::read(mountinfo).unwrap_or_default();
    text.split(|&b| b == b'\n').filter_map(parse).collect()
}

/// The mount with the longest path above `path`, the last of several: it hides the others. Mounts of
/// the device take precedence; a file on btrfs has a number that no mount has.
pub(super) fn holding<'m>(
    mounts: &'m [Mount],
    path: &Path,
    device: Option<DeviceNumber>,
) -> Option<&'m Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    above.max_by_key(|mount| {
        let is_device = Some(mount.device) == device;
        (is_device, mount.point.components().count())
    })
}

impl Mount {
    /// The path within the file system, relative to its root, of a path below `point`.
    pub(super) fn inside(&self, path: &Path) -> PathBuf {
        let root = self.root.strip_prefix("/").unwrap_or(&self.root);
        match path.strip_prefix(&self.point) {
            // Joining an empty path would ask for a folder.
            Ok(rest) if rest.as_os_str().is_empty() => root.to_path_buf(),
            Ok(rest) => root.join(rest),
            Err(_) => root.to_path_buf(),
        }
    }

    /// Folders of an overlay, the upper one first, as they were named when it was mounted.
    pub(super) fn layers(&self) -> Vec<PathBuf> {
        let (mut upper, mut lower) = (Vec::new(), Vec::new());
        // Commas within a path are escaped, too.
        for option in self.options.split(|&b| b == b',') {
            let text = unescaped(option);
            if let Some(path) = text.strip_prefix(b"upperdir=") {
                upper.push(path.to_vec());
            } else if let Some(paths) = text.strip_prefix(b"lowerdir=") {
                lower.extend(separated(paths));
            } else if let Some(path) = text.strip_prefix(b"lowerdir+=") {
                lower.push(path.to_vec());
            } else if let Some(path) = text.strip_prefix(b"datadir+=") {
                lower.push(path.to_vec());
            }
        }
        upper.extend(lower);
        upper.retain(|path| !path.is_empty());
        upper.into_iter().map(path).collect()
    }
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let device = str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let device = DeviceNumber {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    };
    let root = path(unescaped(fields.next()?));
    let point = path(unescaped(fields.next()?));
    // Options, then tags, then the dash.
    fields.by_ref().skip(1).find(|field| *field == b"-")?;
    Some(Mount {
        device,
        root,
        point,
        kind: String::from_utf8_lossy(fields.next()?).into_owned(),
        source: path(unescaped(fields.next()?)),
        options: fields.next().unwrap_or_default().to_vec(),
    })
}

/// Paths between colons; a colon in a path has a backslash before it.
fn separated(text: &[u8]) -> Vec<Vec<u8>> {
    let mut paths = vec![Vec::new()];
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b':' => {
                paths.push(Vec::new());
                continue;
            }
            b'\\' => bytes.next().unwrap_or(b'\\'),
            byte => byte,
        };
        if let Some(path) = paths.last_mut() {
            path.push(byte);
        }
    }
    paths
}

/// Bytes with `\040` and its like replaced; a backslash before something else stays.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.first_chunk::<3>().filter(|_| byte == b'\\');
        let code = digits.and_then(|digits| {
            let text = str::from_utf8(digits).ok()?;
            // A sign would be read, too.
            let is_octal = text.bytes().all(|b| (b'0'..=b'7').contains(&b));
            u8::from_str_radix(text, 8).ok().filter(|_| is_octal)
        });
        bytes.push(code.unwrap_or(byte));
        rest = &behind[if code.is_some() { 3 } else { 0 }..];
    }
    bytes
}

fn path(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_escapes() {
        let line = br"36 35 0:43 /a\040b /mnt/x\134y rw shared:1 master:2 - btrfs /dev/sd\011a rw";
        let mount = parse(line).unwrap();
        assert_eq!((mount.device.major, mount.device.minor), (0, 43));
        assert_eq!(mount.root, Path::new("/a b"));
        assert_eq!(mount.point, Path::new(r"/mnt/x\y"));
        assert_eq!(mount.source, Path::new("/dev/sd\ta"));
        assert_eq!(mount.inside(&mount.point.join("f")), Path::new("a b/f"));
        assert_eq!(mount.inside(&mount.point), Path::new("a b"));
        for wrong in [
            "",
            "1 2 3",
            "1 2 0:1 / / rw",
            "1 2 0:x / / rw - a b c",
            "1 2 0:1 / / rw - a",
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(unescaped(br"\04 \+12 \777 \"), br"\04 \+12 \777 \");
    }

    #[test]
    fn layers_of_an_overlay() {
        let of = |options: &str| {
            let line = format!(r"1 2 0:1 / / rw - overlay overlay {options}");
            parse(line.as_bytes()).unwrap().layers()
        };
        let old = r"rw,lowerdir=/a\054b:/c\134:d::/e,upperdir=/up,workdir=/w";
        assert_eq!(of(old), ["/up", "/a,b", "/c:d", "/e"].map(PathBuf::from));
        let new = "ro,lowerdir+=/a:b,lowerdir+=/c,datadir+=/d";
        assert_eq!(of(new), ["/a:b", "/c", "/d"].map(PathBuf::from));
        assert!(of("rw").is_empty());
    }

    #[test]
    fn the_longest_and_last_mount_holds_a_path() {
        let text = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / /data rw - tmpfs t rw\n\
            3 1 0:6 / /data rw - btrfs /dev/sdb rw\n4 1 8:3 / /database rw - xfs /dev/sdc rw\n";
        let mounts: Vec<_> = text
            .lines()
            .filter_map(|line| parse(line.as_bytes()))
            .collect();
        let kind = |path: &str, device: Option<(u32, u32)>| {
            let device = device.map(|(major, minor)| DeviceNumber { major, minor });
            holding(&mounts, Path::new(path), device)
                .unwrap()
                .kind
                .clone()
        };
        assert_eq!(kind("/data/f", None), "btrfs");
        assert_eq!(kind("/data/f", Some((0, 5))), "tmpfs");
        assert_eq!(kind("/data/f", Some((0, 77))), "btrfs");
        assert_eq!(kind("/database/f", None), "xfs");
        assert_eq!(kind("/dat", None), "ext4");
        assert!(holding(&mounts, Path::new("relative"), None).is_none());
    }
}

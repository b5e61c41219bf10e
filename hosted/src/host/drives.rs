//! The drives that a file is on, and the NUMA nodes that these are attached to.
//!
//! Data sent from a drive on one node to a thread or to memory on another crosses the link between
//! sockets. So threads that wait for reads, and the memory that they read into, belong on the
//! drive's node, if it is known:
//!
//! | what the file's device is | where the node is written |
//! |---|---|
//! | a disk | `numa_node` of the first folder that has one, upwards from `/sys/dev/block/MAJ:MIN` |
//! | a partition | as of its disk, the folder above |
//! | a device mapper's or md's | as of each of its `slaves`, which may have some of their own |
//! | NVMe over several paths, below `nvme-subsysN` | as of each controller that the subsystem links to |
//! | none (major 0): overlay, btrfs | as of what `/proc/self/mountinfo` says is mounted there |
#![forbid(unsafe_code)]

mod mounts;
#[cfg(test)]
mod tests;

use crate::host::cpus::CpuList;
use crate::host::measures::HostMeasure;
use crate::host::topology::{self, CoreChoice, Cores};
pub use mounts::DeviceNumber;
use mounts::Mount;
use rustix::fs::{major, minor};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The drives below a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drives {
    /// Whole disks by their names (`nvme0n1`), sorted; empty if none is visible, as for files in
    /// memory, on a network, or in a container that hides where its layers are.
    pub devices: Vec<String>,
    /// NUMA nodes of all of these disks, sorted. Empty if one of them is unknown: then nothing
    /// should be bound.
    pub nodes: Vec<usize>,
}

impl Drives {
    /// The drives of a file or folder.
    ///
    /// # Errors
    /// The path does not exist, or cannot be reached. Drives that are not found are not an error.
    pub fn of(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let device = path.metadata()?.dev();
        let device = DeviceNumber {
            major: major(device),
            minor: minor(device),
        };
        Ok(Self::below(Path::new("/"), &path, device))
    }

    /// The drives of several files or folders; nodes only if they are known for all.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn of_all<'p>(paths: impl IntoIterator<Item = &'p Path>) -> io::Result<Self> {
        let (mut devices, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        let (mut is_known, mut seen) = (true, BTreeSet::new());
        for path in paths {
            // One of thousands of files on a file system is enough.
            if !seen.insert(path.metadata()?.dev()) {
                continue;
            }
            let found = Self::of(path)?;
            is_known &= !found.nodes.is_empty();
            devices.extend(found.devices);
            nodes.extend(found.nodes);
        }
        if !is_known {
            nodes.clear();
        }
        Ok(Self {
            devices: devices.into_iter().collect(),
            nodes: nodes.into_iter().collect(),
        })
    }

    /// As [`of`](Self::of), with `sys`, `proc` and `dev` below `root`: of the file at `path`, which
    /// is absolute and free of links, on the device of this major and minor number.
    #[must_use]
    pub fn below(root: &Path, path: &Path, device: DeviceNumber) -> Self {
        let root = root.canonicalize().unwrap_or_else(|_| root.to_path_buf());
        let mut walk = Walk::new(&root);
        if device.major == 0 {
            let mounts = mounts::read(&root.join("proc/self/mountinfo"));
            walk.mounted(&mounts, path, Some(device), 0);
        } else {
            walk.numbered(device);
        }
        walk.drives()
    }

    /// CPUs of the nodes that the calling thread may use; empty if the nodes are unknown, or have
    /// no such CPU.
    pub fn cpus(&self) -> CpuList {
        self.cpus_among(&Cores::choose(CoreChoice::All))
    }

    /// CPUs of the nodes that are also in `cores`: for threads that start pinned to fewer than the
    /// process may use.
    pub fn cpus_among(&self, cores: &Cores) -> CpuList {
        let nodes = cores.nodes().into_iter();
        let ours = nodes.filter(|(node, _)| self.nodes.contains(node));
        let mut cpus: Vec<_> = ours.flat_map(|(_, cpus)| cpus).collect();
        cpus.sort_unstable();
        CpuList(cpus)
    }

    /// Binds the calling thread to [`cpus`](Self::cpus) and reads the binding back; `None`, without a
    /// change, if there are no such CPUs.
    pub fn bind_current_thread(&self, name: impl Into<String>) -> Option<HostMeasure> {
        let cpus = self.cpus();
        if cpus.0.is_empty() {
            return None;
        }
        let bound = topology::bind_current_thread(&cpus.0);
        let (requested, found) = (format!("CPU {cpus}"), topology::current_affinity());
        Some(match bound {
            Ok(()) => HostMeasure::held(name, requested, found),
            Err(error) => HostMeasure::refused(name, requested, found, error),
        })
    }
}

/// What was found so far.
struct Walk<'r> {
    root: &'r Path,
    /// Folders of devices and of layers already visited: ends cycles.
    seen: BTreeSet<PathBuf>,
    devices: BTreeSet<String>,
    nodes: BTreeSet<usize>,
    /// Whether the node of some device is unknown.
    has_unknown: bool,
}

/// Maximum depth of devices on devices, and of layers in layers. Real ones have up to 4.
const DEPTH_MAX: usize = 16;

impl<'r> Walk<'r> {
    const fn new(root: &'r Path) -> Self {
        Self {
            root,
            seen: BTreeSet::new(),
            devices: BTreeSet::new(),
            nodes: BTreeSet::new(),
            has_unknown: false,
        }
    }

    fn drives(self) -> Drives {
        let nodes = if self.has_unknown {
            BTreeSet::new()
        } else {
            self.nodes
        };
        Drives {
            devices: self.devices.into_iter().collect(),
            nodes: nodes.into_iter().collect(),
        }
    }

    /// A device by its number.
    fn numbered(&mut self, device: DeviceNumber) {
        let DeviceNumber { major, minor } = device;
        let link = format!("sys/dev/block/{major}:{minor}");
        self.linked(&self.root.join(link), 0);
    }

    /// A device by a link to its folder.
    fn linked(&mut self, link: &Path, depth: usize) {
        match link.canonicalize() {
            Ok(folder) => self.device(&folder, depth),
            Err(_) => self.has_unknown = true,
        }
    }

    /// A device by its folder in sysfs, free of links.
    fn device(&mut self, folder: &Path, depth: usize) {
        let disk = match folder.parent() {
            Some(disk) if folder.join("partition").exists() => disk,
            _ => folder,
        };
        if !self.seen.insert(disk.to_path_buf()) {
            return;
        }
        let below = entries(&disk.join("slaves"));
        if !below.is_empty() {
            if depth == DEPTH_MAX {
                self.has_unknown = true;
                return;
            }
            for slave in below {
                self.linked(&slave, depth + 1);
            }
            return;
        }
        if let Some(name) = disk.file_name() {
            self.devices.insert(name.to_string_lossy().into_owned());
        }
        let controllers = controllers(disk);
        if controllers.is_empty() {
            self.attached(disk);
        }
        for controller in controllers {
            match controller.canonicalize() {
                Ok(controller) => self.attached(&controller),
                Err(_) => self.has_unknown = true,
            }
        }
    }

    /// Notes the node of a disk or controller, from the first `numa_node` at or above it. -1 is unknown.
    fn attached(&mut self, folder: &Path) {
        let sys = self.root.join("sys");
        let mut above = folder.ancestors().take_while(|at| at.starts_with(&sys));
        let text = above.find_map(|at| fs::read_to_string(at.join("numa_node")).ok());
        match text.and_then(|text| text.trim().parse().ok()) {
            Some(node) => _ = self.nodes.insert(node),
            None => self.has_unknown = true,
        }
    }

    /// The file system mounted at `path`.
    fn mounted(
        &mut self,
        mounts: &[Mount],
        path: &Path,
        device: Option<DeviceNumber>,
        depth: usize,
    ) {
        let Some(mount) = mounts::holding(mounts, path, device) else {
            self.has_unknown = true;
            return;
        };
        if mount.device.major != 0 {
            self.numbered(mount.device);
        } else if mount.kind == "overlay" {
            self.layers(mounts, mount, path, depth);
        } else if let Some(folder) = self.source(&mount.source) {
            for folder in self.members(folder) {
                self.linked(&folder, 0);
            }
        } else {
            self.has_unknown = true;
        }
    }

    /// The layer of an overlay that has the file; if none visibly has it, all visible layers.
    /// Containers see no layers.
    fn layers(&mut self, mounts: &[Mount], mount: &Mount, path: &Path, depth: usize) {
        let inside = mount.inside(path);
        let root = self.root;
        let layers = mount.layers();
        let seen = layers
            .iter()
            .filter_map(|layer| root.join(layer.strip_prefix("/").ok()?).canonicalize().ok());
        let mut seen: Vec<_> = seen.filter(|layer| layer.is_dir()).collect();
        let has_file = |layer: &PathBuf| layer.join(&inside).symlink_metadata().is_ok();
        if let Some(first) = seen.iter().position(has_file) {
            seen = vec![seen.swap_remove(first)];
        }
        if seen.is_empty() || depth == DEPTH_MAX {
            self.has_unknown = true;
            return;
        }
        for layer in seen {
            let Ok(path) = layer.strip_prefix(root) else {
                self.has_unknown = true;
                continue;
            };
            let path = Path::new("/").join(path).join(&inside);
            if self.seen.insert(layer) {
                self.mounted(mounts, &path, None, depth + 1);
            }
        }
    }

    /// The folder of a block device that was mounted by its path.
    fn source(&self, source: &Path) -> Option<PathBuf> {
        let node = self.root.join(source.strip_prefix("/").ok()?);
        let node = node.canonicalize().unwrap_or(node);
        let link = match node.metadata() {
            Ok(of) if of.file_type().is_block_device() => {
                let (major, minor) = (major(of.rdev()), minor(of.rdev()));
                format!("sys/dev/block/{major}:{minor}")
            }
            // A container may lack the device node; sysfs has the name, with its slashes replaced.
            _ => {
                let name = node.strip_prefix(self.root.join("dev")).ok()?;
                let name = name.to_str().filter(|name| !name.is_empty())?;
                format!("sys/class/block/{}", name.replace('/', "!"))
            }
        };
        self.root.join(link).canonicalize().ok()
    }

    /// All devices of the btrfs that this one belongs to; itself, if it belongs to none.
    fn members(&self, folder: PathBuf) -> Vec<PathBuf> {
        let name = folder.file_name().unwrap_or_default();
        let systems = entries(&self.root.join("sys/fs/btrfs"));
        let mut members = systems.iter().map(|at| entries(&at.join("devices")));
        let has_it = |members: &Vec<PathBuf>| {
            let mut names = members.iter().map(|member| member.file_name());
            names.any(|member| member == Some(name))
        };
        members.find(has_it).unwrap_or_else(|| vec![folder])
    }
}

/// Links to the controllers of a disk with several paths: `nvme0`, but not `nvme0n1` next to it in
/// the folder of its subsystem. Empty for other disks.
fn controllers(disk: &Path) -> Vec<PathBuf> {
    let starts = |path: &Path, with| {
        let name = path.file_name().and_then(OsStr::to_str)?;
        name.strip_prefix(with).map(str::to_owned)
    };
    let subsystem = disk
        .parent()
        .filter(|at| starts(at, "nvme-subsys").is_some());
    let mut links = subsystem.map(entries).unwrap_or_default();
    links.retain(|link| {
        starts(link, "nvme").is_some_and(|rest| {
            let is_number = |b: u8| b.is_ascii_digit();
            !rest.is_empty() && rest.bytes().all(is_number)
        })
    });
    links
}

/// Contents of a folder, sorted; empty if it does not exist.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

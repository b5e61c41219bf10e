use super::*;
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::unix::fs::symlink;

/// A root folder with some of `sys`, `proc` and `dev`.
struct Tree(PathBuf);

const FILE: &str = "/data/model.gguf";

impl Tree {
    /// Lines are `path: text`, or `path -> link`, whose target is below the root.
    fn new(lines: &str) -> Self {
        // Tests run at the same time.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (id, n) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(format!("sluice-drives-{id}-{n}"));
        fs::create_dir_all(&root).unwrap();
        let tree = Self(root.canonicalize().unwrap());
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some((path, to)) = line.split_once(" -> ") {
                symlink(tree.0.join(to), tree.at(path)).unwrap();
            } else {
                let (path, text) = line.split_once(": ").unwrap();
                fs::write(tree.at(path), format!("{text}\n")).unwrap();
            }
        }
        tree
    }

    /// A path, after creating its folder.
    fn at(&self, path: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn found(&self, path: &str, (major, minor): (u32, u32)) -> (String, Vec<usize>) {
        let device = DeviceNumber { major, minor };
        let drives = Drives::below(&self.0, Path::new(path), device);
        (drives.devices.join(" "), drives.nodes)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

/// Two NVMe disks on two nodes, the first with a partition, and a SATA disk without a node.
const DISKS: &str = "
    sys/devices/pci0000:00/0000:00:1d.0/numa_node: 0
    sys/devices/pci0000:00/0000:00:1d.0/nvme/nvme0/nvme0n1/size: 8
    sys/devices/pci0000:00/0000:00:1d.0/nvme/nvme0/nvme0n1/nvme0n1p2/partition: 2
    sys/devices/pci0000:80/0000:80:01.0/numa_node: 1
    sys/devices/pci0000:80/0000:80:01.0/nvme/nvme1/nvme1n1/size: 8
    sys/devices/pci0000:00/0000:00:17.0/numa_node: -1
    sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda/size: 8
    sys/dev/block/259:0 -> sys/devices/pci0000:00/0000:00:1d.0/nvme/nvme0/nvme0n1
    sys/dev/block/259:2 -> sys/devices/pci0000:00/0000:00:1d.0/nvme/nvme0/nvme0n1/nvme0n1p2
    sys/dev/block/259:1 -> sys/devices/pci0000:80/0000:80:01.0/nvme/nvme1/nvme1n1
    sys/dev/block/8:0 -> sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda
";

fn with_disks(more: &str) -> Tree {
    Tree::new(&format!("{DISKS}{more}"))
}

fn are(devices: &str, nodes: &[usize]) -> (String, Vec<usize>) {
    (devices.to_owned(), nodes.to_vec())
}

#[test]
fn disks_and_partitions() {
    let tree = with_disks("");
    assert_eq!(tree.found(FILE, (259, 0)), are("nvme0n1", &[0]));
    assert_eq!(tree.found(FILE, (259, 2)), are("nvme0n1", &[0]));
    assert_eq!(tree.found(FILE, (259, 1)), are("nvme1n1", &[1]));
    assert_eq!(tree.found(FILE, (8, 0)), are("sda", &[]), "-1");
    assert_eq!(tree.found(FILE, (8, 1)), are("", &[]), "no such device");
    assert_eq!(Tree::new("").found(FILE, (8, 0)), are("", &[]), "no sysfs");
}

/// A volume on a partition, one on that, a RAID of both disks with a partition, one with a disk
/// without a node.
const STACKS: &str = "
    sys/devices/virtual/block/dm-0/slaves/nvme0n1p2 -> sys/dev/block/259:2
    sys/devices/virtual/block/dm-1/slaves/dm-0 -> sys/devices/virtual/block/dm-0
    sys/devices/virtual/block/md0/slaves/nvme0n1 -> sys/dev/block/259:0
    sys/devices/virtual/block/md0/slaves/nvme1n1 -> sys/dev/block/259:1
    sys/devices/virtual/block/md0/md0p1/partition: 1
    sys/devices/virtual/block/md1/slaves/nvme1n1 -> sys/dev/block/259:1
    sys/devices/virtual/block/md1/slaves/sda -> sys/dev/block/8:0
    sys/devices/virtual/block/md2/slaves/nvme1n1 -> sys/dev/block/259:1
    sys/devices/virtual/block/md2/slaves/gone -> sys/dev/block/8:99
    sys/devices/virtual/block/dm-3/slaves/dm-4 -> sys/devices/virtual/block/dm-4
    sys/devices/virtual/block/dm-4/slaves/dm-3 -> sys/devices/virtual/block/dm-3
    sys/devices/virtual/block/dm-5/slaves/dm-5 -> sys/devices/virtual/block/dm-5/slaves/dm-5
    sys/devices/virtual/block/zram0/size: 8
    sys/dev/block/253:0 -> sys/devices/virtual/block/dm-0
    sys/dev/block/253:1 -> sys/devices/virtual/block/dm-1
    sys/dev/block/253:3 -> sys/devices/virtual/block/dm-3
    sys/dev/block/253:5 -> sys/devices/virtual/block/dm-5
    sys/dev/block/253:6 -> sys/dev/block/253:6
    sys/dev/block/9:0 -> sys/devices/virtual/block/md0
    sys/dev/block/9:1 -> sys/devices/virtual/block/md1
    sys/dev/block/9:2 -> sys/devices/virtual/block/md2
    sys/dev/block/259:7 -> sys/devices/virtual/block/md0/md0p1
    sys/dev/block/254:0 -> sys/devices/virtual/block/zram0
";

#[test]
fn devices_on_devices() {
    let tree = with_disks(STACKS);
    assert_eq!(tree.found(FILE, (253, 0)), are("nvme0n1", &[0]), "LVM");
    assert_eq!(tree.found(FILE, (253, 1)), are("nvme0n1", &[0]), "dm on dm");
    let both = are("nvme0n1 nvme1n1", &[0, 1]);
    assert_eq!(tree.found(FILE, (9, 0)), both, "md");
    assert_eq!(tree.found(FILE, (259, 7)), both, "a partition of md");
    assert_eq!(
        tree.found(FILE, (9, 1)),
        are("nvme1n1 sda", &[]),
        "one is -1"
    );
    assert_eq!(
        tree.found(FILE, (9, 2)),
        are("nvme1n1", &[]),
        "one is missing"
    );
    assert_eq!(tree.found(FILE, (254, 0)), are("zram0", &[]));
}

#[test]
fn circles_end() {
    let tree = with_disks(STACKS);
    for minor in [3, 5, 6] {
        assert_eq!(tree.found(FILE, (253, minor)), are("", &[]));
    }
    // A stack that is deeper than any real one.
    let tower: String = (0..40)
        .map(|i| {
            let (above, below) = (i, i + 1);
            format!(
                "sys/devices/virtual/block/dm-{above}/slaves/dm-{below} -> \
                 sys/devices/virtual/block/dm-{below}\n"
            )
        })
        .collect();
    let bottom = "sys/devices/virtual/block/dm-40/numa_node: 0\n\
        sys/dev/block/253:0 -> sys/devices/virtual/block/dm-0";
    let tree = Tree::new(&format!("{tower}{bottom}"));
    assert_eq!(tree.found(FILE, (253, 0)), are("", &[]));
}

#[test]
fn nvme_over_several_paths() {
    let subsystem = "
        sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme4n1/size: 8
        sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme4n1/nvme4n1p1/partition: 1
        sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme4 -> sys/devices/pci0000:00/0000:00:1d.0/nvme/nvme4
        sys/devices/pci0000:00/0000:00:1d.0/nvme/nvme4/state: live
        sys/dev/block/259:9 -> sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme4n1
        sys/dev/block/259:10 -> sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme4n1/nvme4n1p1
    ";
    let tree = with_disks(subsystem);
    assert_eq!(tree.found(FILE, (259, 9)), are("nvme4n1", &[0]));
    assert_eq!(tree.found(FILE, (259, 10)), are("nvme4n1", &[0]));
    let second = "
        sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme5 -> sys/devices/pci0000:80/0000:80:01.0/nvme/nvme5
        sys/devices/pci0000:80/0000:80:01.0/nvme/nvme5/numa_node: 1
    ";
    let tree = with_disks(&format!("{subsystem}{second}"));
    assert_eq!(tree.found(FILE, (259, 9)), are("nvme4n1", &[0, 1]));
    let gone = "sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme6 -> sys/nowhere";
    let tree = with_disks(&format!("{subsystem}{gone}"));
    assert_eq!(tree.found(FILE, (259, 9)), are("nvme4n1", &[]));
}

#[test]
fn overlays() {
    let layers = "
        proc/self/mountinfo: 1 0 0:40 / / rw - overlay overlay rw,lowerdir=/images/b:/images/a,upperdir=/upper/x\\040y/diff
        images/a/data/model.gguf: lower
        images/b/other: lower
        upper/x y/diff/data/mine.gguf: upper
    ";
    let tree = with_disks(layers);
    // The layers' own mounts are not visible: they are looked for on the overlay itself.
    assert_eq!(tree.found(FILE, (0, 40)), are("", &[]));
    let mounts = "1 0 0:40 / / rw - overlay overlay rw,lowerdir=/images/b:/images/a,upperdir=/upper/x\\040y/diff\n\
        2 1 259:1 / /images rw - ext4 /dev/nvme1n1 rw\n\
        3 1 259:2 / /upper rw - ext4 /dev/nvme0n1p2 rw\n";
    fs::write(tree.at("proc/self/mountinfo"), mounts).unwrap();
    assert_eq!(tree.found(FILE, (0, 40)), are("nvme1n1", &[1]), "lower");
    let mine = tree.found("/data/mine.gguf", (0, 40));
    assert_eq!(mine, are("nvme0n1", &[0]), "upper");
    // Files of one layer may have a number of their own.
    assert_eq!(tree.found(FILE, (0, 99)), are("nvme1n1", &[1]));
    let both = are("nvme0n1 nvme1n1", &[0, 1]);
    assert_eq!(tree.found("/in/neither", (0, 40)), both);
    // A folder of the overlay, mounted elsewhere.
    let bound =
        format!("{mounts}4 1 0:40 /data /srv/models rw - overlay overlay rw,lowerdir=/images/a\n");
    fs::write(tree.at("proc/self/mountinfo"), bound).unwrap();
    let found = tree.found("/srv/models/model.gguf", (0, 40));
    assert_eq!(found, are("nvme1n1", &[1]));
}

#[test]
fn overlays_in_circles() {
    let tree = with_disks(
        "
        a/data/model.gguf: x
        b/data/model.gguf: x
        a/b/data/model.gguf: x
    ",
    );
    let mounts = "1 0 0:40 / / rw - overlay overlay rw,lowerdir=/a:/b\n\
        2 1 0:41 / /a rw - overlay overlay rw,lowerdir=/b:/a\n\
        3 1 0:42 / /b rw - overlay overlay rw,lowerdir=/a:/b:relative\n";
    fs::write(tree.at("proc/self/mountinfo"), mounts).unwrap();
    assert_eq!(tree.found(FILE, (0, 40)), are("", &[]));
    // Unreadable lines only.
    fs::write(tree.at("proc/self/mountinfo"), b"\xff 1 2\n\n- - -\n").unwrap();
    assert_eq!(tree.found(FILE, (0, 40)), are("", &[]));
}

#[test]
fn mounts_by_the_name_of_their_device() {
    let tree = with_disks(
        "
        sys/class/block/nvme0n1p2 -> sys/dev/block/259:2
        sys/class/block/nvme1n1 -> sys/dev/block/259:1
        sys/class/block/dm-0 -> sys/devices/virtual/block/dm-0
        sys/class/block/cciss!c0d0 -> sys/devices/pci0000:00/0000:00:17.0/cciss!c0d0
        sys/devices/pci0000:00/0000:00:17.0/cciss!c0d0/numa_node: 0
        sys/devices/virtual/block/dm-0/slaves/nvme1n1 -> sys/dev/block/259:1
        dev/mapper/vg-models -> dev/dm-0
        dev/dm-0: no device, but the name is right
    ",
    );
    let of = |kind: &str, source: &str| {
        let line = format!("1 0 0:50 / /data rw - {kind} {source} rw\n");
        fs::write(tree.at("proc/self/mountinfo"), line).unwrap();
        tree.found(FILE, (0, 51))
    };
    assert_eq!(of("btrfs", "/dev/nvme0n1p2"), are("nvme0n1", &[0]));
    assert_eq!(of("btrfs", "/dev/mapper/vg-models"), are("nvme1n1", &[1]));
    assert_eq!(of("fuseblk", "/dev/cciss/c0d0"), are("cciss!c0d0", &[0]));
    for (kind, source) in [
        ("tmpfs", "tmpfs"),
        ("zfs", "tank/models"),
        ("nfs4", "server:/models"),
        ("9p", "/models"),
        ("btrfs", "/dev/gone"),
        ("btrfs", "/dev"),
    ] {
        assert_eq!(of(kind, source), are("", &[]), "{kind} {source}");
    }
    // One btrfs on two disks.
    for (name, number) in [("nvme0n1p2", "259:2"), ("nvme1n1", "259:1")] {
        let link = tree.at(&format!("sys/fs/btrfs/d00d-feed/devices/{name}"));
        symlink(tree.0.join("sys/dev/block").join(number), link).unwrap();
    }
    let both = are("nvme0n1 nvme1n1", &[0, 1]);
    assert_eq!(of("btrfs", "/dev/nvme0n1p2"), both);
}

#[test]
fn this_machine() {
    let drives = Drives::of(Path::new(".")).unwrap();
    assert!(drives.nodes.is_sorted());
    assert!(Drives::of(Path::new("/does/not/exist")).is_err());
    let unknown = Drives::default();
    assert!(unknown.cpus().0.is_empty());
    assert_eq!(unknown.bind_current_thread("a thread"), None);
}

#[test]
fn a_thread_is_bound_to_the_cpus_of_the_nodes() {
    let thread = std::thread::spawn(|| {
        let cores = Cores::choose(CoreChoice::All);
        let (node, cpus) = cores.nodes().swap_remove(0);
        let drives = Drives {
            devices: Vec::new(),
            nodes: vec![node],
        };
        assert_eq!(drives.cpus(), CpuList(cpus.clone()));
        let measure = drives.bind_current_thread("a thread").unwrap();
        assert!(measure.is_held(), "{measure}");
        // As the kernel shows it in text.
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(list.unwrap().trim(), CpuList(cpus.clone()).to_string());
        // A thread that has fewer stays within them.
        topology::pin_current_thread(cpus[0]).unwrap();
        assert_eq!(drives.cpus(), CpuList(vec![cpus[0]]));
        assert_eq!(drives.cpus_among(&cores), CpuList(cpus));
    });
    thread.join().unwrap();
}

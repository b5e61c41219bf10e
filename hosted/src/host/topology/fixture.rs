//! The machines of `tests/sysfs`, as folders for tests.

use core::sync::atomic::{AtomicU32, Ordering};
use std::fs;
use std::path::{Path, PathBuf};

/// Calls `work` with a folder that has the files of a machine, as `/sys/devices` would.
pub(crate) fn with_devices<T>(name: &str, work: impl FnOnce(&Path) -> T) -> T {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = format!("sluice-{name}-{}-{count}", std::process::id());
    let root = std::env::temp_dir().join(folder);
    // The program's tests read this file, too.
    let folders = ["tests/sysfs", "../tests/sysfs"].map(|folder| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join(folder)
            .join(format!("{name}.txt"))
    });
    let list = folders.iter().find(|list| list.exists()).unwrap();
    let text = fs::read_to_string(list).unwrap();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (path, text) = line.split_once(": ").unwrap();
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    let result = work(&root);
    fs::remove_dir_all(root).unwrap();
    result
}

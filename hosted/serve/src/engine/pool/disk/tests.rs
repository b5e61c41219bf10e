//! Restarts, damage, room, and several servers in one folder.
use super::file::HEADER_BYTES;
use super::*;
use crate::few_files::{in_child, take_all};
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Mutex;

const LEN: u64 = (HEADER_BYTES + 1000) as u64;

/// A folder of its own, removed at the end, and what its caches log.
struct Folder {
    path: PathBuf,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("sluice-disk-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _gone = fs::remove_dir_all(&path);
        let lines = Arc::default();
        Self { path, lines }
    }

    fn try_open(&self, n_bytes_max: u64) -> io::Result<DiskCache> {
        let lines = Arc::clone(&self.lines);
        let log = move |line: &str| lines.lock().unwrap().push(line.to_owned());
        DiskCache::open(&self.path, n_bytes_max, Arc::new(log))
    }

    fn open(&self) -> DiskCache {
        self.try_open(1 << 20).unwrap()
    }

    fn file(&self, name: &FileName) -> PathBuf {
        name.path_in(&self.path)
    }

    fn has(&self, name: &FileName) -> bool {
        self.file(name).exists()
    }

    /// Writes pages of 1000 bytes, and waits until they are written.
    fn write(&self, cache: &DiskCache, names: &[FileName]) {
        for name in names {
            assert!(cache.write(*name, vec![name.key[0]; 1000]));
            for _ in 0..2000 {
                if self.has(name) {
                    break;
                }
                std::thread::park_timeout(Duration::from_millis(5));
            }
            assert!(self.has(name), "{:?}", self.lines);
        }
    }

    /// Bytes of all pages, finished or not. Servers neither take nor give room during the count.
    fn n_bytes(&self) -> u64 {
        let room = File::open(self.path.join(".sluice-room")).unwrap();
        room.lock().unwrap();
        let subfolders = fs::read_dir(&self.path).unwrap().flatten();
        let files = subfolders.filter_map(|sub| fs::read_dir(sub.path()).ok());
        let files = files.flatten().flatten();
        files
            .filter_map(|file| Some(file.metadata().ok()?.len()))
            .sum()
    }

    fn logged(&self, expected: &str) -> usize {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|line| line.contains(expected)).count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.path);
    }
}

const fn page(i: u8) -> FileName {
    FileName {
        key: [i; 32],
        kind: FileKind::Page,
    }
}

const fn state(i: u8) -> FileName {
    FileName {
        key: [i; 32],
        kind: FileKind::State,
    }
}

fn look(cache: &DiskCache, keys: &[u8], has_state: bool) -> Vec<StoredFile> {
    let pages = keys.iter().map(|key| WantedPage {
        key: [*key; 32],
        has_state,
    });
    let lookup = Lookup {
        pages: pages.collect(),
        n_here: 0,
        n_usable: 0,
    };
    let (send, receive) = mpsc::channel();
    assert!(cache.read(lookup, move |read| send.send(read).unwrap()));
    receive.recv().unwrap()
}

/// The pages that are found of a text with these.
fn found(cache: &DiskCache, keys: &[u8]) -> Vec<FileName> {
    let read = look(cache, keys, true);
    for file in &read {
        assert_eq!(file.bytes, [file.name.key[0]; 1000]);
    }
    read.into_iter().map(|file| file.name).collect()
}

#[test]
fn pages_are_there_after_a_restart_and_damaged_ones_are_not() {
    let folder = Folder::new("restart");
    let cache = folder.open();
    folder.write(&cache, &[page(0), page(1), page(2), page(3)]);
    drop(cache);
    let mut bytes = fs::read(folder.file(&page(1))).unwrap();
    bytes[500] ^= 1;
    fs::write(folder.file(&page(1)), bytes).unwrap();
    fs::write(folder.file(&page(3)), [0; 20]).unwrap();
    let cache = folder.open();
    assert_eq!(found(&cache, &[0, 2]), [page(0), page(2)]);
    assert_eq!(found(&cache, &[0, 1, 2]), [page(0)]);
    assert!(found(&cache, &[3]).is_empty());
    assert!(!folder.has(&page(1)) && !folder.has(&page(3)));
    assert_eq!(folder.logged("a page is removed"), 2);
}

#[test]
fn a_recurrent_text_starts_where_a_state_is() {
    let folder = Folder::new("states");
    let cache = folder.open();
    folder.write(&cache, &[page(0), page(1), page(2), state(1)]);
    let files = |keys: &[u8]| -> Vec<FileName> {
        let read = look(&cache, keys, false).into_iter();
        read.map(|file| file.name).collect()
    };
    assert_eq!(files(&[0, 1, 2, 3]), [page(0), page(1), state(1)]);
    assert!(files(&[0]).is_empty() && files(&[3, 1]).is_empty());
}

#[test]
fn pages_under_another_name_are_refused() {
    let folder = Folder::new("names");
    let cache = folder.open();
    folder.write(&cache, &[page(0), page(1)]);
    for other in [page(1), state(0)] {
        fs::copy(folder.file(&page(0)), folder.file(&other)).unwrap();
    }
    // Written by somebody who does not know the key, and by an older version.
    let bytes = fs::read(folder.file(&page(0))).unwrap();
    let outsider = Folder::new("outsider");
    outsider.write(&outsider.open(), &[page(2)]);
    fs::create_dir(folder.file(&page(2)).parent().unwrap()).unwrap();
    fs::copy(outsider.file(&page(2)), folder.file(&page(2))).unwrap();
    let mut older = bytes;
    older[4] = 1;
    fs::create_dir(folder.file(&page(3)).parent().unwrap()).unwrap();
    fs::write(folder.file(&page(3)), older).unwrap();
    for i in [1, 2, 3] {
        assert!(found(&cache, &[i]).is_empty() && !folder.has(&page(i)));
    }
    assert_eq!(look(&cache, &[0], false).len(), 1);
    assert!(!folder.has(&state(0)) && folder.has(&page(0)));
    assert_eq!(folder.logged("it was changed, or is of another key"), 3);
    assert_eq!(folder.logged("it is from another version"), 1);
}

#[test]
fn a_folder_with_a_key_of_others_is_not_used() {
    let folder = Folder::new("key");
    drop(folder.open());
    assert_eq!(folder.logged("other users may write"), 0);
    fs::set_permissions(&folder.path, fs::Permissions::from_mode(0o777)).unwrap();
    drop(folder.open());
    assert_eq!(
        folder.logged("other users may write to this folder (mode 777)"),
        1
    );
    let key = folder.path.join(".sluice-key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let error = folder.try_open(1 << 20).unwrap_err().to_string();
    assert!(
        error.contains(".sluice-key: others may read or write it"),
        "{error}"
    );
}

#[test]
fn the_oldest_make_room() {
    let folder = Folder::new("room");
    let cache = folder.try_open(3 * LEN).unwrap();
    folder.write(&cache, &[page(0), page(1), page(2)]);
    assert_eq!(found(&cache, &[0]), [page(0)]);
    folder.write(&cache, &[page(3)]);
    assert!(folder.has(&page(0)) && !folder.has(&page(1)) && folder.has(&page(2)));
    assert!(cache.write(page(4), vec![0; 4000]));
    drop(cache);
    assert!(!folder.has(&page(4)));
}

#[test]
fn servers_share_a_folder() {
    let folder = Folder::new("shared");
    let (a, b) = (
        folder.try_open(4 * LEN).unwrap(),
        folder.try_open(4 * LEN).unwrap(),
    );
    folder.write(&a, &[page(0), page(1)]);
    assert_eq!(found(&b, &[0, 1]), [page(0), page(1)]);
    folder.write(&b, &[page(2), page(3)]);
    assert_eq!(found(&a, &[2, 3]), [page(2), page(3)]);
    // What either has used stays.
    assert_eq!(found(&b, &[0]), [page(0)]);
    folder.write(&a, &[page(4), page(5)]);
    let stay = [0, 3, 4, 5].map(|i| folder.has(&page(i)));
    let go = [1, 2].map(|i| folder.has(&page(i)));
    assert_eq!((stay, go), ([true; 4], [false; 2]));
    // Both write as fast as they can.
    std::thread::scope(|scope| {
        for (cache, from) in [(&a, 10), (&b, 60)] {
            let folder = &folder;
            scope.spawn(move || {
                for i in 0..50 {
                    cache.write(page(from + i), vec![from + i; 1000]);
                    assert!(folder.n_bytes() <= 4 * LEN);
                    std::thread::park_timeout(Duration::from_millis(2));
                }
            });
        }
    });
    drop((a, b));
    assert_eq!(folder.n_bytes(), 4 * LEN);
    assert!(
        folder.lines.lock().unwrap().is_empty(),
        "{:?}",
        folder.lines
    );
}

#[test]
fn only_leftovers_of_killed_servers_are_removed() {
    let folder = Folder::new("parts");
    drop(folder.open());
    let mut room = Room::open(&folder.path, 4 * LEN).unwrap();
    let sub = folder.path.join("00");
    fs::create_dir(&sub).unwrap();
    let part = room.take(&sub, LEN).unwrap().unwrap();
    let parts = || fs::read_dir(&sub).unwrap().count();
    // A leftover, and what belongs to others.
    File::create(sub.join("1-1.part")).unwrap();
    fs::set_permissions(sub.join("1-1.part"), fs::Permissions::from_mode(0o600)).unwrap();
    let lost = folder.path.join("lost+found");
    fs::create_dir(&lost).unwrap();
    fs::write(lost.join("x.part"), "x").unwrap();
    assert_eq!(parts(), 2);
    let cache = folder.try_open(4 * LEN).unwrap();
    assert_eq!(parts(), 1);
    // The room that the other server has taken is not free.
    folder.write(&cache, &[page(1), page(2), page(3), page(4)]);
    assert_eq!(folder.n_bytes() - 1, 4 * LEN);
    drop(part);
    drop(folder.open());
    assert_eq!(parts(), 0);
    assert!(lost.join("x.part").exists());
}

#[test]
fn a_page_that_cannot_be_read_now_stays() {
    let test = "engine::pool::disk::tests::a_page_that_cannot_be_read_now_stays";
    in_child(test, || {
        let folder = Folder::new("files");
        let cache = folder.open();
        folder.write(&cache, &[page(0)]);
        let held = take_all();
        for _ in 0..3 {
            assert!(found(&cache, &[0]).is_empty() && folder.has(&page(0)));
        }
        let expected = "a page cannot be read now: Too many open files";
        assert_eq!(folder.logged(expected), 1);
        drop(held);
        assert_eq!(found(&cache, &[0]), [page(0)]);
    });
}

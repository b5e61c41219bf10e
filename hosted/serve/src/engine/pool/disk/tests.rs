//! Restarts, damage, room.
use super::*;

fn quiet() -> Log {
    Arc::new(|_: &str| ())
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("sluice-disk-{}-{name}", std::process::id()));
    let _gone = fs::remove_dir_all(&folder);
    folder
}

fn read(cache: &DiskCache, names: &[FileName]) -> Vec<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    assert!(cache.read(names.to_vec(), move |read| send.send(read).unwrap()));
    let read = receive.recv().unwrap();
    read.into_iter().map(|file| file.bytes).collect()
}

#[test]
fn pages_are_there_after_a_restart_and_damaged_ones_are_not() {
    let folder = folder("restart");
    let name = |i: u8| FileName {
        key: [i; 32],
        kind: if i == 2 {
            FileKind::State
        } else {
            FileKind::Page
        },
    };
    let cache = DiskCache::open(&folder, 1 << 20, quiet()).unwrap();
    for i in 0..4 {
        assert!(cache.write(name(i), vec![i; 1000]));
    }
    assert_eq!(read(&cache, &[name(3)]), [vec![3; 1000]]);
    drop(cache);
    let path = |i| path_of(&folder, &name(i));
    let mut bytes = fs::read(path(1)).unwrap();
    bytes[500] ^= 1;
    fs::write(path(1), bytes).unwrap();
    fs::write(path(3), [0; 20]).unwrap();
    fs::write(folder.join("00/1-1.part"), "x").unwrap();
    let cache = DiskCache::open(&folder, 1 << 20, quiet()).unwrap();
    assert!(!folder.join("00/1-1.part").exists());
    assert!(cache.contains(&name(1)));
    assert_eq!(
        read(&cache, &[name(0), name(2)]),
        [vec![0; 1000], vec![2; 1000]]
    );
    assert_eq!(read(&cache, &[name(0), name(1), name(2)]).len(), 1);
    assert!(read(&cache, &[name(3)]).is_empty());
    assert!(!cache.contains(&name(1)) && !path(1).exists() && !path(3).exists());
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_oldest_make_room() {
    let folder = folder("room");
    let cache = DiskCache::open(&folder, 3 * 1048, quiet()).unwrap();
    let name = |i: u8| FileName {
        key: [i; 32],
        kind: FileKind::Page,
    };
    for i in 0..3 {
        assert!(cache.write(name(i), vec![i; 1000]));
    }
    assert_eq!(read(&cache, &[name(0)]).len(), 1);
    assert!(cache.write(name(3), vec![3; 1000]));
    assert_eq!(read(&cache, &[name(3)]).len(), 1);
    assert!(cache.contains(&name(0)) && !cache.contains(&name(1)) && cache.contains(&name(2)));
    assert!(cache.write(name(4), vec![0; 4000]));
    assert!(read(&cache, &[name(4)]).is_empty());
    fs::remove_dir_all(&folder).unwrap();
}

//! Pulls from a local stand-in for the hub: downloads, resumed downloads, and errors.
#![expect(clippy::unwrap_used, reason = "what is not there fails the test")]

#[path = "pull/failures.rs"]
mod failures;
mod stand_in;

use sluice_pull::{
    Cache, FileChoice, Hub, Progress, PullError, PullRequest, PulledFiles, Watch, pull,
};
use stand_in::{COMMIT, StandIn};
use std::fs;
use std::path::{Path, PathBuf};

/// A temporary folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let id = std::process::id();
        let path = std::env::temp_dir().join(format!("sluice-pull-{name}-{id}"));
        let _gone = fs::remove_dir_all(&path);
        Self(path)
    }

    fn cache(&self) -> Cache {
        Cache::at(&self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

#[derive(Default)]
struct Seen {
    notes: Vec<String>,
    last: Option<Progress>,
    stop_at: Option<u64>,
    received: Vec<(PathBuf, [u8; 32])>,
}

impl Watch for Seen {
    fn received(&mut self, path: &Path, sha256: [u8; 32]) {
        self.received.push((path.to_path_buf(), sha256));
    }

    fn progress(&mut self, progress: Progress) {
        self.last = Some(progress);
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn is_stopped(&self) -> bool {
        let done = self.last.map_or(0, |last| last.done_bytes);
        self.stop_at.is_some_and(|stop| done >= stop)
    }
}

fn request(text: &str) -> PullRequest {
    PullRequest::parse(text).unwrap()
}

fn pulled(
    server: &StandIn,
    text: &str,
    cache: &Cache,
    seen: &mut Seen,
) -> Result<PulledFiles, PullError> {
    let hub = Hub::new(&server.endpoint(), None).unwrap();
    pull(&request(text), Some(&hub), cache, seen)
}

fn paths_under(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let inner = path.strip_prefix(root).unwrap();
                found.push(inner.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn a_model_lies_as_other_clients_lay_it() {
    let folder = Folder::new("layout");
    let server = StandIn::start();
    let sha256 = server.add("m-Q4_K_M.gguf", &vec![7; 300_000]);
    server.add("m-Q8_0.gguf", &[8; 10]);
    let mut seen = Seen::default();
    let found = pulled(&server, "u/m", &folder.cache(), &mut seen).unwrap();
    let snapshot = folder.0.join(format!("models--u--m/snapshots/{COMMIT}"));
    assert_eq!(found.folder, snapshot);
    assert_eq!(found.files, [snapshot.join("m-Q4_K_M.gguf")]);
    assert_eq!(fs::read(&found.files[0]).unwrap(), vec![7; 300_000]);
    let link = fs::read_link(&found.files[0]).unwrap();
    assert_eq!(link, PathBuf::from(format!("../../blobs/{sha256}")));
    let blob = folder.0.join(format!("models--u--m/blobs/{sha256}"));
    let [(path, received)] = &seen.received[..] else {
        panic!("{:?}", seen.received);
    };
    let hex: String = received.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((path, &hex), (&blob, &sha256));
    let main = folder.0.join("models--u--m/refs/main");
    assert_eq!(fs::read_to_string(main).unwrap(), COMMIT);
    let expected = [
        format!(".locks/models--u--m/{sha256}.lock"),
        format!("models--u--m/blobs/{sha256}"),
        String::from("models--u--m/refs/main"),
        format!("models--u--m/snapshots/{COMMIT}/m-Q4_K_M.gguf"),
    ];
    assert_eq!(paths_under(&folder.0), expected);
    let end = Progress {
        done_bytes: 300_000,
        total_bytes: 300_000,
    };
    assert_eq!(seen.last, Some(end));

    // Nothing is fetched the second time, nor without the server.
    let bytes_sent = server.bytes_sent();
    pulled(&server, "u/m:q4_k_m", &folder.cache(), &mut Seen::default()).unwrap();
    assert_eq!(server.bytes_sent(), bytes_sent);
    let offline = pull(&request("u/m"), None, &folder.cache(), &mut Seen::default());
    assert_eq!(offline.unwrap(), found);
    drop(server);
    let gone = Hub::new("http://127.0.0.1:9", None).unwrap();
    let mut seen = Seen::default();
    let kept = pull(&request("u/m"), Some(&gone), &folder.cache(), &mut seen).unwrap();
    assert_eq!(kept, found);
    assert!(seen.notes[0].contains("cached copy"), "{:?}", seen.notes);
}

#[test]
fn a_broken_line_goes_on_where_it_ended() {
    let folder = Folder::new("broken");
    let server = StandIn::start();
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    server.add("m.gguf", &bytes);
    server.cut_after(400_000);
    let mut seen = Seen::default();
    let found = pulled(&server, "u/m", &folder.cache(), &mut seen).unwrap();
    assert_eq!(fs::read(&found.files[0]).unwrap(), bytes);
    assert_eq!(server.ranges(), [0, 400_000, 800_000]);
    assert_eq!(seen.notes.len(), 2, "{:?}", seen.notes);
}

#[test]
fn an_interrupted_pull_goes_on_next_time() {
    let folder = Folder::new("stopped");
    let server = StandIn::start();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 253) as u8).collect();
    let sha256 = server.add("m.gguf", &bytes);
    let mut seen = Seen {
        stop_at: Some(1_000_000),
        ..Seen::default()
    };
    let stopped = pulled(&server, "u/m", &folder.cache(), &mut seen);
    assert!(matches!(stopped, Err(PullError::Stopped)), "{stopped:?}");
    let incomplete = folder
        .0
        .join(format!("models--u--m/blobs/{sha256}.incomplete"));
    let there = fs::metadata(&incomplete).unwrap().len();
    assert!(there >= 1_000_000);
    let found = pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap();
    assert_eq!(server.ranges(), [0, there]);
    assert_eq!(fs::read(&found.files[0]).unwrap(), bytes);
    assert!(!incomplete.exists());
}

#[test]
fn a_server_without_ranges_begins_again() {
    let folder = Folder::new("ranges");
    let server = StandIn::start();
    let bytes = vec![3; 600_000];
    let sha256 = server.add("m.gguf", &bytes);
    server.ignore_ranges();
    let blobs = folder.0.join("models--u--m/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{sha256}.incomplete")), [9; 1000]).unwrap();
    let found = pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap();
    assert_eq!(fs::read(&found.files[0]).unwrap(), bytes);
}

#[test]
fn other_bytes_are_refused_and_removed() {
    let folder = Folder::new("sha256");
    let server = StandIn::start();
    server.add("m.gguf", &[1; 1000]);
    server.send_other_bytes();
    let error = pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap_err();
    assert!(matches!(error, PullError::Checksum { .. }), "{error}");
    assert!(
        error.to_string().starts_with("m.gguf: the SHA-256 is "),
        "{error}"
    );
    let left = paths_under(&folder.0);
    assert!(left.iter().all(|path| path.ends_with(".lock")), "{left:?}");
}

#[test]
fn bytes_of_small_files_are_checked_by_their_git_object() {
    let folder = Folder::new("blob");
    let server = StandIn::start();
    server.add_small("m.gguf", &[1; 1000]);
    server.send_other_bytes();
    let error = pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("m.gguf: the Git object ID is "),
        "{error}"
    );
}

#[test]
fn a_link_is_not_written_through() {
    let folder = Folder::new("link");
    let server = StandIn::start();
    let etag = server.add("m.gguf", &[1; 1000]);
    let (blobs, outside) = (
        folder.0.join("models--u--m/blobs"),
        folder.0.join("outside"),
    );
    fs::create_dir_all(&blobs).unwrap();
    fs::write(&outside, "mine").unwrap();
    std::os::unix::fs::symlink(&outside, blobs.join(format!("{etag}.incomplete"))).unwrap();
    let error = pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap_err();
    assert!(matches!(error, PullError::Io { .. }), "{error}");
    assert_eq!(fs::read_to_string(outside).unwrap(), "mine");
}

#[test]
fn names_with_control_characters_are_refused() {
    let folder = Folder::new("control");
    let server = StandIn::start();
    server.add("m\\u001b[31m.gguf", &[1; 10]);
    let error = pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap_err();
    assert!(error.to_string().contains("control characters"), "{error}");
    assert!(!error.to_string().contains('\u{1b}'), "{error:?}");
}

#[test]
fn a_password_in_the_address_is_not_shown() {
    let folder = Folder::new("password");
    for endpoint in ["http://me:hush@127.0.0.1:1", "me:hush@127.0.0.1"] {
        let error = Hub::new(endpoint, None).and_then(|hub| {
            let found = pull(
                &request("u/m"),
                Some(&hub),
                &folder.cache(),
                &mut Seen::default(),
            );
            found.map(|_| ())
        });
        let shown = error.unwrap_err().to_string();
        assert!(
            !shown.contains("hush") && shown.contains("127.0.0.1"),
            "{shown}"
        );
    }
}

#[test]
fn all_parts_of_a_split_model_come() {
    let folder = Folder::new("split");
    let server = StandIn::start();
    for part in 1..=3_u8 {
        server.add(
            &format!("Q8_0/m-Q8_0-0000{part}-of-00003.gguf"),
            &[part; 100],
        );
    }
    let mut seen = Seen::default();
    let found = pulled(&server, "u/m:Q8_0", &folder.cache(), &mut seen).unwrap();
    assert_eq!(found.files.len(), 3);
    assert!(found.files[0].ends_with("Q8_0/m-Q8_0-00001-of-00003.gguf"));
    for (file, part) in found.files.iter().zip(1..) {
        assert_eq!(fs::read(file).unwrap(), [part; 100]);
    }
    assert_eq!(seen.last.unwrap().total_bytes, 300);
}

#[test]
fn a_folder_to_convert_comes_whole() {
    let folder = Folder::new("folder");
    let server = StandIn::start();
    for path in [
        "config.json",
        "model.safetensors",
        "1_Pooling/config.json",
        "pytorch_model.bin",
    ] {
        server.add_small(path, path.as_bytes());
    }
    let hub = Hub::new(&server.endpoint(), None).unwrap();
    let request = PullRequest {
        choice: FileChoice::Folder,
        ..request("u/m")
    };
    let found = pull(&request, Some(&hub), &folder.cache(), &mut Seen::default()).unwrap();
    assert_eq!(found.files.len(), 3);
    let pooling = found.folder.join("1_Pooling/config.json");
    assert_eq!(fs::read(pooling).unwrap(), b"1_Pooling/config.json");
}

#[test]
fn lists_without_lengths_are_asked_for_them() {
    let folder = Folder::new("lengths");
    let server = StandIn::start();
    let sha256 = server.add("m.gguf", &[5; 100]);
    server.list_names_only();
    let found = pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap();
    let link = fs::read_link(&found.files[0]).unwrap();
    assert!(link.ends_with(sha256));
}

#[test]
fn tokens_go_to_the_hub_and_nowhere_else() {
    let folder = Folder::new("token");
    let server = StandIn::start();
    server.add("m.gguf", &[5; 100]);
    server.require_token("hf_abc");
    let error = pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap_err();
    assert!(error.to_string().contains("HF_TOKEN"), "{error}");
    let hub = Hub::new(&server.endpoint(), Some("hf_wrong")).unwrap();
    let refused = pull(
        &request("u/m"),
        Some(&hub),
        &folder.cache(),
        &mut Seen::default(),
    );
    assert!(matches!(
        refused,
        Err(PullError::Refused { status: 401, .. })
    ));
    let hub = Hub::new(&server.endpoint(), Some("hf_abc")).unwrap();
    pull(
        &request("u/m"),
        Some(&hub),
        &folder.cache(),
        &mut Seen::default(),
    )
    .unwrap();
    assert!(!server.storage_saw_token());
}

#[test]
fn what_is_not_there_is_named() {
    let folder = Folder::new("absent");
    let server = StandIn::start();
    server.add("m-F16.gguf", &[5; 100]);
    let fails = |text: &str| {
        let error = pulled(&server, text, &folder.cache(), &mut Seen::default()).unwrap_err();
        error.to_string()
    };
    assert!(fails("u/absent").contains("HTTP 404; no such repository"));
    assert_eq!(
        fails("u/m:Q4_0"),
        "u/m: no model in Q4_0; available: m-F16.gguf"
    );
    let offline = pull(&request("u/m"), None, &folder.cache(), &mut Seen::default());
    assert!(
        offline
            .unwrap_err()
            .to_string()
            .contains("is not in the cache")
    );
    server.add("../../escape.gguf", &[5; 100]);
    assert!(fails("u/m:../../escape").contains("leads out of its folder"));
    let hub = Hub::new(&server.endpoint(), None).unwrap();
    let file = FileChoice::File(String::from("../../escape.gguf"));
    let request = PullRequest {
        choice: file,
        ..request("u/m")
    };
    let error = pull(&request, Some(&hub), &folder.cache(), &mut Seen::default()).unwrap_err();
    assert!(
        error.to_string().contains("leads out of its folder"),
        "{error}"
    );
}

#[test]
fn two_pulls_at_once_fetch_once() {
    let folder = Folder::new("twice");
    let server = StandIn::start();
    server.add("m.gguf", &vec![6; 2_000_000]);
    std::thread::scope(|scope| {
        let pulls = [(); 2].map(|()| {
            scope.spawn(|| pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap())
        });
        let found = pulls.map(|pull| pull.join().unwrap());
        assert_eq!(found[0], found[1]);
    });
    assert_eq!(server.ranges(), [0]);
}

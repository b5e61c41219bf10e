//! Slots in files: whom they belong to, and what is not one.

use crate::client::{Reply, Running, options, until};
use core::time::Duration;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A folder of slots, removed at the end.
struct Slots(PathBuf);

impl Slots {
    fn new(name: &str) -> Self {
        let name = format!("sluice-slots-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _gone = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn serve(&self) -> Running {
        let mut options = options();
        options.http.slot_save_path = Some(self.0.clone());
        Running::start(options)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

/// Fewer tokens than a page, so that only slots keep it.
const PROMPT: &str = "The password of the bank is green apple";

/// The number of tokens that were not read again.
fn cached(server: &Running, salt: &str) -> u64 {
    let asked = json!({"model": "tale", "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "cache_salt": salt});
    let reply = server.post("/v1/completions", &asked).json();
    let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    cached.unwrap_or_else(|| panic!("{reply}"))
}

fn act(server: &Running, slot: u32, action: &str, name: &str) -> Reply {
    let path = format!("/slots/{slot}?action={action}&model=tale");
    server.post(&path, &json!({"filename": name}))
}

fn done(server: &Running, slot: u32, action: &str, name: &str) {
    let reply = act(server, slot, action, name);
    assert_eq!(reply.status, 200, "{}", reply.body);
}

/// Restoring `name` is an error about it that says `what`, at once, and names no folder.
fn refused(slots: &Slots, server: &Running, name: &str, what: &str) {
    let start = Instant::now();
    let reply = act(server, 3, "restore", name);
    assert_eq!(
        (reply.status, &*reply.param()),
        (400, "filename"),
        "{reply:?}"
    );
    assert!(reply.body.contains(what), "{what}: {}", reply.body);
    let folder = slots.0.to_str().unwrap();
    assert!(!reply.body.contains(folder), "{}", reply.body);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_restored_text_is_found_with_its_salt_alone() {
    let slots = Slots::new("salt");
    let server = slots.serve();
    assert_eq!(cached(&server, "tenant-b"), 0);
    done(&server, 0, "save", "b.bin");
    done(&server, 0, "erase", "");
    let bytes = fs::read(slots.file("b.bin")).unwrap();
    let text = b"tenant-b";
    assert!(!bytes.windows(text.len()).any(|part| part == text));
    done(&server, 0, "restore", "b.bin");
    assert_eq!(cached(&server, ""), 0);
    assert_eq!(cached(&server, "tenant-a"), 0);
    // Saved once more, and restored by another process's engine.
    done(&server, 0, "save", "again.bin");
    drop(server);
    let server = slots.serve();
    assert_eq!(cached(&server, ""), 0);
    done(&server, 3, "restore", "again.bin");
    assert_eq!(cached(&server, "tenant-a"), 0);
    assert!(cached(&server, "tenant-b") > 5);
}

#[test]
fn what_is_no_slot_is_refused_at_once() {
    let slots = Slots::new("kinds");
    let server = slots.serve();
    cached(&server, "");
    refused(&slots, &server, "missing.bin", "does not exist");
    done(&server, 0, "save", "good.bin");
    let path = |name| slots.file(name);
    let made = Command::new("mkfifo").arg(path("pipe.bin")).status();
    assert!(made.unwrap().success());
    symlink(path("good.bin"), path("link.bin")).unwrap();
    symlink("/dev/zero", path("device.bin")).unwrap();
    fs::create_dir(path("folder.bin")).unwrap();
    for name in ["pipe.bin", "link.bin", "device.bin", "folder.bin"] {
        refused(&slots, &server, name, "it is not a regular file");
        assert_ne!(act(&server, 0, "save", name).status, 200);
    }
    assert!(path("link.bin").is_symlink());
    fs::write(path("text.bin"), "text").unwrap();
    refused(&slots, &server, "text.bin", "it is not a prompt cache");
    let reply = act(&server, 0, "save", "text.bin");
    assert_eq!((reply.status, &*reply.param()), (400, "filename"));
    // The engine still answers.
    assert!(cached(&server, "") > 5);
}

#[test]
fn a_slot_that_others_made_is_refused() {
    let slots = Slots::new("forged");
    let server = slots.serve();
    cached(&server, "");
    done(&server, 0, "save", "good.bin");
    let good = fs::read(slots.file("good.bin")).unwrap();
    let write = |name: &str, at: usize, change: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= change;
        fs::write(slots.file(name), bytes).unwrap();
    };
    // A token, the salt, a value, the tag; another name; the layout before files were authenticated.
    for at in [48, 16, good.len() / 2, good.len() - 1] {
        write("good.bin", at, 1);
        refused(&slots, &server, "good.bin", "it is damaged, or was renamed");
    }
    write("other.bin", 0, 0);
    refused(&slots, &server, "other.bin", "was renamed");
    write("older.bin", 4, 2 ^ 1);
    refused(
        &slots,
        &server,
        "older.bin",
        "it is from an older version of Sluice",
    );
    let foreign = Slots::new("foreign");
    let elsewhere = foreign.serve();
    cached(&elsewhere, "");
    done(&elsewhere, 0, "save", "good.bin");
    fs::copy(foreign.file("good.bin"), slots.file("good.bin")).unwrap();
    refused(&slots, &server, "good.bin", "the key of its folder");
    write("good.bin", 0, 0);
    done(&server, 3, "restore", "good.bin");
}

#[test]
fn a_folder_that_does_not_exist_is_made_for_this_user() {
    let slots = Slots::new("made");
    let mut options = options();
    options.http.slot_save_path = Some(slots.file("a/b"));
    let server = Running::start(options);
    cached(&server, "");
    done(&server, 0, "save", "good.bin");
    let made = fs::metadata(slots.file("a/b")).unwrap();
    assert_eq!(made.permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_folder_whose_key_others_may_read_has_no_slots() {
    let slots = Slots::new("key");
    let server = slots.serve();
    cached(&server, "");
    done(&server, 0, "save", "good.bin");
    let key = slots.file(".sluice-key");
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    set(&key, 0o644);
    for action in ["save", "restore"] {
        let reply = act(&server, 0, action, "good.bin");
        assert_eq!(reply.status, 500, "{}", reply.body);
        assert!(
            reply.body.contains("others may read or write it"),
            "{}",
            reply.body
        );
    }
    set(&key, 0o600);
    done(&server, 0, "restore", "good.bin");
}

/// A request's answer in the slot that it asks for.
fn pinned(server: &Running, slot: u32, prompt: &str) -> Value {
    let asked = json!({"prompt": prompt, "id_slot": slot, "n_predict": 3, "temperature": 0});
    let reply = server.post("/completion", &asked);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = reply.json();
    assert_eq!(reply["id_slot"], slot, "{reply}");
    reply
}

#[test]
fn a_text_runs_in_the_slot_that_it_asks_for() {
    let slots = Slots::new("pins");
    let mut options = options();
    options.http.slot_save_path = Some(slots.0.clone());
    options.http.slots = false;
    let server = Running::start(options);
    // Three texts, none of which begins like another.
    for (slot, prompt) in [(1, PROMPT), (0, "Once upon a time"), (3, "A dog")] {
        pinned(&server, slot, prompt);
    }
    // Another text in the slot takes the place of its text.
    let again = pinned(&server, 1, PROMPT);
    assert_eq!(again["timings"]["prompt_n"], 1, "{again}");
    let other = pinned(&server, 0, PROMPT);
    // Both begin with the vocabulary's first token.
    assert_eq!(other["timings"]["cache_n"], 1, "{other}");
    // Slots can be saved although they are not listed.
    assert_eq!(server.get("/slots").status, 501);
    done(&server, 1, "save", "one.bin");
    done(&server, 2, "restore", "one.bin");
    let found = pinned(&server, 2, PROMPT);
    assert_eq!(found["timings"]["prompt_n"], 1, "{found}");
}

#[test]
fn a_text_waits_for_its_slot() {
    let server = Running::start(options());
    let long = json!({"prompt": "Once", "id_slot": 2, "n_predict": 400, "stream": true,
        "ignore_eos": true, "temperature": 0});
    let running = server.send("POST /completion HTTP/1.1", &long.to_string());
    let is_busy = || server.get("/slots").json()[2]["is_processing"] == true;
    until("it does not run", is_busy);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pinned(&server, 2, "A cat"));
        // Others do not wait for it.
        pinned(&server, 1, "A dog");
        assert!(is_busy(), "the long text ended too early to show anything");
        // The reader leaves.
        drop(running);
        waiting.join().unwrap();
    });
}

#[test]
fn an_erased_text_is_not_found_again() {
    let folder = Slots::new("erased");
    let mut options = options();
    options.engine.cache_dir = Some(folder.0.join("pages"));
    options.engine.cache_disk = 64 << 20;
    // Several pages, of which another text shares the first.
    let shared = "The sea was calm and the boat was small. ".repeat(16);
    let (one, two) = (format!("{shared} One. {shared}"), format!("{shared} Two."));
    let files = || {
        let folders = fs::read_dir(folder.0.join("pages")).unwrap();
        let folders = folders.map(|entry| entry.unwrap().path());
        let pages = folders.filter(|path| path.is_dir()).flat_map(|path| {
            let names = fs::read_dir(path).unwrap();
            names.map(|entry| entry.unwrap().path())
        });
        let is_page = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "page");
        pages.filter(is_page).count()
    };
    let server = Running::start(options.clone());
    pinned(&server, 0, &one);
    let kept = pinned(&server, 1, &two)["timings"]["cache_n"]
        .as_u64()
        .unwrap();
    assert!(kept >= 64, "{kept}");
    // The pages are on the disk before they are erased.
    let start = Instant::now();
    while files() < 2 {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    done(&server, 0, "erase", "");
    // What the other slot has as well stays.
    let again = pinned(&server, 2, &one)["timings"]["cache_n"]
        .as_u64()
        .unwrap();
    assert_eq!(again, kept);
    for slot in 0..3 {
        done(&server, slot, "erase", "");
    }
    assert_eq!(pinned(&server, 3, &one)["timings"]["cache_n"], 0);
    done(&server, 3, "erase", "");
    // Nor by a later server with the same folder.
    drop(server);
    assert_eq!(files(), 0);
    let server = Running::start(options);
    assert_eq!(pinned(&server, 0, &one)["timings"]["cache_n"], 0);
}

//! What a pull does when the hub fails: a complete copy in the cache is used.

use super::stand_in::{Failure, StandIn};
use super::{Folder, Seen, pulled, request};
use sluice_pull::{FileChoice, Hub, PullRequest, pull};
use std::fs;

#[test]
fn a_hub_that_fails_in_any_way_leaves_the_copy_in_the_cache() {
    let folder = Folder::new("fails");
    let server = StandIn::start();
    server.add("m-Q8_0.gguf", &[8; 10]);
    let found = pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap();
    let failures = [
        Failure::Status("401 Unauthorized"),
        Failure::Status("403 Forbidden"),
        Failure::Status("404 Not Found"),
        Failure::Status("429 Too Many Requests"),
        Failure::Status("500 Internal Server Error"),
        Failure::Status("302 Found"),
        Failure::List("<html>Log in to this network</html>"),
        Failure::List(r#"{"sha":"main","siblings":[]}"#),
        Failure::HangUp,
    ];
    for failure in failures {
        server.fail(failure);
        let mut seen = Seen::default();
        let kept = pulled(&server, "u/m", &folder.cache(), &mut seen).unwrap();
        assert_eq!(kept, found, "{failure:?}");
        assert!(
            matches!(&seen.notes[..], [note] if note.contains("cached copy") && !note.contains('\n')),
            "{failure:?}: {:?}",
            seen.notes
        );
        // What the cache does not have, the hub's failure is the reason for.
        let error = pulled(&server, "u/m:Q4_0", &folder.cache(), &mut Seen::default()).unwrap_err();
        assert!(
            !error.to_string().contains("offline"),
            "{failure:?}: {error}"
        );
    }
}

#[test]
fn a_newer_revision_is_fetched_or_the_older_copy_used() {
    const NEWER: &str = "89abcdef0123456789abcdef0123456789abcdef";
    let folder = Folder::new("newer");
    let server = StandIn::start();
    server.add("m-Q8_0.gguf", &[8; 10]);
    let older = pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap();
    server.move_on(NEWER, "m-Q8_0.gguf", &[9; 10]);
    server.fail(Failure::Files("403 Forbidden"));
    let mut seen = Seen::default();
    let kept = pulled(&server, "u/m", &folder.cache(), &mut seen).unwrap();
    assert_eq!((&kept, seen.notes.len()), (&older, 1));
    server.fail(Failure::List("{}"));
    assert_eq!(
        pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap(),
        older
    );
    server.recover();
    let newer = pulled(&server, "u/m", &folder.cache(), &mut Seen::default()).unwrap();
    assert_eq!(fs::read(&newer.files[0]).unwrap(), [9; 10]);
}

#[test]
fn a_copy_that_lacks_a_shard_is_not_used() {
    let folder = Folder::new("shard");
    let server = StandIn::start();
    let index = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    server.add_small("model.safetensors.index.json", index.as_bytes());
    server.add("model-00001-of-00002.safetensors", &[1; 10]);
    server.add("model-00002-of-00002.safetensors", &[2; 10]);
    let cache = folder.cache();
    let whole = PullRequest {
        choice: FileChoice::Folder,
        ..request("u/m")
    };
    let hub = Hub::new(&server.endpoint(), None).unwrap();
    let found = pull(&whole, Some(&hub), &cache, &mut Seen::default()).unwrap();
    server.fail(Failure::Status("503 Service Unavailable"));
    let kept = pull(&whole, Some(&hub), &cache, &mut Seen::default()).unwrap();
    assert_eq!((kept.folder, kept.files.len()), (found.folder.clone(), 3));
    fs::remove_file(found.folder.join("model-00002-of-00002.safetensors")).unwrap();
    let error = pull(&whole, Some(&hub), &cache, &mut Seen::default()).unwrap_err();
    assert!(error.to_string().contains("HTTP 503"), "{error}");
    let error = pull(&whole, None, &cache, &mut Seen::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("model-00002-of-00002.safetensors, which is missing"),
        "{error}"
    );
}

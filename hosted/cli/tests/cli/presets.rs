//! Models with flags of their own: `sluice serve --models-preset`.

use crate::support::{Folder, MODEL, TemporaryFile, fails, run_to, sluice};
use core::time::Duration;
use std::process::{Command, Stdio};
use std::time::Instant;

#[test]
fn what_is_wrong_in_a_preset_is_named_by_file_and_line() {
    for (text, expected) in [
        ("version = 2\n", "1: version: expected 1"),
        ("c = 1\n", "1: c: belongs in a section"),
        ("[a\n", "1: expected [NAME]"),
        ("[*]\nport = 3\n", "2: port: holds for the whole server"),
        ("[*]\n\nmodel = x\n", "3: model: is for one model"),
        ("[a]\nnonsense = 1\n", "2: nonsense: is not a flag"),
        (
            "[a]\nmodel = m\ntop-k = few\n",
            "3: top-k: invalid value 'few'",
        ),
        ("[a]\nmodel = m\njinja = true\nc = -4\n", "4: c: "),
        (
            "[a]\nmodel = m\ncontext-shift = maybe\n",
            "3: context-shift: expected true or false",
        ),
        ("[a]\nmodel = m\ngrammar = x\n", "3: grammar: "),
        (
            "[a]\nmodel = m\nchat-template-kwargs = {\n",
            "3: chat-template-kwargs: ",
        ),
        (
            "[a]\nmodel = m\nload-mode = mlock\n",
            "3: load-mode: mlock holds for the whole server",
        ),
        ("[a]\nmodel = m\nmedia-path = x\n", "3: media-path: "),
        (
            "[a]\nstop-timeout = soon\n",
            "2: stop-timeout: expected a number of seconds",
        ),
        ("[a]\nc = 512\n", "1: [a]: not a model of the cache"),
        (
            "[a]\nmodel = m\nspec-draft-hf = x\n",
            "3: spec-draft-hf: invalid repository",
        ),
        (
            "[a]\nmodel = m\nhf-repo = a/b\n",
            "1: [a]: set model or hf-repo, once",
        ),
    ] {
        let file = TemporaryFile::new("wrong.ini", text.as_bytes());
        let at = format!("{}:{expected}", file.path());
        fails(2, &["serve", "--models-preset", file.path()], &[&at]);
    }
    fails(
        1,
        &["serve", "--models-preset", "missing.ini"],
        &["--models-preset", "missing.ini"],
    );
}

/// A cache with one model, `org/cached:Q4_K_M`.
fn cache(name: &str) -> Folder {
    let folder = Folder::new(name);
    let commit = "0123456789012345678901234567890123456789";
    let snapshot = format!("models--org--cached/snapshots/{commit}");
    for made in [&snapshot[..], "models--org--cached/refs"] {
        std::fs::create_dir_all(folder.path(made)).expect("a folder");
    }
    std::fs::copy(MODEL, folder.path(&format!("{snapshot}/tale-Q4_K_M.gguf"))).expect("a copy");
    std::fs::write(folder.path("models--org--cached/refs/main"), commit).expect("a file");
    folder
}

/// A silent server of a preset on a socket.
fn serve(preset: &str, socket: &str) -> Command {
    let mut command = sluice();
    command
        .args(["serve", "--models-preset", preset, "--host", socket])
        .args(["-t", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

#[test]
fn models_of_a_preset_and_of_the_cache_are_served() {
    let folder = cache("cache");
    let text = format!(
        "version = 1\n[*]\nc = 512\nn-gpu-layers = 99\n[small]\nmodel = {MODEL}\nload-on-startup = true\nnp = 2\n\
         [org/cached:q4_k_m]\nLLAMA_ARG_CTX_SIZE = 256\n"
    );
    let file = TemporaryFile::new("models.ini", text.as_bytes());
    let socket = folder.path("server.sock");
    let mut command = serve(file.path(), &socket);
    command.args(["-np", "3"]).env("LLAMA_CACHE", &folder.0);
    let mut served = command.spawn().expect("the program starts");
    let begun = Instant::now();
    let small = loop {
        let shown = get(&socket, "/props?model=small").unwrap_or_default();
        if shown.contains("\"total_slots\"") {
            break shown;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{shown}");
        std::thread::park_timeout(Duration::from_millis(20));
    };
    let models = get(&socket, "/models").expect("a reply");
    let other = get(&socket, "/v1/models/org%2Fcached%3AQ4_K_M").expect("a reply");
    let _ended = served.kill();
    let _status = served.wait();
    // The command line overrides the file.
    assert!(small.contains("\"total_slots\":3"), "{small}");
    assert!(small.contains("\"n_ctx\":512"), "{small}");
    assert!(models.contains("\"id\":\"org/cached:q4_k_m\""), "{models}");
    assert!(other.contains("\"id\":\"org/cached:q4_k_m\""), "{other}");
    assert_eq!(models.matches("\"id\":").count(), 2, "{models}");
}

#[test]
fn a_model_of_the_hub_drafts_and_is_not_listed_twice() {
    let folder = cache("drafts");
    let text = "[*]\ndedup-cache-models = true\n[drafted]\nhf-repo = org/cached\nspec-draft-hf = org/cached:q4_k_m\n\
        load-on-startup = true\n";
    let file = TemporaryFile::new("drafts.ini", text.as_bytes());
    let socket = folder.path("server.sock");
    let mut command = serve(file.path(), &socket);
    command
        .env("LLAMA_CACHE", &folder.0)
        .env("HF_HUB_OFFLINE", "1");
    let mut served = command.spawn().expect("the program starts");
    let begun = Instant::now();
    let props = loop {
        let shown = get(&socket, "/props?model=drafted").unwrap_or_default();
        if shown.contains("\"total_slots\"") || begun.elapsed() > Duration::from_secs(60) {
            break shown;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    };
    let models = get(&socket, "/models").expect("a reply");
    let cached = get(&socket, "/v1/models/org%2Fcached%3AQ4_K_M").expect("a reply");
    let _ended = served.kill();
    let _status = served.wait();
    assert!(props.contains("\"speculative\":true"), "{props}");
    assert_eq!(models.matches("\"id\":").count(), 1, "{models}");
    assert!(cached.contains("\"id\":\"drafted\""), "{cached}");
}

#[test]
fn a_preset_is_read_again_by_a_request() {
    let folder = Folder::new("again");
    let (socket, file) = (folder.path("server.sock"), folder.path("models.ini"));
    let write = |text: &str| std::fs::write(&file, text).expect("a file");
    write(&format!(
        "[a]\nmodel = {MODEL}\n[b]\nmodel = {MODEL}\nc = 256\nload-on-startup = true\n"
    ));
    let mut command = serve(&file, &socket);
    command
        .env("LLAMA_CACHE", &folder.0)
        .env("HF_ENDPOINT", "http://127.0.0.1:1");
    let mut served = command.spawn().expect("the program starts");
    let begun = Instant::now();
    let wait = |path: &str, words: &str| loop {
        let shown = get(&socket, path).unwrap_or_default();
        if shown.contains(words) {
            break shown;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{shown}");
        std::thread::park_timeout(Duration::from_millis(20));
    };
    wait("/props?model=b", "\"n_ctx\":256");
    write(&format!(
        "[b]\nmodel = {MODEL}\nc = 128\n[c]\nmodel = {MODEL}\n"
    ));
    let again = get(&socket, "/models?reload=1").expect("a reply");
    // It was loaded with other flags.
    wait("/props?model=b", "not loaded");
    let others = [
        "[b]\nmodel = x\nnonsense = 1\n".to_owned(),
        // Nothing is downloaded.
        "[b]\nhf-repo = org/other\n".to_owned(),
        format!("[b]\nmodel = {MODEL}\nlora = adapter.gguf\n"),
    ];
    let refused = others.map(|text| {
        write(&text);
        get(&socket, "/models?reload=1").expect("a reply")
    });
    let kept = get(&socket, "/models").expect("a reply");
    let _ended = served.kill();
    let _status = served.wait();
    assert!(
        again.contains("\"id\":\"b\"") && again.contains("\"id\":\"c\""),
        "{again}"
    );
    assert!(!again.contains("\"id\":\"a\""), "{again}");
    for reply in refused {
        assert!(
            reply.starts_with("HTTP/1.1 503") || reply.starts_with("HTTP/1.0 503"),
            "{reply}"
        );
    }
    assert!(kept.contains("\"id\":\"c\""), "{kept}");
}

fn get(socket: &str, path: &str) -> Option<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).ok()?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nhost: x\r\n\r\n").as_bytes())
        .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

#[test]
fn flags_with_values_may_be_joined() {
    // It is a flag of this command, though not of the one whose flags are refused by this name.
    fails(
        1,
        &["serve", "-m", "missing.gguf", "--parallel=2"],
        &["missing.gguf"],
    );
    run_to(0, &["serve", "--help"]);
}

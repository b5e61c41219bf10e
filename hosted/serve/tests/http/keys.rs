//! Keys: their rights and limits, and what they do not share.

use crate::client::{Reply, Running, options, receive, until};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use sluice_serve::{CacheScope, Keys, ServerConfig};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A file of keys, removed at the end.
pub(crate) struct KeyFile(PathBuf);

impl KeyFile {
    /// Each key's text is its name.
    pub(crate) fn new(test: &str, keys: &[(&str, &str)]) -> Self {
        let name = format!("sluice-keys-{}-{test}.toml", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        file.write(keys);
        file
    }

    fn write(&self, keys: &[(&str, &str)]) {
        let one = |(name, rest): &(&str, &str)| {
            let hash = Sha256::digest(name.as_bytes());
            let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("[[key]]\nname = {name:?}\nsha256 = {hex:?}\n{rest}\n")
        };
        fs::write(&self.0, keys.iter().map(one).collect::<String>()).unwrap();
    }

    /// The key `admin` is not in the file.
    pub(crate) fn options(&self) -> ServerConfig {
        let mut options = options();
        options.http.keys.plain = vec!["admin".to_owned()];
        options.http.keys.file = Some(self.0.clone());
        options
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

pub(crate) fn post(server: &Running, key: &str, path: &str, body: &Value) -> Reply {
    let head = format!("POST {path} HTTP/1.1\r\nauthorization: Bearer {key}");
    receive(server.send(&head, &body.to_string()))
}

pub(crate) fn get(server: &Running, key: &str, path: &str) -> Reply {
    receive(server.send(
        &format!("GET {path} HTTP/1.1\r\nauthorization: Bearer {key}"),
        "",
    ))
}

pub(crate) fn complete(server: &Running, key: &str, body: &Value) -> Reply {
    post(server, key, "/v1/completions", body)
}

fn message(reply: &Reply) -> String {
    reply.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// The number of tokens that were not read again.
fn cached(server: &Running, key: &str, prompt: &str, salt: &str) -> u64 {
    let asked = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_salt": salt});
    let reply = complete(server, key, &asked).json();
    let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    cached.unwrap_or_else(|| panic!("{reply}"))
}

#[test]
fn an_empty_key_opens_nothing() {
    let log = || -> sluice_serve::Log { Arc::new(|_: &str| {}) };
    let mut wrong = options().http.keys;
    wrong.plain = vec!["a".into(), String::new()];
    assert!(Keys::new(wrong, log()).is_err());
    let file = KeyFile::new("empty", &[("", "")]);
    assert!(Keys::new(file.options().http.keys, log()).is_err());
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_key_without_a_right_is_refused_by_name() {
    let file = KeyFile::new(
        "rights",
        &[
            ("plain", "models = [\"tale\"]"),
            (
                "free",
                "priority = true\nload_adapters = true\nmax_streams = 2",
            ),
        ],
    );
    let server = Running::start(file.options());
    let ask = |more: Value| {
        let mut body = json!({"prompt": "Once", "max_tokens": 1});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    assert_eq!(complete(&server, "nobody", &ask(json!({}))).status, 401);
    assert_eq!(
        complete(&server, "plain", &ask(json!({"priority": 0}))).status,
        200
    );
    assert_eq!(
        complete(&server, "free", &ask(json!({"priority": -5}))).status,
        200
    );
    let refused = complete(&server, "plain", &ask(json!({"priority": -5})));
    assert_eq!((refused.status, &*refused.param()), (403, "priority"));
    assert!(message(&refused).contains("--allow-priority"));
    for (path, body) in [
        ("/v1/completions", ask(json!({"model": "other"}))),
        ("/tokenize", json!({"content": "x", "model": "other"})),
        ("/v1/embeddings", json!({"input": "x", "model": "other"})),
    ] {
        let refused = post(&server, "plain", path, &body);
        assert_eq!(
            (refused.status, &*refused.param()),
            (403, "model"),
            "{path}"
        );
        assert!(message(&refused).contains("\"other\""));
    }
    let unknown = complete(&server, "plain", &ask(json!({"model": "x"})));
    assert!(
        unknown.status == 403 && !unknown.body.contains("other"),
        "{}",
        unknown.body
    );
    assert_eq!(get(&server, "plain", "/v1/models/other").status, 403);
    assert_eq!(get(&server, "plain", "/props?model=other").status, 403);
    let seen = |key| {
        get(&server, key, "/v1/models").json()["data"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!((seen("plain"), seen("free")), (1, 2));
    // Keys that may load adapters name them by their paths.
    let path = |key| get(&server, key, "/props").json()["model_path"].clone();
    let (name, whole) = (path("plain"), path("free"));
    assert!(name.as_str().is_some_and(|name| name.ends_with(".gguf")));
    assert!(!name.as_str().unwrap().contains('/') && whole.as_str().unwrap().contains('/'));
    for path in [
        "/lora-adapters",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    ] {
        let refused = post(&server, "plain", path, &json!([]));
        assert_eq!(refused.status, 403, "{path}");
        assert!(
            message(&refused).contains("load_adapters"),
            "{}",
            refused.body
        );
        assert_ne!(
            post(&server, "free", path, &json!([])).status,
            403,
            "{path}"
        );
    }
    let many = complete(&server, "free", &ask(json!({"n": 3})));
    assert!(
        many.status == 403 && many.body.contains("(2)"),
        "{}",
        many.body
    );
}

#[test]
fn priority_needs_a_flag_without_keys() {
    let asked = json!({"prompt": "Once", "max_tokens": 1, "priority": -1000});
    let mut with = options();
    assert_eq!(
        Running::start(options())
            .post("/v1/completions", &asked)
            .status,
        403
    );
    with.http.keys.allow_priority = true;
    assert_eq!(
        Running::start(with).post("/v1/completions", &asked).status,
        200
    );
}

#[test]
fn a_budget_is_counted_by_key() {
    let file = KeyFile::new(
        "budget",
        &[("poor", "tokens_per_minute = 60"), ("rich", "")],
    );
    let server = Running::start(file.options());
    let asked = json!({"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": true});
    assert_eq!(complete(&server, "poor", &asked).status, 200);
    let refused = complete(&server, "poor", &asked);
    assert_eq!(refused.status, 429, "{}", refused.body);
    let head = refused
        .head
        .lines()
        .find_map(|line| line.strip_prefix("retry-after: "));
    let wait: u64 = head.unwrap().parse().unwrap();
    // 20 tokens and the prompt, of which 6 were there; one comes back each second.
    assert!((12..=22).contains(&wait), "{wait}");
    assert_eq!(
        post(&server, "poor", "/v1/embeddings", &json!({"input": "x"})).status,
        429
    );
    assert_eq!(complete(&server, "rich", &asked).status, 200);
    let metrics = get(&server, "admin", "/metrics").body;
    for line in [
        "sluice:key_requests_total{key=\"poor\"} 1",
        "sluice:key_refused_total{key=\"poor\",reason=\"budget\"} 2",
        "sluice:key_generation_tokens_total{key=\"poor\"} 20",
        "sluice:key_generation_tokens_total{key=\"rich\"} 20",
        "sluice:key_streams{key=\"rich\"} 0",
        "sluice:key_budget_tokens{key=\"poor\"} -",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}

#[test]
fn a_request_that_was_let_in_is_scored_and_answered() {
    // More than the budget holds: it is overdrawn before the answer begins.
    let file = KeyFile::new("scored", &[("poor", "tokens_per_minute = 60")]);
    let server = Running::start(file.options());
    let asked = json!({"prompt": "Once upon a time", "max_tokens": 2, "prompt_logprobs": 1});
    let reply = complete(&server, "poor", &asked);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(complete(&server, "poor", &asked).status, 429);
}

#[test]
fn a_key_has_its_own_streams() {
    let file = KeyFile::new("streams", &[("one", "max_streams = 1"), ("two", "")]);
    let server = Running::start(file.options());
    let long = json!({"prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true});
    let head = "POST /v1/completions HTTP/1.1\r\nauthorization: Bearer one";
    let running = server.send(head, &long.to_string());
    let asked = json!({"prompt": "Once", "max_tokens": 1});
    until("it does not run", || {
        let metrics = get(&server, "admin", "/metrics").body;
        metrics.contains("sluice:key_streams{key=\"one\"} 1")
    });
    let refused = complete(&server, "one", &asked);
    assert_eq!(
        (refused.status, refused.head.contains("retry-after: 1")),
        (429, true)
    );
    assert_eq!(complete(&server, "two", &asked).status, 200);
    drop(running);
    until("its stream is kept", || {
        complete(&server, "one", &asked).status != 429
    });
}

/// Shorter than a page, and longer than one.
const SECRETS: [&str; 2] = [
    "The password of the bank is green apple",
    "Once upon a time there was a little girl who lived in a house near the \
     sea. Every day she went to the beach and looked for shells, and every evening she came home with a bag of them. \
     One day she found a shell that was as big as her head. She took it home and showed it to her mother and father.",
];

#[test]
fn caches_are_shared_inside_a_group_and_nowhere_else() {
    let keys = [
        ("a", "group = \"team\""),
        ("b", "group = \"team\""),
        ("c", ""),
        ("d", ""),
    ];
    let file = KeyFile::new("groups", &keys);
    let server = Running::start(file.options());
    // All texts begin with the same token.
    for secret in SECRETS {
        assert!(cached(&server, "a", secret, "") <= 1, "{secret}");
        assert!(cached(&server, "c", secret, "") <= 1, "{secret}");
        assert!(cached(&server, "d", secret, "team") <= 1, "{secret}");
        assert!(cached(&server, "b", secret, "") > 5, "{secret}");
        assert!(cached(&server, "b", secret, "salt") <= 1, "{secret}");
        assert!(cached(&server, "b", secret, "salt") > 5, "{secret}");
    }
    // Another key of the same name finds what the old one left.
    cached(&server, "c", SECRETS[0], "");
    file.write(&[("new", "")]);
    let rotated = fs::read_to_string(&file.0)
        .unwrap()
        .replace("\"new\"", "\"c\"");
    fs::write(&file.0, rotated).unwrap();
    server.keys().reload();
    assert!(cached(&server, "new", SECRETS[0], "") > 5);
}

#[test]
fn keys_without_names_share_caches_if_that_is_asked_for() {
    let start = |scope: Option<CacheScope>| {
        let mut options = options();
        options.http.keys.plain = vec!["k1".into(), "k2".into()];
        options.http.keys.cache_scope = scope;
        Running::start(options)
    };
    for scope in [None, Some(CacheScope::Key)] {
        let server = start(scope);
        cached(&server, "k1", SECRETS[0], "");
        assert_eq!(cached(&server, "k2", SECRETS[0], ""), 0);
        assert!(cached(&server, "k1", SECRETS[0], "") > 5);
    }
    let server = start(Some(CacheScope::All));
    cached(&server, "k1", SECRETS[0], "");
    assert!(cached(&server, "k2", SECRETS[0], "") > 5);
}

#[test]
fn a_slot_is_its_groups() {
    let file = KeyFile::new("slots", &[("a", ""), ("b", "")]);
    let folder = std::env::temp_dir().join(format!("sluice-key-slots-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let mut options = file.options();
    options.http.slot_save_path = Some(folder.clone());
    let server = Running::start(options);
    let act = |key: &str, action: &str| {
        let path = format!("/slots/0?action={action}&model=tale");
        post(&server, key, &path, &json!({"filename": "x.bin"})).status
    };
    cached(&server, "a", SECRETS[0], "");
    assert_eq!(
        (act("b", "save"), act("b", "erase"), act("b", "restore")),
        (403, 403, 400)
    );
    assert_eq!((act("a", "save"), act("a", "erase")), (200, 200));
    assert_eq!(act("b", "restore"), 400);
    assert_eq!(act("a", "restore"), 200);
    assert_eq!(cached(&server, "b", SECRETS[0], ""), 0);
    assert!(cached(&server, "a", SECRETS[0], "") > 5);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn scores_of_a_prompt_are_not_found_by_others() {
    let file = KeyFile::new("scores", &[("a", ""), ("b", "")]);
    let server = Running::start(file.options());
    let asked = json!({"prompt": SECRETS[1], "n_predict": 1, "prompt_logprobs": 1});
    let read = |key: &str| {
        let reply = post(&server, key, "/completion", &asked);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let metrics = get(&server, "admin", "/metrics").body;
        let name = format!("sluice:key_prompt_tokens_total{{key=\"{key}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap().parse::<u64>().unwrap()
    };
    let first = read("a");
    assert_eq!(read("b"), first);
    assert!(read("b") < first + first / 2);
}

#[test]
fn keys_are_read_again_under_load_and_a_wrong_file_changes_nothing() {
    let file = KeyFile::new("reload", &[("old", ""), ("kept", "")]);
    let said = Arc::new(Mutex::new(Vec::new()));
    let mut options = file.options();
    let log = Arc::clone(&said);
    options.log = Arc::new(move |line: &str| log.lock().unwrap().push(line.to_owned()));
    let server = Running::start(options);
    let long = json!({"prompt": "Once", "max_tokens": 100, "ignore_eos": true, "stream": true});
    let head = "POST /v1/completions HTTP/1.1\r\nauthorization: Bearer old";
    let running: Vec<_> = (0..3)
        .map(|_| server.send(head, &long.to_string()))
        .collect();
    while !get(&server, "admin", "/metrics")
        .body
        .contains("sluice:key_streams{key=\"old\"} 3")
    {}
    fs::write(&file.0, "[[key]]\nnmae = 1\n").unwrap();
    server.keys().reload();
    let line = said
        .lock()
        .unwrap()
        .iter()
        .any(|line| line.contains("line 2: unknown field `nmae`"));
    assert!(line, "{:?}", said.lock().unwrap());
    assert_eq!(get(&server, "old", "/v1/models").status, 200);
    file.write(&[("new", ""), ("kept", "")]);
    server.keys().reload();
    let status = |key| get(&server, key, "/v1/models").status;
    assert_eq!(
        (status("old"), status("new"), status("kept")),
        (401, 200, 200)
    );
    for stream in running {
        let reply = receive(stream);
        assert!(
            reply.body.contains("\"finish_reason\":\"length\""),
            "{}",
            reply.body
        );
        assert!(reply.body.ends_with("data: [DONE]\n\n"));
    }
}

//! Ollama's `/api/pull` with a stand-in of the hub.

use crate::client::{Reply, Running, TALE, options, until};
use crate::keys::{KeyFile, post};
use crate::stand_in::{COMMIT, StandIn};
use serde_json::{Value, json};
use sluice_pull::{Cache, HubAccess};
use sluice_serve::{NamedModel, PullOptions, ServerConfig};
use std::io::Read as _;
use std::path::PathBuf;

/// A hub with one model, and a cache that is removed.
pub(crate) struct Place {
    pub(crate) hub: StandIn,
    sha256: String,
    pub(crate) cache: PathBuf,
}

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let hub = StandIn::start();
        let sha256 = hub.add("tale-Q4_K_M.gguf", &std::fs::read(TALE).unwrap());
        let name = format!("sluice-pull-{name}-{}", std::process::id());
        let cache = std::env::temp_dir().join(name);
        let _removed = std::fs::remove_dir_all(&cache);
        Self { hub, sha256, cache }
    }

    pub(crate) fn options(&self) -> ServerConfig {
        let mut options = options();
        options.http.pull = PullOptions {
            allowed: true,
            access: HubAccess {
                endpoint: Some(self.hub.endpoint()),
                cache: Some(self.cache.clone()),
                ..HubAccess::default()
            },
            ..PullOptions::default()
        };
        options
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.cache);
    }
}

fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let lines = reply.body.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_model_is_pulled_listed_and_answers() {
    let place = Place::new("whole");
    let server = Running::start(place.options());
    let name = "hf.co/u/m:q4_k_m";
    let lines = lines(&server.post("/api/pull", &json!({"model": name})));
    let statuses: Vec<_> = lines
        .iter()
        .map(|line| line["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses[0], "pulling manifest");
    assert_eq!(
        statuses[statuses.len() - 3..],
        ["verifying sha256 digest", "writing manifest", "success"]
    );
    let progress: Vec<_> = lines.iter().filter(|line| line["total"].is_u64()).collect();
    let digest = format!("sha256:{}", place.sha256);
    for line in &progress {
        assert_eq!(line["digest"], digest);
        let short = format!("pulling {}", &place.sha256[..12]);
        assert_eq!(line["status"], short);
    }
    let last = progress.last().unwrap();
    assert_eq!(last["completed"], last["total"]);
    let tags = server.get("/api/tags").json();
    let listed = tags["models"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&listed["name"], &listed["digest"]),
        (&json!("u/m:Q4_K_M"), &json!(place.sha256))
    );
    let ask =
        json!({"model": name, "prompt": "Once", "stream": false, "options": {"num_predict": 3}});
    let reply = server.post("/api/generate", &ask).json();
    assert_eq!(
        (&reply["eval_count"], &reply["model"]),
        (&json!(3), &json!(name))
    );
    // It is there already, also on the other routes.
    let n_bytes = place.hub.bytes_sent();
    let again = json!({"name": name, "stream": false});
    let again = server.post("/api/pull", &again).json();
    assert_eq!(again, json!({"status": "success"}));
    assert_eq!(place.hub.bytes_sent(), n_bytes);
    let models = server.get("/v1/models").json();
    let mut ids = models["data"].as_array().unwrap().iter();
    assert!(ids.any(|model| model["id"] == "u/m:Q4_K_M"), "{models}");
    // However it is named, it is one model; and it is found again after a restart.
    let list = || Cache::at(&place.cache).pulled();
    let n_models = models["data"].as_array().unwrap().len();
    for other in ["hf.co/u/m", "hf.co/u/m:tale", "https://hf.co/u/m:Q4_K_M"] {
        let pull = json!({"name": other, "stream": false});
        assert_eq!(server.post("/api/pull", &pull).status, 200, "{other}");
        assert_eq!(list().len(), 1);
    }
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"].as_array().unwrap().len(), n_models);
    drop(server);
    let mut options = place.options();
    options.models.offered = list()
        .into_iter()
        .map(|model| NamedModel {
            alias: Some(model.name),
            path: model.path,
        })
        .collect();
    let server = Running::start(options);
    for other in ["u/m:Q4_K_M", "hf.co/u/m:q4_k_m", "hf.co/u/m"] {
        let ask = json!({"model": other, "stream": false});
        assert_eq!(server.post("/api/generate", &ask).status, 200, "{other}");
    }
}

#[test]
fn what_cannot_be_pulled_is_an_error() {
    let place = Place::new("errors");
    let mut options = place.options();
    options.http.pull.max_bytes = 1 << 20;
    let server = Running::start(options);
    for (name, status, words) in [
        ("llama3.2", 400, "is not a model of Hugging Face"),
        ("hf.co/u/m/../../x", 400, "invalid repository"),
        ("hf.co/../m", 400, "invalid repository"),
        ("hf.co/u/m:Q8_0", 404, "no model in Q8_0"),
        ("hf.co/u/other", 404, "HTTP 404"),
        ("hf.co/u/m", 403, "--pull-max"),
    ] {
        let reply = server.post("/api/pull", &json!({"model": name, "stream": false}));
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert_eq!(reply.status, status, "{name}: {error}");
        assert!(error.contains(words), "{name}: {error}");
        let cache = place.cache.to_str().unwrap();
        assert!(!error.contains(cache), "{error}");
    }
    // In a stream the error is its last line.
    let lines = lines(&server.post("/api/pull", &json!({"model": "hf.co/u/m"})));
    let error = lines.last().unwrap()["error"].as_str().unwrap();
    assert!(error.contains("--pull-max"), "{error}");
    assert_eq!(place.hub.bytes_sent(), 0);
}

#[test]
fn keys_that_may_pull_do() {
    let place = Place::new("keys");
    let keys = KeyFile::new("pull", &[("may", "pull = true"), ("may-not", "")]);
    let mut options = place.options();
    options.http.pull.allowed = false;
    options.http.keys = keys.options().http.keys;
    let server = Running::start(options);
    let body = json!({"model": "hf.co/u/m", "stream": false});
    // A key without rights of its own has none to download.
    for (key, status) in [("may-not", 403), ("admin", 403), ("may", 200)] {
        let reply = post(&server, key, "/api/pull", &body);
        assert_eq!(reply.status, status, "{}", reply.body);
    }
}

/// The stand-in closes each connection after some bytes, so that the pull waits before it goes on.
#[test]
fn a_pull_ends_with_its_last_client_and_goes_on_with_the_next() {
    let place = Place::new("leaves");
    place.hub.cut_after(1 << 20);
    let server = Running::start(place.options());
    let body = json!({"model": "hf.co/u/m"}).to_string();
    let mut first = server.send("POST /api/pull HTTP/1.1", &body);
    let mut second = server.send("POST /api/pull HTTP/1.1", &body);
    // Both see the bytes of one download.
    for stream in [&mut first, &mut second] {
        let (mut text, mut bytes) = (String::new(), [0; 4096]);
        while !text.contains("\"completed\"") {
            let n = stream.read(&mut bytes).unwrap();
            assert!(n > 0, "{text}");
            text += core::str::from_utf8(&bytes[..n]).unwrap();
        }
    }
    drop(first);
    let received = || place.hub.ranges().iter().filter(|&&from| from == 0).count();
    assert_eq!(received(), 1, "{:?}", place.hub.ranges());
    drop(second);
    // The pull ends: it sends no request after the last one.
    let n = || place.hub.ranges().len();
    let mut before = usize::MAX;
    until("the pull goes on", || {
        std::thread::park_timeout(core::time::Duration::from_millis(2500));
        core::mem::replace(&mut before, n()) == before
    });
    place.hub.cut_after(usize::MAX);
    let lines = lines(&server.post("/api/pull", &serde_json::from_str(&body).unwrap()));
    assert_eq!(lines.last().unwrap()["status"], "success");
    assert_eq!(received(), 1, "{:?}", place.hub.ranges());
}

#[test]
fn a_model_that_is_pulled_sleeps_when_it_is_idle() {
    let place = Place::new("sleeps");
    let mut options = place.options();
    options.models.named.clear();
    options.models.sleep_after = Some(core::time::Duration::from_millis(200));
    let server = Running::start(options);
    let body = json!({"model": "hf.co/u/m", "stream": false});
    assert_eq!(server.post("/api/pull", &body).status, 200);
    assert_eq!(server.post("/api/generate", &body).status, 200);
    until("it does not sleep", || {
        let models = server.get("/v1/models").json();
        models["data"][0]["status"]["value"] == "sleeping"
    });
}

#[test]
fn a_newer_revision_is_used_when_the_model_is_loaded_again() {
    const NEWER: &str = "89abcdef0123456789abcdef0123456789abcdef";
    let place = Place::new("newer");
    let server = Running::start(place.options());
    let pull = json!({"model": "hf.co/u/m", "stream": false});
    let path = || {
        assert_eq!(
            server
                .post(
                    "/api/generate",
                    &json!({"model": "u/m:Q4_K_M", "stream": false})
                )
                .status,
            200
        );
        server.get("/props?model=u/m:Q4_K_M").json()["model_path"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(server.post("/api/pull", &pull).status, 200);
    let old = path();
    assert!(old.contains(COMMIT), "{old}");
    // The same revision again: nothing changes, and the model stays in memory.
    assert_eq!(server.post("/api/pull", &pull).status, 200);
    let status = || {
        let models = server.get("/v1/models").json();
        let mut all = models["data"].as_array().unwrap().iter();
        let model = all.find(|model| model["id"] == "u/m:Q4_K_M").unwrap();
        model["status"]["value"].as_str().unwrap().to_owned()
    };
    assert_eq!((path(), status()), (old.clone(), "loaded".to_owned()));
    let other = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/models/qwen35.gguf"
    );
    place
        .hub
        .move_on(NEWER, "tale-Q4_K_M.gguf", &std::fs::read(other).unwrap());
    // A name of the list means the same file.
    let pull = json!({"model": "u/m:Q4_K_M"});
    let lines = lines(&server.post("/api/pull", &pull));
    assert_eq!(lines.last().unwrap()["status"], "success", "{lines:?}");
    until("the old one stays in memory", || status() == "unloaded");
    let new = path();
    assert_eq!(new, old.replace(COMMIT, NEWER));
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"].as_array().unwrap().len(), 3, "{models}");
    // A client that may not download gets what is there.
    let keys = KeyFile::new("newer", &[("plain", "")]);
    let mut options = place.options();
    options.http.pull.allowed = false;
    options.http.keys = keys.options().http.keys;
    options.models.offered = Cache::at(&place.cache)
        .pulled()
        .into_iter()
        .map(|model| NamedModel {
            alias: Some(model.name),
            path: model.path,
        })
        .collect();
    drop(server);
    let server = Running::start(options);
    let n_bytes = place.hub.bytes_sent();
    assert_eq!(post(&server, "plain", "/api/pull", &pull).status, 200);
    assert_eq!(place.hub.bytes_sent(), n_bytes);
}

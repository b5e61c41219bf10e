//! The list of models changes: it is read again, models are downloaded and deleted, as with llama-server's router.

use crate::client::{Reply, Running, TALE, options, receive, until};
use crate::keys::{KeyFile, post};
use crate::ollama_pull::Place;
use core::time::Duration;
use serde_json::{Value, json};
use sluice_pull::Cache;
use sluice_serve::{Defaults, ModelLists, ModelPreset, ModelsOptions, NamedModel, ServerConfig};
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

fn named(alias: &str) -> NamedModel {
    NamedModel {
        alias: Some(alias.to_owned()),
        path: TALE.into(),
    }
}

fn preset(alias: &str, n_ctx: usize) -> ModelPreset {
    let mut own = ModelsOptions {
        named: vec![named(alias)],
        ..options().models
    };
    own.limits.n_ctx = n_ctx;
    ModelPreset {
        options: own,
        defaults: Defaults::default(),
        is_eager: true,
        flags: format!("--ctx-size={n_ctx}"),
    }
}

fn ids(server: &Running, path: &str) -> Vec<String> {
    let reply = server.get(path);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let list = reply.json();
    let models = list["data"].as_array().unwrap().iter();
    models
        .map(|model| model["id"].as_str().unwrap().to_owned())
        .collect()
}

fn status(server: &Running, name: &str) -> Value {
    let list = server.get("/models").json();
    let mut all = list["data"].as_array().unwrap().iter();
    let found = all.find(|model| model["id"] == name);
    found.map_or(Value::Null, |model| model["status"].clone())
}

fn answers(server: &Running, name: &str) -> u16 {
    let body = json!({"model": name, "prompt": "Once", "max_tokens": 2});
    server.post("/v1/completions", &body).status
}

/// Each event that `/models/sse` sends until one of this kind.
fn events(stream: &mut BufReader<TcpStream>, last: &str) -> Vec<Value> {
    let mut events = Vec::new();
    let lines = stream.lines().map(Result::unwrap);
    for line in lines {
        if let Some(data) = line.strip_prefix("data: ") {
            events.push(serde_json::from_str::<Value>(data).unwrap());
            if events.last().unwrap()["event"] == last {
                break;
            }
        }
    }
    events
}

fn listen(server: &Running) -> BufReader<TcpStream> {
    let stream = server.send("GET /models/sse HTTP/1.1", "");
    let mut stream = BufReader::new(stream);
    let first = events(&mut stream, "model_status");
    assert_eq!(first[0]["data"]["status"], "unloaded", "{first:?}");
    stream
}

fn delete(server: &Running, name: &str) -> Reply {
    receive(server.send(&format!("DELETE /models?model={name} HTTP/1.1"), ""))
}

#[test]
fn the_list_of_models_is_read_again() {
    let other = "/../../tests/fixtures/models/qwen35.gguf";
    let cached = NamedModel {
        alias: Some("cached".to_owned()),
        path: (env!("CARGO_MANIFEST_DIR").to_owned() + other).into(),
    };
    let lists = Arc::new(Mutex::new(Ok(ModelLists {
        presets: vec![preset("a", 256), preset("b", 256), preset("same", 256)],
        offered: vec![cached.clone()],
    })));
    let mut options: ServerConfig = options();
    options.models.named.truncate(1);
    options.models.max = 0;
    options.models.presets = lists.lock().unwrap().as_ref().unwrap().presets.clone();
    options.models.offered = vec![cached];
    let read = Arc::clone(&lists);
    options.lists = Some(Arc::new(move || read.lock().unwrap().clone()));
    let server = Running::start(options);
    until("not loaded", || {
        status(&server, "same")["value"] == "loaded"
    });
    let all = ["tale", "a", "b", "same", "cached"];
    assert_eq!(ids(&server, "/models?reload="), all);
    assert_eq!(ids(&server, "/models?reload=1"), all);
    let is_loaded = |name: &str| status(&server, name)["value"] == "loaded";
    assert!(["tale", "a", "b", "same"].into_iter().all(is_loaded));
    *lists.lock().unwrap() = Ok(ModelLists {
        presets: vec![preset("b", 128), preset("same", 256), preset("c", 64)],
        offered: Vec::new(),
    });
    let mut changes = BufReader::new(server.send("GET /models/sse HTTP/1.1", ""));
    assert_eq!(
        ids(&server, "/v1/models?reload=1"),
        ["tale", "b", "same", "c"]
    );
    events(&mut changes, "models_reload");
    until("it stays in memory", || !is_loaded("b"));
    assert!(is_loaded("tale") && is_loaded("same") && !is_loaded("c"));
    // What is gone is unknown, what has changed is as it is now.
    assert_eq!(
        (answers(&server, "a"), answers(&server, "cached")),
        (404, 404)
    );
    for (name, n_ctx) in [("b", 128), ("same", 256), ("c", 64)] {
        assert_eq!(answers(&server, name), 200, "{name}");
        let props = server.get(&format!("/props?model={name}")).json();
        assert_eq!(
            props["default_generation_settings"]["n_ctx"], n_ctx,
            "{name}"
        );
    }
    // A name may come back.
    lists
        .lock()
        .unwrap()
        .as_mut()
        .unwrap()
        .presets
        .push(preset("a", 32));
    assert_eq!(
        ids(&server, "/models?reload=1"),
        ["tale", "a", "b", "same", "c"]
    );
    assert_eq!(answers(&server, "a"), 200);
    *lists.lock().unwrap() = Err("/etc/presets.ini:3: no such flag".to_owned());
    let failed = server.get("/models?reload=1");
    assert_eq!(failed.status, 503, "{}", failed.body);
    assert!(!failed.body.contains("presets.ini"), "{}", failed.body);
    assert_eq!(ids(&server, "/models").len(), 5);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn keys_that_may_load_models_read_the_list_again() {
    let keys = KeyFile::new("lists", &[("plain", ""), ("loads", "load_models = true")]);
    let mut options = options();
    options.http.keys = keys.options().http.keys;
    let server = Running::start(options);
    let get = |key: &str| {
        let head = format!("GET /models?reload=1 HTTP/1.1\r\nauthorization: Bearer {key}");
        receive(server.send(&head, "")).status
    };
    assert_eq!((get("plain"), get("loads")), (403, 200));
}

#[test]
fn a_model_is_downloaded_listed_and_deleted() {
    let place = Place::new("llama");
    let mut options = place.options();
    options.models.named.clear();
    options.models.offered = vec![named("first")];
    let server = Running::start(options);
    let mut changes = listen(&server);
    let name = "u/m:Q4_K_M";
    assert_eq!(
        server.post("/models", &json!({"model": name})).json(),
        json!({"success": true})
    );
    let seen = events(&mut changes, "download_finished");
    let of_download = seen
        .iter()
        .filter(|event| event["event"] == "download_progress");
    let of_download: Vec<_> = of_download.collect();
    let last = &of_download.last().unwrap();
    let file = &last["data"]["tale-Q4_K_M.gguf"];
    assert!(
        file["done"] == file["total"] && file["total"].as_u64() > Some(1 << 20),
        "{last}"
    );
    assert!(
        of_download.iter().all(|event| event["model"] == name),
        "{seen:?}"
    );
    assert_eq!(ids(&server, "/models"), ["first", name]);
    assert_eq!(answers(&server, name), 200);
    server
        .post("/models", &json!({"model": name}))
        .is_refused_for("model");
    // The operator's is not a client's to delete.
    let refused = delete(&server, "first");
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert_eq!(delete(&server, "u/other").status, 404);
    let deleted = delete(&server, "u%2Fm%3AQ4_K_M");
    assert_eq!(deleted.json(), json!({"success": true}));
    events(&mut changes, "model_remove");
    assert_eq!(ids(&server, "/models"), ["first"]);
    assert_eq!(answers(&server, name), 404);
    assert_eq!(Cache::at(&place.cache).models(), []);
    let blobs = place.cache.join("models--u--m/blobs");
    assert_eq!(std::fs::read_dir(blobs).unwrap().count(), 0);
    // And it may be downloaded again.
    assert_eq!(
        server
            .post("/v1/models", &json!({"model": "hf.co/u/m"}))
            .status,
        200
    );
    until("it is not there", || answers(&server, name) == 200);
}

#[test]
fn what_cannot_be_downloaded_or_deleted_is_refused() {
    let place = Place::new("llama-errors");
    let keys = KeyFile::new(
        "llama",
        &[("may", "pull = true"), ("may-not", "load_models = true")],
    );
    let mut options = place.options();
    options.http.pull.allowed = false;
    options.http.keys = keys.options().http.keys;
    let server = Running::start(options);
    let ask = |key: &str, name: &str| post(&server, key, "/models", &json!({"model": name}));
    let reply = ask("may-not", "u/m");
    assert_eq!(reply.status, 403, "{}", reply.body);
    assert!(reply.body.contains("--allow-pull"), "{}", reply.body);
    for (name, status) in [
        ("", 400),
        ("u/m/../x", 400),
        ("llama3", 400),
        ("u/other", 404),
        ("u/m:Q8_0", 404),
    ] {
        let reply = ask("may", name);
        assert_eq!(reply.status, status, "{name}: {}", reply.body);
    }
    assert_eq!(ask("may", "u/m").status, 200);
    let delete = |key: &str, query: &str| {
        let head = format!("DELETE /models{query} HTTP/1.1\r\nauthorization: Bearer {key}");
        receive(server.send(&head, "")).status
    };
    until("it is not there", || {
        ids_of(&server, "may").contains("u/m:Q4_K_M")
    });
    assert_eq!(delete("may", ""), 400);
    assert_eq!(delete("may-not", "?model=u/m:Q4_K_M"), 403);
    assert_eq!(delete("may", "?model=tale"), 400);
    assert_eq!(delete("may", "?model=u/m:Q4_K_M"), 200);
}

fn ids_of(server: &Running, key: &str) -> String {
    let head = format!("GET /models HTTP/1.1\r\nauthorization: Bearer {key}");
    receive(server.send(&head, "")).body
}

/// The stand-in closes each connection after some bytes, so that the download takes seconds.
#[test]
fn a_download_is_listed_while_it_runs_and_can_be_cancelled() {
    let place = Place::new("llama-cancel");
    place.hub.cut_after(1 << 20);
    let server = Running::start(place.options());
    let name = json!({"model": "u/m"});
    for cancel in ["unload", "delete"] {
        assert_eq!(server.post("/models", &name).status, 200);
        until("it is not listed", || {
            let status = status(&server, "u/m");
            status["value"] == "downloading"
                && status["progress"]["tale-Q4_K_M.gguf"]["done"].as_u64() > Some(0)
        });
        // Other clients' lists have what can be used.
        let codex = server.get("/v1/models").json();
        assert_eq!(codex["models"].as_array().unwrap().len(), 2);
        let reply = match cancel {
            "unload" => server.post("/models/unload", &name),
            _ => delete(&server, "u/m"),
        };
        assert_eq!(reply.status, 200, "{}", reply.body);
        until("it goes on", || status(&server, "u/m").is_null());
    }
    place.hub.cut_after(usize::MAX);
    std::thread::park_timeout(Duration::from_millis(100));
    assert_eq!(server.post("/models", &name).status, 200);
    until("it is not there", || answers(&server, "u/m:Q4_K_M") == 200);
}

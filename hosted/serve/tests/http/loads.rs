//! Models that requests load and unload, and that sleep.

use crate::client::{Running, options, until};
use crate::keys::{KeyFile, complete, post};
use core::time::Duration;
use serde_json::{Value, json};
use sluice_serve::{Defaults, ModelPreset, ModelsOptions, ServerConfig};
use std::io::{BufRead as _, BufReader};
use std::time::Instant;

/// A server that offers the small model twice and loads it on request.
fn router() -> ServerConfig {
    let mut options = options();
    options.models.offered = core::mem::take(&mut options.models.named);
    options.models.max = 2;
    options
}

fn status(server: &Running, name: &str) -> String {
    let all = server.get("/models").json();
    let mut all = all["data"].as_array().unwrap().iter();
    let model = all.find(|model| model["id"] == name).unwrap();
    model["status"]["value"].as_str().unwrap().to_owned()
}

fn ask(server: &Running, name: &str) -> u16 {
    let body = json!({"model": name, "prompt": "Once", "max_tokens": 2});
    server.post("/v1/completions", &body).status
}

#[test]
fn models_are_loaded_and_unloaded_by_requests() {
    let server = Running::start(router());
    until("not healthy", || server.get("/health").status == 200);
    assert_eq!(server.get("/props").json()["role"], "router");
    assert_eq!(server.get("/props").json()["max_instances"], 2);
    assert_eq!(status(&server, "tale"), "unloaded");
    let named = json!({"model": "tale"});
    server
        .post("/models/unload", &named)
        .is_refused_for("model");
    assert_eq!(
        server.post("/models/load", &named).json(),
        json!({"success": true})
    );
    until("not loaded", || status(&server, "tale") == "loaded");
    server.post("/models/load", &named).is_refused_for("model");
    assert_eq!(
        server.post("/models/unload", &named).json(),
        json!({"success": true})
    );
    until("not unloaded", || status(&server, "tale") == "unloaded");
    // A request loads it again.
    assert_eq!(ask(&server, "tale"), 200);
    assert_eq!(status(&server, "tale"), "loaded");
    for path in ["/models/load", "/models/unload"] {
        assert_eq!(server.post(path, &json!({"model": "gpt-4"})).status, 404);
        server.post(path, &json!({})).is_refused_for("model");
        server
            .post(path, &json!({"model": 3}))
            .is_refused_for("model");
    }
}

#[test]
fn texts_of_a_model_that_is_unloaded_may_end() {
    let mut options = router();
    options.models.stop_after = Duration::from_millis(200);
    options.models.limits.n_ctx = 1 << 16;
    let server = Running::start(options);
    let long =
        |n: u32| json!({"model": "tale", "prompt": "Once", "max_tokens": n, "ignore_eos": true});
    let named = json!({"model": "tale"});
    std::thread::scope(|scope| {
        let short = scope.spawn(|| server.post("/v1/completions", &long(3)).status);
        let endless = scope.spawn(|| server.post("/v1/completions", &long(60_000)));
        until("not loaded", || status(&server, "tale") == "loaded");
        until("not running", || {
            server
                .get("/metrics")
                .body
                .contains("llamacpp:requests_processing 1\n")
        });
        assert_eq!(server.post("/models/unload", &named).status, 200);
        // It waits until the model has gone, and loads it again.
        let next = scope.spawn(|| ask(&server, "tale"));
        assert_eq!(short.join().unwrap(), 200);
        let ended = endless.join().unwrap();
        assert_eq!(ended.status, 503, "{}", ended.body);
        assert_eq!(next.join().unwrap(), 200);
    });
    assert_eq!(status(&server, "tale"), "loaded");
}

#[test]
fn without_autoload_a_request_finds_what_is_loaded() {
    let mut options = router();
    options.models.autoload = false;
    let server = Running::start(options);
    let body = json!({"model": "tale", "prompt": "Once", "max_tokens": 2});
    server
        .post("/v1/completions", &body)
        .is_refused_for("model");
    assert_eq!(server.get("/props").json()["models_autoload"], false);
    server.post("/models/load", &json!({"model": "tale"}));
    until("not loaded", || status(&server, "tale") == "loaded");
    assert_eq!(ask(&server, "tale"), 200);
    // A request may say otherwise.
    let body = json!({"model": "other", "prompt": "Once", "max_tokens": 2});
    let reply = server.post("/v1/completions?autoload=true", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
}

#[test]
fn an_idle_model_sleeps_until_the_next_request() {
    let mut options = options();
    options.models.named.truncate(1);
    options.models.sleep_after = Some(Duration::from_millis(300));
    let server = Running::start(options);
    let props = || server.get("/props").json();
    until("not awake", || ask(&server, "tale") == 200);
    let awake = props();
    assert_eq!(awake["is_sleeping"], false);
    // None of these wakes it, or keeps it awake.
    until("not asleep", || {
        assert_eq!(server.get("/health").status, 200);
        assert_eq!(server.get("/metrics").status, 200);
        server.get("/slots");
        status(&server, "tale") == "sleeping"
    });
    let mut asleep = props();
    assert_eq!(asleep["is_sleeping"], true);
    asleep["is_sleeping"] = false.into();
    assert_eq!(asleep, awake);
    let count = json!({"messages": [{"role": "user", "content": "Hello"}], "input": "Hello", "max_tokens": 1, "model": "tale"});
    for path in [
        "/completion",
        "/tokenize",
        "/chat/completions/input_tokens",
        "/v1/chat/completions/input_tokens",
        "/v1/responses/input_tokens",
        "/v1/messages/count_tokens",
    ] {
        until("not asleep", || status(&server, "tale") == "sleeping");
        let body = match path {
            "/completion" => json!({"prompt": "Hello", "n_predict": 1}),
            "/tokenize" => json!({"content": "Hello"}),
            _ => count.clone(),
        };
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        assert_eq!(props()["is_sleeping"], false, "{path}");
    }
}

#[test]
fn a_model_that_works_does_not_sleep() {
    let mut options = options();
    options.models.named.truncate(1);
    options.models.limits.n_ctx = 1 << 14;
    options.models.sleep_after = Some(Duration::from_millis(1));
    let server = Running::start(options);
    let body = json!({"prompt": "Once", "max_tokens": 4000, "ignore_eos": true});
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["usage"]["completion_tokens"], 4000);
}

#[test]
fn changes_of_states_are_streamed() {
    let server = Running::start(router());
    until("not healthy", || server.get("/health").status == 200);
    let stream = server.send("GET /models/sse HTTP/1.1", "");
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut events = lines.filter_map(|line| Some(line.strip_prefix("data: ")?.to_owned()));
    let mut next = || -> Value { serde_json::from_str(&events.next().unwrap()).unwrap() };
    let first: Vec<_> = (0..2).map(|_| next()["model"].clone()).collect();
    assert_eq!(first, ["tale", "other"]);
    server.post("/models/load", &json!({"model": "other"}));
    for status in ["loading", "loaded"] {
        let expected =
            json!({"model": "other", "event": "model_status", "data": {"status": status}});
        assert_eq!(next(), expected);
    }
    // It ends with the server, without delay.
    let begun = Instant::now();
    drop(server);
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_preset_has_its_own_options_and_defaults() {
    let mut options = router();
    let named = options.models.offered.pop().unwrap();
    let mut own = ModelsOptions {
        named: vec![named],
        limits: options.models.limits,
        chat_template: options.models.chat_template.clone(),
        ..ModelsOptions::default()
    };
    own.limits.n_ctx = 256;
    own.limits.n_seq = 2;
    let mut defaults = Defaults {
        n_predict: Some(3),
        seed: Some(7),
        ..Defaults::default()
    };
    defaults.sampling.config.top_k = 7;
    options.models.presets.push(ModelPreset {
        options: own,
        defaults,
        is_eager: true,
        flags: String::new(),
    });
    let server = Running::start(options);
    until("not loaded", || status(&server, "other") == "loaded");
    assert_eq!(status(&server, "tale"), "unloaded");
    // Values in an address are unescaped.
    let props = server.get("/props?model=%6fthe%72").json();
    assert_eq!(props["total_slots"], 2);
    let shown = |name: &str| {
        let reply = server.post("/api/show", &json!({"model": name})).json();
        let parameters = reply["parameters"].as_str().unwrap().to_owned();
        let mut lines = parameters.lines().map(str::split_whitespace);
        let mut top_k = lines.find(|words| words.clone().next() == Some("top_k"));
        top_k.as_mut().unwrap().nth(1).unwrap().to_owned()
    };
    assert_eq!(shown("other"), "7");
    assert_ne!(shown("tale"), "7");
    assert_eq!(props["default_generation_settings"]["n_ctx"], 256);
    assert_eq!(
        props["default_generation_settings"]["params"]["n_predict"],
        3
    );
    let chat = |model: &str| {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "Tell"}]});
        server.post("/v1/chat/completions", &body).json()
    };
    let (first, second) = (chat("other"), chat("other"));
    assert_eq!(first["usage"]["completion_tokens"], 3);
    assert_eq!(first["choices"], second["choices"]);
    // The server's own defaults hold for the others.
    assert_ne!(chat("tale")["usage"]["completion_tokens"], 3);
}

#[test]
fn a_server_without_a_model_says_what_to_do() {
    let mut options = options();
    options.models.named.clear();
    let server = Running::start(options);
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/v1/models").json()["data"], json!([]));
    let reply = server.post("/v1/completions", &json!({"prompt": "Once"}));
    assert_eq!(reply.status, 503);
    assert!(reply.body.contains("sluice pull"), "{}", reply.body);
}

/// A text that ends only with its model.
fn endless() -> Value {
    json!({"model": "tale", "prompt": "Once", "max_tokens": 60_000, "ignore_eos": true, "stream": true})
}

fn is_running(server: &Running) -> bool {
    let metrics = server.get("/metrics").body;
    metrics.contains("llamacpp:requests_processing 1\n")
}

#[test]
fn other_models_are_loaded_while_one_is_being_unloaded() {
    let mut options = router();
    options.models.stop_after = Duration::from_secs(600);
    options.models.limits.n_ctx = 1 << 16;
    let server = Running::start(options);
    let text = server.send("POST /v1/completions HTTP/1.1", &endless().to_string());
    until("not running", || is_running(&server));
    let named = json!({"model": "tale"});
    assert_eq!(server.post("/models/unload", &named).status, 200);
    server
        .post("/models/unload", &named)
        .is_refused_for("model");
    assert_eq!(ask(&server, "other"), 200);
    assert_eq!(status(&server, "tale"), "loaded");
    // Its text ends with its client, and the model with its text.
    drop(text);
    until("not unloaded", || status(&server, "tale") == "unloaded");
    assert_eq!(ask(&server, "tale"), 200);
}

#[test]
fn a_keep_alive_of_0_waits_for_the_last_text() {
    let mut options = router();
    options.models.limits.n_ctx = 1 << 16;
    let server = Running::start(options);
    let text = server.send("POST /v1/completions HTTP/1.1", &endless().to_string());
    until("not running", || is_running(&server));
    let unload = json!({"model": "tale", "keep_alive": 0});
    let reply = server.post("/api/generate", &unload).json();
    assert_eq!(reply["done_reason"], "unload");
    assert_eq!(status(&server, "tale"), "loaded");
    drop(text);
    until("not unloaded", || status(&server, "tale") == "unloaded");
    // Later uses are not bound by it.
    assert_eq!(ask(&server, "tale"), 200);
    assert_eq!(ask(&server, "other"), 200);
    assert_eq!(status(&server, "tale"), "loaded");
}

#[test]
fn keys_need_a_right_to_load_and_unload_models() {
    let keys = KeyFile::new("models", &[("may", "load_models = true"), ("may-not", "")]);
    let mut options = router();
    options.models.autoload = false;
    options.http.keys = keys.options().http.keys;
    let server = Running::start(options);
    let named = json!({"model": "tale"});
    let text = json!({"model": "tale", "prompt": "Once", "max_tokens": 2});
    let load = "/v1/completions?autoload=true";
    for path in ["/models/load", "/models/unload", load] {
        let refused = post(&server, "may-not", path, &text);
        assert_eq!(refused.status, 403, "{path}");
        assert!(refused.body.contains("load_models"), "{}", refused.body);
    }
    assert_eq!(post(&server, "may", load, &text).status, 200);
    assert_eq!(post(&server, "may-not", load, &text).status, 200);
    assert_eq!(complete(&server, "may-not", &text).status, 200);
    let unload = json!({"model": "tale", "keep_alive": 0});
    let refused = post(&server, "may-not", "/api/generate", &unload);
    assert_eq!(refused.status, 403, "{}", refused.body);
    assert_eq!(post(&server, "may", "/models/unload", &named).status, 200);
    // It may still be in memory for a moment.
    until("not loaded again", || {
        post(&server, "admin", "/models/load", &named).status == 200
    });
}

/// A request that ends says when its model is unloaded, and another one unloads it at the same moment: neither waits for
/// what the other one holds.
#[test]
fn times_and_unloading_do_not_wait_for_each_other() {
    let server = Running::start(router());
    let ask = json!({"model": "tale", "prompt": "Once", "stream": false, "keep_alive": "1h", "raw": true,
        "options": {"num_predict": 2}});
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while begun.elapsed() < Duration::from_secs(3) {
                    let status = server.post("/api/generate", &ask).status;
                    assert!([200, 503].contains(&status), "{status}");
                }
            });
        }
        scope.spawn(|| {
            while begun.elapsed() < Duration::from_secs(3) {
                server.post("/models/unload", &json!({"model": "tale"}));
            }
        });
    });
    assert_eq!(self::ask(&server, "tale"), 200);
}

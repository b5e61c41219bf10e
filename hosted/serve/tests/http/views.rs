//! What a key is shown of others, and what it changes for them.

use crate::adapters::{folder, with, write};
use crate::client::{Running, until};
use crate::keys::{KeyFile, complete, get, post};
use serde_json::{Value, json};

#[test]
fn metrics_show_a_key_its_own_figures() {
    let file = KeyFile::new("figures", &[("a", "models = [\"tale\"]"), ("b", "")]);
    let server = Running::start(file.options());
    let asked = json!({"model": "tale", "prompt": "Once", "max_tokens": 2});
    assert_eq!(complete(&server, "a", &asked).status, 200);
    let seen = |key: &str| {
        let page = get(&server, key, "/metrics").body;
        let has = |label: &str| page.contains(label);
        [
            has("{key=\"a\"} 1"),
            has("key=\"b\""),
            has("key=\"api-key-1\""),
            has("model_name=\"tale\""),
            has("model_name=\"other\""),
        ]
    };
    assert_eq!(seen("a"), [true, false, false, true, false]);
    assert_eq!(seen("b"), [false, true, false, true, true]);
    assert_eq!(seen("admin"), [true; 5]);
}

#[test]
fn slots_show_of_other_groups_only_whether_they_are_busy() {
    let file = KeyFile::new("views", &[("a", ""), ("b", "")]);
    let mut options = file.options();
    options.models.limits.n_seq = 2;
    options.models.limits.n_ctx = 4096;
    let server = Running::start(options);
    let asked =
        json!({"model": "tale", "prompt": "Once upon a time", "max_tokens": 3, "id_slot": 0});
    assert_eq!(complete(&server, "a", &asked).status, 200);
    let slots = |key: &str| get(&server, key, "/slots?model=tale").json();
    // The turn that ended a text may still go on.
    until("it runs", || slots("a")[0]["is_processing"] == false);
    assert!(slots("a")[0]["n_past"].as_u64() > Some(3), "{}", slots("a"));
    let hidden = |is_busy: bool| json!({"id": 0, "n_ctx": 4096, "is_processing": is_busy});
    assert_eq!(slots("b")[0], hidden(false));
    assert_eq!(slots("b")[1]["n_past"], 0, "empty slots have no owner");
    let long = json!({"model": "tale", "prompt": "Once upon a time", "max_tokens": 4000, "id_slot": 0,
        "ignore_eos": true, "stream": true});
    let head = "POST /v1/completions HTTP/1.1\r\nauthorization: Bearer a";
    let running = server.send(head, &long.to_string());
    until("it does not run", || slots("a")[0]["is_processing"] == true);
    assert!(slots("a")[0]["id_task"].is_string());
    assert_eq!(slots("b")[0], hidden(true));
    drop(running);
}

#[test]
fn adapters_that_a_key_may_not_use_stay_as_they_are() {
    let folder = folder("views");
    let paths = ["x", "y"].map(|name| folder.join(format!("{name}.gguf")));
    for (path, seed) in paths.iter().zip(1..) {
        write(path, seed, 4);
    }
    let rights = "models = [\"tale\", \"x\"]\nload_adapters = true";
    let file = KeyFile::new("adapters", &[("one", rights)]);
    let mut options = with(&[("x", &paths[0]), ("y", &paths[1])], 4);
    options.http.keys = file.options().http.keys;
    let server = Running::start(options);
    let set = |key: &str, scales: Value| post(&server, key, "/lora-adapters", &scales);
    let scales = || {
        let all = get(&server, "admin", "/lora-adapters").json();
        let all = all.as_array().unwrap().iter();
        all.map(|entry| entry["scale"].as_f64().unwrap())
            .collect::<Vec<_>>()
    };
    let both = json!([{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0.5}]);
    assert_eq!(set("admin", both.clone()).status, 200);
    assert_eq!(set("one", json!([])).status, 200);
    assert_eq!(scales(), [0.0, 0.5]);
    let refused = set("one", both);
    assert_eq!((refused.status, &*refused.param()), (400, "[1].id"));
    assert_eq!(scales(), [0.0, 0.5]);
    let unload = |name: &str| {
        let named = json!({"lora_name": name});
        post(&server, "one", "/v1/unload_lora_adapter", &named)
    };
    let absent = unload("z");
    let shown = absent.body.replace("'z'", "'y'").replace("\"z\"", "\"y\"");
    let hidden = unload("y");
    assert_eq!((hidden.status, hidden.status), (404, absent.status));
    assert_eq!(hidden.body.replace('y', "z"), shown.replace('y', "z"));
    assert_eq!(scales().len(), 2);
    // What it could not unload, it cannot load either, nor replace.
    for name in ["y", "new"] {
        let named = json!({"lora_name": name, "lora_path": &paths[0], "load_inplace": true});
        let refused = post(&server, "one", "/v1/load_lora_adapter", &named);
        assert_eq!((refused.status, &*refused.param()), (403, "lora_name"));
    }
    assert_eq!(unload("x").status, 200);
    std::fs::remove_dir_all(folder).unwrap();
}

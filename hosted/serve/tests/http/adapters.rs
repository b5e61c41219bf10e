//! Adapters over HTTP: named as models, mixed, loaded, replaced and unloaded while the server runs.

use crate::client::{Running, options, until};
use core::time::Duration;
use serde_json::{Value, json};
use sluice::adapter::{AdapterFile, Factors};
use sluice::file::OutputFile;
use sluice_make::convert::FloatType;
use sluice_make::lora::{
    GgufOptions, InfqOptions, PeftOptions, write_gguf, write_infq, write_peft,
};
use sluice_serve::{AdaptersOptions, NamedAdapter, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// A folder for a test's files.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("sluice-adapters-{}-{name}", std::process::id()));
    let _gone = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A random adapter of the small model, with this seed.
fn made(seed: u64, rank: usize) -> AdapterFile {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(u16::try_from(state >> 48).unwrap()) / 32768.0 - 1.0
    };
    let mut vector = |n: usize| (0..n).map(|_| 0.25 * random()).collect::<Vec<f32>>();
    let factors = (0..6).flat_map(|layer| {
        [("attn_q", 256), ("attn_output", 256)].map(|(name, n)| (layer, name, n))
    });
    let factors = factors.map(|(layer, name, n)| Factors {
        tensor: format!("blk.{layer}.{name}.weight"),
        part: None,
        rank,
        a: vector(rank * n),
        b: vector(n * rank),
        scale: 1.0,
    });
    AdapterFile {
        architecture: "llama".to_owned(),
        factors: factors.collect(),
        ..AdapterFile::default()
    }
}

pub(crate) fn write(path: &Path, seed: u64, rank: usize) {
    let file = made(seed, rank);
    let output = OutputFile::create_model(path, true, *b"GGUF").unwrap();
    let options = GgufOptions {
        float: FloatType::F32,
        matrices: None,
        name: None,
    };
    write_gguf(&file, options, output).unwrap();
}

/// Options with up to `max_in_memory` adapters in memory, and these named ones.
pub(crate) fn with(names: &[(&str, &Path)], max_in_memory: usize) -> ServerConfig {
    let mut options = options();
    let named = names.iter().map(|(name, path)| NamedAdapter {
        name: (*name).to_owned(),
        parts: vec![path.to_path_buf().into()],
        model: None,
        scale: None,
    });
    options.models.adapters = AdaptersOptions {
        named: named.collect(),
        max_in_memory,
        rank: 32,
        updates: true,
        ..AdaptersOptions::default()
    };
    options
}

fn ask(model: &str, seed: u64) -> Value {
    json!({
        "model": model, "prompt": "Once upon a time there was a small", "max_tokens": 16, "seed": seed,
        "logprobs": 1, "ignore_eos": true,
    })
}

/// The text and its log-probabilities.
fn answer(server: &Running, body: &Value) -> String {
    let reply = server.post("/v1/completions", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let choice = &reply.json()["choices"][0];
    format!(
        "{} {}",
        choice["text"], choice["logprobs"]["token_logprobs"]
    )
}

#[test]
fn any_mix_answers_as_each_alone() {
    let folder = folder("mix");
    let paths = ["a", "b", "c"].map(|name| folder.join(format!("{name}.gguf")));
    (1..)
        .zip(&paths)
        .for_each(|(seed, path)| write(path, seed, 4));
    let names = [("a", &*paths[0]), ("b", &*paths[1]), ("c", &*paths[2])];
    // With one place for three adapters, they are evicted and reloaded.
    for max in [1, 2, 8] {
        let server = Running::start(with(&names, max));
        let mut asked = Vec::new();
        for seed in 0..3 {
            for model in ["tale", "a", "b", "c"] {
                asked.push(ask(model, seed));
            }
            let mut scaled = ask("tale", seed);
            scaled["lora"] = json!([{"id": 0, "scale": 0.5}]);
            asked.push(scaled.clone());
            if max == 1 {
                let mut two = scaled.clone();
                two["lora"] = json!([{"id": 1, "scale": 1}, {"id": 2, "scale": 1}]);
                let reply = server.post("/v1/completions", &two);
                assert_eq!(
                    (reply.status, &*reply.param()),
                    (400, "lora"),
                    "{}",
                    reply.body
                );
            } else {
                scaled["lora"] = json!([{"id": 1, "scale": 0.5}, {"name": "c", "scale": -1.0}]);
                asked.push(scaled);
            }
        }
        let alone: Vec<String> = asked.iter().map(|body| answer(&server, body)).collect();
        for (i, text) in alone.iter().enumerate() {
            assert_eq!(
                alone.iter().filter(|other| *other == text).count(),
                1,
                "{i}"
            );
        }
        let together: Vec<String> = std::thread::scope(|scope| {
            let asked = asked
                .iter()
                .map(|body| scope.spawn(|| answer(&server, body)));
            let asked: Vec<_> = asked.collect();
            asked
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(together, alone);
        let models = server.get("/v1/models").json();
        let loaded = models["data"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|model| model["parent"] == "tale" && model["status"]["value"] == "loaded");
        assert!((1..=max).contains(&loaded.count()), "{models}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn warnings_of_an_adapter_reach_the_client_that_loads_it() {
    let folder = folder("warns");
    let path = folder.join("x");
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tale-hf");
    let options = PeftOptions {
        float: FloatType::F32,
        base: Some(&base),
        model: None,
        overwrite: true,
    };
    write_peft(&made(7, 4), options, &path).unwrap();
    let about = path.join("adapter_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&about).unwrap()).unwrap();
    config["marvellous"] = 3.into();
    std::fs::write(&about, config.to_string()).unwrap();
    let server = Running::start(with(&[], 4));
    let load = json!({"lora_name": "x", "lora_path": path});
    let reply = server.post("/v1/load_lora_adapter", &load);
    let warning = format!("{}: marvellous is 3: unknown, ignored", about.display());
    let told = format!("Success: LoRA adapter 'x' added successfully.\nwarning: {warning}");
    assert_eq!((reply.status, &*reply.body), (200, &*told));
    let listed = server.get("/lora-adapters").json();
    assert_eq!(listed[0]["warnings"], json!([warning]), "{listed}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn adapters_are_loaded_replaced_and_unloaded() {
    let folder = folder("load");
    let path = folder.join("x.gguf");
    write(&path, 7, 4);
    let server = Running::start(with(&[], 4));
    let base = answer(&server, &ask("tale", 1));
    let load = json!({"lora_name": "x", "lora_path": path});
    assert_eq!(server.post("/v1/completions", &ask("x", 1)).status, 404);
    let reply = server.post("/v1/load_lora_adapter", &load);
    assert_eq!(
        (reply.status, &*reply.body),
        (200, "Success: LoRA adapter 'x' added successfully.")
    );
    assert_eq!(server.post("/v1/load_lora_adapter", &load).status, 400);
    let first = answer(&server, &ask("x", 1));
    assert_ne!(first, base);
    assert_eq!(answer(&server, &ask("tale", 1)), base);
    // A stream that has begun keeps its adapter.
    let mut long = ask("x", 1);
    long["max_tokens"] = 120.into();
    let whole = answer(&server, &long);
    let running = std::thread::scope(|scope| {
        let running = scope.spawn(|| answer(&server, &long));
        write(&path, 8, 8);
        let mut again = load.clone();
        again["load_inplace"] = true.into();
        let reply = server.post("/v1/load_lora_adapter", &again);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let second = answer(&server, &ask("x", 1));
        assert_ne!(second, first);
        running.join().unwrap()
    });
    // It began with the old or with the new adapter, and kept it.
    let after = answer(&server, &long);
    assert!(running == whole || running == after);
    let reply = server.post("/v1/unload_lora_adapter", &json!({"lora_name": "x"}));
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(server.post("/v1/completions", &ask("x", 1)).status, 404);
    assert_eq!(answer(&server, &ask("tale", 1)), base);
    // Errors are reported, and have no side effects.
    let missing = json!({"lora_name": "y", "lora_path": folder.join("y.gguf")});
    for _ in 0..2 {
        let reply = server.post("/v1/load_lora_adapter", &missing);
        assert_eq!((reply.status, &*reply.param()), (400, "lora_path"));
    }
    assert_eq!(server.get("/lora-adapters").json(), json!([]));
    let reply = server.post("/v1/unload_lora_adapter", &json!({"lora_name": "y"}));
    assert_eq!((reply.status, &*reply.param()), (404, "lora_name"));
    assert!(reply.body.contains("available: none"), "{}", reply.body);
    write(&path, 8, 60);
    let reply = server.post(
        "/v1/load_lora_adapter",
        &json!({"lora_name": "wide", "lora_path": path}),
    );
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("--max-lora-rank"), "{}", reply.body);
    let mut closed = with(&[], 4);
    closed.models.adapters.updates = false;
    let server = Running::start(closed);
    let reply = server.post("/v1/load_lora_adapter", &load);
    assert_eq!(reply.status, 501);
    assert!(
        reply.body.contains("--allow-lora-updates"),
        "{}",
        reply.body
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_path_that_holds_no_adapter_is_answered_alike_whatever_it_holds() {
    let folder = folder("nothing");
    let text = folder.join("secret.txt");
    std::fs::write(&text, "root:x:0:0").unwrap();
    let mut options = with(&[], 4);
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    options.log = Arc::new(move |line: &str| log.lock().unwrap().push(line.to_owned()));
    let model = options.models.named[0].path.clone();
    let server = Running::start(options);
    let asked = |path: &Path| {
        let body = json!({"lora_name": "x", "lora_path": path});
        let reply = server.post("/v1/load_lora_adapter", &body);
        assert_eq!(reply.status, 400, "{}", reply.body);
        reply.body
    };
    let absent = asked(&folder.join("absent"));
    assert!(absent.contains("no adapter could be read"), "{absent}");
    for path in [
        &text,
        &folder,
        &model,
        Path::new("/dev/null"),
        Path::new("/etc/shadow/x"),
    ] {
        assert_eq!(asked(path), absent, "{}", path.display());
    }
    let lines = lines.lock().unwrap();
    let logged = lines
        .iter()
        .any(|line| line.contains("secret.txt") && line.contains("root"));
    assert!(logged, "{lines:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn errors_of_models_and_adapters_name_no_folder_of_the_server() {
    let folder = folder("nameless");
    let adapter = folder.join("gone.gguf");
    write(&adapter, 7, 4);
    let mut options = with(&[("gone", &adapter)], 4);
    let models = folder.join("models");
    std::fs::create_dir(&models).unwrap();
    std::fs::write(models.join("spoilt.gguf"), "GGUF").unwrap();
    options.models.folder = Some(models);
    let server = Running::start(options);
    std::fs::remove_file(&adapter).unwrap();
    let hidden = folder.display().to_string();
    for (name, status) in [("gone", 400), ("spoilt", 503)] {
        let reply = server.post("/v1/completions", &ask(name, 1));
        assert_eq!(reply.status, status, "{}", reply.body);
        assert!(!reply.body.contains(&hidden), "{}", reply.body);
        assert!(
            reply.body.contains("the server's log says why"),
            "{}",
            reply.body
        );
    }
    let models = server.get("/v1/models").body;
    assert!(
        models.contains("\"failed\":true") && !models.contains(&hidden),
        "{models}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn scales_for_all_are_set_and_requests_have_their_own() {
    let folder = folder("scales");
    let path = folder.join("x.gguf");
    write(&path, 3, 4);
    let server = Running::start(with(&[("x", &path)], 4));
    let (base, own) = (
        answer(&server, &ask("tale", 1)),
        answer(&server, &ask("x", 1)),
    );
    let list = server.get("/lora-adapters").json();
    assert_eq!(
        (&list[0]["id"], &list[0]["scale"]),
        (&json!(0), &json!(0.0))
    );
    let reply = server.post("/lora-adapters", &json!([{"id": 0, "scale": 1.0}]));
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(answer(&server, &ask("tale", 1)), own);
    let mut off = ask("tale", 1);
    off["lora"] = json!([]);
    assert_eq!(answer(&server, &off), base);
    assert_eq!(server.post("/lora-adapters", &json!([])).status, 200);
    assert_eq!(answer(&server, &ask("tale", 1)), base);
    for (lora, param) in [
        (json!([{"id": 5, "scale": 1.0}]), "lora[0]"),
        (json!([{"scale": 1.0}]), "lora[0]"),
        (json!("x"), "lora"),
        (json!([{"id": 0, "scale": "much"}]), "scale"),
        (
            json!([{"id": 0, "scale": 1.0}, {"name": "a", "scale": 2.0}]),
            "lora[1]",
        ),
    ] {
        let mut body = ask("tale", 1);
        body["lora"] = lora;
        let reply = server.post("/v1/completions", &body);
        reply.is_refused_for(param);
    }
    for wrong in [
        json!([{"id": 9, "scale": 1.0}]),
        json!([{"id": 0, "scale": 1.0}, {"id": 0, "scale": 0.0}]),
    ] {
        assert_eq!(server.post("/lora-adapters", &wrong).status, 400, "{wrong}");
    }
    // An unknown name lists the adapters as well.
    let reply = server.post("/v1/completions", &ask("gone", 1));
    assert_eq!(reply.status, 404);
    assert!(reply.body.contains("other, x"), "{}", reply.body);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Cached pages are only found by texts with the same adapter.
#[test]
fn prefixes_are_those_of_their_adapter() {
    let folder = folder("prefix");
    let paths = ["a", "b"].map(|name| folder.join(format!("{name}.gguf")));
    (1..)
        .zip(&paths)
        .for_each(|(seed, path)| write(path, seed, 4));
    let server = Running::start(with(&[("a", &paths[0]), ("b", &paths[1])], 4));
    let prompt = "Once upon a time there was a little girl who lived near the sea. ".repeat(12);
    let ask = |model: &str, uses_cache: bool| {
        let body = json!({
            "model": model, "prompt": prompt, "max_tokens": 8, "seed": 1, "logprobs": 1, "cache_prompt": uses_cache,
        });
        let reply = server.post("/v1/completions", &body).json();
        let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap();
        (format!("{}", reply["choices"][0]["logprobs"]), cached)
    };
    let cold = ["tale", "a", "b"].map(|model| ask(model, false));
    assert!(cold.iter().all(|(_, cached)| *cached == 0));
    for model in ["tale", "a", "b"] {
        assert_eq!(ask(model, true).1, 0, "{model}");
    }
    for (model, cold) in ["b", "tale", "a"]
        .iter()
        .zip([&cold[2], &cold[0], &cold[1]])
    {
        let (text, cached) = ask(model, true);
        assert!(cached >= 64, "{model} {cached}");
        assert_eq!(text, cold.0, "{model}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_folder_is_followed() {
    let folder = folder("watched");
    let mut options = with(&[], 4);
    options.models.adapters.folder = Some(folder.clone());
    let server = Running::start(options);
    let path = folder.join("x.gguf");
    write(&path, 1, 4);
    let status = || server.get("/v1/models/x").status;
    until("published", &|| status() == 200);
    let first = answer(&server, &ask("x", 1));
    std::thread::park_timeout(Duration::from_millis(20));
    write(&path, 2, 4);
    until("replaced", &|| answer(&server, &ask("x", 1)) != first);
    let reply = server.post("/v1/unload_lora_adapter", &json!({"lora_name": "x"}));
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert!(reply.body.contains("--lora-dir"), "{}", reply.body);
    assert_eq!(status(), 200);
    std::fs::remove_file(&path).unwrap();
    until("withdrawn", &|| status() == 404);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Adapters that are in the folder at the start are available as soon as the server is ready.
#[test]
fn adapters_of_a_folder_are_ready_with_the_models() {
    let folder = folder("ready");
    let path = folder.join("old.gguf");
    write(&path, 1, 4);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
    file.set_modified(an_hour_ago).unwrap();
    let mut options = with(&[], 4);
    options.models.adapters.folder = Some(folder.clone());
    let server = Running::start(options);
    until("ready", &|| server.get("/health").status == 200);
    let listed = server.get("/v1/models").body;
    assert!(listed.contains("\"old\""), "{listed}");
    assert_eq!(server.get("/v1/models/old").status, 200);
    std::fs::remove_dir_all(folder).unwrap();
}

/// An INFQ directory has several adapters, and a model's file is not an adapter.
#[test]
fn a_folder_has_what_its_places_have() {
    let folder = folder("places");
    std::fs::copy(crate::client::TALE, folder.join("model.gguf")).unwrap();
    let both = folder.join("both");
    let written = InfqOptions {
        name: "y",
        is_int4: false,
        outlier_threshold: 0.0,
        overwrite: false,
    };
    write_infq(&made(5, 4), written, &both).unwrap();
    let manifest = both.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("y/blk.0.", "z/blk.0.")).unwrap();
    let (mut options, said) = (with(&[], 4), Arc::new(Mutex::new(String::new())));
    options.models.adapters.folder = Some(folder.clone());
    let log = Arc::clone(&said);
    options.log = Arc::new(move |line| {
        let mut said = log.lock().unwrap();
        said.push_str(line);
        said.push('\n');
    });
    let server = Running::start(options);
    let status = |name: &str| server.get(&format!("/v1/models/{name}")).status;
    until("published", &|| status("y") == 200 && status("z") == 200);
    assert_ne!(answer(&server, &ask("y", 1)), answer(&server, &ask("z", 1)));
    assert_eq!([status("both"), status("model")], [404, 404]);
    until("ignored", &|| {
        let said = said.lock().unwrap();
        said.matches("model.gguf is ignored").count() == 1
    });
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("z/blk.0.", "y/blk.0.")).unwrap();
    // A single adapter is named after its directory.
    until("renamed", &|| {
        [status("y"), status("z"), status("both")] == [404, 404, 200]
    });
    let said = said.lock().unwrap();
    assert_eq!(said.matches("is ignored").count(), 1, "{said}");
    drop(said);
    std::fs::remove_dir_all(folder).unwrap();
}

/// With one adapter per step, all adapters are served in turn.
#[test]
fn few_adapters_a_step_serve_all() {
    let folder = folder("few");
    let paths = ["a", "b", "c"].map(|name| folder.join(format!("{name}.gguf")));
    (1..)
        .zip(&paths)
        .for_each(|(seed, path)| write(path, seed, 4));
    let names = [("a", &*paths[0]), ("b", &*paths[1]), ("c", &*paths[2])];
    let mut options = with(&names, 8);
    options.engine.max_adapters = 1;
    let server = Running::start(options);
    let asked: Vec<Value> = ["a", "b", "c", "tale"].map(|model| ask(model, 4)).to_vec();
    let alone: Vec<String> = asked.iter().map(|body| answer(&server, body)).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let asked: Vec<_> = asked
            .iter()
            .map(|body| scope.spawn(|| answer(&server, body)))
            .collect();
        asked
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(together, alone);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Running adapters are shown, and a slot can only be restored with the adapter it was computed with.
#[test]
fn metrics_and_slots_know_adapters() {
    let folder = folder("slots");
    let path = folder.join("x.gguf");
    write(&path, 3, 4);
    let mut options = with(&[("x", &path)], 4);
    options.http.slot_save_path = Some(folder.clone());
    options.models.limits.n_seq = 1;
    let server = Running::start(options);
    let own = answer(&server, &ask("x", 1));
    let save = server.post("/slots/0?action=save", &json!({"filename": "s.bin"}));
    assert_eq!(save.status, 200, "{}", save.body);
    let restore = |model: &str| {
        let path = format!("/slots/0?action=restore&model={model}");
        server.post(&path, &json!({"filename": "s.bin"}))
    };
    assert_eq!(restore("tale").status, 400);
    let restored = restore("x");
    assert_eq!(restored.status, 200, "{}", restored.body);
    let again = server.post("/v1/completions", &ask("x", 1)).json();
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached > Some(0), "{again}");
    assert_eq!(answer(&server, &ask("x", 1)), own);
    // An answer may be read before the turn that ended it is over.
    let mut tries = 0..100;
    let is_idle = |metrics: &str| {
        let mut lines = metrics.lines();
        let line = lines.find(|line| line.starts_with("sluice:lora_requests_info{"));
        let idle = "max_lora=\"0\",running_lora_adapters=\"\"";
        line.unwrap().contains(idle)
    };
    while !is_idle(&server.get("/metrics").body) {
        assert!(tries.next().is_some(), "{}", server.get("/metrics").body);
        std::thread::park_timeout(Duration::from_millis(10));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

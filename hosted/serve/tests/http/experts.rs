//! Models with experts on disk: their answers, what routes report about them, and failures of the drive.

use crate::client::{Running, options};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use serde_json::{Value, json};
use sluice::experts::device::Simulation;
use sluice::experts::{ExpertOptions, ExpertStore};
use sluice::file::LoadMode;
use sluice::model::ModelSource;
use sluice_serve::ServerConfig;
use std::sync::{Arc, Mutex};
use std::time::Instant;

const MIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/models/gpt-oss.gguf"
);

type Lines = Arc<Mutex<Vec<String>>>;

/// A small mixture and a dense model; the mixture's `experts` stay on disk, if given.
fn server(experts: Option<ExpertOptions>) -> (ServerConfig, Lines) {
    let mut options = options();
    options.models.named[0].path = MIXTURE.into();
    options.models.named[0].alias = Some("mixture".into());
    options.models.limits.n_ctx = 256;
    options.models.experts = experts;
    let lines = Lines::default();
    let log = Arc::clone(&lines);
    options.log = Arc::new(move |line: &str| log.lock().unwrap().push(line.to_owned()));
    (options, lines)
}

/// Room for half of the mixture's experts.
fn half(device: Simulation) -> ExpertOptions {
    let opened = ModelSource::open(MIXTURE, LoadMode::Map).unwrap();
    let (file, gguf) = (opened.file(), opened.gguf());
    let options = ExpertOptions::new(1 << 30);
    let all = ExpertStore::open(file, gguf, opened.config(), options).unwrap();
    ExpertOptions {
        device: Some(device.device()),
        ..ExpertOptions::new(all.memory_bytes() / 2)
    }
}

fn ask(model: &str) -> Value {
    let prompt: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % 200).collect();
    json!({
        "model": model, "prompt": prompt, "n_predict": 16, "temperature": 0, "ignore_eos": true,
        "return_tokens": true, "n_probs": 2,
    })
}

/// One of the mixture's counters.
fn counter(server: &Running, name: &str) -> u64 {
    let text = server.get("/metrics").body;
    let head = format!("sluice:{name}{{model_name=\"mixture\",engine=\"0\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&*head));
    value
        .unwrap_or_else(|| panic!("{name}\n{text}"))
        .parse()
        .unwrap()
}

#[test]
fn answers_are_those_of_the_model_in_memory() {
    let asked = |server: &Running| {
        let reply = server.post("/completion", &ask("mixture"));
        assert_eq!(reply.status, 200, "{}", reply.body);
        let reply = reply.json();
        (
            reply["tokens"].clone(),
            reply["completion_probabilities"].clone(),
        )
    };
    let (resident, _) = server(None);
    let resident = Running::start(resident);
    let expected = asked(&resident);
    assert!(!resident.get("/metrics").body.contains("expert_"));
    let (options, lines) = server(Some(half(Simulation::IDEAL)));
    let server = Running::start(options);
    assert_eq!(asked(&server), expected);
    let hits = counter(&server, "expert_cache_hits_total");
    let misses = counter(&server, "expert_cache_misses_total");
    assert!(hits > 0 && misses > 0, "{hits}, {misses}");
    assert!(counter(&server, "expert_cache_evictions_total") > 0);
    let bytes = counter(&server, "expert_read_bytes_total");
    assert!(bytes > 0);
    assert!(counter(&server, "expert_read_seconds_count") > 0);
    assert_eq!(counter(&server, "expert_io_inflight"), 0);
    // The other model replaces it, has no experts, and works all the same.
    assert_eq!(server.post("/completion", &ask("other")).status, 200);
    assert_eq!(counter(&server, "expert_read_bytes_total"), bytes);
    // After it is loaded again, its counts continue.
    assert_eq!(asked(&server), expected);
    assert!(counter(&server, "expert_read_bytes_total") > bytes);
    let lines = lines.lock().unwrap().join("\n");
    for said in [
        "model \"mixture\": experts: ",
        ", read by simulated",
        "model \"mixture\": prompts are processed 512 tokens at a time (-ub)",
        "model \"other\": warning: --expert-cache has no effect: it has neither experts nor cold neurons",
    ] {
        assert!(lines.contains(said), "{said}\n{lines}");
    }
}

#[test]
fn routes_tell_how_experts_are_read() {
    let told = |server: &Running| {
        let start = Instant::now();
        while server.get("/health").status != 200 {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let props = server.get("/props").json();
        assert_eq!(props["model_alias"], "mixture");
        let listed = server.get("/v1/models/mixture").json();
        let [props, listed] = [props, listed["meta"].clone()].map(|all| all["experts"].clone());
        assert_eq!(props, listed);
        props
    };
    let (resident, _) = server(None);
    let resident = Running::start(resident);
    assert_eq!(told(&resident), Value::Null);
    let (options, _) = server(Some(half(Simulation::IDEAL)));
    let server = Running::start(options);
    let before = told(&server);
    assert_eq!(before["io"], "simulated");
    assert_eq!(before["policy"], "aged");
    assert_eq!(before["hit_rate"], Value::Null);
    let number = |all: &Value, name: &str| {
        let found = all[name].as_f64();
        found.unwrap_or_else(|| panic!("{name}: {all}"))
    };
    assert!(number(&before, "n_slots") < number(&before, "n_experts"));
    assert!(number(&before, "cache_bytes") < number(&before, "total_bytes"));
    assert_eq!(server.post("/completion", &ask("mixture")).status, 200);
    let after = told(&server);
    for (name, metric) in [
        ("hits", "cache_hits"),
        ("misses", "cache_misses"),
        ("evictions", "cache_evictions"),
        ("read_bytes", "read_bytes"),
    ] {
        let metric = counter(&server, &format!("expert_{metric}_total"));
        assert_eq!(after[name].as_u64(), Some(metric), "{name}: {after}");
    }
    let [hits, misses, rate] = ["hits", "misses", "hit_rate"].map(|name| number(&after, name));
    assert!((rate - hits / (hits + misses)).abs() < 1e-9, "{after}");
    assert_eq!(after["read_failures"], 0);
    assert!(number(&after, "stall_seconds") >= 0.0);
    // The other model, which has no experts, replaces it.
    assert_eq!(server.post("/completion", &ask("other")).status, 200);
    assert_eq!(
        server.get("/props?model=other").json()["experts"],
        Value::Null
    );
}

#[test]
fn a_drive_that_fails_ends_requests_and_not_the_server() {
    static FAILS: AtomicBool = AtomicBool::new(false);
    let device = Simulation {
        fate: |_, len| match FAILS.load(Ordering::Relaxed) {
            true => Err(5),
            false => Ok(len),
        },
        ..Simulation::IDEAL
    };
    let (options, lines) = server(Some(half(device)));
    let server = Running::start(options);
    let first = server.post("/completion", &ask("mixture")).json();
    FAILS.store(true, Ordering::Relaxed);
    let mut other = ask("mixture");
    other["prompt"] = (0..70)
        .map(|i| (i * 53 + 7) % 200)
        .collect::<Vec<u32>>()
        .into();
    let reply = server.post("/completion", &other);
    assert_eq!(reply.status, 500, "{}", reply.body);
    let error = &reply.json()["error"];
    assert_eq!(error["type"], "server_error");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("an expert of the model could not be read"),
        "{message}"
    );
    assert!(!message.contains(".gguf"), "{message}");
    let embed = server.post(
        "/v1/embeddings",
        &json!({"model": "mixture", "input": [[5, 9, 60, 31]]}),
    );
    assert_eq!(embed.status, 500, "{}", embed.body);
    assert!(counter(&server, "expert_read_failures_total") > 0);
    let said = |what: &str| lines.lock().unwrap().iter().any(|line| line.contains(what));
    assert!(said("a step failed: "), "{:?}", lines.lock().unwrap());
    // The drive is not used for half a second; then everything works as before.
    FAILS.store(false, Ordering::Relaxed);
    let start = Instant::now();
    while server.post("/completion", &other).status != 200 {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::park_timeout(Duration::from_millis(50));
    }
    let again = server.post("/completion", &ask("mixture")).json();
    assert_eq!(again["tokens"], first["tokens"]);
    assert_eq!(server.post("/completion", &other).status, 200);
}

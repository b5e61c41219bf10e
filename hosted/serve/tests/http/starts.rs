//! What is checked before a server listens.

use crate::adapters::{folder, with, write};
use crate::client::{Running, TALE, options, receive};
use core::time::Duration;
use serde_json::json;
use sluice_core::model::{Activation, LongRope};
use sluice_serve::{Listen, ServerConfig};
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

#[test]
fn adapters_that_are_named_are_checked_at_the_start() {
    let folder = folder("start");
    let path = |name: &str| folder.join(name);
    write(&path("good.gguf"), 1, 4);
    write(&path("high.gguf"), 1, 64);
    let whole = std::fs::read(path("good.gguf")).unwrap();
    std::fs::write(path("cut.gguf"), &whole[..whole.len() - 1000]).unwrap();
    std::fs::copy(TALE, path("model.gguf")).unwrap();
    let of = |name: &str| {
        let path = path(&format!("{name}.gguf"));
        Running::refusal(with(
            &[("good", &folder.join("good.gguf")), (name, &path)],
            8,
        ))
    };
    for name in ["missing", "cut", "model", "high"] {
        let said = of(name);
        assert!(
            said.contains(&format!("adapter {name:?}")),
            "{name}: {said}"
        );
    }
    assert!(of("high").contains("--max-lora-rank"));
    // The model of this one is not among those that the server starts with.
    let mut options = with(
        &[
            ("good", &path("good.gguf")),
            ("other's", &path("model.gguf")),
        ],
        8,
    );
    options.models.adapters.named[1].model = Some("other".to_owned());
    assert!(Running::refusal(options).contains("other's"));
    assert_eq!(
        Running::refusal(with(&[("good", &path("good.gguf"))], 8)),
        ""
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_server_listens_at_several_addresses() {
    let mut options = options();
    options.listen = ["127.0.0.1", "127.0.0.2"]
        .map(|host| Listen::new(host, 0))
        .into();
    let server = Running::start(options);
    let all: Vec<_> = server.address().split(", ").collect();
    let ports = all.iter().map(|at| at.rsplit_once(':').unwrap().1);
    let ports: Vec<_> = ports.collect();
    assert!(all.len() == 2 && ports[0] == ports[1], "{all:?}");
    for _ in 0..3 {
        for address in &all {
            let mut stream = TcpStream::connect(address.trim_start_matches("http://")).unwrap();
            stream
                .write_all(b"GET /v1/models HTTP/1.0\r\n\r\n")
                .unwrap();
            assert_eq!(receive(stream).status, 200, "{address}");
        }
    }
}

/// The first line about a model that contains `what`.
fn said_at_the_start(mut options: ServerConfig, what: &str) -> String {
    let (told, said) = mpsc::channel();
    let told = Mutex::new(told);
    options.log = Arc::new(move |line: &str| {
        let _sent = told.lock().unwrap().send(line.to_owned());
    });
    let _server = Running::start(options);
    loop {
        let line = said.recv_timeout(Duration::from_secs(60)).unwrap();
        if line.contains(what) {
            return line;
        }
    }
}

#[test]
fn a_context_longer_than_the_model_knows_is_a_warning() {
    let mut options = options();
    options.models.limits.n_ctx = 1 << 16;
    let line = said_at_the_start(options, "trained on contexts of only 1024 tokens");
    assert!(
        line.contains("-c 65536") && line.contains("\"tale\""),
        "{line}"
    );
}

#[test]
fn options_without_effect_on_a_model_are_warnings() {
    let mut options = options();
    options.models.limits.longrope = LongRope::Long;
    let line = said_at_the_start(options, "--longrope");
    let expected = "warning: --longrope has no effect: it has one set of rotary divisors";
    assert_eq!(line, format!("model \"tale\": {expected}"));
}

/// Its answers, its fingerprint and its cached prompts on disk are another model's.
#[test]
fn another_activation_shares_nothing_with_the_file_s_own() {
    let folder = folder("activation");
    let ask = json!({"prompt": "Once upon a time there was a boat. ".repeat(20), "max_tokens": 8,
        "temperature": 0, "logprobs": 1});
    let answer = |activation: Option<&str>| {
        let mut options = options();
        options.engine.cache_dir = Some(folder.clone());
        options.engine.cache_disk = 64 << 20;
        options.models.activation = activation.map(|name| Activation::parse(name).unwrap());
        let server = Running::start(options);
        let cold = server.post("/v1/completions", &ask).json();
        let fingerprint = cold["system_fingerprint"].as_str().unwrap().to_owned();
        let cached = cold["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        let first = cold["choices"][0]["logprobs"]["token_logprobs"].to_string();
        (fingerprint, cached.unwrap_or(0), first)
    };
    let (own, cached, text) = answer(None);
    assert_eq!(cached, 0);
    let again = answer(None);
    assert!(
        again.0 == own && again.1 > 0 && again.2 == text,
        "{again:?}"
    );
    let (relu, cached, other) = answer(Some("relu"));
    assert_eq!(cached, 0);
    assert!(relu != own && other != text);
    let (same, cached, _) = answer(Some("relu"));
    assert!(same == relu && cached > 0);
    // The file's own by name is the file's own.
    let named = answer(Some("silu"));
    assert!(named.0 == own && named.1 > 0, "{named:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

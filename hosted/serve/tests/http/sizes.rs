//! What is refused by its size, before anything is done with it, and what large requests hold up.

use crate::client::{Running, options};
use core::time::Duration;
use serde_json::{Value, json};
use std::time::Instant;

#[test]
fn a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized() {
    let server = Running::start(options());
    let long = "a b".repeat(5 << 20);
    // Templates have a bound of their own, far above.
    let of_chat = json!([{"role": "user", "content": long[..1 << 20]}]);
    for (path, body) in [
        ("/completion", json!({"prompt": long})),
        ("/completion", json!({"prompt": [1, 2, long]})),
        ("/v1/completions", json!({"prompt": ["Once", long]})),
        ("/v1/chat/completions", json!({"messages": of_chat})),
        ("/v1/embeddings", json!({"input": ["a", long]})),
    ] {
        let begun = Instant::now();
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(error["type"], "exceed_context_size_error", "{error}");
        let said = error["message"].as_str().unwrap();
        assert!(said.contains("bytes") && said.contains("512"), "{said}");
        assert_eq!(error["n_ctx"], 512);
        assert!(error["n_prompt_tokens"].as_u64() > Some(512), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{path}");
    }
}

#[test]
fn arguments_of_past_calls_take_no_more_memory_than_a_body() {
    let server = Running::start(options());
    let chat = |arguments: &str| {
        let function = json!({"name": "f", "arguments": arguments});
        let call = json!({"id": "1", "type": "function", "function": function});
        let messages = json!([
            {"role": "user", "content": "Go."},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "done"},
        ]);
        server.post(
            "/v1/chat/completions",
            &json!({"messages": messages, "max_tokens": 1}),
        )
    };
    let heavy = chat(&format!("{{\"a\": [{}0]}}", "{\"\":0},".repeat(100_000)));
    let param = "messages[1].tool_calls[0].function.arguments";
    assert_eq!(
        (heavy.status, &*heavy.param()),
        (400, param),
        "{}",
        heavy.body
    );
    assert_eq!(chat("{\"a\": 1, \"b\": [{}, {}]}").status, 200);
}

/// A grammar of `n` alternatives, 16 bytes each.
fn alternatives(n: usize) -> String {
    let each = (0..n)
        .map(|i| format!("\"word {i:06}\""))
        .collect::<Vec<_>>();
    format!("root ::= {}", each.join(" |"))
}

#[test]
fn large_grammars_are_refused_by_name_before_they_are_read() {
    let server = Running::start(options());
    let long = alternatives(20_000);
    let schema = json!({"type": "object", "properties": {"a": {"enum": [long]}}});
    let structures = json!([{"begin": "<a>", "schema": schema, "end": "</a>"}]);
    for (field, value) in [
        ("grammar", json!(long)),
        ("json_schema", schema.clone()),
        ("guided_json", json!(schema.to_string())),
        (
            "guided_json",
            json!(format!("{{\"a\": [{}0]}}", "0,".repeat(1 << 20))),
        ),
        ("regex", json!(long)),
        ("guided_choice", json!([long])),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"schema": schema}}),
        ),
        (
            "response_format",
            json!({"type": "structural_tag", "triggers": ["<a>"], "structures": structures}),
        ),
    ] {
        let reply = server.post("/completion", &json!({"prompt": "Once", field: value}));
        reply.is_refused_for(field);
        assert!(reply.body.contains("262144"), "{}", reply.body);
    }
}

#[test]
fn large_grammars_hold_up_no_small_request() {
    let server = Running::start(options());
    let small = json!({"prompt": "Once", "max_tokens": 1});
    assert_eq!(server.post("/completion", &small).status, 200);
    // The largest that are allowed; each is prepared for 0.1 seconds or more.
    let large: Value = json!({"prompt": "Once", "max_tokens": 1, "grammar": alternatives(16_000)});
    let large = large.to_string();
    let waiting: Vec<_> = (0..24)
        .map(|_| server.send("POST /completion HTTP/1.1", &large))
        .collect();
    std::thread::park_timeout(Duration::from_millis(200));
    let begun = Instant::now();
    for _ in 0..5 {
        assert_eq!(server.post("/completion", &small).status, 200);
    }
    let took = begun.elapsed();
    let is_busy = |stream: &std::net::TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0]).is_err()
    };
    let n_busy = waiting.iter().filter(|stream| is_busy(stream)).count();
    assert!(
        n_busy > 0,
        "all of them were prepared before the small requests, which took {took:?}"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
}

//! What clients of llama-server read, as its own tests do (`tests/clients/llama_server`).

use crate::client::{Running, options};
use serde_json::{Value, json};

fn completion(server: &Running, more: &Value) -> Value {
    let mut asked = json!({"prompt": "Once upon", "n_predict": 4, "temperature": 0});
    let fields = more.as_object().unwrap().clone();
    asked.as_object_mut().unwrap().extend(fields);
    let reply = server.post("/completion", &asked);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

#[test]
fn ends_that_are_ignored_are_shown_as_biases() {
    let server = Running::start(options());
    let biases = |more: Value| {
        let reply = completion(&server, &more);
        let settings = &reply["generation_settings"];
        assert_eq!(settings["adaptive_target"], -1.0, "{settings}");
        settings["logit_bias"].as_array().unwrap().clone()
    };
    assert_eq!(biases(json!({})), [json!(null); 0]);
    let ignored = biases(json!({"ignore_eos": true, "logit_bias": [[7, 1.5]]}));
    assert_eq!(ignored[0], json!({"token": 7, "bias": 1.5}));
    assert!(
        ignored.len() > 1 && ignored[1]["bias"].is_null(),
        "{ignored:?}"
    );
}

#[test]
fn a_text_whose_beginning_was_dropped_is_truncated() {
    let mut options = options();
    options.models.limits.n_ctx = 64;
    options.models.context_shift = true;
    let server = Running::start(options);
    let reply = |n: usize| {
        let more = json!({"n_predict": n, "ignore_eos": true, "context_shift": true});
        completion(&server, &more)
    };
    let (short, long) = (reply(30), reply(90));
    assert_eq!(
        (&short["truncated"], &short["stop_type"]),
        (&json!(false), &json!("limit"))
    );
    assert_eq!(long["tokens_predicted"], 90);
    assert_eq!(
        (&long["truncated"], &long["stop_type"]),
        (&json!(true), &json!("limit"))
    );
}

#[test]
fn the_tokens_of_a_conversation_are_counted() {
    let server = Running::start(options());
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1});
    let asked = server.post("/v1/chat/completions", &chat).json();
    for path in [
        "/chat/completions/input_tokens",
        "/v1/chat/completions/input_tokens",
    ] {
        let reply = server.post(path, &chat);
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(
            reply.json()["input_tokens"],
            asked["usage"]["prompt_tokens"]
        );
    }
}

#[test]
fn a_slot_lists_its_next_token() {
    let server = Running::start(options());
    completion(&server, &json!({}));
    let slots = server.get("/slots").json();
    // The first slot may still be shown as it was in its last step.
    assert!(slots[0]["next_token"][0]["n_decoded"].is_u64(), "{slots}");
    let idle = json!([{"has_next_token": false, "n_remain": -1, "n_decoded": 0}]);
    assert_eq!(slots[1]["next_token"], idle, "{slots}");
}

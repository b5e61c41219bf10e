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
fn settings_are_shown_in_as_few_digits_as_they_were_given() {
    let server = Running::start(options());
    completion(&server, &json!({}));
    let params = server.get("/props").json()["default_generation_settings"]["params"].clone();
    for (name, shown) in [
        ("temperature", "0.8"),
        ("top_p", "0.95"),
        ("min_p", "0.05"),
        ("mirostat_eta", "0.1"),
    ] {
        assert_eq!(params[name].to_string(), shown, "{params}");
    }
    let numbers = params
        .as_object()
        .unwrap()
        .values()
        .filter_map(Value::as_f64);
    for number in numbers {
        assert!(number.to_string().len() < 8, "{number}: {params}");
    }
    let more = json!({"temperature": 0.7, "dynatemp_range": 0.3, "logit_bias": [[7, 0.1]]});
    let settings = completion(&server, &more)["generation_settings"].clone();
    for (path, shown) in [
        ("/temperature", "0.7"),
        ("/dynatemp_range", "0.3"),
        ("/logit_bias/0/bias", "0.1"),
    ] {
        assert_eq!(
            settings.pointer(path).unwrap().to_string(),
            shown,
            "{settings}"
        );
    }
    let info = server.post("/api/show", &json!({"model": "tale"})).json()["model_info"].clone();
    let epsilon = &info["llama.attention.layer_norm_rms_epsilon"];
    assert_eq!(epsilon.to_string(), "0.00001", "{info}");
}

#[test]
fn the_timings_of_each_chunk_tell_waiting_from_reading() {
    let server = Running::start(options());
    // Long enough for the difference: the reader gets the first event with the step that read the prompt.
    let prompt = "Once upon a time there was a sea. ".repeat(40);
    let asked = json!({"prompt": prompt, "n_predict": 4, "stream": true, "timings_per_token": true, "temperature": 0});
    let chunks = server.post("/completion", &asked).chunks();
    let timings: Vec<_> = chunks.iter().map(|chunk| &chunk["timings"]).collect();
    let (last, before) = timings.split_last().unwrap();
    assert!(before.len() >= 3, "{chunks:?}");
    for shown in before {
        assert_eq!(shown["queued_ms"], last["queued_ms"], "{chunks:?}");
        let (read, whole) = (
            shown["prompt_ms"].as_f64().unwrap(),
            last["prompt_ms"].as_f64().unwrap(),
        );
        assert!(read > 0.9 * whole, "{chunks:?}");
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

//! What ends a text besides the model: stop tokens and stop texts, but not before the minimum length.

use crate::client::{Running, options};
use serde_json::{Value, json};

fn ask(more: &Value) -> Value {
    let mut ask = json!({
        "prompt": "Once upon a time", "n_predict": 24, "temperature": 0, "return_tokens": true, "n_probs": 1,
        "ignore_eos": true,
    });
    let Value::Object(more) = more else {
        panic!("{more} is not an object");
    };
    ask.as_object_mut().unwrap().extend(more.clone());
    ask
}

fn tokens(reply: &Value) -> Vec<u64> {
    let tokens = reply["tokens"].as_array().unwrap();
    tokens.iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn a_stop_token_ends_the_text_and_is_told_apart_from_it() {
    let server = Running::start(options());
    let whole = server.post("/completion", &ask(&json!({}))).json();
    let all = tokens(&whole);
    assert_eq!(all.len(), 24, "{whole}");
    assert_eq!(whole.get("end_token"), None);
    let at = (1..all.len())
        .find(|&i| !all[..i].contains(&all[i]))
        .unwrap();
    let stop = json!({"stop_token_ids": [all[at], all[at]]});
    let ended = server.post("/completion", &ask(&stop)).json();
    assert_eq!(tokens(&ended), all[..at]);
    assert_eq!(ended["end_token"], all[at], "{ended}");
    assert_eq!(ended["end_token_probability"]["id"], all[at]);
    assert_eq!(ended["stop_type"], "eos");
    let text = whole["content"].as_str().unwrap();
    let before = ended["content"].as_str().unwrap();
    assert!(text.starts_with(before) && before.len() < text.len());
    // A streamed answer reports it in the end event.
    let mut streamed = ask(&stop);
    streamed["stream"] = true.into();
    let chunks = server.post("/completion", &streamed).chunks();
    assert_eq!(chunks.last().unwrap()["end_token"], all[at]);
    let told: Vec<u64> = chunks.iter().flat_map(tokens).collect();
    assert_eq!(told, all[..at]);
    // If it is to be shown, it is an ordinary token.
    let shown = json!({"stop_token_ids": [all[at]], "include_stop_str_in_output": true});
    let shown = server.post("/completion", &ask(&shown)).json();
    assert_eq!(tokens(&shown), all[..=at]);
    assert!(shown["content"].as_str().unwrap().len() > before.len());
}

#[test]
fn a_text_has_at_least_min_tokens() {
    let server = Running::start(options());
    let whole = server.post("/completion", &ask(&json!({}))).json();
    let all = tokens(&whole);
    let stop = json!({"stop_token_ids": [all[1]], "min_tokens": 6});
    let later = server.post("/completion", &ask(&stop)).json();
    let later = tokens(&later);
    assert!(later.len() >= 6, "{later:?}");
    assert!(!later.contains(&all[1]), "{later:?} has {}", all[1]);
    // The model's own end token, made the most likely one from the start.
    let ends =
        json!({"logit_bias": [["<|endoftext|>", 100]], "ignore_eos": false, "min_tokens": 5});
    let reply = server.post("/completion", &ask(&ends)).json();
    assert_eq!(tokens(&reply).len(), 5, "{reply}");
    assert_eq!(reply["stop_type"], "eos");
    assert!(reply["end_token"].is_u64(), "{reply}");
    // Stop texts do not end it earlier, either.
    let text = whole["content"].as_str().unwrap();
    let first = text.split_whitespace().next().unwrap();
    let stopped = server
        .post("/completion", &ask(&json!({"stop": first})))
        .json();
    assert_eq!(stopped["stop_type"], "word");
    let ends = json!({"stop": first, "min_tokens": 3});
    let reply = server.post("/completion", &ask(&ends)).json();
    assert_eq!(tokens(&reply)[..3], all[..3]);
    let shown = json!({"stop": first, "include_stop_str_in_output": true});
    let reply = server.post("/completion", &ask(&shown)).json();
    assert!(reply["content"].as_str().unwrap().ends_with(first));
}

#[test]
fn an_end_behind_text_that_was_held_back_is_no_token_of_it() {
    let server = Running::start(options());
    let mut ends =
        json!({"logit_bias": [["<|endoftext|>", 100]], "ignore_eos": false, "min_tokens": 5});
    let plain = server.post("/completion", &ask(&ends)).json();
    let text = plain["content"].as_str().unwrap();
    // The last word may be the beginning of a stop text, but is not.
    let word = text.split_whitespace().last().unwrap();
    ends["stop"] = format!("{word}zzz").into();
    let held = server.post("/completion", &ask(&ends)).json();
    for name in [
        "content",
        "tokens",
        "end_token",
        "tokens_predicted",
        "stop_type",
    ] {
        assert_eq!(held[name], plain[name], "{name}");
    }
    assert_eq!(tokens(&held).len(), 5);
    ends["stream"] = true.into();
    for path in ["/completion", "/v1/completions", "/v1/chat/completions"] {
        let mut asked = ask(&ends);
        asked["messages"] = json!([{"role": "user", "content": "a"}]);
        asked["stream_options"] = json!({"include_usage": true});
        let chunks = server.post(path, &asked).chunks();
        let last = chunks.last().unwrap();
        let n = [
            &last["usage"]["completion_tokens"],
            &last["tokens_predicted"],
        ];
        assert!(n.iter().any(|n| **n == 5), "{path}: {last}");
        if path == "/completion" {
            let parts = chunks
                .iter()
                .map(|chunk| chunk["content"].as_str().unwrap());
            assert_eq!(parts.collect::<String>(), text);
        }
    }
}

#[test]
fn only_allowed_tokens_are_chosen() {
    let server = Running::start(options());
    let allowed = json!({"allowed_token_ids": [300, 301, 302], "temperature": 1, "seed": 4});
    let reply = server.post("/completion", &ask(&allowed)).json();
    assert!(tokens(&reply).iter().all(|id| (300..=302).contains(id)));
}

#[test]
fn wrong_ends_are_named() {
    let server = Running::start(options());
    for (more, param) in [
        (json!({"stop_token_ids": 3}), "stop_token_ids"),
        (
            json!({"stop_token_ids": [1, 99_999_999]}),
            "stop_token_ids[1]",
        ),
        (json!({"min_tokens": -1}), "min_tokens"),
        (json!({"min_tokens": 25}), "min_tokens"),
        (json!({"allowed_token_ids": []}), "allowed_token_ids"),
        (json!({"skip_special_tokens": 1}), "skip_special_tokens"),
    ] {
        let reply = server.post("/completion", &ask(&more));
        assert_eq!((reply.status, reply.param()), (400, param.into()), "{more}");
    }
}

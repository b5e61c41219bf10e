//! Scores of prompt tokens.

use crate::client::{Running, options};
use serde_json::{Value, json};

/// The logprobs of a completion's first choice.
fn told(reply: &Value) -> &Value {
    &reply["choices"][0]["logprobs"]
}

fn list<'r>(logprobs: &'r Value, name: &str) -> &'r Vec<Value> {
    let found = logprobs[name].as_array();
    found.unwrap_or_else(|| panic!("{name}: {logprobs}"))
}

#[test]
fn a_text_is_as_likely_read_as_written() {
    let server = Running::start(options());
    let written = json!({"prompt": "Once upon a time", "temperature": 0, "n_predict": 20, "ignore_eos": true,
        "return_tokens": true, "n_probs": 3, "prompt_logprobs": 2});
    let written = server.post("/completion", &written).json();
    let prompt = list(&written, "prompt_probabilities");
    assert_eq!(prompt[0], Value::Null);
    let is_ranked = |entry: &Value| {
        let top = list(entry, "top_logprobs");
        let place = top.iter().position(|likely| likely["id"] == entry["id"]);
        top.len() == 2 && place.is_none_or(|place| entry["rank"] == place + 1)
    };
    assert!(prompt.len() > 2 && prompt[1..].iter().all(is_ranked));
    let ids = |all: &[Value]| all.iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
    let first = server
        .post(
            "/tokenize",
            &json!({"content": "Once upon a time", "add_special": true}),
        )
        .json()["tokens"]
        .clone();
    let mut all = first.as_array().unwrap().clone();
    assert_eq!(ids(&prompt[1..]), all[1..]);
    let answer = list(&written, "completion_probabilities");
    all.extend(ids(answer));
    // Known tokens are not read again, and the others get the same bits.
    for (from, n_top) in [(all.len(), 3), (all.len() - 9, 1), (all.len(), 3), (1, 0)] {
        let ask = json!({"prompt": all[..from], "max_tokens": 1, "temperature": 0, "logprobs": n_top, "echo": true});
        let reply = server.post("/v1/completions", &ask).json();
        let logprobs = told(&reply);
        for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(list(logprobs, name).len(), from + 1, "{name}");
        }
        let read = list(logprobs, "token_logprobs");
        assert_eq!(read[0], Value::Null);
        let n_prompt = prompt.len();
        for (i, entry) in prompt.iter().chain(answer).enumerate().take(from).skip(1) {
            assert_eq!(read[i], entry["logprob"], "{i}");
            let top = list(logprobs, "top_logprobs")[i].as_object().unwrap();
            assert!(top.len() <= n_top + 1, "{top:?}");
        }
        assert!(n_prompt < all.len());
    }
}

#[test]
fn each_prompt_and_choice_has_its_own() {
    let server = Running::start(options());
    let ask = |more: &Value| {
        let mut ask = json!({"prompt": ["Once upon a time", "The dog"], "max_tokens": 3, "temperature": 1, "seed": 5,
            "n": 2, "logprobs": 1, "echo": true});
        let Value::Object(more) = more else {
            panic!("{more} is not an object");
        };
        ask.as_object_mut().unwrap().extend(more.clone());
        server.post("/v1/completions", &ask)
    };
    let whole = ask(&json!({})).json();
    let choices = list(&whole, "choices");
    assert_eq!(choices.len(), 4);
    let begins = |at: usize, text: &str| choices[at]["text"].as_str().unwrap().starts_with(text);
    assert!((0..4).all(|at| begins(at, ["Once upon a time", "The dog"][at / 2])));
    let of = |at: usize| list(&choices[at]["logprobs"], "token_logprobs");
    assert_eq!(of(0)[..3], of(1)[..3]);
    assert_ne!(of(0)[1], of(2)[1]);
    let chunks = ask(&json!({"stream": true})).chunks();
    for at in 0..4 {
        let own = chunks
            .iter()
            .filter(|chunk| chunk["choices"][0]["index"] == at);
        let read = own.flat_map(|chunk| list(told(chunk), "token_logprobs").clone());
        assert_eq!(read.collect::<Vec<_>>(), *of(at));
    }
    // An end token that is not shown still has its entry: a client that drops the last entry drops a visible token.
    let ends = json!({"n": 1, "max_tokens": 1, "logit_bias": {"<|endoftext|>": 100}});
    let ended = ask(&ends).json();
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
    let n_prompt = of(0).len() - 3;
    assert_eq!(list(told(&ended), "tokens").len(), n_prompt + 1);
    let wrong = ask(&json!({"logprobs": 1001}));
    assert_eq!((wrong.status, wrong.param()), (400, "logprobs".into()));
    let wrong = json!({"prompt": "a", "prompt_logprobs": -1});
    let wrong = server.post("/completion", &wrong);
    assert_eq!(
        (wrong.status, wrong.param()),
        (400, "prompt_logprobs".into())
    );
}

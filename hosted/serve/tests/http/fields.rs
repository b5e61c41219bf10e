//! Fields of requests that change an answer: honoured, or refused by name.

use crate::client::{Reply, Running, options, until};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn messages() -> Value {
    json!([{"role": "user", "content": "Tell a tale."}])
}

/// A request with these fields and a few that keep it short.
fn ask(fields: &Value) -> Value {
    let mut asked = json!({"max_tokens": 24, "temperature": 0});
    let fields = fields.as_object().unwrap().clone();
    asked.as_object_mut().unwrap().extend(fields);
    asked
}

fn good(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

#[test]
fn slots_are_complete_before_the_first_request() {
    let server = Running::start(options());
    until("not healthy", || server.get("/health").status == 200);
    let slots = good(&server.get("/slots?fail_on_no_slot=1"));
    let ids: Vec<_> = slots
        .as_array()
        .unwrap()
        .iter()
        .map(|slot| &slot["id"])
        .collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

#[test]
fn no_token_is_written_if_none_is_asked_for() {
    let server = Running::start(options());
    let native = json!({"prompt": "Once upon a time", "n_predict": 0, "n_probs": 1, "n": 2});
    for reply in good(&server.post("/completion", &native))
        .as_array()
        .unwrap()
    {
        assert_eq!(reply["content"], "");
        assert_eq!(reply["tokens_predicted"], 0);
        assert_eq!(reply["stop_type"], "limit");
        assert_eq!(reply["timings"]["predicted_n"], 0);
    }
    // The prompt is in the cache then.
    let cached = good(&server.post("/completion", &native))[0]["timings"]["cache_n"].clone();
    assert!(cached.as_u64() > Some(0), "{cached}");
    for more in [
        json!({}),
        json!({"reasoning_budget": 4}),
        json!({"response_format": {"type": "json_object"}}),
    ] {
        let mut asked = ask(&more);
        (asked["messages"], asked["max_tokens"]) = (messages(), 0.into());
        let reply = good(&server.post(CHAT, &asked));
        assert_eq!(reply["choices"][0]["message"]["content"], "");
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
        assert_eq!(reply["usage"]["completion_tokens"], 0);
        asked["stream"] = true.into();
        let chunks = server.post(CHAT, &asked).chunks();
        assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(chunks[1]["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn a_prompt_that_is_only_scored_has_its_own_tokens_alone() {
    let server = Running::start(options());
    let prompt = "Once upon a time there was a dog";
    let tokens = good(&server.post("/tokenize", &json!({"prompt": prompt})))["count"].clone();
    let asked = json!({"prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 1});
    let reply = good(&server.post("/v1/completions", &asked));
    let choice = &reply["choices"][0];
    assert_eq!(choice["text"], prompt);
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let list = choice["logprobs"][name].as_array().unwrap();
        assert_eq!(json!(list.len()), tokens, "{name}");
    }
    assert_eq!(reply["usage"]["completion_tokens"], 0);
}

#[test]
fn the_token_that_ends_a_text_has_a_probability() {
    let server = Running::start(options());
    let asked = json!({"prompt": "Once", "n_predict": 4, "n_probs": 2,
        "logit_bias": [["<|endoftext|>", 100]]});
    let reply = good(&server.post("/completion", &asked));
    let entries = reply["completion_probabilities"].as_array().unwrap();
    assert_eq!((entries.len(), &reply["tokens_predicted"]), (1, &json!(0)));
    assert_eq!(entries[0]["token"], "<|endoftext|>");
    assert_eq!(entries[0]["top_logprobs"].as_array().unwrap().len(), 2);
}

#[test]
fn the_token_that_ends_a_text_is_not_counted_whatever_it_releases() {
    let server = Running::start(options());
    // The token for the end comes after "Once", which a stop text may begin with.
    let mut asked = ask(
        &json!({"prompt": "Tell: ", "grammar": "root ::= \"Once\" | \"Once more\"",
        "logit_bias": [["<|endoftext|>", 100]], "stream_options": {"include_usage": true}}),
    );
    let mut counts = Vec::new();
    for stop in [json!([]), json!(["Once m"])] {
        asked["stop"] = stop;
        let native = good(&server.post("/completion", &asked));
        assert_eq!(
            (&native["content"], &native["stop_type"]),
            (&json!("Once"), &json!("eos"))
        );
        counts.push(native["tokens_predicted"].clone());
        counts.push(native["timings"]["predicted_n"].clone());
        let whole = good(&server.post("/v1/completions", &asked));
        assert_eq!(whole["choices"][0]["text"], "Once");
        counts.push(whole["usage"]["completion_tokens"].clone());
        asked["stream"] = true.into();
        let chunks = server.post("/v1/completions", &asked).chunks();
        let last = chunks.last().unwrap();
        counts.push(last["usage"]["completion_tokens"].clone());
        asked["stream"] = false.into();
    }
    let tokens = good(&server.post("/tokenize", &json!({"content": "Once"})))["tokens"].clone();
    assert_eq!(counts, vec![json!(tokens.as_array().unwrap().len()); 8]);
}

#[test]
fn fields_that_would_change_the_answer_are_refused() {
    let server = Running::start(options());
    for (fields, param) in [
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (json!({"function_call": {"name": "f"}}), "function_call"),
        (json!({"format": "json"}), "format"),
        (json!({"options": {"num_predict": 3}}), "options"),
        (json!({"response_fields": ["content"]}), "response_fields"),
        (json!({"structural_tag": {"a": 1}}), "structural_tag"),
        (
            json!({"continue_final_message": true, "add_generation_prompt": true}),
            "add_generation_prompt",
        ),
        (json!({"lora": [{"id": 0}]}), "lora[0].scale"),
    ] {
        let mut asked = ask(&fields);
        asked["messages"] =
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
        let reply = server.post(CHAT, &asked);
        reply.is_refused_for(param);
    }
    let mut asked = ask(&json!({"messages": messages()}));
    for text in ["b", "c"] {
        let message = json!({"role": "assistant", "content": text});
        asked["messages"].as_array_mut().unwrap().push(message);
    }
    let reply = server.post(CHAT, &asked);
    assert_eq!((reply.status, &*reply.param()), (400, "messages[2]"));
}

#[test]
fn fields_that_change_no_answer_are_accepted() {
    let server = Running::start(options());
    let plain = ask(&json!({"messages": messages()}));
    let expected = good(&server.post(CHAT, &plain))["choices"].clone();
    let more = json!({"prompt_cache_key": "k", "prediction": {"type": "content", "content": "x"},
        "keep_alive": "5m", "store": true, "metadata": {"a": "b"}, "user": "u",
        "safety_identifier": "s", "service_tier": "auto", "functions": [], "function_call": "none",
        "format": "", "options": {}});
    let mut asked = ask(&more);
    asked["messages"] = messages();
    assert_eq!(good(&server.post(CHAT, &asked))["choices"], expected);
}

#[test]
fn a_last_message_continues_as_vllm_asks_for_it() {
    let server = Running::start(options());
    let mut asked = ask(&json!({"continue_final_message": true}));
    asked["messages"] =
        json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "One"}]);
    let expected = good(&server.post(CHAT, &asked))["choices"].clone();
    asked["add_generation_prompt"] = false.into();
    assert_eq!(good(&server.post(CHAT, &asked))["choices"], expected);
}

#[test]
fn grammars_of_other_servers_are_kept_to() {
    let server = Running::start(options());
    let texts = |fields: Value| {
        let mut asked = ask(&fields);
        asked["messages"] = messages();
        let chat = good(&server.post(CHAT, &asked))["choices"][0]["message"]["content"].clone();
        asked["prompt"] = "Once".into();
        let text = good(&server.post("/v1/completions", &asked))["choices"][0]["text"].clone();
        [chat, text].map(|text| text.as_str().unwrap().to_owned())
    };
    let is_code = |text: &str| text.len() == 4 && text.bytes().all(|c| b"xyz/".contains(&c));
    for fields in [
        json!({"structured_outputs": {"regex": "^[xyz/]{4}$"}}),
        json!({"regex": "[xyz/]{4}"}),
        json!({"guided_regex": "[xyz/]{4}"}),
        json!({"ebnf": "root ::= [xyz/]{4}"}),
        json!({"structured_outputs": {"grammar": "root ::= [xyz/]{4}"}}),
    ] {
        for text in texts(fields.clone()) {
            assert!(is_code(&text), "{fields}: {text}");
        }
    }
    let choices = ["a+b (c)", "a|b/\n\"d\"", "\u{e4}\u{1f600}."];
    for text in texts(json!({"structured_outputs": {"choice": choices}})) {
        assert!(choices.contains(&&*text), "{text}");
    }
    for choice in choices {
        for text in texts(json!({"structured_outputs": {"choice": [choice]}})) {
            assert_eq!(text, choice);
        }
    }
    for text in texts(json!({"structured_outputs": {"json": {"enum": [17]}}})) {
        assert_eq!(text, "17");
    }
    let reply = server.post("/v1/completions", &json!({"prompt": "a", "regex": "a("}));
    assert_eq!(
        (reply.status, &*reply.param()),
        (400, "regex"),
        "{}",
        reply.body
    );
}

#[test]
fn each_chunk_counts_its_tokens_if_asked() {
    let server = Running::start(options());
    for path in [CHAT, "/v1/completions"] {
        let mut asked = ask(&json!({"prompt": "Once", "max_tokens": 5, "stream": true, "n": 2}));
        asked["messages"] = messages();
        asked["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let chunks = server.post(path, &asked).chunks();
        let (last, parts) = chunks.split_last().unwrap();
        assert_eq!(last["usage"]["completion_tokens"], 10);
        for index in 0..2 {
            let parts = parts
                .iter()
                .filter(|chunk| chunk["choices"][0]["index"] == index);
            let counts = parts.map(|chunk| {
                assert_eq!(
                    chunk["usage"]["prompt_tokens"],
                    last["usage"]["prompt_tokens"]
                );
                chunk["usage"]["completion_tokens"].as_u64().unwrap()
            });
            let counts: Vec<u64> = counts.collect();
            assert!(
                counts.is_sorted() && counts.last() == Some(&5),
                "{counts:?}"
            );
        }
    }
}

#[test]
fn a_completion_replies_with_the_fields_asked_for() {
    let server = Running::start(options());
    let names = json!(["content", "generation_settings/n_predict", "no/such"]);
    let asked = json!({"prompt": "Once", "n_predict": 3, "response_fields": names});
    let reply = good(&server.post("/completion", &asked));
    assert_eq!(reply.as_object().unwrap().len(), 2, "{reply}");
    assert_eq!(reply["generation_settings/n_predict"], 3);
    assert!(reply["content"].is_string());
}

#[test]
fn an_unknown_name_lists_what_there_is_or_is_answered_anyway() {
    let mut options = options();
    let asked = json!({"model": "gpt-3.5-turbo", "prompt": "Once", "max_tokens": 2});
    let server = Running::start(options.clone());
    let reply = server.post("/v1/completions", &asked);
    assert_eq!((reply.status, &*reply.param()), (404, "model"));
    assert!(
        reply.body.contains("available: tale, other"),
        "{}",
        reply.body
    );
    drop(server);
    options.models.any_name = true;
    let server = Running::start(options);
    let reply = good(&server.post("/v1/completions", &asked));
    assert_eq!(reply["model"], "tale");
    assert_eq!(server.get("/v1/models/gpt-3.5-turbo").status, 404);
}

#[test]
fn an_overflow_has_its_numbers() {
    let server = Running::start(options());
    let long = vec![7; 600];
    for (path, body) in [
        ("/completion", json!({"prompt": long})),
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/embeddings", json!({"input": long})),
    ] {
        let reply = server.post(path, &body);
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["type"]),
            (400, &json!("exceed_context_size_error"))
        );
        assert_eq!(
            (&error["n_prompt_tokens"], &error["n_ctx"]),
            (&json!(600), &json!(512))
        );
    }
}

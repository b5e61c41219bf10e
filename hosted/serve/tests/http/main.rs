//! The routes, tested over a socket, with the small built-in model.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod adapters;
mod anthropic;
mod bodies;
mod browsers;
mod client;
mod dialects;
mod ends;
mod experts;
mod fields;
mod inputs;
mod keys;
mod limits;
mod lists;
mod llama;
mod loads;
mod ollama;
mod ollama_pull;
mod page;
mod responses;
mod resume;
mod scores;
mod shares;
mod sizes;
mod slots;
mod sparse;
#[path = "../../../pull/tests/stand_in/mod.rs"]
mod stand_in;
mod starts;
mod turns;
mod typed;
mod views;
mod vision;

use client::{Running, options, until};
use serde_json::{Value, json};

fn text_of(reply: &Value) -> &str {
    reply["choices"][0]["text"].as_str().unwrap()
}

#[test]
fn the_same_seed_gives_the_same_text_whole_and_as_a_stream() {
    let server = Running::start(options());
    let mut ask = json!({"prompt": "Once upon a time", "max_tokens": 12, "seed": 7, "logprobs": 2});
    let whole = server.post("/v1/completions", &ask);
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    assert_eq!(whole["seed"], 7);
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let tokens = whole["choices"][0]["logprobs"]["tokens"]
        .as_array()
        .unwrap();
    assert_eq!(tokens.len(), 12);
    ask["stream"] = true.into();
    ask["stream_options"] = json!({"include_usage": true});
    let stream = server.post("/v1/completions", &ask);
    assert!(
        stream.head.contains("content-type: text/event-stream"),
        "{}",
        stream.head
    );
    assert!(stream.body.ends_with("data: [DONE]\n\n"), "{}", stream.body);
    let chunks = stream.chunks();
    let (last, parts) = chunks.split_last().unwrap();
    let text: String = parts.iter().map(text_of).collect();
    assert_eq!(text, text_of(&whole));
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"]["prompt_tokens"],
        whole["usage"]["prompt_tokens"]
    );
    assert_eq!(last["system_fingerprint"], whole["system_fingerprint"]);
    // llama-server's own route gives the same answer.
    ask["stream"] = false.into();
    ask["n_predict"] = 12.into();
    let native = server.post("/completion", &ask).json();
    assert_eq!(native["content"], text_of(&whole));
    assert_eq!(native["stop_type"], "limit");
    assert_eq!(native["timings"]["predicted_n"], 12);
}

#[test]
fn a_chat_comes_in_chunks_that_begin_with_the_role() {
    let server = Running::start(options());
    let ask = json!({
        "messages": [{"role": "user", "content": "Tell a tale."}],
        "max_tokens": 6, "n": 2, "seed": 3, "logprobs": true, "top_logprobs": 2,
    });
    let whole = server.post("/v1/chat/completions", &ask).json();
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    assert_ne!(
        choices[0]["message"]["content"],
        choices[1]["message"]["content"]
    );
    let entries = choices[0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(entries.len(), 6);
    assert_eq!(entries[0]["top_logprobs"].as_array().unwrap().len(), 2);
    let mut streamed = ask.clone();
    streamed["stream"] = true.into();
    let chunks = server.post("/v1/chat/completions", &streamed).chunks();
    for (at, choice) in choices.iter().enumerate() {
        let of_choice = chunks.iter().map(|chunk| &chunk["choices"][0]);
        let of_choice: Vec<_> = of_choice.filter(|choice| choice["index"] == at).collect();
        assert_eq!(of_choice[0]["delta"]["role"], "assistant");
        let text: String = of_choice
            .iter()
            .filter_map(|choice| choice["delta"]["content"].as_str())
            .collect();
        assert_eq!(text, choice["message"]["content"].as_str().unwrap());
        assert_eq!(of_choice.last().unwrap()["finish_reason"], "length");
    }
}

#[test]
fn an_answer_keeps_to_a_schema() {
    let server = Running::start(options());
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    let ask = json!({
        "messages": [{"role": "user", "content": "x or y?"}],
        "max_tokens": 60, "temperature": 0, "response_format": format,
    });
    let reply = server.post("/v1/chat/completions", &ask).json();
    let content = reply["choices"][0]["message"]["content"].as_str().unwrap();
    let answer: Value = serde_json::from_str(content).unwrap_or_else(|e| panic!("{e}: {reply}"));
    assert!(answer["a"] == "x" || answer["a"] == "y", "{answer}");
}

#[test]
fn models_that_cannot_shift_say_so() {
    let mut options = options();
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/models/qwen35.gguf"
    );
    options.models.named.truncate(1);
    options.models.named[0].path = path.into();
    options.models.context_shift = true;
    options.defaults.context_shift = true;
    options.models.limits.n_ctx = 64;
    let server = Running::start(options);
    let asked = json!({"prompt": "Hello", "context_shift": true});
    let reply = server.post("/completion", &asked);
    assert_eq!((reply.status, reply.param()), (400, "context_shift".into()));
    // The server's default ends the text when the context is full.
    let asked = json!({"prompt": "Hello", "n_predict": 200, "ignore_eos": true});
    let reply = server.post("/completion", &asked).json();
    assert_eq!(reply["truncated"], json!(true), "{reply}");
    assert_eq!(reply["stop_type"], json!("limit"));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn what_is_wrong_is_named() {
    let server = Running::start(options());
    let message = json!([{"role": "user", "content": "x"}]);
    for (path, body, status, param) in [
        (
            "/v1/chat/completions",
            json!({"messages": message, "top_p": 2}),
            400,
            "top_p",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": []}),
            400,
            "messages",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": message, "n": 999}),
            400,
            "n",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": message, "model": "gpt"}),
            404,
            "model",
        ),
        (
            "/v1/completions",
            json!({"prompt": "x", "best_of": 3}),
            400,
            "best_of",
        ),
        (
            "/v1/completions",
            json!({"prompt": [1, 99999]}),
            400,
            "prompt[1]",
        ),
        (
            "/v1/completions",
            json!({"prompt": "x", "suffix": "y"}),
            400,
            "suffix",
        ),
        (
            "/v1/completions",
            json!({"prompt": "x", "grammar": "root ::= ("}),
            400,
            "grammar",
        ),
        ("/v1/embeddings", json!({"input": []}), 400, "input"),
        ("/v1/rerank", json!({"query": "q"}), 400, "model"),
        ("/nothing", json!({}), 404, ""),
        ("/health", json!({}), 405, ""),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(
            (reply.status, &*reply.param()),
            (status, param),
            "{path} {}",
            reply.body
        );
        assert!(reply.head.contains("x-request-id: req-"), "{}", reply.head);
    }
    let long = "word ".repeat(2000);
    let reply = server.post("/v1/completions", &json!({"prompt": long}));
    assert_eq!(reply.status, 400);
    assert!(
        reply.body.contains("exceed_context_size_error"),
        "{}",
        reply.body
    );
}

#[test]
fn vectors_have_length_1_in_both_encodings() {
    let server = Running::start(options());
    let reply = server
        .post("/v1/embeddings", &json!({"input": ["a dog", "a cat"]}))
        .json();
    for (at, entry) in reply["data"].as_array().unwrap().iter().enumerate() {
        assert_eq!(entry["index"], at);
        let vector: Vec<f64> = serde_json::from_value(entry["embedding"].clone()).unwrap();
        let length: f64 = vector.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    let ask = json!({"input": "a dog", "encoding_format": "base64", "dimensions": 6});
    let reply = server.post("/v1/embeddings", &ask).json();
    assert_eq!(reply["data"][0]["embedding"].as_str().unwrap().len(), 32);
}

#[test]
fn documents_are_ranked() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/embed/bert-rank.gguf"
    );
    let mut asked = options();
    asked.models.named.push(sluice_serve::NamedModel {
        alias: Some("ranker".to_owned()),
        path: file.into(),
    });
    let server = Running::start(asked);
    let documents = json!(["a cat slept", "the sea was calm", {"text": "12 boats!"}]);
    let mut ask = json!({"model": "ranker", "query": "the sea", "documents": documents});
    let all = server.post("/v1/rerank", &ask);
    assert_eq!(all.status, 200, "{}", all.body);
    let all = all.json();
    let results = all["results"].as_array().unwrap();
    let score = |i: usize| results[i]["relevance_score"].as_f64().unwrap();
    assert!(results.len() == 3 && score(0) >= score(1) && score(1) >= score(2));
    assert_eq!(
        (&all["model"], &all["object"]),
        (&json!("ranker"), &json!("list"))
    );
    assert_eq!(all["usage"]["prompt_tokens"], all["usage"]["total_tokens"]);
    ask["top_n"] = 1.into();
    ask["return_documents"] = true.into();
    let best = server.post("/rerank", &ask).json();
    assert_eq!(best["results"].as_array().unwrap().len(), 1);
    assert_eq!(best["results"][0]["index"], results[0]["index"]);
    assert!(best["results"][0]["document"]["text"].is_string());
    let ask = json!({"model": "ranker", "query": "the sea", "texts": ["a cat slept", "the sea was calm"]});
    let tei = server.post("/rerank", &ask).json();
    assert_eq!(tei.as_array().unwrap().len(), 2);
    assert!(tei[0]["score"].as_f64() >= tei[1]["score"].as_f64());
    for (name, body, param) in [
        ("tale", json!({"query": "a", "documents": ["b"]}), "model"),
        ("ranker", json!({"documents": ["b"]}), "query"),
        ("ranker", json!({"query": "a"}), "documents"),
        (
            "ranker",
            json!({"query": "a", "documents": [3]}),
            "documents[0]",
        ),
        (
            "ranker",
            json!({"query": "a", "documents": ["b"], "top_n": 0}),
            "top_n",
        ),
    ] {
        let mut body = body;
        body["model"] = name.into();
        let reply = server.post("/v1/rerank", &body);
        reply.is_refused_for(param);
    }
}

#[test]
fn models_are_listed_as_llama_server_and_codex_read_them() {
    let server = Running::start(options());
    until("not healthy", || server.get("/health").status == 200);
    let all = server.get("/v1/models").json();
    let models = all["models"].as_array().unwrap();
    assert_eq!(models.len(), all["data"].as_array().unwrap().len());
    let tale = models.iter().find(|model| model["slug"] == "tale").unwrap();
    assert_eq!(tale["name"], tale["model"]);
    assert_eq!(tale["capabilities"], json!(["completion"]));
    assert_eq!(tale["details"]["format"], "gguf");
    assert_eq!(tale["context_window"], 512);
    assert_eq!(tale["apply_patch_tool_type"], "freeform");
    assert_eq!(tale["visibility"], "list");
}

#[test]
fn models_take_each_others_place() {
    let server = Running::start(options());
    // The first model is loaded at the start, regardless of earlier requests.
    until("not healthy", || server.get("/health").status == 200);
    let state = |name: &str| {
        let all = server.get("/v1/models").json();
        let mut all = all["data"].as_array().unwrap().clone().into_iter();
        all.find(|model| model["id"] == name).unwrap()["status"]["value"].clone()
    };
    for (name, other) in [("other", "tale"), ("tale", "other")] {
        let ask = json!({"model": name, "prompt": "Once", "max_tokens": 2});
        let reply = server.post("/v1/completions", &ask);
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.json()["model"], name);
        assert_eq!(
            (state(name), state(other)),
            (json!("loaded"), json!("unloaded"))
        );
    }
}

#[test]
fn the_state_can_be_asked_for() {
    let server = Running::start(options());
    let ask = json!({"prompt": "Once", "max_tokens": 3});
    assert_eq!(server.post("/v1/completions", &ask).status, 200);
    assert_eq!(server.get("/health").json(), json!({"status": "ok"}));
    assert_eq!(server.get("/props").json()["total_slots"], 4);
    assert_eq!(server.get("/slots").json().as_array().unwrap().len(), 4);
    let metrics = server.get("/metrics").body;
    assert!(
        metrics.contains("sluice:generation_tokens_total{model_name=\"tale\",engine=\"0\"} 3"),
        "{metrics}"
    );
    let tokens = server
        .post("/tokenize", &json!({"content": "a dog"}))
        .json();
    let text = server.post("/detokenize", &tokens).json();
    assert_eq!(text["content"], "a dog");
}

#[test]
fn tokens_as_clients_of_vllm_ask_for_them() {
    let server = Running::start(options());
    let info = server.get("/tokenizer_info").json();
    let eos = info["eos_token"].as_str().unwrap();
    let ask = json!({"prompt": eos, "add_special_tokens": false});
    let found = server.post("/tokenize", &ask).json();
    assert_eq!(found["count"], 1, "{found}");
    let with_bos = server.post("/tokenize", &json!({"prompt": "a dog"})).json();
    let plain = server
        .post("/tokenize", &json!({"content": "a dog"}))
        .json();
    let (with_bos, plain) = (&with_bos["tokens"], plain["tokens"].as_array().unwrap());
    assert_eq!(with_bos.as_array().unwrap()[1..], plain[..]);
    let text = server.post("/detokenize", &json!({"tokens": plain})).json();
    assert_eq!(text["prompt"], "a dog");
}

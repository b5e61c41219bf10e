//! Texts in all the forms that llama-server takes, and what its clients read in addition to an answer.

use crate::client::{Running, options};
use serde_json::{Value, json};

#[test]
fn prompts_may_be_objects() {
    let server = Running::start(options());
    let ask = |prompt: &Value| {
        let body = json!({"prompt": prompt, "n_predict": 6, "seed": 3});
        let reply = server.post("/completion", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    };
    let plain = ask(&json!("Once upon"));
    let object = ask(&json!({"prompt_string": "Once upon"}));
    assert_eq!(object["content"], plain["content"]);
    let both = ask(&json!(["Once upon", {"prompt_string": "Once upon"}]));
    assert_eq!(both[1]["content"], plain["content"]);
    for (prompt, param) in [
        (
            json!({"prompt_string": "x", "multimodal_data": ["AA=="]}),
            "prompt.multimodal_data",
        ),
        (
            json!(["x", {"prompt_string": 3}]),
            "prompt[1].prompt_string",
        ),
        (json!({"text": "x"}), "prompt"),
    ] {
        let reply = server.post("/completion", &json!({"prompt": prompt}));
        reply.is_refused_for(param);
    }
}

#[test]
fn texts_to_embed_may_be_mixed() {
    let server = Running::start(options());
    let ask = |input: &Value| {
        let reply = server.post("/v1/embeddings", &json!({"input": input}));
        assert_eq!(reply.status, 200, "{input}: {}", reply.body);
        let reply = reply.json();
        let data = reply["data"].as_array().unwrap().iter();
        data.map(|entry| entry["embedding"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(ask(&json!([12, 34, "string", 56])).len(), 1);
    let all = ask(&json!([
        "a dog",
        [12, 34],
        [12, "string", 34],
        {"prompt_string": "a dog"},
        {"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "dog"}]},
    ]));
    assert_eq!(all.len(), 5);
    assert!(all[3] == all[0] && all[4] == all[0] && all[1] != all[2]);
    assert_eq!(ask(&json!({"prompt_string": "a dog"})), all[..1]);
    for (input, param) in [
        (json!([{"content": "a"}]), "input[0]"),
        (
            json!({"content": [{"type": "image_url"}]}),
            "input.content[0]",
        ),
        (json!(["a", [99_999_999]]), "input[1][0]"),
    ] {
        let reply = server.post("/v1/embeddings", &json!({"input": input}));
        reply.is_refused_for(param);
    }
}

#[test]
fn progress_begins_before_anything_is_read() {
    let server = Running::start(options());
    let prompt = "Once upon a time there was a small dog. ".repeat(8);
    for (path, n_cached) in [("/completion", Some(0)), ("/v1/completions", None)] {
        let body = json!({
            "prompt": prompt, "max_tokens": 2, "stream": true, "return_progress": true,
        });
        let chunks = server.post(path, &body).chunks();
        let told = chunks
            .iter()
            .filter_map(|chunk| chunk.get("prompt_progress"));
        let told: Vec<_> = told.collect();
        let (first, last) = (told[0], told.last().unwrap());
        assert_eq!(first["processed"], first["cache"], "{first}");
        assert!(
            first["processed"].as_u64() < first["total"].as_u64(),
            "{first}"
        );
        assert!(n_cached.is_none_or(|n| first["cache"] == n), "{first}");
        assert_eq!(last["processed"], last["total"], "{last}");
        assert!(chunks[0].get("prompt_progress").is_some());
    }
}

#[test]
fn probabilities_after_sampling_are_those_that_tokens_are_drawn_with() {
    let server = Running::start(options());
    let mut ask = json!({
        "prompt": "Once upon a time", "n_predict": 6, "seed": 5, "n_probs": 8,
        "samplers": ["top_k", "temperature"], "top_k": 3, "temperature": 1.5,
    });
    let before = server.post("/completion", &ask).json();
    ask["post_sampling_probs"] = true.into();
    let after = server.post("/completion", &ask).json();
    assert_eq!(after["content"], before["content"]);
    for entry in after["completion_probabilities"].as_array().unwrap() {
        let prob = |entry: &Value| entry["prob"].as_f64().unwrap();
        let top = entry["top_probs"].as_array().unwrap();
        assert_eq!(top.len(), 3, "{entry}");
        let sum: f64 = top.iter().map(prob).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{entry}");
        assert!(
            top.iter()
                .any(|other| other["id"] == entry["id"] && other["prob"] == entry["prob"])
        );
        assert!(entry.get("logprob").is_none() && top[0].get("logprob").is_none());
    }
    ask["temperature"] = 0.into();
    let greedy = server.post("/completion", &ask).json();
    assert_eq!(greedy["completion_probabilities"][0]["prob"], 1.0);
    ask["mirostat"] = 2.into();
    for (path, body) in [
        ("/completion", ask),
        (
            "/v1/completions",
            json!({"prompt": "x", "post_sampling_probs": true}),
        ),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(
            (reply.status, &*reply.param()),
            (400, "post_sampling_probs")
        );
    }
}

#[test]
fn metrics_say_when_the_server_started() {
    let server = Running::start(options());
    let head = server.get("/metrics").head;
    let line = head
        .lines()
        .find_map(|line| line.strip_prefix("process-start-time-unix: "));
    let started: u64 = line.unwrap().trim().parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    assert!((now.unwrap().as_secs() - started) < 600, "{started}");
}

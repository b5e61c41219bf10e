//! Ollama's API over a socket.

use crate::client::{Reply, Running, options, receive, until};
use serde_json::{Value, json};
use sluice_serve::NamedModel;
use std::sync::{Arc, Mutex};

fn ask(more: &Value) -> Value {
    let mut ask = json!({"model": "tale", "stream": false, "options": {"num_predict": 12, "temperature": 0},
        "messages": [{"role": "user", "content": "Tell a tale."}]});
    let more = more.as_object().unwrap().clone();
    ask.as_object_mut().unwrap().extend(more);
    ask
}

/// The lines of a stream; only the last one is done.
fn lines(reply: &Reply) -> Vec<Value> {
    let kind = "content-type: application/x-ndjson";
    assert!(reply.head.contains(kind), "{}: {}", reply.head, reply.body);
    assert!(reply.body.ends_with('\n'));
    let lines = reply.body.lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let n_done = lines.iter().filter(|line| line["done"] == true).count();
    assert!(n_done == 1 && lines.last().unwrap()["done"] == true);
    lines
}

fn joined(lines: &[Value], pointer: &str) -> String {
    let texts = lines.iter().map(|line| line.pointer(pointer));
    texts.filter_map(|text| text?.as_str()).collect()
}

fn error_of(reply: &Reply) -> String {
    reply.json()["error"].as_str().unwrap().to_owned()
}

#[test]
fn a_conversation_has_the_text_of_openai_s_route_whole_and_as_a_stream() {
    let server = Running::start(options());
    let options = json!({"num_predict": 12, "temperature": 1.0, "seed": 5});
    let messages = json!([
        {"role": "system", "content": "You tell tales."}, {"role": "user", "content": "Tell a tale."},
    ]);
    let more = json!({"options": options, "messages": messages});
    let whole = server.post("/api/chat", &ask(&more));
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    let chat = server.post(
        "/v1/chat/completions",
        &json!({"max_tokens": 12, "temperature": 1.0, "seed": 5, "messages": messages}),
    );
    let chat = chat.json();
    let text = &chat["choices"][0]["message"]["content"];
    assert_eq!(
        whole["message"],
        json!({"role": "assistant", "content": text})
    );
    assert_eq!(
        (&whole["done_reason"], &whole["eval_count"]),
        (&json!("length"), &json!(12))
    );
    assert_eq!(whole["prompt_eval_count"], chat["usage"]["prompt_tokens"]);
    for name in [
        "total_duration",
        "load_duration",
        "prompt_eval_duration",
        "eval_duration",
    ] {
        assert!(whole[name].is_u64(), "{name}: {whole}");
    }
    let parts = ["prompt_eval_duration", "eval_duration"].map(|name| whole[name].as_u64().unwrap());
    assert!(whole["total_duration"].as_u64().unwrap() >= parts.iter().sum::<u64>());
    let mut streamed = ask(&more);
    // A stream is the usual answer.
    streamed.as_object_mut().unwrap().remove("stream");
    let lines = lines(&server.post("/api/chat", &streamed));
    assert_eq!(joined(&lines, "/message/content"), *text);
    assert!(lines.len() > 6);
    let last = lines.last().unwrap();
    assert_eq!(last["done_reason"], "length");
    assert_eq!(last["prompt_eval_count"], whole["prompt_eval_count"]);
    // A prompt is a conversation of one message.
    let mut prompt =
        json!({"model": "tale:latest", "system": "You tell tales.", "prompt": "Tell a tale."});
    prompt["options"] = more["options"].clone();
    let lines = self::lines(&server.post("/api/generate", &prompt));
    assert_eq!(joined(&lines, "/response"), *text);
    assert_eq!(lines[0]["model"], "tale:latest");
    // As it is, it is a text to continue.
    let raw = json!({"model": "tale", "prompt": "Once upon a time", "raw": true, "stream": false,
        "options": {"num_predict": 12, "seed": 7}});
    let raw = server.post("/api/generate", &raw).json();
    let ask = json!({"prompt": "Once upon a time", "max_tokens": 12, "seed": 7});
    let completion = server.post("/v1/completions", &ask).json();
    assert_eq!(raw["response"], completion["choices"][0]["text"]);
}

fn tide() -> Value {
    json!({"type": "function", "function": {"name": "tide", "parameters": {"type": "object",
        "properties": {"at": {"enum": ["noon", "dawn"]}}, "required": ["at"]}}})
}

#[test]
fn calls_are_objects_both_ways() {
    let server = Running::start(options());
    let choice = json!({"type": "function", "function": {"name": "tide"}});
    let settings = json!({"num_predict": 160, "temperature": 0});
    let more = json!({"tools": [tide()], "tool_choice": choice, "options": settings});
    let whole = server.post("/api/chat", &ask(&more)).json();
    let calls = whole["message"]["tool_calls"].as_array().unwrap();
    let call = &calls[0];
    assert_eq!(call["function"]["name"], "tide", "{whole}");
    let at = &call["function"]["arguments"]["at"];
    assert!(at == "noon" || at == "dawn", "{whole}");
    assert!(call["id"].is_string() && call["function"]["index"] == 0);
    let mut streamed = ask(&more);
    streamed["stream"] = true.into();
    let lines = lines(&server.post("/api/chat", &streamed));
    let of = |line: &Value| line["message"]["tool_calls"].as_array().cloned();
    let streamed: Vec<Value> = lines.iter().filter_map(of).flatten().collect();
    assert_eq!(streamed[0]["function"], call["function"]);
    // Results come back with ids, with names, or with nothing.
    let result = |more: Value| {
        let mut message = json!({"role": "tool", "content": "low"});
        let more = more.as_object().unwrap().clone();
        message.as_object_mut().unwrap().extend(more);
        message
    };
    for result in [
        result(json!({"tool_call_id": call["id"]})),
        result(json!({"tool_name": "tide"})),
        result(json!({})),
    ] {
        let made = json!({"role": "assistant", "content": "", "tool_calls": [{"function":
            {"name": "tide", "arguments": {"at": "noon"}}}]});
        let messages = json!([{"role": "user", "content": "How high?"}, made, result]);
        let reply = server.post("/api/chat", &ask(&json!({"messages": messages})));
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
}

#[test]
fn a_format_is_kept_and_likely_tokens_are_shown() {
    let server = Running::start(options());
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"], "additionalProperties": false});
    let settings = json!({"num_predict": 60, "temperature": 0});
    let more = json!({"format": schema, "options": settings});
    let reply = server.post("/api/chat", &ask(&more)).json();
    let content = reply["message"]["content"].as_str().unwrap();
    let answer: Value = serde_json::from_str(content).unwrap();
    assert!(answer["a"] == "x" || answer["a"] == "y", "{answer}");
    assert_eq!(reply["done_reason"], "stop");
    let more = json!({"format": "json", "prompt": "JSON!", "options": settings});
    let reply = server.post("/api/generate", &ask(&more)).json();
    assert!(
        reply["response"].as_str().unwrap().starts_with('{'),
        "{reply}"
    );
    let more = json!({"logprobs": true, "top_logprobs": 2});
    let whole = server.post("/api/chat", &ask(&more)).json();
    let entries = whole["logprobs"].as_array().unwrap();
    assert_eq!(entries.len(), 12);
    assert_eq!(entries[0]["top_logprobs"].as_array().unwrap().len(), 2);
    let mut streamed = ask(&more);
    streamed["stream"] = true.into();
    let lines = lines(&server.post("/api/chat", &streamed));
    let of = |line: &Value| line["logprobs"].as_array().cloned();
    let streamed: Vec<Value> = lines.iter().filter_map(of).flatten().collect();
    assert_eq!(&streamed, entries);
}

#[test]
fn thinking_is_refused_by_a_model_without_it() {
    let server = Running::start(options());
    let reply = server.post("/api/chat", &ask(&json!({"think": true})));
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert_eq!(error_of(&reply), "think: tale does not support thinking");
    let reply = server.post("/api/chat", &ask(&json!({"think": false})));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let mut options = options();
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if enable_thinking %}<think>{% endif %}";
    options.models.chat_template = Some(template.to_owned());
    let server = Running::start(options);
    let reply = server
        .post("/api/chat", &ask(&json!({"think": "high"})))
        .json();
    let message = &reply["message"];
    assert!(!message["thinking"].as_str().unwrap().is_empty(), "{reply}");
    assert_eq!(message["content"], "");
    let can = server.post("/api/show", &json!({"model": "tale"})).json();
    assert_eq!(can["capabilities"], json!(["completion", "thinking"]));
}

#[test]
fn what_is_left_out_is_said() {
    let log = Arc::new(Mutex::new(Vec::<String>::new()));
    let mut options = options();
    let lines = Arc::clone(&log);
    options.log = Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()));
    let server = Running::start(options);
    let said = |words: &str| log.lock().unwrap().iter().any(|line| line.contains(words));
    let long = "word ".repeat(300);
    let turn = |role: &str| json!({"role": role, "content": long});
    let messages = json!([{"role": "system", "content": "Be brief."}, turn("user"), turn("assistant"),
        {"role": "user", "content": "And now?"}]);
    let more = json!({"messages": messages, "options": {"num_predict": 4, "num_ctx": 8192}});
    for (truncate, status) in [(json!(null), 400), (json!(false), 400), (json!(true), 200)] {
        let mut body = ask(&more);
        body["truncate"] = truncate;
        let reply = server.post("/api/chat", &body);
        assert_eq!(reply.status, status, "{}", reply.body);
        let header = "x-sluice-truncated: messages=2";
        assert_eq!(reply.head.contains(header), status == 200, "{}", reply.head);
        if status == 400 {
            assert!(error_of(&reply).contains("context"), "{}", reply.body);
        }
    }
    until("the log does not say it", || {
        said(" POST /api/chat 200 ") && said("num_ctx 8192 exceeds the context of 512 tokens")
    });
    let input = json!({"model": "tale", "input": ["a dog", "word ".repeat(700)]});
    let reply = server.post("/api/embed", &input);
    assert_eq!(reply.status, 400);
    let mut input = input;
    input["truncate"] = true.into();
    let reply = server.post("/api/embed", &input);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(reply.head.contains("x-sluice-truncated: inputs=1"));
    let n_tokens = reply.json()["prompt_eval_count"].as_u64().unwrap();
    assert!((512..600).contains(&n_tokens), "{n_tokens}");
    let more = json!({"options": {"num_predict": 1, "wings": 2}});
    server.post("/api/chat", &ask(&more));
    assert!(said("options without effect: wings"));
}

#[test]
fn vectors_have_length_1_and_old_ones_are_as_they_are() {
    let mut asked = options();
    asked.models.max = 2;
    asked.models.named.push(NamedModel {
        alias: Some("encoder".to_owned()),
        path: concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/embed/tiny-bert-f16.gguf"
        )
        .into(),
    });
    let server = Running::start(asked);
    let ask = json!({"model": "encoder", "input": ["a dog", "a cat"]});
    let reply = server.post("/api/embed", &ask).json();
    let vectors: Vec<Vec<f64>> = serde_json::from_value(reply["embeddings"].clone()).unwrap();
    assert_eq!((vectors.len(), &reply["model"]), (2, &json!("encoder")));
    let length = |vector: &[f64]| vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    assert!((length(&vectors[0]) - 1.0).abs() < 1e-5);
    assert!(reply["prompt_eval_count"].as_u64().unwrap() > 4);
    assert!(reply["load_duration"].as_u64() <= reply["total_duration"].as_u64());
    let single = json!({"model": "encoder:latest", "prompt": "a dog"});
    let single = server.post("/api/embeddings", &single).json();
    let raw: Vec<f64> = serde_json::from_value(single["embedding"].clone()).unwrap();
    let scaled = raw.iter().map(|x| x / length(&raw));
    assert!(scaled.zip(&vectors[0]).all(|(a, b)| (a - b).abs() < 1e-5));
    let cut = json!({"model": "encoder", "input": "a dog", "dimensions": 4});
    let cut = server.post("/api/embed", &cut).json();
    assert_eq!(cut["embeddings"][0].as_array().unwrap().len(), 4);
    // Without texts the model is loaded.
    let none = server.post("/api/embed", &json!({"model": "encoder", "input": []}));
    assert_eq!(none.json()["embeddings"], json!([]), "{}", none.body);
    let none = server.post("/api/embeddings", &json!({"model": "encoder"}));
    assert_eq!(none.json(), json!({"embedding": []}));
    let can = server
        .post("/api/show", &json!({"model": "encoder"}))
        .json();
    assert_eq!(can["capabilities"], json!(["embedding"]));
}

#[test]
fn models_are_listed_and_shown() {
    let server = Running::start(options());
    until("not healthy", || server.get("/health").status == 200);
    let tags = server.get("/api/tags").json();
    let tale = &tags["models"][0];
    assert_eq!(
        (&tale["name"], &tale["model"]),
        (&json!("tale:latest"), &json!("tale:latest"))
    );
    assert_eq!(tale["digest"].as_str().unwrap().len(), 64);
    assert!(tale["size"].as_u64().unwrap() > 3_000_000);
    let details = &tale["details"];
    for (name, value) in [
        ("format", json!("gguf")),
        ("family", json!("llama")),
        ("families", json!(["llama"])),
        ("parameter_size", json!("5.77M")),
        ("quantization_level", json!("Q4_K")),
        ("context_length", json!(1024)),
        ("embedding_length", json!(256)),
    ] {
        assert_eq!(details[name], value, "{name}");
    }
    let show = server.post("/api/show", &json!({"model": "tale"})).json();
    let info = show["model_info"].as_object().unwrap();
    assert_eq!(info["general.architecture"], "llama");
    // As much as the server takes.
    assert_eq!(info["llama.context_length"], 512);
    assert!(info.values().all(|value| !value.is_null()), "{show}");
    assert_eq!(info["tokenizer.ggml.tokens"], json!([]));
    assert_eq!(show["capabilities"], tale["capabilities"]);
    assert!(show["template"].as_str().unwrap().contains("<|im_start|>"));
    assert!(
        show["modelfile"]
            .as_str()
            .unwrap()
            .starts_with("FROM tale\n")
    );
    assert!(show["parameters"].as_str().unwrap().contains("temperature"));
    assert!(show.get("tensors").is_none());
    let verbose = json!({"name": "tale:latest", "verbose": true});
    let verbose = server.post("/api/show", &verbose).json();
    let tokens = verbose["model_info"]["tokenizer.ggml.tokens"].as_array();
    assert!(tokens.unwrap().len() > 100 && verbose["tensors"].is_array());
    // VS Code shows this name.
    let body = json!({"model": "tale:latest"}).to_string();
    let head = "POST /api/show HTTP/1.1\r\nuser-agent: GitHubCopilotChat/0.30";
    let copilot = receive(server.send(head, &body)).json();
    assert_eq!(copilot["model_info"]["general.basename"], "tale:latest");
    // A model that is not in memory is known as well.
    let other = server.post("/api/show", &json!({"model": "other"})).json();
    assert_eq!(other["details"], show["details"]);
    let running = server.get("/api/ps").json();
    let running = running["models"].as_array().unwrap();
    assert_eq!(running.len(), 1);
    assert_eq!(
        (&running[0]["name"], &running[0]["context_length"]),
        (&json!("tale:latest"), &json!(512))
    );
    assert!(running[0]["expires_at"].as_str().unwrap() > "2200");
    for (body, status) in [(json!({}), 400), (json!({"model": "gpt"}), 404)] {
        assert_eq!(server.post("/api/show", &body).status, status);
    }
}

#[test]
fn models_are_loaded_and_unloaded_as_requests_ask() {
    let server = Running::start(options());
    until("not healthy", || server.get("/health").status == 200);
    let running = || {
        let all = server.get("/api/ps").json();
        let names = all["models"].as_array().unwrap().iter();
        let names = names.map(|model| model["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(running(), ["tale:latest"]);
    let unload = json!({"model": "tale", "keep_alive": 0});
    let reply = server.post("/api/generate", &unload).json();
    assert_eq!(
        (&reply["done_reason"], &reply["response"]),
        (&json!("unload"), &json!(""))
    );
    until("it is not unloaded", || running().is_empty());
    let load = json!({"model": "other:latest", "messages": []});
    let reply = server.post("/api/chat", &load).json();
    assert_eq!(
        (&reply["done_reason"], &reply["message"]["role"]),
        (&json!("load"), &json!("assistant"))
    );
    assert_eq!(running(), ["other:latest"]);
    // A time is kept, unless another request comes meanwhile.
    let soon = ask(&json!({"model": "other", "keep_alive": "300ms"}));
    assert_eq!(server.post("/api/chat", &soon).status, 200);
    let expires = server.get("/api/ps").json()["models"][0]["expires_at"].clone();
    assert!(expires.as_str().is_some_and(|at| at < "2200"), "{expires}");
    until("it is not unloaded", || running().is_empty());
    for more in [json!({"keep_alive": "200ms"}), json!({})] {
        assert_eq!(server.post("/api/chat", &ask(&more)).status, 200);
    }
    std::thread::park_timeout(core::time::Duration::from_millis(500));
    assert_eq!(running(), ["tale:latest"]);
    let missing = json!({"model": "gpt", "keep_alive": 0});
    assert_eq!(server.post("/api/chat", &missing).status, 404);
    // What requests may not load they do not unload.
    let mut options = options();
    options.models.autoload = false;
    let server = Running::start(options);
    until("not healthy", || server.get("/health").status == 200);
    let reply = server.post("/api/generate", &unload);
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert!(error_of(&reply).starts_with("keep_alive: 0 is not supported"));
    let reply = server.post("/api/chat", &ask(&json!({"keep_alive": 0})));
    assert_eq!(reply.status, 200, "{}", reply.body);
    std::thread::park_timeout(core::time::Duration::from_millis(200));
    let running = server.get("/api/ps").json();
    assert_eq!(running["models"].as_array().unwrap().len(), 1);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn errors_are_ollama_s() {
    let server = Running::start(options());
    let long = json!([{"role": "user", "content": "word ".repeat(4000)}]);
    let image = json!([{"role": "user", "content": "x", "images": ["AA"]}]);
    for (path, body, status, words) in [
        ("/api/chat", ask(&json!({"model": "gpt"})), 404, "not found"),
        (
            "/api/chat",
            ask(&json!({"messages": long})),
            400,
            "\"truncate\": true",
        ),
        (
            "/api/chat",
            ask(&json!({"messages": image})),
            400,
            "messages[0].images: is not supported",
        ),
        (
            "/api/chat",
            ask(&json!({"options": {"top_p": 2}})),
            400,
            "options.top_p: 2",
        ),
        (
            "/api/chat",
            ask(&json!({"options": {"stop": vec!["x"; 65]}})),
            400,
            "options.stop",
        ),
        (
            "/api/chat",
            ask(&json!({"format": {"type": "x"}})),
            400,
            "format",
        ),
        (
            "/api/generate",
            json!({"model": "tale", "prompt": "x", "suffix": "y"}),
            400,
            "suffix: the model has no fill-in-the-middle tokens",
        ),
        (
            "/api/generate",
            json!({"model": "tale", "prompt": "x", "context": [1]}),
            400,
            "context: is not supported",
        ),
        (
            "/api/embed",
            json!({"model": "tale", "input": [3.5]}),
            400,
            "input",
        ),
        (
            "/api/pull",
            json!({"model": "hf.co/u/m"}),
            403,
            "--allow-pull",
        ),
        ("/api/pull", json!({}), 400, "model"),
        (
            "/api/create",
            json!({}),
            501,
            "/api/create: models are files",
        ),
        ("/api/push", json!({}), 501, "/api/push"),
        ("/api/copy", json!({}), 501, "/api/copy"),
        ("/api/blobs/sha256:00", json!({}), 501, "/api/blobs/"),
        ("/api/tags", json!({}), 405, "method"),
        ("/api/wings", json!({}), 404, "no such route"),
    ] {
        let reply = server.post(path, &body);
        let message = error_of(&reply);
        assert_eq!(reply.status, status, "{path}: {message}");
        assert!(message.contains(words), "{path}: {message}");
        assert_eq!(reply.json().as_object().unwrap().len(), 1);
    }
    let deleted = receive(server.send("DELETE /api/delete HTTP/1.1", "{}"));
    assert_eq!(deleted.status, 501, "{}", deleted.body);
    // A model that the server has is there.
    let there = json!({"model": "tale:latest", "stream": false});
    let there = server.post("/api/pull", &there);
    assert_eq!(there.json(), json!({"status": "success"}), "{}", there.body);
}

#[test]
fn a_server_is_found_by_its_first_page() {
    let mut options = options();
    options.http.keys.plain = vec!["secret".to_owned()];
    let server = Running::start(options);
    // Without a key as well.
    assert_eq!(server.get("/").body, "Ollama is running");
    let head = receive(server.send("HEAD / HTTP/1.1", ""));
    assert_eq!((head.status, &*head.body), (200, ""));
    assert!(head.head.contains("content-length: 17"), "{}", head.head);
    assert_eq!(server.get("/api/version").status, 401);
    let head = "GET /api/version HTTP/1.1\r\nauthorization: Bearer secret";
    let version = receive(server.send(head, "")).json();
    let numbers = version["version"].as_str().unwrap().split('.');
    let numbers: Vec<u32> = numbers.map(|n| n.parse().unwrap()).collect();
    // The least that VS Code takes.
    assert!(numbers.len() == 3 && numbers > vec![0, 6, 4]);
    assert_eq!(version["sluice_version"], env!("CARGO_PKG_VERSION"));
}

//! Anthropic's Messages API over a socket.

use crate::client::{Reply, Running, options, receive};
use serde_json::{Value, json};

fn ask(more: &Value) -> Value {
    let mut ask = json!({"model": "tale", "max_tokens": 12, "temperature": 0,
        "messages": [{"role": "user", "content": "Tell a tale."}]});
    let more = more.as_object().unwrap().clone();
    ask.as_object_mut().unwrap().extend(more);
    ask
}

/// The events of a stream; each is named by its type.
fn events(reply: &Reply) -> Vec<Value> {
    let events = reply.body.split("\n\n").filter(|event| !event.is_empty());
    let events = events.map(|event| {
        let (_id, event) = event.split_once('\n').unwrap();
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    });
    events.collect()
}

/// The message that a stream tells, put together as Anthropic's packages do.
fn message_of(events: &[Value]) -> Value {
    let mut message = Value::Null;
    let mut arguments = String::new();
    for event in events {
        let at = event["index"]
            .as_u64()
            .map(|at| usize::try_from(at).unwrap());
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), at.unwrap());
                content.push(event["content_block"].clone());
                arguments.clear();
            }
            "content_block_delta" => {
                let block = &mut message["content"][at.unwrap()];
                let delta = &event["delta"];
                for name in ["text", "thinking", "signature"] {
                    if let Some(more) = delta[name].as_str() {
                        let text = block[name].as_str().unwrap().to_owned() + more;
                        block[name] = text.into();
                    }
                }
                if let Some(more) = delta["partial_json"].as_str() {
                    arguments += more;
                }
            }
            "content_block_stop" => {
                let block = &mut message["content"][at.unwrap()];
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&arguments).unwrap();
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "ping" | "message_stop" => {}
            other => panic!("{other}"),
        }
    }
    message
}

#[test]
fn a_message_is_that_of_openai_s_route_whole_and_as_a_stream() {
    let server = Running::start(options());
    let more = json!({"system": "You tell tales.", "seed": 5, "temperature": 1.0});
    let whole = server.post("/v1/messages?beta=true", &ask(&more));
    assert_eq!(whole.status, 200, "{}", whole.body);
    assert!(whole.head.contains("request-id: req-"), "{}", whole.head);
    let whole = whole.json();
    assert_eq!(whole["stop_reason"], "max_tokens");
    let usage = &whole["usage"];
    let n_prompt = usage["input_tokens"].as_u64().unwrap();
    assert_eq!(usage["output_tokens"], 12);
    let chat = server.post(
        "/v1/chat/completions",
        &json!({"max_tokens": 12, "temperature": 1.0, "seed": 5, "enable_thinking": false, "messages": [
            {"role": "system", "content": "You tell tales."},
            {"role": "user", "content": "Tell a tale."},
        ]}),
    );
    let chat = chat.json();
    let text = chat["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(whole["content"], json!([{"type": "text", "text": text}]));
    assert_eq!(chat["usage"]["prompt_tokens"], n_prompt);
    let counted = server.post("/v1/messages/count_tokens", &ask(&more)).json();
    assert_eq!(counted, json!({"input_tokens": n_prompt}));

    let mut streamed = ask(&more);
    streamed["stream"] = true.into();
    let events = events(&server.post("/v1/messages", &streamed));
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds[..3], ["message_start", "ping", "content_block_start"]);
    let end = &kinds[kinds.len() - 3..];
    assert_eq!(end, ["content_block_stop", "message_delta", "message_stop"]);
    // What was cached is known from the first event on.
    let start = &events[0]["message"]["usage"];
    let n_cached = start["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(start["input_tokens"].as_u64().unwrap() + n_cached, n_prompt);
    assert!(n_cached > 0, "{start}");
    let message = message_of(&events);
    assert_eq!(message["content"], whole["content"]);
    assert_eq!(message["usage"]["cache_read_input_tokens"], n_cached);
}

fn tide() -> Value {
    json!({"name": "tide", "input_schema": {"type": "object",
        "properties": {"at": {"enum": ["noon", "dawn"]}}, "required": ["at"]}})
}

#[test]
fn calls_are_blocks_and_their_results_come_back() {
    let server = Running::start(options());
    let choice = json!({"type": "tool", "name": "tide"});
    let more = json!({"tools": [tide()], "tool_choice": choice, "max_tokens": 160});
    let whole = server.post("/v1/messages", &ask(&more)).json();
    let call = whole["content"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&whole["stop_reason"], &call["name"]),
        (&json!("tool_use"), &json!("tide"))
    );
    assert!(call["input"]["at"].is_string(), "{whole}");
    let mut streamed = ask(&more);
    streamed["stream"] = true.into();
    let message = message_of(&events(&server.post("/v1/messages", &streamed)));
    let streamed = message["content"].as_array().unwrap().last().unwrap();
    assert_eq!(streamed["input"], call["input"]);
    let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": "low"});
    let mut next = ask(&json!({"tools": [tide()]}));
    next["messages"] = json!([
        {"role": "user", "content": "Tell a tale."},
        {"role": "assistant", "content": whole["content"]},
        {"role": "user", "content": [result]},
    ]);
    let reply = server.post("/v1/messages", &next);
    assert_eq!(reply.status, 200, "{}", reply.body);
}

#[test]
fn a_beginning_is_continued_and_a_schema_kept() {
    let server = Running::start(options());
    let mut begun = ask(&json!({}));
    begun["messages"] = json!([
        {"role": "user", "content": "Tell a tale."}, {"role": "assistant", "content": "Once upon a"},
    ]);
    let reply = server.post("/v1/messages", &begun).json();
    assert_eq!(reply["content"][0]["type"], "text", "{reply}");
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"], "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "schema": schema}});
    let more = json!({"output_config": format, "max_tokens": 60});
    let reply = server.post("/v1/messages", &ask(&more)).json();
    let text = reply["content"][0]["text"].as_str().unwrap();
    let answer: Value = serde_json::from_str(text).unwrap();
    assert!(answer["a"] == "x" || answer["a"] == "y", "{answer}");
    let stops = json!({"stop_sequences": ["e"], "max_tokens": 40});
    let reply = server.post("/v1/messages", &ask(&stops)).json();
    assert_eq!(
        (&reply["stop_reason"], &reply["stop_sequence"]),
        (&json!("stop_sequence"), &json!("e"))
    );
}

#[test]
fn errors_are_anthropic_s() {
    let server = Running::start(options());
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {}}]}]);
    let long = json!([{"role": "user", "content": "word ".repeat(4000)}]);
    for (body, status, kind, words) in [
        (
            ask(&json!({"max_tokens": null})),
            400,
            "invalid_request_error",
            "max_tokens: is missing",
        ),
        (
            ask(&json!({"messages": image})),
            400,
            "invalid_request_error",
            "messages[0].content[0].type",
        ),
        (
            ask(&json!({"messages": long})),
            400,
            "invalid_request_error",
            "prompt is too long: ",
        ),
        (
            ask(&json!({"model": "claude"})),
            404,
            "not_found_error",
            "claude",
        ),
        (
            ask(&json!({"stop_sequences": vec!["x"; 65]})),
            400,
            "invalid_request_error",
            "stop_sequences",
        ),
    ] {
        let reply = server.post("/v1/messages", &body);
        let error = reply.json();
        assert_eq!(
            (reply.status, &error["type"]),
            (status, &json!("error")),
            "{error}"
        );
        assert_eq!(error["error"]["type"], kind);
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        let id = error["request_id"].as_str().unwrap();
        assert!(
            reply.head.contains(&format!("request-id: {id}")),
            "{}",
            reply.head
        );
    }
}

/// Claude Code's line changes with every request; the second turn reads only what is new.
#[test]
fn the_billing_line_does_not_keep_a_prompt_out_of_the_cache() {
    let server = Running::start(options());
    let turn = |sum: &str, path: &str| {
        let line = format!("x-anthropic-billing-header: cc_version=2.1.63; cch={sum};");
        let rules = "You tell tales of the sea. ".repeat(12);
        let system = json!([{"type": "text", "text": line}, {"type": "text", "text": rules}]);
        let mut body = ask(&json!({"system": system}));
        if path != "/v1/messages" {
            let messages = body["messages"].as_array_mut().unwrap();
            messages.insert(0, json!({"role": "system", "content": system}));
        }
        let usage = server.post(path, &body).json()["usage"].clone();
        let cached = usage["cache_read_input_tokens"].as_u64();
        cached
            .or_else(|| usage["prompt_tokens_details"]["cached_tokens"].as_u64())
            .unwrap()
    };
    turn("00001", "/v1/messages");
    let (second, third) = (
        turn("00002", "/v1/messages"),
        turn("00003", "/v1/chat/completions"),
    );
    assert!(
        second > 60 && third > 60,
        "{second} and {third} tokens were found"
    );
    let metrics = server.get("/metrics").body;
    assert!(
        metrics.contains("\nsluice:billing_lines_total 3\n"),
        "{metrics}"
    );
}

#[test]
fn models_have_anthropic_s_shape_for_its_clients() {
    let server = Running::start(options());
    let get = |path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nanthropic-version: 2023-06-01");
        receive(server.send(&head, "")).json()
    };
    let page = get("/v1/models");
    assert_eq!(
        (&page["first_id"], &page["has_more"]),
        (&json!("tale"), &json!(false))
    );
    let one = get("/v1/models/tale");
    assert_eq!(one, page["data"][0]);
    assert_eq!(one["type"], "model");
    assert!(one["created_at"].as_str().unwrap().ends_with('Z'), "{one}");
    assert_eq!(server.get("/v1/models").json()["object"], "list");
}

//! OpenAI's Responses API over a socket.

use crate::client::{Reply, Running, options};
use serde_json::{Value, json};

fn ask(more: &Value) -> Value {
    let mut ask = json!({"model": "tale", "max_output_tokens": 12, "temperature": 0, "input": "Tell a tale."});
    let more = more.as_object().unwrap().clone();
    ask.as_object_mut().unwrap().extend(more);
    ask
}

/// The events of a stream: each is named by its type, and their numbers rise by one.
fn events(reply: &Reply) -> Vec<Value> {
    let events = reply.body.split("\n\n").filter(|event| !event.is_empty());
    let events = events.enumerate().map(|(number, event)| {
        let lines = event.split('\n').filter(|line| !line.starts_with("id: "));
        let lines: Vec<_> = lines.collect();
        let [name, data] = lines[..] else {
            panic!("{event}");
        };
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        assert_eq!(data["sequence_number"], number);
        data
    });
    events.collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    kinds.collect()
}

/// What identifies a run differs; the rest does not.
fn without_ids(mut response: Value) -> Value {
    response["id"].take();
    response["created_at"].take();
    response["usage"].take();
    for item in response["output"].as_array_mut().unwrap() {
        item["id"].take();
    }
    response
}

/// A grammar whose texts are the changes of files, and a call that has to follow it.
#[test]
fn the_input_of_a_custom_tool_keeps_its_grammar() {
    let server = Running::start(options());
    let lark = "start: begin line line? end\nbegin: \"*** Begin\\n\"\nend: \"*** \\\"End\\\"\"\n\
                line: (\"+\" | \"-\") /[a-z \\\\\"]{1,20}/ LF\n%import common.LF\n";
    let format = json!({"type": "grammar", "syntax": "lark", "definition": lark});
    let tool = json!({"type": "custom", "name": "change", "format": format});
    let more = json!({"tools": [tool], "tool_choice": {"type": "custom", "name": "change"}, "seed": 3,
        "temperature": 1.0, "max_output_tokens": 300});
    let response = server.post("/v1/responses", &ask(&more));
    assert_eq!(response.status, 200, "{}", response.body);
    let response = response.json();
    assert_eq!(response["status"], "completed", "{response}");
    let call = response["output"].as_array().unwrap().last().unwrap();
    assert_eq!(call["type"], "custom_tool_call");
    let input = call["input"].as_str().unwrap();
    let lines: Vec<_> = input.split('\n').collect();
    assert_eq!(
        (lines[0], *lines.last().unwrap()),
        ("*** Begin", "*** \"End\""),
        "{input}"
    );
    for line in &lines[1..lines.len() - 1] {
        let is_right = |c: char| c.is_ascii_lowercase() || " \\\"".contains(c);
        let text = line.strip_prefix(['+', '-']).unwrap();
        assert!(
            (1..=20).contains(&text.len()) && text.chars().all(is_right),
            "{line}"
        );
    }
    let mut wrong = more.clone();
    wrong["tools"][0]["format"]["definition"] = "start: <think>".into();
    server
        .post("/v1/responses", &ask(&wrong))
        .is_refused_for("tools[0].format.definition");
}

#[test]
fn a_response_is_that_of_chat_completions_whole_and_as_a_stream() {
    let server = Running::start(options());
    let more =
        json!({"instructions": "You tell tales.", "seed": 5, "temperature": 1.0, "store": true});
    let whole = server.post("/v1/responses", &ask(&more));
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    let chat = server.post(
        "/v1/chat/completions",
        &json!({"max_tokens": 12, "temperature": 1.0, "seed": 5, "messages": [
            {"role": "system", "content": "You tell tales."},
            {"role": "user", "content": "Tell a tale."},
        ]}),
    );
    let chat = chat.json();
    assert_eq!(
        whole["output"][0]["content"][0]["text"],
        chat["choices"][0]["message"]["content"]
    );
    assert_eq!(
        (&whole["status"], &whole["store"]),
        (&json!("incomplete"), &json!(false))
    );
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(whole["usage"]["output_tokens"], 12);
    let counted = server
        .post("/v1/responses/input_tokens", &ask(&more))
        .json();
    assert_eq!(counted["input_tokens"], whole["usage"]["input_tokens"]);

    let mut streamed = ask(&more);
    streamed["stream"] = true.into();
    let events = events(&server.post("/v1/responses", &streamed));
    let kinds = kinds(&events);
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(
        kinds[kinds.len() - 4..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete"
        ]
    );
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["id"], events[0]["response"]["id"]);
    assert!(
        last["usage"]["input_tokens_details"]["cached_tokens"].as_u64() > Some(0),
        "{last}"
    );
    assert_eq!(without_ids(last.clone()), without_ids(whole));
}

#[test]
fn functions_and_custom_tools_are_called_and_their_outputs_come_back() {
    let server = Running::start(options());
    let tide = json!({"type": "function", "name": "tide", "strict": true, "parameters": {"type": "object",
        "properties": {"at": {"enum": ["noon", "dawn"]}}, "required": ["at"], "additionalProperties": false}});
    let digits = json!({"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}"});
    let dial = json!({"type": "custom", "name": "dial", "format": digits});
    for (name, kind, field) in [
        ("tide", "function_call", "arguments"),
        ("dial", "custom_tool_call", "input"),
    ] {
        let choice =
            json!({"type": if name == "tide" { "function" } else { "custom" }, "name": name});
        let more = json!({"tools": [tide, dial], "tool_choice": choice, "max_output_tokens": 160, "stream": true});
        let all = events(&server.post("/v1/responses", &ask(&more)));
        let response = &all.last().unwrap()["response"];
        let output = response["output"].as_array().unwrap();
        let call = output.last().unwrap();
        assert_eq!(
            (&call["type"], &call["name"]),
            (&json!(kind), &json!(name)),
            "{response}"
        );
        let text = call[field].as_str().unwrap();
        match name {
            "tide" => {
                let arguments: Value = serde_json::from_str(text).unwrap();
                assert!(arguments["at"].is_string(), "{text}");
            }
            _ => assert!(
                text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit()),
                "{text:?}"
            ),
        }
        let deltas = all.iter().filter(|event| event["item_id"] == call["id"]);
        let grown: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
        assert_eq!(grown, text);
        let result =
            json!({"type": format!("{kind}_output"), "call_id": call["call_id"], "output": "low"});
        let mut input = vec![json!({"role": "user", "content": "Tell a tale."})];
        input.extend(output.iter().cloned());
        input.push(result);
        let reply = server.post(
            "/v1/responses",
            &ask(&json!({"input": input, "tools": [tide, dial]})),
        );
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
}

#[test]
fn a_schema_is_kept_and_log_probabilities_are_told() {
    let server = Running::start(options());
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "s", "schema": schema});
    let more = json!({"text": {"format": format}, "max_output_tokens": 60, "top_logprobs": 2});
    let reply = server.post("/v1/responses", &ask(&more)).json();
    let part = &reply["output"][0]["content"][0];
    let answer: Value = serde_json::from_str(part["text"].as_str().unwrap()).unwrap();
    assert!(answer["a"] == "x" || answer["a"] == "y", "{answer}");
    let entries = part["logprobs"].as_array().unwrap();
    let text: String = entries
        .iter()
        .map(|entry| entry["token"].as_str().unwrap())
        .collect();
    assert_eq!(text, part["text"].as_str().unwrap());
    assert_eq!(entries[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(reply["text"]["format"]["name"], "s");
}

/// Clients shorten a conversation by the code in the stream; with `truncation` the server does.
#[test]
fn a_prompt_that_is_too_long_fails_in_the_stream_or_is_shortened() {
    let server = Running::start(options());
    let long = json!({"role": "user", "content": "word ".repeat(4000)});
    let short = json!({"role": "user", "content": "Tell a tale."});
    let more = json!({"input": [long, short], "stream": true});
    let all = events(&server.post("/v1/responses", &ask(&more)));
    assert_eq!(kinds(&all), ["response.created", "response.failed"]);
    let response = &all[1]["response"];
    assert_eq!(response["error"]["code"], "context_length_exceeded");
    assert_eq!(response["status"], "failed");
    let more = json!({"input": [long, short]});
    let reply = server.post("/v1/responses", &ask(&more));
    assert_eq!(reply.status, 400, "{}", reply.body);
    let more = json!({"input": [long, short], "truncation": "auto"});
    let cut = server.post("/v1/responses", &ask(&more)).json();
    let alone = server
        .post("/v1/responses", &ask(&json!({"input": [short]})))
        .json();
    assert_eq!(cut["output"][0]["content"], alone["output"][0]["content"]);
    assert_eq!(cut["usage"]["input_tokens"], alone["usage"]["input_tokens"]);
}

#[test]
fn what_needs_stored_responses_is_refused_by_name() {
    let server = Running::start(options());
    for (more, param) in [
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        (json!({"background": true}), "background"),
        (
            json!({"input": [{"type": "item_reference", "id": "x"}]}),
            "input[0]",
        ),
        (json!({"input": []}), "input"),
        (
            json!({"text": {"format": {"type": "json_schema", "schema": 3}}}),
            "text.format.schema",
        ),
    ] {
        server
            .post("/v1/responses", &ask(&more))
            .is_refused_for(param);
    }
}

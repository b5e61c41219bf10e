//! A conversation's second turn: calls and their results in the messages of a request.

use crate::client::{Running, options};
use serde_json::{Value, json};

fn ask(more: &Value) -> Value {
    let function = json!({"name": "tide", "parameters": {"type": "object", "properties": {}}});
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "tide", "arguments": "{}"}});
    let mut ask = json!({
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "How"}, {"type": "text", "text": " high?"}]},
            {"role": "assistant", "content": null, "tool_calls": [call], "refusal": null},
            {"role": "tool", "tool_call_id": "call_1", "content": "low"},
        ],
        "tools": [{"type": "function", "function": function}],
        "max_tokens": 4,
    });
    let more = more.as_object().unwrap().clone();
    ask.as_object_mut().unwrap().extend(more);
    ask
}

#[test]
fn an_answer_with_calls_can_be_sent_back() {
    let server = Running::start(options());
    let reply = server.post("/v1/chat/completions", &ask(&json!({})));
    assert_eq!(reply.status, 200, "{}", reply.body);
}

#[test]
fn apply_template_gives_the_prompt_of_the_chat() {
    let server = Running::start(options());
    for more in [
        json!({}),
        json!({"tool_choice": "none"}),
        json!({"tools": null}),
    ] {
        let mut ask = ask(&more);
        let chat = server.post("/v1/chat/completions", &ask).json();
        ask["return_tokens"] = true.into();
        let shown = server.post("/apply-template", &ask).json();
        let n_tokens = shown["tokens"].as_array().unwrap().len();
        assert_eq!(chat["usage"]["prompt_tokens"], n_tokens, "{shown}");
        let prompt = shown["prompt"].as_str().unwrap();
        assert!(
            prompt.contains("How high?") && prompt.contains("low"),
            "{prompt}"
        );
        assert!(
            prompt.contains(r#"{"name": "tide", "arguments": {}}"#),
            "{prompt}"
        );
        let describes = more.as_object().unwrap().is_empty();
        assert_eq!(prompt.contains("You can call these functions"), describes);
    }
}

#[test]
fn a_named_function_is_called_once() {
    let server = Running::start(options());
    let named = json!({"type": "function", "function": {"name": "tide"}});
    let calls = |choice: Value| {
        let more = json!({"tool_choice": choice, "max_tokens": 160, "temperature": 0});
        let reply = server.post("/v1/chat/completions", &ask(&more)).json();
        let choice = &reply["choices"][0];
        (
            choice["message"]["tool_calls"].as_array().unwrap().len(),
            choice["finish_reason"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(calls(named), (1, "tool_calls".to_owned()));
    // Other choices allow several, which this model writes to the end.
    assert!(calls("required".into()).0 > 1);
}

/// Tools and a schema: the answer calls, or keeps to the schema; a call that is asked for is a call.
#[test]
fn tools_and_a_schema_are_one_grammar() {
    let server = Running::start(options());
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    let tools = json!([{"type": "function", "function": {"name": "ping"}}]);
    let mut asked = json!({"messages": [{"role": "user", "content": "x or y?"}], "tools": tools,
        "response_format": format, "max_tokens": 80, "parallel_tool_calls": false});
    for seed in 0..6 {
        asked["seed"] = seed.into();
        asked["stream"] = false.into();
        let whole = server.post("/v1/chat/completions", &asked);
        assert_eq!(whole.status, 200, "{}", whole.body);
        let choice = &whole.json()["choices"][0];
        let message = &choice["message"];
        if choice["finish_reason"] == "tool_calls" {
            assert_eq!(message["tool_calls"][0]["function"]["name"], "ping");
            continue;
        }
        let content = message["content"].as_str().unwrap();
        let answer: Value = serde_json::from_str(content).unwrap();
        assert!(answer["a"] == "x" || answer["a"] == "y", "{choice}");
        asked["stream"] = true.into();
        let chunks = server.post("/v1/chat/completions", &asked).chunks();
        let parts = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
        assert_eq!(parts.collect::<String>(), content);
    }
    asked["stream"] = false.into();
    asked["tool_choice"] = "required".into();
    let reply = server.post("/v1/chat/completions", &asked).json();
    assert_eq!(
        reply["choices"][0]["finish_reason"], "tool_calls",
        "{reply}"
    );
    asked["tool_choice"] = "auto".into();
    asked["response_format"]["json_schema"]["schema"] = json!({"type": "nonsense"});
    let reply = server.post("/v1/chat/completions", &asked);
    assert_eq!(
        (reply.status, &*reply.param()),
        (400, "response_format"),
        "{}",
        reply.body
    );
    asked.as_object_mut().unwrap().remove("response_format");
    asked["grammar"] = "root ::= \"a\"".into();
    let reply = server.post("/v1/chat/completions", &asked);
    assert_eq!(
        (reply.status, &*reply.param()),
        (400, "tools"),
        "{}",
        reply.body
    );
}

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

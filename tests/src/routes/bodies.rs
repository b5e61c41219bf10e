//! Good bodies of the routes.

use serde_json::{Value, json};

/// A body with most fields of the route at `path`. Routes that are not listed get one with the fields of many.
pub(super) fn body(path: &str) -> Value {
    let kind = KINDS.iter().find(|(_, paths)| paths.contains(&path));
    match kind.map(|(kind, _)| *kind) {
        Some(Kind::Chat) => chat(),
        Some(Kind::Completion) => completion(),
        Some(Kind::Messages) => messages(),
        Some(Kind::Responses) => responses(),
        Some(Kind::Ollama) => ollama(),
        Some(Kind::Rank) => json!({
            "model": "tale", "query": "the sea", "documents": ["a cat", {"text": "a boat"}], "top_n": 1,
            "return_documents": true, "texts": ["a"],
        }),
        Some(Kind::Tokens) => json!({
            "model": "tale", "content": "a dog", "tokens": [1, 2, 3], "add_special": true, "parse_special": true,
            "with_pieces": true, "prompt": "a dog", "add_special_tokens": false,
        }),
        None => several(),
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Chat,
    Completion,
    Messages,
    Responses,
    Ollama,
    Rank,
    Tokens,
}

const KINDS: &[(Kind, &[&str])] = &[
    (
        Kind::Chat,
        &[
            "/chat/completions",
            "/v1/chat/completions",
            "/apply-template",
            "/chat/completions/input_tokens",
            "/v1/chat/completions/input_tokens",
        ],
    ),
    (
        Kind::Completion,
        &["/completions", "/v1/completions", "/completion", "/infill"],
    ),
    (
        Kind::Messages,
        &["/v1/messages", "/v1/messages/count_tokens"],
    ),
    (
        Kind::Responses,
        &[
            "/v1/responses",
            "/responses",
            "/v1/responses/input_tokens",
            "/responses/input_tokens",
        ],
    ),
    (Kind::Ollama, &["/api/chat", "/api/generate"]),
    (
        Kind::Rank,
        &["/rerank", "/v1/rerank", "/reranking", "/v1/reranking"],
    ),
    (Kind::Tokens, &["/tokenize", "/detokenize"]),
];

fn parameters() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}},
        "required": ["city"], "additionalProperties": false})
}

fn sampling(mut body: Value) -> Value {
    let more = json!({
        "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 7, "repeat_penalty": 1.1,
        "presence_penalty": 0.1, "frequency_penalty": 0.1, "repeat_last_n": 8, "logit_bias": {"5": -1.5}, "stop": ["\n\n"],
        "n_probs": 2, "min_tokens": 1, "ignore_eos": false, "cache_prompt": true, "priority": 0, "id_slot": -1,
    });
    merge(&mut body, more);
    body
}

fn merge(body: &mut Value, more: Value) {
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
}

fn chat() -> Value {
    sampling(json!({
        "model": "tale", "max_tokens": 4, "n": 1, "stream": false, "logprobs": true, "top_logprobs": 2,
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "How is the weather?"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
                "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": parameters()}}],
        "tool_choice": "auto", "parallel_tool_calls": false, "chat_template_kwargs": {"enable_thinking": false},
        "response_format": {"type": "text"}, "reasoning_effort": "low", "stream_options": {"include_usage": true},
    }))
}

fn completion() -> Value {
    sampling(json!({
        "model": "tale", "prompt": "Once upon", "max_tokens": 3, "n_predict": 3, "stream": false, "echo": false,
        "logprobs": 1, "input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f", "text": "t"}],
        "json_schema": parameters(), "grammar": "root ::= \"a\"", "lora": [],
    }))
}

fn messages() -> Value {
    json!({
        "model": "tale", "max_tokens": 4, "stream": false, "system": [{"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny", "is_error": false}]},
        ],
        "tools": [{"name": "weather", "description": "d", "input_schema": parameters()}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}, "thinking": {"type": "disabled"},
        "stop_sequences": ["x"], "temperature": 0.5, "top_k": 5, "top_p": 0.9, "metadata": {"user_id": "u"},
        "output_config": {"format": {"type": "json_schema", "schema": parameters()}},
    })
}

fn responses() -> Value {
    json!({
        "model": "tale", "max_output_tokens": 16, "stream": false, "instructions": "Be kind.", "store": false,
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
        ],
        "tools": [{"type": "function", "name": "weather", "parameters": parameters(), "strict": true},
            {"type": "custom", "name": "raw", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]{1,3}"}}],
        "tool_choice": "auto", "parallel_tool_calls": true, "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}}, "include": ["reasoning.encrypted_content"], "truncation": "disabled",
        "max_tool_calls": 2, "top_logprobs": 1, "temperature": 0.5, "top_p": 0.9,
    })
}

fn ollama() -> Value {
    json!({
        "model": "tale", "stream": false, "prompt": "Once", "suffix": "", "system": "Be kind.", "raw": false, "think": false,
        "messages": [
            {"role": "user", "content": "How is the weather?"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}]},
            {"role": "tool", "content": "sunny", "tool_name": "weather"},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": parameters()}}],
        "format": "json", "keep_alive": "5m", "logprobs": true, "top_logprobs": 2, "truncate": true, "shift": false,
        "options": {"num_predict": 3, "temperature": 0.5, "seed": 1, "top_k": 3, "top_p": 0.9, "min_p": 0.0, "stop": ["x"],
            "repeat_last_n": 8, "repeat_penalty": 1.1, "num_ctx": 128, "num_keep": 2},
    })
}

/// Fields of many routes: dialects without a body of their own, models, adapters, embeddings.
fn several() -> Value {
    json!({
        "model": "tale", "name": "tale", "input": ["a dog", "a cat"], "prompt": "Once", "stream": false, "encoding_format": "float",
        "messages": [{"role": "user", "content": "Hello"}], "dimensions": 8, "options": {"num_predict": 3, "temperature": 0.5, "seed": 1},
        "format": parameters(), "keep_alive": "5m", "think": false, "raw": false, "system": "Be kind.", "suffix": "",
        "truncate": true, "lora_name": "a", "lora_path": "b", "filename": "f", "id": 0, "scale": 1.0,
    })
}

//! Bodies that are slow, large, or many times their text in memory.

use crate::client::{Running, options, receive};
use core::time::Duration;
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::time::Instant;

const SMALL: usize = 64 << 10;

#[test]
fn slow_bodies_take_room_as_they_arrive_and_hold_up_nobody() {
    let server = Running::start(options());
    let heads = [
        "transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
        "content-length: 33554432\r\n\r\n{",
    ];
    let slow: Vec<_> = (0..40)
        .map(|i| {
            let mut stream = server.connect();
            let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\n";
            stream
                .write_all(format!("{head}{}", heads[i % 2]).as_bytes())
                .unwrap();
            stream
        })
        .collect();
    let begun = Instant::now();
    let reply = server.post(
        "/v1/completions",
        &json!({"prompt": "Once", "max_tokens": 1}),
    );
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(slow);
}

#[test]
fn a_body_that_trickles_in_is_too_slow() {
    let mut options = options();
    options.http.stall_timeout = Duration::from_millis(500);
    let server = Running::start(options);
    let mut stream = server.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut trickle = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        while trickle.write_all(b" ").is_ok() {
            std::thread::park_timeout(Duration::from_millis(50));
        }
    });
    let begun = Instant::now();
    assert_eq!(receive(stream).status, 408);
    assert!(begun.elapsed() < Duration::from_secs(10));
    writer.join().unwrap();
}

#[test]
fn heavy_fields_that_no_route_knows_are_skipped_and_others_refused_by_name() {
    let server = Running::start(options());
    // 64 bytes in memory for each byte of text.
    let empty = format!("[{}0]", "{\"\":0},".repeat(200_000));
    let posted =
        |path: &str, body: &str| receive(server.send(&format!("POST {path} HTTP/1.1"), body));
    let skipped = posted(
        "/tokenize",
        &format!("{{\"content\": \"x\", \"a\": {empty}}}"),
    );
    assert_eq!(skipped.status, 200, "{}", skipped.body);
    let body = format!("{{\"prompt\": \"Once\", \"max_tokens\": 1, \"a\": {empty}}}");
    assert_eq!(posted("/v1/completions", &body).status, 200);
    for (path, field, rest) in [
        ("/tokenize", "content", ""),
        (
            "/v1/chat/completions",
            "tools",
            r#", "messages": [{"role": "user", "content": "x"}]"#,
        ),
        (
            "/v1/chat/completions",
            "chat_template_kwargs",
            r#", "messages": [{"role": "user", "content": "x"}]"#,
        ),
        ("/v1/completions", "response_format", r#", "prompt": "x""#),
    ] {
        let reply = posted(path, &format!("{{\"{field}\": {empty}{rest}}}"));
        reply.is_refused_for(field);
    }
    let many = (0..2000)
        .map(|i| format!("\"a{i}\": 0"))
        .collect::<Vec<_>>()
        .join(",");
    assert_eq!(posted("/tokenize", &format!("{{{many}}}")).status, 400);
}

#[test]
fn long_texts_and_lists_of_tokens_are_read() {
    let server = Running::start(options());
    let text = "a b ".repeat(SMALL);
    let reply = server.post("/tokenize", &json!({"content": text, "unknown": text}));
    let tokens = reply.json()["tokens"].clone();
    assert!(tokens.as_array().unwrap().len() > SMALL);
    let back = server
        .post("/detokenize", &json!({"tokens": tokens}))
        .json();
    assert_eq!(back["content"].as_str().map(str::trim), Some(text.trim()));
}

/// The connection cannot be used again then: a client that does not know that would lose its next request.
#[test]
fn a_reply_to_a_body_that_was_not_read_ends_the_connection() {
    let server = Running::start(options());
    for (path, is_read) in [
        ("/api/push", false),
        ("/nothing", false),
        ("/tokenize", true),
        ("/v1/messages", true),
    ] {
        let body = json!({"content": "x".repeat(100)}).to_string();
        let mut stream = server.connect();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}",
            body.len()
        );
        stream
            .write_all(format!("{head}\r\n\r\n{body}").as_bytes())
            .unwrap();
        let (mut text, mut bytes) = (String::new(), [0; 4096]);
        while !text.ends_with('}') {
            let n = stream.read(&mut bytes).unwrap();
            assert!(n > 0, "{path}: {text}");
            text += core::str::from_utf8(&bytes[..n]).unwrap();
        }
        let ends = text.to_lowercase().contains("\r\nconnection: close");
        assert_eq!(ends, !is_read, "{path}: {text}");
    }
}

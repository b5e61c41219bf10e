//! Limits on clients, and how a server ends.

use crate::client::{Running, options, receive};
use core::time::Duration;
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::time::Instant;

#[test]
fn a_key_opens_all_but_health() {
    let mut options = options();
    options.http.keys.plain = vec!["k".to_owned()];
    let server = Running::start(options);
    let status = |head: &str| receive(server.send(head, "")).status;
    assert_eq!(status("GET /v1/models HTTP/1.1"), 401);
    assert_eq!(
        status("GET /v1/models HTTP/1.1\r\nauthorization: Bearer x"),
        401
    );
    assert_eq!(
        status("GET /v1/models HTTP/1.1\r\nauthorization: Bearer k"),
        200
    );
    assert_ne!(status("GET /health HTTP/1.1"), 401);
}

#[test]
fn bodies_and_slow_clients_have_limits() {
    let mut options = options();
    options.http.body_max = 1000;
    options.http.stall_timeout = Duration::from_millis(300);
    options.http.header_timeout = Duration::from_millis(300);
    let server = Running::start(options);
    let long = json!({"prompt": "x".repeat(2000)});
    assert_eq!(server.post("/v1/completions", &long).status, 413);
    // A body that never arrives.
    let mut stream = server.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 408");
    // Headers that never arrive.
    let begun = Instant::now();
    let mut stream = server.connect();
    stream.write_all(b"GET /health HTT").unwrap();
    let mut rest = Vec::new();
    let _closed = stream.read_to_end(&mut rest);
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_client_that_leaves_ends_its_answer() {
    let server = Running::start(options());
    let ask = json!({"prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true});
    let mut stream = server.send("POST /v1/completions HTTP/1.1", &ask.to_string());
    // Wait for its first token.
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("data: ") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    drop(stream);
    let begun = Instant::now();
    let is_busy = || {
        let slots = server.get("/slots").json();
        slots
            .as_array()
            .is_none_or(|all| all.iter().any(|slot| slot["is_processing"] == true))
    };
    while is_busy() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it still writes");
        std::thread::yield_now();
    }
    let metrics = server.get("/metrics").body;
    assert!(
        metrics.contains("finished_reason=\"abort\"} 1"),
        "{metrics}"
    );
}

#[test]
fn answers_are_finished_before_a_server_ends() {
    let mut server = Running::start(options());
    let ask = json!({"prompt": "Once", "max_tokens": 60, "ignore_eos": true, "stream": true});
    let mut stream = server.send("POST /v1/completions HTTP/1.1", &ask.to_string());
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    server.stop();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\""), "{rest}");
    assert!(rest.contains("data: [DONE]"), "{rest}");
    server.join();
}

#[test]
fn an_id_of_the_client_comes_back() {
    let server = Running::start(options());
    let reply = receive(server.send("GET /health HTTP/1.1\r\nx-request-id: mine-1", ""));
    assert!(
        reply.head.contains("x-request-id: mine-1"),
        "{}",
        reply.head
    );
}

#[test]
fn template_arguments_replace_nothing_that_is_checked() {
    let server = Running::start(options());
    for name in ["messages", "tools", "bos_token"] {
        let kwargs = json!({name: "forged"});
        let messages = json!([{"role": "user", "content": "x"}]);
        let ask = json!({"messages": messages, "max_tokens": 1, "chat_template_kwargs": kwargs});
        let reply = server.post("/v1/chat/completions", &ask);
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert_eq!(reply.param(), format!("chat_template_kwargs.{name}"));
    }
}

#[test]
fn headers_are_bounded_however_they_arrive() {
    let server = Running::start(options());
    let asked = |n: usize| {
        let mut stream = server.connect();
        let head = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-long: ";
        stream.write_all(head.as_bytes()).unwrap();
        // The first part is less than the limit, so that the rest is read at once.
        stream.write_all(&vec![b'a'; 50_000]).unwrap();
        std::thread::park_timeout(Duration::from_millis(200));
        let rest = [&vec![b'a'; n - 50_000][..], b"\r\n\r\n"].concat();
        let _closed = stream.write_all(&rest);
        receive(stream).status
    };
    assert_ne!(asked(60_000), 431);
    assert_eq!(asked(100_000), 431);
    assert_eq!(asked(120_000), 431);
}

#[test]
fn an_answer_that_is_being_sent_keeps_its_connection() {
    let mut options = options();
    options.http.connections_max = 1;
    let server = Running::start(options);
    // More than the system buffers for a connection.
    let ask = json!({"content": "a b ".repeat(250_000), "with_pieces": true});
    let mut slow = server.send("POST /tokenize HTTP/1.1", &ask.to_string());
    slow.read_exact(&mut [0; 12]).unwrap();
    std::thread::park_timeout(Duration::from_millis(1200));
    let newest = server.connect().read(&mut [0; 1]);
    assert_eq!(newest.unwrap_or(0), 0, "it is closed");
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    assert!(rest.len() > 10 << 20, "{}", rest.len());
    assert!(rest.ends_with(b"}]}"));
}

#[test]
fn idle_connections_make_room_for_others_and_requests_do_not() {
    let mut options = options();
    options.http.connections_max = 4;
    let server = Running::start(options);
    // One that has had an answer, and those that never sent anything.
    let mut kept = server.connect();
    let ask = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    kept.write_all(ask).unwrap();
    assert_ne!(kept.read(&mut [0; 1 << 12]).unwrap(), 0);
    let mut silent = server.connect();
    let long = json!({"prompt": "Once", "max_tokens": 300, "ignore_eos": true, "stream": true});
    let mut running = server.send("POST /v1/completions HTTP/1.1", &long.to_string());
    running.read_exact(&mut [0; 12]).unwrap();
    std::thread::park_timeout(Duration::from_millis(1100));
    let _newest = server.connect();
    for _ in 0..2 {
        assert_ne!(server.get("/health").status, 0);
    }
    for stream in [&mut kept, &mut silent] {
        assert_eq!(
            stream.read(&mut [0; 1 << 12]).unwrap_or(0),
            0,
            "it is closed"
        );
    }
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"), "{rest}");
}

//! Pages in browsers, and the names of the server.

use crate::client::{Reply, Running, options, receive, until};
use std::io::Write as _;

fn raw(server: &Running, text: &str) -> Reply {
    let mut stream = server.connect();
    stream.write_all(text.as_bytes()).unwrap();
    receive(stream)
}

/// The reply to a prompt, sent as `curl -d` does, with more headers.
fn posted(server: &Running, host: &str, headers: &str) -> Reply {
    let body = r#"{"prompt": "Once", "n_predict": 1}"#;
    let head =
        format!("POST /completion HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}");
    let kind = "content-type: application/x-www-form-urlencoded";
    raw(
        server,
        &format!(
            "{head}{kind}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ),
    )
}

#[test]
fn another_sites_page_is_refused_and_programs_are_answered() {
    let server = Running::start(options());
    for (host, headers) in [
        ("127.0.0.1:8080", ""),
        ("sluice:8080", ""),
        (
            "localhost",
            "origin: http://localhost\r\nsec-fetch-site: same-origin\r\n",
        ),
        ("localhost", "origin: tauri://localhost\r\n"),
    ] {
        let reply = posted(&server, host, headers);
        assert_eq!(reply.status, 200, "{host} {headers} {}", reply.body);
    }
    let foreign = "origin: http://evil.example\r\nsec-fetch-site: cross-site\r\n";
    for (host, headers, flag) in [
        ("evil.example", "", "--allowed-hosts evil.example"),
        ("127.0.0.1", foreign, "--cors-origins http://evil.example"),
        ("127.0.0.1", "origin: null\r\n", "--cors-origins null"),
        (
            "127.0.0.1",
            "sec-fetch-site: cross-site\r\n",
            "--cors-origins",
        ),
    ] {
        let reply = posted(&server, host, headers);
        assert_eq!(reply.status, 403, "{host} {headers}");
        assert!(reply.body.contains(flag), "{}", reply.body);
    }
    let health = raw(
        &server,
        "GET /health HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n",
    );
    assert_ne!(health.status, 403);
}

#[test]
fn http_1_1_names_one_host() {
    let server = Running::start(options());
    let status = |head: &str| raw(&server, &format!("{head}\r\nconnection: close\r\n\r\n")).status;
    assert_eq!(status("GET /v1/models HTTP/1.1"), 400);
    assert_eq!(status("GET /v1/models HTTP/1.1\r\nhost: a\r\nhost: b"), 400);
    assert_eq!(status("GET /v1/models HTTP/1.0"), 200);
    assert_eq!(status("GET /v1/models HTTP/1.1\r\nhost: a"), 200);
    // A client without a name for the server sends none.
    assert_eq!(status("GET /v1/models HTTP/1.1\r\nhost:"), 400);
    let health = "GET /health HTTP/1.1\r\nhost:";
    until("not healthy", || status(health) != 503);
    assert_eq!(status(health), 200);
}

#[test]
fn a_key_is_enough_for_any_page() {
    let mut options = options();
    options.http.keys.plain = vec!["k".to_owned()];
    let server = Running::start(options);
    let foreign = "origin: http://evil.example\r\nauthorization: Bearer k\r\n";
    assert_eq!(posted(&server, "evil.example", foreign).status, 200);
}

#[test]
fn a_preflight_of_an_allowed_origin_gets_what_it_asks_for() {
    let mut options = options();
    options.http.cors = "https://app.example,localhost".parse().unwrap();
    options.http.keys.plain = vec!["k".to_owned()];
    let server = Running::start(options);
    let asked = "x-stainless-arch,x-stainless-lang,x-api-key";
    let preflight = |origin: &str| {
        let head = format!(
            "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\norigin: {origin}"
        );
        let method = "access-control-request-method: POST";
        raw(
            &server,
            &format!("{head}\r\n{method}\r\naccess-control-request-headers: {asked}\r\n\r\n"),
        )
    };
    for origin in [
        "https://app.example",
        "http://localhost:5173",
        "http://127.0.0.1:3000",
    ] {
        let reply = preflight(origin);
        assert_eq!(reply.status, 200, "{origin}");
        for expected in [
            format!("access-control-allow-headers: {asked}"),
            format!("access-control-allow-origin: {origin}"),
            "access-control-allow-methods: get, post, delete".to_owned(),
        ] {
            assert!(reply.head.contains(&expected), "{}", reply.head);
        }
    }
    let reply = preflight("https://evil.example");
    assert_eq!(reply.status, 401);
    assert!(!reply.head.contains("access-control"), "{}", reply.head);
}

//! The page for people.

use crate::client::{Running, options, until};
use std::io::{Read as _, Write as _};

const GZIP: &[u8] = include_bytes!("../../page/dist/index.html.gz");
const SCRIPT: &[u8] = include_bytes!("../../page/dist/page.js.gz");
const NAMES: &str = include_str!("../../page/dist/names.txt");
const BROWSER: &str = "accept: text/html,*/*;q=0.8\r\naccept-encoding: gzip, deflate, br\r\n";

/// The status, the headers in lower case, and the body of a reply.
fn ask(server: &Running, line: &str, headers: &str) -> (u16, String, Vec<u8>) {
    ask_of(server, "127.0.0.1", line, headers)
}

fn ask_of(server: &Running, host: &str, line: &str, headers: &str) -> (u16, String, Vec<u8>) {
    let mut stream = server.connect();
    let text = format!("{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap();
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), bytes[end + 4..].to_vec())
}

fn value<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = head.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The address of a part of the page.
fn address(name: &str) -> String {
    let mut lines = NAMES.lines().map(|line| line.split_once(' ').unwrap());
    let (_, hashed) = lines.find(|(part, _)| *part == name).unwrap();
    format!("/page/{hashed}")
}

#[test]
fn a_browser_gets_the_page_and_a_program_does_not() {
    let server = Running::start(options());
    let (status, head, body) = ask(&server, "GET /", BROWSER);
    assert_eq!((status, &*body), (200, GZIP), "{head}");
    assert_eq!(
        value(&head, "content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(value(&head, "content-encoding"), Some("gzip"));
    assert_eq!(value(&head, "cache-control"), Some("no-cache"));
    assert_eq!(value(&head, "vary"), Some("accept, accept-encoding"));
    let (_, head, body) = ask(&server, "GET /", "accept: */*\r\n");
    assert_ne!(body, GZIP);
    assert_ne!(
        value(&head, "content-type"),
        Some("text/html; charset=utf-8")
    );
    let (_, head, _) = ask(&server, "POST /", BROWSER);
    assert_ne!(
        value(&head, "content-type"),
        Some("text/html; charset=utf-8")
    );
}

#[test]
fn head_is_answered_like_get_without_a_body() {
    let server = Running::start(options());
    let script = address("page.js");
    for (path, bytes) in [("/", GZIP), (&script, SCRIPT)] {
        let (status, head, body) = ask(&server, &format!("HEAD {path}"), BROWSER);
        assert_eq!((status, body.len()), (200, 0), "{head}");
        let length = bytes.len().to_string();
        assert_eq!(value(&head, "content-length"), Some(&*length), "{head}");
    }
}

#[test]
fn parts_are_kept_by_browsers_and_the_page_is_asked_for_again() {
    let server = Running::start(options());
    let script = address("page.js");
    let (status, head, body) = ask(&server, &format!("GET {script}"), BROWSER);
    assert_eq!((status, &*body), (200, SCRIPT), "{head}");
    assert_eq!(
        value(&head, "cache-control"),
        Some("public, max-age=31536000, immutable")
    );
    for path in ["/", &script] {
        let (_, head, _) = ask(&server, &format!("GET {path}"), BROWSER);
        let tag = value(&head, "etag").unwrap();
        let known = format!("{BROWSER}if-none-match: {tag}\r\n");
        let (status, head, body) = ask(&server, &format!("GET {path}"), &known);
        assert_eq!((status, body.len()), (304, 0), "{head}");
        assert_eq!(value(&head, "etag"), Some(tag));
        let other = format!("{BROWSER}if-none-match: \"0\"\r\n");
        assert_eq!(ask(&server, &format!("GET {path}"), &other).0, 200);
    }
    assert_eq!(ask(&server, "GET /page/page.js", BROWSER).0, 404);
    assert_eq!(ask(&server, "GET /page/", BROWSER).0, 404);
}

#[test]
fn the_page_may_do_nothing_but_ask_its_server() {
    let server = Running::start(options());
    let script = address("page.js");
    for path in ["/", &script] {
        let (_, head, _) = ask(&server, &format!("GET {path}"), BROWSER);
        let policy = value(&head, "content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(policy.contains("connect-src 'self'"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(
            !policy.contains("unsafe") && !policy.contains("http"),
            "{policy}"
        );
        assert_eq!(value(&head, "x-content-type-options"), Some("nosniff"));
        assert_eq!(value(&head, "referrer-policy"), Some("no-referrer"));
        assert_eq!(value(&head, "x-frame-options"), Some("deny"));
    }
}

#[test]
fn a_client_that_cannot_read_gzip_is_told_so() {
    let server = Running::start(options());
    let plain = "accept: text/html\r\naccept-encoding: identity\r\n";
    let (status, head, body) = ask(&server, "GET /", plain);
    assert_eq!(status, 406, "{head}");
    assert_eq!(value(&head, "content-encoding"), None);
    assert!(
        String::from_utf8(body)
            .unwrap()
            .contains("Accept-Encoding: gzip")
    );
    assert_eq!(ask(&server, "GET /", "accept: text/html\r\n").0, 200);
}

#[test]
fn the_page_needs_no_key_and_its_requests_do() {
    let mut options = options();
    options.http.keys.plain = vec!["k".to_owned()];
    let server = Running::start(options);
    let script = address("page.js");
    assert_eq!(ask(&server, "GET /", BROWSER).0, 200);
    assert_eq!(ask(&server, &format!("GET {script}"), BROWSER).0, 200);
    assert_eq!(ask(&server, "GET /v1/models", BROWSER).0, 401);
    let with_key = format!("{BROWSER}authorization: Bearer k\r\n");
    until("no models", || {
        ask(&server, "GET /v1/models", &with_key).0 == 200
    });
}

/// A link on another site leads to the page; only what the page then asks for is checked.
#[test]
fn the_page_opens_from_a_link_and_by_any_name() {
    let server = Running::start(options());
    let link = format!("{BROWSER}sec-fetch-site: cross-site\r\n");
    assert_eq!(ask(&server, "GET /", &link).0, 200);
    let (status, ..) = ask_of(&server, "evil.example", "GET /", &link);
    assert_eq!(status, 200);
    let (status, ..) = ask_of(&server, "evil.example", "GET /v1/models", "");
    assert_eq!(status, 403);
}

#[test]
fn the_page_can_be_turned_off() {
    let mut options = options();
    options.http.page = false;
    let server = Running::start(options);
    let (_, head, _) = ask(&server, "GET /", BROWSER);
    assert_ne!(
        value(&head, "content-type"),
        Some("text/html; charset=utf-8")
    );
    let script = address("page.js");
    assert_eq!(ask(&server, &format!("GET {script}"), BROWSER).0, 404);
}

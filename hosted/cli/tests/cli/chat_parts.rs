//! Conversations in parts, with a template as vision models have it: texts are said, pictures are refused by name.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{Ran, TemporaryFile, ran, sluice};
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::Stdio;

const TEMPLATE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/chat/qwen2_vl.jinja"
);

fn loaded(name: &str, parts: &Value) -> Ran {
    let talk = json!({"messages": [{"role": "user", "content": parts}]}).to_string();
    let file = TemporaryFile::new(name, talk.as_bytes());
    let mut command = sluice();
    command.args(["chat", "--chat-template-file", TEMPLATE, "-n", "2"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let said = format!("/load {}\n/regen\n", file.path());
    child
        .stdin
        .take()
        .unwrap()
        .write_all(said.as_bytes())
        .unwrap();
    ran(child.wait_with_output().unwrap())
}

#[test]
fn texts_of_a_conversation_in_parts_are_answered_and_a_picture_is_refused_by_name() {
    let text = json!({"type": "text", "text": "Once upon a time"});
    let said = loaded("texts.json", &json!([text, text]));
    assert!(!said.stdout.trim().is_empty(), "{said:?}");
    assert!(!said.stderr.contains("error"), "{said:?}");
    for picture in [json!({"type": "image"}), json!({"image": "x.png"})] {
        let said = loaded("picture.json", &json!([text, picture]));
        let expected = "message 0, part 1: image is not supported";
        assert!(said.stderr.contains(expected), "{said:?}");
        assert!(said.stdout.trim().is_empty(), "{said:?}");
    }
}

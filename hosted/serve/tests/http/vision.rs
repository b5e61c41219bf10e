//! Templates of vision models, whose content is in parts: texts arrive, pictures are refused by name.

use crate::client::{Running, options};
use serde_json::{Value, json};

const QWEN2_VL: &str = include_str!("../../../../tests/fixtures/chat/qwen2_vl.jinja");
const QWEN3_VL: &str = include_str!("../../../../tests/fixtures/chat/qwen3_vl.jinja");

fn server(template: &str) -> Running {
    let mut options = options();
    options.models.chat_template = Some(template.to_owned());
    Running::start(options)
}

fn part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

#[test]
fn texts_in_parts_are_rendered_one_after_the_other() {
    let asked = json!({"messages": [
        {"role": "system", "content": [part("Look."), part(" Well.")]},
        {"role": "user", "content": [part("def f():"), part(" return 1")]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And?"},
    ]});
    let expected = "<|im_start|>system\nLook. Well.<|im_end|>\n<|im_start|>user\ndef f(): return 1<|im_end|>\n\
                    <|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n";
    for template in [QWEN2_VL, QWEN3_VL] {
        let reply = server(template).post("/apply-template", &asked);
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.json()["prompt"], expected);
    }
}

#[test]
fn pictures_are_refused_by_name() {
    for template in [QWEN2_VL, QWEN3_VL] {
        let server = server(template);
        for (picture, param) in [
            (
                json!({"type": "image_url", "image_url": {"url": "data:,"}}),
                "messages[0].content[1].type",
            ),
            (
                json!({"type": "image", "image": "x.png"}),
                "messages[0].content[1].type",
            ),
            (
                json!({"type": "video_url", "video_url": {"url": "data:,"}}),
                "messages[0].content[1].type",
            ),
            (json!({"image": "x.png"}), "messages[0].content[1].type"),
        ] {
            let asked =
                json!({"messages": [{"role": "user", "content": [part("What is it?"), picture]}]});
            for path in ["/v1/chat/completions", "/apply-template"] {
                server.post(path, &asked).is_refused_for(param);
            }
        }
    }
}

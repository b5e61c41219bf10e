//! Conversations of the image: the turns that a model's chat template writes.

use super::TALE;
use super::hosted::{hash_of, hosted, talk};
use serde_json::json;
use sluice::file::GgufHeader;
use sluice_core::gguf::Gguf;
use sluice_metal::story::{StoryError, Turns};
use sluice_tests::{fixture, measured};
use sluice_text::chat_template::{ChatTemplate, Message, RenderOptions};
use std::fs;
use std::path::PathBuf;

/// Templates in the styles of the families, by the names that the image has for them.
const STYLES: [(&str, &str); 11] = [
    (
        "ChatML",
        "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ '<|im_start|>system\\nBe kind.\\nBe \
         brief.<|im_end|>\\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' \
         }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    ),
    (
        "Llama 3",
        "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + \
         message['content'] | trim + '<|eot_id|>' %}{% if loop.first %}{% set content = bos_token + content %}{% endif %}{{ content \
         }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    ),
    (
        "Llama 3",
        "{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = '26 Jul 2024' %}{%- endif %}{{- \
         '<|start_header_id|>system<|end_header_id|>\\n\\n' }}{{- 'Cutting Knowledge Date: December 2023\\n' }}{{- 'Today Date: ' + \
         date_string + '\\n\\n' }}{{- '<|eot_id|>' }}{%- for message in messages %}{{- '<|start_header_id|>' + message['role'] + \
         '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}{{- \
         '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}",
    ),
    (
        "Mistral",
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' \
         }}{% else %}{{ message['content'] + eos_token + ' ' }}{% endif %}{% endfor %}",
    ),
    (
        "Mistral",
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ ' [INST] ' + message['content'] + ' [/INST]' \
         }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "Mistral",
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' \
         }}{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "Mistral",
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + '[/INST]' \
         }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "Mistral",
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST]' + message['content'] + '[/INST]' \
         }}{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "Phi",
        "{% for message in messages %}{% if message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '<|end|>\n' }}{% else \
         %}{{ '<|assistant|>\n' + message['content'] + '<|end|>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ \
         '<|assistant|>\n' }}{% endif %}",
    ),
    (
        "Phi",
        "{% for message in messages %}{% if message['role'] == 'user' %}{{ '<|im_start|>user<|im_sep|>' + message['content'] + \
         '<|im_end|>' }}{% else %}{{ '<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>' }}{% endif %}{% endfor \
         %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
    ),
    (
        "Gemma",
        "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else \
         message['role']) + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt \
         %}{{ '<start_of_turn>model\n' }}{% endif %}",
    ),
];

const SAID: [&str; 3] = ["  Hello there ", "General K.", "Who?"];

/// What Jinja renders of the first `n` messages, without the token that tokenizers add themselves.
fn rendered(template: &str, n: usize) -> Option<String> {
    let roles = ["user", "assistant", "user"];
    let messages = roles.iter().zip(SAID).take(n);
    let messages: Vec<Message> = messages
        .map(|(role, content)| {
            let message = json!({"role": role, "content": content});
            serde_json::from_value(message).unwrap()
        })
        .collect();
    let options = RenderOptions {
        add_generation_prompt: true,
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        extra: json!({"date_string": "26 Jul 2024"})
            .as_object()
            .unwrap()
            .clone(),
        ..RenderOptions::default()
    };
    let text = ChatTemplate::parse(template)
        .ok()?
        .render(&messages, &options)
        .ok()?;
    Some(text.strip_prefix("<s>").unwrap_or(&text).to_owned())
}

/// Compares what the image writes with Jinja's; the family's name, or `None` if the template is not a known one.
fn compared(label: &str, template: &str) -> Option<&'static str> {
    let turns = Turns::of(template)?;
    let [mut first, mut next] = [vec![0; 4096], vec![0; 4096]];
    let first = turns.first(SAID[0], &mut first).unwrap();
    assert_eq!(Some(first), rendered(template, 1).as_deref(), "{label}");
    let next = turns.next(SAID[2], &mut next).unwrap();
    let found = rendered(template, 3).unwrap();
    // Models whose answers begin with a space write it themselves.
    let is_equal = ["", " "]
        .iter()
        .any(|space| found == format!("{first}{space}{}{next}", SAID[1]));
    assert!(
        is_equal,
        "{label}: {found:?} is not {first:?}, an answer, {next:?}"
    );
    Some(turns.name())
}

#[test]
fn turns_are_what_jinja_renders() {
    for (i, (name, template)) in STYLES.iter().enumerate() {
        assert_eq!(
            compared(&format!("style {i}"), template),
            Some(*name),
            "style {i}"
        );
    }
    for (file, expected) in [
        ("chatml", Some("ChatML")),
        ("gemma", Some("Gemma")),
        ("mistral", Some("Mistral")),
        ("qwen_tools", None),
        ("llama2", None),
        ("zephyr", None),
        ("granite_rag", None),
        ("olmoe", None),
    ] {
        let template = fs::read_to_string(fixture(&format!("chat/{file}.jinja"))).unwrap();
        assert_eq!(compared(file, &template), expected, "{file}");
    }
    // Published templates, where there are some.
    let Some(folder) = std::env::var_os("SLUICE_TEMPLATES").map(PathBuf::from) else {
        return;
    };
    let mut n = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|end| end == "jinja") {
            let template = fs::read_to_string(&path).unwrap();
            n += usize::from(compared(&path.display().to_string(), &template).is_some());
        }
    }
    measured(&format!("{n} published templates are the image's"));
}

/// The small model with a chat template.
fn model(template: &str) -> Vec<u8> {
    let file = fs::read(TALE).unwrap();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let mut header = GgufHeader::with_metadata_of(&gguf);
    header.set("tokenizer.chat_template", template);
    let mut entries = Vec::new();
    for tensor in gguf.tensors() {
        let n_dims = tensor.n_dims;
        header.add_tensor(tensor.name, &tensor.dims[..n_dims], tensor.ty);
        let start = usize::try_from(tensor.offset).unwrap();
        entries.push(&file[start..][..usize::try_from(tensor.len_bytes).unwrap()]);
    }
    let mut bytes = header.bytes();
    let start = bytes.len();
    for (data, entry) in entries.iter().zip(header.tensors()) {
        bytes.resize(start + usize::try_from(entry.offset).unwrap(), 0);
        bytes.extend_from_slice(data);
    }
    bytes
}

const HASHED: &str = "n=6 temp=0 draft=0 ctx=512";

#[test]
fn a_conversation_is_read_as_the_template_writes_it_and_is_kept() {
    let (_, template) = STYLES[0];
    let model = model(template);
    let once = talk(&model, &format!("chat {HASHED}"), &[SAID[0]]).unwrap();
    let prompt = rendered(template, 1).unwrap();
    let as_prompt = hosted(&model, &format!("\"prompt={prompt}\" {HASHED}"), 1).unwrap();
    assert_eq!(hash_of(&once), hash_of(&as_prompt), "{once}\n{as_prompt}");
    // A later turn depends on the ones before.
    let both = talk(&model, &format!("chat {HASHED}"), &[SAID[0], SAID[2]]).unwrap();
    let other = talk(&model, &format!("chat {HASHED}"), &["Goodbye", SAID[2]]).unwrap();
    assert_ne!(hash_of(&both), hash_of(&other));
    // `prompts` continues lines as they are.
    let plain = talk(&model, &format!("prompts {HASHED}"), &["Once upon"]).unwrap();
    let as_prompt = hosted(&model, &format!("\"prompt=Once upon\" {HASHED}"), 1).unwrap();
    assert_eq!(hash_of(&plain), hash_of(&as_prompt));
}

#[test]
fn a_template_that_is_not_known_is_refused_by_name() {
    let unknown = model("{{ messages[0]['content'] }}");
    let refused = talk(&unknown, "chat n=1", &["x"]).unwrap_err();
    assert!(matches!(refused, StoryError::Template), "{refused}");
    let told = refused.to_string();
    assert!(
        told.contains("ChatML, Llama 3, Gemma, Mistral, Phi") && told.contains("`prompts`"),
        "{told}"
    );
    let none = fs::read(TALE).unwrap();
    let refused = talk(&none, "chat n=1", &["x"]).unwrap_err();
    assert!(matches!(refused, StoryError::NoTemplate), "{refused}");
    assert!(talk(&none, "prompts n=1", &["x"]).is_ok());
}

/// The lines are typed after 1000 s each.
#[test]
fn times_do_not_count_typing() {
    let text = talk(&model(STYLES[0].1), "chat n=2 temp=0", &["Hello", "Again"]).unwrap();
    for name in ["load time", "time to first token"] {
        let line = text.lines().find(|line| line.contains(name)).unwrap();
        let ms = line
            .split('=')
            .nth(1)
            .unwrap()
            .trim()
            .trim_end_matches(" ms");
        let ms: f64 = ms.parse().unwrap();
        assert!(ms < 500_000.0, "{line}");
    }
}

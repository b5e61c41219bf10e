//! Templates for models whose file does not have one, by llama.cpp's names.

/// Names and templates.
pub const TEMPLATES: [(&str, &str); 5] = [
    ("chatml", CHATML),
    ("gemma", GEMMA),
    ("llama3", LLAMA3),
    ("phi3", PHI3),
    ("zephyr", ZEPHYR),
];

/// The template called `name`.
#[must_use]
pub fn template(name: &str) -> Option<&'static str> {
    let found = TEMPLATES.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text)
}

/// A text that is neither the name of a template nor Jinja.
#[derive(Debug, thiserror::Error)]
#[error("unknown chat template {0:?}: expected {names}, or Jinja text", names = TEMPLATES.map(|(name, _)| name).join(", "))]
pub struct UnknownTemplateError(String);

/// Checks a template that may be given by name.
///
/// # Errors
/// [`UnknownTemplateError`]: a single word that is not a name.
pub fn check_template(text: &str) -> Result<(), UnknownTemplateError> {
    if text.contains(['{', ' ', '\n']) || template(text).is_some() {
        return Ok(());
    }
    Err(UnknownTemplateError(text.to_owned()))
}

/// What the template called `name` writes after each turn. If the vocabulary has no such token,
/// the text still has to end an answer.
#[must_use]
pub fn end_of_turn(name: &str) -> Option<&'static str> {
    let ends = [
        ("chatml", "<|im_end|>"),
        ("gemma", "<end_of_turn>"),
        ("llama3", "<|eot_id|>"),
        ("phi3", "<|end|>"),
    ];
    ends.into_iter()
        .find(|(known, _)| *known == name)
        .map(|(_, end)| end)
}

const CHATML: &str = "\
{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content \
+ '<|im_end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const GEMMA: &str = "\
{{ bos_token }}{% set ns = namespace(system='') %}{% for message in messages %}\
{% if message.role == 'system' %}{% set ns.system = message.content | trim + '\\n\\n' %}\
{% else %}{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' \
+ ns.system + message.content | trim + '<end_of_turn>\\n' }}{% set ns.system = '' %}{% endif %}\
{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";

const LLAMA3: &str = "\
{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message.role \
+ '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

const PHI3: &str = "\
{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

const ZEPHYR: &str = "\
{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

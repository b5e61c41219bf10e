//! The formats in which models reason and call functions.

use super::marks::{DEEPSEEK_V31, NAMED, NameMarks, OBJECTS, ObjectMarks, TAGS, TagMarks};
use super::tool::Tool;
use core::fmt::Write as _;
use serde_json::Value;

/// How a model writes reasoning and calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    pub(super) format: Format,
    reasoning: Option<(&'static str, &'static str)>,
}

/// How calls are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`.
    Hermes,
    /// Arguments between tags.
    Tags(&'static TagMarks),
    /// A name and an object.
    Named(&'static NameMarks),
    /// Objects between two marks.
    Objects(&'static ObjectMarks),
    /// `{"name": .., "parameters": ..}` as the whole answer, or after `<|python_tag|>`.
    Llama3,
    /// `[TOOL_CALLS][{"name": .., "arguments": ..}]`.
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{..}`.
    MistralArgs,
    /// A block of code called `tool_code` that holds `{"name": .., "parameters": ..}`.
    Gemma,
    /// Between marks: `function`, a separator, the name, and the arguments in a block of code.
    DeepSeekV3,
    /// Channels, and a recipient in a message's header.
    Harmony,
    /// `<|START_ACTION|>[{"tool_name": .., "parameters": ..}]<|END_ACTION|>`.
    CommandR,
    /// Hermes's format, for models that were not trained on any; the system message explains it.
    Generic,
}

/// The state of a model's reasoning at the end of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningState {
    /// The model may begin it.
    NotBegun,
    /// The prompt has begun it.
    Open,
    /// The prompt has ended it, as templates do where a model should not reason.
    Ended,
}

impl Dialect {
    /// The dialect that a chat template's source uses; the generic one if it is not recognised.
    #[must_use]
    pub fn of_template(source: &str) -> Self {
        let has = |text: &str| source.contains(text);
        let format = if has("<|channel|>") && has("<|message|>") {
            Format::Harmony
        } else if has(DEEPSEEK_V31.open) || has(DEEPSEEK_V31.call) {
            // The older one puts the arguments into a code block.
            if has("```json") {
                Format::DeepSeekV3
            } else {
                Format::Named(&DEEPSEEK_V31)
            }
        } else if has(command_r::ACTION) {
            Format::CommandR
        } else if has(MISTRAL_CALLS) {
            if has(MISTRAL_ARGS) {
                Format::MistralArgs
            } else {
                Format::Mistral
            }
        } else if let Some(format) = marked(|hints| hints.iter().all(|hint| has(hint))) {
            format
        } else if has("<tool_call>") && !has("<invoke") {
            Format::Hermes
        } else if has(PYTHON_TAG) || (has("<|start_header_id|>") && has("ipython")) {
            Format::Llama3
        } else if has("<start_of_turn>") {
            Format::Gemma
        } else {
            Format::Generic
        };
        let reasoning = match format {
            Format::Harmony => Some(HARMONY_REASONING),
            Format::CommandR => Some(command_r::THINKING).filter(|(open, _)| has(open)),
            _ => REASONING
                .into_iter()
                .find(|(open, close)| has(open) || has(close)),
        };
        Self { format, reasoning }
    }

    /// A dialect by its name, with the usual reasoning marks of its models.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let format = NAMES.iter().find(|(known, _)| *known == name);
        let format = format
            .map(|(_, format)| *format)
            .or_else(|| marked_as(name))?;
        let reasoning = match format {
            Format::Harmony => HARMONY_REASONING,
            Format::CommandR => command_r::THINKING,
            Format::Mistral | Format::MistralArgs => REASONING[1],
            _ if name == "seed-oss" => REASONING[2],
            _ if name == "apertus" => REASONING[3],
            _ if name == "gemma4" => REASONING[4],
            _ => REASONING[0],
        };
        Some(Self {
            format,
            reasoning: Some(reasoning),
        })
    }

    /// The name that [`Self::from_name`] takes, such as `hermes`, `qwen3-coder`, `glm` or `kimi-k2`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.format {
            Format::Tags(marks) => marks.name,
            Format::Named(marks) => marks.name,
            Format::Objects(marks) => marks.name,
            format => {
                let found = NAMES.iter().find(|(_, known)| *known == format);
                found.map_or("generic", |(name, _)| name)
            }
        }
    }

    /// What begins and ends reasoning, if the model reasons.
    #[must_use]
    pub const fn reasoning_marks(&self) -> Option<(&'static str, &'static str)> {
        self.reasoning
    }

    /// What a model has to write to end its reasoning and begin its answer: the closing mark and whatever comes between
    /// it and the content. A reasoning budget forces these tokens.
    #[must_use]
    pub fn reasoning_end(&self) -> Option<&'static str> {
        let (_, close) = self.reasoning?;
        Some(match self.format {
            Format::Harmony => "<|end|><|start|>assistant<|channel|>final<|message|>",
            _ if close == "</think>" => "</think>\n\n",
            _ => close,
        })
    }

    /// The state of reasoning where an answer to a prompt with this end begins.
    #[must_use]
    pub fn reasoning_state(&self, prompt_end: &str) -> ReasoningState {
        let end = prompt_end.trim_end();
        match self.reasoning {
            Some((open, _)) if end.ends_with(open) => ReasoningState::Open,
            Some((_, close)) if end.ends_with(close) && self.format != Format::Harmony => {
                ReasoningState::Ended
            }
            _ => ReasoningState::NotBegun,
        }
    }

    /// Whether its models are trained to call functions in this format.
    #[must_use]
    pub const fn is_native(&self) -> bool {
        !matches!(self.format, Format::Gemma | Format::Generic)
    }

    /// The description of `tools` for the system message, for templates that do not describe them.
    #[must_use]
    pub fn system_text(&self, tools: &[Tool]) -> String {
        let mut text = String::from("You can call these functions:\n");
        for tool in tools {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", plain(tool));
        }
        let example = match self.format {
            Format::Gemma => {
                "```tool_code\n{\"name\": \"the function\", \"parameters\": {\"an argument\": \"its value\"}}\n```"
            }
            Format::Generic | Format::Hermes => {
                "<tool_call>\n{\"name\": \"the function\", \"arguments\": {\"an argument\": \"its value\"}}\n</tool_call>"
            }
            _ => return text,
        };
        text.push_str("To call one, write only this, with its name and arguments:\n");
        text.push_str(example);
        text.push_str("\nIf no function is needed, answer in plain words.");
        text
    }

    /// An id for call `index` of an answer. It depends only on the arguments.
    pub(super) fn call_id(&self, seed: u64, index: usize) -> String {
        let hash = mixed(seed ^ mixed(index as u64 + 1));
        match self.format {
            // Their templates refuse ids other than nine letters and digits.
            Format::Mistral | Format::MistralArgs => {
                format!("{hash:016x}").chars().take(9).collect()
            }
            _ => format!("call_{hash:016x}{:08x}", mixed(hash) >> 32),
        }
    }
}

/// The first format of tags, names or objects whose hints are wanted.
fn marked(wants: impl Fn(&[&str]) -> bool) -> Option<Format> {
    let tags = TAGS.into_iter().find(|marks| wants(marks.hints));
    let named = || {
        NAMED
            .into_iter()
            .find(|marks| !marks.hints.is_empty() && wants(marks.hints))
    };
    let objects = || OBJECTS.into_iter().find(|marks| wants(marks.hints));
    tags.map(Format::Tags)
        .or_else(|| named().map(Format::Named))
        .or_else(|| objects().map(Format::Objects))
}

fn marked_as(name: &str) -> Option<Format> {
    let tags = TAGS.into_iter().find(|marks| marks.name == name);
    let named = NAMED.into_iter().find(|marks| marks.name == name);
    let objects = OBJECTS.into_iter().find(|marks| marks.name == name);
    tags.map(Format::Tags)
        .or(named.map(Format::Named))
        .or(objects.map(Format::Objects))
}

/// A tool as one line of JSON.
fn plain(tool: &Tool) -> String {
    let value = tool.to_value();
    value.get("function").unwrap_or(&Value::Null).to_string()
}

/// The finisher of splitmix64.
const fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const NAMES: [(&str, Format); 9] = [
    ("hermes", Format::Hermes),
    ("llama3", Format::Llama3),
    ("mistral", Format::Mistral),
    ("mistral-args", Format::MistralArgs),
    ("gemma", Format::Gemma),
    ("deepseek-v3", Format::DeepSeekV3),
    ("harmony", Format::Harmony),
    ("command-r", Format::CommandR),
    ("generic", Format::Generic),
];

const REASONING: [(&str, &str); 5] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
];
const HARMONY_REASONING: (&str, &str) = ("<|channel|>analysis<|message|>", "<|end|>");

pub(super) const TOOL_CALL: (&str, &str) = ("<tool_call>", "</tool_call>");
pub(super) const TOOL_CODE: (&str, &str) = ("```tool_code", "```");
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";
pub(super) const MISTRAL_CALLS: &str = "[TOOL_CALLS]";
pub(super) const MISTRAL_ARGS: &str = "[ARGS]";

/// Marks of Cohere's models.
pub(super) mod command_r {
    pub(in super::super) const ACTION: &str = "<|START_ACTION|>";
    pub(in super::super) const ACTION_END: &str = "<|END_ACTION|>";
    pub(in super::super) const RESPONSE: &str = "<|START_RESPONSE|>";
    pub(in super::super) const RESPONSE_END: &str = "<|END_RESPONSE|>";
    pub(in super::super) const THINKING: (&str, &str) = ("<|START_THINKING|>", "<|END_THINKING|>");
}

/// Marks of gpt-oss.
pub(super) mod harmony {
    pub(in super::super) const START: &str = "<|start|>";
    pub(in super::super) const CHANNEL: &str = "<|channel|>";
    pub(in super::super) const MESSAGE: &str = "<|message|>";
    pub(in super::super) const CONSTRAIN: &str = "<|constrain|>";
    pub(in super::super) const ENDS: [&str; 3] = ["<|end|>", "<|call|>", "<|return|>"];
    pub(in super::super) const FUNCTIONS: &str = "functions.";
}

//! Grammars for calls: they constrain a model to well-formed calls, with arguments that match the
//! schemas.

mod frame;
mod literal;
mod parameters;

use super::dialect::{Dialect, Format, PYTHON_TAG, ReasoningState, command_r, harmony};
use super::marks::GEMMA4;
use super::tool::{Tool, ToolChoice};
use crate::grammar::{GrammarSource, Part, quoted};
use frame::Frame;
use serde_json::Value;

/// The constraints on an answer with calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallGrammar {
    /// Applies to the whole answer or, if there are triggers, to the text after one.
    pub source: GrammarSource,
    /// What begins calls. Empty if the answer must contain a call.
    pub triggers: Triggers,
}

/// What begins a constrained part of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Triggers {
    /// Any one of them begins it. Control tokens are given as text.
    pub all: Vec<Trigger>,
    /// Inside reasoning, triggers are ignored.
    pub reasoning: Option<Reasoning>,
}

impl Triggers {
    /// Whether there are no triggers, so that the whole answer is constrained.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// A text that begins a constrained part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// The text.
    pub text: String,
    /// Whether it only counts at the start of the answer, with no other text before it.
    pub is_first: bool,
}

impl From<&str> for Trigger {
    fn from(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            is_first: false,
        }
    }
}

/// How reasoning is marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// What begins it.
    pub open: String,
    /// What ends it.
    pub close: String,
    /// Whether the prompt has begun it.
    pub is_open: bool,
}

impl Dialect {
    /// The grammar that makes calls of `tools` well formed. `None` if calls are not wanted, or there
    /// are no tools.
    ///
    /// If a call is required, the answer is reasoning, if the model reasons, and then one call, or one
    /// or more if `parallel`. If the model may choose, this applies to the text after a trigger.
    /// Arguments match their JSON schema, except in Gemma 4's notation. There, of objects, and of lists of anything but
    /// numbers, booleans and nulls, only the type is enforced. A schema without `type`, `enum` and `const` allows any
    /// value, unless it is a reference or a union of up to 16 members (or such a union in another one).
    #[must_use]
    pub fn call_grammar(
        &self,
        tools: &[Tool],
        choice: &ToolChoice,
        parallel: bool,
        reasoning: ReasoningState,
    ) -> Option<CallGrammar> {
        let tools: Vec<&Tool> = match choice {
            ToolChoice::None => return None,
            ToolChoice::Auto | ToolChoice::Required => tools.iter().collect(),
            ToolChoice::Named(name) => tools.iter().filter(|tool| tool.name == *name).collect(),
        };
        if tools.is_empty() {
            return None;
        }
        let mut frame = Frame::of(self.format);
        let is_lazy = *choice == ToolChoice::Auto;
        let triggers = match is_lazy {
            true => Triggers {
                all: core::mem::take(&mut frame.triggers),
                reasoning: self.reasoning_of(reasoning),
            },
            false => Triggers::default(),
        };
        let mut parts = Vec::new();
        lark(&mut parts, "start: ");
        if !is_lazy {
            self.reasoning_parts(&mut parts, reasoning);
            parts.append(&mut frame.opening);
            parts.extend(frame.head.iter().cloned());
        }
        frame.calls(&mut parts, parallel);
        self.call_rules(&mut parts, &tools);
        Some(CallGrammar {
            source: GrammarSource::Composed(parts),
            triggers,
        })
    }

    /// The grammar of an answer that calls `tools` or has content that matches `content`: reasoning, if the model
    /// reasons, and then one or the other. `None` without tools if the content is all of the answer, and if `content`
    /// is neither a schema nor a regular expression.
    #[must_use]
    pub fn answer_grammar(
        &self,
        tools: &[Tool],
        parallel: bool,
        content: &GrammarSource,
        reasoning: ReasoningState,
    ) -> Option<GrammarSource> {
        // Messages of gpt-oss have headers even without tools.
        if tools.is_empty() && self.format != Format::Harmony {
            return None;
        }
        let body = match content {
            GrammarSource::JsonSchema(schema) => Part::Json(schema.clone()),
            GrammarSource::Regex(regex) => Part::Regex(regex.clone()),
            GrammarSource::Gbnf(_) | GrammarSource::Composed(_) => return None,
        };
        let mut parts = Vec::new();
        lark(&mut parts, "start: ");
        let space = match self.format {
            Format::Harmony => "",
            _ => SPACE,
        };
        // Space may precede reasoning and calls, but not content, which has to match as it is.
        match (reasoning, self.reasoning_marks()) {
            (ReasoningState::Open, _) => self.reasoning_parts(&mut parts, reasoning),
            (ReasoningState::NotBegun, Some((open, _))) => {
                lark(&mut parts, "(");
                lark(&mut parts, space);
                parts.extend(frame::marks(open));
                self.reasoning_parts(&mut parts, ReasoningState::Open);
                lark(&mut parts, ")? ");
            }
            _ => {}
        }
        lark(&mut parts, "(content");
        if !tools.is_empty() {
            let mut frame = Frame::of(self.format);
            if self.format == Format::Llama3 {
                // A call without its mark could not be told from content by its first bytes.
                frame.opening = frame::marks(PYTHON_TAG);
            }
            lark(&mut parts, " | ");
            lark(&mut parts, space);
            parts.append(&mut frame.opening);
            parts.extend(frame.head.iter().cloned());
            frame.calls(&mut parts, parallel);
        }
        lark(&mut parts, ")\ncontent: ");
        self.content_parts(&mut parts);
        lark(&mut parts, "\nbody: ");
        parts.push(body);
        if tools.is_empty() {
            lark(&mut parts, "\n");
        } else {
            self.call_rules(&mut parts, &tools.iter().collect::<Vec<_>>());
        }
        Some(GrammarSource::Composed(parts))
    }

    /// What surrounds the content of an answer, the rule `body`.
    fn content_parts(&self, parts: &mut Vec<Part>) {
        match self.format {
            Format::Harmony => {
                parts.extend(frame::marks(harmony::CHANNEL));
                lark(parts, "\"final\" (\" \"? ");
                parts.extend(frame::marks(harmony::CONSTRAIN));
                lark(parts, "\"json\")? ");
                parts.extend(frame::marks(harmony::MESSAGE));
                lark(parts, "body");
            }
            Format::CommandR => {
                lark(parts, "body | ");
                parts.extend(frame::marks(command_r::RESPONSE));
                lark(parts, "body ");
                parts.extend(frame::marks(command_r::RESPONSE_END));
            }
            _ => lark(parts, "body"),
        }
    }

    /// The rules of the calls of `tools`.
    fn call_rules(&self, parts: &mut Vec<Part>, tools: &[&Tool]) {
        let names: Vec<String> = (0..tools.len()).map(|n| format!("call_{n}")).collect();
        lark(parts, &format!("\ncall: {}\n", names.join(" | ")));
        for (number, tool) in tools.iter().enumerate() {
            lark(parts, &format!("call_{number}: "));
            self.call_parts(parts, tool, number);
            lark(parts, "\n");
            if self.format == Format::Tags(&GEMMA4) {
                literal::argument_rules(parts, tool, number);
            }
        }
        if self.format == Format::Tags(&GEMMA4) {
            literal::value_rules(parts);
        }
    }

    /// How the answer's reasoning is marked, if the model reasons.
    #[must_use]
    pub fn reasoning_of(&self, state: ReasoningState) -> Option<Reasoning> {
        let (open, close) = self.reasoning_marks()?;
        Some(Reasoning {
            open: open.to_owned(),
            close: close.to_owned(),
            is_open: state == ReasoningState::Open,
        })
    }

    /// What may precede the first call.
    fn reasoning_parts(&self, parts: &mut Vec<Part>, state: ReasoningState) {
        let marks = self.reasoning_marks();
        let Some((open, close)) = marks.filter(|_| state != ReasoningState::Ended) else {
            return lark(parts, SPACE);
        };
        let inside = |parts: &mut Vec<Part>| {
            parts.push(Part::Until(close.to_owned()));
            if self.format == Format::Harmony {
                parts.push(Part::Mark(harmony::START.to_owned()));
                lark(parts, "\"assistant\" ");
            } else {
                lark(parts, SPACE);
            }
        };
        if state == ReasoningState::Open {
            inside(parts);
        } else {
            if self.format != Format::Harmony {
                lark(parts, SPACE);
            }
            lark(parts, "(");
            parts.extend(frame::marks(open));
            inside(parts);
            lark(parts, ")? ");
        }
    }

    /// A call of `tool` without the parts that all calls share.
    #[expect(clippy::too_many_lines, reason = "one arm for each format")]
    fn call_parts(&self, parts: &mut Vec<Part>, tool: &Tool, number: usize) {
        let name = &*tool.name;
        let key = Value::from(name);
        let text = |parts: &mut Vec<Part>, text: &str| lark(parts, &(quoted(text) + " "));
        let arguments = |parts: &mut Vec<Part>| parameters::object(parts, tool);
        match self.format {
            Format::Hermes | Format::Generic => {
                lark(parts, "\"\\n\"? ");
                text(parts, &format!("{{\"name\": {key}, \"arguments\": "));
                arguments(parts);
                lark(parts, "\"}\" \"\\n\"?");
            }
            Format::Tags(marks) => {
                lark(parts, "\"\\n\"? ");
                parameters::spell(parts, &[marks.call, name, marks.name_end].concat(), marks);
                match *marks == GEMMA4 {
                    true => lark(parts, &format!("argument_{number}_0_0 ")),
                    false => parameters::tags(parts, tool, marks),
                }
                parameters::spell(parts, marks.call_end, marks);
                lark(parts, "\"\\n\"?");
            }
            Format::Named(marks) => {
                text(parts, &[marks.lead, name].concat());
                if marks.is_numbered {
                    lark(parts, "\":\" /[0-9]{1,4}/ ");
                }
                parts.extend(frame::marks(marks.separator));
                arguments(parts);
            }
            Format::Objects(marks) => {
                text(
                    parts,
                    &match marks.is_keyed {
                        true => format!("{{{key}: "),
                        false => format!("{{\"name\": {key}, \"arguments\": "),
                    },
                );
                arguments(parts);
                lark(parts, "\"}\"");
            }
            Format::Llama3 => {
                let key = key.to_string();
                text(parts, &format!("{}, \"parameters\": ", &key[1..]));
                arguments(parts);
                lark(parts, "\"}\"");
            }
            Format::Mistral => {
                text(parts, &format!("{{\"name\": {key}, \"arguments\": "));
                arguments(parts);
                lark(parts, r#"(", \"id\": \"" /[a-zA-Z0-9]{9}/ "\"")? "}""#);
            }
            Format::MistralArgs => {
                text(parts, name);
                parts.extend(frame::marks(super::dialect::MISTRAL_ARGS));
                arguments(parts);
            }
            Format::Gemma => {
                text(parts, &format!("{{\"name\": {key}, \"parameters\": "));
                arguments(parts);
                lark(parts, "\"}\"");
            }
            Format::DeepSeekV3 => {
                lark(parts, "\"function\" ");
                parts.extend(frame::marks(super::marks::DEEPSEEK_V31.separator));
                text(parts, &format!("{name}\n```json\n"));
                arguments(parts);
                lark(parts, "\"\\n```\"");
            }
            Format::Harmony => {
                text(parts, name);
                lark(parts, "(\" \" ");
                parts.extend(frame::marks(harmony::CONSTRAIN));
                lark(parts, "\"json\" | ");
                parts.extend(frame::marks(harmony::CHANNEL));
                lark(parts, "\"commentary\" (\" \" ");
                parts.extend(frame::marks(harmony::CONSTRAIN));
                lark(parts, "\"json\" | \" json\")?)? ");
                parts.extend(frame::marks(harmony::MESSAGE));
                arguments(parts);
            }
            Format::CommandR => {
                lark(parts, r#""{\"tool_call_id\": \"" /[0-9]{1,4}/ "#);
                text(
                    parts,
                    &format!("\", \"tool_name\": {key}, \"parameters\": "),
                );
                arguments(parts);
                lark(parts, "\"}\"");
            }
        }
    }
}

/// Appends grammar notation.
fn lark(parts: &mut Vec<Part>, text: &str) {
    if let Some(Part::Lark(last)) = parts.last_mut() {
        last.push_str(text);
    } else {
        parts.push(Part::Lark(text.to_owned()));
    }
}

const SPACE: &str = "/[ \\n]{1,4}/? ";

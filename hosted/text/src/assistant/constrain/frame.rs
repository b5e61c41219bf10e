//! The text before, between and after calls.

use super::Trigger;
use crate::assistant::dialect::{
    Format, MISTRAL_CALLS, PYTHON_TAG, TOOL_CALL, TOOL_CODE, command_r, harmony,
};
use crate::assistant::marks::{DEEPSEEK_V31, NameMarks, ObjectMarks};
use crate::grammar::{Part, quoted};

/// Calls are `opening head lead call`, then `separator head call` for each further one, then `close`.
/// The text after a trigger begins with `lead`.
pub(super) struct Frame {
    pub triggers: Vec<Trigger>,
    pub opening: Vec<Part>,
    pub head: Vec<Part>,
    pub lead: Vec<Part>,
    pub separator: Vec<Part>,
    pub close: Vec<Part>,
}

impl Frame {
    #[expect(clippy::too_many_lines, reason = "one arm for each format")]
    pub(super) fn of(format: Format) -> Self {
        let none = Vec::new;
        match format {
            Format::Hermes | Format::Generic => Self {
                triggers: vec![TOOL_CALL.0.into()],
                opening: none(),
                head: marks(TOOL_CALL.0),
                lead: none(),
                separator: [marks(TOOL_CALL.1), lark("\"\\n\"? ")].concat(),
                close: marks(TOOL_CALL.1),
            },
            Format::Llama3 => Self {
                triggers: llama3_triggers(),
                opening: [lark("("), marks(PYTHON_TAG), lark(")? ")].concat(),
                head: text(LLAMA3_HEAD),
                lead: none(),
                separator: text("; "),
                close: none(),
            },
            Format::Mistral => Self {
                triggers: vec![MISTRAL_CALLS.into()],
                opening: none(),
                head: none(),
                lead: lark("\" \"? \"[\" "),
                separator: text(", "),
                close: text("]"),
            }
            .opened_by(MISTRAL_CALLS),
            Format::MistralArgs => Self {
                triggers: vec![MISTRAL_CALLS.into()],
                opening: none(),
                head: marks(MISTRAL_CALLS),
                lead: none(),
                separator: none(),
                close: none(),
            },
            Format::Gemma => Self {
                triggers: vec![TOOL_CODE.0.into()],
                opening: none(),
                head: none(),
                lead: text("\n"),
                separator: text("\n"),
                close: text("\n```"),
            }
            .opened_by(TOOL_CODE.0),
            Format::Tags(tags) if tags.is_shared => Self {
                triggers: vec![tags.open.into()],
                opening: marks(tags.open),
                head: none(),
                lead: none(),
                separator: none(),
                close: marks(tags.close),
            },
            Format::Tags(tags) => {
                let close = match tags.close {
                    "" => none(),
                    close => marks(close),
                };
                Self {
                    triggers: vec![tags.open.into()],
                    opening: none(),
                    head: marks(tags.open),
                    lead: none(),
                    separator: [close.clone(), lark("\"\\n\"? ")].concat(),
                    close,
                }
            }
            Format::DeepSeekV3 => Self::named(&DEEPSEEK_V31),
            Format::Named(named) => Self::named(named),
            Format::Objects(objects) => Self::objects(objects),
            Format::Harmony => {
                let head = format!("{}commentary to={}", harmony::CHANNEL, harmony::FUNCTIONS);
                Self {
                    triggers: harmony_triggers(),
                    opening: none(),
                    head: marks(&head),
                    lead: none(),
                    separator: marks("<|end|><|start|>assistant"),
                    close: none(),
                }
            }
            Format::CommandR => Self {
                triggers: vec![command_r::ACTION.into()],
                opening: none(),
                head: none(),
                lead: lark("\"[\" /[ \\n]{1,8}/? "),
                separator: lark("\",\" /[ \\n]{1,8}/? "),
                close: [lark("/[ \\n]{1,8}/? \"]\" "), marks(command_r::ACTION_END)].concat(),
            }
            .opened_by(command_r::ACTION),
        }
    }

    fn named(named: &NameMarks) -> Self {
        let end = marks(named.call_end);
        let separator = [end.clone(), lark("\"\\n\"? ")].concat();
        let call = marks(named.call);
        if named.open.is_empty() {
            return Self {
                triggers: vec![named.call.into()],
                opening: Vec::new(),
                head: call,
                lead: Vec::new(),
                separator,
                close: end,
            };
        }
        Self {
            triggers: vec![named.open.into()],
            opening: marks(named.open),
            head: Vec::new(),
            lead: call.clone(),
            separator: [separator, call].concat(),
            close: [end, marks(named.close)].concat(),
        }
    }

    fn objects(objects: &ObjectMarks) -> Self {
        let [lead, separator, close] = match objects.separator {
            "\n" => ["\"\\n\"? ", "\"\\n\" ", "\"\\n\"? "],
            _ => [
                "\"[\" /[ \\n]{1,8}/? ",
                "\",\" /[ \\n]{1,8}/? ",
                "/[ \\n]{1,8}/? \"]\" ",
            ],
        }
        .map(lark);
        let mark = match objects.close {
            "" => Vec::new(),
            mark => marks(mark),
        };
        Self {
            triggers: vec![objects.open.into()],
            opening: marks(objects.open),
            head: Vec::new(),
            lead,
            separator,
            close: [close, mark].concat(),
        }
    }

    /// The first call after its head, further ones if `parallel`, and the end.
    pub(super) fn calls(self, parts: &mut Vec<Part>, parallel: bool) {
        parts.extend(self.lead);
        parts.extend(lark(" call "));
        if parallel {
            parts.extend(lark("("));
            parts.extend(self.separator);
            parts.extend(self.head);
            parts.extend(lark(" call)* "));
        }
        parts.extend(self.close);
    }

    fn opened_by(mut self, mark: &str) -> Self {
        self.opening = marks(mark);
        self
    }
}

/// A call is the whole answer, or follows a mark.
fn llama3_triggers() -> Vec<Trigger> {
    let typed = "{\"type\": \"function\", \"name\": \"";
    let heads = [LLAMA3_HEAD, typed];
    let first = heads.map(|head| Trigger {
        text: head.to_owned(),
        is_first: true,
    });
    let tagged = heads.map(|head| Trigger::from(&*format!("{PYTHON_TAG}{head}")));
    first.into_iter().chain(tagged).collect()
}

/// The recipient is in the channel, or before it, in which case the prompt may have named the speaker.
fn harmony_triggers() -> Vec<Trigger> {
    let to = format!("to={}", harmony::FUNCTIONS);
    let channels = ["commentary", "analysis"];
    let channels = channels.map(|name| format!("{}{name} {to}", harmony::CHANNEL));
    let start = format!("{}assistant {to}", harmony::START);
    let anywhere = channels.into_iter().chain([start]);
    let first = Trigger {
        text: to,
        is_first: true,
    };
    anywhere
        .map(|text| Trigger::from(&*text))
        .chain([first])
        .collect()
}

/// A text in which `<|` and `|>` enclose control tokens, or which is a single mark.
pub(super) fn marks(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find("|>").filter(|_| rest.contains("<|")) {
        let begin = rest.find("<|").unwrap_or(0);
        if begin > 0 {
            parts.extend(self::text(&rest[..begin]));
        }
        parts.push(Part::Mark(rest[begin..end + 2].to_owned()));
        rest = &rest[end + 2..];
    }
    if parts.is_empty() {
        // A text may follow the mark: `<|channel>thought`.
        let end = rest.find('>').map_or(rest.len(), |at| at + 1);
        parts.push(Part::Mark(rest[..end].to_owned()));
        parts.extend(
            Some(&rest[end..])
                .filter(|rest| !rest.is_empty())
                .into_iter()
                .flat_map(self::text),
        );
    } else if !rest.is_empty() {
        parts.extend(self::text(rest));
    }
    parts
}

fn text(text: &str) -> Vec<Part> {
    lark(&(quoted(text) + " "))
}

fn lark(text: &str) -> Vec<Part> {
    vec![Part::Lark(text.to_owned())]
}

const LLAMA3_HEAD: &str = "{\"name\": \"";

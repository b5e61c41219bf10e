//! The meanings of marks in each dialect.

use super::reader::Kind;
use crate::assistant::dialect::{
    Dialect, Format, MISTRAL_CALLS, PYTHON_TAG, TOOL_CALL, TOOL_CODE, command_r, harmony,
};
use crate::assistant::marks::{DEEPSEEK_V31, GEMMA4, NameMarks, ObjectMarks, QWEN_CODER, TagMarks};

/// The effect of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Reasoning begins.
    Reason,
    /// Reasoning begins if there was no content before it; otherwise the mark is ordinary text.
    ReasonAtStart,
    /// Reasoning ends.
    Answer,
    /// A call begins; the text is the mark that ends it if it is malformed.
    Call(Kind, &'static str),
    /// The mark is dropped.
    Drop,
    /// The mark is dropped if there was no content before it; otherwise it is ordinary text.
    DropAtStart,
    /// A message ends.
    End,
    /// A message's header begins with it.
    Header,
}

pub(super) fn content(dialect: &Dialect, has_tools: bool) -> Vec<(&'static str, Action)> {
    if dialect.format == Format::Harmony {
        return messages();
    }
    let mut marks = Vec::new();
    if let Some((open, close)) = dialect.reasoning_marks() {
        // These are control tokens; other marks may occur in ordinary text about models.
        let is_control = open.starts_with('[') || open.starts_with("<|");
        marks.extend(if is_control {
            [(open, Action::Reason), (close, Action::Drop)]
        } else {
            [(open, Action::ReasonAtStart), (close, Action::DropAtStart)]
        });
    }
    match dialect.format {
        Format::CommandR => {
            marks.push((command_r::RESPONSE, Action::Drop));
            marks.push((command_r::RESPONSE_END, Action::Drop));
        }
        Format::Llama3 => marks.extend(ENDS_LLAMA3.map(|end| (end, Action::Drop))),
        _ => {}
    }
    if !has_tools {
        return marks;
    }
    let block = |(open, close): (&'static str, &'static str)| {
        (open, Action::Call(Kind::Block(close), close))
    };
    match dialect.format {
        Format::Hermes | Format::Generic => {
            marks.push(block(TOOL_CALL));
            marks.push((TOOL_CALL.1, Action::Drop));
        }
        Format::Tags(tags) => marks.extend(tag_calls(tags)),
        Format::Named(named) => marks.extend(named_calls(named)),
        Format::DeepSeekV3 => marks.extend(named_calls(&DEEPSEEK_V31)),
        Format::Objects(objects) => marks.extend(object_calls(objects)),
        Format::Gemma => marks.push(block(TOOL_CODE)),
        Format::Llama3 => marks.push((PYTHON_TAG, Action::Call(Kind::Open, ""))),
        Format::Mistral | Format::MistralArgs => {
            marks.push((MISTRAL_CALLS, Action::Call(Kind::Mistral, "")));
        }
        Format::CommandR => {
            let close = command_r::ACTION_END;
            marks.push((close, Action::Drop));
            marks.push((command_r::ACTION, Action::Call(Kind::List(close), close)));
        }
        Format::Harmony => {}
    }
    marks
}

fn tag_calls(tags: &'static TagMarks) -> Vec<(&'static str, Action)> {
    let close = match tags.close {
        "" => tags.call_end,
        close => close,
    };
    // Its models also write objects between these marks.
    let kind = match tags == &QWEN_CODER {
        true => Kind::Block(close),
        false => Kind::Tags(tags),
    };
    let mut marks = vec![
        (tags.open, Action::Call(kind, close)),
        (close, Action::Drop),
    ];
    if *tags == GEMMA4 {
        marks.push(("<|tool_response>", Action::Drop));
    }
    marks
}

fn object_calls(objects: &'static ObjectMarks) -> Vec<(&'static str, Action)> {
    let close = objects.close;
    let kind = match objects.is_keyed {
        true => Kind::Keyed(close),
        false => Kind::List(close),
    };
    let drop = Some((close, Action::Drop)).filter(|_| !close.is_empty());
    let begin = (objects.open, Action::Call(kind, close));
    [begin].into_iter().chain(drop).collect()
}

fn named_calls(named: &'static NameMarks) -> Vec<(&'static str, Action)> {
    let drops = [named.open, named.close, named.call_end];
    let drops = drops.into_iter().filter(|mark| !mark.is_empty());
    let begin = Action::Call(Kind::Named(named), named.call_end);
    drops
        .map(|mark| (mark, Action::Drop))
        .chain([(named.call, begin)])
        .collect()
}

pub(super) fn reasoning(dialect: &Dialect) -> Vec<(&'static str, Action)> {
    if dialect.format == Format::Harmony {
        return messages();
    }
    let marks = dialect.reasoning_marks();
    marks
        .map(|(_, close)| (close, Action::Answer))
        .into_iter()
        .collect()
}

/// gpt-oss's marks, which frame every message.
fn messages() -> Vec<(&'static str, Action)> {
    let ends = harmony::ENDS.map(|end| (end, Action::End));
    let heads = [harmony::START, harmony::CHANNEL].map(|head| (head, Action::Header));
    ends.into_iter().chain(heads).collect()
}

const ENDS_LLAMA3: [&str; 2] = ["<|eom_id|>", "<|eot_id|>"];

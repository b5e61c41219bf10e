//! Arguments of calls: one object for all, or each between tags.

use super::lark;
use crate::assistant::marks::TagMarks;
use crate::assistant::parser::is_text;
use crate::assistant::tool::Tool;
use crate::grammar::{Part, quoted};
use core::fmt::Write as _;
use serde_json::{Map, Value};
use sluice_core::kernels::words;

/// The schema of the arguments, always an object. Without properties, the object is empty.
pub(super) fn schema(tool: &Tool) -> String {
    let Value::Object(schema) = &tool.parameters else {
        return tool.parameters.to_string();
    };
    let mut schema = schema.clone();
    schema.entry("type").or_insert_with(|| "object".into());
    let has_none = schema.get("properties").and_then(Value::as_object);
    let adds_none = |(key, value): (&String, &Value)| {
        let asks_none = key == "required" && value.as_array().is_some_and(Vec::is_empty);
        asks_none || PLAIN.contains(&&**key)
    };
    if has_none.is_some_and(Map::is_empty) && schema.iter().all(adds_none) {
        schema.insert("additionalProperties".into(), false.into());
    }
    Value::Object(schema).to_string()
}

/// All arguments as an object.
pub(super) fn object(parts: &mut Vec<Part>, tool: &Tool) {
    let (Some(grammar), [argument]) = (&tool.input_grammar, &*arguments(tool)) else {
        return parts.push(Part::Json(schema(tool)));
    };
    let name = quoted(argument.name);
    let before = quoted(&format!("{name}:"));
    lark(parts, &format!("\"{{\" {SPACE}{before} {SPACE}\"\\\"\" "));
    parts.push(Part::LarkInJson(grammar.clone()));
    lark(parts, &format!("\"\\\"\" {SPACE}\"}}\" "));
}

/// An argument that a call may have.
pub(super) struct Argument<'t> {
    pub(super) name: &'t str,
    /// `None` if it is required, but not described.
    pub(super) schema: Option<&'t Value>,
    pub(super) is_required: bool,
}

/// The arguments in the order of the schema, then those that are not described.
pub(super) fn arguments(tool: &Tool) -> Vec<Argument<'_>> {
    let required = tool.parameters.get("required").and_then(Value::as_array);
    let required: Vec<&str> = required
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let named = tool.parameters.get("properties").and_then(Value::as_object);
    let is_named = |name: &str| named.is_some_and(|named| named.contains_key(name));
    let unnamed = required.iter().filter(|name| !is_named(name));
    let unnamed = unnamed.map(|name| (*name, None));
    let all = named.into_iter().flatten();
    let all = all.map(|(name, schema)| (&**name, Some(schema)));
    all.chain(unnamed)
        .filter(|(_, schema)| *schema != Some(&Value::Bool(false)))
        .map(|(name, schema)| Argument {
            name,
            schema,
            is_required: required.contains(&name),
        })
        .collect()
}

/// Each argument between tags, in the order of the schema.
pub(super) fn tags(parts: &mut Vec<Part>, tool: &Tool, marks: &TagMarks) {
    parts.push(Part::Check(schema(tool)));
    let any = Value::Object(Map::new());
    for argument in arguments(tool) {
        let Argument {
            name,
            schema,
            is_required,
        } = argument;
        if !is_writable(name) {
            continue;
        }
        if !is_required {
            lark(parts, "(");
        }
        let is_text = schema.is_none_or(is_text);
        let key_end = marks.key_ends[usize::from(!is_text)];
        spell(
            parts,
            &[marks.key, name, key_end, marks.value].concat(),
            marks,
        );
        if is_text {
            text(parts, schema.unwrap_or(&any), tool, marks);
        } else {
            parts.push(Part::Json(on_its_own(schema.unwrap_or(&any), tool)));
            spell(parts, marks.value_end, marks);
        }
        if !is_required {
            lark(parts, ")? ");
        }
    }
}

/// Text in which tags may be control tokens, if the format is loose.
pub(super) fn spell(parts: &mut Vec<Part>, text: &str, marks: &TagMarks) {
    if !marks.is_loose {
        return lark(parts, &(quoted(text) + " "));
    }
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '<' => rest.find('>').map_or(rest.len(), |at| at + 1),
            '\n' => 1,
            _ => rest.find(['<', '\n']).unwrap_or(rest.len()),
        };
        match first {
            '<' => parts.push(Part::Mark(rest[..end].to_owned())),
            '\n' => lark(parts, "\"\\n\"? "),
            _ => lark(parts, &(quoted(&rest[..end]) + " ")),
        }
        rest = &rest[end..];
    }
}

/// A string without quotes, followed by the closing tag.
pub(super) fn text(parts: &mut Vec<Part>, schema: &Value, tool: &Tool, marks: &TagMarks) {
    let mark = marks.value_end.trim();
    let after = &marks.value_end[marks.value_end.trim_end().len()..];
    if let Some(grammar) = &tool.input_grammar {
        return grammar_text(parts, grammar, marks);
    }
    let says_more = |keys: &Map<String, Value>| keys.keys().any(|key| !ANY_TEXT.contains(&&**key));
    if schema.as_object().is_some_and(says_more) {
        parts.push(Part::Text {
            schema: on_its_own(schema, tool),
            mark: mark.into(),
            end: marks.value_end.trim_end().into(),
            wrapper: marks.wrapper,
        });
        return spell(parts, after, marks);
    }
    let values = match (schema.get("enum"), schema.get("const")) {
        (_, Some(value)) => core::slice::from_ref(value),
        (Some(Value::Array(values)), None) => values,
        _ => {
            let [open, close] = marks.wrapper;
            if open.is_empty() {
                parts.push(Part::Until(mark.into()));
            } else {
                lark(parts, &format!("({} ", quoted(open)));
                parts.push(Part::Until([close, mark].concat()));
                lark(parts, "| /[^<&\\n]*/ ");
                parts.push(Part::Mark(mark.into()));
                lark(parts, ") ");
            }
            return spell(parts, after, marks);
        }
    };
    // A single pattern: as alternatives, thousands of values would be too many for a rule.
    let values = values.iter().filter_map(Value::as_str);
    let values: Vec<String> = values.map(|value| escaped(&marks.wrapped(value))).collect();
    lark(parts, &format!("/({})/ ", values.join("|")));
    spell(parts, marks.value_end, marks);
}

/// A text of a grammar, followed by the closing tag.
fn grammar_text(parts: &mut Vec<Part>, grammar: &str, marks: &TagMarks) {
    let [open, close] = marks.wrapper;
    let mark = match close {
        "" => marks.value_end.trim(),
        close => close,
    };
    if !open.is_empty() {
        lark(parts, &(quoted(open) + " "));
    }
    parts.push(Part::LarkUpTo {
        source: grammar.to_owned(),
        mark: mark.to_owned(),
    });
    if !close.is_empty() {
        lark(parts, &(quoted(close) + " "));
    }
    spell(parts, marks.value_end, marks);
}

/// A pattern that matches only this text.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            pattern.push(c);
        } else {
            // Writing to a string cannot fail.
            let _ = write!(pattern, "\\x{{{:x}}}", u32::from(c));
        }
    }
    pattern
}

/// The schema of one argument, with the definitions that it may refer to.
pub(super) fn on_its_own(schema: &Value, tool: &Tool) -> String {
    let Value::Object(schema) = schema else {
        return schema.to_string();
    };
    let mut schema = schema.clone();
    // With thousands of arguments, not each can have a copy of all definitions.
    let text = Value::Object(schema.clone()).to_string();
    let refers = text.contains("\"$ref\"") || text.contains("\"$dynamicRef\"");
    for key in ["$defs", "definitions"].into_iter().filter(|_| refers) {
        if let Some(value) = tool.parameters.get(key) {
            schema.entry(key).or_insert_with(|| value.clone());
        }
    }
    Value::Object(schema).to_string()
}

/// Whether the name can be written in a tag.
fn is_writable(name: &str) -> bool {
    !name.is_empty() && name.trim() == name && !name.contains(['>', '<', '\n'])
}

/// Space between the parts of an object.
const SPACE: &str = "/[ \\n]{1,8}/? ";
/// Keywords that are allowed for a string that is arbitrary or one of some values.
const ANY_TEXT: [&str; 12] = words(
    "type enum const format title description default examples deprecated readOnly writeOnly \
     $comment",
);
/// Keywords that allow any value.
pub(super) const NOTES: [&str; 8] =
    words("title description default examples deprecated readOnly writeOnly $comment");
/// Keywords that add no properties.
const PLAIN: [&str; 5] = ["type", "properties", "description", "title", "$schema"];

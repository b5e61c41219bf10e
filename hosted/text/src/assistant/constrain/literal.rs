//! Arguments in Gemma 4's notation, in the order in which its template writes them.

use super::{lark, parameters};
use crate::assistant::marks::GEMMA4;
use crate::assistant::parser::is_text;
use crate::assistant::tool::Tool;
use crate::grammar::{Part, quoted};
use serde_json::{Map, Value};

/// A rule for each argument, after none and after another one: they are separated by commas, and some may be missing.
pub(super) fn argument_rules(parts: &mut Vec<Part>, tool: &Tool, number: usize) {
    // Refuses what is refused in other formats.
    parts.push(Part::Check(parameters::schema(tool)));
    let none = Map::new();
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    let is_writable =
        |name: &str| !name.is_empty() && !name.contains([':', ',', '<', '{', '}', '\n', ' ']);
    let mut properties: Vec<_> = properties
        .unwrap_or(&none)
        .iter()
        .filter(|(name, schema)| is_writable(name) && **schema != Value::Bool(false))
        .collect();
    properties.sort_by_key(|(name, _)| name.to_lowercase());
    let required = tool.parameters.get("required").and_then(Value::as_array);
    for (n, (name, schema)) in properties.iter().enumerate() {
        let is_required = required.is_some_and(|names| names.iter().any(|other| other == *name));
        for is_later in [0, 1] {
            let comma = if is_later == 1 { "\",\" " } else { "" };
            let skip = match is_required {
                true => String::new(),
                false => format!(" | argument_{number}_{}_{is_later}", n + 1),
            };
            let next = format!("argument_{number}_{}_1", n + 1);
            lark(
                parts,
                &format!(
                    "argument_{number}_{n}_{is_later}: {comma}pair_{number}_{n} {next}{skip}\n"
                ),
            );
        }
        lark(
            parts,
            &format!("pair_{number}_{n}: {} ", quoted(&format!("{name}:"))),
        );
        value(parts, schema, tool);
        lark(parts, "\n");
    }
    let n = properties.len();
    lark(
        parts,
        &format!("argument_{number}_{n}_0: \"\"\nargument_{number}_{n}_1: \"\"\n"),
    );
}

fn value(parts: &mut Vec<Part>, schema: &Value, tool: &Tool) {
    let shape = resolved(schema, tool);
    let kind = shape.get("type").and_then(Value::as_str);
    let items = shape.get("items").map(|items| resolved(items, tool));
    if is_text(shape) {
        parts.push(Part::Mark(GEMMA4.value_end.to_owned()));
        parameters::text(parts, shape, tool, &GEMMA4);
    } else if is_scalar(shape) || (kind == Some("array") && items.is_some_and(is_scalar)) {
        parts.push(Part::Json(parameters::on_its_own(schema, tool)));
    } else {
        let rule = match kind {
            Some("array") => "value_list ",
            Some("object") => "value_map ",
            _ => "value ",
        };
        lark(parts, rule);
    }
}

/// What a reference to a definition of the tool refers to.
fn resolved<'v>(schema: &'v Value, tool: &'v Tool) -> &'v Value {
    let reference = schema.get("$ref").and_then(Value::as_str);
    let pointer = reference.and_then(|reference| reference.strip_prefix('#'));
    let found = pointer.and_then(|pointer| tool.parameters.pointer(pointer));
    found.unwrap_or(schema)
}

/// Whether its values are written as in JSON: numbers, booleans and nulls.
fn is_scalar(schema: &Value) -> bool {
    let is_plain = |value: &Value| !(value.is_string() || value.is_array() || value.is_object());
    match (
        schema.get("type"),
        schema.get("enum").and_then(Value::as_array),
    ) {
        (Some(Value::String(kind)), _) => {
            ["number", "integer", "boolean", "null"].contains(&&**kind)
        }
        (None, Some(values)) => values.iter().all(is_plain),
        _ => schema.get("const").is_some_and(is_plain),
    }
}

/// Any value.
pub(super) fn value_rules(parts: &mut Vec<Part>) {
    lark(
        parts,
        "value: value_text | value_list | value_map | \"true\" | \"false\" | \"null\" \
         | /-?[0-9]{1,20}(\\.[0-9]{1,20})?/\n\
         value_list: \"[\" (value (\",\" value)*)? \"]\"\n\
         value_map: \"{\" (value_pair (\",\" value_pair)*)? \"}\"\n\
         value_pair: /[A-Za-z0-9_.-]{1,64}/ \":\" value\n\
         value_text: ",
    );
    parts.push(Part::Mark(GEMMA4.value_end.to_owned()));
    parts.push(Part::Until(GEMMA4.value_end.to_owned()));
    lark(parts, "\n");
}

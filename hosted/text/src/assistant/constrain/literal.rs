//! Arguments in Gemma 4's notation, in the order in which its template writes them.

use super::{lark, parameters};
use crate::assistant::marks::GEMMA4;
use crate::assistant::tool::Tool;
use crate::grammar::{Part, quoted};
use serde_json::Value;

/// A rule for each argument, after none and after another one: they are separated by commas, and some may be missing.
pub(super) fn argument_rules(parts: &mut Vec<Part>, tool: &Tool, number: usize) {
    // Refuses what is refused in other formats.
    parts.push(Part::Check(parameters::schema(tool)));
    let is_writable =
        |name: &str| !name.is_empty() && !name.contains([':', ',', '<', '{', '}', '\n', ' ']);
    let mut arguments = parameters::arguments(tool);
    arguments.retain(|argument| is_writable(argument.name));
    arguments.sort_by_key(|argument| (argument.name.to_lowercase(), argument.name));
    arguments.dedup_by_key(|argument| argument.name);
    for (n, argument) in arguments.iter().enumerate() {
        for is_later in [0, 1] {
            let comma = if is_later == 1 { "\",\" " } else { "" };
            let skip = match argument.is_required {
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
            &format!(
                "pair_{number}_{n}: {} ",
                quoted(&format!("{}:", argument.name))
            ),
        );
        value(
            parts,
            argument.schema.unwrap_or(&Value::Null),
            tool,
            UNIONS_MAX,
        );
        lark(parts, "\n");
    }
    let n = arguments.len();
    lark(
        parts,
        &format!("argument_{number}_{n}_0: \"\"\nargument_{number}_{n}_1: \"\"\n"),
    );
}

/// A value of this schema, which may be a union of unions.
fn value(parts: &mut Vec<Part>, schema: &Value, tool: &Tool, n_unions: usize) {
    let shape = resolved(schema, tool);
    if let Some(members) = members(shape).filter(|_| n_unions > 0) {
        for (n, member) in members.iter().enumerate() {
            lark(parts, if n == 0 { "(" } else { "| " });
            value(parts, member, tool, n_unions - 1);
        }
        return lark(parts, ") ");
    }
    let possible = kinds(shape);
    if possible.is_empty() {
        return lark(parts, "value ");
    }
    for (n, kind) in possible.into_iter().enumerate() {
        lark(parts, if n == 0 { "(" } else { "| " });
        match kind {
            "string" => {
                parts.push(Part::Mark(GEMMA4.value_end.to_owned()));
                parameters::text(parts, shape, tool, &GEMMA4);
            }
            "object" => lark(parts, "value_map "),
            "array"
                if shape
                    .get("items")
                    .is_none_or(|items| kinds(resolved(items, tool)) != [SCALAR]) =>
            {
                lark(parts, "value_list ");
            }
            _ => parts.push(Part::Json(narrowed(shape, tool, kind))),
        }
    }
    lark(parts, ") ");
}

/// What a reference to a definition of the tool refers to.
fn resolved<'v>(schema: &'v Value, tool: &'v Tool) -> &'v Value {
    let reference = schema.get("$ref").and_then(Value::as_str);
    let pointer = reference.and_then(|reference| reference.strip_prefix('#'));
    let found = pointer.and_then(|pointer| tool.parameters.pointer(pointer));
    found.unwrap_or(schema)
}

/// The members of a schema that is a union and says no more.
fn members(shape: &Value) -> Option<&[Value]> {
    let says = |(key, _): &(&String, &Value)| !parameters::NOTES.contains(&&***key);
    let mut said = shape.as_object()?.iter().filter(says);
    let (key, members) = said.next()?;
    let members = members.as_array()?;
    let is_union = match &**key {
        "anyOf" | "oneOf" => (1..=MEMBERS_MAX).contains(&members.len()),
        "allOf" => members.len() == 1,
        _ => false,
    };
    (is_union && said.next().is_none()).then_some(members)
}

/// Of texts, scalars, lists and objects, what the values may be; nothing if the schema does not say.
fn kinds(shape: &Value) -> Vec<&'static str> {
    let types = match shape.get("type") {
        Some(Value::Array(types)) => Some(&types[..]),
        other => other.map(core::slice::from_ref),
    };
    let values = match (shape.get("const"), shape.get("enum")) {
        (None, Some(Value::Array(values))) => Some(&values[..]),
        (value, _) => value.map(core::slice::from_ref),
    };
    let may_be = |kind: &&str| {
        let is_type = types.is_none_or(|types| types.iter().any(|name| kind_named(name) == *kind));
        is_type && values.is_none_or(|values| values.iter().any(|value| kind_of(value) == *kind))
    };
    let all = KINDS.into_iter().filter(|_| types.or(values).is_some());
    all.filter(may_be).collect()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        _ => SCALAR,
    }
}

/// The kind of the values of a type.
fn kind_named(name: &Value) -> &str {
    let name = name.as_str().unwrap_or_default();
    match KINDS.contains(&name) {
        true => name,
        false => SCALAR,
    }
}

/// The schema of the values of one kind.
fn narrowed(shape: &Value, tool: &Tool, kind: &str) -> String {
    let mut shape = shape.clone();
    if let Some(Value::Array(types)) = shape.get_mut("type") {
        types.retain(|name| kind_named(name) == kind);
    }
    if let Some(Value::Array(values)) = shape.get_mut("enum") {
        values.retain(|value| kind_of(value) == kind);
    }
    parameters::on_its_own(&shape, tool)
}

/// Any value.
pub(super) fn value_rules(parts: &mut Vec<Part>) {
    lark(
        parts,
        "value: value_text | value_list | value_map | \"true\" | \"false\" | \"null\" \
         | /-?(0|[1-9][0-9]{0,19})(\\.[0-9]{1,20})?([eE][-+]?[0-9]{1,3})?/\n\
         value_list: \"[\" (value (\",\" value)*)? \"]\"\n\
         value_map: \"{\" (value_pair (\",\" value_pair)*)? \"}\"\n\
         value_pair: /[A-Za-z0-9_.-]{1,64}/ \":\" value\n\
         value_text: ",
    );
    parts.push(Part::Mark(GEMMA4.value_end.to_owned()));
    parts.push(Part::Until(GEMMA4.value_end.to_owned()));
    lark(parts, "\n");
}

/// Numbers, booleans and nulls, which are written as in JSON.
const SCALAR: &str = "scalar";
const KINDS: [&str; 4] = ["string", SCALAR, "array", "object"];
/// Unions in unions, and members of each, so that references cannot make a grammar large.
const UNIONS_MAX: usize = 2;
const MEMBERS_MAX: usize = 16;

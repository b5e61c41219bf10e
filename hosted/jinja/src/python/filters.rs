//! jinja2's filters: string filters here, numeric ones in `super::numbers`, list filters in `super::lists` and
//! `super::generators`.

use super::arguments::{bound, split};
use super::operators::{formatted, pretty};
use super::{generators, lists, numbers, texts};
use crate::error::fail;
use crate::guard::Guard;
use crate::json;
use crate::values::{Once, escaped, integer, items, like, text};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};
use std::sync::Arc;

type Filter = fn(&Guard, &mut State<'_, '_>, &[Value]) -> Result<Value, Error>;

/// Replaces minijinja's filters by jinja2's.
pub(crate) fn install(env: &mut Environment<'_>, guard: &Arc<Guard>) {
    for name in ["bool", "split", "lines", "zip", "chain"] {
        env.remove_filter(name);
    }
    for (name, filter) in FILTERS {
        let guard = Arc::clone(guard);
        env.add_filter(
            name,
            move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                let args = args.into_values();
                if let (Some(value), true) = (args.first(), OF_TEXTS.contains(&name)) {
                    Once::refuse_to_print(value)?;
                }
                filter(&guard, state, &args)
            },
        );
    }
    for name in ["random", "urlize", "wordwrap"] {
        env.add_filter(
            name,
            move |_: Rest<ValueOrKwargs>| -> Result<Value, Error> {
                fail(format!("the filter {name} is not supported"))
            },
        );
    }
}

const FILTERS: [(&str, Filter); 51] = [
    ("sort", lists::sort),
    ("unique", generators::unique),
    ("min", lists::min),
    ("max", lists::max),
    ("groupby", lists::groupby),
    ("dictsort", lists::dictsort),
    ("sum", lists::sum),
    ("join", lists::join),
    ("first", lists::first),
    ("last", lists::last),
    ("list", lists::list),
    ("reverse", generators::reverse),
    ("items", generators::pairs),
    ("batch", generators::batch),
    ("slice", generators::slice),
    ("map", generators::map),
    ("select", generators::select),
    ("reject", generators::reject),
    ("selectattr", generators::selectattr),
    ("rejectattr", generators::rejectattr),
    ("length", lists::length),
    ("count", lists::length),
    ("xmlattr", lists::xmlattr),
    ("string", |_, _, args| {
        one("string", args, |value| match value.as_str() {
            Some(_) => value.clone(),
            None => Value::from(text(value)),
        })
    }),
    ("upper", |_, _, args| {
        cased("upper", args, str::to_uppercase)
    }),
    ("lower", |_, _, args| {
        cased("lower", args, str::to_lowercase)
    }),
    ("capitalize", |_, _, args| {
        cased("capitalize", args, texts::capitalize)
    }),
    ("title", |_, _, args| cased("title", args, title)),
    ("safe", |_, _, args| {
        one("safe", args, |value| Value::from_safe_string(text(value)))
    }),
    ("escape", |_, _, args| {
        one("escape", args, |value| {
            Value::from_safe_string(escaped(value))
        })
    }),
    ("e", |_, _, args| {
        one("e", args, |value| Value::from_safe_string(escaped(value)))
    }),
    ("forceescape", |_, _, args| {
        one("forceescape", args, |value| {
            Value::from_safe_string(escaped(&Value::from(text(value))))
        })
    }),
    ("striptags", |_, _, args| {
        one("striptags", args, |value| {
            Value::from(striptags(&text(value)))
        })
    }),
    ("wordcount", |_, _, args| {
        one("wordcount", args, |value| {
            Value::from(wordcount(&text(value)))
        })
    }),
    ("trim", trim),
    ("replace", replace),
    ("indent", indent),
    ("default", default),
    ("d", default),
    ("int", numbers::int),
    ("float", numbers::float),
    ("round", numbers::round),
    ("abs", numbers::abs),
    ("center", center),
    ("truncate", truncate),
    ("filesizeformat", numbers::filesizeformat),
    ("urlencode", urlencode),
    ("pprint", |_, _, args| {
        let [value] = bound("pprint", ["value"], 1, args)?;
        pretty(&value.unwrap_or_default()).map(Value::from)
    }),
    ("format", format),
    ("attr", attr),
    ("tojson", tojson),
];

/// Filters that convert any argument to a string.
const OF_TEXTS: [&str; 16] = [
    "string",
    "upper",
    "lower",
    "capitalize",
    "title",
    "safe",
    "escape",
    "e",
    "forceescape",
    "striptags",
    "wordcount",
    "trim",
    "replace",
    "center",
    "pprint",
    "format",
];

fn one(what: &str, args: &[Value], make: impl FnOnce(&Value) -> Value) -> Result<Value, Error> {
    let [value] = bound(what, ["s"], 1, args)?;
    Ok(make(&value.unwrap_or_default()))
}

fn cased(what: &str, args: &[Value], make: impl FnOnce(&str) -> String) -> Result<Value, Error> {
    one(what, args, |value| like(value, make(&text(value))))
}

/// jinja2's own `title`: a word begins after white space, a hyphen or an open bracket.
fn title(text: &str) -> String {
    let mut out = String::new();
    let mut is_first = true;
    for c in text.chars() {
        let is_between = texts::is_space(c) || "-({[<".contains(c);
        if is_first {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        is_first = is_between;
    }
    out
}

fn striptags(text: &str) -> String {
    let mut out = text.to_owned();
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        while let Some(start) = out.find(open) {
            let Some(end) = out[start..].find(close) else {
                break;
            };
            out.replace_range(start..start + end + close.len(), "");
        }
    }
    let words = texts::split(&out, None, None, false).join(" ");
    let known = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&#34;", "\""),
        ("&amp;", "&"),
    ];
    known
        .iter()
        .fold(words, |text, (name, c)| text.replace(name, c))
}

fn wordcount(text: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c| !is_word(c))
        .filter(|word| !word.is_empty())
        .count()
}

fn trim(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, chars] = bound("trim", ["value", "chars"], 1, args)?;
    let value = value.unwrap_or_default();
    let chars = chars
        .filter(|chars| !chars.is_none())
        .map(|chars| text(&chars));
    let text = text(&value);
    Ok(like(
        &value,
        texts::strip(&text, chars.as_deref(), true, true),
    ))
}

fn replace(guard: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, old, new, most] = bound("replace", ["s", "old", "new", "count"], 3, args)?;
    let (value, old, new) = (
        value.unwrap_or_default(),
        old.unwrap_or_default(),
        new.unwrap_or_default(),
    );
    let most = match most.filter(|most| !most.is_none()) {
        Some(most) => usize::try_from(integer("replace: count", &most)?).ok(),
        None => None,
    };
    let source = text(&value);
    guard.before_replace(&source, &text(&old), text(&new).len())?;
    Ok(Value::from(texts::replace(
        &source,
        &text(&old),
        &text(&new),
        most,
    )))
}

fn indent(guard: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bound("indent", ["s", "width", "first", "blank"], 1, args)?;
    let value = value.unwrap_or_default();
    let Some(source) = value.as_str() else {
        return fail("indent is for texts");
    };
    let indention = match width {
        Some(width) if width.as_str().is_some() => text(&width),
        Some(width) => {
            let width = integer("indent: width", &width)?;
            let width = usize::try_from(width).unwrap_or(0);
            guard.room(1, width)?;
            " ".repeat(width)
        }
        None => "    ".to_owned(),
    };
    let is = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (first, blank) = (is(first), is(blank));
    let source = format!("{source}\n");
    let lines = texts::lines(&source, false);
    guard.room(lines.len() + 1, indention.len())?;
    let mut out = if first {
        indention.clone()
    } else {
        String::new()
    };
    for (n, line) in lines.iter().enumerate() {
        if n > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&indention);
            }
        }
        out.push_str(line);
    }
    Ok(like(&value, out))
}

fn default(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, other, boolean] = bound("default", ["value", "default_value", "boolean"], 1, args)?;
    let value = value.unwrap_or_default();
    let is_missing =
        value.is_undefined() || (boolean.is_some_and(|b| b.is_true()) && !value.is_true());
    Ok(if is_missing {
        other.unwrap_or_else(|| Value::from(""))
    } else {
        value
    })
}

fn center(guard: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, width] = bound("center", ["value", "width"], 1, args)?;
    let value = value.unwrap_or_default();
    let width = width.map_or(Ok(80), |width| integer("center: width", &width))?;
    let width = usize::try_from(width).unwrap_or(0);
    guard.room(1, width)?;
    Ok(like(&value, texts::center(&text(&value), width, ' ')))
}

fn truncate(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["s", "length", "killwords", "end", "leeway"];
    let [value, length, killwords, end, leeway] = bound("truncate", names, 1, args)?;
    let value = value.unwrap_or_default();
    let number = |value: Option<Value>, other| match value.filter(|value| !value.is_none()) {
        Some(value) => integer("truncate", &value).map(|n| usize::try_from(n).unwrap_or(0)),
        None => Ok(other),
    };
    let (length, leeway) = (number(length, 255)?, number(leeway, 5)?);
    let end = end.map_or_else(|| "...".to_owned(), |end| text(&end));
    let n_end = end.chars().count();
    if length < n_end {
        return fail(format!("expected length >= {n_end}, got {length}"));
    }
    if lists::len(&value)? <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let Some(source) = value.as_str() else {
        return fail("truncate is for texts");
    };
    let chars: Vec<char> = source.chars().collect();
    let kept: String = chars[..length - n_end].iter().collect();
    if killwords.is_some_and(|kill| kill.is_true()) {
        return Ok(like(&value, kept + &end));
    }
    let words = kept.rsplit_once(' ').map_or(&*kept, |(words, _)| words);
    Ok(like(&value, words.to_owned() + &end))
}

fn quoted(text: &str, safe: &str, plus: bool) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "_.-~".contains(c) || safe.contains(c) {
            out.push(c);
        } else if plus && c == ' ' {
            out.push('+');
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn urlencode(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bound("urlencode", ["value"], 1, args)?;
    let value = value.unwrap_or_default();
    let is_list = matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Undefined
    );
    if !is_list {
        return Ok(Value::from(quoted(&text(&value), "/", false)));
    }
    let pairs = match value.kind() {
        ValueKind::Map => super::methods::call(&value, "items", &[])?,
        _ => value,
    };
    let mut parts = Vec::new();
    for pair in items(&pairs)? {
        let pair = items(&pair)?;
        let [key, item] = &*pair else {
            return fail("urlencode: pairs are needed");
        };
        parts.push(format!(
            "{}={}",
            quoted(&text(key), "", true),
            quoted(&text(item), "", true)
        ));
    }
    Ok(Value::from(parts.join("&")))
}

fn format(guard: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (places, named) = split(args)?;
    let value = places.first().cloned().unwrap_or_default();
    let rest = &places[1.min(places.len())..];
    if !rest.is_empty() && !named.is_empty() {
        return fail("can't handle positional and keyword arguments at the same time");
    }
    let value = if value.as_str().is_some() {
        value
    } else {
        Value::from(text(&value))
    };
    let values: Value = if named.is_empty() {
        Value::from(Tuple::from(rest.to_vec()))
    } else {
        Value::from_pairs(named)
    };
    guard.before_format(&value, core::slice::from_ref(&values))?;
    formatted(&value, &values)
}

fn attr(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, _] = bound("attr", ["obj", "name"], 2, args)?;
    // Values have no attributes except their methods, and a dict's items do not count as attributes.
    match value.unwrap_or_default().kind() {
        ValueKind::Plain => fail("the filter attr is not supported for this value"),
        _ => Ok(Value::UNDEFINED),
    }
}

/// `json.dumps` with the parameters of transformers, in their order.
fn tojson(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["x", "ensure_ascii", "indent", "separators", "sort_keys"];
    let given = bound("tojson", names, 1, args)?;
    let value = given[0].clone().unwrap_or_default();
    let truth = |name: &str, value: Value| match name {
        "ensure_ascii" | "sort_keys" => Value::from(value.is_true()),
        _ => value,
    };
    let named = names.iter().zip(given).skip(1);
    let kwargs = named.filter_map(|(name, value)| Some(((*name).to_owned(), truth(name, value?))));
    json::tojson(&value, kwargs.collect::<Kwargs>())
}

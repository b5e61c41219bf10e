//! jinja2's filters: of texts and numbers here, of lists in `super::lists` and `super::generators`.

use super::super::guard::Guard;
use super::super::json;
use super::arguments::{bound, split};
use super::once::Once;
use super::operators::{formatted, pretty};
use super::values::{escaped, integer, items, like, real, text, whole};
use super::{fail, generators, lists, texts};
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
    ("int", int),
    ("float", float),
    ("round", round),
    ("abs", abs),
    ("center", center),
    ("truncate", truncate),
    ("filesizeformat", filesizeformat),
    ("urlencode", urlencode),
    ("pprint", |_, _, args| {
        let [value] = bound("pprint", ["value"], 1, args)?;
        pretty(&value.unwrap_or_default()).map(Value::from)
    }),
    ("format", format),
    ("attr", attr),
    ("tojson", tojson),
];

/// Filters that make a text of whatever they are given.
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

/// jinja2's own: a word begins behind white space, a hyphen or an open bracket.
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

fn int(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, other, base] = bound("int", ["value", "default", "base"], 1, args)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return fail("undefined is no number");
    }
    let base = base.map_or(Ok(10), |base| integer("int: base", &base))?;
    let other = other.unwrap_or_else(|| Value::from(0));
    if let Some(number) = whole(&value) {
        return Ok(Value::from(number));
    }
    let parsed = value
        .as_str()
        .and_then(|text| whole_of(text.trim_matches(texts::is_space), base));
    if let Some(number) = parsed {
        return Ok(Value::from(number));
    }
    let number = real(&value).or_else(|| value.as_str().and_then(real_of));
    match number {
        Some(x) if x.is_finite() && x.abs() < 1e38 => {
            #[expect(clippy::cast_possible_truncation, reason = "within 128 bits")]
            let number = x.trunc() as i128;
            Ok(Value::from(number))
        }
        Some(_) if value.as_str().is_none() => fail("cannot convert float infinity to integer"),
        _ => Ok(other),
    }
}

/// `int(text, base)`.
fn whole_of(text: &str, base: i64) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (if text.starts_with('-') { -1 } else { 1 }, digits),
        None => (1, text),
    };
    let lower = digits.to_lowercase();
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)];
    let found = prefixed
        .iter()
        .find(|(prefix, of)| lower.starts_with(prefix) && (*of == base || base == 0));
    let (digits, base) = match found {
        Some((prefix, of)) => (&lower[prefix.len()..], *of),
        None => (&*lower, if base == 0 { 10 } else { base }),
    };
    let well_placed = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    let digits = digits.replace('_', "");
    let base = u32::try_from(base)
        .ok()
        .filter(|base| (2..=36).contains(base))?;
    if !well_placed || digits.starts_with(['+', '-']) {
        return None;
    }
    i128::from_str_radix(&digits, base)
        .ok()
        .map(|number| sign * number)
}

/// `float(text)`.
fn real_of(text: &str) -> Option<f64> {
    let text = text.trim_matches(texts::is_space).to_lowercase();
    text.replace('_', "").parse().ok()
}

fn float(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, other] = bound("float", ["value", "default"], 1, args)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return fail("undefined is no number");
    }
    let number = real(&value).or_else(|| value.as_str().and_then(real_of));
    Ok(number.map_or_else(|| other.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

fn round(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, precision, method] = bound("round", ["value", "precision", "method"], 1, args)?;
    let value = value.unwrap_or_default();
    let precision = precision.map_or(Ok(0), |precision| integer("round: precision", &precision))?;
    let Ok(places) = i32::try_from(precision.clamp(-300, 300)) else {
        return fail("round: precision is out of range");
    };
    let method = method.map_or_else(|| "common".to_owned(), |method| text(&method));
    let Some(x) = real(&value) else {
        return fail("round is for numbers");
    };
    let scale = 10f64.powi(places);
    match &*method {
        "common" if whole(&value).is_some() && places >= 0 => Ok(Value::from(whole(&value))),
        "common" if places >= 0 => {
            let places = usize::try_from(places).unwrap_or(0);
            Ok(Value::from(
                format!("{x:.places$}").parse::<f64>().unwrap_or(x),
            ))
        }
        "common" => {
            let rounded = (x * scale).round_ties_even() / scale;
            #[expect(clippy::cast_possible_truncation, reason = "it was a whole number")]
            let number = rounded as i64;
            Ok(if whole(&value).is_some() {
                Value::from(number)
            } else {
                Value::from(rounded)
            })
        }
        "ceil" => Ok(Value::from((x * scale).ceil() / scale)),
        "floor" => Ok(Value::from((x * scale).floor() / scale)),
        _ => fail("method must be common, ceil or floor"),
    }
}

fn abs(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bound("abs", ["x"], 1, args)?;
    let value = value.unwrap_or_default();
    match (whole(&value), real(&value)) {
        (Some(number), _) => Ok(Value::from(number.saturating_abs())),
        (None, Some(x)) => Ok(Value::from(x.abs())),
        _ => fail("bad operand type for abs()"),
    }
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

#[expect(clippy::float_cmp, reason = "one byte is exactly one")]
fn filesizeformat(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, binary] = bound("filesizeformat", ["value", "binary"], 1, args)?;
    let value = value.unwrap_or_default();
    let Some(bytes) = real(&value).or_else(|| value.as_str().and_then(real_of)) else {
        return fail("filesizeformat is for numbers");
    };
    let is_binary = binary.is_some_and(|binary| binary.is_true());
    let base = if is_binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{} Bytes", bytes.trunc())));
    }
    let mut unit = base;
    for (n, letter) in "kMGTPEZY".chars().enumerate() {
        unit *= base;
        if bytes < unit || n == 7 {
            let letter = if is_binary {
                letter.to_ascii_uppercase()
            } else {
                letter
            };
            let i = if is_binary { "i" } else { "" };
            return Ok(Value::from(format!(
                "{:.1} {letter}{i}B",
                base * bytes / unit
            )));
        }
    }
    Ok(value)
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
    // Values have no attributes but their methods, and a dict's items are none.
    match value.unwrap_or_default().kind() {
        ValueKind::Plain => fail("the filter attr is not supported for this value"),
        _ => Ok(Value::UNDEFINED),
    }
}

/// `json.dumps` by transformers' names, in their order.
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

//! Methods of strings, lists and dicts.

use super::arguments::bound;
use super::{format, texts};
use crate::error::fail;
use crate::values::{
    Local, View, equal, escaped, integer, is_printable, items, like, real, repr, text, type_name,
    whole,
};
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

/// `value.method(...)`.
///
/// # Errors
/// The method does not exist, or its arguments are invalid; methods that modify a value are
/// refused, as in jinja2's sandbox, but for a list that the template wrote.
pub(crate) fn call(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => of_text(value, method, args),
        ValueKind::Map => of_dict(value, method, args),
        ValueKind::Seq | ValueKind::Iterable => of_list(value, method, args),
        ValueKind::Number => of_number(value, method, args),
        _ => unknown(value, method),
    }
}

fn unknown(value: &Value, method: &str) -> Result<Value, Error> {
    if value.is_undefined() {
        return fail(format!("undefined has no {method}"));
    }
    fail(format!(
        "'{}' object has no method {method}",
        type_name(value)
    ))
}

fn of_number(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [] = bound(method, [], 0, args)?;
    match (method, whole(value), real(value)) {
        ("bit_length", Some(n), _) => Ok(Value::from(128 - n.unsigned_abs().leading_zeros())),
        ("is_integer", _, Some(x)) => Ok(Value::from(x.fract() == 0.0)),
        _ => unknown(value, method),
    }
}

fn of_list(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let ("append" | "extend" | "insert" | "pop", Some(list)) = (method, Local::get(value)) {
        return change(list, method, args);
    }
    let all = items(value)?;
    match method {
        "count" | "index" if value.kind() == ValueKind::Seq => {
            let [wanted] = bound(method, ["value"], 1, args)?;
            let wanted = wanted.unwrap_or_default();
            let mut found = all
                .iter()
                .enumerate()
                .filter(|(_, item)| equal(item, &wanted));
            if method == "count" {
                return Ok(Value::from(found.count()));
            }
            found.next().map_or_else(
                || fail("index: it is not in list"),
                |(at, _)| Ok(Value::from(at)),
            )
        }
        "copy" if !value.is_tuple() => Ok(Value::from(all)),
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse" => {
            changing(method)
        }
        _ => unknown(value, method),
    }
}

/// Changes a list that the template made.
fn change(list: &Local, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "append" => {
            let [item] = bound(method, ["object"], 1, args)?;
            list.items().extend(item);
        }
        "extend" => {
            let [more] = bound(method, ["iterable"], 1, args)?;
            let more = items(&more.unwrap_or_default())?;
            list.items().extend(more);
        }
        "insert" => {
            let [at, item] = bound(method, ["index", "object"], 2, args)?;
            let (at, mut items) = (at.unwrap_or_default(), list.items());
            let at = usize::try_from(place(method, &at, items.len())?).unwrap_or(0);
            let at = at.min(items.len());
            items.insert(at, item.unwrap_or_default());
        }
        _ => {
            let [at] = bound(method, ["index"], 0, args)?;
            let mut items = list.items();
            let at = place(method, &at.unwrap_or_else(|| Value::from(-1)), items.len())?;
            let at = usize::try_from(at).ok().filter(|at| *at < items.len());
            return at.map_or_else(
                || fail("pop: index out of range"),
                |at| Ok(items.remove(at)),
            );
        }
    }
    Ok(Value::from(()))
}

/// The index that counts from the beginning.
fn place(method: &str, at: &Value, len: usize) -> Result<i64, Error> {
    let at = integer(method, at)?;
    Ok(if at < 0 {
        at.saturating_add_unsigned(len as u64)
    } else {
        at
    })
}

fn changing(method: &str) -> Result<Value, Error> {
    fail(format!(
        "{method} would change a value, which a template may not"
    ))
}

fn of_dict(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let pairs = || {
        let keys = items(value)?.into_iter();
        let pairs = keys.map(|key| value.get_item(&key).map(|item| (key, item)));
        pairs.collect::<Result<Vec<_>, Error>>()
    };
    match method {
        "get" => {
            let [key, other] = bound(method, ["key", "default"], 1, args)?;
            let found = value.get_item(&key.unwrap_or_default())?;
            let other = other.unwrap_or_else(|| Value::from(()));
            Ok(if found.is_undefined() { other } else { found })
        }
        "keys" | "values" | "items" | "copy" => {
            let [] = bound(method, [], 0, args)?;
            let pairs = pairs()?.into_iter();
            let items: Vec<Value> = match method {
                "keys" => pairs.map(|(key, _)| key).collect(),
                "values" => pairs.map(|(_, item)| item).collect(),
                "items" => pairs.map(|(key, item)| pair(key, item)).collect(),
                _ => return Ok(Value::from_pairs(pairs)),
            };
            let shown = repr(&Value::from(items.clone()));
            Ok(View::of(format!("dict_{method}({shown})"), items))
        }
        "update" | "pop" | "popitem" | "clear" | "setdefault" => changing(method),
        _ => unknown(value, method),
    }
}

pub(crate) fn pair(a: Value, b: Value) -> Value {
    Value::from(Tuple::from([a, b]))
}

/// A string argument; `None` if it is not given.
fn word(method: &str, value: Option<&Value>) -> Result<Option<String>, Error> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => match value.as_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => fail(format!("{method}: must be str, not {}", type_name(value))),
        },
    }
}

fn needed(method: &str, value: Option<&Value>) -> Result<String, Error> {
    word(method, value)?.map_or_else(|| fail(format!("{method}: must be str, not None")), Ok)
}

/// A count; a negative one means no limit.
fn limit(method: &str, value: Option<Value>) -> Result<Option<usize>, Error> {
    let Some(value) = value.filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    Ok(usize::try_from(integer(method, &value)?).ok())
}

/// The characters from `start` to `end`, and the number of characters before them; `None` if `start` is past the end.
fn part(
    method: &str,
    chars: &[char],
    start: Option<Value>,
    end: Option<Value>,
) -> Result<Option<(usize, usize)>, Error> {
    let len = i64::try_from(chars.len()).unwrap_or(i64::MAX);
    let place = |value: Option<Value>, other: i64| match value.filter(|value| !value.is_none()) {
        None => Ok(other),
        Some(value) => {
            let at = integer(method, &value)?;
            Ok::<_, Error>(if at < 0 { (at + len).max(0) } else { at })
        }
    };
    let (start, end) = (place(start, 0)?, place(end, len)?.min(len));
    if start > len || start > end {
        return Ok(None);
    }
    let size = |at: i64| usize::try_from(at).unwrap_or(0);
    Ok(Some((size(start), size(end))))
}

#[expect(clippy::too_many_lines, reason = "an arm for each method")]
fn of_text(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let source = value.as_str().unwrap_or_default();
    let same = |text: String| Ok(like(value, text));
    let list = |parts: Vec<String>| {
        Value::from(
            parts
                .into_iter()
                .map(|part| like(value, part))
                .collect::<Vec<_>>(),
        )
    };
    let is_cased = |is: fn(char) -> bool, isnt: fn(char) -> bool| {
        source.chars().any(is) && !source.chars().any(isnt)
    };
    let all = |is: fn(char) -> bool| !source.is_empty() && source.chars().all(is);
    match method {
        "upper" | "lower" | "title" | "capitalize" | "swapcase" | "casefold" => {
            let [] = bound(method, [], 0, args)?;
            same(match method {
                "upper" => source.to_uppercase(),
                "lower" => source.to_lowercase(),
                "title" => texts::title(source),
                "capitalize" => texts::capitalize(source),
                "swapcase" => texts::swapcase(source),
                _ => source.to_lowercase().replace('ß', "ss"),
            })
        }
        "isalpha" | "isdigit" | "isdecimal" | "isnumeric" | "isalnum" | "isspace" | "istitle"
        | "isupper" | "islower" | "isascii" | "isidentifier" | "isprintable" => {
            let [] = bound(method, [], 0, args)?;
            let is_decimal = |c: char| c.is_numeric() && !"²³¹½¼¾".contains(c);
            let is_digit = |c: char| c.is_numeric() && !"½¼¾".contains(c);
            Ok(Value::from(match method {
                "isalpha" => all(char::is_alphabetic),
                "isdigit" => all(is_digit),
                "isdecimal" => all(is_decimal),
                "isnumeric" => all(char::is_numeric),
                "isalnum" => all(char::is_alphanumeric),
                "isspace" => all(texts::is_space),
                "istitle" => texts::is_title(source),
                "isupper" => is_cased(char::is_uppercase, char::is_lowercase),
                "islower" => is_cased(char::is_lowercase, char::is_uppercase),
                "isascii" => source.is_ascii(),
                "isprintable" => source.chars().all(is_printable),
                _ => {
                    let is_start = |c: char| c == '_' || c.is_alphabetic();
                    source.starts_with(is_start)
                        && source.chars().all(|c| is_start(c) || c.is_numeric())
                }
            }))
        }
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = bound(method, ["chars"], 0, args)?;
            let chars = word(method, chars.as_ref())?;
            let stripped = texts::strip(
                source,
                chars.as_deref(),
                method != "rstrip",
                method != "lstrip",
            );
            same(stripped.to_owned())
        }
        "split" | "rsplit" => {
            let [separator, most] = bound(method, ["sep", "maxsplit"], 0, args)?;
            let separator = word(method, separator.as_ref())?;
            if separator.as_deref() == Some("") {
                return fail("empty separator");
            }
            let most = limit(method, most)?;
            Ok(list(texts::split(
                source,
                separator.as_deref(),
                most,
                method == "rsplit",
            )))
        }
        "splitlines" => {
            let [keep] = bound(method, ["keepends"], 0, args)?;
            let keep = keep.is_some_and(|keep| keep.is_true());
            Ok(list(
                texts::lines(source, keep)
                    .into_iter()
                    .map(str::to_owned)
                    .collect(),
            ))
        }
        "partition" | "rpartition" => {
            let [separator] = bound(method, ["sep"], 1, args)?;
            let separator = needed(method, separator.as_ref())?;
            if separator.is_empty() {
                return fail("empty separator");
            }
            let from_right = method == "rpartition";
            let cut = if from_right {
                source.rsplit_once(&*separator)
            } else {
                source.split_once(&*separator)
            };
            let parts = match cut {
                Some((before, behind)) => [before, &separator, behind],
                None if from_right => ["", "", source],
                None => [source, "", ""],
            };
            let parts = parts.map(|part| like(value, part));
            Ok(Value::from(Tuple::from(parts.to_vec())))
        }
        "startswith" | "endswith" => {
            let [affix, start, end] = bound(method, ["prefix", "start", "end"], 1, args)?;
            let affix = affix.unwrap_or_default();
            let affixes = if affix.is_tuple() {
                items(&affix)?
            } else {
                vec![affix]
            };
            let chars: Vec<char> = source.chars().collect();
            let part = part(method, &chars, start, end)?;
            let text = part.map(|(start, end)| chars[start..end].iter().collect::<String>());
            let mut found = false;
            for affix in affixes {
                let affix = needed(method, Some(&affix))?;
                found |= text.as_ref().is_some_and(|text| match method {
                    "startswith" => text.starts_with(&affix),
                    _ => text.ends_with(&affix),
                });
            }
            Ok(Value::from(found))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [wanted, start, end] = bound(method, ["sub", "start", "end"], 1, args)?;
            let wanted = needed(method, wanted.as_ref())?;
            let chars: Vec<char> = source.chars().collect();
            let part = part(method, &chars, start, end)?;
            let text =
                part.map(|(start, end)| (start, chars[start..end].iter().collect::<String>()));
            if method == "count" {
                return Ok(Value::from(
                    text.map_or(0, |(_, text)| text.matches(&*wanted).count()),
                ));
            }
            let found = text.and_then(|(start, text)| {
                let at = if method.starts_with('r') {
                    text.rfind(&wanted)
                } else {
                    text.find(&wanted)
                };
                at.map(|at| start + text[..at].chars().count())
            });
            match found {
                Some(at) => Ok(Value::from(at)),
                None if method.ends_with("find") => Ok(Value::from(-1)),
                None => fail("substring not found"),
            }
        }
        "replace" => {
            let [old, new, most] = bound(method, ["old", "new", "count"], 2, args)?;
            let (old, new) = (
                needed(method, old.as_ref())?,
                needed_like(value, method, new)?,
            );
            let most = limit(method, most)?;
            same(texts::replace(source, &old, &new, most))
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = bound(method, ["affix"], 1, args)?;
            let affix = needed(method, affix.as_ref())?;
            let rest = if method == "removeprefix" {
                source.strip_prefix(&*affix)
            } else {
                source.strip_suffix(&*affix)
            };
            same(rest.unwrap_or(source).to_owned())
        }
        "zfill" | "ljust" | "rjust" | "center" | "expandtabs" => {
            let [width, fill] = bound(
                method,
                ["width", "fillchar"],
                usize::from(method != "expandtabs"),
                args,
            )?;
            let width = width.map_or(Ok(8), |width| integer(method, &width))?;
            let width = usize::try_from(width).unwrap_or(0);
            let fill = word(method, fill.as_ref())?.unwrap_or_else(|| " ".to_owned());
            let mut fill = fill.chars();
            let (Some(fill), None) = (fill.next(), fill.next()) else {
                return fail("the fill character must be exactly one character long");
            };
            same(match method {
                "zfill" => texts::zfill(source, width),
                "ljust" => format::padded(source, width, '<', fill),
                "rjust" => format::padded(source, width, '>', fill),
                "center" => texts::center(source, width, fill),
                _ => texts::expandtabs(source, width),
            })
        }
        "join" => {
            let [parts] = bound(method, ["iterable"], 1, args)?;
            let mut all = Vec::new();
            for part in items(&parts.unwrap_or_default())? {
                needed(method, Some(&part))?;
                all.push(if value.is_safe() {
                    escaped(&part)
                } else {
                    text(&part)
                });
            }
            same(all.join(source))
        }
        "format" => format::braces(value, args),
        "encode" | "translate" | "format_map" | "maketrans" => {
            fail(format!("the method {method} is not supported"))
        }
        _ => unknown(value, method),
    }
}

/// A string to be inserted into `value`: escaped if `value` is Markup.
fn needed_like(value: &Value, method: &str, new: Option<Value>) -> Result<String, Error> {
    let text = needed(method, new.as_ref())?;
    Ok(if value.is_safe() {
        escaped(&new.unwrap_or_default())
    } else {
        text
    })
}

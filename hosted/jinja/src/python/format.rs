//! `'%s' % values` and `'{}'.format(...)`.

use super::arguments::split;
use crate::error::fail;
use crate::values::{escaped, integer, items, like, number, real, repr, text, type_name, whole};
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

/// The format of one value.
#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// `template % values`.
#[expect(
    clippy::too_many_lines,
    reason = "a part for each part of a conversion"
)]
pub(crate) fn percent(template: &Value, values: &Value) -> Result<Value, Error> {
    let is_tuple = values.is_tuple();
    let mut all = if is_tuple {
        items(values)?
    } else {
        vec![values.clone()]
    }
    .into_iter();
    let (mut n_used, mut out) = (0, String::new());
    let source = template.as_str().unwrap_or_default();
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut name = None;
        if chars.next_if_eq(&'(').is_some() {
            name = Some(chars.by_ref().take_while(|c| *c != ')').collect::<String>());
        }
        let mut spec = Spec::default();
        while let Some(flag) = chars.next_if(|c| "-+ #0".contains(*c)) {
            match flag {
                '-' => spec.align = Some('<'),
                '#' => spec.alternate = true,
                '0' => spec.zero = true,
                '+' => spec.sign = Some('+'),
                _ => spec.sign = spec.sign.or(Some(' ')),
            }
        }
        let mut next = |n_used: &mut usize| {
            *n_used += 1;
            all.next()
                .map_or_else(|| fail("not enough arguments for format string"), Ok)
        };
        if chars.next_if_eq(&'*').is_some() {
            let width = integer("a width", &next(&mut n_used)?)?;
            spec.width = usize::try_from(width).unwrap_or(0);
            if spec.width >= WIDTH_MAX {
                return fail("a format asks for a field that is too wide");
            }
        } else {
            spec.width = digits(&mut chars)?.unwrap_or(0);
        }
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(digits(&mut chars)?.unwrap_or(0));
        }
        while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
        let Some(kind) = chars.next() else {
            return fail("incomplete format");
        };
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match &name {
            Some(name) if values.kind() == ValueKind::Map => {
                n_used += 1;
                let item = values.get_item(&Value::from(name.as_str()))?;
                if item.is_undefined() {
                    return fail(format!("format: {name:?} is missing"));
                }
                item
            }
            Some(_) => return fail("format requires a mapping"),
            None => next(&mut n_used)?,
        };
        spec.kind = Some(kind);
        out.push_str(&converted(template, &value, &spec)?);
    }
    let is_map = matches!(values.kind(), ValueKind::Map | ValueKind::Undefined);
    let is_list = matches!(values.kind(), ValueKind::Seq) && !is_tuple;
    if all.next().is_some() && !(is_map || (is_list && n_used == 0)) {
        return fail("not all arguments converted during string formatting");
    }
    Ok(like(template, out))
}

/// Formats one `%` conversion.
fn converted(template: &Value, value: &Value, spec: &Spec) -> Result<String, Error> {
    let shown = |text: String| match spec.precision {
        Some(n) => text.chars().take(n).collect(),
        None => text,
    };
    let plain = |value: &Value| {
        if template.is_safe() {
            escaped(value)
        } else {
            text(value)
        }
    };
    let text = match spec.kind {
        Some('s') => shown(plain(value)),
        Some('r' | 'a') => shown(repr(value)),
        Some('c') => match (whole(value), value.as_str()) {
            (Some(code), _) => {
                let c = u32::try_from(code).ok().and_then(char::from_u32);
                c.map_or_else(|| fail("%c is out of range"), |c| Ok(c.to_string()))?
            }
            (None, Some(text)) if text.chars().count() == 1 => text.to_owned(),
            _ => return fail("%c requires int or char"),
        },
        Some('d' | 'i' | 'u') => {
            let number = real(value).map(f64::trunc).filter(|x| x.is_finite());
            let Some(number) = number else {
                return fail(format!(
                    "%d: a number is required, not {}",
                    type_name(value)
                ));
            };
            #[expect(clippy::cast_possible_truncation, reason = "as far as 128 bits go")]
            let number = whole(value).unwrap_or(number as i128);
            return Ok(signed(
                number < 0,
                &number.unsigned_abs().to_string(),
                "",
                spec,
            ));
        }
        Some(kind @ ('x' | 'X' | 'o')) => {
            let Some(number) = whole(value) else {
                return fail(format!(
                    "%{kind}: an integer is required, not {}",
                    type_name(value)
                ));
            };
            let digits = radix(number.unsigned_abs(), kind);
            let prefix = if spec.alternate {
                format!("0{kind}")
            } else {
                String::new()
            };
            return Ok(signed(number < 0, &digits, &prefix, spec));
        }
        Some('e' | 'E' | 'f' | 'F' | 'g' | 'G') => {
            let Some(number) = real(value) else {
                return fail(format!("must be real number, not {}", type_name(value)));
            };
            let digits = float(number.abs(), spec);
            return Ok(signed(number.is_sign_negative(), &digits, "", spec));
        }
        other => return fail(format!("unsupported format character {other:?}")),
    };
    Ok(padded(&text, spec.width, spec.align.unwrap_or('>'), ' '))
}

/// `template.format(...)`.
pub(crate) fn braces(template: &Value, args: &[Value]) -> Result<Value, Error> {
    let (args, named) = split(args)?;
    let source = template.as_str().unwrap_or_default();
    let mut chars = source.chars().peekable();
    let (mut out, mut n_next) = (String::new(), 0);
    while let Some(c) = chars.next() {
        match c {
            '{' if chars.next_if_eq(&'{').is_some() => out.push('{'),
            '}' if chars.next_if_eq(&'}').is_some() => out.push('}'),
            '}' => return fail("single '}' encountered in format string"),
            '{' => {
                let field: String = chars.by_ref().take_while(|c| *c != '}').collect();
                if field.contains('{') {
                    return fail("a field within a field is not supported");
                }
                let (name, spec) = field.split_once(':').unwrap_or((&field, ""));
                let (name, conversion) = match name.split_once('!') {
                    Some((name, conversion)) => (name, Some(conversion)),
                    None => (name, None),
                };
                let value = looked_up(name, args, &named, &mut n_next)?;
                let value = match conversion {
                    Some("r" | "a") => Value::from(repr(&value)),
                    Some("s") => Value::from(text(&value)),
                    Some(other) => return fail(format!("unknown conversion {other:?}")),
                    None => value,
                };
                let written = written(&value, &parsed(spec)?)?;
                let escape = template.is_safe() && !value.is_safe();
                out.push_str(&if escape {
                    escaped(&Value::from(written))
                } else {
                    written
                });
            }
            c => out.push(c),
        }
    }
    Ok(like(template, out))
}

/// Looks up a field: `0`, `name`, `name[key].attribute`, or nothing for the next argument.
fn looked_up(
    field: &str,
    args: &[Value],
    named: &[(String, Value)],
    n_next: &mut usize,
) -> Result<Value, Error> {
    let end = field.find(['.', '[']).unwrap_or(field.len());
    let (first, mut rest) = field.split_at(end);
    let missing = || fail(format!("format: the argument {first:?} is missing"));
    let mut value = if first.is_empty() {
        *n_next += 1;
        args.get(*n_next - 1).cloned()
    } else if let Ok(n) = first.parse::<usize>() {
        args.get(n).cloned()
    } else {
        named
            .iter()
            .find(|(name, _)| name == first)
            .map(|(_, value)| value.clone())
    }
    .map_or_else(missing, Ok)?;
    while !rest.is_empty() {
        let key;
        if let Some(behind) = rest.strip_prefix('[') {
            let Some((index, more)) = behind.split_once(']') else {
                return fail("format: ] is missing");
            };
            key = index
                .parse::<i64>()
                .map_or_else(|_| Value::from(index), Value::from);
            rest = more;
        } else {
            let behind = rest.trim_start_matches('.');
            let end = behind.find(['.', '[']).unwrap_or(behind.len());
            key = Value::from(&behind[..end]);
            rest = &behind[end..];
        }
        value = value.get_item(&key)?;
    }
    Ok(value)
}

/// Parses a format specification.
fn parsed(spec: &str) -> Result<Spec, Error> {
    let mut made = Spec::default();
    let mut chars = spec.chars().peekable();
    let mut ahead = spec.chars();
    let (first, second) = (ahead.next(), ahead.next());
    let is_align = |c: Option<char>| c.filter(|c| "<>=^".contains(*c));
    if let Some(align) = is_align(second) {
        (made.fill, made.align) = (first, Some(align));
        chars.next();
        chars.next();
    } else if let Some(align) = is_align(first) {
        made.align = Some(align);
        chars.next();
    }
    made.sign = chars.next_if(|c| "+- ".contains(*c)).filter(|c| *c != '-');
    made.alternate = chars.next_if_eq(&'#').is_some();
    made.zero = chars.next_if_eq(&'0').is_some();
    made.width = digits(&mut chars)?.unwrap_or(0);
    made.grouping = chars.next_if(|c| ",_".contains(*c));
    if chars.next_if_eq(&'.').is_some() {
        made.precision = Some(digits(&mut chars)?.unwrap_or(0));
    }
    made.kind = chars.next();
    match chars.next() {
        None => Ok(made),
        Some(_) => fail(format!("invalid format specifier {spec:?}")),
    }
}

/// `format(value, spec)`.
fn written(value: &Value, spec: &Spec) -> Result<String, Error> {
    if let (Some(number), true) = (whole(value), value.kind() == ValueKind::Number) {
        let prefix = |kind: char| {
            if spec.alternate {
                format!("0{kind}")
            } else {
                String::new()
            }
        };
        match spec.kind {
            None | Some('d' | 'n') => {
                let digits = grouped(&number.unsigned_abs().to_string(), spec.grouping);
                return Ok(signed(number < 0, &digits, "", spec));
            }
            Some(kind @ ('x' | 'X' | 'o' | 'b')) => {
                let digits = radix(number.unsigned_abs(), kind);
                return Ok(signed(number < 0, &digits, &prefix(kind), spec));
            }
            _ => {}
        }
    }
    if let (Some(x), ValueKind::Number) = (real(value), value.kind()) {
        let digits = match spec.kind {
            Some('%') => {
                float(
                    x.abs() * 100.0,
                    &Spec {
                        kind: Some('f'),
                        ..Spec {
                            precision: spec.precision,
                            ..Spec::default()
                        }
                    },
                ) + "%"
            }
            Some('e' | 'E' | 'f' | 'F' | 'g' | 'G') => float(x.abs(), spec),
            None if spec.precision.is_none() => number(&Value::from(x.abs())),
            _ => return fail("this format of a number is not supported"),
        };
        let (whole, rest) = digits.split_at(digits.find(['.', 'e', '%']).unwrap_or(digits.len()));
        let digits = grouped(whole, spec.grouping) + rest;
        return Ok(signed(x.is_sign_negative(), &digits, "", spec));
    }
    if spec.kind.is_some_and(|kind| kind != 's') || spec.sign.is_some() {
        return fail(format!(
            "unknown format code for an object of type {}",
            type_name(value)
        ));
    }
    let is_plain = spec.width == 0 && spec.precision.is_none() && spec.align.is_none();
    if value.as_str().is_none() && !is_plain {
        return fail("unsupported format string");
    }
    let text = text(value);
    let text: String = text
        .chars()
        .take(spec.precision.unwrap_or(usize::MAX))
        .collect();
    let fill = spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' });
    Ok(padded(&text, spec.width, spec.align.unwrap_or('<'), fill))
}

/// Digits with their sign, padded to the width.
fn signed(is_negative: bool, digits: &str, prefix: &str, spec: &Spec) -> String {
    let sign = if is_negative {
        "-".to_owned()
    } else {
        spec.sign.map(String::from).unwrap_or_default()
    };
    let head = sign + prefix;
    let zeros = (spec.zero && spec.align.is_none()) || spec.align == Some('=');
    if zeros {
        let fill = spec.fill.unwrap_or('0');
        let width = spec.width.saturating_sub(head.chars().count());
        return head + &padded(digits, width, '>', fill);
    }
    let fill = spec.fill.unwrap_or(' ');
    padded(
        &(head + digits),
        spec.width,
        spec.align.unwrap_or('>'),
        fill,
    )
}

/// `text` aligned left (`<`), right (`>`) or centred (`^`) in `width` characters.
pub(crate) fn padded(text: &str, width: usize, align: char, fill: char) -> String {
    let room = width.saturating_sub(text.chars().count());
    let left = match align {
        '<' => 0,
        '^' => room / 2,
        _ => room,
    };
    let spaces = |n| core::iter::repeat_n(fill, n);
    spaces(left)
        .chain(text.chars())
        .chain(spaces(room - left))
        .collect()
}

fn digits(chars: &mut core::iter::Peekable<core::str::Chars<'_>>) -> Result<Option<usize>, Error> {
    let mut text = String::new();
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        text.push(digit);
    }
    match text.parse::<usize>() {
        Ok(n) if n < WIDTH_MAX => Ok(Some(n)),
        Ok(_) => fail("a format asks for a field that is too wide"),
        Err(_) if text.is_empty() => Ok(None),
        Err(_) => fail("a format asks for a field that is too wide"),
    }
}

fn radix(mut number: u128, kind: char) -> String {
    let base = match kind {
        'b' => 2,
        'o' => 8,
        _ => 16,
    };
    let mut digits = Vec::new();
    loop {
        let digit = u32::try_from(number % base).unwrap_or(0);
        digits.push(char::from_digit(digit, 16).unwrap_or('0'));
        number /= base;
        if number == 0 {
            break;
        }
    }
    let text: String = digits.into_iter().rev().collect();
    if kind == 'X' {
        text.to_uppercase()
    } else {
        text
    }
}

fn grouped(digits: &str, separator: Option<char>) -> String {
    let Some(separator) = separator else {
        return digits.to_owned();
    };
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(separator);
        }
        out.push(digit);
    }
    out
}

/// A non-negative number in C's `%e`, `%f` or `%g` format.
fn float(x: f64, spec: &Spec) -> String {
    let kind = spec.kind.unwrap_or('g');
    let precision = spec.precision.unwrap_or(6);
    let scientific = |precision: usize| {
        let text = format!("{x:.precision$e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        (digits.to_owned(), exponent)
    };
    let joined = |digits: &str, exponent: i32| {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
    };
    let bare = |digits: &str| match digits.contains('.') && !spec.alternate {
        true => digits
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
        false => digits.to_owned(),
    };
    let text = if x.is_finite() {
        match kind.to_ascii_lowercase() {
            'f' => format!("{x:.precision$}"),
            'e' => {
                let (digits, exponent) = scientific(precision);
                joined(&digits, exponent)
            }
            _ => {
                let precision = precision.max(1);
                let (digits, exponent) = scientific(precision - 1);
                let places = i32::try_from(precision).unwrap_or(i32::MAX);
                if (-4..places).contains(&exponent) {
                    let places = usize::try_from(places - 1 - exponent).unwrap_or(0);
                    bare(&format!("{x:.places$}"))
                } else {
                    joined(&bare(&digits), exponent)
                }
            }
        }
    } else {
        number(&Value::from(x))
    };
    if kind.is_ascii_uppercase() {
        text.to_uppercase()
    } else {
        text
    }
}

const WIDTH_MAX: usize = 10_000;

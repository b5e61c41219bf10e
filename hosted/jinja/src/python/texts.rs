//! Python's `str` operations on plain strings.

/// `str.splitlines`.
pub(crate) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let is_end = |c: char| {
            matches!(
                c,
                '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'
                    ..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
            )
        };
        let Some(end) = rest.find(is_end) else {
            lines.push(rest);
            break;
        };
        let len = if rest[end..].starts_with("\r\n") {
            2
        } else {
            rest[end..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(&rest[..if keep_ends { end + len } else { end }]);
        rest = &rest[end + len..];
    }
    lines
}

/// Python's white space: Unicode's, and the four ASCII separators.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// `str.split` and `str.rsplit`.
pub(crate) fn split(
    text: &str,
    separator: Option<&str>,
    most: Option<usize>,
    from_right: bool,
) -> Vec<String> {
    let most = most.unwrap_or(usize::MAX);
    if let Some(separator) = separator {
        let count = most.saturating_add(1);
        return if from_right {
            let mut parts: Vec<String> =
                text.rsplitn(count, separator).map(str::to_owned).collect();
            parts.reverse();
            parts
        } else {
            text.splitn(count, separator).map(str::to_owned).collect()
        };
    }
    let mut parts = Vec::new();
    let mut rest = if from_right {
        text.trim_end_matches(is_space)
    } else {
        text.trim_start_matches(is_space)
    };
    while !rest.is_empty() {
        let end = if from_right {
            rest.rfind(is_space)
        } else {
            rest.find(is_space)
        };
        let Some(end) = end.filter(|_| parts.len() < most) else {
            let last = if from_right {
                rest.trim_start_matches(is_space)
            } else {
                rest.trim_end_matches(is_space)
            };
            // After the maximum number of splits, the remaining part keeps the white space at its other end.
            parts.push(if parts.len() == most {
                rest.to_owned()
            } else {
                last.to_owned()
            });
            break;
        };
        if from_right {
            let after = end + rest[end..].chars().next().map_or(1, char::len_utf8);
            parts.push(rest[after..].to_owned());
            rest = rest[..end].trim_end_matches(is_space);
        } else {
            parts.push(rest[..end].to_owned());
            rest = rest[end..].trim_start_matches(is_space);
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// `str.strip`, `str.lstrip` and `str.rstrip`.
pub(crate) fn strip<'t>(text: &'t str, chars: Option<&str>, left: bool, right: bool) -> &'t str {
    let is_out = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left {
        text.trim_start_matches(is_out)
    } else {
        text
    };
    if right {
        text.trim_end_matches(is_out)
    } else {
        text
    }
}

pub(crate) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().collect::<String>());
    first.unwrap_or_default() + &chars.as_str().to_lowercase()
}

/// `str.title`: a letter that does not follow another letter is upper case.
pub(crate) fn title(text: &str) -> String {
    let mut out = String::new();
    let mut is_within = false;
    for c in text.chars() {
        if is_within {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        is_within = c.is_alphabetic();
    }
    out
}

pub(crate) fn is_title(text: &str) -> bool {
    let (mut is_within, mut any) = (false, false);
    for c in text.chars() {
        if (c.is_uppercase() && is_within) || (c.is_lowercase() && !is_within) {
            return false;
        }
        is_within = c.is_uppercase() || c.is_lowercase();
        any |= is_within;
    }
    any
}

pub(crate) fn swapcase(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
    }
    out
}

/// `str.zfill`.
pub(crate) fn zfill(text: &str, width: usize) -> String {
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => text.split_at(text.len() - digits.len()),
        None => ("", text),
    };
    let room = width.saturating_sub(text.chars().count());
    format!("{sign}{}{digits}", "0".repeat(room))
}

/// `str.center`, which puts an odd space on the same side as Python.
pub(crate) fn center(text: &str, width: usize, fill: char) -> String {
    let room = width.saturating_sub(text.chars().count());
    let left = room / 2 + (room & width & 1);
    let spaces = |n| core::iter::repeat_n(fill, n);
    spaces(left)
        .chain(text.chars())
        .chain(spaces(room - left))
        .collect()
}

pub(crate) fn expandtabs(text: &str, width: usize) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' if width > 0 => {
                let spaces = width - column % width;
                out.extend(core::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\t' => {}
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
            }
        }
    }
    out
}

/// `str.replace`, up to `most` times.
pub(crate) fn replace(text: &str, old: &str, new: &str, most: Option<usize>) -> String {
    match most {
        Some(most) => text.replacen(old, new, most),
        None => text.replace(old, new),
    }
}

//! File name patterns, as in Python's `fnmatch`.

/// Whether `text` contains a wildcard.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Whether `pattern` matches all of `text`, case-sensitively: `*` matches any characters, including slashes, `?` any
/// single one, `[ab-f]` one of the set, `[!ab]` one outside the set. A `[` without a `]` matches itself.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // The positions after the last star and of its next attempt; earlier stars never have to match more.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&'*') {
            p += 1;
            star = Some((p, t + 1));
        } else if let Some(len) = one(&pattern[p..], text[t]) {
            p += len;
            t += 1;
        } else if let Some((behind, next)) = star {
            (p, t) = (behind, next);
            star = Some((behind, next + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// The length of the pattern's first element, if it matches `c`.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['[', rest @ ..] => {
            let is_not = rest.first() == Some(&'!');
            let set = &rest[usize::from(is_not)..];
            // A bracket in first place belongs to the set.
            let end = set.iter().skip(1).position(|&c| c == ']');
            let Some(end) = end.map(|at| at + 1) else {
                return (c == '[').then_some(1);
            };
            (has(&set[..end], c) != is_not).then_some(end + 2 + usize::from(is_not))
        }
        [first, ..] => (*first == c).then_some(1),
        [] => None,
    }
}

/// Whether `c` is one of a set of characters and ranges.
fn has(mut set: &[char], c: char) -> bool {
    loop {
        set = match set {
            [] => return false,
            [first, '-', last, ..] if (first..=last).contains(&&c) => return true,
            [_, '-', _, rest @ ..] => rest,
            [one, ..] if *one == c => return true,
            [_, rest @ ..] => rest,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn patterns_mean_what_they_mean_in_python() {
        // Python 3.11: fnmatch.fnmatchcase(text, pattern).
        for (pattern, text, means) in [
            ("*", "", true),
            ("", "a", false),
            ("*Q4_K_M.gguf", "a/m-Q4_K_M.gguf", true),
            ("*q4_k_m.gguf", "m-Q4_K_M.gguf", false),
            ("m-Q?_0.gguf", "m-Q8_0.gguf", true),
            ("m-Q?_0.gguf", "m-Q_0.gguf", false),
            ("*a*b*c", "xaxbxbxc", true),
            ("*a*b*c", "xaxbxcx", false),
            ("[Qq]8", "q8", true),
            ("[!q]8", "q8", false),
            ("[!q]8", "Q8", true),
            ("Q[2-5]", "Q4", true),
            ("Q[2-5]", "Q8", false),
            ("Q[]x]", "Q]", true),
            ("Q[!]x]", "Q]", false),
            ("Q[8", "Q[8", true),
            ("Q[a-]", "Q-", true),
            ("[", "[", true),
            ("**??", "ab", true),
            ("ü?", "üü", true),
        ] {
            assert_eq!(glob(pattern, text), means, "{pattern} {text}");
        }
    }
}

//! JSON as Python reads and writes it: `NaN` and infinities as numbers, and a byte order mark left
//! by an editor.
/// The text as standard JSON. Numbers that JSON does not support become strings (`"NaN"`), so only
/// a caller that needs a number gets an error, which names the value.
pub(crate) fn standard(mut json: Vec<u8>) -> Vec<u8> {
    if json.starts_with(b"\xef\xbb\xbf") {
        json.drain(..3);
    }
    let has = |word: &[u8]| json.windows(word.len()).any(|window| window == word);
    if !has(b"NaN") && !has(b"Infinity") {
        return json;
    }
    let (mut out, mut at, mut is_text) = (Vec::with_capacity(json.len() + 64), 0, false);
    while at < json.len() {
        let rest = &json[at..];
        let word = WORDS.iter().find(|word| !is_text && rest.starts_with(word));
        if let Some(word) = word {
            out.push(b'"');
            out.extend(*word);
            out.push(b'"');
            at += word.len();
            continue;
        }
        // Keep a backslash and the character it escapes together.
        let len = if is_text && rest[0] == b'\\' {
            rest.len().min(2)
        } else {
            1
        };
        is_text ^= rest[0] == b'"';
        out.extend(&rest[..len]);
        at += len;
    }
    out
}

const WORDS: [&[u8]; 3] = [b"NaN", b"-Infinity", b"Infinity"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_s_numbers_become_texts() {
        let cases = [
            ("{\"a\": 1}", "{\"a\": 1}"),
            ("\u{feff}{\"a\":NaN}", "{\"a\":\"NaN\"}"),
            ("[-Infinity,Infinity, 1]", "[\"-Infinity\",\"Infinity\", 1]"),
            (r#"{"NaN\"NaN": NaN}"#, r#"{"NaN\"NaN": "NaN"}"#),
            (r#"["a\\", NaN, "\"#, r#"["a\\", "NaN", "\"#),
        ];
        for (python, expected) in cases {
            assert_eq!(standard(python.into()), expected.as_bytes(), "{python}");
        }
    }
}

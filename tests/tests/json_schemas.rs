//! JSON schemas against Python's jsonschema.
//!
//! The goldens are made by `tests/tools/json_schema_goldens.py`. A schema is refused by name, or
//! what it accepts is valid; and where no closing of ours is in the way, what is valid is accepted
//! (in some order of its keys, as ours is the schema's). What is written at random is
//! judged by a validator of a few lines here, which is itself held to the goldens.

use core::fmt::Write as _;
use serde_json::{Map, Value};
use sluice_core::gguf::Gguf;
use sluice_core::tokenizer::{self, Tokenizer};
use sluice_text::grammar::{Grammar, GrammarSource};

const MODEL: &[u8] = include_bytes!("../../hosted/models/tale-5.8m-Q4_K_M.gguf");
const GOLDENS: &str = include_str!("../fixtures/json_schema.json");
/// Texts of refusals, and whether they mean that no document is valid.
const REFUSALS: [(&str, bool); 6] = [
    ("not supported", false),
    ("a document can match both", false),
    ("leads back here", false),
    ("overlap", false),
    ("no document is valid", true),
    ("no document would ever end", true),
];

/// The tokens of single bytes.
fn bytes_of(tokenizer: &Tokenizer<'_>) -> Vec<u32> {
    let mut tokens = vec![0; 256];
    let mut piece = vec![0; tokenizer.piece_len_max()];
    for id in 0..tokenizer.n_vocab() {
        if let Ok(&[byte]) = tokenizer.decode_piece(id, &mut piece) {
            tokens[usize::from(byte)] = id;
        }
    }
    tokens
}

fn allows(mask: &[u64], id: u32) -> bool {
    (mask[id as usize / 64] >> (id % 64)) & 1 == 1
}

fn accepts(grammar: &mut Grammar, bytes: &[u32], text: &str) -> bool {
    grammar.restart();
    for byte in text.bytes() {
        let id = bytes[usize::from(byte)];
        let Ok(mask) = grammar.mask() else {
            return false;
        };
        if !allows(mask, id) {
            return false;
        }
        grammar.accept(id).expect("it was allowed");
    }
    grammar.may_end()
}

/// The document with its keys in every order, up to some hundred.
fn orders(value: &Value) -> Vec<String> {
    let cross = |parts: Vec<Vec<String>>| {
        let mut all = vec![Vec::new()];
        for part in parts {
            let longer = |before: &Vec<String>| {
                let one = |text: &String| [&before[..], core::slice::from_ref(text)].concat();
                part.iter().map(one).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(longer).take(200).collect();
        }
        all
    };
    match value {
        Value::Array(items) => {
            let all = cross(items.iter().map(orders).collect());
            all.iter()
                .map(|items| format!("[{}]", items.join(",")))
                .collect()
        }
        Value::Object(map) => {
            let pair = |(key, value): (&String, &Value)| {
                let key = Value::from(key.as_str());
                orders(value)
                    .iter()
                    .map(|text| format!("{key}:{text}"))
                    .collect()
            };
            let all = cross(map.iter().map(pair).collect());
            let mut texts = Vec::new();
            for pairs in all {
                permute(&mut pairs.clone(), 0, &mut texts);
            }
            texts
        }
        other => vec![other.to_string()],
    }
}

fn permute(pairs: &mut Vec<String>, from: usize, texts: &mut Vec<String>) {
    if from >= pairs.len() {
        texts.push(format!("{{{}}}", pairs.join(",")));
        return;
    }
    for n in from..pairs.len() {
        pairs.swap(from, n);
        permute(pairs, from + 1, texts);
        pairs.swap(from, n);
    }
}

/// A document by chance, or `None` if it does not end soon.
fn written(grammar: &mut Grammar, tokenizer: &Tokenizer<'_>, seed: &mut u64) -> Option<String> {
    grammar.restart();
    let (mut text, mut piece) = (Vec::new(), vec![0; tokenizer.piece_len_max()]);
    for step in 0..200 {
        let mask = grammar.mask().unwrap_or_else(|error| {
            panic!("{error} after {}", String::from_utf8_lossy(&text));
        });
        let allowed: Vec<u32> = (0..tokenizer.n_vocab())
            .filter(|&id| allows(mask, id))
            .collect();
        assert!(
            !allowed.is_empty(),
            "a dead end after {}",
            String::from_utf8_lossy(&text)
        );
        let ends = allowed
            .iter()
            .find(|&&id| tokenizer.is_end_of_generation(id));
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let drawn = usize::try_from(*seed >> 33).expect("31 bits");
        if ends.is_some() && (step > 60 || drawn % 3 == 0 || allowed.len() == 1) {
            return Some(String::from_utf8(text).expect("UTF-8"));
        }
        let mut closing = Vec::new();
        let mut others = Vec::new();
        for &id in allowed
            .iter()
            .filter(|&&id| !tokenizer.is_end_of_generation(id))
        {
            let bytes = tokenizer.decode_piece(id, &mut piece).expect("a piece");
            let is_closing = bytes.iter().all(|byte| b"\"]}0123".contains(byte));
            if is_closing {
                &mut closing
            } else {
                &mut others
            }
            .push(id);
        }
        let pool = match (closing.is_empty(), others.is_empty()) {
            (false, false) if step > 40 || drawn % 2 == 0 => &closing,
            (_, false) => &others,
            _ => &closing,
        };
        let id = pool[drawn / 4 % pool.len()];
        grammar.accept(id).expect("it was allowed");
        text.extend_from_slice(tokenizer.decode_piece(id, &mut piece).expect("a piece"));
    }
    None
}

/// JSON without duplicate keys.
fn parsed(text: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let is_colon = |(at, _): &(usize, &str)| text[*at..].starts_with("\":");
    let n_keys = text.match_indices("\":").filter(is_colon).count();
    let spaced = text.match_indices("\" :").count() + text.match_indices("\"\n").count();
    if spaced == 0 && !text.contains('\\') && keys_of(&value) < n_keys {
        return Err("a key comes twice".into());
    }
    Ok(value)
}

fn keys_of(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(keys_of).sum(),
        Value::Object(map) => map.len() + map.values().map(keys_of).sum::<usize>(),
        _ => 0,
    }
}

/// Draft 2020-12 as far as the goldens use it.
struct Validator<'s> {
    root: &'s Value,
}

impl Validator<'_> {
    /// Whether `value` is valid, and which of its properties were spoken of.
    fn check(&self, schema: &Value, value: &Value) -> (bool, Vec<String>) {
        let Some(schema) = schema.as_object() else {
            return (schema == &Value::Bool(true), Vec::new());
        };
        let mut spoken = Vec::new();
        let mut is_valid = scalars(schema, value);
        let mut also = |part: &Value, counts: bool| {
            let (holds, names) = self.check(part, value);
            if holds && counts {
                spoken.extend(names);
            }
            holds
        };
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            is_valid &= also(self.find(reference), true);
        }
        let list = |key: &str| schema.get(key).and_then(Value::as_array);
        if let Some(all) = list("allOf") {
            is_valid &= all.iter().all(|part| also(part, true));
        }
        if let Some(any) = list("anyOf") {
            is_valid &= any.iter().filter(|part| also(part, true)).count() > 0;
        }
        if let Some(one) = list("oneOf") {
            is_valid &= one.iter().filter(|part| also(part, true)).count() == 1;
        }
        if let Some(items) = value.as_array() {
            let prefix = list("prefixItems").map_or(&[][..], Vec::as_slice);
            for (n, item) in items.iter().enumerate() {
                let of_item = prefix.get(n).or_else(|| schema.get("items"));
                is_valid &= of_item.is_none_or(|part| self.check(part, item).0);
            }
        }
        if let Some(map) = value.as_object() {
            is_valid &= self.properties(schema, map, &mut spoken);
        }
        (is_valid, spoken)
    }

    fn properties(
        &self,
        schema: &Map<String, Value>,
        map: &Map<String, Value>,
        spoken: &mut Vec<String>,
    ) -> bool {
        let mut is_valid = true;
        for (name, value) in map {
            let mut is_named = false;
            let named = schema.get("properties").and_then(|all| all.get(name));
            let patterns = schema.get("patternProperties").and_then(Value::as_object);
            let matching = patterns.into_iter().flatten();
            let matching = matching.filter(|(pattern, _)| is_match(pattern, name));
            for part in named.into_iter().chain(matching.map(|(_, part)| part)) {
                is_named = true;
                is_valid &= self.check(part, value).0;
            }
            if let (false, Some(part)) = (is_named, schema.get("additionalProperties")) {
                is_named = true;
                is_valid &= self.check(part, value).0;
            }
            if is_named {
                spoken.push(name.clone());
            }
        }
        let is_closed = schema.get("unevaluatedProperties") == Some(&Value::Bool(false));
        if is_closed {
            is_valid &= map.keys().all(|name| spoken.contains(name));
        }
        is_valid
    }

    fn find(&self, reference: &str) -> &Value {
        let name = match reference {
            "#four" => "d4",
            other => other.rsplit_once('/').map_or("", |(_, name)| name),
        };
        let name = name.replace("~1", "/").replace("%20", " ");
        &self.root["$defs"][name]
    }
}

/// Checks the schema's constraints on the value itself.
fn scalars(schema: &Map<String, Value>, value: &Value) -> bool {
    let same = |a: &Value, b: &Value| a == b || (a.is_number() && a.as_f64() == b.as_f64());
    let is_type = |name: &Value| match name.as_str().unwrap_or_default() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|x| x.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        _ => value.is_object(),
    };
    let measured = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => Some(text.chars().count() as f64),
        Value::Array(items) => Some(items.len() as f64),
        Value::Object(map) => Some(map.len() as f64),
        _ => None,
    };
    let of_type = |key: &str| match key {
        "minLength" | "maxLength" => value.is_string(),
        "minItems" | "maxItems" => value.is_array(),
        "minProperties" | "maxProperties" => value.is_object(),
        _ => value.is_number(),
    };
    schema.iter().all(|(key, wanted)| match key.as_str() {
        "type" => wanted
            .as_array()
            .map_or_else(|| is_type(wanted), |all| all.iter().any(is_type)),
        "const" => same(wanted, value),
        "enum" => wanted
            .as_array()
            .is_some_and(|all| all.iter().any(|one| same(one, value))),
        "pattern" => value
            .as_str()
            .is_none_or(|text| is_match(wanted.as_str().unwrap_or_default(), text)),
        "required" => value.as_object().is_none_or(|map| {
            let names = wanted.as_array().into_iter().flatten();
            names
                .filter_map(Value::as_str)
                .all(|name| map.contains_key(name))
        }),
        key if of_type(key) => {
            let (Some(x), Some(bound)) = (measured, wanted.as_f64()) else {
                return true;
            };
            match key {
                "minimum" | "minLength" | "minItems" | "minProperties" => x >= bound,
                "maximum" | "maxLength" | "maxItems" | "maxProperties" => x <= bound,
                "exclusiveMinimum" => x > bound,
                "exclusiveMaximum" => x < bound,
                "multipleOf" => (x / bound).fract() == 0.0,
                _ => true,
            }
        }
        _ => true,
    })
}

/// The goldens' patterns.
fn is_match(pattern: &str, text: &str) -> bool {
    match pattern {
        "^[ab]+$" => !text.is_empty() && text.chars().all(|c| c == 'a' || c == 'b'),
        "^[ab]$" => text == "a" || text == "b",
        "a" => text.contains('a'),
        "^x" => text.starts_with('x'),
        "1$" => text.ends_with('1'),
        "[0-9]$" => text.ends_with(|c: char| c.is_ascii_digit()),
        "^a|b$" => text.starts_with('a') || text.ends_with('b'),
        "^.{1,3}$" => {
            (1..=3).contains(&text.chars().count())
                && !text.contains(['\n', '\r', '\u{2028}', '\u{2029}'])
        }
        other => panic!("{other} is not a pattern of the goldens"),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "each check of a schema in its turn")]
fn schemas_mean_what_jsonschema_says() {
    let gguf = Gguf::parse(MODEL, MODEL.len() as u64).expect("the project's own file");
    let mut words = vec![0; tokenizer::plan(&gguf).expect("a vocabulary").words];
    let tokenizer = Tokenizer::new(&gguf, &mut words).expect("a vocabulary");
    let bytes = bytes_of(&tokenizer);
    let goldens: Value = serde_json::from_str(GOLDENS).expect("it is JSON");
    let cases = goldens["cases"].as_array().expect("a list");
    let (mut wrong, mut n_refused, mut n_written, mut seed) = (String::new(), 0, 0, 1);
    for case in cases {
        let schema = &case["schema"];
        let documents = |key: &str| {
            let list = case[key].as_array().expect("a list").iter();
            list.filter_map(Value::as_str)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let validator = Validator { root: schema };
        let is_valid = |value: &Value| validator.check(schema, value).0;
        let mut say = |what: String| {
            let _infallible = writeln!(wrong, "{schema}\n    {what}");
        };
        for (key, expected) in [("valid", true), ("invalid", false)] {
            for text in documents(key) {
                let value = serde_json::from_str(&text).expect("a document");
                assert_eq!(
                    is_valid(&value),
                    expected,
                    "the validator here: {schema} {text}"
                );
            }
        }
        let source = GrammarSource::JsonSchema(schema.to_string());
        let mut grammar = match Grammar::new(&source, &tokenizer) {
            Ok(grammar) => grammar,
            Err(error) => {
                let message = error.to_string();
                let known = REFUSALS.iter().find(|(words, _)| message.contains(words));
                let says_none = known.is_some_and(|(_, none)| *none);
                let is_closed = case["closed"] == Value::Bool(true);
                if known.is_none() || (says_none && is_closed && !documents("valid").is_empty()) {
                    say(message);
                }
                n_refused += 1;
                continue;
            }
        };
        for text in documents("invalid") {
            if accepts(&mut grammar, &bytes, &text) {
                say(format!("accepts {text}"));
            }
        }
        for text in documents("valid") {
            let value = serde_json::from_str(&text).expect("a document");
            let mut all = orders(&value).into_iter();
            let is_accepted = all.any(|text| accepts(&mut grammar, &bytes, &text));
            if case["closed"] == Value::Bool(true) && !is_accepted {
                say(format!("does not accept {text}"));
            }
        }
        for _ in 0..3 {
            let Some(text) = written(&mut grammar, &tokenizer, &mut seed) else {
                continue;
            };
            n_written += 1;
            match parsed(&text) {
                Ok(value) if is_valid(&value) => {}
                Ok(_) => say(format!("writes {text}")),
                // JSON has numbers that are larger than any here.
                Err(error) if error.contains("out of range") => n_written -= 1,
                Err(error) => say(format!("writes {text}: {error}")),
            }
        }
    }
    assert!(cases.len() - n_refused >= 300, "{n_refused} refused");
    assert!(n_written > 500, "{n_written} written");
    let n = wrong.lines().count() / 2;
    assert!(n == 0, "{n} differences:\n{wrong}");
}

/// Whole numbers that doubles do not hold: the schemas are text, as are the numbers. Schemas beyond 64 bits are refused.
#[test]
fn whole_numbers_are_as_exact_as_pythons() {
    let gguf = Gguf::parse(MODEL, MODEL.len() as u64).expect("the project's own file");
    let mut words = vec![0; tokenizer::plan(&gguf).expect("a vocabulary").words];
    let tokenizer = Tokenizer::new(&gguf, &mut words).expect("a vocabulary");
    let bytes = bytes_of(&tokenizer);
    let goldens: Value = serde_json::from_str(GOLDENS).expect("it is JSON");
    let cases = goldens["long_numbers"].as_array().expect("a list");
    let (mut n_valid, mut n_invalid, mut n_refused) = (0, 0, 0);
    for case in cases {
        let schema = case["schema"].as_str().expect("a text");
        let source = GrammarSource::JsonSchema(schema.to_owned());
        let made = Grammar::new(&source, &tokenizer);
        let numbers = schema.split(|c: char| !c.is_ascii_digit() && c != '-');
        let mut numbers = numbers.filter(|text| !text.is_empty());
        if !numbers.all(|text| text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok()) {
            let message = made.expect_err(schema).to_string();
            assert!(
                message.contains("cannot be represented exactly"),
                "{message}"
            );
            n_refused += 1;
            continue;
        }
        let mut grammar = made.expect(schema);
        for (key, expected, n) in [
            ("valid", true, &mut n_valid),
            ("invalid", false, &mut n_invalid),
        ] {
            let list = case[key].as_array().expect("a list").iter();
            for text in list.filter_map(Value::as_str) {
                let is_accepted = accepts(&mut grammar, &bytes, text);
                assert_eq!(is_accepted, expected, "{schema}: {text}");
                *n += 1;
            }
        }
    }
    assert!(n_valid > 50, "{n_valid} valid");
    assert!(n_invalid > 100, "{n_invalid} invalid");
    assert!(n_refused > 10, "{n_refused} refused");
}

//! Bodies that differ from good ones.

use super::bodies::body;
use serde_json::{Map, Value, json};

/// A request with a body that was changed.
pub(super) struct Mutant {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) body: Vec<u8>,
    /// The names of all fields, before and after the change.
    pub(super) fields: Vec<String>,
}

/// Random numbers: SplitMix64.
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap_or(0)
    }
}

impl Mutant {
    /// The request with this number: all routes in turn.
    pub(super) fn new(routes: &[(&'static str, &'static str)], seed: u64, number: u64) -> Self {
        let mut random = Random(seed ^ number.wrapping_mul(0xa076_1d64_78bd_642f));
        let (method, route) = routes[usize::try_from(number).unwrap_or(0) % routes.len()];
        let mut value = body(route);
        let mut fields = Vec::new();
        names(&value, &mut fields);
        for _ in 0..=random.below(3) {
            change(&mut value, &mut random, 0);
        }
        names(&value, &mut fields);
        let mut bytes = value.to_string().into_bytes();
        if random.below(8) == 0 {
            scratch(&mut bytes, &mut random);
        }
        fields.extend(
            [
                "model",
                "messages",
                "max_tokens",
                "input",
                "id_slot",
                "action",
                "name",
            ]
            .map(str::to_owned),
        );
        fields.sort_unstable();
        fields.dedup();
        Self {
            method,
            path: path(route, &mut random),
            body: if method == "GET" { Vec::new() } else { bytes },
            fields,
        }
    }
}

/// A path of the route.
fn path(route: &str, random: &mut Random) -> String {
    let parts = route.split('/').map(|part| match part.starts_with('{') {
        true => ["tale", "0", "99999999999", "%ff", "-1", "a%2Fb"][random.below(6)],
        false => part,
    });
    let mut path = parts.collect::<Vec<_>>().join("/");
    if random.below(10) == 0 {
        path += [
            "?model=x",
            "?beta=true",
            "?",
            "?autoload=maybe",
            "?action=erase",
            "?reload=1",
            "?%zz&&=",
            "?model=tale",
        ][random.below(8)];
    }
    // The stream of models' states has no end.
    match &*path {
        sse if sse.starts_with("/models/sse") => "/models/none".to_owned(),
        _ => path,
    }
}

/// The names of all fields.
fn names(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                found.extend((!name.is_empty()).then(|| name.clone()));
                names(value, found);
            }
        }
        Value::Array(all) => all.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}

/// Changes one place of a value.
fn change(value: &mut Value, random: &mut Random, depth: usize) {
    let goes_deeper = depth < 6 && random.below(4) != 0;
    match value {
        Value::Object(fields) if goes_deeper && !fields.is_empty() => {
            let at = random.below(fields.len());
            let name = fields.keys().nth(at).cloned().unwrap_or_default();
            match random.below(12) {
                0 => {
                    fields.remove(&name);
                }
                1 => {
                    let moved = fields.remove(&name).unwrap_or_default();
                    fields.insert(odd_name(random), moved);
                }
                2 => {
                    fields.insert(odd_name(random), odd(random));
                }
                _ => {
                    if let Some(inner) = fields.get_mut(&name) {
                        change(inner, random, depth + 1);
                    }
                }
            }
        }
        Value::Array(all) if goes_deeper && !all.is_empty() => {
            let at = random.below(all.len());
            match random.below(10) {
                0 => {
                    all.remove(at);
                }
                1 => {
                    let copy = all[at].clone();
                    all.extend(core::iter::repeat_n(copy, 1 + random.below(40)));
                }
                2 => all.push(odd(random)),
                _ => change(&mut all[at], random, depth + 1),
            }
        }
        Value::Number(number) if random.below(2) == 0 => {
            let near = number.as_f64().unwrap_or(0.0);
            let factor = [-1.0, 0.0, 2.0, 1e3, 1e300, -1e9, 0.5][random.below(7)];
            *value = json!(near * factor);
        }
        Value::String(text) if random.below(2) == 0 => mangle(text, random),
        _ => *value = odd(random),
    }
}

fn odd_name(random: &mut Random) -> String {
    [
        "",
        "unknown",
        "tools",
        "stop",
        "grammar",
        "n",
        "images",
        "\u{0}",
        "messages ",
        "model",
    ][random.below(10)]
    .to_owned()
}

fn mangle(text: &mut String, random: &mut Random) {
    match random.below(6) {
        0 => text.clear(),
        1 => *text = text.repeat(1 + random.below(200)),
        2 => text.push_str("\u{0}\u{fffd}\u{202e}<|im_end|>"),
        3 => *text = text.to_uppercase(),
        4 => text.insert_str(0, "{\"a\": ["),
        _ => text.truncate(text.char_indices().map(|(at, _)| at).nth(1).unwrap_or(0)),
    }
}

/// A value that few fields expect.
fn odd(random: &mut Random) -> Value {
    match random.below(22) {
        0 => Value::Null,
        1 => true.into(),
        2 => false.into(),
        3 => 0.into(),
        4 => (-1).into(),
        5 => json!(u64::MAX),
        6 => json!(i64::MIN),
        7 => json!(1e308),
        8 => json!(0.1),
        9 => "".into(),
        10 => "\u{0}".into(),
        11 => "x".repeat(random.below(3000)).into(),
        12 => json!([]),
        13 => json!({}),
        14 => json!([null]),
        15 => json!({"": {}}),
        16 => json!([[[[[[1]]]]]]),
        17 => nested(random.below(200)),
        18 => json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}),
        19 => json!({"type": "string", "pattern": "(a|b"}),
        20 => "root ::= (".into(),
        _ => Value::Object(
            (0..random.below(30))
                .map(|i| (format!("k{i}"), json!(i)))
                .collect::<Map<_, _>>(),
        ),
    }
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(Value::Null, |inner, _| json!([inner]))
}

/// Changes bytes.
fn scratch(bytes: &mut Vec<u8>, random: &mut Random) {
    match random.below(5) {
        0 => bytes.truncate(random.below(bytes.len() + 1)),
        1 => bytes.clear(),
        2 => bytes
            .splice(0..0, "[".repeat(random.below(5000)).into_bytes())
            .for_each(drop),
        _ => {
            for _ in 0..=random.below(4) {
                if !bytes.is_empty() {
                    let at = random.below(bytes.len());
                    bytes[at] = (random.next() & 0xff) as u8;
                }
            }
        }
    }
}

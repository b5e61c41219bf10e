//! The text processing that a `tokenizer.json` describes before and after its model, as a list of steps.
//!
//! Every component is read completely: an unknown component or setting is an error that names it. Each kind of
//! vocabulary decides which steps a GGUF file can express.

use serde_json::{Map, Value};
use sluice_core::kernels::words;
use sluice_hf::short;

/// One component of a normalizer, a pre-tokenizer, a decoder or a post-processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    /// Its `type`.
    pub(super) kind: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Step<'a> {
    pub(super) fn get(self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn bool(self, key: &str) -> Option<bool> {
        self.get(key).and_then(Value::as_bool)
    }

    pub(super) fn str(self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(Value::as_str)
    }

    /// A `pattern`: (whether it is a regular expression, its text).
    pub(super) fn pattern(self) -> Option<(bool, &'a str)> {
        let pattern = self.get("pattern")?;
        let text = |key| pattern.get(key).and_then(Value::as_str);
        let regex = text("Regex").map(|text| (true, text));
        regex.or_else(|| Some((false, text("String")?)))
    }

    /// The component in readable form.
    pub(super) fn told(self) -> String {
        let settings = self.map.iter().filter(|(key, _)| *key != "type");
        let settings: Vec<_> = settings
            .map(|(key, value)| format!("{key} {}", short(value)))
            .collect();
        match settings.as_slice() {
            [] => self.kind.into(),
            some => format!("{} ({})", self.kind, some.join(", ")),
        }
    }

    /// Whether it replaces `from` with `to`.
    pub(super) fn replaces(self, from: &str, to: &str) -> bool {
        self.kind == "Replace"
            && self.pattern() == Some((false, from))
            && self.str("content") == Some(to)
    }
}

/// The steps of a component, with sequences flattened; empty for null.
///
/// # Errors
/// A component that is not an object of a known type, or has an unknown setting.
pub(super) fn steps(component: &Value) -> Result<Vec<Step<'_>>, String> {
    let mut all = Vec::new();
    lay_out(component, &mut all)?;
    Ok(all)
}

fn lay_out<'a>(component: &'a Value, all: &mut Vec<Step<'a>>) -> Result<(), String> {
    let map = match component {
        Value::Null => return Ok(()),
        Value::Object(map) => map,
        other => return Err(format!("{} is not a component", short(other))),
    };
    let Some(kind) = map.get("type").and_then(Value::as_str) else {
        return Err(format!("{} has no type", short(component)));
    };
    if kind == "Sequence" {
        let parts = SEQUENCES.iter().find_map(|key| map.get(*key)?.as_array());
        for part in parts.into_iter().flatten() {
            lay_out(part, all)?;
        }
        return Ok(());
    }
    let step = Step { kind, map };
    if !SETTINGS.iter().any(|(name, _)| *name == kind) {
        return Err(format!("unknown component {}", step.told()));
    }
    // One that belongs to another component has no effect here: older programs wrote some into post-processors.
    let is_known = |key: &str| SETTINGS.iter().any(|(_, settings)| settings.contains(&key));
    let mut keys = map.keys().map(String::as_str);
    if let Some(key) = keys.find(|key| *key != "type" && !is_known(key)) {
        return Err(format!("{kind} has the unknown setting {key:?}"));
    }
    all.push(step);
    Ok(())
}

/// The keys that hold the parts of the four kinds of sequences.
const SEQUENCES: [&str; 4] = ["normalizers", "pretokenizers", "decoders", "processors"];

/// The components of Hugging Face's `tokenizers` with their settings.
const SETTINGS: [(&str, &[&str]); 33] = [
    ("BPEDecoder", &["suffix"]),
    (
        "BertNormalizer",
        &[
            "clean_text",
            "handle_chinese_chars",
            "strip_accents",
            "lowercase",
        ],
    ),
    ("BertPreTokenizer", &[]),
    ("BertProcessing", &["sep", "cls"]),
    ("ByteFallback", &[]),
    (
        "ByteLevel",
        &["add_prefix_space", "trim_offsets", "use_regex"],
    ),
    ("CTC", &["pad_token", "word_delimiter_token", "cleanup"]),
    ("CharDelimiterSplit", &["delimiter"]),
    ("Digits", &["individual_digits"]),
    ("FixedLength", &["length"]),
    ("Fuse", &[]),
    ("Lowercase", &[]),
    (
        "Metaspace",
        words!("replacement add_prefix_space prepend_scheme split str_rep"),
    ),
    ("NFC", &[]),
    ("NFD", &[]),
    ("NFKC", &[]),
    ("NFKD", &[]),
    ("Nmt", &[]),
    ("Precompiled", &["precompiled_charsmap"]),
    ("Prepend", &["prepend"]),
    ("Punctuation", &["behavior"]),
    ("Replace", &["pattern", "content"]),
    (
        "RobertaProcessing",
        &["sep", "cls", "trim_offsets", "add_prefix_space"],
    ),
    ("Split", &["pattern", "behavior", "invert"]),
    (
        "Strip",
        &["strip_left", "strip_right", "content", "start", "stop"],
    ),
    ("StripAccents", &[]),
    ("TemplateProcessing", &["single", "pair", "special_tokens"]),
    ("UnicodeScripts", &[]),
    ("Whitespace", &[]),
    ("WhitespaceSplit", &[]),
    ("WordLevel", &[]),
    ("WordPiece", &["prefix", "cleanup"]),
    ("XLNet", &[]),
];

/// Whether the normalizer of a byte-level vocabulary is canonical composition (NFC). Typed text is usually composed
/// already, so the file works without it.
///
/// # Errors
/// Any other step, which a GGUF file cannot express.
pub(super) fn composes(normalizer: &Value) -> Result<bool, String> {
    let steps = steps(normalizer)?;
    match steps.iter().find(|step| step.kind != "NFC") {
        Some(other) => Err(no_place("normalizer", *other)),
        None => Ok(!steps.is_empty()),
    }
}

/// The message for a component that a GGUF file cannot express.
pub(super) fn no_place(section: &str, step: Step<'_>) -> String {
    format!(
        "the {section}'s step {} changes the tokens or the text, which GGUF cannot express",
        step.told()
    )
}

/// How spaces of a text become U+2581, if they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spaces {
    /// Where a space is prepended.
    pub(super) prefix: Prefix,
    /// Whether none is prepended where there is one.
    pub(super) if_missing: bool,
    /// Whether words are cut at spaces before they are merged.
    pub(super) splits: bool,
}

/// Where a space is prepended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    Never,
    /// Before the text only.
    First,
    /// Before the text, and after each special token.
    Always,
}

/// U+2581, which stands for a space.
pub(super) const SPACE: &str = "\u{2581}";

impl Spaces {
    /// `None` if spaces stay spaces, as in other kinds of vocabulary.
    ///
    /// # Errors
    /// Steps other than the ones that turn spaces into U+2581.
    pub(super) fn of(normalizer: &Value, pre_tokenizer: &Value) -> Result<Option<Self>, String> {
        let (before, cuts) = (steps(normalizer)?, steps(pre_tokenizer)?);
        let replaces = before.iter().any(|step| step.replaces(" ", SPACE));
        if !replaces && !cuts.iter().any(|step| step.kind == "Metaspace") {
            return Ok(None);
        }
        let mut own = Self {
            prefix: Prefix::Never,
            if_missing: false,
            splits: false,
        };
        for step in before {
            match step.kind {
                "Prepend" if step.str("prepend") == Some(SPACE) => own.prefix = Prefix::Always,
                "Replace" if step.replaces(" ", SPACE) => {}
                _ => return Err(no_place("normalizer", step)),
            }
        }
        for step in cuts {
            // Its spaces have already been replaced, so it does not cut anything.
            let is_idle = step.kind == "Split" && step.pattern() == Some((false, " ")) && replaces;
            if step.kind == "Metaspace" && step.str("replacement") == Some(SPACE) {
                own.prefix = prefix_of(step)?;
                own.if_missing = true;
                own.splits = step.bool("split") != Some(false);
            } else if !is_idle {
                return Err(no_place("pre_tokenizer", step));
            }
        }
        Ok(Some(own))
    }
}

/// Where a `Metaspace` prepends a space; old files use `add_prefix_space`.
pub(super) fn prefix_of(metaspace: Step<'_>) -> Result<Prefix, String> {
    match (
        metaspace.str("prepend_scheme"),
        metaspace.bool("add_prefix_space"),
    ) {
        (Some("always"), _) | (None, Some(true) | None) => Ok(Prefix::Always),
        (Some("first"), _) => Ok(Prefix::First),
        (Some("never"), _) | (None, Some(false)) => Ok(Prefix::Never),
        (Some(_), _) => Err(no_place("pre_tokenizer", metaspace)),
    }
}

/// Checks that tokens become text the way a GGUF reader decodes byte-level pieces.
///
/// # Errors
/// A step that changes the text.
pub(super) fn check_byte_decoder(decoder: &Value) -> Result<(), String> {
    match steps(decoder)?.iter().find(|step| step.kind != "ByteLevel") {
        Some(step) => Err(no_place("decoder", *step)),
        None => Ok(()),
    }
}

/// Checks that tokens become text the way a GGUF reader decodes pieces with U+2581 for spaces.
///
/// # Errors
/// A step that changes the text.
pub(super) fn check_space_decoder(decoder: &Value) -> Result<(), String> {
    let is_fine = |step: &Step<'_>| match step.kind {
        "ByteFallback" | "Fuse" => true,
        "Replace" => step.replaces(SPACE, " "),
        // The space that was prepended to the text.
        "Strip" => {
            step.str("content") == Some(" ") && step.get("stop").and_then(Value::as_u64) == Some(0)
        }
        "Metaspace" => step.str("replacement") == Some(SPACE),
        _ => false,
    };
    match steps(decoder)?.iter().find(|step| !is_fine(step)) {
        Some(step) => Err(no_place("decoder", *step)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn components_are_read_whole() {
        let sequence = json!({"type": "Sequence", "normalizers": [
            {"type": "Sequence", "normalizers": [{"type": "NFC"}]}, {"type": "Lowercase"}]});
        let kinds: Vec<_> = steps(&sequence)
            .expect("known")
            .iter()
            .map(|s| s.kind)
            .collect();
        assert_eq!(kinds, ["NFC", "Lowercase"]);
        for (component, expected) in [
            (
                json!({"type": "Novel", "a": 1}),
                "unknown component Novel (a 1)",
            ),
            (
                json!({"type": "NFC", "form": "C"}),
                "NFC has the unknown setting \"form\"",
            ),
            (json!([1]), "[1] is not a component"),
            (json!({"a": 1}), "has no type"),
        ] {
            let told = steps(&component).expect_err("unknown");
            assert!(told.contains(expected), "{told}");
        }
    }

    #[test]
    fn normalizers_are_kept_or_refused() {
        let of = |kinds: &[&str]| {
            let parts: Vec<_> = kinds.iter().map(|kind| json!({ "type": kind })).collect();
            composes(&json!({"type": "Sequence", "normalizers": parts}))
        };
        assert_eq!(of(&[]), Ok(false));
        assert_eq!(of(&["NFC"]), Ok(true));
        for kinds in [
            &["NFKC"][..],
            &["NFD"],
            &["StripAccents"],
            &["Nmt"],
            &["NFC", "Lowercase"],
        ] {
            assert!(
                of(kinds)
                    .expect_err("cannot express")
                    .contains("normalizer's step")
            );
        }
        let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b"});
        assert!(
            composes(&replace)
                .expect_err("cannot express")
                .contains("Replace")
        );
    }

    #[test]
    fn spaces_are_put_where_the_rules_put_them() {
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
        let prepend = json!({"type": "Prepend", "prepend": SPACE});
        let both = json!({"type": "Sequence", "normalizers": [prepend, replace]});
        let meta = |scheme: &str| json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": false});
        let old = |flag: bool| json!({"type": "Metaspace", "replacement": SPACE, "add_prefix_space": flag});
        let gemma =
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"});
        let null = Value::Null;
        for (normalizer, pre, prefix, if_missing, splits) in [
            (&both, null.clone(), Prefix::Always, false, false),
            (&replace, null.clone(), Prefix::Never, false, false),
            (&replace, gemma, Prefix::Never, false, false),
            (&null, meta("never"), Prefix::Never, true, false),
            (&null, meta("first"), Prefix::First, true, false),
            (&null, meta("always"), Prefix::Always, true, false),
            (&null, old(true), Prefix::Always, true, true),
            (&null, old(false), Prefix::Never, true, true),
        ] {
            let expected = Spaces {
                prefix,
                if_missing,
                splits,
            };
            let own = Spaces::of(normalizer, &pre);
            assert_eq!(own, Ok(Some(expected)), "{normalizer} {pre}");
        }
        assert_eq!(Spaces::of(&null, &json!({"type": "ByteLevel"})), Ok(None));
        let nfkc = json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, replace]});
        assert!(Spaces::of(&nfkc, &null).is_err());
    }
}

//! Which pre-tokenizer a `tokenizer.json` describes, by llama.cpp's names.
//!
//! GGUF files name the rules that split text before byte-pair encoding (`tokenizer.ggml.pre`).
//! llama.cpp's converter recognises vocabularies by a hash of a tokenised test text; here the rules
//! themselves are recognised, so that any vocabulary with known rules can be converted.
//! Names that llama.cpp treats alike share one name here (`qwen2` also covers `deepseek-r1-qwen`).

use super::rules::{Step, steps};
use serde_json::Value;
use sluice_core::kernels::words;

/// The name of the rules in a tokenizer's `normalizer` and `pre_tokenizer`, or, if they are
/// unknown, a readable description of them.
///
/// `ignore_merges` is the BPE model's flag: whether a word that is itself a token is taken whole.
///
/// # Errors
/// The rules in short, in order.
pub fn pre_tokenizer_name(
    normalizer: &Value,
    pre_tokenizer: &Value,
    ignore_merges: bool,
) -> Result<&'static str, String> {
    let rules: Vec<_> = match steps(pre_tokenizer)?.as_slice() {
        [] => vec!["nothing".into()],
        all => all.iter().map(|step| told(*step)).collect(),
    };
    let is_nfc = has_type(normalizer, "NFC");
    let known = rules.iter().map(String::as_str).collect::<Vec<_>>();
    let name = match known.as_slice() {
        ["ByteLevel regex"] if is_nfc => "olmo",
        ["ByteLevel regex"] => "gpt-2",
        ["Digits", "ByteLevel regex"] if is_nfc => "command-r",
        ["Digits", "ByteLevel regex"] => "smollm",
        [
            "Punctuation",
            "ByteLevel regex",
            "Digits contiguous",
            "Split [0-9][0-9][0-9]",
        ] => "falcon",
        [split, "ByteLevel"] => match split.strip_prefix("Split ") {
            Some(LLAMA3) if ignore_merges => "llama-bpe",
            Some(LLAMA3) => "dbrx",
            Some(QWEN2) => "qwen2",
            Some(QWEN35) => "qwen35",
            Some(TEKKEN) => "tekken",
            Some(GPT4O) => "gpt-4o",
            Some(SEED_CODER) => "seed-coder",
            _ => return Err(known.join(", ")),
        },
        ["Split \\p{N}{1,3}", CJK, DEEPSEEK3, "ByteLevel"] => "deepseek-v3",
        [
            LINES,
            LETTERS,
            PUNCTUATION,
            LAST_SPACES,
            CJK_WIDE,
            "Digits",
            "ByteLevel",
        ] => "deepseek-llm",
        [
            LINES,
            "Split \\s?\\p{L}+",
            "Split \\s?\\p{P}+",
            CJK_WIDE,
            "Digits",
            "ByteLevel",
        ] => "deepseek-coder",
        _ => return Err(known.join(", ")),
    };
    Ok(name)
}

/// A short description of a rule.
fn told(step: Step<'_>) -> String {
    match step.kind {
        "ByteLevel" if step.bool("add_prefix_space") == Some(true) => {
            "ByteLevel with a space before the text".into()
        }
        "ByteLevel" if step.bool("use_regex") == Some(false) => "ByteLevel".into(),
        // Files older than the flag use the regex.
        "ByteLevel" => "ByteLevel regex".into(),
        "Digits" if step.bool("individual_digits") == Some(true) => "Digits".into(),
        "Digits" => "Digits contiguous".into(),
        "Split" => {
            let text = match step.pattern() {
                Some((true, text)) => text.to_owned(),
                Some((false, text)) => format!("the text {text:?}"),
                None => "?".into(),
            };
            // If everything matches, removing the rest cuts the text like isolating the matches.
            match (step.str("behavior"), step.bool("invert") == Some(true)) {
                (Some("Isolated"), _) | (Some("Removed"), true) => format!("Split {text}"),
                (other, _) => format!("Split ({}) {text}", other.unwrap_or("?")),
            }
        }
        other => other.into(),
    }
}

/// Whether llama.cpp takes this name to mean that a word that is itself a token is taken whole.
pub(super) fn ignores_merges(name: &str) -> bool {
    const NAMES: [&str; 15] = words(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken \
         glm4 glm5 minicpm5 youtu granite-embed-multi-97m",
    );
    NAMES.contains(&name)
}

/// Whether a name implies NFC composition, if the file does not state it.
pub(super) fn implies_nfc(name: &str) -> bool {
    ["qwen2", "qwen35", "deepseek-r1-qwen", "olmo", "command-r"].contains(&name)
}

fn has_type(rule: &Value, name: &str) -> bool {
    let parts = rule.get("normalizers").and_then(Value::as_array);
    rule.get("type").and_then(Value::as_str) == Some(name)
        || parts.into_iter().flatten().any(|part| has_type(part, name))
}

// The patterns as published in the `tokenizer.json` of the models that introduced them; llama.cpp
// quotes them next to its own forms (`src/llama-vocab.cpp`).

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const SEED_CODER: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

const CJK: &str = "Split [一-龥\u{3040}-ゟ゠-ヿ]+";

// From the first DeepSeek models.

const LINES: &str = "Split [\r\n]";

const LETTERS: &str = r"Split \s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

const PUNCTUATION: &str = "Split \\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+";

const LAST_SPACES: &str = r"Split \s+$";

const CJK_WIDE: &str = "Split [一-龥ࠀ-一가-\u{d7ff}]+";

const DEEPSEEK3: &str = "Split [!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn split(pattern: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
               "invert": false})
    }

    fn bytes(use_regex: bool) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": use_regex})
    }

    fn sequence(parts: &[Value]) -> Value {
        json!({"type": "Sequence", "pretokenizers": parts})
    }

    #[test]
    fn known_rules_have_llama_cpp_s_names() {
        let nfc = json!({"type": "NFC"});
        let digits = json!({"type": "Digits", "individual_digits": true});
        let deepseek = [LINES, LETTERS, PUNCTUATION, LAST_SPACES, CJK_WIDE];
        let cuts = deepseek.map(|rule| split(rule.trim_start_matches("Split ")));
        let deepseek = [&cuts[..], &[digits.clone(), bytes(false)]].concat();
        let cases = [
            (Value::Null, bytes(true), false, "gpt-2"),
            (nfc.clone(), bytes(true), false, "olmo"),
            (Value::Null, sequence(&deepseek), false, "deepseek-llm"),
            (
                Value::Null,
                sequence(&[digits, bytes(true)]),
                false,
                "smollm",
            ),
            (
                Value::Null,
                sequence(&[split(LLAMA3), bytes(false)]),
                true,
                "llama-bpe",
            ),
            (
                Value::Null,
                sequence(&[split(LLAMA3), bytes(false)]),
                false,
                "dbrx",
            ),
            (nfc, sequence(&[split(QWEN2), bytes(false)]), false, "qwen2"),
            (
                Value::Null,
                sequence(&[split(TEKKEN), bytes(false)]),
                true,
                "tekken",
            ),
            (
                Value::Null,
                sequence(&[split(GPT4O), bytes(false)]),
                false,
                "gpt-4o",
            ),
        ];
        for (normalizer, rules, ignore_merges, name) in cases {
            assert_eq!(
                pre_tokenizer_name(&normalizer, &rules, ignore_merges),
                Ok(name)
            );
        }
    }

    #[test]
    fn unknown_rules_are_told() {
        let rules = sequence(&[split("x+"), bytes(false)]);
        let told = pre_tokenizer_name(&Value::Null, &rules, false);
        assert_eq!(told, Err("Split x+, ByteLevel".into()));
        assert_eq!(
            pre_tokenizer_name(&Value::Null, &Value::Null, false),
            Err("nothing".into())
        );
    }
}

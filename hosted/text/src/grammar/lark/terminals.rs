//! Terminals of Lark's notation, and their texts inside of strings of JSON.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Repetition};

/// A text in quotes, as JSON and Lark have it.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A regular expression between slashes.
pub(super) fn delimited(pattern: &str) -> String {
    format!("/{}/", pattern.replace('/', "\\/"))
}

/// Refuses what depends on the text around a terminal.
pub(super) fn check_anchors(hir: &Hir) -> Result<(), &'static str> {
    match hir.kind() {
        HirKind::Look(_) => Err("an anchor or a word boundary"),
        HirKind::Class(Class::Bytes(_)) => Err("a class of bytes"),
        HirKind::Repetition(repetition) => check_anchors(&repetition.sub),
        HirKind::Capture(capture) => check_anchors(&capture.sub),
        HirKind::Concat(all) | HirKind::Alternation(all) => all.iter().try_for_each(check_anchors),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) => Ok(()),
    }
}

/// A pattern of the texts of `hir` as they are written in a string of JSON.
pub(super) fn escaped(hir: &Hir) -> Hir {
    match hir.kind() {
        HirKind::Literal(literal) => {
            let text = String::from_utf8_lossy(&literal.0);
            let json = quoted(&text);
            Hir::literal(json.as_bytes()[1..json.len() - 1].to_vec())
        }
        HirKind::Class(Class::Unicode(class)) => escaped_class(class),
        HirKind::Repetition(repetition) => Hir::repetition(Repetition {
            sub: Box::new(escaped(&repetition.sub)),
            ..repetition.clone()
        }),
        HirKind::Capture(capture) => escaped(&capture.sub),
        HirKind::Concat(all) => Hir::concat(all.iter().map(escaped).collect()),
        HirKind::Alternation(all) => Hir::alternation(all.iter().map(escaped).collect()),
        HirKind::Empty | HirKind::Look(_) | HirKind::Class(Class::Bytes(_)) => hir.clone(),
    }
}

/// The characters that JSON escapes.
fn special() -> ClassUnicode {
    let range = |first: char, last: char| ClassUnicodeRange::new(first, last);
    ClassUnicode::new([range('\0', '\x1f'), range('"', '"'), range('\\', '\\')])
}

/// Whether a pattern has characters that JSON escapes.
pub(super) fn has_special(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Literal(literal) => {
            let is_special = |byte: &u8| *byte < 0x20 || matches!(byte, b'"' | b'\\');
            literal.0.iter().any(is_special)
        }
        HirKind::Class(Class::Unicode(class)) => {
            let mut both = class.clone();
            both.intersect(&special());
            !both.ranges().is_empty()
        }
        HirKind::Repetition(repetition) => has_special(&repetition.sub),
        HirKind::Capture(capture) => has_special(&capture.sub),
        HirKind::Concat(all) | HirKind::Alternation(all) => all.iter().any(has_special),
        HirKind::Empty | HirKind::Look(_) | HirKind::Class(Class::Bytes(_)) => false,
    }
}

/// The characters of a class, those that JSON escapes one by one.
fn escaped_class(class: &ClassUnicode) -> Hir {
    let special = special();
    let mut plain = class.clone();
    plain.difference(&special);
    let mut escapes = class.clone();
    escapes.intersect(&special);
    let mut all = vec![Hir::class(Class::Unicode(plain))];
    for range in escapes.ranges() {
        for c in range.start()..=range.end() {
            let json = quoted(c.encode_utf8(&mut [0; 4]));
            all.push(Hir::literal(json.as_bytes()[1..json.len() - 1].to_vec()));
        }
    }
    Hir::alternation(all)
}

/// Terminals of Lark's `common.lark`.
pub(super) const COMMON: [(&str, &str); 25] = [
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[a-fA-F0-9]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", r"[+-]?[0-9]+"),
    ("DECIMAL", r"[0-9]+\.[0-9]*|\.[0-9]+"),
    ("_EXP", r"[eE][+-]?[0-9]+"),
    (
        "FLOAT",
        r"([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    ),
    (
        "SIGNED_FLOAT",
        r"[+-]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)",
    ),
    (
        "NUMBER",
        r"[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    ),
    (
        "SIGNED_NUMBER",
        r"[+-]?([0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)",
    ),
    ("ESCAPED_STRING", r#""([^"\\]|\\.)*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
    ("WS_INLINE", "[ \\t]+"),
    ("WS", "[ \\t\\f\\r\\n]+"),
    ("CR", "\\r"),
    ("LF", "\\n"),
    ("NEWLINE", "(\\r?\\n)+"),
    ("SH_COMMENT", "#[^\\n]*"),
    ("CPP_COMMENT", "//[^\\n]*"),
    ("C_COMMENT", r"/\*[^*]*\*+([^/*][^*]*\*+)*/"),
    ("SQL_COMMENT", "--[^\\n]*"),
];

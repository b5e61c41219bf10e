//! Lark grammars of tools' inputs: in a string of JSON, and up to a mark.

use super::super::lark::check_lark;
use super::{accepts, with_tokenizer};
use crate::grammar::{Grammar, GrammarSource, Part};
use serde_json::Value;
use sluice_core::tokenizer::Tokenizer;

/// Changes of files, as coding agents describe them.
const PATCH: &str = r#"
start: begin change+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?

change: added | removed | updated
added: "*** Add File: " path LF new+
removed: "*** Delete File: " path LF
updated: "*** Update File: " path LF moved? part?

path: /(.+)/
new: "+" /(.*)/ LF -> line
moved: "*** Move to: " path LF
part: (context | line)+ last?
context: ("@@" | "@@ " /(.+)/) LF
line: ("+" | "-" | " ") /(.*)/ LF
last: "*** End of File" LF

%import common.LF
"#;

/// What else the notation has.
const TRICKY: &str = r#"
// Quotes, backslashes, control characters.
start: WORD ~ 1..2 [quoted] (code{2,3} | OTHER)   # and a comment with "quotes" /and/ slashes
quoted: "\"" /[^"\\]*(\\.[^"\\]*)*/ "\"" | "\x27" "\u00e9\t" "'"
code: "a".."c" | "\"".."$" | HEX
HEX: "0x"i ("0".."9" | /[a-f]/i)+
OTHER: /<\/?\w+>[\x00-\x08\n"]?/s | "\\\\" /\//
WORD: /[A-Z]{1,3}/ & /[^X]*/
%ignore /[ \t]/
%import common (SIGNED_INT, NEWLINE)
%import common.CNAME -> NAME
"#;

/// Rules that are recursive.
const NESTED: &str = r#"
?start: sum "\n"
sum: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: INT | quoted | "(" sum ")"
quoted: "\"" LETTER+ "\""
%import common (INT, LETTER)
%ignore " "
"#;

fn source(before: &str, part: Part, after: &str) -> GrammarSource {
    GrammarSource::Composed(vec![
        Part::Lark(format!("start: {before} ")),
        part,
        Part::Lark(format!(" {after}\n")),
    ])
}

fn in_json(lark: &str) -> GrammarSource {
    source("\"\\\"\"", Part::LarkInJson(lark.to_owned()), "\"\\\"\"")
}

fn up_to(lark: &str, mark: &str) -> GrammarSource {
    let part = Part::LarkUpTo {
        source: lark.to_owned(),
        mark: mark.to_owned(),
    };
    source("\"<\"", part, &Value::from(mark).to_string())
}

fn json(text: &str) -> String {
    Value::from(text).to_string()
}

#[test]
fn a_patch_is_accepted_as_it_is_written_and_nothing_else() {
    let right = [
        "*** Begin Patch\n*** Add File: a/b.py\n+x = \"\\n\"\n+\n*** End Patch\n",
        "*** Begin Patch\n*** Delete File: é\"\\.c\n*** End Patch",
        "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ def f():\n-\told\n+new </p\n  \n*** End of File\n*** End Patch\n",
    ];
    let wrong = [
        "*** Begin Patch\n*** End Patch\n",
        "*** Begin Patch\n*** Add File: \n+x\n*** End Patch\n",
        "*** Begin Patch\n*** Add File: a\nx\n*** End Patch\n",
        "*** Begin Patch\n*** Add File: a\n+x\n",
        "{\"patch\": 1}",
    ];
    with_tokenizer(|tokenizer| {
        let mut escaped = Grammar::new(&in_json(PATCH), tokenizer).unwrap();
        let mut plain = Grammar::new(&up_to(PATCH, "</parameter>"), tokenizer).unwrap();
        for (texts, is_right) in [(&right[..], true), (&wrong[..], false)] {
            for text in texts {
                let written = json(text);
                assert_eq!(
                    accepts(&mut escaped, tokenizer, &written),
                    is_right,
                    "{written}"
                );
                let written = format!("<{text}</parameter>");
                assert_eq!(
                    accepts(&mut plain, tokenizer, &written),
                    is_right,
                    "{written}"
                );
            }
        }
        // A text cannot contain what ends it, nor what JSON does not have.
        let mark = "<*** Begin Patch\n*** Add File: a\n+</parameter>\n*** End Patch\n</parameter>";
        assert!(!accepts(&mut plain, tokenizer, mark));
        let raw = "\"*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\"";
        assert!(!accepts(&mut escaped, tokenizer, raw));
    });
}

/// A text that the mask allows, drawn at random, or its beginning.
fn drawn(grammar: &mut Grammar, tokenizer: &Tokenizer<'_>, seed: u64) -> Option<String> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::new();
    grammar.restart();
    for _ in 0..400 {
        if grammar.may_end() {
            return String::from_utf8(bytes).ok();
        }
        let mask = grammar.mask().unwrap().to_vec();
        let allowed = (0..tokenizer.n_vocab())
            .filter(|&id| (mask[id as usize / 64] >> (id % 64)) & 1 == 1)
            .collect::<Vec<_>>();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let mut piece = vec![0; tokenizer.piece_len_max()];
        // What may end a part comes more often, so that the text ends some time.
        let ends: &[u8] = match bytes.last() {
            Some(b'\\') => b"n",
            _ => b"\n\\E\"<)",
        };
        let mut likely = allowed.clone();
        likely.retain(|&id| {
            let piece = tokenizer.decode_piece(id, &mut piece).unwrap();
            piece.len() == 1 && ends.contains(&piece[0])
        });
        let from = match state % 3 {
            0 | 1 if !likely.is_empty() => likely,
            _ => allowed,
        };
        let token = from[usize::try_from(state >> 20).unwrap() % from.len()];
        grammar.accept(token).unwrap();
        bytes.extend(tokenizer.decode_piece(token, &mut piece).unwrap());
    }
    None
}

#[test]
fn what_the_mask_allows_is_a_text_of_the_grammar() {
    with_tokenizer(|tokenizer| {
        for lark in [PATCH, TRICKY, NESTED] {
            let original = GrammarSource::Composed(vec![Part::Lark(lark.to_owned())]);
            let mut original = Grammar::new(&original, tokenizer).unwrap();
            let mut escaped = Grammar::new(&in_json(lark), tokenizer).unwrap();
            let mut plain = Grammar::new(&up_to(lark, "</p>"), tokenizer).unwrap();
            let mut n_drawn = 0;
            for seed in 0..40 {
                if let Some(written) = drawn(&mut escaped, tokenizer, seed) {
                    let text: String = serde_json::from_str(&written).unwrap();
                    assert_eq!(json(&text), written);
                    // Lark ignores it at the end, too; the compiler does not.
                    let text = text.trim_end_matches([' ', '\t']);
                    assert!(accepts(&mut original, tokenizer, text), "{text:?}");
                    n_drawn += 1;
                }
                if let Some(written) = drawn(&mut plain, tokenizer, seed) {
                    let text = written.strip_prefix('<').unwrap();
                    let text = text.strip_suffix("</p>").unwrap();
                    assert!(!text.contains("</p>"));
                    assert!(accepts(&mut original, tokenizer, text), "{text:?}");
                    n_drawn += 1;
                }
            }
            assert!(n_drawn > 16, "{n_drawn} of {lark}");
        }
    });
}

#[test]
fn what_is_not_supported_is_named_with_its_line() {
    for (lark, what) in [
        ("start: <think>", "line 1: a control token"),
        ("start: a\na: @other", "line 2: a reference"),
        ("start: %json {}", "line 1: %json"),
        ("%declare A\nstart: A", "line 1: %declare"),
        ("start: A\nA: ~/x/", "line 2: a complement"),
        ("start: /^a/", "line 1: an anchor"),
        ("start: /a(?=b)/", "look-ahead"),
        ("start: /a/l", "line 1: the flag l"),
        ("start: \"a", "line 1: a string does not end"),
        ("start: /a", "line 1: a regular expression does not end"),
        ("start: x\nx[lazy]: /a*/", "line 2: an attribute of a rule"),
        ("start: x{\"a\"}\nx{y}: y", "line 1: a template"),
        ("rule: \"a\"", "the rule \"start\" is missing"),
        (
            "start: \"a\"\nstart: \"b\"",
            "line 2: the name start is taken",
        ),
        ("start: \"a\"\n= 3", "line 2: expected the name of a rule"),
        (
            "start: a\na: \"(\" a \")\" | /.+/",
            "line 2: the rule a is recursive, and /.+/",
        ),
        (
            "start: X\n%import common.NOTHING",
            "the terminal \"common.NOTHING\"",
        ),
        (
            "start: X\n%import python.NAME",
            "the terminal \"python.NAME\"",
        ),
        ("start: \"a\" \"</b\"", "cannot contain \"</\""),
        ("start: A\nA.2: /x/", "line 2: the priority of a terminal"),
        ("start: x::0", "line 1: a parameter of a rule"),
        ("start: \"ab\"..\"c\"", "a range is of two characters"),
        ("ADDED_1: \"a\"", "is taken"),
        ("start: \"\\q\"", "is not a string"),
    ] {
        let error = check_lark(lark).unwrap_err();
        assert!(error.contains(what), "{lark}: {error}");
    }
    let ignored = "start: a\na: \"(\" a \")\" | \"x\"\n%import common.WS\n%ignore WS";
    let error = check_lark(ignored).unwrap_err();
    assert!(
        error.contains("recursive, and WS in the grammar"),
        "{error}"
    );
    for right in [PATCH, TRICKY, NESTED, "start: \"a\"~2"] {
        assert_eq!(check_lark(right), Ok(()));
    }
}

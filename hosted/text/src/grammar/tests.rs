//! Grammars with the vocabulary of the project's own model: what they accept and refuse, and how
//! hostile ones fail.

mod lark;
mod structural;

use super::{Grammar, GrammarError, GrammarSource, Part};
use core::time::Duration;
use sluice_core::gguf::Gguf;
use sluice_core::tokenizer::{self, EncodeOptions, Tokenizer};
use std::time::Instant;

const MODEL: &[u8] = include_bytes!("../../../models/tale-5.8m-Q4_K_M.gguf");

fn with_tokenizer(test: impl FnOnce(&Tokenizer<'_>)) {
    let gguf = Gguf::parse(MODEL, MODEL.len() as u64).expect("the project's own file");
    let mut words = vec![0; tokenizer::plan(&gguf).expect("a vocabulary").words];
    test(&Tokenizer::new(&gguf, &mut words).expect("a vocabulary"));
}

fn encode(tokenizer: &Tokenizer<'_>, text: &str) -> Vec<u32> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
    let mut tokens = vec![0; tokenizer.max_tokens(text.len())];
    let tokens = tokenizer.encode(text, options, &mut workspace, &mut tokens);
    tokens.expect("byte-level: every text").to_vec()
}

/// Whether the grammar accepts `text` as complete, both as the tokenizer splits it and as
/// single bytes; the two results must agree.
fn accepts(grammar: &mut Grammar, tokenizer: &Tokenizer<'_>, text: &str) -> bool {
    let bytes: Vec<u32> = text
        .bytes()
        .map(|byte| {
            let mut piece = vec![0; tokenizer.piece_len_max()];
            let mut ids = 0..tokenizer.n_vocab();
            let is_it = |id: &u32| tokenizer.decode_piece(*id, &mut piece) == Ok(&[byte][..]);
            ids.find(is_it).expect("a token for every byte")
        })
        .collect();
    let mut accepted = |tokens: &[u32]| {
        grammar.restart();
        for &token in tokens {
            let mask = grammar.mask().expect("within the bounds");
            if (mask[token as usize / 64] >> (token % 64)) & 1 == 0 {
                return false;
            }
            grammar.accept(token).expect("it was allowed");
        }
        grammar.may_end()
    };
    let by_tokens = accepted(&encode(tokenizer, text));
    assert_eq!(accepted(&bytes), by_tokens, "{text:?}");
    by_tokens
}

const LIST: &str = r#"
# a list of words
root ::= "- " item ("\n- " item)*   # at least one
item ::= word (" " word){0,3}
word ::= [a-z]+ | [A-Z] [a-z]*
"#;

const ARITHMETIC: &str = r#"
root  ::= expr " = " number
expr  ::= term (sign term)*
term  ::= number | "(" expr ")"
sign  ::= " + "
        | " - " | [*/]
number ::= "-"? ([0-9] | [1-9] [0-9]{1,8})
"#;

const MOVES: &str = r#"root ::= "1. " move " " move ("\n" [1-9] [0-9]? ". " move " " move?)*
move ::= (pawn | piece | castle) [+#]?
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBQR])?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
castle ::= "O-O" "-O"?
"#;

/// Recursion in the middle, at the end and through several rules; white space as in older files.
const DATA: &str = r#"
root ::= value
value ::= object | array | string | ("true" | "false" | "null") ws | number
object ::= "{" ws (pair ("," ws pair)*)? "}" ws
pair ::= string ":" ws value
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? [0-9]+ ("." [0-9]+)? ws
ws ::= ([ \t\n] ws)?
"#;

/// A grammar, texts that it accepts, and texts that it does not.
type Case = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const CASES: [Case; 9] = [
    (
        LIST,
        &["- one", "- One two\n- three", "- a b c d"],
        &["", "one", "- ", "- a b c d e", "- one\n"],
    ),
    (
        ARITHMETIC,
        &[
            "1 + 2 = 3",
            "(1 + 2)*-3 = -9",
            "((7)) = 7",
            "12/(3 - (4 + 5)) = 0",
        ],
        &["1 + = 3", "(1 + 2 = 3", "01 = 1", "1 = ", "1 + 2) = 3"],
    ),
    (
        MOVES,
        &[
            "1. e4 e5",
            "1. d4 Nf6\n2. c4 exd5",
            "1. O-O-O Qxh7#\n12. e8=Q ",
        ],
        &["1. e9 e5", "2. e4 e5", "1. e4"],
    ),
    (
        DATA,
        &[
            "{}",
            "[1, [2.5, {\"a\": null}] ]",
            "\"\\u00e9 \u{e9}\\n\"",
            "{ \"a\" : [true],\n\t\"b\": {\"c\": -1}}  ",
        ],
        &["{", "[1,]", "{\"a\" 1}", "\"\n\"", "nul", "[}"],
    ),
    (
        "root ::= .{2,3}",
        &["ab", "\u{20ac}\n\u{1f600}"],
        &["a", "abcd"],
    ),
    (
        "root ::= [^a-y\\]] \"\\\"\\\\\" [\\u20ac-]?",
        &["z\"\\", "Z\"\\\u{20ac}", "z\"\\-"],
        &["a\"\\", "]\"\\", "z\"\\x"],
    ),
    (
        "root ::= \"\" (\"a\" | \"ab\") \"b\"",
        &["ab", "abb"],
        &["a", "b", "abbb"],
    ),
    // A repeated character class does not swallow the characters after it.
    (
        "root ::= [a-z]+ \"x\" | \"(\" root \")\"",
        &["ax", "xxx", "((abx))"],
        &["a", "x", "(a)"],
    ),
    (
        "root ::= a b{0} c*\na ::= \"x\" | \"y\" a\nb ::= \"never\"\nc ::= \"z\"",
        &["x", "yyxz"],
        &["y", "xnever"],
    ),
];

#[test]
fn grammars_accept_their_texts_and_no_others() {
    with_tokenizer(|tokenizer| {
        for (gbnf, complete, others) in CASES {
            let source = GrammarSource::Gbnf(gbnf.into());
            let mut grammar = Grammar::new(&source, tokenizer).expect(gbnf);
            for text in complete {
                assert!(accepts(&mut grammar, tokenizer, text), "{text:?} of {gbnf}");
            }
            for text in others {
                assert!(
                    !accepts(&mut grammar, tokenizer, text),
                    "{text:?} is not of {gbnf}"
                );
            }
        }
    });
}

#[test]
fn schemas_accept_their_documents_and_no_others() {
    let schema = r##"{"type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"$ref": "#/$defs/age"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
        "$defs": {"age": {"type": "integer", "minimum": 0, "maximum": 120}}}"##;
    with_tokenizer(|tokenizer| {
        let source = GrammarSource::JsonSchema(schema.into());
        let mut grammar = Grammar::new(&source, tokenizer).expect("a good schema");
        for text in [
            "{\"name\":\"Bo\",\"age\":7}",
            "{ \"name\": \"\u{e9}\\n\", \"age\": 120, \"tags\": [\"a\", \"b\"] }",
        ] {
            assert!(accepts(&mut grammar, tokenizer, text), "{text}");
        }
        for text in [
            "{\"name\":\"Bo\"}",
            "{\"name\":\"Bo\",\"age\":121}",
            "{\"name\":\"longer\",\"age\":1}",
            "{\"name\":\"Bo\",\"age\":1,\"more\":1}",
            "{\"name\":\"Bo\",   \"age\":1}",
        ] {
            assert!(!accepts(&mut grammar, tokenizer, text), "{text}");
        }
        // Complete: only an end token may follow.
        assert!(accepts(
            &mut grammar,
            tokenizer,
            "{\"name\":\"Bo\",\"age\":7}"
        ));
        let mask = grammar.mask().expect("a mask").to_vec();
        let allowed =
            (0..tokenizer.n_vocab()).filter(|&id| (mask[id as usize / 64] >> (id % 64)) & 1 == 1);
        assert!(
            allowed
                .into_iter()
                .all(|id| tokenizer.is_end_of_generation(id))
        );
    });
}

/// Every record that zod describes has names of type string, which all are.
#[test]
fn names_of_any_kind_are_no_restriction() {
    with_tokenizer(|tokenizer| {
        for names in [
            r#"{"type":"string"}"#,
            r#"{"type":["string","null"],"title":"x"}"#,
            "true",
            "{}",
        ] {
            let schema = format!(
                r#"{{"type":"object","propertyNames":{names},"additionalProperties":{{"type":"integer"}}}}"#
            );
            let mut grammar =
                Grammar::new(&GrammarSource::JsonSchema(schema), tokenizer).expect(names);
            assert!(
                accepts(&mut grammar, tokenizer, r#"{"any":1,"b c":2}"#),
                "{names}"
            );
            assert!(
                !accepts(&mut grammar, tokenizer, r#"{"any":"1"}"#),
                "{names}"
            );
        }
        for names in [r#"{"pattern":"^a"}"#, r#"{"type":"integer"}"#, "false"] {
            let schema = format!(r#"{{"type":"object","propertyNames":{names}}}"#);
            let what = refused(tokenizer, GrammarSource::JsonSchema(schema));
            assert!(
                what.contains("\"propertyNames\" is not supported"),
                "{what}"
            );
        }
    });
}

/// The error, after checking that it came soon.
fn refused(tokenizer: &Tokenizer<'_>, source: GrammarSource) -> String {
    let start = Instant::now();
    let error = Grammar::new(&source, tokenizer).err();
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    error.map_or_else(|| "accepted".into(), |error| error.to_string())
}

/// GBNF, and a part of its error message.
const WRONG_GRAMMARS: [(&str, &str); 23] = [
    (
        "root ::= root \"a\" | \"b\"",
        "line 1: left recursion: the rule \"root\"",
    ),
    (
        "root ::= a\na ::= b? a2\nb ::= \"x\"\na2 ::= a \"y\" | \"z\"",
        "line 2: left recursion: the rule \"a\"",
    ),
    ("root ::= x", "line 1: the rule \"x\" is not defined"),
    ("a ::= \"b\"", "the rule \"root\" is not defined"),
    ("", "the rule \"root\" is not defined"),
    (
        "root ::= \"a\"\nroot ::= \"b\"",
        "line 2: the rule \"root\" is defined twice",
    ),
    (
        "root ::= \"a\" root",
        "line 1: the rule \"root\" matches no finite text",
    ),
    (
        "root ::= \"abc",
        "line 1: expected the end of a literal or character class, found end of input",
    ),
    (
        "root ::= [a-",
        "line 1: expected the end of a literal or character class",
    ),
    ("root ::= [z-a]", "line 1: the range z-a is reversed"),
    ("root ::= []", "matches no finite text"),
    ("root ::= \"\\q\"", "line 1: expected an escape such as"),
    ("root ::= \"\\xZZ\"", "line 1: expected an escape such as"),
    ("root ::= \"\\uD800\"", "line 1: expected an escape such as"),
    ("root ::= (\"a\"", "line 1: expected ), found end of input"),
    (
        "root ::= \"a\")",
        "line 1: expected an element or the end of the line, found \")\"",
    ),
    ("root = \"a\"", "line 1: expected ::=, found \"= \"a\"\""),
    (
        "root ::= \"a\"{3,2}",
        "line 1: a repetition must not exceed 2000",
    ),
    (
        "root ::= \"a\"{99999999999999999999}",
        "line 1: a repetition must not exceed 2000",
    ),
    (
        "root ::= \"a\"{2001}",
        "line 1: a repetition must not exceed 2000",
    ),
    (
        "root ::= \"a\"{x}",
        "line 1: expected a number, found \"x}\"",
    ),
    ("root ::= <think> \"a\"", "line 1: tokens by name"),
    ("$", "line 1: expected the name of a rule"),
];

/// JSON schemas, and a part of their error messages.
const WRONG_SCHEMAS: [(&str, &str); 30] = [
    (
        r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##,
        "#/$defs/a: a $ref leads back here",
    ),
    (
        r##"{"type":"object","properties":{"n":{"$ref":"#"}},"required":["n"]}"##,
        "requires itself",
    ),
    (
        r#"{"type":"number","minimum":9007199254740993.5}"#,
        "#/minimum: the number 9007199254740994.0 cannot be represented exactly",
    ),
    (r#"{"const":1e30}"#, "cannot be represented exactly"),
    (
        r#"{"enum":[1,100000000000000000001]}"#,
        "#: the number 1e+20 cannot be represented exactly; integers from -2^63 to 2^64-1",
    ),
    (
        r#"{"type":"integer","minimum":-9223372036854775809}"#,
        "#/minimum: the number -9.223372036854776e+18 cannot be represented exactly",
    ),
    (
        r#"{"type":"integer","multipleOf":1000000000000000000000000000000}"#,
        "#/multipleOf: multiples of 1e+30 are not supported",
    ),
    (
        r#"{"type":"integer","minimum":18446744073709551615,"maximum":18446744073709551614}"#,
        "no document is valid: nothing satisfies #",
    ),
    (
        r#"{"type":"integer","exclusiveMinimum":9007199254740992,"exclusiveMaximum":9007199254740994,
            "multipleOf":2}"#,
        "no document is valid: nothing satisfies #",
    ),
    (
        r#"{"type":"integer","multipleOf":65521}"#,
        "#/multipleOf: multiples of 65521 are not supported",
    ),
    (
        r#"{"type":"number","multipleOf":0.000000001}"#,
        "#/multipleOf: multiples of 1e-9 are not supported",
    ),
    (
        r#"{"type":"integer","allOf":[{"multipleOf":9973},{"multipleOf":9967}]}"#,
        "this combination of multipleOf factors is not supported",
    ),
    (
        r#"{"type":"string","pattern":"^(?!x)[a-z]{3}$"}"#,
        "look-around",
    ),
    (
        r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#,
        "#/oneOf: a document can match both 0 and 1; write anyOf",
    ),
    (r#"{"$ref":"/$defs/X"}"#, "write #/$defs/X"),
    (
        r#"{"required":["a"],"additionalProperties":false,"type":"object"}"#,
        "the required property \"a\"",
    ),
    (
        r#"{"allOf":[{"properties":{"a":{"type":"null"}}},{"properties":{"a":{"type":"boolean"}}}],
            "required":["a"],"type":"object"}"#,
        "the required property \"a\"",
    ),
    (
        r#"{"type":"array","uniqueItems":true}"#,
        "\"uniqueItems\" is not supported",
    ),
    (
        r#"{"properties":{"a/b":{"if":{}}}}"#,
        "#/properties/a~1b: \"if\" is not supported",
    ),
    (
        r#"{"enum":["a","b"],"pattern":"c","type":"string"}"#,
        "no document is valid",
    ),
    (
        r#"{"type":"object","patternProperties":{"^a":{},"b$":{"type":"null"}}}"#,
        "overlap",
    ),
    ("", "not valid JSON"),
    ("{", "not valid JSON"),
    ("[1]", "a schema is an object"),
    ("{\"type\": \"objekt\"}", "objekt"),
    ("{\"not\": {}}", "not"),
    ("{\"$ref\": \"#/nowhere\"}", "nowhere"),
    ("{\"$ref\": \"https://example.org/schema\"}", "$ref"),
    (
        "{\"type\": \"string\", \"pattern\": \"(\"}",
        "#/pattern: the pattern",
    ),
    (
        "{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}",
        "no document is valid: nothing satisfies #",
    ),
];

/// Schemas, valid documents and invalid ones. Each number next to a bound differs from it, although both
/// are the same double.
const LONG_NUMBERS: [(&str, &[&str], &[&str]); 17] = [
    (
        r#"{"type":"integer","minimum":9007199254740993}"#,
        &[
            "9007199254740993",
            "9007199254740994",
            "10000000000000000",
            "99999999999999999999",
        ],
        &[
            "9007199254740992",
            "9",
            "0",
            "-9007199254740993",
            "9007199254740993.0",
            "90071992547409930e1",
        ],
    ),
    (
        r#"{"type":"integer","minimum":-9007199254740993}"#,
        &[
            "-9007199254740993",
            "-9007199254740992",
            "-1",
            "0",
            "7",
            "12345678901234567890",
        ],
        &["-9007199254740994", "-10000000000000000", "-0", "-01", "00"],
    ),
    (
        r#"{"type":"integer","maximum":18446744073709551615}"#,
        &[
            "18446744073709551615",
            "18446744073709551614",
            "0",
            "-5",
            "-123456789012345678901",
        ],
        &[
            "18446744073709551616",
            "18446744073709551620",
            "20000000000000000000",
            "100000000000000000000",
        ],
    ),
    (
        r#"{"type":"integer","maximum":-9223372036854775808}"#,
        &[
            "-9223372036854775808",
            "-9223372036854775809",
            "-100000000000000000000",
        ],
        &[
            "-9223372036854775807",
            "-999999999999999999",
            "0",
            "9223372036854775808",
        ],
    ),
    (
        r#"{"type":"integer","exclusiveMinimum":9007199254740992,"exclusiveMaximum":9007199254740996}"#,
        &["9007199254740993", "9007199254740994", "9007199254740995"],
        &["9007199254740992", "9007199254740996", "9007199254740991"],
    ),
    (
        r#"{"type":"integer","minimum":9999999999999999999,"maximum":10000000000000000001}"#,
        &[
            "9999999999999999999",
            "10000000000000000000",
            "10000000000000000001",
        ],
        &["9999999999999999998", "10000000000000000002", "1e19"],
    ),
    (
        r#"{"const":10000000000000000000}"#,
        &["10000000000000000000"],
        &["10000000000000000001", "9999999999999999999", "1e19"],
    ),
    (
        r#"{"enum":[9007199254740993,9007199254740992,-9223372036854775807,1e15,18446744073709551615,"a",null]}"#,
        &[
            "9007199254740993",
            "9007199254740992",
            "-9223372036854775807",
            "1000000000000000",
            "18446744073709551615",
        ],
        &[
            "9007199254740991",
            "9007199254740994",
            "-9223372036854775808",
            "18446744073709551614",
        ],
    ),
    // A later member with the same name counts, with everything in it.
    (
        r#"{"properties":{"n":{"const":10000000000000000001}},
            "properties":{"n":{"const":10000000000000000003}},"required":["n"]}"#,
        &["{\"n\":10000000000000000003}"],
        &[
            "{\"n\":10000000000000000001}",
            "{\"n\":10000000000000000000}",
        ],
    ),
    (
        r#"{"properties":{"\"}]":{"const":[{"a":18446744073709551613}]},"b":{"minimum":1e2,"maximum":100}}}"#,
        &["{\"\\\"}]\":[{\"a\":18446744073709551613}],\"b\":100}"],
        &["{\"\\\"}]\":[{\"a\":18446744073709551612}]}", "{\"b\":101}"],
    ),
    // No fractions beyond 2^53, but below.
    (
        r#"{"type":"number","minimum":0.5,"maximum":9007199254740993}"#,
        &[
            "0.5",
            "9007199254740991",
            "9007199254740992",
            "9007199254740993",
            "12.25",
        ],
        &[
            "0.4",
            "9007199254740994",
            "9007199254740992.5",
            "9007199254740993.0",
            "-1",
        ],
    ),
    (
        r#"{"type":"number","minimum":-9007199254740993}"#,
        &[
            "-9007199254740993",
            "-0.5",
            "2.5",
            "9007199254740993",
            "123456789012345678901",
        ],
        &["-9007199254740994", "-9007199254740992.5"],
    ),
    (
        r#"{"type":"integer","minimum":18446744073709551593,"maximum":18446744073709551613,"multipleOf":7}"#,
        &[
            "18446744073709551593",
            "18446744073709551600",
            "18446744073709551607",
        ],
        &[
            "18446744073709551586",
            "18446744073709551601",
            "18446744073709551613",
            "18446744073709551614",
        ],
    ),
    (
        r#"{"type":"integer","multipleOf":1000000000000000000}"#,
        &["0", "1000000000000000000", "-12000000000000000000"],
        &["100000000000000000", "1000000000000000001", "00", "-0"],
    ),
    (
        r#"{"type":"integer","minimum":-20000000000,"multipleOf":2.5,"allOf":[{"multipleOf":8000000000}]}"#,
        &["-16000000000", "-8000000000", "0", "8000000000"],
        &["-24000000000", "4000000000", "-8000000005", "5"],
    ),
    (
        r#"{"type":"array","items":{"anyOf":[{"const":18446744073709551613},{"maximum":3,"minimum":2},
            {"enum":["x",true]}]}}"#,
        &["[18446744073709551613,2,\"x\",2.5,true]", "[]"],
        &["[18446744073709551612]", "[1152921504606846976]", "[1]"],
    ),
    (
        r#"{"oneOf":[{"type":"integer","maximum":9007199254740992},{"minimum":9007199254740993,"type":"integer"}]}"#,
        &["9007199254740992", "9007199254740993", "-1"],
        &["1.5"],
    ),
];

#[test]
fn whole_numbers_are_exact_to_the_last_digit() {
    with_tokenizer(|tokenizer| {
        for (schema, valid, invalid) in LONG_NUMBERS {
            let source = GrammarSource::JsonSchema(schema.into());
            let mut grammar = Grammar::new(&source, tokenizer).expect(schema);
            for (texts, expected) in [(valid, true), (invalid, false)] {
                for text in texts {
                    let is_accepted = accepts(&mut grammar, tokenizer, text);
                    assert_eq!(is_accepted, expected, "{schema}: {text}");
                }
            }
        }
    });
}

#[test]
fn wrong_grammars_are_named() {
    with_tokenizer(|tokenizer| {
        for (gbnf, expected) in WRONG_GRAMMARS {
            let message = refused(tokenizer, GrammarSource::Gbnf(gbnf.into()));
            assert!(message.contains(expected), "{gbnf:?}: {message}");
        }
        for (schema, expected) in WRONG_SCHEMAS {
            let message = refused(tokenizer, GrammarSource::JsonSchema(schema.into()));
            assert!(message.contains(expected), "{schema}: {message}");
        }
    });
}

/// Large and deeply nested ones: an error or a grammar, but soon, and so are the first masks.
#[test]
#[expect(clippy::too_many_lines, reason = "a list of grammars")]
fn hostile_grammars_end_soon() {
    let doubling: String = (0..60)
        .map(|n| format!("a{n} ::= a{} a{}\n", n + 1, n + 1))
        .collect();
    let chain: String = (0..9_000)
        .map(|n| format!("a{n} ::= \"x\" a{}?\n", n + 1))
        .collect();
    let wide: String = (0..5_000).map(|n| format!(" | \"w{n}\" root")).collect();
    let deep_schema = format!("{}true{}", "{\"items\":".repeat(120), "}".repeat(120));
    let links: String = (0..3_000)
        .map(|n| {
            format!(
                "\"a{n}\":{{\"items\":{{\"$ref\":\"#/$defs/a{}\"}}}},",
                n + 1
            )
        })
        .collect();
    let tails = format!(
        "root ::= {}({}\"b\")",
        "[ab] ".repeat(6_000),
        "root|".repeat(6_000)
    );
    let long_chain: String = (0..9_990)
        .map(|n| format!("a{n} ::= {}a{}\n", "\"z\" ".repeat(20), n + 1))
        .collect();
    let wide_chain: String = (0..9_990)
        .map(|n| format!("a{n} ::= {}a{}\n", "\"z\"|".repeat(20), n + 1))
        .collect();
    let sources = [
        GrammarSource::Gbnf(tails),
        GrammarSource::Gbnf(format!("root ::= a0\n{long_chain}a9990 ::= \"y\"")),
        GrammarSource::Gbnf(format!("root ::= a0\n{wide_chain}a9990 ::= \"y\"")),
        GrammarSource::Gbnf(format!("root ::= {}\na ::= \"x\"", "a ".repeat(520_000))),
        GrammarSource::Gbnf(format!("root ::= {}a\na ::= \"x\"", "(a | b ".repeat(150))),
        GrammarSource::Gbnf(format!("root ::= a0\n{doubling}a60 ::= [a-z]")),
        GrammarSource::Gbnf(format!("root ::= a0\n{doubling}a60 ::= [a-z]")),
        GrammarSource::Gbnf(format!("root ::= a0\n{chain}a9000 ::= \"y\"")),
        GrammarSource::Gbnf(format!("root ::= \"x\"{wide}")),
        GrammarSource::Gbnf("root ::= ((([a-z]{2000}){2000}){2000}){2000}".into()),
        GrammarSource::Gbnf("root ::= ([ab]* \"a\" [ab]{1999}) | \"(\" root \")\"".into()),
        GrammarSource::Gbnf(format!("root ::= {}\"a\"{}", "(".repeat(199), ")*".repeat(199))),
        GrammarSource::Gbnf(format!("root ::= {}", "(".repeat(100_000))),
        GrammarSource::Gbnf("root ::= a | b\na ::= \"x\" a \"y\" | \"x\" a \"z\" | \"w\"\nb ::= \"x\" b | a b?".into()),
        GrammarSource::Gbnf("r".repeat(2 << 20)),
        GrammarSource::JsonSchema(deep_schema),
        GrammarSource::JsonSchema(format!("{{\"$defs\":{{{links}\"a3000\":{{}}}},\"$ref\":\"#/$defs/a0\"}}")),
        GrammarSource::JsonSchema("[".repeat(1 << 19)),
        GrammarSource::JsonSchema(format!("{{\"enum\":[{}]}}", (0..3_000).map(|n| format!("{}{}", "7".repeat(300), n)).collect::<Vec<_>>().join(","))),
        GrammarSource::JsonSchema(format!("{{\"type\":\"integer\",\"minimum\":-{0},\"maximum\":{0},\"multipleOf\":9973}}", "7".repeat(308))),
        GrammarSource::JsonSchema(format!("{{\"const\":{}}}", "7".repeat(310))),
        GrammarSource::JsonSchema("{\"type\":\"string\",\"pattern\":\"^(a|a)*{1000}(b{1000}){1000}$\"}".into()),
        GrammarSource::JsonSchema("{\"type\":\"array\",\"items\":{\"type\":\"array\",\"minItems\":1000000},\"minItems\":1000000}".into()),
    ];
    with_tokenizer(|tokenizer| {
        for (n, source) in sources.iter().enumerate() {
            let start = Instant::now();
            let outcome = Grammar::new(source, tokenizer).and_then(|mut grammar| {
                let mut taken = 0;
                for _ in 0..20 {
                    let mask = grammar.mask()?;
                    let first = (0..tokenizer.n_vocab())
                        .filter(|&id| !tokenizer.is_end_of_generation(id))
                        .find(|&id| (mask[id as usize / 64] >> (id % 64)) & 1 == 1);
                    let Some(id) = first else { break };
                    grammar.accept(id)?;
                    taken += 1;
                }
                Ok(taken)
            });
            let took = start.elapsed();
            assert!(took < BOUND, "{n}: {took:?} {outcome:?}");
            if let Err(error) = outcome {
                assert!(!matches!(error, GrammarError::Thread(_)), "{error}");
                let message = error.to_string();
                assert!(
                    message.len() < 600 && !message.contains("panic"),
                    "{n}: {message}"
                );
            }
        }
    });
}

/// Generous: unoptimised builds on a busy machine meet it.
const BOUND: Duration = Duration::from_secs(30);

#[test]
fn patterns_that_repeat_nothing_are_refused_in_every_grammar() {
    let schema = |schema: &str| GrammarSource::JsonSchema(schema.to_owned());
    let sources = [
        GrammarSource::Regex("^+[a-z]$".to_owned()),
        GrammarSource::Composed(vec![
            Part::Lark("start: ".to_owned()),
            Part::Regex("^+[a-z]$".to_owned()),
        ]),
        schema(r#"{"type":"string","pattern":"^+[a-z]$"}"#),
        schema(r#"{"type":"object","patternProperties":{"^+[a-z]$":{"type":"null"}}}"#),
    ];
    with_tokenizer(|tokenizer| {
        for source in &sources {
            let error = Grammar::new(source, tokenizer).expect_err("it is not valid");
            assert!(error.to_string().contains("nothing to repeat"), "{error}");
        }
    });
}

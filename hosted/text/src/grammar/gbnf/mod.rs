//! GBNF, llama.cpp's notation of grammars, translated to Lark.
//!
//! The difference that matters: GBNF's rules describe characters, Lark's describe lexemes, each a
//! regular expression that takes as much as it can. So a grammar whose rules do not lead back to
//! themselves (or only at their ends, as in `ws ::= ([ \t] ws)?`) becomes one lexeme, and in any
//! other each character is one.
//!
//! ```
//! let lark = sluice_text::grammar::gbnf::to_lark("root ::= [0-9]+ (\", \" [0-9]+)*")?;
//! assert!(lark.contains("start:"));
//! # Ok::<(), sluice_text::grammar::gbnf::GbnfError>(())
//! ```

mod analyse;
mod emit;
mod parse;

/// The Lark grammar that accepts the same texts as `gbnf`.
///
/// # Errors
/// [`GbnfError`] with the line.
pub fn to_lark(gbnf: &str) -> Result<String, GbnfError> {
    let mut rules = parse::parse(gbnf)?;
    let regular = analyse::analyse(&mut rules)?;
    Ok(emit::emit(&rules, &regular))
}

/// The rules of a grammar; `rules[root]` is the first one.
#[derive(Debug)]
struct Rules {
    rules: Vec<Rule>,
    root: usize,
}

#[derive(Debug)]
struct Rule {
    name: String,
    /// Its line.
    line: usize,
    body: Expr,
}

/// An expression in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expr {
    /// One character of (or, if negated, outside) these ranges.
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    Text(String),
    /// A rule by number.
    Rule(usize),
    /// A sequence; if empty, the empty text.
    Seq(Vec<Self>),
    /// Alternatives.
    Alt(Vec<Self>),
    Repeat(Box<Self>, u32, Option<u32>),
}

/// Errors in a grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GbnfError {
    /// Unexpected text.
    #[error("line {line}: expected {what}, found {found}")]
    Expected {
        /// Line, from 1.
        line: usize,
        /// What was expected.
        what: &'static str,
        /// What was found instead.
        found: String,
    },
    /// A rule that is used but not defined.
    #[error("line {line}: the rule \"{name}\" is not defined")]
    UnknownRule {
        /// Line of the use.
        line: usize,
        /// The name.
        name: String,
    },
    /// The grammar has no rule named `root`.
    #[error("the rule \"root\" is not defined")]
    NoRoot,
    /// Two rules with the same name.
    #[error("line {line}: the rule \"{name}\" is defined twice")]
    Twice {
        /// Line of the second.
        line: usize,
        /// The name.
        name: String,
    },
    /// A rule begins with itself.
    #[error(
        "line {line}: left recursion: the rule \"{name}\" can begin with itself and would never end"
    )]
    LeftRecursion {
        /// Line of the rule.
        line: usize,
        /// Its name.
        name: String,
    },
    /// A rule that always needs itself.
    #[error("line {line}: the rule \"{name}\" matches no finite text")]
    Endless {
        /// Line of the rule.
        line: usize,
        /// Its name.
        name: String,
    },
    /// The number of rules exceeds the limit.
    #[error("more than {RULES_MAX} rules")]
    TooManyRules,
    /// The regular expressions are too large.
    #[error(
        "line {line}: the grammar is too large when the rules named by \"{name}\" and those before it are expanded"
    )]
    TooLarge {
        /// Line of the rule.
        line: usize,
        /// Its name.
        name: String,
    },
    /// The number of repetitions exceeds the limit.
    #[error(
        "line {line}: a repetition must not exceed {REPEAT_MAX} or have a maximum below its minimum"
    )]
    Repetitions {
        /// Line.
        line: usize,
    },
    /// A character range whose end is before its start.
    #[error("line {line}: the range {first}-{last} is reversed")]
    Range {
        /// Line.
        line: usize,
        /// Its first character.
        first: char,
        /// Its last.
        last: char,
    },
    /// Parentheses are nested too deeply.
    #[error("line {line}: more than {DEPTH_MAX} nested parentheses")]
    Depth {
        /// Line.
        line: usize,
    },
    /// Syntax of newer versions that refers to tokens, which is not supported.
    #[error("line {line}: tokens by name or number (<…>) are not supported here")]
    Token {
        /// Line.
        line: usize,
    },
}

/// llama.cpp's limit.
const REPEAT_MAX: u32 = 2000;
const DEPTH_MAX: usize = 200;
const RULES_MAX: usize = 10_000;

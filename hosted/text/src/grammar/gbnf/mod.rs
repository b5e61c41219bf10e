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

/// The Lark grammar that accepts what `gbnf` does.
///
/// # Errors
/// [`GbnfError`] with the line.
pub fn to_lark(gbnf: &str) -> Result<String, GbnfError> {
    let mut rules = parse::parse(gbnf)?;
    let regular = analyse::analyse(&mut rules)?;
    Ok(emit::emit(&rules, &regular))
}

/// The rules of a grammar; `rules[root]` is where it begins.
#[derive(Debug)]
struct Rules {
    rules: Vec<Rule>,
    root: usize,
}

#[derive(Debug)]
struct Rule {
    name: String,
    /// Where it stands.
    line: usize,
    body: Expr,
}

/// What a rule is made of.
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
    /// One after the other; none is the empty text.
    Seq(Vec<Self>),
    /// One of these.
    Alt(Vec<Self>),
    Repeat(Box<Self>, u32, Option<u32>),
}

/// What is wrong with a grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GbnfError {
    /// Something else should stand there.
    #[error("line {line}: {what} is expected before \"{found}\"")]
    Expected {
        /// Line, from 1.
        line: usize,
        /// What should stand there.
        what: &'static str,
        /// What does.
        found: String,
    },
    /// A rule is used that is nowhere.
    #[error("line {line}: there is no rule \"{name}\"")]
    UnknownRule {
        /// Line of the use.
        line: usize,
        /// The name.
        name: String,
    },
    /// Where to begin?
    #[error("there is no rule \"root\"")]
    NoRoot,
    /// Two rules of one name.
    #[error("line {line}: the rule \"{name}\" was there before")]
    Twice {
        /// Line of the second.
        line: usize,
        /// The name.
        name: String,
    },
    /// A rule begins with itself.
    #[error(
        "line {line}: left recursion: the rule \"{name}\" can begin with itself, \
         so it would never end"
    )]
    LeftRecursion {
        /// Line of the rule.
        line: usize,
        /// Its name.
        name: String,
    },
    /// A rule that always needs itself.
    #[error("line {line}: no text ever completes the rule \"{name}\"")]
    Endless {
        /// Line of the rule.
        line: usize,
        /// Its name.
        name: String,
    },
    /// More rules than any grammar has.
    #[error("more than {RULES_MAX} rules")]
    TooManyRules,
    /// The regular expressions are too large.
    #[error(
        "line {line}: the rule \"{name}\" and those before it are too large when the rules that \
         they name are written in their place"
    )]
    TooLarge {
        /// Line of the rule.
        line: usize,
        /// Its name.
        name: String,
    },
    /// More repetitions than anybody means.
    #[error("line {line}: at most {REPEAT_MAX} repetitions, or no upper bound")]
    Repetitions {
        /// Line.
        line: usize,
    },
    /// A class whose range runs backwards.
    #[error("line {line}: the range {first}-{last} runs backwards")]
    Range {
        /// Line.
        line: usize,
        /// Its first character.
        first: char,
        /// Its last.
        last: char,
    },
    /// Parentheses in parentheses in …
    #[error("line {line}: more than {DEPTH_MAX} parentheses within each other")]
    Depth {
        /// Line.
        line: usize,
    },
    /// Elements of newer versions that name tokens.
    #[error("line {line}: tokens by name or number (<…>) cannot be used here")]
    Token {
        /// Line.
        line: usize,
    },
}

/// llama.cpp's bound.
const REPEAT_MAX: u32 = 2000;
const DEPTH_MAX: usize = 200;
const RULES_MAX: usize = 10_000;

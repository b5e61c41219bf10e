//! Known names whose rules cut texts as a tokenizer's unknown expressions do: what an error can suggest for `--pre`.
//!
//! Expressions of tokenizers look ahead and have possessive quantifiers, so they are matched here, by trying one way after
//! the other, on a few short texts. Classes of characters are `regex_syntax`'s.

use super::rules::Step;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, HirKind};
use sluice_core::tokenizer::PreTokenizer;

/// What is known of names for unknown rules, as a clause of an error.
pub(super) fn suggested(steps: &[Step<'_>]) -> String {
    let rules: Option<Vec<Node>> = steps.iter().filter_map(|step| rule_of(*step)).collect();
    let cuts = rules.and_then(|rules| {
        let cuts = SAMPLES.iter().map(|text| cut(text, &rules));
        cuts.collect::<Option<Vec<_>>>()
    });
    let Some(cuts) = cuts else {
        return "its rules cannot be compared with the known ones".to_owned();
    };
    let equal = |name: &&str| {
        let family = PreTokenizer::by_name(name);
        let pairs = SAMPLES.iter().zip(&cuts);
        family.map_or(0, |family| {
            pairs
                .filter(|(text, own)| family.words(text).eq(own.iter().copied()))
                .count()
        })
    };
    let best = PreTokenizer::NAMES.iter().map(&equal).max().unwrap_or(0);
    let names = PreTokenizer::NAMES
        .iter()
        .filter(|name| equal(name) == best);
    let names = names.copied().collect::<Vec<_>>().join(", ");
    match SAMPLES.len() - best {
        0 => format!(
            "on {} hard texts these names cut as it does: {names}",
            SAMPLES.len()
        ),
        n => format!(
            "no known name cuts as it does; {n} of {} hard texts differ with {names}",
            SAMPLES.len()
        ),
    }
}

/// The expression of a step, whose matches and what is between them are words; `None` for a step that does not cut.
fn rule_of(step: Step<'_>) -> Option<Option<Node>> {
    let expression = match step.kind {
        "ByteLevel" if step.bool("use_regex") == Some(false) => return None,
        "ByteLevel" if step.bool("add_prefix_space") != Some(true) => GPT2,
        "Digits" if step.bool("individual_digits") == Some(true) => r"\p{N}",
        "Digits" => r"\p{N}+",
        "Punctuation" if step.str("behavior").is_none_or(|name| name == "Isolated") => {
            r"[\p{P}!-/:-@\[-`{-~]"
        }
        "Split" => {
            let is_whole = match (step.str("behavior"), step.bool("invert")) {
                (Some("Isolated"), _) | (Some("Removed"), Some(true)) => true,
                _ => return Some(None),
            };
            match step.pattern().filter(|_| is_whole) {
                Some((true, text)) => text,
                Some((false, text)) => {
                    return Some(Parser::new(&regex_syntax::escape(text)).whole());
                }
                None => return Some(None),
            }
        }
        _ => return Some(None),
    };
    Some(Parser::new(expression).whole())
}

/// The words of a text, or `None` if matching takes too long.
fn cut<'t>(text: &'t str, rules: &[Node]) -> Option<Vec<&'t str>> {
    let mut words = vec![text];
    for rule in rules {
        let mut finer = Vec::new();
        for word in words {
            let (mut at, mut from) = (0, 0);
            while at < word.len() {
                let mut matcher = Matcher {
                    text: word,
                    steps: STEPS_MAX,
                    waiting: 0,
                };
                let end = matcher.longest(rule, at)?;
                let Some(end) = end.filter(|end| *end > at) else {
                    at += word[at..].chars().next().map_or(1, char::len_utf8);
                    continue;
                };
                finer.extend([&word[from..at], &word[at..end]]);
                (at, from) = (end, end);
            }
            finer.push(&word[from..]);
        }
        finer.retain(|word| !word.is_empty());
        words = finer;
    }
    Some(words)
}

/// A part of an expression.
#[derive(Clone, Debug)]
enum Node {
    /// One character, of ranges.
    One(Vec<(char, char)>),
    /// Parts one after the other.
    Row(Vec<Self>),
    /// The first of several that leads on.
    Either(Vec<Self>),
    /// As many times as possible, or as few.
    Times {
        part: Box<Self>,
        min: usize,
        max: usize,
        kind: Greed,
    },
    /// Whether it follows, or not.
    Ahead(Box<Self>, bool),
    End,
    /// The edge of a word.
    Edge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greed {
    Greedy,
    Lazy,
    /// What is matched is not given back.
    Possessive,
}

struct Matcher<'t> {
    text: &'t str,
    /// The number of tries that are left.
    steps: u32,
    /// Parts that wait for what follows them.
    waiting: usize,
}

/// What follows a part: whether the rest matches from there.
type Then<'a> = &'a mut dyn FnMut(&mut Matcher<'_>, usize) -> bool;

impl Matcher<'_> {
    /// The end of a match at `at`, if there is one; `None` if that takes too long.
    fn longest(&mut self, rule: &Node, at: usize) -> Option<Option<usize>> {
        let mut end = None;
        self.walk(rule, at, &mut |_, to| {
            end = Some(to);
            true
        });
        (self.steps > 0).then_some(end)
    }

    fn walk(&mut self, node: &Node, at: usize, then: Then<'_>) -> bool {
        self.steps = self.steps.saturating_sub(1);
        if self.waiting == WAITING_MAX {
            self.steps = 0;
        }
        if self.steps == 0 {
            return false;
        }
        self.waiting += 1;
        let is_match = self.walk_into(node, at, then);
        self.waiting -= 1;
        is_match
    }

    fn walk_into(&mut self, node: &Node, at: usize, then: Then<'_>) -> bool {
        match node {
            Node::One(ranges) => {
                let c = self.text[at..].chars().next();
                c.is_some_and(|c| holds(ranges, c) && then(self, at + c.len_utf8()))
            }
            Node::Row(parts) => self.row(parts, at, then),
            Node::Either(ways) => ways.iter().any(|way| self.walk(way, at, then)),
            Node::Ahead(part, is_wanted) => {
                self.walk(part, at, &mut |_, _| true) == *is_wanted && then(self, at)
            }
            Node::End => at == self.text.len() && then(self, at),
            Node::Edge => {
                let is_word = |c: char| c.is_alphanumeric() || c == '_';
                let before = self.text[..at].ends_with(is_word);
                before != self.text[at..].starts_with(is_word) && then(self, at)
            }
            Node::Times {
                part,
                min,
                max,
                kind,
            } => match kind {
                Greed::Possessive => {
                    let mut ends = vec![at];
                    while ends.len() <= *max {
                        let last = ends[ends.len() - 1];
                        let mut next = last;
                        self.walk(part, last, &mut |_, to| {
                            next = to;
                            true
                        });
                        if next == last {
                            break;
                        }
                        ends.push(next);
                    }
                    ends.len() > *min && then(self, ends[ends.len() - 1])
                }
                _ => self.times(part, *min, *max, *kind == Greed::Lazy, at, then),
            },
        }
    }

    fn row(&mut self, parts: &[Node], at: usize, then: Then<'_>) -> bool {
        match parts {
            [] => then(self, at),
            [first, rest @ ..] => self.walk(first, at, &mut |own, to| own.row(rest, to, then)),
        }
    }

    fn times(
        &mut self,
        part: &Node,
        min: usize,
        max: usize,
        is_lazy: bool,
        at: usize,
        then: Then<'_>,
    ) -> bool {
        if is_lazy && min == 0 && then(self, at) {
            return true;
        }
        let again = max > 0
            && self.walk(part, at, &mut |own, to| {
                to > at && own.times(part, min.saturating_sub(1), max - 1, is_lazy, to, then)
            });
        again || (!is_lazy && min == 0 && then(self, at))
    }
}

fn holds(ranges: &[(char, char)], c: char) -> bool {
    ranges
        .iter()
        .any(|&(first, last)| (first..=last).contains(&c))
}

/// Bytes of an expression; published ones are a tenth as long.
const EXPRESSION_BYTES_MAX: usize = 4096;
/// Groups in groups.
const GROUPS_MAX: usize = 64;
/// Parts of a match that wait for what follows.
const WAITING_MAX: usize = 1000;

/// Reads an expression; `None` stands for one that is not understood.
struct Parser<'e> {
    rest: &'e str,
    /// Groups around the place.
    depth: usize,
    /// Upper and lower case are the same.
    folds: bool,
}

impl<'e> Parser<'e> {
    fn new(expression: &'e str) -> Self {
        Self {
            rest: expression,
            depth: 0,
            folds: false,
        }
    }

    fn whole(mut self) -> Option<Node> {
        if self.rest.len() > EXPRESSION_BYTES_MAX {
            return None;
        }
        let node = self.either()?;
        self.rest.is_empty().then_some(node)
    }

    fn takes(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn either(&mut self) -> Option<Node> {
        let mut ways = vec![self.row()?];
        while self.takes("|") {
            ways.push(self.row()?);
        }
        Some(Node::Either(ways))
    }

    fn row(&mut self) -> Option<Node> {
        let mut parts = Vec::new();
        while !self.rest.is_empty() && !self.rest.starts_with(['|', ')']) {
            let part = self.part()?;
            parts.push(self.times(part)?);
        }
        Some(Node::Row(parts))
    }

    fn times(&mut self, part: Node) -> Option<Node> {
        let (min, max) = match () {
            () if self.takes("?") => (0, 1),
            () if self.takes("*") => (0, usize::MAX),
            () if self.takes("+") => (1, usize::MAX),
            () if self.takes("{") => {
                let (range, rest) = self.rest.split_once('}')?;
                self.rest = rest;
                match range.split_once(',') {
                    Some((min, "")) => (min.parse().ok()?, usize::MAX),
                    Some((min, max)) => (min.parse().ok()?, max.parse().ok()?),
                    None => (range.parse().ok()?, range.parse().ok()?),
                }
            }
            () => return Some(part),
        };
        let kind = match () {
            () if self.takes("+") => Greed::Possessive,
            () if self.takes("?") => Greed::Lazy,
            () => Greed::Greedy,
        };
        Some(Node::Times {
            part: Box::new(part),
            min,
            max,
            kind,
        })
    }

    fn part(&mut self) -> Option<Node> {
        if self.takes("(") {
            let folded = self.folds;
            let ahead = match () {
                () if self.takes("?=") => Some(true),
                () if self.takes("?!") => Some(false),
                () if self.takes("?i:") => {
                    self.folds = true;
                    None
                }
                () if self.takes("?:") => None,
                () if self.rest.starts_with('?') => return None,
                () => None,
            };
            self.depth += 1;
            let inner = match self.depth <= GROUPS_MAX {
                true => self.either()?,
                false => return None,
            };
            self.depth -= 1;
            self.folds = folded;
            return self.takes(")").then(|| match ahead {
                Some(is_wanted) => Node::Ahead(Box::new(inner), is_wanted),
                None => inner,
            });
        }
        if self.takes("$") {
            return Some(Node::End);
        }
        if self.takes(r"\b") {
            return Some(Node::Edge);
        }
        let len = part_len(self.rest)?;
        let (class, rest) = self.rest.split_at(len);
        self.rest = rest;
        class_of(class, self.folds).map(Node::One)
    }
}

/// Bytes of a class, an escape or a character at the front of an expression.
fn part_len(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let mut end = at + c.len_utf8();
        match c {
            '[' => depth += 1,
            ']' if depth > 0 => depth -= 1,
            '\\' => {
                let (at, escaped) = chars.next()?;
                end = at + escaped.len_utf8();
                if matches!(escaped, 'p' | 'P') && text[end..].starts_with('{') {
                    end += text[end..].find('}')? + 1;
                    while chars.next_if(|(at, _)| *at < end).is_some() {}
                }
            }
            _ => {}
        }
        if depth == 0 {
            return Some(end);
        }
    }
    None
}

fn class_of(text: &str, folds: bool) -> Option<Vec<(char, char)>> {
    let mut builder = ParserBuilder::new();
    let hir = builder.case_insensitive(folds).build().parse(text).ok()?;
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => Some(
            class
                .iter()
                .map(|range| (range.start(), range.end()))
                .collect(),
        ),
        HirKind::Literal(literal) => {
            let mut chars = core::str::from_utf8(&literal.0).ok()?.chars();
            let one = chars.next().filter(|_| chars.clone().next().is_none());
            one.map(|c| vec![(c, c)])
        }
        _ => None,
    }
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Texts that known rules cut differently.
const SAMPLES: [&str; 24] = [
    "Hello  world, it's THEY'RE I'LL we've",
    "1 12 123 1234 12345 1234567 ½²",
    "x\n\n  y \n \t z\r\n\r\n",
    "a \n ",
    "end  ",
    "  two\tthree",
    "camelCaseWord HTTPServer ABCdef éÀb",
    "!?...  (a) -- $x+y= //\n\n/ a/\n",
    "\"quoted\".\n(x)!\n\n",
    "हिन्दी भाषा 12",
    "e\u{301}a cafe\u{301}s A\u{30a}B",
    "ภาษาไทย ที่",
    "小船看见了大海，有3只鸟。",
    "カタカナ ひらがな 日本x日",
    "배가 바다를 보았다",
    "Привет МИР мирМИР",
    "ǅungla ʰx ªbº",
    "👨‍👩‍👧 🏳️‍🌈!",
    "a\u{a0}b\u{3000}c\u{200b}",
    "'sx 'ſ a'S O'Neil's",
    "#_x __init__ a_b",
    "\u{1}\u{2}a",
    "12٣٤ Ⅷ①",
    "the cat sat. On it 12",
];

/// The longest of these texts needs a few thousand.
const STEPS_MAX: u32 = 200_000;

#[cfg(test)]
mod tests {
    use super::super::rules::steps;
    use super::*;
    use serde_json::{Value, json};

    fn told(expression: &str) -> String {
        let split =
            json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"});
        let bytes = json!({"type": "ByteLevel", "use_regex": false});
        let all: Value = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
        suggested(&steps(&all).expect("known steps"))
    }

    /// As files spell them: LFM2.5's, cl100k's old and new one, Ling's.
    #[test]
    fn other_spellings_of_known_rules_are_recognised() {
        let lfm = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]+|\s+(?!\S)|\s+";
        for name in ["lfm2", "llama-bpe", "dbrx"] {
            assert!(told(lfm).contains(&format!(" {name},")), "{}", told(lfm));
        }
        let ling = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
        assert!(
            told(ling).contains("24 hard texts these names cut as it does: bailingmoe,"),
            "{}",
            told(ling)
        );
        // White space at the end of a text is one word here, whatever is in it.
        let cl100k = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s";
        let told_of = told(cl100k);
        assert!(
            told_of.contains("no known name") && told_of.contains("llama-bpe"),
            "{told_of}"
        );
    }

    #[test]
    fn every_known_expression_finds_its_name() {
        let kimi = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        for (expression, name) in [
            (kimi, "kimi-k2"),
            (
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                "qwen35",
            ),
            (r" ?[^(\s|.,!?…。，、।۔،)]+", "bloom"),
            (
                r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                "ufakzeka",
            ),
        ] {
            let told = told(expression);
            let names = told.split_once("as it does: ").map(|(_, names)| names);
            let names = names.unwrap_or_default().split(", ").collect::<Vec<_>>();
            assert!(names.contains(&name), "{name}: {told}");
        }
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for expression in ["(?<=a)b", "[", r"(?i", "a{2", r"\X"] {
            assert!(
                told(expression).contains("cannot be compared"),
                "{expression}"
            );
        }
        // Ways that would be tried without end.
        assert!(told("(?:(?:a|a|.)*)*!!!!").contains("cannot be compared"));
    }
}

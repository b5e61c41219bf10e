//! GBNF made by chance, against a matcher of a few lines here that tries everything.
//!
//! Grammars of a few rules over a small alphabet, each with texts that it derives and others that
//! differ in a character.

use core::fmt::Write as _;
use sluice_core::gguf::Gguf;
use sluice_core::tokenizer::{self, Tokenizer};
use sluice_text::grammar::{Grammar, GrammarSource};
use std::collections::BTreeSet;

const MODEL: &[u8] = include_bytes!("../../hosted/models/tale-5.8m-Q4_K_M.gguf");
const ALPHABET: &[u8] = b"abc(1";

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Class(Vec<u8>, bool),
    Rule(usize),
    Seq(Vec<Self>),
    Alt(Vec<Self>),
    Repeat(Box<Self>, usize, Option<usize>),
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % n
    }

    fn letter(&mut self) -> u8 {
        ALPHABET[self.below(ALPHABET.len())]
    }

    /// A part that names only rules after `rule`; [`Self::rules`] adds references back, within brackets.
    fn part(&mut self, rule: usize, n_rules: usize, depth: usize) -> Part {
        match self.below(if depth == 0 { 3 } else { 8 }) {
            0 => Part::Text(self.text(2)),
            1 => Part::Class(
                (0..=self.below(2)).map(|_| self.letter()).collect(),
                self.below(5) == 0,
            ),
            2 if rule + 1 < n_rules => Part::Rule(rule + 1 + self.below(n_rules - rule - 1)),
            2 | 3 => Part::Text(self.text(1)),
            4 | 5 => Part::Seq(
                (0..2 + self.below(2))
                    .map(|_| self.part(rule, n_rules, depth - 1))
                    .collect(),
            ),
            6 => Part::Alt(
                (0..2 + self.below(2))
                    .map(|_| self.part(rule, n_rules, depth - 1))
                    .collect(),
            ),
            _ => {
                let inner = Box::new(self.part(rule, n_rules, depth - 1));
                let (least, most) = [
                    (0, None),
                    (1, None),
                    (0, Some(1)),
                    (1, Some(2)),
                    (2, Some(2)),
                ][self.below(5)];
                Part::Repeat(inner, least, most)
            }
        }
    }

    fn text(&mut self, most: usize) -> String {
        (0..=self.below(most))
            .map(|_| char::from(self.letter()))
            .collect()
    }

    /// Rules, some of which lead back to themselves within brackets.
    fn rules(&mut self) -> Vec<Part> {
        let n = 1 + self.below(3);
        let mut rules = Vec::new();
        for rule in 0..n {
            let part = self.part(rule, n, 2);
            let back = Part::Rule(self.below(rule + 1));
            rules.push(match self.below(3) {
                0 => Part::Alt(vec![
                    part,
                    Part::Seq(vec![Part::Text("[".into()), back, Part::Text("]".into())]),
                ]),
                _ => part,
            });
        }
        rules
    }

    /// A text of `part`, if it comes to an end soon.
    fn derived(&mut self, rules: &[Part], part: &Part, out: &mut String, fuel: &mut usize) {
        if *fuel == 0 {
            return;
        }
        *fuel -= 1;
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Class(letters, false) => out.push(char::from(letters[self.below(letters.len())])),
            Part::Class(letters, true) => {
                let others: Vec<u8> = ALPHABET
                    .iter()
                    .copied()
                    .filter(|c| !letters.contains(c))
                    .collect();
                out.push(char::from(others[self.below(others.len())]));
            }
            Part::Rule(number) => self.derived(rules, &rules[*number], out, fuel),
            Part::Seq(parts) => parts
                .iter()
                .for_each(|part| self.derived(rules, part, out, fuel)),
            Part::Alt(parts) => {
                let at = self.below(parts.len());
                self.derived(rules, &parts[at], out, fuel);
            }
            Part::Repeat(inner, least, most) => {
                let n = least + self.below(most.unwrap_or(least + 2) - least + 1);
                (0..n).for_each(|_| self.derived(rules, inner, out, fuel));
            }
        }
    }
}

fn written(part: &Part, out: &mut String) {
    let _infallible = match part {
        Part::Text(text) => write!(out, "\"{text}\""),
        Part::Class(letters, negated) => {
            let letters: String = letters.iter().map(|c| char::from(*c)).collect();
            write!(out, "[{}{letters}]", if *negated { "^" } else { "" })
        }
        Part::Rule(0) => write!(out, "root"),
        Part::Rule(number) => write!(out, "r{number}"),
        Part::Seq(parts) | Part::Alt(parts) => {
            let between = if matches!(part, Part::Seq(_)) {
                " "
            } else {
                " | "
            };
            for (n, part) in parts.iter().enumerate() {
                out.push_str(if n > 0 { between } else { "(" });
                written(part, out);
            }
            write!(out, ")")
        }
        Part::Repeat(inner, least, most) => {
            out.push('(');
            written(inner, out);
            match most {
                None => write!(out, "){{{least},}}"),
                Some(most) => write!(out, "){{{least},{most}}}"),
            }
        }
    };
}

/// Where a match of `part` that begins at `at` may end.
fn ends(rules: &[Part], part: &Part, text: &[u8], at: usize) -> BTreeSet<usize> {
    match part {
        Part::Text(wanted) => {
            let is_there = text[at..].starts_with(wanted.as_bytes());
            is_there.then_some(at + wanted.len()).into_iter().collect()
        }
        Part::Class(letters, negated) => {
            let is_it = text
                .get(at)
                .is_some_and(|c| letters.contains(c) != *negated);
            is_it.then_some(at + 1).into_iter().collect()
        }
        Part::Rule(number) => ends(rules, &rules[*number], text, at),
        Part::Alt(parts) => parts
            .iter()
            .flat_map(|part| ends(rules, part, text, at))
            .collect(),
        Part::Seq(parts) => parts.iter().fold(BTreeSet::from([at]), |from, part| {
            from.into_iter()
                .flat_map(|at| ends(rules, part, text, at))
                .collect()
        }),
        Part::Repeat(inner, least, most) => {
            let mut now = BTreeSet::from([at]);
            let mut found = BTreeSet::new();
            for n in 0..=most.unwrap_or(text.len() + least) {
                if n >= *least {
                    found.extend(&now);
                }
                now = now
                    .into_iter()
                    .flat_map(|at| ends(rules, inner, text, at))
                    .collect();
            }
            found
        }
    }
}

#[test]
fn grammars_by_chance_mean_what_they_say() {
    let gguf = Gguf::parse(MODEL, MODEL.len() as u64).expect("the project's own file");
    let mut words = vec![0; tokenizer::plan(&gguf).expect("a vocabulary").words];
    let tokenizer = Tokenizer::new(&gguf, &mut words).expect("a vocabulary");
    let mut piece = vec![0; tokenizer.piece_len_max()];
    let mut bytes = vec![0; 256];
    for id in 0..tokenizer.n_vocab() {
        if let Ok(&[byte]) = tokenizer.decode_piece(id, &mut piece) {
            bytes[usize::from(byte)] = id;
        }
    }
    let (mut wrong, mut n_right, mut n_refused) = (String::new(), [0, 0], 0);
    for seed in 0..400 {
        let mut chance = Chance(seed);
        let rules = chance.rules();
        let mut gbnf = String::new();
        for (number, rule) in rules.iter().enumerate() {
            written(&Part::Rule(number), &mut gbnf);
            gbnf.push_str(" ::= ");
            written(rule, &mut gbnf);
            gbnf.push('\n');
        }
        let source = GrammarSource::Gbnf(gbnf.clone());
        let mut grammar = match Grammar::new(&source, &tokenizer) {
            Ok(grammar) => grammar,
            Err(error) => {
                let message = error.to_string();
                assert!(
                    message.contains("completes") || message.contains("recursion"),
                    "{gbnf}{message}"
                );
                n_refused += 1;
                continue;
            }
        };
        for _ in 0..5 {
            let mut text = String::new();
            chance.derived(&rules, &rules[0], &mut text, &mut 60);
            if chance.below(2) == 0 && !text.is_empty() {
                let at = chance.below(text.len());
                let other = if chance.below(2) == 0 { "" } else { "b" };
                text.replace_range(at..=at, other);
            }
            if text.len() > 20 {
                continue;
            }
            let expected = ends(&rules, &rules[0], text.as_bytes(), 0).contains(&text.len());
            grammar.restart();
            let mut accepted = true;
            for byte in text.bytes() {
                let id = bytes[usize::from(byte)];
                let mask = grammar.mask().expect("within the bounds");
                accepted = (mask[id as usize / 64] >> (id % 64)) & 1 == 1;
                if !accepted {
                    break;
                }
                grammar.accept(id).expect("it was allowed");
            }
            accepted &= grammar.may_end();
            if accepted == expected {
                n_right[usize::from(expected)] += 1;
            } else {
                let _infallible = writeln!(wrong, "{gbnf}  {text:?}: {accepted}");
            }
        }
    }
    assert!(n_refused < 100, "{n_refused} grammars refused");
    assert!(n_right.iter().all(|n| *n > 300), "{n_right:?}");
    assert!(wrong.is_empty(), "{wrong}");
}

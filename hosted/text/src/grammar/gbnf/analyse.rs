//! Analyses the rules of a grammar together: which are invalid, and which are regular.

use super::{Expr, GbnfError, Rules};

/// Refuses rules that make no sense, rewrites recursion at the end of a rule as repetition, and
/// returns which rules are regular: those that do not lead to any rule that leads back to itself.
pub(super) fn analyse(rules: &mut Rules) -> Result<Vec<bool>, GbnfError> {
    refuse_left_recursion(rules)?;
    refuse_endless(rules)?;
    for number in 0..rules.rules.len() {
        let split = tail_split(&rules.rules[number].body, number);
        if let Some(Split { again, done }) = split.filter(|split| !split.again.is_empty()) {
            let again = Expr::Repeat(Box::new(Expr::Alt(again)), 0, None);
            rules.rules[number].body = Expr::Seq(vec![again, Expr::Alt(done)]);
        }
    }
    let regular = regular(rules);
    refuse_large(rules, &regular)?;
    Ok(regular)
}

/// The lengths of a sequence and a choice after inlining the rules that they name, as the
/// builder of regular expressions does.
#[derive(Clone, Copy, Debug)]
struct Flat {
    sequence: usize,
    choice: usize,
}

/// Refuses rules whose regular expressions, written out, are unreasonably large.
fn refuse_large(rules: &Rules, regular: &[bool]) -> Result<(), GbnfError> {
    let mut known = vec![None; rules.rules.len()];
    for number in 0..rules.rules.len() {
        // The rules that this one names come first; without recursion, since a chain may be long.
        let mut open = vec![number];
        while let Some(&at) = open.last() {
            let mut named = Vec::new();
            all_rules(&rules.rules[at].body, &mut named);
            named.retain(|&next| regular[at] && regular[next] && known[next].is_none());
            if known[at].is_none() && !named.is_empty() {
                open.append(&mut named);
                continue;
            }
            open.pop();
            if known[at].is_none() {
                let mut total = 0;
                known[at] = Some((flat(&rules.rules[at].body, &known, &mut total), total));
            }
        }
    }
    let mut total = 0usize;
    for (rule, (_, size)) in rules.rules.iter().zip(known.into_iter().flatten()) {
        total = total.saturating_add(size);
        if total > FLAT_MAX {
            let (line, name) = (rule.line, rule.name.clone());
            return Err(GbnfError::TooLarge { line, name });
        }
    }
    Ok(())
}

fn flat(expr: &Expr, known: &[Option<(Flat, usize)>], total: &mut usize) -> Flat {
    let mut sum = |parts: &[Expr], of: fn(Flat) -> usize| {
        let mut sum = 0usize;
        for part in parts {
            sum = sum.saturating_add(of(flat(part, known, total)));
        }
        *total = total.saturating_add(sum);
        sum
    };
    let mut made = Flat {
        sequence: 1,
        choice: 1,
    };
    match expr {
        Expr::Class { .. } => {}
        Expr::Text(text) => made.sequence = text.len(),
        Expr::Rule(number) => return known[*number].map_or(made, |(flat, _)| flat),
        Expr::Seq(parts) => made.sequence = sum(parts, |flat| flat.sequence),
        Expr::Alt(parts) => made.choice = sum(parts, |flat| flat.choice),
        Expr::Repeat(inner, ..) => {
            flat(inner, known, total);
        }
    }
    made
}

/// Maximum number of parts, written out, in all regular rules together.
const FLAT_MAX: usize = 250_000;

/// A rule that is one of `done`, or one of `again` followed by itself.
struct Split {
    again: Vec<Expr>,
    done: Vec<Expr>,
}

/// Splits `expr`, if it names `rule` only at its end.
fn tail_split(expr: &Expr, rule: usize) -> Option<Split> {
    if !names(expr, rule) {
        return Some(Split {
            again: vec![],
            done: vec![expr.clone()],
        });
    }
    match expr {
        Expr::Rule(_) => Some(Split {
            again: vec![Expr::Seq(vec![])],
            done: vec![],
        }),
        Expr::Alt(alternatives) => {
            let mut all = Split {
                again: vec![],
                done: vec![],
            };
            for alternative in alternatives {
                let split = tail_split(alternative, rule)?;
                all.again.extend(split.again);
                all.done.extend(split.done);
            }
            Some(all)
        }
        Expr::Seq(items) => {
            let (last, head) = items.split_last()?;
            if head.iter().any(|item| names(item, rule)) {
                return None;
            }
            // The head is copied once for each side, regardless of the number of tails.
            let behind = |tails: Vec<Expr>| match tails.is_empty() {
                true => vec![],
                false => vec![Expr::Seq([head, &[Expr::Alt(tails)]].concat())],
            };
            let split = tail_split(last, rule)?;
            Some(Split {
                again: behind(split.again),
                done: behind(split.done),
            })
        }
        Expr::Repeat(inner, 0, Some(1)) => {
            let mut split = tail_split(inner, rule)?;
            split.done.push(Expr::Seq(vec![]));
            Some(split)
        }
        _ => None,
    }
}

fn names(expr: &Expr, rule: usize) -> bool {
    match expr {
        Expr::Rule(number) => *number == rule,
        Expr::Seq(parts) | Expr::Alt(parts) => parts.iter().any(|part| names(part, rule)),
        Expr::Repeat(inner, ..) => names(inner, rule),
        Expr::Class { .. } | Expr::Text(_) => false,
    }
}

/// The smallest set of rules that satisfies `holds`: a rule is tested again when a rule that it names
/// has been added.
fn least_set(rules: &Rules, holds: impl Fn(usize, &[bool]) -> bool) -> Vec<bool> {
    let n = rules.rules.len();
    let mut users = vec![Vec::new(); n];
    for (number, rule) in rules.rules.iter().enumerate() {
        let mut named = Vec::new();
        all_rules(&rule.body, &mut named);
        named.sort_unstable();
        named.dedup();
        named.into_iter().for_each(|used| users[used].push(number));
    }
    let mut set = vec![false; n];
    let mut open: Vec<usize> = (0..n).rev().collect();
    while let Some(number) = open.pop() {
        if !set[number] && holds(number, &set) {
            set[number] = true;
            open.extend(&users[number]);
        }
    }
    set
}

/// Whether `expr` accepts the empty text, given which rules do.
fn is_nullable(expr: &Expr, rules: &[bool]) -> bool {
    match expr {
        Expr::Class { .. } => false,
        Expr::Text(text) => text.is_empty(),
        Expr::Rule(number) => rules[*number],
        Expr::Seq(parts) => parts.iter().all(|part| is_nullable(part, rules)),
        Expr::Alt(parts) => parts.iter().any(|part| is_nullable(part, rules)),
        Expr::Repeat(inner, least, _) => *least == 0 || is_nullable(inner, rules),
    }
}

/// Whether `expr` accepts any text, given which rules do.
fn is_possible(expr: &Expr, rules: &[bool]) -> bool {
    match expr {
        Expr::Class { ranges, negated } => *negated || !ranges.is_empty(),
        Expr::Text(_) => true,
        Expr::Rule(number) => rules[*number],
        Expr::Seq(parts) => parts.iter().all(|part| is_possible(part, rules)),
        Expr::Alt(parts) => parts.iter().any(|part| is_possible(part, rules)),
        Expr::Repeat(inner, least, _) => *least == 0 || is_possible(inner, rules),
    }
}

fn refuse_endless(rules: &Rules) -> Result<(), GbnfError> {
    let possible = least_set(rules, |n, set| is_possible(&rules.rules[n].body, set));
    match possible.iter().position(|possible| !possible) {
        None => Ok(()),
        Some(number) => {
            let rule = &rules.rules[number];
            let (line, name) = (rule.line, rule.name.clone());
            Err(GbnfError::Endless { line, name })
        }
    }
}

fn refuse_left_recursion(rules: &Rules) -> Result<(), GbnfError> {
    let nullable = least_set(rules, |n, set| is_nullable(&rules.rules[n].body, set));
    let first_of = |number: usize| {
        let mut first = Vec::new();
        first_rules(&rules.rules[number].body, &nullable, &mut first);
        first
    };
    match cyclic(rules.rules.len(), first_of)
        .iter()
        .position(|&cyclic| cyclic)
    {
        None => Ok(()),
        Some(number) => {
            let rule = &rules.rules[number];
            let (line, name) = (rule.line, rule.name.clone());
            Err(GbnfError::LeftRecursion { line, name })
        }
    }
}

/// The rules that `expr` can begin with.
fn first_rules(expr: &Expr, nullable: &[bool], first: &mut Vec<usize>) {
    match expr {
        Expr::Class { .. } | Expr::Text(_) => {}
        Expr::Rule(number) => first.push(*number),
        Expr::Alt(parts) => parts
            .iter()
            .for_each(|part| first_rules(part, nullable, first)),
        Expr::Repeat(inner, ..) => first_rules(inner, nullable, first),
        Expr::Seq(parts) => {
            for part in parts {
                first_rules(part, nullable, first);
                if !is_nullable(part, nullable) {
                    break;
                }
            }
        }
    }
}

fn all_rules(expr: &Expr, named: &mut Vec<usize>) {
    match expr {
        Expr::Class { .. } | Expr::Text(_) => {}
        Expr::Rule(number) => named.push(*number),
        Expr::Seq(parts) | Expr::Alt(parts) => parts.iter().for_each(|p| all_rules(p, named)),
        Expr::Repeat(inner, ..) => all_rules(inner, named),
    }
}

fn regular(rules: &Rules) -> Vec<bool> {
    let named_in = |number: usize| {
        let mut named = Vec::new();
        all_rules(&rules.rules[number].body, &mut named);
        named
    };
    let on_cycle = cyclic(rules.rules.len(), named_in);
    // And all rules that lead there.
    let irregular = least_set(rules, |number, set| {
        on_cycle[number] || named_in(number).into_iter().any(|named| set[named])
    });
    irregular.into_iter().map(|is| !is).collect()
}

/// Which of `n` nodes lie on a cycle of the graph `next` (Tarjan's components, without recursion).
fn cyclic(n: usize, next: impl Fn(usize) -> Vec<usize>) -> Vec<bool> {
    const UNSEEN: usize = usize::MAX;
    let mut index = vec![UNSEEN; n];
    let mut low = vec![0; n];
    let mut on_stack = vec![false; n];
    let mut cyclic = vec![false; n];
    let mut stack = Vec::new();
    let mut seen = 0;
    for start in 0..n {
        if index[start] != UNSEEN {
            continue;
        }
        let mut calls = vec![(start, next(start), 0)];
        while let Some((node, children, at)) = calls.last_mut() {
            let node = *node;
            if *at == 0 && index[node] == UNSEEN {
                index[node] = seen;
                low[node] = seen;
                seen += 1;
                stack.push(node);
                on_stack[node] = true;
            }
            if let Some(&child) = children.get(*at) {
                *at += 1;
                if child == node {
                    cyclic[node] = true;
                }
                if index[child] == UNSEEN {
                    calls.push((child, next(child), 0));
                } else if on_stack[child] {
                    low[node] = low[node].min(index[child]);
                }
                continue;
            }
            calls.pop();
            if let Some((parent, ..)) = calls.last() {
                low[*parent] = low[*parent].min(low[node]);
            }
            if low[node] == index[node] {
                let first = stack.iter().position(|&other| other == node).unwrap_or(0);
                let component = stack.split_off(first);
                for &member in &component {
                    on_stack[member] = false;
                    cyclic[member] |= component.len() > 1;
                }
            }
        }
    }
    cyclic
}

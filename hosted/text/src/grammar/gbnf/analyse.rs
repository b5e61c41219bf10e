//! What the rules of a grammar mean together: which are wrong, which are regular.

use super::{Expr, GbnfError, Rules};

/// Refuses rules that make no sense, writes recursion at the end of a rule as repetition, and
/// says which rules are regular: they do not lead to any that leads back to itself.
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
    Ok(regular(rules))
}

/// A rule that is one of `done`, or one of `again` and then itself.
struct Split {
    again: Vec<Expr>,
    done: Vec<Expr>,
}

/// Splits `expr`, if it names `rule` at its end alone.
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
            let behind = |tail: Expr| Expr::Seq([head, &[tail]].concat());
            let split = tail_split(last, rule)?;
            Some(Split {
                again: split.again.into_iter().map(behind).collect(),
                done: split.done.into_iter().map(behind).collect(),
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

/// Repeats `holds` over all rules until nothing changes: the least set that it describes.
fn least_set(rules: &Rules, holds: impl Fn(&Expr, &[bool]) -> bool) -> Vec<bool> {
    let mut set = vec![false; rules.rules.len()];
    loop {
        let mut grew = false;
        for (number, rule) in rules.rules.iter().enumerate() {
            if !set[number] && holds(&rule.body, &set) {
                set[number] = true;
                grew = true;
            }
        }
        if !grew {
            return set;
        }
    }
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
    let possible = least_set(rules, is_possible);
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
    let nullable = least_set(rules, is_nullable);
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
    let n = rules.rules.len();
    let mut irregular = cyclic(n, named_in);
    // And whatever leads there.
    loop {
        let before = irregular.iter().filter(|&&is| is).count();
        for number in 0..n {
            let leads = named_in(number).into_iter().any(|named| irregular[named]);
            irregular[number] |= leads;
        }
        if irregular.iter().filter(|&&is| is).count() == before {
            return irregular.into_iter().map(|is| !is).collect();
        }
    }
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

//! Nodes of a rebuilt template: jinja2's scoping rules where minijinja's differ.
//!
//! - Assignments inside blocks of `set`, `filter` and `generation`, and inside the `else` of a loop, stay in effect.
//! - `with` computes all of its values before it assigns the first name.
//! - The `else` of a loop runs if no iteration was completed, because of `continue` or `break`, too.
//! - A default of a macro applies to a missing argument, not to an undefined one.
//! - Strings can be unpacked into names, as in `a, b`.

use crate::names::{
    ALONE, CLOSED, FLAG, GENERATION, GIVEN, OPENED, PASSED, RAISE, STORABLE, UNPACKED,
    UNPACKED_EACH,
};
use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, CallArg, Expr, Spanned, Stmt};
use minijinja::value::Tuple;

/// A new node at the position of an old one.
pub(crate) fn again<T, U>(old: &Spanned<T>, new: U) -> Spanned<U> {
    Spanned::new(new, old.span())
}

pub(crate) fn ask<'a>(function: &'static str, expr: Expr<'a>) -> Expr<'a> {
    let span = expr.span();
    call_of(function, vec![CallArg::Pos(expr)], span)
}

pub(crate) fn call_of<'a>(function: &'static str, args: Vec<CallArg<'a>>, span: Span) -> Expr<'a> {
    let expr = name(function, span);
    Expr::Call(Spanned::new(ast::Call { expr, args }, span))
}

pub(crate) fn name<'a>(id: &'a str, span: Span) -> Expr<'a> {
    Expr::Var(Spanned::new(ast::Var { id }, span))
}

pub(crate) fn refusal<'a>(why: &str, span: Span) -> Stmt<'a> {
    let value = Value::from(why);
    let args = vec![CallArg::Pos(Expr::Const(Spanned::new(
        ast::Const { value },
        span,
    )))];
    let call = ast::Call {
        expr: name(ALONE, span),
        args,
    };
    let call = Spanned::new(call, span);
    Stmt::Do(Spanned::new(ast::Do { call }, span))
}

/// `body` in a scope of its own.
pub(crate) fn scoped<'a>(body: Vec<Stmt<'a>>, span: Span) -> Vec<Stmt<'a>> {
    let assignments = Vec::new();
    let node = ast::WithBlock { assignments, body };
    vec![Stmt::WithBlock(Spanned::new(node, span))]
}

/// Whether it is the scope that stands for `{% generation %}`.
pub(crate) fn is_generated(node: &ast::WithBlock<'_>) -> bool {
    matches!(&*node.assignments, [(Expr::Var(target), _)] if target.id == GENERATION)
}

/// `body` in a scope of its own, between two marks that print nothing unless spans are asked for.
pub(crate) fn generated<'a>(body: Vec<Stmt<'a>>, span: Span) -> Stmt<'a> {
    let mark = |function| {
        let expr = call_of(function, Vec::new(), span);
        Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, span))
    };
    let mut marked = vec![mark(OPENED)];
    marked.extend(body);
    marked.push(mark(CLOSED));
    let assignments = Vec::new();
    let node = ast::WithBlock {
        assignments,
        body: marked,
    };
    Stmt::WithBlock(Spanned::new(node, span))
}

/// Combines assignments into one, so that no value sees another's name.
pub(crate) fn together<'a>(
    pairs: Vec<(Expr<'a>, Expr<'a>)>,
    span: Span,
) -> Vec<(Expr<'a>, Expr<'a>)> {
    let pairs = pairs.into_iter().map(|(target, expr)| {
        let expr = unpacked(&target, UNPACKED, expr);
        (target, expr)
    });
    let (targets, exprs): (Vec<_>, Vec<_>) = pairs.unzip();
    if targets.len() < 2 {
        return targets.into_iter().zip(exprs).collect();
    }
    let list = |items| Expr::List(Spanned::new(ast::List { items }, span));
    vec![(list(targets), list(exprs))]
}

/// `expr` in a form that can be unpacked, if `target` unpacks it.
pub(crate) fn unpacked<'a>(target: &Expr<'a>, function: &'static str, expr: Expr<'a>) -> Expr<'a> {
    match target {
        Expr::List(_) | Expr::Tuple(_) => ask(function, expr),
        _ => expr,
    }
}

/// A value for `target`, an attribute of a namespace; macros only capture a namespace that is read.
pub(crate) fn stored<'a>(target: &Expr<'a>, expr: Expr<'a>) -> Expr<'a> {
    let span = expr.span();
    let mut args = vec![CallArg::Pos(expr)];
    if let Expr::GetAttr(node) = target
        && let Expr::Var(namespace) = &node.expr
    {
        args.push(CallArg::Pos(name(namespace.id, span)));
    }
    call_of(STORABLE, args, span)
}

/// Rebuilds a `set` block; a namespace attribute is set through a variable.
pub(crate) fn set_block<'a>(mut node: ast::SetBlock<'a>, span: Span) -> Stmt<'a> {
    if !matches!(node.target, Expr::GetAttr(_)) {
        return Stmt::SetBlock(Spanned::new(node, span));
    }
    let target = core::mem::replace(&mut node.target, name(BLOCK, span));
    let expr = stored(&target, name(BLOCK, span));
    let body = vec![
        Stmt::SetBlock(Spanned::new(node, span)),
        Stmt::Set(Spanned::new(ast::Set { target, expr }, span)),
    ];
    let assignments = Vec::new();
    let with = ast::WithBlock { assignments, body };
    Stmt::WithBlock(Spanned::new(with, span))
}

/// Rebuilds a loop, except for its `else`.
pub(crate) fn looped<'a>(mut node: ast::ForLoop<'a>, span: Span) -> Stmt<'a> {
    if !node.else_body.is_empty() {
        node.else_body = scoped(node.else_body, span);
    }
    node.iter = unpacked(&node.target, UNPACKED_EACH, node.iter);
    if node.else_body.is_empty() || !node.body.iter().any(leaves) {
        return Stmt::ForLoop(Spanned::new(node, span));
    }
    if node.recursive {
        return refusal(
            "break or continue in a recursive loop with else is not supported",
            span,
        );
    }
    let flag = || name(ENDED, span);
    let raise = ast::Call {
        expr: name(RAISE, span),
        args: vec![CallArg::Pos(flag())],
    };
    let call = Spanned::new(raise, span);
    node.body
        .push(Stmt::Do(Spanned::new(ast::Do { call }, span)));
    let condition = ast::IfCond {
        expr: flag(),
        true_body: Vec::new(),
        false_body: core::mem::take(&mut node.else_body),
    };
    let with = ast::WithBlock {
        assignments: vec![(flag(), call_of(FLAG, Vec::new(), span))],
        body: vec![
            Stmt::ForLoop(Spanned::new(node, span)),
            Stmt::IfCond(Spanned::new(condition, span)),
        ],
    };
    Stmt::WithBlock(Spanned::new(with, span))
}

/// Whether it may leave the current iteration of its loop early.
fn leaves(stmt: &Stmt<'_>) -> bool {
    match stmt {
        Stmt::Continue(_) | Stmt::Break(_) => true,
        Stmt::IfCond(node) => node.true_body.iter().chain(&node.false_body).any(leaves),
        Stmt::WithBlock(node) => node.body.iter().any(leaves),
        Stmt::SetBlock(node) => node.body.iter().any(leaves),
        Stmt::FilterBlock(node) => node.body.iter().any(leaves),
        _ => false,
    }
}

/// The arguments of a call that may be a macro's, marked as given so that missing ones can be recognised.
pub(crate) fn passed<'a>(callee: &Expr<'a>, args: Vec<CallArg<'a>>) -> Vec<CallArg<'a>> {
    let is_macro = match callee {
        Expr::Var(node) => !FUNCTIONS.contains(&node.id),
        _ => false,
    };
    let given = |expr: Expr<'a>| match expr {
        Expr::Const(_) => expr,
        _ if is_macro => ask(PASSED, expr),
        _ => expr,
    };
    let args = args.into_iter().map(|arg| match arg {
        CallArg::Pos(expr) => CallArg::Pos(given(expr)),
        CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, given(expr)),
        other => other,
    });
    args.collect()
}

/// Rebuilds a macro. Defaults are set in the body, where they may use the parameters before
/// them.
pub(crate) fn macro_of<'a>(
    name: &'a str,
    args: Vec<Expr<'a>>,
    defaults: Vec<Expr<'a>>,
    rest: Vec<Stmt<'a>>,
    span: Span,
) -> ast::Macro<'a> {
    let variable = |id: &'a str| Expr::Var(Spanned::new(ast::Var { id }, span));
    let set = |id: &'a str, expr: Expr<'a>| {
        let target = variable(id);
        Stmt::Set(Spanned::new(ast::Set { target, expr }, span))
    };
    let mut body = Vec::new();
    let n_plain = args.len() - defaults.len();
    let mut defaults = defaults.into_iter();
    for (n, arg) in args.iter().enumerate() {
        let Expr::Var(node) = arg else { continue };
        let given = ask(GIVEN, variable(node.id));
        let default = if n < n_plain { None } else { defaults.next() };
        let expr = match default {
            None => given,
            Some(default) => {
                let test = ast::Test {
                    name: "defined",
                    expr: variable(node.id),
                    args: Vec::new(),
                };
                let choice = ast::IfExpr {
                    test_expr: Expr::Test(Spanned::new(test, span)),
                    true_expr: given,
                    false_expr: Some(default),
                };
                Expr::IfExpr(Spanned::new(choice, span))
            }
        };
        body.push(set(node.id, expr));
    }
    // Extra arguments are refused when the macro is called, so these stay empty.
    let nothing = [
        ("varargs", Value::from(Tuple::new(Vec::new()))),
        ("kwargs", Value::from_pairs(Vec::<(Value, Value)>::new())),
    ];
    body.extend(nothing.map(|(id, value)| {
        let value = Expr::Const(Spanned::new(ast::Const { value }, span));
        set(id, value)
    }));
    body.extend(rest);
    ast::Macro {
        name,
        args,
        defaults: Vec::new(),
        body,
    }
}

/// Names that no template can write: whether an iteration was completed, and a block's text.
const ENDED: &str = "ended()";
const BLOCK: &str = "block()";
/// Functions that are called by name and are not macros.
const FUNCTIONS: [&str; 9] = [
    "range",
    "dict",
    "lipsum",
    "namespace",
    "cycler",
    "joiner",
    "loop",
    "raise_exception",
    "strftime_now",
];

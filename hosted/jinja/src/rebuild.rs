//! Rebuilds a template with a check before everything that can grow.
//!
//! minijinja limits the number of instructions and the recursion depth, which bounds neither memory nor
//! time: `{% set x = x ~ x %}` forty times makes a terabyte, `[x, x]` nested forty times takes forever to
//! print, and one comparison of long strings is one instruction. So the parsed template is
//! rebuilt with calls of the functions in `functions`:
//!
//! - `bounded` around expressions that make a new value: its size, counted as a tree, is limited to
//!   [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX), and its depth is limited, too. Lazy sequences become lists here.
//! - `listed` around lists, which may grow.
//! - `touched` around values that are read completely (compared, printed, passed to a filter).
//! - `indexed` around values of which only a part is read.
//!
//! All of them charge [`TOUCHED_BYTES_MAX`](crate::TOUCHED_BYTES_MAX), the budget of one rendering.

use crate::names::{
    ADDED, BOUNDED, COMPARED, CONCATENATED, INDEXED, ITERATED, LISTED, MULTIPLIED, NEGATED,
    REMAINDER, SLICED, SUBSCRIPTED, TOUCHED, UNPACKED,
};
use crate::nodes::{self, again, ask, call_of, refusal};
use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, CallArg, Expr, Spanned, Stmt};

fn statements<'a>(body: &[Stmt<'a>]) -> Vec<Stmt<'a>> {
    body.iter().map(statement).collect()
}

/// Rebuilds one statement; a whole template is one.
#[expect(clippy::too_many_lines, reason = "an arm for each kind of node")]
pub(crate) fn statement<'a>(stmt: &Stmt<'a>) -> Stmt<'a> {
    match stmt {
        Stmt::Template(node) => Stmt::Template(again(
            node,
            ast::Template {
                children: statements(&node.children),
            },
        )),
        Stmt::EmitExpr(node) => {
            let expr = expression(&node.expr);
            Stmt::EmitExpr(again(node, ast::EmitExpr { expr }))
        }
        // Printed as a value, so that it is charged.
        Stmt::EmitRaw(node) => {
            let value = Value::from(node.raw);
            let text = Expr::Const(again(node, ast::Const { value }));
            Stmt::EmitExpr(again(
                node,
                ast::EmitExpr {
                    expr: ask(INDEXED, text),
                },
            ))
        }
        Stmt::ForLoop(node) => {
            let made = ast::ForLoop {
                target: assigned(&node.target),
                iter: ask(ITERATED, ask(BOUNDED, expression(&node.iter))),
                filter_expr: node.filter_expr.as_ref().map(expression),
                recursive: node.recursive,
                body: statements(&node.body),
                else_body: statements(&node.else_body),
            };
            nodes::looped(made, node.span())
        }
        Stmt::IfCond(node) => Stmt::IfCond(again(
            node,
            ast::IfCond {
                expr: expression(&node.expr),
                true_body: statements(&node.true_body),
                false_body: statements(&node.false_body),
            },
        )),
        Stmt::WithBlock(node) if nodes::is_generated(node) => {
            nodes::generated(statements(&node.body), node.span())
        }
        Stmt::WithBlock(node) => {
            let pairs = node.assignments.iter();
            let assignments = pairs.map(|(target, expr)| (assigned(target), expression(expr)));
            Stmt::WithBlock(again(
                node,
                ast::WithBlock {
                    assignments: nodes::together(assignments.collect(), node.span()),
                    body: statements(&node.body),
                },
            ))
        }
        Stmt::Set(node) => Stmt::Set(again(node, set(node))),
        Stmt::SetBlock(node) => {
            let made = ast::SetBlock {
                target: assigned(&node.target),
                filter: node.filter.as_ref().map(block_filter),
                body: nodes::scoped(statements(&node.body), node.span()),
            };
            nodes::set_block(made, node.span())
        }
        Stmt::AutoEscape(node) => refusal("autoescape is not supported", node.span()),
        Stmt::FilterBlock(node) => Stmt::FilterBlock(again(
            node,
            ast::FilterBlock {
                filter: block_filter(&node.filter),
                body: nodes::scoped(statements(&node.body), node.span()),
            },
        )),
        Stmt::Macro(node) => Stmt::Macro(again(node, macro_of(node))),
        Stmt::CallBlock(node) => Stmt::CallBlock(again(
            node,
            ast::CallBlock {
                call: again(&node.call, call(&node.call)),
                macro_decl: again(&node.macro_decl, macro_of(&node.macro_decl)),
            },
        )),
        Stmt::Block(node) => Stmt::Block(again(
            node,
            ast::Block {
                name: node.name,
                required: node.required,
                body: statements(&node.body),
            },
        )),
        // Templates are single files.
        Stmt::Extends(node) => refusal(OTHER_FILE, node.span()),
        Stmt::Include(node) => refusal(OTHER_FILE, node.span()),
        Stmt::Import(node) => refusal(OTHER_FILE, node.span()),
        Stmt::FromImport(node) => refusal(OTHER_FILE, node.span()),
        Stmt::Continue(node) => Stmt::Continue(again(node, ast::Continue)),
        Stmt::Break(node) => Stmt::Break(again(node, ast::Break)),
        Stmt::Do(node) => {
            let call = again(&node.call, call(&node.call));
            Stmt::Do(again(node, ast::Do { call }))
        }
    }
}

/// Namespaces cannot be stored in other namespaces: one that contained itself would never be freed.
fn set<'a>(node: &ast::Set<'a>) -> ast::Set<'a> {
    let expr = expression(&node.expr);
    let expr = match node.target {
        Expr::GetAttr(_) => nodes::stored(&node.target, expr),
        _ => expr,
    };
    let target = assigned(&node.target);
    let expr = nodes::unpacked(&target, UNPACKED, expr);
    ast::Set { target, expr }
}

fn macro_of<'a>(node: &ast::Macro<'a>) -> ast::Macro<'a> {
    let args: Vec<Expr<'a>> = node.args.iter().map(assigned).collect();
    let defaults = node.defaults.iter().map(expression).collect();
    let span = match node.body.is_empty() {
        true => node.args.first().map_or_else(Span::default, Expr::span),
        false => Span::default(),
    };
    nodes::macro_of(node.name, args, defaults, statements(&node.body), span)
}

/// The target of an assignment: it computes nothing except the namespace of an attribute.
fn assigned<'a>(expr: &Expr<'a>) -> Expr<'a> {
    match expr {
        Expr::List(node) => Expr::List(again(
            node,
            ast::List {
                items: node.items.iter().map(assigned).collect(),
            },
        )),
        Expr::Tuple(node) => Expr::Tuple(again(
            node,
            ast::Tuple {
                items: node.items.iter().map(assigned).collect(),
            },
        )),
        Expr::GetAttr(node) => Expr::GetAttr(again(
            node,
            ast::GetAttr {
                expr: assigned(&node.expr),
                name: node.name,
            },
        )),
        Expr::Var(node) => Expr::Var(again(node, ast::Var { id: node.id })),
        other => expression(other),
    }
}

/// The filter of a block; its innermost value is the block itself and has no expression.
fn block_filter<'a>(expr: &Expr<'a>) -> Expr<'a> {
    match expr {
        Expr::Filter(node) => Expr::Filter(again(
            node,
            ast::Filter {
                name: node.name,
                expr: node.expr.as_ref().map(block_filter),
                args: arguments(&node.args),
            },
        )),
        other => expression(other),
    }
}

#[expect(clippy::too_many_lines, reason = "an arm for each kind of node")]
fn expression<'a>(expr: &Expr<'a>) -> Expr<'a> {
    match expr {
        Expr::Var(node) => Expr::Var(again(node, ast::Var { id: node.id })),
        Expr::Const(node) => Expr::Const(again(
            node,
            ast::Const {
                value: node.value.clone(),
            },
        )),
        Expr::Slice(node) => {
            let span = node.span();
            let part = |part: &Option<Expr<'a>>| match part {
                Some(expr) => expression(expr),
                None => Expr::Const(Spanned::new(ast::Const { value: ().into() }, span)),
            };
            let parts = [&node.start, &node.stop, &node.step].map(part);
            let args = [expression(&node.expr)].into_iter().chain(parts);
            call_of(SLICED, args.map(CallArg::Pos).collect(), span)
        }
        Expr::UnaryOp(node) => Expr::UnaryOp(again(
            node,
            ast::UnaryOp {
                op: match node.op {
                    ast::UnaryOpKind::Not => ast::UnaryOpKind::Not,
                    ast::UnaryOpKind::Neg => ast::UnaryOpKind::Neg,
                },
                expr: match node.op {
                    ast::UnaryOpKind::Not => ask(INDEXED, expression(&node.expr)),
                    ast::UnaryOpKind::Neg => ask(NEGATED, expression(&node.expr)),
                },
            },
        )),
        Expr::BinOp(node) => binary(node),
        Expr::Compare(node) => {
            let ops = node.ops.iter().map(|op| ast::CompareOp {
                op: op.op,
                expr: ask(TOUCHED, expression(&op.expr)),
            });
            Expr::Compare(again(
                node,
                ast::Compare {
                    expr: ask(TOUCHED, expression(&node.expr)),
                    ops: ops.collect(),
                },
            ))
        }
        Expr::IfExpr(node) => Expr::IfExpr(again(
            node,
            ast::IfExpr {
                test_expr: expression(&node.test_expr),
                true_expr: expression(&node.true_expr),
                false_expr: node.false_expr.as_ref().map(expression),
            },
        )),
        Expr::Filter(node) => filter(node),
        Expr::Test(node) => {
            let name = match LOOKING_TESTS.contains(&node.name) {
                true => INDEXED,
                false => TOUCHED,
            };
            Expr::Test(again(
                node,
                ast::Test {
                    name: node.name,
                    expr: guarded_unless_name(name, &node.expr),
                    args: arguments(&node.args),
                },
            ))
        }
        Expr::GetAttr(node) => Expr::GetAttr(again(
            node,
            ast::GetAttr {
                expr: expression(&node.expr),
                name: node.name,
            },
        )),
        Expr::GetItem(node) => Expr::GetItem(again(
            node,
            ast::GetItem {
                expr: ask(SUBSCRIPTED, expression(&node.expr)),
                subscript_expr: expression(&node.subscript_expr),
            },
        )),
        Expr::Call(node) => ask(BOUNDED, Expr::Call(again(node, call(node)))),
        Expr::List(node) => ask(
            LISTED,
            Expr::List(again(
                node,
                ast::List {
                    items: node.items.iter().map(expression).collect(),
                },
            )),
        ),
        Expr::Tuple(node) => ask(
            BOUNDED,
            Expr::Tuple(again(
                node,
                ast::Tuple {
                    items: node.items.iter().map(expression).collect(),
                },
            )),
        ),
        Expr::Map(node) => ask(
            BOUNDED,
            Expr::Map(again(
                node,
                ast::Map {
                    keys: node.keys.iter().map(expression).collect(),
                    values: node.values.iter().map(expression).collect(),
                },
            )),
        ),
    }
}

/// Bare names are not guarded: only tests and filters that accept undefined names get them, and a name is free.
fn guarded_unless_name<'a>(name: &'static str, expr: &Expr<'a>) -> Expr<'a> {
    match (name, expr) {
        (INDEXED, Expr::Var(_) | Expr::GetAttr(_)) => expression(expr),
        _ => ask(name, expression(expr)),
    }
}

fn binary<'a>(node: &Spanned<ast::BinOp<'a>>) -> Expr<'a> {
    use ast::BinOpKind::{Add, Concat, Eq, Gt, Gte, In, Lt, Lte, Mul, Ne, Rem, ScAnd, ScOr};
    let (left, right) = (expression(&node.left), expression(&node.right));
    let op = node.op;
    let compared = match op {
        Eq => "==",
        Ne => "!=",
        Lt => "<",
        Lte => "<=",
        Gt => ">",
        Gte => ">=",
        In => "in",
        _ => "",
    };
    let function = match op {
        Mul => MULTIPLIED,
        Add => ADDED,
        Concat => CONCATENATED,
        Rem => REMAINDER,
        ScAnd | ScOr => return Expr::BinOp(again(node, ast::BinOp { op, left, right })),
        _ if !compared.is_empty() => {
            let value = compared.into();
            let op = Expr::Const(again(node, ast::Const { value }));
            let args = [op, left, right].map(CallArg::Pos).into();
            return call_of(COMPARED, args, node.span());
        }
        _ => {
            let (left, right) = (ask(TOUCHED, left), ask(TOUCHED, right));
            return Expr::BinOp(again(node, ast::BinOp { op, left, right }));
        }
    };
    let args = vec![CallArg::Pos(left), CallArg::Pos(right)];
    call_of(function, args, node.span())
}

fn filter<'a>(node: &Spanned<ast::Filter<'a>>) -> Expr<'a> {
    let looks = LOOKING_FILTERS.contains(&node.name);
    let asked = if looks { INDEXED } else { BOUNDED };
    let rebuilt = Expr::Filter(again(
        node,
        ast::Filter {
            name: node.name,
            expr: node
                .expr
                .as_ref()
                .map(|expr| guarded_unless_name(asked, expr)),
            args: arguments(&node.args),
        },
    ));
    if looks {
        rebuilt
    } else {
        ask(BOUNDED, rebuilt)
    }
}

fn call<'a>(node: &ast::Call<'a>) -> ast::Call<'a> {
    ast::Call {
        expr: expression(&node.expr),
        args: nodes::passed(&node.expr, arguments(&node.args)),
    }
}

fn arguments<'a>(args: &[CallArg<'a>]) -> Vec<CallArg<'a>> {
    let args = args.iter().map(|arg| match arg {
        CallArg::Pos(expr) => CallArg::Pos(expression(expr)),
        CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, expression(expr)),
        CallArg::PosSplat(expr) => CallArg::PosSplat(expression(expr)),
        CallArg::KwargSplat(expr) => CallArg::KwargSplat(expression(expr)),
    });
    args.collect()
}

const OTHER_FILE: &str = "a template cannot use another file";
/// Filters that are cheap: they return a part of the argument or the argument itself.
const LOOKING_FILTERS: [&str; 6] = ["length", "count", "first", "last", "default", "d"];
/// Tests that only check the type of a value.
const LOOKING_TESTS: [&str; 16] = [
    "defined",
    "undefined",
    "none",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "number",
    "integer",
    "int",
    "float",
    "boolean",
    "true",
    "false",
    "filter",
    "test",
];

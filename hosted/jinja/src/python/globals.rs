//! jinja2's stateful global functions.

use super::arguments::{bound, split};
use crate::error::fail;
use crate::values::{View, integer, items, text};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use minijinja::value::{Object, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};
use std::sync::Arc;

pub(crate) fn install(env: &mut Environment<'_>) {
    env.add_function("range", |args: Rest<Value>| range(&args));
    env.add_function("dict", |args: Rest<ValueOrKwargs>| {
        dict(&args.into_values())
    });
    env.add_function("lipsum", |_: Rest<ValueOrKwargs>| {
        fail::<Value>("lipsum(), a random text, is not supported")
    });
    env.add_function("cycler", |args: Rest<Value>| {
        if args.is_empty() {
            return fail("cycler: at least one item has to be provided");
        }
        let (items, at) = (args.to_vec(), AtomicUsize::new(0));
        Ok(Value::from_object(Cycler { items, at }))
    });
    env.add_function("joiner", |args: Rest<ValueOrKwargs>| {
        let [separator] = bound("joiner", ["sep"], 0, &args.into_values())?;
        let separator = separator.map_or_else(|| ", ".to_owned(), |sep| text(&sep));
        let is_used = AtomicBool::new(false);
        Ok::<_, Error>(Value::from_object(Joiner { separator, is_used }))
    });
}

/// Python's `range`.
fn range(args: &[Value]) -> Result<Value, Error> {
    let number = |at: usize| integer("an argument of range", &args[at]);
    let (start, stop, step) = match args.len() {
        1 => (0, number(0)?, 1),
        2 => (number(0)?, number(1)?, 1),
        3 => (number(0)?, number(1)?, number(2)?),
        n => return fail(format!("range takes 1 to 3 arguments, not {n}")),
    };
    if step == 0 {
        return fail("range() arg 3 must not be zero");
    }
    let is_inside = |i: &i64| if step > 0 { *i < stop } else { *i > stop };
    let all = core::iter::successors(Some(start), |at: &i64| Some(at.saturating_add(step)));
    let all = all.take_while(is_inside).take(RANGE_LEN_MAX + 1);
    let items: Vec<Value> = all.map(Value::from).collect();
    if items.len() > RANGE_LEN_MAX {
        return fail(format!("a range has at most {RANGE_LEN_MAX} numbers"));
    }
    let shown = match step {
        1 => format!("range({start}, {stop})"),
        _ => format!("range({start}, {stop}, {step})"),
    };
    Ok(View::range(shown, items))
}

fn dict(args: &[Value]) -> Result<Value, Error> {
    let (places, named) = split(args)?;
    let mut pairs = Vec::new();
    match places {
        [] => {}
        [map] if map.kind() == ValueKind::Map => {
            for key in items(map)? {
                let item = map.get_item(&key)?;
                pairs.push((key, item));
            }
        }
        [list] => {
            for pair in items(list)? {
                let [key, item] = &*items(&pair)? else {
                    return fail("dict: pairs are needed");
                };
                pairs.push((key.clone(), item.clone()));
            }
        }
        _ => return fail("dict takes at most 1 argument"),
    }
    pairs.extend(
        named
            .into_iter()
            .map(|(name, item)| (Value::from(name), item)),
    );
    Ok(Value::from_pairs(pairs))
}

/// Returns its items in turn, repeatedly.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        self.items[self.at.load(Ordering::Relaxed) % self.items.len()].clone()
    }
}

impl Object for Cycler {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "current" => Some(self.current()),
            "pos" => Some(Value::from(
                self.at.load(Ordering::Relaxed) % self.items.len(),
            )),
            "items" => Some(Value::from(self.items.clone())),
            _ => None,
        }
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let [] = bound(method, [], 0, args)?;
        match method {
            "next" => {
                let current = self.current();
                self.at.fetch_add(1, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => fail(format!("a cycler has no method {method}")),
        }
    }
}

/// Returns nothing on the first call, and the separator on later ones.
#[derive(Debug)]
struct Joiner {
    separator: String,
    is_used: AtomicBool,
}

impl Object for Joiner {
    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let [] = bound("joiner", [], 0, args)?;
        let was_used = self.is_used.swap(true, Ordering::Relaxed);
        Ok(Value::from(if was_used { &*self.separator } else { "" }))
    }
}

/// The limit of jinja2's sandbox.
const RANGE_LEN_MAX: usize = 100_000;

//! The result of `groupby`: a pair with named parts.

use super::repr;
use core::fmt;
use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use std::sync::Arc;

/// A key and its items.
#[derive(Debug)]
pub(crate) struct Group {
    grouper: Value,
    list: Value,
}

impl Group {
    pub(crate) fn of(grouper: Value, list: Value) -> Value {
        Value::from_object(Self { grouper, list })
    }
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_str(), key.as_usize()) {
            (Some("grouper"), _) | (_, Some(0)) => Some(self.grouper.clone()),
            (Some("list"), _) | (_, Some(1)) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", repr(&self.grouper), repr(&self.list))
    }
}

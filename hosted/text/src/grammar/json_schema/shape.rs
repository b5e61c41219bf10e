//! The possible documents at one place: alternatives of one type each.

use super::exact::Exact;
use super::numeric::Numeric;
use serde_json::Value;
use std::collections::BTreeSet;

/// Schemas that apply together, by number; the empty set allows everything.
pub(super) type Together = BTreeSet<usize>;

#[derive(Clone, Debug)]
pub(super) enum Shape {
    Null,
    /// Both values if `None`.
    Bool(Option<bool>),
    Number(Numeric),
    Text(Text),
    Array(Array),
    Object(Object),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Text {
    pub least: u64,
    pub most: Option<u64>,
    pub patterns: Vec<String>,
    pub formats: Vec<String>,
    /// Only these values, if given.
    pub literals: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Array {
    pub least: u64,
    pub most: Option<u64>,
    pub prefix: Vec<Together>,
    /// The items after the prefix; `None` if they are not restricted.
    pub items: Option<Together>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Object {
    pub properties: Vec<(String, Together)>,
    pub patterns: Vec<(String, Together)>,
    /// Properties with other names; `None` if they are not restricted.
    pub additional: Option<Together>,
    pub required: Vec<String>,
    pub least: u64,
    pub most: Option<u64>,
    /// Whether properties were named, so that others are not allowed by default.
    pub is_named: bool,
}

impl Shape {
    /// All types, unrestricted.
    pub(super) fn all() -> Vec<Self> {
        vec![
            Self::Null,
            Self::Bool(None),
            Self::Number(Numeric::default()),
            Self::Text(Text::default()),
            Self::Array(Array::default()),
            Self::Object(Object::default()),
        ]
    }

    pub(super) fn is_scalar(&self) -> bool {
        !matches!(self, Self::Array(_) | Self::Object(_))
    }
}

impl Text {
    /// Combines two restrictions. A format is only advisory, and yields to any other restriction.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.least = self.least.max(other.least);
        self.most = least_of(self.most, other.most);
        self.patterns.extend(other.patterns);
        self.patterns.sort();
        self.patterns.dedup();
        self.formats.extend(other.formats);
        self.literals = match (self.literals, other.literals) {
            (Some(mut a), Some(b)) => {
                a.retain(|text| b.contains(text));
                Some(a)
            }
            (a, b) => a.or(b),
        };
        self
    }

    /// The format to enforce: only if there is a single one and no string is excluded.
    pub(super) fn format(&self) -> Option<&str> {
        let (name, least, most) = FORMATS
            .iter()
            .find(|(name, ..)| self.formats.first().is_some_and(|f| f == name))?;
        let is_alone = self.patterns.is_empty()
            && self.literals.is_none()
            && self.formats.iter().all(|other| other == name);
        let fits = self.least <= *most && self.most.is_none_or(|m| m >= *least);
        (is_alone && fits).then_some(*name)
    }
}

impl Array {
    pub(super) fn and(mut self, other: Self) -> Self {
        let len = self.prefix.len().max(other.prefix.len());
        let at = |array: &Self, i: usize| {
            let rest = || array.items.clone().unwrap_or_default();
            array.prefix.get(i).cloned().unwrap_or_else(rest)
        };
        self.prefix = (0..len)
            .map(|i| at(&self, i).union(&at(&other, i)).copied().collect())
            .collect();
        self.items = both(self.items, other.items);
        self.least = self.least.max(other.least);
        self.most = least_of(self.most, other.most);
        self
    }
}

/// Both restrictions, or the only one that is given.
pub(super) fn both(a: Option<Together>, b: Option<Together>) -> Option<Together> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.union(&b).copied().collect()),
        (a, b) => a.or(b),
    }
}

pub(super) fn least_of(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Whether two JSON values are equal as the draft defines it: 1 equals 1.0.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            Exact::of(a).is_some() && Exact::of(a) == Exact::of(b)
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// Supported formats, with their minimum and maximum length in characters.
const FORMATS: [(&str, u64, u64); 10] = [
    ("date-time", 20, 20),
    ("date", 10, 10),
    ("time", 9, 9),
    ("duration", 3, 3),
    ("email", 3, 3),
    ("hostname", 1, 1),
    ("ipv4", 7, 15),
    ("ipv6", 2, 45),
    ("uuid", 36, 36),
    ("uri", 3, 3),
];

//! Values by key: names looked up, types and ranges checked.

use super::error::{ConfigError, ConfigPlace};
use super::keys::{self, ConfigKey, Kind};
use super::refused::{REFUSED, Reason, WITHOUT_EFFECT, is_off, reason_of_word};
use super::source::Given;
use super::turned::TURNED;
use super::yaml;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A value of a key that has been checked.
#[derive(Clone, Debug)]
struct Set {
    value: Value,
    /// The name by which it was given.
    name: String,
    place: ConfigPlace,
}

/// The values of all keys that are set.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    set: BTreeMap<&'static str, Set>,
    /// Names that have no effect, and why.
    pub(super) without_effect: Vec<Reason>,
}

impl Settings {
    /// Adds the values of one source, which take precedence over those before them. Within a file, a key may be set
    /// once; of a repeated flag the last counts, except that the texts of `--prompt` add up.
    pub(super) fn add(&mut self, all: Vec<Given>) -> Result<(), ConfigError> {
        let mut new: BTreeMap<&'static str, Set> = BTreeMap::new();
        for given in all {
            for (key, set) in self.looked_up(given)? {
                let before = new.get_mut(key.name);
                match before {
                    Some(before) if key.name == "prompts" && set.place == ConfigPlace::Flag => {
                        let texts = set.value.as_array().cloned().unwrap_or_default();
                        let list = before.value.as_array_mut();
                        list.into_iter().for_each(|list| list.extend(texts.clone()));
                    }
                    Some(before) if set.place != ConfigPlace::Flag => {
                        return Err(ConfigError::Twice {
                            place: set.place,
                            name: set.name,
                            other: before.name.clone(),
                        });
                    }
                    _ => {
                        new.insert(key.name, set);
                    }
                }
            }
        }
        new.retain(|_, set| !set.value.is_null());
        self.set.extend(new);
        Ok(())
    }

    /// The keys of an entry, which may be none, and their checked values.
    fn looked_up(&mut self, given: Given) -> Result<Vec<(&'static ConfigKey, Set)>, ConfigError> {
        let name = given.name.trim_start_matches('-').replace('-', "_");
        let named = |key: &&ConfigKey| key.name == name || key.others.contains(&&*name);
        if let Some(key) = keys::all().find(named) {
            let value = checked(key, &given)?;
            let Given { name, place, .. } = given;
            return Ok(vec![(key, Set { value, name, place })]);
        }
        let value = match (&given.place, &given.value) {
            (ConfigPlace::Flag, Value::String(text)) => yaml::value(text).unwrap_or(Value::Null),
            _ => given.value.clone(),
        };
        if let Some(turn) = TURNED.iter().find(|turn| turn.name == name) {
            let turned = match value.is_null() {
                true => Some(Vec::new()),
                false => (turn.turn)(&value),
            };
            let turned = turned.ok_or_else(|| wrong(&given, turn.expected))?;
            let sets = turned.into_iter().filter_map(|(key, value)| {
                let (name, place) = (given.name.clone(), given.place.clone());
                Some((keys::key(key)?, Set { value, name, place }))
            });
            return Ok(sets.collect());
        }
        if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
            return match is_off(&value) {
                true => Ok(Vec::new()),
                false => Err(not_supported(&given, &given.name, reason)),
            };
        }
        if let Some(known) = WITHOUT_EFFECT.iter().find(|(known, _)| *known == name) {
            if !is_off(&value) && !self.without_effect.contains(known) {
                self.without_effect.push(*known);
            }
            return Ok(Vec::new());
        }
        Err(ConfigError::Unknown {
            hint: nearest(&name).map_or(String::new(), |near| format!(": did you mean {near}?")),
            place: given.place,
            key: given.name,
        })
    }

    /// The value of a key, or its default; null is "not set".
    pub(super) fn value(&self, key: &'static str) -> Value {
        match self.set.get(key) {
            Some(set) => set.value.clone(),
            None => keys::key(key).map_or(Value::Null, default_of),
        }
    }

    pub(super) fn is_set(&self, key: &'static str) -> bool {
        self.set.contains_key(key)
    }

    pub(super) fn bool(&self, key: &'static str) -> bool {
        self.value(key).as_bool().unwrap_or(false)
    }

    pub(super) fn auto(&self, key: &'static str) -> Option<bool> {
        self.value(key).as_bool()
    }

    pub(super) fn count(&self, key: &'static str) -> u64 {
        self.value(key).as_u64().unwrap_or(0)
    }

    pub(super) fn size(&self, key: &'static str) -> usize {
        usize::try_from(self.count(key)).unwrap_or(usize::MAX)
    }

    pub(super) fn maybe_count(&self, key: &'static str) -> Option<u64> {
        self.value(key).as_u64()
    }

    pub(super) fn number(&self, key: &'static str) -> f64 {
        self.value(key).as_f64().unwrap_or(0.0)
    }

    pub(super) fn maybe_number(&self, key: &'static str) -> Option<f64> {
        self.value(key).as_f64()
    }

    pub(super) fn text(&self, key: &'static str) -> String {
        self.maybe_text(key).unwrap_or_default()
    }

    pub(super) fn maybe_text(&self, key: &'static str) -> Option<String> {
        self.value(key).as_str().map(str::to_owned)
    }

    pub(super) fn texts(&self, key: &'static str) -> Vec<String> {
        let value = self.value(key);
        let texts = value.as_array().into_iter().flatten();
        texts
            .filter_map(|text| text.as_str().map(str::to_owned))
            .collect()
    }

    /// An error about a key's value, at its place and by the name that was used.
    pub(super) fn wrong(&self, key: &'static str, expected: &str) -> ConfigError {
        let (name, place) = match self.set.get(key) {
            Some(set) => (set.name.clone(), set.place.clone()),
            None => (key.to_owned(), ConfigPlace::Default),
        };
        let value = self.value(key);
        wrong(&Given { name, value, place }, expected)
    }

    /// The keys whose values differ from their defaults, in the table's order.
    pub(super) fn changed(&self) -> Vec<(&'static str, Value)> {
        let differs = |key: &&ConfigKey| self.value(key.name) != default_of(key);
        let changed = keys::all().filter(differs);
        changed
            .map(|key| (key.name, self.value(key.name)))
            .collect()
    }

    /// All keys and their values, in the table's order: what a checkpoint compares.
    pub(super) fn all(&self) -> Vec<(&'static str, Value)> {
        keys::all()
            .map(|key| (key.name, self.value(key.name)))
            .collect()
    }
}

fn default_of(key: &ConfigKey) -> Value {
    let value = yaml::value(key.default).unwrap_or(Value::Null);
    let is_text = matches!(key.kind, Kind::Text | Kind::Path | Kind::Choice(_));
    match value {
        // `true` is the name of a way to begin, not a switch.
        Value::Bool(_) if is_text => json!(key.default),
        value => value,
    }
}

/// The value of an entry, in the form that its key takes.
fn checked(key: &ConfigKey, given: &Given) -> Result<Value, ConfigError> {
    let value = match (&given.place, &given.value) {
        (ConfigPlace::Flag, Value::String(text)) => of_flag(key, text),
        (_, value) => value.clone(),
    };
    if value.is_null() {
        return Ok(value);
    }
    if let Some(word) = unsupported_word(key, &value) {
        return Err(match reason_of_word(key.name, &word) {
            Some(why) => not_supported(given, &format!("{}: {word}", given.name), why),
            None => wrong(given, &key.kind.describe()),
        });
    }
    formed(key, value).ok_or_else(|| wrong(given, &key.kind.describe()))
}

/// The first word that is not among those that a key takes.
fn unsupported_word(key: &ConfigKey, value: &Value) -> Option<String> {
    let (Kind::Choice(words) | Kind::Choices(words)) = key.kind else {
        return None;
    };
    let listed = value.as_array().cloned();
    let found = listed.unwrap_or_else(|| vec![value.clone()]);
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut found = found.iter().map(text);
    found.find(|word| !words.contains(&&*spelled(key, word)))
}

/// A word by the name that its key takes.
fn spelled(key: &ConfigKey, word: &str) -> String {
    let (from, to): (&[&str], _) = match key.name {
        "optim" => (
            &["adamw", "adamw_hf", "adamw_torch_fused", "adamw_torch"],
            "adamw_torch",
        ),
        "lr_scheduler_type" => (&["wsd", "warmup_stable_decay"], "warmup_stable_decay"),
        "metric_for_best_model" if !word.starts_with("eval_") => return format!("eval_{word}"),
        "dataset_type" => return super::type_name(word).to_owned(),
        _ => return word.to_owned(),
    };
    match from.contains(&word) {
        true => to.to_owned(),
        false => word.to_owned(),
    }
}

/// The value of a flag: a text stays one, where a text is expected.
fn of_flag(key: &ConfigKey, text: &str) -> Value {
    let list = |text: &str| {
        let items = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        items.map(str::to_owned).collect::<Vec<_>>()
    };
    let is_flow = text.starts_with(['[', '{']);
    let parsed = || yaml::value(text).unwrap_or_else(|_| json!(text));
    match key.kind {
        Kind::Text | Kind::Path | Kind::Choice(_) => json!(text),
        Kind::Texts if key.name == "prompts" && !is_flow => json!([text]),
        Kind::Texts | Kind::Choices(_) if !is_flow => json!(list(text)),
        Kind::TextOrTexts if !is_flow && text.contains(',') && is_list_of_names(text) => {
            json!(list(text))
        }
        Kind::TextOrTexts | Kind::Files if !is_flow => json!(text),
        Kind::Ints if !is_flow => {
            let items = list(text);
            let items = items
                .iter()
                .map(|item| yaml::value(item).unwrap_or(Value::Null));
            Value::Array(items.collect())
        }
        _ => parsed(),
    }
}

/// Names separated by commas, not a regular expression that has one.
fn is_list_of_names(text: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_., -".contains(c);
    text.chars().all(is_name)
}

/// A value in the form that its kind has, if it is of that kind.
fn formed(key: &ConfigKey, value: Value) -> Option<Value> {
    let number = value.as_f64();
    let is_text = value.is_string();
    let all = |test: fn(&Value) -> bool| value.as_array().is_some_and(|all| all.iter().all(test));
    let fits = match key.kind {
        Kind::Bool => value.is_boolean(),
        Kind::Auto => {
            if value == json!("auto") {
                return Some(value);
            }
            value.is_boolean()
        }
        Kind::Int(min, max) => {
            // 3.0 is written for 3 by some tools.
            let whole = value.as_i64().or_else(|| whole(number?));
            let whole = whole.filter(|whole| (min..=max).contains(whole))?;
            return Some(json!(whole));
        }
        Kind::Float(min, max) => number.is_some_and(|number| (min..=max).contains(&number)),
        Kind::Share => number.is_some_and(|number| (0.0..1.0).contains(&number)),
        Kind::Amount => {
            number.is_some_and(|number| number >= 0.0 && (number < 1.0 || whole(number).is_some()))
        }
        Kind::Text | Kind::Path if key.name == "resume_from_checkpoint" && value == json!(true) => {
            return Some(json!("auto"));
        }
        Kind::Path if key.name == "resume_from_checkpoint" && value == json!(false) => {
            return Some(Value::Null);
        }
        Kind::Text | Kind::Path => value.as_str().is_some_and(|text| !text.is_empty()),
        Kind::Choice(_) => {
            let word = match &value {
                Value::Bool(switch) => switch.to_string(),
                other => other.as_str()?.to_owned(),
            };
            return Some(json!(spelled(key, &word)));
        }
        Kind::Choices(_) => {
            let words = match &value {
                Value::String(word) => vec![json!(word)],
                other => other.as_array()?.clone(),
            };
            let words = words.into_iter().filter(|word| word != "none");
            return Some(Value::Array(words.collect()));
        }
        Kind::Texts => all(Value::is_string),
        Kind::TextOrTexts => {
            if value == json!("all") {
                return Some(json!("all-linear"));
            }
            is_text || all(Value::is_string)
        }
        Kind::Ints => {
            if value.as_u64().is_some() {
                return Some(json!([value]));
            }
            all(|item| item.as_u64().is_some())
        }
        Kind::Numbers => value.as_object().is_some_and(|map| {
            let mut values = map.values().map(Value::as_f64);
            values.all(|number| number.is_some_and(|number| number > 0.0))
        }),
        Kind::Map => value.is_object(),
        Kind::Files => is_text || value.is_object() || value.is_array(),
    };
    fits.then_some(value)
}

/// The whole number that a number is.
#[expect(
    clippy::cast_possible_truncation,
    clippy::float_cmp,
    reason = "only a whole number below 2^53 is converted"
)]
fn whole(number: f64) -> Option<i64> {
    let is_whole = number.trunc() == number && number.abs() < 9e15;
    is_whole.then_some(number as i64)
}

fn wrong(given: &Given, expected: &str) -> ConfigError {
    let found = match &given.value {
        Value::String(text) if given.place == ConfigPlace::Flag => text.clone(),
        other => other.to_string(),
    };
    ConfigError::Value {
        place: given.place.clone(),
        key: given.name.clone(),
        expected: expected.to_owned(),
        found,
    }
}

fn not_supported(given: &Given, what: &str, reason: &str) -> ConfigError {
    ConfigError::NotSupported {
        place: given.place.clone(),
        key: what.to_owned(),
        reason: reason.to_owned(),
    }
}

/// The known name that is nearest to one that is not known, if it is near.
fn nearest(name: &str) -> Option<&'static str> {
    let keys = keys::all().flat_map(|key| [key.name].into_iter().chain(key.others.iter().copied()));
    let turned = TURNED.iter().map(|turn| turn.name);
    let others = REFUSED.iter().chain(WITHOUT_EFFECT).map(|(name, _)| *name);
    let scored = keys.chain(turned).chain(others).map(|known| {
        let likeness = strsim::jaro_winkler(name, known);
        (known, likeness)
    });
    let best = scored.max_by(|a, b| a.1.total_cmp(&b.1));
    best.filter(|(_, likeness)| *likeness > 0.8)
        .map(|(known, _)| known)
}

//! What the JSON of a body takes in memory, found without taking it, and the part of it that is wanted.

use core::fmt;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A field of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldWeight {
    pub(super) name: String,
    /// What its value takes, in bytes.
    pub(super) n_bytes: usize,
    /// Number of fields of all objects in it.
    pub(super) n_fields: usize,
}

/// The weights of a body's fields; of a body that is not an object, the weight of all under no name.
pub(super) fn weigh(text: &[u8]) -> serde_json::Result<Vec<FieldWeight>> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let fields = json.deserialize_any(Fields)?;
    json.end()?;
    Ok(fields)
}

/// Whether JSON in a text of a body takes more than a body may: templates get some of these parsed.
pub(crate) fn is_heavy(text: &str) -> bool {
    let fields = weigh(text.as_bytes()).unwrap_or_default();
    let n_bytes: usize = fields.iter().map(|field| field.n_bytes).sum();
    n_bytes > text.len().saturating_mul(GROWTH) + SMALL_BYTES
}

/// A body, of an object only the fields that `keeps` accepts.
pub(super) fn parse(text: &[u8], keeps: &dyn Fn(&str) -> bool) -> serde_json::Result<Value> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let is_object = text.trim_ascii_start().first() == Some(&b'{');
    let value = match is_object {
        true => json.deserialize_map(Kept(keeps))?,
        false => serde::Deserialize::deserialize(&mut json)?,
    };
    json.end()?;
    Ok(value)
}

impl FieldWeight {
    /// A string of this length, with what the allocator adds.
    const fn text(&mut self, len: usize) {
        self.n_bytes += len + ALLOCATION_BYTES;
    }
}

impl<'de> DeserializeSeed<'de> for &mut FieldWeight {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        self.n_bytes += size_of::<Value>();
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut FieldWeight {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.text(text.len());
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.n_bytes += ALLOCATION_BYTES;
        while list.next_element_seed(&mut *self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.n_bytes += MAP_BYTES;
        while map
            .next_key_seed(KeyLen)?
            .map(|len| self.text(len))
            .is_some()
        {
            self.n_fields += 1;
            self.n_bytes += FIELD_BYTES;
            map.next_value_seed(&mut *self)?;
        }
        Ok(())
    }
}

/// Reads the length of a key.
struct KeyLen;

impl<'de> DeserializeSeed<'de> for KeyLen {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<usize, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyLen {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<usize, E> {
        Ok(key.len())
    }
}

/// Collects the weights of an object's fields.
struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Vec<FieldWeight>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(name) = map.next_key()? {
            if all.len() >= NAMES_MAX {
                let what = format!("the object has more than {NAMES_MAX} fields");
                return Err(Error::custom(what));
            }
            let mut field = FieldWeight {
                name,
                n_bytes: FIELD_BYTES,
                ..FieldWeight::default()
            };
            map.next_value_seed(&mut field)?;
            all.push(field);
        }
        Ok(all)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        let mut all = FieldWeight::default();
        (&mut all).visit_seq(list)?;
        Ok(vec![all])
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let mut all = FieldWeight::default();
        all.text(text.len());
        Ok(vec![all])
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }
}

/// Reads an object, but skips the fields that are not accepted.
struct Kept<'k>(&'k dyn Fn(&str) -> bool);

impl<'de> Visitor<'de> for Kept<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            if (self.0)(&name) {
                kept.insert(name, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(kept.into())
    }
}

/// Maximum number of fields of a body.
const NAMES_MAX: usize = 1024;
/// What the allocator adds to a block, and rounding.
const ALLOCATION_BYTES: usize = 24;
/// The table and the first fields of an object.
const MAP_BYTES: usize = 160;
/// A field's place: the hash, the key, the value, and room to grow.
const FIELD_BYTES: usize = 2 * (8 + size_of::<String>() + size_of::<Value>());

/// What a body may take, as a multiple of its length.
pub(super) const GROWTH: usize = 16;
/// What the JSON of a text may take in addition.
const SMALL_BYTES: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(text: &str) -> Vec<(String, usize)> {
        let fields = weigh(text.as_bytes()).unwrap();
        fields
            .into_iter()
            .map(|field| (field.name, field.n_bytes))
            .collect()
    }

    #[test]
    fn small_objects_weigh_many_times_their_text() {
        let text = format!(
            "{{\"content\": \"x\", \"a\": [{}0]}}",
            "{\"\":0},".repeat(1000)
        );
        let fields = weight(&text);
        assert_eq!((&*fields[0].0, &*fields[1].0), ("content", "a"));
        assert!(fields[0].1 < 400, "{fields:?}");
        assert!(fields[1].1 > 40 * text.len(), "{fields:?}");
        let long = weight(&format!("{{\"p\": \"{}\"}}", "é".repeat(100_000)));
        assert!((200_000..201_000).contains(&long[0].1), "{long:?}");
    }

    #[test]
    fn what_is_not_wanted_is_skipped() {
        let text = br#" {"a": [1, {"b": 2}], "c": "x"} "#;
        let all = parse(text, &|_| true).unwrap();
        assert_eq!(all, serde_json::from_slice::<Value>(text).unwrap());
        assert_eq!(
            parse(text, &|name| name == "c").unwrap().to_string(),
            r#"{"c":"x"}"#
        );
        assert_eq!(parse(b"[1]", &|_| false).unwrap().to_string(), "[1]");
        for wrong in [
            "{\"a\": }",
            "{} x",
            "",
            "[1",
            "{\"a\": 1e999}",
            "{\"a\": [\"\\ud800\"]}",
        ] {
            let expected = serde_json::from_str::<Value>(wrong)
                .unwrap_err()
                .to_string();
            assert_eq!(weigh(wrong.as_bytes()).unwrap_err().to_string(), expected);
        }
    }
}

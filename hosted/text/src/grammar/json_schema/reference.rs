//! Resolves `$ref`: JSON pointers (RFC 6901), anchors, and schemas with an `$id` of
//! their own.

use serde_json::Value;
use std::collections::HashMap;

/// The named places of a schema.
#[derive(Debug, Default)]
pub(super) struct Index<'s> {
    /// Keyed by absolute URI without fragment.
    resources: HashMap<String, &'s Value>,
    /// Keyed by URI and name.
    anchors: HashMap<(String, String), &'s Value>,
    /// The URI of the resource that contains an object, keyed by the object's address.
    bases: HashMap<*const Value, String>,
    n_dynamic: usize,
}

impl<'s> Index<'s> {
    pub(super) fn new(root: &'s Value) -> Self {
        let mut index = Self::default();
        index.resources.insert(String::new(), root);
        index.add(root, "");
        index
    }

    fn add(&mut self, value: &'s Value, base: &str) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.add(item, base)),
            Value::Object(object) => {
                let mut base = base.to_owned();
                if let Some(id) = object.get("$id").and_then(Value::as_str) {
                    base = joined(&base, id.trim_end_matches('#'));
                    self.resources.insert(base.clone(), value);
                }
                for key in ["$anchor", "$dynamicAnchor"] {
                    if let Some(name) = object.get(key).and_then(Value::as_str) {
                        self.anchors.insert((base.clone(), name.to_owned()), value);
                        self.n_dynamic += usize::from(key == "$dynamicAnchor");
                    }
                }
                self.bases.insert(value, base.clone());
                for (key, value) in object {
                    if !["enum", "const", "default", "examples"].contains(&key.as_str()) {
                        self.add(value, &base);
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether a dynamic reference has only one possible target.
    pub(super) const fn is_static(&self) -> bool {
        self.n_dynamic < 2
    }

    /// The target of `reference`, which occurs in the object `at`.
    pub(super) fn find(&self, at: &Value, reference: &str) -> Result<&'s Value, String> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let base = self.bases.get(&core::ptr::from_ref(at));
        let base = base.map_or("", String::as_str);
        let uri = if uri.is_empty() {
            base.to_owned()
        } else {
            joined(base, uri)
        };
        let Some(&resource) = self.resources.get(&uri) else {
            let hint = match reference.strip_prefix('/') {
                Some(path) => format!("write #/{path}"),
                None => "put that schema under $defs, with its $id".to_owned(),
            };
            return Err(format!(
                "$ref {reference:?} is outside of this schema: {hint}"
            ));
        };
        let nothing = || format!("$ref {reference:?} does not exist");
        let fragment = decoded(fragment).ok_or_else(nothing)?;
        if fragment.is_empty() || fragment.starts_with('/') {
            // serde_json decodes ~1 and ~0.
            return resource.pointer(&fragment).ok_or_else(nothing);
        }
        let anchor = self.anchors.get(&(uri, fragment));
        anchor.copied().ok_or_else(nothing)
    }
}

/// The fragment with percent-encoding decoded.
fn decoded(fragment: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = fragment.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let code = digit(rest.next())? * 16 + digit(rest.next())?;
            bytes.push(u8::try_from(code).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// `uri` resolved against `base` (RFC 3986 5.2, without dot segments).
fn joined(base: &str, uri: &str) -> String {
    let has_scheme = uri.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    });
    if has_scheme || base.is_empty() {
        return uri.to_owned();
    }
    let authority = base.find("://").map_or(0, |at| at + 3);
    let path = base[authority..]
        .find('/')
        .map_or(base.len(), |at| at + authority);
    if uri.starts_with('/') {
        return format!("{}{uri}", &base[..path]);
    }
    let folder = base[path..].rfind('/').map_or(path, |at| at + path);
    format!("{}/{uri}", &base[..folder])
}

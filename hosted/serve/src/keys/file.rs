//! The file of keys (`--keys`).

use super::hash::KeyHash;
use core::num::NonZeroU32;
use core::ops::Range;
use serde::Deserialize;
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;

/// Why keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// An empty key would open the server.
    #[error("an API key is empty; without the flag, no key is needed")]
    Empty,
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The file is not valid.
    #[error("{}: line {line}: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The reason.
        what: String,
    },
}

/// A key of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyEntry {
    pub(super) name: KeyName,
    pub(super) sha256: KeyHash,
    /// Keys of a group share caches; by default the name.
    #[serde(default)]
    pub(super) group: Option<KeyName>,
    /// How much it gets in comparison with other keys.
    #[serde(default = "one")]
    pub(super) weight: NonZeroU32,
    #[serde(default)]
    pub(super) priority: bool,
    #[serde(default)]
    pub(super) pull: bool,
    #[serde(default)]
    pub(super) load_adapters: bool,
    #[serde(default)]
    pub(super) load_models: bool,
    #[serde(default)]
    pub(super) tokens_per_minute: Option<NonZeroU32>,
    #[serde(default)]
    pub(super) max_streams: Option<NonZeroU32>,
    /// Names of the models and adapters that it may use; all of them by default.
    #[serde(default)]
    pub(super) models: Option<Vec<String>>,
}

/// The name of a key or a group: letters, digits, `-`, `_` and `.`, because names of files contain it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct KeyName(pub(super) Arc<str>);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    key: Vec<Spanned<KeyEntry>>,
}

const fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

impl TryFrom<String> for KeyName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_name = (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.starts_with('.');
        match is_name && text.chars().all(is_plain) {
            true => Ok(Self(text.into())),
            false => Err(format!(
                "{text:?} is not a name: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.', not beginning with '.'"
            )),
        }
    }
}

/// Reads a file of keys.
///
/// # Errors
/// It cannot be read, or is not valid.
pub(super) fn read(path: &Path) -> Result<Vec<KeyEntry>, KeysError> {
    let text = std::fs::read_to_string(path).map_err(|error| KeysError::Unreadable {
        path: path.to_owned(),
        error,
    })?;
    parse(&text).map_err(|Problem { at, what }| KeysError::Invalid {
        path: path.to_owned(),
        line: 1 + text[..at].matches('\n').count(),
        what,
    })
}

/// What is wrong, and where the text has it.
#[derive(Debug)]
struct Problem {
    at: usize,
    what: String,
}

fn parse(text: &str) -> Result<Vec<KeyEntry>, Problem> {
    let file: KeyFile = toml::from_str(text).map_err(|error| Problem {
        at: error.span().map_or(0, |Range { start, .. }| start),
        what: error.message().to_owned(),
    })?;
    if file.key.is_empty() {
        let what = "the file has no [[key]]".to_owned();
        return Err(Problem { at: 0, what });
    }
    let (mut names, mut hashes) = (HashSet::new(), HashSet::new());
    for key in &file.key {
        let entry = key.get_ref();
        let name = &entry.name.0;
        let what = if entry.sha256.is_of_nothing() {
            format!("the key of {name:?} is empty")
        } else if !names.insert(name) {
            format!("two keys are called {name:?}")
        } else if !hashes.insert(&entry.sha256) {
            format!("the key of {name:?} has another name, too")
        } else {
            continue;
        };
        let at = key.span().start;
        return Err(Problem { at, what });
    }
    Ok(file.key.into_iter().map(Spanned::into_inner).collect())
}

const NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a";

    fn refused(text: &str) -> String {
        let Problem { at, what } = parse(text).unwrap_err();
        format!("{}: {what}", 1 + text[..at].matches('\n').count())
    }

    #[test]
    fn a_key_has_a_name_and_a_hash_and_may_have_more() {
        let text = format!(
            "# Keys.\n[[key]]\nname = \"a\"\nsha256 = \"{HASH}\"\n\n[[key]]\nname = \"b\"\n\
             sha256 = \"{}\"\ngroup = \"team\"\nweight = 3\npriority = true\npull = false\n\
             load_adapters = true\nload_models = true\ntokens_per_minute = 600\nmax_streams = 2\nmodels = [\"tale\"]\n",
            HASH.replace('8', "9"),
        );
        let keys = parse(&text).unwrap();
        assert_eq!((&*keys[0].name.0, keys[0].weight.get()), ("a", 1));
        assert!(
            !keys[0].priority
                && !keys[0].load_adapters
                && !keys[0].load_models
                && keys[0].models.is_none()
        );
        assert_eq!(keys[1].group.as_ref().map(|group| &*group.0), Some("team"));
        assert_eq!(keys[1].tokens_per_minute.map(NonZeroU32::get), Some(600));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let key = |rest: &str| format!("[[key]]\nname = \"a\"\nsha256 = \"{HASH}\"\n{rest}\n");
        for (text, line, what) in [
            (key("wieght = 2"), 4, "unknown field `wieght`"),
            (key("weight = 0"), 4, "nonzero"),
            (key("weight = -1"), 4, "nonzero"),
            (key("priority = \"yes\""), 4, "expected a boolean"),
            (key("group = \"a b\""), 4, "\"a b\" is not a name"),
            (key("models = \"tale\""), 4, "expected a sequence"),
            (key("x = "), 4, ""),
            ("keys = 1\n".into(), 1, "unknown field `keys`"),
            (String::new(), 1, "no [[key]]"),
            (
                "[[key]]\nname = \"a\"\n".into(),
                1,
                "missing field `sha256`",
            ),
            (
                "[[key]]\nname = \"a\"\nsha256 = \"12\"\n".into(),
                3,
                "64 hexadecimal digits",
            ),
            (key("") + &key(""), 5, "two keys are called \"a\""),
            (
                key("") + &key("").replace("\"a\"", "\"b\""),
                5,
                "has another name",
            ),
            (
                key("").replace(
                    HASH,
                    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
                ),
                1,
                "the key of \"a\" is empty",
            ),
        ] {
            let found = refused(&text);
            assert!(
                found.starts_with(&format!("{line}: ")) && found.contains(what),
                "{found}\n{text}"
            );
        }
    }
}

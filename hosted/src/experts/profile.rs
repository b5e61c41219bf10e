//! How often a run used each expert, as a file.
#![forbid(unsafe_code)]

use crate::file::{OutputError, OutputFile};
use core::fmt::Write as _;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// How often each expert was used: `{"<id>": count}`, where an id is `layer * n_expert + expert`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertProfile {
    counts: BTreeMap<u32, u64>,
}

/// Why a profile was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum ProfileError {
    /// It cannot be read: it is absent, or a directory.
    #[error("cannot read profile {file}: {error}")]
    Read { file: String, error: io::Error },
    /// It is longer than a profile can be.
    #[error("profile {file} exceeds {} MiB", BYTES_MAX >> 20)]
    TooLong { file: String },
    /// It is not JSON; with the position of the fault.
    #[error("profile {file} is not JSON: {error}")]
    Json { file: String, error: String },
    /// It is not an object.
    #[error("profile {file}: expected an object of ids and counts, such as {{\"17\": 3}}")]
    NotAnObject { file: String },
    /// A key is not an id of an expert.
    #[error("profile {file}: {id:?} is not an expert id (0 to {})", super::trace::IDS_MAX - 1)]
    Id { file: String, id: String },
    /// The count of an expert is not a whole number.
    #[error("profile {file}: {id:?}: expected an integer")]
    Count { file: String, id: String },
}

impl ExpertProfile {
    /// Reads the file `path`.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let name = path.display().to_string();
        let mut text = Vec::new();
        let read =
            File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut text));
        match read {
            Err(error) => Err(ProfileError::Read { file: name, error }),
            Ok(n) if n as u64 > BYTES_MAX => Err(ProfileError::TooLong { file: name }),
            Ok(_) => Self::parse(&name, &text),
        }
    }

    /// Reads JSON; errors call it `file`.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn parse(file: &str, text: &[u8]) -> Result<Self, ProfileError> {
        let file = || file.to_owned();
        let value = serde_json::from_slice(text).map_err(|error| ProfileError::Json {
            file: file(),
            error: error.to_string(),
        })?;
        let Value::Object(object) = value else {
            return Err(ProfileError::NotAnObject { file: file() });
        };
        let mut profile = Self::default();
        for (id, count) in object {
            let n: Option<u32> = id.parse().ok().filter(|&id| id < super::trace::IDS_MAX);
            let Some(n) = n else {
                return Err(ProfileError::Id { file: file(), id });
            };
            let Some(count) = count.as_u64() else {
                return Err(ProfileError::Count { file: file(), id });
            };
            profile.add(n, count);
        }
        Ok(profile)
    }

    /// Writes it as the file `path`.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn write(&self, path: &Path, overwrite: bool) -> Result<(), OutputError> {
        let file = OutputFile::create(path, overwrite)?;
        file.write_at(0, self.to_json().as_bytes())?;
        file.finish()
    }

    /// The file's text: ids in order, one a line.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = String::from("{");
        let mut before = "\n";
        for (id, count) in &self.counts {
            let _ = write!(text, "{before}  \"{id}\": {count}");
            before = ",\n";
        }
        text.push_str("\n}\n");
        text
    }

    /// Counts `n` more uses of an expert.
    pub fn add(&mut self, id: u32, n: u64) {
        let count = self.counts.entry(id).or_default();
        *count = count.saturating_add(n);
    }

    /// The uses of an expert.
    #[must_use]
    pub fn count(&self, id: u32) -> u64 {
        self.counts.get(&id).copied().unwrap_or_default()
    }

    /// Ids and counts, by id.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, u64)> {
        self.counts.iter().map(|(&id, &count)| (id, count))
    }

    /// The experts from the most counted to the least; of equals the smaller id first.
    pub fn most_counted(&self) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator {
        let mut order: Vec<(u32, u64)> = self.iter().collect();
        order.sort_by_key(|&(id, count)| (core::cmp::Reverse(count), id));
        order.into_iter().map(|(id, _)| id)
    }

    /// The `n` most counted alone.
    #[must_use]
    pub fn top(&self, n: usize) -> Self {
        let ids = self.most_counted().take(n);
        ids.map(|id| (id, self.count(id))).collect()
    }

    /// What [`EvictionPolicy::Static`](super::policy::EvictionPolicy::Static) holds of it in a cache of `n_slots`: as many as half the
    /// slots, so that the other half follows the text.
    #[must_use]
    pub fn for_slots(&self, n_slots: usize) -> Self {
        self.top(n_slots / 2)
    }
}

impl FromIterator<(u32, u64)> for ExpertProfile {
    fn from_iter<I: IntoIterator<Item = (u32, u64)>>(counts: I) -> Self {
        let mut profile = Self::default();
        for (id, count) in counts {
            profile.add(id, count);
        }
        profile
    }
}

/// Upper limit: ids and counts of all possible experts take less.
const BYTES_MAX: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let profile: ExpertProfile = [(3, 1), (0, 7), (3, 2), (11, 3)].into_iter().collect();
        let text = profile.to_json();
        assert_eq!(text, "{\n  \"0\": 7,\n  \"3\": 3,\n  \"11\": 3\n}\n");
        assert_eq!(ExpertProfile::parse("p", text.as_bytes()).unwrap(), profile);
        let empty = ExpertProfile::default().to_json();
        assert_eq!(
            ExpertProfile::parse("p", empty.as_bytes()).unwrap(),
            ExpertProfile::default()
        );
        let order: Vec<_> = profile.most_counted().collect();
        assert_eq!(order, [0, 3, 11]);
        let top = profile.for_slots(4);
        assert_eq!(top.iter().collect::<Vec<_>>(), [(0, 7), (3, 3)]);
    }

    #[test]
    fn errors_name_the_file_and_the_key() {
        for (text, expected) in [
            ("", "profile p is not JSON: EOF"),
            ("[1]", "profile p: expected an object of ids"),
            (
                "{\"a\": 1}",
                "profile p: \"a\" is not an expert id (0 to 524287)",
            ),
            ("{\"524288\": 1}", "\"524288\" is not an expert id"),
            ("{\"1\": 1.5}", "profile p: \"1\": expected an integer"),
            ("{\"1\": -1}", "profile p: \"1\": expected an integer"),
        ] {
            let error = ExpertProfile::parse("p", text.as_bytes()).unwrap_err();
            assert!(
                error.to_string().starts_with(expected) || error.to_string().contains(expected),
                "{error}"
            );
        }
        let error = ExpertProfile::read(Path::new("/no/such"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("cannot read profile /no/such: No such file"),
            "{error}"
        );
        let error = ExpertProfile::read(Path::new("/")).unwrap_err().to_string();
        assert!(
            error.contains("cannot read profile /: Is a directory"),
            "{error}"
        );
    }
}

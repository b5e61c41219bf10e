//! Names of repositories, and requests for their files.

use crate::choose::FileChoice;
use crate::error::PullError;
use core::fmt;

/// A repository of models: `user/name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoId(String);

impl RepoId {
    /// Parses `user/name`.
    ///
    /// # Errors
    /// [`PullError::Name`]: it is not two words of letters, digits, `-`, `_` and `.` separated by a
    /// slash, or a word begins or ends with `-` or `.`, or contains `--` or `..`.
    pub fn parse(text: &str) -> Result<Self, PullError> {
        let mut words = text.split('/');
        let (user, name) = (words.next(), words.next());
        let is_repo = [user, name]
            .into_iter()
            .all(|word| word.is_some_and(is_word));
        if !is_repo || words.next().is_some() || text.len() > ID_LEN_MAX {
            return Err(PullError::Name {
                what: "repository",
                text: text.to_owned(),
                expected: "USER/NAME or USER/NAME:QUANT",
            });
        }
        Ok(Self(text.to_owned()))
    }

    /// The name as `user/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of its folder in a cache.
    pub(crate) fn folder_name(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `--` stands for a slash in folder names.
fn is_word(word: &str) -> bool {
    let is_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !word.is_empty()
        && word.chars().all(is_char)
        && !word.starts_with(['-', '.'])
        && !word.ends_with(['-', '.'])
        && !word.contains("--")
        && !word.contains("..")
}

/// Maximum length of a name on the hub.
const ID_LEN_MAX: usize = 96 * 2 + 1;

/// A request for files of a repository's revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullRequest {
    /// The repository.
    pub repo: RepoId,
    /// A branch, a tag or a commit; usually `main`.
    pub revision: String,
    /// Which files to fetch.
    pub choice: FileChoice,
}

impl PullRequest {
    /// Parses `user/name` or `user/name:QUANT`, as llama.cpp's `-hf` does. For a `https://` address
    /// of a repository on the hub, the last two path segments are used.
    ///
    /// # Errors
    /// [`PullError::Name`].
    pub fn parse(text: &str) -> Result<Self, PullError> {
        let bare = text.trim().trim_end_matches('/');
        let bare = ["https://huggingface.co/", "https://hf.co/", "hf.co/"]
            .into_iter()
            .find_map(|prefix| bare.strip_prefix(prefix))
            .unwrap_or(bare);
        let (repo, choice) = match bare.split_once(':') {
            Some((_, "")) | None => (bare.trim_end_matches(':'), FileChoice::Usual),
            Some((repo, quant)) => (repo, FileChoice::Quant(quant.to_owned())),
        };
        Ok(Self {
            repo: RepoId::parse(repo)?,
            revision: String::from("main"),
            choice,
        })
    }

    /// The same request for another revision.
    ///
    /// # Errors
    /// [`PullError::Name`].
    pub fn at(self, revision: &str) -> Result<Self, PullError> {
        if !is_inside(revision) {
            return Err(PullError::Name {
                what: "revision",
                text: revision.to_owned(),
                expected: "a branch, a tag or a commit",
            });
        }
        let revision = revision.to_owned();
        Ok(Self { revision, ..self })
    }
}

/// Whether `path` stays inside the folder it is joined to.
pub(crate) fn is_inside(path: &str) -> bool {
    let is_name = |name: &str| !matches!(name, "" | "." | "..");
    !path.contains(|c: char| c == '\\' || c.is_control()) && path.split('/').all(is_name)
}

/// Whether `text` is a commit: 40 hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_repositories() {
        let usual = PullRequest::parse("ggml-org/gemma-3_1b.it-GGUF").unwrap();
        assert_eq!(usual.choice, FileChoice::Usual);
        assert_eq!(
            usual.repo.folder_name(),
            "models--ggml-org--gemma-3_1b.it-GGUF"
        );
        let quant = PullRequest::parse("a/b:q8_0").unwrap();
        assert_eq!(quant.choice, FileChoice::Quant("q8_0".to_owned()));
        let address = PullRequest::parse("https://huggingface.co/a/b/").unwrap();
        assert_eq!(address.repo.as_str(), "a/b");
        for text in [
            "", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/b--c", "-a/b", "a /b", "a/b.", "a/ü",
        ] {
            let error = PullRequest::parse(text).unwrap_err();
            assert!(matches!(error, PullError::Name { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn revisions_stay_in_their_folder() {
        let at = |revision| PullRequest::parse("a/b").unwrap().at(revision);
        assert_eq!(at("refs/pr/1").unwrap().revision, "refs/pr/1");
        for revision in ["", "..", "a/../../b", "/etc", "a//b", "a\u{1b}[31m", "a\n"] {
            assert!(at(revision).is_err(), "{revision}");
        }
    }
}

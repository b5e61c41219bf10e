//! Where keys come from, and what they share.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

/// The keys of a server, one of which each request must send.
#[derive(Clone, Default)]
pub struct KeysOptions {
    /// Keys with the same rights and without limits; none by default.
    pub plain: Vec<String>,
    /// The file of keys with names, rights and limits; `None` by default.
    pub file: Option<PathBuf>,
    /// Whether every client may set priorities; false by default.
    pub allow_priority: bool,
    /// Who shares cached prompts. By default groups do if there is a file, or more than one key.
    pub cache_scope: Option<CacheScope>,
}

/// Who shares cached prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheScope {
    /// The keys of a group, which usually has one key.
    Key,
    /// All keys.
    All,
}

/// A text that is not a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheScopeError;

impl KeysOptions {
    /// Whether there are any, as far as that is known without reading the file.
    #[must_use]
    pub const fn has_keys(&self) -> bool {
        !self.plain.is_empty() || self.file.is_some()
    }

    /// Whether groups have caches of their own.
    pub(super) fn is_scoped(&self) -> bool {
        match self.cache_scope {
            Some(scope) => scope == CacheScope::Key,
            None => self.file.is_some() || self.plain.len() > 1,
        }
    }
}

impl FromStr for CacheScope {
    type Err = CacheScopeError;

    fn from_str(text: &str) -> Result<Self, CacheScopeError> {
        match text {
            "key" => Ok(Self::Key),
            "all" => Ok(Self::All),
            _ => Err(CacheScopeError),
        }
    }
}

impl fmt::Display for CacheScopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be key or all")
    }
}

impl core::error::Error for CacheScopeError {}

impl fmt::Debug for KeysOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are secret.
        f.debug_struct("KeysOptions")
            .field("n_plain", &self.plain.len())
            .field("file", &self.file)
            .field("allow_priority", &self.allow_priority)
            .field("cache_scope", &self.cache_scope)
            .finish()
    }
}

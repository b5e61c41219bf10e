//! API keys: who asks, and what that key may do and use.

mod budget;
mod file;
mod hash;
mod options;
mod usage;

pub use file::KeysError;
pub use options::{CacheScope, CacheScopeError, KeysOptions};
pub(crate) use usage::{Admitted, Demand};

use crate::Log;
use crate::api::ApiError;
use crate::engine::Share;
use crate::metrics::KeyFigures;
use crate::models::means;
use core::fmt;
use core::num::NonZeroU32;
use core::time::Duration;
use file::KeyEntry;
use hash::KeyHash;
use hyper::header::{self, HeaderMap};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use usage::{Refused, Usage};

/// The keys of a server. Clones share them.
#[derive(Clone)]
pub struct Keys(Arc<Inner>);

struct Inner {
    log: Log,
    options: KeysOptions,
    table: Mutex<Arc<[Listed]>>,
    /// By name; kept when the file is read again, so that debt and running texts stay counted.
    usages: Mutex<BTreeMap<Arc<str>, Arc<Usage>>>,
    /// Stands for requests of a server without keys.
    open: Arc<ApiKey>,
}

struct Listed {
    hash: KeyHash,
    key: Arc<ApiKey>,
}

/// A key, as a request that was sent with it sees it.
#[derive(Debug)]
pub(crate) struct ApiKey {
    name: Arc<str>,
    group: Arc<str>,
    weight: NonZeroU32,
    may_prioritize: bool,
    may_load_adapters: bool,
    may_load_models: bool,
    may_pull: bool,
    models: Option<Vec<String>>,
    /// Whether it is shown the figures of all keys.
    sees_all: bool,
    /// `None` without keys.
    usage: Option<Arc<Usage>>,
}

impl Keys {
    /// The keys that the options name.
    ///
    /// # Errors
    /// A key is empty, or the file is not valid.
    pub fn new(options: KeysOptions, log: Log) -> Result<Self, KeysError> {
        if options.plain.iter().any(String::is_empty) {
            return Err(KeysError::Empty);
        }
        let open = ApiKey {
            name: "".into(),
            group: "".into(),
            weight: NonZeroU32::MIN,
            may_prioritize: options.allow_priority,
            may_load_adapters: true,
            may_load_models: true,
            may_pull: false,
            models: None,
            sees_all: true,
            usage: None,
        };
        let keys = Self(Arc::new(Inner {
            log,
            options,
            table: Mutex::new(Arc::new([])),
            usages: Mutex::default(),
            open: Arc::new(open),
        }));
        keys.read()?;
        Ok(keys)
    }

    /// Reads the file again. Requests that run keep the rights that they had. If the file is not valid, the keys stay
    /// as they were, and the log says why.
    pub fn reload(&self) {
        let log = &self.0.log;
        match self.read() {
            Ok(n) => log(&format!("read the keys again: {n}")),
            Err(error) => log(&format!("the keys stay as they were: {error}")),
        }
    }

    /// Reads the file, and returns the number of keys.
    fn read(&self) -> Result<usize, KeysError> {
        let options = &self.0.options;
        let entries = match &options.file {
            Some(path) => file::read(path)?,
            None => Vec::new(),
        };
        let n = entries.len() + options.plain.len();
        let is_scoped = options.is_scoped();
        let plain = (1..).zip(&options.plain);
        let plain = plain.map(|(number, key)| self.plain(number, key, is_scoped));
        let of_file = entries
            .into_iter()
            .map(|entry| self.listed(entry, is_scoped));
        let table = plain.chain(of_file).collect();
        *lock(&self.0.table) = table;
        Ok(n)
    }

    /// Whether a request needs a key.
    #[must_use]
    pub fn are_needed(&self) -> bool {
        !lock(&self.0.table).is_empty()
    }

    /// Whether there is a file to read again.
    #[must_use]
    pub fn has_file(&self) -> bool {
        self.0.options.file.is_some()
    }

    /// The key that these headers present; `None` if they present none that is known.
    pub(crate) fn find(&self, headers: &HeaderMap) -> Option<Arc<ApiKey>> {
        let table = Arc::clone(&lock(&self.0.table));
        if table.is_empty() {
            return Some(self.open());
        }
        let given = KeyHash::of(presented(headers)?);
        // All are compared, so that the time taken does not depend on which one it is.
        let mut found = None;
        for listed in table.iter().filter(|listed| listed.hash.is(&given)) {
            found = Some(Arc::clone(&listed.key));
        }
        found
    }

    /// What requests without a key may do where none is needed.
    pub(crate) fn open(&self) -> Arc<ApiKey> {
        Arc::clone(&self.0.open)
    }

    /// The figures of keys by name, for `/metrics`: a key of the file is shown its own.
    pub(crate) fn figures(&self, of: &ApiKey) -> Vec<KeyFigures> {
        let usages = lock(&self.0.usages);
        let seen = usages
            .iter()
            .filter(|(name, _)| of.sees_all || **name == of.name);
        seen.map(|(name, usage)| usage.figures(name)).collect()
    }

    /// A key without a name of its own: it is named by its place, and its group by its hash, which stays when keys are
    /// added. Its rights are those that keys had before they could have fewer.
    fn plain(&self, number: usize, key: &str, is_scoped: bool) -> Listed {
        let hash = KeyHash::of(key);
        let name: Arc<str> = format!("api-key-{number}").into();
        let group = if is_scoped { hash.hex() } else { String::new() };
        let key = ApiKey {
            usage: Some(self.usage(&name)),
            name,
            group: group.into(),
            weight: NonZeroU32::MIN,
            may_prioritize: self.0.options.allow_priority,
            may_load_adapters: true,
            may_load_models: true,
            may_pull: false,
            models: None,
            sees_all: true,
        };
        Listed {
            hash,
            key: Arc::new(key),
        }
    }

    fn listed(&self, entry: KeyEntry, is_scoped: bool) -> Listed {
        let name = entry.name.0;
        let group = entry
            .group
            .map_or_else(|| Arc::clone(&name), |group| group.0);
        let usage = self.usage(&name);
        usage.limit(entry.tokens_per_minute, entry.max_streams);
        let key = ApiKey {
            name,
            group: if is_scoped { group } else { "".into() },
            weight: entry.weight,
            may_prioritize: entry.priority || self.0.options.allow_priority,
            may_load_adapters: entry.load_adapters,
            may_load_models: entry.load_models,
            may_pull: entry.pull,
            models: entry.models,
            sees_all: false,
            usage: Some(usage),
        };
        Listed {
            hash: entry.sha256,
            key: Arc::new(key),
        }
    }

    fn usage(&self, name: &Arc<str>) -> Arc<Usage> {
        let mut usages = lock(&self.0.usages);
        Arc::clone(usages.entry(Arc::clone(name)).or_default())
    }
}

impl ApiKey {
    /// What the process that runs the server may do: everything.
    pub(crate) fn of_process() -> Arc<Self> {
        Arc::new(Self {
            name: "".into(),
            group: "".into(),
            weight: NonZeroU32::MIN,
            may_prioritize: true,
            may_load_adapters: true,
            may_load_models: true,
            may_pull: true,
            models: None,
            sees_all: true,
            usage: None,
        })
    }

    /// The share of a peer's requests with this key.
    pub(crate) fn share(&self, peer: Share) -> Share {
        peer.with_key(Arc::clone(&self.name), self.weight)
    }

    /// Its name; empty without keys.
    pub(crate) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Texts share what is cached inside a group; empty where all share.
    pub(crate) const fn group(&self) -> &Arc<str> {
        &self.group
    }

    /// Whether it may use the model or adapter that has these names.
    pub(crate) fn may_use<'n>(&self, mut names: impl Iterator<Item = &'n str>) -> bool {
        let all = self.models.as_ref();
        all.is_none_or(|models| names.any(|name| models.iter().any(|listed| means(listed, name))))
    }

    /// # Errors
    /// It may not set priorities.
    pub(crate) fn check_priority(&self, priority: i32) -> Result<(), ApiError> {
        if priority == 0 || self.may_prioritize {
            return Ok(());
        }
        let what = "priority: not allowed: start the server with --allow-priority, or give the key `priority = true` \
                    in the file of --keys";
        Err(ApiError {
            field: Some("priority".into()),
            ..ApiError::forbidden(what)
        })
    }

    /// A path of the server as this key may read it: whole with the right to load adapters, which are named by their
    /// paths; otherwise the last name in it.
    pub(crate) fn path(&self, path: &Path) -> String {
        let name = path.file_name().filter(|_| !self.may_load_adapters);
        let shown = name.map_or(path, Path::new);
        shown.display().to_string()
    }

    /// # Errors
    /// It may not load, unload or scale adapters for everybody.
    pub(crate) fn check_adapters(&self) -> Result<(), ApiError> {
        if self.may_load_adapters {
            return Ok(());
        }
        let name = &self.name;
        let what = format!(
            "the key {name:?} may not change adapters: it needs `load_adapters = true` in the file of --keys"
        );
        Err(ApiError::forbidden(what))
    }

    /// # Errors
    /// It may not load and unload models for everybody.
    pub(crate) fn check_models(&self) -> Result<(), ApiError> {
        if self.may_load_models {
            return Ok(());
        }
        let name = &self.name;
        let what = format!(
            "the key {name:?} may not load or unload models: it needs `load_models = true` in the file of --keys"
        );
        Err(ApiError::forbidden(what))
    }

    /// Whether it may download models, even if others may not.
    pub(crate) const fn may_pull(&self) -> bool {
        self.may_pull
    }

    /// Refuses a request early, before anything is done for it.
    ///
    /// # Errors
    /// The budget is overdrawn, or all streams are in use.
    pub(crate) fn check_usage(&self) -> Result<(), ApiError> {
        let usage = self.usage.as_ref();
        let checked = usage.map_or(Ok(()), |usage| usage.check(Instant::now()));
        checked.map_err(|why| self.refusal(why))
    }

    /// Lets a request in, which is counted until the result is dropped; `None` without keys.
    ///
    /// # Errors
    /// The budget is overdrawn, or there are too many texts.
    pub(crate) fn admit(&self, demand: Demand) -> Result<Option<Arc<Admitted>>, ApiError> {
        let Some(usage) = &self.usage else {
            return Ok(None);
        };
        let admitted = usage.admit(demand, Instant::now());
        let admitted = admitted.map_err(|why| self.refusal(why))?;
        Ok(Some(Arc::new(admitted)))
    }

    fn refusal(&self, why: Refused) -> ApiError {
        let name = &self.name;
        match why {
            Refused::Budget(wait) => {
                let what = format!("the key {name:?} has used up its tokens a minute");
                ApiError::busy(what, wait)
            }
            Refused::Streams(max) => {
                let what = format!("the key {name:?} may have {max} texts at once, and has them");
                ApiError::busy(what, STREAM_WAIT)
            }
            Refused::Texts(max) => ApiError::forbidden(format!(
                "the request has more texts than the key {name:?} may have at once ({max})"
            )),
        }
    }
}

/// The key in the headers of a request.
fn presented(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION);
    let bearer = bearer.and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let plain = headers.get("x-api-key");
    bearer.or_else(|| plain.and_then(|value| value.to_str().ok()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// When to try again if all streams are in use.
const STREAM_WAIT: Duration = Duration::from_secs(1);

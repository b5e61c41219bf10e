//! What all requests share.

use super::auth::Keys;
use super::body::Posted;
use super::options::{HttpOptions, ServerOptions};
use super::work::Work;
use crate::Log;
use crate::api::error::ApiError;
use crate::api::request::Defaults;
use crate::models::{Lease, Models};
use core::hash::{BuildHasher as _, Hasher as _};
use std::hash::RandomState;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Semaphore, watch};

/// What all requests share.
pub(crate) struct App {
    models: Arc<Models>,
    defaults: Defaults,
    options: HttpOptions,
    keys: Keys,
    work: Work,
    /// KiB of bodies that may be in memory at once.
    pub(super) room: Arc<Semaphore>,
    pub(super) stopping: watch::Sender<bool>,
    log: Log,
    started: u64,
}

/// One request.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) app: Arc<App>,
    /// Its id, which is in its answer and in the log.
    pub(crate) request: Arc<str>,
    pub(crate) arrived: Instant,
    /// Whose samplers choose its tokens.
    pub(crate) wrap: Option<super::service::WrapSampler>,
    /// Where its vectors go.
    pub(crate) vectors: Option<super::vectors::VectorSlot>,
}

impl App {
    pub(super) fn new(models: Arc<Models>, options: &ServerOptions) -> Self {
        let http = options.http.clone();
        Self {
            defaults: options.defaults.clone(),
            keys: Keys::new(&http.keys),
            work: Work::new(http.threads, models.team()),
            room: Arc::new(Semaphore::new(kib(http.body_max.saturating_mul(BODIES)))),
            stopping: watch::Sender::new(false),
            log: options.log.clone(),
            started: crate::api::reply::unix_time(),
            options: http,
            models,
        }
    }

    pub(crate) const fn models(&self) -> &Arc<Models> {
        &self.models
    }

    pub(crate) const fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    pub(crate) const fn options(&self) -> &HttpOptions {
        &self.options
    }

    pub(super) const fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Where templates, tokens and grammars are made.
    pub(crate) const fn work(&self) -> &Work {
        &self.work
    }

    pub(crate) const fn log(&self) -> &Log {
        &self.log
    }

    /// When the server began, in seconds since 1970.
    pub(crate) const fn started(&self) -> u64 {
        self.started
    }
}

impl Context {
    /// The model that a request names, or that of an adapter, in memory.
    pub(crate) async fn model(&self, name: Option<&str>) -> Result<Lease, ApiError> {
        if *self.app.stopping.borrow() {
            return Err(ApiError::unavailable("the server ends"));
        }
        let models = &self.app.models;
        let adapter = name.and_then(|name| models.adapters().find(name));
        let base = adapter.map(|adapter| models.name_of(adapter.model));
        models.acquire(base.or(name)).await
    }

    /// The model or adapter that a request names, with the adapters that it asks for.
    pub(crate) async fn adapted(&self, posted: &Posted) -> Result<Lease, ApiError> {
        if *self.app.stopping.borrow() {
            return Err(ApiError::unavailable("the server ends"));
        }
        let lora = posted.value.get("lora");
        let models = &self.app.models;
        models.acquire_with(posted.model()?, lora).await
    }

    /// The same of a model that writes text.
    pub(crate) async fn decoder(&self, posted: &Posted) -> Result<Lease, ApiError> {
        let lease = self.adapted(posted).await?;
        if lease.model().embeds() {
            let what = format!(
                "{} is an encoder: it gives embeddings, no text",
                lease.name()
            );
            return Err(ApiError::field("model", what));
        }
        Ok(lease)
    }

    /// Logs a prompt, if that is asked for.
    pub(crate) fn tell_prompt(&self, text: &str) {
        if self.app.options.log_prompts {
            (self.app.log)(&format!("{} prompt {text:?}", self.request));
        }
    }
}

/// A name that no two requests share.
pub(crate) fn unique(prefix: &str) -> String {
    // Every RandomState has keys of its own.
    let part = || RandomState::new().build_hasher().finish();
    format!("{prefix}{:016x}{:08x}", part(), part() >> 32)
}

pub(super) fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024).min(Semaphore::MAX_PERMITS)
}

/// Bodies of full length that may be in memory at once.
const BODIES: usize = 8;

//! The state that all requests share.

use super::streams::KeptStreams;
use crate::Log;
use crate::adapters::Entry;
use crate::api::{
    AdapterChoice, ApiError, ChatRequest, Defaults, EventId, Generation, ModelChoice,
};
use crate::chat::billing::BillingLine;
use crate::config::{HttpOptions, ServerConfig};
use crate::engine::{CacheDomain, Share};
use crate::http::{Asked, Bodies, BodyRoom, Pages, Request};
use crate::keys::{ApiKey, Keys};
use crate::models::{Lease, Models};
use crate::pulls::Pulls;
use crate::work::{Lane, Work};
use core::fmt;
use core::hash::{BuildHasher as _, Hasher as _};
use serde_json::Value;
use sluice::Model;
use sluice::sequence::Choose;
use std::hash::RandomState;
use std::sync::Arc;
use std::time::Instant;
use std::time::SystemTime;
use tokio::sync::watch;

/// Replaces a text's sampler by the caller's own. It gets the sampler and the model, and is called once for each text.
pub type WrapSampler =
    Arc<dyn Fn(Box<dyn Choose + Send>, &Model) -> Box<dyn Choose + Send> + Send + Sync>;

/// The state that all requests share.
pub(crate) struct App {
    models: Arc<Models>,
    defaults: Defaults,
    options: HttpOptions,
    keys: Keys,
    pages: Pages,
    work: Work,
    bodies: Bodies,
    stopping: watch::Sender<bool>,
    billing: BillingLine,
    pulls: Arc<Pulls>,
    streams: Arc<KeptStreams>,
    log: Log,
    started: u64,
    wrap: Option<WrapSampler>,
}

/// One request.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) app: Arc<App>,
    /// Its id, for the answer and the log.
    pub(crate) request: Arc<str>,
    pub(crate) arrived: Instant,
    /// Whose it is.
    pub(crate) share: Share,
    /// Where it is prepared.
    pub(crate) lane: Lane,
    /// The memory of its body, held by all work on it, which goes on when the client has left.
    pub(crate) room: Option<Arc<BodyRoom>>,
    /// Hash of its body.
    pub(crate) body: u32,
    /// How its stream can be taken up again; `None` for answers that are not streamed, or streams without ids.
    pub(crate) stream: Option<Resumable>,
    /// What it may do and use.
    pub(crate) key: Arc<ApiKey>,
    /// Replaces its samplers.
    pub(crate) wrap: Option<WrapSampler>,
    /// Whether it loads the model that it names; `None` for the server's default.
    pub(crate) autoload: Option<bool>,
}

/// A stream whose events have ids.
#[derive(Clone, Debug)]
pub(crate) struct Resumable {
    /// The last event that the client has, if it takes up a stream.
    pub(crate) after: Option<Arc<EventId>>,
}

impl App {
    pub(crate) fn new(models: Arc<Models>, keys: Keys, options: &ServerConfig) -> Self {
        let http = options.http.clone();
        Self {
            defaults: options.defaults.clone(),
            keys,
            pages: Pages::new(http.cors.clone(), &http.allowed_hosts),
            work: Work::new(http.threads, models.team()),
            bodies: Bodies::new(http.body_max, http.body_memory, http.stall_timeout),
            stopping: watch::Sender::new(false),
            billing: BillingLine::new(http.keep_billing_line),
            pulls: Arc::new(Pulls::new(
                http.pull.clone(),
                Box::new(Arc::clone(&models)),
                options.log.clone(),
            )),
            streams: Arc::new(KeptStreams::new(http.resume)),
            log: options.log.clone(),
            started: unix_time(),
            wrap: None,
            options: http,
            models,
        }
    }

    /// Replaces the samplers of all requests.
    pub(crate) fn wrap_samplers(&mut self, wrap: WrapSampler) {
        self.wrap = Some(wrap);
    }

    pub(crate) const fn models(&self) -> &Arc<Models> {
        &self.models
    }

    pub(crate) const fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// The defaults for requests for the model called `name`: its own, or else the server's.
    pub(crate) fn defaults_named(&self, name: Option<&str>) -> &Defaults {
        self.models.defaults(name).unwrap_or(&self.defaults)
    }

    pub(crate) const fn options(&self) -> &HttpOptions {
        &self.options
    }

    pub(crate) const fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Who may use the server from a browser.
    pub(crate) const fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Becomes true when the server ends.
    pub(crate) const fn stopping(&self) -> &watch::Sender<bool> {
        &self.stopping
    }

    /// Runs templates, tokenizers and grammar compilation.
    pub(crate) const fn work(&self) -> &Work {
        &self.work
    }

    /// What is left out of the conversations of Claude Code.
    pub(crate) const fn billing(&self) -> &BillingLine {
        &self.billing
    }

    /// Downloads of models.
    pub(crate) const fn pulls(&self) -> &Arc<Pulls> {
        &self.pulls
    }

    /// Streams that can be taken up again.
    pub(crate) const fn streams(&self) -> &Arc<KeptStreams> {
        &self.streams
    }

    pub(crate) const fn log(&self) -> &Log {
        &self.log
    }

    /// When the server started, in seconds since 1970.
    pub(crate) const fn started(&self) -> u64 {
        self.started
    }
}

impl Context {
    /// The context of a request of `peer` that arrives now.
    pub(crate) fn new(app: Arc<App>, request: Arc<str>, peer: Share, key: Arc<ApiKey>) -> Self {
        Self {
            wrap: app.wrap.clone(),
            app,
            request,
            arrived: Instant::now(),
            share: key.share(peer),
            key,
            lane: Lane::default(),
            room: None,
            autoload: None,
            body: 0,
            stream: None,
        }
    }

    /// The model that a request names, or the model of the adapter that it names, loaded into memory.
    pub(crate) async fn model(&self, name: Option<&str>) -> Result<Lease, ApiError> {
        self.check_open()?;
        self.check_allowed(name, &[])?;
        let models = &self.app.models;
        let adapter = name.and_then(|name| models.adapters().find(name));
        let base = adapter.map(|adapter| models.name_of(adapter.model));
        self.check_autoload(base.or(name))?;
        models.acquire(base.or(name)).await
    }

    /// The model that a request selects, with its adapters.
    pub(crate) async fn adapted(&self, choice: &ModelChoice) -> Result<Lease, ApiError> {
        self.check_open()?;
        let adapters = choice.adapters.as_deref().unwrap_or_default();
        self.check_allowed(choice.name.as_deref(), adapters)?;
        let models = &self.app.models;
        let named = choice.name.as_deref();
        let adapter = named.and_then(|name| models.adapters().find(name));
        let base = adapter.map(|adapter| models.name_of(adapter.model));
        self.check_autoload(base.or(named))?;
        let choice = ModelChoice {
            keep_for: choice.keep_for.filter(|_| self.may_unload()),
            ..choice.clone()
        };
        models.acquire_with(&choice).await
    }

    /// Whether its `keep_alive` has an effect, which all feel; a note in the log says where it has none.
    fn may_unload(&self) -> bool {
        let may_unload = self.autoloads() && self.key.check_models().is_ok();
        if !may_unload {
            (self.app.log)(&format!("{} keep_alive without effect", self.request));
        }
        may_unload
    }

    /// Unloads a model when no request uses it any more.
    pub(crate) fn unload_unused(&self, name: Option<&str>) -> Result<(), ApiError> {
        self.check_allowed(name, &[])?;
        self.key.check_models()?;
        // What requests may not load they do not unload.
        if !self.autoloads() {
            let what =
                "0 is not supported: POST /models/unload unloads a model (--no-models-autoload)";
            return Err(ApiError::field("keep_alive", what));
        }
        self.app.models.unload_unused(name)
    }

    fn autoloads(&self) -> bool {
        self.autoload.unwrap_or(self.app.models.autoloads())
    }

    /// Refuses a request for a model that it may not load.
    fn check_autoload(&self, name: Option<&str>) -> Result<(), ApiError> {
        match self.autoloads() {
            // To load a model all the same is a right.
            true if !self.app.models.autoloads() => {
                let checked = self.app.models.check_autoload(name);
                checked.or_else(|_| self.key.check_models())
            }
            true => Ok(()),
            false => self.app.models.check_autoload(name),
        }
    }

    /// Refuses a request for text early: its key has no budget left, or may not ask for it like this.
    pub(super) fn check(&self, generation: &Generation) -> Result<(), ApiError> {
        self.key.check_priority(generation.priority)?;
        self.key.check_usage()
    }

    /// The model that a request for text selects.
    pub(super) async fn decoder(&self, choice: &ModelChoice) -> Result<Lease, ApiError> {
        let lease = self.adapted(choice).await?;
        if lease.model().embeds() {
            let what = format!(
                "{} is an encoder: it computes embeddings but does not generate text",
                lease.name()
            );
            return Err(ApiError::field("model", what));
        }
        Ok(lease)
    }

    /// Reads the JSON body of this request: see [`Bodies::json`].
    pub(crate) async fn read<T: Send + 'static>(
        &mut self,
        request: Request,
        read: impl Fn(&Value) -> Asked<T> + Send + Sync + 'static,
    ) -> Result<T, ApiError> {
        let app = &self.app;
        let posted = app.bodies.json(request, &app.work, read).await?;
        self.lane = posted.lane;
        self.body = posted.hash;
        self.room = Some(Arc::new(posted.room));
        Ok(posted.value)
    }

    /// Runs work of this request when it is its turn.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let room = self.room.clone();
        let held = move || (work(), drop(room)).0;
        self.app.work.run(self.lane, held).await
    }

    /// Refuses a model or an adapter that the key may not use.
    pub(crate) fn check_allowed(
        &self,
        name: Option<&str>,
        adapters: &[AdapterChoice],
    ) -> Result<(), ApiError> {
        let models = &self.app.models;
        let allowed = |entry: &Entry| self.key.may_use([&*entry.name].into_iter());
        if let Some(entry) = name.and_then(|name| models.adapters().find(name)) {
            return allowed(&entry)
                .then_some(())
                .ok_or_else(|| self.hidden(&entry.name));
        }
        let name = name.unwrap_or_default();
        let model = match models.asked(Some(name)) {
            Err(error) => return Err(self.unknown(name, error)),
            Ok(model) => model,
        };
        if !self.key.may_use(models.names_of(model)) {
            return Err(self.hidden(models.name_of(model)));
        }
        let entries = adapters
            .iter()
            .filter_map(|part| models.adapters().named(&part.adapter));
        let hidden = entries.into_iter().find(|entry| !allowed(entry));
        hidden.map_or(Ok(()), |entry| Err(self.hidden(&entry.name)))
    }

    /// The error for an unknown model. `error` names all models: only a key that may use all may read it.
    pub(crate) fn unknown(&self, name: &str, error: ApiError) -> ApiError {
        match self.key.may_use([].into_iter()) {
            true => error,
            false => self.hidden(name),
        }
    }

    /// Refuses a name that the key may not use.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), ApiError> {
        match self.key.may_use([name].into_iter()) {
            true => Ok(()),
            false => Err(self.hidden(name)),
        }
    }

    fn hidden(&self, name: &str) -> ApiError {
        ApiError {
            field: Some("model".into()),
            ..ApiError::forbidden(format!("the key may not use {name:?}"))
        }
    }

    /// Whose caches a text with this salt uses.
    pub(super) fn domain(&self, salt: &Arc<str>) -> CacheDomain {
        CacheDomain {
            group: Arc::clone(self.key.group()),
            salt: Arc::clone(salt),
        }
    }

    fn check_open(&self) -> Result<(), ApiError> {
        match *self.app.stopping.borrow() {
            true => Err(ApiError::unavailable("the server is shutting down")),
            false => Ok(()),
        }
    }

    /// Leaves out what would keep a conversation out of the cache, and logs what of the request has no effect.
    pub(super) fn tidy(&self, request: &mut ChatRequest) {
        let note = self.app.billing.remove(&mut request.messages);
        self.note(&request.left_out);
        self.note(note.as_slice());
    }

    /// Logs notes about this request.
    pub(crate) fn note(&self, notes: &[impl fmt::Display]) {
        for note in notes {
            (self.app.log)(&format!("{} {note}", self.request));
        }
    }

    /// Logs a prompt, if that is enabled.
    pub(super) fn tell_prompt(&self, text: &str) {
        if self.app.options.log_prompts {
            (self.app.log)(&format!("{} prompt {text:?}", self.request));
        }
    }
}

/// A unique name.
pub(crate) fn unique(prefix: &str) -> String {
    // Each RandomState has its own keys.
    let part = || RandomState::new().build_hasher().finish();
    format!("{prefix}{:016x}{:08x}", part(), part() >> 32)
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("models", &self.models)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

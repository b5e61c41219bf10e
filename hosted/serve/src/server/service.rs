//! The server without connections, for requests from its own process.

use super::connection::answer;
use super::listen::ServeError;
use super::making::Making;
use super::pending::Pending;
use crate::answer::{self, App, Context as RequestContext, TextAnswer, WrapSampler, unique};
use crate::api::{
    ApiError, ChatRequest, CompletionRequest, Defaults, EmbeddingRequest, ModelChoice, Ranking,
    RerankRequest, Vectors,
};
use crate::config::ServerConfig;
use crate::dialect;
use crate::engine::Engine;
use crate::http::{Body, Request, Response, boxed};
use crate::models::Models;
use crate::wait::wait_for;
use core::fmt;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use http_body_util::Full;
use hyper::body::{Body as _, Bytes};
use hyper::{Method, header};
use sluice::sequence::Choose;
use sluice::{Limits, Model, Session, Team};
use std::sync::Arc;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Mutex, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The routes of a server, for calls from the same process. They run on its own threads.
pub struct Service {
    app: Arc<App>,
    /// `None` after it is dropped.
    runtime: Option<Runtime>,
}

/// A request.
#[derive(Clone, Default)]
pub struct Call {
    /// The path of a route, with a query if the route takes one.
    pub path: String,
    /// A JSON body for POST; `None` for GET.
    pub body: Option<Vec<u8>>,
    /// Replaces the samplers of the request.
    pub wrap: Option<WrapSampler>,
}

/// An answer as it is generated. Its body is produced where it is read: the engine wakes the reader, without a thread
/// in between. Dropping it cancels the request.
#[derive(Debug)]
pub struct Reply {
    way: Arc<Mutex<Way>>,
    task: JoinHandle<()>,
    runtime: Handle,
}

/// The state of an answer.
#[derive(Debug)]
enum Way {
    Asked(oneshot::Receiver<Response>),
    Answered(Body),
    Over,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyPart {
    /// The HTTP status, which comes first; 200 is success.
    Status(u16),
    /// Bytes of its body: a whole JSON document, or whole events of a stream.
    Bytes(Bytes),
    /// It is complete.
    End,
    /// The service has ended; there will be no more parts.
    Broken,
}

/// The loading of the models named on the command line.
#[derive(Debug)]
pub struct Loading(watch::Receiver<Option<Result<(), String>>>, Handle);

impl Service {
    /// Starts the engine. Models are not loaded yet. `setup` runs on a new thread, which becomes the engine's: it can
    /// bind that thread to a CPU. The threads that prepare requests stay on the caller's CPUs. Does not wait.
    ///
    /// # Errors
    /// [`ServeError`]: threads could not be started. [`Making::wait`] returns the errors of `setup`.
    pub fn start<F>(setup: F) -> Result<Making<Self>, ServeError>
    where
        F: FnOnce() -> Result<(ServerConfig, Team), String> + Send + 'static,
    {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("service")
            .enable_time()
            .build()?;
        let starting = Making::start("starting", move || {
            let (config, team) = setup().map_err(ServeError::Model)?;
            let opened = config.models.open();
            let opened = opened.map_err(|error| ServeError::Model(error.to_string()))?;
            let log = config.log.clone();
            let engine = Engine::start(team, config.engine.clone(), log.clone())?;
            let models = Models::new(engine, config.models.clone(), opened, log)?;
            Ok(Self {
                app: Arc::new(App::new(Arc::new(models), &config)),
                runtime: Some(runtime),
            })
        })?;
        Ok(starting)
    }

    /// Loads the named models, which takes seconds. Does not wait.
    #[must_use]
    pub fn load(&self) -> Loading {
        let (loaded, waiting) = watch::channel(None);
        let models = Arc::clone(self.app.models());
        let (adapters, known) = (Arc::clone(models.adapters()), Arc::clone(&models));
        let runtime = self.handle();
        let (looked, first_look) = oneshot::channel();
        let is_model = move |name: &str| known.find(name).is_ok();
        runtime.spawn(adapters.watch(0, is_model, looked));
        runtime.spawn(async move {
            let _looked = first_look.await;
            loaded.send_replace(Some(models.load_named().await));
        });
        Loading(waiting, runtime)
    }

    /// The model called `name`, or the first one, if it is in memory.
    #[must_use]
    pub fn model(&self, name: Option<&str>) -> Option<Model> {
        let lease = self.app.models().present(name).ok()??;
        Some(lease.model().clone())
    }

    /// A session for a text outside of requests, on the model called `name` or the first one, with the limits and
    /// adapters of requests. A step can return logits for up to `n_outputs` tokens. Does not wait.
    ///
    /// # Errors
    /// A thread could not be started. [`Making::wait`] returns other errors: the model is unavailable, or memory ran
    /// out.
    pub fn session(
        &self,
        name: Option<&str>,
        n_outputs: usize,
    ) -> Result<Making<Session>, ServeError> {
        let (models, runtime) = (Arc::clone(self.app.models()), self.handle());
        let name = name.map(str::to_owned);
        let making = Making::start("context", move || {
            let choice = ModelChoice {
                name,
                adapters: None,
            };
            let lease = runtime.block_on(models.acquire_with(&choice));
            let lease = lease.map_err(|error| ServeError::Model(error.to_string()))?;
            let limits = Limits {
                n_seq: 1,
                n_outputs,
                ..lease.limits()
            };
            let session = lease.model().session_on(models.engine().team(), limits);
            let mut session = session.map_err(|error| ServeError::Model(error.to_string()))?;
            session.set_adapter(lease.blend().cloned());
            Ok(session)
        });
        Ok(making?)
    }

    /// The sampler for a request to `/completion` with this body, including its grammar.
    ///
    /// # Errors
    /// A field is invalid, or the model called `name` is not in memory.
    pub fn sampler(
        &self,
        name: Option<&str>,
        body: &[u8],
    ) -> Result<Box<dyn Choose + Send>, String> {
        let lease = self.app.models().present(name).ok().flatten();
        let lease = lease.ok_or("the model is not in memory")?;
        let body = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let generation = dialect::completion_generation(&body, self.app.defaults());
        let sampler = generation.and_then(|asked| answer::sampler_of(&self.app, &lease, asked));
        sampler.map_err(|error| error.to_string())
    }

    /// Starts answering a request. Does not wait.
    #[must_use]
    pub fn call(&self, call: Call) -> Reply {
        let (sender, asked) = oneshot::channel();
        let app = Arc::clone(&self.app);
        let runtime = self.handle();
        let task = runtime.spawn(async move {
            // If this fails, the receiver has been dropped.
            let wrap = call.wrap.clone();
            let _sent = sender.send(answer(app, request(call), wrap).await);
        });
        Reply {
            way: Arc::new(Mutex::new(Way::Asked(asked))),
            task,
            runtime,
        }
    }

    /// Starts answering a conversation; `wrap` may replace the samplers. Does not wait.
    #[must_use]
    pub fn chat(&self, request: ChatRequest, wrap: Option<WrapSampler>) -> Pending<TextAnswer> {
        let context = self.context(wrap);
        self.begin(async move { answer::chat(&context, request).await })
    }

    /// Starts continuing texts; `wrap` may replace the samplers. Does not wait.
    #[must_use]
    pub fn complete(
        &self,
        request: CompletionRequest,
        wrap: Option<WrapSampler>,
    ) -> Pending<TextAnswer> {
        let context = self.context(wrap);
        self.begin(async move { answer::complete(&context, request).await })
    }

    /// Starts embedding texts. Does not wait.
    #[must_use]
    pub fn embed(&self, request: EmbeddingRequest) -> Pending<Vectors> {
        let context = self.context(None);
        self.begin(async move { answer::embed(&context, request).await })
    }

    /// Starts scoring documents. Does not wait.
    #[must_use]
    pub fn rank(&self, request: RerankRequest) -> Pending<Ranking> {
        let context = self.context(None);
        self.begin(async move { answer::rank(&context, request).await })
    }

    /// The defaults for fields that requests leave out.
    #[must_use]
    pub fn defaults(&self) -> &Defaults {
        self.app.defaults()
    }

    fn context(&self, wrap: Option<WrapSampler>) -> RequestContext {
        let app = Arc::clone(&self.app);
        RequestContext {
            wrap,
            ..RequestContext::new(app, unique("req-").into())
        }
    }

    fn begin<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Pending<T> {
        let (sender, receiver) = oneshot::channel();
        let task = self.handle().spawn(async move {
            // If this fails, the receiver has been dropped.
            let _sent = sender.send(work.await);
        });
        Pending { receiver, task }
    }

    /// Refuses new requests and waits up to `patience` for running ones, then waits for the engine's thread to end.
    pub fn stop(&self, patience: Duration) {
        self.app.stopping().send_replace(true);
        self.app.models().stop();
        self.app.models().engine().stop(patience);
    }

    fn handle(&self) -> Handle {
        let runtime = self.runtime.as_ref();
        runtime
            .expect("it is there until it is dropped")
            .handle()
            .clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Loading {
    /// Waits up to `patience`; `None` if the models are not loaded yet.
    ///
    /// # Errors
    /// Why a model could not be loaded.
    pub fn wait(&mut self, patience: Duration) -> Option<Result<(), ServeError>> {
        let loaded = self.0.wait_for(Option::is_some);
        let found = self
            .1
            .block_on(async { timeout(patience, loaded).await })
            .ok()?;
        let found = found.map_or_else(
            |_| Err("the server is shutting down".to_owned()),
            |found| found.clone().unwrap_or(Ok(())),
        );
        Some(found.map_err(ServeError::Model))
    }
}

impl Reply {
    /// Waits up to `patience` for the next part; `None` on timeout. Must not be called from an async task.
    #[must_use]
    pub fn next(&self, patience: Duration) -> Option<ReplyPart> {
        // The body's timers need a runtime.
        let _runtime = self.runtime.enter();
        wait_for(core::pin::pin!(next(&self.way)), patience)
    }

    /// Calls `then` on a thread of the service with the next part, or with [`ReplyPart::Broken`] if the service has
    /// ended.
    pub fn when_next(&self, then: impl FnOnce(ReplyPart) + Send + 'static) {
        let way = Arc::clone(&self.way);
        let mut told = Told(Some(then));
        self.runtime
            .spawn(async move { told.tell(next(&way).await) });
    }
}

async fn next(way: &Mutex<Way>) -> ReplyPart {
    let mut way = way.lock().await;
    poll_fn(|context| way.poll_part(context)).await
}

impl Way {
    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<ReplyPart> {
        let part = match self {
            Self::Asked(asked) => match ready!(Pin::new(asked).poll(context)) {
                Ok(response) => {
                    let status = response.status().as_u16();
                    *self = Self::Answered(response.into_body());
                    return Poll::Ready(ReplyPart::Status(status));
                }
                Err(_) => ReplyPart::Broken,
            },
            Self::Answered(body) => loop {
                match ready!(Pin::new(&mut *body).poll_frame(context)) {
                    None => break ReplyPart::End,
                    Some(Err(_)) => break ReplyPart::Broken,
                    Some(Ok(frame)) => {
                        if let Ok(bytes) = frame.into_data() {
                            return Poll::Ready(ReplyPart::Bytes(bytes));
                        }
                    }
                }
            },
            Self::Over => ReplyPart::Broken,
        };
        *self = Self::Over;
        Poll::Ready(part)
    }
}

/// The request that a connection would have read.
fn request(call: Call) -> Request {
    let length = call.body.as_ref().map_or(0, Vec::len);
    let method = if call.body.is_some() {
        Method::POST
    } else {
        Method::GET
    };
    let body = Full::new(Bytes::from(call.body.unwrap_or_default()));
    let mut request = Request::new(boxed(body));
    *request.method_mut() = method;
    request
        .headers_mut()
        .insert(header::CONTENT_LENGTH, length.into());
    // An invalid path does not match any route.
    *request.uri_mut() = call.path.parse().unwrap_or_default();
    request
}

/// Calls a function once with a part. If the task ends early or never starts, the part is [`ReplyPart::Broken`].
struct Told<F: FnOnce(ReplyPart)>(Option<F>);

impl<F: FnOnce(ReplyPart)> Told<F> {
    fn tell(&mut self, part: ReplyPart) {
        if let Some(then) = self.0.take() {
            then(part);
        }
    }
}

impl<F: FnOnce(ReplyPart)> Drop for Told<F> {
    fn drop(&mut self) {
        self.tell(ReplyPart::Broken);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.task.abort();
        if self
            .way
            .try_lock()
            .is_ok_and(|way| matches!(*way, Way::Over))
        {
            return;
        }
        // Dropping it logs the end, and a log may wait for the thread that drops it.
        let way = Arc::clone(&self.way);
        self.runtime
            .spawn(async move { *way.lock().await = Way::Over });
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("models", self.app.models())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

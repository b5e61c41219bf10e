//! The server without connections: requests come from its own process.

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

/// The routes of a server, called from the process that they are in. Its own threads answer.
pub struct Service {
    app: Arc<App>,
    /// Until it is dropped.
    runtime: Option<Runtime>,
}

/// A request.
#[derive(Clone, Default)]
pub struct Call {
    /// Of the route, with a query if it takes one.
    pub path: String,
    /// JSON to be posted; `None` gets.
    pub body: Option<Vec<u8>>,
    /// What chooses its tokens.
    pub wrap: Option<WrapSampler>,
}

/// An answer as it comes. Its body is made where it is read: the engine wakes the reader, and no thread between them.
/// Dropped, the work at it ends.
#[derive(Debug)]
pub struct Reply {
    way: Arc<Mutex<Way>>,
    task: JoinHandle<()>,
    runtime: Handle,
}

/// How far an answer is.
#[derive(Debug)]
enum Way {
    Asked(oneshot::Receiver<Response>),
    Answered(Body),
    Over,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyPart {
    /// It begins, with this status of HTTP; 200 is good.
    Status(u16),
    /// Bytes of its body: all JSON, or whole events of a stream.
    Bytes(Bytes),
    /// It is complete.
    End,
    /// Nothing more comes of it: the service has ended.
    Broken,
}

/// Whether the models that were named are in memory.
#[derive(Debug)]
pub struct Loading(watch::Receiver<Option<Result<(), String>>>, Handle);

impl Service {
    /// Starts the engine; models are not loaded yet. `setup` runs on a thread of its own: where it puts that thread,
    /// there the engine's thread is. Those that prepare requests stay where the caller is. Does not wait.
    ///
    /// # Errors
    /// [`ServeError`]: threads cannot be started. [`Making::wait`] has the errors of `setup`.
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

    /// Loads the models that were named, which takes seconds. Does not wait.
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

    /// The model called `name`, or the first, if it is in memory.
    #[must_use]
    pub fn model(&self, name: Option<&str>) -> Option<Model> {
        let lease = self.app.models().present(name).ok()??;
        Some(lease.model().clone())
    }

    /// A text of its own over the model called `name`, or the first: with the limits and the adapters of its requests,
    /// but beside them. Steps of it give logits of at most `n_outputs` tokens. Does not wait.
    ///
    /// # Errors
    /// A thread cannot be started. [`Making::wait`] has the others: the model cannot be had, or there is no memory.
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

    /// What would choose the tokens of a request to `/completion` with this body, its grammar among it.
    ///
    /// # Errors
    /// A field is wrong, or the model called `name` is not in memory.
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

    /// Begins to answer a request. Does not wait.
    #[must_use]
    pub fn call(&self, call: Call) -> Reply {
        let (sender, asked) = oneshot::channel();
        let app = Arc::clone(&self.app);
        let runtime = self.handle();
        let task = runtime.spawn(async move {
            // Nobody waits for it where this fails.
            let wrap = call.wrap.clone();
            let _sent = sender.send(answer(app, request(call), wrap).await);
        });
        Reply {
            way: Arc::new(Mutex::new(Way::Asked(asked))),
            task,
            runtime,
        }
    }

    /// Begins to answer a conversation, with samplers of the caller's if `wrap` gives them. Does not wait.
    #[must_use]
    pub fn chat(&self, request: ChatRequest, wrap: Option<WrapSampler>) -> Pending<TextAnswer> {
        let context = self.context(wrap);
        self.begin(async move { answer::chat(&context, request).await })
    }

    /// Begins to continue texts, with samplers of the caller's if `wrap` gives them. Does not wait.
    #[must_use]
    pub fn complete(
        &self,
        request: CompletionRequest,
        wrap: Option<WrapSampler>,
    ) -> Pending<TextAnswer> {
        let context = self.context(wrap);
        self.begin(async move { answer::complete(&context, request).await })
    }

    /// Begins to embed texts. Does not wait.
    #[must_use]
    pub fn embed(&self, request: EmbeddingRequest) -> Pending<Vectors> {
        let context = self.context(None);
        self.begin(async move { answer::embed(&context, request).await })
    }

    /// Begins to score documents. Does not wait.
    #[must_use]
    pub fn rank(&self, request: RerankRequest) -> Pending<Ranking> {
        let context = self.context(None);
        self.begin(async move { answer::rank(&context, request).await })
    }

    /// What applies where requests leave a field out.
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
            // Nobody waits for it where this fails.
            let _sent = sender.send(work.await);
        });
        Pending { receiver, task }
    }

    /// Answers no more requests; those that run may go on for `patience`. Waits for the engine's thread to end.
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
    /// Waits for at most `patience`; `None` if they are not loaded yet.
    ///
    /// # Errors
    /// Why one cannot be loaded.
    pub fn wait(&mut self, patience: Duration) -> Option<Result<(), ServeError>> {
        let loaded = self.0.wait_for(Option::is_some);
        let found = self
            .1
            .block_on(async { timeout(patience, loaded).await })
            .ok()?;
        let found = found.map_or_else(
            |_| Err("the server ends".to_owned()),
            |found| found.clone().unwrap_or(Ok(())),
        );
        Some(found.map_err(ServeError::Model))
    }
}

impl Reply {
    /// The next part, waiting for at most `patience`; `None` if there is none yet. Not from a task of a runtime.
    #[must_use]
    pub fn next(&self, patience: Duration) -> Option<ReplyPart> {
        // Timers of the body need it.
        let _runtime = self.runtime.enter();
        wait_for(core::pin::pin!(next(&self.way)), patience)
    }

    /// Calls `then` with the next part, from a thread of the service; with [`ReplyPart::Broken`] where the service has ended.
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

/// What a connection would have read.
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
    // What is not a path finds no route.
    *request.uri_mut() = call.path.parse().unwrap_or_default();
    request
}

/// Is told a part once. A task that ends before that, or is never begun, tells that nothing comes.
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
        // Its end is logged, and a log may wait for who drops it.
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

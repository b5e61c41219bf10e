//! The server without connections, for requests from its own process.

use super::listen::ServeError;
use super::loading::Loading;
use super::making::Making;
use super::pending::Pending;
use super::reader::AnswerReader;
use crate::answer::{self, App, Context, WrapSampler, unique};
use crate::api::{
    AdapterRequest, ApiError, ChatPrompt, ChatRequest, CompletionRequest, Defaults,
    EmbeddingRequest, Generation, ModelChoice, Ranking, RerankRequest, Vectors,
};
use crate::config::ServerConfig;
use crate::engine::{EngineHandle, Share};
use crate::keys::{ApiKey, Keys};
use crate::models::Models;
use core::fmt;
use core::time::Duration;
use sluice::sequence::Choose;
use sluice::{Limits, Model, Session, Team};
use std::sync::Arc;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// A server for requests from the same process. They run on its own threads.
pub struct Service {
    app: Arc<App>,
    /// `None` after it is dropped.
    runtime: Option<Runtime>,
}

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
            let keys = Keys::new(config.http.keys.clone(), log.clone())?;
            let engine = EngineHandle::start(team, config.engine.clone(), log.clone())?;
            let (options, lists) = (config.models.clone(), config.lists.clone());
            let models = Models::new(engine, options, lists, opened, log)?;
            Ok(Self {
                app: Arc::new(App::new(Arc::new(models), keys, &config)),
                runtime: Some(runtime),
            })
        })?;
        Ok(starting)
    }

    /// Loads the named models, which takes seconds. Does not wait.
    #[must_use]
    pub fn load(&self) -> Loading {
        Loading::start(self.app.models(), self.handle())
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
                ..ModelChoice::default()
            };
            let lease = runtime.block_on(models.acquire_with(&choice));
            let lease = lease.map_err(|error| ServeError::Model(error.in_full()))?;
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

    /// The sampler of a text, with its grammar.
    ///
    /// # Errors
    /// A field is invalid, or the model called `name` is not in memory.
    pub fn sampler(
        &self,
        name: Option<&str>,
        generation: Generation,
    ) -> Result<Box<dyn Choose + Send>, ApiError> {
        let lease = self.app.models().present(name)?;
        let lease = lease.ok_or_else(|| ApiError::unavailable("the model is not in memory"))?;
        answer::sampler_of(&self.app, &lease, generation)
    }

    /// Maximum number of tokens of all texts together on the model called `name` or the first one, and of a single text
    /// if there are no others; `None` if it is not in memory.
    #[must_use]
    pub fn n_ctx(&self, name: Option<&str>) -> Option<usize> {
        let lease = self.app.models().present(name).ok()??;
        Some(lease.n_ctx())
    }

    /// The number of texts of the model called `name` or the first one that are being computed.
    #[must_use]
    pub fn n_running(&self, name: Option<&str>) -> usize {
        let models = self.app.models();
        let lease = models.present(name).ok().flatten();
        let view = lease.and_then(|lease| models.engine().view(lease.id()));
        let slots = view.map(|view| view.slots).unwrap_or_default();
        slots.iter().filter(|slot| slot.is_processing).count()
    }

    /// Starts answering a conversation; `wrap` may replace the samplers. Does not wait.
    #[must_use]
    pub fn chat(&self, request: ChatRequest, wrap: Option<WrapSampler>) -> AnswerReader {
        let context = self.context(wrap);
        let asked = self.begin(async move { answer::chat(&context, request).await });
        AnswerReader::new(asked, self.handle())
    }

    /// Starts continuing texts; `wrap` may replace the samplers. Does not wait.
    #[must_use]
    pub fn complete(&self, request: CompletionRequest, wrap: Option<WrapSampler>) -> AnswerReader {
        let context = self.context(wrap);
        let asked = self.begin(async move { answer::complete(&context, request).await });
        AnswerReader::new(asked, self.handle())
    }

    /// Starts rendering a conversation. Does not wait.
    #[must_use]
    pub fn prompt(&self, request: ChatRequest) -> Pending<ChatPrompt> {
        let context = self.context(None);
        self.begin(async move { answer::prompt(&context, request).await })
    }

    /// Starts reading an adapter, which requests can name then. Does not wait.
    #[must_use]
    pub fn load_adapter(&self, request: AdapterRequest) -> Pending<()> {
        let context = self.context(None);
        self.begin(async move { answer::load_adapter(&context, request).await.map(drop) })
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

    fn context(&self, wrap: Option<WrapSampler>) -> Context {
        let app = Arc::clone(&self.app);
        Context {
            wrap,
            ..Context::new(
                app,
                unique("req-").into(),
                Share::default(),
                ApiKey::of_process(),
            )
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
        self.app.pulls().stop();
        self.app.models().engine().stop(patience);
        self.app.models().end();
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

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("models", self.app.models())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{AnswerEvent, CompletionPrompt, ErrorKind, PromptPart};
    use crate::models::{ModelsOptions, NamedModel, State};
    use crate::server::reader::AnswerPart;
    use sluice::host::topology::Cores;
    use sluice::sequence::{ChoiceContext, ChoiceError};
    use std::time::Instant;

    /// A service with the small model twice, one of them in memory at a time.
    fn service() -> Service {
        let named = |alias: &str| NamedModel {
            alias: Some(alias.to_owned()),
            path: concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../models/tale-5.8m-Q4_K_M.gguf"
            )
            .into(),
        };
        let config = ServerConfig {
            models: ModelsOptions {
                named: vec![named("a"), named("b")],
                max: 1,
                turn: Duration::from_millis(50),
                limits: Limits {
                    n_ctx: 512,
                    n_seq: 1,
                    ..Limits::default()
                },
                ..ModelsOptions::default()
            },
            ..ServerConfig::default()
        };
        let made = Service::start(move || {
            let team = Team::new(1, &Cores::detect());
            Ok((config, team.map_err(|error| error.to_string())?))
        });
        let mut made = made.unwrap();
        made.wait(PATIENCE).unwrap().unwrap()
    }

    fn of(name: &str) -> ModelChoice {
        ModelChoice {
            name: Some(name.to_owned()),
            ..ModelChoice::default()
        }
    }

    fn tokens(seed: u32) -> Vec<u32> {
        (0..400).map(|i| 3 + (seed * 31 + i * 7) % 500).collect()
    }

    fn completion(name: &str, n: u32, prompt_logprobs: Option<usize>) -> CompletionRequest {
        let mut generation = Generation::new(&Defaults::default());
        generation.max_tokens = Some(1);
        let prompts =
            (0..n).map(|seed| CompletionPrompt::Parts(vec![PromptPart::Tokens(tokens(seed))]));
        CompletionRequest {
            model: of(name),
            prompts: prompts.collect(),
            prompt_logprobs,
            returns_prompts: false,
            generation,
            left_out: Vec::new(),
        }
    }

    fn read(reader: &AnswerReader) -> Vec<AnswerPart> {
        reader.read(true, PATIENCE).unwrap().unwrap()
    }

    /// Once work of model `a` waits in the engine, another model is used, and `a` has to leave for it.
    fn interrupt(service: &Service) {
        let models = service.app.models();
        let loaded = || {
            let mut all = models.all();
            all.find_map(|model| match model.state {
                State::Loaded(loaded) if model.name == "a" => Some(loaded),
                _ => None,
            })
        };
        let begun = Instant::now();
        let loaded = loop {
            let view =
                loaded().and_then(|loaded| Some((models.engine().view(loaded.id())?, loaded)));
            match view {
                Some((view, loaded)) if view.n_waiting > 0 => break Arc::downgrade(&loaded),
                _ => assert!(begun.elapsed() < PATIENCE),
            }
            std::thread::yield_now();
        };
        read(&service.complete(completion("b", 1, None), None));
        assert!(loaded.upgrade().is_none(), "its memory is kept");
    }

    #[test]
    fn a_model_leaves_memory_while_embeddings_of_it_wait() {
        let service = service();
        let input = (0..24).map(|seed| vec![PromptPart::Tokens(tokens(seed))]);
        let request = EmbeddingRequest {
            model: of("a"),
            ..EmbeddingRequest::new(input.collect())
        };
        let embed = |interrupted: bool| {
            let mut waiting = service.embed(request.clone());
            if interrupted {
                interrupt(&service);
            }
            waiting.wait(PATIENCE).unwrap().unwrap().floats
        };
        assert_eq!(embed(true), embed(false));
    }

    #[test]
    fn a_model_leaves_memory_while_scores_of_it_wait() {
        let service = service();
        let scored = |interrupted: bool| {
            let reader = service.complete(completion("a", 12, Some(0)), None);
            if interrupted {
                interrupt(&service);
            }
            let scores = read(&reader).into_iter().filter_map(|part| match part {
                AnswerPart::Event(AnswerEvent::Scores { scores, .. }) => Some(scores),
                _ => None,
            });
            let scores = scores.flatten();
            let bits = scores.map(|score| score.report.chosen.log_probability.to_bits());
            bits.collect::<Vec<_>>()
        };
        let whole = scored(true);
        assert_eq!(whole.len(), 12 * 399);
        assert_eq!(whole, scored(false));
    }

    /// A sampler with a fault that nothing catches, when it is dropped.
    struct Broken;

    impl Choose for Broken {
        fn choose(&mut self, _: &[f32], _: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
            Ok(5)
        }
    }

    impl Drop for Broken {
        fn drop(&mut self) {
            panic!("this is a test")
        }
    }

    #[test]
    fn a_model_is_loaded_again_after_the_engine_panicked() {
        let service = service();
        let wrap: WrapSampler = Arc::new(|_, _| Box::new(Broken));
        read(&service.complete(completion("a", 1, None), Some(wrap)));
        // The next text takes its place.
        let next = || service.complete(completion("a", 1, None), None);
        let failed = next().read(true, PATIENCE).unwrap();
        assert!(failed.is_err());
        // A request that comes at this very moment may still meet the model that is being given up.
        let begun = Instant::now();
        let answer = loop {
            match next().read(true, PATIENCE).unwrap() {
                Err(error) if error.kind == ErrorKind::Unavailable => {
                    assert!(begun.elapsed() < PATIENCE);
                }
                answer => break answer.unwrap(),
            }
        };
        assert!(!answer.is_empty());
    }

    const PATIENCE: Duration = Duration::from_secs(100);
}

//! The engine for Python.

use crate::answers::{Answer, ChatPrompt, Ranking, refused, waited};
use crate::asked::{Asking, Engine, is_any_inside};
use crate::callback::{Processor, Raised};
use crate::config::Arguments;
use crate::context::{Context, Sampler};
use crate::fork::OfProcess;
use crate::making::{SIGNALS, made};
use crate::model::Model;
use crate::requests;
use core::time::Duration;
use numpy::{PyArray1, PyArray2, PyArrayMethods as _};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::wrap_pyfunction;
use sluice::core::team::StopFlag;
use sluice::embed::Normalization;
use sluice_make::draft_copy::DraftCopy;
use sluice_serve::api::{AdapterRequest, EmbeddingRequest, FieldName, PromptPart, VectorKind};
use sluice_serve::{Log, ServeError};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

/// Adds this file's classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Service>()?;
    let stop = wrap_pyfunction!(stop_all, module)?;
    let atexit = module.py().import("atexit")?;
    atexit.call_method1("register", (stop,)).map(drop)
}

/// Models in memory, and the engine that runs them.
///
/// `arguments` are named as in `sluice.Llama` and `sluice.Options`; None stands for the default. `log` is called with
/// each log line, from any thread.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Service(OfProcess<Arc<Inner>>);

struct Inner {
    service: Arc<sluice_serve::Service>,
    engine: Engine,
    /// Keeps the temporary folder of the draft model until the service ends.
    _copy: DraftFile,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.engine.is_calling() {
            // The engine's thread runs this, so another one has to wait for its end.
            let service = Arc::clone(&self.service);
            let _thread = std::thread::spawn(move || service.stop(Duration::ZERO));
            return;
        }
        // Its threads may wait for Python, so release it while they end.
        let _stopped = Python::try_attach(|py| py.detach(|| self.service.stop(Duration::ZERO)));
    }
}

/// Services in use. They are ended before the interpreter is, because their threads could not end after it.
static IN_USE: Mutex<Vec<(u32, Weak<Inner>)>> = Mutex::new(Vec::new());

/// Ends all services of this process.
#[pyfunction]
fn stop_all(py: Python<'_>) {
    let all = core::mem::take(&mut *IN_USE.lock().unwrap_or_else(PoisonError::into_inner));
    let here = all
        .into_iter()
        .filter(|(process, _)| *process == std::process::id());
    for inner in here.filter_map(|(_, inner)| inner.upgrade()) {
        py.detach(|| inner.stop_at_exit());
    }
}

impl Inner {
    /// Ends the service, unless it waits for a callback that does not return.
    fn stop_at_exit(&self) {
        let service = Arc::clone(&self.service);
        let stopping = std::thread::spawn(move || service.stop(Duration::ZERO));
        let start = Instant::now();
        while !(stopping.is_finished() || start.elapsed() > STOPPED && is_any_inside()) {
            std::thread::park_timeout(STEP);
        }
    }
}

/// The 2-bit copy of the model, if it drafts.
type DraftFile = Arc<Mutex<Option<DraftCopy>>>;

#[pymethods]
impl Service {
    #[new]
    #[pyo3(signature = (arguments, log=None))]
    fn new(
        py: Python<'_>,
        arguments: &Bound<'_, PyDict>,
        log: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let arguments = Arguments::read(arguments)?;
        let engine = Engine::new();
        let (copy, stop) = (DraftFile::default(), Arc::new(StopFlag::new()));
        let starting = {
            let (copy, stop) = (Arc::clone(&copy), Arc::clone(&stop));
            sluice_serve::Service::start(move || {
                let setup = arguments.set_up(logged(log, engine), &stop)?;
                *copy.lock().unwrap_or_else(PoisonError::into_inner) = setup.copy;
                Ok((setup.config, setup.team))
            })
        };
        let starting = starting.map_err(|error| failed(&error))?;
        let started = made(py, starting, |starting| {
            stop.stop();
            // A copy that has been started is removed before its thread ends.
            drop(starting.wait(STOPPED));
        });
        let service = started?.map_err(|error| failed(&error))?;
        let mut loading = service.load();
        let inner = Arc::new(Inner {
            service: Arc::new(service),
            engine,
            _copy: copy,
        });
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        in_use.retain(|(_, inner)| inner.strong_count() > 0);
        in_use.push((std::process::id(), Arc::downgrade(&inner)));
        drop(in_use);
        loop {
            match py.detach(|| loading.wait(SIGNALS)) {
                Some(Ok(())) => break,
                Some(Err(error)) => return Err(failed(&error)),
                None => {}
            }
            py.check_signals()?;
        }
        Ok(Self(OfProcess::new(inner)))
    }

    /// Starts continuing texts. `processors` are called with the tokens so far and the logits (n_vocab) before each
    /// token is sampled; so is `stopping`, which ends the text by returning true.
    #[pyo3(signature = (arguments, processors=Vec::new(), stopping=Vec::new()))]
    fn complete(
        &self,
        arguments: Bound<'_, PyDict>,
        processors: Vec<Py<PyAny>>,
        stopping: Vec<Py<PyAny>>,
    ) -> PyResult<Answer> {
        let (inner, _asking) = self.asked()?;
        let service = &inner.service;
        let asked = requests::completion(arguments, service.defaults())?;
        let raised = Raised::default();
        let wrap = Processor::wrap(processors, stopping, &raised, inner.engine);
        let reader = service.complete(asked.request, wrap);
        Ok(Answer::new(reader, asked.names, raised, inner.engine))
    }

    /// Starts answering a conversation. `processors` are called as by `complete`.
    #[pyo3(signature = (arguments, processors=Vec::new()))]
    fn chat(&self, arguments: Bound<'_, PyDict>, processors: Vec<Py<PyAny>>) -> PyResult<Answer> {
        let (inner, _asking) = self.asked()?;
        let service = &inner.service;
        let asked = requests::chat(arguments, service.defaults())?;
        let raised = Raised::default();
        let wrap = Processor::wrap(processors, Vec::new(), &raised, inner.engine);
        let reader = service.chat(asked.request, wrap);
        Ok(Answer::new(reader, asked.names, raised, inner.engine))
    }

    /// Renders the conversation that `chat` would answer.
    fn prompt(&self, py: Python<'_>, arguments: Bound<'_, PyDict>) -> PyResult<ChatPrompt> {
        let service = &self.0.get()?.service;
        let asked = requests::chat(arguments, service.defaults())?;
        waited(py, service.prompt(asked.request), &asked.names).map(ChatPrompt::from)
    }

    /// Scores documents by how well they answer a query.
    fn rank(&self, py: Python<'_>, arguments: Bound<'_, PyDict>) -> PyResult<Ranking> {
        let asked = requests::rerank(arguments)?;
        let (inner, _asking) = self.asked()?;
        let pending = inner.service.rank(asked.request);
        waited(py, pending, &asked.names).map(Ranking::from)
    }

    /// Reads an adapter, which requests can name as their model then.
    fn load_adapter(
        &self,
        py: Python<'_>,
        name: String,
        path: PathBuf,
        replaces: bool,
    ) -> PyResult<()> {
        let (inner, _asking) = self.asked()?;
        let pending = inner.service.load_adapter(AdapterRequest {
            name,
            path,
            model: None,
            replaces,
        });
        waited(py, pending, &[FieldName::new("name", "lora_name")])
    }

    /// Maximum number of tokens of all texts together, and of a single text if there are no others.
    #[pyo3(signature = (name=None))]
    fn n_ctx(&self, name: Option<&str>) -> PyResult<usize> {
        let n_ctx = self.0.get()?.service.n_ctx(name);
        n_ctx.ok_or_else(|| PyValueError::new_err("the model is not in memory"))
    }

    /// The number of texts that are being computed.
    #[pyo3(signature = (name=None))]
    fn n_running(&self, py: Python<'_>, name: Option<&str>) -> PyResult<usize> {
        let service = &self.0.get()?.service;
        Ok(py.detach(|| service.n_running(name)))
    }

    /// Embeds texts, given as tokens. The vectors stay in the memory that the engine wrote them to: float32 (n_texts,
    /// n_embd), (n_tokens, n_embd) over all texts for the kind `tokens`, or (n_texts, 1) for a reranker's `scores`.
    /// Only the first `dimensions` numbers of each are returned.
    #[pyo3(signature = (tokens, kind="texts", *, normalize=true, dimensions=None, model=None))]
    fn embed<'p>(
        &self,
        py: Python<'p>,
        tokens: Vec<Vec<u32>>,
        kind: &str,
        normalize: bool,
        dimensions: Option<usize>,
        model: Option<String>,
    ) -> PyResult<Bound<'p, PyArray2<f32>>> {
        let texts = tokens
            .into_iter()
            .map(|text| vec![PromptPart::Tokens(text)]);
        let mut request = EmbeddingRequest::new(texts.collect());
        request.model.name = model;
        request.dimensions = dimensions;
        request.kind = match kind {
            "tokens" => VectorKind::Tokens,
            "scores" => VectorKind::Scores,
            _ => VectorKind::Texts,
        };
        if !normalize {
            request.normalization = Normalization::None;
        }
        let (inner, _asking) = self.asked()?;
        let vectors = waited(py, inner.service.embed(request), &[])?;
        let n = vectors.floats.len() / vectors.length.max(1);
        PyArray1::from_vec(py, vectors.floats).reshape([n, vectors.length])
    }

    /// The model called `name`, or the first one: its vocabulary and its file.
    #[pyo3(signature = (name=None))]
    fn model(&self, py: Python<'_>, name: Option<&str>) -> PyResult<Model> {
        let service = &self.0.get()?.service;
        let model = py.detach(|| service.model(name));
        let model = model.ok_or_else(|| PyValueError::new_err("the model is not in memory"))?;
        Ok(Model::of(&model))
    }

    /// A text that is evaluated step by step, separately from requests. With `all_logits` it keeps the logits of each
    /// token.
    #[pyo3(signature = (name=None, all_logits=false))]
    fn context(&self, py: Python<'_>, name: Option<&str>, all_logits: bool) -> PyResult<Context> {
        Context::new(py, &self.0.get()?.service, name, all_logits)
    }

    /// The sampler of a text that `complete` would generate.
    #[pyo3(signature = (arguments, name=None))]
    fn sampler(
        &self,
        py: Python<'_>,
        arguments: Bound<'_, PyDict>,
        name: Option<&str>,
    ) -> PyResult<Sampler> {
        let service = &self.0.get()?.service;
        let asked = requests::sampling(arguments, service.defaults())?;
        let sampler = py.detach(|| service.sampler(name, asked.request));
        let sampler = sampler.map_err(|error| refused(&error.renamed(&asked.names)));
        Ok(Sampler::of(sampler?))
    }

    /// Ends all requests and the engine.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (inner, _asking) = self.asked()?;
        py.detach(|| inner.service.stop(Duration::ZERO));
        Ok(())
    }
}

impl Service {
    /// The service, for a request that its engine answers.
    fn asked(&self) -> PyResult<(&Inner, Asking)> {
        let inner = self.0.get()?;
        Ok((inner, inner.engine.ask()?))
    }
}

/// Calls `log`, which any thread may do.
fn logged(log: Option<Py<PyAny>>, engine: Engine) -> Log {
    let Some(log) = log else {
        return Arc::new(|_: &str| {});
    };
    Arc::new(move |line: &str| {
        let _inside = engine.enter();
        let _told = Python::try_attach(|py| {
            if let Err(error) = log.call1(py, (line,)) {
                error.write_unraisable(py, None);
            }
        });
    })
}

fn failed(error: &ServeError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// How long stopping may take.
const STOPPED: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(2);

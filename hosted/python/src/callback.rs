//! Python callbacks that change the logits before a token is sampled.

use crate::asked::Engine;
use numpy::{PyArray1, PyArrayMethods as _};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sluice::sequence::{ChoiceContext, ChoiceError, Choose, TokenReport};
use sluice_serve::WrapSampler;
use std::sync::{Arc, Mutex, PoisonError};

/// An exception from a callback, to be raised where the answer is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

/// Calls Python before the sampler.
pub(crate) struct Processor {
    engine: Engine,
    sampler: Box<dyn Choose + Send>,
    processors: Arc<[Py<PyAny>]>,
    stopping: Arc<[Py<PyAny>]>,
    is_stopped: bool,
    /// The token to return when a criterion stops the text.
    end: Option<u32>,
    /// Whether a callback has raised an exception, so that the text has failed.
    has_failed: bool,
    raised: Raised,
}

impl Raised {
    /// # Errors
    /// The exception, once.
    pub(crate) fn check(&self) -> PyResult<()> {
        let raised = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        raised.map_or(Ok(()), Err)
    }

    fn note(&self, error: PyErr) {
        let mut raised = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        raised.get_or_insert(error);
    }
}

impl Processor {
    /// Wraps a request's sampler with these callbacks; `None` if there are no callbacks.
    pub(crate) fn wrap(
        processors: Vec<Py<PyAny>>,
        stopping: Vec<Py<PyAny>>,
        raised: &Raised,
        engine: Engine,
    ) -> Option<WrapSampler> {
        if processors.is_empty() && stopping.is_empty() {
            return None;
        }
        let (processors, stopping): (Arc<[_]>, Arc<[_]>) = (processors.into(), stopping.into());
        let raised = raised.clone();
        Some(Arc::new(move |sampler, model: &sluice::Model| {
            let tokenizer = model.tokenizer();
            Box::new(Self {
                engine,
                end: tokenizer.eos().or(tokenizer.eot()),
                sampler,
                processors: Arc::clone(&processors),
                stopping: Arc::clone(&stopping),
                is_stopped: false,
                has_failed: false,
                raised: raised.clone(),
            })
        }))
    }

    /// The logits after the callbacks, and whether the text has to end.
    fn processed(
        &self,
        py: Python<'_>,
        logits: &[f32],
        choice: &ChoiceContext<'_>,
    ) -> PyResult<(Vec<f32>, bool)> {
        let history = PyArray1::from_slice(py, choice.history);
        let mut scores = PyArray1::from_slice(py, logits).into_any();
        for processor in self.processors.iter() {
            scores = processor.bind(py).call1((&history, scores))?;
        }
        let mut stops = false;
        for criterion in self.stopping.iter() {
            stops |= criterion.bind(py).call1((&history, &scores))?.is_truthy()?;
        }
        let numpy = py.import("numpy")?;
        let scores = numpy.call_method1("ascontiguousarray", (scores, "float32"))?;
        let scores = scores
            .cast_into::<PyArray1<f32>>()
            .map_err(PyErr::from)?
            .to_vec()?;
        if scores.len() != logits.len() {
            let (found, expected) = (scores.len(), logits.len());
            let message =
                format!("a logits processor returned {found} logits, expected {expected}");
            return Err(PyValueError::new_err(message));
        }
        Ok((scores, stops))
    }
}

impl Choose for Processor {
    fn begin(&mut self) {
        self.sampler.begin();
        self.is_stopped = false;
    }

    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        if self.has_failed {
            return Err(ChoiceError::new(std::io::Error::other(
                "a callback raised an exception",
            )));
        }
        let _inside = self.engine.enter();
        let processed = Python::try_attach(|py| self.processed(py, logits, choice));
        match processed {
            Some(Ok((scores, stops))) => {
                self.is_stopped = stops;
                match self.end {
                    Some(end) if stops => Ok(end),
                    _ => self.sampler.choose(&scores, choice),
                }
            }
            Some(Err(error)) => {
                let message = error.to_string();
                self.has_failed = true;
                self.raised.note(error);
                Err(ChoiceError::new(std::io::Error::other(message)))
            }
            None => Err(ChoiceError::new(std::io::Error::other(
                "the interpreter has shut down",
            ))),
        }
    }

    fn is_complete(&self) -> bool {
        self.is_stopped || self.sampler.is_complete()
    }

    fn report(&self) -> Option<&TokenReport> {
        // An end token due to a criterion was not sampled, so it has no report.
        self.sampler.report().filter(|_| !self.is_stopped)
    }
}

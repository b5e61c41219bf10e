//! One text, evaluated and sampled step by step.

use crate::fork::OfProcess;
use numpy::{PyArray1, PyArrayMethods as _, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3::types::PyBytes;
use sluice::Session;
use sluice::core::engine::{BatchEntry, Wants};
use sluice::core::state::StateError;
use sluice::sequence::{Choice, Choose};
use sluice::session::StepHooks;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Adds the classes of this file.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Context>()?;
    module.add_class::<Sampler>()
}

/// A text of a model: tokens whose keys and values are in memory, and the logits behind the last of them.
///
/// A call from another thread waits until it is free.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Context(OfProcess<Mutex<Text>>);

struct Text {
    session: Session,
    tokens: Vec<u32>,
    /// (rows, n_vocab): of each token, or of the last.
    logits: Vec<f32>,
    n_vocab: usize,
    keeps_all: bool,
}

/// Chooses tokens as a request's sampler does.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Sampler(Mutex<Box<dyn Choose + Send>>);

impl Sampler {
    pub(crate) fn of(sampler: Box<dyn Choose + Send>) -> Self {
        Self(Mutex::new(sampler))
    }
}

impl Context {
    pub(crate) fn new(
        py: Python<'_>,
        service: &sluice_serve::Service,
        name: Option<&str>,
        all_logits: bool,
    ) -> PyResult<Self> {
        let n_outputs = if all_logits { N_OUTPUTS } else { 1 };
        let session = py.detach(|| service.session(name, n_outputs));
        let session = session.map_err(PyRuntimeError::new_err)?;
        if session.model().embeds() {
            let message = "the model is an encoder: it gives embeddings, no logits";
            return Err(PyValueError::new_err(message));
        }
        let n_vocab = session.model().tokenizer().n_vocab() as usize;
        Ok(Self(OfProcess::new(Mutex::new(Text {
            session,
            tokens: Vec::new(),
            logits: Vec::new(),
            n_vocab,
            keeps_all: all_logits,
        }))))
    }

    /// The text, for one thread at a time; others of Python run while it is waited for.
    fn text(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Text>> {
        let locked = self.0.get()?.lock_py_attached(py);
        Ok(locked.unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Context {
    /// The tokens so far: uint32 (n_tokens).
    #[getter]
    fn tokens<'p>(&self, py: Python<'p>) -> PyResult<Bound<'p, PyArray1<u32>>> {
        Ok(PyArray1::from_slice(py, &self.text(py)?.tokens))
    }

    /// How many they are.
    #[getter]
    fn n_tokens(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.text(py)?.tokens.len())
    }

    /// Tokens that fit.
    #[getter]
    fn n_ctx(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.text(py)?.session.limits().n_ctx)
    }

    /// Reads tokens behind those that are there.
    fn eval(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<()> {
        let mut text = self.text(py)?;
        text.check(&tokens)?;
        if text.keeps_all {
            let n = text.tokens.len() * text.n_vocab;
            text.logits.truncate(n);
        } else if !tokens.is_empty() {
            text.logits.clear();
        }
        let mut left = &tokens[..];
        while !left.is_empty() {
            let text = &mut *text;
            let (now, later) = left.split_at(left.len().min(text.chunk()));
            py.detach(|| text.step(now, later.is_empty()))
                .map_err(PyRuntimeError::new_err)?;
            left = later;
            py.check_signals()?;
        }
        Ok(())
    }

    /// Logits behind the last token: float32 (n_vocab); of each token (n_tokens, n_vocab), where all are kept and
    /// `all` asks for them. A copy.
    #[pyo3(signature = (all=false))]
    fn logits<'p>(&self, py: Python<'p>, all: bool) -> PyResult<Bound<'p, PyAny>> {
        let text = self.text(py)?;
        let n = text.n_vocab;
        if all {
            if !text.keeps_all {
                return Err(PyValueError::new_err(
                    "only the last logits are kept (logits_all)",
                ));
            }
            let rows = PyArray1::from_slice(py, &text.logits);
            return Ok(rows.reshape([text.logits.len() / n, n])?.into_any());
        }
        let first = text.logits.len().checked_sub(n);
        let first = first.ok_or_else(|| PyRuntimeError::new_err("no token was evaluated"))?;
        Ok(PyArray1::from_slice(py, &text.logits[first..]).into_any())
    }

    /// Chooses the token behind the text, from its logits or from `logits` (n_vocab) instead. It does not read it.
    #[pyo3(signature = (sampler, logits=None))]
    fn sample(
        &self,
        py: Python<'_>,
        sampler: &Sampler,
        logits: Option<PyReadonlyArray1<'_, f32>>,
    ) -> PyResult<u32> {
        let text = self.text(py)?;
        let first = text.logits.len().checked_sub(text.n_vocab);
        let first = first.ok_or_else(|| PyRuntimeError::new_err("no token was evaluated"))?;
        let given = logits
            .as_ref()
            .map(|logits| logits.as_slice())
            .transpose()?;
        let logits = given.unwrap_or(&text.logits[first..]);
        if logits.len() != text.n_vocab {
            let (found, n_vocab) = (logits.len(), text.n_vocab);
            let message = format!("{found} logits, expected {n_vocab}");
            return Err(PyValueError::new_err(message));
        }
        let choice = Choice {
            history: &text.tokens,
            position: u32::try_from(text.tokens.len()).unwrap_or(u32::MAX),
            number: 0,
            hidden: None,
        };
        let mut sampler = sampler
            .0
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner);
        let sampler = &mut *sampler;
        let chosen = py.detach(|| sampler.choose(logits, &choice));
        chosen.map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Keeps the first `len` tokens, or fewer where the model's state behind them is not kept; returns how many.
    fn truncate(&self, py: Python<'_>, len: usize) -> PyResult<usize> {
        let mut text = self.text(py)?;
        if len > text.tokens.len() {
            let n = text.tokens.len();
            return Err(PyIndexError::new_err(format!("the text has {n} tokens")));
        }
        text.truncate(len).map_err(PyRuntimeError::new_err)
    }

    /// The text as bytes: its tokens, keys and values, and logits.
    fn save<'p>(&self, py: Python<'p>) -> PyResult<Bound<'p, PyBytes>> {
        let mut text = self.text(py)?;
        let text = &mut *text;
        let saved = py.detach(|| text.save()).map_err(PyRuntimeError::new_err)?;
        Ok(PyBytes::new(py, &saved))
    }

    /// Goes on from a text that `save` made bytes of, with the same model and adapters.
    fn restore(&self, py: Python<'_>, saved: &[u8]) -> PyResult<()> {
        let mut text = self.text(py)?;
        let text = &mut *text;
        py.detach(|| text.restore(saved))
            .map_err(PyValueError::new_err)
    }
}

impl Text {
    /// Tokens of a step.
    fn chunk(&self) -> usize {
        let limits = self.session.limits();
        if self.keeps_all {
            limits.n_outputs.min(limits.n_batch)
        } else {
            limits.n_batch
        }
    }

    fn check(&self, tokens: &[u32]) -> PyResult<()> {
        let n_ctx = self.session.limits().n_ctx;
        let n_tokens = self.tokens.len() + tokens.len();
        if n_tokens > n_ctx {
            let message = format!("the text would have {n_tokens} tokens, the context has {n_ctx}");
            return Err(PyValueError::new_err(message));
        }
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.n_vocab) {
            let n_vocab = self.n_vocab;
            let message = format!("token {token} is outside the vocabulary of {n_vocab}");
            return Err(PyValueError::new_err(message));
        }
        Ok(())
    }

    fn step(&mut self, tokens: &[u32], is_last: bool) -> Result<(), String> {
        let adapter = self.session.adapter().map(|_| 0);
        let n = tokens.len();
        let entry = |(i, &token): (usize, &u32)| {
            let position = u32::try_from(self.tokens.len() + i).unwrap_or(u32::MAX);
            let wants = if self.keeps_all || (is_last && i + 1 == n) {
                Wants::Logits
            } else {
                Wants::Nothing
            };
            BatchEntry {
                adapter,
                ..BatchEntry::new(token, 0, position, wants)
            }
        };
        let batch: Vec<_> = tokens.iter().enumerate().map(entry).collect();
        let logits = &mut self.logits;
        let ran = self
            .session
            .run(&batch, &StepHooks::default(), |outputs, _| {
                for i in 0..n {
                    logits.extend_from_slice(outputs.logits(i).unwrap_or_default());
                }
            });
        ran.map_err(|error| error.to_string())?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    fn truncate(&mut self, len: usize) -> Result<usize, String> {
        let kept = self.session.with_state(|state| match state.rewind(0, len) {
            Err(StateError::CannotRewind { nearest, .. }) => {
                state.rewind(0, nearest).map(|()| nearest)
            }
            result => result.map(|()| len),
        });
        let kept = kept.map_err(|error| error.to_string())?;
        if kept < self.tokens.len() {
            let rows = if self.keeps_all { kept } else { 0 };
            self.logits.truncate(rows * self.n_vocab);
        }
        self.tokens.truncate(kept);
        Ok(kept)
    }

    fn fingerprint(&self) -> u64 {
        let adapter = self
            .session
            .adapter()
            .map_or(0, |blend| blend.fingerprint());
        self.session.model().fingerprint() ^ adapter
    }

    fn save(&mut self) -> Result<Vec<u8>, String> {
        let state = self.session.state();
        let (n_tokens, n_logits) = (self.tokens.len(), self.logits.len());
        let mut saved = Vec::new();
        saved.extend_from_slice(MAGIC);
        saved.extend_from_slice(&(n_tokens as u64).to_le_bytes());
        saved.extend_from_slice(&(n_logits as u64).to_le_bytes());
        saved.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        saved.extend(self.logits.iter().flat_map(|logit| logit.to_le_bytes()));
        let head = saved.len();
        saved.resize(head + state.saved_bytes(0), 0);
        let written = state.save(0, self.fingerprint(), &mut saved[head..]);
        written.map_err(|error| error.to_string())?;
        Ok(saved)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), String> {
        let parts = parsed(saved).ok_or("these are not the bytes of a saved text")?;
        let (tokens, logits, state_bytes) = parts;
        if logits.len() % self.n_vocab != 0 {
            return Err("the text was saved from another model".to_owned());
        }
        let is_all = logits.len() == tokens.len() * self.n_vocab;
        if self.keeps_all && !is_all {
            return Err("the text was saved without the logits of each token".to_owned());
        }
        let fingerprint = self.fingerprint();
        self.truncate(0)?;
        let restored = self
            .session
            .with_state(|state| state.restore(0, fingerprint, state_bytes));
        restored.map_err(|error| error.to_string())?;
        let is_known = |token: &u32| (*token as usize) < self.n_vocab;
        if self.session.state().len(0) != tokens.len() || !tokens.iter().all(is_known) {
            self.truncate(0)?;
            return Err("the tokens are not those of the saved text".to_owned());
        }
        let first = if self.keeps_all {
            0
        } else {
            logits.len().saturating_sub(self.n_vocab)
        };
        self.tokens = tokens;
        self.logits = logits[first..].to_vec();
        Ok(())
    }
}

/// Tokens, logits, and the state of a saved text.
fn parsed(saved: &[u8]) -> Option<(Vec<u32>, Vec<f32>, &[u8])> {
    let rest = saved.strip_prefix(MAGIC)?;
    let (n_tokens, rest) = rest.split_first_chunk()?;
    let (n_logits, rest) = rest.split_first_chunk()?;
    let bytes = |n: &[u8; 8]| usize::try_from(u64::from_le_bytes(*n)).ok()?.checked_mul(4);
    let (tokens, rest) = rest.split_at_checked(bytes(n_tokens)?)?;
    let (logits, state) = rest.split_at_checked(bytes(n_logits)?)?;
    let tokens = tokens
        .as_chunks()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word));
    let logits = logits
        .as_chunks()
        .0
        .iter()
        .map(|word| f32::from_le_bytes(*word));
    Some((tokens.collect(), logits.collect(), state))
}

/// What a saved text begins with, and the version of what follows.
const MAGIC: &[u8] = b"sluice text 1\0";

/// Rows of logits of a step where all are kept.
const N_OUTPUTS: usize = 64;

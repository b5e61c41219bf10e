//! One text, evaluated and sampled step by step.

use crate::fork::OfProcess;
use crate::logits::Logits;
use crate::making::made;
use numpy::{PyArray1, PyArrayMethods as _, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3::types::PyBytes;
use sluice::Session;
use sluice::adapter::AdapterBlend;
use sluice::core::engine::{BatchEntry, Wants};
use sluice::core::state::StateError;
use sluice::sequence::{ChoiceContext, Choose};
use sluice::session::StepHooks;
use sluice_serve::ServeError;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Adds this file's classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Context>()?;
    module.add_class::<Sampler>()
}

/// A text of a model: tokens, their keys and values in memory, and logits for the next token.
///
/// Calls from other threads wait until it is free.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Context(OfProcess<Mutex<Text>>);

struct Text {
    session: Session,
    tokens: Vec<u32>,
    logits: Logits,
    n_vocab: usize,
}

/// Samples tokens as a request's sampler does.
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
        let refused = |error: ServeError| PyRuntimeError::new_err(error.to_string());
        let making = service.session(name, n_outputs).map_err(refused)?;
        let session = made(py, making, |_| ())?.map_err(refused)?;
        if session.model().embeds() {
            let message = "the model is an encoder: it computes embeddings, not logits";
            return Err(PyValueError::new_err(message));
        }
        let n_vocab = session.model().tokenizer().n_vocab() as usize;
        Ok(Self(OfProcess::new(Mutex::new(Text {
            session,
            tokens: Vec::new(),
            logits: Logits::new(py, n_vocab, all_logits),
            n_vocab,
        }))))
    }

    /// The text, for one thread at a time; other Python threads run while this one waits.
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

    /// The number of tokens.
    #[getter]
    fn n_tokens(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.text(py)?.tokens.len())
    }

    /// Maximum number of tokens.
    #[getter]
    fn n_ctx(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.text(py)?.session.limits().n_ctx)
    }

    /// Appends tokens and evaluates them.
    fn eval(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<()> {
        let mut text = self.text(py)?;
        text.check(&tokens)?;
        {
            let text = &mut *text;
            let (session, read) = (&mut text.session, &mut text.tokens);
            let n_tokens = read.len() + tokens.len();
            py.detach(|| fit(session, read, n_tokens))
                .map_err(PyRuntimeError::new_err)?;
        }
        let mut left = &tokens[..];
        while !left.is_empty() {
            let text = &mut *text;
            let (now, later) = left.split_at(left.len().min(text.chunk()));
            let n_rows = text.logits.rows_of(now.len(), later.is_empty());
            let room = text.logits.room(py, text.tokens.len(), n_rows)?;
            let mut room = room.bind(py).try_readwrite()?;
            let (rows, session) = (room.as_slice_mut()?, &mut text.session);
            let read = &mut text.tokens;
            py.detach(|| step(session, read, now, rows))
                .map_err(PyRuntimeError::new_err)?;
            text.logits.written(n_rows);
            left = later;
            py.check_signals()?;
        }
        Ok(())
    }

    /// The logits after the last token: float32 (n_vocab); or, with `all`, after each token (n_tokens, n_vocab), if all
    /// are kept. The array is not a copy: `sample` sees changes to it.
    #[pyo3(signature = (all=false))]
    fn logits<'p>(&self, py: Python<'p>, all: bool) -> PyResult<Bound<'p, PyAny>> {
        let text = self.text(py)?;
        if all {
            return text.logits.all(py, text.tokens.len());
        }
        Ok(text.logits.last(py, text.tokens.len())?.into_any())
    }

    /// Samples the next token from the text's logits, or from `logits` (n_vocab). Does not evaluate it.
    #[pyo3(signature = (sampler, logits=None))]
    fn sample(
        &self,
        py: Python<'_>,
        sampler: &Sampler,
        logits: Option<PyReadonlyArray1<'_, f32>>,
    ) -> PyResult<u32> {
        let text = self.text(py)?;
        let logits = match logits {
            Some(logits) => logits,
            None => text.logits.last(py, text.tokens.len())?.try_readonly()?,
        };
        let logits = logits.as_slice()?;
        if logits.len() != text.n_vocab {
            let (found, n_vocab) = (logits.len(), text.n_vocab);
            let message = format!("{found} logits, expected {n_vocab}");
            return Err(PyValueError::new_err(message));
        }
        let choice = ChoiceContext {
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

    /// Keeps the first `len` tokens, or fewer if the model's state at that point was not kept; returns the number kept.
    fn truncate(&self, py: Python<'_>, len: usize) -> PyResult<usize> {
        let mut text = self.text(py)?;
        if len > text.tokens.len() {
            let n = text.tokens.len();
            return Err(PyIndexError::new_err(format!("the text has {n} tokens")));
        }
        text.truncate(py, len).map_err(PyRuntimeError::new_err)
    }

    /// The text as bytes: its tokens, keys, values and logits.
    fn save<'p>(&self, py: Python<'p>) -> PyResult<Bound<'p, PyBytes>> {
        let mut text = self.text(py)?;
        let text = &mut *text;
        let rows = text.logits.kept(py, text.tokens.len())?.try_readonly()?;
        let (rows, tokens, session) = (rows.as_slice()?, &text.tokens, &mut text.session);
        let saved = py.detach(|| saved(session, tokens, rows));
        Ok(PyBytes::new(py, &saved.map_err(PyRuntimeError::new_err)?))
    }

    /// Restores a text from the bytes that `save` returned, for the same model and adapters.
    fn restore(&self, py: Python<'_>, saved: &[u8]) -> PyResult<()> {
        self.text(py)?.restore(py, saved)
    }
}

impl Text {
    /// Number of tokens per step.
    fn chunk(&self) -> usize {
        let limits = self.session.limits();
        if self.logits.keeps_all() {
            limits.n_outputs.min(limits.n_batch)
        } else {
            limits.n_batch
        }
    }

    fn check(&self, tokens: &[u32]) -> PyResult<()> {
        let n_ctx = self.session.limits().n_ctx;
        let n_tokens = self.tokens.len() + tokens.len();
        if n_tokens > n_ctx {
            let message =
                format!("the text would have {n_tokens} tokens, but the context has {n_ctx}");
            return Err(PyValueError::new_err(message));
        }
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.n_vocab) {
            let n_vocab = self.n_vocab;
            let message = format!("token {token} is outside the vocabulary of {n_vocab}");
            return Err(PyValueError::new_err(message));
        }
        Ok(())
    }

    fn truncate(&mut self, py: Python<'_>, len: usize) -> Result<usize, String> {
        let kept = self.session.with_state(|state| match state.rewind(0, len) {
            Err(StateError::CannotRewind { nearest, .. }) => {
                state.rewind(0, nearest).map(|()| nearest)
            }
            result => result.map(|()| len),
        });
        let kept = kept.map_err(|error| error.to_string())?;
        if kept < self.tokens.len() {
            self.logits.forget(py);
        }
        self.tokens.truncate(kept);
        Ok(kept)
    }

    fn restore(&mut self, py: Python<'_>, saved: &[u8]) -> PyResult<()> {
        let refuse = |message: &str| PyValueError::new_err(message.to_owned());
        let parts = parsed(saved).ok_or_else(|| refuse("not the bytes of a saved text"))?;
        let (tokens, logits, bytes) = parts;
        if !logits.len().is_multiple_of(self.n_vocab) {
            return Err(refuse("the text was saved with another model"));
        }
        let n_rows = logits.len() / self.n_vocab;
        if self.logits.keeps_all() && n_rows != tokens.len() {
            return Err(refuse(
                "the text was saved without the logits of each token",
            ));
        }
        self.truncate(py, 0).map_err(PyRuntimeError::new_err)?;
        let session = &mut self.session;
        let adapter = session.adapter().map(AdapterBlend::identity);
        let restored = py.detach(|| session.restore_state(0, adapter, bytes));
        restored.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let is_known = |token: &u32| (*token as usize) < self.n_vocab;
        if self.session.state().len(0) != tokens.len() || !tokens.iter().all(is_known) {
            self.truncate(py, 0).map_err(PyRuntimeError::new_err)?;
            return Err(refuse("the tokens differ from the saved text's"));
        }
        let n_kept = self.logits.rows_of(n_rows, n_rows > 0);
        let rows = &logits[logits.len() - n_kept * self.n_vocab..];
        let room = self.logits.room(py, 0, n_kept)?;
        let mut room = room.bind(py).try_readwrite()?;
        room.as_slice_mut()?.copy_from_slice(rows);
        self.logits.written(n_kept);
        self.tokens = tokens;
        Ok(())
    }
}

/// Prepares for a text of `n_tokens`: one computed with other rotary divisors is read again, without its logits, which
/// are known.
fn fit(session: &mut Session, read: &mut Vec<u32>, n_tokens: usize) -> Result<(), String> {
    if session
        .fit_slot(0, n_tokens)
        .map_err(|error| error.to_string())?
    {
        let all = core::mem::take(read);
        for part in all.chunks(session.limits().n_batch) {
            step(session, read, part, &mut [])?;
        }
    }
    Ok(())
}

/// Reads `tokens` after the tokens in `read`, and writes the logits of the last ones into `rows`.
fn step(
    session: &mut Session,
    read: &mut Vec<u32>,
    tokens: &[u32],
    rows: &mut [f32],
) -> Result<(), String> {
    let adapter = session.adapter().map(|_| 0);
    let n_vocab = session.model().tokenizer().n_vocab() as usize;
    let n_silent = tokens.len() - rows.len() / n_vocab;
    let entry = |(i, &token): (usize, &u32)| {
        let position = u32::try_from(read.len() + i).unwrap_or(u32::MAX);
        let wants = if i < n_silent {
            Wants::Nothing
        } else {
            Wants::Logits
        };
        BatchEntry {
            adapter,
            ..BatchEntry::new(token, 0, position, wants)
        }
    };
    let batch: Vec<_> = tokens.iter().enumerate().map(entry).collect();
    let ran = session.run(&batch, &StepHooks::default(), |outputs, _| {
        for (i, row) in rows.chunks_exact_mut(n_vocab).enumerate() {
            row.copy_from_slice(outputs.logits(n_silent + i).unwrap_or_default());
        }
    });
    ran.map_err(|error| error.to_string())?;
    read.extend_from_slice(tokens);
    Ok(())
}

/// The text as bytes. The session is borrowed exclusively, because only one thread may use it at a time.
fn saved(session: &mut Session, tokens: &[u32], logits: &[f32]) -> Result<Vec<u8>, String> {
    let adapter = session.adapter().map(AdapterBlend::identity);
    let identity = session.identity_at(0, adapter);
    let state = session.state();
    let mut saved = Vec::new();
    saved.extend_from_slice(MAGIC);
    saved.extend_from_slice(&(tokens.len() as u64).to_le_bytes());
    saved.extend_from_slice(&(logits.len() as u64).to_le_bytes());
    saved.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    saved.extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
    let head = saved.len();
    saved.resize(head + state.saved_bytes(0), 0);
    let written = state.save(0, &identity, &mut saved[head..]);
    written.map_err(|error| error.to_string())?;
    Ok(saved)
}

/// The tokens, logits and state of a saved text.
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

/// The magic number of a saved text, with the version of the format.
const MAGIC: &[u8] = b"sluice text 1\0";

/// Maximum number of logits rows per step if all are kept.
const N_OUTPUTS: usize = 64;

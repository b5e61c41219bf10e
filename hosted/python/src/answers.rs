//! Answers to requests for text, as typed events.

use crate::asked::Engine;
use crate::callback::Raised;
use crate::fork::OfProcess;
use crate::making::SIGNALS;
use core::time::Duration;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use sluice::core::sampler::TokenLogProbability;
use sluice::sequence::TokenReport;
use sluice_serve::api::{
    AnswerEvent, AnswerPiece, ApiError, ErrorKind, FieldName, Reason, token_bytes,
};
use sluice_serve::engine::Score;
use sluice_serve::{AnswerPart, AnswerParts, AnswerReader, Pending, api, engine};
use sluice_text::assistant;
use std::sync::{Arc, OnceLock};

/// Adds this file's classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Answer>()?;
    module.add_class::<Event>()?;
    module.add_class::<Delta>()?;
    module.add_class::<Likely>()?;
    module.add_class::<Report>()?;
    module.add_class::<Timings>()?;
    module.add_class::<ChatPrompt>()?;
    module.add_class::<Ranking>()?;
    module.add("RefusedError", module.py().get_type::<RefusedError>())
}

create_exception!(
    sluice._native,
    RefusedError,
    PyException,
    "A request was refused, or failed: a message, the kind of error, and the argument that is wrong or None."
);

/// The answer to a request for text, as it is generated. Dropping it cancels the request.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Answer {
    reader: OfProcess<AnswerReader>,
    engine: Engine,
    shared: Arc<Shared>,
}

/// What turns the parts of an answer into Python's events.
struct Shared {
    raised: Raised,
    /// The names of the request's fields.
    names: Vec<FieldName>,
    /// Known from the first part on.
    model: OnceLock<sluice::model::ModelSource>,
}

/// An event of an answer. Texts are numbered from 0 over all prompts.
#[pyclass(frozen, from_py_object, module = "sluice._native")]
#[derive(Clone)]
pub(crate) enum Event {
    /// What is known at the start.
    Start {
        name: String,
        fingerprint: String,
        created: u64,
        seed: u64,
        /// The number of likely tokens that are reported with each token.
        n_probs: Option<usize>,
        /// The texts of the prompts, if they were asked for.
        prompts: Vec<String>,
        /// The number of texts for each prompt.
        n: usize,
    },
    /// The tokens of a text's prompt. The first one has no log-probability.
    Scores { at: usize, reports: Vec<Report> },
    /// A part of a text's prompt has been read.
    Progress {
        at: usize,
        total: usize,
        cached: usize,
        processed: usize,
        time_ms: f64,
    },
    /// A token, with the text that it completes. One that `ends` the text is not part of it.
    Piece {
        at: usize,
        token: u32,
        text: String,
        deltas: Vec<Delta>,
        report: Option<Report>,
        timings: Option<Timings>,
        ends: bool,
    },
    /// The end of a text: `eos`, `stop`, `length`, `full` or `late`.
    End {
        at: usize,
        reason: String,
        stop: Option<String>,
        deltas: Vec<Delta>,
        timings: Timings,
    },
    /// The resources used, after the last text has ended.
    Total {
        n_prompt: usize,
        n_cached: usize,
        n_predicted: usize,
        timings: Timings,
    },
}

/// What a token adds to the answer of a chat.
#[pyclass(frozen, from_py_object, module = "sluice._native")]
#[derive(Clone)]
pub(crate) enum Delta {
    Content {
        text: String,
    },
    Reasoning {
        text: String,
    },
    /// A call of a function begins.
    Call {
        index: usize,
        id: String,
        name: String,
    },
    /// A part of a call's arguments, which are JSON.
    Arguments {
        index: usize,
        text: String,
    },
}

/// A token and its natural log-probability.
#[pyclass(frozen, get_all, from_py_object, module = "sluice._native")]
#[derive(Clone)]
pub(crate) struct Likely {
    id: u32,
    logprob: Option<f64>,
    text: String,
    bytes: Vec<u8>,
    is_control: bool,
}

/// A token, its rank if that is known, and the likeliest ones in its place.
#[pyclass(frozen, get_all, from_py_object, module = "sluice._native")]
#[derive(Clone)]
pub(crate) struct Report {
    chosen: Likely,
    rank: Option<usize>,
    top: Vec<Likely>,
}

/// Times and counts of a text.
#[pyclass(frozen, get_all, from_py_object, module = "sluice._native")]
#[derive(Clone)]
pub(crate) struct Timings {
    n_cached: usize,
    n_prompt: usize,
    prompt_ms: f64,
    n_predicted: usize,
    predicted_ms: f64,
    queued_ms: f64,
    n_preempted: usize,
    n_drafted: usize,
    n_accepted: usize,
}

/// A conversation as the model reads it.
#[pyclass(frozen, get_all, module = "sluice._native")]
pub(crate) struct ChatPrompt {
    text: String,
    tokens: Vec<u32>,
    /// The text that ends an answer, if no token does.
    stop: Option<String>,
}

/// The scores of documents, and their order, best first.
#[pyclass(frozen, get_all, module = "sluice._native")]
pub(crate) struct Ranking {
    order: Vec<usize>,
    scores: Vec<f32>,
    name: String,
    n_tokens: usize,
}

impl Answer {
    pub(crate) fn new(
        reader: AnswerReader,
        names: Vec<FieldName>,
        raised: Raised,
        engine: Engine,
    ) -> Self {
        Self {
            reader: OfProcess::new(reader),
            engine,
            shared: Arc::new(Shared {
                raised,
                names,
                model: OnceLock::new(),
            }),
        }
    }
}

#[pymethods]
impl Answer {
    /// Waits for the next events, or with `all` for all that are left. There are none after the end. Other threads and
    /// signal handlers run meanwhile.
    #[pyo3(signature = (all=false))]
    fn read(&self, py: Python<'_>, all: bool) -> PyResult<Vec<Event>> {
        let reader = self.reader.get()?;
        let _asking = self.engine.ask()?;
        loop {
            if let Some(parts) = py.detach(|| reader.read(all, SIGNALS)) {
                return self.shared.events(parts);
            }
            py.check_signals()?;
        }
    }

    /// As `read`, but calls `then` with the events and None, or with an empty list and an exception, from another
    /// thread.
    #[pyo3(signature = (then, all=false))]
    fn on_read(&self, then: Py<PyAny>, all: bool) -> PyResult<()> {
        let shared = Arc::clone(&self.shared);
        let asking = self.engine.ask()?;
        self.reader.get()?.when_read(all, move |parts| {
            drop(asking);
            // If the interpreter has ended, the events are dropped.
            let _called = Python::try_attach(|py| {
                let called = match shared.events(parts) {
                    Ok(events) => then.call1(py, (events, py.None())),
                    Err(error) => then.call1(py, (Vec::<Event>::new(), error)),
                };
                if let Err(error) = called {
                    error.write_unraisable(py, None);
                }
            });
        });
        Ok(())
    }
}

impl Shared {
    /// # Errors
    /// The exception of a callback, or else the error of the request.
    fn events(&self, parts: AnswerParts) -> PyResult<Vec<Event>> {
        let is_over = |parts: &Vec<_>| matches!(parts.last(), None | Some(AnswerPart::Total(_)));
        if parts.as_ref().map_or(true, is_over) {
            self.raised.check()?;
        }
        let parts = parts.map_err(|error| refused(&error.renamed(&self.names)))?;
        Ok(parts.into_iter().map(|part| self.event(part)).collect())
    }

    fn event(&self, part: AnswerPart) -> Event {
        match part {
            AnswerPart::Start(start) => {
                let start = *start;
                let _model = self.model.get_or_init(|| start.model);
                Event::Start {
                    name: start.name,
                    fingerprint: start.fingerprint,
                    created: start.stream.created,
                    seed: start.sampling.config.seed,
                    n_probs: start.sampling.n_probs,
                    prompts: start
                        .prompts
                        .into_iter()
                        .map(|prompt| prompt.text)
                        .collect(),
                    n: start.n,
                }
            }
            AnswerPart::Event(event) => self.text_event(event),
            AnswerPart::Total(total) => Event::Total {
                n_prompt: total.usage.n_prompt,
                n_cached: total.usage.n_cached,
                n_predicted: total.usage.n_predicted,
                timings: Timings::of(&total.timings),
            },
        }
    }

    fn text_event(&self, event: AnswerEvent) -> Event {
        match event {
            AnswerEvent::Scores { at, tokens, scores } => Event::Scores {
                at,
                reports: self.scores(&tokens, &scores),
            },
            AnswerEvent::Progress { at, progress } => Event::Progress {
                at,
                total: progress.total,
                cached: progress.cached,
                processed: progress.processed,
                time_ms: millis(progress.time),
            },
            AnswerEvent::Piece { at, piece } => self.piece(at, piece, false),
            AnswerEvent::EndToken { at, piece } => self.piece(at, piece, true),
            AnswerEvent::End { at, end } => Event::End {
                at,
                reason: match &end.reason {
                    Reason::EndOfText => "eos",
                    Reason::Stop(_) => "stop",
                    Reason::Length => "length",
                    Reason::ContextFull => "full",
                    Reason::Late => "late",
                }
                .into(),
                stop: match end.reason {
                    Reason::Stop(text) => Some(text),
                    _ => None,
                },
                deltas: end.deltas.into_iter().map(Delta::from).collect(),
                timings: Timings::of(&end.timings),
            },
        }
    }

    fn piece(&self, at: usize, piece: AnswerPiece, ends: bool) -> Event {
        Event::Piece {
            at,
            token: piece.token,
            text: piece.text,
            deltas: piece.deltas.into_iter().map(Delta::from).collect(),
            report: piece.report.map(|report| self.report(&report, None)),
            timings: piece.timings.as_ref().map(Timings::of),
            ends,
        }
    }

    fn scores(&self, tokens: &[u32], scores: &[Score]) -> Vec<Report> {
        let first = tokens.first().map(|&id| Report {
            chosen: self.likely(id, None),
            rank: None,
            top: Vec::new(),
        });
        let scores = scores.iter();
        let others = scores.map(|score| self.report(&score.report, Some(score.rank)));
        first.into_iter().chain(others).collect()
    }

    fn report(&self, report: &TokenReport, rank: Option<usize>) -> Report {
        let likely =
            |token: &TokenLogProbability| self.likely(token.id, Some(token.log_probability));
        Report {
            chosen: likely(&report.chosen),
            rank,
            top: report.top.iter().map(likely).collect(),
        }
    }

    fn likely(&self, id: u32, logprob: Option<f32>) -> Likely {
        let model = self.model.get().expect("an answer starts with its model");
        let bytes = token_bytes(model, id);
        Likely {
            id,
            // Impossible tokens get the value that OpenAI uses.
            logprob: logprob.map(|logprob| logprob.max(-9999.0).into()),
            text: String::from_utf8_lossy(&bytes).into_owned(),
            is_control: model.tokenizer().is_control(id),
            bytes,
        }
    }
}

impl From<assistant::Delta> for Delta {
    fn from(delta: assistant::Delta) -> Self {
        match delta {
            assistant::Delta::Content(text) => Self::Content { text },
            assistant::Delta::Reasoning(text) => Self::Reasoning { text },
            assistant::Delta::CallBegin { index, id, name } => Self::Call { index, id, name },
            assistant::Delta::CallArguments { index, text } => Self::Arguments { index, text },
        }
    }
}

impl From<api::ChatPrompt> for ChatPrompt {
    fn from(prompt: api::ChatPrompt) -> Self {
        let api::ChatPrompt { text, tokens, stop } = prompt;
        Self { text, tokens, stop }
    }
}

impl From<api::Ranking> for Ranking {
    fn from(ranking: api::Ranking) -> Self {
        Self {
            order: ranking.best(usize::MAX),
            scores: ranking.scores,
            name: ranking.model,
            n_tokens: ranking.n_tokens,
        }
    }
}

impl Timings {
    fn of(timings: &engine::Timings) -> Self {
        Self {
            n_cached: timings.cached,
            n_prompt: timings.n_prompt,
            prompt_ms: millis(timings.prompt),
            n_predicted: timings.n_predicted,
            predicted_ms: millis(timings.predict),
            queued_ms: millis(timings.queued),
            n_preempted: timings.n_preempted,
            n_drafted: timings.n_drafted,
            n_accepted: timings.n_accepted,
        }
    }
}

/// Waits for the result of a request. Other threads and signal handlers run meanwhile.
pub(crate) fn waited<T: Send>(
    py: Python<'_>,
    mut pending: Pending<T>,
    names: &[FieldName],
) -> PyResult<T> {
    loop {
        if let Some(made) = py.detach(|| pending.wait(SIGNALS)) {
            return made.map_err(|error| refused(&error.renamed(names)));
        }
        py.check_signals()?;
    }
}

pub(crate) fn refused(error: &ApiError) -> PyErr {
    let kind = match error.kind {
        ErrorKind::TooLong { .. } => "TooLong".to_owned(),
        kind => format!("{kind:?}"),
    };
    RefusedError::new_err((error.in_full(), kind, error.field.clone()))
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

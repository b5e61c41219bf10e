//! Texts to tokens and back, with what was encoded before kept.

mod boundary;
mod parts;

use boundary::Boundaries;
use core::sync::atomic::{AtomicUsize, Ordering};
use parts::{Key, Parts};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyDict;
use sluice::core::tokenizer::{Detokenizer, EncodeOptions};
use sluice::encode::EncodeError;
use sluice::file::LoadMode;
use sluice::model::{ModelSource, OpenError};
use std::path::PathBuf;
use std::thread;

/// Adds the classes of this file.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tokenizer>()
}

/// The vocabulary of a model's file: texts to tokens and back.
///
/// Tokens of texts that were encoded before are kept, in at most `cache_bytes` of memory (0: nothing is). A text that
/// begins as an earlier one did, or has parts of one, has them from there. They are the tokens that it has without,
/// always: texts are cut where no token and no rule of the vocabulary can reach over. A vocabulary without such places
/// has no cache, and `cache_info` says why.
///
/// Any thread may use it at the same time. In the child of a fork it works as before.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Tokenizer {
    opened: ModelSource,
    boundaries: Result<Boundaries, &'static str>,
    parts: Parts,
    part_bytes: usize,
}

#[pymethods]
impl Tokenizer {
    /// Reads the vocabulary of the GGUF or `.slc` file at `path`, no weights. Parts of texts that are kept have
    /// `part_bytes` or a little more at a text's beginning, and an eighth of what is before them later on.
    ///
    /// Raises OSError where the file cannot be read, ValueError where it is no model's.
    #[new]
    #[pyo3(signature = (path, cache_bytes=CACHE_BYTES, part_bytes=PART_BYTES))]
    fn new(py: Python<'_>, path: PathBuf, cache_bytes: usize, part_bytes: usize) -> PyResult<Self> {
        let opened = py.detach(|| ModelSource::open(&path, LoadMode::Map));
        let opened = opened.map_err(|error| match &error {
            OpenError::File(_) => PyOSError::new_err(error.to_string()),
            _ => PyValueError::new_err(error.to_string()),
        })?;
        let boundaries = match cache_bytes {
            0 => Err("it was not asked for (cache_bytes=0)"),
            _ => py.detach(|| Boundaries::of(&opened)),
        };
        Ok(Self {
            opened,
            boundaries,
            parts: Parts::new(cache_bytes),
            part_bytes: part_bytes.max(1),
        })
    }

    /// Tokens of the vocabulary.
    #[getter]
    fn n_vocab(&self) -> u32 {
        self.opened.tokenizer().n_vocab()
    }

    /// The token that begins a text.
    #[getter]
    fn bos(&self) -> Option<u32> {
        self.opened.tokenizer().bos()
    }

    /// The token that ends a text.
    #[getter]
    fn eos(&self) -> Option<u32> {
        self.opened.tokenizer().eos()
    }

    /// The tokens of a text, each below `n_vocab`. `add_special`: with those that begin and end a text, as far as the
    /// vocabulary wants them. `parse_special`: names of control tokens are those tokens, rather than text.
    ///
    /// Raises ValueError where the vocabulary has no token for a character.
    #[pyo3(signature = (text, add_special=true, parse_special=false))]
    fn encode(
        &self,
        py: Python<'_>,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        let options = EncodeOptions {
            add_special,
            parse_special,
        };
        let tokens = py.detach(|| self.tokens(text, options));
        tokens.map_err(|error| refused(&error))
    }

    /// The tokens of each text, in order, by `threads` threads: those of the machine, or as many as are asked for.
    #[pyo3(signature = (texts, add_special=true, parse_special=false, threads=None))]
    fn encode_batch(
        &self,
        py: Python<'_>,
        texts: Vec<PyBackedStr>,
        add_special: bool,
        parse_special: bool,
        threads: Option<usize>,
    ) -> PyResult<Vec<Vec<u32>>> {
        let options = EncodeOptions {
            add_special,
            parse_special,
        };
        let encoded = py.detach(|| self.batch(&texts, options, threads));
        encoded.map_err(|(at, error)| PyValueError::new_err(format!("text {at}: {error}")))
    }

    /// How many tokens a text has.
    #[pyo3(signature = (text, add_special=true, parse_special=false))]
    fn count(
        &self,
        py: Python<'_>,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> PyResult<usize> {
        let options = EncodeOptions {
            add_special,
            parse_special,
        };
        let tokens = py.detach(|| self.tokens(text, options));
        Ok(tokens.map_err(|error| refused(&error))?.len())
    }

    /// The text of tokens. `special`: control tokens give their names, rather than nothing. `continuing`: they go on
    /// with a text, so that a space at their front stays. What is not UTF-8 becomes U+FFFD.
    ///
    /// Raises ValueError at a token that is outside the vocabulary.
    #[pyo3(signature = (tokens, special=false, continuing=false))]
    fn decode(
        &self,
        py: Python<'_>,
        tokens: Vec<u32>,
        special: bool,
        continuing: bool,
    ) -> PyResult<String> {
        let decoded = py.detach(|| {
            let tokenizer = self.opened.tokenizer();
            let mut decoder = match continuing {
                true => Detokenizer::continuing(),
                false => Detokenizer::new(tokenizer),
            };
            if special {
                decoder = decoder.showing_special();
            }
            let mut text = String::new();
            for token in tokens {
                decoder.push(tokenizer, token, |part| text.push_str(part))?;
            }
            decoder.finish(|part| text.push_str(part));
            Ok(text)
        });
        decoded.map_err(|error| refused(&EncodeError::Text(error)))
    }

    /// What is kept: `enabled`, and `reason` where it is not; `hits` and `misses` of parts, `tokens_found`, `parts`,
    /// `bytes` and `bytes_max`.
    fn cache_info<'p>(&self, py: Python<'p>) -> PyResult<Bound<'p, PyDict>> {
        let info = PyDict::new(py);
        let counts = self.parts.counts().unwrap_or_default();
        info.set_item("enabled", self.boundaries.is_ok())?;
        info.set_item("reason", self.boundaries.as_ref().err())?;
        info.set_item("hits", counts.hits)?;
        info.set_item("misses", counts.misses)?;
        info.set_item("tokens_found", counts.tokens_found)?;
        info.set_item("parts", counts.parts)?;
        info.set_item("bytes", counts.bytes)?;
        info.set_item("bytes_max", self.parts.bytes_max())?;
        Ok(info)
    }

    /// Forgets what is kept.
    fn cache_clear(&self) {
        self.parts.clear();
    }
}

impl Tokenizer {
    fn tokens(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, EncodeError> {
        if let Ok(boundaries) = &self.boundaries
            && let Some(tokens) = self.by_parts(text, options, boundaries)
        {
            return Ok(tokens);
        }
        // An error says where it is in the whole text.
        self.opened.encode_with(text, options)
    }

    /// `None` where the text cannot be encoded.
    fn by_parts(
        &self,
        text: &str,
        options: EncodeOptions,
        boundaries: &Boundaries,
    ) -> Option<Vec<u32>> {
        let tokenizer = self.opened.tokenizer();
        let parse_special = options.parse_special;
        let (mut tokens, mut closing) = (Vec::new(), Vec::new());
        if options.add_special {
            tokens = self.opened.encode_with("", options).ok()?;
            closing = tokens.split_off(usize::from(tokenizer.adds_bos()));
        }
        let mut from = 0;
        while from < text.len() {
            // Parts grow with the text, so that a long one is encoded as fast as in one piece.
            let part_bytes = self.part_bytes.max(from / 8);
            let to = boundaries.next(tokenizer, text, from.saturating_add(part_bytes));
            let part = &text[from..to];
            let key = Key {
                is_first: from == 0,
                parse_special,
            };
            let encode = || match key.is_first {
                true => {
                    let options = EncodeOptions {
                        add_special: false,
                        parse_special,
                    };
                    self.opened.encode_with(part, options).ok()
                }
                false => boundaries.encode(&self.opened, part, parse_special),
            };
            self.parts
                .extend(&mut tokens, part, key, || encode().ok_or(()))
                .ok()?;
            from = to;
        }
        tokens.append(&mut closing);
        Some(tokens)
    }

    /// # Errors
    /// The first text that has no tokens, and why.
    fn batch(
        &self,
        texts: &[PyBackedStr],
        options: EncodeOptions,
        threads: Option<usize>,
    ) -> Result<Vec<Vec<u32>>, (usize, EncodeError)> {
        let threads =
            threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, Into::into));
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(text) = texts.get(at) else {
                    return done;
                };
                done.push((at, self.tokens(text, options)));
            }
        };
        let mut all = thread::scope(|scope| {
            let others: Vec<_> = (1..threads.clamp(1, texts.len().max(1)))
                // Without another thread, those that are there do it all.
                .map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
                .collect();
            let mut all = work();
            for other in others {
                match other.join() {
                    Ok(done) => all.extend(done),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            all
        });
        all.sort_unstable_by_key(|&(at, _)| at);
        let tokens = all
            .into_iter()
            .map(|(at, tokens)| tokens.map_err(|error| (at, error)));
        tokens.collect()
    }
}

fn refused(error: &EncodeError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Bytes of memory for what is kept, unless another number is asked for.
const CACHE_BYTES: usize = 64 << 20;

/// Bytes of a part at least, unless the text ends: long enough to be worth looking for, and short enough for what is
/// encoded anew behind the last cut that two texts share.
const PART_BYTES: usize = 1024;

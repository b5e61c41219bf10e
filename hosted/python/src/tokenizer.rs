//! Converts texts to tokens and back, with a cache of encoded texts.

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
use sluice::model::OpenError;
use sluice::vocabulary::VocabularyFile;
use std::path::PathBuf;
use std::thread;

/// Adds this file's classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tokenizer>()
}

/// The vocabulary of a model's file: converts texts to tokens and back.
///
/// Tokens of encoded texts are cached, in up to `cache_bytes` of memory (0 disables the cache). A text that shares its
/// beginning, or other parts, with an earlier one takes these tokens from the cache. The result is always the same as
/// without the cache: texts are only cut where no token and no rule of the vocabulary can reach over. A vocabulary
/// without such places has no cache, and `cache_info` gives the reason.
///
/// Several threads may use it at the same time. It also works in the child of a fork.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Tokenizer {
    opened: VocabularyFile,
    boundaries: Result<Boundaries, &'static str>,
    parts: Parts,
    part_bytes: usize,
}

#[pymethods]
impl Tokenizer {
    /// Reads the vocabulary of the GGUF or `.slc` file at `path`, without the weights. Cached parts have about
    /// `part_bytes` at the beginning of a text, and an eighth of the preceding text's length later on.
    ///
    /// Raises OSError if the file cannot be read, ValueError if it has no vocabulary that is supported. It need not hold a model.
    #[new]
    #[pyo3(signature = (path, cache_bytes=CACHE_BYTES, part_bytes=PART_BYTES))]
    fn new(py: Python<'_>, path: PathBuf, cache_bytes: usize, part_bytes: usize) -> PyResult<Self> {
        let opened = py.detach(|| VocabularyFile::open(&path, LoadMode::Map));
        let opened = opened.map_err(|error| match &error {
            OpenError::File(_) => PyOSError::new_err(error.to_string()),
            _ => PyValueError::new_err(error.to_string()),
        })?;
        let boundaries = match cache_bytes {
            0 => Err("disabled (cache_bytes=0)"),
            _ => py.detach(|| Boundaries::of(&opened)),
        };
        Ok(Self {
            opened,
            boundaries,
            parts: Parts::new(cache_bytes),
            part_bytes: part_bytes.max(1),
        })
    }

    /// Number of tokens in the vocabulary.
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

    /// The tokens of a text, each below `n_vocab`. `add_special`: add the tokens that begin and end a text, as the
    /// vocabulary prescribes. `parse_special`: parse names of control tokens as these tokens, rather than as text.
    ///
    /// Raises ValueError if the vocabulary has no token for a character.
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

    /// The tokens of each text, in order, computed by `threads` threads; by default, by all threads of the machine.
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

    /// The number of tokens of a text.
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

    /// The text of tokens. `special`: write the names of control tokens, rather than nothing. `continuing`: the tokens
    /// continue a text, so keep a leading space. Invalid UTF-8 becomes U+FFFD.
    ///
    /// Raises ValueError for a token outside the vocabulary.
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

    /// The state of the cache: `enabled`, with a `reason` if it is not; `hits` and `misses` of parts, `tokens_found`,
    /// `parts`, `bytes` and `bytes_max`.
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

    /// Clears the cache.
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
        // Encode the whole text, so that the error has the position in it.
        self.opened.encode_with(text, options)
    }

    /// `None` if the text cannot be encoded.
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
    /// The first text that cannot be encoded, and why.
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
                // If no more threads can be started, the existing ones do the work.
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

/// Default size of the cache in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// Minimum size of a part in bytes, except at the end of a text: long enough to be worth a lookup, and short enough to
/// limit what has to be encoded again after the last cut that two texts share.
const PART_BYTES: usize = 1024;

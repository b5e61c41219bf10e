//! A model's file: its vocabulary and metadata.

use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use sluice::core::gguf::{Gguf, Value, optional};
use sluice::core::tokenizer::{EncodeOptions, Tokenizer};
use sluice::encode::encode;
use sluice::file::LoadMode;
use sluice::model::{ModelSource, OpenError};
use sluice::vocabulary::VocabularyFile;
use std::path::PathBuf;

/// Adds this file's classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Model>()
}

/// A model's file, read up to its vocabulary.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Model {
    path: String,
    header: Header,
}

/// What a file describes.
enum Header {
    Model(ModelSource),
    /// A vocabulary, and why its model cannot be run.
    Vocabulary(VocabularyFile, String),
}

impl Model {
    pub(crate) fn of(model: &sluice::Model) -> Self {
        Self::new((**model).clone())
    }

    fn new(source: ModelSource) -> Self {
        Self {
            path: source.name().to_owned(),
            header: Header::Model(source),
        }
    }

    fn gguf(&self) -> &Gguf<'_> {
        match &self.header {
            Header::Model(source) => source.gguf(),
            Header::Vocabulary(file, _) => file.gguf(),
        }
    }

    fn tokenizer(&self) -> &Tokenizer<'_> {
        match &self.header {
            Header::Model(source) => source.tokenizer(),
            Header::Vocabulary(file, _) => file.tokenizer(),
        }
    }

    fn source(&self) -> PyResult<&ModelSource> {
        match &self.header {
            Header::Model(source) => Ok(source),
            Header::Vocabulary(_, why) => Err(PyValueError::new_err(why.clone())),
        }
    }
}

#[pymethods]
impl Model {
    /// Opens the file at `path`, without its weights. With `vocab_only` it need not hold a model that can be run: then
    /// what is known of the vocabulary works, and the rest raises ValueError.
    #[staticmethod]
    #[pyo3(signature = (path, vocab_only=false))]
    fn open(py: Python<'_>, path: PathBuf, vocab_only: bool) -> PyResult<Self> {
        let opened = py.detach(|| match ModelSource::open(&path, LoadMode::Map) {
            Err(OpenError::Unusable { name, reason }) if vocab_only => {
                let file = VocabularyFile::open(&path, LoadMode::Map)?;
                let header = Header::Vocabulary(file, format!("{name}: {reason}"));
                Ok(Self { path: name, header })
            }
            opened => opened.map(Self::new),
        });
        opened.map_err(|error: OpenError| match &error {
            OpenError::File(_) => PyOSError::new_err(error.to_string()),
            _ => PyValueError::new_err(error.to_string()),
        })
    }

    /// The file's path as it was given.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// Number of tokens in the vocabulary.
    #[getter]
    fn n_vocab(&self) -> u32 {
        self.tokenizer().n_vocab()
    }

    /// Context length in tokens that it was trained with.
    #[getter]
    fn n_ctx_train(&self) -> PyResult<usize> {
        Ok(self.source()?.config().n_ctx_train)
    }

    /// Length of the hidden state.
    #[getter]
    fn n_embd(&self) -> PyResult<usize> {
        Ok(self.source()?.config().n_embd)
    }

    /// Number of layers.
    #[getter]
    fn n_layer(&self) -> PyResult<usize> {
        Ok(self.source()?.config().n_layer())
    }

    /// Whether it is an encoder, which computes embeddings and does not generate text.
    #[getter]
    fn embeds(&self) -> PyResult<bool> {
        Ok(self.source()?.embeds())
    }

    /// Whether it has a head that scores documents.
    #[getter]
    fn ranks(&self) -> PyResult<bool> {
        Ok(self.source()?.ranks())
    }

    /// The tokens of a query and a document as its head reads them.
    fn rank_prompt(&self, py: Python<'_>, query: &str, document: &str) -> PyResult<Vec<u32>> {
        let source = self.source()?;
        let tokens = py.detach(|| source.rank_prompt(query, document));
        tokens.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The Jinja template in the file.
    #[getter]
    fn chat_template(&self) -> Option<&str> {
        optional(self.gguf().str("tokenizer.chat_template")).ok()?
    }

    /// The token that begins a text.
    #[getter]
    fn bos(&self) -> Option<u32> {
        self.tokenizer().bos()
    }

    /// The token that ends a text.
    #[getter]
    fn eos(&self) -> Option<u32> {
        self.tokenizer().eos()
    }

    /// Whether the vocabulary adds the token that begins a text to every text.
    #[getter]
    fn adds_bos(&self) -> bool {
        self.tokenizer().adds_bos()
    }

    /// Whether a token ends a text.
    fn ends(&self, token: u32) -> bool {
        self.tokenizer().is_end_of_generation(token)
    }

    /// Whether a token is a control token.
    fn is_control(&self, token: u32) -> bool {
        self.tokenizer().is_control(token)
    }

    /// A token's text as the vocabulary has it.
    fn piece(&self, token: u32) -> PyResult<String> {
        let tokenizer = self.tokenizer();
        if token >= tokenizer.n_vocab() {
            return Err(outside(token, tokenizer.n_vocab()));
        }
        Ok(String::from_utf8_lossy(tokenizer.piece(token)).into_owned())
    }

    /// The tokens of a text in UTF-8.
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
        let encoded = py.detach(|| encode(self.tokenizer(), text, options));
        encoded.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The bytes of tokens. Names of control tokens are included only if `special`.
    #[pyo3(signature = (tokens, special=false))]
    fn decode<'p>(
        &self,
        py: Python<'p>,
        tokens: Vec<u32>,
        special: bool,
    ) -> PyResult<Bound<'p, PyBytes>> {
        let tokenizer = self.tokenizer();
        let mut piece = vec![0; tokenizer.piece_len_max()];
        let mut bytes = Vec::new();
        for token in tokens {
            if token >= tokenizer.n_vocab() {
                return Err(outside(token, tokenizer.n_vocab()));
            }
            if tokenizer.is_control(token) {
                if special {
                    bytes.extend_from_slice(tokenizer.piece(token));
                }
                continue;
            }
            let decoded = tokenizer.decode_piece(token, &mut piece);
            bytes.extend_from_slice(decoded.map_err(|e| PyValueError::new_err(e.to_string()))?);
        }
        Ok(PyBytes::new(py, &bytes))
    }

    /// The file's metadata, except the vocabulary: strings, numbers, bools, and lists of these.
    fn metadata<'p>(&self, py: Python<'p>) -> PyResult<Bound<'p, PyDict>> {
        let all = PyDict::new(py);
        for (key, value) in self.gguf().metadata() {
            if let Some(value) = python_of(py, value)? {
                all.set_item(key, value)?;
            }
        }
        Ok(all)
    }
}

fn outside(token: u32, n_vocab: u32) -> PyErr {
    PyValueError::new_err(format!(
        "token {token} is outside the vocabulary of {n_vocab}"
    ))
}

/// A metadata value for Python; `None` if it is too long.
fn python_of<'p>(py: Python<'p>, value: Value<'_>) -> PyResult<Option<Bound<'p, PyAny>>> {
    Ok(Some(match value {
        Value::U8(x) => x.into_bound_py_any(py)?,
        Value::I8(x) => x.into_bound_py_any(py)?,
        Value::U16(x) => x.into_bound_py_any(py)?,
        Value::I16(x) => x.into_bound_py_any(py)?,
        Value::U32(x) => x.into_bound_py_any(py)?,
        Value::I32(x) => x.into_bound_py_any(py)?,
        Value::U64(x) => x.into_bound_py_any(py)?,
        Value::I64(x) => x.into_bound_py_any(py)?,
        Value::F32(x) => x.into_bound_py_any(py)?,
        Value::F64(x) => x.into_bound_py_any(py)?,
        Value::Bool(x) => x.into_bound_py_any(py)?,
        Value::String(bytes) => String::from_utf8_lossy(bytes).into_bound_py_any(py)?,
        Value::Array(array) if array.len() > ARRAY_MAX => return Ok(None),
        Value::Array(array) => {
            let list = PyList::empty(py);
            for value in array.iter() {
                if let Some(value) = python_of(py, value)? {
                    list.append(value)?;
                }
            }
            list.into_any()
        }
    }))
}

/// Longer lists belong to the vocabulary and are left out.
const ARRAY_MAX: u64 = 1024;

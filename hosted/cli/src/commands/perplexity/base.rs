//! A model's log-probabilities of a text, in the file format of `llama-perplexity
//! --kl-divergence-base`.
//!
//! ```text
//! ```text
//!  8  i32 × 3           n_ctx, n_vocab, n_chunk
//! 20  i32               tokens (n_chunk, n_ctx), as the text has them
//!  …  rows              (n_chunk, n_ctx - 1 - n_ctx / 2), of the tokens n_ctx / 2 .. n_ctx - 1
//! row:  f32 scale, f32 min; u16 (n_vocab), and one more if n_vocab is odd
//! ```
//!
//! Little endian. The log-probability of token i is `min + scale · u16[i]`. Values more than 16
//! nats below the best are stored as 16 below.
//!
//! Source: llama.cpp, `tools/perplexity/perplexity.cpp`.

use sluice::file::{OutputError, OutputFile};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"_logits_";
const HEADER_BYTES: u64 = 20;
/// Range of log-probabilities that the file resolves, in nats below the best token.
const RANGE: f32 = 16.0;

/// The shape of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseShape {
    /// Tokens per chunk.
    pub(crate) n_ctx: usize,
    /// Size of the vocabulary.
    pub(crate) n_vocab: usize,
    /// Number of chunks.
    pub(crate) n_chunk: usize,
}

/// Why a file of log-probabilities cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BaseError {
    /// It cannot be opened or read.
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// It has another format.
    #[error("{}: not a file of log-probabilities (create one with --kl-divergence-base)", path.display())]
    NotBase { path: PathBuf },
    /// Its header is inconsistent.
    #[error("{}: {what} is {value}", path.display())]
    Header {
        path: PathBuf,
        what: &'static str,
        value: i64,
    },
    /// It is truncated or incomplete.
    #[error("{} has {found} bytes, but its header requires {expected}", path.display())]
    Length {
        path: PathBuf,
        expected: u64,
        found: u64,
    },
}

impl BaseShape {
    /// Rows per chunk.
    #[must_use]
    pub(crate) const fn n_rows(&self) -> usize {
        (self.n_ctx - 1).saturating_sub(self.n_ctx / 2)
    }

    const fn row_bytes(&self) -> usize {
        8 + 2 * self.n_vocab.next_multiple_of(2)
    }

    const fn chunk_bytes(&self) -> u64 {
        (self.n_rows() * self.row_bytes()) as u64
    }

    const fn rows_offset(&self) -> u64 {
        HEADER_BYTES + 4 * (self.n_ctx * self.n_chunk) as u64
    }
}

/// A file, open for reading.
#[derive(Debug)]
pub(crate) struct BaseFile {
    path: PathBuf,
    file: File,
    shape: BaseShape,
    tokens: Vec<u32>,
    chunk: Vec<u8>,
}

impl BaseFile {
    /// Opens `path` and reads its tokens.
    ///
    /// # Errors
    /// [`BaseError`].
    pub(crate) fn open(path: &Path) -> Result<Self, BaseError> {
        let path_buf = || path.to_path_buf();
        let read_error = |error| BaseError::Read {
            path: path_buf(),
            error,
        };
        let file = File::open(path).map_err(read_error)?;
        let mut head = [0; 20];
        match file.read_exact_at(&mut head, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(BaseError::NotBase { path: path_buf() });
            }
            result => result.map_err(read_error)?,
        }
        if head[..8] != MAGIC {
            return Err(BaseError::NotBase { path: path_buf() });
        }
        let field = |at: usize, what: &'static str, min: i32, max: i32| {
            let bytes = [head[at], head[at + 1], head[at + 2], head[at + 3]];
            let value = i32::from_le_bytes(bytes);
            let usable = usize::try_from(value).ok();
            let usable = usable.filter(|_| (min..=max).contains(&value));
            usable.ok_or_else(|| BaseError::Header {
                path: path_buf(),
                what,
                value: value.into(),
            })
        };
        let shape = BaseShape {
            n_ctx: field(8, "n_ctx", 4, 1 << 24)?,
            n_vocab: field(12, "n_vocab", 1, 1 << 24)?,
            n_chunk: field(16, "n_chunk", 1, 1 << 24)?,
        };
        let found = file.metadata().map_err(read_error)?.len();
        let expected = (shape.n_chunk as u64)
            .checked_mul(shape.chunk_bytes())
            .and_then(|rows| rows.checked_add(shape.rows_offset()))
            .unwrap_or(u64::MAX);
        if found != expected {
            return Err(BaseError::Length {
                path: path_buf(),
                expected,
                found,
            });
        }
        // The file is that long.
        let mut bytes = vec![0; 4 * shape.n_ctx * shape.n_chunk];
        file.read_exact_at(&mut bytes, HEADER_BYTES)
            .map_err(read_error)?;
        let tokens: Vec<u32> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|&id| u32::from_le_bytes(id))
            .collect();
        if let Some(&wrong) = tokens.iter().find(|&&id| id as usize >= shape.n_vocab) {
            return Err(BaseError::Header {
                path: path_buf(),
                what: "a token",
                value: wrong.into(),
            });
        }
        Ok(Self {
            path: path_buf(),
            file,
            shape,
            tokens,
            chunk: Vec::new(),
        })
    }

    /// Its shape.
    #[must_use]
    pub(crate) const fn shape(&self) -> BaseShape {
        self.shape
    }

    /// The tokens of all chunks.
    #[must_use]
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Reads the rows of a chunk, to be accessed by [`Self::row`].
    ///
    /// # Errors
    /// [`BaseError::Read`].
    pub(crate) fn read_chunk(&mut self, chunk: usize) -> Result<(), BaseError> {
        let room = self.shape.n_rows() * self.shape.row_bytes();
        self.chunk.resize(room, 0);
        let at = self.shape.rows_offset() + chunk as u64 * self.shape.chunk_bytes();
        let read = self.file.read_exact_at(&mut self.chunk, at);
        read.map_err(|error| BaseError::Read {
            path: self.path.clone(),
            error,
        })
    }

    /// A row of the chunk that was read last.
    ///
    /// # Panics
    /// If the row does not exist, or no chunk was read.
    #[must_use]
    pub(crate) fn row(&self, row: usize) -> BaseRow<'_> {
        let len = self.shape.row_bytes();
        let bytes = &self.chunk[row * len..][..len];
        let float = |at: usize| {
            f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        BaseRow {
            scale: float(0),
            min: float(4),
            steps: &bytes[8..][..2 * self.shape.n_vocab],
        }
    }
}

/// Log-probabilities of all tokens at one position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BaseRow<'b> {
    scale: f32,
    min: f32,
    /// Little-endian u16 (n_vocab).
    steps: &'b [u8],
}

impl BaseRow<'_> {
    /// The log-probabilities, in order of the tokens.
    pub(crate) fn log_probabilities(&self) -> impl Iterator<Item = f32> {
        let (steps, _) = self.steps.as_chunks();
        steps
            .iter()
            .map(|&step| self.scale * f32::from(u16::from_le_bytes(step)) + self.min)
    }
}

/// A file, open for writing.
#[derive(Debug)]
pub(crate) struct BaseWriter {
    output: OutputFile,
    shape: BaseShape,
    rows: u64,
    row: Vec<u8>,
}

impl BaseWriter {
    /// Creates the file `path` for `tokens: (n_chunk, n_ctx)`. An existing file of this kind is
    /// replaced once the new one is complete; any other existing file is an error.
    ///
    /// # Errors
    /// [`OutputError`].
    ///
    /// # Panics
    /// If the number of tokens does not match the shape.
    pub(crate) fn create(
        path: &Path,
        shape: BaseShape,
        tokens: &[u32],
    ) -> Result<Self, OutputError> {
        assert_eq!(tokens.len(), shape.n_ctx * shape.n_chunk);
        let output = OutputFile::replacing(path, &MAGIC)?;
        output.reserve(shape.rows_offset() + shape.n_chunk as u64 * shape.chunk_bytes())?;
        let mut head = MAGIC.to_vec();
        let fields = [shape.n_ctx, shape.n_vocab, shape.n_chunk];
        let fields = fields.map(|n| u32::try_from(n).expect("all are below 2^24"));
        for value in fields.iter().chain(tokens) {
            head.extend(value.to_le_bytes());
        }
        output.write_at(0, &head)?;
        Ok(Self {
            output,
            shape,
            rows: 0,
            row: Vec::new(),
        })
    }

    /// Writes the next row: `logits: (n_vocab)`, given with the natural logarithm of the sum of
    /// their exponentials.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    pub(crate) fn write(&mut self, logits: &[f32], ln_sum_exp: f64) -> Result<(), OutputError> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let min = logits.iter().copied().fold(f32::INFINITY, f32::min);
        let min = min.max(max - RANGE);
        let scale = (max - min) / f32::from(u16::MAX);
        let row = &mut self.row;
        row.clear();
        row.extend(scale.to_le_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "stored as f32")]
        let min_log_probability = (f64::from(min) - ln_sum_exp) as f32;
        row.extend(min_log_probability.to_le_bytes());
        for &logit in logits {
            let steps = if scale > 0.0 && logit > min {
                ((logit - min) / scale).round_ties_even()
            } else {
                0.0
            };
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0 to 65535, and `as` saturates"
            )]
            row.extend((steps as u16).to_le_bytes());
        }
        row.resize(self.shape.row_bytes(), 0);
        let at = self.shape.rows_offset() + self.rows * row.len() as u64;
        self.rows += 1;
        self.output.write_at(at, row)
    }

    /// Renames the file to its final name.
    ///
    /// # Errors
    /// [`OutputError`].
    ///
    /// # Panics
    /// If rows are missing.
    pub(crate) fn finish(self) -> Result<(), OutputError> {
        assert_eq!(self.rows, (self.shape.n_rows() * self.shape.n_chunk) as u64);
        self.output.finish()
    }
}

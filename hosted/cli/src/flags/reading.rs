//! Text for a model to read: a file, cut into chunks of tokens.

use crate::flags::adapters::AdapterArgs;
use crate::flags::engine::EngineArgs;
use crate::flags::model::ModelArgs;
use crate::flags::open;
use crate::outcome::UsageError;
use crate::ui::input;
use crate::ui::output::note;
use anyhow::{Context as _, bail};
use clap::{Args, value_parser};
use sluice::core::team::StopFlag;
use sluice::core::tokenizer::Tokenizer;
use sluice::host::{interrupt, isa};
use sluice::model::ModelSource;
use sluice::sparse::SparseMode;
use sluice::{Limits, Session};
use std::path::{Path, PathBuf};

/// The model and the text.
#[derive(Debug, Args)]
pub(crate) struct ReadingArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Set the text to read (UTF-8)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Set the number of chunks to read; -1 reads all
    ///
    /// Each chunk is as long as the context (-c), by default 512 tokens.
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=1 << 24))]
    chunks: i64,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// A loaded model and a text to read.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) session: Session,
    pub(crate) chunks: Chunks,
    pub(crate) stop: &'static StopFlag,
}

impl ReadingArgs {
    /// Cuts the text and loads the model. `None` after Ctrl-C. `observed` is whether an observer needs
    /// the inputs of the model's matrices.
    pub(crate) fn begin(&self, observed: bool) -> anyhow::Result<Option<Reading>> {
        self.begin_with(observed, |opened, len, max| {
            Chunks::read(opened, self.file()?, len, max)
        })
    }

    /// The mode of neurons that is asked for.
    pub(crate) fn sparse(&self) -> Option<SparseMode> {
        self.engine.sparse.sparse
    }

    /// Whether a model is named.
    pub(crate) fn names_model(&self) -> bool {
        self.model.is_named()
    }

    /// The path of the text.
    pub(crate) fn file(&self) -> Result<&Path, UsageError> {
        let missing = || UsageError("no text is given: use -f FILE".to_owned());
        self.file.as_deref().ok_or_else(missing)
    }

    /// Warns of flags without effect if the text and its chunks of `len` tokens come from `base`.
    pub(crate) fn say_unused(&self, base: &Path, len: usize) {
        let base = base.display();
        if let Some(file) = &self.file {
            let file = file.display();
            note(format_args!(
                "note: -f {file} is not read: the text is in {base}"
            ));
        }
        let asked = self.engine.ctx_size;
        if asked != 0 && asked as usize != len {
            note(format_args!(
                "note: -c {asked} has no effect: {base} has chunks of {len} tokens"
            ));
        }
    }

    /// As [`Self::begin`], but with chunks from `cut`, which is passed their length and maximum
    /// number.
    pub(crate) fn begin_with(
        &self,
        observed: bool,
        cut: impl FnOnce(&ModelSource, usize, usize) -> anyhow::Result<Chunks>,
    ) -> anyhow::Result<Option<Reading>> {
        let stop = interrupt::install().context("cannot handle Ctrl-C")?;
        let table =
            isa::kernel_table(self.engine.isa()).map_err(|error| UsageError(error.to_string()))?;
        self.adapters.check()?;
        let opened = open::LocalModel::open(Some(&self.model.required()?), &self.engine)?;
        opened.check_decoder()?;
        let len = match self.engine.ctx_size {
            0 => 512.min(opened.config().n_ctx_train.max(1)),
            len => len as usize,
        };
        let max = usize::try_from(self.chunks).unwrap_or(usize::MAX);
        let chunks = cut(&opened, len, max)?;
        let n_workers = self.engine.n_workers(opened.cores.default_workers());
        let Some((model, team)) = opened.load(n_workers, stop)? else {
            return Ok(None);
        };
        let limits = Limits {
            types: Some(self.engine.cache_types()),
            kv_rotation: !self.engine.no_kv_rotation,
            table: Some(table),
            ..Limits::for_reading(opened.config(), chunks.len, observed)
        };
        let mut session = self.adapters.session(&self.engine, &model, &team, limits)?;
        session.set_stop(stop);
        Ok(Some(Reading {
            session,
            chunks,
            stop,
        }))
    }
}

/// Chunks of tokens of equal length.
#[derive(Debug)]
pub(crate) struct Chunks {
    /// As the model reads them: each begins with the beginning-of-sequence token.
    tokens: Vec<u32>,
    /// As they are in the text.
    pub(crate) texts: Vec<u32>,
    /// Tokens per chunk.
    pub(crate) len: usize,
    /// Tokens of the whole text.
    pub(crate) n_tokens: usize,
}

impl Chunks {
    /// The first chunks of `len` tokens of the text in `path`, at most `max`. As in llama.cpp, each
    /// begins with the beginning-of-sequence token, if the model uses one.
    ///
    /// # Errors
    /// The file cannot be read, is not UTF-8, or is shorter than a chunk.
    pub(crate) fn read(
        opened: &ModelSource,
        path: &Path,
        len: usize,
        max: usize,
    ) -> anyhow::Result<Self> {
        let name = path.display();
        let text = input::text("text", path)?;
        let mut tokens = opened
            .encode(&text, false)
            .with_context(|| format!("cannot encode {name}"))?;
        let count = tokens.len();
        if max == 0 {
            return Err(UsageError("--chunks 0: there is nothing to read".to_owned()).into());
        }
        let n_chunks = (count / len).min(max);
        if n_chunks == 0 {
            bail!("{name} has {count} tokens, fewer than one chunk of {len}");
        }
        tokens.truncate(n_chunks * len);
        Ok(Self {
            n_tokens: count,
            ..Self::new(opened.tokenizer(), tokens, len)
        })
    }

    /// Chunks that were cut before.
    pub(crate) fn new(tokenizer: &Tokenizer<'_>, texts: Vec<u32>, len: usize) -> Self {
        let mut tokens = texts.clone();
        if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos()) {
            for chunk in tokens.chunks_mut(len) {
                chunk[0] = bos;
            }
        }
        let n_tokens = texts.len();
        Self {
            tokens,
            texts,
            len,
            n_tokens,
        }
    }

    pub(crate) fn slices(&self) -> Vec<&[u32]> {
        self.tokens.chunks(self.len).collect()
    }
}

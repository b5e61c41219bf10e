//! Grammars: which tokens may come next so that a text keeps to GBNF or a JSON schema.
//!
//! A [`GrammarSource`] is what the user wrote; [`Grammar::compiled`] compiles it for a
//! [`Vocabulary`].
//! The work is done by the llguidance crate, whose notation the grammars are translated to
//! ([`mod@gbnf`]); what comes out is a bit mask over the vocabulary. Before every draw
//! [`Grammar::mask`] says what is allowed, after it [`Grammar::accept`] takes the token.
//!
//! Every kind of work has a bound: the size of the source, of the compiled grammar, of the
//! lexer's and the parser's states. Beyond it there is an error, not a wait. Compiling runs on a
//! thread of its own whose stack holds what the bounds allow.
#![forbid(unsafe_code)]

mod composed;
pub mod gbnf;
mod json_schema;
mod keys;
mod structural;
#[cfg(test)]
mod tests;
mod vocabulary;

pub use composed::Part;
pub(crate) use composed::quoted;
pub use structural::{Structure, Tag};
pub use vocabulary::Vocabulary;

use core::time::Duration;
use gbnf::GbnfError;
use json_schema::Marked;
use keys::Keys;
use llguidance::api::{GrammarInit, ParserLimits, StopReason, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, Matcher};
use sluice_core::tokenizer::Tokenizer;
use std::time::Instant;

/// A grammar as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarSource {
    /// llama.cpp's notation.
    Gbnf(String),
    /// JSON schema, as JSON.
    JsonSchema(String),
    /// Rules, marks and schemas: what calls of functions look like, for example. In such schemas,
    /// objects that leave names open may have a name twice.
    Composed(Vec<Part>),
}

impl GrammarSource {
    fn check_len(&self) -> Result<(), GrammarError> {
        let len_bytes: usize = match self {
            Self::Gbnf(text) | Self::JsonSchema(text) => plain(text).len(),
            Self::Composed(parts) => parts.iter().map(Part::len_bytes).sum(),
        };
        if len_bytes > SOURCE_BYTES_MAX {
            return Err(GrammarError::TooLong);
        }
        Ok(())
    }
}

/// What was written, without a byte order mark.
fn plain(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// A grammar at work on one text.
pub struct Grammar {
    matcher: Matcher,
    /// As it was compiled, to begin again.
    fresh: Matcher,
    /// One bit per token.
    words: Vec<u64>,
    /// Whether they are those of the text as it is.
    is_made: bool,
    mask_time: Duration,
    vocabulary: Vocabulary,
    /// Of a JSON document.
    keys: Option<Keys>,
}

impl Clone for Grammar {
    fn clone(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            fresh: self.fresh.deep_clone(),
            words: self.words.clone(),
            is_made: self.is_made,
            mask_time: self.mask_time,
            vocabulary: self.vocabulary.clone(),
            keys: self.keys.clone(),
        }
    }
}

impl core::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl Grammar {
    /// Compiles `source` for a vocabulary, which is prepared for this grammar alone.
    ///
    /// # Errors
    /// Those of [`Self::compiled`] and [`Vocabulary::new`].
    pub fn new(source: &GrammarSource, tokenizer: &Tokenizer<'_>) -> Result<Self, GrammarError> {
        source.check_len()?;
        Self::compiled(source, &Vocabulary::new(tokenizer)?)
    }

    /// Compiles `source` for a vocabulary that was prepared before.
    ///
    /// # Errors
    /// What is wrong with the source and where, or which bound it exceeds.
    pub fn compiled(source: &GrammarSource, vocabulary: &Vocabulary) -> Result<Self, GrammarError> {
        source.check_len()?;
        let matcher = on_large_stack(|| compile(source, vocabulary))?;
        let keys = matches!(source, GrammarSource::JsonSchema(_)).then(Keys::default);
        let mut grammar = Self {
            fresh: matcher.deep_clone(),
            matcher,
            words: vec![0; vocabulary.n_words().div_ceil(64)],
            is_made: false,
            mask_time: Duration::ZERO,
            vocabulary: vocabulary.clone(),
            keys,
        };
        // A vocabulary that cannot write the first character is told so at once.
        grammar.mask()?;
        Ok(grammar)
    }

    /// What it was compiled for.
    #[must_use]
    pub const fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Begins another text.
    pub fn restart(&mut self) {
        self.matcher = self.fresh.deep_clone();
        self.is_made = false;
        self.keys = self.keys.take().map(|_| Keys::default());
    }

    /// The tokens that may come next: token `id` where bit `id % 64` of word `id / 64` is set.
    /// Where the text may end, those that end it are among them; where it must, they alone. Made
    /// once for each place of a text.
    ///
    /// # Errors
    /// A bound is exceeded.
    pub fn mask(&mut self) -> Result<&[u64], GrammarError> {
        if !self.is_made {
            let start = Instant::now();
            self.make_mask()?;
            self.is_made = true;
            self.mask_time = start.elapsed();
        }
        Ok(&self.words)
    }

    /// How long the last mask took.
    #[must_use]
    pub const fn mask_time(&self) -> Duration {
        self.mask_time
    }

    fn make_mask(&mut self) -> Result<(), GrammarError> {
        let mask = self.matcher.compute_mask_or_eos();
        let mask = mask.map_err(|error| run_error(&error))?;
        let halves = mask.as_slice().chunks(2);
        for (word, half) in self.words.iter_mut().zip(halves) {
            let high = half.get(1).copied().unwrap_or(0);
            *word = u64::from(half[0]) | u64::from(high) << 32;
        }
        if let Some(keys) = self.keys.as_ref().filter(|keys| keys.is_watching()) {
            for &id in self.vocabulary.quoting() {
                let (word, bit) = (&mut self.words[id as usize / 64], 1 << (id % 64));
                let piece = self.vocabulary.word(id).unwrap_or_default();
                if *word & bit != 0 && !keys.clone().push(piece) {
                    *word &= !bit;
                }
            }
        }
        if self.words.iter().all(|&word| word == 0) && !self.is_complete() {
            return Err(GrammarError::Run(NO_TOKEN.to_owned()));
        }
        Ok(())
    }

    /// Takes `token`, which [`Self::mask`] allowed, as the next of the text.
    ///
    /// # Errors
    /// The grammar does not allow it here, or a bound is exceeded.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        if self.is_complete() {
            // Only the end of the text is allowed now, and that changes nothing.
            return Ok(());
        }
        self.is_made = false;
        if let Some(keys) = &mut self.keys {
            let piece = self.vocabulary.word(token);
            let is_new = piece.is_none_or(|piece| keys.push(piece));
            if !is_new {
                return Err(GrammarError::Run("the key is there already".to_owned()));
            }
        }
        let accepted = self.matcher.consume_token(token);
        accepted.map_err(|error| run_error(&error))
    }

    /// Goes on by `bytes`, which need be no whole tokens; `false` and as it was before if they do not
    /// fit.
    pub(crate) fn accept_bytes(&mut self, bytes: &[u8]) -> bool {
        let Ok(env) = self.matcher.tok_env() else {
            return false;
        };
        let tokens = env.tok_trie().greedy_tokenize(bytes);
        if env.tok_trie().decode(&tokens) != bytes {
            return false;
        }
        self.is_made = false;
        let before = self.matcher.deep_clone();
        let taken = self.matcher.try_consume_tokens(&tokens);
        let keys = self.keys.clone();
        let is_new = |keys: &mut Keys| keys.push(bytes);
        if taken.is_ok_and(|n| n == tokens.len()) && self.keys.as_mut().is_none_or(is_new) {
            return true;
        }
        self.keys = keys;
        self.matcher = before;
        false
    }

    /// How many of `tokens` may come next, one after the other. A few more may be counted than there are: names that
    /// come again in an object are noticed when they are taken.
    pub fn n_allowed(&self, tokens: &[u32]) -> usize {
        // Asked of a copy: what goes wrong here is no part of the text.
        let n = self.matcher.clone().validate_tokens(tokens).unwrap_or(0);
        n.min(tokens.len())
    }

    /// Tokens of the text that must come next, cut as the vocabulary's longest pieces cut it. None where there is a
    /// choice; none of control tokens.
    pub fn forced(&self) -> Vec<u32> {
        // Asked of a copy, which is left with these bytes taken.
        let mut bytes = self.matcher.clone().compute_ff_bytes();
        let end = bytes.iter().position(|byte| *byte == CONTROL);
        bytes.truncate(end.unwrap_or(bytes.len()));
        if bytes.is_empty() {
            return Vec::new();
        }
        let Ok(env) = self.matcher.tok_env() else {
            return Vec::new();
        };
        env.tok_trie().greedy_tokenize(&bytes)
    }

    /// Whether the text is complete and nothing may follow.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && self.matcher.stop_reason() != StopReason::InternalError
    }

    /// Whether the text may end here.
    #[must_use]
    pub fn may_end(&mut self) -> bool {
        self.is_complete() || self.matcher.is_accepting().unwrap_or(false)
    }
}

/// Runs `work` where there is room for all that the bounds allow.
fn on_large_stack<T: Send>(
    work: impl FnOnce() -> Result<T, GrammarError> + Send,
) -> Result<T, GrammarError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("grammar".into())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(GrammarError::Thread)?;
        let panicked = |_| GrammarError::Compile("the grammar cannot be compiled".into());
        thread.join().map_err(panicked)?
    })
}

fn compile(source: &GrammarSource, vocabulary: &Vocabulary) -> Result<Matcher, GrammarError> {
    let (top, marked) = match source {
        GrammarSource::Gbnf(text) => {
            let lark = gbnf::to_lark(plain(text))?;
            (TopLevelGrammar::from_lark(lark), Marked::default())
        }
        GrammarSource::JsonSchema(text) => {
            let (schema, digits) = json_schema::rewritten(plain(text))?;
            let texts = Vec::new();
            let top = TopLevelGrammar::from_json_schema(schema);
            (top, Marked { digits, texts })
        }
        GrammarSource::Composed(parts) => composed::joined(parts, vocabulary)?,
    };
    let factory = vocabulary.factory();
    let limits = ParserLimits {
        verbose_errors: false,
        max_items_in_row: match source {
            GrammarSource::Composed(_) => COMPOSED_ITEMS_MAX,
            _ => ParserLimits::default().max_items_in_row,
        },
        ..ParserLimits::default()
    };
    let mut init = GrammarInit::Serialized(top);
    if !marked.is_empty() {
        let compiled = init.to_internal(Some(factory.tok_env().clone()), limits.clone());
        let (grammar, mut lexer) = compiled.map_err(|error| compile_error(&error))?;
        let put = marked.put_in(&mut lexer);
        put.map_err(GrammarError::Compile)?;
        init = GrammarInit::Internal(grammar, lexer);
    }
    let (quiet, nothing) = (Logger::new(0, 0), InferenceCapabilities::default());
    let parser = factory.create_parser_from_init_ext(init, quiet, nothing, limits);
    let matcher = Matcher::new(parser);
    match matcher.get_error() {
        Some(error) => Err(compile_error(&error)),
        None => Ok(matcher),
    }
}

fn compile_error(error: &dyn core::fmt::Display) -> GrammarError {
    GrammarError::Compile(first_line(&error.to_string()))
}

/// Why it cannot go on, in our words where they are known.
fn run_error(error: &dyn core::fmt::Display) -> GrammarError {
    let message = error.to_string();
    let is_stuck = message.contains("NoExtension");
    GrammarError::Run(if is_stuck {
        NO_TOKEN.to_owned()
    } else {
        first_line(&message)
    })
}

/// Messages of the crate go on with backtraces and states.
fn first_line(message: &str) -> String {
    let line = message.lines().find(|line| !line.trim().is_empty());
    shorten(line.unwrap_or("no reason given").trim())
}

fn shorten(message: &str) -> String {
    let end = message.floor_char_boundary(MESSAGE_BYTES_MAX);
    message[..end].to_owned()
}

/// Why a grammar cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The GBNF is wrong.
    #[error(transparent)]
    Gbnf(#[from] GbnfError),
    /// The JSON schema is none.
    #[error("JSON schema: {0}")]
    Schema(String),
    /// It cannot be compiled: a schema's keyword that is not known, a bound.
    #[error("the grammar cannot be compiled: {0}")]
    Compile(String),
    /// It could not go on.
    #[error("the grammar cannot go on: {0}")]
    Run(String),
    /// Longer than any grammar is.
    #[error("the grammar is longer than {SOURCE_BYTES_MAX} bytes")]
    TooLong,
    /// The tokens are too many or too long.
    #[error("the vocabulary is too large for grammars")]
    Vocabulary,
    /// No thread to compile on.
    #[error(
        "cannot start a thread to compile the grammar, which takes {} MiB of address space (ulimit -v)",
        COMPILE_STACK_BYTES >> 20
    )]
    Thread(#[source] std::io::Error),
}

/// How the crate writes that a control token follows.
const CONTROL: u8 = 0xff;
const NO_TOKEN: &str = "no token of this vocabulary goes on here";
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Alternatives at one place of a grammar: every tool is some, and so is every optional argument.
const COMPOSED_ITEMS_MAX: usize = 20_000;
/// Address space, of which only what is used becomes memory.
const COMPILE_STACK_BYTES: usize = 256 << 20;
const MESSAGE_BYTES_MAX: usize = 400;

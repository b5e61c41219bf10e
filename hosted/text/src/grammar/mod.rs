//! Grammars: they restrict the next token so that a text matches GBNF or a JSON schema.
//!
//! A [`GrammarSource`] is what the user wrote; [`Grammar::compiled`] compiles it for a
//! [`Vocabulary`].
//! The work is done by the llguidance crate, to whose notation the grammars are translated
//! ([`mod@gbnf`]). The result is a bit mask over the vocabulary: before each token is sampled,
//! [`Grammar::mask`] returns the allowed ones; afterwards, [`Grammar::accept`] takes the token.
//!
//! All work is bounded: the sizes of the source and of the compiled grammar, and the numbers of
//! lexer and parser states. Exceeding a bound is an error instead of a long wait. Compiling runs on a
//! separate thread, whose stack is large enough for what the bounds allow.
#![forbid(unsafe_code)]

mod composed;
pub mod gbnf;
mod json_schema;
mod keys;
mod lark;
mod pattern;
mod structural;
#[cfg(test)]
mod tests;
mod vocabulary;

pub use composed::Part;
pub(crate) use composed::quoted;
pub use lark::check_lark;
pub use pattern::check_regex;
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

/// The source of a grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarSource {
    /// llama.cpp's notation.
    Gbnf(String),
    /// JSON schema, as JSON.
    JsonSchema(String),
    /// A regular expression that the whole text matches.
    Regex(String),
    /// Rules, marks and schemas, for example the format of function calls. In such schemas, objects
    /// that allow other names may contain the same name twice.
    Composed(Vec<Part>),
}

impl GrammarSource {
    /// The texts in `texts` and no other.
    #[must_use]
    pub fn one_of(texts: &[&str]) -> Self {
        let escaped = texts.iter().map(|text| {
            let each = text.chars().map(|c| match c {
                c if c.is_alphanumeric() => c.to_string(),
                c => format!("\\x{{{:x}}}", u32::from(c)),
            });
            each.collect::<String>()
        });
        Self::Regex(escaped.collect::<Vec<_>>().join("|"))
    }

    /// The length of all its texts in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Gbnf(text) | Self::JsonSchema(text) | Self::Regex(text) => plain(text).len(),
            Self::Composed(parts) => parts.iter().map(Part::len_bytes).sum(),
        }
    }

    fn check_len(&self) -> Result<(), GrammarError> {
        if self.len_bytes() > SOURCE_BYTES_MAX {
            return Err(GrammarError::TooLong);
        }
        Ok(())
    }
}

/// The text without a byte order mark.
fn plain(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The state of a grammar while one text is generated.
pub struct Grammar {
    matcher: Matcher,
    /// The initial state, for restarts.
    fresh: Matcher,
    /// One bit per token.
    words: Vec<u64>,
    /// Whether `words` are up to date.
    is_made: bool,
    mask_time: Duration,
    vocabulary: Vocabulary,
    /// For JSON documents.
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
    /// Compiles `source` for a vocabulary that is prepared for this grammar alone.
    ///
    /// # Errors
    /// See [`Self::compiled`] and [`Vocabulary::new`].
    pub fn new(source: &GrammarSource, tokenizer: &Tokenizer<'_>) -> Result<Self, GrammarError> {
        source.check_len()?;
        Self::compiled(source, &Vocabulary::new(tokenizer)?)
    }

    /// Compiles `source` for a prepared vocabulary.
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
        // Reports a vocabulary that cannot write the first character now.
        grammar.mask()?;
        Ok(grammar)
    }

    /// The vocabulary it was compiled for.
    #[must_use]
    pub const fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Starts another text.
    pub fn restart(&mut self) {
        self.matcher = self.fresh.deep_clone();
        self.is_made = false;
        self.keys = self.keys.take().map(|_| Keys::default());
    }

    /// The tokens that may come next: token `id` is allowed if bit `id % 64` of word `id / 64` is set.
    /// If the text may end, this includes the tokens that end it; if it must end, only those. Computed
    /// once for each position.
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

    /// Takes `token`, which [`Self::mask`] allowed, as the next token of the text.
    ///
    /// # Errors
    /// The grammar does not allow it here, or a bound is exceeded.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        if self.is_complete() {
            // Only the end of the text is allowed now, which does not change the state.
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

    /// Advances by `bytes`, which need not be whole tokens; if they do not match, returns `false` and
    /// leaves the state unchanged.
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

    /// How many of `tokens` may come next, in sequence. This may count a few too many: a repeated name in an object is
    /// only detected when it is accepted.
    pub fn n_allowed(&self, tokens: &[u32]) -> usize {
        // Validated on a copy, so that an error does not affect the text.
        let n = self.matcher.clone().validate_tokens(tokens).unwrap_or(0);
        n.min(tokens.len())
    }

    /// The tokens that must come next, split into the vocabulary's longest pieces. Empty if there is a choice. Stops
    /// before a control token.
    pub fn forced(&self) -> Vec<u32> {
        // Computed on a copy, because the bytes are consumed.
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

/// Runs `work` with a stack that suffices for everything the bounds allow.
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
        GrammarSource::Regex(text) => {
            pattern::check_repetitions(text).map_err(GrammarError::Compile)?;
            (TopLevelGrammar::from_regex(text), Marked::default())
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

/// Why a grammar cannot continue, in our own words if the error is known.
fn run_error(error: &dyn core::fmt::Display) -> GrammarError {
    let message = error.to_string();
    let is_stuck = message.contains("NoExtension");
    GrammarError::Run(if is_stuck {
        NO_TOKEN.to_owned()
    } else {
        first_line(&message)
    })
}

/// Messages of the crate have backtraces and states after the first line.
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
    /// The GBNF is invalid.
    #[error(transparent)]
    Gbnf(#[from] GbnfError),
    /// The JSON schema is invalid or not supported.
    #[error("JSON schema: {0}")]
    Schema(String),
    /// It cannot be compiled, because of an unsupported keyword of a schema or a bound.
    #[error("the grammar cannot be compiled: {0}")]
    Compile(String),
    /// It could not continue.
    #[error("the grammar cannot continue: {0}")]
    Run(String),
    /// It exceeds the maximum length of a grammar.
    #[error("the grammar exceeds {SOURCE_BYTES_MAX} bytes")]
    TooLong,
    /// There are too many tokens, or they are too long.
    #[error("the vocabulary is too large for grammars")]
    Vocabulary,
    /// The thread for compiling could not be started.
    #[error(
        "cannot start a thread to compile the grammar, which takes {} MiB of address space (ulimit -v)",
        COMPILE_STACK_BYTES >> 20
    )]
    Thread(#[source] std::io::Error),
}

/// The byte with which the crate announces a control token.
const CONTROL: u8 = 0xff;
const NO_TOKEN: &str = "no token of this vocabulary can follow";
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of alternatives at one place of a grammar: every tool and every optional argument needs some.
const COMPOSED_ITEMS_MAX: usize = 20_000;
/// Address space; only what is used takes memory.
const COMPILE_STACK_BYTES: usize = 256 << 20;
const MESSAGE_BYTES_MAX: usize = 400;

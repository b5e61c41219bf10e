//! Sampling with everything that owns memory: a chain's history, biases, sequence breakers, a
//! grammar.
//!
//! [`SamplingSettings`] are independent of a model; a [`Sampler`] applies them to one vocabulary and
//! one text. The sampling algorithms
//! are in core ([`sluice::core::sampler`]).
//!
//! ```no_run
//! use sluice_text::sampling::{Sampler, SamplingSettings};
//! # fn f(tokenizer: &sluice::core::tokenizer::Tokenizer<'_>, logits: &[f32], history: &[u32])
//! # -> Result<(), Box<dyn core::error::Error>> {
//! let mut sampler = Sampler::new(&SamplingSettings::default(), tokenizer, 4096)?;
//! let token = sampler.sample(logits, history, 0, 17)?;
//! # Ok(()) }
//! ```

mod biased;
mod breakers;
mod budget;
mod error;
mod guide;
mod lazy;
mod left;
mod parameters;
mod scan;
mod settings;
#[cfg(test)]
mod tests;

pub use breakers::DrySequenceBreakers;
pub use error::SamplingError;
pub use guide::Helper;
pub use parameters::{PARAMETERS, Parameter, Place, Setting, decimal, random_seed};
pub use settings::SamplingSettings;

use crate::assistant::{Dialect, Triggers};
use crate::grammar::{Grammar, Vocabulary};
use biased::Biased;
use budget::Budget;
use guide::Guide;
use lazy::Lazy;
use sluice::sequence::{ChoiceContext, ChoiceError, Choose, TokenReport};
use sluice_core::sampler::{
    Candidate, Candidates, LogitBias, LogitsProcessor, Mirostat, SamplerChain, SamplerConfig,
    TokenLogProbability, VocabMask, log_probability, top_log_probabilities,
};
use sluice_core::tokenizer::{EncodeOptions, Tokenizer};
use std::sync::MutexGuard;

/// Samples the tokens of one text. After construction, sampling does not allocate (except for a
/// grammar or a budget).
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    counts_prompt: bool,
    mirostat: Mirostat,
    /// The biases that always apply, followed by those that apply to the first `min_tokens` tokens.
    biases: Vec<LogitBias>,
    n_always: usize,
    bad_words: Vec<Vec<u32>>,
    min_tokens: usize,
    /// Number of tokens of the text so far.
    n_taken: usize,
    breakers: DrySequenceBreakers,
    dry_workspace: Vec<u32>,
    candidates: Vec<Candidate>,
    report: Option<TokenReport>,
    /// Present if the report is of what the samplers leave: of how many tokens.
    n_left: Option<usize>,
    grammar: Option<Guide>,
    /// Present if the grammar waits for a trigger.
    lazy: Option<Lazy>,
    budget: Option<Budget>,
    /// Present if a grammar or a budget follows the text.
    vocabulary: Option<Vocabulary>,
}

impl Sampler {
    /// A sampler for a vocabulary and texts of up to `n_ctx` tokens.
    ///
    /// # Errors
    /// A setting is out of range, a bias is for a token outside the vocabulary, or the vocabulary cannot
    /// encode a sequence breaker.
    pub fn new(
        settings: &SamplingSettings,
        tokenizer: &Tokenizer<'_>,
        n_ctx: usize,
    ) -> Result<Self, SamplingError> {
        let config = settings.config;
        let mirostat = SamplerChain::new(config)?.mirostat();
        let n_vocab = tokenizer.n_vocab();
        let biased = settings.biases.iter().map(|bias| bias.id);
        let mut named = biased.chain(settings.bad_words.iter().flatten().copied());
        if let Some(id) = named.find(|&id| id >= n_vocab) {
            return Err(SamplingError::UnknownToken { id, n_vocab });
        }
        let ends =
            (0..n_vocab).filter(|&id| settings.ignore_eos && tokenizer.is_end_of_generation(id));
        let never = ends.chain(tokenizer.suppressed()).map(|id| LogitBias {
            id,
            bias: f32::NEG_INFINITY,
        });
        let breakers = if config.dry.is_neutral() {
            DrySequenceBreakers::default()
        } else {
            DrySequenceBreakers::new(&settings.dry_sequence_breakers, tokenizer)?
        };
        let biases: Vec<_> = settings.biases.iter().copied().chain(never).collect();
        Ok(Self {
            config,
            counts_prompt: settings.counts_prompt,
            mirostat,
            n_always: biases.len(),
            biases,
            bad_words: settings.bad_words.clone(),
            min_tokens: 0,
            n_taken: 0,
            breakers,
            dry_workspace: vec![0; config.dry.workspace_len(n_ctx)],
            candidates: vec![Candidate::default(); n_vocab as usize],
            report: settings.n_probs.map(|n| TokenReport {
                chosen: TokenLogProbability::default(),
                top: vec![TokenLogProbability::default(); n.min(n_vocab as usize)],
            }),
            n_left: settings.n_probs.filter(|_| settings.post_sampling),
            grammar: None,
            lazy: None,
            budget: None,
            vocabulary: None,
        })
    }

    /// Requires at least `n` tokens before a token that ends the text: one of the vocabulary's, or of
    /// `stop_tokens`. A grammar that is complete ends the text earlier.
    #[must_use]
    pub fn with_min_tokens(
        mut self,
        n: usize,
        stop_tokens: &[u32],
        tokenizer: &Tokenizer<'_>,
    ) -> Self {
        let ends = (0..tokenizer.n_vocab()).filter(|&id| tokenizer.is_end_of_generation(id));
        let early = ends.chain(stop_tokens.iter().copied());
        self.biases.truncate(self.n_always);
        self.biases.extend(early.map(|id| LogitBias {
            id,
            bias: f32::NEG_INFINITY,
        }));
        self.min_tokens = n;
        self
    }

    /// Restricts the text to `grammar` from its start.
    #[must_use]
    pub fn with_grammar(mut self, grammar: Grammar) -> Self {
        self.grammar = Some(Guide::new(grammar));
        self.lazy = None;
        self
    }

    /// Leaves the text free until a trigger is written, and restricts it to `grammar` after the
    /// trigger.
    #[must_use]
    pub fn with_lazy_grammar(mut self, grammar: Grammar, triggers: Triggers) -> Self {
        self.vocabulary = Some(grammar.vocabulary().clone());
        self.grammar = Some(Guide::new(grammar));
        self.lazy = Some(Lazy::new(triggers));
        self
    }

    /// Lets `helper` make the grammar's slow masks while the model reads a token. If the helper has not started a
    /// mask when it is needed, the sampler makes it.
    #[must_use]
    pub fn with_helper(mut self, helper: Helper) -> Self {
        if let Some(grammar) = &mut self.grammar {
            grammar.set_helper(helper);
        }
        self
    }

    /// Ends reasoning after `n` tokens of it; 0 ends it at once. The dialect defines the marks, and
    /// `prompt_end` may already have begun reasoning. Has no effect if the dialect does not support reasoning.
    ///
    /// # Errors
    /// The vocabulary cannot encode the closing mark.
    pub fn with_reasoning_budget(
        mut self,
        n: usize,
        dialect: &Dialect,
        prompt_end: &str,
        tokenizer: &Tokenizer<'_>,
        vocabulary: &Vocabulary,
    ) -> Result<Self, SamplingError> {
        let reasoning = dialect.reasoning_of(dialect.reasoning_state(prompt_end));
        if let (Some(reasoning), Some(end)) = (reasoning, dialect.reasoning_end()) {
            let closing = encoded(end, tokenizer)?;
            self.budget = Some(Budget::new(n, reasoning, closing));
            self.vocabulary = Some(vocabulary.clone());
        }
        Ok(self)
    }

    /// Whether the grammar is complete, so that nothing may follow the last token.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.grammar.as_ref().is_some_and(Guide::is_complete)
    }

    /// Starts another text: clears everything learnt from the last one.
    pub fn restart(&mut self) {
        let Mirostat {
            version, tau, eta, ..
        } = self.mirostat;
        self.mirostat = Mirostat::new(version, tau, eta);
        self.n_taken = 0;
        if let Some(grammar) = &mut self.grammar {
            // A poisoned grammar is reported when a mask is requested.
            let _restarted = grammar.change(self.lazy.is_none(), Grammar::restart);
        }
        if let Some(lazy) = &mut self.lazy {
            lazy.restart();
        }
        if let Some(budget) = &mut self.budget {
            budget.restart();
        }
    }

    /// Samples the token after `history`, the whole text so far, at `position` of choice `number` of
    /// its request (position and number are the random counter).
    ///
    /// `logits: (n_vocab)`. The token counts as accepted: the sampler updates its state from the text
    /// now.
    ///
    /// # Errors
    /// The logits are broken, or no token is allowed.
    pub fn sample(
        &mut self,
        logits: &[f32],
        history: &[u32],
        number: u32,
        position: u32,
    ) -> Result<u32, SamplingError> {
        let mut config = self.config;
        if !self.counts_prompt {
            config.count_last_n = u32::try_from(self.n_taken).unwrap_or(u32::MAX);
        }
        let mut chain = SamplerChain::new(config)?
            .with_dry(self.breakers.view(), &mut self.dry_workspace)
            .with_mirostat(self.mirostat);
        let context = chain.context(history, number, position);
        let is_early = self.n_taken < self.min_tokens;
        let n_biases = if is_early {
            self.biases.len()
        } else {
            self.n_always
        };
        let mut bias = Biased {
            biases: &self.biases[..n_biases],
            bad_words: &self.bad_words,
            written: &history[history.len().saturating_sub(self.n_taken)..],
        };
        let mut mask = VocabMask { words: &[] };
        let is_awake = self.lazy.as_ref().is_none_or(Lazy::is_awake);
        let grammar = self.grammar.as_ref().filter(|_| is_awake);
        let mut grammar = grammar.map(Guide::lock).transpose()?;
        if let Some(grammar) = &mut grammar {
            mask.words = grammar.mask()?;
        }
        let mut forced = self.budget.as_ref().and_then(Budget::forced);
        if let Some(budget) = self.budget.as_mut()
            && forced.is_some_and(|token| !is_allowed(mask.words, token))
        {
            budget.yield_to_grammar();
            forced = None;
        }
        let has_mask = !mask.words.is_empty();
        let first = usize::from(bias.is_neutral());
        let mut both: [&mut dyn LogitsProcessor; 2] = [&mut bias, &mut mask];
        let end = if has_mask { 2 } else { 1 };
        let first = &mut both[first.min(end)..end];
        let token = match forced {
            Some(token) => token,
            None => chain.sample(logits, &mut self.candidates, first, &context)?,
        };
        if let Some((n, report)) = self.n_left.zip(self.report.as_mut()) {
            let mut left = Candidates::from_logits(&mut self.candidates, logits)?;
            for processor in first {
                processor.apply(&mut left, &context);
            }
            chain.apply(&mut left, &context);
            *report = left::report(&mut left, token, n)?;
        }
        self.mirostat = chain.mirostat();
        drop(grammar);
        self.n_taken += 1;
        self.take(token, forced.is_some())?;
        if let Some(report) = self.report.as_mut().filter(|_| self.n_left.is_none()) {
            report.chosen = TokenLogProbability {
                id: token,
                log_probability: log_probability(logits, token)?,
            };
            let n = top_log_probabilities(logits, &mut report.top)?;
            report.top.truncate(n);
        }
        Ok(token)
    }

    /// The grammar, if it applies now.
    fn awake(&self) -> Option<MutexGuard<'_, Grammar>> {
        let is_awake = self.lazy.as_ref().is_none_or(Lazy::is_awake);
        let grammar = self.grammar.as_ref();
        let grammar = grammar.filter(|grammar| is_awake && !grammar.is_complete())?;
        grammar.lock().ok()
    }

    /// Advances everything that follows the text by `token`.
    fn take(&mut self, token: u32, is_forced: bool) -> Result<(), SamplingError> {
        let piece = self.vocabulary.as_ref().map(|all| all.shown(token));
        if let (Some(budget), Some(piece)) = (&mut self.budget, piece) {
            budget.push(piece, is_forced);
        }
        let Some(grammar) = &mut self.grammar else {
            return Ok(());
        };
        match (&mut self.lazy, piece) {
            (Some(lazy), Some(piece)) if !lazy.is_awake() => {
                grammar.change(false, |grammar| lazy.push(piece, grammar))?;
            }
            _ => grammar.change(true, |grammar| grammar.accept(token))??,
        }
        Ok(())
    }

    /// The log-probability of the last token, if it is recorded.
    #[must_use]
    pub fn report(&self) -> Option<&TokenReport> {
        self.report.as_ref()
    }

    /// The chain's settings.
    #[must_use]
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }
}

/// Whether a mask allows `token`; an empty mask allows all.
fn is_allowed(words: &[u64], token: u32) -> bool {
    let word = words.get(token as usize / 64);
    words.is_empty() || word.is_some_and(|word| (word >> (token % 64)) & 1 == 1)
}

/// Encodes a mark.
fn encoded(text: &str, tokenizer: &Tokenizer<'_>) -> Result<Vec<u32>, SamplingError> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
    let mut tokens = vec![0; tokenizer.max_tokens(text.len())];
    let tokens = tokenizer.encode(text, options, &mut workspace, &mut tokens);
    let tokens = tokens.map_err(|source| SamplingError::Mark {
        text: text.to_owned(),
        source: Box::new(source),
    })?;
    Ok(tokens.to_vec())
}

impl Choose for Sampler {
    fn begin(&mut self) {
        self.restart();
    }

    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        let token = self.sample(logits, choice.history, choice.number, choice.position);
        token.map_err(ChoiceError::new)
    }

    fn is_complete(&self) -> bool {
        self.is_complete()
    }

    fn report(&self) -> Option<&TokenReport> {
        self.report.as_ref()
    }

    fn forced(&mut self) -> Vec<u32> {
        if let Some(closing) = self
            .budget
            .as_ref()
            .map(Budget::rest)
            .filter(|all| !all.is_empty())
        {
            return closing.to_vec();
        }
        self.awake()
            .map_or_else(Vec::new, |grammar| grammar.forced())
    }

    fn n_allowed(&mut self, tokens: &[u32]) -> usize {
        self.awake()
            .map_or(tokens.len(), |grammar| grammar.n_allowed(tokens))
    }

    fn copy(&self) -> Option<Box<dyn Choose + Send>> {
        Some(Box::new(Self {
            report: None,
            ..self.clone()
        }))
    }
}

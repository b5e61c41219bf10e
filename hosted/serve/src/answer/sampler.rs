//! Checks the generation options of a request for a model, and makes samplers.

use crate::api::{ApiError, Biased, Defaults, Generation};
use crate::chat::answer::Constraint;
use crate::engine::JobError;
use crate::models::Loaded;
use sluice::Model;
use sluice::sequence::Choose;
use sluice_core::sampler::LogitBias;
use sluice_core::tokenizer::EncodeOptions;
use sluice_text::assistant::Triggers;
use sluice_text::grammar::{Grammar, GrammarSource};
use sluice_text::sampling::{Helper, Sampler, SamplingError, random_seed};
use std::time::Instant;

type Result<T> = core::result::Result<T, ApiError>;

/// The generation options of a request, checked for a model: its sampling has the seed and all biases.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) generation: Generation,
    pub(super) deadline: Option<Instant>,
    /// Number of tokens to keep when older ones are dropped; `None` ends the text when the context is full.
    pub(super) shift: Option<usize>,
}

impl Terms {
    /// Checks generation options for a model.
    pub(super) fn new(
        mut generation: Generation,
        defaults: &Defaults,
        loaded: &Loaded,
        arrived: Instant,
    ) -> Result<Self> {
        generation.check()?;
        let shifts = shifts(&generation, defaults, loaded)?;
        let model = loaded.model();
        let n_vocab = model.tokenizer().n_vocab();
        super::prompts::check_tokens(&generation.stop_tokens, n_vocab, &|i| {
            format!("stop_tokens[{i}]")
        })?;
        for (i, word) in generation.sampling.bad_words.iter().enumerate() {
            super::prompts::check_tokens(word, n_vocab, &|j| format!("bad_words[{i}][{j}]"))?;
        }
        generation.tidy_stops()?;
        let biases = biases(&generation, model)?;
        generation.sampling.biases.extend(biases);
        let not_allowed = not_allowed(&generation, n_vocab)?;
        generation.sampling.biases.extend(not_allowed);
        generation.sampling.config.seed = generation.seed.unwrap_or_else(random_seed);
        let n_slots = loaded.n_seq();
        if let Some(slot) = generation.slot.filter(|&slot| slot as usize >= n_slots) {
            let what = format!("{slot} is not between -1 and {}", n_slots.saturating_sub(1));
            return Err(ApiError::field("slot", what));
        }
        Ok(Self {
            deadline: generation.deadline.map(|time| arrived + time),
            shift: shifts.then_some(generation.n_keep),
            generation,
        })
    }
}

/// Whether older tokens are dropped when the context is full. If only the default asks for it, models that cannot do it
/// ignore it; that was logged when they were loaded.
fn shifts(generation: &Generation, defaults: &Defaults, loaded: &Loaded) -> Result<bool> {
    let why_not = loaded.model().config().why_not_remove();
    match (generation.context_shift, why_not) {
        (Some(true), Some(reason)) => {
            let name = loaded.name();
            let what = format!("{name} {reason}: older tokens cannot be removed from its state");
            Err(ApiError::field("context_shift", what))
        }
        (asked, why_not) => Ok(asked.unwrap_or(defaults.context_shift) && why_not.is_none()),
    }
}

fn biases(generation: &Generation, model: &Model) -> Result<Vec<LogitBias>> {
    const FIELD: &str = "logit_bias";
    let n_vocab = model.tokenizer().n_vocab();
    let mut biases = Vec::new();
    for bias in &generation.logit_bias {
        let ids = match &bias.of {
            Biased::Token(id) => {
                super::prompts::check_tokens(&[*id], n_vocab, &|_| FIELD.to_owned())?;
                vec![*id]
            }
            Biased::Text(text) => {
                let options = EncodeOptions {
                    add_special: false,
                    parse_special: true,
                };
                let tokens = model.encode_with(text, options);
                tokens.map_err(|error| ApiError::field(FIELD, error.to_string()))?
            }
        };
        let bias = bias.bias;
        biases.extend(ids.into_iter().map(|id| LogitBias { id, bias }));
    }
    Ok(biases)
}

/// Excludes all tokens that are not in the list of allowed ones.
fn not_allowed(generation: &Generation, n_vocab: u32) -> Result<Vec<LogitBias>> {
    const FIELD: &str = "allowed_tokens";
    let Some(allowed) = &generation.allowed_tokens else {
        return Ok(Vec::new());
    };
    super::prompts::check_tokens(allowed, n_vocab, &|i| format!("{FIELD}[{i}]"))?;
    if allowed.is_empty() {
        return Err(ApiError::field(FIELD, "allows no token at all"));
    }
    let mut is_allowed = vec![false; n_vocab as usize];
    for &id in allowed {
        is_allowed[id as usize] = true;
    }
    let never = (0..n_vocab).filter(|&id| !is_allowed[id as usize]);
    let bias = f32::NEG_INFINITY;
    Ok(never.map(|id| LogitBias { id, bias }).collect())
}

/// Checks the length first, so that no grammar is compiled in vain.
pub(super) fn check_length(loaded: &Loaded, n_tokens: usize) -> Result<()> {
    let n_ctx = loaded.n_ctx();
    if n_tokens >= n_ctx {
        return Err(JobError::TooLong { n_tokens, n_ctx }.into());
    }
    Ok(())
}

/// The sampler of a text.
pub(super) fn sampler(
    loaded: &Loaded,
    generation: &Generation,
    constraint: &Constraint,
    helper: Option<Helper>,
) -> Result<Box<dyn Choose + Send>> {
    let tokenizer = loaded.model().tokenizer();
    let sampler = Sampler::new(&generation.sampling, tokenizer, loaded.n_ctx());
    let mut sampler = sampler.map_err(|error| match error {
        SamplingError::UnknownToken { .. } => ApiError::field("logit_bias", error.to_string()),
        SamplingError::Breaker { .. } => {
            ApiError::field("dry_sequence_breakers", error.to_string())
        }
        error => ApiError::invalid(error.to_string()),
    })?;
    if let Some((n, dialect, prompt)) = &constraint.budget {
        let limited = loaded.vocabulary().and_then(|vocabulary| {
            let limited = sampler.with_reasoning_budget(*n, dialect, prompt, tokenizer, vocabulary);
            limited.map_err(|error| error.to_string())
        });
        sampler = limited.map_err(|error| ApiError::field("reasoning_budget", error))?;
    }
    let compiled = |source: &GrammarSource, field: &str| {
        let grammar = loaded.vocabulary().and_then(|vocabulary| {
            Grammar::compiled(source, vocabulary).map_err(|error| error.to_string())
        });
        grammar.map_err(|error| ApiError::field(field, error))
    };
    sampler = match (&constraint.calls, &generation.grammar) {
        (Some(calls), content) => {
            let grammar = compiled(&calls.source, "tools").map_err(|error| {
                // The error names the content's field if that is what cannot be compiled.
                let content = content.as_ref().map(|source| compiled(source, "grammar"));
                content.and_then(Result::err).unwrap_or(error)
            })?;
            if calls.triggers.is_empty() {
                sampler.with_grammar(grammar)
            } else {
                sampler.with_lazy_grammar(grammar, calls.triggers.clone())
            }
        }
        (None, Some(source)) => {
            let grammar = compiled(source, "grammar")?;
            match constraint.begins_behind {
                None => sampler.with_grammar(grammar),
                Some(mark) => {
                    let triggers = Triggers {
                        all: vec![mark.into()],
                        reasoning: None,
                    };
                    sampler.with_lazy_grammar(grammar, triggers)
                }
            }
        }
        (None, None) => sampler,
    };
    let n_min = generation.min_tokens;
    if n_min > 0 {
        sampler = sampler.with_min_tokens(n_min, &generation.stop_tokens, tokenizer);
    }
    if let Some(helper) = helper {
        sampler = sampler.with_helper(helper);
    }
    Ok(Box::new(sampler))
}

//! From what is asked to what the engine takes.

use crate::answer::Prompted;
use crate::api::error::ApiError;
use crate::api::reply::{Head, unix_time};
use crate::api::request::Asked;
use crate::chat::answer::Constraint;
use crate::http::{Context, unique};
use crate::models::{Lease, Loaded};
use sluice::sequence::Choose;
use sluice_text::assistant::Triggers;
use sluice_text::grammar::{Grammar, GrammarSource};
use sluice_text::sampling::{Helper, Sampler, SamplingError};

/// What a reply begins with.
pub(super) fn head(lease: &Lease, prefix: &str) -> Head {
    Head {
        id: unique(prefix),
        created: unix_time(),
        model: lease.name().to_owned(),
        fingerprint: lease.fingerprint().to_owned(),
    }
}

/// A prompt with a sampler for each choice.
pub(super) fn prompted(
    context: &Context,
    loaded: &Loaded,
    asked: &Asked,
    constraint: &Constraint,
    tokens: Vec<u32>,
    borders: Vec<usize>,
) -> Result<Prompted, ApiError> {
    check_length(loaded, tokens.len())?;
    let samplers = (0..asked.n).map(|_| {
        let sampler = sampler(loaded, asked, constraint, context.app.work().helper())?;
        Ok(match &context.wrap {
            Some(wrap) => wrap(sampler, loaded.model()),
            None => sampler,
        })
    });
    Ok(Prompted {
        tokens,
        borders,
        samplers: samplers.collect::<Result<_, ApiError>>()?,
        shows_special: asked.shows_special,
    })
}

/// Before grammars are compiled for nothing.
fn check_length(loaded: &Loaded, n_tokens: usize) -> Result<(), ApiError> {
    let n_ctx = loaded.n_ctx();
    if n_tokens >= n_ctx {
        return Err(crate::engine::JobError::TooLong { n_tokens, n_ctx }.into());
    }
    Ok(())
}

pub(super) fn sampler(
    loaded: &Loaded,
    asked: &Asked,
    constraint: &Constraint,
    helper: Option<Helper>,
) -> Result<Box<dyn Choose + Send>, ApiError> {
    let tokenizer = loaded.model().tokenizer();
    let sampler = Sampler::new(&asked.settings, tokenizer, loaded.n_ctx());
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
    sampler = match (&constraint.calls, &asked.grammar) {
        (Some(calls), _) => {
            let grammar = compiled(&calls.source, "tools")?;
            if calls.triggers.is_empty() {
                sampler.with_grammar(grammar)
            } else {
                sampler.with_lazy_grammar(grammar, calls.triggers.clone())
            }
        }
        (None, Some(source)) => {
            let grammar = compiled(source, asked.grammar_field)?;
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
    if asked.stops.n_min > 0 {
        sampler = sampler.with_min_tokens(asked.stops.n_min, &asked.stops.tokens, tokenizer);
    }
    if let Some(helper) = helper {
        sampler = sampler.with_helper(helper);
    }
    Ok(Box::new(sampler))
}

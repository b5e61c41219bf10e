//! From what is asked to what the engine takes.

use crate::answer::Prompted;
use crate::api::error::ApiError;
use crate::api::reply::{Head, unix_time};
use crate::api::request::Asked;
use crate::http::unique;
use crate::models::Loaded;
use sluice::sequence::Choose;
use sluice_text::grammar::{Grammar, GrammarSource};
use sluice_text::sampling::{Sampler, SamplingError};

/// What a reply begins with.
pub(super) fn head(loaded: &Loaded, prefix: &str) -> Head {
    Head {
        id: unique(prefix),
        created: unix_time(),
        model: loaded.name().to_owned(),
        fingerprint: loaded.fingerprint().to_owned(),
    }
}

/// A prompt with a sampler for each choice.
pub(super) fn prompted(
    loaded: &Loaded,
    asked: &Asked,
    tokens: Vec<u32>,
    borders: Vec<usize>,
) -> Result<Prompted, ApiError> {
    check_length(loaded, tokens.len())?;
    let samplers = (0..asked.n).map(|_| sampler(loaded, asked));
    Ok(Prompted {
        tokens,
        borders,
        samplers: samplers.collect::<Result<_, _>>()?,
        shows_special: false,
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

fn sampler(loaded: &Loaded, asked: &Asked) -> Result<Box<dyn Choose + Send>, ApiError> {
    let tokenizer = loaded.model().tokenizer();
    let sampler = Sampler::new(&asked.settings, tokenizer, loaded.n_ctx());
    let sampler = sampler.map_err(|error| match error {
        SamplingError::UnknownToken { .. } => ApiError::field("logit_bias", error.to_string()),
        SamplingError::Breaker { .. } => {
            ApiError::field("dry_sequence_breakers", error.to_string())
        }
        error => ApiError::invalid(error.to_string()),
    })?;
    let Some(source) = &asked.grammar else {
        return Ok(Box::new(sampler));
    };
    let grammar = Grammar::new(source, tokenizer).map_err(|error| {
        let field = match source {
            GrammarSource::Gbnf(_) => "grammar",
            GrammarSource::JsonSchema(_) => asked.grammar_field,
            GrammarSource::Composed(_) => "tools",
        };
        ApiError::field(field, error.to_string())
    })?;
    Ok(Box::new(sampler.with_grammar(grammar)))
}

//! The options that all requests for text share.

use super::ApiError;
use core::time::Duration;
use serde_json::{Map, Value};
use sluice_text::grammar::GrammarSource;
use sluice_text::sampling::SamplingSettings;
use std::sync::Arc;

/// Which model answers a request, and with which adapters.
#[derive(Clone, Debug, Default)]
pub struct ModelChoice {
    /// A model's or an adapter's name; `None` for the first model.
    pub name: Option<String>,
    /// Adapters whose sum is applied to the model; `None` for those that apply to all requests.
    pub adapters: Option<Vec<AdapterChoice>>,
    /// How long the model stays in memory after the request, unless another one uses it; `None` for the server's own
    /// rule: until another model needs the place.
    pub keep_for: Option<Duration>,
}

/// What Ollama's clients may add to a name: the usual variant.
pub(crate) const LATEST: &str = ":latest";

/// An adapter of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterChoice {
    /// The adapter.
    pub adapter: AdapterName,
    /// Its factor, -1e6 to 1e6; usually 1.
    pub scale: f32,
}

/// How a request refers to an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterName {
    /// The name it was loaded under.
    Name(String),
    /// Its number in the list of adapters.
    Number(u64),
}

/// How a text is generated: what it may contain, when it ends, and when it is computed.
///
/// [`Generation::new`] has the defaults of a server.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Texts for each prompt, 1 to 128; 1 by default.
    pub n: usize,
    /// Maximum number of tokens of a text; `None` for as many as the context has room for.
    pub max_tokens: Option<usize>,
    /// How tokens are sampled. The seed in it is ignored: see `seed`.
    pub sampling: SamplingSettings,
    /// The seed; `None` draws one for each request.
    pub seed: Option<u64>,
    /// Added to the logits of tokens.
    pub logit_bias: Vec<Bias>,
    /// The only tokens that may be chosen; `None` for all.
    pub allowed_tokens: Option<Vec<u32>>,
    /// Texts that end the text, up to 64 of up to 4096 bytes; empty ones are ignored.
    pub stop: Vec<String>,
    /// Tokens that end the text in addition to the vocabulary's own, up to 1024.
    pub stop_tokens: Vec<u32>,
    /// Whether the stop text is part of the text.
    pub shows_stop: bool,
    /// Minimum number of tokens of a text, up to `max_tokens`.
    pub min_tokens: usize,
    /// Whether control tokens are part of the text.
    pub shows_special: bool,
    /// What the text has to match.
    pub grammar: Option<GrammarSource>,
    /// Lower values are computed first; 0 by default.
    pub priority: i32,
    /// Time after the request's arrival at which its texts end.
    pub deadline: Option<Duration>,
    /// Maximum time from the first token of a text to its end.
    pub predict_for: Option<Duration>,
    /// Whether cached prompts are reused and this prompt is cached; true by default.
    pub uses_cache: bool,
    /// Cached prompts are shared only between requests with the same salt, up to 1024 bytes.
    pub cache_salt: Arc<str>,
    /// The slot to run in; `None` for any.
    pub slot: Option<u32>,
    /// Whether older tokens are dropped when the context is full; `None` for the server's default, which has no effect
    /// on models that cannot drop tokens.
    pub context_shift: Option<bool>,
    /// Number of initial tokens that are kept when older tokens are dropped; `usize::MAX` for the whole prompt.
    pub n_keep: usize,
    /// Whether events are sent as they happen; if false, they may be sent together at the end.
    pub streams: bool,
    /// Whether [`PromptProgress`](super::PromptProgress) is reported while the prompt is read.
    pub reports_progress: bool,
    /// Whether every piece has its timings.
    pub times_pieces: bool,
    /// The context that the client counts on, in tokens; a shorter one is logged.
    pub wants_ctx: Option<usize>,
}

/// A bias of a token's logit.
#[derive(Clone, Debug, PartialEq)]
pub struct Bias {
    /// What it is for.
    pub of: Biased,
    /// Added to the logit; minus infinity excludes the token.
    pub bias: f32,
}

/// What a bias is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Biased {
    /// A token.
    Token(u32),
    /// Every token of a text.
    Text(String),
}

/// Values for the fields that a request leaves out.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// How tokens are sampled.
    pub sampling: SamplingSettings,
    /// The seed; `None` draws one for each request.
    pub seed: Option<u64>,
    /// Maximum number of tokens of a text; `None` for as many as the context has room for.
    pub n_predict: Option<usize>,
    /// Whether older tokens are dropped when the context is full.
    pub context_shift: bool,
    /// Variables of chat templates.
    pub template_kwargs: Map<String, Value>,
    /// Whether reasoning is separated from the content of an answer.
    pub splits_reasoning: bool,
    /// Maximum number of reasoning tokens; 0 ends reasoning at once, `None` for no limit.
    pub reasoning_budget: Option<usize>,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            sampling: SamplingSettings::default(),
            seed: None,
            n_predict: None,
            context_shift: false,
            template_kwargs: Map::new(),
            splits_reasoning: true,
            reasoning_budget: None,
        }
    }
}

impl Generation {
    /// The defaults of a server.
    #[must_use]
    pub fn new(defaults: &Defaults) -> Self {
        Self {
            n: 1,
            max_tokens: defaults.n_predict,
            sampling: defaults.sampling.clone(),
            seed: defaults.seed,
            logit_bias: Vec::new(),
            allowed_tokens: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            shows_stop: false,
            min_tokens: 0,
            shows_special: false,
            grammar: None,
            priority: 0,
            deadline: None,
            predict_for: None,
            uses_cache: true,
            cache_salt: "".into(),
            slot: None,
            context_shift: None,
            n_keep: 0,
            streams: false,
            reports_progress: false,
            times_pieces: false,
            wants_ctx: None,
        }
    }

    /// Checks everything that does not depend on a model.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        if !(1..=N_MAX).contains(&self.n) {
            return Err(ApiError::field(
                "n",
                format!("{} is not between 1 and {N_MAX}", self.n),
            ));
        }
        if let Some(max) = self.max_tokens.filter(|&max| max < self.min_tokens) {
            let what = format!("is {} tokens, but max_tokens is {max}", self.min_tokens);
            return Err(ApiError::field("min_tokens", what));
        }
        at_most("stop", "texts", self.stop.len(), STOPS_MAX)?;
        if self.stop.iter().any(|stop| stop.len() > STOP_BYTES_MAX) {
            let what = format!("is longer than {STOP_BYTES_MAX} bytes");
            return Err(ApiError::field("stop", what));
        }
        if self.cache_salt.len() > SALT_BYTES_MAX {
            let what = format!("is longer than {SALT_BYTES_MAX} bytes");
            return Err(ApiError::field("cache_salt", what));
        }
        if self.sampling.n_probs.is_some_and(|n| n > TOP_MAX) {
            let what = format!("exceeds the maximum of {TOP_MAX}");
            return Err(ApiError::field("logprobs", what));
        }
        Ok(())
    }

    /// Sorts the stop tokens and drops empty stop texts.
    ///
    /// # Errors
    /// There are too many stop tokens. The limit exists because the engine searches them for each token.
    pub(crate) fn tidy_stops(&mut self) -> Result<(), ApiError> {
        // An empty stop text would end every answer before it begins. OpenAI clients do send them.
        self.stop.retain(|stop| !stop.is_empty());
        self.stop_tokens.sort_unstable();
        self.stop_tokens.dedup();
        at_most(
            "stop_tokens",
            "tokens",
            self.stop_tokens.len(),
            STOP_TOKENS_MAX,
        )
    }
}

fn at_most(field: &str, of: &str, n: usize, max: usize) -> Result<(), ApiError> {
    if n <= max {
        return Ok(());
    }
    let what = format!("has {n} {of}, more than the maximum of {max}");
    Err(ApiError::field(field, what))
}

/// Maximum number of texts for each prompt.
const N_MAX: usize = 128;
/// Maximum number of likely tokens reported with each token.
pub const TOP_MAX: usize = 1000;
const SALT_BYTES_MAX: usize = 1024;
const STOPS_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 4096;
const STOP_TOKENS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_model_allows_is_named() {
        let of = |change: &dyn Fn(&mut Generation)| {
            let mut generation = Generation::new(&Defaults::default());
            change(&mut generation);
            let checked = generation.check().and_then(|()| generation.tidy_stops());
            checked.err().and_then(|error| error.field)
        };
        assert_eq!(of(&|_| {}), None);
        assert_eq!(of(&|g| g.n = 0).unwrap(), "n");
        assert_eq!(of(&|g| g.stop = vec!["x".into(); 65]).unwrap(), "stop");
        assert_eq!(of(&|g| g.stop = vec!["x".repeat(4097)]).unwrap(), "stop");
        let tokens = of(&|g| g.stop_tokens = (0..1025).collect());
        assert_eq!(tokens.unwrap(), "stop_tokens");
        let salt = of(&|g| g.cache_salt = "x".repeat(1025).into());
        assert_eq!(salt.unwrap(), "cache_salt");
        let min = of(&|g| (g.min_tokens, g.max_tokens) = (3, Some(2)));
        assert_eq!(min.unwrap(), "min_tokens");
    }

    #[test]
    fn empty_stops_end_nothing() {
        let mut generation = Generation::new(&Defaults::default());
        generation.stop = vec![String::new(), "x".to_owned()];
        generation.stop_tokens = vec![3, 1, 3];
        generation.tidy_stops().unwrap();
        assert_eq!(generation.stop, ["x"]);
        assert_eq!(generation.stop_tokens, [1, 3]);
    }
}

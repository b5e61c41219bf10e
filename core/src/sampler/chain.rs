//! The usual pipeline as one value: llama.cpp's samplers, order and defaults.

use super::{
    Candidate, Candidates, Dry, DryBreakers, DryConfig, DynamicTemperature, LogitsProcessor, MinP,
    Mirostat, MirostatVersion, RepetitionPenalty, SampleContext, SampleError, SamplerKind,
    SamplerOrder, Temperature, TopK, TopNSigma, TopP, TypicalP, Xtc, greedy,
};

/// Settings of a [`SamplerChain`]. The default is llama.cpp's, with seed 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Key of the random numbers. llama.cpp draws one where none is given; core has no source
    /// of randomness, so that is the caller's part.
    pub seed: u64,
    /// Which samplers run, in which order. A sampler that is left out does nothing, and its settings are
    /// ignored; without the temperature even a `temperature` of 0 draws.
    pub order: SamplerOrder,
    /// Divisor of the logits, default 0.8; 0 or less chooses the best token.
    pub temperature: f32,
    /// Half the width of the dynamic temperature, default 0: off.
    pub dynatemp_range: f32,
    /// How the dynamic temperature grows with the entropy, default 1.
    pub dynatemp_exponent: f32,
    /// Keep this many tokens, default 40; 0 keeps all.
    pub top_k: u32,
    /// Keep the tokens that reach this probability together, default 0.95; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this share of the best one's probability, default 0.05; 0 keeps all.
    pub min_p: f32,
    /// Keep the most typical tokens that reach this probability together, default 1: all.
    pub typical_p: f32,
    /// Keep tokens within this many standard deviations of the best logit, default -1: all.
    pub top_n_sigma: f32,
    /// Chance of leaving out the top choices, default 0.
    pub xtc_probability: f32,
    /// Minimum probability of a top choice, default 0.1; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Minimum number of tokens that top-p, min-p, typical-p and XTC keep, default 0.
    pub min_keep: u32,
    /// Number of the latest tokens that are penalised, default 64; 0 for none.
    pub repeat_last_n: u32,
    /// Number of the latest of these whose occurrences the frequency and presence penalties count, default all.
    pub count_last_n: u32,
    /// Penalty factor above 0, default 1 (none).
    pub repeat_penalty: f32,
    /// Subtracted per occurrence, default 0.
    pub frequency_penalty: f32,
    /// Subtracted once from tokens that occurred, default 0.
    pub presence_penalty: f32,
    /// The penalty on continuing a repetition, default off. It needs
    /// [`SamplerChain::with_dry`].
    pub dry: DryConfig,
    /// Instead of `order`: the temperature, then this. Default off.
    pub mirostat: MirostatVersion,
    /// Mirostat's target of surprise in bits, default 5.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate, default 0.1.
    pub mirostat_eta: f32,
}

impl SamplerConfig {
    /// llama.cpp's defaults, with seed 0.
    pub const DEFAULT: Self = Self {
        seed: 0,
        order: SamplerOrder::DEFAULT,
        temperature: 0.8,
        dynatemp_range: 0.0,
        dynatemp_exponent: 1.0,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        typical_p: 1.0,
        top_n_sigma: -1.0,
        xtc_probability: 0.0,
        xtc_threshold: 0.1,
        min_keep: 0,
        repeat_last_n: 64,
        count_last_n: u32::MAX,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        dry: DryConfig::DEFAULT,
        mirostat: MirostatVersion::Off,
        mirostat_tau: 5.0,
        mirostat_eta: 0.1,
    };

    /// # Errors
    /// [`SampleError::Setting`] naming the field that is out of range.
    fn check(&self) -> Result<(), SampleError> {
        let finite = [
            ("temperature", self.temperature),
            ("dynatemp_range", self.dynatemp_range),
            ("dynatemp_exponent", self.dynatemp_exponent),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("typical_p", self.typical_p),
            ("top_n_sigma", self.top_n_sigma),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
            ("repeat_penalty", self.repeat_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
            ("dry_multiplier", self.dry.multiplier),
            ("dry_base", self.dry.base),
            ("mirostat_tau", self.mirostat_tau),
            ("mirostat_eta", self.mirostat_eta),
        ];
        let infinite = finite.iter().find(|(_, value)| !value.is_finite());
        if let Some(&(name, _)) = infinite {
            return Err(SampleError::Setting { name });
        }
        if self.repeat_penalty <= 0.0 {
            let name = "repeat_penalty";
            return Err(SampleError::Setting { name });
        }
        Ok(())
    }

    fn penalty(&self) -> RepetitionPenalty {
        RepetitionPenalty {
            repeat_last_n: self.repeat_last_n,
            count_last_n: self.count_last_n,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
        }
    }

    fn xtc(&self) -> Xtc {
        Xtc {
            probability: self.xtc_probability,
            threshold: self.xtc_threshold,
            min_keep: self.min_keep,
        }
    }

    /// Whether the chain keeps the best token the best and then takes it: no list is needed.
    fn is_greedy(&self) -> bool {
        let keeps_best = |kind: &SamplerKind| match kind {
            SamplerKind::Penalties => self.penalty().is_neutral(),
            SamplerKind::Dry => self.dry.is_neutral(),
            SamplerKind::TypicalP => self.typical_p >= 1.0,
            SamplerKind::Xtc => self.xtc().is_neutral(),
            _ => true,
        };
        self.temperature <= 0.0
            && self.dynatemp_range <= 0.0
            && self.mirostat == MirostatVersion::Off
            && self.order.contains(SamplerKind::Temperature)
            && self.order.as_slice().iter().all(keeps_best)
    }
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The samplers of a [`SamplerConfig`] and the draw.
///
/// It is itself a [`LogitsProcessor`] (everything but the draw), so it can be part of a longer
/// list.
#[derive(Debug)]
pub struct SamplerChain<'m> {
    config: SamplerConfig,
    mirostat: Mirostat,
    breakers: DryBreakers<'m>,
    dry_workspace: &'m mut [u32],
}

impl<'m> SamplerChain<'m> {
    /// A chain with these settings.
    ///
    /// # Errors
    /// [`SampleError::Setting`] naming a setting that is not finite, or a `repeat_penalty` that
    /// is not above 0.
    pub fn new(config: SamplerConfig) -> Result<Self, SampleError> {
        config.check()?;
        Ok(Self {
            config,
            mirostat: Mirostat::new(config.mirostat, config.mirostat_tau, config.mirostat_eta),
            breakers: DryBreakers::default(),
            dry_workspace: &mut [],
        })
    }

    /// Adds what DRY needs: sequence breakers, and scratch of
    /// [`DryConfig::workspace_len`] words for the longest history.
    #[must_use]
    pub fn with_dry(mut self, breakers: DryBreakers<'m>, workspace: &'m mut [u32]) -> Self {
        self.breakers = breakers;
        self.dry_workspace = workspace;
        self
    }

    /// The chain with Mirostat as another chain of the same settings left it
    /// ([`Self::mirostat`]).
    #[must_use]
    pub fn with_mirostat(mut self, mirostat: Mirostat) -> Self {
        self.mirostat = mirostat;
        self
    }

    /// Chooses the next token from `logits: (n_vocab)`.
    ///
    /// `first` (biases, a grammar's mask, the caller's own) runs before the chain. `storage`
    /// needs one entry per logit; what it holds afterwards is unspecified. A caller who wants
    /// the remaining candidates applies the chain to [`Candidates`] and then draws.
    ///
    /// # Errors
    /// Any [`SampleError`] of [`Candidates::from_logits`] or [`sample`](super::sample);
    /// [`SampleError::DryWorkspaceTooSmall`].
    pub fn sample(
        &mut self,
        logits: &[f32],
        storage: &mut [Candidate],
        first: &mut [&mut dyn LogitsProcessor],
        context: &SampleContext<'_>,
    ) -> Result<u32, SampleError> {
        if first.is_empty() && self.config.is_greedy() {
            return greedy(logits);
        }
        let needed = self.config.dry.workspace_len(context.history.len());
        let available = self.dry_workspace.len();
        if needed > available {
            return Err(SampleError::DryWorkspaceTooSmall { needed, available });
        }
        let mut candidates = Candidates::from_logits(storage, logits)?;
        for processor in first {
            processor.apply(&mut candidates, context);
        }
        self.apply(&mut candidates, context);
        self.mirostat.sample(&mut candidates, logits.len(), context)
    }

    /// The context of a draw with this chain's seed.
    #[must_use]
    pub fn context<'h>(
        &self,
        history: &'h [u32],
        sequence: u32,
        position: u32,
    ) -> SampleContext<'h> {
        SampleContext {
            history,
            sequence,
            position,
            seed: self.config.seed,
        }
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Mirostat, with what it has learnt so far: the only state of a chain.
    #[must_use]
    pub fn mirostat(&self) -> Mirostat {
        self.mirostat
    }

    fn apply_one(
        &mut self,
        kind: SamplerKind,
        candidates: &mut Candidates<'_>,
        context: &SampleContext<'_>,
    ) {
        let config = &self.config;
        let min_keep = config.min_keep;
        match kind {
            SamplerKind::Penalties => config.penalty().apply(candidates, context),
            SamplerKind::Dry => Dry {
                config: config.dry,
                breakers: self.breakers,
                workspace: self.dry_workspace,
            }
            .apply(candidates, context),
            SamplerKind::TopNSigma => TopNSigma {
                n: config.top_n_sigma,
            }
            .apply(candidates, context),
            SamplerKind::TopK => TopK { k: config.top_k }.apply(candidates, context),
            SamplerKind::TypicalP => TypicalP {
                p: config.typical_p,
                min_keep,
            }
            .apply(candidates, context),
            SamplerKind::TopP => TopP {
                p: config.top_p,
                min_keep,
            }
            .apply(candidates, context),
            SamplerKind::MinP => MinP {
                p: config.min_p,
                min_keep,
            }
            .apply(candidates, context),
            SamplerKind::Xtc => config.xtc().apply(candidates, context),
            SamplerKind::Temperature => DynamicTemperature {
                temperature: config.temperature,
                range: config.dynatemp_range,
                exponent: config.dynatemp_exponent,
            }
            .apply(candidates, context),
        }
    }
}

impl LogitsProcessor for SamplerChain<'_> {
    fn apply(&mut self, candidates: &mut Candidates<'_>, context: &SampleContext<'_>) {
        if self.config.mirostat != MirostatVersion::Off {
            let temperature = self.config.temperature;
            Temperature { temperature }.apply(candidates, context);
            return;
        }
        let order = self.config.order;
        for &kind in order.as_slice() {
            self.apply_one(kind, candidates, context);
        }
    }
}

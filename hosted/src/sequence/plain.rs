//! The default sampler of a sequence.

use super::{ChoiceContext, ChoiceError, Choose};
use sluice_core::sampler::{
    Candidate, DryBreakers, LogitBias, LogitBiases, Mirostat, SampleError, SamplerChain,
    SamplerConfig,
};
use sluice_core::tokenizer::Tokenizer;

/// Core's chain of samplers with the memory it needs. After it is made, a draw allocates nothing.
#[derive(Clone, Debug)]
pub struct PlainSampler {
    config: SamplerConfig,
    mirostat: Mirostat,
    dry_workspace: Vec<u32>,
    candidates: Vec<Candidate>,
    biases: Vec<LogitBias>,
}

impl PlainSampler {
    /// A sampler for the vocabulary of `tokenizer` and texts of at most `n_ctx` tokens.
    ///
    /// # Errors
    /// A setting that is out of range.
    pub fn new(
        config: SamplerConfig,
        tokenizer: &Tokenizer<'_>,
        n_ctx: usize,
    ) -> Result<Self, SampleError> {
        let suppress = |id| LogitBias {
            id,
            bias: f32::NEG_INFINITY,
        };
        Ok(Self {
            config,
            mirostat: SamplerChain::new(config)?.mirostat(),
            dry_workspace: vec![0; config.dry.workspace_len(n_ctx)],
            candidates: vec![Candidate::default(); tokenizer.n_vocab() as usize],
            biases: tokenizer.suppressed().map(suppress).collect(),
        })
    }
}

impl Choose for PlainSampler {
    fn begin(&mut self) {
        let Mirostat {
            version, tau, eta, ..
        } = self.mirostat;
        self.mirostat = Mirostat::new(version, tau, eta);
    }

    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        let chain = SamplerChain::new(self.config).map_err(ChoiceError::new)?;
        let mut chain = chain
            .with_dry(DryBreakers::default(), &mut self.dry_workspace)
            .with_mirostat(self.mirostat);
        let context = chain.context(choice.history, choice.number, choice.position);
        let mut bias = LogitBiases(&self.biases);
        let token = chain.sample(logits, &mut self.candidates, &mut [&mut bias], &context);
        let token = token.map_err(ChoiceError::new)?;
        self.mirostat = chain.mirostat();
        Ok(token)
    }

    fn copy(&self) -> Option<Box<dyn Choose + Send>> {
        Some(Box::new(self.clone()))
    }
}

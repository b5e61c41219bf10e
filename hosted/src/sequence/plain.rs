//! The sampler of a sequence that brings none.

use super::{Choice, ChoiceError, Choose};
use sluice_core::sampler::{
    Candidate, DryBreakers, Mirostat, SampleError, SamplerChain, SamplerConfig,
};

/// Core's chain of samplers with the memory it needs. After it is made, a draw allocates nothing.
#[derive(Debug)]
pub struct PlainSampler {
    config: SamplerConfig,
    mirostat: Mirostat,
    dry_workspace: Vec<u32>,
    candidates: Vec<Candidate>,
}

impl PlainSampler {
    /// For a vocabulary of `n_vocab` tokens and texts of at most `n_ctx`.
    ///
    /// # Errors
    /// A setting that is out of range.
    pub fn new(config: SamplerConfig, n_vocab: usize, n_ctx: usize) -> Result<Self, SampleError> {
        Ok(Self {
            config,
            mirostat: SamplerChain::new(config)?.mirostat(),
            dry_workspace: vec![0; config.dry.workspace_len(n_ctx)],
            candidates: vec![Candidate::default(); n_vocab],
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

    fn choose(&mut self, logits: &[f32], choice: &Choice<'_>) -> Result<u32, ChoiceError> {
        let chain = SamplerChain::new(self.config).map_err(ChoiceError::new)?;
        let mut chain = chain
            .with_dry(DryBreakers::default(), &mut self.dry_workspace)
            .with_mirostat(self.mirostat);
        let context = chain.context(choice.history, choice.number, choice.position);
        let token = chain.sample(logits, &mut self.candidates, &mut [], &context);
        let token = token.map_err(ChoiceError::new)?;
        self.mirostat = chain.mirostat();
        Ok(token)
    }
}

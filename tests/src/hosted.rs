//! The text that a model generates through the std shell, and a hash over its logits. Every other
//! way of running the model has to give the same.

use sluice::adapter::{AdapterBlend, Precision};
use sluice::core::engine::Wants;
use sluice::core::hash::Hash64;
use sluice::file::LoadMode;
use sluice::generate::Until;
use sluice::host::topology::Cores;
use sluice::model::ModelSource;
use sluice::sequence::{ChoiceContext, ChoiceError, Choose};
use sluice::{Generator, Limits, Team};
use sluice_text::sampling::{Sampler, SamplingSettings};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The model that is part of the project.
pub const TALE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../hosted/models/tale-5.8m-Q4_K_M.gguf"
);

/// What was generated after the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// The text.
    pub text: String,
    /// Over the bits of all logits that tokens were drawn from.
    pub logits_hash: u64,
}

impl Story {
    /// The hash as all programs print it.
    #[must_use]
    pub fn hash_line(&self) -> String {
        format!("logits hash = {:#018x}", self.logits_hash)
    }
}

/// Runs the model at `path` as `sluice run` does, with default settings.
///
/// # Panics
/// If anything fails.
#[must_use]
pub fn story(path: &Path, prompt: &str, n_predict: usize, seed: u64) -> Story {
    adapted_story(path, &[], prompt, n_predict, seed)
}

/// [`story`] with adapters, each scaled by its factor.
///
/// # Panics
/// If anything fails.
#[must_use]
pub fn adapted_story(
    path: &Path,
    adapters: &[(&Path, f32)],
    prompt: &str,
    n_predict: usize,
    seed: u64,
) -> Story {
    let opened = ModelSource::open(path, LoadMode::Map).expect("a model");
    let team = Team::new(2, &Cores::detect()).expect("threads");
    let model = opened.load(&team).expect("weights");
    let parts = adapters.iter().map(|(path, scale)| {
        let loaded = sluice_hf::adapter::load(path, None, &model, Precision::Exact);
        let (adapter, _warnings) = loaded.expect("an adapter of the model");
        (adapter, *scale)
    });
    let blend = AdapterBlend::new(parts.collect());
    let limits = Limits {
        n_ctx: 512,
        adapter_rank: blend.rank(),
        adapter_kinds: blend.kinds(),
        ..Limits::default()
    };
    let mut session = model.session_on(&team, limits).expect("memory");
    session.set_adapter(Some(blend).filter(|_| !adapters.is_empty()));
    let mut settings = SamplingSettings::default();
    settings.config.seed = seed;
    let sampler = Sampler::new(&settings, model.tokenizer(), 512).expect("settings");
    let hash = Arc::<Mutex<Hash64>>::default();
    let chooser = Hashing(sampler, Arc::clone(&hash));
    let mut generator = Generator::new(session, Box::new(chooser)).expect("a sequence");
    let tokens = model.encode(prompt, true).expect("a prompt");
    let next = generator.prompt(&tokens, Wants::Logits).expect("a step");
    let until = Until {
        n_predict: Some(n_predict),
        ignore_eos: false,
        shift: None,
    };
    let mut text = String::new();
    let ended = generator.write(next, &until, |written| {
        text.push_str(written.piece);
        true
    });
    ended.expect("a text");
    let logits_hash = hash.lock().expect("nothing failed").finish();
    Story { text, logits_hash }
}

/// A sampler that hashes what it chooses from.
struct Hashing(Sampler, Arc<Mutex<Hash64>>);

impl Choose for Hashing {
    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        self.1.lock().expect("nothing failed").write_f32(logits);
        self.0.choose(logits, choice)
    }
}

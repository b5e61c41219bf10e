//! The text that a model generates through the std shell, and a hash over its logits. Every other
//! way of running the model has to give the same.

use sluice::core::engine::{Engine, EnginePlan, Limits, Wants};
use sluice::core::hash::Hash64;
use sluice::core::team::StopFlag;
use sluice::core::tokenizer::{self, EncodeOptions, Tokenizer};
use sluice::file::{LoadMode, ModelFile};
use sluice::generate::{Choice, ChoiceError, Choose, Generator, Until};
use sluice::host::isa;
use sluice::host::memory::AlignedMemory;
use sluice::host::topology::Cores;
use sluice::host::workers::Workers;
use sluice::load::{ModelMemory, load};
use sluice_core::model::ModelConfig;
use sluice_text::sampling::{Sampler, SamplingSettings};
use std::path::Path;

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
    let file = ModelFile::open(path, LoadMode::Map).expect("a model");
    let gguf = file.parse().expect("a header");
    let config = ModelConfig::from_gguf(&gguf).expect("a configuration");
    let mut words = vec![0; tokenizer::plan(&gguf).expect("a vocabulary").words];
    let tokenizer = Tokenizer::new(&gguf, &mut words).expect("a vocabulary");
    let mut workers = Workers::new(2, &Cores::detect()).expect("threads");
    let mut memory = ModelMemory::for_file(&file, &gguf, &config, 2).expect("memory");
    let stop = StopFlag::new();
    let memory = &mut memory;
    let model = load(&file, &gguf, &config, memory, &mut workers, &stop, |_| {});
    let limits = Limits::single(512, 2);
    let plan = EnginePlan::new(&config, &limits).expect("limits");
    let mut kv = AlignedMemory::zeroed(plan.kv_bytes).expect("memory");
    let mut scratch = AlignedMemory::zeroed(plan.scratch_bytes).expect("memory");
    let table = isa::kernel_table(None).expect("kernels");
    let model = model.expect("weights");
    let engine = Engine::new(model, table, &limits, &mut kv, &mut scratch).expect("an engine");

    let mut settings = SamplingSettings::default();
    settings.config.seed = seed;
    let sampler = Sampler::new(&settings, &tokenizer, 512).expect("settings");
    let mut chooser = Hashing(sampler, Hash64::new());
    let mut generator = Generator::new(engine, &mut workers, &stop, &mut chooser);
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let mut workspace = vec![0; tokenizer.encode_workspace_words(prompt.len())];
    let mut ids = vec![0; tokenizer.max_tokens(prompt.len())];
    let ids = tokenizer.encode(prompt, options, &mut workspace, &mut ids);
    let next = generator.prompt(ids.expect("a prompt"), Wants::Logits);
    let until = Until {
        n_predict: Some(n_predict),
        ignore_eos: false,
        shift: None,
    };
    let mut text = String::new();
    let next = next.expect("a step");
    let ended = generator.write(next, &until, &tokenizer, |written| {
        text.push_str(written.piece);
        true
    });
    ended.expect("a text");
    Story {
        text,
        logits_hash: chooser.1.finish(),
    }
}

/// A sampler that hashes what it chooses from.
struct Hashing(Sampler, Hash64);

impl Choose for Hashing {
    fn choose(&mut self, logits: &[f32], choice: &Choice<'_>) -> Result<u32, ChoiceError> {
        self.1.write_f32(logits);
        self.0.choose(logits, choice)
    }
}

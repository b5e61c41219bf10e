//! The embedded model tells the same story, and has the same logits, on every machine: this is the
//! test that also runs on other processors (`tests/portable.sh`), with nothing but core.
#![expect(
    clippy::print_stdout,
    reason = "`--nocapture` shows what was computed where"
)]

use sluice_core::engine::{BatchEntry, Engine, EngineLimits, EnginePlan, StepOptions, Wants};
use sluice_core::gguf::{Gguf, source::SliceSource};
use sluice_core::hash::Hash64;
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::memory::{ALIGN, Arena};
use sluice_core::model::{Loader, ModelConfig, ModelPlan};
use sluice_core::sampler::{Candidate, SamplerChain, SamplerConfig};
use sluice_core::team::{SpinWait, StopFlag};
use sluice_core::tokenizer::{self, Detokenizer, EncodeOptions, Tokenizer};
use std::env::consts::ARCH;

static MODEL: &[u8] = include_bytes!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../hosted/models/tale-5.8m-Q4_K_M.gguf"
));
const PROMPT: &str = "Once upon a time";
const N_PREDICT: usize = 24;
const SEED: u64 = 7;

/// What x86-64's scalar kernels gave, as all its other tables do; `examples/tests` finds the
/// same text and hash in a hosted run.
const TEXT: &str =
    ", there was a little boy named Tim. Tim loved to play with his toy car. One day, Tim saw a";
const HASH: u64 = 0x0fb1_9a9d_2202_4f3f;

#[test]
fn the_same_bits_on_every_machine() {
    for table in KernelTable::available(CpuFeatures::detect()) {
        let (text, hash) = story(table);
        println!(
            "{ARCH}, {} kernels: logits hash = {hash:#018x}",
            table.name()
        );
        assert_eq!(text, TEXT, "{}", table.name());
        assert_eq!(hash, HASH, "{}", table.name());
    }
}

/// The text behind the prompt, and the hash of all logits that tokens were drawn from.
fn story(table: &'static KernelTable) -> (String, u64) {
    let mut memory = vec![0; (12 << 20) + ALIGN];
    let start = memory.as_ptr().align_offset(ALIGN);
    let mut arena = Arena::new(&mut memory[start..]).expect("aligned");

    let gguf = Gguf::parse(MODEL, MODEL.len() as u64).expect("a GGUF file");
    let config = ModelConfig::from_gguf(&gguf).expect("a model");
    let words = tokenizer::plan(&gguf).expect("a vocabulary").words;
    let words = arena.slice(words, 0u32).expect("room");
    let tokenizer = Tokenizer::new(&gguf, words).expect("a vocabulary");
    let plan = ModelPlan::new(&gguf, &config).expect("weights");
    let weights = arena.bytes(plan.weight_bytes).expect("room");
    let tables = arena.bytes(plan.table_bytes).expect("room");
    let source = SliceSource(MODEL);
    let loader = Loader::new(&gguf, &config, weights, tables).expect("weights");
    loader.work(&source, &mut [], || true).expect("weights");
    let model = loader.finish(&source).expect("weights");
    let limits = EngineLimits {
        n_batch: 32,
        ..EngineLimits::single(64, 1)
    };
    let plan = EnginePlan::new(&config, &limits).expect("limits");
    let kv = arena.bytes(plan.kv_bytes).expect("room");
    let scratch = arena.bytes(plan.scratch_bytes).expect("room");
    let mut engine = Engine::new(model, table, &limits, kv, scratch).expect("room");

    let (mut workspace, mut ids) = ([0; 256], [0; 64]);
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let encoded = tokenizer.encode(PROMPT, options, &mut workspace, &mut ids);
    let mut history = encoded.expect("a short prompt").to_vec();
    let candidates = arena.slice(config.n_vocab, Candidate::default());
    let candidates = candidates.expect("room");
    let mut sampler = SamplerChain::new(SamplerConfig {
        seed: SEED,
        ..SamplerConfig::default()
    })
    .expect("settings");
    let (mut text, mut hash) = (String::new(), Hash64::new());
    let mut detokenizer = Detokenizer::continuing();
    let mut done = 0;
    for _ in 0..N_PREDICT {
        let new = history[done..].iter().zip(0u32..);
        let mut batch: Vec<_> = new
            .map(|(&token, i)| BatchEntry::new(token, 0, number(done) + i, Wants::Nothing))
            .collect();
        done = history.len();
        let last = batch.len() - 1;
        batch[last].wants = Wants::Logits;
        let stop = StopFlag::new();
        let step = engine.step(&batch, StepOptions::new(&SpinWait, &stop));
        let step = step.expect("entries in order");
        let ran = step.join(0).expect("rank 0 joins once").run();
        ran.expect("it is not stopped");
        let outputs = step.finish().expect("all ranks have run");
        let logits = outputs.logits(last).expect("asked for");
        hash.write_f32(logits);
        let context = sampler.context(&history, 0, number(done));
        let token = sampler.sample(logits, candidates, &mut [], &context);
        let token = token.expect("logits are numbers");
        let pushed = detokenizer.push(&tokenizer, token, |piece| text.push_str(piece));
        pushed.expect("a token of the vocabulary");
        history.push(token);
    }
    detokenizer.finish(|piece| text.push_str(piece));
    (text, hash.finish())
}

fn number(n: usize) -> u32 {
    u32::try_from(n).expect("contexts are short")
}

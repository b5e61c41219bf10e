//! A stream of records wakes a model only where the gate passes, and says what that saved.
//!
//! `cargo run --release -p sluice-gate --example gated_model`
//!
//! 400 sensors send a record of 256 samples each: noise of the line, and in some a knock. An
//! observer judges the records on a thread of its own; those that pass come through a channel to
//! the thread of the model, which writes a sentence about each. The printed saving counts the
//! records that were skipped at the measured price of one that was not.
#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]
#![expect(clippy::cast_precision_loss, reason = "numbers of an example")]

use core::error::Error;
use core::time::Duration;
use sluice::core::engine::{Engine, EnginePlan, Limits, Wants};
use sluice::core::gate::{GateConfig, Measure, Policy};
use sluice::core::kernels::{FrameKernels, KernelTable};
use sluice::core::model::ModelConfig;
use sluice::core::team::StopFlag;
use sluice::core::tokenizer::{self, EncodeOptions, Tokenizer};
use sluice::file::{LoadMode, ModelFile};
use sluice::generate::{Choice, ChoiceError, Choose, Generator, Until};
use sluice::host::isa;
use sluice::host::memory::AlignedMemory;
use sluice::host::topology::Cores;
use sluice::host::workers::Workers;
use sluice::load::{ModelMemory, load};
use sluice_gate::{Observer, ObserverConfig, channel};
use std::path::Path;
use std::time::Instant;

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../models/tale-5.8m-Q4_K_M.gguf"
);
const RECORDS: usize = 400;
const RECORD_LEN: usize = 256;
/// Tokens the model writes about a record.
const ANSWER_LEN: usize = 24;

/// Records of noise; every 23rd holds a knock: a decaying oscillation.
fn records() -> Vec<f32> {
    let mut state = 1u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    let mut samples: Vec<f32> = (0..RECORDS * RECORD_LEN).map(|_| 0.02 * noise()).collect();
    for record in samples.chunks_exact_mut(RECORD_LEN).step_by(23) {
        for (i, x) in record[40..].iter_mut().enumerate() {
            let t = i as f32;
            *x += 0.8 * (-t / 30.0).exp() * (t * 0.7).sin();
        }
    }
    samples
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = ModelFile::open(Path::new(MODEL), LoadMode::Map)?;
    let gguf = file.parse()?;
    let config = ModelConfig::from_gguf(&gguf)?;
    let mut words = vec![0; tokenizer::plan(&gguf)?.words];
    let tokenizer = Tokenizer::new(&gguf, &mut words)?;
    let cores = Cores::detect();
    let mut workers = Workers::new(cores.default_workers(), &cores)?;
    let mut memory = ModelMemory::for_file(&file, &gguf, &config, workers.count())?;
    let stop = StopFlag::new();
    let model = load(
        &file,
        &gguf,
        &config,
        &mut memory,
        &mut workers,
        &stop,
        |_| {},
    )?;
    let limits = Limits::single(128, workers.count());
    let plan = EnginePlan::new(model.config(), &limits)?;
    let mut kv = AlignedMemory::zeroed(plan.kv_bytes)?;
    let mut scratch = AlignedMemory::zeroed(plan.scratch_bytes)?;
    let table = KernelTable::best(isa::features());
    let engine = Engine::new(model, table, &limits, &mut kv, &mut scratch)?;
    let mut chooser = Greedy;
    let mut generator = Generator::new(engine, &mut workers, &stop, &mut chooser);

    let observing = ObserverConfig {
        gate: GateConfig {
            policy: Policy {
                measure: Measure::Std,
                threshold: 0.05,
                ..Policy::default()
            },
            ..GateConfig::default()
        },
        frame_len: RECORD_LEN,
        ..ObserverConfig::default()
    };
    let (sink, passed) = channel(8);
    let kernels = FrameKernels::best(isa::features());
    let (observer, mut intake) = Observer::start(&observing, kernels, sink)?;
    // Records come from elsewhere: a socket, a driver. The push waits when the model is behind.
    let feeding = std::thread::spawn(move || {
        let taken = intake.push(&records());
        (taken, observer.finish().counts)
    });

    let mut spent = Duration::ZERO;
    let mut n_woken = 0u32;
    for frame in passed {
        let start = Instant::now();
        let loudest = frame.decision.max_abs;
        let prompt = format!(
            "Once upon a time, house number {} heard a loud knock.",
            frame.index
        );
        let answer = answer(&mut generator, &tokenizer, &prompt)?;
        spent += start.elapsed();
        n_woken += 1;
        println!("record {:>3} (up to {loudest:.2}):{answer}", frame.index);
    }
    let (_, counts) = feeding.join().map_err(|_| "the feeding thread panicked")?;
    let each = spent / n_woken.max(1);
    let skipped = u32::try_from(counts.skipped)?;
    println!(
        "\n{} records: the model was woken {n_woken} times and ran for {spent:.1?} ({each:.1?} each);\n\
         {skipped} records did not wake it, which saved about {:.1?}: {:.1}% of the compute.",
        counts.processed,
        each * skipped,
        counts.sparsity_pct()
    );
    Ok(())
}

/// Always the likeliest token.
struct Greedy;

impl Choose for Greedy {
    fn choose(&mut self, logits: &[f32], _: &Choice<'_>) -> Result<u32, ChoiceError> {
        let best = (0u32..).zip(logits).max_by(|a, b| a.1.total_cmp(b.1));
        Ok(best.map_or(0, |(token, _)| token))
    }
}

/// What the model writes behind `prompt`.
fn answer(
    generator: &mut Generator<'_, '_>,
    tokenizer: &Tokenizer<'_>,
    prompt: &str,
) -> Result<String, Box<dyn Error>> {
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let mut workspace = vec![0; tokenizer.encode_workspace_words(prompt.len())];
    let mut tokens = vec![0; tokenizer.max_tokens(prompt.len())];
    let tokens = tokenizer.encode(prompt, options, &mut workspace, &mut tokens)?;
    let next = generator.prompt(tokens, Wants::Logits)?;
    let until = Until {
        n_predict: Some(ANSWER_LEN),
        ignore_eos: false,
        shift: None,
    };
    let mut text = String::new();
    generator.write(next, &until, tokenizer, |written| {
        text.push_str(written.piece);
        true
    })?;
    Ok(text)
}

//! Runs a model only on the records of a stream that pass the gate, and prints the time that this saved.
//!
//! `cargo run --release -p sluice-gate --example gated_model`
//!
//! 400 sensors send a record of 256 samples each: noise of the line, and in some a knock. An
//! observer judges the records on a thread of its own; those that pass come through a channel to
//! the thread of the model, which writes a sentence about each. The printed saving counts the
//! records that were skipped at the measured price of one that was not.
#![expect(clippy::print_stdout, reason = "an example prints to its terminal")]
#![expect(clippy::cast_precision_loss, reason = "numbers of an example")]

use core::error::Error;
use core::time::Duration;
use sluice::core::gate::{GateConfig, Measure, Policy};
use sluice::core::kernels::FrameKernels;
use sluice::host::isa;
use sluice::{Limits, Model, Session, Settings};
use sluice_gate::{FrameObserver, ObserverConfig, channel};
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
    let model = Model::open(MODEL)?;
    let limits = Limits {
        n_ctx: 128,
        ..Limits::default()
    };
    let mut session = model.session(limits)?;

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
    let (observer, mut intake) = FrameObserver::start(&observing, kernels, sink)?;
    // Records arrive from elsewhere: a socket, a driver. The push waits when the model cannot keep up.
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
        let answer = answer(&mut session, &prompt)?;
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

/// The model's continuation of `prompt`: the likeliest token each time.
fn answer(session: &mut Session, prompt: &str) -> Result<String, Box<dyn Error>> {
    let mut settings = Settings {
        n_predict: Some(ANSWER_LEN),
        ..Settings::default()
    };
    settings.sampler.temperature = 0.0;
    Ok(session
        .generate(prompt, settings)
        .collect::<Result<_, _>>()?)
}

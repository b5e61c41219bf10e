//! A generator that speculates writes what one does that does not, also where it is stopped in the midst of what was
//! drafted right, goes on from there, or makes room.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice::core::engine::Wants;
use sluice::core::sampler::SamplerConfig;
use sluice::generate::{EndReason, Until};
use sluice::sequence::PlainSampler;
use sluice::speculate::SpeculationOptions;
use sluice::{Generator, Limits, Model};
use std::path::Path;

fn model() -> Model {
    Model::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tale-5.8m-Q4_K_M.gguf")).unwrap()
}

fn generator(model: &Model, temperature: f32, n_draft: usize) -> Generator {
    let limits = Limits {
        n_ctx: 128,
        n_draft,
        ..Limits::default()
    };
    let config = SamplerConfig {
        temperature,
        seed: 5,
        ..SamplerConfig::DEFAULT
    };
    let sampler = PlainSampler::new(config, model.tokenizer(), 128).unwrap();
    let mut session = model.session(limits).unwrap();
    session.set_speculation((n_draft > 0).then(|| SpeculationOptions {
        n_max: n_draft,
        is_fixed: true,
        ..SpeculationOptions::default()
    }));
    Generator::new(session, Box::new(sampler)).unwrap()
}

/// What was written: tokens, the end, what is in the context and what is pending.
type Told = (Vec<u32>, EndReason, Vec<u32>, Option<u32>);

fn write(generator: &mut Generator, prompt: &[u32], n_shown: usize, until: &Until) -> Told {
    let next = generator.prompt(prompt, Wants::Logits).unwrap();
    let mut tokens = Vec::new();
    let ended = generator.write(next, until, |written| {
        tokens.push(written.token);
        tokens.len() < n_shown
    });
    let (ended, pending) = (ended.unwrap(), generator.pending());
    (tokens, ended, generator.tokens().to_vec(), pending)
}

/// A text that repeats itself, so that much is drafted right.
fn prompt(model: &Model) -> Vec<u32> {
    let text = "One day Tim saw a big dog. One day Tim saw a big cat. One day Tim saw";
    model.encode(text, false).unwrap()
}

#[test]
fn a_generator_writes_what_it_writes_without_drafts() {
    let model = model();
    for temperature in [0.0, 0.8] {
        let mut plain = generator(&model, temperature, 0);
        let mut drafting = generator(&model, temperature, 6);
        for n_shown in [1, 2, 3, 5, 8, 13, 21, 34, 500] {
            for (n_predict, shift) in [(None, None), (Some(17), None), (Some(160), Some(4))] {
                let until = Until {
                    n_predict,
                    ignore_eos: true,
                    shift,
                };
                let expected = write(&mut plain, &prompt(&model), n_shown, &until);
                let found = write(&mut drafting, &prompt(&model), n_shown, &until);
                assert_eq!(found, expected, "{temperature} {n_shown} {n_predict:?}");
                // Another turn begins with what was read, and what is pending.
                let mut next = [&*expected.2, expected.3.as_slice()].concat();
                next.truncate(100);
                let turn = |generator: &mut Generator| write(generator, &next, 9, &until);
                assert_eq!(turn(&mut drafting), turn(&mut plain));
            }
        }
        let figures = *drafting.session().speculation().unwrap().figures();
        assert!(figures.n_accepted > 100, "{figures:?}");
        assert!(figures.n_drafts > 0 && figures.n_draft > figures.n_accepted);
    }
}

//! A longrope model computes a text with the divisors for its length, whatever was computed before.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice::core::engine::Wants;
use sluice::core::model::LongRope;
use sluice::generate::{Generator, Until};
use sluice::sequence::PlainSampler;
use sluice::speculate::SpeculationOptions;
use sluice::{Limits, Model, Settings};

/// Its original context is 16 tokens.
const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/fixtures/models/llama-longrope.gguf"
);
const PROMPT: [u32; 10] = [11, 45, 70, 201, 33, 90, 14, 77, 150, 60];

fn likeliest(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    u32::try_from(best.unwrap().0).unwrap()
}

/// The text that the model writes, each token from a pass over the whole text before it: transformers' answer.
fn expected(model: &Model, n: usize) -> Vec<u32> {
    let mut text = PROMPT.to_vec();
    let mut session = model
        .session(Limits::for_reading(model.config(), 64, false))
        .unwrap();
    for _ in 0..n {
        let mut next = 0;
        let each = |_, _, logits: &[f32]| next = likeliest(logits);
        session.read(&[&text], text.len() - 1, None, each).unwrap();
        text.push(next);
    }
    text
}

fn generator(model: &Model, limits: Limits) -> Generator {
    let mut settings = Settings::default();
    settings.sampler.temperature = 0.0;
    let session = model.session(limits).unwrap();
    let n_ctx = session.limits().n_ctx;
    let sampler = PlainSampler::new(settings.sampler, model.tokenizer(), n_ctx).unwrap();
    Generator::new(session, Box::new(sampler)).unwrap()
}

/// The text after `prompt`, and how many tokens were read as a prompt.
fn written(generator: &mut Generator, prompt: &[u32], n: usize) -> (Vec<u32>, usize) {
    let before = generator.timings.prompt.count;
    let mut text = prompt.to_vec();
    let next = generator.prompt(prompt, Wants::Logits).unwrap();
    let until = Until {
        n_predict: Some(n),
        ignore_eos: true,
        shift: None,
    };
    let ended = generator.write(next, &until, |token| {
        text.push(token.token);
        true
    });
    ended.unwrap();
    (text, generator.timings.prompt.count - before)
}

#[test]
fn a_text_is_that_of_passes_over_all_of_it() {
    let model = Model::open(MODEL).unwrap();
    let expected = expected(&model, 30);
    for (n_ctx, n_batch, n_draft) in [(40, 40, 0), (64, 3, 0), (200, 7, 4), (4096, 64, 8)] {
        let limits = Limits {
            n_ctx,
            n_batch,
            n_draft,
            ..Limits::default()
        };
        let mut generator = generator(&model, limits);
        if n_draft > 0 {
            let options = SpeculationOptions {
                n_max: n_draft,
                is_fixed: true,
                ..SpeculationOptions::default()
            };
            generator.session_mut().set_speculation(Some(options));
        }
        let (text, n_prompt) = written(&mut generator, &PROMPT, 30);
        assert_eq!(text, expected, "{n_ctx} {n_batch} {n_draft}");
        // The 16 tokens before the one that makes the text long are read again with it, and counted.
        assert_eq!(n_prompt, 10 + 17, "{n_ctx} {n_batch} {n_draft}");
        // A shorter prompt is not continued from the long text, nor a longer one from a short text.
        for len in [12, 20, 14, 30] {
            let (text, _) = written(&mut generator, &expected[..len], 40 - len);
            assert_eq!(text, expected, "{n_ctx} {len}");
        }
    }
}

#[test]
fn a_saved_text_continues_with_its_own_divisors() {
    let model = Model::open(MODEL).unwrap();
    let expected = expected(&model, 30);
    let folder = std::env::temp_dir().join(format!("sluice-longrope-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for len in [15, 16, 17, 25] {
        let path = folder.join(format!("{len}.cache"));
        let limits = |n_ctx| Limits {
            n_ctx,
            ..Limits::default()
        };
        let mut first = generator(&model, limits(64));
        first.prompt(&expected[..len], Wants::Nothing).unwrap();
        first.save(&path).unwrap();
        let mut second = generator(&model, limits(100));
        assert_eq!(second.restore(&path).unwrap(), Some(len));
        let (text, n_prompt) = written(&mut second, &expected[..28], 12);
        assert_eq!(text, expected, "{len}");
        let n_kept = if len > 16 { len } else { 0 };
        assert_eq!(n_prompt, 28 - n_kept, "{len}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn pinned_divisors_do_not_change_with_the_length() {
    let model = Model::open(MODEL).unwrap();
    let of = |longrope| {
        let limits = Limits {
            n_ctx: 64,
            longrope,
            ..Limits::default()
        };
        written(&mut generator(&model, limits), &PROMPT, 30)
    };
    let [by_length, short, long] = [LongRope::ByLength, LongRope::Short, LongRope::Long].map(of);
    assert_eq!((short.1, long.1), (10, 10));
    assert!(by_length.0 != short.0 && by_length.0 != long.0 && short.0 != long.0);
}

#[test]
fn a_new_text_after_a_context_shift_has_the_divisors_of_its_length() {
    let model = Model::open(MODEL).unwrap();
    let limits = || Limits {
        n_ctx: 24,
        ..Limits::default()
    };
    let mut shifted = generator(&model, limits());
    let next = shifted.prompt(&PROMPT, Wants::Logits).unwrap();
    let until = Until {
        n_predict: Some(40),
        ignore_eos: true,
        shift: Some(2),
    };
    shifted.write(next, &until, |_| true).unwrap();
    assert!(shifted.n_shifted() > 0);
    // The first two tokens are still there, and were never moved.
    let prompt = [&PROMPT[..2], &[5, 6, 7]].concat();
    let (text, _) = written(&mut shifted, &prompt, 4);
    let (expected, _) = written(&mut generator(&model, limits()), &prompt, 4);
    assert_eq!((text, shifted.n_shifted()), (expected, 0));
}

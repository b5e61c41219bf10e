//! Random mixes of requests: the answer is the same alone and among others, cold, from memory and from disk, after
//! preemption, at any turn, among any shares, and for any number of threads and any instruction set.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::ask::{Answer, Ask, Random, Setup, collect, lfm2, longrope, tale, tiny};
use core::time::Duration;
use sluice::Model;
use sluice::speculate::SpeculationOptions;
use std::collections::HashMap;

/// Number of mixes for each model; `SLUICE_MIXES` overrides it.
const MIXES: usize = 16;
/// Number of different requests that mixes are made of.
const ASKS: usize = 40;

#[test]
fn mixes_of_attention() {
    mixes(&tale(), 1);
}

#[test]
fn mixes_of_a_recurrent_model() {
    mixes(&lfm2(), 2);
}

#[test]
fn mixes_of_a_delta_net() {
    mixes(&tiny("qwen35"), 8);
}

/// Windows, heads of two sizes, layers that share keys.
#[test]
fn mixes_of_shared_keys() {
    mixes(&tiny("gemma4"), 4);
}

/// Mamba 2, and experts with dimensions of their own.
#[test]
fn mixes_of_experts() {
    mixes(&tiny("nemotron_h_moe-latent"), 8);
}

/// A model that reads a text again when it passes 150 tokens.
#[test]
fn mixes_of_longrope() {
    mixes(&longrope(150), 16);
}

#[test]
fn reading_again_is_time_of_the_prompt() {
    let setup = Setup {
        drafts: None,
        ..Setup::new(&longrope(130))
    };
    let ask = |n_prompt| Ask {
        uses_cache: false,
        ..Ask::tokens(&setup, 5, n_prompt, 30)
    };
    let passes = setup.answer(&ask(120));
    assert!(passes.tokens.len() > 11, "{passes:?}");
    assert_eq!(passes.timings.n_prompt, 120 + 130);
    assert_eq!(passes.timings.n_predicted, passes.tokens.len());
    assert_eq!(setup.answer(&ask(140)).timings.n_prompt, 140);
}

#[test]
fn mixes_of_latent_attention() {
    mixes(&tiny("deepseek2"), 6);
}

#[expect(clippy::print_stdout, reason = "what was tried is worth knowing")]
fn tell(model: &Model, n_mixes: usize, seen: &HashMap<&str, usize>) {
    println!("{}: {n_mixes} mixes, {seen:?}", model.name());
}

#[expect(
    clippy::too_many_lines,
    reason = "one mix from its beginning to its end"
)]
fn mixes(model: &Model, seed: u64) {
    let n_mixes = std::env::var("SLUICE_MIXES").map_or(MIXES, |n| n.parse().unwrap());
    let mut random = Random(seed);
    let plain = Setup {
        n_workers: 1,
        isa: Some("scalar"),
        drafts: None,
        ..Setup::new(model)
    };
    let asks: Vec<Ask> = (0..ASKS).map(|_| ask(&plain, &mut random)).collect();
    // Alone, cold, by the scalar kernels on one thread.
    let alone: Vec<Answer> = asks
        .iter()
        .map(|ask| {
            let setup = Setup {
                cache_ram: 0,
                ..plain.clone()
            };
            let engine = setup.engine();
            let ask = Ask {
                uses_cache: false,
                ..ask.clone()
            };
            let answer = collect(setup.submit(&engine, &ask).unwrap()).remove(0);
            engine.0.stop(Duration::from_secs(10));
            answer
        })
        .collect();
    let mut seen = HashMap::<&str, usize>::new();
    for mix in 0..n_mixes {
        let mut setup = Setup {
            n_workers: random.one(&[1, 2]),
            isa: random.one(&[None, None, Some("scalar"), Some("avx2")]),
            turn: Duration::from_micros(random.one(&[1, 500, 5_000, 50_000, 1_000_000])),
            // Small buffers make readers that do not read give up their places.
            reader_buffer: random.one(&[1 << 20, 1 << 10]),
            // Few pages force preemption.
            n_ctx: 512,
            n_seq: random.one(&[1, 4, 8, 33]),
            cache_ram: random.one(&[0, 0, 1 << 20, 64 << 20]),
            channel: random.one(&[1, 8, 64]),
            drafts: random.one(&[None, drafts(8, false), drafts(3, true), drafts(8, true)]),
            drafts_by_itself: random.below(3) == 0,
            ..Setup::new(model)
        };
        let has_disk = random.below(3) == 0;
        if has_disk {
            setup = setup.with_disk(&format!("mix{mix}"));
        }
        for restart in 0..if has_disk { 2 } else { 1 } {
            let engine = setup.engine();
            let n = random.one(&[1, 5, 33]);
            let chosen: Vec<usize> = (0..n).map(|_| random.below(ASKS)).collect();
            let running: Vec<_> = chosen
                .iter()
                .map(|&i| {
                    let ask = Ask {
                        priority: i32::try_from(random.below(3)).unwrap(),
                        share: random.one(&["a", "b", "c"]).to_owned(),
                        ..asks[i].clone()
                    };
                    (i, setup.submit(&engine, &ask).unwrap())
                })
                .collect();
            // Each is read at its own pace, and some are cancelled.
            let (mut reading, mut late) = (Vec::new(), Vec::new());
            for (i, events) in running {
                match random.below(12) {
                    0 => drop(events),
                    // These read after all others have their answers.
                    1 | 2 => late.push((i, events)),
                    _ => reading.push((i, std::thread::spawn(move || collect(events).remove(0)))),
                }
            }
            let answers = reading
                .into_iter()
                .map(|(i, reading)| (i, reading.join().unwrap()));
            let late = late
                .into_iter()
                .map(|(i, events)| (i, collect(events).remove(0)));
            for (i, answer) in answers.chain(late) {
                let what = format!("mix {mix} of {} ({restart}): request {i}", model.name());
                assert_eq!(answer.bits(), alone[i].bits(), "{what}");
                *seen.entry("answers").or_default() += 1;
                *seen.entry("from a cache").or_default() += usize::from(answer.cached > 0);
                *seen.entry("preempted").or_default() += answer.n_preempted;
                *seen.entry("after a restart").or_default() +=
                    usize::from(restart > 0 && answer.cached > 0);
            }
            engine.0.stop(Duration::from_secs(20));
        }
        if has_disk {
            setup.remove_disk();
        }
    }
    tell(model, n_mixes, &seen);
    for what in ["answers", "from a cache", "preempted", "after a restart"] {
        assert!(seen.get(what).is_some_and(|n| *n > 0), "no mix had: {what}");
    }
}

/// Speculation with up to `n_max` draft tokens, whether it pays or not.
fn drafts(n_max: usize, is_fixed: bool) -> Option<SpeculationOptions> {
    Some(SpeculationOptions {
        n_max,
        is_fixed,
        ..SpeculationOptions::default()
    })
}

/// A random request; many share a prefix.
fn ask(setup: &Setup, random: &mut Random) -> Ask {
    let (a, b) = (random.below(4), random.below(6));
    let shared = Ask::tokens(
        setup,
        1000 + u64::try_from(a).unwrap(),
        random.one(&[0, 64, 130, 250]),
        0,
    );
    let own = Ask::tokens(
        setup,
        2000 + u64::try_from(b).unwrap(),
        random.one(&[1, 3, 30, 63, 64, 65]),
        0,
    );
    let prompt = [shared.prompt, own.prompt].concat();
    let borders = vec![random.below(prompt.len() + 1)];
    Ask {
        temperature: random.one(&[0.0, 0.8, 1.5]),
        borders,
        ..Ask::of(prompt, random.next(), random.one(&[1, 5, 40, 100, 150]))
    }
}

//! Tests of the sampler against closed forms, llama.cpp's published sampler cases, and naive
//! restatements.

extern crate std;

use quickcheck::{TestResult, quickcheck};
use std::format;
use std::vec;
use std::vec::Vec;

use super::*;

const DRAWS: u32 = 100_000;

fn candidates<'c>(storage: &'c mut Vec<Candidate>, logits: &[f32]) -> Candidates<'c> {
    // Left-overs of an earlier draw must not matter.
    *storage = vec![
        Candidate {
            id: 9,
            logit: f32::NAN,
            p: 7.0
        };
        logits.len() + 2
    ];
    Candidates::from_logits(storage, logits).expect("no NaN and room enough")
}

fn ids(candidates: &Candidates<'_>) -> Vec<u32> {
    candidates
        .as_slice()
        .iter()
        .map(|candidate| candidate.id)
        .collect()
}

/// Logits whose softmax is proportional to `weights`.
fn logits_of(weights: &[f64]) -> Vec<f32> {
    weights
        .iter()
        .map(|weight| math::round_to_f32(weight.ln()))
        .collect()
}

/// Applies `processor` to the distribution `weights`; returns the remaining ids and probabilities.
fn filtered(
    weights: &[f64],
    processor: &mut dyn LogitsProcessor,
    history: &[u32],
) -> Vec<(u32, f32)> {
    let mut storage = Vec::new();
    let mut list = candidates(&mut storage, &logits_of(weights));
    processor.apply(
        &mut list,
        &SampleContext {
            history,
            ..SampleContext::default()
        },
    );
    list.softmax().expect("finite logits");
    list.sort();
    list.as_slice()
        .iter()
        .map(|candidate| (candidate.id, candidate.p))
        .collect()
}

#[track_caller]
fn assert_close(actual: &[(u32, f32)], expected: &[(u32, f64)]) {
    assert_eq!(actual.len(), expected.len(), "{actual:?} {expected:?}");
    for (a, e) in actual.iter().zip(expected) {
        assert_eq!(a.0, e.0, "{actual:?} {expected:?}");
        assert!(
            (f64::from(a.1) - e.1).abs() < 1e-5,
            "{actual:?} {expected:?}"
        );
    }
}

/// The chi-square statistic of `counts` for the distribution proportional to `weights`.
fn chi_square(counts: &[u32], weights: &[f64]) -> f64 {
    let total: f64 = weights.iter().sum();
    let draws: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let term = |(&count, &weight): (&u32, &f64)| {
        let expected = draws * weight / total;
        (f64::from(count) - expected).powi(2) / expected
    };
    counts.iter().zip(weights).map(term).sum()
}

/// Draws at positions `0..DRAWS` with `chain` and counts the tokens.
fn histogram(logits: &[f32], config: SamplerConfig, sequence: u32) -> Vec<u32> {
    let mut chain = SamplerChain::new(config).expect("settings in range");
    let mut storage = vec![Candidate::default(); logits.len()];
    let mut counts = vec![0; logits.len()];
    for position in 0..DRAWS {
        let context = chain.context(&[], sequence, position);
        let id = chain
            .sample(logits, &mut storage, &mut [], &context)
            .expect("finite logits");
        counts[id as usize] += 1;
    }
    counts
}

const PLAIN: SamplerConfig = SamplerConfig {
    seed: 1,
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    repeat_last_n: 0,
    repeat_penalty: 1.0,
    frequency_penalty: 0.0,
    presence_penalty: 0.0,
    ..SamplerConfig::DEFAULT
};

/// Chi-square quantiles at 0.999 for 9 and 3 degrees of freedom (tables).
const CHI_9: f64 = 27.877;
const CHI_3: f64 = 16.266;

#[test]
fn draws_follow_the_softmax() {
    let weights: Vec<f64> = (1..=10).map(f64::from).collect();
    for (seed, sequence) in [(1, 0), (2, 0), (1, 1), (u64::MAX, 77)] {
        let counts = histogram(
            &logits_of(&weights),
            SamplerConfig { seed, ..PLAIN },
            sequence,
        );
        let chi = chi_square(&counts, &weights);
        assert!(
            chi < CHI_9,
            "seed {seed} sequence {sequence}: {chi} {counts:?}"
        );
        assert!(
            chi > 1.152,
            "suspiciously even (below the 0.001 quantile): {chi} {counts:?}"
        );
    }
}

#[test]
fn draws_are_independent_across_sequences_and_seeds() {
    let weights = [1.0, 2.0, 3.0, 4.0];
    let logits = logits_of(&weights);
    let mut storage = Vec::new();
    let mut by_sequence = [0u32; 4];
    let mut by_seed = [0u32; 4];
    for n in 0..DRAWS {
        let mut draw = |sequence, seed| {
            let mut list = candidates(&mut storage, &logits);
            let context = SampleContext {
                history: &[],
                sequence,
                position: 5,
                seed,
            };
            sample(&mut list, &context).expect("finite logits") as usize
        };
        by_sequence[draw(n, 3)] += 1;
        by_seed[draw(0, u64::from(n) << 20)] += 1;
    }
    assert!(
        chi_square(&by_sequence, &weights) < CHI_3,
        "{by_sequence:?}"
    );
    assert!(chi_square(&by_seed, &weights) < CHI_3, "{by_seed:?}");
}

#[test]
fn temperature_raises_probabilities_to_its_inverse() {
    let weights = [1.0f64, 2.0, 3.0, 4.0];
    let logits = logits_of(&weights);
    for temperature in [0.5f32, 0.8, 2.0] {
        let expected = weights.map(|weight| weight.powf(1.0 / f64::from(temperature)));
        let counts = histogram(
            &logits,
            SamplerConfig {
                temperature,
                ..PLAIN
            },
            0,
        );
        assert!(
            chi_square(&counts, &expected) < CHI_3,
            "{temperature} {counts:?}"
        );
    }
}

#[test]
fn filtered_draws_renormalise() {
    // Of ten tokens, top-k 4 leaves the weights 7..=10.
    let weights: Vec<f64> = (1..=10).map(f64::from).collect();
    let counts = histogram(&logits_of(&weights), SamplerConfig { top_k: 4, ..PLAIN }, 0);
    assert_eq!(counts[..6], [0; 6]);
    assert!(
        chi_square(&counts[6..], &weights[6..]) < CHI_3,
        "{counts:?}"
    );
}

// Cases and results as in llama.cpp's tests/test-sampling.cpp; the threshold cases there that
// meet a candidate's cumulated probability exactly are moved off the edge.

#[test]
fn top_k_keeps_what_llama_cpp_keeps() {
    let w = [0.1, 0.2, 0.3, 0.4];
    assert_close(&filtered(&w, &mut TopK { k: 1 }, &[]), &[(3, 1.0)]);
    assert_close(
        &filtered(&w, &mut TopK { k: 3 }, &[]),
        &[(3, 0.444_444), (2, 0.333_333), (1, 0.222_222)],
    );
    let all = [(3, 0.4), (2, 0.3), (1, 0.2), (0, 0.1)];
    for k in [0, 4, 5, u32::MAX] {
        assert_close(&filtered(&w, &mut TopK { k }, &[]), &all);
    }
}

#[test]
fn top_p_keeps_what_llama_cpp_keeps() {
    let w = [0.1, 0.2, 0.3, 0.4];
    for p in [-1.0, 0.0, 0.39] {
        assert_close(
            &filtered(&w, &mut TopP { p, min_keep: 0 }, &[]),
            &[(3, 1.0)],
        );
    }
    assert_close(
        &filtered(
            &w,
            &mut TopP {
                p: 0.69,
                min_keep: 0,
            },
            &[],
        ),
        &[(3, 0.571_429), (2, 0.428_571)],
    );
    assert_close(
        &filtered(
            &w,
            &mut TopP {
                p: 0.8,
                min_keep: 0,
            },
            &[],
        ),
        &[(3, 0.444_444), (2, 0.333_333), (1, 0.222_222)],
    );
    for p in [1.0, 1.5] {
        assert_eq!(filtered(&w, &mut TopP { p, min_keep: 0 }, &[]).len(), 4);
    }
}

#[test]
fn min_p_keeps_what_llama_cpp_keeps() {
    let w = [0.1, 0.2, 0.3, 0.4];
    let kept = |p| filtered(&w, &mut MinP { p, min_keep: 0 }, &[]).len();
    let cases = [
        (0.0, 4),
        (0.24, 4),
        (0.26, 3),
        (0.49, 3),
        (0.51, 2),
        (0.74, 2),
        (0.76, 1),
        (1.0, 1),
    ];
    for (p, len) in cases {
        assert_eq!(kept(p), len, "{p}");
    }
    assert_eq!(kept(1.05), 1);
    assert_eq!(kept(-0.1), 4);
}

#[test]
fn penalties_weigh_as_in_llama_cpp() {
    let w = [0.2; 5];
    let repeat = |repeat_penalty| RepetitionPenalty {
        repeat_last_n: 64,
        count_last_n: u32::MAX,
        repeat_penalty,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
    };
    let quarter = [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.25), (0, 0.0)];
    assert_close(&filtered(&w, &mut repeat(50.0), &[0]), &quarter);
    let half = [(3, 0.5), (4, 0.5), (0, 0.0), (1, 0.0), (2, 0.0)];
    assert_close(&filtered(&w, &mut repeat(50.0), &[0, 1, 2]), &half);
    assert_close(&filtered(&w, &mut repeat(50.0), &[0, 1, 2, 0, 0]), &half);

    let mut counted = RepetitionPenalty {
        frequency_penalty: 5.0,
        presence_penalty: 5.0,
        ..repeat(1.0)
    };
    assert_close(
        &filtered(&w, &mut counted, &[0]),
        &[
            (1, 0.249_997),
            (2, 0.249_997),
            (3, 0.249_997),
            (4, 0.249_997),
            (0, 0.000_011),
        ],
    );
    // Closed form: the penalised weights are exp(-10), or exp(-20) for three occurrences.
    assert_close(
        &filtered(&w, &mut counted, &[0, 1, 2]),
        &[
            (3, 0.499_966),
            (4, 0.499_966),
            (0, 0.000_023),
            (1, 0.000_023),
            (2, 0.000_023),
        ],
    );
    assert_close(
        &filtered(&w, &mut counted, &[0, 1, 2, 0, 0]),
        &[
            (3, 0.499_977),
            (4, 0.499_977),
            (1, 0.000_023),
            (2, 0.000_023),
            (0, 0.0),
        ],
    );
}

#[test]
fn penalties_reach_back_repeat_last_n_tokens() {
    let mut storage = Vec::new();
    let logits = [2.0, -2.0, 2.0, 0.0];
    let mut after = |repeat_last_n, history: &[u32]| -> Vec<f32> {
        let mut list = candidates(&mut storage, &logits);
        let mut penalty = RepetitionPenalty {
            repeat_last_n,
            count_last_n: u32::MAX,
            repeat_penalty: 2.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
        };
        penalty.apply(
            &mut list,
            &SampleContext {
                history,
                ..SampleContext::default()
            },
        );
        list.as_slice()
            .iter()
            .map(|candidate| candidate.logit)
            .collect()
    };
    // 1000 is outside the vocabulary.
    let history = [0, 1000, 2, 1, 1];
    assert_eq!(after(0, &history), logits);
    assert_eq!(after(2, &history), [2.0, -4.0, 2.0, 0.0]);
    assert_eq!(after(3, &history), [2.0, -4.0, 1.0, 0.0]);
    assert_eq!(after(u32::MAX, &history), [1.0, -4.0, 1.0, 0.0]);
    // As vLLM counts: a factor for the prompt, too, the other two for what was written.
    let mut list = candidates(&mut storage, &logits);
    let context = SampleContext {
        history: &history,
        ..SampleContext::default()
    };
    RepetitionPenalty {
        repeat_last_n: u32::MAX,
        count_last_n: 3,
        repeat_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
    }
    .apply(&mut list, &context);
    let logits: Vec<_> = list.as_slice().iter().map(|one| one.logit).collect();
    assert_eq!(logits, [1.0, -5.25, 0.25, 0.0]);
}

#[test]
fn ties_go_to_the_lower_id() {
    assert_eq!(greedy(&[1.0, 3.0, 3.0, 2.0]), Ok(1));
    assert_eq!(greedy(&[-0.0, 0.0]), Ok(0));
    assert_eq!(greedy(&[0.0, -0.0]), Ok(0));
    let mut storage = Vec::new();
    let mut list = candidates(&mut storage, &[1.0, 2.0, 1.0, 2.0, 1.0]);
    list.keep_top(3);
    assert_eq!(ids(&list), [1, 3, 0]);
    // A temperature that makes all logits equal must not keep the old order as a tie-break.
    let mut list = candidates(&mut storage, &[1.4e-45, 4.2e-45, 2.8e-45]);
    list.sort();
    assert_eq!(ids(&list), [1, 2, 0]);
    Temperature { temperature: 1e9 }.apply(&mut list, &SampleContext::default());
    list.sort();
    assert_eq!(ids(&list), [0, 1, 2]);
}

#[test]
fn infinities_mask_and_force() {
    let (inf, masked) = (f32::INFINITY, f32::NEG_INFINITY);
    assert_eq!(greedy(&[masked, masked]), Err(SampleError::NoCandidate));
    assert_eq!(greedy(&[]), Err(SampleError::NoCandidate));
    assert_eq!(greedy(&[masked, -1e30]), Ok(1));
    assert_eq!(greedy(&[0.0, inf, inf]), Ok(1));
    assert_close(
        &filtered(&[0.0, 1.0, 1.0], &mut LogitBiases(&[]), &[]),
        &[(1, 0.5), (2, 0.5), (0, 0.0)],
    );
    let force = [
        LogitBias { id: 2, bias: inf },
        LogitBias { id: 99, bias: 1.0 },
    ];
    assert_close(
        &filtered(&[1.0, 1.0, 1.0], &mut LogitBiases(&force), &[]),
        &[(2, 1.0), (0, 0.0), (1, 0.0)],
    );
    let mut chain = SamplerChain::new(SamplerConfig::default()).expect("defaults are valid");
    let context = chain.context(&[], 0, 0);
    let mut storage = [Candidate::default(); 4];
    for logits in [&[masked; 4][..], &[]] {
        let id = chain.sample(logits, &mut storage, &mut [], &context);
        assert_eq!(id, Err(SampleError::NoCandidate));
    }
    let mut nothing_allowed = VocabMask { words: &[] };
    let id = chain.sample(
        &[1.0; 4],
        &mut storage,
        &mut [&mut nothing_allowed],
        &context,
    );
    assert_eq!(id, Err(SampleError::NoCandidate));
    assert_eq!(
        Candidates::from_logits(&mut storage, &[0.0; 5]).map(|list| list.len()),
        Err(SampleError::StorageTooSmall {
            needed: 5,
            available: 4
        })
    );
}

#[test]
fn settings_out_of_range_are_named() {
    let refused = |config| SamplerChain::new(config).map(|_| ());
    let default = SamplerConfig::default();
    for (config, name) in [
        (
            SamplerConfig {
                temperature: f32::NAN,
                ..default
            },
            "temperature",
        ),
        (
            SamplerConfig {
                top_p: f32::INFINITY,
                ..default
            },
            "top_p",
        ),
        (
            SamplerConfig {
                repeat_penalty: 0.0,
                ..default
            },
            "repeat_penalty",
        ),
    ] {
        assert_eq!(refused(config), Err(SampleError::Setting { name }));
    }
    assert_eq!(
        refused(SamplerConfig {
            temperature: -1.0,
            ..default
        }),
        Ok(())
    );
}

#[test]
fn errors_name_the_token() {
    let text = |error: SampleError| format!("{error}");
    assert_eq!(
        text(SampleError::NotANumber { id: 7 }),
        "the logit of token 7 is not a number"
    );
    assert_eq!(
        log_probability(&[0.0; 3], 3),
        Err(SampleError::UnknownToken { id: 3, n_vocab: 3 })
    );
}

#[test]
fn large_vocabularies_select_like_a_full_sort() {
    // Deterministic, with many ties.
    let logit = |id: u32| (philox4x32([id, 0, 0, 1], [1, 2])[0] % 5000) as f32 * 0.01;
    let logits: Vec<f32> = (0..150_000).map(logit).collect();
    let mut storage = Vec::new();
    for k in [0, 1, 40, 1000, 149_999, 150_000] {
        let mut list = candidates(&mut storage, &logits);
        list.keep_top(k);
        let selected = ids(&list);
        let mut list = candidates(&mut storage, &logits);
        list.sort();
        assert_eq!(selected, ids(&list)[..k], "{k}");
    }
    // Ascending logits are the worst case: each one displaces another.
    let ascending: Vec<f32> = (0..150_000u32).map(|id| id as f32).collect();
    let mut list = candidates(&mut storage, &ascending);
    list.keep_top(40);
    assert_eq!(ids(&list), (149_960..150_000).rev().collect::<Vec<u32>>());
}

#[test]
fn large_nuclei_are_those_of_a_full_sort() {
    // Some are longer than the pieces that top-p sorts at a time.
    let logit = |id: u32| (philox4x32([id, 0, 0, 2], [1, 2])[0] % 8000) as f32 * 0.001;
    let logits: Vec<f32> = (0..20_000).map(logit).collect();
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    let mut storage = Vec::new();
    for p in [0.001, 0.1, 0.3, 0.5, 0.9, 0.99] {
        let mut list = candidates(&mut storage, &logits);
        list.sort();
        let mut reached = 0.0;
        let outside = |candidate: &Candidate| {
            reached += f64::from(candidate.logit).exp() / sum;
            reached < f64::from(p)
        };
        let expected_len = 1 + list.as_slice().iter().copied().take_while(outside).count();
        let expected = ids(&list)[..expected_len].to_vec();
        TopP { p, min_keep: 0 }.apply(&mut list, &SampleContext::default());
        assert_eq!(ids(&list), expected, "sorted before, {p}");
        let mut list = candidates(&mut storage, &logits);
        TopP { p, min_keep: 0 }.apply(&mut list, &SampleContext::default());
        assert_eq!(ids(&list), expected, "{p}");
        assert_eq!(list.order(), CandidateOrder::Sorted);
    }
}

#[test]
fn exp_is_within_one_ulp() {
    let mut worst = 0.0f64;
    // A prime stride visits all exponents and both signs.
    for bits in (0..=u32::MAX).step_by(1009) {
        let x = f32::from_bits(bits);
        let actual = math::exp(x);
        let exact = f64::from(x).exp();
        if x.is_nan() {
            assert!(actual.is_nan());
        } else if exact > f64::from(f32::MAX) {
            assert!(actual >= f32::MAX, "{x}");
        } else {
            let rounded = math::round_to_f32(exact);
            let ulp = f64::from(rounded.next_up()) - f64::from(rounded);
            worst = worst.max((f64::from(actual) - exact).abs() / ulp);
        }
    }
    assert!(worst < 0.51, "{worst} ulp");
    assert_eq!(math::exp(0.0).to_bits(), 1.0f32.to_bits());
    assert_eq!(math::exp(f32::NEG_INFINITY).to_bits(), 0);
}

#[test]
fn ln_agrees_with_the_platform() {
    for n in 0..200_000u32 {
        let x = 1.0 + f64::from(n) * 1.37;
        let (actual, expected) = (crate::kernels::contract::double::ln(x), x.ln());
        assert!(
            (actual - expected).abs() <= 1e-14 * expected.abs().max(1e-2),
            "{x}"
        );
    }
}

/// Small integers as logits: ties are common.
fn coarse(logits: &[i8]) -> Vec<f32> {
    logits.iter().map(|&logit| f32::from(logit / 8)).collect()
}

/// The settings that any bytes may mean, from the useful to the absurd.
fn config_of((seed, a, b, c, d): (u64, u8, i8, i8, i8)) -> SamplerConfig {
    // The others by the seed's bytes, each off in many cases.
    let [e, f, g, h, order, ..] = seed.to_le_bytes();
    let share = |byte: u8| f32::from(byte) / 128.0;
    let mut kinds = SamplerKind::ALL;
    let first = usize::from(order) % kinds.len();
    kinds.rotate_left(first);
    if order > 127 {
        kinds.reverse();
    }
    SamplerConfig {
        order: SamplerOrder::new(kinds).expect("few"),
        dynatemp_range: share(e) - 0.5,
        dynatemp_exponent: share(f) - 0.5,
        typical_p: share(f),
        top_n_sigma: share(g) * 2.0 - 1.0,
        xtc_probability: share(h) - 0.5,
        xtc_threshold: share(g) - 0.1,
        min_keep: u32::from(h / 16),
        mirostat: match e % 4 {
            0 => MirostatVersion::V1,
            1 => MirostatVersion::V2,
            _ => MirostatVersion::Off,
        },
        mirostat_tau: share(h) * 4.0 - 1.0,
        seed,
        temperature: f32::from(c) / 32.0,
        top_k: u32::from(a),
        top_p: f32::from(b) / 100.0,
        min_p: f32::from(d) / 100.0,
        repeat_last_n: u32::from(a / 2),
        repeat_penalty: 0.5 + f32::from(a) / 128.0,
        frequency_penalty: f32::from(d) / 64.0,
        presence_penalty: f32::from(c) / 64.0,
        ..SamplerConfig::DEFAULT
    }
}

type ConfigBytes = (u64, u8, i8, i8, i8);

fn draw(
    logits: &[f32],
    config: SamplerConfig,
    history: &[u32],
    first: &mut [&mut dyn LogitsProcessor],
) -> Result<u32, SampleError> {
    let mut chain = SamplerChain::new(config)?;
    let mut storage = vec![
        Candidate {
            id: 1,
            logit: f32::NAN,
            p: 3.0
        };
        logits.len()
    ];
    let context = chain.context(history, 1, 2);
    chain.sample(logits, &mut storage, first, &context)
}

/// A negative exponent makes the temperature of a certain token infinite.
#[test]
fn an_infinite_temperature_keeps_masks() {
    let config = SamplerConfig {
        order: SamplerOrder::new([SamplerKind::Temperature]).expect("one"),
        temperature: 0.0,
        dynatemp_range: 0.5,
        dynatemp_exponent: -0.5,
        ..SamplerConfig::DEFAULT
    };
    let logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
    assert_eq!(draw(&logits, config, &[], &mut []), Ok(1));
}

quickcheck! {
    fn greedy_is_the_first_maximum(logits: Vec<i8>) -> bool {
        let logits = coarse(&logits);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let expected = (0..).zip(&logits).find(|&(_, &logit)| logit >= max).map(|(id, _)| id);
        greedy(&logits).ok() == expected
    }

    fn keep_top_is_sort_and_truncate(logits: Vec<f32>, k: usize) -> TestResult {
        if logits.iter().any(|logit| logit.is_nan()) {
            return TestResult::discard();
        }
        let k = k % (logits.len() + 2);
        let mut expected: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        expected.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("no NaN").then(a.0.cmp(&b.0)));
        expected.truncate(k);
        let mut storage = Vec::new();
        let mut list = candidates(&mut storage, &logits);
        list.keep_top(k);
        TestResult::from_bool(ids(&list) == expected.iter().map(|e| e.0).collect::<Vec<_>>())
    }

    fn any_settings_choose_a_token(logits: Vec<i8>, config: ConfigBytes, history: Vec<u8>) -> bool {
        let logits = coarse(&logits);
        let history: Vec<u32> = history.iter().copied().map(u32::from).collect();
        let config = config_of(config);
        let id = draw(&logits, config, &history, &mut []);
        let again = draw(&logits, config, &history, &mut []);
        id == again && match id {
            Ok(id) => (id as usize) < logits.len(),
            Err(error) => logits.is_empty() && error == SampleError::NoCandidate,
        }
    }

    fn the_greedy_short_cut_changes_nothing(logits: Vec<i8>, config: ConfigBytes) -> bool {
        let config = SamplerConfig { temperature: 0.0, repeat_last_n: 0, ..config_of(config) };
        let mut no_bias = LogitBiases(&[]);
        let logits = coarse(&logits);
        draw(&logits, config, &[], &mut []) == draw(&logits, config, &[], &mut [&mut no_bias])
    }

    fn masked_tokens_are_never_drawn(logits: Vec<i8>, words: Vec<u64>, c: ConfigBytes) -> bool {
        let logits = coarse(&logits);
        let mut mask = VocabMask { words: &words };
        let word = |id| words.get(id as usize / 64).copied().unwrap_or(0);
        let allowed = |id: u32| word(id) >> (id % 64) & 1 == 1;
        match draw(&logits, config_of(c), &[], &mut [&mut mask]) {
            Ok(id) => allowed(id),
            Err(error) => {
                error == SampleError::NoCandidate && !(0..).zip(&logits).any(|(id, _)| allowed(id))
            }
        }
    }

    fn no_step_loses_a_nan(logits: Vec<i8>, at: u8, negative: bool, config: ConfigBytes) -> bool {
        let mut logits = coarse(&logits);
        let index = usize::from(at) % (logits.len() + 1);
        let id = u32::try_from(index).expect("below 256");
        logits.insert(index, 0.0);
        let expected = Err(SampleError::NotANumber { id });
        // From a processor, where it passes the whole chain …
        let bias = if negative { -f32::NAN } else { f32::NAN };
        let biases = [LogitBias { id, bias }];
        let from_bias = draw(&logits, config_of(config), &[id], &mut [&mut LogitBiases(&biases)]);
        // … and from the model.
        logits[index] = bias;
        from_bias == expected
            && draw(&logits, config_of(config), &[], &mut []) == expected
            && greedy(&logits) == Err(SampleError::NotANumber { id })
            && log_probability(&logits, 0) == Err(SampleError::NotANumber { id })
    }

    fn log_probabilities_are_logarithms_of_the_softmax(logits: Vec<i8>, len: u8) -> bool {
        let logits = coarse(&logits);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let mut top = vec![TokenLogProbability::default(); len as usize % 12];
        let Ok(count) = top_log_probabilities(&logits, &mut top) else {
            return logits.is_empty();
        };
        let mut storage = Vec::new();
        let mut list = candidates(&mut storage, &logits);
        list.sort();
        count == top.len().min(logits.len())
            && top[..count].iter().zip(ids(&list)).all(|(entry, id)| {
                let exact = f64::from(logits[id as usize]) - sum.ln();
                entry.id == id
                    && (f64::from(entry.log_probability) - exact).abs() < 1e-5
                    && log_probability(&logits, id) == Ok(entry.log_probability)
            })
    }

    fn softmax_is_a_distribution(logits: Vec<i8>) -> bool {
        let logits: Vec<f32> = logits.iter().copied().map(f32::from).collect();
        let exact_sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let mut storage = Vec::new();
        let mut list = candidates(&mut storage, &logits);
        if list.softmax().is_err() {
            return logits.is_empty();
        }
        list.as_slice().iter().all(|candidate| {
            let exact = f64::from(candidate.logit).exp() / exact_sum;
            (f64::from(candidate.p) - exact).abs() <= 1e-6 * exact + 1e-44
        })
    }
}

//! Samplers against llama.cpp's own and against distributions restated here in f64.
//!
//! `fixtures/samplers.json` is written by `tools/sampler_goldens.py`: what llama.cpp's samplers leave
//! of distributions, one after the other and in chains. The draws of about thirty chains are counted
//! and compared with the probabilities that the definitions give; their hashes are recorded, so that
//! a seed always gives the same tokens.

use serde_json::Value;
use sluice_core::gguf::Gguf;
use sluice_core::sampler::{
    Candidate, Candidates, Dry, DryBreakers, DryConfig, DynamicTemperature, LogitBias, LogitBiases,
    LogitsProcessor, MinP, Mirostat, MirostatVersion, RepetitionPenalty, SampleContext,
    SamplerChain, SamplerConfig, SamplerOrder, Temperature, TopK, TopNSigma, TopP, TypicalP, Xtc,
};
use sluice_core::tokenizer::{self, Tokenizer};
use sluice_text::sampling::DrySequenceBreakers;

const GOLDENS: &str = include_str!("../fixtures/samplers.json");
const MODEL: &[u8] = include_bytes!("../../hosted/models/tale-5.8m-Q4_K_M.gguf");

fn goldens() -> Value {
    serde_json::from_str(GOLDENS).expect("the project's own file")
}

fn array(value: &Value) -> &[Value] {
    value.as_array().expect("an array")
}

fn float(value: &Value) -> f32 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the file's numbers are f32"
    )]
    let number = value.as_f64().expect("a number") as f32;
    number
}

fn whole(value: &Value) -> u32 {
    u32::try_from(value.as_u64().expect("a count")).expect("a small one")
}

fn wholes(value: &Value) -> Vec<u32> {
    array(value).iter().map(whole).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    array(value).iter().map(float).collect()
}

/// Runs one step of a golden case, such as `["top_p", 0.9, 1]`.
fn apply(step: &Value, candidates: &mut Candidates<'_>, context: &SampleContext<'_>) {
    let a = &array(step)[1..];
    let processor: &mut dyn LogitsProcessor = match step[0].as_str().expect("a name") {
        "top_k" => &mut TopK { k: whole(&a[0]) },
        "top_p" => &mut TopP {
            p: float(&a[0]),
            min_keep: whole(&a[1]),
        },
        "min_p" => &mut MinP {
            p: float(&a[0]),
            min_keep: whole(&a[1]),
        },
        "typical" => &mut TypicalP {
            p: float(&a[0]),
            min_keep: whole(&a[1]),
        },
        "top_n_sigma" => &mut TopNSigma { n: float(&a[0]) },
        "xtc" => &mut Xtc {
            probability: float(&a[0]),
            threshold: float(&a[1]),
            min_keep: whole(&a[2]),
        },
        "temp" => &mut Temperature {
            temperature: float(&a[0]),
        },
        "temp_ext" => &mut DynamicTemperature {
            temperature: float(&a[0]),
            range: float(&a[1]),
            exponent: float(&a[2]),
        },
        "penalties" => &mut RepetitionPenalty {
            repeat_last_n: whole(&a[0]),
            count_last_n: u32::MAX,
            repeat_penalty: float(&a[1]),
            frequency_penalty: float(&a[2]),
            presence_penalty: float(&a[3]),
        },
        "logit_bias" => {
            let entry = |pair: &Value| LogitBias {
                id: whole(&pair[0]),
                bias: float(&pair[1]),
            };
            let biases: Vec<LogitBias> = array(&a[0]).iter().map(entry).collect();
            return LogitBiases(&biases).apply(candidates, context);
        }
        name => panic!("no sampler {name}"),
    };
    processor.apply(candidates, context);
}

/// What is left, by id, without what is masked.
fn left(candidates: &Candidates<'_>) -> Vec<(u32, f32)> {
    let kept = candidates.as_slice().iter();
    let mut left: Vec<(u32, f32)> = kept
        .filter(|candidate| candidate.logit > f32::NEG_INFINITY)
        .map(|candidate| (candidate.id, candidate.logit))
        .collect();
    left.sort_unstable_by_key(|entry| entry.0);
    left
}

#[track_caller]
fn assert_same(actual: &[(u32, f32)], expected: &Value, case: &Value) {
    let entry = |pair: &Value| (whole(&pair[0]), float(&pair[1]));
    let expected: Vec<(u32, f32)> = array(expected).iter().map(entry).collect();
    let ids = |list: &[(u32, f32)]| list.iter().map(|entry| entry.0).collect::<Vec<u32>>();
    assert_eq!(ids(actual), ids(&expected), "{case}");
    for (a, e) in actual.iter().zip(&expected) {
        let error = (a.1 - e.1).abs() / e.1.abs().max(1.0);
        // llama.cpp sums entropies in f32, which a dynamic temperature near 0 magnifies.
        assert!(error < 5e-5, "token {}: {} for {}, {case}", a.0, a.1, e.1);
    }
}

#[test]
fn samplers_leave_what_llama_cpp_leaves() {
    let goldens = goldens();
    let history = wholes(&goldens["history"]);
    let context = SampleContext {
        history: &history,
        ..SampleContext::default()
    };
    let cases = array(&goldens["cases"]);
    assert!(cases.len() > 200, "{} cases", cases.len());
    for case in cases {
        let logits = floats(&goldens["shapes"][case["shape"].as_str().expect("a name")]);
        let mut storage = vec![Candidate::default(); logits.len()];
        let mut candidates = Candidates::from_logits(&mut storage, &logits).expect("finite");
        for step in array(&case["steps"]) {
            apply(step, &mut candidates, &context);
        }
        let what = serde_json::json!({ "shape": case["shape"], "steps": case["steps"] });
        assert_same(&left(&candidates), &case["left"], &what);
    }
}

#[test]
fn dry_penalises_what_llama_cpp_penalises() {
    let goldens = goldens();
    let gguf = Gguf::parse(MODEL, MODEL.len() as u64).expect("the project's own file");
    let mut words = vec![0; tokenizer::plan(&gguf).expect("a vocabulary").words];
    let tokenizer = Tokenizer::new(&gguf, &mut words).expect("a vocabulary");
    let n_vocab = tokenizer.n_vocab() as usize;
    let mut n_changed = 0;
    for case in array(&goldens["dry"]) {
        let a = array(&case["settings"]);
        let config = DryConfig {
            multiplier: float(&a[0]),
            base: float(&a[1]),
            allowed_length: whole(&a[2]),
            penalty_last_n: whole(&a[3]),
        };
        let text = |text: &Value| text.as_str().expect("a text").to_owned();
        let texts: Vec<String> = array(&a[4]).iter().map(text).collect();
        let breakers = DrySequenceBreakers::new(&texts, &tokenizer).expect("byte-level");
        let history = wholes(&case["tokens"]);
        let mut storage = vec![Candidate::default(); n_vocab];
        let logits = vec![0.0; n_vocab];
        let mut candidates = Candidates::from_logits(&mut storage, &logits).expect("finite");
        let mut dry = Dry {
            config,
            breakers: breakers.view(),
            workspace: &mut vec![0; config.workspace_len(history.len())],
        };
        let context = SampleContext {
            history: &history,
            ..SampleContext::default()
        };
        dry.apply(&mut candidates, &context);
        let mut changed = left(&candidates);
        changed.retain(|entry| entry.1 != 0.0);
        n_changed += changed.len();
        assert_same(&changed, &case["changed"], case);
    }
    assert!(n_changed > 30, "{n_changed} tokens were penalised");
}

/// llama.cpp draws other tokens, so its limit is followed by the rule from what it drew.
#[test]
fn mirostat_keeps_what_llama_cpp_keeps() {
    let goldens = goldens();
    for case in array(&goldens["mirostat"]) {
        let logits = floats(&goldens["shapes"][case["shape"].as_str().expect("a name")]);
        let version = match case["step"][0].as_str() {
            Some("mirostat") => MirostatVersion::V1,
            _ => MirostatVersion::V2,
        };
        let (tau, eta) = (float(&case["step"][1]), float(&case["step"][2]));
        let mut mu = 2.0 * tau;
        for draw in array(&case["draws"]) {
            let mut storage = vec![Candidate::default(); logits.len()];
            let mut candidates = Candidates::from_logits(&mut storage, &logits).expect("finite");
            let mut mirostat = Mirostat {
                mu,
                ..Mirostat::new(version, tau, eta)
            };
            let context = SampleContext::default();
            let id = mirostat.sample(&mut candidates, logits.len(), &context);
            let id = id.expect("finite");
            let kept: Vec<u32> = left(&candidates).iter().map(|entry| entry.0).collect();
            let of_peer = wholes(&draw["kept"]);
            // Of a flat distribution it would keep more tokens than an i32 counts. There that
            // becomes the smallest number and leaves one token; here all are kept.
            let overflows = of_peer.len() == 1 && case["shape"] == "flat";
            if !(overflows && kept.len() == logits.len()) {
                assert_eq!(kept, of_peer, "{mu} {case}");
            }
            let drawn = candidates.as_slice().iter().find(|c| c.id == id);
            let surprise = -drawn.expect("one of them").p.log2();
            let learnt = mu - eta * (surprise - tau);
            assert!(
                (mirostat.mu - learnt).abs() < 1e-4,
                "{} {learnt}",
                mirostat.mu
            );
            mu -= eta * (-float(&draw["p"]).log2() - tau);
        }
    }
}

// What follows restates the samplers in f64, for distributions without ties.

type Left = Vec<(usize, f64)>;

fn probabilities(left: &Left) -> Vec<f64> {
    let max = left.iter().map(|c| c.1).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = left.iter().map(|c| (c.1 - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

fn sorted(mut left: Left) -> Left {
    left.sort_by(|a, b| b.1.total_cmp(&a.1));
    left
}

/// The first of `left` whose probabilities together pass `enough`, but at least `least`.
fn until(left: &Left, enough: impl Fn(f64) -> bool, least: u32) -> usize {
    let mut reached = 0.0;
    let p = probabilities(left);
    for (n, p) in (1..).zip(p) {
        reached += p;
        if enough(reached) && n >= least as usize {
            return n;
        }
    }
    left.len()
}

fn entropy(left: &Left) -> f64 {
    let terms = probabilities(left).into_iter().filter(|&p| p > 0.0);
    terms.map(|p| -p * p.ln()).sum()
}

fn penalised(left: Left, c: &SamplerConfig, history: &[u32]) -> Left {
    let window = &history[history.len().saturating_sub(c.repeat_last_n as usize)..];
    let penalise = |(id, logit): (usize, f64)| {
        let count = window.iter().filter(|&&token| token as usize == id).count();
        if count == 0 {
            return (id, logit);
        }
        let repeat = f64::from(c.repeat_penalty);
        let scaled = if logit > 0.0 {
            logit / repeat
        } else {
            logit * repeat
        };
        let counted = count as f64 * f64::from(c.frequency_penalty);
        (id, scaled - counted - f64::from(c.presence_penalty))
    };
    left.into_iter().map(penalise).collect()
}

/// By definition: the longest suffix of the history that also precedes an earlier `id`.
fn dried(left: Left, c: &DryConfig, history: &[u32]) -> Left {
    if c.is_neutral() {
        return left;
    }
    let window = &history[history.len().saturating_sub(c.penalty_last_n as usize)..];
    let penalise = |(id, logit): (usize, f64)| {
        // The oldest token has nothing before it.
        let before = (1..window.len()).filter(|&at| window[at] as usize == id);
        let repeated = before.map(|at| {
            let ends = window[..at].iter().rev().zip(window.iter().rev());
            ends.take_while(|(a, b)| a == b).count()
        });
        match repeated.max() {
            Some(n) if n >= c.allowed_length as usize => {
                let exponent = n - c.allowed_length as usize;
                let power = f64::from(c.base).powi(i32::try_from(exponent).expect("short"));
                (id, logit - f64::from(c.multiplier) * power)
            }
            _ => (id, logit),
        }
    };
    left.into_iter().map(penalise).collect()
}

fn typical(left: Left, p: f64, least: u32) -> Left {
    if p >= 1.0 {
        return left;
    }
    let entropy = entropy(&left);
    let of = probabilities(&left);
    let mut order: Vec<usize> = (0..left.len()).collect();
    let distance = |&i: &usize| (-of[i].ln() - entropy).abs();
    order.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
    let mut reached = 0.0;
    let mut kept = Vec::new();
    for i in order {
        kept.push(left[i]);
        reached += of[i];
        if reached > p && kept.len() >= least as usize {
            break;
        }
    }
    kept
}

fn within_sigma(left: Left, n: f64) -> Left {
    if n <= 0.0 {
        return left;
    }
    let mean = left.iter().map(|c| c.1).sum::<f64>() / left.len() as f64;
    let squares: f64 = left.iter().map(|c| (c.1 - mean).powi(2)).sum();
    let deviation = (squares / left.len() as f64).sqrt();
    let max = left.iter().map(|c| c.1).fold(f64::NEG_INFINITY, f64::max);
    left.into_iter()
        .filter(|c| c.1 >= max - n * deviation)
        .collect()
}

fn warmed(left: Left, c: &SamplerConfig) -> Left {
    let mut temperature = f64::from(c.temperature);
    let range = f64::from(c.dynatemp_range);
    if range > 0.0 && left.len() > 1 {
        let share = entropy(&left) / (left.len() as f64).ln();
        let lowest = (temperature - range).max(0.0);
        let width = temperature + range - lowest;
        temperature = lowest + width * share.powf(f64::from(c.dynatemp_exponent));
    }
    left.into_iter()
        .map(|(id, logit)| (id, logit / temperature))
        .collect()
}

fn without_top(left: Left, c: &SamplerConfig) -> Left {
    let left = sorted(left);
    let p = probabilities(&left);
    let n_top = p
        .iter()
        .filter(|&&p| p >= f64::from(c.xtc_threshold))
        .count();
    let gone = n_top.saturating_sub(1);
    if gone > 0 && left.len() - gone >= c.min_keep as usize {
        return left[gone..].to_vec();
    }
    left
}

fn zipf(left: Left, c: &SamplerConfig) -> Left {
    let n_vocab = left.len() as f64;
    let left = sorted(left);
    let mu = 2.0 * f64::from(c.mirostat_tau);
    let (mut tb, mut tt) = (0.0, 0.0);
    for (i, pair) in left.windows(2).enumerate().take(99) {
        let t = ((i + 2) as f64 / (i + 1) as f64).ln();
        tb += t * (pair[0].1 - pair[1].1);
        tt += t * t;
    }
    let s = tb / tt;
    let k = ((s - 1.0) * mu.exp2() / (1.0 - n_vocab.powf(1.0 - s))).powf(1.0 / s);
    (1..)
        .zip(left)
        .take_while(|(n, _)| *n == 1 || f64::from(*n) <= k)
        .map(|(_, c)| c)
        .collect()
}

/// The probability of every token under a chain; `xtc`: whether XTC takes place.
fn expected(logits: &[f32], c: &SamplerConfig, history: &[u32], xtc: bool) -> Vec<f64> {
    let mut left: Left = logits.iter().map(|&l| f64::from(l)).enumerate().collect();
    let names = c.order.to_string();
    match c.mirostat {
        MirostatVersion::Off => {}
        MirostatVersion::V1 => left = zipf(warmed(left, c), c),
        MirostatVersion::V2 => {
            left = warmed(left, c);
            let of = probabilities(&left);
            let limit = 2.0 * f64::from(c.mirostat_tau);
            let kept = left.into_iter().zip(of).filter(|(_, p)| -p.log2() <= limit);
            left = kept.map(|(candidate, _)| candidate).collect();
        }
    }
    let steps = names
        .split(';')
        .filter(|_| c.mirostat == MirostatVersion::Off);
    for name in steps.filter(|name| !name.is_empty()) {
        left = match name {
            "penalties" => penalised(left, c, history),
            "dry" => dried(left, &c.dry, history),
            "top_n_sigma" => within_sigma(left, f64::from(c.top_n_sigma)),
            "top_k" if c.top_k > 0 => {
                let mut left = sorted(left);
                left.truncate(c.top_k as usize);
                left
            }
            "typ_p" => typical(left, f64::from(c.typical_p), c.min_keep),
            "top_p" if c.top_p < 1.0 => {
                let left = sorted(left);
                let n = until(&left, |p| p >= f64::from(c.top_p), c.min_keep);
                left[..n].to_vec()
            }
            "min_p" if c.min_p > 0.0 => {
                let left = sorted(left);
                let least = left[0].1 + f64::from(c.min_p).ln();
                let n = left.iter().take_while(|c| c.1 >= least).count();
                left[..n.max(c.min_keep as usize).min(left.len())].to_vec()
            }
            "xtc" if xtc => without_top(left, c),
            "temperature" => warmed(left, c),
            _ => left,
        };
    }
    let mut all = vec![0.0; logits.len()];
    for (p, (id, _)) in probabilities(&left).iter().zip(&left) {
        all[*id] = *p;
    }
    all
}

/// The 0.999 quantile of chi-square (Wilson and Hilferty).
fn quantile(freedom: f64) -> f64 {
    let a = 2.0 / (9.0 * freedom);
    freedom * (1.0 - a + 3.0902 * a.sqrt()).powi(3)
}

const DRAWS: u32 = 100_000;

fn order(names: &str) -> SamplerOrder {
    SamplerOrder::from_names(names).expect("names of samplers")
}

/// No sampler changes anything.
fn plain() -> SamplerConfig {
    SamplerConfig {
        seed: 11,
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..SamplerConfig::DEFAULT
    }
}

/// Every sampler at several settings, then several orders of all of them.
#[expect(clippy::too_many_lines, reason = "a table")]
fn chains() -> Vec<(&'static str, SamplerConfig)> {
    let dry = |multiplier, base, allowed_length| DryConfig {
        multiplier,
        base,
        allowed_length,
        penalty_last_n: 64,
    };
    let all = SamplerConfig {
        temperature: 1.3,
        dynatemp_range: 0.4,
        top_k: 14,
        top_p: 0.96,
        min_p: 0.02,
        typical_p: 0.95,
        top_n_sigma: 2.2,
        xtc_probability: 0.4,
        xtc_threshold: 0.12,
        repeat_penalty: 1.1,
        frequency_penalty: 0.05,
        presence_penalty: 0.1,
        dry: dry(0.4, 1.5, 1),
        ..plain()
    };
    let p = plain();
    vec![
        ("plain", p),
        (
            "another seed",
            SamplerConfig {
                seed: u64::MAX,
                ..p
            },
        ),
        (
            "temperature 0.5",
            SamplerConfig {
                temperature: 0.5,
                ..p
            },
        ),
        (
            "temperature 2",
            SamplerConfig {
                temperature: 2.0,
                ..p
            },
        ),
        (
            "dynamic temperature",
            SamplerConfig {
                dynatemp_range: 0.7,
                ..p
            },
        ),
        (
            "dynamic, squared",
            SamplerConfig {
                dynatemp_range: 1.5,
                dynatemp_exponent: 2.0,
                ..p
            },
        ),
        ("top-k 3", SamplerConfig { top_k: 3, ..p }),
        ("top-k 15", SamplerConfig { top_k: 15, ..p }),
        ("top-p 0.5", SamplerConfig { top_p: 0.5, ..p }),
        ("top-p 0.9", SamplerConfig { top_p: 0.9, ..p }),
        (
            "top-p 0.1, 4 kept",
            SamplerConfig {
                top_p: 0.1,
                min_keep: 4,
                ..p
            },
        ),
        ("min-p 0.1", SamplerConfig { min_p: 0.1, ..p }),
        (
            "min-p 0.5, 6 kept",
            SamplerConfig {
                min_p: 0.5,
                min_keep: 6,
                ..p
            },
        ),
        (
            "typical 0.4",
            SamplerConfig {
                typical_p: 0.4,
                ..p
            },
        ),
        (
            "typical 0.9",
            SamplerConfig {
                typical_p: 0.9,
                ..p
            },
        ),
        (
            "top-n-sigma 1",
            SamplerConfig {
                top_n_sigma: 1.0,
                ..p
            },
        ),
        (
            "top-n-sigma 2",
            SamplerConfig {
                top_n_sigma: 2.0,
                ..p
            },
        ),
        (
            "xtc always",
            SamplerConfig {
                xtc_probability: 1.0,
                ..p
            },
        ),
        (
            "xtc sometimes",
            SamplerConfig {
                xtc_probability: 0.3,
                xtc_threshold: 0.05,
                ..p
            },
        ),
        (
            "xtc, nothing to spare",
            SamplerConfig {
                xtc_probability: 0.9,
                min_keep: 20,
                ..p
            },
        ),
        (
            "repeat penalty",
            SamplerConfig {
                repeat_penalty: 1.5,
                ..p
            },
        ),
        (
            "presence penalty",
            SamplerConfig {
                presence_penalty: 0.8,
                repeat_last_n: 4,
                ..p
            },
        ),
        (
            "frequency penalty",
            SamplerConfig {
                frequency_penalty: 0.4,
                repeat_last_n: u32::MAX,
                ..p
            },
        ),
        (
            "dry",
            SamplerConfig {
                dry: dry(0.8, 1.75, 2),
                ..p
            },
        ),
        (
            "dry from the first token",
            SamplerConfig {
                dry: dry(0.5, 1.2, 0),
                ..p
            },
        ),
        (
            "defaults",
            SamplerConfig {
                seed: 5,
                ..SamplerConfig::DEFAULT
            },
        ),
        (
            "mirostat",
            SamplerConfig {
                mirostat: MirostatVersion::V1,
                mirostat_tau: 2.0,
                ..p
            },
        ),
        (
            "mirostat 2",
            SamplerConfig {
                mirostat: MirostatVersion::V2,
                mirostat_tau: 1.6,
                ..p
            },
        ),
        (
            "mirostat 2, warm",
            SamplerConfig {
                mirostat: MirostatVersion::V2,
                mirostat_tau: 2.2,
                temperature: 1.5,
                ..p
            },
        ),
        ("all, default order", all),
        (
            "all, backwards",
            SamplerConfig {
                order: order("temperature;xtc;min_p;top_p;typ_p;top_k;top_n_sigma;dry;penalties"),
                ..all
            },
        ),
        (
            "xtc and temperature twice",
            SamplerConfig {
                order: order("temperature;xtc;typ_p;temperature"),
                ..all
            },
        ),
        (
            "filters first",
            SamplerConfig {
                order: order("top_p;min_p;top_k;temperature;penalties;dry"),
                ..all
            },
        ),
        (
            "nothing runs",
            SamplerConfig {
                order: order(""),
                ..all
            },
        ),
    ]
}

const HISTORY: [u32; 12] = [4, 2, 7, 3, 9, 2, 7, 3, 5, 5, 2, 7];

/// Draws at positions `0..DRAWS`; Mirostat starts each time as at the beginning of a text.
fn draws(logits: &[f32], config: SamplerConfig) -> Vec<u32> {
    let mut storage = vec![Candidate::default(); logits.len()];
    let mut workspace = [0; HISTORY.len()];
    let mut chain = SamplerChain::new(config).expect("settings in range");
    let fresh = chain.mirostat();
    chain = chain.with_dry(DryBreakers::default(), &mut workspace);
    let mut drawn = Vec::new();
    for position in 0..DRAWS {
        let context = chain.context(&HISTORY, 3, position);
        chain = chain.with_mirostat(fresh);
        let id = chain.sample(logits, &mut storage, &mut [], &context);
        drawn.push(id.expect("finite logits"));
    }
    drawn
}

/// FNV-1a over the ids.
fn hash(ids: &[u32]) -> u64 {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Twenty tokens without ties: some likely ones, then a tail.
fn some_logits() -> Vec<f32> {
    let logit = |id: u32| 2.1 - 0.31 * id as f32 + ((id * 7) % 5) as f32 * 0.43;
    (0..20).map(logit).collect()
}

#[test]
fn chains_draw_with_the_probabilities_that_their_definitions_give() {
    let logits = some_logits();
    let mut hashes = Vec::new();
    for (name, config) in chains() {
        let drawn = draws(&logits, config);
        hashes.push((name, hash(&drawn)));
        let chance = match config.mirostat {
            MirostatVersion::Off => f64::from(config.xtc_probability),
            _ => 0.0,
        };
        let with = expected(&logits, &config, &HISTORY, true);
        let without = expected(&logits, &config, &HISTORY, false);
        let mut pooled = (0.0, 0.0);
        let (mut chi, mut cells) = (0.0, 0);
        let mut add = |count: f64, mean: f64| {
            chi += (count - mean).powi(2) / mean;
            cells += 1;
        };
        for id in 0..logits.len() {
            let count = drawn.iter().filter(|&&token| token as usize == id).count();
            let mean = f64::from(DRAWS) * (chance * with[id] + (1.0 - chance) * without[id]);
            if mean == 0.0 {
                assert_eq!(count, 0, "{name}: token {id} is not to be chosen");
            } else if mean < 10.0 {
                pooled = (pooled.0 + count as f64, pooled.1 + mean);
            } else {
                add(count as f64, mean);
            }
        }
        if pooled.1 > 0.0 {
            add(pooled.0, pooled.1);
        }
        assert!(cells > 1, "{name}: a choice between {cells}");
        let most = quantile(f64::from(cells - 1));
        assert!(
            chi < most,
            "{name}: chi-square {chi} of {cells} cells, at most {most}"
        );
    }
    let recorded: Vec<u64> = RECORDED.to_vec();
    let found: Vec<u64> = hashes.iter().map(|entry| entry.1).collect();
    assert_eq!(found, recorded, "{hashes:#x?}");
}

/// Hashes of the draws of [`chains`], recorded when they were first made. They never change.
const RECORDED: [u64; 34] = [
    0xd3c5_419f_8ec3_0726,
    0xf244_6b7c_9cd5_54f1,
    0xea6e_c629_e047_8710,
    0xcb28_62ab_952f_f1cc,
    0x54cf_eecc_479f_b723,
    0xa90c_b589_8d0a_ef08,
    0x174d_2aa2_7078_1df6,
    0xfbef_6839_0582_003f,
    0x72c3_4e5a_71a8_b956,
    0x54ad_3117_a58e_80e2,
    0x618c_06f9_e2e5_5615,
    0x7025_2bda_7667_1022,
    0xbc4e_f3bc_1210_7f76,
    0xdfb1_6301_00f0_8541,
    0x54ad_3117_a58e_80e2,
    0xce96_2483_b6e6_27b2,
    0x53c4_d703_b251_e438,
    0x0e75_4e08_ddc8_28f9,
    0x3fe3_1e45_3839_fef9,
    0xd3c5_419f_8ec3_0726,
    0xc898_3201_a9be_1c15,
    0x388e_a290_f033_a394,
    0xbc2f_3f10_92c9_4885,
    0x5a18_e1b5_62bc_55c3,
    0x68ea_a446_4800_053a,
    0x7b6c_3db8_d9d8_9a4c,
    0x9958_f041_97f5_af44,
    0x25c3_4407_7c09_d915,
    0xf321_94de_bf03_b1e3,
    0x0af0_84d8_529d_6ecf,
    0xd9ab_6e39_a2bb_201a,
    0xfd84_af53_d277_db2c,
    0xcf90_efee_96cc_82cd,
    0xd3c5_419f_8ec3_0726,
];

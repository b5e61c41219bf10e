//! Adapters that come, go and are replaced while texts are written with them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use sluice::adapter::{
    AdapterBlend, AdapterFile, AdapterLoadError, Factors, LoadedAdapter, Precision,
};
use sluice::core::kernels::lora::LoraType;
use sluice::sequence::PlainSampler;
use sluice::session::{GenerateError, StepHooks};
use sluice::{Limits, Model, Sequence, Session, Settings};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tale-5.8m-Q4_K_M.gguf");

fn model() -> &'static Model {
    static MODEL_ONCE: OnceLock<Model> = OnceLock::new();
    MODEL_ONCE.get_or_init(|| Model::open(MODEL).unwrap())
}

/// An adapter of the model with numbers that follow from `seed`.
fn file(seed: u64) -> AdapterFile {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut vector = |n: usize| -> Vec<f32> {
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            f32::from(u16::try_from(state >> 48).unwrap()) / 32768.0 - 1.0
        };
        (0..n).map(|_| 0.2 * random()).collect()
    };
    let rank = 1 + usize::try_from(seed % 8).unwrap();
    let factors = (0..6).flat_map(|layer| [("attn_q", layer), ("attn_output", layer)]);
    let factors = factors.map(|(name, layer)| Factors {
        tensor: format!("blk.{layer}.{name}.weight"),
        part: None,
        rank,
        a: vector(rank * 256),
        b: vector(256 * rank),
        scale: 1.0,
    });
    AdapterFile {
        path: format!("adapter {seed}"),
        architecture: "llama".to_owned(),
        base_model: None,
        factors: factors.collect(),
        warnings: Vec::new(),
    }
}

fn blend(seed: u64) -> AdapterBlend {
    let ty = LoraType::ALL[usize::try_from(seed % 4).unwrap()];
    let adapter = LoadedAdapter::load(model().config(), &file(seed), Precision::Type(ty));
    adapter.unwrap().into()
}

fn session(n_seq: usize) -> Session {
    let limits = Limits {
        n_ctx: 64 * n_seq,
        n_seq,
        adapter_rank: 16,
        ..Limits::default()
    };
    model().session(limits).unwrap()
}

fn settings(seed: u64, adapter: Option<AdapterBlend>) -> Settings {
    let mut settings = Settings {
        n_predict: Some(6),
        ignore_eos: true,
        adapter,
        ..Settings::default()
    };
    settings.sampler.seed = seed;
    settings
}

/// What a text is when it is alone.
fn alone(seed: u64, adapter: Option<AdapterBlend>) -> String {
    let mut session = session(1);
    let pieces = session.generate("Once upon a time", settings(seed, adapter));
    pieces.map(Result::unwrap).collect()
}

/// While texts of changing adapters are written side by side, another thread replaces the adapters: each text is the
/// one that its own adapter gives alone, and nothing stays in memory.
///
/// `SLUICE_ADAPTER_SWAPS` sets the number of texts; a run under a sanitizer is in docs/testing.md.
#[test]
fn a_text_keeps_its_adapter_whatever_is_published() {
    const N_SEEDS: u64 = 8;
    let n_texts = std::env::var("SLUICE_ADAPTER_SWAPS").map_or(200, |n| n.parse().unwrap());
    let expected: Vec<String> = (0..=N_SEEDS)
        .map(|seed| alone(3, (seed > 0).then(|| blend(seed))))
        .collect();
    let files: Vec<AdapterFile> = (0..=N_SEEDS).map(file).collect();
    // What is published: by number, with the handle; a swap is a pointer.
    let table: Mutex<[(u64, Option<AdapterBlend>); 3]> =
        Mutex::new([(0, None), (1, Some(blend(1))), (2, Some(blend(2)))]);
    let (is_over, n_swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut swap_times: Vec<Duration> = Vec::new();
    std::thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let mut seed = 3;
            let mut times = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                seed = seed % N_SEEDS + 1;
                let ty = LoraType::ALL[usize::try_from(seed % 4).unwrap()];
                let file = &files[usize::try_from(seed).unwrap()];
                let new = LoadedAdapter::load(model().config(), file, Precision::Type(ty)).unwrap();
                let mut new = (seed, Some(AdapterBlend::from(new)));
                let place = n_swaps.fetch_add(1, Ordering::Relaxed) % 3;
                let start = Instant::now();
                core::mem::swap(&mut table.lock().unwrap()[place], &mut new);
                times.push(start.elapsed());
            }
            times
        });
        let mut session = session(6);
        let (mut running, mut n_begun, mut n_done) = (Vec::<(u64, Sequence, String)>::new(), 0, 0);
        while n_done < n_texts {
            while running.len() < 6 && n_begun < n_texts {
                let (seed, adapter) = table.lock().unwrap()[n_begun % 3].clone();
                let sequence = session
                    .begin("Once upon a time", &settings(3, adapter))
                    .unwrap();
                running.push((seed, sequence, String::new()));
                n_begun += 1;
            }
            let mut all: Vec<&mut Sequence> = running
                .iter_mut()
                .map(|(_, sequence, _)| sequence)
                .collect();
            let (events, _) = session.step_with(&mut all, &StepHooks::default()).unwrap();
            for event in events {
                running[event.sequence].2.push_str(&event.piece);
            }
            let (ended, rest): (Vec<_>, Vec<_>) = running
                .into_iter()
                .partition(|(_, sequence, _)| sequence.ended().is_some());
            running = rest;
            for (seed, sequence, text) in ended {
                assert_eq!(text, expected[usize::try_from(seed).unwrap()], "{seed}");
                session.remove(sequence).unwrap();
                n_done += 1;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        swap_times = publisher.join().unwrap();
    });
    swap_times.sort_unstable();
    let median = swap_times[swap_times.len() / 2];
    println!("{} swaps, the median took {median:?}", swap_times.len());
    assert_eq!(alone(3, None), expected[0]);
}

/// What was read with adapters never goes on with others.
#[test]
fn a_text_keeps_the_adapters_it_was_read_with() {
    let mut session = session(3);
    let mut adapted = session.begin("Once", &settings(1, Some(blend(1)))).unwrap();
    session.step(&mut [&mut adapted]).unwrap();
    let plain = settings(1, None);
    let fork = session.fork(&adapted, &plain).unwrap();
    assert_eq!(session.identity(&fork), session.identity(&adapted));
    session.remove(fork).unwrap();
    let other = settings(1, Some(blend(2)));
    let refused = session.fork(&adapted, &other);
    assert!(matches!(refused, Err(GenerateError::OtherAdapters(_))));
    assert!(adapted.set_adapter(None).is_err());
    let sampler = || {
        let config = plain.sampler;
        Box::new(PlainSampler::new(config, model().tokenizer(), 64).unwrap())
    };
    let refused = session.restart(adapted, &plain, sampler());
    assert!(matches!(refused, Err(GenerateError::OtherAdapters(_))));
}

/// What the step's thread does for adapters: it takes handles, in less than a microsecond.
#[test]
fn taking_an_adapter_is_a_pointer() {
    let blends = [blend(1), blend(2)];
    let mut session = session(1);
    let mut sequence = session.begin("Once", &settings(1, None)).unwrap();
    let mut times: Vec<Duration> = (0..1001)
        .map(|i| {
            let start = Instant::now();
            sequence.set_adapter(Some(blends[i % 2].clone())).unwrap();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("a swap on the step's thread: {:?}", times[500]);
    // The bar is a microsecond; a busy machine may take longer.
    assert!(times[500] < Duration::from_micros(20), "{:?}", times[500]);
}

#[test]
fn memory_goes_with_the_last_handle() {
    let mut file = file(1);
    for factors in &mut file.factors {
        factors.rank = 512;
        factors.a = vec![0.25; 512 * 256];
        factors.b = vec![0.25; 256 * 512];
    }
    let resident = || -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let load =
        || LoadedAdapter::load(model().config(), &file, Precision::Type(LoraType::F32)).unwrap();
    let mut session = session(1);
    let mut sequence = session
        .begin("Once", &settings(1, Some(load().into())))
        .unwrap();
    let before = resident();
    // 12 MiB each, of which the text and the blend hold one at a time.
    for _ in 0..100 {
        let blend = AdapterBlend::new(vec![(load(), 0.5)]);
        sequence.set_adapter(Some(blend)).unwrap();
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 200 << 10, "{grown} KiB");
}

#[test]
fn what_does_not_go_with_the_model_is_refused_by_name() {
    let load = |change: &dyn Fn(&mut AdapterFile)| {
        let mut file = file(3);
        change(&mut file);
        LoadedAdapter::load(model().config(), &file, Precision::Exact)
            .map(drop)
            .unwrap_err()
    };
    let text = |change: &dyn Fn(&mut AdapterFile)| load(change).to_string();
    let unknown = text(&|file| file.factors[0].tensor = "blk.9.attn_q.weight".into());
    assert!(unknown.contains("blk.9.attn_q.weight"), "{unknown}");
    let family = text(&|file| file.architecture = "qwen2".into());
    assert!(
        family.contains("qwen2") && family.contains("llama"),
        "{family}"
    );
    let shape = text(&|file| file.factors[1].b.truncate(4 * 16));
    assert!(
        shape.contains("blk.0.attn_output.weight") && shape.contains("16"),
        "{shape}"
    );
    assert!(matches!(
        load(&|file| file.factors[0].rank = 0),
        AdapterLoadError::Rank { .. }
    ));
    assert!(matches!(
        load(&|file| file.factors[2].a[7] = f32::NAN),
        AdapterLoadError::Number { .. }
    ));
    assert!(matches!(
        load(&|file| file.factors[3].tensor = "blk.0.attn_q.weight".into()),
        AdapterLoadError::Twice { .. }
    ));
    assert!(matches!(
        load(&|file| file.factors.clear()),
        AdapterLoadError::Empty { .. }
    ));
}

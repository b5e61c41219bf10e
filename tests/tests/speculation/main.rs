//! Speculation changes nothing: texts, logits and log-probabilities are the same as without it, whatever is drafted,
//! how far, and whichever other texts are in the batch.
//!
//! `SLUICE_SPECULATIONS` is how many random runs there are, 200 by default.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod drafts;
mod texts;

use drafts::Fixed;
use sluice::draft::{DraftModel, HeadDrafter};
use sluice::file::LoadMode;
use sluice::host::isa::kernel_table;
use sluice::host::topology::Cores;
use sluice::model::{LoadOptions, ModelSource};
use sluice::session::StepHooks;
use sluice::speculate::{Drafter, Figures, POSITIONS_MAX, SpeculationOptions};
use sluice::{Limits, Model, Team};
use sluice_core::engine::{BatchEntry, Wants};
use sluice_make::slc::FfnLayout;
use sluice_tests::build::Random;
use sluice_tests::measured;
use sluice_tests::packing::packed;
use std::path::Path;
use texts::{Asked, Told, write};

/// Attention alone, windows, mixtures, latent rows, convolutions, delta nets, Mamba 2; with their draft tokens.
const MODELS: [&str; 13] = [
    "llama-Q4_K",
    "llama-Q4_K.slc",
    "gemma3",
    "gpt-oss",
    "deepseek2",
    "lfm2",
    "qwen35",
    "qwen3next",
    "granitehybrid",
    "nemotron_h",
    "qwen35-mtp",
    "glm4moe-norms",
    "deepseek2-mtp",
];

/// A fixture; `.slc` is one whose feed-forward network is stored by neuron.
fn open(name: &str, team: &Team) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models");
    let path = folder.join(format!("{}.gguf", name.trim_end_matches(".slc")));
    if !name.ends_with(".slc") {
        let opened = ModelSource::open(path, LoadMode::Read);
        return opened.unwrap().load(team).unwrap();
    }
    let file = packed(&std::fs::read(path).unwrap(), FfnLayout::Neurons).unwrap();
    let path = std::env::temp_dir().join(format!("sluice-drafts-{}-{name}", std::process::id()));
    std::fs::write(&path, file).unwrap();
    let model = ModelSource::open(&path, LoadMode::Read).unwrap().load(team);
    std::fs::remove_file(path).unwrap();
    model.unwrap()
}

fn n_runs() -> usize {
    std::env::var("SLUICE_SPECULATIONS").map_or(200, |n| n.parse().unwrap())
}

/// What is drafted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Ngrams,
    /// Half of its draft tokens are right.
    Told,
    /// The model itself.
    Itself,
    /// Another of the same shape and other weights.
    Other,
    /// The model's own head for further tokens; n-grams, where it has none.
    Head,
}

/// A CPU that lacks one takes its best.
const ISAS: [&str; 3] = ["scalar", "avx2", "avx512"];

const SOURCES: [Source; 5] = [
    Source::Ngrams,
    Source::Told,
    Source::Itself,
    Source::Other,
    Source::Head,
];

/// How a run drafts.
#[derive(Clone, Copy, Debug)]
struct Drafting {
    source: Source,
    options: SpeculationOptions,
    right: u32,
    isa: &'static str,
}

fn drafting(random: &mut Random) -> Drafting {
    let n_max = [1, 2, 3, 5, 8, POSITIONS_MAX][random.below(6) as usize];
    Drafting {
        source: SOURCES[random.below(5) as usize],
        options: SpeculationOptions {
            n_max,
            n_min: 1 + random.below(2) as usize,
            p_min: [0.0, 0.0, 0.1][random.below(3) as usize],
            ngrams: random.below(3) > 0,
            is_fixed: random.below(4) > 0,
        },
        right: random.below(11),
        isa: ISAS[random.below(3) as usize],
    }
}

/// The texts of `asked`, written `n_at_once` at a time.
fn run(
    (model, team): (&Model, &Team),
    asked: &[Asked],
    n_at_once: usize,
    drafting: Option<(&Drafting, &[Told])>,
) -> (Vec<Told>, Figures) {
    let shifts = asked.iter().any(|asked| asked.shifts);
    let n_at_once = if shifts { 1 } else { n_at_once };
    let limits = Limits {
        n_ctx: if shifts { 192 } else { 256 * n_at_once },
        table: drafting.and_then(|(drafting, _)| kernel_table(Some(drafting.isa)).ok()),
        n_seq: n_at_once,
        adapter_rank: 16,
        n_batch: 64,
        n_draft: drafting.map_or(0, |(drafting, _)| drafting.options.n_max),
        windows_give_back: n_at_once > 1,
        n_hidden: if drafting.is_some_and(|(drafting, _)| drafting.source == Source::Head) {
            64
        } else {
            0
        },
        ..Limits::default()
    };
    let mut session = model.session_on(team, limits).unwrap();
    if let Some((drafting, told)) = drafting {
        session.set_speculation(Some(drafting.options));
        let of = |model: &Model| {
            let draft = DraftModel::new(model, session.model(), team, &limits, "draft-simple");
            Box::new(draft.unwrap().rescoring())
        };
        match drafting.source {
            Source::Ngrams => {}
            Source::Head => {
                let head = HeadDrafter::new(model, team, &limits, LoadOptions::default());
                session.set_drafter(
                    head.unwrap()
                        .map(|head| -> Box<dyn Drafter> { Box::new(head) }),
                );
            }
            Source::Told => {
                let texts = told.iter().map(|told| told.tokens.clone()).collect();
                session.set_drafter(Some(Box::new(Fixed::new(texts, drafting.right))));
            }
            Source::Itself => {
                let draft = of(model);
                session.set_drafter(Some(draft));
            }
            Source::Other => {
                let draft = of(&open("llama-Q2_K", team));
                session.set_drafter(Some(draft));
            }
        }
    }
    let all = write(&mut session, asked, n_at_once);
    let Some(speculation) = session.speculation_mut() else {
        return (all, Figures::default());
    };
    assert_eq!(speculation.failure(), None);
    (all, *speculation.figures())
}

#[test]
fn texts_are_those_without_drafts() {
    let mut random = Random(0x5eed);
    let mut seen: Vec<(Source, Figures)> = Vec::new();
    let teams: Vec<Team> = (1..=2)
        .map(|n| Team::new(n, &Cores::detect()).unwrap())
        .collect();
    for i in 0..n_runs() {
        let team = &teams[random.below(2) as usize];
        let name = MODELS[i % MODELS.len()];
        let model = open(name, team);
        let n_texts = 1 + random.below(5) as usize;
        let mut asked: Vec<_> = (0..n_texts)
            .map(|_| Asked::random(&model, &mut random))
            .collect();
        if model.config().can_remove() && random.below(4) == 0 {
            asked.iter_mut().for_each(|asked| asked.shifts = true);
        }
        // Each text alone is what it must be.
        let (expected, _) = run((&model, team), &asked, 1, None);
        let how = drafting(&mut random);
        let n_at_once = 1 + random.below(4) as usize;
        let (found, figures) = run((&model, team), &asked, n_at_once, Some((&how, &expected)));
        let n_drawn: usize = found.iter().map(Told::n_drawn).sum();
        // Each pass over the model gives a text at least one token, and each token is from one pass. If a stop text
        // ends within what was drafted, more tokens may have been drawn after it.
        let n_most = n_drawn + n_texts * POSITIONS_MAX;
        assert!(figures.n_drawn <= n_most as u64, "{figures:?}");
        assert_eq!(figures.n_drawn, figures.n_passes + figures.n_accepted);
        seen.push((how.source, figures));
        for (j, (found, expected)) in found.iter().zip(&expected).enumerate() {
            if found != expected {
                panic!(
                    "run {i}, {name}, text {j} of {n_texts}, {n_at_once} at once, {how:?}\n{:?}\n{found:?}\n{expected:?}",
                    asked[j]
                );
            }
        }
    }
    for source in SOURCES {
        let of = seen.iter().filter(|(of, _)| *of == source);
        let (n, right) = of.fold((0, 0), |(n, right), (_, all)| {
            (n + all.n_draft, right + all.n_accepted)
        });
        measured(&format!("{source:?}: {n} drafts verified, {right} right"));
        assert!(n > right && right > 0, "{source:?}");
    }
}

/// A token scored from the hidden state has nearly the logit of the step.
#[test]
fn logits_are_found_again() {
    let team = Team::new(1, &Cores::detect()).unwrap();
    for name in MODELS {
        let model = open(name, &team);
        let batch: Vec<_> = (0..9u32)
            .map(|i| BatchEntry::new(3 + 5 * i, 0, i, Wants::LogitsAndHidden))
            .collect();
        let limits = Limits {
            n_outputs: 9,
            n_ctx: 64,
            ..Limits::default()
        };
        let mut session = model.session_on(&team, limits).unwrap();
        let ran = session.run(&batch, &StepHooks::default(), |outputs, _| {
            let (logits, hidden) = (outputs.logits(8).unwrap(), outputs.hidden(8).unwrap());
            let mut row = vec![0.0; hidden.len()];
            let largest = logits
                .iter()
                .fold(0f32, |most, logit| most.max(logit.abs()));
            for (token, logit) in (0u32..).zip(logits) {
                let again = model.weights().logit(token, hidden, &mut row);
                let error = (again - logit).abs() / largest;
                assert!(error < 0.03, "{name}: {token}: {again} and {logit}");
            }
        });
        ran.unwrap();
    }
}

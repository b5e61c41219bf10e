//! Cold neurons that stay on disk: whatever is in memory, in whatever order reads complete and fail, the logits are the same
//! as with all neurons in memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use sluice::adapter::{AdapterBlend, AdapterFile, Factors, LoadedAdapter, Precision};
use sluice::core::engine::{BatchEntry, NeuronChoice, Observer, Selector, SiteInput, Unit, Wants};
use sluice::experts::device::Simulation;
use sluice::experts::policy::EvictionPolicy;
use sluice::experts::{ExpertError, ExpertIo, ExpertOptions, ExpertStats, ExpertStore};
use sluice::file::LoadMode;
use sluice::host::topology::Cores;
use sluice::model::{LoadError, LoadOptions, ModelSource};
use sluice::session::{StepError, StepHooks};
use sluice::sparse::{NormsError, SparseMode};
use sluice::{Limits, Model, Session, Team};
use sluice_core::kernels::activation::ActivationKinds;
use sluice_core::kernels::{GgmlType, KernelTable};
use sluice_make::slc::FfnLayout;
use sluice_tests::build::{File, Meta, Random, Shape};
use sluice_tests::packing::{TYPES_BY_NEURON, packed};
use sluice_tests::run;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// A file in the temporary folder, removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(bytes: &[u8]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (id, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("sluice-cold-{id}-{n}.slc"));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _removed = std::fs::remove_file(&self.0);
    }
}

/// Hot neurons of each layer: none, some within a group of 256 columns, all but some.
const N_HOT: [u32; 3] = [0, 448, 960];

/// Three layers of 1,100 neurons, of which a few are active for each token.
fn file(ty: GgmlType, activation: (&str, f32)) -> File {
    let shape = Shape {
        ty,
        n_layer: 3,
        n_embd: 512,
        n_ff: if ty.block_len() > 32 { 1280 } else { 1120 },
        n_vocab: 29,
        head_dim_k: 64,
        head_dim_v: 64,
        vocab: Shape::TINY.vocab,
        ..Shape::SMALL
    };
    let mut file = shape.file();
    if activation.0 != "silu" {
        file.set("llama.activation", activation.0);
    }
    if activation.0 == "fatrelu" {
        file.set("llama.activation_threshold", activation.1);
    }
    file.set("llama.hot_neuron_count", Meta::U32s(N_HOT.to_vec()));
    let order = (0..3).flat_map(|_| (0..shape.n_ff).rev()).collect();
    file.set("llama.neuron_order", Meta::U32s(order));
    file
}

/// A threshold that leaves a few neurons active, in the types' sizes of random weights.
const fn few(ty: GgmlType) -> (&'static str, f32) {
    let threshold = match ty {
        GgmlType::Q4_0 | GgmlType::IQ4_NL => 5.0,
        GgmlType::Q5_0 => 3.0,
        GgmlType::Q4_1 | GgmlType::Q5_1 => 0.7,
        GgmlType::Q2_K => 1.2,
        _ => 2.2,
    };
    ("fatrelu", threshold)
}

fn by_neuron(file: &File) -> Temporary {
    Temporary::new(&packed(&file.bytes(), FfnLayout::Neurons).unwrap())
}

fn team(n: usize) -> Team {
    Team::new(n, &Cores::detect()).unwrap()
}

fn open(path: &Path, mode: &str) -> ModelSource {
    let opened = ModelSource::open(path, LoadMode::Map).unwrap();
    let mode: SparseMode = mode.parse().unwrap();
    opened.with_sparse(mode, None).unwrap()
}

fn load(
    path: &Path,
    mode: &str,
    team: &Team,
    experts: Option<ExpertOptions>,
) -> Result<Model, LoadError> {
    let options = LoadOptions {
        experts,
        ..LoadOptions::default()
    };
    open(path, mode).load_with(team, options)
}

fn limits(mode: &str) -> Limits {
    Limits {
        n_ctx: 64,
        n_batch: 32,
        n_outputs: 32,
        sparse: Some(mode.parse().unwrap()),
        ..Limits::default()
    }
}

fn session(model: &Model, mode: &str, team: &Team) -> Session {
    model.session_on(team, limits(mode)).unwrap()
}

const N_TOKENS: u32 = 24;

/// The bits of all logits of a text that is read in chunks.
fn logits(session: &mut Session, chunk: usize) -> Result<Vec<u32>, StepError> {
    logits_with(session, chunk, &StepHooks::default(), None)
}

fn logits_with(
    session: &mut Session,
    chunk: usize,
    hooks: &StepHooks<'_>,
    adapter: Option<u32>,
) -> Result<Vec<u32>, StepError> {
    session.with_state(|state| state.clear(0)).unwrap();
    let ids: Vec<u32> = (0..N_TOKENS).map(|i| (i * 7 + 11) % 29).collect();
    let mut found = Vec::new();
    for (i, part) in ids.chunks(chunk).enumerate() {
        let at = |j: usize| u32::try_from(i * chunk + j).unwrap();
        let entries = part.iter().enumerate();
        let batch: Vec<_> = entries
            .map(|(j, &id)| BatchEntry {
                adapter,
                ..BatchEntry::new(id, 0, at(j), Wants::Logits)
            })
            .collect();
        found.extend(session.run(&batch, hooks, |outputs, _| {
            let rows = (0..part.len()).map(|i| outputs.logits(i).unwrap());
            let bits = rows.flatten().map(|x| x.to_bits());
            bits.collect::<Vec<_>>()
        })?);
    }
    Ok(found)
}

fn resident(path: &Path, mode: &str, chunk: usize) -> Vec<u32> {
    let team = team(2);
    let model = load(path, mode, &team, None).unwrap();
    logits(&mut session(&model, mode, &team), chunk).unwrap()
}

fn stats(model: &Model) -> ExpertStats {
    model.experts().unwrap().stats()
}

/// Memory for a share of a hundred of a model's clusters, at least a layer's: the first has no hot neurons.
fn cache(path: &Path, share: usize) -> usize {
    let options = ExpertOptions::new(usize::MAX >> 1);
    let model = load(path, "exact", &team(1), Some(options)).unwrap();
    let stats = stats(&model);
    stats.slot_bytes * (stats.n_experts * share / 100).max(20)
}

#[test]
fn whatever_is_in_memory_the_logits_are_those_of_all_neurons() {
    let mut n_inactive = 0;
    for ty in TYPES_BY_NEURON {
        let file = by_neuron(&file(ty, few(ty)));
        let expected = resident(&file.0, "exact", 24);
        for (n_workers, share) in [(1, 0), (2, 0), (3, 50), (2, 100)] {
            let team = team(n_workers);
            let options = ExpertOptions::new(cache(&file.0, share));
            let model = load(&file.0, "exact", &team, Some(options)).unwrap();
            assert!(model.experts().is_some_and(ExpertStore::lends_neurons));
            let mut session = session(&model, "exact", &team);
            for chunk in [24, 5, 1] {
                let before = stats(&model).needed;
                let found = logits(&mut session, chunk).unwrap();
                let case = format!("{ty}: {n_workers} workers, {share}%, {chunk} tokens");
                assert!(found == expected, "{case}");
                let needed = stats(&model).needed - before;
                let n_steps = 24_u64.div_ceil(chunk as u64);
                let all = stats(&model).n_experts as u64 * n_steps;
                match chunk {
                    24 => assert_eq!(needed, all, "a prompt needs all"),
                    _ => assert!(needed > 0 && needed <= all, "{case}: {needed} of {all}"),
                }
                n_inactive += all - needed;
            }
            let stats = stats(&model);
            assert_eq!((stats.failures, stats.evictions == 0), (0, share == 100));
        }
    }
    assert!(n_inactive > 0);
}

#[test]
fn a_layer_may_have_no_cold_neurons() {
    let mut hot = file(GgmlType::Q4_K, few(GgmlType::Q4_K));
    hot.set("llama.hot_neuron_count", Meta::U32s(vec![1280, 448, 1250]));
    let file = by_neuron(&hot);
    let team = team(2);
    let options = ExpertOptions::new(cache(&file.0, 0));
    let model = load(&file.0, "exact", &team, Some(options)).unwrap();
    let found = logits(&mut session(&model, "exact", &team), 1).unwrap();
    assert!(found == resident(&file.0, "exact", 1));
    let experts = model.experts().unwrap();
    assert_eq!(experts.stats().n_experts, (1280 - 448) / 64);
    assert!(experts.memory_bytes() as u64 <= experts.total_bytes());
    // None of them: such a file has nothing to leave on disk.
    hot.set("llama.hot_neuron_count", Meta::U32s(vec![1280; 3]));
    let file = by_neuron(&hot);
    let refused = load(&file.0, "exact", &team, Some(ExpertOptions::new(1 << 20)));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("nor cold neurons")
    );
}

#[test]
fn every_table_activation_and_mode_has_the_bits_of_all_neurons() {
    let modes = [
        "exact",
        "off",
        "threshold:0.4:gate",
        "threshold:0.4:product",
        "top-k:40:gate",
        "top-k:40:product",
    ];
    for activation in [
        few(GgmlType::Q4_0),
        ("relu", 0.0),
        ("drelu", 0.0),
        ("silu", 0.0),
    ] {
        let file = by_neuron(&file(GgmlType::Q4_0, activation));
        let team = team(2);
        for mode in modes {
            if mode == "exact" && activation.0 == "silu" {
                continue;
            }
            let options = ExpertOptions::new(cache(&file.0, 40));
            let model = load(&file.0, mode, &team, Some(options)).unwrap();
            for table in tables(activation.0 == "fatrelu") {
                let mut session = {
                    let limits = Limits {
                        table: Some(table),
                        ..limits(mode)
                    };
                    model.session_on(&team, limits).unwrap()
                };
                for chunk in [24, 8, 1] {
                    let found = logits(&mut session, chunk).unwrap();
                    let expected = resident(&file.0, mode, chunk);
                    assert!(found == expected, "{activation:?} {mode} {}", table.name());
                }
            }
        }
    }
}

/// All of them, or the best.
fn tables(all: bool) -> Vec<&'static KernelTable> {
    match all {
        true => run::tables(),
        false => vec![run::table()],
    }
}

/// Selects every neuron whose number, layer and entry give a certain rest.
struct EveryNinetieth;

impl Selector for EveryNinetieth {
    fn unit(&self) -> Unit {
        Unit::Neuron
    }

    fn select(&self, layer: usize, entry: usize, _: Option<&[f32]>, units: &mut [u64]) -> bool {
        for neuron in (7 * layer + 3 * entry..64 * units.len()).step_by(90) {
            units[neuron / 64] |= 1 << (neuron % 64);
        }
        true
    }
}

#[test]
fn selected_neurons_are_read_alone() {
    let file = by_neuron(&file(GgmlType::Q5_K, ("silu", 0.0)));
    let team = team(2);
    let run = |experts| {
        let model = load(&file.0, "off", &team, experts).unwrap();
        let limits = Limits {
            selects: true,
            sparse: None,
            ..limits("off")
        };
        let mut session = model.session_on(&team, limits).unwrap();
        let hooks = StepHooks {
            selector: Some(&EveryNinetieth),
            ..StepHooks::default()
        };
        let found = [24, 3, 1].map(|chunk| logits_with(&mut session, chunk, &hooks, None).unwrap());
        (found, model.experts().map(ExpertStore::stats))
    };
    let (expected, _) = run(None);
    let (found, stats) = run(Some(ExpertOptions::new(cache(&file.0, 0))));
    assert!(found == expected);
    let stats = stats.unwrap();
    assert!(stats.needed < stats.n_experts as u64 * 32, "{stats:?}");
}

/// Sums of the bits of all neurons' values by layer, whichever are chosen.
#[derive(Default)]
struct Shown([AtomicU64; 3]);

impl Observer for Shown {
    fn sees(&self, _: SiteInput<'_>) {}

    fn sees_choices(&self) -> bool {
        true
    }

    fn sees_choice(&self, choice: NeuronChoice<'_>) {
        let bits = choice.values.iter().map(|x| u64::from(x.to_bits()));
        self.0[choice.layer].fetch_add(bits.sum(), Ordering::Relaxed);
    }
}

#[test]
fn what_is_shown_of_a_choice_is_of_all_neurons() {
    let file = by_neuron(&file(GgmlType::Q8_0, ("silu", 0.0)));
    let team = team(2);
    let run = |experts| {
        let model = load(&file.0, "exact", &team, experts).unwrap();
        let limits = Limits {
            selects: true,
            observes: true,
            ..limits("exact")
        };
        let mut session = model.session_on(&team, limits).unwrap();
        let shown = Shown::default();
        let hooks = StepHooks {
            selector: Some(&EveryNinetieth),
            observer: Some(&shown),
            ..StepHooks::default()
        };
        let found = [3, 24].map(|chunk| logits_with(&mut session, chunk, &hooks, None).unwrap());
        (found, shown.0.map(AtomicU64::into_inner))
    };
    let expected = run(None);
    assert!(expected.1.iter().all(|sum| *sum > 0));
    assert!(run(Some(ExpertOptions::new(cache(&file.0, 0)))) == expected);
}

#[test]
fn norms_need_all_neurons() {
    let file = by_neuron(&file(GgmlType::Q4_0, few(GgmlType::Q4_0)));
    let team = team(1);
    let model = load(&file.0, "exact", &team, None).unwrap();
    assert!(model.neuron_norms(1).is_ok());
    let options = ExpertOptions::new(cache(&file.0, 0));
    let model = load(&file.0, "exact", &team, Some(options)).unwrap();
    assert!(matches!(model.neuron_norms(1), Err(NormsError::OnDisk)));
}

#[test]
fn adapters_have_the_bits_of_all_neurons() {
    let gguf_file = file(GgmlType::Q4_K, ("relu", 0.0));
    let path = by_neuron(&gguf_file);
    let mut random = Random(5);
    let of_ffn = gguf_file.tensors.iter();
    let of_ffn = of_ffn.filter(|tensor| tensor.name.contains(".ffn_") && tensor.dims.len() == 2);
    let factors = of_ffn.map(|tensor| {
        let mut vector = |n: u64, size: f32| (0..n).map(|_| size * random.signed()).collect();
        Factors {
            tensor: tensor.name.as_str().into(),
            part: None,
            rank: 3,
            a: vector(3 * tensor.dims[0], 0.3),
            b: vector(3 * tensor.dims[1], 0.05),
            scale: 1.5,
        }
    });
    let adapter = AdapterFile {
        factors: factors.collect(),
        ..AdapterFile::default()
    };
    let team = team(2);
    let run = |experts, adapter: Option<&AdapterBlend>| {
        let model = load(&path.0, "exact", &team, experts).unwrap();
        let limits = Limits {
            adapter_rank: 16,
            adapter_kinds: ActivationKinds::all(),
            ..limits("exact")
        };
        let mut session = model.session_on(&team, limits).unwrap();
        let blends: Vec<_> = adapter.iter().map(|blend| blend.parts()).collect();
        let hooks = StepHooks {
            adapters: &blends,
            ..StepHooks::default()
        };
        let index = adapter.map(|_| 0);
        [24, 4, 1].map(|chunk| logits_with(&mut session, chunk, &hooks, index).unwrap())
    };
    let config = open(&path.0, "exact").config().clone();
    let loaded = LoadedAdapter::load(&config, &adapter, Precision::Exact).unwrap();
    let blend = AdapterBlend::new(vec![(loaded, 0.8)]);
    let expected = run(None, Some(&blend));
    assert!(expected != run(None, None));
    let options = ExpertOptions::new(cache(&path.0, 40));
    assert!(run(Some(options), Some(&blend)) == expected);
}

#[test]
fn every_policy_and_way_to_read_gives_the_same() {
    let file = by_neuron(&file(GgmlType::Q8_0, few(GgmlType::Q8_0)));
    let (team, expected) = (team(2), resident(&file.0, "exact", 24));
    let cache_bytes = cache(&file.0, 45);
    for policy in EvictionPolicy::ALL {
        for io in ExpertIo::ALL {
            let options = ExpertOptions {
                policy,
                io: Some(io),
                check: true,
                ..ExpertOptions::new(cache_bytes)
            };
            let model = match load(&file.0, "exact", &team, Some(options)) {
                Err(LoadError::Experts(ExpertError::Device { reason, .. })) => {
                    sluice_tests::skipped(&format!("{io}: {reason}"));
                    continue;
                }
                loaded => loaded.unwrap(),
            };
            assert_eq!(model.experts().unwrap().notes(), [""; 0]);
            let mut session = session(&model, "exact", &team);
            for chunk in [24, 3, 1, 1] {
                let found = logits(&mut session, chunk).unwrap();
                assert!(found == expected, "{policy} {io} {chunk}");
            }
        }
    }
}

/// Reads that complete in reverse, late, in pieces, and fail at times.
const TROUBLE: [Simulation; 3] = [
    Simulation {
        latency: Duration::from_micros(100),
        bytes_per_second: 400e6,
        is_reversed: true,
        ..Simulation::IDEAL
    },
    Simulation {
        fate: |n, len| Ok(if n % 3 == 0 { len.div_ceil(2) } else { len }),
        ..Simulation::IDEAL
    },
    Simulation {
        is_reversed: true,
        fate: |n, len| match n % 7 {
            2 => Err(5),
            4 => Err(4),
            5 => Ok(len / 2 + 1),
            _ => Ok(len),
        },
        ..Simulation::IDEAL
    },
];

#[test]
fn late_short_and_failed_reads_change_no_bit() {
    let file = by_neuron(&file(GgmlType::Q6_K, few(GgmlType::Q6_K)));
    let (team, expected) = (team(2), resident(&file.0, "exact", 24));
    for share in [0, 60] {
        let cache_bytes = cache(&file.0, share);
        for (i, simulation) in TROUBLE.into_iter().enumerate() {
            let options = ExpertOptions {
                device: Some(simulation.device()),
                ..ExpertOptions::new(cache_bytes)
            };
            let model = load(&file.0, "exact", &team, Some(options)).unwrap();
            let mut session = session(&model, "exact", &team);
            for chunk in [24, 2] {
                let found = logits(&mut session, chunk).unwrap();
                assert!(found == expected, "{share}%, trouble {i}, {chunk} tokens");
            }
        }
    }
}

#[test]
fn a_drive_that_fails_ends_the_step_by_name_and_is_tried_again() {
    let file = by_neuron(&file(GgmlType::Q4_0, few(GgmlType::Q4_0)));
    let (team, expected) = (team(2), resident(&file.0, "exact", 24));
    let simulation = Simulation {
        fate: |n, len| match n {
            30..60 => Err(5),
            _ => Ok(len),
        },
        ..Simulation::IDEAL
    };
    let options = ExpertOptions {
        device: Some(simulation.device()),
        ..ExpertOptions::new(cache(&file.0, 0))
    };
    let model = load(&file.0, "exact", &team, Some(options)).unwrap();
    let mut session = session(&model, "exact", &team);
    let error = logits(&mut session, 24).unwrap_err();
    assert!(matches!(error, StepError::Experts(_)), "{error}");
    assert!(error.to_string().contains("sluice-cold-"), "{error}");
    assert_eq!(session.state().len(0), 0);
    // The breaker opens again by itself.
    let found = (0..60).find_map(|_| {
        std::thread::park_timeout(Duration::from_millis(200));
        logits(&mut session, 24).ok()
    });
    assert!(found.unwrap() == expected);
}

/// Bytes of a model's weights that are in memory.
fn present(model: &Model) -> usize {
    let memory = model.weights().weight_memory();
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let (first, n) = (memory.as_ptr().addr() / 4096, memory.len().div_ceil(4096));
    let mut entries = vec![0; 8 * n];
    pagemap
        .read_exact_at(&mut entries, 8 * first as u64)
        .unwrap();
    let is_present = |entry: &&[u8; 8]| entry[7] & 0x80 != 0;
    4096 * entries.as_chunks().0.iter().filter(is_present).count()
}

#[test]
fn no_more_neurons_are_in_memory_than_fit_into_the_cache() {
    let file = by_neuron(&file(GgmlType::Q8_0, ("relu", 0.0)));
    let team = team(2);
    let whole = load(&file.0, "exact", &team, None).unwrap();
    let all = whole.weights().weight_memory().len();
    for share in [0, 50] {
        let options = ExpertOptions::new(cache(&file.0, share));
        let model = load(&file.0, "exact", &team, Some(options)).unwrap();
        let store = model.experts().unwrap();
        let others = all - usize::try_from(store.total_bytes()).unwrap();
        assert!(present(&model) <= others + 4096, "{share}%");
        let mut session = session(&model, "exact", &team);
        for chunk in [24, 1, 6] {
            logits(&mut session, chunk).unwrap();
            let found = present(&model);
            let most = others + store.memory_bytes() + 4096;
            assert!(found <= most, "{share}%: {found} of {most}, {all} in all");
        }
        assert!(store.stats().evictions > 0);
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let team = team(1);
    let refused = |path: &Path, mode: &str, bytes| {
        let loaded = load(path, mode, &team, Some(ExpertOptions::new(bytes)));
        loaded.unwrap_err().to_string()
    };
    let mut plain = file(GgmlType::Q4_0, few(GgmlType::Q4_0));
    let ordered = by_neuron(&plain);
    let text = refused(&ordered.0, "exact", 100 << 10);
    assert!(text.contains("the cold neurons of one layer, "), "{text}");
    for mode in ["budget:0.1", "threshold:0.1:contribution"] {
        let text = refused(&ordered.0, mode, 1 << 30);
        assert!(text.contains("omit --expert-cache"), "{text}");
    }
    let in_panels = Temporary::new(&packed(&plain.bytes(), FfnLayout::Panels).unwrap());
    plain.unset("llama.hot_neuron_count");
    plain.unset("llama.neuron_order");
    for path in [by_neuron(&plain), in_panels, Temporary::new(&plain.bytes())] {
        let text = refused(&path.0, "exact", 1 << 30);
        assert!(text.contains("nor cold neurons"), "{text}");
    }
    plain.set("llama.hot_neuron_count", Meta::U32s(N_HOT.to_vec()));
    let text = refused(&by_neuron(&plain).0, "exact", 1 << 30);
    assert!(text.contains("llama.neuron_order"), "{text}");
}

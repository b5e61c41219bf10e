//! Experts that stay on disk: whatever is in memory, in whatever order reads complete and fail, the logits are
//! the same as with the whole model in memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use sluice::core::engine::{BatchEntry, Wants};
use sluice::experts::device::Simulation;
use sluice::experts::policy::EvictionPolicy;
use sluice::experts::{ExpertError, ExpertIo, ExpertOptions};
use sluice::file::{LoadMode, OutputFile};
use sluice::host::topology::Cores;
use sluice::model::{LoadError, LoadOptions, ModelSource};
use sluice::session::{StepError, StepHooks};
use sluice::{Limits, Model, Session, Team};
use sluice_core::kernels::GgmlType;
use sluice_core::team::StopFlag;
use sluice_make::slc::{FfnLayout, PackOptions, SlcWatch, pack};
use sluice_tests::build::Shape;
use sluice_tests::fixture;
use sluice_tests::packing::{self, with_quantised_ffn};
use std::path::{Path, PathBuf};

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (id, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("sluice-experts-{id}-{n}"));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// The model of a fixture, packed.
    fn packed(&self, name: &str) -> PathBuf {
        self.packed_from(&gguf(name), name)
    }

    /// The same by neuron, with networks in a type that has such forms; `None` if they do not have the shape.
    fn by_neuron(&self, name: &str) -> Option<PathBuf> {
        let bytes = with_quantised_ffn(&std::fs::read(gguf(name)).unwrap());
        self.file_by_neuron(&bytes, name)
    }

    fn file_by_neuron(&self, bytes: &[u8], name: &str) -> Option<PathBuf> {
        let path = self.0.join(format!("{name}-neurons.slc"));
        std::fs::write(&path, packing::packed(bytes, FfnLayout::Neurons).ok()?).unwrap();
        Some(path)
    }

    fn packed_from(&self, path: &Path, name: &str) -> PathBuf {
        let opened = ModelSource::open(path, LoadMode::Read).unwrap();
        let path = self.0.join(format!("{name}.slc"));
        let output = OutputFile::create(&path, false).unwrap();
        let options = PackOptions {
            n_threads: 1,
            verify: false,
            ffn: FfnLayout::Panels,
        };
        let stop = StopFlag::new();
        let watch = SlcWatch::new(0, &stop, &|_| ());
        pack(opened.file(), opened.gguf(), output, options, &watch).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

fn gguf(name: &str) -> PathBuf {
    fixture("models").join(format!("{name}.gguf"))
}

/// Small mixtures, each of another kind: biases, gates and ups in one tensor, an expert for all tokens, groups, another type,
/// a space of their own.
const MODELS: [&str; 7] = [
    "gpt-oss",
    "gpt-oss-MXFP4_MOE",
    "glm4moe-Q4_K_M",
    "gemma4-moe",
    "deepseek2-glm",
    "granitehybrid-moe",
    "nemotron_h_moe-latent",
];

const N_TOKENS: u32 = 24;

fn team(n: usize) -> Team {
    Team::new(n, &Cores::detect()).unwrap()
}

fn load(path: &Path, team: &Team, experts: Option<ExpertOptions>) -> Result<Model, LoadError> {
    let options = LoadOptions {
        experts,
        ..LoadOptions::default()
    };
    ModelSource::open(path, LoadMode::Map)
        .unwrap()
        .load_with(team, options)
}

fn session(model: &Model, team: &Team) -> Session {
    let limits = Limits {
        n_ctx: 64,
        n_batch: 32,
        n_outputs: 32,
        ..Limits::default()
    };
    model.session_on(team, limits).unwrap()
}

fn ids(model: &Model) -> Vec<u32> {
    let n = u32::try_from(model.config().n_vocab).unwrap();
    (0..N_TOKENS).map(|i| (i * 37 + 11) % n).collect()
}

fn step(session: &mut Session, ids: &[u32], first: usize) -> Result<Vec<u32>, StepError> {
    let at = |i: usize| u32::try_from(first + i).unwrap();
    let entries = ids.iter().enumerate();
    let batch: Vec<_> = entries
        .map(|(i, &id)| BatchEntry::new(id, 0, at(i), Wants::Logits))
        .collect();
    session.run(&batch, &StepHooks::default(), |outputs, _| {
        let rows = (0..ids.len()).map(|i| outputs.logits(i).unwrap());
        rows.flatten().map(|x| x.to_bits()).collect()
    })
}

/// The bits of all logits of a text that is read in chunks.
fn logits(session: &mut Session, chunk: usize) -> Result<Vec<u32>, StepError> {
    session.with_state(|state| state.clear(0)).unwrap();
    let ids = ids(session.model());
    let mut found = Vec::new();
    for (i, part) in ids.chunks(chunk).enumerate() {
        found.extend(step(session, part, i * chunk)?);
    }
    Ok(found)
}

/// Why the text is not read.
fn failure(session: &mut Session) -> StepError {
    logits(session, 24).map(drop).unwrap_err()
}

fn slots(model: &Model, share: usize) -> usize {
    let stats = model.experts().unwrap().stats();
    stats.slot_bytes * (stats.n_experts * share / 100).max(1)
}

/// Memory for `share` of a hundred of a model's experts, at least one.
fn cache(path: &Path, share: usize) -> usize {
    let model = load(path, &team(1), Some(ExpertOptions::new(usize::MAX >> 1))).unwrap();
    slots(&model, share)
}

#[test]
fn whatever_is_in_memory_the_logits_are_the_resident_models() {
    let folder = Folder::new();
    let mut n_by_neuron = 0;
    for name in MODELS {
        let by_neuron = folder.by_neuron(name);
        n_by_neuron += usize::from(by_neuron.is_some());
        let paths = [gguf(name), folder.packed(name)].into_iter();
        for path in paths.chain(by_neuron) {
            let expected = {
                let team = team(2);
                let model = load(&path, &team, None).unwrap();
                logits(&mut session(&model, &team), 24).unwrap()
            };
            for (n_workers, share) in [(1, 0), (2, 0), (3, 0), (2, 20), (1, 50), (2, 100)] {
                let team = team(n_workers);
                let options = ExpertOptions::new(cache(&path, share));
                let model = load(&path, &team, Some(options)).unwrap();
                let mut session = session(&model, &team);
                for chunk in [24, 5, 1] {
                    let found = logits(&mut session, chunk).unwrap();
                    assert!(
                        found == expected,
                        "{name}: {n_workers} workers, {share}%, {chunk} tokens"
                    );
                }
                let stats = model.experts().unwrap().stats();
                assert!(stats.needed > 0 && stats.reads > 0, "{stats:?}");
                assert_eq!(stats.failures, 0);
                let resident = load(&path, &team, None).unwrap();
                assert_eq!(model.identity().place(), resident.identity().place());
            }
        }
    }
    assert!(n_by_neuron > 1, "{n_by_neuron}");
}

#[test]
fn every_policy_and_way_to_read_gives_the_same() {
    let folder = Folder::new();
    let by_neuron = folder.file_by_neuron(&many_experts(), "many").unwrap();
    for path in [gguf("gpt-oss"), folder.packed("gpt-oss"), by_neuron] {
        let team = team(2);
        let resident = load(&path, &team, None).unwrap();
        let expected = logits(&mut session(&resident, &team), 24).unwrap();
        let cache_bytes = cache(&path, 40);
        for policy in EvictionPolicy::ALL {
            for io in ExpertIo::ALL {
                for prefetch in [true, false] {
                    let options = ExpertOptions {
                        policy,
                        io: Some(io),
                        prefetch,
                        check: true,
                        ..ExpertOptions::new(cache_bytes)
                    };
                    let model = match load(&path, &team, Some(options)) {
                        Err(LoadError::Experts(ExpertError::Device { reason, .. })) => {
                            sluice_tests::skipped(&format!("{io}: {reason}"));
                            continue;
                        }
                        loaded => loaded.unwrap(),
                    };
                    assert_eq!(model.experts().unwrap().io_name(), io.name());
                    let mut session = session(&model, &team);
                    for chunk in [24, 3, 1, 1] {
                        let found = logits(&mut session, chunk).unwrap();
                        assert!(found == expected, "{policy} {io} {prefetch} {chunk}");
                    }
                }
            }
        }
    }
}

/// Reads that complete in reverse, late, in pieces, and fail at times.
const TROUBLE: [Simulation; 4] = [
    Simulation {
        is_reversed: true,
        ..Simulation::IDEAL
    },
    Simulation {
        latency: Duration::from_micros(300),
        bytes_per_second: 200e6,
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
    let folder = Folder::new();
    let by_neuron = folder.file_by_neuron(&many_experts(), "many").unwrap();
    for path in [gguf("gpt-oss"), folder.packed("gpt-oss"), by_neuron] {
        let team = team(2);
        let resident = load(&path, &team, None).unwrap();
        let expected = logits(&mut session(&resident, &team), 24).unwrap();
        for share in [0, 30, 100] {
            let cache_bytes = cache(&path, share);
            for (i, simulation) in TROUBLE.into_iter().enumerate() {
                let options = ExpertOptions {
                    device: Some(simulation.device()),
                    ..ExpertOptions::new(cache_bytes)
                };
                let model = load(&path, &team, Some(options)).unwrap();
                let mut session = session(&model, &team);
                for chunk in [24, 1] {
                    let found = logits(&mut session, chunk).unwrap();
                    assert!(found == expected, "{share}%, trouble {i}, {chunk} tokens");
                }
            }
        }
    }
}

#[test]
fn a_drive_that_fails_ends_the_step_by_name_and_is_tried_again() {
    let path = gguf("gpt-oss");
    let team = team(2);
    let resident = load(&path, &team, None).unwrap();
    let expected = logits(&mut session(&resident, &team), 24).unwrap();
    let simulation = Simulation {
        fate: |n, len| {
            if (6..15).contains(&n) {
                Err(5)
            } else {
                Ok(len)
            }
        },
        ..Simulation::IDEAL
    };
    let options = ExpertOptions {
        device: Some(simulation.device()),
        prefetch: false,
        ..ExpertOptions::new(cache(&path, 0))
    };
    let model = load(&path, &team, Some(options)).unwrap();
    let mut session = session(&model, &team);
    let error = failure(&mut session);
    let text = error.to_string();
    assert!(text.contains("gpt-oss.gguf"), "{text}");
    assert!(matches!(error, StepError::Experts(_)), "{text}");
    assert_eq!(session.state().len(0), 0);
    // The breaker opens again by itself.
    let found = (0..60).find_map(|_| {
        std::thread::park_timeout(Duration::from_millis(200));
        logits(&mut session, 24).ok()
    });
    assert!(found.unwrap() == expected);
}

#[test]
fn a_file_that_was_cut_short_is_named() {
    let folder = Folder::new();
    let path = folder.packed("gpt-oss");
    let team = team(1);
    // At a block's end, and inside of one.
    let cuts = [(ExpertIo::Uring, 8192), (ExpertIo::Pread, 8192)];
    for (io, len) in cuts
        .into_iter()
        .chain(cuts.map(|(io, len)| (io, len + 100)))
    {
        let cut = folder.0.join(format!("cut-{io}-{len}.slc"));
        std::fs::copy(&path, &cut).unwrap();
        let options = ExpertOptions {
            io: Some(io),
            ..ExpertOptions::new(cache(&path, 10))
        };
        // Not mapped, so that nothing else reads the file.
        let opened = ModelSource::open(&cut, LoadMode::Read).unwrap();
        let load = LoadOptions {
            experts: Some(options),
            ..LoadOptions::default()
        };
        let model = match opened.load_with(&team, load) {
            Err(LoadError::Experts(ExpertError::Device { reason, .. })) => {
                sluice_tests::skipped(&format!("{io}: {reason}"));
                continue;
            }
            loaded => loaded.unwrap(),
        };
        let file = std::fs::File::options().write(true).open(&cut).unwrap();
        file.set_len(len).unwrap();
        let error = failure(&mut session(&model, &team));
        let StepError::Experts(ExpertError::EndOfFile { path, .. }) = &error else {
            panic!("{error}");
        };
        assert_eq!(*path, cut);
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let refused =
        |path: &Path, options| load(path, &team(1), Some(options)).unwrap_err().to_string();
    let text = refused(&gguf("gpt-oss"), ExpertOptions::new(100));
    assert!(
        text.contains("a cache of 100 bytes cannot hold a single expert"),
        "{text}"
    );
    let text = refused(&gguf("smollm3"), ExpertOptions::new(1 << 30));
    assert!(text.contains("no experts"), "{text}");
    let mut options = ExpertOptions::new(1 << 30);
    options.dirs.push("/nowhere".into());
    let text = refused(&gguf("gpt-oss"), options);
    assert!(text.contains("/nowhere/gpt-oss.gguf"), "{text}");
}

#[test]
fn a_prompt_reads_each_expert_once() {
    let folder = Folder::new();
    let path = folder.packed("gpt-oss");
    for (n_workers, share) in [(1, 0), (2, 0), (2, 50), (3, 50), (2, 100)] {
        let team = team(n_workers);
        let options = ExpertOptions {
            prefetch: false,
            ..ExpertOptions::new(cache(&path, share))
        };
        let model = load(&path, &team, Some(options)).unwrap();
        let mut session = session(&model, &team);
        let experts = model.experts().unwrap();
        for round in 0..3 {
            let before = experts.stats();
            logits(&mut session, 24).unwrap();
            let stats = experts.stats().since(&before);
            let missing = (stats.needed - stats.hits) * stats.slot_bytes as u64;
            assert!(stats.read_bytes <= missing, "round {round}: {stats:?}");
            // With room for less than a layer's union, halves of experts are left from the step before.
            if share > 0 || round == 0 {
                assert_eq!(stats.read_bytes, missing, "round {round}: {stats:?}");
            }
        }
    }
}

#[test]
fn changed_bytes_are_found() {
    let folder = Folder::new();
    let path = folder.packed("gpt-oss");
    let team = team(1);
    let check = |device: Option<Simulation>| ExpertOptions {
        check: true,
        device: device.map(Simulation::device),
        ..ExpertOptions::new(cache(&path, 30))
    };
    let model = load(&path, &team, Some(check(None))).unwrap();
    logits(&mut session(&model, &team), 24).unwrap();
    // One bit, in the middle of an expert that the text needs.
    let opened = ModelSource::open(&path, LoadMode::Read).unwrap();
    let slc = opened.file().slc().unwrap().unwrap();
    let experts = slc
        .tensors()
        .filter(|(tensor, _)| tensor.name == "blk.1.ffn_up_exps.weight");
    let (_, header) = experts.last().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    for expert in 0..header.n_matrices() {
        let at = header.matrix_offset(expert) + header.matrix_bytes() / 3;
        bytes[usize::try_from(at).unwrap()] ^= 4;
    }
    let changed = folder.0.join("changed.slc");
    std::fs::write(&changed, bytes).unwrap();
    let model = load(&changed, &team, Some(check(None))).unwrap();
    let error = failure(&mut session(&model, &team));
    let StepError::Experts(ExpertError::Checksum { layer: 1, path, .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!(*path, changed);
}

#[test]
fn copies_on_other_drives_share_the_reads_and_stand_in_for_each_other() {
    let folder = Folder::new();
    let path = folder.packed("gpt-oss");
    let other = folder.0.join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(&path, other.join("gpt-oss.slc")).unwrap();
    let team = team(2);
    let resident = load(&path, &team, None).unwrap();
    let expected = logits(&mut session(&resident, &team), 24).unwrap();
    let options = ExpertOptions {
        dirs: vec![other],
        ..ExpertOptions::new(cache(&path, 30))
    };
    let model = load(&path, &team, Some(options)).unwrap();
    assert!(logits(&mut session(&model, &team), 5).unwrap() == expected);
    // A file of the same length with other experts is not a copy.
    let wrong = folder.0.join("wrong");
    std::fs::create_dir(&wrong).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let n = bytes.len();
    bytes[n - 5000] ^= 1;
    std::fs::write(wrong.join("gpt-oss.slc"), bytes).unwrap();
    let options = ExpertOptions {
        dirs: vec![wrong],
        ..ExpertOptions::new(cache(&path, 30))
    };
    let text = load(&path, &team, Some(options)).unwrap_err().to_string();
    assert!(text.contains("wrong/gpt-oss.slc is not a copy"), "{text}");
}

#[test]
fn a_trace_names_what_was_needed() {
    let folder = Folder::new();
    let trace = folder.0.join("trace.jsonl");
    let path = gguf("gpt-oss");
    let team = team(1);
    let options = ExpertOptions {
        trace: Some(trace.clone()),
        ..ExpertOptions::new(cache(&path, 50))
    };
    let model = load(&path, &team, Some(options)).unwrap();
    logits(&mut session(&model, &team), 1).unwrap();
    let mut reader = sluice_experts::TraceReader::open(&trace).unwrap();
    let mut step = sluice_experts::TraceStep::default();
    let (mut n, mut needed, mut hits, mut guessed) = (0, 0, 0, 0);
    while reader.read(&mut step).unwrap() {
        let n_layer = model.config().n_layer();
        assert_eq!(
            (usize::try_from(step.token).unwrap(), step.layer as usize),
            (n / n_layer, n % n_layer)
        );
        n += 1;
        needed += step.experts.len() as u64;
        hits += step.cache_hit.iter().filter(|hit| **hit).count() as u64;
        guessed += step.predicted.len();
    }
    let stats = model.experts().unwrap().stats();
    assert_eq!((needed, hits), (stats.needed, stats.hits));
    assert!(guessed > 0);
}

#[test]
fn tables_that_stay_in_the_file_change_no_bit() {
    // An embedding of its own, each layer's, and learned positions.
    for name in ["gpt-oss", "gemma4", "deepseek2-glm", "qwen2moe"] {
        let path = gguf(name);
        let team = team(2);
        let opened = ModelSource::open(&path, LoadMode::Map).unwrap();
        let resident = opened.load(&team).unwrap();
        let options = LoadOptions {
            tables_stay: true,
            ..LoadOptions::default()
        };
        let model = opened.load_with(&team, options).unwrap();
        assert_eq!(
            model.identity().place(),
            resident.identity().place(),
            "{name}"
        );
        let bytes = |model: &Model| model.weights().weight_bytes();
        let has_rows = opened.gguf().tensor("output.weight").is_some() || name == "gemma4";
        assert_eq!(bytes(&model) < bytes(&resident), has_rows, "{name}");
        let expected = logits(&mut session(&resident, &team), 24).unwrap();
        assert!(
            logits(&mut session(&model, &team), 5).unwrap() == expected,
            "{name}"
        );
    }
    let unmapped = ModelSource::open(gguf("gpt-oss"), LoadMode::Read).unwrap();
    let options = LoadOptions {
        tables_stay: true,
        ..LoadOptions::default()
    };
    let text = unmapped
        .load_with(&team(1), options)
        .unwrap_err()
        .to_string();
    assert!(text.contains("mapped"), "{text}");
}

/// A mixture of many experts, of which a prompt needs most.
fn many_experts() -> Vec<u8> {
    let shape = Shape {
        n_layer: 3,
        n_embd: 64,
        n_ff: 544,
        n_expert: 16,
        n_expert_used: 3,
        n_vocab: 29,
        ty: GgmlType::Q8_0,
        ..Shape::TINY
    };
    shape.file().bytes()
}

/// The same, packed.
fn many_experts_packed(folder: &Folder) -> PathBuf {
    let path = folder.0.join("many.gguf");
    std::fs::write(&path, many_experts()).unwrap();
    folder.packed_from(&path, "many")
}

#[test]
fn a_prompt_reads_each_expert_once_however_few_fit() {
    let folder = Folder::new();
    let path = many_experts_packed(&folder);
    for n_workers in [1, 2, 3] {
        let team = team(n_workers);
        for n_slots in [1, 2, 3, 5, 9, 15, 16, 40] {
            let slot_bytes = cache(&path, 0);
            let options = ExpertOptions {
                prefetch: false,
                ..ExpertOptions::new(n_slots * slot_bytes)
            };
            let model = load(&path, &team, Some(options)).unwrap();
            let mut session = session(&model, &team);
            logits(&mut session, 24).unwrap();
            let stats = model.experts().unwrap().stats();
            let union = stats.needed * stats.slot_bytes as u64;
            assert_eq!(
                stats.read_bytes, union,
                "{n_workers} workers, {n_slots} slots"
            );
        }
    }
}

/// A submission and a wait, on average, also with the reads of guesses.
#[test]
fn reads_of_a_layer_take_at_most_two_calls() {
    const N_LAYERS: u64 = 3;
    let (folder, team) = (Folder::new(), team(2));
    let path = many_experts_packed(&folder);
    for (share, prefetch) in [(25, true), (50, true), (50, false)] {
        let options = ExpertOptions {
            io: Some(ExpertIo::Uring),
            prefetch,
            ..ExpertOptions::new(cache(&path, share))
        };
        let model = match load(&path, &team, Some(options)) {
            Err(LoadError::Experts(ExpertError::Device { reason, .. })) => {
                return sluice_tests::skipped(&reason);
            }
            loaded => loaded.unwrap(),
        };
        let mut session = session(&model, &team);
        for _ in 0..20 {
            logits(&mut session, 1).unwrap();
        }
        let stats = model.experts().unwrap().stats();
        let n_layers = 20 * u64::from(N_TOKENS) * N_LAYERS;
        assert!(stats.enters > n_layers / 8, "{share}%: {stats:?}");
        assert!(stats.enters <= 2 * n_layers, "{share}%: {stats:?}");
    }
}

/// Bytes of address space of this process.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmSize:"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

#[test]
fn a_store_gives_its_memory_back() {
    let path = gguf("gpt-oss");
    let team = team(1);
    let io = [
        Some(ExpertIo::Uring),
        Some(ExpertIo::Pread),
        Some(ExpertIo::Mmap),
        None,
    ];
    for io in io {
        let open = || {
            let options = ExpertOptions {
                io,
                device: io.is_none().then(|| Simulation::IDEAL.device()),
                ..ExpertOptions::new(usize::MAX >> 1)
            };
            match load(&path, &team, Some(options)) {
                Err(LoadError::Experts(ExpertError::Device { .. })) => 0,
                loaded => loaded.unwrap().experts().unwrap().memory_bytes(),
            }
        };
        // Other tests of this process start and end meanwhile.
        let is_flat = (0..5).any(|_| {
            let (bytes, before) = (open(), address_space());
            (0..300).for_each(|_| _ = open());
            let grown = address_space().saturating_sub(before);
            grown < 150 * bytes as u64 + (1 << 20)
        });
        assert!(is_flat, "{io:?}");
    }
}

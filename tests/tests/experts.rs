//! Mixtures of experts: the same bits whatever the workers, the chunks, the rest of the batch, the
//! kernels and the source of the weights; and files that are wrong.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use sluice_core::engine::{
    Engine, EngineError, EngineLimits, ExpertPart, ExpertSource, Loan, NeededExperts, Observer,
    SiteInput, StepOptions, Wants,
};
use sluice_core::kernels::{GgmlType, KernelTable};
use sluice_core::model::{ModelWeights, Site};
use sluice_core::team::{Stop, StopFlag};
use sluice_tests::build::{File, Shape};
use sluice_tests::drive::{Bench, drive};
use sluice_tests::goldens::{self, Golden};
use sluice_tests::reference;
use sluice_tests::run::{self, Room, Weights, YieldWait};
use std::sync::Mutex;

/// Five experts, three used; widths that are multiples only of the block size.
const SHAPE: Shape = Shape {
    n_layer: 2,
    n_embd: 256,
    n_head: 6,
    n_head_kv: 3,
    head_dim_k: 128,
    head_dim_v: 128,
    n_ff: 544,
    n_vocab: 100,
    n_expert: 5,
    n_expert_used: 3,
    tied: false,
    vocab: sluice_tests::build::Vocab::None,
    ..Shape::TINY
};

/// Hashes of the logits of [`ids`] after a mixture of that type. Types of one block a super-block
/// take rows of 256 columns, so experts of 512 neurons.
const RECORDED: [(GgmlType, u32, u64); 6] = [
    (GgmlType::F16, 544, 0xd058_1f9f_f353_d8bf),
    (GgmlType::BF16, 40, 0xdf80_6940_5cb8_54bf),
    (GgmlType::Q8_0, 544, 0xe5f0_4bf8_29aa_5b00),
    (GgmlType::Q4_0, 544, 0x48f5_ccb1_c4b3_28e0),
    (GgmlType::Q4_K, 512, 0x49b2_bc37_566f_cba7),
    (GgmlType::Q6_K, 512, 0x3370_6e50_8bac_00b8),
];

fn shape(ty: GgmlType, n_ff: u32) -> Shape {
    Shape { ty, n_ff, ..SHAPE }
}

/// 45 tokens of a vocabulary of 100.
fn ids() -> Vec<u32> {
    (0..45u32).map(|i| (7 * i * i + 11 * i + 5) % 100).collect()
}

fn limits(n_workers: usize) -> EngineLimits {
    EngineLimits {
        n_batch: 100,
        n_outputs: 100,
        n_seq: 2,
        ..EngineLimits::single(512, n_workers)
    }
}

/// Hash of the logits of `ids` in chunks, with a table.
fn hash(
    file: &[u8],
    ids: &[u32],
    table: &'static KernelTable,
    n_workers: usize,
    chunk: usize,
) -> u64 {
    let mut weights = Weights::plan(file).unwrap();
    let model = weights.load(file, 1).unwrap();
    let limits = limits(n_workers);
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model, table, &limits).unwrap();
    run::hash(&run::logits(&mut engine, ids, chunk).unwrap())
}

#[test]
fn types_have_the_recorded_hashes_on_every_table_by_any_workers_in_any_chunks() {
    let mut failures = Vec::new();
    for (ty, n_ff, recorded) in RECORDED {
        let file = shape(ty, n_ff).file().bytes();
        for table in run::tables() {
            let found = hash(&file, &ids(), table, 1, 100);
            if found != recorded {
                failures.push(format!("({ty:?}, {n_ff}, {found:#018x}) {}", table.name()));
            }
        }
        let reference = hash(&file, &ids(), run::table(), 1, 100);
        for (n_workers, chunk) in [(2, 100), (3, 7), (5, 100), (1, 1), (2, 8), (3, 9), (7, 20)] {
            let found = hash(&file, &ids(), run::table(), n_workers, chunk);
            assert_eq!(
                found, reference,
                "{ty}: {n_workers} workers, chunks of {chunk}"
            );
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Hashes of the logits of goldens.
const GOLDENS: [(&str, u64); 7] = [
    ("mixtral", 0xa42f_8702_5c45_d4fb),
    ("olmoe", 0x4c3f_13c0_cd75_416d),
    ("qwen3moe", 0xa198_b89a_9926_7582),
    ("odd-experts", 0xc877_b1fe_81b7_8b9a),
    ("tiny-mixtral-f16", 0xfcb3_b50d_352a_eea6),
    ("tiny-olmoe-f16", 0x7f50_f94e_a8b5_bf5a),
    ("tiny-qwen3moe-f16", 0x7e62_8472_ffb0_7e65),
];

fn golden(name: &str) -> Option<(&'static Golden, Vec<u8>)> {
    let mut all = goldens::all().into_iter();
    let found = all.find(|(golden, _)| golden.name == name);
    // Every golden of the shared folder has a counterpart among the project's own.
    let (golden, folder) = found?;
    Some((golden, std::fs::read(folder.join(golden.model)).unwrap()))
}

#[test]
fn goldens_have_the_recorded_hashes() {
    let mut failures = Vec::new();
    for (name, recorded) in GOLDENS {
        let Some((golden, file)) = golden(name) else {
            continue;
        };
        for table in run::tables() {
            let found = hash(&file, golden.ids, table, 1, 100);
            if found != recorded {
                failures.push(format!("(\"{name}\", {found:#018x}), // {}", table.name()));
            }
        }
        let reference = hash(&file, golden.ids, run::table(), 1, 100);
        for (n_workers, chunk) in [(2, 3), (3, 100), (5, 1)] {
            let found = hash(&file, golden.ids, run::table(), n_workers, chunk);
            assert_eq!(found, reference, "{name}: {n_workers} workers, {chunk}");
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn the_rest_of_a_batch_changes_no_bit() {
    let (ids, others): (Vec<u32>, Vec<u32>) = (ids(), ids().into_iter().rev().collect());
    for ty in [GgmlType::F16, GgmlType::Q8_0] {
        Bench::new(&shape(ty, 544)).with(&limits(2), |engine| {
            let alone = run::logits(engine, &ids, 100).unwrap();
            engine.state_mut().clear(0).unwrap();
            let mixed: Vec<_> = run::entries(&ids, 1, 0)
                .into_iter()
                .zip(run::entries(&others, 0, 0))
                .flat_map(|(a, b)| [b, a])
                .collect();
            let rows = run::step(engine, &mixed).unwrap();
            for (i, alone) in alone.iter().enumerate() {
                let row = &rows[2 * i + 1..2 * i + 2];
                assert_eq!(
                    run::hash(row),
                    run::hash(core::slice::from_ref(alone)),
                    "{ty} {i}"
                );
            }
        });
    }
}

/// Largest difference to the f64 evaluation, by the logits' root mean square.
fn distance(file: &File) -> f64 {
    let bytes = file.bytes();
    let exact = reference::Model::parse(&bytes).unwrap().logits(&ids());
    let found = Bench::of(file).with(&limits(2), |engine| {
        run::logits(engine, &ids(), 100).unwrap()
    });
    goldens::distance(&found, &exact).rms_relative
}

#[test]
fn one_expert_may_get_all_tokens_and_another_none() {
    let mut file = shape(GgmlType::F16, 40).file();
    assert!(distance(&file) < 1e-3);
    // A router of zeros: all are equal, so the first three get every token.
    for layer in 0..2 {
        file.fill(&format!("blk.{layer}.ffn_gate_inp.weight"), &[0.0; 5 * 256]);
    }
    assert!(distance(&file) < 1e-3);
    let seen = observe(&file.bytes());
    assert_eq!(seen, [[45, 45, 45, 0, 0]; 2]);
}

#[test]
fn every_token_meets_as_many_experts_as_the_file_says() {
    let seen = observe(&shape(GgmlType::F16, 40).file().bytes());
    for layer in seen {
        assert_eq!(layer.iter().sum::<usize>(), 3 * ids().len());
        assert!(layer.iter().all(|&n| n <= ids().len()));
    }
}

/// Counts the rows that each expert multiplies.
#[derive(Default)]
struct Counter([[AtomicUsize; 5]; 2]);

impl Observer for Counter {
    fn sees_all(&self) -> bool {
        true
    }

    fn sees(&self, seen: SiteInput<'_>) {
        assert_eq!(seen.expert.is_some(), seen.site.is_of_experts());
        if seen.site == Site::FfnDown {
            assert_eq!(seen.input.len(), 40);
            let expert = seen.expert.unwrap() as usize;
            self.0[seen.layer][expert].fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn observe(file: &[u8]) -> [[usize; 5]; 2] {
    let counter = Counter::default();
    observed(file, &counter, ids().len());
    counter.0.map(|layer| layer.map(AtomicUsize::into_inner))
}

/// Runs all tokens before an observer, some in a batch.
fn observed(file: &[u8], observer: &dyn Observer, n_batch: usize) {
    let limits = EngineLimits {
        observes: true,
        ..limits(3)
    };
    let mut weights = Weights::plan(file).unwrap();
    let model = weights.load(file, 1).unwrap();
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model, run::table(), &limits).unwrap();
    let batch = run::entries(&ids(), 0, 0);
    let stop = StopFlag::new();
    for entries in batch.chunks(n_batch) {
        let options = StepOptions {
            observer: Some(observer),
            ..StepOptions::new(&YieldWait, &stop)
        };
        drive(&mut engine, entries, options)
            .unwrap()
            .result
            .unwrap();
    }
}

/// Adds up what experts' gate projections read, in any order.
#[derive(Default)]
struct Inputs(AtomicUsize);

impl Observer for Inputs {
    fn sees_all(&self) -> bool {
        true
    }

    fn sees(&self, seen: SiteInput<'_>) {
        if seen.site == Site::FfnGate {
            let expert = seen.expert.unwrap() as usize;
            for (i, x) in seen.input.iter().enumerate() {
                let weighted = x.to_bits() as usize * (2 * i + 1) * (2 * expert + 1);
                self.0.fetch_add(weighted, Ordering::Relaxed);
            }
        }
    }
}

/// Experts' rows are copied side by side in long batches: what observers read, too, where no weight
/// of an expert asks for it.
#[test]
fn observers_of_experts_read_the_same_in_every_batch() {
    let file = shape(GgmlType::Q8_0, 544).file().bytes();
    let inputs = [1, 8, 45].map(|n_batch| {
        let inputs = Inputs::default();
        observed(&file, &inputs, n_batch);
        inputs.0.into_inner()
    });
    assert_ne!(inputs[0], 0);
    assert_eq!(inputs, [inputs[0]; 3]);
}

/// A source that delivers experts late.
struct Late<'m> {
    model: ModelWeights<'m>,
    stop: &'m StopFlag,
    asked: AtomicU32,
    announced: Mutex<Vec<(usize, Vec<u32>)>>,
    never: AtomicBool,
}

impl ExpertSource for Late<'_> {
    fn announce(&self, needed: &NeededExperts<'_>) {
        self.announced
            .lock()
            .unwrap()
            .push((needed.layer, needed.experts.to_vec()));
    }

    fn lend(&self, layer: usize, expert: u32, part: ExpertPart) -> Loan<'_> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        if self.never.load(Ordering::Relaxed) {
            std::thread::yield_now();
            if asked > 1000 {
                self.stop.stop();
            }
            return Loan::OnItsWay;
        }
        if !asked.is_multiple_of(3) {
            return Loan::OnItsWay;
        }
        self.model.lend(layer, expert, part)
    }
}

#[test]
fn experts_that_come_late_change_no_bit_and_a_stop_does_not_wait_for_them() {
    Bench::new(&shape(GgmlType::Q8_0, 544)).with(&limits(3), |engine| {
        let expected = run::logits(engine, &ids(), 100).unwrap();
        let stop = StopFlag::new();
        let model = engine.model().clone();
        let late = Late {
            model,
            stop: &stop,
            asked: AtomicU32::new(0),
            announced: Mutex::default(),
            never: AtomicBool::new(false),
        };
        engine.state_mut().clear(0).unwrap();
        let step = |engine: &mut Engine<'_>, ids: &[u32]| {
            let options = StepOptions {
                experts: Some(&late),
                ..StepOptions::new(&YieldWait, &stop)
            };
            drive(engine, &run::entries(ids, 0, 0), options)
                .unwrap()
                .result
        };
        let rows = step(engine, &ids()).unwrap();
        for (row, expected) in rows.logits.iter().zip(&expected) {
            let row = row.as_ref().unwrap();
            assert_eq!(
                sluice_tests::drive::bits(row),
                sluice_tests::drive::bits(expected)
            );
        }
        let announced = core::mem::take(&mut *late.announced.lock().unwrap());
        let layers: Vec<usize> = announced.iter().map(|(layer, _)| *layer).collect();
        assert_eq!(layers, [0, 1]);
        assert!(announced.iter().all(|(_, experts)| experts.is_sorted()));
        engine.state_mut().clear(0).unwrap();
        late.never.store(true, Ordering::Relaxed);
        late.asked.store(0, Ordering::Relaxed);
        let ended = step(engine, &ids());
        assert_eq!(ended, Err(EngineError::Stopped(Stop::Cancelled)));
        assert_eq!(engine.state().len(0), 0);
        stop.clear();
        late.never.store(false, Ordering::Relaxed);
        assert!(step(engine, &ids()).is_ok());
    });
}

/// What a source hears of a layer, and when a worker first reads an expert of it.
struct Heard<'m> {
    model: ModelWeights<'m>,
    events: Mutex<Vec<(usize, &'static str)>>,
}

impl Heard<'_> {
    fn add(&self, event: (usize, &'static str)) {
        let mut events = self.events.lock().unwrap();
        if !events.contains(&event) {
            events.push(event);
        }
    }
}

impl ExpertSource for Heard<'_> {
    fn announce(&self, needed: &NeededExperts<'_>) {
        self.add((needed.layer, "announced"));
    }

    fn lend(&self, layer: usize, expert: u32, part: ExpertPart) -> Loan<'_> {
        self.add((layer, "lent"));
        self.model.lend(layer, expert, part)
    }
}

impl Observer for Heard<'_> {
    fn sees(&self, seen: SiteInput<'_>) {
        if seen.site == Site::AttnOutput {
            self.add((seen.layer, "attended"));
        }
    }

    fn sees_all(&self) -> bool {
        false
    }
}

/// A router that reads a layer's input chooses before attention: its experts are announced first, in decode, in prompts,
/// and in the last layer, where only output rows go on.
#[test]
fn experts_of_an_early_router_are_announced_before_attention() {
    for (name, is_early) in [("smallthinker", true), ("olmoe", false)] {
        let (golden, file) = golden(name).unwrap();
        let mut bench = Bench::of_bytes(&file);
        let limits = EngineLimits {
            observes: true,
            ..limits(2)
        };
        bench.with(&limits, |engine| {
            let expected = run::logits(engine, golden.ids, 100).unwrap();
            for (n, n_outputs) in [(golden.ids.len(), 1), (golden.ids.len(), 10), (3, 1)] {
                engine.state_mut().clear(0).unwrap();
                let stop = StopFlag::new();
                let heard = Heard {
                    model: engine.model().clone(),
                    events: Mutex::default(),
                };
                let options = StepOptions {
                    experts: Some(&heard),
                    observer: Some(&heard),
                    ..StepOptions::new(&YieldWait, &stop)
                };
                let mut entries = run::entries(&golden.ids[..n], 0, 0);
                for entry in &mut entries[..n - n_outputs] {
                    entry.wants = Wants::Nothing;
                }
                let rows = drive(engine, &entries, options).unwrap().result.unwrap();
                let wanted = n - n_outputs..n;
                let found = rows.logits[wanted.clone()].iter().flatten();
                assert!(found.eq(&expected[wanted]), "{name} {n} {n_outputs}");
                let events = heard.events.into_inner().unwrap();
                let at = |event| events.iter().position(|other| *other == event);
                for layer in 0..engine.model().config().n_layer() {
                    let [announced, attended, lent] =
                        ["announced", "attended", "lent"].map(|what| at((layer, what)).unwrap());
                    assert_eq!(announced < attended, is_early, "{name} {layer}: {events:?}");
                    assert!(attended < lent, "{name} {layer}: {events:?}");
                }
            }
        });
    }
}

#[test]
fn wrong_files_are_named() {
    let file = shape(GgmlType::F16, 40).file();
    let refused = |change: &dyn Fn(&mut File), expected: &[&str]| {
        let mut file = file.clone();
        change(&mut file);
        let error = Weights::plan(&file.bytes())
            .map(drop)
            .unwrap_err()
            .to_string();
        for part in expected {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
    };
    let used = "llama.expert_used_count";
    refused(&|f| f.set(used, 6), &[used, "is 6", "1 to expert_count"]);
    refused(&|f| f.set(used, 0), &[used, "is 0"]);
    refused(&|f| f.unset(used), &[used]);
    refused(
        &|f| f.set("llama.expert_count", 2000),
        &["llama.expert_count", "is 2000"],
    );
    let down = "blk.1.ffn_down_exps.weight";
    refused(
        &|f| f.set("llama.expert_count", 4),
        &["blk.0.ffn_gate_inp.weight", "5 rows"],
    );
    refused(
        &|f| f.tensor(down).dims = vec![40, 64, 20],
        &[
            down,
            "20 experts of 64 rows of 40",
            "expected 5 of 256 rows of 40",
        ],
    );
    refused(
        &|f| f.tensor(down).dims = vec![40, 256 * 5],
        &[down, "expected 5 of 256"],
    );
    refused(&|f| f.tensor(down).name = "x".into(), &[down, "missing"]);
    // Without the count they are a llama file that lacks its tensors.
    refused(
        &|f| f.unset("llama.expert_count"),
        &["blk.0.ffn_gate.weight", "missing"],
    );
}

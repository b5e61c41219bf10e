//! Reading cold neurons against computing with hot ones, on a device whose speed is set: `cold_overlap [N_WORKERS]`.
//!
//! What a layer may take is added up from records of steps with all neurons in memory, eight tokens each:
//!
//! ```text
//! exact       others + gate + max(io, hot neurons) + last cluster
//! predictor   others + max(io, gate, hot and cold neurons)
//! ```
//!
//! *Hot neurons* are up and down of those, with the scales of down; *others* is what a layer does besides (attention, norms).
//! Without a predictor's matrices, a selection of the neurons that are active takes its place: its clusters are announced
//! before gates are computed.

#![expect(clippy::print_stdout, reason = "what it is for")]

use core::time::Duration;
use sluice::core::engine::{BatchEntry, Selector, Unit, Wants};
use sluice::core::state::State;
use sluice::core::trace::{EventRing, Phase, TraceEvent};
use sluice::experts::device::Simulation;
use sluice::experts::policy::EvictionPolicy;
use sluice::experts::{ExpertOptions, ExpertStats};
use sluice::file::LoadMode;
use sluice::host::topology::Cores;
use sluice::model::{LoadOptions, ModelSource};
use sluice::session::StepHooks;
use sluice::{Limits, Model, Session, Team};
use sluice_core::kernels::GgmlType;
use sluice_make::slc::FfnLayout;
use sluice_tests::build::{Meta, Shape};
use sluice_tests::packing::packed;
use std::path::Path;
use std::time::Instant;

const SHAPE: Shape = Shape {
    n_layer: 2,
    n_embd: 4096,
    n_head: 8,
    n_head_kv: 2,
    head_dim_k: 64,
    head_dim_v: 64,
    n_ff: 4096,
    n_vocab: 29,
    ty: GgmlType::Q4_0,
    ..Shape::TINY
};
/// Hot neurons of each layer.
const N_HOT: u32 = 1024;
/// Clusters of cold neurons in a layer.
const N_CLUSTERS: u32 = (SHAPE.n_ff - N_HOT) / 64;
/// The cold neuron of each cluster that may be active.
const COLD: usize = 7;
/// Bytes of a cluster: rows of up, codes of down.
const CLUSTER_BYTES: usize = 64 * SHAPE.n_embd as usize / 32 * (18 + 16);
/// Hot neurons that are active, in steps of their index.
const HOT_EVERY: usize = 2;
/// Time for reading by the time for computing.
const RATIOS: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];
const N_STEPS: usize = 21;
const N_BEFORE: usize = 5;
/// Sequences of the same text, whose neurons are alike.
const N_SEQ: u32 = 8;

/// Median times of a step: all of it, gate and up, down.
#[derive(Clone, Copy)]
struct Times {
    all: f64,
    gate_up: f64,
    down: f64,
}

fn main() {
    let n_workers = std::env::args().nth(1);
    let n_workers = n_workers.map_or(1, |n| n.parse().expect("a number of workers"));
    let team = Team::new(n_workers, &Cores::detect()).expect("threads");
    let folder = std::env::temp_dir().join(format!("sluice-cold-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let [open, closed, by_row] = ["open", "closed", "by-row"].map(|name| folder.join(name));
    write(&open, true, FfnLayout::Neurons);
    write(&closed, false, FfnLayout::Neurons);
    write(&by_row, true, FfnLayout::Predicted);
    println!("{n_workers} workers; ms of a layer");
    println!("| mode | io | others | gate | hot | last cluster | limit | found | found / limit |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for (path, selects) in [(open, false), (by_row, true)] {
        let gates = Runner::new(&closed, &team, None, false).times(N_STEPS);
        for ratio in RATIOS {
            compare(&path, &team, selects, ratio, gates);
        }
    }
    std::fs::remove_dir_all(folder).expect("the folder is ours");
}

/// Steps with all neurons in memory, and with cold ones on a device that takes `ratio` of their time for reading, in turn.
fn compare(path: &Path, team: &Team, selects: bool, ratio: f64, gates: Times) {
    let mut resident = Runner::new(path, team, None, selects);
    let compute = resident.times(N_STEPS).all;
    let bytes = {
        let mut runner = Runner::new(path, team, Some(Simulation::IDEAL), selects);
        let before = runner.stats();
        runner.times(N_STEPS);
        runner.stats().since(&before).read_bytes as f64 / N_STEPS as f64
    };
    let simulation = Simulation {
        latency: LATENCY,
        bytes_per_second: bytes / (ratio * compute),
        ..Simulation::IDEAL
    };
    let mut on_disk = Runner::new(path, team, Some(simulation), selects);
    let before = on_disk.stats();
    let (mut found, mut all) = (Vec::new(), Vec::new());
    for _ in 0..N_STEPS {
        found.push(on_disk.step().all);
        all.push(resident.step());
    }
    let stats = on_disk.stats().since(&before);
    let found = median(found);
    let all = Times::median(&all);
    let n = N_STEPS as f64;
    let n_layer = f64::from(SHAPE.n_layer);
    let read = stats.read_bytes as f64 / n / n_layer / simulation.bytes_per_second;
    let io = read + LATENCY.as_secs_f64();
    // Of the time for active neurons, a part for each of them.
    let n_clusters = stats.needed as f64 / n / n_layer;
    let n_hot = f64::from(N_HOT) / HOT_EVERY as f64 / if selects { 1.0 } else { 2.0 };
    let active = (all.gate_up + all.down - gates.gate_up - gates.down).max(0.0) / n_layer;
    let cold = active * n_clusters / (n_hot + n_clusters);
    let (hot, last) = (active - cold + gates.down / n_layer, cold / n_clusters);
    let others = (all.all - all.gate_up - all.down) / n_layer;
    let gate = gates.gate_up / n_layer;
    let limit = match selects {
        false => others + gate + io.max(hot) + last,
        true => others + io.max((all.gate_up + all.down) / n_layer),
    };
    let mode = if selects { "predictor" } else { "exact" };
    let found = found / n_layer;
    let ms = [io, others, gate, hot, last, limit, found].map(|time| format!("{:.3}", 1e3 * time));
    println!("| {mode} | {} | {:.3} |", ms.join(" | "), found / limit);
}

const LATENCY: Duration = Duration::from_micros(80);

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl Times {
    fn median(all: &[Self]) -> Self {
        let of = |time: fn(&Self) -> f64| median(all.iter().map(time).collect());
        Self {
            all: of(|times| times.all),
            gate_up: of(|times| times.gate_up),
            down: of(|times| times.down),
        }
    }
}

/// A model with a text in each sequence.
struct Runner {
    model: Model,
    session: Box<Session>,
    position: u32,
    selects: bool,
    n_workers: usize,
}

impl Runner {
    fn new(path: &Path, team: &Team, device: Option<Simulation>, selects: bool) -> Self {
        let options = LoadOptions {
            experts: device.map(|device| ExpertOptions {
                device: Some(device.device()),
                policy: EvictionPolicy::Lru,
                ..ExpertOptions::new(CLUSTER_BYTES * N_CLUSTERS as usize)
            }),
            ..LoadOptions::default()
        };
        let opened = ModelSource::open(path, LoadMode::Map).expect("a model");
        let model = opened.load_with(team, options).expect("memory");
        let limits = Limits {
            n_ctx: 64 * N_SEQ as usize,
            n_seq: N_SEQ as usize,
            n_outputs: N_SEQ as usize,
            selects,
            ..Limits::default()
        };
        let mut runner = Self {
            session: Box::new(model.session_on(team, limits).expect("memory")),
            model,
            position: 0,
            selects,
            n_workers: team.count(),
        };
        runner.times(N_BEFORE);
        runner
    }

    fn stats(&self) -> ExpertStats {
        let experts = self.model.experts();
        experts.map(|experts| experts.stats()).unwrap_or_default()
    }

    fn times(&mut self, n: usize) -> Times {
        let all: Vec<_> = (0..n).map(|_| self.step()).collect();
        Times::median(&all)
    }

    fn step(&mut self) -> Times {
        let position = self.position % 56;
        self.position += 1;
        if position == 0 {
            let clear =
                |state: &mut State<'_>| (0..N_SEQ).try_for_each(|sequence| state.clear(sequence));
            self.session.with_state(clear).expect("it may be cleared");
        }
        let token = position * 7 % SHAPE.n_vocab;
        let entry = |sequence| BatchEntry::new(token, sequence, position, Wants::Logits);
        let batch: Vec<_> = (0..N_SEQ).map(entry).collect();
        let start = Instant::now();
        let clock = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut events = vec![TraceEvent::EMPTY; 64 * SHAPE.n_layer as usize * self.n_workers];
        let mut ring = EventRing::new(&mut events, self.n_workers, &clock);
        let selector = Moving(position as usize);
        let hooks = StepHooks {
            trace: Some(&ring),
            selector: self.selects.then_some(&selector as &dyn Selector),
            ..StepHooks::default()
        };
        let time = self.session.run(&batch, &hooks, |_, time| time);
        let all = time.expect("reads do not fail").as_secs_f64();
        let (mut gate_up, mut down) = (0, 0);
        ring.drain(&mut |event: TraceEvent| {
            let ns = event.end_ticks - event.start_ticks;
            match event.phase {
                Phase::FfnGateUp => gate_up += ns,
                Phase::FfnDown => down += ns,
                _ => {}
            }
        });
        let seconds = |ns: u64| ns as f64 / 1e9 / self.n_workers as f64;
        Times {
            all,
            gate_up: seconds(gate_up),
            down: seconds(down),
        }
    }
}

/// Selects hot neurons, and a cold one in every other cluster.
struct Moving(usize);

impl Selector for Moving {
    fn unit(&self) -> Unit {
        Unit::Neuron
    }

    fn select(&self, layer: usize, _: usize, _: Option<&[f32]>, units: &mut [u64]) -> bool {
        let hot = (0..N_HOT as usize).step_by(HOT_EVERY);
        let first = N_HOT as usize + COLD + 64 * ((self.0 + layer) % 2);
        for neuron in hot.chain((first..SHAPE.n_ff as usize).step_by(128)) {
            units[neuron / 64] |= 1 << (neuron % 64);
        }
        true
    }
}

/// Writes the model. Gates of some neurons are random, half of them active; all others are 0.
fn write(path: &Path, is_open: bool, ffn: FfnLayout) {
    let mut file = SHAPE.file();
    for layer in 0..SHAPE.n_layer {
        let gate = file.tensor(&format!("blk.{layer}.ffn_gate.weight"));
        let row_bytes = gate.data.len() / SHAPE.n_ff as usize;
        for (neuron, row) in gate.data.chunks_exact_mut(row_bytes).enumerate() {
            let is_hot = neuron < N_HOT as usize && neuron % HOT_EVERY == 0;
            let is_cold = neuron >= N_HOT as usize && neuron % 64 == COLD;
            if !is_open || !(is_hot || is_cold) {
                row.fill(0);
            }
        }
    }
    file.set("llama.activation", "relu");
    let hot = vec![N_HOT; SHAPE.n_layer as usize];
    file.set("llama.hot_neuron_count", Meta::U32s(hot));
    let order = (0..SHAPE.n_layer).flat_map(|_| 0..SHAPE.n_ff).collect();
    file.set("llama.neuron_order", Meta::U32s(order));
    let bytes = packed(&file.bytes(), ffn).expect("a disk with room");
    std::fs::write(path, bytes).expect("a disk with room");
}

//! Reading experts against computing with them, on a device whose speed is set: `expert_overlap [N_WORKERS] [GUESSES]`.
//!
//! The time of a step should be the longer of reading (bytes by bandwidth) and computing (the time of a step with all
//! experts in memory), whatever their ratio. The scalar kernels compute, for the same text in four sequences, so that a
//! device which copies bytes can be faster than they are. Without guesses only what a layer's own work hides is hidden.
//!
//! Guesses look one layer ahead, and layers do not miss equally many experts. So what can be reached is the mean over
//! layers of the longer of both, which is printed, too: at the balance point it is more than the longer of the means.
//!
//! GUESSES selects which guesses come true: `all` (the default; layers' streams are alike), `half` (every other layer
//! changes the stream), or `none` (all do). With guesses a step should take at most 1.05 times as long as without,
//! whichever is selected.

#![expect(clippy::print_stdout, reason = "what it is for")]

use core::time::Duration;
use sluice::core::engine::{BatchEntry, Wants};
use sluice::experts::device::Simulation;
use sluice::experts::{ExpertOptions, ExpertStats};
use sluice::file::{LoadMode, OutputFile};
use sluice::host::isa::kernel_table;
use sluice::host::topology::Cores;
use sluice::model::{LoadOptions, ModelSource};
use sluice::session::StepHooks;
use sluice::{Limits, Model, Session, Team};
use sluice_core::kernels::GgmlType;
use sluice_core::team::StopFlag;
use sluice_experts::{Steps, TraceReader};
use sluice_make::slc::{FfnLayout, PackOptions, SlcWatch, pack};
use sluice_tests::build::{Random, Shape};
use std::path::{Path, PathBuf};

const SHAPE: Shape = Shape {
    n_layer: 24,
    n_embd: 512,
    n_head: 8,
    n_head_kv: 4,
    head_dim_k: 64,
    head_dim_v: 64,
    n_ff: 1024,
    n_vocab: 29,
    n_expert: 16,
    n_expert_used: 4,
    ty: GgmlType::Q8_0,
    ..Shape::TINY
};
/// Experts in memory.
const N_SLOTS: usize = 96;
/// Bytes of an expert, in whole pages.
const EXPERT_BYTES: u32 = 3 * SHAPE.n_embd * SHAPE.n_ff / 32 * 34;
const RATIOS: [f64; 9] = [0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0];
const N_STEPS: usize = 15;
/// Steps before those: the cache fills, and what guesses are worth is learnt.
const N_BEFORE: usize = 12;
/// Sequences of the same text: what each expert is multiplied with.
const N_SEQ: u32 = 4;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let n_workers = arguments.next();
    let n_workers = n_workers.map_or(1, |n| n.parse().expect("a number of workers"));
    let is_alike: fn(u32) -> bool = match arguments.next().as_deref() {
        None | Some("all") => |_| true,
        Some("half") => |layer| layer % 2 == 0,
        Some("none") => |_| false,
        Some(_) => panic!("guesses: all, half or none"),
    };
    let team = Team::new(n_workers, &Cores::detect()).expect("threads");
    let folder = std::env::temp_dir().join(format!("sluice-overlap-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let path = make(&folder, is_alike);
    let mut resident = Runner::new(&path, &team, None);
    let compute = median((0..N_STEPS).map(|_| resident.step()).collect());
    println!(
        "compute {:.2} ms a layer, {n_workers} workers",
        layer_ms(compute)
    );
    println!(
        "| io / compute | guesses | ms a layer | max(io, compute) | quotient | in memory | guesses that came true | an awaited read, ms |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let misses = misses(&path, &folder, &team);
    for ratio in RATIOS {
        compare(&path, &team, compute.as_secs_f64() * ratio, &misses);
    }
    std::fs::remove_dir_all(folder).expect("the folder is ours");
}

/// Steps with all experts in memory, with guesses and without, in turn, on a device that reads the experts of a step in
/// `io` seconds: the machine's own speed changes meanwhile.
fn compare(path: &Path, team: &Team, io: f64, misses: &[u32]) {
    let step_bytes = f64::from(EXPERT_BYTES * SHAPE.n_expert_used * SHAPE.n_layer);
    let bytes_per_second = step_bytes / io;
    let runner = |prefetch| {
        let simulation = Simulation {
            latency: Duration::from_micros(80),
            bytes_per_second,
            ..Simulation::IDEAL
        };
        let options = ExpertOptions {
            device: Some(simulation.device()),
            prefetch,
            ..ExpertOptions::new(N_SLOTS * EXPERT_BYTES as usize)
        };
        Runner::new(path, team, Some(options))
    };
    let mut runners = [Runner::new(path, team, None), runner(true), runner(false)];
    let before = runners.each_ref().map(Runner::stats);
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..N_STEPS {
        for (runner, times) in runners.iter_mut().zip(&mut times) {
            times.push(runner.step());
        }
    }
    let [compute, on, off] = times.map(median);
    for (i, (name, time)) in [("on", on), ("off", off)].into_iter().enumerate() {
        let stats = runners[i + 1].stats().since(&before[i + 1]);
        let io = stats.read_bytes as f64 / N_STEPS as f64 / bytes_per_second;
        let limit = io.max(compute.as_secs_f64());
        println!(
            "| {:.2} | {name} | {:.2} | {:.2} | {:.3} | {:.1}% | {} of {} | {:.2} |",
            io / compute.as_secs_f64(),
            layer_ms(time),
            1e3 * limit / f64::from(SHAPE.n_layer),
            time.as_secs_f64() / limit,
            100.0 * stats.hit_rate(),
            stats.guessed_needed,
            stats.guessed,
            1e3 * stats.read_time.as_secs_f64() / stats.read_times.iter().sum::<u64>() as f64,
        );
    }
    let layer = compute.as_secs_f64() / f64::from(SHAPE.n_layer);
    let read = f64::from(EXPERT_BYTES) / bytes_per_second;
    let layers = misses.iter().map(|&n| layer.max(f64::from(n) * read));
    let reachable = layers.sum::<f64>() / misses.len() as f64;
    println!(
        "guesses on by off: {:.3}; on by {:.2} ms, layer by layer: {:.3}",
        on.as_secs_f64() / off.as_secs_f64(),
        1e3 * reachable,
        layer_ms(on) / (1e3 * reachable),
    );
}

/// How many experts each layer of the steps has to read when nothing is guessed.
fn misses(path: &Path, folder: &Path, team: &Team) -> Vec<u32> {
    let trace = folder.join("trace.jsonl");
    let options = ExpertOptions {
        device: Some(Simulation::IDEAL.device()),
        prefetch: false,
        trace: Some(trace.clone()),
        ..ExpertOptions::new(N_SLOTS * EXPERT_BYTES as usize)
    };
    let mut runner = Runner::new(path, team, Some(options));
    for _ in 0..N_STEPS {
        runner.step();
    }
    drop(runner);
    let reader = TraceReader::open(&trace).expect("it was written");
    let steps = Steps::read(reader, Some(SHAPE.n_expert)).expect("a trace");
    let steps = steps.iter().skip(N_BEFORE * SHAPE.n_layer as usize);
    let n_hits = |hits: Option<u32>| hits.expect("it was counted");
    steps
        .map(|step| SHAPE.n_expert_used - n_hits(step.n_hits))
        .collect()
}

fn layer_ms(step: Duration) -> f64 {
    1e3 * step.as_secs_f64() / f64::from(SHAPE.n_layer)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A model with a text in each sequence.
struct Runner {
    model: Model,
    session: Box<Session>,
    position: usize,
}

impl Runner {
    /// A runner that has completed [`N_BEFORE`] steps.
    fn new(path: &Path, team: &Team, experts: Option<ExpertOptions>) -> Self {
        let options = LoadOptions {
            experts,
            ..LoadOptions::default()
        };
        let opened = ModelSource::open(path, LoadMode::Map).expect("a model");
        let model = opened.load_with(team, options).expect("memory");
        let limits = Limits {
            n_ctx: 64 * N_SEQ as usize,
            n_seq: N_SEQ as usize,
            n_outputs: N_SEQ as usize,
            table: Some(kernel_table(Some("scalar")).expect("always there")),
            ..Limits::default()
        };
        let session = Box::new(model.session_on(team, limits).expect("memory"));
        let mut runner = Self {
            model,
            session,
            position: 0,
        };
        for _ in 0..N_BEFORE {
            runner.step();
        }
        runner
    }

    fn step(&mut self) -> Duration {
        self.position += 1;
        step(&mut self.session, self.position - 1)
    }

    fn stats(&self) -> ExpertStats {
        let experts = self.model.experts();
        experts.map(|experts| experts.stats()).unwrap_or_default()
    }
}

fn step(session: &mut Session, position: usize) -> Duration {
    let position = u32::try_from(position).expect("a few");
    let token = position * 7 % SHAPE.n_vocab;
    let entry = |sequence| BatchEntry::new(token, sequence, position, Wants::Logits);
    let batch: Vec<_> = (0..N_SEQ).map(entry).collect();
    let time = session.run(&batch, &StepHooks::default(), |_, time| time);
    time.expect("reads do not fail")
}

/// The model, packed. What alike layers add to the stream is small.
fn make(folder: &Path, is_alike: fn(u32) -> bool) -> PathBuf {
    let mut file = SHAPE.file();
    let mut random = Random(3);
    for layer in (0..SHAPE.n_layer).filter(|&layer| is_alike(layer)) {
        for name in ["attn_output.weight", "ffn_down_exps.weight"] {
            let name = format!("blk.{layer}.{name}");
            let n = file.tensor(&name).dims.iter().product::<u64>();
            let values: Vec<_> = (0..n).map(|_| 0.001 * random.signed()).collect();
            file.fill(&name, &values);
        }
    }
    let gguf = folder.join("model.gguf");
    std::fs::write(&gguf, file.bytes()).expect("a disk with room");
    drop(file);
    let opened = ModelSource::open(&gguf, LoadMode::Read).expect("a model");
    let path = folder.join("model.slc");
    let output = OutputFile::create(&path, false).expect("a new file");
    let options = PackOptions {
        n_threads: 2,
        verify: false,
        ffn: FfnLayout::Panels,
    };
    let stop = StopFlag::new();
    let watch = SlcWatch::new(0, &stop, &|_| ());
    pack(opened.file(), opened.gguf(), output, options, &watch).expect("a disk with room");
    std::fs::remove_file(gguf).expect("it is ours");
    path
}

//! What a router that reads a layer's input is worth with experts on disk: `early_router [N_WORKERS]`.
//!
//! A model of SmallThinker's kind runs on a device whose speed is set, as it is and with the announcements of its experts held
//! back until the first of them is asked for, which is after attention: the same file, the same reads, begun later. Steps of
//! both take turns. Without guesses at later layers, which hide the difference where they come true.

#![expect(clippy::print_stdout, reason = "what it is for")]

use core::sync::atomic::AtomicU32;
use core::time::Duration;
use sluice::core::engine::{BatchEntry, ExpertPart, ExpertSource, Loan, NeededExperts, Wants};
use sluice::experts::device::Simulation;
use sluice::experts::{ExpertOptions, ExpertStore};
use sluice::file::LoadMode;
use sluice::host::isa::kernel_table;
use sluice::host::topology::Cores;
use sluice::model::{LoadOptions, ModelSource};
use sluice::session::StepHooks;
use sluice::{Limits, Model, Session, Team};
use sluice_core::kernels::GgmlType;
use sluice_tests::build::Shape;
use std::path::Path;
use std::sync::Mutex;

const SHAPE: Shape = Shape {
    arch: "smallthinker",
    n_layer: 12,
    n_embd: 512,
    n_head: 8,
    n_head_kv: 4,
    head_dim_k: 64,
    head_dim_v: 64,
    n_ff: 768,
    n_vocab: 29,
    n_expert: 32,
    n_expert_used: 4,
    ty: GgmlType::Q8_0,
    ..Shape::TINY
};
/// Experts in memory: a layer's, and a few.
const N_SLOTS: usize = 40;
/// Bytes of an expert, in whole pages.
const EXPERT_BYTES: u32 = 3 * SHAPE.n_embd * SHAPE.n_ff / 32 * 34;
/// Time for reading a step's experts, by the time of a step with all in memory.
const RATIOS: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];
const N_STEPS: usize = 25;
/// Steps before those, which also make attention read a context.
const N_BEFORE: usize = 192;

fn main() {
    let n_workers = std::env::args().nth(1);
    let n_workers = n_workers.map_or(1, |n| n.parse().expect("a number of workers"));
    let team = Team::new(n_workers, &Cores::detect()).expect("threads");
    let folder = std::env::temp_dir().join(format!("sluice-early-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let path = folder.join("model.gguf");
    std::fs::write(&path, SHAPE.file().bytes()).expect("a disk with room");
    let mut resident = Runner::new(&path, &team, None);
    let compute = median((0..N_STEPS).map(|_| resident.step(false)).collect());
    drop(resident);
    println!("compute {:.2} ms a step, {n_workers} workers", ms(compute));
    println!(
        "| io / compute | announced before attention, ms | after, ms | before by after | before by itself |"
    );
    println!("|---|---|---|---|---|");
    for ratio in RATIOS {
        compare(&path, &team, ratio, compute.as_secs_f64() * ratio);
    }
    std::fs::remove_dir_all(folder).expect("the folder is ours");
}

/// Steps of three runners in turn, on a device that reads the experts of a step in `io` seconds.
fn compare(path: &Path, team: &Team, ratio: f64, io: f64) {
    let step_bytes = f64::from(EXPERT_BYTES * SHAPE.n_expert_used * SHAPE.n_layer);
    let runner = || {
        let simulation = Simulation {
            latency: Duration::from_micros(80),
            bytes_per_second: step_bytes / io,
            ..Simulation::IDEAL
        };
        let options = ExpertOptions {
            device: Some(simulation.device()),
            prefetch: false,
            ..ExpertOptions::new(N_SLOTS * EXPERT_BYTES as usize)
        };
        Runner::new(path, team, Some(options))
    };
    let mut runners = [(runner(), false), (runner(), true), (runner(), false)];
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..N_STEPS {
        for ((runner, is_late), times) in runners.iter_mut().zip(&mut times) {
            times.push(runner.step(*is_late));
        }
    }
    let [early, late, again] = times.map(|times| median(times).as_secs_f64());
    println!(
        "| {ratio:.2} | {:.2} | {:.2} | {:.3} | {:.3} |",
        1e3 * early,
        1e3 * late,
        early / late,
        early / again
    );
}

fn ms(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A model with a text.
struct Runner {
    model: Model,
    session: Box<Session>,
    position: u32,
}

impl Runner {
    /// A runner that has completed [`N_BEFORE`] steps.
    fn new(path: &Path, team: &Team, experts: Option<ExpertOptions>) -> Self {
        let opened = ModelSource::open(path, LoadMode::Map).expect("a model");
        let options = LoadOptions {
            experts,
            ..LoadOptions::default()
        };
        let model = opened.load_with(team, options).expect("memory");
        let limits = Limits {
            n_ctx: N_BEFORE + 64,
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
            runner.step(false);
        }
        runner
    }

    fn step(&mut self, is_late: bool) -> Duration {
        let token = self.position * 7 % SHAPE.n_vocab;
        let batch = [BatchEntry::new(token, 0, self.position, Wants::Logits)];
        self.position += 1;
        let late = self.model.experts().map(|store| Late {
            store,
            held: Mutex::default(),
        });
        let hooks = StepHooks {
            experts: late.as_ref().filter(|_| is_late).map(|late| late as _),
            ..StepHooks::default()
        };
        let time = self.session.run(&batch, &hooks, |_, time| time);
        time.expect("reads do not fail")
    }
}

/// A store that hears of a layer's experts when the first of them is asked for.
struct Late<'s> {
    store: &'s ExpertStore,
    held: Mutex<Option<Held>>,
}

struct Held {
    layer: usize,
    experts: Vec<u32>,
    readers: [usize; 2],
    n_tokens: usize,
}

impl ExpertSource for Late<'_> {
    fn announce(&self, needed: &NeededExperts<'_>) {
        *self.held.lock().expect("no panic") = Some(Held {
            layer: needed.layer,
            experts: needed.experts.to_vec(),
            readers: needed.readers,
            n_tokens: needed.n_tokens,
        });
    }

    fn lend(&self, layer: usize, expert: u32, part: ExpertPart) -> Loan<'_> {
        let mut held = self.held.lock().expect("no panic");
        if let Some(held) = held.take_if(|held| held.layer == layer) {
            self.store.announce(&NeededExperts {
                layer,
                experts: &held.experts,
                readers: held.readers,
                n_tokens: held.n_tokens,
            });
        }
        drop(held);
        self.store.lend(layer, expert, part)
    }

    fn give_back(&self, layer: usize, expert: u32, part: ExpertPart) {
        self.store.give_back(layer, expert, part);
    }

    fn arrivals(&self) -> Option<&AtomicU32> {
        self.store.arrivals()
    }
}

//! Time of one expert's network, 2048 × 768 in Q8_0, for one token on one thread, with each kernel table: `expert_swiglu`.
//!
//! Gate, up, SwiGLU, quantising the neurons and down, as a step runs them. The expert's 5 MB stay in the caches.

#![expect(clippy::print_stdout, reason = "what it is for")]

use sluice_core::engine::{BatchEntry, EngineLimits, StepOptions, Wants};
use sluice_core::kernels::cpu::CpuFeatures;
use sluice_core::kernels::{GgmlType, KernelTable};
use sluice_core::team::StopFlag;
use sluice_core::trace::{EventRing, Phase, TraceEvent};
use sluice_tests::build::Shape;
use sluice_tests::run::{Room, Weights, YieldWait};
use std::time::Instant;

const SHAPE: Shape = Shape {
    n_embd: 2048,
    n_head: 16,
    n_head_kv: 2,
    head_dim_k: 128,
    head_dim_v: 128,
    n_ff: 768,
    n_expert: 1,
    n_expert_used: 1,
    ty: GgmlType::Q8_0,
    ..Shape::TINY
};
const N_STEPS: usize = 400;

fn main() {
    let file = SHAPE.file().bytes();
    let mut weights = Weights::plan(&file).expect("a model");
    let model = weights.load(&file, 2).expect("memory");
    println!("| table | median, us | least, us |");
    println!("|---|---|---|");
    for table in KernelTable::available(CpuFeatures::detect()) {
        let limits = EngineLimits::single(N_STEPS + 64, 1);
        let mut room = Room::plan(model.config(), &limits).expect("limits");
        let mut engine = room.engine(model.clone(), table, &limits).expect("memory");
        let mut times = Vec::with_capacity(N_STEPS);
        let started = Instant::now();
        let clock = || u64::try_from(started.elapsed().as_nanos()).expect("a short run");
        let mut memory = vec![TraceEvent::EMPTY; 64];
        let mut ring = EventRing::new(&mut memory, 1, &clock);
        for position in 0..N_STEPS {
            let stop = StopFlag::new();
            let options = StepOptions {
                trace: Some(&ring),
                ..StepOptions::new(&YieldWait, &stop)
            };
            let position = u32::try_from(position).expect("few steps");
            let batch = [BatchEntry::new(position % 16, 0, position, Wants::Logits)];
            let step = engine.step(&batch, options).expect("a step");
            step.join(0).expect("alone").run().expect("no stop");
            let _outputs = step.finish().expect("a step");
            let mut ns = 0;
            ring.drain(|event| {
                if let Phase::FfnGateUp | Phase::FfnDown = event.phase {
                    ns += event.end_ticks - event.start_ticks;
                }
            });
            times.push(ns);
        }
        times.sort_unstable();
        let us = |ns: u64| ns as f64 / 1e3;
        println!(
            "| {} | {:.0} | {:.0} |",
            table.name(),
            us(times[N_STEPS / 2]),
            us(times[0])
        );
    }
}

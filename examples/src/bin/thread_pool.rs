//! Runs the engine on existing threads: a rayon pool that the program has anyway.
//!
//! ```text
//! cargo run --release -p sluice-examples --bin thread_pool -- model.gguf "Once upon a time" 64 7
//! ```
//!
//! A step is one function that all ranks run at the same time. A pool has to give every rank a thread of its own for as
//! long as the step lasts, because ranks wait for each other: rayon's `broadcast` does that, tasks in a queue (`scope`,
//! `par_iter`) do not. The host decides how ranks wait: here they yield the CPU, so that a pool larger than the machine
//! still makes progress.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use core::error::Error;
use core::sync::atomic::AtomicU32;
use rayon_core::{ThreadPool, ThreadPoolBuilder};
use sluice_core::engine::{BatchEntry, Engine, EngineLimits, EnginePlan, StepOptions, Wants};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::hash::Hash64;
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::model::{Loader, ModelConfig, ModelPlan, ModelWeights};
use sluice_core::sampler::{Candidate, SamplerChain, SamplerConfig};
use sluice_core::team::{StopFlag, WORKERS_MAX, WaitPolicy};
use sluice_core::tokenizer::{self, Detokenizer, EncodeOptions, Tokenizer};

/// Spins a little, then lets others run.
#[derive(Debug)]
struct Yield;

impl WaitPolicy for Yield {
    fn spins(&self) -> u32 {
        200
    }

    fn park(&self, _: &AtomicU32, _: u32) {
        std::thread::yield_now();
    }

    fn wake(&self, _: &AtomicU32) {}
}

#[expect(
    clippy::too_many_lines,
    reason = "an example is read from top to bottom"
)]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, prompt, ..] = &*arguments else {
        return Err("usage: thread_pool MODEL PROMPT [TOKENS [SEED]]".into());
    };
    let number = |i: usize, default| arguments.get(i).map_or(Ok(default), |n| n.parse::<u64>());
    let (n_predict, seed) = (usize::try_from(number(2, 64)?)?, number(3, 0)?);
    let file = std::fs::read(path)?;
    let pool = ThreadPoolBuilder::new().build()?;
    // A pool may be larger than a team.
    let n_workers = pool.current_num_threads().min(WORKERS_MAX);

    let gguf = Gguf::parse(&file, file.len() as u64)?;
    let config = ModelConfig::from_gguf(&gguf)?;
    let mut words = vec![0; tokenizer::plan(&gguf)?.words];
    let tokenizer = Tokenizer::new(&gguf, &mut words)?;
    let plan = ModelPlan::new(&gguf, &config)?;
    let mut weights = lines(plan.weight_bytes);
    let mut tables = lines(plan.table_bytes);
    let (weights, tables) = (bytes(&mut weights), bytes(&mut tables));
    let model = load(&pool, &file, &gguf, &config, weights, tables)?;

    let limits = EngineLimits::single(config.n_ctx_train, n_workers);
    let plan = EnginePlan::new(&config, &limits)?;
    let (mut kv, mut scratch) = (lines(plan.kv_bytes), lines(plan.scratch_bytes));
    let table = KernelTable::best(CpuFeatures::detect());
    let (kv, scratch) = (bytes(&mut kv), bytes(&mut scratch));
    let mut engine = Engine::new(model, table, &limits, kv, scratch)?;

    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let mut workspace = vec![0; tokenizer.encode_workspace_words(prompt.len())];
    let mut ids = vec![0; tokenizer.max_tokens(prompt.len())];
    let mut history = tokenizer
        .encode(prompt, options, &mut workspace, &mut ids)?
        .to_vec();
    let mut candidates = vec![Candidate::default(); config.n_vocab];
    let mut sampler = SamplerChain::new(SamplerConfig {
        seed,
        ..SamplerConfig::default()
    })?;
    let mut detokenizer = Detokenizer::continuing();
    let mut hash = Hash64::new();
    let mut done = 0;
    for _ in 0..n_predict {
        let mut batch = Vec::new();
        for (&token, position) in history[done..].iter().zip(done..) {
            let position = u32::try_from(position)?;
            batch.push(BatchEntry::new(token, 0, position, Wants::Nothing));
        }
        let last = batch.len().checked_sub(1).ok_or("the prompt is empty")?;
        batch[last].wants = Wants::Logits;
        done = history.len();

        let stop = StopFlag::new();
        let step = engine.step(&batch, StepOptions::new(&Yield, &stop))?;
        // Every thread of the pool is a rank; those beyond the team have nothing to do.
        pool.broadcast(|thread| {
            let rank = thread.index();
            if let Some(worker) = (rank < step.n_workers()).then(|| step.join(rank)).flatten() {
                // `finish` returns the reason, which is the same for all ranks.
                let _stopped = worker.run();
            }
        });
        let outputs = step.finish()?;
        let logits = outputs.logits(last).ok_or("no logits")?;
        hash.write_f32(logits);
        let context = sampler.context(&history, 0, u32::try_from(done)?);
        let token = sampler.sample(logits, &mut candidates, &mut [], &context)?;
        if tokenizer.is_end_of_generation(token) {
            break;
        }
        detokenizer.push(&tokenizer, token, |text| print!("{text}"))?;
        history.push(token);
    }
    detokenizer.finish(|text| print!("{text}"));
    println!("\nlogits hash = {:#018x}", hash.finish());
    Ok(())
}

/// Converts the weights with every thread of the pool. Loading has no barriers: any threads do.
fn load<'m>(
    pool: &ThreadPool,
    file: &[u8],
    gguf: &Gguf<'_>,
    config: &ModelConfig,
    weights: &'m mut [u8],
    tables: &'m mut [u8],
) -> Result<ModelWeights<'m>, Box<dyn Error>> {
    let source = SliceSource(file);
    let loader = Loader::new(gguf, config, weights, tables)?;
    let outcomes = pool.broadcast(|_| loader.work(&source, &mut [], || true));
    outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(loader.finish(&source)?)
}

/// A cache line: what all memory of the engine is aligned to.
#[derive(Clone)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn lines(len: usize) -> Vec<Line> {
    vec![Line([0; 64]); len.div_ceil(64)]
}

fn bytes(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: a line is 64 plain bytes.
    unsafe { core::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

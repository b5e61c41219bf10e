//! Prefill, decode, sampling and detokenising allocate nothing: counted by the allocator.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};
use sluice::Team;
use sluice::experts::ExpertOptions;
use sluice::file::{LoadMode, ModelFile};
use sluice::host::topology::Cores;
use sluice::model::{LoadOptions, ModelSource};
use sluice::session::StepHooks;
use sluice_core::engine::{BatchEntry, EngineLimits, StepOptions, Wants};
use sluice_core::kernels::GgmlType;
use sluice_core::sampler::{Candidate, SamplerChain, SamplerConfig};
use sluice_core::team::StopFlag;
use sluice_core::tokenizer::{Detokenizer, EncodeOptions};
use sluice_core::trace::{EventRing, TraceEvent};
use sluice_make::slc::FfnLayout;
use sluice_tests::build::{Meta, Shape};
use sluice_tests::packing::packed;
use sluice_tests::run::{self, Room, Weights};
use std::alloc::System;

/// Counts what any thread asks of the allocator.
struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: passes everything on to the system's allocator; counting changes no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The project's own model, so that this test never skips.
const MODEL: &[u8] = include_bytes!("../../hosted/models/tale-5.8m-Q4_K_M.gguf");

/// Up to 16 tokens at position `first`; the last of all wants logits.
fn entries(tokens: &[u32], first: usize) -> ([BatchEntry; 16], usize) {
    let mut batch = [BatchEntry::new(0, 0, 0, Wants::Nothing); 16];
    let len = tokens.len().min(16);
    for (i, entry) in batch[..len].iter_mut().enumerate() {
        let is_last = i + 1 == tokens.len();
        let wants = if is_last {
            Wants::Logits
        } else {
            Wants::Nothing
        };
        let position = u32::try_from(first + i).expect("a short text");
        *entry = BatchEntry::new(tokens[i], 0, position, wants);
    }
    (batch, len)
}

/// What the test below relies on.
fn check_that_the_counter_counts() {
    let before = CALLS.load(Ordering::Relaxed);
    drop(core::hint::black_box(vec![1u8]));
    assert!(CALLS.load(Ordering::Relaxed) >= before + 2);
}

#[test]
fn from_prompt_to_text_nothing_is_allocated() {
    check_that_the_counter_counts();
    let file = ModelFile::from_static("tale", MODEL).unwrap();
    let opened = ModelSource::of_file(file).unwrap();
    let tokenizer = opened.tokenizer();
    let cores = Cores::detect();
    let model = opened.load(&Team::new(2, &cores).unwrap()).unwrap();
    for n_workers in [1, 2, 3] {
        let limits = sluice::Limits {
            n_ctx: 256,
            n_batch: 16,
            ..sluice::Limits::default()
        };
        let team = Team::new(n_workers, &cores).unwrap();
        let mut session = model.session_on(&team, limits).unwrap();
        let text = "Once upon a time there was a little bird who could not sing, and so";
        let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
        let mut ids = vec![0; tokenizer.max_tokens(text.len())];
        let mut candidates = vec![Candidate::default(); tokenizer.n_vocab() as usize];
        let mut chain = SamplerChain::new(SamplerConfig::default()).unwrap();
        let mut events = vec![TraceEvent::EMPTY; 4096];
        let clock = || 0;
        let ring = EventRing::new(&mut events, n_workers, &clock);
        let mut history = [0u32; 128];
        let mut characters = 0;

        // Threads that have just started still free what starting took.
        let warm_up = [BatchEntry::new(0, 0, 0, Wants::Nothing)];
        let step = session.run(&warm_up, &StepHooks::default(), |_, _| ());
        step.expect("a step");
        let cleared = session.with_state(|state| state.clear(0));
        cleared.expect("sequence 0 exists");

        let before = CALLS.load(Ordering::Relaxed);
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        let prompt = tokenizer
            .encode(text, options, &mut workspace, &mut ids)
            .unwrap();
        history[..prompt.len()].copy_from_slice(prompt);
        let (mut done, mut n) = (0, prompt.len());
        let mut detokenizer = Detokenizer::new(tokenizer);
        while n < 100 {
            let (batch, len) = entries(&history[done..n], done);
            let hooks = StepHooks {
                trace: Some(&ring),
                ..StepHooks::default()
            };
            let context = chain.context(&history[..n], 0, u32::try_from(n).unwrap());
            let chosen = session.run(&batch[..len], &hooks, |outputs, _| {
                let logits = outputs.logits(len - 1)?;
                let token = chain.sample(logits, &mut candidates, &mut [], &context);
                Some(token.unwrap())
            });
            done += len;
            if let Some(token) = chosen.unwrap() {
                history[n] = token;
                let count = |text: &str| characters += text.len();
                detokenizer.push(tokenizer, history[n], count).unwrap();
                n += 1;
            }
        }
        let calls = CALLS.load(Ordering::Relaxed) - before;
        assert_eq!(calls, 0, "{n_workers} workers");
        assert!(characters > 100, "a story came out");
    }
    a_mixture_allocates_nothing();
    experts_from_disk_allocate_nothing();
    neurons_from_disk_allocate_nothing();
}

/// Reads, guesses and evictions, on any thread.
fn experts_from_disk_allocate_nothing() {
    let path = sluice_tests::fixture("models").join("gpt-oss.gguf");
    let opened = ModelSource::open(&path, LoadMode::Map).expect("a fixture");
    from_disk(&opened, &[1, 5], 50);
}

/// The same of cold neurons, of which a layer has 16 clusters.
fn neurons_from_disk_allocate_nothing() {
    let shape = Shape {
        n_layer: 3,
        n_embd: 512,
        n_ff: 1024,
        n_head: 8,
        n_head_kv: 4,
        head_dim_k: 64,
        head_dim_v: 64,
        n_vocab: 29,
        ty: GgmlType::Q4_0,
        ..Shape::TINY
    };
    let mut file = shape.file();
    file.set("llama.activation", "relu");
    file.set("llama.hot_neuron_count", Meta::U32s(vec![0; 3]));
    let order = (0..3).flat_map(|_| 0..1024).collect();
    file.set("llama.neuron_order", Meta::U32s(order));
    let path = std::env::temp_dir().join(format!("sluice-allocations-{}", std::process::id()));
    let bytes = packed(&file.bytes(), FfnLayout::Neurons).expect("a type with a form");
    std::fs::write(&path, bytes).expect("a disk with room");
    let opened = ModelSource::open(&path, LoadMode::Map).expect("a model");
    from_disk(&opened, &[16, 30], 28);
    std::fs::remove_file(path).expect("it is ours");
}

/// Steps of one token, below `n_vocab`, with room for as many experts or clusters as `slots` says.
fn from_disk(opened: &ModelSource, slots: &[usize], n_vocab: u32) {
    let team = Team::new(2, &Cores::detect()).expect("threads");
    let all = ExpertOptions::new(usize::MAX >> 1);
    let load = |experts| LoadOptions {
        experts: Some(experts),
        ..LoadOptions::default()
    };
    let model = opened.load_with(&team, load(all)).expect("memory");
    let slot_bytes = model.experts().expect("on disk").stats().slot_bytes;
    for &n_slots in slots {
        let options = ExpertOptions::new(n_slots * slot_bytes);
        let model = opened.load_with(&team, load(options)).expect("memory");
        let limits = sluice::Limits {
            n_ctx: 256,
            n_batch: 16,
            ..sluice::Limits::default()
        };
        let mut session = model.session_on(&team, limits).expect("memory");
        let mut before = 0;
        for i in 0..60u32 {
            if i == 10 {
                before = CALLS.load(Ordering::Relaxed);
            }
            let batch = [BatchEntry::new(i * 13 % n_vocab, 0, i, Wants::Logits)];
            let step = session.run(&batch, &StepHooks::default(), |_, _| ());
            step.expect("reads do not fail");
        }
        let calls = CALLS.load(Ordering::Relaxed) - before;
        assert_eq!(calls, 0, "{n_slots} slots");
        let stats = model.experts().expect("on disk").stats();
        assert!(stats.reads > 50 && stats.evictions > 20, "{stats:?}");
    }
}

/// Prefill and decode through experts, also where all tokens choose the same few.
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn a_mixture_allocates_nothing() {
    let shape = Shape {
        n_expert: 5,
        n_expert_used: 3,
        ..Shape::SMALL
    };
    let file = shape.file().bytes();
    let mut weights = Weights::plan(&file).unwrap();
    let model = weights.load(&file, 2).unwrap();
    for n_workers in [1, 2, 3] {
        let limits = EngineLimits {
            n_batch: 16,
            ..EngineLimits::single(256, n_workers)
        };
        let mut room = Room::plan(model.config(), &limits).unwrap();
        let mut engine = room.engine(model.clone(), run::table(), &limits).unwrap();
        let team = Team::new(n_workers, &Cores::detect()).unwrap();
        let (wait, stop) = (team.wait_policy(), StopFlag::new());
        let mut tokens = [0u32; 80];
        tokens
            .iter_mut()
            .zip(0..)
            .for_each(|(id, i)| *id = (7 * i * i + 3) % 300);
        let (mut done, mut logits) = (0, 0);
        let mut before = None;
        while done < tokens.len() {
            // 48 tokens in batches, then one at a time.
            let end = if done < 48 { done + 16 } else { done + 1 };
            let (batch, len) = entries(&tokens[done..end], done);
            let options = StepOptions::new(&wait, &stop);
            let outputs = run::step_on(&team, &mut engine, &batch[..len], options).unwrap();
            logits += usize::from(outputs.logits(len - 1).is_some());
            done = end;
            // Threads that have just started still free what starting took.
            before.get_or_insert_with(|| CALLS.load(Ordering::Relaxed));
        }
        let calls = CALLS.load(Ordering::Relaxed) - before.unwrap();
        assert_eq!((calls, logits), (0, 35), "{n_workers} workers, experts");
    }
}

//! The Sluice engine without an operating system: `no_std`, no alloc.
//!
//! Core computes and owns nothing. The embedder supplies the model's bytes, memory (each part
//! has a plan that gives its size), cores to run ranks on, and a way to wait. `docs/embedding.md`
//! describes how to do that on your own board, and from C.
//!
//! | module | what |
//! |---|---|
//! | [`gguf`], [`slc`] | model files, read from bytes |
//! | [`model`] | what a file describes, and its weights in memory |
//! | [`tokenizer`] | text to tokens and back |
//! | [`engine`], [`state`], [`team`] | batches of tokens in, logits out, on any number of cores |
//! | [`sampler`], [`pooling`] | logits to a token, hidden states to an embedding |
//! | [`gate`], [`ring`] | which frames of a stream wake a model |
//! | [`sparse`] | sparse f32 networks, precision lanes, the π module: ruvector-sparse-inference's names |
//! | [`memory`], [`trace`], [`hash`] | arenas over the caller's memory, events, fingerprints |
//! | [`kernels`] | the arithmetic, bit-identical on every instruction set |
//!
//! # A whole program
//!
//! With memory, a model, and a console; on one core.
//!
//! ```
//! #![no_std]
//! # extern crate std; // rustdoc's harness, not the program
//! use sluice_core::engine::{BatchEntry, Engine, EnginePlan, EngineLimits, StepOptions, Wants};
//! use sluice_core::gguf::{Gguf, source::SliceSource};
//! use sluice_core::kernels::{CpuFeatures, KernelTable};
//! use sluice_core::memory::Arena;
//! use sluice_core::model::{Loader, ModelConfig, ModelPlan};
//! use sluice_core::sampler::{Candidate, SamplerChain, SamplerConfig};
//! use sluice_core::team::{SpinWait, StopFlag};
//! use sluice_core::tokenizer::{self, Detokenizer, EncodeOptions, Tokenizer};
//!
//! /// Prints `n` tokens that continue `prompt`.
//! fn tell(file: &[u8], memory: &mut [u8], prompt: &str, n: usize, print: fn(&str)) {
//!     // The model's description, and the memory that follows from it.
//!     let gguf = Gguf::parse(file, file.len() as u64).expect("a GGUF file");
//!     let config = ModelConfig::from_gguf(&gguf).expect("a model that can be run");
//!     let mut arena = Arena::new(memory).expect("aligned to 64 bytes");
//!     let words = tokenizer::plan(&gguf).expect("a vocabulary").words;
//!     let words = arena.slice(words, 0u32).expect("room");
//!     let tokenizer = Tokenizer::new(&gguf, words).expect("a vocabulary");
//!
//!     // The weights. More cores may call `work` at the same time.
//!     let plan = ModelPlan::new(&gguf, &config).expect("all tensors");
//!     let weights = arena.bytes(plan.weight_bytes).expect("room");
//!     let tables = arena.bytes(plan.table_bytes).expect("room");
//!     let source = SliceSource(file);
//!     let loader = Loader::new(&gguf, &config, weights, tables).expect("room");
//!     loader.work(&source, &mut [], || true).expect("sound tensors");
//!     let model = loader.finish(&source).expect("all of them");
//!
//!     // A context of 64 tokens on one core, with the best kernels of this CPU.
//!     let limits = EngineLimits { n_batch: 32, ..EngineLimits::single(64, 1) };
//!     let plan = EnginePlan::new(&config, &limits).expect("limits in range");
//!     let kv = arena.bytes(plan.kv_bytes).expect("room");
//!     let scratch = arena.bytes(plan.scratch_bytes).expect("room");
//!     let table = KernelTable::best(CpuFeatures::detect());
//!     let mut engine = Engine::new(model, table, &limits, kv, scratch).expect("room");
//!
//!     let (mut workspace, mut ids) = ([0; 512], [0; 64]);
//!     let options = EncodeOptions { add_special: true, parse_special: false };
//!     let encoded = tokenizer.encode(prompt, options, &mut workspace, &mut ids);
//!     let mut end = encoded.expect("a short prompt").len();
//!     let candidates = arena.slice(config.n_vocab, Candidate::default()).expect("room");
//!     let settings = SamplerConfig { seed: 7, ..SamplerConfig::default() };
//!     let mut sampler = SamplerChain::new(settings).expect("settings in range");
//!     let mut detokenizer = Detokenizer::continuing();
//!     let (stop, mut begin) = (StopFlag::new(), 0);
//!     for _ in 0..n {
//!         // One step: the whole prompt first, then a token at a time. `ids` is the text so far.
//!         let mut batch = [BatchEntry::new(0, 0, 0, Wants::Nothing); 64];
//!         for position in begin..end {
//!             batch[position] = BatchEntry::new(ids[position], 0, position as u32, Wants::Nothing);
//!         }
//!         batch[end - 1].wants = Wants::Logits;
//!         let step = engine.step(&batch[begin..end], StepOptions::new(&SpinWait, &stop));
//!         let step = step.expect("entries in order");
//!         // Each rank on a core of its own; here there is one.
//!         step.join(0).expect("each rank once").run().expect("nothing stops it");
//!         let outputs = step.finish().expect("all ranks have run");
//!         let logits = outputs.logits(end - begin - 1).expect("the last entry wanted them");
//!         let context = sampler.context(&ids[..end], 0, end as u32);
//!         let token = sampler.sample(logits, candidates, &mut [], &context).expect("numbers");
//!         if tokenizer.is_end_of_generation(token) {
//!             break;
//!         }
//!         detokenizer.push(&tokenizer, token, print).expect("a token of the vocabulary");
//!         ids[end] = token;
//!         (begin, end) = (end, end + 1);
//!     }
//!     detokenizer.finish(print);
//! }
//!
//! #[repr(align(64))]
//! struct Memory([u8; 12 << 20]);
//! static mut MEMORY: Memory = Memory([0; 12 << 20]);
//! static MODEL: &[u8] = include_bytes!(concat!(
//!     env!("CARGO_MANIFEST_DIR"),
//!     "/../hosted/models/tale-5.8m-Q4_K_M.gguf"
//! ));
//!
//! fn main() {
//!     // Sound, because the static is used here alone, and once.
//!     let memory = unsafe { &mut *(&raw mut MEMORY) };
//!     tell(MODEL, &mut memory.0, "Once upon a time", 8, console);
//! #   assert_eq!(*TEXT.lock().unwrap(), ", there was a little boy named Tim");
//! }
//! # static TEXT: std::sync::Mutex<std::string::String> = std::sync::Mutex::new(std::string::String::new());
//! # fn console(text: &str) { TEXT.lock().unwrap().push_str(text) }
//! ```
#![no_std]

pub use model::{head, pooling};
pub use sluice_kernels as kernels;

pub mod costs;
pub mod engine;
pub mod gate;
pub mod gguf;
pub mod hash;
pub mod memory;
pub mod model;
pub mod ring;
pub mod sampler;
pub mod slc;
pub mod sort;
pub mod sparse;
pub mod speculate;
pub mod state;
mod sync;
pub mod team;
pub mod tokenizer;
pub mod trace;

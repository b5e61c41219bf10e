//! A gate and a model in a Rust program that has nothing: no std, no C library, no heap, only
//! static memory. It listens to a line that is silent most of the time; a knock wakes the model.
//!
//! ```text
//! cargo run --profile metal -p sluice-examples --bin freestanding
//! ```
//!
//! What it asks of the system is to write and to end; on a board of your own those are a serial port
//! and a halt. `core::arch` needs the vector state switched on before (`docs/embedding.md`).
#![cfg_attr(sluice_freestanding, no_std, no_main)]

#[cfg(sluice_freestanding)]
#[path = "../../../linker/src/image/mem.rs"]
mod mem;

#[cfg(sluice_freestanding)]
mod listen {
    use core::arch::{asm, global_asm};
    use core::fmt::{self, Write as _};
    use core::panic::PanicInfo;
    use sluice_core::engine::{BatchEntry, Engine, EngineLimits, EnginePlan, StepOptions, Wants};
    use sluice_core::gate::{Gate, GateConfig, Measure, Policy};
    use sluice_core::gguf::Gguf;
    use sluice_core::gguf::source::SliceSource;
    use sluice_core::hash::Hash64;
    use sluice_core::kernels::{CpuFeatures, FrameKernels, KernelTable};
    use sluice_core::memory::Arena;
    use sluice_core::model::{Loader, ModelConfig, ModelPlan};
    use sluice_core::sampler::{Candidate, SamplerChain, SamplerConfig};
    use sluice_core::team::{SpinWait, StopFlag};
    use sluice_core::tokenizer::{self, Detokenizer, EncodeOptions, Tokenizer};

    static MODEL: &[u8] = include_bytes!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../hosted/models/tale-5.8m-Q4_K_M.gguf"
    ));
    const N_CTX: usize = 128;
    const N_PREDICT: usize = 24;
    const FRAME_LEN: usize = 256;

    /// All available memory. `memory is too small` reports how much is missing.
    #[repr(align(64))]
    #[expect(dead_code, reason = "used through its address")]
    struct Memory([u8; 12 << 20]);
    static mut MEMORY: Memory = Memory([0; 12 << 20]);

    /// Eight frames of a line: a murmur, and in the sixth a knock.
    fn frame(index: usize, samples: &mut [f32; FRAME_LEN]) {
        let mut murmur = 0.004;
        for (i, sample) in samples.iter_mut().enumerate() {
            murmur = -murmur;
            let knock = if i % 16 < 8 { 0.5 } else { -0.5 };
            *sample = if index == 5 { knock } else { murmur };
        }
    }

    fn run() {
        let cpu = CpuFeatures::detect();
        let config = GateConfig {
            policy: Policy {
                measure: Measure::Std,
                threshold: 0.05,
                ..Policy::default()
            },
            ..GateConfig::default()
        };
        let mut gate = Gate::new(config, FrameKernels::best(cpu)).expect("settings in range");
        let mut samples = [0.0; FRAME_LEN];
        for index in 0..8 {
            frame(index, &mut samples);
            let decision = gate.process(&samples);
            let passes = decision.verdict.passes();
            print(format_args!(
                "frame {index}: up to {:.3}, {}\n",
                decision.max_abs,
                if passes { "wakes the model" } else { "silent" }
            ));
            if passes {
                tell(cpu);
            }
        }
    }

    /// Loads the model into the static memory and lets it tell a story.
    #[expect(
        clippy::too_many_lines,
        reason = "an example is read from top to bottom"
    )]
    fn tell(cpu: CpuFeatures) {
        let start = (&raw mut MEMORY).cast::<u8>();
        // SAFETY: only this function uses the static; the program has one thread, and the slice does not
        // outlive the function.
        let memory = unsafe { core::slice::from_raw_parts_mut(start, size_of::<Memory>()) };
        let mut arena = Arena::new(memory).expect("aligned");

        let gguf = Gguf::parse(MODEL, MODEL.len() as u64).expect("a GGUF file");
        let config = ModelConfig::from_gguf(&gguf).expect("a model");
        let words = tokenizer::plan(&gguf).expect("a vocabulary").words;
        let words = arena.slice(words, 0u32).expect("memory for the vocabulary");
        let tokenizer = Tokenizer::new(&gguf, words).expect("a vocabulary");

        let plan = ModelPlan::new(&gguf, &config).expect("weights");
        let weights = arena
            .bytes(plan.weight_bytes)
            .expect("memory for the weights");
        let tables = arena
            .bytes(plan.table_bytes)
            .expect("memory for the tables");
        let source = SliceSource(MODEL);
        let loader = Loader::new(&gguf, &config, weights, tables).expect("weights");
        loader.work(&source, &mut [], || true).expect("weights");
        let model = loader.finish(&source).expect("weights");

        let limits = EngineLimits {
            n_batch: 32,
            ..EngineLimits::single(N_CTX, 1)
        };
        let plan = EnginePlan::new(&config, &limits).expect("limits in range");
        let kv = arena.bytes(plan.kv_bytes).expect("memory for the context");
        let scratch = arena
            .bytes(plan.scratch_bytes)
            .expect("memory for the engine");
        let table = KernelTable::best(cpu);
        let mut engine = Engine::new(model, table, &limits, kv, scratch).expect("an engine");

        let prompt = "Once upon a time";
        let mut workspace = [0; 256];
        let mut ids = [0; 32];
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let encoded = tokenizer.encode(prompt, options, &mut workspace, &mut ids);
        let n_prompt = encoded.expect("a short prompt").len();
        let history = arena.slice(N_CTX, 0u32).expect("memory for the text");
        history[..n_prompt].copy_from_slice(&ids[..n_prompt]);
        let candidates = arena.slice(config.n_vocab, Candidate::default());
        let candidates = candidates.expect("memory for candidates");
        let mut sampler = SamplerChain::new(SamplerConfig {
            seed: 7,
            ..SamplerConfig::default()
        })
        .expect("settings in range");

        let stop = StopFlag::new();
        let mut detokenizer = Detokenizer::continuing();
        let mut hash = Hash64::new();
        let (mut from, mut to) = (0, n_prompt);
        for _ in 0..N_PREDICT {
            let mut batch = [BatchEntry::new(0, 0, 0, Wants::Nothing); 32];
            let batch = &mut batch[..to - from];
            for (entry, position) in batch.iter_mut().zip(from..) {
                let at = u32::try_from(position).expect("contexts are short");
                *entry = BatchEntry::new(history[position], 0, at, Wants::Nothing);
            }
            batch[to - from - 1].wants = Wants::Logits;
            let step = engine.step(batch, StepOptions::new(&SpinWait, &stop));
            let step = step.expect("a batch in order");
            step.join(0)
                .expect("rank 0 joins once")
                .run()
                .expect("it is not stopped");
            let outputs = step.finish().expect("all ranks have run");
            let logits = outputs.logits(to - from - 1).expect("asked for");
            hash.write_f32(logits);
            let position = u32::try_from(to).expect("contexts are short");
            let context = sampler.context(&history[..to], 0, position);
            let token = sampler.sample(logits, candidates, &mut [], &context);
            let token = token.expect("logits are numbers");
            if tokenizer.is_end_of_generation(token) {
                break;
            }
            let shown = detokenizer.push(&tokenizer, token, |text| print(format_args!("{text}")));
            shown.expect("a token of the vocabulary");
            history[to] = token;
            (from, to) = (to, to + 1);
        }
        detokenizer.finish(|text| print(format_args!("{text}")));
        print(format_args!("\nlogits hash = {:#018x}\n", hash.finish()));
    }

    fn print(text: fmt::Arguments<'_>) {
        // If printing fails, there is nowhere to report it.
        let _ = Console.write_fmt(text);
    }

    struct Console;

    impl fmt::Write for Console {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            system_call(1, 1, text.as_ptr().addr(), text.len());
            Ok(())
        }
    }

    /// Linux's, for want of a board.
    fn system_call(number: usize, a: usize, b: usize, c: usize) {
        // SAFETY: write(2) reads the text that is handed in, exit_group(2) does not return.
        unsafe {
            asm!("syscall", inout("rax") number => _, in("rdi") a, in("rsi") b, in("rdx") c,
                out("rcx") _, out("r11") _, options(nostack));
        }
    }

    fn end(status: usize) -> ! {
        loop {
            system_call(231, status, 0, 0);
        }
    }

    #[panic_handler]
    fn panic(info: &PanicInfo<'_>) -> ! {
        print(format_args!("{info}\n"));
        end(1)
    }

    global_asm!(
        ".globl _start",
        "_start: xor ebp, ebp",
        "and rsp, -16",
        "call start",
    );

    #[unsafe(no_mangle)]
    extern "C" fn start() -> ! {
        run();
        end(0)
    }
}

#[cfg(not(sluice_freestanding))]
fn main() -> std::process::ExitCode {
    eprintln!("use: cargo run --profile metal -p sluice-examples --bin freestanding");
    std::process::ExitCode::FAILURE
}

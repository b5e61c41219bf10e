//! Damaged and hostile model files, taken all the way: header, configuration, plans, loading, a
//! step, the tokenizer.
//!
//! Whatever the bytes, the result is an error that names the problem or a model that runs; no panic, no hang, and no
//! plan that asks for more memory than the file's size explains.

use core::fmt::Display;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use sluice_core::engine::{BatchEntry, Engine, EngineLimits, EnginePlan, StepOptions, Wants};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::{SliceSource, SourceError, TensorSource};
use sluice_core::hash::Hash64;
use sluice_core::kernels::{GgmlType, WeightType};
use sluice_core::memory::MemoryError;
use sluice_core::model::{Architecture, Loader, ModelConfig, ModelError, ModelPlan};
use sluice_core::sampler::greedy;
use sluice_core::team::{SpinWait, StopFlag};
use sluice_core::tokenizer::{self, EncodeOptions, Tokenizer};
use sluice_tests::build::{self, File, Meta, Random, Shape, Vocab, encode};
use sluice_tests::run::{self, Aligned};
use std::panic::catch_unwind;
use std::time::Instant;

/// Weights are at most 1% larger than in the file. Many small layers have almost no weights, and
/// tables of 4 times the file's size.
const MODEL_BYTES_PER_FILE_BYTE: usize = 5;
/// Two entries and a cache of 64 tokens.
const ENGINE_BYTES_PER_FILE_BYTE: usize = 8;
/// 20 bytes a token and 24 a merge, which take 8 bytes in the file at least.
const TOKENIZER_BYTES_PER_FILE_BYTE: usize = 4;
/// Room for what does not grow with the file.
const CONSTANT_BYTES: usize = 256 << 10;
/// Time limit for one file; a run takes well under a millisecond.
const TIME_MAX: Duration = Duration::from_secs(5);

const LIMITS: EngineLimits = EngineLimits {
    n_batch: 2,
    n_outputs: 2,
    ..EngineLimits::single(64, 1)
};

/// Memory that many files pass through, one after the other.
struct Machine {
    weights: Aligned,
    tables: Aligned,
    kv: Aligned,
    scratch: Aligned,
    words: Vec<u32>,
}

impl Machine {
    fn new() -> Self {
        let memory = || Aligned::new(4 << 20);
        Self {
            weights: memory(),
            tables: memory(),
            kv: memory(),
            scratch: memory(),
            words: vec![0; 64 << 10],
        }
    }

    /// Takes a file all the way; the logits of two tokens, or what was wrong.
    fn run(&mut self, file: &[u8]) -> Result<Vec<f32>, String> {
        let start = Instant::now();
        let result = self.engine(file);
        let ids = self.tokens(file);
        assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
        let logits = result?;
        ids?;
        Ok(logits)
    }

    fn engine(&mut self, file: &[u8]) -> Result<Vec<f32>, String> {
        let gguf = Gguf::parse_with_lanes(file, file.len() as u64).map_err(text)?;
        let config = ModelConfig::from_gguf(&gguf).map_err(text)?;
        check_plans(&gguf, &config, file)?;
        let loader = Loader::new(
            &gguf,
            &config,
            self.weights.bytes_mut(),
            self.tables.bytes_mut(),
        );
        let loader = loader.map_err(text)?;
        let source = SliceSource(file);
        loader.work(&source, &mut [], || true).map_err(text)?;
        let model = loader.finish(&source).map_err(text)?;
        let (kv, scratch) = (self.kv.bytes_mut(), self.scratch.bytes_mut());
        let engine = Engine::new(model, run::table(), &LIMITS, kv, scratch);
        let mut engine = engine.map_err(text)?;
        let entry = |i| BatchEntry::new(i, 0, i, Wants::Logits);
        let (batch, stop) = ([entry(0), entry(1)], StopFlag::new());
        let options = StepOptions::new(&SpinWait, &stop);
        let step = engine.step(&batch, options).map_err(text)?;
        let worker = step.join(0).expect("the only rank");
        worker.run().map_err(text)?;
        let outputs = step.finish().map_err(text)?;
        let rows = (0..2).filter_map(|i| outputs.logits(i));
        Ok(rows.flatten().copied().collect())
    }

    /// Tokens of a short text, and back.
    fn tokens(&mut self, file: &[u8]) -> Result<Vec<u32>, String> {
        let gguf = Gguf::parse_with_lanes(file, file.len() as u64).map_err(text)?;
        let words = tokenizer::plan(&gguf).map_err(text)?.words;
        within("tokenizer", 4 * words, TOKENIZER_BYTES_PER_FILE_BYTE, file);
        let tokenizer = Tokenizer::new(&gguf, &mut self.words).map_err(text)?;
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let (mut room, mut out, mut piece) = ([0; 512], [0; 64], vec![0; file.len()]);
        // Characters that the vocabulary may lack, too.
        let other = tokenizer.encode("a <s>\u{e9}", options, &mut room, &mut out);
        let _ = other.map_err(text);
        let ids = tokenizer.encode("abcdefgh", options, &mut room, &mut out);
        let ids = ids.map_err(text)?;
        for &id in ids {
            tokenizer.decode_piece(id, &mut piece).map_err(text)?;
        }
        Ok(ids.to_vec())
    }
}

/// An error's message, in the form that all of ours have.
fn text(error: impl Display) -> String {
    let text = error.to_string();
    assert!(text.len() > 8, "{text}");
    assert!(!text.ends_with('.'), "{text}");
    assert!(text.chars().all(|c| !c.is_control()), "{text:?}");
    text
}

fn check_plans(gguf: &Gguf<'_>, config: &ModelConfig, file: &[u8]) -> Result<(), String> {
    let plan = ModelPlan::new(gguf, config).map_err(text)?;
    let bytes = plan.weight_bytes + plan.table_bytes + plan.staging_bytes;
    within("model", bytes, MODEL_BYTES_PER_FILE_BYTE, file);
    let plan = EnginePlan::new(config, &LIMITS).map_err(text)?;
    let bytes = plan.kv_bytes + plan.scratch_bytes;
    within("engine", bytes, ENGINE_BYTES_PER_FILE_BYTE, file);
    Ok(())
}

fn within(what: &str, bytes: usize, per_file_byte: usize, file: &[u8]) {
    let max = file.len() * per_file_byte + CONSTANT_BYTES;
    assert!(bytes <= max, "{what} plan of {bytes} bytes, at most {max}");
}

/// Runs `files` numbers of files that `make` prepares, on two threads; counts those that ran.
fn run_all(clean: &[u8], files: usize, make: impl Fn(&mut Vec<u8>, usize) + Sync) -> usize {
    let (next, ran) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let (mut machine, mut file) = (Machine::new(), Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= files {
                break;
            }
            file.clear();
            file.extend(clean);
            make(&mut file, number);
            match catch_unwind(AssertUnwindSafe(|| machine.run(&file))) {
                Ok(result) => ran.fetch_add(usize::from(result.is_ok()), Ordering::Relaxed),
                Err(_) => panic!("file number {number} panicked"),
            };
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work();
        other.join().expect("no file may panic");
    });
    ran.into_inner()
}

fn header_len(file: &[u8]) -> usize {
    let gguf = Gguf::parse_with_lanes(file, file.len() as u64).expect("sound");
    gguf.header_bytes().len()
}

#[test]
fn the_undamaged_files_run() {
    for vocab in [Vocab::SentencePiece, Vocab::ByteLevel] {
        for version in [2, 3] {
            let shape = Shape {
                vocab,
                version,
                ..Shape::TINY
            };
            let logits = Machine::new().run(&shape.file().bytes()).expect("sound");
            assert_eq!(logits.len(), 2 * 16);
            assert!(logits.iter().all(|x| x.is_finite()));
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    let file = Shape::TINY.file().bytes();
    let ran = run_all(&file, file.len(), |file, len| file.truncate(len));
    assert_eq!(ran, 0);
}

/// All 255 wrong values of every byte of the header, and with the other vocabulary all single
/// bits.
#[test]
fn every_wrong_byte_in_the_header_is_survived() {
    let every: Vec<u8> = (1..=255).collect();
    let bits: Vec<u8> = (0..8).map(|bit| 1 << bit).collect();
    for (vocab, flips) in [(Vocab::SentencePiece, every), (Vocab::ByteLevel, bits)] {
        let shape = Shape {
            vocab,
            ..Shape::TINY
        };
        let file = shape.file().bytes();
        let files = flips.len() * header_len(&file);
        let ran = run_all(&file, files, |file, number| {
            file[number / flips.len()] ^= flips[number % flips.len()];
        });
        // Bytes of names are mostly fatal; of tokens, scores and rotary constants they are not.
        assert!(ran > files / 20);
        assert!(ran < files / 2);
    }
}

#[test]
fn every_wrong_byte_in_the_weights_is_survived() {
    for ty in WeightType::ALL {
        let shape = Shape {
            ty: ty.ggml(),
            n_embd: ty.ggml().block_len().max(32).try_into().expect("small"),
            n_head: 2,
            n_head_kv: 1,
            head_dim_k: ty
                .ggml()
                .block_len()
                .max(32)
                .div_ceil(2)
                .try_into()
                .expect("small"),
            head_dim_v: ty
                .ggml()
                .block_len()
                .max(32)
                .div_ceil(2)
                .try_into()
                .expect("small"),
            n_ff: ty.ggml().block_len().max(32).try_into().expect("small"),
            ..Shape::TINY
        };
        let file = shape.file().bytes();
        let start = header_len(&file).next_multiple_of(32);
        // Every byte of the small files; of the 256-wide ones a sample.
        let step = if file.len() > 20_000 { 389 } else { 1 };
        let files = (file.len() - start) / step;
        let ran = run_all(&file, files, |file, number| {
            file[start + number * step] ^= [0xff, 0x80, 0x7c][number % 3];
        });
        assert!(ran > files * 9 / 10);
    }
}

/// Makes the first weight of a tensor of type `ty`, or its block's scale, NaN or infinite. False
/// for types that have no such scales.
fn poison(ty: GgmlType, data: &mut [u8], nan: bool) -> bool {
    let half = if nan { 0x7e00 } else { 0x7c00u16 };
    match ty {
        GgmlType::F32 => {
            let x = if nan { f32::NAN } else { f32::INFINITY };
            data[..4].copy_from_slice(&x.to_le_bytes());
        }
        GgmlType::BF16 => data[..2].copy_from_slice(&[if nan { 0xc0 } else { 0x80 }, 0x7f]),
        GgmlType::F16 => data[..2].copy_from_slice(&half.to_le_bytes()),
        GgmlType::MXFP4 | GgmlType::NVFP4 => return false,
        _ => build::put_scale(ty, build::scales(ty)[0].0, half, data),
    }
    true
}

#[test]
fn weights_that_are_no_numbers_show_in_the_logits() {
    let matrices = [
        "token_embd",
        "blk.0.attn_q",
        "blk.0.attn_k",
        "blk.0.attn_v",
        "blk.0.attn_output",
        "blk.0.ffn_gate",
        "blk.0.ffn_up",
        "blk.0.ffn_down",
    ];
    for ty in WeightType::ALL.map(WeightType::ggml) {
        let shape = Shape {
            ty,
            n_embd: 256,
            n_head: 2,
            n_head_kv: 2,
            head_dim_k: 128,
            head_dim_v: 128,
            n_ff: 256,
            ..Shape::TINY
        };
        let clean = shape.file();
        let mut machine = Machine::new();
        let expected = machine.run(&clean.bytes()).expect("sound");
        for name in matrices {
            for nan in [true, false] {
                let mut file = clean.clone();
                let tensor = file.tensor(&format!("{name}.weight"));
                if !poison(ty, &mut tensor.data, nan) {
                    continue;
                }
                let logits = machine
                    .run(&file.bytes())
                    .expect("numbers are not the loader's");
                assert_ne!(logits, expected, "{ty} {name} nan {nan}");
                if nan {
                    // Every row has a NaN, which the sampler reports.
                    for row in logits.chunks(16) {
                        assert!(greedy(row).is_err(), "{ty} {name}: {row:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn norms_and_biases_that_are_no_numbers_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for name in ["blk.0.attn_norm.weight", "output_norm.weight"] {
            let mut values = [1.0; 32];
            values[31] = bad;
            let mut file = Shape::TINY.file();
            file.fill(name, &values);
            assert_eq!(
                Machine::new().run(&file.bytes()).unwrap_err(),
                format!("tensor {name} holds a value that is not a finite number")
            );
        }
        let mut file = Shape::TINY.file();
        file.add_vector("blk.0.attn_v.bias", &[bad; 16]);
        assert_eq!(
            Machine::new().run(&file.bytes()).unwrap_err(),
            "tensor blk.0.attn_v.bias holds a value that is not a finite number"
        );
    }
    for bad in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        let mut file = Shape::TINY.file();
        file.add_vector("rope_freqs.weight", &[1.0, bad, 1.0, 1.0]);
        assert_eq!(
            Machine::new().run(&file.bytes()).unwrap_err(),
            "tensor rope_freqs.weight holds a value that is not a finite number"
        );
    }
}

/// The message for the tiny model after `change`.
fn refusal(change: impl FnOnce(&mut File)) -> String {
    let mut file = Shape::TINY.file();
    change(&mut file);
    let result = Machine::new().engine(&file.bytes());
    result.expect_err("the change is fatal")
}

#[test]
fn refused_tensors_are_named() {
    for name in [
        "output_norm.weight",
        "token_embd.weight",
        "blk.0.ffn_up.weight",
    ] {
        let message = refusal(|file| file.tensors.retain(|tensor| tensor.name != name));
        assert_eq!(message, format!("tensor {name} is missing"));
    }
    let message = refusal(|file| file.tensor("blk.0.ffn_gate.weight").dims = vec![64, 16]);
    assert_eq!(
        message,
        "tensor blk.0.ffn_gate.weight has 16 rows of 64, expected 32 rows of 32"
    );
    // A third dimension, even if the number of rows is right.
    let message = refusal(|file| file.tensor("blk.0.ffn_gate.weight").dims = vec![32, 16, 2]);
    assert_eq!(
        message,
        "tensor blk.0.ffn_gate.weight has 3 dimensions, expected 2 at most"
    );
    let message = refusal(|file| {
        let norm = file.tensor("blk.0.ffn_norm.weight");
        (norm.ty, norm.data) = (GgmlType::F16, encode(GgmlType::F16, &[1.0; 32]));
    });
    assert_eq!(
        message,
        "tensor blk.0.ffn_norm.weight is of type F16, expected F32"
    );
    let message = refusal(|file| {
        let down = file.tensor("blk.0.ffn_down.weight");
        (down.ty, down.data) = (GgmlType::Q8_1, vec![0; 32 * 36]);
    });
    assert_eq!(
        message,
        "tensor blk.0.ffn_down.weight: there are no kernels for type Q8_1 yet"
    );
    let message = refusal(|file| {
        file.add_vector("blk.0.attn_q.bias", &[0.0; 31]);
    });
    assert_eq!(
        message,
        "tensor blk.0.attn_q.bias has 1 rows of 31, expected 1 rows of 32"
    );
    let message = refusal(|file| {
        file.add_vector("token_embd.scale", &[0.5]);
    });
    assert_eq!(
        message,
        "a factor on a matrix (token_embd.scale) is not implemented yet"
    );
    let message = refusal(|file| {
        file.add_vector("blk.0.nextn.eh_proj.scale", &[0.5]);
    });
    assert!(message.contains("blk.0.nextn.eh_proj.scale"), "{message}");
    // Without a block that the file has, an answer is nonsense.
    let message = refusal(|file| {
        file.add_vector("blk.7.nextn.eh_proj.scale", &[0.5]);
    });
    assert_eq!(
        message,
        "llama.block_count is 1, expected as many as the file has blocks"
    );
}

#[test]
fn refused_settings_are_named() {
    let set = |key: &str, value: u32| refusal(|file| file.set(key, value));
    let mut names = Vec::new();
    for architecture in Architecture::all() {
        // Mixtral's is llama's.
        if !names.contains(&architecture.name()) {
            names.push(architecture.name());
        }
    }
    let known = names.join(", ");
    assert_eq!(
        refusal(|file| file.set("general.architecture", "gpt\u{7}3")),
        format!("architecture \"gpt\\u{{7}}3\" is not supported yet ({known} are)")
    );
    assert_eq!(
        set("llama.expert_count", 8),
        "metadata key \"llama.expert_used_count\" is missing"
    );
    assert_eq!(
        refusal(|file| {
            file.set("llama.rope.scaling.type", "dynamic");
            file.set("llama.rope.scaling.factor", 4.0);
        }),
        "rotary scaling (dynamic) is not implemented yet"
    );
    assert_eq!(
        refusal(|file| file.set("llama.rope.scaling.factor", -2.0)),
        "llama.rope.scaling.factor is -2, expected above 0"
    );
    assert_eq!(
        set("llama.block_count", 0),
        "llama.block_count is 0, expected 1 to 512"
    );
    assert_eq!(
        set("llama.context_length", 0),
        "llama.context_length is 0, expected at least 1"
    );
    assert_eq!(
        set("llama.attention.head_count_kv", 3),
        "llama.attention.head_count_kv is 3, expected a divisor of head_count"
    );
    assert_eq!(
        set("llama.rope.dimension_count", 9),
        "llama.rope.dimension_count is 9, expected even, at most the head's length"
    );
    assert_eq!(
        set("llama.embedding_length", 1 << 25),
        "llama.embedding_length is 33554432, expected 1 to 2^24"
    );
    assert_eq!(
        refusal(|file| file.set("llama.rope.freq_base", f32::NAN)),
        "llama.rope.freq_base is NaN, expected at least 1"
    );
    assert_eq!(
        refusal(|file| {
            let key = "llama.attention.layer_norm_rms_epsilon";
            file.set(key, 1.5);
        }),
        "llama.attention.layer_norm_rms_epsilon is 1.5, expected between 0 and 1"
    );
    assert_eq!(
        refusal(|file| file.tensors.clear()),
        "the file has a vocabulary but no tensors"
    );
}

const ARCHITECTURES: [&str; 6] = ["llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"];

fn of_arch(arch: &'static str) -> Shape {
    let (n_layer, tied) = (2, false);
    Shape {
        arch,
        n_layer,
        tied,
        ..Shape::TINY
    }
}

/// Every tensor of every family, taken away, with a row too many or too few, and of a wrong type.
#[test]
fn missing_and_misshaped_tensors_of_every_family_are_named() {
    for arch in ARCHITECTURES {
        let whole = of_arch(arch).file();
        Machine::new().run(&whole.bytes()).expect(arch);
        for (i, tensor) in whole.tensors.iter().enumerate() {
            let name = &tensor.name;
            let refusal = |change: &dyn Fn(&mut File)| {
                let mut file = whole.clone();
                change(&mut file);
                Machine::new().run(&file.bytes()).expect_err(name)
            };
            // Without an output layer, the embedding is it.
            if name != "output.weight" {
                let message = refusal(&|file| drop(file.tensors.remove(i)));
                assert_eq!(message, format!("tensor {name} is missing"), "{arch}");
            }
            // The embedding determines its own number of rows; the output layer then disagrees.
            let blamed = if name == "token_embd.weight" {
                "output.weight"
            } else {
                name
            };
            for more in [false, true] {
                let message = refusal(&|file| {
                    let tensor = &mut file.tensors[i];
                    let row_bytes = tensor.data.len()
                        / usize::try_from(tensor.dims[1..].iter().product::<u64>()).unwrap();
                    match &mut tensor.dims[..] {
                        [len] => *len = if more { *len + 1 } else { *len - 1 },
                        [_, rows] => *rows = if more { *rows + 1 } else { *rows - 1 },
                        _ => unreachable!("vectors and matrices"),
                    }
                    let len = tensor.data.len();
                    let step = if tensor.dims.len() == 1 { 4 } else { row_bytes };
                    tensor
                        .data
                        .resize(if more { len + step } else { len - step }, 0);
                });
                assert!(
                    message.starts_with(&format!("tensor {blamed} has ")),
                    "{arch} {name}: {message}"
                );
            }
            if tensor.dims.len() == 1 {
                let message = refusal(&|file| {
                    let tensor = &mut file.tensors[i];
                    tensor.ty = GgmlType::F16;
                    tensor.data.truncate(tensor.data.len() / 2);
                });
                let expected = format!("tensor {name} is of type F16, expected F32");
                assert_eq!(message, expected, "{arch}");
            }
        }
    }
}

#[test]
fn every_wrong_bit_in_the_header_of_every_family_is_survived() {
    for arch in ARCHITECTURES {
        let mut file = of_arch(arch).file();
        file.set(&format!("{arch}.rope.scaling.type"), "yarn");
        file.set(&format!("{arch}.rope.scaling.factor"), 4.0);
        file.set(&format!("{arch}.rope.scaling.attn_factor"), 1.1);
        file.set(&format!("{arch}.rope.scaling.original_context_length"), 64);
        if arch.starts_with("gemma") {
            file.set(&format!("{arch}.attention.sliding_window"), 1);
            file.set(&format!("{arch}.attention.sliding_window_pattern"), 2);
            file.set(&format!("{arch}.rope.freq_base_swa"), 5000.0);
            file.set(&format!("{arch}.final_logit_softcapping"), 30.0);
        }
        if arch == "gemma2" {
            file.set("gemma2.attn_logit_softcapping", 50.0);
        }
        let file = file.bytes();
        let files = 8 * header_len(&file);
        let ran = run_all(&file, files, |file, number| {
            file[number / 8] ^= 1 << (number % 8)
        });
        assert!(ran > files / 20, "{arch}: {ran} of {files}");
        assert!(ran < files / 2, "{arch}: {ran} of {files}");
    }
}

#[test]
fn refused_settings_of_families_are_named() {
    let refusal = |arch: &'static str, change: &dyn Fn(&mut File)| {
        let mut file = of_arch(arch).file();
        change(&mut file);
        Machine::new().run(&file.bytes()).expect_err(arch)
    };
    for arch in ARCHITECTURES {
        let no_layers = refusal(arch, &|file| file.unset(&format!("{arch}.block_count")));
        assert_eq!(
            no_layers,
            format!("metadata key \"{arch}.block_count\" is missing")
        );
        let attn = refusal(arch, &|file| {
            file.set(&format!("{arch}.rope.scaling.attn_factor"), 0.0);
        });
        let expected = format!("{arch}.rope.scaling.attn_factor is 0, expected above 0");
        assert_eq!(attn, expected);
        let kind = refusal(arch, &|file| {
            file.set(&format!("{arch}.rope.scaling.type"), "longrope");
        });
        assert_eq!(kind, "tensor rope_factors_short.weight is missing");
        let one = refusal(arch, &|file| {
            file.add_vector("rope_factors_short.weight", &[1.0; 4]);
        });
        assert_eq!(one, "tensor rope_factors_long.weight is missing");
        let long = refusal(arch, &|file| {
            file.add_vector("rope_factors_short.weight", &[1.0; 4]);
            file.add_vector("rope_factors_long.weight", &[1.0; 5]);
        });
        let expected = "tensor rope_factors_long.weight has 1 rows of 5, expected 1 rows of 4";
        assert_eq!(long, expected);
    }
    assert_eq!(
        refusal("gemma2", &|file| file
            .set("gemma2.attn_logit_softcapping", 0.0)),
        "gemma2.attn_logit_softcapping is 0, expected above 0"
    );
    assert_eq!(
        refusal("gemma3", &|file| file
            .set("gemma3.final_logit_softcapping", -1.0)),
        "gemma3.final_logit_softcapping is -1, expected 0 or above"
    );
    assert_eq!(
        refusal("gemma3", &|file| {
            file.set("gemma3.attention.sliding_window", 4);
            file.set("gemma3.rope.freq_base_swa", 0.5);
        }),
        "gemma3.rope.freq_base_swa is 0.5, expected at least 1"
    );
    assert_eq!(
        refusal("gemma3", &|file| {
            let list = Meta::I32s(vec![1, 0]);
            file.set("gemma3.attention.sliding_window_pattern", list);
        }),
        "gemma3.attention.sliding_window_pattern is 2, expected a truth value for each layer"
    );
    // 24 rows of Q: the rows of K would begin within a panel.
    let shape = Shape {
        n_head: 3,
        n_head_kv: 3,
        ..of_arch("phi3")
    };
    assert_eq!(
        Machine::new().run(&shape.file().bytes()).unwrap_err(),
        "tensor blk.0.attn_qkv.weight has a part that begins at row 24, \
         expected a multiple of 16"
    );
}

/// Heads longer than the cache handles; sizes are stated, nothing is allocated for them.
#[test]
fn long_heads_are_refused() {
    let shape = Shape {
        n_head: 1,
        n_head_kv: 1,
        head_dim_k: 1026,
        ..Shape::TINY
    };
    assert_eq!(
        Machine::new().engine(&shape.file().bytes()).unwrap_err(),
        "heads of 1026 dimensions are longer than the 1024 supported"
    );
}

/// Shapes that pad worst: a few long rows, many short ones, a vocabulary of one.
#[test]
fn thin_models_are_bounded_and_run() {
    let thin = Shape {
        n_embd: 2,
        n_head: 1,
        n_head_kv: 1,
        head_dim_k: 2,
        head_dim_v: 1,
        n_ff: 1,
        n_vocab: 2,
        vocab: Vocab::None,
        ..Shape::TINY
    };
    let shapes = [
        thin,
        Shape {
            n_embd: 4096,
            ..thin
        },
        Shape { n_ff: 4096, ..thin },
        Shape {
            n_vocab: 4096,
            ..thin
        },
        Shape {
            head_dim_v: 1024,
            ..thin
        },
        Shape { n_head: 64, ..thin },
        Shape {
            n_layer: 50,
            ..thin
        },
        // Odd lengths everywhere.
        Shape {
            n_embd: 17,
            n_head: 3,
            head_dim_k: 6,
            head_dim_v: 5,
            n_ff: 19,
            ..thin
        },
    ];
    for shape in shapes {
        let logits = Machine::new().engine(&shape.file().bytes());
        let logits = logits.unwrap_or_else(|error| panic!("{shape:?}: {error}"));
        assert!(logits.iter().all(|x| x.is_finite()), "{shape:?}");
    }
}

/// Looking up the tensors of many layers in a long directory takes bounded time.
#[test]
fn too_many_layers_and_tensors_are_refused_at_once() {
    let mut file = Shape::TINY.file();
    file.set("llama.block_count", 512);
    for i in 0..40_000 {
        file.add_vector(&format!("t{i}"), &[0.0]);
    }
    let bytes = file.bytes();
    let start = Instant::now();
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let config = ModelConfig::from_gguf(&gguf).unwrap();
    let error = ModelPlan::new(&gguf, &config).unwrap_err();
    assert_eq!(
        error,
        ModelError::TooManyTensors {
            n_layer: 512,
            n_tensors: 40_011
        }
    );
    assert!(start.elapsed() < TIME_MAX);
}

/// How a source answers reads.
#[derive(Clone, Copy)]
enum Manner {
    /// Reads, but has no addresses.
    Reads,
    /// Fails from the given read on.
    FailsAt(usize),
    /// Returns slices that are longer or shorter than requested.
    SlicesOf(isize),
}

struct Source<'a> {
    file: &'a [u8],
    manner: Manner,
    reads: AtomicUsize,
}

impl<'a> Source<'a> {
    fn new(file: &'a [u8], manner: Manner) -> Self {
        Self {
            file,
            manner,
            reads: AtomicUsize::new(0),
        }
    }
}

impl TensorSource for Source<'_> {
    fn len_bytes(&self) -> u64 {
        self.file.len() as u64
    }

    fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let Manner::SlicesOf(more) = self.manner else {
            return None;
        };
        let start = usize::try_from(offset).ok()?;
        let end = (start + len)
            .saturating_add_signed(more)
            .min(self.file.len());
        self.file.get(start..end)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        match self.manner {
            Manner::FailsAt(first) if number >= first => Err(SourceError::Io { offset, code: 5 }),
            _ => SliceSource(self.file).read(offset, into),
        }
    }
}

/// Loads through a source with `staging` bytes of staging memory; returns a hash of the weights.
fn load(file: &[u8], source: &Source<'_>, staging: usize) -> Result<u64, ModelError> {
    let gguf = Gguf::parse(file, file.len() as u64)?;
    let config = ModelConfig::from_gguf(&gguf)?;
    let plan = ModelPlan::new(&gguf, &config)?;
    let (mut weights, mut tables) = (
        Aligned::new(plan.weight_bytes),
        Aligned::new(plan.table_bytes),
    );
    let loader = Loader::new(&gguf, &config, weights.bytes_mut(), tables.bytes_mut())?;
    loader.work(source, &mut vec![0; staging], || true)?;
    let model = loader.finish(source)?;
    let mut hash = Hash64::new();
    hash.write(model.weight_memory());
    Ok(hash.finish())
}

fn plan(file: &[u8]) -> ModelPlan {
    let gguf = Gguf::parse(file, file.len() as u64).expect("sound");
    let config = ModelConfig::from_gguf(&gguf).expect("sound");
    ModelPlan::new(&gguf, &config).expect("sound")
}

#[test]
fn sources_without_addresses_are_read_in_pieces() {
    // A matrix above 512 KiB, so that tensors come in several chunks.
    let shape = Shape {
        n_embd: 512,
        n_ff: 1100,
        vocab: Vocab::None,
        ..Shape::TINY
    };
    let file = shape.file().bytes();
    let expected = load(&file, &Source::new(&file, Manner::SlicesOf(0)), 0).unwrap();
    let staging = plan(&file).staging_bytes;
    assert!(staging <= 1 << 20);
    let source = Source::new(&file, Manner::Reads);
    assert_eq!(load(&file, &source, staging), Ok(expected));
    assert!(source.reads.into_inner() > shape.file().tensors.len());
    let source = Source::new(&file, Manner::Reads);
    assert_eq!(
        load(&file, &source, staging - 1),
        Err(ModelError::Memory(MemoryError::TooSmall {
            missing_bytes: 1
        }))
    );
    // A slice of another length than requested counts as none.
    for more in [-1, 1, 4096] {
        let source = Source::new(&file, Manner::SlicesOf(more));
        assert_eq!(load(&file, &source, staging), Ok(expected));
        assert!(source.reads.into_inner() > 0);
    }
}

#[test]
fn a_read_that_fails_names_its_tensor() {
    let mut file = Shape::TINY.file();
    file.add_vector("rope_freqs.weight", &[1.0; 4]);
    let file = file.bytes();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let staging = plan(&file).staging_bytes;
    let whole = Source::new(&file, Manner::Reads);
    load(&file, &whole, staging).unwrap();
    for first in 0..whole.reads.into_inner() {
        let source = Source::new(&file, Manner::FailsAt(first));
        let error = load(&file, &source, staging).unwrap_err();
        let ModelError::Source { name, error } = error else {
            panic!("read {first}: {error}");
        };
        let SourceError::Io { offset, code: 5 } = error else {
            panic!("read {first}: {error}");
        };
        let mut tensors = gguf.tensors();
        let inside = |at: u64, len: u64| (at..at + len).contains(&offset);
        let tensor = tensors.find(|t| inside(t.offset, t.len_bytes)).unwrap();
        assert_eq!(name.as_str(), tensor.name);
        assert_eq!(
            ModelError::Source { name, error }.to_string(),
            format!("tensor {name}: reading byte {offset} failed (error 5)")
        );
    }
}

/// Random bytes after a sound start: nothing but the parser's limits protects what follows.
#[test]
fn several_wrong_bytes_at_once_are_survived() {
    let file = Shape::TINY.file().bytes();
    let header_len = u32::try_from(header_len(&file)).unwrap();
    run_all(&file, 40_000, |file, number| {
        let mut random = Random(number as u64);
        for _ in 0..2 + random.below(3) {
            let at = random.below(header_len) as usize;
            file[at] = random.next().to_le_bytes()[0];
        }
    });
}
/// Shapes that pad worst, so large that constant sizes do not hide the padding.
#[test]
fn plans_of_thin_models_are_bounded() {
    let thin = Shape {
        n_embd: 2,
        n_head: 1,
        n_head_kv: 1,
        head_dim_k: 2,
        head_dim_v: 1,
        n_ff: 1,
        n_vocab: 1,
        vocab: Vocab::None,
        tied: false,
        ..Shape::TINY
    };
    let shapes = [
        Shape {
            n_embd: 1 << 17,
            ..thin
        },
        Shape {
            n_ff: 1 << 17,
            ..thin
        },
        Shape {
            n_vocab: 1 << 17,
            ..thin
        },
        Shape {
            n_head: 1 << 10,
            head_dim_k: 64,
            ..thin
        },
        Shape {
            n_layer: 300,
            ..thin
        },
    ];
    for shape in shapes {
        let file = shape.file().bytes();
        let gguf = Gguf::parse(&file, file.len() as u64).expect("sound");
        let config = ModelConfig::from_gguf(&gguf).expect("sound");
        check_plans(&gguf, &config, &file).expect("sound");
    }
}

//! Whole runs: the adapter's bytes do not depend on threads, kernels, micro-batches, memory or interruptions, and a run learns
//! its rows.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sha2::{Digest as _, Sha256};
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::team::StopFlag;
use sluice_train::config::{ConfigError, SftConfig};
use sluice_train::{TrainError, train};
use std::fs;
use std::path::{Path, PathBuf};

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../models/tale-5.8m-Q4_K_M.gguf"
);
/// The adapter of [`config`] with six steps, on every CPU.
const ADAPTER: &str = "300b33597534c4d85539b2e2fecc24931aa6c544e6ee73c647d2089eff48afc7";

/// A folder for a test's files.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sluice-sft-{}-{name}", std::process::id()));
        let _gone = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let rows = [
            (
                "A boy had a red ball. He",
                " lost it in the park. His friend found it.",
            ),
            ("The old cat", " slept all day."),
            (
                "Lily saw a bird. The bird",
                " sang a song for her, and she was happy.",
            ),
            ("Tom", " ate a big cake."),
            (
                "One day a dog",
                " ran after a frog. The frog jumped into the water.",
            ),
            ("It was cold. Mom", " gave Ben a warm hat."),
        ];
        let rows = rows.map(|(prompt, completion)| {
            serde_json::json!({"prompt": prompt, "completion": completion}).to_string()
        });
        fs::write(path.join("rows.jsonl"), rows.join("\n")).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

/// Six steps over six rows, four at a time.
fn config(folder: &Folder, out: &str, more: &[&str]) -> Result<SftConfig, ConfigError> {
    let out = folder.0.join(out);
    let mut flags = vec![
        format!("--model={MODEL}"),
        format!("--dataset={}", folder.0.join("rows.jsonl").display()),
        format!("--output_dir={}", out.display()),
    ];
    let own = [
        "--per_device_train_batch_size=2",
        "--gradient_accumulation_steps=2",
        "--max_steps=6",
        "--lora_r=4",
        "--learning_rate=1e-3",
        "--threads=2",
        "--save_strategy=no",
    ];
    // The last of equal flags counts.
    let is_replaced = |flag: &str| {
        let name = flag.split('=').next().unwrap();
        more.iter()
            .any(|other| other.split('=').next() == Some(name))
    };
    flags.extend(
        own.into_iter()
            .filter(|flag| !is_replaced(flag))
            .map(str::to_owned),
    );
    flags.extend(more.iter().map(ToString::to_string));
    SftConfig::load(None, &flags)
}

fn hash(folder: &Path) -> String {
    let bytes = fs::read(folder.join("adapter_model.safetensors")).unwrap();
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
fn the_adapter_is_the_same_file_whatever_computes_it() {
    let folder = Folder::new("same");
    let trained = |name: &str, more: &[&str]| {
        let out = train(&config(&folder, name, more).unwrap(), &StopFlag::new()).unwrap();
        hash(&out)
    };
    let first = trained("first", &[]);
    assert_eq!(first, ADAPTER);
    let ways: [(&str, &[&str]); 7] = [
        ("one thread", &["--threads=1"]),
        ("three threads", &["--threads=3"]),
        (
            "1 x 4",
            &[
                "--per_device_train_batch_size=1",
                "--gradient_accumulation_steps=4",
            ],
        ),
        (
            "4 x 1",
            &[
                "--per_device_train_batch_size=4",
                "--gradient_accumulation_steps=1",
            ],
        ),
        ("packed", &["--packing=true"]),
        ("kept", &["--gradient_checkpointing=false"]),
        ("computed twice", &["--gradient_checkpointing=true"]),
    ];
    for (name, more) in ways {
        assert_eq!(trained(name, more), first, "{name}");
    }
    for table in KernelTable::available(CpuFeatures::detect()) {
        let isa = format!("--isa={}", table.name());
        assert_eq!(trained(table.name(), &[&isa]), first, "{}", table.name());
    }
}

#[test]
fn a_run_that_is_stopped_after_every_step_ends_with_the_same_file() {
    let folder = Folder::new("stopped");
    let whole = train(
        &config(&folder, "whole", &["--max_steps=20"]).unwrap(),
        &StopFlag::new(),
    )
    .unwrap();
    let resumed = config(
        &folder,
        "parts",
        &["--max_steps=20", "--resume_from_checkpoint=auto"],
    )
    .unwrap();
    let stop = StopFlag::new();
    stop.stop();
    for step in 1..20 {
        let ended = train(&resumed, &stop);
        let Err(TrainError::Interrupted { checkpoint }) = ended else {
            panic!("step {step}: {ended:?}");
        };
        assert!(
            checkpoint.ends_with(format!("checkpoint-{step}")),
            "{}",
            checkpoint.display()
        );
    }
    let parts = train(&resumed, &stop).unwrap();
    assert_eq!(hash(&parts), hash(&whole));
    let logged = [&parts, &whole].map(|folder| losses(folder));
    assert_eq!(logged[0].len(), 2);
    for (found, expected) in logged[0].iter().zip(&logged[1]) {
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }
}

/// The losses in a run's log.
fn losses(folder: &Path) -> Vec<f64> {
    let log = fs::read_to_string(folder.join("log.jsonl")).unwrap();
    let loss =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["loss"].as_f64();
    log.lines().filter_map(loss).collect()
}

#[test]
fn a_few_rows_are_learned() {
    let folder = Folder::new("learned");
    let more = [
        "--max_steps=300",
        "--learning_rate=3e-3",
        "--lora_r=8",
        "--logging_steps=10",
    ];
    let out = train(
        &config(&folder, "adapter", &more).unwrap(),
        &StopFlag::new(),
    )
    .unwrap();
    let last = losses(&out).pop().unwrap();
    assert!(last < 0.01, "{last}");
}

#[test]
fn what_cannot_be_trained_is_refused_by_name() {
    let folder = Folder::new("refused");
    let message = |more: &[&str]| match config(&folder, "refused", more) {
        Ok(config) => train(&config, &StopFlag::new()).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    let cases = [
        (
            &["--lora_dropout=0.1"][..],
            "lora_dropout above 0 comes with a later version",
        ),
        (&["--target_modules=q_proj,qq_proj"], "names qq_proj"),
        (
            &["--layers_to_transform=[7]"],
            "layer 7, and the model has 6",
        ),
        (&["--isa=neon"], "neon"),
    ];
    for (more, expected) in cases {
        let found = message(more);
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn models_without_a_backward_pass_are_refused_before_rows_are_read() {
    let folder = Folder::new("families");
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");
    for (model, part) in [
        ("lfm2", "a short convolution"),
        ("olmoe", "experts"),
        ("qwen3next", "a delta net"),
        ("deepseek2", "latent attention"),
        ("cohere2", "attention in parallel with its network"),
    ] {
        let flags = [
            format!("--model={models}/{model}.gguf"),
            "--dataset=no-such-rows.jsonl".to_owned(),
            format!("--output_dir={}", folder.0.join(model).display()),
        ];
        let config = SftConfig::load(None, &flags).unwrap();
        let error = train(&config, &StopFlag::new()).unwrap_err().to_string();
        assert!(error.contains(part), "{model}: {error}");
        assert!(!folder.0.join(model).exists(), "{model}");
    }
}

#[test]
fn nothing_is_evaluated_without_rows_for_it() {
    let folder = Folder::new("evaluated");
    let evals = |name: &str, more: &[&str]| {
        let out = train(&config(&folder, name, more).unwrap(), &StopFlag::new()).unwrap();
        let log = fs::read_to_string(out.join("log.jsonl")).unwrap();
        log.matches("eval_loss").count()
    };
    assert_eq!(evals("no rows", &["--eval_on_start=true"]), 0);
    let rows = format!("--eval_dataset={}", folder.0.join("other.jsonl").display());
    fs::write(folder.0.join("other.jsonl"), "{\"text\": \"A bird sang.\"}").unwrap();
    assert_eq!(
        evals(
            "never",
            &[&rows, "--eval_strategy=no", "--eval_on_start=true"]
        ),
        0
    );
    let asked = [
        &rows,
        "--eval_strategy=steps",
        "--eval_steps=2",
        "--eval_on_start=true",
    ];
    let best = [&asked[..], &["--load_best_model_at_end=true"]].concat();
    assert_eq!(evals("asked", &best), 4);
    let out = folder.0.join("asked");
    let state = fs::read_to_string(out.join("checkpoint-6/trainer_state.json"));
    let best: serde_json::Value = serde_json::from_str(&state.unwrap()).unwrap();
    let best = best["best_model_checkpoint"].as_str().unwrap();
    assert_eq!(hash(&out), hash(&out.join(best)));
}

use super::keys::all;
use super::refused::{REFUSED, WITHOUT_EFFECT};
use super::turned::TURNED;
use super::{Amount, InitialWeights, Schedule, SftConfig, TargetModules, When};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// A configuration of a file's text and flags.
fn load(name: &str, text: &str, flags: &[&str]) -> Result<SftConfig, String> {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default().replace(':', "_");
    let folder = std::env::temp_dir().join(format!("sluice-train-{test}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path: PathBuf = folder.join(name);
    fs::write(&path, text).unwrap();
    let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let config = SftConfig::load(Some(&path), &flags);
    fs::remove_dir_all(&folder).unwrap();
    let shown = format!("{}", path.display());
    config.map_err(|error| error.to_string().replace(&shown, name))
}

fn yaml(text: &str) -> Result<SftConfig, String> {
    load("run.yaml", &format!("model: m.gguf\n{text}"), &[])
}

fn flags(flags: &[&str]) -> Result<SftConfig, String> {
    load("run.yaml", "model: m.gguf\n", flags)
}

fn refusal(text: &str) -> String {
    yaml(text).expect_err("it is refused")
}

#[test]
fn defaults_are_those_of_the_table() {
    let config = yaml("").expect("a model is enough");
    assert_eq!(config.lora.r, 16);
    assert_eq!(config.lora.target_modules, TargetModules::AllLinear);
    assert_eq!(config.optimizer.learning_rate.to_bits(), 2e-4_f64.to_bits());
    assert_eq!(config.optimizer.schedule, Schedule::Linear);
    assert_eq!(config.optimizer.max_steps, None);
    assert_eq!(config.eval.when, When::PerEpoch(1));
    assert_eq!(config.checkpoints.when, When::Steps(Amount::Count(500)));
    assert!(config.data.completion_only && config.data.assistant_only);
    assert_eq!(config.engine.threads, None);
    assert_eq!(config.changed.len(), 1, "{:?}", config.changed);
}

#[test]
fn a_model_is_required() {
    let error = load("run.yaml", "lora_r: 8\n", &[]).expect_err("no model");
    assert!(error.starts_with("model is not set"), "{error}");
}

#[test]
fn names_of_axolotl_llama_factory_and_avxllm_are_understood() {
    let axolotl = "sequence_len: 512\nmicro_batch_size: 2\nnum_epochs: 3\nlr_scheduler: cosine\nadapter: lora\n\
        lora_target_linear: true\nval_set_size: 0.1\nevals_per_epoch: 2\nsaves_per_epoch: 1\nsample_packing: true\n\
        bf16: auto\nflash_attention: true\nload_in_8bit: false\noptimizer: adamw_torch\nwandb_project:\n\
        datasets:\n  - path: a.jsonl\n    type: alpaca\n  - path: b.jsonl\n    weight: 0.5\n";
    let config = yaml(axolotl).expect("axolotl's names");
    assert_eq!(config.data.max_length, 512);
    assert_eq!(config.optimizer.batch_size, 2);
    assert_eq!(config.eval.when, When::PerEpoch(2));
    assert_eq!(config.checkpoints.when, When::PerEpoch(1));
    assert_eq!(config.data.val_size, Amount::Share(0.1));
    assert_eq!(config.data.files[0].dataset_type, "alpaca");
    assert_eq!(config.data.files[1].weight.to_bits(), 0.5_f64.to_bits());
    let silent: Vec<_> = config
        .without_effect
        .iter()
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(silent, ["bf16", "flash_attention"]);

    let factory = "stage: sft\nfinetuning_type: lora\nlora_rank: 4\nlora_target: q_proj,v_proj\ncutoff_len: 64\n\
        train_on_prompt: true\n";
    let config = yaml(factory).expect("LLaMA-Factory's names");
    assert_eq!(config.lora.r, 4);
    let names = ["q_proj", "v_proj"].map(str::to_owned).to_vec();
    assert_eq!(config.lora.target_modules, TargetModules::Names(names));
    assert!(!config.data.completion_only && !config.data.assistant_only);

    let ours = r#"{"base_model": "m.gguf", "adapter_name": "quick", "output_dir": "adapters",
        "dataset": {"path": "d.jsonl", "field": "text", "shuffle": false}, "epochs": 2, "batch_size": 1,
        "optimizer": {"lr": 5e-5, "weight_decay": 0.0, "warmup_steps": 3}, "model_dtype": "float32",
        "lora": {"r": 8, "alpha": 16, "dropout": 0.05, "target_modules": ["q_proj"]}}"#;
    let config = load("run.json", ours, &["--lora-dropout", "0", "--no-shuffle"]);
    let config = config.expect("avxLLM's names");
    assert_eq!(config.model.output_dir, PathBuf::from("adapters/quick"));
    assert!(!config.data.shuffle);
    assert_eq!(config.lora.dropout.to_bits(), 0, "an explicit zero counts");
    assert_eq!(config.optimizer.warmup(100), 3);
}

#[test]
fn flags_override_the_file() {
    let config = load(
        "run.yaml",
        "model: a.gguf\nlr: 1e-3\nlora_r: 4\n",
        &[
            "--learning_rate=5e-5",
            "--lora.r",
            "2",
            "--packing",
            "--prompt",
            "a, b",
            "--prompt",
            "c",
        ],
    );
    let config = config.expect("flags");
    assert_eq!(config.optimizer.learning_rate.to_bits(), 5e-5_f64.to_bits());
    assert_eq!(config.lora.r, 2);
    assert!(config.data.packing);
    assert_eq!(config.data.prompts, ["a, b", "c"]);
    let config = flags(&[
        "--max-steps",
        "0",
        "--max_grad_norm",
        "0",
        "--export",
        "gguf,infq",
    ]);
    let config = config.expect("zeros");
    assert_eq!(config.optimizer.total_steps(100), 0);
    assert_eq!(config.optimizer.max_grad_norm, None);
    assert_eq!(config.model.export, ["gguf", "infq"]);
    let error = flags(&["--lora_r", "0"]).expect_err("out of range");
    assert!(
        error.starts_with("--lora-r: expected a whole number"),
        "{error}"
    );
    let error = flags(&["lora_r", "8"]).expect_err("not a flag");
    assert_eq!(error, "lora_r: expected --key value");
}

#[test]
fn an_unknown_key_names_the_nearest() {
    assert_eq!(
        refusal("learning_rat: 1\n"),
        "run.yaml, line 2: unknown key learning_rat: did you mean learning_rate?"
    );
    assert_eq!(refusal("zzz: 1\n"), "run.yaml, line 2: unknown key zzz");
    let error = flags(&["--lora-rnk", "8"]).expect_err("unknown");
    assert_eq!(error, "unknown key --lora-rnk: did you mean lora_rank?");
}

#[test]
fn wrong_types_and_ranges_name_the_key() {
    for (text, expected) in [
        (
            "lora_r: many\n",
            "lora_r: expected a whole number from 1 to 4096, found \"many\"",
        ),
        ("lora_r: 0\n", "lora_r: expected a whole number"),
        ("lora_rank: 1.5\n", "lora_rank: expected a whole number"),
        (
            "lora_dropout: 1\n",
            "lora_dropout: expected a number from 0, below 1, found 1",
        ),
        (
            "packing: yes\n",
            "packing: expected true or false, found \"yes\"",
        ),
        (
            "learning_rate: -1\n",
            "learning_rate: expected a number from 0, found -1",
        ),
        (
            "forward: f16\n",
            "forward: expected int8, f32, found \"f16\"",
        ),
        (
            "eval_steps: 0\n",
            "eval_steps: expected a number of steps above 0",
        ),
        ("dataset: [{path: a, colour: red}]\n", "not `colour`"),
        ("dataset: [{type: alpaca}]\n", "a mapping with `path`"),
        (
            "target_modules: '(q'\n",
            "target_modules: expected a regular expression",
        ),
        ("rank_pattern: {down_proj: 0}\n", "rank_pattern: expected"),
        (
            "adapter_name: a/b\n",
            "adapter_name: expected the name of a folder",
        ),
        (
            "train_on_inputs: true\nassistant_only_loss: true\n",
            "are both true",
        ),
        ("eval_steps: 5\nevals_per_epoch: 1\n", "use one of them"),
        (
            "val_size: 5\neval_dataset: e.jsonl\n",
            "val_size and eval_dataset are both set",
        ),
        (
            "lr: 1\nlearning_rate: 2\n",
            "learning_rate and lr are two names",
        ),
        ("adapter: qlora\n", "adapter: expected lora"),
        ("stage: dpo\n", "stage: expected sft"),
        (
            "lr_scheduler_kwargs: {min_lr: 1}\n",
            "no parameters for linear, not min_lr",
        ),
    ] {
        let error = refusal(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn what_is_known_but_not_supported_says_why() {
    for (text, expected) in [
        (
            "use_dora: true\n",
            "use_dora is not supported: adapters with magnitudes",
        ),
        ("bias: all\n", "bias is not supported"),
        (
            "modules_to_save: [lm_head]\n",
            "modules_to_save is not supported",
        ),
        (
            "load_in_4bit: true\n",
            "load_in_4bit is not supported: the base weights keep",
        ),
        (
            "optim: adamw_8bit\n",
            "optim: adamw_8bit is not supported: moments are kept in f32",
        ),
        (
            "optimizer: lion\n",
            "optimizer: lion is not supported: adamw_torch is the only",
        ),
        (
            "init_lora_weights: pissa_niter_4\n",
            "pissa_niter_4 is not supported: it changes the base",
        ),
        (
            "init_lora_weights: loftq\n",
            "init_lora_weights: loftq is not supported",
        ),
        (
            "report_to: [wandb]\n",
            "report_to: wandb is not supported: use a callback",
        ),
        (
            "lr_scheduler_type: polynomial\n",
            "lr_scheduler_type: polynomial is not supported",
        ),
        ("packing_strategy: wrapped\n", "it would cut rows"),
        ("beta: 0.1\n", "dpo comes with a later version"),
    ] {
        let error = refusal(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    let off = "use_dora: false\nbias: none\nmodules_to_save: []\nload_in_4bit: false\ndeepspeed:\n";
    yaml(off).expect("what is off is not asked for");
}

#[test]
fn schedules_have_their_parameters() {
    let text = "lr_scheduler_type: cosine_with_min_lr\nlearning_rate: 1e-3\nlr_scheduler_kwargs: {min_lr: 1e-4}\n";
    let config = yaml(text).expect("a floor");
    let Schedule::Cosine { min_lr_rate, .. } = config.optimizer.schedule else {
        panic!("{:?}", config.optimizer.schedule);
    };
    assert!((min_lr_rate - 0.1).abs() < 1e-12);
    let config = yaml("cosine_min_lr_ratio: 0.2\n").expect("axolotl's");
    let expected = Schedule::Cosine {
        num_cycles: 0.5,
        min_lr_rate: 0.2,
    };
    assert_eq!(config.optimizer.schedule, expected);
    let error = refusal("lr_scheduler_type: wsd\n");
    assert!(error.contains("num_decay_steps"), "{error}");
    let text =
        "lr_scheduler_type: wsd\nlr_scheduler_kwargs: {num_decay_steps: 5, decay_type: 1-sqrt}\n";
    yaml(text).expect("warm-up, stable, decay");
}

#[test]
fn steps_do_not_depend_on_micro_batches() {
    for (batch, accumulation) in [(1, 8), (2, 4), (8, 1)] {
        let text = format!(
            "batch_size: {batch}\ngradient_accumulation_steps: {accumulation}\nepochs: 1.5\nwarmup_ratio: 0.1\n"
        );
        let optimizer = yaml(&text).expect("a configuration").optimizer;
        assert_eq!(optimizer.steps_per_epoch(33), 5);
        assert_eq!(optimizer.total_steps(33), 8);
        assert_eq!(optimizer.warmup(8), 1);
    }
}

#[test]
fn target_modules_are_names_or_a_pattern() {
    let of = |text: &str| {
        yaml(&format!("target_modules: {text}\n"))
            .expect("targets")
            .lora
    };
    let pattern = TargetModules::Pattern(r".*\.(q|v)_proj".to_owned());
    assert_eq!(of(r"'.*\.(q|v)_proj'").target_modules, pattern);
    assert_eq!(of("all").target_modules, TargetModules::AllLinear);
    let names = TargetModules::Names(vec!["q_proj".to_owned()]);
    assert_eq!(of("[q_proj]").target_modules, names);
    assert_eq!(of("q_proj").target_modules, names);
    let config = yaml("init_lora_weights: gaussian\nlayers_to_transform: [0, 2]\n");
    let lora = config.expect("a choice").lora;
    assert_eq!(lora.init, InitialWeights::Gaussian);
    assert_eq!(lora.layers, Some(vec![0, 2]));
    let lora = yaml("init_lora_weights: true\n")
        .expect("PEFT's default")
        .lora;
    assert_eq!(lora.init, InitialWeights::Uniform);
}

/// A name means one thing: a key, another name of one, or a name that is refused or has no effect.
#[test]
fn no_name_is_in_two_tables() {
    let keys = all().flat_map(|key| [key.name].into_iter().chain(key.others.iter().copied()));
    let turned = TURNED.iter().map(|turn| turn.name);
    let rest = REFUSED.iter().chain(WITHOUT_EFFECT).map(|(name, _)| *name);
    let mut seen = BTreeSet::new();
    for name in keys.chain(turned).chain(rest) {
        assert!(seen.insert(name), "{name} is in two tables");
    }
}

/// A key that nothing reads would be accepted and dropped.
#[test]
fn every_key_is_read() {
    let sources = [
        include_str!("adapter.rs"),
        include_str!("input.rs"),
        include_str!("output.rs"),
        include_str!("steps.rs"),
        include_str!("files.rs"),
        include_str!("schedule.rs"),
    ];
    for key in all() {
        let quoted = format!("\"{}\"", key.name);
        let is_read = sources.iter().any(|text| text.contains(&quoted));
        let has_one_value = ["truncation_mode", "packing_strategy"].contains(&key.name);
        assert!(is_read || has_one_value, "{} is not read", key.name);
    }
}

#[test]
fn defaults_are_values_of_their_keys() {
    for key in all() {
        let text = match key.default {
            "null" => continue,
            default => format!("model: m.gguf\n{}: {default}\n", key.name),
        };
        let config = load("run.yaml", &text, &[]).expect("a default");
        assert_eq!(
            config.changed.len(),
            1,
            "{}: {:?}",
            key.name,
            config.changed
        );
    }
}

/// `docs/train.md` has the tables of this crate, between two comments.
#[test]
fn the_page_has_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/train.md");
    let page = fs::read_to_string(path).expect("the page");
    let tables = super::keys_table() + &super::other_names_table();
    let inside = page.split("<!-- keys -->\n\n").nth(1);
    let inside = inside.and_then(|rest| rest.split("<!-- end of keys -->").next());
    assert!(
        inside == Some(&*tables),
        "if this is intended, put it into docs/train.md:\n{tables}"
    );
}

/// The examples of three tools are one run, and avxLLM's quick start is read.
#[test]
fn the_examples_are_read() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/train"));
    let load = |name: &str| SftConfig::load(Some(&folder.join(name)), &[]).expect(name);
    let ours = load("sft.yaml");
    let shown = |config: &SftConfig| {
        let values = config.all.iter().filter(|(key, _)| *key != "dataset");
        format!("{:?}", values.collect::<Vec<_>>())
    };
    for name in ["axolotl.yaml", "llama_factory.yaml"] {
        assert_eq!(shown(&load(name)), shown(&ours), "{name}");
    }
    let quick = load("quickstart.json");
    assert_eq!(
        quick.model.output_dir,
        PathBuf::from("adapters/quickstart-trained")
    );
    assert_eq!(quick.data.files[0].text_field.as_deref(), Some("text"));
    assert_eq!(quick.optimizer.learning_rate.to_bits(), 5e-5_f64.to_bits());
    assert_eq!((quick.lora.r, quick.data.max_length), (8, 256));
}

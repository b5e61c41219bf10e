use super::files::{ADAPTER, OPTIMIZER, STATE};
use super::state::StateFile;
use super::test_run::{AWKWARD, BASE, Folder, Run, identity};
use super::{BestResult, CheckpointError, Cursor, RunFolder};
use crate::config::CONFIG_KEYS;
use crate::optimizer::AdamW;
use core::time::Duration;
use serde_json::{Value, json};
use sluice_core::state::Identity;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

#[test]
fn a_checkpoint_is_read_as_it_was_written() {
    let folder = Folder::new("whole");
    let run_folder = RunFolder::open(&folder.0).unwrap();
    let mut run = Run::new(3);
    (0..5).for_each(|_| run.step());
    run.state.cursor = Cursor { epoch: 2, index: 7 };
    run.state.n_tokens = 12345;
    run.state.n_worse = 2;
    run.state.best = Some(BestResult {
        metric: AWKWARD,
        step: 3,
        checkpoint: Some("checkpoint-3".to_owned()),
    });
    run.state.window.add(7.7, 3, 2);
    let path = run.save(&run_folder).unwrap();
    assert_eq!(folder.names(), [".sluice-train.lock", "checkpoint-5"]);
    let mut again = Run::new(3);
    let resumed = run_folder.resume("auto", &run.identity, &mut again.optimizer);
    let resumed = resumed.unwrap().unwrap();
    assert_eq!(
        (resumed.state, resumed.damaged.len()),
        (run.state.clone(), 0)
    );
    assert_eq!(again.optimizer.step(), 5);
    let bits = |optimizer: &AdamW| {
        optimizer
            .moments()
            .clone()
            .map(|all| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    };
    assert_eq!(bits(&again.optimizer), bits(&run.optimizer));
    let adapter = sluice_hf::adapter::read(&path, Some(Path::new(BASE)), None).unwrap();
    assert_eq!(adapter.factors, run.adapter.factors);
    // By its path as well, and after the same step was saved once more.
    run.save(&run_folder).unwrap();
    let by_path = run_folder.resume(path.to_str().unwrap(), &run.identity, &mut again.optimizer);
    assert_eq!(by_path.unwrap().unwrap().state, run.state);
    assert_eq!(folder.names(), [".sluice-train.lock", "checkpoint-5"]);
}

#[test]
fn a_state_has_the_keys_of_transformers() {
    let run = Run::new(1);
    let file = StateFile {
        state: run.state,
        identity: run.identity,
        hashes: [Identity([0; 32]); 3],
    };
    let text: Value = serde_json::from_str(&file.text()).unwrap();
    let keys: Vec<_> = text
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    // Fields of `transformers.TrainerState`, which accepts no others.
    let known = [
        "best_global_step",
        "best_metric",
        "best_model_checkpoint",
        "epoch",
        "global_step",
        "is_hyper_param_search",
        "is_local_process_zero",
        "is_world_process_zero",
        "log_history",
        "max_steps",
        "num_input_tokens_seen",
        "stateful_callbacks",
    ];
    assert_eq!(keys, known);
    assert_eq!(text["stateful_callbacks"]["sluice"]["seed"], json!(42));
}

#[test]
fn auto_takes_the_last_checkpoint_that_is_whole() {
    let folder = Folder::new("auto");
    let run_folder = RunFolder::open(&folder.0).unwrap();
    let mut run = Run::new(2);
    let none = run_folder.resume("auto", &run.identity, &mut run.optimizer.clone());
    assert!(none.unwrap().is_none());
    let mut saved = Vec::new();
    for _ in 0..10 {
        run.step();
        saved.push(run.save(&run_folder).unwrap());
    }
    let cut = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
    };
    cut(saved[9].join(OPTIMIZER));
    cut(saved[8].join(STATE));
    fs::remove_file(saved[7].join(STATE)).unwrap();
    fs::remove_file(saved[6].join(ADAPTER)).unwrap();
    let mut bytes = fs::read(saved[5].join(ADAPTER)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(saved[5].join(ADAPTER), bytes).unwrap();
    let resume = |which: &str| run_folder.resume(which, &run.identity, &mut run.optimizer.clone());
    let resumed = resume("auto").unwrap().unwrap();
    assert_eq!((resumed.state.global_step, &resumed.path), (5, &saved[4]));
    let named = [OPTIMIZER, STATE, STATE, ADAPTER, ADAPTER];
    assert_eq!(resumed.damaged.len(), named.len());
    for (error, name) in resumed.damaged.iter().zip(named) {
        assert!(error.to_string().contains(name), "{error}");
    }
    for (path, name) in saved[5..].iter().rev().zip(named) {
        let error = resume(path.to_str().unwrap()).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
    saved[..5]
        .iter()
        .for_each(|path| fs::remove_dir_all(path).unwrap());
    let error = resume("auto").unwrap_err();
    assert!(error.to_string().contains("checkpoint-10"), "{error}");
    let error = resume("no/such").unwrap_err();
    assert!(error.to_string().contains("no/such"), "{error}");
}

#[test]
fn another_run_is_refused_with_both_values() {
    let folder = Folder::new("other");
    let run_folder = RunFolder::open(&folder.0).unwrap();
    let mut run = Run::new(1);
    let batch = |n: u64, steps: u64| {
        [
            ("per_device_train_batch_size", json!(n)),
            ("gradient_accumulation_steps", json!(steps)),
        ]
    };
    run.identity = identity(&batch(1, 8), 1, 2);
    run.step();
    run.save(&run_folder).unwrap();
    let resume = |identity| run_folder.resume("auto", &identity, &mut run.optimizer.clone());
    let with = |more: &[(&'static str, Value)]| [&batch(1, 8)[..], more].concat();
    for same in [
        batch(2, 4).to_vec(),
        with(&[("save_steps", json!(3)), ("model", json!("elsewhere.gguf"))]),
        with(&[("threads", json!(2)), ("logging_steps", json!(1))]),
    ] {
        assert!(resume(identity(&same, 1, 2)).unwrap().is_some(), "{same:?}");
    }
    let differ = [
        (
            with(&[("learning_rate", json!(0.5))]),
            1,
            2,
            ["learning_rate 0.633", "0.5:"],
        ),
        (with(&[("seed", json!(7))]), 1, 2, ["seed 42", "7:"]),
        (
            with(&[("lora_r", json!(7))]),
            1,
            2,
            ["lora_r no value", "7:"],
        ),
        (
            batch(2, 8).to_vec(),
            1,
            2,
            ["gradient_accumulation_steps 8", "16:"],
        ),
        (
            batch(1, 8).to_vec(),
            9,
            2,
            ["a model of SHA-256 0101", "0909"],
        ),
        (batch(1, 8).to_vec(), 1, 9, ["rows of SHA-256 0202", "0909"]),
    ];
    for (settings, model, data, named) in differ {
        let error = resume(identity(&settings, model, data)).unwrap_err();
        assert!(
            matches!(error, CheckpointError::Different { .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(named.iter().all(|named| text.contains(named)), "{text}");
    }
}

#[test]
fn settings_that_may_differ_are_settings() {
    let known: Vec<_> = CONFIG_KEYS
        .iter()
        .flat_map(|(_, keys)| keys.iter())
        .map(|key| key.name)
        .collect();
    for key in super::identity::FREE
        .iter()
        .chain(&super::identity::PER_STEP)
    {
        assert!(known.contains(key), "{key}");
    }
}

#[test]
fn the_last_checkpoints_and_the_best_are_kept() {
    let folder = Folder::new("prune");
    let run_folder = RunFolder::open(&folder.0).unwrap();
    for name in [
        "checkpoint-9",
        "checkpoint-10",
        "checkpoint-2",
        "checkpoint-100",
        "checkpoint-07",
        "checkpoint-",
        "other",
    ] {
        fs::create_dir(folder.0.join(name)).unwrap();
    }
    let removed = run_folder.prune(2, Some("checkpoint-2")).unwrap();
    assert_eq!(removed, [folder.0.join("checkpoint-9")]);
    let kept = [
        ".sluice-train.lock",
        "checkpoint-",
        "checkpoint-07",
        "checkpoint-10",
        "checkpoint-100",
        "checkpoint-2",
        "other",
    ];
    assert_eq!(folder.names(), kept);
    assert!(run_folder.prune(3, None).unwrap().is_empty());
    let steps: Vec<_> = run_folder
        .checkpoints()
        .unwrap()
        .into_iter()
        .map(|(step, _)| step)
        .collect();
    assert_eq!(steps, [2, 10, 100]);
}

#[test]
fn a_folder_is_for_one_run_at_a_time() {
    let folder = Folder::new("locked");
    let first = RunFolder::open(&folder.0).unwrap();
    let error = RunFolder::open(&folder.0).unwrap_err();
    assert!(matches!(error, CheckpointError::Locked { .. }), "{error}");
    drop(first);
    // What a killed run left unfinished does not stay.
    fs::create_dir_all(folder.0.join(".checkpoint-3.partial/deep")).unwrap();
    let again = RunFolder::open(&folder.0).unwrap();
    assert_eq!(folder.names(), [".sluice-train.lock"]);
    again.begin(false).unwrap();
    let mut run = Run::new(1);
    run.step();
    run.save(&again).unwrap();
    let error = again.begin(false).unwrap_err();
    assert!(error.to_string().contains("checkpoint-1 "), "{error}");
    again.begin(true).unwrap();
    assert_eq!(folder.names(), [".sluice-train.lock"]);
    fs::write(folder.0.join("adapter_config.json"), "{}").unwrap();
    assert!(matches!(
        again.begin(false),
        Err(CheckpointError::Used { .. })
    ));
    again.begin(true).unwrap();
    fs::write(folder.0.join("file"), "").unwrap();
    let error = RunFolder::open(&folder.0.join("file")).unwrap_err();
    assert!(matches!(error, CheckpointError::Folder { .. }), "{error}");
}

/// In a process whose files may have 64 KB.
#[test]
fn a_full_disk_leaves_the_last_checkpoint_as_it_is() {
    if std::env::var_os("SLUICE_SMALL_FILES").is_none() {
        let child = Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -f 128; exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "checkpoint::tests::a_full_disk_leaves_the_last_checkpoint_as_it_is",
            ])
            .env("SLUICE_SMALL_FILES", "1")
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && shown.contains("1 passed"),
            "{child:?}"
        );
        return;
    }
    let folder = Folder::new("full");
    let run_folder = RunFolder::open(&folder.0).unwrap();
    let mut small = Run::new(2);
    small.step();
    small.save(&run_folder).unwrap();
    // An adapter of more than 64 KB, then one whose moments alone are.
    for (rank, named) in [(40, "adapter"), (20, OPTIMIZER)] {
        let mut large = Run::new(rank);
        large.step();
        large.step();
        let error = large.save(&run_folder).unwrap_err().to_string();
        assert!(
            error.contains("checkpoint-2") && error.contains("too large"),
            "{error}"
        );
        assert!(rank == 40 || error.contains(named), "{error}");
        assert_eq!(folder.names(), [".sluice-train.lock", "checkpoint-1"]);
    }
    let resumed = run_folder.resume("auto", &small.identity, &mut small.optimizer);
    assert_eq!(resumed.unwrap().unwrap().state.global_step, 1);
}

/// A process writes checkpoints until it is killed.
#[test]
fn a_killed_process_leaves_whole_checkpoints() {
    if let Some(folder) = std::env::var_os("SLUICE_KILLED") {
        let run_folder = RunFolder::open(Path::new(&folder)).unwrap();
        let mut run = Run::new(8);
        let resumed = run_folder.resume("auto", &run.identity, &mut run.optimizer);
        if let Some(resumed) = resumed.unwrap() {
            run.state = resumed.state;
        }
        loop {
            run.step();
            run.save(&run_folder).unwrap();
            run_folder.prune(2, None).unwrap();
            // Once more, in the place of the one before.
            run.save(&run_folder).unwrap();
            eprintln!("saved");
        }
    }
    let folder = Folder::new("killed");
    let mut last = 0;
    for kill in 0..20_u32 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "checkpoint::tests::a_killed_process_leaves_whole_checkpoints",
            ])
            .arg("--nocapture")
            .env("SLUICE_KILLED", &folder.0)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.find(|line| line.as_ref().is_ok_and(|line| line == "saved"));
        assert!(line.is_some());
        let moment = Instant::now();
        while moment.elapsed() < Duration::from_micros(u64::from(kill) * 700) {
            core::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let run_folder = RunFolder::open(&folder.0).unwrap();
        let checkpoints = run_folder.checkpoints().unwrap();
        let names = folder.names();
        assert_eq!(names.len(), checkpoints.len() + 1, "{names:?}");
        let mut run = Run::new(8);
        for (step, path) in &checkpoints {
            let path = path.to_str().unwrap();
            let resumed = run_folder.resume(path, &run.identity, &mut run.optimizer);
            assert_eq!(resumed.unwrap().unwrap().state.global_step, *step);
        }
        let newest = checkpoints.last().unwrap().0;
        assert!(newest > last, "{newest} after {last}");
        last = newest;
    }
}

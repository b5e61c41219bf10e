//! `sluice train`: the dry run, and what is refused.

use crate::support::{Folder, MODEL, fails, run_to};
use std::fs;

fn rows(folder: &Folder) -> String {
    let path = folder.path("rows.csv");
    let rows: String = (0..30)
        .map(|n| format!("Who came on day {n}?, A fox.\n"))
        .collect();
    fs::write(
        &path,
        format!("prompt,completion\n{rows}Who came on day 1?, A fox.\n"),
    )
    .expect("a file");
    path
}

#[test]
fn a_dry_run_prints_the_plan_and_ten_rows() {
    let folder = Folder::new("train");
    let rows = rows(&folder);
    let config = folder.path("run.yaml");
    let text = format!("model: {MODEL}\ndataset: {rows}\nnum_epochs: 2\nval_set_size: 0.1\n");
    fs::write(&config, text).expect("a file");
    let args = [
        "train",
        "sft",
        "--config",
        &config,
        "--lr",
        "1e-3",
        "--dry-run",
    ];
    let ran = run_to(0, &args);
    for part in [
        "31 rows, prompt_completion, recognised by the columns",
        "dropped: 1 duplicates",
        "27 rows,",
        "steps      8 of 8 rows (1 × 8), 4 per epoch of 27 rows",
        "learning_rate: 0.001",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    assert_eq!(
        ran.stdout.matches("?⟦ A fox.").count(),
        10,
        "{}",
        ran.stdout
    );
    assert_eq!(run_to(0, &args).stdout, ran.stdout);
    let other = [&args[..], &["--seed", "7"]].concat();
    assert_ne!(run_to(0, &other).stdout, ran.stdout, "another order");
}

#[test]
fn every_key_is_a_flag_and_errors_name_it() {
    let folder = Folder::new("train-flags");
    let rows = rows(&folder);
    let sft = |more: &[&'static str]| -> Vec<String> {
        let args = ["train", "sft", "-m", MODEL, "--dataset", &rows].map(str::to_owned);
        args.into_iter()
            .chain(more.iter().map(|arg| (*arg).to_owned()))
            .collect()
    };
    for (more, expected) in [
        (
            &["--lora_r", "0"][..],
            "--lora-r: expected a whole number from 1 to 4096, found 0",
        ),
        (
            &["--use-dora"],
            "--use-dora is not supported: adapters with magnitudes",
        ),
        (
            &["--lr", "fast"],
            "--learning-rate: expected a number from 0, found fast",
        ),
        (&["--lora-rnk", "8"], "--lora-rank"),
        (
            &["--adapter", "qlora"],
            "--adapter: expected lora, found qlora",
        ),
    ] {
        let args = sft(more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        fails(2, &args, &[expected]);
    }
    fails(
        2,
        &["train", "sft", "--dataset", &rows],
        &["model is not set"],
    );
    let missing = [
        "train",
        "sft",
        "-m",
        MODEL,
        "--dataset",
        "/none/rows.csv",
        "--dry-run",
    ];
    fails(1, &missing, &["/none/rows.csv: cannot read the rows"]);
    for command in ["dpo", "rl", "pretrain"] {
        let expected = format!("sluice train {command} comes with a later version");
        fails(2, &["train", command, "--beta", "0.1"], &[&expected]);
    }
}

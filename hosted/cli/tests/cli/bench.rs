//! `sluice bench` and the flags of placement.

use crate::convert::Folder;
use crate::interrupt::{interrupt, interruptible};
use crate::lora::write_adapter;
use crate::lora_says::Q;
use crate::support::{Ran, TemporaryFile, fails, fixture, ran, run_to, sluice};
use serde_json::{Value, json as object};
use std::os::unix::process::CommandExt as _;

const SMALL: [&str; 7] = ["bench", "-p", "8", "-n", "4", "-r", "2"];

fn json(args: &[&str]) -> Vec<Value> {
    let all = [&SMALL[..], &["-o", "json"], args].concat();
    let ran = run_to(0, &all);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn names(ran: &Ran) -> Vec<String> {
    let rows = ran.stdout.lines().filter(|line| line.contains(" ± "));
    rows.map(|row| row.split('|').nth(6).expect("a cell").trim().to_owned())
        .collect()
}

#[test]
fn every_combination_is_a_row_in_llama_benchs_order() {
    let ran = run_to(
        0,
        &[
            &SMALL[..],
            &["-d", "0,16", "-pg", "4,2", "-npl", "1,2", "-npos", "1,3"],
        ]
        .concat(),
    );
    let of_depth = |depth: &str| {
        ["pp8", "tg4", "tg4 /3", "tg4 x2", "tg4 x2 /3", "pp4+tg2"].map(|n| format!("{n}{depth}"))
    };
    assert_eq!(names(&ran), [of_depth(""), of_depth(" @ d16")].concat());
    assert!(ran.stdout.contains("\nbuild: "), "{ran:?}");
    assert!(ran.stdout.contains(" GB/s read; int8 "), "{ran:?}");
}

/// Recurrent layers of each kind, and attention with sinks; tests return to a depth although recurrent states cannot
/// be rewound.
#[test]
fn layers_of_every_kind_are_measured_at_every_depth() {
    for model in ["lfm2", "gpt-oss-MXFP4_MOE", "qwen35", "nemotron_h"] {
        let model = fixture(&format!("models/{model}.gguf"));
        let more = ["-m", &model, "-d", "0,8,16,8", "-npl", "1,2"];
        let rows = json(&more);
        let of = |key: &str| -> Vec<u64> {
            let values = rows.iter().map(|row| row[key].as_u64().unwrap_or(0));
            values.filter(|&n| n > 0).collect()
        };
        assert_eq!(of("n_depth"), [8, 8, 8, 16, 16, 16, 8, 8, 8], "{model}");
        assert!(of("avg_ns").len() == 12, "{rows:?}");
    }
}

#[test]
fn rows_say_what_was_run() {
    let rows = json(&[
        "-t", "1-2", "--isa", "scalar", "-ctk", "f16,bf16", "-ctv", "f16",
    ]);
    // Two thread counts, two pairs of KV types, a prompt and a generation.
    assert_eq!(rows.len(), 8, "{rows:?}");
    for row in &rows {
        assert_eq!(row["isa"], "scalar");
        assert_eq!(row["type_v"], "f16");
        assert_eq!(row["samples_ns"].as_array().unwrap().len(), 2);
        let ns = row["avg_ns"].as_f64().unwrap();
        let tokens = row["n_prompt"].as_f64().unwrap() + row["n_gen"].as_f64().unwrap();
        let rate = row["avg_ts"].as_f64().unwrap();
        // Means of rates and of times differ by the spread of two samples, which other processes widen.
        let ratio = rate * ns / 1e9 / tokens;
        assert!((0.99..20.0).contains(&ratio), "{row}");
        assert!(row["probe_gb_per_s"].as_f64().unwrap() > 0.01, "{row}");
        let p50 = row["latency_p50_ns"].as_u64().unwrap();
        assert_eq!(p50 > 0, row["n_gen"] == 4, "{row}");
    }
}

#[test]
fn rows_say_how_weights_were_asked_for() {
    let ways = |args: &[&str]| {
        let rows = json(args);
        let way = |row: &Value| row["prefetch"].as_str().unwrap().to_owned();
        rows.iter().map(way).collect::<Vec<_>>()
    };
    // Of steps of up to eight tokens, which short prompts are, too.
    assert_eq!(
        ways(&["-p", "9", "--prefetch", "far"]),
        ["2 of 2 far", "", "8 of 8 far"]
    );
    assert_eq!(ways(&["--prefetch", "near"]), ["0 of 2 far", "0 of 8 far"]);
    assert_eq!(ways(&["--strict", "-t", "1"]), ["0 of 2 far", "0 of 8 far"]);
    let both = ["--strict", "-t", "1", "--prefetch", "far", "-npos", "1,4"];
    assert_eq!(ways(&both), ["2 of 2 far", "8 of 8 far", "2 of 2 far"]);
    let auto = ways(&["-n", "64", "--prefetch", "auto"]);
    let (far, all) = auto.last().unwrap().split_once(" of ").unwrap();
    assert_eq!(all, "128 far");
    // Two steps of a trial use the other distance, whichever is faster.
    assert!((2..=126).contains(&far.parse::<u32>().unwrap()), "{auto:?}");
}

/// Every other step omits the adapters, and each step with them is compared with its neighbours.
#[test]
fn steps_with_adapters_and_without_take_turns() {
    let folder = Folder::new("in-turn");
    write_adapter(&folder.0, &[(Q.into(), [256, 256])], &object!({}));
    let path = folder.path("");
    let args = [
        "bench", "-p", "0", "-n", "9", "-r", "2", "-o", "json", "--lora", &path,
    ];
    let ran = run_to(0, &[&args[..], &["--in-turn"]].concat());
    let rows: Vec<Value> = serde_json::from_str(&ran.stdout).expect("JSON");
    assert!(rows[0]["bare_ts"].as_f64().unwrap() > 0.0, "{ran:?}");
    assert!(rows[0]["adapter_tax_percent"].as_f64().unwrap() > -100.0);
    let line = "tg9: adapters add ";
    assert!(ran.stderr.contains(line), "{ran:?}");
    // Four of nine steps have them, in each of two repetitions.
    assert!(ran.stderr.contains("(median of 8; "), "{ran:?}");
    let no_turns = json(&["--lora", &path]);
    assert_eq!(no_turns[1]["bare_ts"], 0.0, "{no_turns:?}");
}

#[test]
fn strict_runs_generate_the_same_everywhere() {
    let hash = |isa: &str, threads: &str| {
        let args = [
            "--strict", "--isa", isa, "-t", threads, "-p", "0", "-n", "6",
        ];
        let rows = json(&args);
        rows.last().unwrap()["tokens_hash"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let one = hash("scalar", "1");
    assert_eq!(one.len(), 16);
    let best = json(&["-p", "0"])[0]["isa"].as_str().unwrap().to_owned();
    assert_eq!(hash(&best, "1"), one);
    let ran = run_to(
        0,
        &[
            "bench", "--strict", "-p", "8", "-n", "0", "-r", "1", "-t", "1",
        ],
    );
    let command = "llama-bench -m 'tale-5.8m-Q4_K_M.gguf (embedded)' -p 8 -n 0 -t 1 -C 0x1";
    assert!(ran.stderr.contains(command), "{ran:?}");
}

#[test]
fn wrong_values_are_named() {
    let cases: [(&[&str], &[&str]); 20] = [
        (&["-p", "x"], &["\"x\"", "number"]),
        (&["-n", "1-5*1"], &["never reaches its end"]),
        (&["-p", "0", "-n", "0"], &["nothing to measure"]),
        (&["-pg", "5"], &["two numbers"]),
        (&["-t", "0"], &["-t 0", "1 to 256"]),
        (&["-t", "257"], &["-t 257"]),
        (&["-b", "0"], &["-b 0"]),
        (&["-npl", "0"], &["-npl 0"]),
        (&["-r", "0"], &["0"]),
        (&["-o", "xml"], &["xml", "jsonl"]),
        (&["--isa", "mmx"], &["mmx", "scalar"]),
        (&["-C", "0xg"], &["hexadecimal"]),
        (&["--cpu-range", "3-1"], &["empty"]),
        (&["--prefetch", "back"], &["back", "far"]),
        (&["--prio", "4"], &["-1 (low)"]),
        (&["--poll", "101"], &["101"]),
        (&["--cores", "fast"], &["fast", "performance", "efficiency"]),
        (&["--numa", "spread"], &["distribute, isolate, numactl"]),
        (&["-p", "0", "--in-turn"], &["--in-turn", "--lora-each"]),
        (
            &["--in-turn", "--lora", "x"],
            &["pp512", "fewer than three generation steps"],
        ),
    ];
    for (args, expected) in cases {
        let ran = run_to(2, &[&["bench"], args].concat());
        for part in expected {
            assert!(ran.stderr.contains(part), "{args:?}: {ran:?}");
        }
    }
    fails(1, &["bench", "-m", "/does/not/exist"], &["/does/not/exist"]);
    fails(1, &["bench", "-m", "/"], &["is a directory"]);
    fails(
        1,
        &["bench", "--plot", "/no/such/folder/a.svg"],
        &["/no/such/folder"],
    );
    fails(
        1,
        &["bench", "--plot", "/"],
        &["is not a valid name for an output file"],
    );
    let model = TemporaryFile::new("plot.gguf", b"GGUF");
    fails(
        1,
        &["bench", "--plot", model.path()],
        &["is not such a file", "was not changed"],
    );
}

#[test]
fn ctrl_c_prints_what_is_done() {
    let mut command = sluice();
    let args = "bench -p 0 -n 1,100000 -r 1 -o json --progress";
    command.args(args.split(' '));
    let mut child = interruptible(command);
    // The second test has begun once its run is announced.
    let mut stderr = String::new();
    let mut reader = std::io::BufReader::new(child.stderr.take().unwrap());
    while !stderr.contains("2/2 tg100000: run 1/1") {
        let n = std::io::BufRead::read_line(&mut reader, &mut stderr).unwrap();
        assert!(n > 0, "{stderr}");
    }
    interrupt(&child);
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?} {stderr}");
    let rows: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["n_gen"], 1);
}

#[test]
fn refused_measures_are_said_with_what_to_type() {
    // As an ordinary user with little memory to lock; root may become one.
    let mut command = sluice();
    command.args([
        "run", "-p", "a", "-n", "1", "--prio", "2", "--mlock", "-t", "1",
    ]);
    if rustix::process::geteuid().is_root() {
        // SAFETY: setrlimit may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                let none = rustix::process::Rlimit {
                    current: Some(0),
                    maximum: Some(0),
                };
                rustix::process::setrlimit(rustix::process::Resource::Memlock, none)?;
                Ok(())
            })
        };
        command.uid(65534);
    }
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!("SKIPPED: an ordinary user may not run the program where it lies");
            return;
        }
        output => output.expect("the program starts"),
    };
    let ran = ran(output);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for expected in [
        "warning: priority of thread 0: requested SCHED_FIFO 80, got SCHED_OTHER: ",
        "fix: sudo setcap cap_sys_nice=ep",
        "warning: locked weights: requested ",
        "fix: ulimit -l unlimited",
    ] {
        assert!(ran.stderr.contains(expected), "{expected}: {ran:?}");
    }
}

#[test]
fn granted_measures_are_silent() {
    let ran = run_to(
        0,
        &[
            "run",
            "-p",
            "a",
            "-n",
            "1",
            "-t",
            "1",
            "-C",
            "0x1",
            "--cpu-strict",
            "1",
            "--poll",
            "0",
            "--numa",
            "numactl",
            "--huge-pages",
            "off",
            "-lm",
            "mmap",
        ],
    );
    assert!(!ran.stderr.contains("warning"), "{ran:?}");
}

#[test]
fn the_picture_is_written() {
    let path = std::env::temp_dir().join(format!("sluice-bench-{}.svg", std::process::id()));
    run_to(
        0,
        &[&SMALL[..], &["--plot", path.to_str().unwrap()]].concat(),
    );
    let svg = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("tg4 ("), "{svg}");
}

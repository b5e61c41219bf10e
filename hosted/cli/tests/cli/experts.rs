//! `sluice experts`: summaries and replays of traces.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support::{Folder, TemporaryFile, fails, ran, run_to, sluice};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::process::Stdio;

/// Two layers of 4 experts, 2 per step. Layer 1 follows from layer 0.
fn trace() -> String {
    let mut text = String::new();
    for token in 0..40 {
        let a = token * token % 7 % 2;
        let b = 1 - a;
        for (layer, [first, second]) in [[a, a + 2], [b, b + 2]].into_iter().enumerate() {
            text += &format!(
                "{{\"token\":{token},\"layer\":{layer},\"experts\":[{first},{second}],\
                 \"cache_hit\":[true,false],\"predicted\":[{first}]}}\n"
            );
        }
    }
    text
}

fn json(args: &[&str]) -> Value {
    let ran = run_to(0, &[&["experts"], args, &["--json"]].concat());
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn a_trace_is_described() {
    let file = TemporaryFile::new("described.jsonl", trace().as_bytes());
    let said = run_to(0, &["experts", "stats", file.path()]).stdout;
    for line in [
        "tokens         40",
        "steps          80, of 2 experts",
        "layers         2, of 4 experts, inferred from the largest id",
        "experts seen   8 of 8 (100.0%)",
        "hits recorded  50.0% (80 of 160)",
        "predictions    80",
    ] {
        assert!(said.lines().any(|found| found == line), "{line:?}: {said}");
    }
    let found = json(&["stats", file.path(), "--experts", "8", "--top", "1"]);
    assert_eq!(
        (&found["n_experts"], &found["n_seen"]),
        (&16.into(), &8.into())
    );
    assert_eq!(found["working_sets"][0]["mean"], 4.0);
    assert_eq!(found["layers"][1]["top"].as_array().unwrap().len(), 1);
    assert_eq!(found["hit_rate"], 0.5);
}

#[test]
fn a_profile_is_written_and_held() {
    let folder = Folder::new("profile");
    let trace_path = folder.path("trace.jsonl");
    fs::write(&trace_path, trace()).unwrap();
    let profile = folder.path("profile.json");
    let write = [
        "experts",
        "stats",
        &trace_path,
        "--experts",
        "16",
        "--profile-out",
        &profile,
    ];
    let said = run_to(0, &write).stderr;
    assert!(
        said.contains("uses of 8 experts, ids of 16 a layer"),
        "{said}"
    );
    let counts: Value = serde_json::from_slice(&fs::read(&profile).unwrap()).unwrap();
    let counts = counts.as_object().unwrap();
    let total: u64 = counts.values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!((counts.len(), total), (8, 160));
    assert!(
        counts.contains_key("16") && counts.contains_key("19"),
        "{counts:?}"
    );
    fails(1, &write, &["exists already", "--overwrite"]);
    run_to(0, &[&write[..], &["--overwrite"]].concat());
    let replay = [
        "replay",
        &trace_path,
        "--experts",
        "16",
        "--slots",
        "4",
        "--policy",
        "static",
    ];
    let own = json(&replay);
    let given = json(&[&replay[..], &["--profile", &profile]].concat());
    assert_eq!(own["caches"], given["caches"]);
    fs::write(&profile, "{\"x\": 1}").unwrap();
    let args = [&["experts"], &replay[..], &["--profile", &profile]].concat();
    fails(1, &args, &[&profile, "\"x\" is not an expert id"]);
    let args = [&["experts"], &replay[..7], &["lru", "--profile", &profile]].concat();
    fails(2, &args, &["--policy static"]);
}

#[test]
fn caches_and_predictions_are_replayed() {
    let file = TemporaryFile::new("replayed.jsonl", trace().as_bytes());
    let found = json(&["replay", file.path(), "--slots", "4,8", "--pool", "layer"]);
    assert_eq!(
        (&found["pool"], &found["top_k"]),
        (&"layer".into(), &2.into())
    );
    let [small, large] = &found["caches"].as_array().unwrap()[..] else {
        panic!("{found}")
    };
    let rate = |cache: &Value, name: &str| cache["policies"][name]["hit_rate"].as_f64().unwrap();
    let best = |cache: &Value| cache["optimum"]["hit_rate"].as_f64().unwrap();
    for policy in ["aged", "lru", "lfu", "fifo", "heat", "static"] {
        assert!(rate(small, policy) <= best(small), "{policy}: {small}");
        // All experts fit: each is missed once.
        assert!(
            (rate(large, policy) - 152.0 / 160.0).abs() < 1e-12,
            "{large}"
        );
        assert_eq!(large["policies"][policy]["of_optimum"], 1.0);
    }
    assert_eq!(small["slots_per_expert"], 0.5);
    let predictions = &found["predictions"];
    assert_eq!(predictions["recall"][0], 0.5);
    assert_eq!(predictions["precision"][0], 1.0);
    assert_eq!(predictions["layers"][1]["recall"][0], 0.5);
}

#[test]
fn tables_have_what_was_asked_for() {
    let file = TemporaryFile::new("tables.jsonl", trace().as_bytes());
    let args = [
        "experts",
        "replay",
        file.path(),
        "--share",
        "50%",
        "--policy",
        "heat,lru",
    ];
    let said = run_to(0, &args).stdout;
    assert!(
        said.contains("slots  of all  optimum  with bypass"),
        "{said}"
    );
    assert!(
        said.contains("heat") && said.contains("lru") && !said.contains("lfu"),
        "{said}"
    );
    assert!(
        said.contains("recall  precision") && !said.contains("by layer"),
        "{said}"
    );
    let layers = run_to(0, &[&args[..], &["--layers"]].concat()).stdout;
    assert!(
        layers.starts_with(&said) && layers.contains("recall by layer"),
        "{layers}"
    );
    // Twice with the same result, and from a pipe.
    let mut piped = sluice();
    piped.args([
        "experts", "replay", "-", "--share", "50%", "--policy", "heat,lru",
    ]);
    piped
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut piped = piped.spawn().unwrap();
    piped
        .stdin
        .take()
        .unwrap()
        .write_all(trace().as_bytes())
        .unwrap();
    let piped = ran(piped.wait_with_output().unwrap());
    let figures = |text: &str| text.split_once("\nhit rate").unwrap().1.to_owned();
    assert_eq!(figures(&piped.stdout), figures(&said));
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = Folder::new("traces");
    let [empty, broken, absent] = ["empty", "broken", "absent"].map(|name| folder.path(name));
    fs::write(&empty, "\n\n").unwrap();
    fs::write(&broken, format!("{}{{\"token\":1,\"layer\":0}}\n", trace())).unwrap();
    let directory = folder.0.to_str().unwrap();
    for command in ["stats", "replay"] {
        let fails = |path: &str, expected: &[&str]| fails(1, &["experts", command, path], expected);
        fails(&absent, &["cannot open trace", &absent, "No such file"]);
        fails(directory, &["trace", directory, "is a directory"]);
        fails(&empty, &["trace", &empty, "is empty"]);
        fails(
            &broken,
            &["trace", &broken, "line 81", "\"experts\" is missing"],
        );
        fails(crate::support::MODEL, &["line 1", "not JSON"]);
    }
    fs::write(&broken, trace()).unwrap();
    let replay = ["experts", "replay", &broken];
    let with = |more: &[&'static str]| [&replay[..], more].concat();
    fails(
        1,
        &with(&["--slots", "1"]),
        &["too few slots (1)", "at least 2"],
    );
    fails(
        1,
        &with(&["--experts", "3"]),
        &["line 2", "a layer has 3 experts"],
    );
    for (flags, expected) in [
        (&["--share", "25"][..], "per cent"),
        (&["--slots", "0"], "--slots"),
        (&["--slots", "4", "--share", "5%"], "--share"),
        (&["--policy", "clock"], "aged, lru, lfu, fifo, heat, static"),
        (&["--pool", "none"], "all, layer"),
    ] {
        fails(2, &with(flags), &[expected]);
    }
}

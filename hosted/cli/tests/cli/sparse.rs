//! `--sparse`: neurons that are left unread in files packed by neuron.

use crate::convert::Folder;
use crate::support::{Ran, fails, fixture, run_to};
use serde_json::Value;

/// The file of a small model whose networks are stored by neuron.
fn packed(folder: &Folder) -> String {
    let slc = folder.path("m.slc");
    let model = fixture("models/llama-Q8_0.gguf");
    run_to(0, &["pack", "--ffn", "neuron", &model, &slc]);
    slc
}

fn told(model: &str, more: &[&str]) -> Ran {
    let args = ["run", "-m", model, "--activation", "relu", "--temp", "0"];
    let text = ["-p", "The little dog", "-n", "16"];
    run_to(0, &[&args[..], &text, more].concat())
}

#[test]
fn texts_are_the_same_in_each_mode_and_the_share_that_was_skipped_is_printed() {
    let folder = Folder::new("sparse");
    let (slc, model) = (packed(&folder), fixture("models/llama-Q8_0.gguf"));
    let skipped = |ran: &Ran| ran.stderr.contains("neurons skipped = ");
    let expected = told(&model, &[]);
    assert!(!skipped(&expected), "{expected:?}");
    for (mode, skips) in [
        (&[][..], true),
        (&["--sparse", "exact"], true),
        (&["--sparse", "off"], false),
    ] {
        let ran = told(&slc, mode);
        assert_eq!(ran.stdout, expected.stdout, "{mode:?}");
        assert_eq!(skipped(&ran), skips, "{mode:?}: {ran:?}");
    }
    // Other files have nothing to leave unread, so that off asks for what they do.
    assert_eq!(told(&model, &["--sparse", "off"]).stdout, expected.stdout);
}

#[test]
fn bench_has_the_share_of_neurons_skipped() {
    let folder = Folder::new("sparse-bench");
    let slc = packed(&folder);
    let bench = |more: &[&str]| {
        let args = ["bench", "-m", &slc, "--activation", "relu", "-r", "1"];
        run_to(0, &[&args[..], &["-p", "0", "-n", "4"], more].concat()).stdout
    };
    let percent = |more: &[&str]| {
        let rows = bench(&[&["-o", "json"][..], more].concat());
        let rows: Value = serde_json::from_str(&rows).unwrap();
        rows[0]["neurons_skipped_percent"].as_f64().unwrap()
    };
    assert!(percent(&[]) > 1.0);
    assert!(percent(&["--sparse", "off"]).abs() < 1e-9);
    assert!(bench(&[]).contains("\nneurons skipped: "));
    assert!(!bench(&["--sparse", "off"]).contains("neurons skipped"));
}

#[test]
fn what_cannot_be_skipped_is_an_error_that_says_what_to_do() {
    let model = fixture("models/llama-Q8_0.gguf");
    let run = ["run", "-m", &model, "-p", "Once", "-n", "1", "--sparse"];
    let bench = ["bench", "-m", &model, "-p", "0", "-n", "1", "--sparse"];
    for args in [&run, &bench] {
        let not_packed = ["not stored by neuron", "sluice pack --ffn neuron"];
        fails(1, &[&args[..], &["exact"]].concat(), &not_packed);
        for (mode, part) in [
            ("predictor:1", "predictor takes no value"),
            ("threshold:-1", "threshold takes a number of at least 0"),
            ("top-k", "top-k takes a number of neurons"),
            ("budget:2", "budget takes a share between 0 and 1"),
            ("fast", "expected exact, off, threshold"),
            ("exact:1", "exact takes no value"),
        ] {
            fails(2, &[&args[..], &[mode]].concat(), &["--sparse", part]);
        }
        for mode in ["threshold", "target", "target:0.5"] {
            let what_to_do = [
                "llama-Q8_0.sparse.json does not exist",
                "sluice sparsify -m",
                "--sparse-file",
            ];
            fails(1, &[&args[..], &[mode]].concat(), &what_to_do);
        }
        let needless = ["top-k:9", "--sparse-file", "none.json"];
        fails(
            1,
            &[&args[..], &needless].concat(),
            &["reads no calibration file"],
        );
    }
}

#[test]
fn calibration_files_are_found_by_themselves_and_belong_to_their_model() {
    let folder = Folder::new("sparsify");
    let (model, other) = (folder.path("m.gguf"), folder.path("other.gguf"));
    std::fs::copy(fixture("models/llama-Q8_0.gguf"), &model).unwrap();
    std::fs::copy(fixture("models/llama-F16.gguf"), &other).unwrap();
    let text = folder.path("text.txt");
    std::fs::write(
        &text,
        "The little dog saw a red ball in the garden. ".repeat(60),
    )
    .unwrap();
    let args = [
        "sparsify", "-m", &model, "-f", &text, "-c", "32", "--signal", "product",
    ];
    let file = folder.path("m.sparse.json");
    let made = run_to(0, &[&args[..], &["--density", "0.4"]].concat());
    assert!(made.stdout.contains("threshold"), "{made:?}");
    let first = std::fs::read(&file).unwrap();
    fails(
        1,
        &[&args[..], &["--density", "0.4"]].concat(),
        &["m.sparse.json"],
    );
    run_to(
        0,
        &[&args[..], &["--density", "0.4", "--overwrite"]].concat(),
    );
    assert!(
        std::fs::read(&file).unwrap() == first,
        "the same input, the same bytes"
    );
    let value: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(value["generated_at"].as_str().unwrap().len(), 64);
    let told = |mode: &str| {
        let args = [
            "run",
            "-m",
            &model,
            "--temp",
            "0",
            "-p",
            "The little dog",
            "-n",
            "24",
            "--sparse",
            mode,
        ];
        let ran = run_to(0, &args);
        let (_, share) = ran.stderr.split_once("neurons skipped = ").unwrap();
        share
            .split_once('%')
            .unwrap()
            .0
            .trim()
            .parse::<f64>()
            .unwrap()
    };
    assert!(
        (told("threshold") - 60.0).abs() < 8.0,
        "{}",
        told("threshold")
    );
    assert!((told("target") - 60.0).abs() < 2.0, "{}", told("target"));
    assert!(
        (told("target:0.7") - 30.0).abs() < 2.0,
        "{}",
        told("target:0.7")
    );
    let of_other = [
        "run",
        "-m",
        &other,
        "-p",
        "x",
        "-n",
        "1",
        "--sparse",
        "target",
        "--sparse-file",
        &file,
    ];
    fails(1, &of_other, &["another model", "fingerprint"]);
    let signal = [
        "run",
        "-m",
        &model,
        "-p",
        "x",
        "-n",
        "1",
        "--sparse",
        "threshold:gate",
    ];
    fails(1, &signal, &["made for the signal product, not gate"]);
    let sparse = ["--sparse", "top-k:3", "--overwrite"];
    fails(2, &[&args[..], &sparse].concat(), &["omit --sparse"]);
    std::fs::write(&text, "The little dog. ".repeat(4)).unwrap();
    fails(
        1,
        &[&args[..], &["-c", "4", "--chunks", "7", "--overwrite"]].concat(),
        &["text.txt has", "8 chunks of 4"],
    );
    std::fs::write(&file, "{}").unwrap();
    fails(
        1,
        &[
            "run", "-m", &model, "-p", "x", "-n", "1", "--sparse", "target",
        ],
        &["m.sparse.json: schema_version"],
    );
}

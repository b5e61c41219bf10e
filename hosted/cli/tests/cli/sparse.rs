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
    let exact = bench(&["--sparse", "exact"]);
    let (_, table) = exact.split_once("\nnetworks of layers").unwrap();
    assert!(
        table.contains("MB read") && !table.contains("recall"),
        "{exact}"
    );
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

/// A model and a text of its own, of which a calibration file is made.
struct Calibrated {
    folder: Folder,
    model: String,
    text: String,
    file: String,
}

impl Calibrated {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let [model, text, file] =
            ["m.gguf", "text.txt", "m.sparse.json"].map(|name| folder.path(name));
        std::fs::copy(fixture("models/llama-Q8_0.gguf"), &model).expect("a fixture");
        let sentence = "The little dog saw a red ball in the garden. ";
        std::fs::write(&text, sentence.repeat(60)).expect("a writable folder");
        Self {
            folder,
            model,
            text,
            file,
        }
    }

    /// `sluice sparsify` with further flags.
    fn sparsify<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let args = ["sparsify", "-m", &self.model, "-f", &self.text, "-c", "32"];
        [&args[..], &["--signal", "product"], more].concat()
    }
}

/// A text of some tokens with a mode.
fn with_mode<'a>(model: &'a str, mode: &'a str) -> Vec<&'a str> {
    let text = ["-p", "The little dog", "-n", "24", "--temp", "0"];
    [&["run", "-m", model][..], &text, &["--sparse", mode]].concat()
}

#[test]
fn calibration_files_are_found_by_themselves_and_keep_their_density() {
    let made = Calibrated::new("sparsify");
    let ran = run_to(0, &made.sparsify(&["--density", "0.4"]));
    assert!(ran.stdout.contains("threshold"), "{ran:?}");
    let first = std::fs::read(&made.file).unwrap();
    fails(1, &made.sparsify(&["--density", "0.4"]), &["m.sparse.json"]);
    run_to(0, &made.sparsify(&["--density", "0.4", "--overwrite"]));
    let again = std::fs::read(&made.file).unwrap();
    assert!(again == first, "the same input, the same bytes");
    let value: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(value["generated_at"].as_str().unwrap().len(), 64);
    for (mode, expected, error) in [
        ("threshold", 60.0, 8.0),
        ("target", 60.0, 2.0),
        ("target:0.7", 30.0, 2.0),
    ] {
        let ran = run_to(0, &with_mode(&made.model, mode));
        let (_, share) = ran.stderr.split_once("neurons skipped = ").unwrap();
        let share: f64 = share.split_once('%').unwrap().0.trim().parse().unwrap();
        assert!((share - expected).abs() < error, "{mode}: {share}");
    }
    let ran = run_to(
        0,
        &[&with_mode(&made.model, "target")[..], &["--json"]].concat(),
    );
    let value: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(value["neurons"]["mode"], "target");
    let goal = ["--target-kl", "0.05", "--overwrite"];
    let ran = run_to(0, &made.sparsify(&goal));
    assert!(ran.stdout.contains("nats per token"), "{ran:?}");
    let value: Value = serde_json::from_slice(&std::fs::read(&made.file).unwrap()).unwrap();
    assert!((0.0..=0.05).contains(&value["kl_divergence"].as_f64().unwrap()));
}

#[test]
fn calibration_files_belong_to_their_model() {
    let made = Calibrated::new("sparsify-other");
    run_to(0, &made.sparsify(&["--density", "0.4"]));
    let other = made.folder.path("other.gguf");
    std::fs::copy(fixture("models/llama-F16.gguf"), &other).unwrap();
    let of_other = [
        &with_mode(&other, "target")[..],
        &["--sparse-file", &made.file],
    ]
    .concat();
    fails(1, &of_other, &["another model", "fingerprint"]);
    let why = "made for the signal product, not gate";
    fails(1, &with_mode(&made.model, "threshold:gate"), &[why]);
    let sparse = ["--sparse", "top-k:3", "--overwrite"];
    fails(2, &made.sparsify(&sparse), &["omit --sparse"]);
    let few = ["--chunks", "7", "--overwrite"];
    fails(1, &made.sparsify(&few), &["text.txt has", "8 chunks of 32"]);
    std::fs::write(&made.file, "{}").unwrap();
    let why = "m.sparse.json: schema_version";
    fails(1, &with_mode(&made.model, "target"), &[why]);
}

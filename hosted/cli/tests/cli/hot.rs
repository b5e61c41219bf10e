//! `sluice quantize --hot`: from a text to a file whose neurons are ordered by activity.

use crate::support::{Folder, MODEL, TemporaryFile, fails, fixture, run_to};
use serde_json::Value;

const TEXT: &str = "Once upon a time there was a little dog who lived in a big house with a girl \
                    named Lily. They went to the park and saw a bird. The bird was red and it sang \
                    a song. Lily liked the song, and the dog did, too. Then they all went home.";

/// The story model in F32, and a profile of it with the activation ReLU.
fn profiled(folder: &Folder, text: &str) -> [String; 2] {
    let [wide, profile] = ["wide.gguf", "profile.gguf"].map(|name| folder.path(name));
    run_to(0, &["quantize", "--allow-requantize", MODEL, &wide, "F32"]);
    let args = [
        "imatrix",
        "-m",
        &wide,
        "-f",
        text,
        "-c",
        "16",
        "--activation",
        "relu",
    ];
    run_to(0, &[&args[..], &["-o", &profile]].concat());
    [wide, profile]
}

fn perplexity(model: &str, text: &str) -> f64 {
    let args = ["perplexity", "-m", model, "-f", text, "-c", "16", "--json"];
    let json = run_to(0, &[&args[..], &["--activation", "relu"]].concat()).stdout;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    json["perplexity"].as_f64().expect("a number")
}

#[test]
fn a_profile_orders_neurons_and_the_model_predicts_as_before() {
    let folder = Folder::new("hot");
    let text = TemporaryFile::new("hot.txt", TEXT.as_bytes());
    let [wide, profile] = profiled(&folder, text.path());
    let hot = ["--hot", "25%", "--profile", &profile];
    for (ty, noise) in [("F32", 1e-4), ("Q8_0", 0.01)] {
        let [plain, ordered] = ["plain", "ordered"].map(|name| folder.path(&format!("{name}{ty}")));
        run_to(0, &["quantize", &wide, &plain, ty]);
        let ran = run_to(
            0,
            &[&["quantize"], &hot[..], &[&wide, &ordered, ty]].concat(),
        );
        assert!(ran.stderr.contains(" neurons are hot, "), "{ran:?}");
        assert!(!ran.stderr.contains("gains nothing"), "{ran:?}");
        let report = run_to(0, &["inspect", &ordered]).stdout;
        assert!(
            report.contains("neurons     ordered by activity: "),
            "{report}"
        );
        assert!(report.contains("llama.hot_neuron_count"), "{report}");
        let ran = run_to(0, &["run", "-m", &ordered, "-p", "Once", "-n", "1"]);
        assert!(!ran.stderr.contains("unknown metadata"), "{ran:?}");
        let [before, after] = [&plain, &ordered].map(|model| perplexity(model, text.path()));
        assert!(
            (after / before - 1.0).abs() < noise,
            "{ty}: {before} {after}"
        );
        assert_ne!(std::fs::read(&plain).ok(), std::fs::read(&ordered).ok());
    }
    // With importance, which is turned like the columns; the file can be packed and restored.
    let out = folder.path("q4.gguf");
    let importance = ["--imatrix", &profile];
    run_to(
        0,
        &[&["quantize"], &hot[..], &importance, &[&wide, &out, "Q4_0"]].concat(),
    );
    let [slc, again] = ["q4.slc", "again.gguf"].map(|name| folder.path(name));
    run_to(0, &["pack", "--ffn", "neuron", &out, &slc]);
    let report = run_to(0, &["inspect", &slc]).stdout;
    assert!(
        report.contains("neurons     ordered by activity: "),
        "{report}"
    );
    let tell = |more: &[&str]| {
        let args = [
            "run",
            "-m",
            &slc,
            "-p",
            "Once upon",
            "-n",
            "24",
            "--temp",
            "0",
        ];
        run_to(0, &[&args[..], &["--activation", "relu"], more].concat())
    };
    let in_memory = tell(&[]);
    for cache in ["--neuron-cache", "--expert-cache"] {
        let ran = tell(&[cache, "1", "--expert-policy", "fifo"]);
        assert_eq!(ran.stdout, in_memory.stdout);
        assert!(ran.stderr.contains("clusters of neurons: "), "{ran:?}");
        assert!(ran.stderr.contains("clusters of neurons = "), "{ran:?}");
    }
    let refused = ["run", "-m", &out, "-p", "Once", "--neuron-cache", "1"];
    fails(1, &refused, &["q4.gguf", "nor cold neurons"]);
    run_to(0, &["unpack", &slc, &again]);
    assert_eq!(std::fs::read(&out).ok(), std::fs::read(&again).ok());
}

#[test]
fn what_does_not_fit_the_order_of_a_file_is_refused() {
    let folder = Folder::new("hot-refused");
    let text = TemporaryFile::new("hot-refused.txt", TEXT.as_bytes());
    let [wide, profile] = profiled(&folder, text.path());
    let [ordered, out] = ["ordered.gguf", "out.gguf"].map(|name| folder.path(name));
    let hot = ["quantize", "--hot", "0.25", "--profile", &profile];
    run_to(0, &[&hot[..], &[&wide, &ordered, "F32"]].concat());
    let refused = |args: &[&str], expected: &[&str]| {
        fails(1, args, expected);
        assert!(!std::path::Path::new(&out).exists(), "{args:?}");
    };
    let again = [&hot[..], &[&ordered, &out, "Q8_0"]].concat();
    refused(&again, &["ordered.gguf", "llama.neuron_order"]);
    let quantised = [&hot[..], &["--allow-requantize", MODEL, &out, "Q8_0"]].concat();
    refused(
        &quantised,
        &["tale-5.8m", "blk.0.ffn_", "F32, F16 and BF16"],
    );
    // Of llama-imatrix.
    let theirs = fixture("experts/odd-experts.imatrix.gguf");
    let without = [
        "quantize",
        "--hot",
        "0.25",
        "--profile",
        &theirs,
        &wide,
        &out,
        "Q8_0",
    ];
    refused(
        &without,
        &["odd-experts.imatrix.gguf", "blk.0.ffn_down.weight"],
    );
    for share in ["0", "1", "x", "100%", "NaN"] {
        let args = [
            "quantize",
            "--hot",
            share,
            "--profile",
            &profile,
            &wide,
            &out,
            "F16",
        ];
        fails(2, &args, &["--hot", "20%"]);
    }
    fails(
        2,
        &["quantize", "--hot", "20%", &wide, &out, "F16"],
        &["--profile"],
    );
}

#[test]
fn importance_of_another_order_is_refused() {
    let folder = Folder::new("hot-importance");
    let text = TemporaryFile::new("hot-importance.txt", TEXT.as_bytes());
    let [wide, profile] = profiled(&folder, text.path());
    let [ordered, out] = ["ordered.gguf", "out.gguf"].map(|name| folder.path(name));
    let hot = ["quantize", "--hot", "0.25", "--profile", &profile];
    run_to(0, &[&hot[..], &[&wide, &ordered, "F32"]].concat());
    let of_ordered = folder.path("of-ordered.gguf");
    let collect = [
        "imatrix",
        "-m",
        &ordered,
        "-f",
        text.path(),
        "-c",
        "16",
        "-o",
    ];
    run_to(0, &[&collect[..], &[&of_ordered]].concat());
    for (importance, model) in [(&of_ordered, &wide), (&profile, &ordered)] {
        let args = ["quantize", "--imatrix", importance, model, &out, "Q8_0"];
        fails(1, &args, &[importance.as_str(), "another order"]);
    }
    run_to(
        0,
        &["quantize", "--imatrix", &of_ordered, &ordered, &out, "Q8_0"],
    );
    std::fs::remove_file(&out).expect("it was written");
    let dat = folder.path("of-ordered.dat");
    fails(1, &[&collect[..], &[&dat]].concat(), &[".dat"]);
    let sum = [&collect[..], &[&out, "--in-file", &profile]].concat();
    fails(1, &sum, &["another order"]);
}

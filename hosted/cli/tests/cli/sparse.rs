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
            ("threshold:0.1", "threshold is not available yet"),
            ("top-k:64", "top-k is not available yet"),
            ("fast", "expected exact or off"),
            ("exact:1", "exact takes no value"),
        ] {
            fails(2, &[&args[..], &[mode]].concat(), &["--sparse", part]);
        }
    }
}

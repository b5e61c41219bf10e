//! `--prompt-cache`: the same text, read once; files that are not prompt caches.

use crate::support::{MODEL, TemporaryFile, fails, fixture, footer_number, run, run_to};
use std::fs;

const PROMPT: &str = "Once upon a time there was a little dog who wanted to see the sea. One day";
const FLAGS: [&str; 6] = ["-p", PROMPT, "-n", "16", "--temp", "0"];

fn cached(path: &str, more: &[&str]) -> crate::support::Ran {
    run_to(0, &[&FLAGS[..], &["--prompt-cache", path], more].concat())
}

#[test]
fn the_same_text_without_reading_the_prompt_again() {
    let text = run_to(0, &FLAGS).stdout;
    let cache = TemporaryFile::new("cache.slpc", b"");
    let first = cached(cache.path(), &[]);
    let n_prompt = footer_number(&first, "prompt eval time", "tokens");
    assert!(n_prompt > 15.0, "{first:?}");
    let written = fs::read(&cache.0).unwrap();
    let again = cached(cache.path(), &[]);
    assert_eq!((&first.stdout, &again.stdout), (&text, &text));
    assert!(
        (footer_number(&again, "prompt eval time", "tokens") - 1.0).abs() < 0.5,
        "{again:?}"
    );
    assert_eq!(fs::read(&cache.0).unwrap(), written);
    // Another end, on other kernels: only the end is read.
    let longer = format!("{PROMPT} a bird came");
    let flags = ["-p", &longer, "-n", "16", "--temp", "0", "--isa", "scalar"];
    let alone = run_to(0, &flags).stdout;
    let read_only = ["--prompt-cache", cache.path(), "--prompt-cache-ro"];
    let ran = run_to(0, &[&flags[..], &read_only].concat());
    assert_eq!(ran.stdout, alone);
    assert!(
        footer_number(&ran, "prompt eval time", "tokens") < 6.0,
        "{ran:?}"
    );
    assert_eq!(
        fs::read(&cache.0).unwrap(),
        written,
        "--prompt-cache-ro does not write"
    );
    // Generated tokens are kept as well if requested.
    cached(cache.path(), &["--prompt-cache-all"]);
    assert!(fs::read(&cache.0).unwrap().len() > written.len());
    assert_eq!(cached(cache.path(), &[]).stdout, text);
}

/// Recurrent states cannot be rewound: the file ends before the token whose logits are needed
/// again.
#[test]
fn a_recurrent_model_goes_on_from_the_file() {
    let model = fixture("models/lfm2.gguf");
    let cache = TemporaryFile::new("recurrent.slpc", b"");
    let text = |prompt: &str, more: &[&str]| {
        let flags = ["-m", &model, "-p", prompt, "-n", "16", "--temp", "0"];
        run_to(0, &[&flags[..], &["--ignore-eos"], more].concat())
    };
    let with_file = ["--prompt-cache", cache.path()];
    let longer = format!("{PROMPT} a bird came");
    for (prompt, n_read) in [
        (PROMPT, 110.0),
        (PROMPT, 1.0),
        (&longer, 19.0),
        (&longer, 1.0),
    ] {
        let ran = text(prompt, &with_file);
        assert_eq!(ran.stdout, text(prompt, &[]).stdout);
        let n = footer_number(&ran, "prompt eval time", "tokens");
        assert!((n - n_read).abs() < 0.5, "{n} of {n_read}: {ran:?}");
    }
    text(&longer, &[&with_file[..], &["-n", "0"]].concat());
    let ran = text(&longer, &with_file);
    assert!((footer_number(&ran, "prompt eval time", "tokens") - 1.0).abs() < 0.5);
    text(&longer, &[&with_file[..], &["--prompt-cache-all"]].concat());
    let again = text(&longer, &with_file);
    assert_eq!(again.stdout, text(&longer, &[]).stdout);
}

#[test]
fn a_recurrent_model_has_no_context_shift() {
    let model = fixture("models/lfm2.gguf");
    let args = ["-m", &model, "-p", "Once", "--context-shift"];
    fails(1, &args, &["--context-shift", &model, "recurrent", "(-c)"]);
}

#[test]
fn files_that_are_no_cache_of_this_model() {
    let cache = TemporaryFile::new("good.slpc", b"");
    cached(cache.path(), &[]);
    let good = fs::read(&cache.0).unwrap();
    let refused = |name: &str, bytes: &[u8], expected: &str| {
        let file = TemporaryFile::new(name, bytes);
        let args = [&FLAGS[..], &["--prompt-cache", file.path()]].concat();
        fails(1, &args, &[file.path(), expected]);
        assert_eq!(fs::read(&file.0).unwrap(), bytes, "{name} was changed");
    };
    for len in [1, 3, 4, 15, 23, 100, good.len() / 2, good.len() - 1] {
        let expected = if len < 4 {
            "is not a prompt cache"
        } else {
            "damaged"
        };
        refused(&format!("cut-{len}.slpc"), &good[..len], expected);
    }
    for at in [8, 20, 200, good.len() - 1] {
        let mut changed = good.clone();
        changed[at] ^= 1;
        refused(&format!("changed-{at}.slpc"), &changed, "damaged");
    }
    let mut version = good.clone();
    version[4] = 9;
    refused("version.slpc", &version, "version 9");
    refused(
        "model.slpc",
        &fs::read(MODEL).unwrap(),
        "is not a prompt cache",
    );
    fails(
        1,
        &[&FLAGS[..], &["--prompt-cache", "/"]].concat(),
        &["prompt cache /"],
    );
    fails(
        1,
        &[&FLAGS[..], &["--prompt-cache", "/no/such/dir"]].concat(),
        &["/no/such/dir"],
    );
    fails(2, &["--prompt-cache-ro"], &["--prompt-cache <FILE>"]);
    // Right for other settings.
    let other_type = ["--prompt-cache", cache.path(), "-ctk", "f32", "-ctv", "f32"];
    fails(
        1,
        &[&FLAGS[..], &other_type].concat(),
        &["another type or shape"],
    );
    let small = ["--prompt-cache", cache.path(), "-c", "8", "-p", "Once"];
    fails(1, &small, &["more than the context of 8"]);
    let other = fixture("models/llama-Q8_0.gguf");
    let other = ["--prompt-cache", cache.path(), "-m", &other];
    fails(1, &[&FLAGS[..], &other].concat(), &["another model"]);
    assert_eq!(fs::read(&cache.0).unwrap(), good);
}

#[test]
fn a_text_goes_on_in_a_full_context() {
    let args = [
        "-c",
        "64",
        "--ignore-eos",
        "-p",
        "Once",
        "-n",
        "100",
        "--context-shift",
        "--keep",
        "4",
    ];
    let ran = run_to(0, &args);
    assert!(!ran.stderr.contains("full"), "{ran:?}");
    assert!(
        (footer_number(&ran, "eval time", "runs") - 99.0).abs() < 0.5,
        "{ran:?}"
    );
    let same = run(&[&args[..], &["-s", "5", "-t", "1"]].concat());
    let again = run(&[&args[..], &["-s", "5", "-t", "2"]].concat());
    assert_eq!(same.stdout, again.stdout);
}

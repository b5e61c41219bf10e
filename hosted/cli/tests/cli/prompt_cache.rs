//! `--prompt-cache`: the same text, read once; files that are not prompt caches.

use crate::support::{Folder, MODEL, fails, fixture, footer_number, run, run_to};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

const PROMPT: &str = "Once upon a time there was a little dog who wanted to see the sea. One day";
const FLAGS: [&str; 6] = ["-p", PROMPT, "-n", "16", "--temp", "0"];

fn cached(path: &str, more: &[&str]) -> crate::support::Ran {
    run_to(0, &[&FLAGS[..], &["--prompt-cache", path], more].concat())
}

#[test]
fn the_same_text_without_reading_the_prompt_again() {
    let text = run_to(0, &FLAGS).stdout;
    let folder = Folder::new("cache");
    let cache = folder.path("cache.slpc");
    let first = cached(&cache, &[]);
    let n_prompt = footer_number(&first, "prompt eval time", "tokens");
    assert!(n_prompt > 15.0, "{first:?}");
    let written = fs::read(&cache).unwrap();
    let again = cached(&cache, &[]);
    assert_eq!((&first.stdout, &again.stdout), (&text, &text));
    assert!(
        (footer_number(&again, "prompt eval time", "tokens") - 1.0).abs() < 0.5,
        "{again:?}"
    );
    assert_eq!(fs::read(&cache).unwrap(), written);
    // Another end, on other kernels: only the end is read.
    let longer = format!("{PROMPT} a bird came");
    let flags = ["-p", &longer, "-n", "16", "--temp", "0", "--isa", "scalar"];
    let alone = run_to(0, &flags).stdout;
    let read_only = ["--prompt-cache", &cache, "--prompt-cache-ro"];
    let ran = run_to(0, &[&flags[..], &read_only].concat());
    assert_eq!(ran.stdout, alone);
    assert!(
        footer_number(&ran, "prompt eval time", "tokens") < 6.0,
        "{ran:?}"
    );
    assert_eq!(
        fs::read(&cache).unwrap(),
        written,
        "--prompt-cache-ro does not write"
    );
    // Generated tokens are kept as well if requested.
    cached(&cache, &["--prompt-cache-all"]);
    assert!(fs::read(&cache).unwrap().len() > written.len());
    assert_eq!(cached(&cache, &[]).stdout, text);
}

/// Recurrent states cannot be rewound: the file ends before the token whose logits are needed
/// again.
#[test]
fn a_recurrent_model_goes_on_from_the_file() {
    let model = fixture("models/lfm2.gguf");
    let folder = Folder::new("recurrent");
    let cache = folder.path("cache.slpc");
    let text = |prompt: &str, more: &[&str]| {
        let flags = ["-m", &model, "-p", prompt, "-n", "16", "--temp", "0"];
        run_to(0, &[&flags[..], &["--ignore-eos"], more].concat())
    };
    let with_file = ["--prompt-cache", &cache];
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
    let folder = Folder::new("refused");
    let cache = folder.path("good.slpc");
    cached(&cache, &[]);
    let good = fs::read(&cache).unwrap();
    let refused = |bytes: &[u8], expected: &str| {
        fs::write(&cache, bytes).unwrap();
        let args = [&FLAGS[..], &["--prompt-cache", &cache]].concat();
        fails(1, &args, &[&cache, expected]);
        assert_eq!(
            fs::read(&cache).unwrap(),
            bytes,
            "{expected}: it was changed"
        );
    };
    for len in [1, 3, 4, 15, 23, 100, good.len() / 2, good.len() - 1] {
        let expected = if len < 4 {
            "is not a prompt cache"
        } else {
            "it is damaged"
        };
        refused(&good[..len], expected);
    }
    for at in [8, 20, 50, 200, good.len() - 1] {
        let mut changed = good.clone();
        changed[at] ^= 1;
        refused(&changed, "it is damaged");
    }
    let mut version = good.clone();
    version[4] = 9;
    refused(&version, "version 9");
    refused(&fs::read(MODEL).unwrap(), "is not a prompt cache");
    fs::write(&cache, &good).unwrap();
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
    let other_type = ["--prompt-cache", &cache, "-ctk", "f32", "-ctv", "f32"];
    fails(
        1,
        &[&FLAGS[..], &other_type].concat(),
        &["another type or shape"],
    );
    let small = ["--prompt-cache", &cache, "-c", "8", "-p", "Once"];
    fails(1, &small, &["more than the context of 8"]);
    let other = fixture("models/llama-Q8_0.gguf");
    let other = ["--prompt-cache", &cache, "-m", &other];
    fails(1, &[&FLAGS[..], &other].concat(), &["another model"]);
    assert_eq!(fs::read(&cache).unwrap(), good);
}

#[test]
fn a_cache_that_is_not_this_users_is_refused() {
    let folder = Folder::new("others");
    let cache = folder.path("good.slpc");
    let renamed = folder.path("renamed.slpc");
    cached(&cache, &[]);
    let args = |path| [&FLAGS[..], &["--prompt-cache", path]].concat();
    fs::copy(&cache, &renamed).unwrap();
    fails(1, &args(&renamed), &[&renamed, "was renamed or moved here"]);
    let other = Folder::new("moved");
    cached(&other.path("good.slpc"), &["--prompt-cache-all"]);
    let good = fs::read(&cache).unwrap();
    fs::copy(other.path("good.slpc"), &cache).unwrap();
    fails(1, &args(&cache), &[&cache, "the key of its folder"]);
    fs::write(&cache, good).unwrap();
    // A link is followed: it names this file.
    let link = folder.path("link.slpc");
    symlink("good.slpc", &link).unwrap();
    assert!(cached(&link, &[]).stderr.contains("tokens in"));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let set = |path: &str, mode| {
        fs::set_permissions(folder.path(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    assert!(!cached(&cache, &[]).stderr.contains("other users may write"));
    set("", 0o777);
    assert!(cached(&cache, &[]).stderr.contains("other users may write"));
    set(".sluice-key", 0o640);
    fails(
        1,
        &args(&cache),
        &[".sluice-key", "others may read or write it (mode 640)"],
    );
}

#[test]
fn a_cache_of_an_older_version_is_replaced() {
    let folder = Folder::new("older");
    let cache = folder.path("cache.slpc");
    cached(&cache, &[]);
    let good = fs::read(&cache).unwrap();
    let mut older = good.clone();
    older[4] = 1;
    fs::write(&cache, &older).unwrap();
    let ran = cached(&cache, &["--prompt-cache-ro"]);
    let said = "it is from an older version of Sluice; it is not used";
    assert!(ran.stderr.contains(said), "{ran:?}");
    assert_eq!(fs::read(&cache).unwrap(), older);
    let ran = cached(&cache, &[]);
    assert!(
        ran.stderr
            .contains("older version of Sluice; it is replaced")
    );
    assert_eq!(fs::read(&cache).unwrap(), good);
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

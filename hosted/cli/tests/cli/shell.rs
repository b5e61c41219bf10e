//! What shells and scripts use: completions, man pages, the environment, quiet mode, logs, JSON,
//! and failing streams.

use crate::support::{MODEL, TemporaryFile, fails, ran, run, run_to, sluice};
use std::fs;
use std::process::Stdio;

/// The names of all commands, from the help.
fn commands() -> Vec<String> {
    let help = run_to(0, &["--help"]).stdout;
    // They are listed in groups before the options.
    let lines = help
        .lines()
        .skip_while(|line| *line != "Run a model:")
        .take_while(|line| *line != "Options:");
    let names = lines
        .filter(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_has_help_a_man_page_and_completions() {
    let all = commands();
    assert!(all.len() >= 15, "{all:?}");
    let folder = std::env::temp_dir().join(format!("sluice-man-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    run_to(0, &["man", folder.to_str().expect("UTF-8")]);
    let scripts = ["bash", "zsh", "fish"].map(|shell| run_to(0, &["completions", shell]).stdout);
    for name in &all {
        let help = run_to(0, &[name, "--help"]).stdout;
        assert!(
            help.contains("Examples:") && help.contains("sluice "),
            "{name}: {help}"
        );
        let page = fs::read_to_string(folder.join(format!("sluice-{name}.1"))).expect("a page");
        assert!(
            page.starts_with(".ie") && page.contains(".SH SYNOPSIS"),
            "{name}: {page}"
        );
        assert!(
            scripts.iter().all(|script| script.contains(&**name)),
            "{name}"
        );
    }
    let page = fs::read_to_string(folder.join("sluice.1")).expect("a page");
    assert!(page.contains("sluice"), "{page}");
    fs::remove_dir_all(folder).expect("it is removed");
    fails(2, &["man", "/does/not/exist"], &["/does/not/exist"]);
    fails(2, &["completions", "cmd"], &["cmd", "bash"]);
}

#[test]
fn help_has_colours_only_where_they_are_wanted() {
    assert!(!run_to(0, &["run", "--help"]).stdout.contains('\x1b'));
    let forced = sluice()
        .args(["run", "--help"])
        .env("CLICOLOR_FORCE", "1")
        .output();
    assert!(ran(forced.expect("it starts")).stdout.contains('\x1b'));
    let mut command = sluice();
    command.args(["run", "--help"]).env("NO_COLOR", "1");
    assert!(
        !ran(command.output().expect("it starts"))
            .stdout
            .contains('\x1b')
    );
}

#[test]
fn variables_stand_for_flags_that_are_not_given() {
    let with = |more: &[&str], variables: &[(&str, &str)]| {
        let mut command = sluice();
        command
            .args(["run", "-p", "Once", "--temp", "0", "--ignore-eos"])
            .args(more);
        command.envs(variables.iter().copied());
        ran(command.output().expect("it starts"))
    };
    let three = with(&["-n", "3"], &[]).stdout;
    assert_eq!(with(&[], &[("LLAMA_ARG_N_PREDICT", "3")]).stdout, three);
    let both = with(
        &["-n", "3"],
        &[("LLAMA_ARG_N_PREDICT", "9"), ("LLAMA_ARG_CTX_SIZE", "")],
    );
    assert_eq!(both.stdout, three, "{both:?}");
    let wrong = with(&["-n", "3"], &[("LLAMA_ARG_CTX_SIZE", "many")]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("many"), "{wrong:?}");
    let model = with(&["-n", "3"], &[("LLAMA_ARG_MODEL", "/does/not/exist")]);
    assert!(model.stderr.contains("/does/not/exist"), "{model:?}");
}

#[test]
fn old_spellings_say_the_new_ones() {
    let ran = run_to(0, &["run", "-n", "1", "--no-mmap"]);
    assert!(
        ran.stderr.contains("--no-mmap is now --load-mode none"),
        "{ran:?}"
    );
}

#[test]
fn quiet_logs_and_json() {
    let quiet = run_to(0, &["run", "-q", "-p", "Once", "-n", "3"]);
    assert_eq!(quiet.stderr, "", "{quiet:?}");
    let failed = run(&["run", "-q", "-m", "/does/not/exist"]);
    assert!(failed.stderr.contains("error: "), "{failed:?}");
    let log = TemporaryFile::new("notes.log", b"");
    for _ in 0..2 {
        run_to(0, &["run", "-q", "-n", "2", "--log-file", log.path()]);
    }
    let text = fs::read_to_string(&log.0).expect("a log");
    assert_eq!(text.matches("# sluice log").count(), 2, "{text}");
    assert_eq!(text.matches("total time").count(), 2, "{text}");
    let model = TemporaryFile::new("log-model.gguf", &fs::read(MODEL).expect("the model"));
    fails(
        1,
        &["run", "-n", "1", "--log-file", model.path()],
        &["is not a sluice log"],
    );
    assert_eq!(
        fs::read(&model.0).expect("the model"),
        fs::read(MODEL).expect("the model")
    );
    fails(
        1,
        &["run", "-n", "1", "--log-file", "/dev/full"],
        &["/dev/full", "No space"],
    );
    let json = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&run_to(0, args).stdout).expect("one JSON object")
    };
    let args = [
        "run",
        "-p",
        "Once",
        "-n",
        "5",
        "--temp",
        "0",
        "--ignore-eos",
    ];
    let text = run_to(0, &[&args[..], &["--no-display-prompt"]].concat()).stdout;
    let object = json(&[&args[..], &["--json"]].concat());
    assert_eq!(
        object["content"].as_str(),
        Some(text.trim_end_matches('\n'))
    );
    assert_eq!(object["stop_type"], "length");
    assert_eq!(object["timings"]["predicted_n"], 5);
    let tokens = json(&["tokenize", "-m", MODEL, "-p", "Once upon", "--json"]);
    assert_eq!(
        tokens["count"],
        tokens["ids"].as_array().expect("a list").len()
    );
    let file = json(&["inspect", MODEL, "--json"]);
    assert_eq!(file["metadata"]["general.architecture"], "llama");
    assert!(file["tensors"].as_array().expect("a list").len() > 50);
    assert!(
        json(&["doctor", "--json"])["sections"]
            .as_array()
            .expect("a list")
            .len()
            >= 6
    );
}

#[test]
fn streams_that_fail() {
    for args in [
        &["inspect", MODEL][..],
        &["doctor"],
        &["completions", "bash"],
        &["tokenize", "-m", MODEL, "-p", "Once"],
        &["chat", "-st", "-p", "Once", "-n", "3"],
        &["run", "-n", "3", "--json"],
    ] {
        let full = fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("it is there");
        let output = sluice().args(args).stdout(full).output();
        let ran = ran(output.expect("it starts"));
        assert_eq!(ran.code, Some(1), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains("No space left"), "{args:?}: {ran:?}");
        // A reader that closed the pipe before the first word.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = sluice()
            .args(args)
            .stdout(Stdio::from(writer))
            .stderr(Stdio::piped())
            .output();
        let ran = crate::support::ran(output.expect("it starts"));
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    }
    fails(1, &["chat", "-m", "/"], &["is a directory"]);
    let cut = fs::read(MODEL).expect("the model");
    let cut = TemporaryFile::new("chat-cut.gguf", &cut[..cut.len() / 2]);
    fails(1, &["chat", "-m", cut.path()], &[cut.path(), "file"]);
    fails(
        1,
        &["perplexity", "-m", cut.path(), "-f", cut.path()],
        &[cut.path()],
    );
}

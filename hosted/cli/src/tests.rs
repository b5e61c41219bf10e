//! Tests of the command line.

use super::*;
use crate::commands::Command;

fn parsed(args: &[&str]) -> Result<Cli, String> {
    let all = [&["sluice"], args].concat();
    parse(all.iter().map(OsString::from).collect()).map_err(|error| error.to_string())
}

fn run_args(args: &[&str]) -> commands::run::RunArgs {
    match parsed(args).expect("the arguments are right").command {
        Command::Run(args) => *args,
        _ => panic!("not run"),
    }
}

#[test]
fn the_command_is_well_formed() {
    commands::tree().debug_assert();
}

/// `debug_assert` checks this only with debug assertions.
#[test]
fn no_command_has_a_flag_twice() {
    let mut all = commands::tree();
    all.build();
    for command in all.get_subcommands() {
        let mut seen = std::collections::HashSet::new();
        for arg in command.get_arguments() {
            let names = [
                arg.get_short().map(String::from),
                arg.get_long().map(String::from),
            ];
            for name in names.into_iter().flatten() {
                assert!(seen.insert(name.clone()), "{}: {name}", command.get_name());
            }
        }
    }
}

#[test]
fn every_command_has_examples_that_parse() {
    let mut all = commands::tree();
    all.build();
    let mut checked = 0;
    for sub in all.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let help = sub
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let lines: Vec<_> = help
            .lines()
            .filter_map(|line| line.split_once("sluice "))
            .collect();
        assert!(
            help.contains("Examples:") && !lines.is_empty(),
            "{}",
            sub.get_name()
        );
        for (before, line) in lines.into_iter().filter(|(before, _)| {
            before.trim().is_empty() || before.contains("| ") || before.contains('=')
        }) {
            let words = words(line);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            if let Err(message) = parsed(&words) {
                panic!("{before}sluice {line}: {message}");
            }
            checked += 1;
        }
    }
    assert!(checked >= 25, "{checked}");
}

/// The words of a line as a shell splits them, up to a pipe, a list, a redirection or a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '|' | '>' | '#' | '&') => break,
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn llama_cpp_spellings() {
    let long = run_args(&[
        "run",
        "--model",
        "m",
        "--prompt",
        "p",
        "--n-predict",
        "7",
        "--ctx-size",
        "64",
        "--batch-size",
        "32",
        "--ubatch-size",
        "16",
        "--threads",
        "3",
        "--seed",
        "5",
        "--cache-type-k",
        "bf16",
        "--cache-type-v",
        "bf16",
        "--top-k",
        "1",
    ]);
    let short = run_args(&[
        "-m", "m", "-p", "p", "-n", "7", "-c", "64", "-b", "32", "-ub", "16", "-t", "3", "-s", "5",
        "-ctk", "bf16", "-ctv", "bf16", "--top-k", "1",
    ]);
    assert_eq!(format!("{long:?}"), format!("{short:?}"));
    assert_eq!(run_args(&["--predict", "7"]).n_predict, 7);
    assert_eq!((long.engine.ubatch_size, long.n_predict), (16, 7));
}

#[test]
fn values_may_look_like_flags() {
    let args = run_args(&["-p", "-ub", "-n", "-1", "-s", "-1", "--temp", "-0.5"]);
    assert_eq!(args.prompt.as_deref(), Some("-ub"));
    assert_eq!((args.n_predict, args.sampling.seed), (-1, -1));
    assert_eq!(run_args(&["-p", "--", "-n", "3"]).n_predict, 3);
}

#[test]
fn the_last_of_equal_flags_counts() {
    assert_eq!(run_args(&["-n", "3", "-n", "4"]).n_predict, 4);
}

#[test]
fn wrong_usage_is_named() {
    let cases: [(&[&str], &str); 8] = [
        (&["run", "--nonsense"], "--nonsense"),
        (&["-x"], "-x"),
        (&["run", "-n", "many"], "many"),
        (&["run", "-n", "-2"], "-2"),
        (&["run", "-t", "257"], "257"),
        (&["run", "-ctk", "q5_0"], "f32, f16, bf16, q8_0, q4_0, fp8"),
        (&["run", "-p", "a", "-f", "b"], "--file"),
        (&["inspect"], "FILE"),
    ];
    for (args, expected) in cases {
        let message = parsed(args).expect_err("wrong usage");
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

use super::*;
use crate::commands::tree;
use std::collections::BTreeMap;

/// All commands below `command` with their full names, including itself.
fn all(command: &Command, name: &str) -> Vec<(String, Command)> {
    let mut found = vec![(name.to_owned(), command.clone())];
    for sub in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
    {
        let name = format!("{name} {}", sub.get_name());
        found.extend(all(sub, name.trim_start()));
    }
    found
}

fn built(mut command: Command) -> Vec<(String, Command)> {
    command.build();
    all(&command, "")
}

/// The flags of each command by heading, in the format of `headings.txt`.
fn headings() -> String {
    let mut text = String::new();
    for (name, command) in built(tree()) {
        let mut headings = BTreeMap::<_, Vec<_>>::new();
        let flags = command.get_arguments().filter(|arg| !arg.is_positional());
        for arg in flags.filter(|arg| !arg.is_hide_set()) {
            let heading = arg.get_help_heading().unwrap_or("Options");
            let flag = arg.get_long().unwrap_or_else(|| arg.get_id().as_str());
            headings.entry(heading).or_default().push(flag);
        }
        let _ = writeln!(text, "{}", format!("sluice {name}").trim_end());
        for (heading, mut flags) in headings {
            flags.sort_unstable();
            let _ = writeln!(text, "  {heading}: {}", flags.join(" "));
        }
    }
    text
}

#[test]
fn every_flag_stands_under_its_heading() {
    let found = headings();
    assert!(
        found == include_str!("headings.txt"),
        "if this is intended, put it into headings.txt:\n{found}"
    );
}

#[test]
fn summaries_fit_a_screen() {
    let mut program = summary(tree());
    program.build();
    let mut misfits = String::new();
    for (name, mut command) in all(&program, "") {
        let help = command.render_help().to_string();
        let lines = help.lines().count();
        if lines > 60 {
            let _ = writeln!(misfits, "sluice {name}: {lines} lines\n{help}");
        }
        for line in help.lines().filter(|line| line.chars().count() > WIDTH) {
            let _ = writeln!(misfits, "sluice {name}: {line}");
        }
    }
    assert!(misfits.is_empty(), "{misfits}");
}

#[test]
fn help_is_complete() {
    for (name, mut command) in built(tree()) {
        let help = command.render_long_help().to_string();
        assert!(
            name.is_empty() || help.contains("Examples:"),
            "sluice {name}"
        );
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let flag = arg
                .get_long()
                .map_or(String::new(), |long| format!("--{long}"));
            assert!(help.contains(&flag), "sluice {name}: {flag}");
            let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(
                !text.is_empty() && !text.contains('\n'),
                "{name} {flag}: {text}"
            );
            assert!(!text.ends_with('.'), "sluice {name} {flag}: {text}");
        }
    }
}

#[test]
fn every_command_is_in_one_group() {
    let program = tree();
    let mut grouped: Vec<_> = COMMANDS.iter().flat_map(|(_, names)| *names).collect();
    grouped.sort_unstable();
    let mut names: Vec<_> = program.get_subcommands().map(Command::get_name).collect();
    names.push("help");
    names.sort_unstable();
    assert_eq!(grouped.into_iter().copied().collect::<Vec<_>>(), names);
    let usage = program.clone().render_usage().to_string();
    assert!(usage.contains("[COMMAND]"), "{usage}");
}

#[test]
fn flags_that_tables_name_are_there() {
    let all = built(tree());
    let is_there = |id: &str| {
        let mut args = all.iter().flat_map(|(_, command)| command.get_arguments());
        args.any(|arg| name_of(arg.get_id()) == id)
    };
    let single = SINGLE.iter().flat_map(|single| single.flags);
    for flag in single.chain(ESSENTIAL) {
        assert!(is_there(flag), "{flag}");
    }
    let with = SINGLE.iter().map(|single| single.with);
    for group in with.chain(HEADINGS.iter().map(|(group, _)| *group)) {
        let mut groups = all.iter().flat_map(|(_, command)| command.get_groups());
        assert!(
            groups.any(|found| found.get_id().as_str() == group),
            "{group}"
        );
    }
}

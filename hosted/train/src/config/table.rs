//! The keys as text: the table of `docs/train.md`, and help.

use super::keys::CONFIG_KEYS;
use super::refused::{REFUSED, WITHOUT_EFFECT};
use super::turned::TURNED;
use core::fmt::Write as _;

/// The keys as Markdown tables, one per group.
#[must_use]
pub fn keys_table() -> String {
    let mut out = String::new();
    for (heading, keys) in CONFIG_KEYS {
        let _ = writeln!(
            out,
            "### {heading}\n\n| key | default | value | other names |"
        );
        let _ = writeln!(out, "|---|---|---|---|");
        for key in keys {
            let default = match key.default {
                "null" => "-",
                default => default,
            };
            let turned = TURNED.iter().filter(|turn| turn.key == key.name);
            let others = key.others.iter().copied();
            let names = others.chain(turned.map(|turn| turn.name));
            let names = names.map(|name| format!("`{name}`"));
            let names = names.collect::<Vec<_>>().join(", ");
            let _ = writeln!(
                out,
                "| `{}` | {default} | {}. {} | {names} |",
                key.name,
                key.help.replace('|', "\\|"),
                capitalised(&key.kind.describe()),
            );
        }
        out.push('\n');
    }
    out
}

/// The names that are refused, and those that are accepted without effect, as Markdown tables.
#[must_use]
pub fn other_names_table() -> String {
    let mut out = String::new();
    let lists = [
        ("Refused, unless they are off", REFUSED),
        ("Accepted without effect", WITHOUT_EFFECT),
    ];
    for (heading, names) in lists {
        let _ = writeln!(out, "### {heading}\n\n| names | reason |\n|---|---|");
        let mut done: Vec<&str> = Vec::new();
        for (_, reason) in names {
            if done.contains(reason) {
                continue;
            }
            done.push(reason);
            let same = names.iter().filter(|(_, other)| other == reason);
            let same = same
                .map(|(name, _)| format!("`{name}`"))
                .collect::<Vec<_>>();
            let _ = writeln!(out, "| {} | {reason} |", same.join(", "));
        }
        out.push('\n');
    }
    out
}

/// The keys as lines of a command's help.
#[must_use]
pub fn keys_help() -> String {
    let mut out = String::new();
    for (heading, keys) in CONFIG_KEYS {
        let _ = writeln!(out, "{heading}:");
        for key in keys {
            let default = match key.default {
                "null" => String::new(),
                default => format!(" [default: {default}]"),
            };
            let _ = writeln!(out, "  --{}\n          {}{default}", key.name, key.help);
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

//! The keys as the tables of `docs/train.md`.

use super::keys::{CONFIG_KEYS, ConfigKey};
use super::refused::{REFUSED, WITHOUT_EFFECT};
use super::turned::TURNED;
use core::fmt::Write as _;

/// The keys as Markdown tables: for each group the meanings and defaults, then for all keys the values and other names.
#[must_use]
pub fn keys_table() -> String {
    let mut out = String::new();
    for (heading, keys) in CONFIG_KEYS {
        let _ = writeln!(
            out,
            "### {heading}\n\n| key | default | meaning |\n|---|---|---|"
        );
        for ConfigKey {
            name,
            default,
            help,
            ..
        } in keys
        {
            let default = match *default {
                "null" => "",
                default => default,
            };
            let _ = writeln!(out, "| `{name}` | {default} | {help} |");
        }
        out.push('\n');
    }
    out.push_str("### Values and other names\n\n| key | value | other names |\n|---|---|---|\n");
    for key in CONFIG_KEYS.iter().flat_map(|(_, keys)| keys.iter()) {
        let turned = TURNED.iter().filter(|turn| turn.key == key.name);
        let others = key.others.iter().copied();
        let names = others.chain(turned.map(|turn| turn.name));
        let names = names.map(|name| format!("`{name}`"));
        let names = names.collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            out,
            "| `{}` | {} | {names} |",
            key.name,
            key.kind.describe()
        );
    }
    out.push('\n');
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
            let same: Vec<_> = same.map(|(name, _)| format!("`{name}`")).collect();
            // Lines of documents have a limit.
            for names in same.chunks(3) {
                let _ = writeln!(out, "| {} | {reason} |", names.join(", "));
            }
        }
        out.push('\n');
    }
    out
}

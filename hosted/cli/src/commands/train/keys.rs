//! The keys of a configuration as flags, from the library's table.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use sluice_train::config::{CONFIG_KEYS, ConfigKey, Kind, other_names};
use std::sync::LazyLock;

/// The keys that are given, as `--name=value`.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyArgs(Vec<String>);

impl KeyArgs {
    pub(super) fn flags(&self) -> &[String] {
        &self.0
    }
}

impl Args for KeyArgs {
    fn augment_args(command: Command) -> Command {
        let keys = CONFIG_KEYS.iter().zip(&*KEYS);
        let shown = keys.flat_map(|((heading, keys), names)| {
            let keys = keys.iter().zip(names);
            keys.map(|(key, names)| arg_of(key, names).help_heading(*heading))
        });
        let hidden = OTHERS.iter().map(|names| {
            let arg = Arg::new(&*names.id).long(&*names.flag).hide(true);
            arg.num_args(0..=1).default_missing_value("true")
        });
        command.args(shown).args(hidden)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KeyArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut keys = Self::default();
        keys.update_from_arg_matches(matches)?;
        Ok(keys)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let keys = KEYS.iter().flatten().chain(&*OTHERS);
        for names in keys {
            let given = matches.get_many::<String>(&names.id);
            let flags = given.into_iter().flatten();
            self.0
                .extend(flags.map(|value| format!("--{}={value}", names.name)));
        }
        Ok(())
    }
}

fn arg_of(key: &'static ConfigKey, names: &'static Names) -> Arg {
    let help = match key.default {
        "null" | "[]" | "{}" => key.help.to_owned(),
        default => format!("{} [default: {default}]", key.help),
    };
    let arg = Arg::new(&*names.id).long(&*names.flag).help(help);
    let arg = arg.aliases(names.others.iter().map(String::as_str));
    let arg = arg.value_name(value_name(key.kind));
    let arg = match key.name {
        "model" => arg.short('m'),
        "prompts" => arg.action(ArgAction::Append),
        _ => arg,
    };
    match key.kind {
        Kind::Bool | Kind::Auto => arg.num_args(0..=1).default_missing_value("true"),
        _ => arg,
    }
}

const fn value_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "true|false",
        Kind::Auto => "true|false|auto",
        Kind::Int(..) => "N",
        Kind::Float(..) | Kind::Share | Kind::Amount => "X",
        Kind::Text => "TEXT",
        Kind::Path => "PATH",
        Kind::Choice(_) => "NAME",
        Kind::Choices(_) | Kind::Texts | Kind::TextOrTexts => "NAMES",
        Kind::Ints => "LIST",
        Kind::Numbers | Kind::Map => "MAP",
        Kind::Files => "FILES",
    }
}

/// clap requires texts that live as long as the program.
struct Names {
    /// The key's own.
    name: &'static str,
    id: String,
    flag: String,
    others: Vec<String>,
}

impl Names {
    fn new(name: &'static str, others: &[&str]) -> Self {
        Self {
            name,
            // An id of its own: other commands' tables know flags by their ids.
            id: format!("key_{name}"),
            flag: name.replace('_', "-"),
            others: others.iter().map(|other| other.replace('_', "-")).collect(),
        }
    }
}

static KEYS: LazyLock<[Vec<Names>; CONFIG_KEYS.len()]> = LazyLock::new(|| {
    CONFIG_KEYS.each_ref().map(|(_, keys)| {
        let names = keys.iter().map(|key| Names::new(key.name, key.others));
        names.collect()
    })
});

/// Names that stand for values of keys, that are refused, or that have no effect.
static OTHERS: LazyLock<Vec<Names>> =
    LazyLock::new(|| other_names().map(|name| Names::new(name, &[])).collect());

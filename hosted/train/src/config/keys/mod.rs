//! The keys of a configuration: one table, from which the checks, `docs/train.md` and `--help` come.

mod data;
mod lora;
mod model;
mod optimizer;
mod run;

/// A key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct ConfigKey {
    /// Its name, which is TRL's or PEFT's where they have one.
    pub name: &'static str,
    /// The type and range of its value.
    pub kind: Kind,
    /// Its default, as it would be written in YAML; `null` is "not set".
    pub default: &'static str,
    /// Other names with the same meaning: axolotl's, LLaMA-Factory's, avxLLM's.
    pub others: &'static [&'static str],
    /// One imperative line.
    pub help: &'static str,
}

/// The type and range of a value.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// true or false.
    Bool,
    /// true, false or `auto`.
    Auto,
    /// A whole number from the first to the second.
    Int(i64, i64),
    /// A number from the first to the second.
    Float(f64, f64),
    /// A number from 0, below 1.
    Share,
    /// A whole number, or below 1 a share of the whole.
    Amount,
    /// A text.
    Text,
    /// A path.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Some of these words: a list, or words separated by commas.
    Choices(&'static [&'static str]),
    /// A list of texts; a flag separates them by commas.
    Texts,
    /// One text, or a list of texts.
    TextOrTexts,
    /// A list of whole numbers from 0; a flag separates them by commas.
    Ints,
    /// A mapping of patterns to positive numbers.
    Numbers,
    /// A mapping of any values.
    Map,
    /// Files of rows.
    Files,
}

/// The keys in groups, with the groups' headings.
pub const CONFIG_KEYS: [(&str, &[ConfigKey]); 8] = [
    ("Model and output", model::MODEL),
    ("Data", data::DATA),
    ("Labels", data::LABELS),
    ("LoRA", lora::LORA),
    ("Optimizer and schedule", optimizer::OPTIMIZER),
    ("Evaluation", run::EVAL),
    ("Checkpoints and logs", run::OUTPUT),
    ("Engine", model::ENGINE),
];

/// The key with this name.
pub(super) fn key(name: &str) -> Option<&'static ConfigKey> {
    all().find(|key| key.name == name)
}

/// All keys.
pub(super) fn all() -> impl Iterator<Item = &'static ConfigKey> {
    CONFIG_KEYS.iter().flat_map(|(_, keys)| keys.iter())
}

impl Kind {
    /// The type and range in words, for errors and tables.
    #[must_use]
    pub fn describe(&self) -> String {
        match *self {
            Self::Bool => "true or false".to_owned(),
            Self::Auto => "true, false or auto".to_owned(),
            Self::Int(min, i64::MAX) => format!("a whole number from {min}"),
            Self::Int(min, max) => format!("a whole number from {min} to {max}"),
            Self::Float(min, f64::MAX) => format!("a number from {min}"),
            Self::Float(min, max) => format!("a number from {min} to {max}"),
            Self::Share => "a number from 0, below 1".to_owned(),
            Self::Amount => "a whole number, or a share below 1".to_owned(),
            Self::Text => "a text".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::Choice(words) => words.join(", "),
            Self::Choices(words) => format!("a list of {}", words.join(", ")),
            Self::Texts => "a list of texts".to_owned(),
            Self::TextOrTexts => "a text or a list of texts".to_owned(),
            Self::Ints => "a list of whole numbers".to_owned(),
            Self::Numbers => "a mapping of patterns to numbers".to_owned(),
            Self::Map => "a mapping".to_owned(),
            Self::Files => "a path, a mapping with `path`, or a list of them".to_owned(),
        }
    }
}

/// A row of the table.
const fn key_of(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    others: &'static [&'static str],
    help: &'static str,
) -> ConfigKey {
    ConfigKey {
        name,
        kind,
        default,
        others,
        help,
    }
}

//! The flags for sampling and for the end of a text, spelled as in llama.cpp.

use crate::flags::prompt::unescaped;
use crate::outcome::UsageError;
use crate::ui::input;
use anyhow::Context as _;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use sluice::core::sampler::{
    LogitBias, SampleError, SamplerChain, SamplerConfig, SamplerOrder, SamplerOrderError,
};
use sluice::core::tokenizer::Tokenizer;
use sluice::sequence::StopStrings;
use sluice_text::grammar::{Grammar, GrammarSource};
use sluice_text::sampling::{
    PARAMETERS, Parameter, Sampler, SamplingSettings, Setting, random_seed,
};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Set the random seed; -1 draws one and reports it
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..))]
    pub(crate) seed: i64,
    /// Set the samplers and their order, separated by semicolons
    #[arg(long, value_name = "NAMES", default_value_t = SamplerOrder::DEFAULT.to_string(),
        overrides_with = "sampling_seq")]
    pub(crate) samplers: String,
    /// Set the samplers and their order by letters, such as edskypmxt
    #[arg(
        long,
        value_name = "LETTERS",
        visible_alias = "sampler-seq",
        overrides_with = "samplers"
    )]
    pub(crate) sampling_seq: Option<String>,
    #[command(flatten)]
    pub(crate) numbers: NumberArgs,
    /// DRY: set a sequence breaker instead of \n : " *; may be repeated, "none" disables all
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) dry_sequence_breaker: Vec<String>,
    /// Add a bias to a token's logit, such as 15043+1, 15043-1 or 15043-inf; may be repeated
    #[arg(short = 'l', long, value_name = "ID±BIAS", value_parser = parse_bias)]
    pub(crate) logit_bias: Vec<LogitBias>,
    /// Continue where the model would end the text
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Constrain the text to a grammar in llama.cpp's notation (GBNF)
    #[arg(long, value_name = "GBNF", group = "constraint")]
    pub(crate) grammar: Option<String>,
    /// Constrain the text to the grammar in a file
    #[arg(long, value_name = "FILE", group = "constraint")]
    pub(crate) grammar_file: Option<PathBuf>,
    /// Constrain the text to a JSON schema; {} is any JSON
    #[arg(short, long, value_name = "SCHEMA", group = "constraint")]
    pub(crate) json_schema: Option<String>,
    /// Constrain the text to the JSON schema in a file [short: -jf]
    #[arg(long, value_name = "FILE", group = "constraint")]
    pub(crate) json_schema_file: Option<PathBuf>,
    /// Print a JSON line per token instead of text, with the log-probabilities of the N most likely tokens
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=1000))]
    pub(crate) logprobs: Option<u32>,
    /// End after this text and print it (in a chat: end the turn); may be repeated
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) reverse_prompt: Vec<String>,
    /// Stop before this text without printing it; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
}

impl SamplingArgs {
    /// The options set by the flags. A seed is drawn if none is given. With `escapes`, texts may
    /// contain `\n` and the like.
    ///
    /// # Errors
    /// A flag is out of range; the error names it.
    pub(crate) fn settings(&self, escapes: bool) -> Result<SamplingSettings, UsageError> {
        let config = self.config()?;
        SamplerChain::new(config).map_err(|error| match error {
            SampleError::Setting { name } => {
                let flag = Parameter::of(name).map_or(name, |parameter| parameter.flag);
                UsageError(format!("--{flag} is out of range"))
            }
            error => UsageError(error.to_string()),
        })?;
        Ok(SamplingSettings {
            config,
            biases: self.logit_bias.clone(),
            ignore_eos: self.ignore_eos,
            dry_sequence_breakers: self.breakers(escapes)?,
            n_probs: self.logprobs.map(|n| n as usize),
            ..SamplingSettings::default()
        })
    }

    /// The sampler for a vocabulary and contexts of `n_ctx` tokens.
    ///
    /// # Errors
    /// A flag does not match the vocabulary, or a grammar cannot be read or is invalid.
    pub(crate) fn sampler(
        &self,
        settings: &SamplingSettings,
        tokenizer: &Tokenizer<'_>,
        n_ctx: usize,
    ) -> anyhow::Result<Sampler> {
        let sampler = Sampler::new(settings, tokenizer, n_ctx)?;
        let Some((source, flag)) = self.grammar_source()? else {
            return Ok(sampler);
        };
        let grammar = Grammar::new(&source, tokenizer).with_context(|| match &source {
            GrammarSource::Gbnf(text) | GrammarSource::JsonSchema(text)
                if !flag.contains(' ') && is_file_name(text) =>
            {
                format!("{flag} {text} ({flag}-file reads a file)")
            }
            _ => flag,
        })?;
        Ok(sampler.with_grammar(grammar))
    }

    /// The grammar, and its name in errors.
    fn grammar_source(&self) -> anyhow::Result<Option<(GrammarSource, String)>> {
        let read = |flag: &str, path: &Path| {
            let name = format!("{flag} {}", path.display());
            let text = input::text("file", path).with_context(|| name.clone())?;
            anyhow::Ok((text, name))
        };
        Ok(if let Some(text) = &self.grammar {
            Some((GrammarSource::Gbnf(text.clone()), "--grammar".into()))
        } else if let Some(path) = &self.grammar_file {
            let (text, name) = read("--grammar-file", path)?;
            Some((GrammarSource::Gbnf(text), name))
        } else if let Some(text) = &self.json_schema {
            Some((
                GrammarSource::JsonSchema(text.clone()),
                "--json-schema".into(),
            ))
        } else if let Some(path) = &self.json_schema_file {
            let (text, name) = read("--json-schema-file", path)?;
            Some((GrammarSource::JsonSchema(text), name))
        } else {
            None
        })
    }

    /// The strings that end a text.
    ///
    /// # Errors
    /// Escapes do not produce UTF-8.
    pub(crate) fn stops(&self, escapes: bool) -> Result<StopStrings, UsageError> {
        let mut stops = StopStrings::new();
        for text in &self.reverse_prompt {
            stops.add(&unescaped("--reverse-prompt", text, escapes)?, true);
        }
        for text in &self.stop {
            stops.add(&unescaped("--stop", text, escapes)?, false);
        }
        Ok(stops)
    }

    fn config(&self) -> Result<SamplerConfig, UsageError> {
        let config = self.numbers.0;
        if config.dry.base < 1.0 {
            let base = config.dry.base;
            return Err(UsageError(format!("--dry-base {base} is below 1")));
        }
        Ok(SamplerConfig {
            seed: u64::try_from(self.seed).unwrap_or_else(|_| random_seed()),
            order: self.order()?,
            ..config
        })
    }

    fn order(&self) -> Result<SamplerOrder, UsageError> {
        let wrong =
            |flag: &str, error: SamplerOrderError<'_>| UsageError(format!("{flag}: {error}"));
        match &self.sampling_seq {
            Some(letters) => {
                SamplerOrder::from_letters(letters).map_err(|e| wrong("--sampling-seq", e))
            }
            None => SamplerOrder::from_names(&self.samplers).map_err(|e| wrong("--samplers", e)),
        }
    }

    fn breakers(&self, escapes: bool) -> Result<Vec<String>, UsageError> {
        let flag = "--dry-sequence-breaker";
        if self.dry_sequence_breaker.is_empty() {
            return Ok(SamplingSettings::default().dry_sequence_breakers);
        }
        // "none" discards the values before it.
        let given = self
            .dry_sequence_breaker
            .rsplit(|text| text == "none")
            .next();
        let given = given.unwrap_or_default().iter();
        given.map(|text| unescaped(flag, text, escapes)).collect()
    }
}

/// Whether a text that should be a grammar looks like the name of a grammar file.
fn is_file_name(text: &str) -> bool {
    let is_word =
        !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || "{=\"".contains(c));
    is_word && (text.contains('.') || Path::new(text).exists())
}

/// The numbers of [`PARAMETERS`], as flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberArgs(SamplerConfig);

impl Args for NumberArgs {
    fn augment_args(command: Command) -> Command {
        command.args(
            PARAMETERS
                .iter()
                .zip(&*TEXTS)
                .map(|(parameter, texts)| number_arg(parameter, texts)),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for NumberArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut numbers = Self(SamplerConfig::DEFAULT);
        numbers.update_from_arg_matches(matches)?;
        Ok(numbers)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (parameter, texts) in PARAMETERS.iter().zip(&*TEXTS) {
            match &parameter.setting {
                Setting::Float(place) => {
                    let given = matches.get_one(&texts.id);
                    given.map(|&number| (place.set)(&mut self.0, number))
                }
                Setting::Int(place) => {
                    let given = matches.get_one(&texts.id);
                    given.map(|&number| (place.set)(&mut self.0, number))
                }
            };
        }
        Ok(())
    }
}

fn number_arg(parameter: &'static Parameter, texts: &'static Texts) -> Arg {
    let arg = Arg::new(texts.id.as_str())
        .long(parameter.flag)
        .visible_aliases(parameter.flag_alias)
        .help(parameter.help)
        .allow_negative_numbers(true)
        .default_value(texts.default.as_str());
    match &parameter.setting {
        Setting::Float(place) => arg
            .value_name(if *place.range.end() > 1.0 { "X" } else { "P" })
            .value_parser(value_parser!(f32)),
        Setting::Int(place) => {
            // llama.cpp treats any number below 1 as all tokens.
            let least = match parameter.flag {
                "top-k" => i64::from(i32::MIN),
                _ => *place.range.start(),
            };
            arg.value_name("N")
                .value_parser(value_parser!(i64).range(least..=*place.range.end()))
        }
    }
}

/// clap requires texts that live as long as the program.
struct Texts {
    id: String,
    default: String,
}

static TEXTS: LazyLock<[Texts; PARAMETERS.len()]> = LazyLock::new(|| {
    PARAMETERS.each_ref().map(|parameter| Texts {
        id: parameter.flag.replace('-', "_"),
        default: match &parameter.setting {
            Setting::Float(place) => (place.get)(&SamplerConfig::DEFAULT).to_string(),
            Setting::Int(place) => (place.get)(&SamplerConfig::DEFAULT).to_string(),
        },
    })
});

/// Parses `ID+BIAS` or `ID-BIAS`.
fn parse_bias(written: &str) -> Result<LogitBias, String> {
    let wrong = || "expected a token id, + or -, and a number or inf, such as 15043-1.5".to_owned();
    let sign = written.find(['+', '-']).ok_or_else(wrong)?;
    let (id, bias) = written.split_at(sign);
    let id = id.trim().parse().map_err(|_| wrong())?;
    let bias: f32 = bias.parse().map_err(|_| wrong())?;
    if bias.is_nan() {
        return Err(wrong());
    }
    Ok(LogitBias { id, bias })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(args: &[&str]) -> Result<SamplerConfig, clap::Error> {
        let command = NumberArgs::augment_args(Command::new("sluice").no_binary_name(true));
        let matches = command.try_get_matches_from(args)?;
        NumberArgs::from_arg_matches(&matches).map(|numbers| numbers.0)
    }

    #[test]
    fn flags_are_the_tables() {
        assert_eq!(numbers(&[]).unwrap(), SamplerConfig::DEFAULT);
        for parameter in &PARAMETERS {
            let mut expected = SamplerConfig::DEFAULT;
            let text = match &parameter.setting {
                Setting::Float(place) => {
                    (place.set)(&mut expected, -7.5);
                    "-7.5".to_owned()
                }
                Setting::Int(place) => {
                    (place.set)(&mut expected, *place.range.end());
                    place.range.end().to_string()
                }
            };
            for flag in [Some(parameter.flag), parameter.flag_alias]
                .into_iter()
                .flatten()
            {
                let given = numbers(&[&format!("--{flag}"), &text]).unwrap();
                assert_eq!(given, expected, "--{flag} {text}");
            }
        }
        assert_eq!(numbers(&["--top-k", "-5"]).unwrap().top_k, 0);
        for wrong in [
            ["--mirostat", "3"],
            ["--repeat-last-n", "-2"],
            ["--min-keep", "-1"],
        ] {
            assert!(numbers(&wrong).is_err(), "{wrong:?}");
        }
    }
}

//! The flags that say how tokens are chosen and where a text ends, as llama.cpp spells them.

use crate::flags::prompt::unescaped;
use crate::outcome::UsageError;
use crate::ui::input;
use anyhow::Context as _;
use clap::{Args, value_parser};
use core::hash::{BuildHasher as _, Hasher as _};
use sluice::core::sampler::{
    DryConfig, LogitBias, MirostatVersion, SampleError, SamplerChain, SamplerConfig, SamplerOrder,
    SamplerOrderError,
};
use sluice::core::tokenizer::Tokenizer;
use sluice::sequence::StopStrings;
use sluice_text::grammar::{Grammar, GrammarSource};
use sluice_text::sampling::{Sampler, SamplingSettings};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Set the random seed; -1 draws one and reports it
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..))]
    pub(crate) seed: i64,
    /// Samplers in the order in which they run, separated by semicolons
    #[arg(long, value_name = "NAMES", default_value_t = SamplerOrder::DEFAULT.to_string(),
        overrides_with = "sampling_seq")]
    pub(crate) samplers: String,
    /// The same by letters, such as edskypmxt
    #[arg(
        long,
        value_name = "LETTERS",
        visible_alias = "sampler-seq",
        overrides_with = "samplers"
    )]
    pub(crate) sampling_seq: Option<String>,
    /// Set the temperature; 0 always picks the likeliest token
    #[arg(
        long,
        visible_alias = "temperature",
        value_name = "X",
        default_value_t = 0.8,
        allow_negative_numbers = true
    )]
    pub(crate) temp: f32,
    /// Let the temperature vary by so much to both sides, with the entropy
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub(crate) dynatemp_range: f32,
    /// How it varies: the entropy's share of the largest one to this power
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub(crate) dynatemp_exp: f32,
    /// Sample from the N likeliest tokens; 0 from all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 40,
        allow_negative_numbers = true
    )]
    pub(crate) top_k: i32,
    /// Keep top tokens up to this total probability; 1 is off
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.95,
        allow_negative_numbers = true
    )]
    pub(crate) top_p: f32,
    /// Drop tokens below this share of the best; 0 is off
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.05,
        allow_negative_numbers = true
    )]
    pub(crate) min_p: f32,
    /// Choose among the most typical tokens that together exceed this probability; 1 among all
    #[arg(
        long,
        visible_alias = "typical-p",
        value_name = "P",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub(crate) typical: f32,
    /// Choose among tokens within so many standard deviations of the best logit; -1 among all
    #[arg(long, visible_alias = "top-n-sigma", value_name = "X", default_value_t = -1.0,
        allow_negative_numbers = true)]
    pub(crate) top_nsigma: f32,
    /// Chance of leaving out all but the least likely of the top choices
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(crate) xtc_probability: f32,
    /// Probability that makes a top choice; above 0.5 is off
    #[arg(long, value_name = "P", default_value_t = 0.1)]
    pub(crate) xtc_threshold: f32,
    /// Least number of tokens that top-p, min-p, typical and XTC leave
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) min_keep: u32,
    /// Latest tokens that the penalties look at; 0 none, -1 all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        allow_negative_numbers = true,
        value_parser = value_parser!(i32).range(-1..)
    )]
    pub(crate) repeat_last_n: i32,
    /// Divide the logits of repeated tokens by this; 1 is off
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub(crate) repeat_penalty: f32,
    /// Subtracted once from the logits of tokens that occurred
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) presence_penalty: f32,
    /// Subtracted per occurrence from the logits of tokens that occurred
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) frequency_penalty: f32,
    /// DRY: penalty for a token that would continue a repetition; 0 is off
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) dry_multiplier: f32,
    /// DRY: growth of the penalty per repeated token, at least 1
    #[arg(long, value_name = "X", default_value_t = 1.75)]
    pub(crate) dry_base: f32,
    /// DRY: longest repetition that is not penalised more than once
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) dry_allowed_length: u32,
    /// DRY: latest tokens that are searched; 0 none, -1 all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        allow_negative_numbers = true,
        value_parser = value_parser!(i32).range(-1..)
    )]
    pub(crate) dry_penalty_last_n: i32,
    /// DRY: text across which nothing counts as repeated, instead of \n : " *; may be given
    /// several times, "none" is none
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) dry_sequence_breaker: Vec<String>,
    /// Aim at a surprise instead: 1 Mirostat, 2 Mirostat 2.0; of the samplers, only the
    /// temperature then runs
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = value_parser!(u8).range(0..=2))]
    pub(crate) mirostat: u8,
    /// Mirostat's learning rate
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    pub(crate) mirostat_lr: f32,
    /// The surprise that Mirostat aims at, in bits
    #[arg(long, value_name = "X", default_value_t = 5.0)]
    pub(crate) mirostat_ent: f32,
    /// Change a token's logit, such as 15043+1, 15043-1 or 15043-inf; may be given several times
    #[arg(short = 'l', long, value_name = "ID±BIAS", value_parser = parse_bias)]
    pub(crate) logit_bias: Vec<LogitBias>,
    /// Go on where the model would end the text
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Keep to a grammar in llama.cpp's notation (GBNF)
    #[arg(long, value_name = "GBNF", group = "constraint")]
    pub(crate) grammar: Option<String>,
    /// Keep to the grammar in a file
    #[arg(long, value_name = "FILE", group = "constraint")]
    pub(crate) grammar_file: Option<PathBuf>,
    /// Keep to a JSON schema; {} is any JSON
    #[arg(short, long, value_name = "SCHEMA", group = "constraint")]
    pub(crate) json_schema: Option<String>,
    /// Keep to the JSON schema in a file [short: -jf]
    #[arg(long, value_name = "FILE", group = "constraint")]
    pub(crate) json_schema_file: Option<PathBuf>,
    /// Instead of text, print a JSON line for every token: its log-probability and those of the N
    /// likeliest tokens, before any sampler
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=1000))]
    pub(crate) logprobs: Option<u32>,
    /// End after this text and print it (in a chat: give the turn back); may be given several times
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) reverse_prompt: Vec<String>,
    /// Stop before this text without printing it; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
}

impl SamplingArgs {
    /// What the flags ask for; the seed is drawn where none is given. With `escapes`, texts may
    /// have `\n` and the like.
    ///
    /// # Errors
    /// A flag is out of range; the message names it.
    pub(crate) fn settings(&self, escapes: bool) -> Result<SamplingSettings, UsageError> {
        let config = self.config()?;
        SamplerChain::new(config).map_err(|error| match error {
            SampleError::Setting { name } => {
                UsageError(format!("--{} is out of range", flag(name)))
            }
            error => UsageError(error.to_string()),
        })?;
        Ok(SamplingSettings {
            config,
            biases: self.logit_bias.clone(),
            ignore_eos: self.ignore_eos,
            dry_sequence_breakers: self.breakers(escapes)?,
            n_probs: self.logprobs.map(|n| n as usize),
        })
    }

    /// What these flags make for a vocabulary and contexts of `n_ctx` tokens.
    ///
    /// # Errors
    /// A flag that does not go with the vocabulary; a grammar that cannot be read or is wrong.
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

    /// The grammar, and what an error calls it.
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
    /// Escapes that make no UTF-8.
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
        if self.dry_base < 1.0 {
            let base = self.dry_base;
            return Err(UsageError(format!("--dry-base {base} is below 1")));
        }
        // Every RandomState has keys of its own, from the kernel's random numbers.
        let drawn = || std::hash::RandomState::new().build_hasher().finish() >> 32;
        Ok(SamplerConfig {
            seed: u64::try_from(self.seed).unwrap_or_else(|_| drawn()),
            order: self.order()?,
            temperature: self.temp,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exp,
            top_k: u32::try_from(self.top_k).unwrap_or(0),
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical,
            top_n_sigma: self.top_nsigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            min_keep: self.min_keep,
            repeat_last_n: all_if_negative(self.repeat_last_n),
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            dry: DryConfig {
                multiplier: self.dry_multiplier,
                base: self.dry_base,
                allowed_length: self.dry_allowed_length,
                penalty_last_n: all_if_negative(self.dry_penalty_last_n),
            },
            mirostat: match self.mirostat {
                0 => MirostatVersion::Off,
                1 => MirostatVersion::V1,
                _ => MirostatVersion::V2,
            },
            mirostat_tau: self.mirostat_ent,
            mirostat_eta: self.mirostat_lr,
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
        // "none" takes back what came before it.
        let given = self
            .dry_sequence_breaker
            .rsplit(|text| text == "none")
            .next();
        let given = given.unwrap_or_default().iter();
        given.map(|text| unescaped(flag, text, escapes)).collect()
    }
}

/// Whether a text that should be a grammar looks like the name of a file with one.
fn is_file_name(text: &str) -> bool {
    let is_word =
        !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || "{=\"".contains(c));
    is_word && (text.contains('.') || Path::new(text).exists())
}

/// The flag that sets a field of [`SamplerConfig`].
fn flag(field: &str) -> String {
    match field {
        "temperature" => "temp".into(),
        "dynatemp_exponent" => "dynatemp-exp".into(),
        "typical_p" => "typical".into(),
        "top_n_sigma" => "top-nsigma".into(),
        "mirostat_tau" => "mirostat-ent".into(),
        "mirostat_eta" => "mirostat-lr".into(),
        field => field.replace('_', "-"),
    }
}

fn all_if_negative(n: i32) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// `ID+BIAS` or `ID-BIAS`.
fn parse_bias(written: &str) -> Result<LogitBias, String> {
    let wrong = || "write a token id, + or -, and a number or inf, such as 15043-1.5".to_owned();
    let sign = written.find(['+', '-']).ok_or_else(wrong)?;
    let (id, bias) = written.split_at(sign);
    let id = id.trim().parse().map_err(|_| wrong())?;
    let bias: f32 = bias.parse().map_err(|_| wrong())?;
    if bias.is_nan() {
        return Err(wrong());
    }
    Ok(LogitBias { id, bias })
}

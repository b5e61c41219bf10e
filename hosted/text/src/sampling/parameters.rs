//! The table of numeric sampling parameters. Flags, request fields, the C library's defaults and Python's checks are
//! derived from it or tested against it.
#![forbid(unsafe_code)]

use core::hash::{BuildHasher as _, Hasher as _};
use core::ops::RangeInclusive;
use sluice_core::sampler::{MirostatVersion, SamplerConfig};
use std::hash::RandomState;

/// A numeric sampling parameter. Its default is taken from [`SamplerConfig::DEFAULT`].
#[derive(Debug)]
pub struct Parameter {
    /// The request field, as llama-server spells it.
    pub name: &'static str,
    /// Another name of the field.
    pub alias: Option<&'static str>,
    /// The flag without its dashes, as llama.cpp spells it.
    pub flag: &'static str,
    /// Another name of the flag.
    pub flag_alias: Option<&'static str>,
    /// What it does, in one line, for lists of flags.
    pub help: &'static str,
    /// Its type, its range, and how to access it in the configuration.
    pub setting: Setting,
}

/// The type of a [`Parameter`].
#[derive(Debug)]
pub enum Setting {
    /// A 32-bit float.
    Float(Place<f32>),
    /// An integer.
    Int(Place<i64>),
}

/// Accessors for a number in a [`SamplerConfig`], and the range that a request may use.
#[derive(Debug)]
pub struct Place<T> {
    /// The range for requests. Flags accept any finite float, as llama.cpp's do.
    pub range: RangeInclusive<T>,
    /// Reads it; -1 for "all", if the range includes -1.
    pub get: fn(&SamplerConfig) -> T,
    /// Sets it.
    pub set: fn(&mut SamplerConfig, T),
}

impl Parameter {
    /// The parameter with this name, as used in [`SampleError::Setting`](sluice_core::sampler::SampleError::Setting).
    #[must_use]
    pub fn of(name: &str) -> Option<&'static Self> {
        PARAMETERS.iter().find(|parameter| parameter.name == name)
    }
}

macro_rules! float {
    ($name:literal, $flag:literal, $($field:ident).+, $range:expr, $help:literal $(, $alias:ident: $other:literal)?) => {
        Parameter {
            name: $name,
            flag: $flag,
            help: $help,
            setting: Setting::Float(Place {
                range: $range,
                get: |config| config.$($field).+,
                set: |config, x| config.$($field).+ = x,
            }),
            $($alias: Some($other),)?
            ..MIROSTAT
        }
    };
}

/// A number of tokens; values below 0 are `$all`.
macro_rules! count {
    ($name:literal, $flag:literal, $($field:ident).+, $least:literal, $all:expr, $help:literal) => {
        Parameter {
            name: $name,
            flag: $flag,
            help: $help,
            setting: Setting::Int(Place {
                range: $least..=u32::MAX as i64,
                get: |config| match config.$($field).+ {
                    u32::MAX if $all == u32::MAX => -1,
                    n => i64::from(n),
                },
                set: |config, n| config.$($field).+ = u32::try_from(n).unwrap_or($all),
            }),
            ..MIROSTAT
        }
    };
}

/// All parameters, in llama-server's order.
#[rustfmt::skip]
pub static PARAMETERS: [Parameter; 22] = [
    float!("temperature", "temp", temperature, 0.0..=100.0,
        "Set the temperature; 0 always picks the most likely token", flag_alias: "temperature"),
    float!("dynatemp_range", "dynatemp-range", dynatemp_range, 0.0..=100.0,
        "Set the dynamic temperature's range (± this value, by entropy)"),
    float!("dynatemp_exponent", "dynatemp-exp", dynatemp_exponent, -100.0..=100.0,
        "Set the exponent of the entropy in the dynamic temperature"),
    count!("top_k", "top-k", top_k, -1, 0,
        "Sample from the N most likely tokens; 0 from all"),
    float!("top_p", "top-p", top_p, 0.0..=1.0,
        "Keep top tokens up to this total probability; 1 is off"),
    float!("min_p", "min-p", min_p, 0.0..=1.0,
        "Drop tokens below this share of the best; 0 is off"),
    float!("top_n_sigma", "top-nsigma", top_n_sigma, -1.0..=1000.0,
        "Keep tokens within this many standard deviations of the best logit; -1 keeps all", flag_alias: "top-n-sigma"),
    float!("xtc_probability", "xtc-probability", xtc_probability, 0.0..=1.0,
        "XTC: set the probability of removing all but the least likely top token"),
    float!("xtc_threshold", "xtc-threshold", xtc_threshold, 0.0..=1.0,
        "XTC: set the minimum probability of a top token; above 0.5 is off"),
    float!("typical_p", "typical", typical_p, 0.0..=1.0,
        "Keep the most typical tokens up to this total probability; 1 is off", flag_alias: "typical-p"),
    count!("repeat_last_n", "repeat-last-n", repeat_last_n, -1, u32::MAX,
        "Penalise the last N tokens; 0 none, -1 all"),
    float!("repeat_penalty", "repeat-penalty", repeat_penalty, 0.01..=100.0,
        "Divide the logits of repeated tokens by this; 1 is off", alias: "repetition_penalty"),
    float!("presence_penalty", "presence-penalty", presence_penalty, -100.0..=100.0,
        "Subtract this once from the logits of tokens that have occurred"),
    float!("frequency_penalty", "frequency-penalty", frequency_penalty, -100.0..=100.0,
        "Subtract this from the logits of tokens for each of their occurrences"),
    float!("dry_multiplier", "dry-multiplier", dry.multiplier, 0.0..=100.0,
        "DRY: set the penalty for continuing a repetition; 0 is off"),
    float!("dry_base", "dry-base", dry.base, 1.0..=100.0,
        "DRY: set the factor of the penalty per repeated token, at least 1"),
    count!("dry_allowed_length", "dry-allowed-length", dry.allowed_length, 0, 0,
        "DRY: set the maximum length of repetitions that get the lowest penalty"),
    count!("dry_penalty_last_n", "dry-penalty-last-n", dry.penalty_last_n, -1, u32::MAX,
        "DRY: search the last N tokens for repetitions; 0 none, -1 all"),
    MIROSTAT,
    float!("mirostat_tau", "mirostat-ent", mirostat_tau, 0.0..=1000.0,
        "Set Mirostat's target surprise, in bits"),
    float!("mirostat_eta", "mirostat-lr", mirostat_eta, 0.0..=100.0,
        "Set Mirostat's learning rate"),
    count!("min_keep", "min-keep", min_keep, 0, 0,
        "Set the minimum number of tokens that top-p, min-p, typical and XTC keep"),
];

const MIROSTAT: Parameter = Parameter {
    name: "mirostat",
    alias: None,
    flag: "mirostat",
    flag_alias: None,
    help: "Use Mirostat (1) or Mirostat 2.0 (2), after the temperature and instead of all other samplers",
    setting: Setting::Int(Place {
        range: 0..=2,
        get: |config| config.mirostat as i64,
        set: |config, n| {
            config.mirostat = match n {
                0 => MirostatVersion::Off,
                1 => MirostatVersion::V1,
                _ => MirostatVersion::V2,
            }
        },
    }),
};

/// A number for texts such as JSON: of those that round to `x`, the one with the fewest digits. 0.8, where `f64::from` gives
/// 0.800000011920929.
#[must_use]
pub fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or_else(|_| f64::from(x))
}

/// A random seed, for requests that do not set one.
#[must_use]
pub fn random_seed() -> u64 {
    // Each RandomState has its own keys, from the kernel's random numbers.
    RandomState::new().build_hasher().finish() >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::sampler::{SampleError, SamplerChain};

    #[test]
    fn a_number_is_shown_in_as_few_digits_as_it_has() {
        for (x, shown) in [
            (0.8, "0.8"),
            (1e-6, "0.000001"),
            (-3.5, "-3.5"),
            (f32::MAX, "340282350000000000000000000000000000000"),
        ] {
            assert_eq!(decimal(x).to_string(), shown);
        }
        assert!(decimal(f32::NAN).is_nan() && decimal(f32::NEG_INFINITY) == f64::NEG_INFINITY);
        for bits in (0..=u32::MAX).step_by(104_729) {
            let x = f32::from_bits(bits);
            #[expect(clippy::cast_possible_truncation, reason = "that is the question")]
            let back = decimal(x) as f32;
            assert!(back.to_bits() == bits || x.is_nan(), "{x}");
        }
    }

    #[test]
    fn a_parameter_sets_one_number_and_names_it() {
        let mut names = std::collections::HashSet::new();
        for parameter in &PARAMETERS {
            let spelled = [Some(parameter.name), parameter.alias]
                .into_iter()
                .flatten();
            assert!(spelled.into_iter().all(|name| names.insert(name)));
            let mut config = SamplerConfig::DEFAULT;
            match &parameter.setting {
                Setting::Int(place) => {
                    assert!(place.range.contains(&(place.get)(&config)));
                    for n in [*place.range.end(), 0, 1] {
                        (place.set)(&mut config, n);
                        let read = (place.get)(&config);
                        assert!(read == n || (read == -1 && n == i64::from(u32::MAX)));
                    }
                    (place.set)(&mut config, (place.get)(&SamplerConfig::DEFAULT));
                }
                Setting::Float(place) => {
                    let default = (place.get)(&config);
                    assert!(place.range.contains(&default));
                    (place.set)(&mut config, f32::INFINITY);
                    let name = parameter.name;
                    let error = SamplerChain::new(config).unwrap_err();
                    assert_eq!(error, SampleError::Setting { name });
                    (place.set)(&mut config, default);
                }
            }
            assert_eq!(config, SamplerConfig::DEFAULT, "{}", parameter.name);
        }
    }
}

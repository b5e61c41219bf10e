//! Modes of leaving neurons out, by name.

use core::fmt;
use core::str::FromStr;
use sluice_core::engine::NeuronSignal;

/// Which neurons of feed-forward networks are left unread, or out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SparseMode {
    /// Those that change no bit, of files by neuron.
    Exact,
    /// None.
    Off,
    /// In addition those that a rule finds to matter little: results change, and with them the model's fingerprint.
    Approximate(SparseRule, Option<NeuronSignal>),
}

/// A rule that leaves neurons out, before it is fitted to a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SparseRule {
    /// A threshold for the signal: of each layer from the calibration file, or one for all.
    Threshold(Option<f32>),
    /// A share of neurons that is kept over all layers, from the calibration file: the file's own, or another.
    Target(Option<f32>),
    /// The number of neurons that each network keeps.
    TopK(usize),
    /// The error of a network's output that is allowed, as a share of the root of the sum of squares of all contributions.
    Budget(f32),
    /// Those that a predictor does not choose: of a file of `sluice sparsify --predictor`, or the model's own.
    Predictor,
}

/// Why a text is not a mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SparseModeError {
    /// A mode has a value, or a signal, that it does not take.
    #[error("{mode} takes {expected}, found {found:?}")]
    Value {
        /// The mode.
        mode: String,
        /// What it takes.
        expected: &'static str,
        /// What was given.
        found: String,
    },
    /// Not the name of a mode.
    #[error("expected exact, off, threshold, target, top-k, budget or predictor, found {0:?}")]
    Unknown(String),
}

impl SparseMode {
    /// Whether it needs the calibration file of `sluice sparsify`.
    #[must_use]
    pub const fn needs_file(self) -> bool {
        matches!(
            self,
            Self::Approximate(SparseRule::Threshold(None) | SparseRule::Target(_), _)
        )
    }

    /// Whether it changes results.
    #[must_use]
    pub const fn is_approximate(self) -> bool {
        matches!(self, Self::Approximate(..))
    }
}

impl FromStr for SparseMode {
    type Err = SparseModeError;

    fn from_str(text: &str) -> Result<Self, SparseModeError> {
        let (name, rest) = match text.split_once(':') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        let wrong = |expected| SparseModeError::Value {
            mode: name.to_owned(),
            expected,
            found: rest.unwrap_or_default().to_owned(),
        };
        // A value, a signal, or a value and a signal.
        let (value, signal) = match rest {
            None => (None, None),
            Some(rest) => match rest.rsplit_once(':') {
                Some((value, name)) => (Some(value), Some(name)),
                None if signal_of(rest).is_some() => (None, Some(rest)),
                None => (Some(rest), None),
            },
        };
        let signal = match signal {
            None => None,
            Some(text) => Some(
                signal_of(text)
                    .ok_or_else(|| wrong("gate, product or contribution as its signal"))?,
            ),
        };
        let float = |expected, is_in_range: fn(f32) -> bool| {
            let number = |text: &str| text.parse().ok().filter(|x| is_in_range(*x));
            let value = value.map(|text| number(text).ok_or_else(|| wrong(expected)));
            value.transpose()
        };
        let rule = match name {
            "exact" | "off" if rest.is_some() => return Err(wrong("no value")),
            "exact" => return Ok(Self::Exact),
            "off" => return Ok(Self::Off),
            "threshold" => {
                let at_least_0 = |x: f32| x >= 0.0 && x.is_finite();
                SparseRule::Threshold(float("a number of at least 0, or none", at_least_0)?)
            }
            "target" => {
                let is_share = |x: f32| x > 0.0 && x <= 1.0;
                SparseRule::Target(float("a share between 0 and 1, or none", is_share)?)
            }
            "top-k" => {
                let n = value.and_then(|text| text.parse().ok()).filter(|n| *n > 0);
                SparseRule::TopK(n.ok_or_else(|| wrong("a number of neurons"))?)
            }
            "budget" => {
                let expected = "a share between 0 and 1";
                let share = float(expected, |x| (0.0..=1.0).contains(&x))?;
                match signal {
                    None | Some(NeuronSignal::Contribution) => {}
                    Some(_) => return Err(wrong("no signal but contribution")),
                }
                SparseRule::Budget(share.ok_or_else(|| wrong(expected))?)
            }
            "predictor" if rest.is_some() => return Err(wrong("no value")),
            "predictor" => SparseRule::Predictor,
            _ => return Err(SparseModeError::Unknown(name.to_owned())),
        };
        Ok(Self::Approximate(rule, signal))
    }
}

impl fmt::Display for SparseMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rule, signal) = match self {
            Self::Exact => return f.write_str("exact"),
            Self::Off => return f.write_str("off"),
            Self::Approximate(rule, signal) => (rule, signal),
        };
        match rule {
            SparseRule::Threshold(None) => f.write_str("threshold"),
            SparseRule::Threshold(Some(x)) => write!(f, "threshold:{x}"),
            SparseRule::Target(None) => f.write_str("target"),
            SparseRule::Target(Some(x)) => write!(f, "target:{x}"),
            SparseRule::TopK(n) => write!(f, "top-k:{n}"),
            SparseRule::Budget(x) => return write!(f, "budget:{x}"),
            SparseRule::Predictor => return f.write_str("predictor"),
        }?;
        match signal {
            Some(signal) => write!(f, ":{}", signal_name(*signal)),
            None => Ok(()),
        }
    }
}

/// The signals by name.
const SIGNALS: [(&str, NeuronSignal); 3] = [
    ("gate", NeuronSignal::Gate),
    ("product", NeuronSignal::Product),
    ("contribution", NeuronSignal::Contribution),
];

/// The signal called `name`.
#[must_use]
pub fn signal_of(name: &str) -> Option<NeuronSignal> {
    let found = SIGNALS.iter().find(|(known, _)| *known == name);
    found.map(|(_, signal)| *signal)
}

/// The name of a signal.
#[must_use]
pub fn signal_name(signal: NeuronSignal) -> &'static str {
    let found = SIGNALS.iter().find(|(_, known)| *known == signal);
    found.map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for text in [
            "exact",
            "off",
            "threshold",
            "threshold:0.5",
            "threshold:gate",
            "threshold:0.01:product",
            "target",
            "target:0.3",
            "target:0.25:gate",
            "top-k:512",
            "top-k:1:contribution",
            "budget:0.05",
            "predictor",
        ] {
            assert_eq!(
                text.parse::<SparseMode>()
                    .map(|mode| mode.to_string())
                    .as_deref(),
                Ok(text)
            );
        }
        assert_eq!(
            "budget:0.1:contribution".parse(),
            "budget:0.1".parse::<SparseMode>().map(|mode| match mode {
                SparseMode::Approximate(rule, _) =>
                    SparseMode::Approximate(rule, Some(NeuronSignal::Contribution)),
                mode => mode,
            })
        );
    }

    #[test]
    fn what_is_not_a_mode_is_refused_by_name() {
        let error = |text: &str| {
            text.parse::<SparseMode>()
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default()
        };
        for (text, part) in [
            ("predictor:0.9", "predictor takes no value"),
            ("off:1", "off takes no value"),
            ("fast", "found \"fast\""),
            ("threshold:-1", "threshold takes a number of at least 0"),
            ("threshold:nan", "threshold takes"),
            ("threshold:1:loud", "gate, product or contribution"),
            ("target:0", "target takes a share"),
            ("top-k", "top-k takes a number of neurons, found \"\""),
            (
                "top-k:0.5",
                "top-k takes a number of neurons, found \"0.5\"",
            ),
            ("budget", "budget takes a share"),
            ("budget:2", "budget takes a share"),
            ("budget:0.1:gate", "no signal but contribution"),
        ] {
            assert!(error(text).contains(part), "{text}: {}", error(text));
        }
    }
}

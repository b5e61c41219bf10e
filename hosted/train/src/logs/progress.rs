//! The progress line.

use core::fmt;
use core::time::Duration;

/// A line of progress, such as
/// `step 120/900 epoch 0.40 loss 1.873 grad_norm 0.82 lr 1.7e-4 tok/s 91 (labels 63) mem 2.1 GB eta 1h02`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgressLine {
    /// Steps taken, and steps of the run.
    pub steps: [u64; 2],
    /// Passes over the rows.
    pub epoch: f64,
    /// The loss since the last line.
    pub loss: f64,
    /// The norm of the gradient before it was clipped.
    pub grad_norm: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// The speed since the last line.
    pub pace: Pace,
    /// Memory of the process; `None` if it is not known.
    pub memory_bytes: Option<u64>,
    /// Time to the end of the run.
    pub eta: Duration,
}

/// What was done in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// The time.
    pub time: Duration,
    /// Steps.
    pub n_steps: u64,
    /// Tokens of the rows.
    pub n_tokens: u64,
    /// Labelled tokens among them.
    pub n_labels: u64,
}

impl Pace {
    /// Adds a step.
    pub fn add(&mut self, time: Duration, n_tokens: u64, n_labels: u64) {
        self.time += time;
        self.n_steps += 1;
        self.n_tokens += n_tokens;
        self.n_labels += n_labels;
    }

    /// Tokens per second, and labelled tokens per second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 tokens")]
    pub fn per_second(&self) -> [f64; 2] {
        let seconds = self.time.as_secs_f64();
        [self.n_tokens, self.n_labels].map(|n| match seconds > 0.0 {
            true => n as f64 / seconds,
            false => 0.0,
        })
    }

    /// The time for further steps.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 steps")]
    pub fn time_for(&self, n_steps: u64) -> Duration {
        let seconds = self.time.as_secs_f64() * n_steps as f64 / self.n_steps.max(1) as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

impl fmt::Display for ProgressLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([step, all], [tokens, labels]) = (self.steps, self.pace.per_second());
        write!(f, "step {step}/{all} epoch {:.2}", self.epoch)?;
        write!(f, " loss {}", Short(self.loss, 3))?;
        write!(f, " grad_norm {}", Short(self.grad_norm, 2))?;
        match self.learning_rate > 0.0 {
            true => write!(f, " lr {:.1e}", self.learning_rate)?,
            false => write!(f, " lr 0")?,
        }
        write!(f, " tok/s {} (labels {})", Speed(tokens), Speed(labels))?;
        if let Some(bytes) = self.memory_bytes {
            #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
            let gigabytes = bytes as f64 / 1e9;
            write!(f, " mem {gigabytes:.1} GB")?;
        }
        write!(f, " eta {}", Eta(self.eta))
    }
}

/// A number with decimals, or with an exponent where they would not show it.
struct Short(f64, usize);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, decimals) = *self;
        let is_plain = number == 0.0 || (0.01..1e4).contains(&number.abs());
        match is_plain || !number.is_finite() {
            true => write!(f, "{number:.decimals$}"),
            false => write!(f, "{number:.2e}"),
        }
    }
}

struct Speed(f64);

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = usize::from(self.0 < 9.95);
        write!(f, "{:.decimals$}", self.0)
    }
}

struct Eta(Duration);

impl fmt::Display for Eta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let [minutes, hours, days] = [60, 3600, 86_400].map(|unit| seconds / unit);
        match () {
            () if days > 9999 => write!(f, "unknown"),
            () if days > 0 => write!(f, "{days}d{:02}h", hours % 24),
            () if hours > 0 => write!(f, "{hours}h{:02}", minutes % 60),
            () if minutes > 0 => write!(f, "{minutes}m{:02}", seconds % 60),
            () => write!(f, "{seconds}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Eta, Pace, ProgressLine, Short};
    use core::time::Duration;

    #[test]
    fn a_line_says_where_the_run_is() {
        let mut pace = Pace::default();
        for _ in 0..2 {
            pace.add(Duration::from_millis(2500), 455, 315);
        }
        let mut line = ProgressLine {
            steps: [120, 900],
            epoch: 0.4,
            loss: 1.8734,
            grad_norm: 0.8249,
            learning_rate: 1.7e-4,
            pace: Pace {
                n_tokens: 455,
                n_labels: 315,
                ..pace
            },
            memory_bytes: Some(2_130_000_000),
            eta: Duration::from_secs(3720),
        };
        let expected = "step 120/900 epoch 0.40 loss 1.873 grad_norm 0.82 lr 1.7e-4 tok/s 91 (labels 63) mem 2.1 GB \
                        eta 1h02";
        assert_eq!(line.to_string(), expected);
        (line.learning_rate, line.memory_bytes, line.pace) = (0.0, None, Pace::default());
        let expected = "step 120/900 epoch 0.40 loss 1.873 grad_norm 0.82 lr 0 tok/s 0.0 (labels 0.0) eta 1h02";
        assert_eq!(line.to_string(), expected);
        assert_eq!(pace.time_for(100), Duration::from_secs(250));
    }

    #[test]
    fn numbers_and_times_are_short() {
        let short = [0.0, 0.004_23, 12.0, 123_456.0, f64::NAN].map(|x| Short(x, 3).to_string());
        assert_eq!(short, ["0.000", "4.23e-3", "12.000", "1.23e5", "NaN"]);
        let times =
            [0, 59, 61, 3600, 90_000, u64::MAX].map(|s| Eta(Duration::from_secs(s)).to_string());
        assert_eq!(times, ["0s", "59s", "1m01", "1h00", "1d01h", "unknown"]);
    }
}

//! Sums between two lines of a log.

/// Sums over the steps since the last line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogWindow {
    /// Steps.
    pub n_steps: u64,
    /// The sum of the steps' losses, each a mean over the labelled tokens of the step.
    pub loss: f64,
    /// Labelled tokens.
    pub n_labels: u64,
    /// Labelled tokens that had the largest logit.
    pub n_correct: u64,
}

impl LogWindow {
    /// Adds a step: the sum of its tokens' losses, its labelled tokens, and those that had the largest logit.
    pub fn add(&mut self, loss_sum: f64, n_labels: u64, n_correct: u64) {
        self.n_steps += 1;
        self.loss += loss_sum / exact(n_labels);
        self.n_labels += n_labels;
        self.n_correct += n_correct;
    }

    /// The mean of the steps' losses, as TRL logs it; `None` without a step.
    #[must_use]
    pub fn mean_loss(&self) -> Option<f64> {
        (self.n_steps > 0).then(|| self.loss / exact(self.n_steps))
    }

    /// The share of labelled tokens that had the largest logit; `None` without such a token.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        (self.n_labels > 0).then(|| exact(self.n_correct) / exact(self.n_labels))
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
const fn exact(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::LogWindow;

    #[test]
    fn sums_between_lines_are_means_of_steps() {
        let mut window = LogWindow::default();
        assert_eq!((window.mean_loss(), window.accuracy()), (None, None));
        window.add(6.0, 3, 1);
        window.add(4.0, 1, 1);
        assert_eq!(
            (window.mean_loss(), window.accuracy()),
            (Some(3.0), Some(0.5))
        );
    }
}

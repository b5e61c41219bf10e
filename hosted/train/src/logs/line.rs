//! A line of the log.

use serde_json::{Map, Value, json};

/// A line of the log: what was measured at a step.
#[derive(Clone, Debug, PartialEq)]
pub struct LogLine {
    /// Steps taken.
    pub step: u64,
    /// Passes over the rows, with the part of the current one.
    pub epoch: f64,
    /// What was measured.
    pub values: Vec<(Metric, f64)>,
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// What a log has, by the names of transformers and TRL.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Metric { $($(#[$doc])* $variant,)* }

        impl Metric {
            /// All of them, in the order of the columns of `log.csv`.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

metrics! {
    /// The mean of the steps' losses since the last line.
    Loss = "loss";
    /// The norm of the gradient before it was clipped.
    GradNorm = "grad_norm";
    /// The learning rate of the last step.
    LearningRate = "learning_rate";
    /// Tokens of all rows so far.
    NumTokens = "num_tokens";
    /// The share of labelled tokens that had the largest logit.
    MeanTokenAccuracy = "mean_token_accuracy";
    /// The loss of the rows for evaluation.
    EvalLoss = "eval_loss";
    /// The same share of the rows for evaluation.
    EvalMeanTokenAccuracy = "eval_mean_token_accuracy";
    /// Seconds of an evaluation.
    EvalRuntime = "eval_runtime";
    /// Rows per second of an evaluation.
    EvalSamplesPerSecond = "eval_samples_per_second";
    /// Seconds of the run.
    TrainRuntime = "train_runtime";
    /// Rows per second of the run.
    TrainSamplesPerSecond = "train_samples_per_second";
    /// Steps per second of the run.
    TrainStepsPerSecond = "train_steps_per_second";
    /// The mean of the losses of all steps.
    TrainLoss = "train_loss";
}

impl Metric {
    /// The name in TensorBoard, as transformers' `rewrite_logs` makes it.
    #[must_use]
    pub fn tag(self) -> String {
        match self.name().strip_prefix("eval_") {
            Some(rest) => format!("eval/{rest}"),
            None => format!("train/{}", self.name()),
        }
    }
}

impl LogLine {
    /// The line as transformers has it in `log_history`. A number that is not finite is null.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut all = Map::new();
        for (metric, value) in &self.values {
            all.insert(metric.name().to_owned(), number(*metric, *value));
        }
        all.insert("epoch".to_owned(), json!(self.epoch));
        all.insert("step".to_owned(), json!(self.step));
        Value::Object(all)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "tokens are a whole number below 2^53"
)]
fn number(metric: Metric, value: f64) -> Value {
    match metric {
        Metric::NumTokens if value.is_finite() => json!(value as u64),
        _ => json!(value),
    }
}

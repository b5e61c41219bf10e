//! A page of metrics in Prometheus' text format.

use super::Metrics;
use super::histogram::Counter;
use core::fmt::{self, Write as _};
use sluice::speculate::Figures;
use std::sync::Arc;

/// A page that is being written.
pub(super) struct Page<'m> {
    pub(super) text: String,
    /// Each model, with its labels.
    pub(super) models: Vec<(String, &'m Metrics)>,
}

/// A counter of the whole server, in Prometheus' text format.
pub(crate) fn counter(name: &str, help: &str, n: u64) -> String {
    format!("# HELP sluice:{name} {help}\n# TYPE sluice:{name} counter\nsluice:{name} {n}\n")
}

/// A gauge of the whole server, in Prometheus' text format.
pub(crate) fn gauge(name: &str, help: &str, n: usize) -> String {
    format!("# HELP sluice:{name} {help}\n# TYPE sluice:{name} gauge\nsluice:{name} {n}\n")
}

impl<'m> Page<'m> {
    pub(super) fn new(models: &'m [Arc<Metrics>]) -> Self {
        Self {
            text: String::new(),
            models: models
                .iter()
                .map(|metrics| (labels(metrics), &**metrics))
                .collect(),
        }
    }

    pub(super) fn head(&mut self, name: &str, kind: &str, help: &str) -> fmt::Result {
        writeln!(
            self.text,
            "# HELP sluice:{name} {help}\n# TYPE sluice:{name} {kind}"
        )
    }

    pub(super) fn each(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        of: fn(&Metrics) -> f64,
    ) -> fmt::Result {
        self.head(name, kind, help)?;
        for (labels, m) in &self.models {
            writeln!(self.text, "sluice:{name}{{{labels}}} {:?}", of(m))?;
        }
        Ok(())
    }

    pub(super) fn count(
        &mut self,
        name: &str,
        help: &str,
        of: fn(&Metrics) -> &Counter,
    ) -> fmt::Result {
        let name = format!("{name}_total");
        self.head(&name, "counter", help)?;
        for (labels, m) in &self.models {
            writeln!(self.text, "sluice:{name}{{{labels}}} {}", of(m).value())?;
        }
        Ok(())
    }
}

fn labels(metrics: &Metrics) -> String {
    format!("model_name=\"{}\",engine=\"0\"", escaped(&metrics.model))
}

pub(super) fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

/// A metric: its name, its help text, and how to read it.
pub(super) type Row<Of> = (&'static str, &'static str, Of);

/// A table of [`Row`]s.
macro_rules! rows {
    ($($name:literal $help:literal $of:expr;)*) => {
        [$(($name, $help, $of)),*]
    };
}
pub(super) use rows;

type DraftCount = fn(&Figures) -> u64;

pub(super) const SPECULATION: [Row<DraftCount>; 3] = rows! {
    "spec_decode_num_drafts" "Number of draft verifications." |all| all.n_drafts;
    "spec_decode_num_draft_tokens" "Number of draft tokens." |all| all.n_draft;
    "spec_decode_num_accepted_tokens" "Number of accepted draft tokens." |all| all.n_accepted;
};
pub(super) const PER_POSITION: &str = "spec_decode_num_accepted_tokens_per_pos";
pub(super) const PER_POSITION_HELP: &str =
    "Number of accepted draft tokens, by position in the draft.";

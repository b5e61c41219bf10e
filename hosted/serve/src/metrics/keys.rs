//! The metrics of keys.

use super::page::escaped;
use core::fmt::Write as _;

/// What the requests with a key have used since the server started.
#[derive(Clone, Debug, Default)]
pub struct KeyFigures {
    /// The key's name.
    pub name: String,
    /// Requests that were let in.
    pub n_requests: u64,
    /// Requests that were refused because the budget was overdrawn.
    pub n_over_budget: u64,
    /// Requests that were refused because all streams were in use.
    pub n_over_streams: u64,
    /// Tokens of prompts that were read.
    pub n_read: u64,
    /// Tokens of prompts that were found in the cache.
    pub n_cached: u64,
    /// Tokens that were written.
    pub n_written: u64,
    /// Texts that wait or run now.
    pub n_streams: usize,
    /// Tokens left in the budget, if there is one; negative for debt.
    pub budget: Option<f64>,
}

/// The values of a metric for a key, each with further labels.
type Samples = fn(&KeyFigures) -> Vec<(&'static str, String)>;

/// Name, kind and help of each metric.
const FAMILIES: [(&str, &str, &str, Samples); 7] = [
    (
        "requests_total",
        "counter",
        "Number of requests that were let in, by key.",
        |key| one(key.n_requests),
    ),
    (
        "refused_total",
        "counter",
        "Number of requests that were refused, by key and reason.",
        |key| {
            let refused = [
                (",reason=\"budget\"", key.n_over_budget),
                (",reason=\"streams\"", key.n_over_streams),
            ];
            refused.map(|(label, n)| (label, n.to_string())).into()
        },
    ),
    (
        "prompt_tokens_total",
        "counter",
        "Number of prompt tokens read, without cached ones, by key.",
        |key| one(key.n_read),
    ),
    (
        "prompt_tokens_cached_total",
        "counter",
        "Number of prompt tokens found in the cache, by key.",
        |key| one(key.n_cached),
    ),
    (
        "generation_tokens_total",
        "counter",
        "Number of tokens generated, by key.",
        |key| one(key.n_written),
    ),
    (
        "streams",
        "gauge",
        "Number of texts that wait or run, by key.",
        |key| one(key.n_streams as u64),
    ),
    (
        "budget_tokens",
        "gauge",
        "Tokens left in the budget, by key; negative for debt.",
        |key| {
            key.budget
                .map(|level| ("", format!("{level:.1}")))
                .into_iter()
                .collect()
        },
    ),
];

fn one(n: u64) -> Vec<(&'static str, String)> {
    vec![("", n.to_string())]
}

/// The metrics of keys in Prometheus' text format; empty without keys.
#[must_use]
pub fn format_keys(keys: &[KeyFigures]) -> String {
    let mut page = String::new();
    let families = FAMILIES.iter().filter(|_| !keys.is_empty());
    for (name, kind, help, samples) in families {
        // Writing to a string cannot fail.
        let _written = writeln!(
            page,
            "# HELP sluice:key_{name} {help}\n# TYPE sluice:key_{name} {kind}"
        );
        for key in keys {
            let label = escaped(&key.name);
            for (labels, value) in samples(key) {
                let _written =
                    writeln!(page, "sluice:key_{name}{{key=\"{label}\"{labels}}} {value}");
            }
        }
    }
    page
}

//! Statistics of experts on disk. A store counts from when its model was loaded; these are sums over all loads of the
//! model.

use super::page::{Page, Row, rows};
use core::fmt::{self, Write as _};
use core::time::Duration;
use sluice::experts::{ExpertStats, READ_TIMES};

/// Sums over a model's stores.
#[derive(Debug, Default)]
pub(super) struct Experts {
    /// The sums of stores that no longer exist.
    before: Sums,
    now: Sums,
    /// The store that is counting now.
    store: u32,
    /// The number of reads in progress.
    n_reading: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    hits: u64,
    misses: u64,
    evictions: u64,
    read_bytes: u64,
    failures: u64,
    guessed: u64,
    guessed_needed: u64,
    stall: Duration,
    read_time: Duration,
    read_times: [u64; READ_TIMES.len() + 1],
}

impl Experts {
    /// Takes the counts of store `store`; later stores have higher numbers.
    pub(super) fn count(&mut self, store: u32, stats: &ExpertStats) {
        if store < self.store {
            return;
        }
        if store > self.store {
            self.before = self.sums();
            self.store = store;
        }
        self.n_reading = stats.n_reading;
        self.now = Sums {
            hits: stats.hits,
            misses: stats.needed - stats.hits,
            evictions: stats.evictions,
            read_bytes: stats.read_bytes,
            failures: stats.failures,
            guessed: stats.guessed,
            guessed_needed: stats.guessed_needed,
            stall: stats.stall,
            read_time: stats.read_time,
            read_times: stats.read_times,
        };
    }

    fn sums(&self) -> Sums {
        let (a, b) = (&self.before, &self.now);
        let mut read_times = a.read_times;
        for (count, more) in read_times.iter_mut().zip(b.read_times) {
            *count += more;
        }
        Sums {
            hits: a.hits + b.hits,
            misses: a.misses + b.misses,
            evictions: a.evictions + b.evictions,
            read_bytes: a.read_bytes + b.read_bytes,
            failures: a.failures + b.failures,
            guessed: a.guessed + b.guessed,
            guessed_needed: a.guessed_needed + b.guessed_needed,
            stall: a.stall + b.stall,
            read_time: a.read_time + b.read_time,
            read_times,
        }
    }
}

/// Writes the metrics of models that have experts on disk; nothing without such models.
pub(super) fn write(page: &mut Page<'_>) -> fmt::Result {
    let of_all: Vec<_> = page
        .models
        .iter()
        .filter_map(|(labels, m)| {
            let experts = m
                .experts
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            (experts.store > 0).then(|| (labels.clone(), experts.sums(), experts.n_reading))
        })
        .collect();
    if of_all.is_empty() {
        return Ok(());
    }
    for (name, help, of) in COUNTS {
        page.head(name, "counter", help)?;
        for (labels, sums, _) in &of_all {
            writeln!(page.text, "sluice:{name}{{{labels}}} {}", of(sums))?;
        }
    }
    let name = "expert_stall_seconds_total";
    let help = "Time that workers waited for experts, summed over workers.";
    page.head(name, "counter", help)?;
    for (labels, sums, _) in &of_all {
        writeln!(
            page.text,
            "sluice:{name}{{{labels}}} {:?}",
            sums.stall.as_secs_f64()
        )?;
    }
    let name = "expert_io_inflight";
    page.head(name, "gauge", "Number of expert reads in flight.")?;
    for (labels, _, n_reading) in &of_all {
        writeln!(page.text, "sluice:{name}{{{labels}}} {n_reading}")?;
    }
    let name = "expert_read_seconds";
    let help = "Duration of the expert reads that a layer waited for.";
    page.head(name, "histogram", help)?;
    for (labels, sums, _) in &of_all {
        let mut total = 0;
        for (count, border) in sums.read_times.iter().zip(READ_TIMES) {
            total += count;
            let border = border.as_secs_f64();
            writeln!(
                page.text,
                "sluice:{name}_bucket{{{labels},le=\"{border:?}\"}} {total}"
            )?;
        }
        total += sums.read_times[READ_TIMES.len()];
        writeln!(
            page.text,
            "sluice:{name}_bucket{{{labels},le=\"+Inf\"}} {total}"
        )?;
        writeln!(page.text, "sluice:{name}_count{{{labels}}} {total}")?;
        let sum = sums.read_time.as_secs_f64();
        writeln!(page.text, "sluice:{name}_sum{{{labels}}} {sum:?}")?;
    }
    Ok(())
}

type Count = fn(&Sums) -> u64;

const COUNTS: [Row<Count>; 7] = rows! {
    "expert_cache_hits_total" "Number of expert lookups that hit the cache." |sums| sums.hits;
    "expert_cache_misses_total" "Number of expert lookups that missed, including experts that were being read." |sums| sums.misses;
    "expert_cache_evictions_total" "Number of experts evicted." |sums| sums.evictions;
    "expert_read_bytes_total" "Bytes of experts read." |sums| sums.read_bytes;
    "expert_read_failures_total" "Number of failed expert reads." |sums| sums.failures;
    "expert_guessed_total" "Number of experts read speculatively." |sums| sums.guessed;
    "expert_guessed_needed_total" "Number of speculatively read experts that were used." |sums| sums.guessed_needed;
};

#[cfg(test)]
mod tests {
    use super::super::{Metrics, format};
    use super::*;
    use std::sync::Arc;

    fn stats(n: u64) -> ExpertStats {
        let mut read_times = [0; READ_TIMES.len() + 1];
        read_times[0] = n;
        read_times[READ_TIMES.len()] = 1;
        ExpertStats {
            needed: 10 * n,
            hits: 7 * n,
            stall: Duration::from_millis(500 * n),
            read_time: Duration::from_secs(4 * n),
            read_times,
            n_reading: 2,
            ..ExpertStats::default()
        }
    }

    #[test]
    fn a_model_that_comes_again_counts_on() {
        let metrics = Arc::new(Metrics::new("m"));
        let page = || {
            format(
                &[Arc::clone(&metrics), Arc::new(Metrics::new("dense"))],
                "avx2",
                None,
            )
        };
        assert!(!page().contains("expert_"), "nothing is on disk");
        metrics.experts(1, &stats(1));
        metrics.experts(1, &stats(2));
        metrics.experts(4, &stats(1));
        // A late report from the first store is ignored.
        metrics.experts(1, &stats(2));
        let (text, labels) = (page(), "model_name=\"m\",engine=\"0\"");
        for line in [
            "expert_cache_hits_total{} 21",
            "expert_cache_misses_total{} 9",
            "expert_stall_seconds_total{} 1.5",
            "expert_io_inflight{} 2",
            "expert_read_seconds_bucket{,le=\"0.0001\"} 3",
            "expert_read_seconds_bucket{,le=\"+Inf\"} 5",
            "expert_read_seconds_count{} 5",
            "expert_read_seconds_sum{} 12.0",
        ] {
            let line = format!("sluice:{}", line.replace('{', &format!("{{{labels}")));
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("expert_io_inflight{model_name=\"dense\""));
    }
}

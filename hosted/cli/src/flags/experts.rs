//! Experts that stay on disk: flags and reports.

use crate::flags::placement;
use crate::outcome::UsageError;
use crate::ui::footer::Setup;
use crate::ui::format::Bytes;
use crate::ui::output::note;
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args, value_parser};
use core::time::Duration;
use serde_json::{Value, json};
use sluice::Model;
use sluice::experts::policy::{EvictionPolicy, ExpertProfile};
use sluice::experts::{ExpertIo, ExpertOptions, ExpertStats};
use sluice::generate::GeneratorTimings;
use std::path::PathBuf;

/// How experts are read from disk.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Experts on disk")]
pub(crate) struct ExpertArgs {
    /// Keep experts or cold neurons on disk and cache up to this many MiB
    ///
    /// Cold neurons exist in models made by `sluice quantize --hot` and `sluice pack --ffn neuron`.
    #[arg(long, visible_alias = "neuron-cache", value_name = "MiB", env = "SLUICE_EXPERT_CACHE", hide_env_values = true,
        value_parser = value_parser!(u32).range(1..=1 << 30))]
    expert_cache: Option<u32>,
    /// Set how experts are read: uring, pread or mmap
    ///
    /// By default the first one that works.
    #[arg(long, value_name = "WAY", requires = "expert_cache",
        value_parser = PossibleValuesParser::new(ExpertIo::ALL.map(ExpertIo::name)))]
    expert_io: Option<String>,
    /// Set the eviction policy of the expert cache
    ///
    /// static never evicts the experts of --expert-profile.
    #[arg(long, value_name = "POLICY", default_value = EvictionPolicy::default().name(), requires = "expert_cache",
        value_parser = PossibleValuesParser::new(EvictionPolicy::ALL.map(EvictionPolicy::name)))]
    expert_policy: String,
    /// Set the profile of the experts that the policy static keeps
    ///
    /// Written by `sluice experts stats --profile-out`.
    #[arg(long, value_name = "FILE", requires = "expert_cache")]
    expert_profile: Option<PathBuf>,
    /// Read experts only when their layer is reached
    #[arg(long, requires = "expert_cache")]
    no_expert_prefetch: bool,
    /// Read experts from copies of the model on other drives, in turn
    #[arg(long, value_name = "DIR", value_delimiter = ',', action = ArgAction::Append, requires = "expert_cache")]
    expert_dir: Vec<PathBuf>,
    /// Append the experts that each layer used to a trace, for `sluice experts`
    #[arg(long, value_name = "FILE", requires = "expert_cache")]
    expert_trace: Option<PathBuf>,
    /// Verify the checksums of experts as they are read
    ///
    /// Clusters of neurons have none: what is read again is compared with its first read.
    #[arg(long, requires = "expert_cache")]
    expert_check: bool,
}

impl ExpertArgs {
    /// Whether experts stay on disk.
    pub(crate) const fn stay_on_disk(&self) -> bool {
        self.expert_cache.is_some()
    }

    /// How experts are read, if they stay on disk.
    ///
    /// # Errors
    /// The profile cannot be read, or the policy has no profile.
    pub(crate) fn options(&self) -> anyhow::Result<Option<ExpertOptions>> {
        let Some(mib) = self.expert_cache else {
            return Ok(None);
        };
        let policy: EvictionPolicy = self
            .expert_policy
            .parse()
            .expect("clap accepts only policies");
        if (policy == EvictionPolicy::Static) != self.expert_profile.is_some() {
            let text = "--expert-policy static requires --expert-profile FILE, and --expert-profile requires it";
            return Err(UsageError(text.into()).into());
        }
        let io = self.expert_io.as_deref();
        let profile = self.expert_profile.as_deref().map(ExpertProfile::read);
        Ok(Some(ExpertOptions {
            io: io.map(|io| io.parse().expect("clap accepts only ways")),
            policy,
            profile: profile.transpose()?,
            prefetch: !self.no_expert_prefetch,
            dirs: self.expert_dir.clone(),
            trace: self.expert_trace.clone(),
            check: self.expert_check,
            ..ExpertOptions::new((mib as usize) << 20)
        }))
    }
}

/// Reports how experts are read, with warnings.
pub(crate) fn say(model: &Model) {
    let Some(experts) = model.experts() else {
        return;
    };
    let stats = experts.stats();
    note(format_args!(
        "{}: {} of {} in memory ({} of {}), read by {}",
        experts.noun(),
        stats.n_slots,
        stats.n_experts,
        Bytes(experts.memory_bytes() as u64),
        Bytes(experts.total_bytes()),
        experts.io_name()
    ));
    for text in experts.notes() {
        note(format_args!("warning: {text}"));
    }
    if let Some(placement) = experts.placement() {
        placement::say(&placement);
    }
}

/// Prints expert statistics as a line of the footer.
pub(crate) fn say_end(model: &Model, setup: &Setup, timings: &GeneratorTimings) {
    let Some(experts) = model.experts() else {
        return;
    };
    let stats = experts.stats();
    let ns = timings.prompt.ns + timings.eval.ns;
    let time = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
    let seconds = time.as_secs_f64().max(1e-9);
    note(format_args!(
        "{:>19} = {:>9.1}% of {} were in memory, {} read ({:.2} GB/s), workers waited {:.1}% of the time",
        experts.noun(),
        100.0 * stats.hit_rate(),
        stats.needed,
        Bytes(stats.read_bytes),
        stats.read_bytes as f64 / 1e9 / seconds,
        stall_percent(&stats, setup.n_workers, time),
    ));
    if let Some(error) = experts.take_error() {
        note(format_args!("warning: {error}"));
    }
}

/// The statistics as JSON fields; null if all experts are in memory.
pub(crate) fn object(model: &Model) -> Value {
    let Some(experts) = model.experts() else {
        return Value::Null;
    };
    let stats = experts.stats();
    json!({
        "io": experts.io_name(),
        "slots": stats.n_slots,
        "needed": stats.needed,
        "hits": stats.hits,
        "hit_rate": stats.hit_rate(),
        "late": stats.late,
        "guessed": stats.guessed,
        "guessed_needed": stats.guessed_needed,
        "read_bytes": stats.read_bytes,
        "guessed_bytes": stats.guessed_bytes,
        "retries": stats.retries,
        "stall_ms": 1e3 * stats.stall.as_secs_f64(),
        "read_p50_ms": stats.read_time_at(0.5).map(|time| 1e3 * time.as_secs_f64()),
    })
}

/// Percentage of the workers' time spent waiting for experts.
pub(crate) fn stall_percent(stats: &ExpertStats, n_workers: usize, time: Duration) -> f64 {
    let all = time.as_secs_f64() * n_workers as f64;
    100.0 * stats.stall.as_secs_f64() / all.max(1e-9)
}

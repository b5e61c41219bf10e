//! A finished test as fields: llama-bench's in its order, then ours.

use super::args::{Setting, Test};
use super::in_turn::{Turn, percentile};
use super::measure::Samples;
use super::roofline::Roofline;
use crate::flags::experts::stall_percent;
use crate::flags::placement::PlacementArgs;
use core::time::Duration;
use sluice::core::kernels::KvType;
use sluice::experts::ExpertStats;
use sluice::host::cpus::CpuList;
use sluice::host::memory;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// How a field is written in typed formats (JSON, SQL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Bool,
    Int,
    Float,
}

/// A field of a row.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) value: String,
}

/// What all tests of a model share.
#[derive(Clone, Debug)]
pub(super) struct ModelFacts {
    /// The path, as given.
    pub(super) filename: String,
    /// A description such as `llama 1.10B Q4_K_M`.
    pub(super) description: String,
    /// Bytes of all tensors.
    pub(super) size: u64,
    pub(super) n_params: u64,
}

/// The placement of threads and memory.
#[derive(Clone, Debug, Default)]
pub(super) struct RowPlacement {
    /// The CPU mask as llama-bench writes it; `0x0` if none was given.
    cpu_mask: String,
    cpu_strict: bool,
    poll: u8,
    /// Huge pages as reported by the kernel, such as `630 of 636 MiB`; empty if not requested.
    huge_pages: String,
}

impl RowPlacement {
    pub(super) fn of(args: &PlacementArgs) -> Self {
        let bits = |list: &CpuList| {
            let bit = |cpu: &usize| 1u128.checked_shl(u32::try_from(*cpu).ok()?);
            list.0.iter().filter_map(bit).fold(0, |all, bit| all | bit)
        };
        let found = memory::report().into_iter();
        let huge = found.filter(|measure| measure.name.starts_with("huge pages"));
        let huge: Vec<_> = huge.map(|measure| measure.found).collect();
        Self {
            cpu_mask: format!("{:#x}", args.cpu_mask.as_ref().map_or(0, bits)),
            cpu_strict: args.cpu_strict.as_deref() == Some("1"),
            poll: args.poll,
            huge_pages: huge.join("; "),
        }
    }
}

/// A finished test.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) test: Test,
    pub(super) model: ModelFacts,
    pub(super) isa: &'static str,
    pub(super) load_mode: String,
    pub(super) time: u64,
    pub(super) samples: Samples,
    /// Statistics of experts that stay on disk.
    pub(super) experts: Option<ExpertStats>,
    pub(super) roofline: Roofline,
    /// The shortest possible time of a repetition according to the roofline, in ns.
    pub(super) limit_ns: f64,
    /// Bytes that a repetition reads, in GGUF sizes, and its operations.
    pub(super) bytes: f64,
    pub(super) ops: f64,
    pub(super) n_pinned: usize,
    pub(super) placement: RowPlacement,
}

impl Row {
    /// An empty row, for the names of its fields.
    pub(super) fn example() -> Self {
        let setting = Setting {
            n_batch: 2048,
            n_ubatch: 512,
            kv: (KvType::F16, KvType::F16),
            n_threads: 1,
            isa: 0,
        };
        Self {
            test: Test {
                setting,
                n_prompt: 32,
                n_gen: 0,
                n_depth: 0,
                n_parallel: 1,
                n_positions: 1,
            },
            model: ModelFacts {
                filename: String::new(),
                description: String::new(),
                size: 0,
                n_params: 0,
            },
            isa: "",
            load_mode: "auto".into(),
            time: 0,
            samples: Samples::new(),
            experts: None,
            roofline: Roofline::default(),
            limit_ns: 0.0,
            bytes: 0.0,
            ops: 0.0,
            n_pinned: 0,
            placement: RowPlacement::default(),
        }
    }

    /// Mean and standard deviation of tokens per second, as llama-bench computes them.
    pub(super) fn tokens_per_second(&self) -> (f64, f64) {
        mean_and_deviation(&self.rates())
    }

    pub(super) fn rates(&self) -> Vec<f64> {
        let tokens = self.test.n_tokens() as f64;
        let rate = |&ns: &u64| 1e9 * tokens / (ns.max(1)) as f64;
        self.samples.ns.iter().map(rate).collect()
    }

    fn mean_ns(&self) -> (f64, f64) {
        let ns: Vec<f64> = self.samples.ns.iter().map(|&ns| ns as f64).collect();
        mean_and_deviation(&ns)
    }

    /// How much of the roofline's limit the test reached, in percent; `None` if it exceeds 100, as
    /// the probe must have failed then.
    pub(super) fn limit_percent(&self) -> Option<f64> {
        let percent = 100.0 * self.limit_ns / self.mean_ns().0.max(1.0);
        (percent <= 100.0).then_some(percent)
    }

    /// GGUF bytes per second, in 10⁹.
    pub(super) fn gb_per_s(&self) -> f64 {
        self.bytes / self.mean_ns().0.max(1.0)
    }

    /// Operations per second, in 10⁹.
    pub(super) fn gops(&self) -> f64 {
        self.ops / self.mean_ns().0.max(1.0)
    }

    /// Share of the workers' time spent waiting for experts.
    fn stall_percent(&self) -> f64 {
        let time = Duration::from_nanos(self.samples.ns.iter().sum());
        let experts = self.experts.unwrap_or_default();
        stall_percent(&experts, self.test.setting.n_threads as usize, time)
    }

    /// Tokens per second of the steps without adapters, with `--in-turn`.
    fn bare_rate(&self) -> f64 {
        let tokens = f64::from(self.test.n_parallel * self.test.n_positions);
        let ns = self.samples.turns.iter().map(|turn| turn.bare_ns);
        match percentile(ns, 50) {
            ns if ns > 0.0 => 1e9 * tokens / ns,
            _ => 0.0,
        }
    }

    /// How many steps of few tokens prefetched far ahead, such as `60 of 128 far`; empty if there
    /// were none.
    fn prefetch(&self) -> String {
        match (self.samples.n_far, self.samples.n_few) {
            (_, 0) => String::new(),
            (far, all) => format!("{far} of {all} far"),
        }
    }

    /// Share of the neurons that could be left unread and were, in percent; `None` if none could be.
    pub(super) fn skipped_percent(&self) -> Option<f64> {
        let neurons = self.samples.neurons;
        (neurons.n > 0).then(|| 100.0 * neurons.n_skipped as f64 / neurons.n as f64)
    }

    /// llama-bench's fields with their values.
    pub(super) fn theirs(&self) -> Vec<Field> {
        let Test { setting, .. } = self.test;
        let (avg_ns, stddev_ns) = self.mean_ns();
        let (avg_ts, stddev_ts) = self.tokens_per_second();
        vec![
            text("build_commit", BUILD_COMMIT),
            int("build_number", 0),
            text("cpu_info", CPU_INFO.as_str()),
            text("gpu_info", ""),
            text("backends", BACKEND),
            text("model_filename", &self.model.filename),
            text("model_type", &self.model.description),
            int("model_size", self.model.size),
            int("model_n_params", self.model.n_params),
            int("n_batch", setting.n_batch),
            int("n_ubatch", setting.n_ubatch),
            int("n_threads", setting.n_threads),
            text("cpu_mask", &self.placement.cpu_mask),
            bool("cpu_strict", self.placement.cpu_strict),
            int("poll", self.placement.poll),
            text("type_k", setting.kv.0.name()),
            text("type_v", setting.kv.1.name()),
            int("n_gpu_layers", -1),
            int("n_cpu_moe", 0),
            text("split_mode", "layer"),
            int("main_gpu", 0),
            bool("no_kv_offload", false),
            int("flash_attn", 1),
            text("devices", "auto"),
            text("tensor_split", "0.00"),
            text("tensor_buft_overrides", "none"),
            text("load_mode", &self.load_mode),
            text("lazy_mode", "auto"),
            bool("embeddings", false),
            int("no_op_offload", 0),
            bool("no_host", false),
            bool("repack", true),
            int("fit_target", 0),
            int("fit_min_ctx", 0),
            int("n_prompt", self.test.n_prompt),
            int("n_gen", self.test.n_gen),
            int("n_depth", self.test.n_depth),
            text("test_time", &utc(self.time)),
            int("avg_ns", rounded(avg_ns)),
            int("stddev_ns", rounded(stddev_ns)),
            float("avg_ts", avg_ts),
            float("stddev_ts", stddev_ts),
        ]
    }

    /// Our own fields.
    pub(super) fn ours(&self) -> Vec<Field> {
        let latency = &self.samples.latency_ns;
        let at = |percentile: f64| {
            if latency.is_empty() {
                0
            } else {
                latency.value_at_percentile(percentile)
            }
        };
        let limit = self.limit_percent();
        let experts = self.experts.unwrap_or_default();
        let tax = |turns: &[Turn]| percentile(turns.iter().map(|turn| turn.tax_percent), 50);
        vec![
            text("isa", self.isa),
            int("n_parallel", self.test.n_parallel),
            int("n_positions", self.test.n_positions),
            int("n_pinned", self.n_pinned),
            text("huge_pages", &self.placement.huge_pages),
            text("prefetch", &self.prefetch()),
            float(
                "neurons_skipped_percent",
                self.skipped_percent().unwrap_or(0.0),
            ),
            float("gb_per_s", self.gb_per_s()),
            float("gops", self.gops()),
            float("probe_gb_per_s", self.roofline.read_gb_per_s),
            float("probe_int8_gops", self.roofline.int8_gops),
            float("probe_bf16_gops", self.roofline.bf16_gops),
            float("probe_f32_gops", self.roofline.f32_gops),
            float("limit_percent", limit.unwrap_or(0.0)),
            text("probe", if limit.is_some() { "ok" } else { "failed" }),
            int("latency_p50_ns", at(50.0)),
            int("latency_p99_ns", at(99.0)),
            int("latency_p999_ns", at(99.9)),
            text(
                "tokens_hash",
                &self.samples.tokens_hash.map_or_else(String::new, hex),
            ),
            float("expert_cache_hit", experts.hit_rate()),
            int("expert_read_bytes", experts.read_bytes),
            float("expert_stall_percent", self.stall_percent()),
            float("bare_ts", self.bare_rate()),
            float("adapter_tax_percent", tax(&self.samples.turns)),
            float("bare_tax_percent", tax(&self.samples.bare_turns)),
        ]
    }
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

pub(super) const BACKEND: &str = "CPU";

/// The commit that the program was built from, if the build recorded it.
pub(super) const BUILD_COMMIT: &str = match option_env!("SLUICE_COMMIT") {
    Some(commit) => commit,
    None => concat!("sluice-", env!("CARGO_PKG_VERSION")),
};

/// The CPU's name according to the kernel.
static CPU_INFO: LazyLock<String> = LazyLock::new(|| {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    name.map_or_else(String::new, |name| {
        name.trim_start_matches([' ', '\t', ':'])
            .trim_end()
            .to_owned()
    })
});

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A time in RFC 3339 format, in UTC.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Converts days to a Gregorian date, in eras of 400 years that begin in March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n.max(1.0);
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|x| (x - mean) * (x - mean)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times in ns are far below 2⁵³"
)]
fn rounded(ns: f64) -> u64 {
    ns.max(0.0) as u64
}

fn text(name: &'static str, value: &str) -> Field {
    Field {
        name,
        kind: Kind::Text,
        value: value.to_owned(),
    }
}

fn bool(name: &'static str, value: bool) -> Field {
    Field {
        name,
        kind: Kind::Bool,
        value: u8::from(value).to_string(),
    }
}

fn int(name: &'static str, value: impl ToString) -> Field {
    Field {
        name,
        kind: Kind::Int,
        value: value.to_string(),
    }
}

fn float(name: &'static str, value: f64) -> Field {
    Field {
        name,
        kind: Kind::Float,
        value: format!("{value:.6}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        // From `date -u -d @N +%FT%TZ`.
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_301_659, "2026-11-21T22:54:19Z"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
    }

    #[test]
    fn means_and_deviations() {
        assert_eq!(mean_and_deviation(&[2.0]), (2.0, 0.0));
        assert_eq!(mean_and_deviation(&[1.0, 3.0]), (2.0, 2.0f64.sqrt()));
    }
}

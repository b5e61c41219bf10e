//! The share of this CPU's single-thread maximum that a kernel reaches.

use core::fmt;
use core::hint::black_box;
use core::time::Duration;
use sluice_kernels::probe::{Peak, Probe};
use sluice_kernels::{KernelTable, KvType, WeightType};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What a call of a kernel does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// What it computes with.
    pub peak: Peak,
    /// Operations; a multiply-add is two.
    pub operations: f64,
    /// Bytes of weights or of keys and values.
    pub bytes: f64,
}

/// A rate, and the probe's for comparison.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// 10⁹ bytes a second.
    pub gb_per_s: f64,
    /// 10⁹ operations a second.
    pub gops: f64,
    /// The probe's rate, 10⁹ operations a second.
    pub peak_gops: f64,
}

impl Work {
    /// The rate of a call that takes `time` on `table`.
    pub fn per(&self, time: Duration, table: &KernelTable) -> Rate {
        let ns = time.as_secs_f64() * 1e9;
        Rate {
            gb_per_s: self.bytes / ns,
            gops: self.operations / ns,
            peak_gops: peak_gops(table, self.peak),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gb_per_s,
            gops,
            peak_gops,
        } = self;
        let percent = 100.0 * gops / peak_gops;
        write!(
            f,
            "{gb_per_s:.2} GB/s, {gops:.1} GOP/s, {percent:.1}% of the probe"
        )?;
        if percent > 100.0 {
            f.write_str(" (probe failed)")?;
        }
        Ok(())
    }
}

/// The best of some runs of a table's probe, measured once.
fn peak_gops(table: &KernelTable, peak: Peak) -> f64 {
    static KNOWN: Mutex<BTreeMap<(&str, u8), f64>> = Mutex::new(BTreeMap::new());
    const ROUNDS: u32 = 20_000;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry((table.name(), peak as u8)).or_insert_with(|| {
        let probe = Probe::of(table);
        let runs = (0..10).map(|_| {
            let start = Instant::now();
            let operations = black_box(probe.compute(peak, ROUNDS)) as f64;
            operations * f64::from(ROUNDS) / start.elapsed().as_secs_f64() / 1e9
        });
        runs.fold(0.0, f64::max)
    })
}

/// What products with weights of that type compute with.
pub const fn weight_peak(ty: WeightType) -> Peak {
    match ty {
        WeightType::F32 | WeightType::F16 => Peak::F32,
        WeightType::BF16 => Peak::Bf16,
        _ => Peak::Int8,
    }
}

/// What attention over keys and values of that type computes with.
pub fn kv_peak(ty: KvType) -> Peak {
    match ty.name() {
        "f32" | "f16" => Peak::F32,
        "bf16" => Peak::Bf16,
        _ => Peak::Int8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables;

    #[test]
    fn rates_are_of_the_time_and_the_tables_probe() {
        let work = Work {
            peak: Peak::F32,
            operations: 2e6,
            bytes: 1e6,
        };
        let table = tables()[0];
        let rate = work.per(Duration::from_millis(1), table);
        assert!((rate.gops - 2.0).abs() < 1e-9 && (rate.gb_per_s - 1.0).abs() < 1e-9);
        assert!(rate.peak_gops > 0.1, "{rate}");
        assert!(rate.to_string().contains("% of the probe"), "{rate}");
    }
}

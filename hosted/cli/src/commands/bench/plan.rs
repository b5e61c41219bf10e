//! The tests of a run: every combination of the flags' values.

use super::args::BenchArgs;
use super::lists::{in_range, numbers};
use crate::outcome::UsageError;
use sluice::core::kernels::KvType;
use sluice::core::team::WORKERS_MAX;

/// The engine that a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) n_batch: u32,
    pub(super) n_ubatch: u32,
    /// The types of keys and values.
    pub(super) kv: (KvType, KvType),
    pub(super) n_threads: u32,
    /// Index into the list of tables.
    pub(super) isa: usize,
}

/// A test: a prompt, generation, or both, at a given depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) setting: Setting,
    pub(super) n_prompt: u32,
    /// Tokens that each sequence generates.
    pub(super) n_gen: u32,
    pub(super) n_depth: u32,
    /// Sequences.
    pub(super) n_parallel: u32,
    /// Positions of each sequence in a generation step.
    pub(super) n_positions: u32,
}

impl Test {
    /// The name in llama-bench's notation, extended by `×` sequences and `/` positions.
    pub(super) fn name(&self) -> String {
        let mut name = match (self.n_prompt, self.n_gen) {
            (n, 0) => format!("pp{n}"),
            (0, n) => format!("tg{n}"),
            (pp, tg) => format!("pp{pp}+tg{tg}"),
        };
        if self.n_parallel > 1 {
            name += &format!(" x{}", self.n_parallel);
        }
        if self.n_positions > 1 {
            name += &format!(" /{}", self.n_positions);
        }
        if self.n_depth > 0 {
            name += &format!(" @ d{}", self.n_depth);
        }
        name
    }

    /// Tokens per repetition over all sequences, from which t/s is computed.
    pub(super) const fn n_tokens(&self) -> u64 {
        self.n_parallel as u64 * (self.n_prompt as u64 + self.n_gen as u64)
    }

    /// Positions that each sequence needs.
    pub(super) const fn n_ctx_each(&self) -> u64 {
        self.n_depth as u64 + self.n_prompt as u64 + self.n_gen as u64
    }
}

impl BenchArgs {
    /// All tests of one model, in llama-bench's order.
    ///
    /// # Errors
    /// A value outside its range, or nothing to measure.
    pub(super) fn tests(
        &self,
        n_isas: usize,
        n_threads_default: usize,
    ) -> Result<Vec<Test>, UsageError> {
        let threads_default = u32::try_from(n_threads_default).unwrap_or(1);
        let threads = in_range(
            "-t",
            numbers(&self.threads, threads_default),
            1,
            WORKERS_MAX,
        )?;
        let batches = in_range("-b", numbers(&self.batch_size, 2048), 1, 1 << 24)?;
        let ubatches = in_range("-ub", numbers(&self.ubatch_size, 512), 1, 1 << 24)?;
        let parallel = in_range("-npl", numbers(&self.n_parallel, 1), 1, 256)?;
        let positions = in_range("-npos", numbers(&self.n_positions, 1), 1, 256)?;
        let prompts = numbers(&self.n_prompt, 512);
        let gens = numbers(&self.n_gen, 128);
        let depths = numbers(&self.n_depth, 0);
        let kv_types = self.kv_types();
        let mut tests = Vec::new();
        let mut push = |setting, n_prompt, n_gen, n_depth, n_parallel, n_positions| {
            tests.push(Test {
                setting,
                n_prompt,
                n_gen,
                n_depth,
                n_parallel,
                n_positions,
            });
        };
        for setting in settings(&batches, &ubatches, &kv_types, &threads, n_isas) {
            for &d in &depths {
                for &n in prompts.iter().filter(|&&n| n > 0) {
                    push(setting, n, 0, d, 1, 1);
                }
                for &n in gens.iter().filter(|&&n| n > 0) {
                    for &s in &parallel {
                        for &p in &positions {
                            push(setting, 0, n, d, s, p);
                        }
                    }
                }
                for pair in &self.n_prompt_gen {
                    if pair.n_prompt + pair.n_gen > 0 {
                        push(setting, pair.n_prompt, pair.n_gen, d, 1, 1);
                    }
                }
            }
        }
        if tests.is_empty() {
            return Err(UsageError(
                "nothing to measure: set -p, -n or -pg to more than 0".to_owned(),
            ));
        }
        Ok(tests)
    }

    /// Checks the requirements of `--in-turn`.
    ///
    /// # Errors
    /// An adapter is missing, or a test has too few generation steps.
    pub(super) fn check_in_turn(&self, tests: &[Test]) -> Result<(), UsageError> {
        if !self.in_turn {
            return Ok(());
        }
        if self.adapters.parts()?.is_empty() && self.lora_each.is_empty() {
            return Err(UsageError(
                "--in-turn compares steps with and without adapters: add --lora or --lora-each"
                    .into(),
            ));
        }
        match tests.iter().find(|test| test.n_gen / test.n_positions < 3) {
            Some(test) => Err(UsageError(format!(
                "--in-turn: {} has fewer than three generation steps (try -p 0 -n 64)",
                test.name()
            ))),
            None => Ok(()),
        }
    }

    /// Every combination of a type of keys and a type of values.
    fn kv_types(&self) -> Vec<(KvType, KvType)> {
        let or_default = |list: &[KvType]| match list {
            [] => vec![KvType::F16],
            list => list.to_vec(),
        };
        let values = or_default(&self.cache_type_v);
        let keys = or_default(&self.cache_type_k);
        let pairs = keys
            .iter()
            .flat_map(|&k| values.iter().map(move |&v| (k, v)));
        pairs.collect()
    }
}

fn settings(
    batches: &[u32],
    ubatches: &[u32],
    kv_types: &[(KvType, KvType)],
    threads: &[u32],
    n_isas: usize,
) -> Vec<Setting> {
    let mut settings = Vec::new();
    for &n_batch in batches {
        for &n_ubatch in ubatches {
            for &kv in kv_types {
                for &n_threads in threads {
                    settings.extend((0..n_isas).map(|isa| Setting {
                        n_batch,
                        n_ubatch,
                        kv,
                        n_threads,
                        isa,
                    }));
                }
            }
        }
    }
    settings
}

//! The flags of `sluice bench`, spelled as in llama-bench, with their lists and ranges.

use crate::flags::adapters::AdapterArgs;
use crate::flags::engine::{LOAD_MODES, activation, kv_types, load_mode};
use crate::flags::experts::ExpertArgs;
use crate::flags::hub::HubArgs;
use crate::flags::names::kernels;
use crate::flags::open::FileUse;
use crate::flags::placement::PlacementArgs;
use crate::flags::sparse::SparseArgs;
use crate::flags::speculation::SpeculationArgs;
use crate::outcome::UsageError;
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args, ValueEnum, value_parser};
use core::str::FromStr;
use sluice::Model;
use sluice::adapter::AdapterBlend;
use sluice::core::kernels::KvType;
use sluice::core::kernels::table::Prefetch;
use sluice::core::model::Activation;
use sluice::core::team::WORKERS_MAX;
use sluice::file::LoadMode;
use std::path::PathBuf;

pub(in super::super) const EXAMPLES: &str = "\
Lists and ranges: 1,2,4 · 1-4 · 0-1024+256 · 1-8*2; a flag given twice adds to its list. Every
combination is a test.

Examples:
  sluice bench -m model.gguf
  sluice bench -m q4.gguf -m q8.gguf -p 512 -n 128 -t 1-4 --isa avx2,avx512
  sluice bench -m model.gguf -p 0 -n 64 -d 1024-8192*2 -ctk f16,q8_0 -ctv f16 -o jsonl
  sluice bench -m model.gguf -p 0 -n 64 -npl 1,2,4,8 -npos 4 --plot out.svg
  sluice bench -m model.gguf --strict -r 10
  sluice bench -m model.gguf -p 0 -n 64 -npl 1,4 --lora-each a,b --lora-dtype int8
  sluice bench -m model.gguf -p 0 -n 256 -r 1 --lora a --in-turn
  sluice bench -m model.gguf -p 0 --prefetch far -o jsonl
  sluice bench -m mixture.slc -p 512 -n 64 --expert-cache 8192 -o jsonl

Columns after llama-bench's: % limit is the part of what memory or arithmetic allow, counted in
the GGUF file's bytes and measured by a probe just before; latencies are of single decode steps.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Set the GGUF or .slc files; by default the built-in model
    #[arg(short, long, value_name = "FILE", value_delimiter = ',')]
    pub(super) model: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) hub: HubArgs,
    /// Set the prompt lengths, in tokens; 0 skips the test [default: 512]
    #[arg(short = 'p', long, value_name = "N", action = ArgAction::Append)]
    n_prompt: Vec<Numbers>,
    /// Set the generation lengths, in tokens; 0 skips the test [default: 128]
    #[arg(short = 'n', long, value_name = "N", action = ArgAction::Append)]
    n_gen: Vec<Numbers>,
    /// Measure a prompt followed by generation, as one test [short: -pg]
    #[arg(long, value_name = "PP,TG", action = ArgAction::Append)]
    pub(super) n_prompt_gen: Vec<PromptGen>,
    /// Set the number of tokens already in the context [default: 0]
    #[arg(short = 'd', long, value_name = "N", action = ArgAction::Append)]
    n_depth: Vec<Numbers>,
    /// Set the numbers of parallel sequences [short: -npl] [default: 1]
    #[arg(long, value_name = "N", action = ArgAction::Append)]
    n_parallel: Vec<Numbers>,
    /// Set the positions per sequence and pass [short: -npos] [default: 1]
    ///
    /// More than one corresponds to verifying draft tokens.
    #[arg(long, value_name = "N", action = ArgAction::Append)]
    n_positions: Vec<Numbers>,
    /// Set the maximum logical batch sizes [default: 2048]
    #[arg(short = 'b', long, value_name = "N", action = ArgAction::Append)]
    batch_size: Vec<Numbers>,
    /// Set the maximum physical batch sizes [short: -ub] [default: 512]
    #[arg(long, value_name = "N", action = ArgAction::Append)]
    ubatch_size: Vec<Numbers>,
    /// Set the KV cache types of keys [short: -ctk] [default: f16]
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = kv_types())]
    cache_type_k: Vec<KvType>,
    /// Set the KV cache types of values [short: -ctv] [default: f16]
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = kv_types())]
    cache_type_v: Vec<KvType>,
    /// Do not rotate keys and values before quantizing them
    ///
    /// Applies to the cache types q8_0, q4_0 and fp8.
    #[arg(long)]
    pub(super) no_kv_rotation: bool,
    /// Set the numbers of threads [default: one per physical core]
    #[arg(short = 't', long, value_name = "N", action = ArgAction::Append)]
    threads: Vec<Numbers>,
    /// Select the kernels [default: the fastest of this CPU]
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = kernels(), env = "SLUICE_ISA",
        hide_env_values = true
    )]
    pub(super) isa: Vec<String>,
    /// Set how weights are loaded [short: -lm]
    ///
    /// none reads the file into memory; mmap maps it, and so does auto without --expert-cache.
    #[arg(long, value_name = "MODE", default_value = "auto",
        value_parser = PossibleValuesParser::new(LOAD_MODES))]
    pub(super) load_mode: String,
    #[command(flatten)]
    pub(super) placement: PlacementArgs,
    #[command(flatten)]
    pub(super) experts: ExpertArgs,
    /// Read embedding rows from the file on demand
    #[arg(long)]
    pub(super) gather_tables: bool,
    /// Set the activation of the networks' gates: relu, drelu or fatrelu:THRESHOLD
    #[arg(long, value_name = "NAME", value_parser = activation)]
    pub(super) activation: Option<Activation>,
    #[command(flatten)]
    pub(super) sparse: SparseArgs,
    /// Set the number of repetitions of each test
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5,
        value_parser = value_parser!(u32).range(1..=100_000))]
    pub(super) repetitions: u32,
    /// Set the output format on stdout
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "md")]
    pub(super) output: Format,
    /// Print results on stderr as well, in this format [short: -oe]
    #[arg(long, value_name = "FORMAT")]
    pub(super) output_err: Option<Format>,
    /// Wait this many seconds before each test
    #[arg(long, value_name = "SECONDS", default_value_t = 0,
        value_parser = value_parser!(u32).range(0..=86_400))]
    pub(super) delay: u32,
    /// Skip the warm-up run before each test
    #[arg(long)]
    pub(super) no_warmup: bool,
    /// Report progress on stderr
    #[arg(long)]
    pub(super) progress: bool,
    /// Set how far ahead matrix products of few tokens prefetch weights
    ///
    /// auto uses what was faster in previous steps [default: auto; near with --strict].
    #[arg(long, value_name = "MODE")]
    pub(super) prefetch: Option<PrefetchMode>,
    /// Make the generated tokens reproducible
    ///
    /// Pins all threads or none, fixes the prompt, decodes greedily and fixes the prefetch distance. Prints a
    /// hash of the tokens and the llama-bench command that measures the same.
    #[arg(long)]
    pub(super) strict: bool,
    #[command(flatten)]
    pub(super) adapters: AdapterArgs,
    /// Assign adapters to parallel sequences in turn: -npl 4 --lora-each a,b
    #[arg(long, value_name = "PATH", value_delimiter = ',', action = ArgAction::Append,
        conflicts_with_all = ["lora", "lora_scaled"])]
    pub(super) lora_each: Vec<PathBuf>,
    /// Omit the adapters in every other step and report their cost
    #[arg(long, conflicts_with = "told")]
    pub(super) in_turn: bool,
    /// Measure speculation on texts from JSONL files instead of running tests
    ///
    /// Each object has a prompt and optionally an answer and a schema. Without an answer the model generates
    /// n_predict tokens. Each text is generated with and without draft tokens, in turn.
    #[arg(long, value_name = "FILE", value_delimiter = ',', action = ArgAction::Append)]
    pub(super) told: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) speculation: SpeculationArgs,
    /// Plot the roofline, all tests, and latencies by percentile (SVG)
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    /// Accept llama-bench's flag; attention is always fused [short: -fa]
    #[arg(long, value_name = "on|auto|1", hide = true,
        value_parser = PossibleValuesParser::new(["on", "auto", "1", "-1"]),
        allow_hyphen_values = true)]
    flash_attn: Option<String>,
}

/// The prefetch distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PrefetchMode {
    Near,
    Far,
    Auto,
}

impl BenchArgs {
    /// Maximum number of tokens of a recorded text and its prompt.
    pub(super) fn n_ctx_told(model: &Model) -> usize {
        model.config().n_ctx_train.clamp(1, 4096)
    }

    /// Which weights stay on disk.
    pub(super) const fn file_use(&self) -> FileUse<'_> {
        FileUse {
            experts: &self.experts,
            tables: self.gather_tables,
            check: false,
        }
    }

    /// The fixed distance, if it is fixed.
    pub(super) fn prefetch(&self) -> Option<Prefetch> {
        match self.prefetch {
            Some(PrefetchMode::Near) => Some(Prefetch::Near),
            Some(PrefetchMode::Far) => Some(Prefetch::Far),
            Some(PrefetchMode::Auto) => None,
            None => self.strict.then_some(Prefetch::Near),
        }
    }
}

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Csv,
    Json,
    Jsonl,
    Md,
    Sql,
}

/// A list in llama-bench's notation: numbers and ranges `first-last`, `first-last+step` or
/// `first-last*factor`, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Numbers(Vec<u32>);

/// Maximum number of values in a list, and the largest value.
const VALUES_MAX: usize = 4096;
const VALUE_MAX: u32 = 1 << 24;

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut values = Vec::new();
        for part in text.split(',') {
            if part.starts_with('-') {
                return Err(format!("{part} is not in 0..={VALUE_MAX}"));
            }
            range(part, &mut values)?;
        }
        Ok(Self(values))
    }
}

/// Appends the numbers of one part of a list.
fn range(part: &str, values: &mut Vec<u32>) -> Result<(), String> {
    let number = |digits: &str| {
        let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let value = digits.parse::<u32>().ok();
        value
            .filter(|&value| all_digits && value <= VALUE_MAX)
            .ok_or_else(|| format!("{digits:?} is not a number from 0 to {VALUE_MAX}"))
    };
    let Some((first, rest)) = part.split_once('-') else {
        values.push(number(part)?);
        return Ok(());
    };
    let at = rest.find(['+', '*']).unwrap_or(rest.len());
    let (last, step) = rest.split_at(at);
    let (first, last) = (number(first)?, number(last)?);
    let step_value = if step.is_empty() {
        1
    } else {
        number(&step[1..])?
    };
    let mut value = first;
    while value <= last {
        if values.len() == VALUES_MAX {
            return Err(format!("{part:?} has more than {VALUES_MAX} values"));
        }
        values.push(value);
        let next = if step.starts_with('*') {
            value.saturating_mul(step_value)
        } else {
            value.saturating_add(step_value)
        };
        if next <= value {
            return Err(format!(
                "{part:?} never reaches its end: it stays at {value}"
            ));
        }
        value = next;
    }
    Ok(())
}

/// `pp,tg` of `-pg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PromptGen {
    pub(super) n_prompt: u32,
    pub(super) n_gen: u32,
}

impl FromStr for PromptGen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Numbers(values) = text.parse()?;
        match values[..] {
            [n_prompt, n_gen] if !text.contains('-') => Ok(Self { n_prompt, n_gen }),
            _ => Err("expected two numbers: prompt,generation".into()),
        }
    }
}

/// The values of one flag, or its default.
fn numbers(lists: &[Numbers], default: u32) -> Vec<u32> {
    if lists.is_empty() {
        return vec![default];
    }
    lists
        .iter()
        .flat_map(|list| list.0.iter().copied())
        .collect()
}

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
    /// There is no adapter, or a test has too few generation steps.
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

    /// The adapters of the sequences, in turn.
    ///
    /// # Errors
    /// An adapter cannot be read, or does not match the model.
    pub(super) fn blends(&self, model: &Model) -> anyhow::Result<Vec<AdapterBlend>> {
        let own = self.adapters.blend(model)?;
        let load = |path: &PathBuf| Ok(self.adapters.load.load(model, path)?.into());
        let each = self.lora_each.iter().map(load);
        own.map(Ok).into_iter().chain(each).collect()
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

    pub(super) fn mode(&self) -> LoadMode {
        load_mode(&self.load_mode, &self.experts, self.gather_tables)
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

/// `values`, if all are in `min..=max`.
fn in_range(flag: &str, values: Vec<u32>, min: u32, max: usize) -> Result<Vec<u32>, UsageError> {
    match values.iter().find(|&&n| n < min || n as usize > max) {
        Some(value) => Err(UsageError(format!(
            "{flag} {value} is out of range: {min} to {max}"
        ))),
        None => Ok(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_as_llama_bench_reads_them() {
        let cases: [(&str, &[u32]); 8] = [
            ("512", &[512]),
            ("1,2,4", &[1, 2, 4]),
            ("1-4", &[1, 2, 3, 4]),
            ("0-1024+256", &[0, 256, 512, 768, 1024]),
            ("1-9*2", &[1, 2, 4, 8]),
            ("5-4", &[]),
            ("7,1-2,9", &[7, 1, 2, 9]),
            ("3-3*1", &[3]),
        ];
        for (text, expected) in cases {
            let found = Numbers::from_str(text).map(|list| list.0);
            if text == "3-3*1" {
                assert!(found.unwrap_err().contains("stays at 3"));
            } else {
                assert_eq!(found.unwrap(), expected, "{text}");
            }
        }
    }

    #[test]
    fn wrong_lists_are_named() {
        for text in [
            "",
            ",",
            "x",
            "1,",
            "-1",
            "1-",
            "1-2+",
            "1-2/2",
            "0-4*2",
            "1-4+0",
            "1-4*1",
            "+3",
            "99999999999",
            "16777217",
            "0-16777216",
            "1--2",
        ] {
            let error = Numbers::from_str(text).unwrap_err();
            assert!(!error.is_empty(), "{text}");
        }
        for text in ["1", "1,2,3", "1-2", "a,b", ""] {
            assert!(PromptGen::from_str(text).is_err(), "{text}");
        }
        let pair = PromptGen::from_str("512,128").unwrap();
        assert_eq!((pair.n_prompt, pair.n_gen), (512, 128));
    }
}

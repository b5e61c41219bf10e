//! Runs tests on an engine and times every step.

use super::choices::Choices;
use super::in_turn::{Turn, turns};
use super::plan::Test;
use super::roofline::{ModelCost, Pass, PassCost, Roofline};
use anyhow::Context as _;
use core::time::Duration;
use hdrhistogram::Histogram;
use sluice::Session;
use sluice::adapter::AdapterBlend;
use sluice::core::engine::{BatchEntry, NeuronCounts, Neurons, Observer, Wants};
use sluice::core::hash::Hash64;
use sluice::core::kernels::table::Prefetch;
use sluice::host::pace::FEW_TOKENS;
use sluice::session::{StepError, StepHooks};

/// Why a test has no result.
#[derive(Debug)]
pub(super) enum Halt {
    /// Interrupted by Ctrl-C.
    Interrupted,
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Halt {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<StepError> for Halt {
    fn from(error: StepError) -> Self {
        match error {
            error if error.is_cancelled() => Self::Interrupted,
            error => Self::Failed(error.into()),
        }
    }
}

/// The measurements of a test.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    /// Times of the repetitions, in ns.
    pub(super) ns: Vec<u64>,
    /// Times of single generation steps, in ns.
    pub(super) latency_ns: Histogram<u64>,
    /// With greedy decoding: a hash of the tokens, equal in every repetition.
    pub(super) tokens_hash: Option<u64>,
    /// The number of steps of few tokens, and how many of them prefetched far ahead.
    pub(super) n_few: u64,
    pub(super) n_far: u64,
    /// Neurons of the steps that could be left unread, and that were.
    pub(super) neurons: Neurons,
    /// Comparison of steps with and without adapters, with `--in-turn`.
    pub(super) turns: Vec<Turn>,
    /// The same comparison among steps without adapters, as a control.
    pub(super) bare_turns: Vec<Turn>,
}

impl Samples {
    pub(super) fn new() -> Self {
        let mut latency_ns = Histogram::new(3).expect("three digits are in range");
        // The histogram's range grows with the recorded values.
        latency_ns.auto(true);
        Self {
            ns: Vec::new(),
            latency_ns,
            tokens_hash: None,
            n_few: 0,
            n_far: 0,
            neurons: Neurons::default(),
            turns: Vec::new(),
            bare_turns: Vec::new(),
        }
    }
}

/// A step to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepPlan {
    /// Positions of each sequence.
    n_positions: u32,
    n_sequences: u32,
    /// Whether logits are computed for the last position, or for all.
    outputs: Outputs,
    is_generation: bool,
    /// Whether the adapters are left out.
    is_bare: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outputs {
    None,
    Last,
    All,
}

/// An engine that runs tests.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) session: Session,
    /// Whether generated tokens are the most likely ones or drawn at random.
    pub(super) greedy: bool,
    pub(super) tokens: Tokens,
    /// Entries of the current step.
    pub(super) batch: Vec<BatchEntry>,
    /// Adapters of the sequences, in turn; empty for the model alone.
    pub(super) adapters: Vec<AdapterBlend>,
    /// Whether every other generation step omits the adapters.
    pub(super) in_turn: bool,
    /// Tokens in the KV cache from earlier tests, which later ones may reuse.
    pub(super) depth: Vec<u32>,
    pub(super) watch: Watch,
}

/// What looks at steps whose time does not count.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Counts of neurons by layer.
    pub(super) neurons: Vec<NeuronCounts>,
    /// What a predictor chooses.
    pub(super) choices: Option<Choices>,
}

impl Runner {
    /// Fills the context to the test's depth, unless it is filled already.
    pub(super) fn fill(&mut self, test: &Test) -> Result<(), Halt> {
        for sequence in 0..test.n_parallel {
            let there = self.depth.get(sequence as usize).copied().unwrap_or(0);
            if there != test.n_depth {
                self.keep(sequence, 0)?;
                self.tokens = Tokens::of(sequence);
                for step in prompt_steps(test.n_depth, test) {
                    self.step(&step, sequence, None)?;
                }
                self.name_depth(sequence, test.n_depth)?;
            } else {
                self.keep(sequence, there)?;
            }
            let n = self.depth.len().max(sequence as usize + 1);
            self.depth.resize(n, 0);
            self.depth[sequence as usize] = test.n_depth;
        }
        Ok(())
    }

    /// Runs one repetition without measuring it.
    pub(super) fn warm_up(&mut self, test: &Test) -> Result<(), Halt> {
        let short = Test {
            n_gen: test.n_gen.min(test.n_positions),
            ..*test
        };
        self.repeat(&short, &mut Samples::new())
    }

    /// Runs the test, once per repetition.
    pub(super) fn measure(
        &mut self,
        test: &Test,
        repetitions: u32,
        mut before_each: impl FnMut(u32),
    ) -> Result<Samples, Halt> {
        let mut samples = Samples::new();
        for i in 0..repetitions {
            before_each(i);
            let before = samples.tokens_hash;
            self.repeat(test, &mut samples)?;
            if before.is_some() && before != samples.tokens_hash {
                let error =
                    anyhow::anyhow!("{}: a repetition generated different tokens", test.name());
                return Err(error.into());
            }
        }
        Ok(samples)
    }

    pub(super) fn repeat(&mut self, test: &Test, samples: &mut Samples) -> Result<(), Halt> {
        self.tokens = Tokens::of(u32::MAX);
        let mut total = Duration::ZERO;
        let mut hash = Hash64::new();
        let (mut last, mut generated_ns) = (None, Vec::new());
        let before = self.session.neurons();
        for mut step in steps(test) {
            step.is_bare = self.in_turn && step.is_generation && generated_ns.len() % 2 == 0;
            let (time, likeliest) = self.step(&step, 0, last)?;
            total += time;
            if self.batch.len() <= FEW_TOKENS {
                samples.n_few += 1;
                samples.n_far += u64::from(self.session.prefetch() == Prefetch::Far);
            }
            if step.is_generation {
                let recorded = samples.latency_ns.record(nanoseconds(time));
                recorded.context("the step took too long to record")?;
                generated_ns.push(nanoseconds(time));
            }
            if let Some(token) = likeliest.filter(|_| self.greedy) {
                hash.write(&token.to_le_bytes());
                last = Some(token);
            }
        }
        let after = self.session.neurons();
        samples.neurons += Neurons {
            n: after.n - before.n,
            n_skipped: after.n_skipped - before.n_skipped,
            bytes: after.bytes - before.bytes,
            bytes_skipped: after.bytes_skipped - before.bytes_skipped,
        };
        samples.ns.push(nanoseconds(total));
        if self.in_turn {
            samples.turns.extend(turns(&generated_ns));
            let bare: Vec<u64> = generated_ns.iter().copied().step_by(2).collect();
            samples.bare_turns.extend(turns(&bare));
        }
        samples.tokens_hash = self.greedy.then(|| hash.finish());
        for sequence in 0..test.n_parallel {
            self.keep(sequence, test.n_depth)?;
        }
        Ok(())
    }

    /// Saves a recurrent state, to return to this depth later.
    fn name_depth(&mut self, sequence: u32, depth: u32) -> Result<(), Halt> {
        let named = self.session.with_state(|state| {
            state.forget(sequence);
            match depth {
                0 => Ok(()),
                _ => state.checkpoint(sequence, sequence),
            }
        });
        Ok(named.context("saving the state at a depth")?)
    }

    /// Removes what follows the first `len` tokens of a sequence.
    fn keep(&mut self, sequence: u32, len: u32) -> Result<(), Halt> {
        let kept = self
            .session
            .with_state(|state| state.rewind(sequence, len as usize));
        Ok(kept.context("clearing the KV cache")?)
    }

    /// Runs a step from `first_sequence` on. `first` is the first token of each sequence, drawn
    /// like the others by default. Returns the elapsed time and the most likely next token.
    fn step(
        &mut self,
        plan: &StepPlan,
        first_sequence: u32,
        first: Option<u32>,
    ) -> Result<(Duration, Option<u32>), Halt> {
        let n_vocab = self.session.model().config().n_vocab;
        self.batch.clear();
        let n_adapters = u32::try_from(self.adapters.len()).unwrap_or(u32::MAX);
        for sequence in first_sequence..first_sequence + plan.n_sequences {
            let start = self.session.state().len(sequence);
            for i in 0..plan.n_positions {
                let drawn = self.tokens.draw(n_vocab);
                let token = first.filter(|_| i == 0).unwrap_or(drawn);
                let wants = match plan.outputs {
                    Outputs::All => Wants::Logits,
                    Outputs::Last if i + 1 == plan.n_positions => Wants::Logits,
                    _ => Wants::Nothing,
                };
                let position = u32::try_from(start)
                    .context("contexts of more than 2³² tokens are not supported")?
                    + i;
                self.batch.push(BatchEntry {
                    adapter: sequence.checked_rem(n_adapters).filter(|_| !plan.is_bare),
                    ..BatchEntry::new(token, sequence, position, wants)
                });
            }
        }
        let (last, greedy) = (self.batch.len() - 1, self.greedy);
        let adapters: Vec<_> = self.adapters.iter().map(AdapterBlend::parts).collect();
        let hooks = StepHooks {
            adapters: &adapters,
            neurons: &self.watch.neurons,
            observer: self.watch.choices.as_ref().map(|it| it as &dyn Observer),
            ..StepHooks::default()
        };
        let stepped = self.session.run(&self.batch, &hooks, |outputs, time| {
            let logits = outputs.logits(last).filter(|_| greedy);
            (time, logits.map(likeliest))
        });
        Ok(stepped?)
    }
}

/// The index of the largest value; the first among equal ones.
fn likeliest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = i;
        }
    }
    u32::try_from(best).unwrap_or(0)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The steps of a repetition.
pub(super) fn steps(test: &Test) -> impl Iterator<Item = StepPlan> {
    let prompt = prompt_steps(test.n_prompt, test);
    let (n_gen, at_once, n_sequences) = (test.n_gen, test.n_positions, test.n_parallel);
    let generation = (0..n_gen)
        .step_by(at_once as usize)
        .map(move |at| StepPlan {
            n_positions: at_once.min(n_gen - at),
            n_sequences,
            outputs: Outputs::All,
            is_generation: true,
            is_bare: false,
        });
    prompt.chain(generation)
}

/// The steps of a prompt of `n` tokens: batches, split into micro-batches. As in llama-bench, the
/// last token of each batch produces logits.
fn prompt_steps(n: u32, test: &Test) -> impl Iterator<Item = StepPlan> + use<> {
    let (n_batch, n_ubatch) = (test.setting.n_batch, test.setting.n_ubatch);
    (0..n).step_by(n_batch as usize).flat_map(move |at| {
        let batch = n_batch.min(n - at);
        (0..batch).step_by(n_ubatch as usize).map(move |piece| {
            let n_positions = n_ubatch.min(batch - piece);
            let is_last = piece + n_positions == batch;
            StepPlan {
                n_positions,
                n_sequences: 1,
                outputs: if is_last {
                    Outputs::Last
                } else {
                    Outputs::None
                },
                is_generation: false,
                is_bare: false,
            }
        })
    })
}

/// The minimum cost of a repetition, and the time it takes on the roofline, in ns.
pub(super) fn limit(test: &Test, cost: &ModelCost, roofline: &Roofline) -> (PassCost, f64) {
    let mut sum = PassCost::default();
    let (mut ns, mut start) = (0.0, f64::from(test.n_depth));
    for step in steps(test) {
        let (positions, sequences) = (f64::from(step.n_positions), f64::from(step.n_sequences));
        let n_outputs = match step.outputs {
            Outputs::None => 0.0,
            Outputs::Last => sequences,
            Outputs::All => sequences * positions,
        };
        let pass = cost.pass(&Pass {
            n_tokens: sequences * positions,
            n_outputs,
            n_attended: start + (positions + 1.0) / 2.0,
            n_cached: sequences * (start + positions),
        });
        ns += roofline.time(&pass).as_secs_f64() * 1e9;
        sum += pass;
        start += positions;
    }
    (sum, ns)
}

/// Maximum number of tokens in a step of `test`, and maximum number of logits rows.
pub(super) fn step_sizes(test: &Test) -> (u32, u32) {
    let generated = test.n_parallel * test.n_positions;
    let prompt = test.n_prompt.max(test.n_depth);
    let prefill = test.setting.n_batch.min(test.setting.n_ubatch).min(prompt);
    (prefill.max(generated), generated.max(1))
}

/// A random number generator with the same sequence in every run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens(u64);

impl Tokens {
    /// The generator of stream `n`.
    pub(super) const fn of(n: u32) -> Self {
        Self(n as u64)
    }

    /// The next token, below `n_vocab` (SplitMix64; the bias is below one in a million).
    fn draw(&mut self, n_vocab: usize) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (((z >> 32) * n_vocab as u64) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Setting;
    use super::*;
    use sluice::core::kernels::KvType;

    fn test(n_prompt: u32, n_gen: u32) -> Test {
        Test {
            setting: Setting {
                n_batch: 100,
                n_ubatch: 40,
                kv: (KvType::F16, KvType::F16),
                n_threads: 1,
                isa: 0,
            },
            n_prompt,
            n_gen,
            n_depth: 0,
            n_parallel: 1,
            n_positions: 1,
        }
    }

    #[test]
    fn prompts_are_cut_as_llama_bench_cuts_them() {
        let found: Vec<_> = steps(&test(130, 0))
            .map(|step| (step.n_positions, step.outputs == Outputs::Last))
            .collect();
        assert_eq!(found, [(40, false), (40, false), (20, true), (30, true)]);
        let several = Test {
            n_positions: 4,
            n_parallel: 2,
            ..test(0, 10)
        };
        let found: Vec<_> = steps(&several).map(|step| step.n_positions).collect();
        assert_eq!(found, [4, 4, 2]);
        assert_eq!(step_sizes(&several), (8, 8));
        assert_eq!(step_sizes(&test(130, 0)), (40, 1));
        assert_eq!(step_sizes(&test(7, 3)), (7, 1));
    }

    #[test]
    fn tokens_are_in_the_vocabulary_and_repeat() {
        let draw = |n| {
            let mut tokens = Tokens::of(n);
            (0..1000).map(|_| tokens.draw(300)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(1).iter().all(|&token| token < 300));
        assert!(draw(1).iter().any(|&token| token > 290));
    }
}

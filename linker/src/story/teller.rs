//! A model that runs one sequence.

use super::drafts::Drafts;
use super::figures::{Drafted, Footer, Timings};

use super::room::Room;
use super::{Machine, StoryError};
use crate::options::Options;
use heapless::Vec;
use sluice_core::engine::{BatchEntry, Engine, EngineError, EngineLimits, EnginePlan};
use sluice_core::engine::{StepOptions, Wants};
use sluice_core::hash::Hash64;
use sluice_core::kernels::KernelTable;
use sluice_core::model::ModelWeights;
use sluice_core::sampler::{Candidate, SamplerChain, SamplerConfig};
use sluice_core::speculate::{POSITIONS_MAX, n_draft};
use sluice_core::team::StopFlag;
use sluice_core::tokenizer::{Detokenizer, Tokenizer};

/// A model that runs one sequence.
pub(super) struct Teller<'t, 'm> {
    machine: &'t dyn Machine,
    tokenizer: &'t Tokenizer<'m>,
    engine: Engine<'m>,
    draw: Draw<'m>,
    drafts: Option<Drafts<'m>>,
    drafted: Drafted,
    /// Tokens entered so far, with room for a whole context.
    history: &'m mut [u32],
    n_history: usize,
    /// The last token of a text that `n` ended, which is not entered yet.
    pending: Option<u32>,
    /// Whether only times are wanted: no output, and only `n` ends it.
    bench: bool,
    timings: Timings,
    /// Ticks of every token, as many as fit; tokens of one step share its time.
    latencies: &'m mut [u64],
}

/// The state for drawing tokens.
struct Draw<'m> {
    sampler: SamplerChain<'m>,
    candidates: &'m mut [Candidate],
    /// Over all logits that were drawn from.
    hash: Hash64,
}

/// Tokens drawn in a step: all but the last are in the context already.
type Drawn = Vec<u32, { POSITIONS_MAX + 1 }>;

/// The sizes of a teller's engine.
pub(super) struct Extent {
    /// Tokens of the text including its prompt.
    pub(super) n_ctx: usize,
    /// Workers of a step.
    pub(super) n_workers: usize,
}

impl<'t, 'm> Teller<'t, 'm> {
    pub(super) fn new(
        machine: &'t dyn Machine,
        tokenizer: &'t Tokenizer<'m>,
        model: ModelWeights<'m>,
        table: &'static KernelTable,
        options: &Options<'_>,
        Extent { n_ctx, n_workers }: Extent,
        room: &mut Room<'m>,
    ) -> Result<Self, StoryError> {
        let config = model.config().clone();
        let n_most = match options.n_draft {
            _ if options.bench => 0,
            None => n_draft(config.is_recurrent()),
            Some(n) => n.min(POSITIONS_MAX),
        };
        let n_most = n_most.min(n_ctx.saturating_sub(1));
        let limits = EngineLimits {
            n_batch: N_BATCH.min(n_ctx.max(1)),
            n_outputs: 1 + n_most,
            n_behind: n_most,
            ..EngineLimits::single(n_ctx.max(1), n_workers)
        };
        let n_times = if options.bench {
            options.n_predict
        } else {
            n_ctx
        };
        let plan = EnginePlan::new(&config, &limits)?;
        let kv = room.bytes("the context (ctx=)", plan.kv_bytes)?;
        let scratch = room.bytes("the engine", plan.scratch_bytes)?;
        let drafts = match n_most {
            0 => None,
            n => Some(Drafts::new(n, n_ctx, room)?),
        };
        Ok(Self {
            machine,
            tokenizer,
            engine: Engine::new(model, table, &limits, kv, scratch)?,
            draw: Draw {
                sampler: SamplerChain::new(SamplerConfig {
                    seed: options.seed,
                    temperature: options.temperature,
                    ..SamplerConfig::default()
                })?,
                candidates: room.slice("candidates", config.n_vocab)?,
                hash: Hash64::new(),
            },
            drafts,
            drafted: Drafted::default(),
            history: room.slice("the text's tokens", n_ctx)?,
            n_history: 0,
            pending: None,
            bench: options.bench,
            timings: Timings::default(),
            latencies: room.slice("times", n_times)?,
        })
    }

    pub(super) const fn machine(&self) -> &'t dyn Machine {
        self.machine
    }

    /// Records that the model is ready; `start` is when the loader handed over.
    pub(super) fn is_loaded(&mut self, start: u64) {
        self.timings.loaded = self.machine.ticks().wrapping_sub(start);
    }

    /// Enters `prompt` and prints the continuation, up to `n_predict` tokens.
    pub(super) fn tell(
        &mut self,
        prompt: &[u32],
        n_predict: usize,
        start: u64,
    ) -> Result<(), StoryError> {
        if let Some(token) = self.pending.take()
            && self.n_history < self.history.len()
        {
            self.refit(self.n_history + 1)?;
            self.step(&[token], 0)?;
        }
        let mut drawn = self.read(prompt, n_predict > 0)?;
        if self.timings.first_token == 0 && !drawn.is_empty() {
            self.timings.first_token = self.machine.ticks().wrapping_sub(start);
        }
        let mut detokenizer = Detokenizer::continuing();
        let mut left = n_predict;
        let (machine, is_shown) = (self.machine, !self.bench);
        let print = |text: &str| {
            if is_shown {
                machine.print(format_args!("{text}"));
            }
        };
        'text: while let Some(&last) = drawn.last() {
            for &token in &drawn {
                if self.tokenizer.is_end_of_generation(token) && !self.bench {
                    break 'text;
                }
                detokenizer.push(self.tokenizer, token, print)?;
                left -= 1;
                if left == 0 {
                    self.pending = Some(token);
                    break 'text;
                }
            }
            if self.n_history == self.history.len() {
                if !self.bench {
                    break;
                }
                self.engine
                    .state_mut()
                    .clear(0)
                    .map_err(EngineError::from)?;
                self.n_history = 0;
            }
            drawn = self.go_on(last, left)?;
        }
        detokenizer.finish(print);
        Ok(())
    }

    /// Enters `prompt`; draws the next token if that is wanted.
    fn read(&mut self, prompt: &[u32], wants: bool) -> Result<Drawn, StoryError> {
        if prompt.len() > self.history.len() - self.n_history {
            return Err(StoryError::PromptTooLong {
                n_tokens: self.n_history + prompt.len(),
                n_ctx: self.history.len(),
            });
        }
        self.refit(self.n_history + prompt.len())?;
        let mut drawn = Drawn::new();
        let n_chunks = prompt.len().div_ceil(N_BATCH);
        for (i, chunk) in prompt.chunks(N_BATCH).enumerate() {
            let n_wanted = usize::from(wants && i + 1 == n_chunks);
            let ticks;
            (drawn, ticks) = self.step(chunk, n_wanted)?;
            self.timings.prompt.add(chunk.len(), ticks);
        }
        Ok(drawn)
    }

    /// Reads the text again if one of `n_tokens` is computed with other rotary divisors.
    fn refit(&mut self, n_tokens: usize) -> Result<(), StoryError> {
        if !self.engine.fit(0, n_tokens)? {
            return Ok(());
        }
        let n_read = core::mem::take(&mut self.n_history);
        for start in (0..n_read).step_by(N_BATCH) {
            let ids = &self.history[start..n_read.min(start + N_BATCH)];
            let ids: Vec<u32, N_BATCH> = ids.iter().copied().collect();
            let (_, ticks) = self.step(&ids, 0)?;
            self.timings.prompt.add(ids.len(), ticks);
        }
        Ok(())
    }

    /// Enters `token`, after which up to `left` are wanted, and its draft tokens.
    fn go_on(&mut self, token: u32, left: usize) -> Result<Drawn, StoryError> {
        self.refit(self.n_history + 1)?;
        let (mut ids, mut drafting) = (Drawn::new(), 0);
        ids.extend([token]);
        if let Some(drafts) = &mut self.drafts {
            let start = self.machine.ticks();
            self.history[self.n_history] = token;
            let text = &self.history[..=self.n_history];
            // Neither the text nor the context ends within correct drafts, nor do the divisors change.
            let n_room = self.engine.model().alike_up_to(text.len());
            let n_room = n_room.min(self.history.len()) - text.len();
            let n_most = (left - 1).min(n_room);
            ids.extend(drafts.draft(text, n_most).iter().map(|draft| draft.token));
            drafting = self.machine.ticks().wrapping_sub(start);
        }
        let (drawn, ticks) = self.step(&ids, ids.len())?;
        if let Some(drafts) = &mut self.drafts {
            drafts.note_drawn(&drawn);
        }
        let (n, ticks) = (drawn.len(), drafting + ticks);
        self.drafted.n_passes += 1;
        self.drafted.n_draft += ids.len() - 1;
        self.drafted.n_accepted += n.saturating_sub(1);
        for latency in self
            .latencies
            .iter_mut()
            .skip(self.timings.eval.count)
            .take(n)
        {
            *latency = ticks / n.max(1) as u64;
        }
        self.timings.eval.add(n, ticks);
        Ok(drawn)
    }

    /// Runs a step over `ids` on all cores and draws after each of the last `n_wanted`, while the drawn tokens match
    /// the entered ones; removes the rest. Also returns the step's ticks, without the draws.
    fn step(&mut self, ids: &[u32], n_wanted: usize) -> Result<(Drawn, u64), StoryError> {
        let (base, n_unwanted) = (self.n_history, ids.len() - n_wanted);
        let first = u32::try_from(base).map_err(|_| StoryError::TooLarge)?;
        let entry = |(i, (&id, position))| {
            let wants = if i < n_unwanted {
                Wants::Nothing
            } else {
                Wants::Logits
            };
            BatchEntry::new(id, 0, position, wants)
        };
        let entries: Vec<_, N_BATCH> = ids.iter().zip(first..).enumerate().map(entry).collect();
        self.history[base..][..ids.len()].copy_from_slice(ids);
        self.n_history += ids.len();
        let stop = StopFlag::new();
        let start = self.machine.ticks();
        let options = StepOptions::new(self.machine.wait(), &stop);
        let step = self.engine.step(&entries, options)?;
        self.machine.spread(step.n_workers(), &|rank| {
            if let Some(worker) = step.join(rank) {
                // `finish` reports why it stopped.
                let _stopped = worker.run();
            }
        });
        let outputs = step.finish()?;
        let ticks = self.machine.ticks().wrapping_sub(start);
        if let Some(drafts) = &mut self.drafts {
            drafts.note_step(ids.len(), outputs.report().n_positions, ticks);
        }
        let mut drawn = Drawn::new();
        for row in n_unwanted..ids.len() {
            let Some(logits) = outputs.logits(row) else {
                break;
            };
            self.draw.hash.write_f32(logits);
            let start = self.machine.ticks();
            self.n_history = base + row + 1;
            let token = self.draw.token(logits, &self.history[..self.n_history])?;
            self.timings
                .sampling
                .add(1, self.machine.ticks().wrapping_sub(start));
            drawn.extend([token]);
            if ids.get(row + 1) != Some(&token) || self.tokenizer.is_end_of_generation(token) {
                break;
            }
        }
        if self.n_history < base + ids.len() {
            let taken_back = self.engine.state_mut().rewind(0, self.n_history);
            taken_back.map_err(EngineError::from)?;
        }
        Ok((drawn, ticks))
    }

    /// Prints the lines after the text.
    pub(super) fn print_footer(&mut self) {
        let n_latencies = self.timings.eval.count.min(self.latencies.len());
        let footer = Footer {
            machine: self.machine,
            timings: &self.timings,
            drafted: &self.drafted,
            latencies: &mut self.latencies[..n_latencies],
            hash: self.draw.hash.finish(),
        };
        footer.print();
    }
}

impl Draw<'_> {
    /// The token after `history`, drawn from these logits.
    fn token(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, StoryError> {
        let position = u32::try_from(history.len()).map_err(|_| StoryError::TooLarge)?;
        let context = self.sampler.context(history, 0, position);
        let (sampler, candidates) = (&mut self.sampler, &mut *self.candidates);
        Ok(sampler.sample(logits, candidates, &mut [], &context)?)
    }
}

/// Tokens in a step of the prompt. Results do not depend on it.
const N_BATCH: usize = 256;

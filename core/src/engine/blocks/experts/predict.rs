//! Predicted neurons of experts: each pair of a token and an expert is a row, and has the bits of its neurons.
//!
//! ```text
//! hidden = down of the expert · x               (strip, expert)   |
//! rows of hidden, quantised                     pairs             |
//! bits of up of the expert · hidden + bias      (strip, expert)   |
//! ```

use super::{Block, Routed};
use crate::engine::epilogue::{Epilogue, Scores, Selection};
use crate::engine::limits::EngineLimits;
use crate::engine::linear::Linear;
use crate::engine::pass::activations;
use crate::engine::rows::{Entries, Rows, some_rows};
use crate::engine::runner::Runner;
use crate::engine::scratch::Room;
use crate::engine::sites::Unit;
use crate::kernels::activation::ActivationLayout;
use crate::memory::{MemoryError, Shared};
use crate::model::{LayerPredictor, Predictor, Site, Weight};
use crate::team::Stop;
use crate::trace::Phase;
use core::ops::Range;

/// Memory of experts' predictors; empty without any.
#[derive(Debug)]
pub(super) struct PredictedRoom<'m> {
    /// Products of predictors' first matrices, (n_pairs, rank).
    hidden: Rows<'m>,
    /// The same, quantised.
    rows: Shared<'m, u8>,
    /// Bits of the neurons that are chosen, (n_pairs, words).
    bits: Shared<'m, u64>,
}

impl<'m> PredictedRoom<'m> {
    pub(super) fn new(
        limits: &EngineLimits,
        n_pairs: usize,
        n_ff: usize,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let predictor = &limits.predictor;
        let n_pairs = if predictor.has_experts { n_pairs } else { 0 };
        let row_bytes = match predictor.rank {
            0 => 0,
            rank => ActivationLayout::new(rank, predictor.kinds).row_bytes(),
        };
        Ok(Self {
            hidden: Rows {
                memory: room.buffer(n_pairs, predictor.rank)?,
                stride: predictor.rank,
            },
            rows: room.buffer(n_pairs, row_bytes)?,
            bits: room.buffer(n_pairs, n_ff.div_ceil(64))?,
        })
    }
}

/// The two matrices of a predictor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Down,
    Up,
}

impl<'p> Block<'p> {
    /// The experts' predictors of this layer.
    fn predictor(&self) -> Option<&'p Predictor<'p>> {
        let options = self.pass.options;
        let predictor = options.sparse.predictor()?;
        let has_one = predictor.has_layer(self.at.index) && options.selector.is_none();
        has_one.then_some(predictor)
    }

    /// The neurons of each pair whose scores are above the threshold of its expert, or not numbers; ends with a barrier.
    /// `None` without predictors.
    pub(super) fn predict(
        &self,
        runner: &mut Runner<'p, '_>,
        routed: &Routed<'p>,
    ) -> Result<Option<Selection<'p>>, Stop> {
        let Some(predictor) = self.predictor() else {
            return Ok(None);
        };
        let (room, n) = (&self.room.predicted, routed.buckets.len());
        let rank = predictor.rank(self.at.index);
        let mut input = *routed;
        if rank > 0 {
            self.multiply_predictors(runner, predictor, routed, Part::Down)?;
            let layout = ActivationLayout::new(rank, self.pass.limits.predictor.kinds);
            runner.share_rows(self.at.index, n, &|places| {
                for place in places {
                    let start = place * room.hidden.stride;
                    // SAFETY: written before the last barrier, or of an expert without a predictor, whose row is not used.
                    let x = unsafe { room.hidden.memory.read(start..start + rank) };
                    let row = room.rows.pointer(place * layout.row_bytes());
                    self.pass.quantize(x, &layout, row);
                }
            });
            runner.barrier(self.at.index)?;
            input = Routed {
                // SAFETY: every row was written before the barrier; none is written while it is read.
                input: unsafe { activations(&room.rows, &layout, n) },
                is_gathered: true,
                ..*routed
            };
        }
        self.multiply_predictors(runner, predictor, &input, Part::Up)?;
        let words = self.words();
        Ok(Some(Selection {
            // SAFETY: written before the barrier; no worker writes until the next layer.
            bits: unsafe { room.bits.read(0..n * words) },
            words,
            unit: Unit::Neuron,
        }))
    }

    /// The selected neurons of an expert's pairs; `None` for all.
    pub(super) fn selection_of(
        &self,
        selection: Option<Selection<'p>>,
        expert: u32,
        places: &Range<usize>,
    ) -> Option<Selection<'p>> {
        let selection = selection?;
        self.predictor()?.network(self.at.index, expert)?;
        let words = selection.words;
        Some(Selection {
            bits: &selection.bits[places.start * words..places.end * words],
            ..selection
        })
    }

    const fn words(&self) -> usize {
        self.shape.n_ff.div_ceil(64)
    }

    /// Products of pairs with one of the matrices of their experts' predictors; ends with a barrier.
    fn multiply_predictors(
        &self,
        runner: &mut Runner<'p, '_>,
        predictor: &'p Predictor<'p>,
        routed: &Routed<'p>,
        part: Part,
    ) -> Result<(), Stop> {
        let (index, order, start) = (self.at.index, runner.order, runner.now());
        let active = routed.buckets.active();
        let (rank, n_ff) = (predictor.rank(index), self.shape.n_ff);
        let n_rows = if part == Part::Down { rank } else { n_ff };
        let n_strips = n_rows.div_ceil(predictor.strip_rows(index));
        let mut bytes = 0;
        let mut work = |rank, expert, strip| {
            let Some(network) = predictor.network(index, expert) else {
                return;
            };
            for (places, rows) in routed.runs(routed.buckets.range(expert)) {
                let (weight, epilogue) = self.product(&network, part, places.start);
                let linear = Linear {
                    layer: index,
                    // The site counts for adapters and observers alone, which do not take part.
                    site: Site::FfnGate,
                    part: Some(expert),
                    input: some_rows(&routed.input, &rows),
                    n_rows_in: rows.len(),
                    weight,
                    epilogue,
                    entries: Entries::Pairs(routed.pairs(places.start), order),
                    adapted: None,
                    columns: None,
                };
                bytes += linear.run(self.pass, rank, strip..strip + 1);
            }
        };
        runner
            .member
            .share(n_strips * active.len(), |member, jobs| {
                for job in jobs {
                    let (strip, expert) = (job / active.len(), active[job % active.len()]);
                    work(member.rank(), expert, strip);
                }
            });
        runner.record(Phase::FfnRouter, index, start, bytes);
        runner.barrier(index)
    }

    /// A matrix of a predictor, and what is done with its products for pairs from place `first` on.
    fn product(
        &self,
        network: &LayerPredictor<'p>,
        part: Part,
        first: usize,
    ) -> (Weight<'p>, Epilogue<'p>) {
        let (hidden, bits) = (&self.room.predicted.hidden, &self.room.predicted.bits);
        if let (Part::Down, Some(down)) = (part, network.down) {
            let all = hidden.memory;
            let memory = all.part(first * hidden.stride..all.len());
            return (down, Epilogue::Store(Rows { memory, ..*hidden }));
        }
        let words = self.words();
        let scores = Scores {
            bits: bits.part(first * words..bits.len()),
            words,
            threshold: network.threshold,
        };
        (network.up, Epilogue::Select(scores))
    }
}

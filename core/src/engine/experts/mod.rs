//! The feed-forward networks of a mixture of experts.
//!
//! ```text
//! norm, quantise, router, choice of experts     rows                            | s
//! rows of each expert side by side              pairs                           | s
//! gate, up, activation, quantise                (strip of 256 neurons, expert)  |
//! down, weighted, added to the residual stream  strips, over all experts        |
//! ```
//!
//! Up to 8 tokens (`s`) every worker routes all of them for itself, and an expert takes its tokens'
//! rows where they are: two barriers a layer. Longer batches are sorted by expert, so that each
//! expert's weights are read once for all of its tokens. A strip of the residual stream is one
//! worker's, who adds the experts' parts in ascending order: what a token gets does not depend on
//! its company. In gate and up strips come before experts in the order of work, so that a popular
//! expert is everybody's; down goes expert by expert, over all strips of a worker in one call.

mod routing;
mod source;

pub use source::{ExpertSource, ExpertWeights};

use super::forward::{Runner, activations, linear};
use super::linear::{Entries, Epilogue, Linear, LinearSite, Projection, Rows};
use super::scratch::{Order, SMALL_BATCH, TILE_TOKENS};
use crate::kernels::table::{Activations, Matmul, Store};
use crate::memory::Shared;
use crate::model::{Layer, Matrix, Norm};
use crate::team::Stop;
use crate::trace::Phase;
use core::ops::Range;
pub(super) use routing::Buckets;
use routing::choose;

/// Some pairs of one expert, in the order of its rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs<'a> {
    buckets: Buckets<'a>,
    /// Place of the first among all pairs.
    first: usize,
    /// Weight of each pair, by its number.
    weights: &'a [f32],
}

impl Pairs<'_> {
    /// The token of row `row`.
    pub(super) fn token(&self, row: usize) -> usize {
        self.buckets.token(self.first + row)
    }

    /// The weight of the expert's output for that token.
    pub(super) fn weight(&self, row: usize) -> f32 {
        self.weights[self.buckets.pair(self.first + row)]
    }
}

/// What the router decided on.
#[derive(Clone, Copy)]
struct Routed<'p> {
    buckets: Buckets<'p>,
    weights: &'p [f32],
    /// The tokens' rows, or those of all pairs in the order of the buckets.
    input: Activations<'p>,
    is_gathered: bool,
}

impl<'p> Routed<'p> {
    const fn pairs(&self, first: usize) -> Pairs<'p> {
        Pairs {
            buckets: self.buckets,
            first,
            weights: self.weights,
        }
    }

    /// Places of pairs, and the rows of the input that they have side by side.
    fn runs(&self, places: Range<usize>) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let (routed, mut rest) = (*self, places);
        core::iter::from_fn(move || {
            let start = rest.start;
            if rest.is_empty() {
                return None;
            }
            if routed.is_gathered {
                rest.start = rest.end;
                return Some((start..rest.end, start..rest.end));
            }
            let token = routed.buckets.token(start);
            let follows = |at: &usize| routed.buckets.token(*at) == token + at - start;
            let len = rest.clone().take_while(follows).count();
            rest.start += len;
            Some((start..start + len, token..token + len))
        })
    }
}

impl<'p> Runner<'p, '_> {
    /// The feed-forward network of a layer with experts.
    pub(super) fn experts(&mut self, index: usize, layer: &Layer) -> Result<(), Stop> {
        let routed = self.route(index, layer)?;
        let pass = self.pass;
        let source: &dyn ExpertSource = pass.options.experts.unwrap_or(pass.model);
        if self.member.rank() == 0 {
            source.announce(index, routed.buckets.active());
        }
        self.gate_up(index, layer, &routed, source)?;
        self.down(index, layer, &routed, source)
    }

    /// Norm, router and choice of experts; with more than a few tokens, rows sorted by expert.
    fn route(&mut self, index: usize, layer: &Layer) -> Result<Routed<'p>, Stop> {
        let (pass, n, rank) = (self.pass, self.n_rows, self.member.rank());
        let (config, scratch) = (pass.config(), pass.scratch);
        let norm = pass.model.stream_norm(layer, Norm::Ffn);
        let input = self.norm_rows(Phase::FfnNorm, index, norm, Order::Batch)?;
        let is_small = n <= SMALL_BATCH;
        let choices = scratch.choices(if is_small { Some(rank) } else { None });
        let start = self.now();
        let tokens = if is_small {
            0..n
        } else {
            self.member.home_range(n)
        };
        let bytes = self.choose_experts(layer, &input, tokens, choices);
        self.record(Phase::FfnRouter, index, start, bytes);
        if !is_small {
            self.barrier(index)?;
        }
        let n_pairs = n * config.n_expert_used;
        let (experts, weights) = choices;
        // SAFETY: written before the barrier, or by this worker.
        let experts = unsafe { experts.read(0..n_pairs) };
        // SAFETY: as above.
        let weights = unsafe { weights.read(0..n_pairs) };
        let memory = scratch.buckets(rank);
        // SAFETY: this worker's own memory, whose last use is over.
        let memory = unsafe { memory.write(0..memory.len()) };
        let buckets = Buckets::new(config.n_expert, config.n_expert_used, experts, memory);
        let routed = Routed {
            buckets,
            weights,
            input,
            is_gathered: false,
        };
        if is_small {
            return Ok(routed);
        }
        self.gather(index, routed)
    }

    /// Probabilities of all experts for some tokens, and the choice; returns the bytes read.
    fn choose_experts(
        &self,
        layer: &Layer,
        input: &Activations<'_>,
        tokens: Range<usize>,
        (experts, weights): (Shared<'_, u32>, Shared<'_, f32>),
    ) -> usize {
        let (pass, config) = (self.pass, self.pass.config());
        let (n_expert, n_used) = (config.n_expert, config.n_expert_used);
        let router = pass.model.matrix(layer, Matrix::FfnGateInp);
        let memory = pass.scratch.router(self.member.rank());
        let mut first = tokens.start;
        while first < tokens.end {
            let tile = first..(first + TILE_TOKENS).min(tokens.end);
            let args = Matmul {
                layout: router.layout,
                panels: router.panels,
                rows: (0..n_expert).into(),
                activations: *input,
                tokens: tile.clone().into(),
                out: memory.pointer(0),
                out_stride: n_expert,
                store: Store::Set,
                prefetch: pass.options.prefetch,
            };
            // SAFETY: this worker's own memory, for a tile of tokens × experts.
            unsafe { pass.table.matmul(&args) };
            for token in tile.clone() {
                let row = (token - first) * n_expert;
                // SAFETY: as above.
                let row = unsafe { memory.write(row..row + n_expert) };
                if let Some(bias) = router.bias {
                    row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
                }
                pass.table.softmax(row);
                let pairs = token * n_used..(token + 1) * n_used;
                // SAFETY: a token is one worker's, or the memory is.
                let experts = unsafe { experts.write(pairs.clone()) };
                // SAFETY: as above.
                let weights = unsafe { weights.write(pairs) };
                choose(row, config.expert_weights_norm, experts, weights);
            }
            first = tile.end;
        }
        router.strip_bytes(&(0..n_expert))
    }

    /// Copies the rows of all pairs, so that those of an expert lie side by side.
    fn gather(&mut self, index: usize, routed: Routed<'p>) -> Result<Routed<'p>, Stop> {
        let scratch = self.pass.scratch;
        let (layout, n) = (&scratch.plan.experts, routed.buckets.len());
        let (input, row_bytes) = (&routed.input, layout.row_bytes());
        self.share(Phase::FfnRouter, index, n, |_, place| {
            let token = routed.buckets.token(place);
            let row = &input.bytes[token * input.layout.row_bytes()..];
            let to = place * row_bytes..(place + 1) * row_bytes;
            // SAFETY: a place is one worker's.
            let to = unsafe { scratch.expert_rows.write(to) };
            // Without what the router alone reads.
            let parts = input.layout.part_ranges().into_iter();
            for (of_input, of_expert) in parts.zip(layout.part_ranges()) {
                if !of_expert.is_empty() {
                    to[of_expert].copy_from_slice(&row[of_input]);
                }
            }
            0
        });
        self.barrier(index)?;
        Ok(Routed {
            // SAFETY: every row was written before the barrier; none is written while it is read.
            input: unsafe { activations(&scratch.expert_rows, layout, n) },
            is_gathered: true,
            ..routed
        })
    }

    /// Gate and up projections of all experts as one phase.
    fn gate_up(
        &mut self,
        index: usize,
        layer: &Layer,
        routed: &Routed<'p>,
        source: &'p dyn ExpertSource,
    ) -> Result<(), Stop> {
        let (pass, order, start) = (self.pass, self.order, self.now());
        let active = routed.buckets.active();
        let n_strips = pass.config().n_ff.div_ceil(crate::kernels::contract::GROUP);
        let mut bytes = 0;
        self.member.share(n_strips * active.len(), |member, jobs| {
            for job in jobs {
                let (strip, expert) = (job / active.len(), active[job % active.len()]);
                let Some(weights) = source::wait(source, member, index, expert) else {
                    return;
                };
                let matrix = |matrix, panels| pass.model.expert_matrix(layer, matrix, panels);
                let up = matrix(Matrix::FfnUp, weights.up);
                let gate = matrix(Matrix::FfnGate, weights.gate);
                let places = routed.buckets.range(expert);
                let mut strip_bytes = 0;
                for (places, rows) in routed.runs(places) {
                    let at = places.start * pass.scratch.plan.ffn.row_bytes();
                    let ffn_rows = pass.scratch.ffn_rows;
                    let gated = Epilogue::Gated {
                        up: Some(up),
                        rows: ffn_rows.part(at..ffn_rows.len()),
                    };
                    let site = LinearSite {
                        layer: index,
                        projection: Projection::FfnGate,
                        expert: Some(expert),
                    };
                    let input = some_rows(&routed.input, &rows);
                    let linear = Linear {
                        entries: Entries::Pairs(routed.pairs(places.start), order),
                        ..linear(site, (input, rows.len()), gate, gated, order)
                    };
                    strip_bytes = linear.run(pass, member.rank(), strip..strip + 1);
                }
                bytes += strip_bytes;
            }
        });
        self.record(Phase::FfnGateUp, index, start, bytes);
        self.barrier(index)
    }

    /// Down projections of all experts, added to the residual stream.
    fn down(
        &mut self,
        index: usize,
        layer: &Layer,
        routed: &Routed<'p>,
        source: &'p dyn ExpertSource,
    ) -> Result<(), Stop> {
        let (pass, order, start) = (self.pass, self.order, self.now());
        let scratch = pass.scratch;
        // SAFETY: the rows were written before the last barrier.
        let all =
            unsafe { activations(&scratch.ffn_rows, &scratch.plan.ffn, routed.buckets.len()) };
        let stream = Rows {
            memory: scratch.x[self.stream],
            stride: pass.config().n_embd,
        };
        let n_strips = pass.config().n_embd.div_ceil(super::linear::STRIP_ROWS);
        let mut bytes = 0;
        self.member.share(n_strips, |member, strips| {
            for &expert in routed.buckets.active() {
                let Some(weights) = source::wait(source, member, index, expert) else {
                    return;
                };
                let places = routed.buckets.range(expert);
                let pairs = routed.pairs(places.start);
                let site = LinearSite {
                    layer: index,
                    projection: Projection::FfnDown,
                    expert: Some(expert),
                };
                let down = pass
                    .model
                    .expert_matrix(layer, Matrix::FfnDown, weights.down);
                let epilogue = Epilogue::AddWeighted(stream, pairs);
                let input = some_rows(&all, &places);
                let linear = Linear {
                    entries: Entries::Pairs(pairs, order),
                    ..linear(site, (input, places.len()), down, epilogue, order)
                };
                bytes += linear.run(pass, member.rank(), strips.clone());
            }
        });
        self.record(Phase::FfnDown, index, start, bytes);
        self.barrier(index)
    }
}

/// Some rows as activations of their own.
fn some_rows<'a>(all: &Activations<'a>, rows: &Range<usize>) -> Activations<'a> {
    let row_bytes = all.layout.row_bytes();
    Activations {
        layout: all.layout,
        bytes: &all.bytes[rows.start * row_bytes..rows.end * row_bytes],
    }
}

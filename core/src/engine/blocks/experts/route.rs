//! From rows of the stream to pairs of tokens and experts.

use super::super::channel_norm;
use super::room::Choices;
use super::routing::{Choice, weigh};
use super::{Block, Routed};
use crate::engine::adapt::{Adapted, Area, At};
use crate::engine::pass::activations;
use crate::engine::rows::{Buckets, Entries, InputRows, Order, SMALL_BATCH, TILE_TOKENS};
use crate::engine::runner::Runner;
use crate::engine::sites::NeededExperts;
use crate::kernels::contract::{GROUP, sqrt};
use crate::kernels::table::{Activations, Matmul, Store};
use crate::model::{Site, Vector};
use crate::team::{Member, Stop};
use crate::trace::Phase;
use core::ops::Range;

impl<'p> Block<'p> {
    /// Norm, router and choice of experts; also returns the normed rows of all tokens, for the expert that works on
    /// every one.
    pub(super) fn choose(
        &self,
        runner: &mut Runner<'p, '_>,
    ) -> Result<(Choices<'p>, Activations<'p>), Stop> {
        let index = self.at.index;
        let channel_norm = channel_norm(self.at.kind);
        let input = match self.shape.has_norms {
            true => self.normed(runner, Vector::RouterNorm)?,
            false => self.normed(runner, channel_norm)?,
        };
        let choices = self.choose_by(runner, &input);
        // Experts with norms of their own read the stream that the first norm has moved.
        if runner.n_rows > SMALL_BATCH || self.shape.has_norms {
            runner.barrier(index)?;
        }
        match self.shape.has_norms {
            true => Ok((choices, self.normed(runner, channel_norm)?)),
            false => Ok((choices, input)),
        }
    }

    /// Rows of the stream after one of the layer's norms.
    pub(super) fn normed(
        &self,
        runner: &mut Runner<'p, '_>,
        norm: Vector,
    ) -> Result<Activations<'p>, Stop> {
        let norm = self.pass.model.norm(self.at.weights, norm);
        runner.normed(Phase::FfnNorm, self.at.index, norm, Order::Batch)
    }

    /// Room for the choices of the runner's rows.
    pub(super) fn choices(&self, runner: &Runner<'p, '_>) -> Choices<'p> {
        let is_small = runner.n_rows <= SMALL_BATCH;
        self.room.choices(is_small.then_some(runner.member.rank()))
    }

    /// Choice of experts by the rows that the router reads: all of them for small batches, else this worker's.
    pub(super) fn choose_by(
        &self,
        runner: &mut Runner<'p, '_>,
        input: &Activations<'p>,
    ) -> Choices<'p> {
        let (pass, n, rank) = (self.pass, runner.n_rows, runner.member.rank());
        if rank == 0 {
            let input = InputRows {
                rows: input,
                entries: Entries::Each(runner.order),
            };
            pass.show(self.router(), input, 0..n);
        }
        let choices = self.choices(runner);
        let start = runner.now();
        let tokens = match n <= SMALL_BATCH {
            true => 0..n,
            false => runner.member.home_range(n),
        };
        let bytes = self.choose_experts(rank, input, runner.order, tokens, choices);
        runner.record(Phase::FfnRouter, self.at.index, start, bytes);
        choices
    }

    /// The matrix that scores experts.
    const fn router(&self) -> At {
        At {
            layer: self.at.index,
            site: Site::FfnGateInp,
            part: None,
        }
    }

    /// Pairs by expert; with more than a few tokens, their rows side by side.
    pub(super) fn route(
        &self,
        runner: &mut Runner<'p, '_>,
        choices: Choices<'p>,
        input: Activations<'p>,
    ) -> Result<Routed<'p>, Stop> {
        let (buckets, weights) = self.buckets(runner, choices);
        let routed = Routed {
            buckets,
            weights,
            input,
            is_gathered: false,
        };
        if runner.n_rows <= SMALL_BATCH {
            return Ok(routed);
        }
        self.gather(runner, routed)
    }

    /// Pairs of the runner's rows by expert, in this worker's own memory, and the weights of all pairs. Call it after
    /// the barrier that follows the choice, if there is one.
    pub(super) fn buckets(
        &self,
        runner: &Runner<'p, '_>,
        choices: Choices<'p>,
    ) -> (Buckets<'p>, &'p [f32]) {
        let n_pairs = runner.n_rows * self.shape.n_expert_used;
        // SAFETY: written before the barrier, or by this worker.
        let experts = unsafe { choices.experts.read(0..n_pairs) };
        // SAFETY: as above.
        let weights = unsafe { choices.weights.read(0..n_pairs) };
        let memory = self.room.buckets.of(runner.member.rank());
        // SAFETY: this worker's own memory, whose last use is over.
        let memory = unsafe { memory.write(0..memory.len()) };
        let (n_expert, n_used) = (self.shape.n_expert, self.shape.n_expert_used);
        (Buckets::new(n_expert, n_used, experts, memory), weights)
    }

    /// Announces to the source which experts the rows need.
    pub(super) fn announce(&self, member: &Member<'_>, buckets: &Buckets<'p>) {
        let readers = |n_strips: usize| member.size().min(n_strips);
        self.source.announce(&NeededExperts {
            layer: self.at.index,
            experts: buckets.active(),
            readers: [
                readers(self.shape.n_ff.div_ceil(GROUP)),
                readers(self.n_down_strips()),
            ],
            n_tokens: buckets.len() / self.shape.n_expert_used,
        });
    }

    /// The choice of experts for some tokens; returns the bytes read.
    fn choose_experts(
        &self,
        rank: usize,
        input: &Activations<'_>,
        order: Order,
        tokens: Range<usize>,
        choices: Choices<'_>,
    ) -> usize {
        let (pass, shape) = (self.pass, self.shape);
        let (n_expert, n_used) = (shape.n_expert, shape.n_expert_used);
        let router = pass.model.matrix(self.at.weights, Site::FfnGateInp);
        let bias = pass.model.vector(self.at.weights, Vector::ChoiceBias);
        let residual_scale = pass.config().residual_scale;
        let scales = pass.model.vector(self.at.weights, Vector::ExpertScales);
        #[expect(clippy::cast_precision_loss, reason = "widths are below 2^24")]
        let inverse_root = 1.0 / sqrt(pass.config().n_embd as f32);
        let memory = self.room.routers.of(rank);
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
                beside: &[],
            };
            // SAFETY: this worker's own memory, for a tile of tokens × experts.
            unsafe { pass.table.matmul(&args) };
            if pass.asked.adapts {
                let input = InputRows {
                    rows: input,
                    entries: Entries::Each(order),
                };
                let area = Area {
                    outputs: &(0..n_expert),
                    rows: &tile,
                };
                let (at, out) = (self.router(), memory.pointer(0));
                pass.add_adapters(rank, at, input, Adapted::Tile, area, out);
            }
            for token in tile.clone() {
                let row = (token - first) * n_expert;
                // SAFETY: as above.
                let row = unsafe { memory.write(row..row + n_expert) };
                if shape.has_norms {
                    row.iter_mut().for_each(|x| *x *= inverse_root);
                }
                if let Some(bias) = router.bias {
                    row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
                }
                let pairs = token * n_used..(token + 1) * n_used;
                // SAFETY: a token is one worker's, or the memory is.
                let experts = unsafe { choices.experts.write(pairs.clone()) };
                // SAFETY: as above.
                let weights = unsafe { choices.weights.write(pairs) };
                let room = TILE_TOKENS * n_expert..(TILE_TOKENS + 1) * n_expert;
                // SAFETY: as above.
                let room = unsafe { memory.write(room) };
                let choice = Choice { bias, room };
                weigh(pass.table, &shape.router, row, choice, experts, weights);
                if let Some(scales) = scales {
                    let pairs = weights.iter_mut().zip(&*experts);
                    pairs.for_each(|(weight, expert)| *weight *= scales[*expert as usize]);
                }
                #[expect(clippy::float_cmp, reason = "1 is a setting, not a result")]
                if residual_scale != 1.0 {
                    weights
                        .iter_mut()
                        .for_each(|weight| *weight *= residual_scale);
                }
            }
            first = tile.end;
        }
        router.strip_bytes(&(0..n_expert))
    }

    /// Copies the rows of all pairs, so that the rows of each expert are adjacent.
    fn gather(&self, runner: &mut Runner<'p, '_>, routed: Routed<'p>) -> Result<Routed<'p>, Stop> {
        let (gathered, n) = (self.room.gathered, routed.buckets.len());
        let (layout, index) = (&gathered.layout, self.at.index);
        let (input, row_bytes) = (&routed.input, layout.row_bytes());
        runner.share(Phase::FfnRouter, index, n, |_, place| {
            let token = routed.buckets.token(place);
            let row = &input.bytes[token * input.layout.row_bytes()..];
            let to = place * row_bytes..(place + 1) * row_bytes;
            // SAFETY: a place is one worker's.
            let to = unsafe { gathered.memory.write(to) };
            // Without the part that only the router reads.
            let parts = input.layout.part_ranges().into_iter();
            for (of_input, of_expert) in parts.zip(layout.part_ranges()) {
                if !of_expert.is_empty() {
                    to[of_expert].copy_from_slice(&row[of_input]);
                }
            }
            0
        });
        runner.barrier(index)?;
        Ok(Routed {
            // SAFETY: every row was written before the barrier; none is written while it is read.
            input: unsafe { activations(&gathered.memory, layout, n) },
            is_gathered: true,
            ..routed
        })
    }
}

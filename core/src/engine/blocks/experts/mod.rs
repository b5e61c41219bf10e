//! The feed-forward networks of a mixture of experts.
//!
//! ```text
//! norm, quantise, router, choice of experts     rows                            | s
//! rows of each expert side by side              pairs                           | s
//! gate, up, activation, quantise                (strip of 256 neurons, expert)  |
//! down of the expert for all tokens             strips                          | e
//! down, weighted, added to the residual stream  strips, over all experts        |
//! ```
//!
//! Experts in a latent space ([`latent`]) have a matrix before their rows are gathered, and one after their sums. A router
//! that reads the layer's input ([`before_mixer`]) chooses before the mixer runs, so that experts are read meanwhile.
//!
//! Up to 8 tokens (`s`) every worker routes all of them itself, and an expert reads its tokens' rows in place: two
//! barriers a layer, three where one expert works on all tokens (`e`). Longer batches are sorted by expert, so that
//! each expert's weights are read once for all of its tokens. A strip of the residual stream belongs to one
//! worker, which adds the experts' parts in ascending order: a token's result does not depend on
//! the rest of the batch. In gate and up, work is ordered by strip, then by expert, so that a popular
//! expert is shared by all workers; down runs expert by expert, over all strips of a worker in one call.

mod ahead;
mod down;
mod early;
mod keep;
mod latent;
mod predict;
mod room;
mod route;
mod routing;
mod shared;

pub(super) use ahead::look_ahead;
pub(super) use early::before_mixer;
pub(super) use room::ExpertsRoom;

use super::LayerAt;
use crate::engine::adapt::{Adapted, At};
use crate::engine::epilogue::{Epilogue, Gated, Selection};
use crate::engine::linear::Linear;
use crate::engine::lora::EXPERTS;
use crate::engine::pass::{Pass, activations};
use crate::engine::rows::{
    Buckets, Entries, InputRows, Order, Pairs, Rows, SMALL_BATCH, some_rows,
};
use crate::engine::runner::Runner;
use crate::engine::sites::{ExpertPart, ExpertSource, Lent, Waiter};
use crate::engine::stream::Target;
use crate::kernels::activation::ActivationLayout;
use crate::kernels::contract::GROUP;
use crate::kernels::table::Activations;
use crate::model::{Experts, Site, Vector, Weight};
use crate::team::{Member, Stop};
use crate::trace::Phase;
use core::ops::Range;

/// A layer's experts at work.
#[derive(Clone, Copy)]
struct Block<'p> {
    pass: &'p Pass<'p>,
    room: &'p ExpertsRoom<'p>,
    at: LayerAt<'p>,
    shape: &'p Experts,
    /// Layout of the rows of neurons.
    neurons: ActivationLayout,
    source: &'p dyn ExpertSource,
}

/// The decision of the router.
#[derive(Clone, Copy)]
struct Routed<'p> {
    buckets: Buckets<'p>,
    weights: &'p [f32],
    /// Rows that experts read: the tokens' rows, or the rows of all pairs in the order of the buckets.
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

pub(super) fn run<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p ExpertsRoom<'p>,
    at: LayerAt<'p>,
    shape: &'p Experts,
) -> Result<(), Stop> {
    let pass = runner.pass;
    let block = Block::new(runner, room, at, shape);
    look_ahead(runner, room, at.index + 1);
    let (choices, input) = match shape.routes_input {
        true => block.chosen_early(runner)?,
        false => block.choose(runner)?,
    };
    let mut gathers = input;
    if shape.has_norms {
        block.shared_gate_up(runner, input)?;
        // Its rows are in the memory that the experts' will use.
        if runner.n_rows > SMALL_BATCH {
            runner.barrier(at.index)?;
        }
        let norm = pass.model.norm(at.weights, Vector::ExpertsNorm);
        gathers = runner.normed(Phase::FfnNorm, at.index, norm, Order::Batch)?;
    } else if shape.n_latent > 0 {
        gathers = block.enter_latent(runner, input)?;
    }
    let routed = block.route(runner, choices, gathers)?;
    if runner.member.rank() == 0 && !shape.routes_input {
        block.announce(runner.member, &routed.buckets);
    }
    let sites = [Site::FfnGate, Site::FfnUp];
    block.adapt(runner, &routed, &sites[usize::from(!shape.is_gated)..])?;
    if !shape.has_norms && shape.n_latent == 0 {
        block.shared_gate_up(runner, input)?;
    }
    let selection = block.predict(runner, &routed)?;
    let [shared, experts] = block.targets(runner);
    let mut gates = Gates::WithUp;
    if block
        .keeping(0)
        .is_some_and(|keeping| keeping.ranks_gates())
    {
        block.gate_up(runner, &routed, Gates::First, None)?;
        block.cut(runner, &routed.buckets)?;
        gates = Gates::Known;
    }
    block.gate_up(runner, &routed, gates, selection)?;
    block.leave_out(runner, &routed.buckets)?;
    block.shared_down(runner, shared)?;
    // SAFETY: the rows were written before the last barrier.
    let neurons = unsafe { activations(&room.neurons, &block.neurons, routed.buckets.len()) };
    let neurons = Routed {
        input: neurons,
        is_gathered: true,
        ..routed
    };
    block.adapt(runner, &neurons, &[Site::FfnDown])?;
    block.down(runner, &neurons, experts)?;
    match shape.n_latent {
        0 => Ok(()),
        _ => block.leave_latent(runner),
    }
}

/// When gates are computed.
#[derive(Clone, Copy)]
enum Gates {
    /// Together with up.
    WithUp,
    /// Without up.
    First,
    /// Before: up remains.
    Known,
}

/// The matrices before an expert's neurons.
struct GateUp<'e> {
    expert: u32,
    gate: Option<Weight<'e>>,
    up: Weight<'e>,
}

impl<'p> Block<'p> {
    fn new(
        runner: &Runner<'p, '_>,
        room: &'p ExpertsRoom<'p>,
        at: LayerAt<'p>,
        shape: &'p Experts,
    ) -> Self {
        let pass = runner.pass;
        Self {
            pass,
            room,
            at,
            shape,
            neurons: ActivationLayout::new(shape.n_ff, pass.activations().neurons),
            source: pass.options.experts.unwrap_or(pass.model),
        }
    }

    /// Where the expert for all tokens and the others add: to the stream, or to its pending rows.
    fn targets(&self, runner: &mut Runner<'p, '_>) -> [Target<'p>; 2] {
        if self.shape.n_latent > 0 {
            let sums = self.room.latent.sums;
            return [runner.stream.add(None), self.zeroed(runner, sums)];
        }
        if !self.shape.has_norms {
            let stream = runner.stream.add(None);
            return [stream, stream];
        }
        let norm = |vector| {
            let norm = self.pass.model.norm(self.at.weights, vector);
            norm.expect("loaded with every such layer")
        };
        let norms = [norm(Vector::SharedPostNorm), norm(Vector::ExpertsPostNorm)];
        let [shared, experts] = runner.stream.add_two(norms, norm(Vector::ChannelPostNorm));
        [Target::Store(shared), self.zeroed(runner, experts)]
    }

    /// Rows that experts add their parts to, filled with zeros.
    fn zeroed(&self, runner: &mut Runner<'p, '_>, sums: Rows<'p>) -> Target<'p> {
        let n = sums.stride;
        runner.share(Phase::FfnRouter, self.at.index, runner.n_rows, |_, row| {
            // SAFETY: a row is one worker's; its last readers passed a barrier, and another precedes its next writers.
            unsafe { sums.memory.write(row * n..(row + 1) * n) }.fill(0.0);
            0
        });
        Target::Add(sums, 1.0)
    }

    /// Elements of the rows that experts read and write.
    const fn width(&self) -> usize {
        self.shape.width(self.pass.config().n_embd)
    }

    /// Layout of the neurons of the expert that works on every token.
    fn shared_neurons(&self) -> ActivationLayout {
        let shared = self
            .shape
            .shared
            .expect("asked for where there is such an expert");
        ActivationLayout::new(shared.n_ff, self.pass.activations().neurons)
    }

    /// Gate and up projections of all experts as one phase, or one of them.
    fn gate_up(
        &self,
        runner: &mut Runner<'p, '_>,
        routed: &Routed<'p>,
        gates: Gates,
        selection: Option<Selection<'p>>,
    ) -> Result<(), Stop> {
        let (index, order, start) = (self.at.index, runner.order, runner.now());
        let active = routed.buckets.active();
        let strip_rows = match gates {
            Gates::First => self.at.weights.layout(Site::FfnGate).strip_rows(),
            Gates::WithUp | Gates::Known => GROUP,
        };
        let n_strips = self.shape.n_ff.div_ceil(strip_rows);
        let mut bytes = 0;
        let mut work = |rank, lent: &Lent<'_>, expert, strips: Range<usize>| {
            let matrix = |site, panels| {
                let (model, weights) = (self.pass.model, self.at.weights);
                model.expert_matrix(weights, site, expert, panels)
            };
            let up = matrix(Site::FfnUp, lent.weights.up);
            let gate = self
                .shape
                .is_gated
                .then(|| matrix(Site::FfnGate, lent.weights.gate));
            let mut strip_bytes = 0;
            for (places, rows) in routed.runs(routed.buckets.range(expert)) {
                let matrices = GateUp { expert, gate, up };
                let mut linear = self.gate_up_of(routed, places.clone(), rows, matrices, order);
                if let Epilogue::Gated(gated) = &mut linear.epilogue {
                    gated.selection = self.selection_of(selection, expert, &places);
                }
                self.divide(&mut linear, places, gates, up);
                strip_bytes = linear.run(self.pass, rank, strips.clone());
            }
            bytes += strip_bytes;
        };
        let mut waiter = Waiter::new(self.source, index, ExpertPart::GateUp);
        if self.pass.asked.experts_are_resident {
            runner
                .member
                .share(n_strips * active.len(), |member, jobs| {
                    for job in jobs {
                        let (strip, expert) = (job / active.len(), active[job % active.len()]);
                        let Some(lent) = waiter.wait(member, expert) else {
                            return;
                        };
                        work(member.rank(), &lent, expert, strip..strip + 1);
                    }
                });
        } else {
            let (rank, member) = (runner.member.rank(), &mut *runner.member);
            let strips = member.home_range(n_strips);
            if !strips.is_empty() {
                self.as_they_come(member, &mut waiter, active, |lent, expert| {
                    work(rank, lent, expert, strips.clone());
                });
            }
        }
        runner.record(Phase::FfnGateUp, index, start, bytes);
        runner.barrier(index)
    }

    /// Calls `work` with each of `experts`: first with the loaded ones, then with the others as they are loaded.
    /// Results of different experts are independent.
    fn as_they_come(
        &self,
        member: &mut Member<'_>,
        waiter: &mut Waiter<'_>,
        experts: &[u32],
        mut work: impl FnMut(&Lent<'_>, u32),
    ) {
        // SAFETY: this worker's own memory, whose last use is over.
        let left = unsafe {
            let memory = self.room.left.of(member.rank());
            memory.write(0..experts.len())
        };
        left.copy_from_slice(experts);
        let mut n_left = left.len();
        while n_left > 0 {
            let (seen, n_before) = (waiter.seen(), n_left);
            n_left = 0;
            for i in 0..n_before {
                let expert = left[i];
                match waiter.take(member, expert) {
                    Ok(Some(lent)) => work(&lent, expert),
                    Ok(None) => {
                        left[n_left] = expert;
                        n_left += 1;
                    }
                    Err(()) => return,
                }
            }
            if n_left == n_before && waiter.pause(member, seen).is_err() {
                return;
            }
        }
    }

    /// Gate and up of an expert for some of its pairs, whose rows are adjacent.
    fn gate_up_of<'e>(
        &'e self,
        routed: &'e Routed<'p>,
        places: Range<usize>,
        rows: Range<usize>,
        matrices: GateUp<'e>,
        order: Order,
    ) -> Linear<'e> {
        let GateUp { expert, gate, up } = matrices;
        let at = places.start * self.neurons.row_bytes();
        let neurons = self.room.neurons;
        let (site, weight, up) = match gate {
            Some(gate) => (Site::FfnGate, gate, Some(up)),
            None => (Site::FfnUp, up, None),
        };
        let keeping = self.keeping(expert);
        let gated = Gated {
            activation: self.shape.activation,
            up,
            by: None,
            rows: neurons.part(at..neurons.len()),
            layout: self.neurons,
            selection: None,
            keeping,
            gates: None,
        };
        Linear {
            layer: self.at.index,
            site,
            part: Some(expert),
            input: some_rows(&routed.input, &rows),
            n_rows_in: rows.len(),
            weight,
            epilogue: Epilogue::Gated(gated),
            entries: Entries::Pairs(routed.pairs(places.start), order),
            adapted: adapted(self.pass, places.start),
            columns: None,
        }
    }

    /// Shows the rows of experts to an observer, and runs adapters on them, with a barrier if there are
    /// any. Experts are shared out.
    fn adapt(
        &self,
        runner: &mut Runner<'p, '_>,
        routed: &Routed<'p>,
        sites: &[Site],
    ) -> Result<(), Stop> {
        let (pass, order, index) = (self.pass, runner.order, self.at.index);
        if pass.options.observer.is_none() && !pass.asked.adapts {
            return Ok(());
        }
        for i in runner.member.home_range(routed.buckets.active().len()) {
            let expert = routed.buckets.active()[i];
            // The same runs of rows as in the linear layers that follow.
            for (places, rows) in routed.runs(routed.buckets.range(expert)) {
                let x = some_rows(&routed.input, &rows);
                let input = InputRows {
                    rows: &x,
                    entries: Entries::Pairs(routed.pairs(places.start), order),
                };
                for (slot, &site) in (EXPERTS..).zip(sites) {
                    let at = At {
                        layer: index,
                        site,
                        part: Some(expert),
                    };
                    pass.show(at, input, 0..rows.len());
                    if pass.asked.adapts {
                        pass.project(at, input, slot, places.start, 0..rows.len());
                    }
                }
            }
        }
        match pass.asked.adapts {
            true => runner.barrier(index),
            false => Ok(()),
        }
    }
}

/// Where the adapters' products for pairs from place `first` on are.
fn adapted(pass: &Pass<'_>, first: usize) -> Option<Adapted> {
    pass.asked.adapts.then_some(Adapted::Room {
        slot: EXPERTS,
        first,
    })
}

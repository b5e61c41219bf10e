//! Neurons that may not be in memory: a source reads those that a step's rows need, in clusters of 64, to their places among
//! the weights, so that every product is the one of a model in memory.
//!
//! ```text
//! gates of all neurons             strips                          |    where they tell which neurons are active
//! clusters with active neurons     each worker, announced by the first
//! up, activation, quantise         strips in memory                                               |    few rows
//! down of neurons in memory        strips                                                         |    few rows
//! up, activation, quantise         the other strips, as their clusters come                       |
//! down, from there on              strips, once the last cluster has come                         |
//! ```
//!
//! A selection names the clusters of few rows before gates are computed. Where nothing tells them early (long prompts,
//! activations without zeros), all clusters are announced at the start.

use crate::engine::epilogue::Gated;
use crate::engine::limits::EngineLimits;
use crate::engine::linear::{Columns, Linear, ROWS_MAX};
use crate::engine::rows::Rows;
use crate::engine::runner::Runner;
use crate::engine::scratch::{PerWorker, Room};
use crate::engine::sites::{
    CLUSTER_NEURONS, ExpertPart, ExpertSource, Lent, NeededExperts, Sparse, Waiter,
};
use crate::kernels::contract::GROUP;
use crate::kernels::neuron::Form;
use crate::memory::MemoryError;
use crate::model::{Channel, Ffn, ModelConfig, Weight};
use crate::team::{Member, Stop};
use crate::trace::Phase;
use core::ops::Range;

/// Clusters that a strip of [`GROUP`] neurons may touch.
const IN_STRIP: usize = GROUP / CLUSTER_NEURONS;

/// Memory for neurons that may not be in memory.
#[derive(Debug)]
pub(super) struct ColdRoom<'m> {
    /// A worker's own list of clusters, and of strips that wait for theirs.
    lists: PerWorker<'m, u32>,
    n_clusters: usize,
    /// Sums of down over hot neurons.
    sums: Rows<'m>,
}

impl<'m> ColdRoom<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let n_ff = config.kinds.iter().map(|kind| match &kind.channel {
            Channel::Ffn(shape) if limits.cold_neurons => shape.n_ff,
            _ => 0,
        });
        let n_clusters = n_ff.max().unwrap_or(0).div_ceil(CLUSTER_NEURONS);
        let stride = if n_clusters > 0 { config.n_embd } else { 0 };
        Ok(Self {
            sums: Rows {
                memory: room.buffer(limits.n_batch.min(ROWS_MAX), stride)?,
                stride,
            },
            lists: room.of_workers(limits.n_workers, 2 * n_clusters)?,
            n_clusters,
        })
    }
}

/// A network of which only the first neurons are always in memory.
pub(super) struct Cold<'p> {
    source: &'p dyn ExpertSource,
    room: &'p ColdRoom<'p>,
    layer: usize,
    n_ff: usize,
    /// The first neuron that may not be in memory.
    first: usize,
    /// Whether rows of up can be left unread once gates are known.
    reads_rows: bool,
    /// Clusters that the rows need, ascending: this worker's own list. Empty until they are known.
    clusters: &'p [u32],
}

impl<'p> Cold<'p> {
    /// The network of a layer; `None` if all of it is in memory.
    pub(super) fn of(
        runner: &Runner<'p, '_>,
        room: &'p ColdRoom<'p>,
        layer: usize,
        shape: &Ffn,
        up: &Weight<'p>,
    ) -> Option<Self> {
        let (source, n_ff) = (runner.pass.options.experts?, shape.n_ff);
        let first = source.hot_neurons(layer).filter(|first| *first < n_ff)?;
        assert!(first.is_multiple_of(CLUSTER_NEURONS));
        Some(Self {
            source,
            room,
            layer,
            n_ff,
            first,
            reads_rows: shape.is_gated && up.layout.form() == Form::Rows,
            clusters: &[],
        })
    }

    /// Announces what is known before gates are: the clusters of selected neurons, or all. Itself if gates will tell which
    /// neurons the rows need.
    pub(super) fn unless_known(
        &mut self,
        runner: &mut Runner<'p, '_>,
        gated: &Gated<'p>,
    ) -> Option<&mut Self> {
        let is_by_gate = gated.keeping.is_some_and(|keeping| keeping.is_by_gate());
        let has_zeros = gated.activation.gate_threshold().is_some();
        let is_few = runner.n_rows <= ROWS_MAX && runner.pass.options.sparse != Sparse::Off;
        let tells = self.reads_rows && is_few && (is_by_gate || has_zeros);
        if tells && gated.selection.is_none() {
            return Some(self);
        }
        let n = runner.n_rows;
        // Products of many rows read all columns, and an observer of choices sees the values of the others, too.
        let names_all = is_few && !runner.pass.asked.shows_choices;
        let selection = gated.selection.filter(|_| names_all);
        self.announce(runner, &|mut neurons| {
            selection.is_none_or(|selection| {
                neurons.any(|neuron| (0..n).any(|row| selection.is_on(row, neuron)))
            })
        });
        None
    }

    /// Announces the clusters of neurons that are active in any row, or that a row keeps, by their gates.
    pub(super) fn need_active(
        &mut self,
        runner: &mut Runner<'p, '_>,
        gated: &Gated<'p>,
        gates: Rows<'p>,
    ) {
        let (pass, n) = (runner.pass, runner.n_rows);
        self.announce(runner, &|neurons| {
            (0..n).any(|row| {
                let start = row * gates.stride;
                let columns = start + neurons.start..start + neurons.end;
                // SAFETY: written before the last barrier, and only read since.
                let gates = unsafe { gates.memory.read(columns) };
                match (&gated.keeping, gated.activation.gate_threshold()) {
                    (Some(keeping), _) if keeping.is_by_gate() => {
                        let keeps = keeping.keep_by_gate(pass, row, neurons.start, gates);
                        keeps[..gates.len()].contains(&true)
                    }
                    (_, Some(threshold)) => {
                        gates.iter().any(|gate| *gate > threshold || gate.is_nan())
                    }
                    _ => true,
                }
            })
        });
    }

    fn announce(&mut self, runner: &mut Runner<'p, '_>, needs: &dyn Fn(Range<usize>) -> bool) {
        let rank = runner.member.rank();
        // SAFETY: this worker's own memory, whose last use, in another layer, is over.
        let list = unsafe { self.room.lists.of(rank).write(0..self.room.n_clusters) };
        let mut n = 0;
        for (cluster, start) in (0..).zip((self.first..self.n_ff).step_by(CLUSTER_NEURONS)) {
            if needs(start..self.n_ff.min(start + CLUSTER_NEURONS)) {
                list[n] = cluster;
                n += 1;
            }
        }
        self.clusters = &list[..n];
        if rank == 0 {
            self.source.announce(&NeededExperts {
                layer: self.layer,
                experts: self.clusters,
                readers: [usize::MAX; 2],
                n_tokens: runner.n_rows,
            });
        }
    }

    /// The columns of down whose sums can be computed while clusters are read: whole groups of neurons in memory, in products
    /// of few rows whose neurons are known by then.
    pub(super) fn hot_columns(
        &self,
        runner: &Runner<'p, '_>,
        gated: &Gated<'p>,
        down: &Weight<'p>,
    ) -> Option<Columns<'p>> {
        let is_few = runner.n_rows <= ROWS_MAX && runner.pass.options.sparse != Sparse::Off;
        let is_by_neuron = down.layout.form() == Form::Neurons;
        let changes = gated.keeping.is_some_and(|keeping| keeping.ranks_values());
        let n_groups = self.first / GROUP;
        (is_few && is_by_neuron && !changes && n_groups > 0).then_some(Columns {
            sums: self.room.sums,
            n_groups,
            is_first: true,
        })
    }

    /// Runs gate and up of strips in memory, without a barrier at the end.
    pub(super) fn hot_gate_up(
        &self,
        runner: &mut Runner<'p, '_>,
        linear: &mut Linear<'p>,
    ) -> Result<(), Stop> {
        runner.prepare(self.layer, core::slice::from_mut(linear))?;
        let (pass, n_strips) = (runner.pass, self.first / GROUP);
        runner.share_ranges(Phase::FfnGateUp, self.layer, n_strips, |rank, strips| {
            linear.run(pass, rank, strips)
        });
        Ok(())
    }

    /// Runs gate and up of the other strips as their clusters come.
    pub(super) fn cold_gate_up(
        &self,
        runner: &mut Runner<'p, '_>,
        linear: &Linear<'p>,
    ) -> Result<(), Stop> {
        let (pass, layer) = (runner.pass, self.layer);
        let (start, mut bytes) = (runner.now(), 0);
        let rank = runner.member.rank();
        let strips = self.first / GROUP..linear.n_strips();
        self.as_they_come(runner.member, strips, &mut |strip| {
            bytes += linear.run(pass, rank, strip..strip + 1);
        });
        runner.record(Phase::FfnGateUp, layer, start, bytes);
        runner.barrier(layer)
    }

    /// Calls `work` with each of this worker's strips of `strips` once its clusters have come.
    fn as_they_come(
        &self,
        member: &mut Member<'_>,
        strips: Range<usize>,
        work: &mut dyn FnMut(usize),
    ) {
        let own = member.home_range(strips.len());
        let (lists, n) = (self.room.lists.of(member.rank()), self.room.n_clusters);
        // SAFETY: this worker's own memory, whose last use is over. A strip touches a cluster at least.
        let left = unsafe { lists.write(n..n + own.len()) };
        for (left, strip) in left.iter_mut().zip((0..).skip(strips.start + own.start)) {
            *left = strip;
        }
        let mut waiter = Waiter::new(self.source, self.layer, ExpertPart::GateUp);
        let mut n_left = left.len();
        while n_left > 0 {
            let (seen, n_before) = (waiter.seen(), n_left);
            n_left = 0;
            for i in 0..n_before {
                let strip = left[i] as usize;
                match self.take(&mut waiter, member, strip) {
                    Ok(Some(_lent)) => work(strip),
                    Ok(None) => {
                        left[n_left] = left[i];
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

    /// The clusters of a strip, if all of them have come.
    fn take(
        &self,
        waiter: &mut Waiter<'p>,
        member: &mut Member<'_>,
        strip: usize,
    ) -> Result<Option<[Option<Lent<'p>>; IN_STRIP]>, ()> {
        let mut all = [const { None }; IN_STRIP];
        let from = |cluster: &&u32| {
            let start = self.first + **cluster as usize * CLUSTER_NEURONS;
            start + CLUSTER_NEURONS > strip * GROUP && start < (strip + 1) * GROUP
        };
        for (lent, cluster) in all.iter_mut().zip(self.clusters.iter().filter(from)) {
            *lent = waiter.take(member, *cluster)?;
            if lent.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(all))
    }

    /// The clusters' weights of down, once all of them have come; `None` if the step is to stop at the next barrier.
    pub(super) fn down(&self, member: &mut Member<'_>) -> Option<Held<'p>> {
        let mut held = Held {
            source: self.source,
            layer: self.layer,
            clusters: &[],
        };
        let mut waiter = Waiter::new(self.source, self.layer, ExpertPart::Down);
        for (n, cluster) in (1..).zip(self.clusters) {
            waiter.wait(member, *cluster)?.keep();
            held.clusters = &self.clusters[..n];
        }
        Some(held)
    }
}

/// Clusters whose weights of down are lent; given back when dropped.
pub(super) struct Held<'p> {
    source: &'p dyn ExpertSource,
    layer: usize,
    clusters: &'p [u32],
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for cluster in self.clusters {
            self.source
                .give_back(self.layer, *cluster, ExpertPart::Down);
        }
    }
}

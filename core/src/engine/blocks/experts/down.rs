//! Down projections of experts, one after the other, over all strips of a worker in one call.

use super::{Block, Routed, adapted};
use crate::engine::epilogue::Epilogue;
use crate::engine::linear::Linear;
use crate::engine::rows::{Entries, some_rows};
use crate::engine::runner::Runner;
use crate::engine::sites::{ExpertPart, Waiter};
use crate::engine::stream::Target;
use crate::model::Site;
use crate::team::Stop;
use crate::trace::Phase;
use core::ops::Range;

impl<'p> Block<'p> {
    /// Units of work of a down projection: as many workers read an expert's.
    pub(super) fn n_down_strips(&self) -> usize {
        let layout = self.at.weights.layout(Site::FfnDown);
        self.width().div_ceil(layout.strip_rows())
    }

    /// Down projections of all experts, added to the residual stream or to its pending rows; `routed` has the neurons
    /// of all pairs.
    pub(super) fn down(
        &self,
        runner: &mut Runner<'p, '_>,
        routed: &Routed<'p>,
        target: Target<'p>,
    ) -> Result<(), Stop> {
        let Target::Add(sums, _) = target else {
            unreachable!("experts add their parts one by one");
        };
        let (pass, index, order) = (self.pass, self.at.index, runner.order);
        let start = runner.now();
        let n_strips = self.n_down_strips();
        let mut bytes = 0;
        let mut waiter = Waiter::new(self.source, index, ExpertPart::Down);
        let mut work = |rank, member: &mut _, strips: Range<usize>| {
            for &expert in routed.buckets.active() {
                let Some(lent) = waiter.wait(member, expert) else {
                    return;
                };
                let places = routed.buckets.range(expert);
                let pairs = routed.pairs(places.start);
                let panels = lent.weights.down;
                let model = pass.model;
                let down = Linear {
                    layer: index,
                    site: Site::FfnDown,
                    part: Some(expert),
                    input: some_rows(&routed.input, &places),
                    n_rows_in: places.len(),
                    weight: model.expert_matrix(self.at.weights, Site::FfnDown, expert, panels),
                    epilogue: Epilogue::AddWeighted(sums, pairs),
                    entries: Entries::Pairs(pairs, order),
                    adapted: adapted(pass, places.start),
                    columns: None,
                };
                bytes += down.run(pass, rank, strips.clone());
            }
        };
        if self.pass.asked.experts_are_resident {
            runner.member.share(n_strips, |member, strips| {
                work(member.rank(), member, strips);
            });
        } else {
            let strips = runner.member.home_range(n_strips);
            if !strips.is_empty() {
                work(runner.member.rank(), &mut *runner.member, strips);
            }
        }
        runner.record(Phase::FfnDown, index, start, bytes);
        runner.barrier(index)
    }
}

//! Experts whose router reads the layer's input: they are chosen and announced before the mixer runs, so that a source reads
//! them meanwhile.

use super::super::{LayerAt, channel_norm};
use super::Block;
use super::room::{Choices, ExpertsRoom};
use crate::engine::rows::{Order, SMALL_BATCH};
use crate::engine::runner::Runner;
use crate::kernels::table::Activations;
use crate::model::Experts;
use crate::team::Stop;
use crate::trace::Phase;

/// Chooses and announces experts before the layer's mixer, if their router reads the layer's input. `leaves_out`: only for
/// the rows that outputs depend on.
pub(in crate::engine::blocks) fn before_mixer<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p ExpertsRoom<'p>,
    at: LayerAt<'p>,
    shape: &'p Experts,
    leaves_out: bool,
) -> Result<(), Stop> {
    if !shape.routes_input {
        return Ok(());
    }
    let all = (runner.n_rows, runner.order);
    if leaves_out {
        // The rows as the mixer will leave them.
        (runner.n_rows, runner.order) = (runner.pass.wanted.n_outputs, Order::OutputsFirst);
    }
    if runner.n_rows > 0 {
        Block::new(runner, room, at, shape).choose_early(runner)?;
    }
    (runner.n_rows, runner.order) = all;
    Ok(())
}

impl<'p> Block<'p> {
    /// Choice of experts by the layer's input, which the mixer has not changed yet; announces them.
    fn choose_early(&self, runner: &mut Runner<'p, '_>) -> Result<(), Stop> {
        assert!(
            !runner.stream.is_pending(),
            "no layer before has a norm after its blocks"
        );
        let (index, order) = (self.at.index, runner.order);
        let input = runner.normed(Phase::FfnRouter, index, None, order)?;
        let choices = self.choose_by(runner, &input);
        if runner.n_rows > SMALL_BATCH {
            runner.barrier(index)?;
        }
        if runner.member.rank() == 0 {
            let (buckets, _) = self.buckets(runner, choices);
            self.announce(runner.member, &buckets);
        }
        Ok(())
    }

    /// What [`Self::choose_early`] chose, and the normed rows of all tokens.
    pub(super) fn chosen_early(
        &self,
        runner: &mut Runner<'p, '_>,
    ) -> Result<(Choices<'p>, Activations<'p>), Stop> {
        let input = self.normed(runner, channel_norm(self.at.kind))?;
        Ok((self.choices(runner), input))
    }
}

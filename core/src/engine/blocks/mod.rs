//! Blocks, which make up the layers of a model. Which block a kind calls is decided here.
//!
//! A mixer has two halves. `absorb` takes all rows and writes what later positions need: keys and values, taps of
//! a convolution, a recurrent state. `emit` takes the rows that are computed further and adds to the residual stream.
//! If these are all rows, both halves are one phase. So the last layer can drop rows with any mixer: their state is
//! written, and nothing else of them is computed.

mod attention;
mod cold;
mod experts;
mod ffn;
mod layer_input;
mod next_token;
mod predict;
mod recurrent;
mod short_conv;

use super::limits::EngineLimits;
use super::pass::Needs;
use super::rows::Order;
use super::runner::Runner;
use super::scratch::Room;
use super::stream::Target;
use crate::kernels::table::Activations;
use crate::memory::MemoryError;
use crate::model::{Channel, Layer, LayerKind, Mixer, ModelConfig, Vector};
use crate::team::Stop;
use crate::trace::Phase;

/// A layer at work.
#[derive(Clone, Copy)]
pub(super) struct LayerAt<'p> {
    pub(super) index: usize,
    pub(super) weights: &'p Layer,
    pub(super) kind: &'p LayerKind,
}

/// The memory of all kinds of blocks.
#[derive(Debug)]
pub(super) struct Rooms<'m> {
    pub(super) attention: attention::AttentionRoom<'m>,
    short_conv: short_conv::ShortConvRoom<'m>,
    recurrent: recurrent::RecurrentRoom<'m>,
    ffn: ffn::FfnRoom<'m>,
    experts: experts::ExpertsRoom<'m>,
    pub(super) layer_input: layer_input::LayerInputRoom<'m>,
    pub(super) next_token: next_token::NextTokenRoom<'m>,
}

impl<'m> Rooms<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        Ok(Self {
            attention: attention::AttentionRoom::new(config, limits, room)?,
            short_conv: short_conv::ShortConvRoom::new(config, limits, room)?,
            recurrent: recurrent::RecurrentRoom::new(config, limits, room)?,
            ffn: ffn::FfnRoom::new(config, limits, room)?,
            experts: experts::ExpertsRoom::new(config, limits, room)?,
            layer_input: layer_input::LayerInputRoom::new(config, limits, room)?,
            next_token: next_token::NextTokenRoom::new(config, limits, room)?,
        })
    }

    /// The requirements of the blocks on the memory that they share.
    pub(super) fn needs(&self) -> Needs {
        self.attention
            .needs
            .and(self.short_conv.needs)
            .and(self.recurrent.needs)
            .and(self.ffn.needs)
            .and(self.experts.needs)
            .and(self.layer_input.needs)
            .and(self.next_token.needs)
    }
}

/// Guesses the experts of the first layer from `first` on that has experts, for sources that ask for guesses.
pub(super) fn look_ahead(runner: &Runner<'_, '_>, rooms: &Rooms<'_>, first: usize) {
    experts::look_ahead(runner, &rooms.experts, first);
}

/// A mixer: adds what each row takes from earlier tokens. `leaves_out`: rows that no output depends on are only
/// computed as far as later positions need them. A layer without a mixer drops no rows. Experts whose router reads the
/// layer's input are chosen first.
pub(super) fn mixer<'p>(
    runner: &mut Runner<'p, '_>,
    rooms: &'p Rooms<'p>,
    at: LayerAt<'p>,
    leaves_out: bool,
) -> Result<(), Stop> {
    let leaves_out = leaves_out && at.kind.mixer != Mixer::None;
    if let Channel::Experts(shape) = &at.kind.channel {
        experts::before_mixer(runner, &rooms.experts, at, shape, leaves_out)?;
    }
    if at.kind.mixer == Mixer::None {
        return Ok(());
    }
    let n_all = runner.n_rows;
    if leaves_out {
        runner.order = Order::OutputsFirst;
    }
    let norm = runner.pass.model.norm(at.weights, Vector::MixerNorm);
    let input = runner.normed(Phase::AttentionNorm, at.index, norm, runner.order)?;
    if leaves_out {
        runner.keep_outputs(at.index);
    }
    let input = MixerInput { input, n_all };
    match &at.kind.mixer {
        Mixer::Attention(shape) => attention::run(runner, &rooms.attention, at, shape, input),
        Mixer::ShortConv(shape) => short_conv::run(runner, &rooms.short_conv, at, shape, input),
        Mixer::DeltaNet(shape) => {
            recurrent::run_delta_net(runner, &rooms.recurrent, at, shape, input)
        }
        Mixer::Mamba2(shape) => recurrent::run_mamba2(runner, &rooms.recurrent, at, shape, input),
        Mixer::None => unreachable!("returned above"),
    }
}

/// The input of a mixer.
#[derive(Clone, Copy)]
struct MixerInput<'p> {
    /// All rows of the stream after the norm, in the runner's order: rows that are computed further come first.
    input: Activations<'p>,
    /// Number of these rows.
    n_all: usize,
}

/// Where a mixer adds: after its own norm, or to pending rows that its channel does not see yet.
fn mixer_target<'p>(runner: &mut Runner<'p, '_>, at: LayerAt<'p>) -> Target<'p> {
    if at.kind.is_parallel {
        return runner.stream.add_hidden();
    }
    let model = runner.pass.model;
    if at.kind.has_second_norm
        && let Some(first) = model.norm(at.weights, Vector::ChannelNorm)
    {
        return runner.stream.add_again(first);
    }
    let post = model.norm(at.weights, Vector::MixerPostNorm);
    runner.stream.add(post)
}

/// The norm that a channel reads: its own, or its mixer's.
const fn channel_norm(kind: &LayerKind) -> Vector {
    match kind.is_parallel {
        true => Vector::MixerNorm,
        false if kind.has_second_norm => Vector::SecondNorm,
        false => Vector::ChannelNorm,
    }
}

/// A channel: adds a function of each row by itself.
pub(super) fn channel<'p>(
    runner: &mut Runner<'p, '_>,
    rooms: &'p Rooms<'p>,
    at: LayerAt<'p>,
) -> Result<(), Stop> {
    match &at.kind.channel {
        Channel::Ffn(shape) => ffn::run(runner, &rooms.ffn, at, shape)?,
        Channel::Experts(shape) => experts::run(runner, &rooms.experts, at, shape)?,
        Channel::None => {}
    }
    if at.kind.n_embd_layer > 0 {
        layer_input::run(runner, &rooms.layer_input, at)?;
    }
    if let Some(scale) = runner.pass.model.vector(at.weights, Vector::OutputScale) {
        runner.stream.multiply(scale[0]);
    }
    Ok(())
}

pub(super) use layer_input::begin as begin_layer_inputs;
pub(super) use next_token::begin as begin_next_token;

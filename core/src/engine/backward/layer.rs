//! A layer's backward pass: its channel, then its mixer.
//!
//! ```text
//! x₂ = x₁ + norm(mixer(norm(x₁)))      x₃ = x₂ + norm(channel(norm(x₂)))
//! ```
//!
//! `d` holds the gradient of x₃ first, then of x₂, then of x₁. Norms, h and x₂ are computed once more: less than 1% of the work.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the rows of a phase have one owner: a block's argument is one"
)]

use super::activation::activate_back;
use super::attention::Block;
use super::linear::Linear;
use super::matrix::{Kept, Matrix};
use super::run::Run;
use crate::engine::activate::activate;
use crate::model::{Attention, Channel, Ffn, Layer, Mixer, Site, Vector};
use crate::team::{Member, Stop};

/// A layer.
pub(super) struct At<'a> {
    pub(super) index: usize,
    pub(super) weights: &'a Layer,
    pub(super) kept: Kept<'a>,
    /// Whether anything below the layer needs its input's gradient.
    pub(super) goes_on: bool,
}

impl<'s> At<'s> {
    /// A linear layer with its adapter.
    fn linear(
        &self,
        run: &Run<'s>,
        site: Site,
        [x, dy]: [Matrix<'s>; 2],
        dx: Option<Matrix<'s>>,
        adds: bool,
    ) -> Linear<'s> {
        Linear {
            weight: run.model.matrix(self.weights, site),
            x,
            dy,
            dx,
            adds,
            pair: run.pair(self.index, site),
            n_rows: run.n_rows(),
        }
    }
}

/// Runs the backward pass of a layer as one rank.
pub(super) fn run<'s>(run: &Run<'s>, member: &mut Member<'_>, at: &'s At<'s>) -> Result<(), Stop> {
    let kind = run.model.config().kind(at.index);
    if let Some(scale) = run.model.vector(at.weights, Vector::OutputScale) {
        for row in member.home_range(run.n_rows()) {
            // SAFETY: a row is one rank's.
            let d = unsafe { run.room.d.row_mut(row) };
            d.iter_mut().for_each(|d| *d *= scale[0]);
        }
    }
    if let Channel::Ffn(shape) = &kind.channel {
        channel(run, member, at, shape)?;
    }
    // Below the lowest matrix with an adapter, nothing is computed.
    let is_needed = at.goes_on || MIXER.iter().any(|site| run.pair(at.index, *site).is_some());
    match &kind.mixer {
        Mixer::Attention(shape) if is_needed => mixer(run, member, at, shape),
        _ => Ok(()),
    }
}

const MIXER: [Site; 4] = [Site::AttnQ, Site::AttnK, Site::AttnV, Site::AttnOutput];

/// The feed-forward network.
fn channel<'s>(
    run: &Run<'s>,
    member: &mut Member<'_>,
    at: &At<'s>,
    shape: &Ffn,
) -> Result<(), Stop> {
    let (room, model, kept) = (run.room, run.model, &at.kept);
    let norm = model.norm(at.weights, Vector::ChannelNorm);
    let post = model.norm(at.weights, Vector::ChannelPostNorm);
    let mixer_post = model.norm(at.weights, Vector::MixerPostNorm);
    let scale = model.config().residual_scale;
    let neurons = room.neurons.of_width(shape.n_ff);
    for row in member.home_range(run.n_rows()) {
        // SAFETY: a row is one rank's in each buffer; kept rows and streams are only read.
        unsafe {
            let (middle, own) = (room.middle.row_mut(row), run.own_row());
            middle.copy_from_slice(run.stream(at.index, row));
            add_branch(run, mixer_post, kept.mixer.row(row), scale, middle, own);
            run.norm(norm, middle, room.normed.row_mut(row));
            let d_branch = room.d_branch.row_mut(row);
            let product = post.map(|_| kept.down.row(row));
            branch_back(run, post, product, room.d.row(row), scale, d_branch);
            let [gate, up] =
                [room.d_gate, room.d_up].map(|rows| rows.of_width(shape.n_ff).row_mut(row));
            products(shape, kept, row, gate, up);
            activate(run.table, shape.activation, gate, up, neurons.row_mut(row));
        }
    }
    member.barrier()?;
    let d_neurons = room.d_neurons.of_width(shape.n_ff);
    at.linear(
        run,
        Site::FfnDown,
        [neurons, room.d_branch],
        Some(d_neurons),
        false,
    )
    .run(run, member)?;
    let [d_gate, d_up] = [room.d_gate, room.d_up].map(|rows| rows.of_width(shape.n_ff));
    for row in member.home_range(run.n_rows()) {
        // SAFETY: as above.
        unsafe {
            // The neurons are not needed any more.
            let (gate, up) = (neurons.row_mut(row), &mut run.own_row()[..shape.n_ff]);
            products(shape, kept, row, gate, up);
            let d = [d_gate.row_mut(row), d_up.row_mut(row)];
            activate_back(
                run.kernels,
                shape.activation,
                [gate, up],
                d_neurons.row(row),
                d,
            );
        }
    }
    member.barrier()?;
    let goes_on = at.goes_on || MIXER.iter().any(|site| run.pair(at.index, *site).is_some());
    let dx = goes_on.then_some(room.d_normed);
    let up_sites: &[_] = match shape.is_gated {
        true => &[(Site::FfnGate, d_gate), (Site::FfnUp, d_up)],
        false => &[(Site::FfnUp, d_gate)],
    };
    for (i, (site, dy)) in up_sites.iter().enumerate() {
        at.linear(run, *site, [room.normed, *dy], dx, i > 0)
            .run(run, member)?;
    }
    if goes_on {
        for row in member.home_range(run.n_rows()) {
            // SAFETY: as above.
            unsafe {
                let (x, dy) = (room.middle.row(row), room.d_normed.row(row));
                run.norm_back(norm, x, dy, room.d.row_mut(row));
            }
        }
    }
    Ok(())
}

/// Attention.
fn mixer<'s>(
    run: &Run<'s>,
    member: &mut Member<'_>,
    at: &'s At<'s>,
    shape: &'s Attention,
) -> Result<(), Stop> {
    let (room, model, kept) = (run.room, run.model, &at.kept);
    let norm = model.norm(at.weights, Vector::MixerNorm);
    let post = model.norm(at.weights, Vector::MixerPostNorm);
    let scale = model.config().residual_scale;
    let block = Block {
        shape,
        kept,
        layer: at.index,
    };
    for row in member.home_range(run.n_rows()) {
        // SAFETY: a row is one rank's in each buffer; kept rows and streams are only read.
        unsafe {
            run.norm(norm, run.stream(at.index, row), room.normed.row_mut(row));
            let product = post.map(|_| kept.mixer.row(row));
            branch_back(
                run,
                post,
                product,
                room.d.row(row),
                scale,
                room.d_branch.row_mut(row),
            );
        }
    }
    block.prepare(run, member);
    member.barrier()?;
    let d_mixed = room.d_mixed.of_width(kept.mixed.width);
    at.linear(
        run,
        Site::AttnOutput,
        [kept.mixed, room.d_branch],
        Some(d_mixed),
        false,
    )
    .run(run, member)?;
    block.run(run, member)?;
    let dx = at.goes_on.then_some(room.d_normed);
    let sites = [
        (Site::AttnQ, room.d_q.of_width(kept.q.width)),
        (Site::AttnK, room.d_k.of_width(kept.k.width)),
        (Site::AttnV, room.d_v.of_width(kept.v.width)),
    ];
    for (i, (site, dy)) in sites.into_iter().enumerate() {
        at.linear(run, site, [room.normed, dy], dx, i > 0)
            .run(run, member)?;
    }
    if at.goes_on {
        for row in member.home_range(run.n_rows()) {
            // SAFETY: as above.
            unsafe {
                let (x, dy) = (run.stream(at.index, row), room.d_normed.row(row));
                run.norm_back(norm, x, dy, room.d.row_mut(row));
            }
        }
    }
    Ok(())
}

/// Gate and up of a row; a network without a gate activates up, and multiplies it by 1.
///
/// # Safety
/// - Nothing writes the kept rows meanwhile.
unsafe fn products(shape: &Ffn, kept: &Kept<'_>, row: usize, gate: &mut [f32], up: &mut [f32]) {
    // SAFETY: by the caller.
    let of_up = unsafe { kept.up.row(row) };
    if shape.is_gated {
        // SAFETY: by the caller.
        gate.copy_from_slice(unsafe { kept.gate.row(row) });
        up.copy_from_slice(of_up);
    } else {
        gate.copy_from_slice(of_up);
        up.fill(1.0);
    }
}

type Norm<'a> = Option<crate::model::Norm<'a>>;

/// Adds a mixer's or channel's product to the stream, as the forward pass does.
fn add_branch(
    run: &Run<'_>,
    post: Norm<'_>,
    product: &[f32],
    scale: f32,
    x: &mut [f32],
    own: &mut [f32],
) {
    match post {
        Some(_) => {
            let normed = &mut own[..x.len()];
            run.norm(post, product, normed);
            x.iter_mut().zip(normed).for_each(|(x, y)| *x += *y);
        }
        None => run.table.add_scaled(scale, product, x),
    }
}

/// The gradient of a product that is added to the stream.
fn branch_back(
    run: &Run<'_>,
    post: Norm<'_>,
    product: Option<&[f32]>,
    d: &[f32],
    scale: f32,
    out: &mut [f32],
) {
    match product {
        Some(product) => {
            out.fill(0.0);
            run.norm_back(post, product, d, out);
        }
        None => out.iter_mut().zip(d).for_each(|(out, d)| *out = d * scale),
    }
}

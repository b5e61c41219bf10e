//! The forward pass: the program that every rank runs.
//!
//! Embeddings, then for each layer its mixer and its channel ([`super::blocks`]), then the output layer. Small batches
//! quantise all rows in every worker instead of meeting; that makes 4 barriers a layer in decode and 6 in
//! prefill, where attention is followed by a feed-forward network.
//!
//! In the last layer, keys, values and recurrent states are written for all rows. The rest is computed only for
//! rows that an output depends on: none in the middle of a prompt, one at its end. There, these rows come
//! first ([`Order`]); the residual stream moves them after the barrier that follows the layer's first norm.

use super::blocks::{self, LayerAt, Rooms};
use super::epilogue::{Epilogue, LogitScale};
use super::output::OutputRoom;
use super::pass::Pass;
use super::rows::{Order, Rows, SMALL_BATCH};
use super::runner::Runner;
use crate::model::Site;
use crate::team::{Member, Stop};
use crate::trace::Phase;

/// Runs the whole pass as one rank.
pub(super) fn run<'p>(
    pass: &'p Pass<'p>,
    rooms: &'p Rooms<'p>,
    out: &'p OutputRoom<'p>,
    member: &mut Member<'_>,
) -> Result<(), Stop> {
    let (config, n_layer) = (pass.config(), pass.config().n_layer());
    let mut runner = Runner::new(pass, member);
    match pass.hidden() {
        Some(hidden) => blocks::begin_next_token(&mut runner, &rooms.next_token, hidden)?,
        None => begin(&mut runner)?,
    }
    blocks::begin_layer_inputs(&mut runner, &rooms.layer_input)?;
    blocks::look_ahead(&runner, rooms, pass.layers.start);
    for index in pass.layers.clone() {
        let at = LayerAt {
            index,
            weights: &pass.model.layers()[index],
            kind: config.kind(index),
        };
        let is_last = index + 1 == n_layer;
        blocks::mixer(&mut runner, rooms, at, is_last && pass.asked.leaves_out)?;
        if runner.n_rows == 0 {
            return Ok(());
        }
        blocks::channel(&mut runner, rooms, at)?;
    }
    match pass.input {
        None => output(&mut runner, out),
        Some(_) => hand_back(&mut runner, out),
    }
}

/// Residual stream from embeddings, or from the caller; rotary angles of every entry.
fn begin(runner: &mut Runner<'_, '_>) -> Result<(), Stop> {
    let (pass, stream) = (runner.pass, runner.stream);
    let n_embd = pass.config().n_embd;
    runner.share(Phase::Embedding, 0, pass.batch.len(), |rank, i| {
        // SAFETY: entry i is this worker's alone in this phase.
        let x = unsafe { stream.write(i) };
        if let Some(input) = pass.input {
            x.copy_from_slice(&input[i * n_embd..(i + 1) * n_embd]);
        } else {
            pass.embed(rank, i, x);
        }
        // SAFETY: as above.
        unsafe { pass.make_angles(i) };
        0
    });
    runner.barrier(0)
}

/// Final norm of the output rows; logits for the entries that want them.
fn output<'p>(runner: &mut Runner<'p, '_>, room: &'p OutputRoom<'p>) -> Result<(), Stop> {
    let (pass, n) = (runner.pass, runner.pass.wanted.n_outputs);
    if n == 0 {
        return Ok(());
    }
    let norm = pass.model.output_norm();
    let wants = |i| pass.batch[pass.common.entry(Order::OutputsFirst, i)].wants;
    // Where the last layer dropped rows, the output rows are already at the front.
    let order = match runner.order {
        Order::Batch => Order::OutputsFirst,
        Order::OutputsFirst => Order::Batch,
    };
    let input = runner.rows(Phase::OutputNorm, 0, &room.rows, n, |runner, i, row| {
        let x = runner.stream_row(pass.common.entry(order, i));
        let normed = runner.norm(x, norm);
        if wants(i).has_hidden() && (n > SMALL_BATCH || runner.member.rank() == 0) {
            // SAFETY: output i is one worker's: the one that has the row, or rank 0 where each
            // worker quantises all rows.
            unsafe { room.write_hidden(i, normed) };
        }
        pass.quantize(normed, &room.rows.layout, row);
    })?;
    // Rows that want logits come first.
    let n = pass.wanted.n_logits;
    if n == 0 {
        return runner.barrier(0);
    }
    let logits = Rows {
        memory: room.logits,
        stride: pass.config().n_vocab,
    };
    runner.order = Order::OutputsFirst;
    let scale = LogitScale {
        scale: pass.config().logit_scale,
        soft_cap: pass.config().logit_soft_cap,
    };
    let epilogue = Epilogue::Logits(logits, scale);
    let weight = pass.model.output();
    let output = runner.linear(0, Site::Output, input, n, weight, epilogue);
    runner.linears(Phase::Output, 0, &mut [output])
}

/// Copies the stream after the last layer that ran to the caller.
fn hand_back<'p>(runner: &mut Runner<'p, '_>, room: &'p OutputRoom<'p>) -> Result<(), Stop> {
    let n = runner.n_rows;
    for i in runner.member.home_range(n) {
        let x = runner.stream_row(i);
        // SAFETY: row i is one worker's.
        unsafe { room.write_hidden(i, x) };
    }
    runner.barrier(0)
}

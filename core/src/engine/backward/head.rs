//! The output layer: cross-entropy of labelled rows, [`CHUNK`] at a time, and the gradient of the last stream.
//!
//! Logits have the bits of the engine's steps. They become their gradient in place, `softmax - onehot`, which is
//! not divided by the number of labels: an optimiser's step divides once.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the rows of a phase have one owner: a block's argument is one"
)]

use super::linear::Linear;
use super::matrix::Matrix;
use super::room::CHUNK;
use super::run::Run;
use crate::kernels::contract::GROUP;
use crate::kernels::table::{Activations, Matmul, Prefetch, Quantize, Store};
use crate::team::{Member, Stop};
use core::ops::Range;

pub(super) fn run(run: &Run<'_>, member: &mut Member<'_>, n_labelled: usize) -> Result<(), Stop> {
    for row in member.home_range(run.n_rows()) {
        // SAFETY: a row is one rank's.
        unsafe { run.room.d.row_mut(row) }.fill(0.0);
    }
    for first in (0..n_labelled).step_by(CHUNK) {
        let chunk = first..(first + CHUNK).min(n_labelled);
        // The rows of the chunk before are read until all ranks are here.
        member.barrier()?;
        quantize(run, member, &chunk);
        member.barrier()?;
        logits(run, member, chunk.len());
        member.barrier()?;
        for i in member.home_range(chunk.len()) {
            cross_entropy(run, i, chunk.start + i);
        }
        member.barrier()?;
        let head = &run.room.head;
        let linear = Linear {
            weight: run.model.output(),
            x: head.d,
            dy: head.logits,
            dx: Some(head.d),
            adds: false,
            pair: None,
            n_rows: chunk.len(),
        };
        linear.run(run, member)?;
        let last = run.model.config().n_layer();
        for i in member.home_range(chunk.len()) {
            let row = labelled(run, chunk.start + i);
            let (x, norm) = (run.stream(last, row), run.model.output_norm());
            // SAFETY: a row is one rank's, and gradients of the chunk were written before the last barrier.
            unsafe { run.norm_back(norm, x, head.d.row(i), run.room.d.row_mut(row)) };
        }
    }
    member.barrier()
}

/// The row of label number `index`.
fn labelled(run: &Run<'_>, index: usize) -> usize {
    // SAFETY: written before the step began.
    let row = unsafe { run.room.head.labelled.read(index..index + 1) };
    row[0] as usize
}

/// The rows of a chunk as the output layer reads them: this rank's.
fn quantize(run: &Run<'_>, member: &Member<'_>, chunk: &Range<usize>) {
    let (head, config) = (&run.room.head, run.model.config());
    for i in member.home_range(chunk.len()) {
        let x = run.stream(config.n_layer(), labelled(run, chunk.start + i));
        // SAFETY: the rank's own row, whose last use is over.
        let normed = unsafe { &mut run.own_row()[..x.len()] };
        run.norm(run.model.output_norm(), x, normed);
        let args = Quantize {
            x: normed,
            first_col: 0,
            layout: &head.layout,
            row: head.rows.pointer(i * head.layout.row_bytes()),
        };
        // SAFETY: a row is one rank's.
        unsafe { run.table.quantize(&args) };
    }
}

/// Logits of `n` rows: strips of the vocabulary are shared out.
fn logits(run: &Run<'_>, member: &mut Member<'_>, n: usize) {
    let (head, config, weight) = (&run.room.head, run.model.config(), run.model.output());
    let n_vocab = weight.n_rows;
    member.share(n_vocab.div_ceil(GROUP), |_, strips| {
        let rows = strips.start * GROUP..(strips.end * GROUP).min(n_vocab);
        let args = Matmul {
            layout: weight.layout,
            panels: weight.panels,
            rows: (weight.first_row + rows.start..weight.first_row + rows.end).into(),
            activations: Activations {
                layout: head.layout,
                // SAFETY: written before the last barrier.
                bytes: unsafe { head.rows.read(0..n * head.layout.row_bytes()) },
            },
            tokens: (0..n).into(),
            out: head.logits.memory.pointer(rows.start),
            out_stride: n_vocab,
            store: Store::Set,
            prefetch: Prefetch::Near,
            beside: &[],
        };
        // SAFETY: these columns are this rank's.
        unsafe { run.table.matmul(&args) };
        for i in 0..n {
            let start = i * n_vocab;
            // SAFETY: as above.
            let y = unsafe {
                head.logits
                    .memory
                    .write(start + rows.start..start + rows.end)
            };
            if let Some(factor) = weight.factor {
                y.iter_mut().for_each(|y| *y *= factor);
            }
            if let Some(bias) = weight.bias {
                y.iter_mut()
                    .zip(&bias[rows.clone()])
                    .for_each(|(y, bias)| *y += bias);
            }
            #[expect(clippy::float_cmp, reason = "1 is a setting, not a result")]
            if config.logit_scale != 1.0 {
                y.iter_mut().for_each(|y| *y *= config.logit_scale);
            }
            if config.logit_soft_cap != 0.0 {
                run.table.soft_cap(y, config.logit_soft_cap);
            }
        }
    });
}

/// The cross-entropy of row `i` of a chunk, which has label number `index`; its logits become their gradient.
fn cross_entropy(run: &Run<'_>, i: usize, index: usize) {
    let (head, config) = (&run.room.head, run.model.config());
    let logits: Matrix<'_> = head.logits;
    // SAFETY: a row is one rank's; labels were written before the step began; a loss and a hit are one row's.
    let (y, label, loss, hit) = unsafe {
        (
            logits.row_mut(i),
            head.labels.read(index..index + 1)[0] as usize,
            head.losses.write(index..index + 1),
            head.hits.write(index..index + 1),
        )
    };
    let largest = y
        .iter()
        .enumerate()
        .fold(0, |best, (i, x)| if *x > y[best] { i } else { best });
    hit[0] = (largest == label).into();
    let capped = (config.logit_soft_cap != 0.0).then(|| {
        // SAFETY: the rank's own row, whose last use is over.
        let own = unsafe { &mut run.own_row()[..y.len()] };
        own.copy_from_slice(y);
        &*own
    });
    loss[0] = run.kernels.cross_entropy(y, label);
    if let Some(capped) = capped {
        run.kernels.soft_cap(capped, config.logit_soft_cap, y);
    }
    #[expect(clippy::float_cmp, reason = "1 is a setting, not a result")]
    if config.logit_scale != 1.0 {
        y.iter_mut().for_each(|y| *y *= config.logit_scale);
    }
}

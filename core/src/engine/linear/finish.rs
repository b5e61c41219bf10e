//! Epilogues of more than a line: heads of attention, gates and activations.

use super::{Linear, Tile};
use crate::engine::epilogue::{Gated, HeadTarget, Heads};
use crate::engine::pass::Pass;
use crate::kernels::hadamard::hadamard;
use crate::kernels::table::Quantize;
use crate::model::Activation;

impl Linear<'_> {
    /// Heads of a token: normalised, rotated, written or stored.
    pub(super) fn heads(
        &self,
        pass: &Pass<'_>,
        rank: usize,
        heads: &Heads<'_>,
        tile: &Tile<'_>,
        token: usize,
        y: &mut [f32],
    ) {
        let entry = pass.entry_of_row(self.entries, token);
        if let HeadTarget::GatedQueries(queries, gates) = &heads.target {
            let first = tile.rows.start / 2;
            for (i, y) in y.chunks_exact_mut(2 * heads.head_dim).enumerate() {
                let (query, gate) = y.split_at_mut(heads.head_dim);
                let start = first + i * heads.head_dim;
                Self::turn(pass, rank, entry, heads, start / heads.head_dim, query);
                let columns = start..start + heads.head_dim;
                self.target(queries, token, &columns).copy_from_slice(query);
                self.target(gates, token, &columns).copy_from_slice(gate);
            }
            return;
        }
        let first_head = tile.rows.start / heads.head_dim;
        Self::turn(pass, rank, entry, heads, first_head, y);
        match &heads.target {
            HeadTarget::Queries(out) => self.target(out, token, &tile.rows).copy_from_slice(y),
            HeadTarget::GatedQueries(..) => unreachable!("handled above"),
            HeadTarget::Keys(pages, layer) => {
                pass.store_keys(pages, *layer, entry, first_head, y);
            }
            HeadTarget::Values(pages, layer) => {
                pass.store_values(pages, *layer, entry, first_head, y);
            }
        }
    }

    /// Whole heads of an entry from head `first` on, normalised and rotated.
    fn turn(
        pass: &Pass<'_>,
        rank: usize,
        entry: usize,
        heads: &Heads<'_>,
        first: usize,
        y: &mut [f32],
    ) {
        let norm = |y: &mut [f32]| {
            let Some(norm) = heads.norm else {
                return;
            };
            for (head, y) in y.chunks_exact_mut(heads.head_dim).enumerate() {
                let norm = norm.of_piece(first + head, heads.head_dim);
                pass.norm_in_place(rank, y, Some(norm));
            }
        };
        if !heads.norms_rotated {
            norm(y);
        }
        if let Some(rope) = heads.rope {
            pass.rotate(rope, entry, heads.head_dim, y);
        }
        if heads.norms_rotated {
            norm(y);
        }
        if let Some(temperature) = &heads.temperature {
            pass.heat(temperature, entry, y);
        }
        hadamard(y, heads.rotation);
    }

    /// `activation(gate) · up`, into the quantised rows: whole activation groups of every token.
    pub(super) fn gate(
        pass: &Pass<'_>,
        rank: usize,
        gated: &Gated<'_>,
        gate: &Tile<'_>,
        up: &Tile<'_>,
    ) {
        let (layout, out) = (&gated.layout, &gated.rows);
        // SAFETY: this worker's own row; its last use (a norm) is over.
        let x = unsafe { pass.common.norms.of(rank).write(0..gate.rows.len()) };
        for (i, token) in gate.tokens.clone().enumerate() {
            if i + 1 < gate.tokens.len() {
                let next = out.pointer((token + 1) * layout.row_bytes());
                layout.prefetch(next, gate.rows.clone());
            }
            match gated.activation {
                Activation::Silu => pass.table.silu_mul(gate.row(i), up.row(i), x),
                Activation::Gelu => pass.table.gelu_mul(gate.row(i), up.row(i), x),
                Activation::GeluErf => pass.table.gelu_erf_mul(gate.row(i), up.row(i), x),
                Activation::ReluSquared => {
                    let columns = x.iter_mut().zip(gate.row(i)).zip(up.row(i));
                    columns.for_each(|((x, gate), up)| {
                        let positive = above(*gate, 0.0);
                        *x = positive * positive * *up;
                    });
                }
                Activation::Relu { threshold } => {
                    let columns = x.iter_mut().zip(gate.row(i)).zip(up.row(i));
                    columns.for_each(|((x, gate), up)| *x = opened(*gate, threshold, *up));
                }
                Activation::Drelu => {
                    let columns = x.iter_mut().zip(gate.row(i)).zip(up.row(i));
                    columns.for_each(|((x, gate), up)| *x = opened(*gate, 0.0, above(*up, 0.0)));
                }
                Activation::SwigluClamped { alpha, limit } => {
                    let (gate, up) = (gate.row(i), up.row(i));
                    clamp_swiglu(gate, up, alpha, limit);
                    pass.table.silu_mul(gate, up, x);
                }
            }
            let args = Quantize {
                x,
                first_col: gate.rows.start,
                layout,
                row: out.pointer(token * layout.row_bytes()),
            };
            // SAFETY: these strips' groups of the row are written by this worker alone.
            unsafe { pass.table.quantize(&args) };
        }
    }

    /// The other factor of an activated gate where it is not a product: existing rows, or 1, which is exact.
    pub(super) fn fill_up(&self, pass: &Pass<'_>, gated: &Gated<'_>, up: &Tile<'_>) {
        for (i, token) in up.tokens.clone().enumerate() {
            let Some(by) = &gated.by else {
                up.row(i).fill(1.0);
                continue;
            };
            let start = pass.entry_of_row(self.entries, token) * by.stride;
            let columns = start + up.rows.start..start + up.rows.end;
            // SAFETY: written before the last barrier, and only read since.
            up.row(i)
                .copy_from_slice(unsafe { by.memory.read(columns) });
        }
    }
}

/// `x` above a threshold, else 0. NaN stays what it is.
fn above(x: f32, threshold: f32) -> f32 {
    if x <= threshold { 0.0 } else { x }
}

/// `gate · up` if the gate is above a threshold or not a number, else 0, whatever `up` is: it need not be computed.
fn opened(gate: f32, threshold: f32, up: f32) -> f32 {
    if gate <= threshold { 0.0 } else { gate * up }
}

/// Prepares gate and up so that `silu(gate) · up` is `g · sigmoid(alpha · g) · (u + 1)` of the clamped ones.
/// NaN stays what it is.
fn clamp_swiglu(gate: &mut [f32], up: &mut [f32], alpha: f32, limit: f32) {
    let inverse = 1.0 / alpha;
    for (gate, up) in gate.iter_mut().zip(up) {
        if *gate > limit {
            *gate = limit;
        }
        *gate *= alpha;
        // Not `clamp`: its message would take the formatting of floats, 15 KB, into the bare-metal image.
        if *up > limit {
            *up = limit;
        } else if *up < -limit {
            *up = -limit;
        }
        *up = (*up + 1.0) * inverse;
    }
}

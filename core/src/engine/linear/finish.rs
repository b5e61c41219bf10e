//! Epilogues of more than a line: heads of attention, gates and activations.

use super::{Linear, Tile};
use crate::engine::activate::activate;
use crate::engine::epilogue::{Gated, HeadTarget, Heads};
use crate::engine::pass::Pass;
use crate::engine::sites::{NeuronChoice, SiteProduct};
use crate::kernels::contract::GROUP;
use crate::kernels::hadamard::hadamard;
use crate::kernels::table::Quantize;

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
    // A frame of its own, which is not below that of the products.
    #[inline(never)]
    pub(super) fn gate(
        &self,
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
            let (gate_row, up_row) = (gate.row(i), up.row(i));
            match &gated.keeping {
                Some(keeping) if keeping.is_by_gate() => {
                    let firsts = gate.rows.clone().step_by(GROUP);
                    let groups = gate_row.chunks_mut(GROUP).zip(up_row.chunks_mut(GROUP));
                    for (first, ((gate, up), x)) in firsts.zip(groups.zip(x.chunks_mut(GROUP))) {
                        let keeps = keeping.keep_by_gate(pass, token, first, gate);
                        keeping.count_by_gate(pass, gate, &keeps);
                        activate(pass.table, gated.activation, gate, up, x);
                        for (x, _) in x.iter_mut().zip(keeps).filter(|(_, keeps)| !keeps) {
                            *x = 0.0;
                        }
                    }
                }
                _ => activate(pass.table, gated.activation, gate_row, up_row, x),
            }
            if pass.asked.shows_choices {
                self.show_choice(pass, gated, token, gate.rows.start, x);
            }
            let args = Quantize {
                x,
                first_col: gate.rows.start,
                layout,
                row: out.pointer(token * layout.row_bytes()),
            };
            // SAFETY: these strips' groups of the row are written by this worker alone.
            unsafe { pass.table.quantize(&args) };
            if let Some(keeping) = &gated.keeping {
                // SAFETY: as above.
                unsafe { keeping.leave_out_known(pass, layout, args.row, gate.rows.clone()) };
            }
        }
    }

    /// Shows an observer which neurons of a row from `first` on are selected, and sets the others to 0.
    #[inline(never)]
    fn show_choice(
        &self,
        pass: &Pass<'_>,
        gated: &Gated<'_>,
        row: usize,
        first: usize,
        x: &mut [f32],
    ) {
        let (Some(observer), Some(selection)) = (pass.options.observer, &gated.selection) else {
            return;
        };
        let network = self.part.unwrap_or(0) as usize * gated.layout.n_cols();
        for (first, x) in (first..).step_by(GROUP).zip(x.chunks_mut(GROUP)) {
            let mut is_chosen = [false; GROUP];
            for (neuron, is_chosen) in (first..).zip(&mut is_chosen[..x.len()]) {
                *is_chosen = selection.is_on(row, neuron);
            }
            observer.sees_choice(NeuronChoice {
                layer: self.layer,
                first: network + first,
                values: x,
                is_chosen: &is_chosen[..x.len()],
            });
            for (x, _) in x.iter_mut().zip(is_chosen).filter(|(_, is)| !is) {
                *x = 0.0;
            }
        }
    }

    /// Shows an observer the products of a tile, and of up's.
    #[inline(never)]
    pub(super) fn show_products(&self, pass: &Pass<'_>, tile: &Tile<'_>, up: Option<&Tile<'_>>) {
        let Some(observer) = pass.options.observer else {
            return;
        };
        let up = up.map(|up| (self.up_site(), up));
        for (site, tile) in [(self.site, tile)].into_iter().chain(up) {
            for (i, token) in tile.tokens.clone().enumerate() {
                observer.sees_product(SiteProduct {
                    layer: self.layer,
                    site,
                    expert: self.part,
                    entry: pass.entry_of_row(self.entries, token),
                    first: tile.rows.start,
                    values: tile.row(i),
                });
            }
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

//! Neurons that are left out: those that are not selected, those whose gate is 0, and those whose code is. The latter
//! two change no bit.

use super::{Linear, Tile};
use crate::engine::epilogue::{Gated, Selection};
use crate::engine::pass::{Pass, TILE_FLOATS};
use crate::engine::rows::Rows;
use crate::engine::sites::Sparse;
use crate::kernels::contract::GROUP;
use crate::kernels::neuron::Form;
use crate::kernels::table::Matmul;
use crate::model::{Site, Weight};

/// Maximum number of rows for which neurons are left out: of more, hardly any is inactive in all.
pub(in crate::engine) const ROWS_MAX: usize = 8;
/// Maximum number of neurons in a tile.
const NEURONS_MAX: usize = TILE_FLOATS / 2;

/// Columns of a product by neuron that is computed in two parts.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Columns<'a> {
    /// Sums over the first columns.
    pub(in crate::engine) sums: Rows<'a>,
    /// Groups of 256 columns that these are.
    pub(in crate::engine) n_groups: usize,
    /// Whether they are computed now, and stored, or continued.
    pub(in crate::engine) is_first: bool,
}

impl Linear<'_> {
    /// Whether neurons may be left out of a product with `weight`, which is in `form`.
    pub(super) fn leaves_out(&self, pass: &Pass<'_>, weight: &Weight<'_>, form: Form) -> bool {
        weight.layout.form() == form
            && self.n_rows_in <= ROWS_MAX
            && pass.options.sparse != Sparse::Off
    }

    /// Whether columns whose codes are 0 may be skipped in a product with `weight`: no bit changes, and with all columns
    /// it is the fastest product of such a matrix.
    pub(super) const fn skips_columns(&self, weight: &Weight<'_>) -> bool {
        matches!(weight.layout.form(), Form::Neurons) && self.n_rows_in <= ROWS_MAX
    }

    /// Fills the tile of an up matrix with the products of the neurons whose gates are not 0 in all rows, or that a row
    /// keeps, and with 0 elsewhere; `false` if it has to be computed whole.
    // A frame of its own, so that products of whole matrices do not need its lists on their stack.
    #[inline(never)]
    pub(super) fn multiply_active(
        &self,
        pass: &Pass<'_>,
        rank: usize,
        gated: &Gated<'_>,
        up: &Weight<'_>,
        gate: &Tile<'_>,
        tile: &Tile<'_>,
    ) -> bool {
        let site = match gated.gates {
            Some(_) => self.site,
            None => self.up_site(),
        };
        let n = tile.rows.len();
        if !self.leaves_out(pass, up, Form::Rows) || n > NEURONS_MAX {
            return false;
        }
        let mut is_active = [false; NEURONS_MAX];
        match (&gated.keeping, gated.activation.gate_threshold()) {
            (Some(keeping), _) if keeping.is_by_gate() => {
                for (i, token) in gate.tokens.clone().enumerate() {
                    let firsts = gate.rows.clone().step_by(GROUP);
                    let groups = gate.row(i).chunks(GROUP).zip(is_active.chunks_mut(GROUP));
                    for (first, (gate, is_active)) in firsts.zip(groups) {
                        let keeps = keeping.keep_by_gate(pass, token, first, gate);
                        is_active
                            .iter_mut()
                            .zip(keeps)
                            .for_each(|(is, keeps)| *is |= keeps);
                    }
                }
            }
            // Gates of neurons that are not selected are 0, too.
            (_, Some(threshold)) => {
                for i in 0..gate.tokens.len() {
                    for (is_active, gate) in is_active.iter_mut().zip(gate.row(i)) {
                        *is_active |= *gate > threshold || gate.is_nan();
                    }
                }
            }
            _ => return false,
        }
        let n_listed = self.multiply_listed(pass, up, tile, &is_active);
        if gated.keeping.is_none() {
            pass.neurons.add(self.layer, n, n - n_listed);
        }
        self.add_to_product(pass, rank, up, site, tile);
        true
    }

    /// Fills a tile with the products of the neurons that are selected for any of its rows, and with 0 elsewhere;
    /// `false` if the matrix is not by row, or there are too many rows.
    #[inline(never)]
    pub(super) fn multiply_selected(
        &self,
        pass: &Pass<'_>,
        weight: &Weight<'_>,
        site: Site,
        tile: &Tile<'_>,
        selection: &Selection<'_>,
    ) -> bool {
        let n = tile.rows.len();
        if !self.leaves_out(pass, weight, Form::Rows) || n > NEURONS_MAX {
            return false;
        }
        let mut is_active = [false; NEURONS_MAX];
        for (is_active, neuron) in is_active.iter_mut().zip(tile.rows.clone()) {
            *is_active = tile.tokens.clone().any(|row| selection.is_on(row, neuron));
        }
        let n_listed = self.multiply_listed(pass, weight, tile, &is_active);
        if site != Site::FfnGate {
            pass.neurons.add(self.layer, n, n - n_listed);
        }
        true
    }

    /// Fills a tile with the sums over the first columns, or continues them to the product.
    #[inline(never)]
    pub(super) fn multiply_columns(
        &self,
        pass: &Pass<'_>,
        rank: usize,
        columns: &Columns<'_>,
        tile: &Tile<'_>,
    ) {
        let Columns { sums, n_groups, .. } = columns;
        let groups = match columns.is_first {
            true => 0..*n_groups,
            false => *n_groups..self.weight.layout.n_cols().div_ceil(GROUP),
        };
        for (i, token) in tile
            .tokens
            .clone()
            .enumerate()
            .filter(|_| !columns.is_first)
        {
            tile.row(i)
                .copy_from_slice(self.target(sums, token, &tile.rows));
        }
        let args = self.product(pass, &self.weight, tile, tile.rows.clone(), &[]);
        // SAFETY: the tile is this worker's own and holds tokens × rows floats, which are sums where they are continued.
        unsafe { pass.table.matmul_skipping_groups(&args, groups.into()) };
        if !columns.is_first {
            self.add_to_product(pass, rank, &self.weight, self.site, tile);
        }
    }

    /// Products with some neurons of a tile, 0 for the others; returns the number of these neurons.
    fn multiply_listed(
        &self,
        pass: &Pass<'_>,
        weight: &Weight<'_>,
        tile: &Tile<'_>,
        is_active: &[bool; NEURONS_MAX],
    ) -> usize {
        let mut listed = [0; NEURONS_MAX];
        let listed = list(weight, tile, is_active, &mut listed);
        let args = Matmul {
            out: tile.memory.pointer(0),
            out_stride: listed.len(),
            ..self.product(pass, weight, tile, tile.rows.clone(), &[])
        };
        // SAFETY: the tile is this worker's own, and has as many floats as tokens × rows, of which some are listed.
        unsafe { pass.table.matmul_listed(&args, listed) };
        spread(weight, listed, tile);
        let (n, row_bytes) = (tile.rows.len(), weight.layout.gguf_row_bytes());
        pass.neurons
            .add_bytes(self.layer, n * row_bytes, (n - listed.len()) * row_bytes);
        listed.len()
    }
}

/// Lists active neurons of a tile as rows of the tensor.
fn list<'l>(
    weight: &Weight<'_>,
    tile: &Tile<'_>,
    is_active: &[bool; NEURONS_MAX],
    listed: &'l mut [u32; NEURONS_MAX],
) -> &'l [u32] {
    let mut n = 0;
    for (i, is_active) in is_active[..tile.rows.len()].iter().enumerate() {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a tensor has fewer than 2^32 rows"
        )]
        let row = (weight.first_row + tile.rows.start + i) as u32;
        listed[n] = row;
        n += usize::from(*is_active);
    }
    &listed[..n]
}

/// Moves the products of listed neurons, (tokens, listed), to their places in the tile, with zeros between.
fn spread(up: &Weight<'_>, listed: &[u32], tile: &Tile<'_>) {
    let (n, first) = (tile.rows.len(), up.first_row + tile.rows.start);
    // SAFETY: the tile is this worker's own, and nothing else refers to it here.
    let all = unsafe { tile.memory.write(0..n * tile.tokens.len()) };
    // From the end: each place comes after all products that still have to move.
    for t in (0..tile.tokens.len()).rev() {
        let mut end = n;
        for (i, row) in listed.iter().enumerate().rev() {
            let (at, product) = (*row as usize - first, all[t * listed.len() + i]);
            all[t * n + at + 1..t * n + end].fill(0.0);
            all[t * n + at] = product;
            end = at;
        }
        all[t * n..t * n + end].fill(0.0);
    }
}

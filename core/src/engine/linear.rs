//! A linear layer is one call: (input, weight, epilogue).
//!
//! The product of a strip of weight rows with all tokens goes through a worker's tile, up to 512
//! tokens at a time (with few tokens several strips), and the epilogue takes it from there: bias,
//! adapters, residual, SwiGLU or GeGLU, norms of heads, rotation, the KV cache. Strips are the unit
//! of work that ranks share.

mod active;
mod finish;

pub(super) use active::{Columns, ROWS_MAX};

use super::adapt::{Adapted, Area, At, BesideList};
use super::epilogue::{Epilogue, Gated, LogitScale, Selection};
use super::pass::{Pass, TILE_FLOATS};
use super::rows::{Entries, InputRows, Rows, TILE_TOKENS};
use crate::kernels::contract::GROUP;
use crate::kernels::neuron::Form;
use crate::kernels::panel::PANEL_ROWS;
use crate::kernels::prefetch;
use crate::kernels::table::{Activations, Beside, Matmul, Store};
use crate::memory::Shared;
use crate::model::{Site, Weight};
use core::fmt;
use core::ops::Range;

/// Rows of outputs that are prefetched before they are needed: long rows are far apart.
const ROWS_AHEAD: usize = 8;

/// One linear layer of a pass.
#[derive(Clone, Copy)]
pub(super) struct Linear<'a> {
    pub(super) layer: usize,
    pub(super) site: Site,
    /// The expert or head.
    pub(super) part: Option<u32>,
    pub(super) input: Activations<'a>,
    /// Rows of `input`.
    pub(super) n_rows_in: usize,
    pub(super) weight: Weight<'a>,
    pub(super) epilogue: Epilogue<'a>,
    pub(super) entries: Entries<'a>,
    /// Location of the adapters' products for its rows; without adapters, `None`.
    pub(super) adapted: Option<Adapted>,
    /// Which of its columns it multiplies; `None` for all.
    pub(super) columns: Option<Columns<'a>>,
}

impl fmt::Debug for Linear<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linear")
            .field("layer", &self.layer)
            .field("site", &self.site)
            .finish_non_exhaustive()
    }
}

impl<'a> Linear<'a> {
    /// The place of one of its matrices: its own, or the up matrix of its gate.
    pub(super) const fn at(&self, site: Site) -> At {
        At {
            layer: self.layer,
            site,
            part: self.part,
        }
    }

    /// The input rows, for adapters and observers.
    pub(super) const fn input_rows(&self) -> InputRows<'_> {
        InputRows {
            rows: &self.input,
            entries: self.entries,
        }
    }

    /// The matrices that it multiplies: one, or gate and up.
    pub(super) fn matrices(&self) -> impl Iterator<Item = At> {
        let has_up = matches!(&self.epilogue, Epilogue::Gated(gated) if gated.up.is_some());
        let up = has_up.then(|| self.at(self.up_site()));
        core::iter::once(self.at(self.site)).chain(up)
    }

    /// The site of the up matrix that belongs to its gate.
    const fn up_site(&self) -> Site {
        match self.site {
            Site::FfnGateShexp => Site::FfnUpShexp,
            _ => Site::FfnUp,
        }
    }

    const fn strip_rows(&self) -> usize {
        match &self.epilogue {
            // Where columns can be left out, whole chunks of codes.
            Epilogue::Store(_)
            | Epilogue::Sigmoid(_)
            | Epilogue::Select(_)
            | Epilogue::StoreEntry(_)
            | Epilogue::Logits(..)
            | Epilogue::Add(..)
            | Epilogue::AddRows(..)
            | Epilogue::AddWeighted(..) => self.weight.layout.strip_rows(),
            Epilogue::Heads(heads) => heads.strip_rows,
            Epilogue::Gated(_) => GROUP,
        }
    }

    /// Units of work in this layer.
    pub(super) const fn n_strips(&self) -> usize {
        self.weight.n_rows.div_ceil(self.strip_rows())
    }

    /// Computes some strips for all tokens; returns the weight bytes read.
    pub(super) fn run(&self, pass: &Pass<'_>, rank: usize, strips: Range<usize>) -> usize {
        if strips.is_empty() || self.n_rows_in == 0 {
            return 0;
        }
        let strip_rows = self.strip_rows();
        let all = strips.start * strip_rows..(strips.end * strip_rows).min(self.weight.n_rows);
        let step = strip_rows * self.strips_at_once(pass);
        let mut row = all.start;
        while row < all.end {
            let rows = row..(row + step).min(all.end);
            let mut token = 0;
            while token < self.n_rows_in {
                let tokens = token..(token + TILE_TOKENS).min(self.n_rows_in);
                self.tile(pass, rank, rows.clone(), tokens.clone());
                token = tokens.end;
            }
            row = rows.end;
        }
        // Sums that are continued later are counted then.
        if self.columns.is_some_and(|columns| columns.is_first) {
            return 0;
        }
        if self.leaves_out(pass, &self.weight, Form::Neurons) {
            let n_zero = self.input.zero_columns();
            let skipped = n_zero * self.weight.layout.code_bytes(all.len());
            pass.neurons
                .add_bytes(self.layer, self.weight.strip_bytes(&all), skipped);
        }
        let up_bytes = match &self.epilogue {
            Epilogue::Gated(Gated { up: Some(up), .. }) => up.strip_bytes(&all),
            _ => 0,
        };
        self.weight.strip_bytes(&all) + up_bytes
    }

    /// Strips that are one tile: with few tokens a strip is little work for a call.
    fn strips_at_once(&self, pass: &Pass<'_>) -> usize {
        let strip = self.strip_rows() * self.n_rows_in.clamp(1, TILE_TOKENS);
        let mut floats = pass.common.products.len();
        if !self.skips_columns(&self.weight) {
            floats = floats.min(TILE_FLOATS);
        }
        if let Epilogue::Gated(_) = self.epilogue {
            // Two products side by side, and a row of results.
            let fit_the_row = pass.common.norms.len() / self.strip_rows() * strip;
            floats = (floats / 2).min(fit_the_row);
        }
        (floats / strip).max(1)
    }

    /// Some rows × up to [`TILE_TOKENS`] tokens.
    fn tile(&self, pass: &Pass<'_>, rank: usize, rows: Range<usize>, tokens: Range<usize>) {
        let memory = pass.common.products.of(rank);
        let n = rows.len() * tokens.len();
        if let Epilogue::Gated(gated) = &self.epilogue {
            let gate = Tile {
                memory: memory.part(0..n),
                rows: rows.clone(),
                tokens,
            };
            let up_tile = Tile {
                memory: memory.part(n..2 * n),
                ..gate.clone()
            };
            // Of those that are not selected, too, where they are shown.
            let is_shown = pass.asked.shows_choices;
            let selection = gated.selection.as_ref().filter(|_| !is_shown);
            let up = match &gated.gates {
                None => {
                    self.multiply(pass, rank, &self.weight, self.site, &gate, selection);
                    gated.up.as_ref().map(|up| (up, self.up_site()))
                }
                Some(gates) => {
                    for (i, token) in gate.tokens.clone().enumerate() {
                        let start = token * gates.stride;
                        let columns = start + gate.rows.start..start + gate.rows.end;
                        // SAFETY: written before the last barrier, and only read since.
                        let gates = unsafe { gates.memory.read(columns) };
                        gate.row(i).copy_from_slice(gates);
                    }
                    Some((&self.weight, self.site))
                }
            };
            match up {
                Some((up, _)) if self.multiply_active(pass, rank, gated, up, &gate, &up_tile) => {}
                Some((up, site)) => self.multiply(pass, rank, up, site, &up_tile, selection),
                None => self.fill_up(pass, gated, &up_tile),
            }
            if pass.asked.shows_products {
                self.show_products(pass, &gate, gated.up.and(Some(&up_tile)));
            }
            return self.gate(pass, rank, gated, &gate, &up_tile);
        }
        let tile = Tile {
            memory: memory.part(0..n),
            rows,
            tokens,
        };
        match &self.columns {
            Some(columns) => self.multiply_columns(pass, rank, columns, &tile),
            None => self.multiply(pass, rank, &self.weight, self.site, &tile, None),
        }
        if pass.asked.shows_products {
            self.show_products(pass, &tile, None);
        }
        for (i, token) in tile.tokens.clone().enumerate() {
            if i + ROWS_AHEAD < tile.tokens.len() {
                self.prefetch_sum(token + ROWS_AHEAD, &tile.rows);
            }
            self.finish(pass, rank, &tile, token, tile.row(i));
        }
    }

    /// Applies the epilogue to the products `y` of a tile's token.
    fn finish(&self, pass: &Pass<'_>, rank: usize, tile: &Tile<'_>, token: usize, y: &mut [f32]) {
        match &self.epilogue {
            Epilogue::Store(out) => self.target(out, token, &tile.rows).copy_from_slice(y),
            Epilogue::Sigmoid(out) => {
                pass.table.sigmoid(y);
                self.target(out, token, &tile.rows).copy_from_slice(y);
            }
            Epilogue::Select(scores) => scores.write(token, tile.rows.start, y),
            Epilogue::StoreEntry(out) => {
                let entry = pass.entry_of_row(self.entries, token);
                self.target(out, entry, &tile.rows).copy_from_slice(y);
            }
            Epilogue::Logits(out, LogitScale { scale, soft_cap }) => {
                #[expect(clippy::float_cmp, reason = "1 is a setting, not a result")]
                if *scale != 1.0 {
                    y.iter_mut().for_each(|y| *y *= scale);
                }
                if *soft_cap != 0.0 {
                    pass.table.soft_cap(y, *soft_cap);
                }
                self.target(out, token, &tile.rows).copy_from_slice(y);
            }
            Epilogue::Add(out, scale) => {
                let target = self.target(out, token, &tile.rows);
                pass.table.add_scaled(*scale, y, target);
            }
            Epilogue::AddRows(out, scale, scales) => {
                let target = self.target(out, token, &tile.rows);
                pass.table.add_scaled(scale * scales[token], y, target);
            }
            Epilogue::AddWeighted(out, pairs) => {
                let target = self.target(out, pairs.token(token), &tile.rows);
                pass.table.add_scaled(pairs.weight(token), y, target);
            }
            Epilogue::Heads(heads) => self.heads(pass, rank, heads, tile, token, y),
            Epilogue::Gated(_) => unreachable!("handled above"),
        }
    }

    /// Prefetches the sums that outputs `rows` of `token` are added to.
    #[inline(never)]
    fn prefetch_sum(&self, token: usize, rows: &Range<usize>) {
        let (out, token) = match &self.epilogue {
            Epilogue::Add(out, _) | Epilogue::AddRows(out, ..) => (out, token),
            Epilogue::AddWeighted(out, pairs) => (out, pairs.token(token)),
            _ => return,
        };
        let at = out.memory.pointer(token * out.stride + rows.start);
        prefetch(at.cast(), size_of::<f32>() * rows.len());
    }

    /// Outputs `rows` of `token` in the target rows.
    fn target<'t>(&self, out: &Rows<'t>, token: usize, rows: &Range<usize>) -> &'t mut [f32] {
        let start = token * out.stride;
        // SAFETY: strips are run by one worker each, and share no output.
        unsafe { out.memory.write(start + rows.start..start + rows.end) }
    }

    /// Fills a tile: product, adapters, bias. Neurons that are not selected give zero.
    fn multiply(
        &self,
        pass: &Pass<'_>,
        rank: usize,
        weight: &Weight<'_>,
        site: Site,
        tile: &Tile<'_>,
        selection: Option<&Selection<'_>>,
    ) {
        // The up matrix has the slot after its gate's.
        let skip = usize::from(site != self.site);
        let Some(selection) = selection else {
            let rows = tile.rows.clone();
            if let Some(Adapted::Listed { slot }) = self.adapted {
                let mut beside = BesideList::new();
                pass.list_beside(rank, slot + skip, rows.start, &mut beside);
                self.multiply_rows(pass, weight, tile, rows, beside.get());
            } else {
                self.multiply_rows(pass, weight, tile, rows, &[]);
            }
            return self.add_to_product(pass, rank, weight, site, tile);
        };
        let is_active = |panel: &Range<usize>| {
            let of_row = |row| panel.clone().any(|neuron| selection.is_on(row, neuron));
            tile.tokens.clone().any(of_row)
        };
        if !self.multiply_selected(pass, weight, site, tile, selection) {
            runs(panels(&tile.rows).filter(is_active), |rows| {
                self.multiply_rows(pass, weight, tile, rows, &[]);
            });
        }
        self.add_to_product(pass, rank, weight, site, tile);
        // Last, so that neither adapters nor biases change a neuron that is not selected.
        for (i, token) in tile.tokens.clone().enumerate() {
            for (y, neuron) in tile.row(i).iter_mut().zip(tile.rows.clone()) {
                if !selection.is_on(token, neuron) {
                    *y = 0.0;
                }
            }
        }
    }

    /// Multiplies a tile by the tensor's factor, and adds adapters and bias.
    fn add_to_product(
        &self,
        pass: &Pass<'_>,
        rank: usize,
        weight: &Weight<'_>,
        site: Site,
        tile: &Tile<'_>,
    ) {
        if let Some(factor) = weight.factor {
            for i in 0..tile.tokens.len() {
                tile.row(i).iter_mut().for_each(|y| *y *= factor);
            }
        }
        // The up matrix has the slot after its gate's.
        let (skip, out) = (usize::from(site != self.site), tile.memory.pointer(0));
        match self.adapted {
            None => {}
            Some(Adapted::Listed { slot }) => {
                pass.add_listed(rank, slot + skip, &tile.rows, out);
            }
            Some(adapted) => {
                let area = Area {
                    outputs: &tile.rows,
                    rows: &tile.tokens,
                };
                let (at, input) = (self.at(site), self.input_rows());
                pass.add_adapters(rank, at, input, adapted.skip(skip), area, out);
            }
        }
        if let Some(bias) = weight.bias {
            for i in 0..tile.tokens.len() {
                for (y, bias) in tile.row(i).iter_mut().zip(&bias[tile.rows.clone()]) {
                    *y += *bias;
                }
            }
        }
    }

    fn multiply_rows(
        &self,
        pass: &Pass<'_>,
        weight: &Weight<'_>,
        tile: &Tile<'_>,
        rows: Range<usize>,
        beside: &[Beside],
    ) {
        let args = self.product(pass, weight, tile, rows, beside);
        match self.skips_columns(weight) {
            // SAFETY: the tile is this worker's own and holds tokens × rows floats.
            true => unsafe { pass.table.matmul_skipping(&args) },
            // SAFETY: as above.
            false => unsafe { pass.table.matmul(&args) },
        }
    }

    /// The product of some rows of a tile.
    fn product<'t>(
        &'t self,
        pass: &Pass<'_>,
        weight: &Weight<'t>,
        tile: &Tile<'_>,
        rows: Range<usize>,
        beside: &'t [Beside],
    ) -> Matmul<'t> {
        Matmul {
            layout: weight.layout,
            panels: weight.panels,
            rows: (weight.first_row + rows.start..weight.first_row + rows.end).into(),
            activations: self.input,
            tokens: tile.tokens.clone().into(),
            out: tile.memory.pointer(rows.start - tile.rows.start),
            out_stride: tile.rows.len(),
            store: Store::Set,
            prefetch: pass.options.prefetch,
            beside,
        }
    }
}

/// `rows` in panels.
fn panels(rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = rows.end;
    let starts = rows.clone().step_by(PANEL_ROWS);
    starts.map(move |row| row..(row + PANEL_ROWS).min(end))
}

/// Calls `work` with ranges in ascending order, adjacent ones as one.
fn runs(ranges: impl Iterator<Item = Range<usize>>, mut work: impl FnMut(Range<usize>)) {
    let mut run = 0..0;
    for range in ranges {
        if range.start != run.end && !run.is_empty() {
            work(run);
            run = range.clone();
        }
        run = if run.is_empty() {
            range
        } else {
            run.start..range.end
        };
    }
    if !run.is_empty() {
        work(run);
    }
}

/// Products of some rows and tokens in a worker's own memory.
#[derive(Clone)]
struct Tile<'a> {
    memory: Shared<'a, f32>,
    rows: Range<usize>,
    tokens: Range<usize>,
}

impl<'a> Tile<'a> {
    /// The products of token number `i` of the tile.
    fn row(&self, i: usize) -> &'a mut [f32] {
        // SAFETY: the tile is this worker's own, and callers hold one row at a time.
        unsafe {
            self.memory
                .write(i * self.rows.len()..(i + 1) * self.rows.len())
        }
    }
}

//! A linear layer is one call: (input, weight, epilogue).
//!
//! The product of a strip of weight rows with all tokens goes through a worker's tile, up to 512
//! tokens at a time (with few tokens several strips), and the epilogue takes it from there: bias,
//! adapters, residual, SwiGLU or GeGLU, norms of heads, rotation, the KV cache. Strips are the unit
//! of work that ranks share.

use super::batch::BatchEntry;
use super::experts::Pairs;
use super::forward::Pass;
use super::scratch::{Order, TILE_TOKENS};
use crate::kernels::contract::GROUP;
use crate::kernels::panel::PANEL_ROWS;
use crate::kernels::prefetch;
use crate::kernels::table::{Activations, Matmul, Quantize, Store};
use crate::memory::Shared;
use crate::model::{Activation, Matrix, ModelConfig, Weight};
use core::fmt;
use core::ops::Range;

/// Rows of a strip of a plain projection.
pub(super) const STRIP_ROWS: usize = 4 * PANEL_ROWS;
/// Rows of outputs that are asked for before they are needed: long ones lie far apart.
const ROWS_AHEAD: usize = 8;
/// Most products of several strips that are computed at once: a quarter of a first-level cache.
pub(super) const TILE_FLOATS: usize = 2048;

// Half of it is also a worker's row for the neurons of a tile: at least a strip.
const _: () = assert!(TILE_FLOATS / 2 >= GROUP);

/// The linear layers of a decoder layer, by their GGUF names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is the tensor of that name")]
pub enum Projection {
    AttnQ,
    AttnK,
    AttnV,
    AttnOutput,
    FfnGate,
    FfnUp,
    FfnDown,
    Output,
}

/// What entries the rows of a linear layer's input belong to.
#[derive(Clone, Copy)]
pub(super) enum Entries<'a> {
    /// One row to each.
    Each(Order),
    /// To the tokens of an expert; one row of tokens to each.
    Pairs(Pairs<'a>, Order),
}

impl Projection {
    /// The tensor of a layer that holds its weights in the model's file, such as `attn_q`;
    /// several projections may share one. The output layer is in none.
    pub fn tensor(self, config: &ModelConfig) -> Option<&'static str> {
        config.tensor_of(match self {
            Self::AttnQ => Matrix::AttnQ,
            Self::AttnK => Matrix::AttnK,
            Self::AttnV => Matrix::AttnV,
            Self::AttnOutput => Matrix::AttnOutput,
            Self::FfnGate => Matrix::FfnGate,
            Self::FfnUp => Matrix::FfnUp,
            Self::FfnDown => Matrix::FfnDown,
            Self::Output => return None,
        })
    }
}

/// Which linear layer of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearSite {
    /// The layer; 0 for the output layer.
    pub layer: usize,
    /// The projection in it.
    pub projection: Projection,
    /// The expert, where the layer has experts.
    pub expert: Option<u32>,
}

/// Something that adds to the outputs of linear layers for the entries that name it (LoRA).
///
/// Called before bias and activation, from any worker, for a range of output rows at a time;
/// what it adds must not depend on how rows are cut into ranges.
pub trait LinearAdapter: Sync {
    /// Adds to `out: (rows.len())`, outputs `rows` of `site`; `input: (n_cols)` is the layer's
    /// input in f32.
    fn add(&self, site: LinearSite, input: &[f32], rows: Range<usize>, out: &mut [f32]);

    /// Whether it is called for all of its entries in the last layer, too. Those that want no
    /// output are left out there otherwise, but for keys and values: nothing depends on them.
    fn sees_all(&self) -> bool {
        false
    }
}

/// Which neurons of feed-forward networks are computed; the others count as zero, whatever
/// their weights, biases and adapters. Experts are computed whole.
pub trait FfnMask: Sync {
    /// A bit for each group of 16 neurons of `layer`, lowest first; `None` computes all. Groups
    /// beyond the end of the slice are left out.
    fn active_groups(&self, layer: usize) -> Option<&[u64]>;
}

/// Rows of f32 that strips write to.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) memory: Shared<'a, f32>,
    pub(super) stride: usize,
}

/// What becomes of the product.
#[derive(Clone, Copy)]
pub(super) enum Epilogue<'a> {
    /// Written.
    Store(Rows<'a>),
    /// Capped where the model does so, and written.
    Logits(Rows<'a>),
    /// Added to the residual stream.
    Add(Rows<'a>),
    /// Each head normalised if there are weights (head_dim_k), rotated and written.
    Query(Rows<'a>, Option<&'a [f32]>),
    /// Each head normalised if there are weights (head_dim_k), rotated and stored in the KV cache.
    Key(Option<&'a [f32]>),
    /// Stored in the KV cache.
    Value,
    /// Added to the residual stream of each row's token, times the weight of the pair.
    AddWeighted(Rows<'a>, Pairs<'a>),
    /// `activation(product) · (input × up)`, quantised into rows; without `up`, `activation(product)`.
    Gated {
        up: Option<Weight<'a>>,
        rows: Shared<'a, u8>,
    },
}

/// One linear layer of a pass.
#[derive(Clone, Copy)]
pub(super) struct Linear<'a> {
    pub(super) site: LinearSite,
    pub(super) input: Activations<'a>,
    /// Rows of `input`.
    pub(super) n_rows_in: usize,
    pub(super) weight: Weight<'a>,
    pub(super) epilogue: Epilogue<'a>,
    pub(super) entries: Entries<'a>,
}

impl fmt::Debug for Linear<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linear")
            .field("site", &self.site)
            .finish_non_exhaustive()
    }
}

impl<'a> Linear<'a> {
    fn strip_rows(&self, pass: &Pass<'_, '_>) -> usize {
        match self.epilogue {
            Epilogue::Store(_)
            | Epilogue::Logits(_)
            | Epilogue::Add(_)
            | Epilogue::AddWeighted(..) => STRIP_ROWS,
            Epilogue::Query(..) | Epilogue::Key(_) | Epilogue::Value => {
                pass.scratch.plan.head_strip
            }
            Epilogue::Gated { .. } => GROUP,
        }
    }

    /// Units of work in this layer.
    pub(super) fn n_strips(&self, pass: &Pass<'_, '_>) -> usize {
        self.weight.n_rows.div_ceil(self.strip_rows(pass))
    }

    /// Computes some strips for all tokens; returns the weight bytes read.
    pub(super) fn run(&self, pass: &Pass<'_, '_>, rank: usize, strips: Range<usize>) -> usize {
        if strips.is_empty() || self.n_rows_in == 0 {
            return 0;
        }
        let strip_rows = self.strip_rows(pass);
        let all = strips.start * strip_rows..(strips.end * strip_rows).min(self.weight.n_rows);
        let step = strip_rows * self.strips_at_once(pass, rank);
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
        let up_bytes = match &self.epilogue {
            Epilogue::Gated { up: Some(up), .. } => up.strip_bytes(&all),
            _ => 0,
        };
        self.weight.strip_bytes(&all) + up_bytes
    }

    /// Strips that are one tile: with few tokens a strip is little work for a call.
    fn strips_at_once(&self, pass: &Pass<'_, '_>, rank: usize) -> usize {
        let strip = self.strip_rows(pass) * self.n_rows_in.clamp(1, TILE_TOKENS);
        let mut floats = pass.scratch.tile(rank).len().min(TILE_FLOATS);
        if let Epilogue::Gated { .. } = self.epilogue {
            // Two products side by side, and a row of what comes of them.
            let fit_the_row = pass.scratch.norm(rank).len() / self.strip_rows(pass) * strip;
            floats = (floats / 2).min(fit_the_row);
        }
        (floats / strip).max(1)
    }

    /// Some rows × up to [`TILE_TOKENS`] tokens.
    fn tile(&self, pass: &Pass<'_, '_>, rank: usize, rows: Range<usize>, tokens: Range<usize>) {
        let memory = pass.scratch.tile(rank);
        let n = rows.len() * tokens.len();
        if let Epilogue::Gated { up, rows: out } = &self.epilogue {
            let gate = Tile {
                memory: memory.part(0..n),
                rows: rows.clone(),
                tokens,
            };
            let up_tile = Tile {
                memory: memory.part(n..2 * n),
                ..gate.clone()
            };
            let mask = pass
                .options
                .ffn_mask
                .filter(|_| self.site.expert.is_none())
                .and_then(|mask| mask.active_groups(self.site.layer));
            self.multiply(pass, &self.weight, self.site.projection, &gate, mask);
            match up {
                Some(up) => self.multiply(pass, up, Projection::FfnUp, &up_tile, mask),
                // Times 1 is exact: what is gated by nothing.
                None => (0..up_tile.tokens.len()).for_each(|i| up_tile.row(i).fill(1.0)),
            }
            self.gate(pass, rank, &gate, &up_tile, out);
            return;
        }
        let tile = Tile {
            memory: memory.part(0..n),
            rows,
            tokens,
        };
        self.multiply(pass, &self.weight, self.site.projection, &tile, None);
        for (i, token) in tile.tokens.clone().enumerate() {
            if i + ROWS_AHEAD < tile.tokens.len() {
                self.ask_for_sum(token + ROWS_AHEAD, &tile.rows);
            }
            self.finish(pass, rank, &tile, (token, tile.row(i)));
        }
    }

    /// What becomes of the products `y` of a tile's token.
    fn finish(
        &self,
        pass: &Pass<'_, '_>,
        rank: usize,
        tile: &Tile<'_>,
        (token, y): (usize, &mut [f32]),
    ) {
        match &self.epilogue {
            Epilogue::Store(out) => self.target(out, token, &tile.rows).copy_from_slice(y),
            Epilogue::Logits(out) => {
                let cap = pass.config().logit_soft_cap;
                if cap != 0.0 {
                    pass.table.soft_cap(y, cap);
                }
                self.target(out, token, &tile.rows).copy_from_slice(y);
            }
            Epilogue::Add(out) => {
                let target = self.target(out, token, &tile.rows);
                pass.table.add_scaled(1.0, y, target);
            }
            Epilogue::AddWeighted(out, pairs) => {
                let target = self.target(out, pairs.token(token), &tile.rows);
                pass.table.add_scaled(pairs.weight(token), y, target);
            }
            Epilogue::Query(out, norm) => {
                pass.norm_in_place(rank, y, *norm);
                pass.rotate(self.site.layer, pass.entry_of_row(self.entries, token), y);
                self.target(out, token, &tile.rows).copy_from_slice(y);
            }
            Epilogue::Key(norm) => {
                let entry = pass.entry_of_row(self.entries, token);
                pass.norm_in_place(rank, y, *norm);
                pass.rotate(self.site.layer, entry, y);
                pass.store_keys(self.site.layer, entry, tile.rows.start, y);
            }
            Epilogue::Value => {
                let entry = pass.entry_of_row(self.entries, token);
                pass.store_values(self.site.layer, entry, tile.rows.start, y);
            }
            Epilogue::Gated { .. } => unreachable!("handled above"),
        }
    }

    /// Asks for what outputs `rows` of `token` are added to.
    #[inline(never)]
    fn ask_for_sum(&self, token: usize, rows: &Range<usize>) {
        let (out, token) = match &self.epilogue {
            Epilogue::Add(out) => (out, token),
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

    /// Fills a tile: product, adapters, bias. Panels whose bit in `mask` is off give zero.
    fn multiply(
        &self,
        pass: &Pass<'_, '_>,
        weight: &Weight<'_>,
        projection: Projection,
        tile: &Tile<'_>,
        mask: Option<&[u64]>,
    ) {
        let Some(mask) = mask else {
            self.multiply_rows(pass, weight, tile, tile.rows.clone());
            return self.add_to_product(pass, weight, projection, tile);
        };
        for rows in groups(&tile.rows).filter(|rows| is_active(mask, rows)) {
            self.multiply_rows(pass, weight, tile, rows);
        }
        self.add_to_product(pass, weight, projection, tile);
        // Last, so that neither adapters nor biases wake a neuron that is left out.
        for rows in groups(&tile.rows).filter(|rows| !is_active(mask, rows)) {
            let columns = rows.start - tile.rows.start..rows.end - tile.rows.start;
            for i in 0..tile.tokens.len() {
                tile.row(i)[columns.clone()].fill(0.0);
            }
        }
    }

    /// Adds adapters and bias to a tile.
    fn add_to_product(
        &self,
        pass: &Pass<'_, '_>,
        weight: &Weight<'_>,
        projection: Projection,
        tile: &Tile<'_>,
    ) {
        if !pass.options.adapters.is_empty() {
            self.adapt(pass, projection, tile);
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
        pass: &Pass<'_, '_>,
        weight: &Weight<'_>,
        tile: &Tile<'_>,
        rows: Range<usize>,
    ) {
        let out = tile.memory.pointer(rows.start - tile.rows.start);
        let args = Matmul {
            layout: weight.layout,
            panels: weight.panels,
            rows: (weight.first_row + rows.start..weight.first_row + rows.end).into(),
            activations: self.input,
            tokens: tile.tokens.clone().into(),
            out,
            out_stride: tile.rows.len(),
            store: Store::Set,
            prefetch: pass.options.prefetch,
        };
        // SAFETY: the tile is this worker's own and holds tokens × rows floats.
        unsafe { pass.table.matmul(&args) };
    }

    /// Lets adapters add to a tile, entry by entry.
    fn adapt(&self, pass: &Pass<'_, '_>, projection: Projection, tile: &Tile<'_>) {
        for (i, row) in tile.tokens.clone().enumerate() {
            let entry: &BatchEntry = &pass.batch[pass.entry_of_row(self.entries, row)];
            if let Some(adapter) = entry.adapter {
                let adapter = pass.options.adapters[adapter as usize];
                let input = self.input.f32_row(row);
                let site = LinearSite {
                    projection,
                    ..self.site
                };
                adapter.add(site, input, tile.rows.clone(), tile.row(i));
            }
        }
    }

    /// `activation(gate) · up`, into the quantised rows: whole activation groups of every token.
    fn gate(
        &self,
        pass: &Pass<'_, '_>,
        rank: usize,
        gate: &Tile<'_>,
        up: &Tile<'_>,
        out: &Shared<'_, u8>,
    ) {
        let layout = pass.scratch.plan.ffn;
        // SAFETY: this worker's own row; its last use (a norm) is over.
        let x = unsafe { pass.scratch.norm(rank).write(0..gate.rows.len()) };
        for (i, token) in gate.tokens.clone().enumerate() {
            if i + 1 < gate.tokens.len() {
                let next = out.pointer((token + 1) * layout.row_bytes());
                layout.prefetch(next, gate.rows.clone());
            }
            match pass.config().activation {
                Activation::Silu => pass.table.silu_mul(gate.row(i), up.row(i), x),
                Activation::Gelu => pass.table.gelu_mul(gate.row(i), up.row(i), x),
            }
            let args = Quantize {
                x,
                first_col: gate.rows.start,
                layout: &layout,
                row: out.pointer(token * layout.row_bytes()),
            };
            // SAFETY: these strips' groups of the row are written by this worker alone.
            unsafe { pass.table.quantize(&args) };
        }
    }
}

/// `rows` in groups that a bit of an [`FfnMask`] stands for.
fn groups(rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = rows.end;
    let starts = rows.clone().step_by(PANEL_ROWS);
    starts.map(move |row| row..(row + PANEL_ROWS).min(end))
}

fn is_active(mask: &[u64], group: &Range<usize>) -> bool {
    let group = group.start / PANEL_ROWS;
    mask.get(group / 64)
        .is_some_and(|bits| bits >> (group % 64) & 1 == 1)
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

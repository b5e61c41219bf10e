//! From the names of tensors to the matrices of a model.

use core::ops::Range;
use sluice_core::model::{ModelConfig, Site};

/// A matrix that a tensor, or some of its rows, holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) layer: usize,
    pub(super) site: Site,
    /// Its first row in the tensor.
    pub(super) first_row: usize,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
}

/// The embeddings of tokens.
pub(super) const TOKEN_EMBD: &str = "token_embd.weight";

/// The matrices of a model that `tensor` holds; empty if the model has no such tensor, or fewer parts.
///
/// Files may hold queries, keys and values, or gates and ups, in one tensor or apart; an adapter may name them either
/// way.
pub(super) fn places(config: &ModelConfig, tensor: &str, part: Option<u32>) -> Vec<Place> {
    if tensor == "output.weight" && part.is_none() {
        return vec![Place {
            layer: 0,
            site: Site::Output,
            first_row: 0,
            n_rows: config.n_vocab,
            n_cols: config.n_embd,
        }];
    }
    let Some((layer, name)) = of_layer(tensor).filter(|(layer, _)| *layer < config.n_layer())
    else {
        return Vec::new();
    };
    let own = Site::IN_LAYER.into_iter();
    let own: Vec<Site> = own
        .filter(|site| site.tensor(config, layer) == Some(name))
        .collect();
    let found = in_order(config, layer, &own, part);
    match found.is_empty() {
        true => in_order(config, layer, other_way(name), part),
        false => found,
    }
}

/// Some rows of a matrix that an adapter names, and where the model's file has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowsInFile {
    /// Rows of the matrix as the adapter names it.
    pub rows: Range<usize>,
    /// The tensor of the file; in a stack, rows are counted in one of its matrices.
    pub tensor: String,
    /// Where they begin in it.
    pub first_row: usize,
    /// Columns of both.
    pub n_cols: usize,
}

/// Where a model's file has the rows of the matrix `tensor`, number `part` of a stack, by the names of the file's
/// tensors: an adapter may name them otherwise. Empty if the model has no such matrix.
#[must_use]
pub fn rows_in_file(config: &ModelConfig, tensor: &str, part: Option<u32>) -> Vec<RowsInFile> {
    let found = places(config, tensor, part).into_iter();
    let found = found.map(|place| {
        let name = place.site.tensor(config, place.layer)?;
        let tensor = format!("blk.{}.{name}.weight", place.layer);
        let mut there = places(config, &tensor, part).into_iter();
        let there = there.find(|other| other.site == place.site)?;
        Some(RowsInFile {
            rows: place.first_row..place.first_row + place.n_rows,
            tensor,
            first_row: there.first_row,
            n_cols: place.n_cols,
        })
    });
    found.collect::<Option<_>>().unwrap_or_default()
}

/// Whether files have this tensor and the model never reads it: keys and values of a layer that takes another's.
pub(super) fn is_idle(config: &ModelConfig, tensor: &str) -> bool {
    let Some((layer, name)) = of_layer(tensor).filter(|(layer, _)| *layer < config.n_layer())
    else {
        return false;
    };
    let attention = config.kind(layer).attention();
    let reads_another = attention.is_some_and(|shape| shape.keys_of.is_some());
    reads_another && ["attn_k", "attn_v"].contains(&name)
}

/// N and NAME of `blk.N.NAME.weight`.
fn of_layer(tensor: &str) -> Option<(usize, &str)> {
    let rest = tensor.strip_prefix("blk.")?.strip_suffix(".weight")?;
    let (layer, name) = rest.split_once('.')?;
    Some((layer.parse().ok()?, name))
}

/// The matrices of a tensor that files may have or not.
fn other_way(name: &str) -> &'static [Site] {
    match name {
        "attn_q" => &[Site::AttnQ],
        "attn_k" => &[Site::AttnK],
        "attn_v" => &[Site::AttnV],
        "attn_qkv" => &[Site::AttnQ, Site::AttnK, Site::AttnV],
        "ffn_gate" | "ffn_gate_exps" => &[Site::FfnGate],
        "ffn_up_exps" => &[Site::FfnUp],
        "ffn_gate_up_exps" => &[Site::FfnGate, Site::FfnUp],
        _ => &[],
    }
}

/// The given matrices that exist in the layer, one after the other.
fn in_order(config: &ModelConfig, layer: usize, sites: &[Site], part: Option<u32>) -> Vec<Place> {
    let (kind, mut first_row) = (config.kind(layer), 0);
    let mut places = Vec::new();
    for &site in sites {
        let is_there = match (site.n_parts(kind), part) {
            (None, None) => true,
            (Some(n), Some(part)) => (part as usize) < n,
            _ => false,
        };
        if let Some([n_rows, n_cols]) = site.shape(kind, config.n_embd).filter(|_| is_there) {
            places.push(Place {
                layer,
                site,
                first_row,
                n_rows,
                n_cols,
            });
            first_row += n_rows;
        }
    }
    places
}

//! Matches tensors: each tensor of the file gets its sources in the folder, and every tensor of the folder has to be
//! used.

use super::ConvertError;
use super::encode::can_encode;
use super::folder::{Tensor, Weights};
use super::fp8::Scale;
use super::types::TypeOf;
use sluice::file::GgufHeader;
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::words;
use sluice_hf::safetensors::Dtype;
use sluice_hf::{Change, Divisors, Family, Map, Wanted};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Where a tensor's numbers come from.
#[derive(Debug)]
pub(super) enum Source {
    /// Tensors of the folder.
    Parts(Parts),
    /// Blocks and their scales, rearranged but not converted.
    Mxfp4(Mxfp4),
    /// Computed.
    Numbers(Vec<f32>),
}

/// Tensors of the folder, one after the other.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) parts: Vec<Part>,
    /// Rows of each part in the GGUF file.
    pub(super) rows: u64,
    pub(super) columns: u64,
    pub(super) change: Change,
    pub(super) map: Map,
    /// Number of rows that stay together: of a head, or of an expert.
    pub(super) unit: u64,
    /// Columns of the source's rows.
    pub(super) width: u64,
}

/// One tensor of the folder.
#[derive(Debug)]
pub(super) struct Part {
    /// Index into [`Weights::tensors`].
    pub(super) tensor: usize,
    /// The scale of 8-bit numbers.
    pub(super) scale: Option<Scale>,
}

/// A matrix in MXFP4, or a stack of them.
#[derive(Debug)]
pub(super) struct Mxfp4 {
    /// 16 bytes for 32 numbers; index into [`Weights::tensors`].
    pub(super) blocks: usize,
    /// A byte for 32 numbers.
    pub(super) scales: usize,
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// Row i is the source's row start + i · step.
    pub(super) start: u64,
    pub(super) step: u64,
}

/// Matches tensors with their sources.
pub(super) struct Layout<'w> {
    weights: &'w Weights,
    /// The family's names, mapped to indices in the folder.
    places: HashMap<String, usize>,
    pub(super) header: GgufHeader,
    pub(super) sources: Vec<Source>,
    /// Which tensors of the folder have been used: one may be the source of two.
    used: Vec<bool>,
    /// Tensors that the model does not have according to config.json.
    ignored: Vec<usize>,
    /// Rows and columns that share a scale, if config.json gives them.
    scale_block: Option<[u64; 2]>,
}

impl<'w> Layout<'w> {
    pub(super) fn new(
        weights: &'w Weights,
        header: GgufHeader,
        family: &Family,
        n_layer: u32,
        scale_block: Option<[u64; 2]>,
        warnings: &mut Vec<String>,
    ) -> Self {
        let mut places = HashMap::new();
        let mut n_skipped = 0;
        for (place, tensor) in weights.tensors.iter().enumerate() {
            match family.plain_name(&tensor.entry.name, n_layer) {
                Some(name) => drop(places.insert(name, place)),
                None => n_skipped += 1,
            }
        }
        if n_skipped > 0 {
            warnings.push(format!(
                "{n_skipped} tensors of other parts (vision, or heads for other tasks) are omitted: only those of {} \
                 in GGUF are written",
                family.architecture
            ));
        }
        Self {
            weights,
            places,
            header,
            sources: Vec::new(),
            used: vec![false; weights.tensors.len()],
            ignored: Vec::new(),
            scale_block,
        }
    }

    /// The dimensions of a tensor, by the family's name.
    pub(super) fn dims(&self, name: &str) -> Option<Vec<u64>> {
        let place = *self.places.get(name)?;
        Some(self.weights.tensors[place].entry.shape.clone())
    }

    /// Adds computed vectors.
    pub(super) fn add_numbers(&mut self, divisors: Vec<Divisors>) {
        for Divisors { tensor, values } in divisors {
            let dims = [values.len() as u64];
            self.header.add_tensor(tensor, &dims, GgmlType::F32);
            self.sources.push(Source::Numbers(values));
        }
    }

    /// Places all wanted tensors in the order of the folder; the experts of a layer are together, at the position of
    /// the last one.
    pub(super) fn place(
        &mut self,
        folder: &Path,
        wanted: Vec<Wanted>,
        type_of: &TypeOf<'_>,
    ) -> Result<(), ConvertError> {
        let mut ordered = BTreeMap::new();
        for (rank, tensor) in wanted.into_iter().enumerate() {
            let Some(last) = self.check(folder, &tensor)? else {
                continue;
            };
            if tensor.is_ignored {
                self.used[last] = true;
                self.ignored.push(last);
                continue;
            }
            // If each expert has its own tensors, the stacks of a layer's experts are complete at the same time.
            let group = tensor.parts.len() > 1;
            ordered.insert((last, rank), (group, tensor));
        }
        let layer_of = |tensor: &Wanted| -> String {
            let layer = tensor.name.split('.').nth(1);
            layer.unwrap_or_default().to_owned()
        };
        let mut layers = HashMap::new();
        for ((last, _), (group, tensor)) in &ordered {
            if *group {
                let at = layers.entry(layer_of(tensor)).or_insert(*last);
                *at = (*at).max(*last);
            }
        }
        let mut placed: Vec<_> = ordered
            .into_iter()
            .map(|((last, rank), (group, tensor))| {
                let last = if group {
                    layers[&layer_of(&tensor)]
                } else {
                    last
                };
                (last, rank, tensor)
            })
            .collect();
        placed.sort_by_key(|(last, rank, _)| (*last, *rank));
        for (_, _, tensor) in placed {
            self.add(tensor, type_of)?;
        }
        Ok(())
    }

    /// The last position of a tensor's parts; `None` for an optional tensor that is missing.
    fn check(&self, folder: &Path, wanted: &Wanted) -> Result<Option<usize>, ConvertError> {
        let mut last = None;
        for part in &wanted.parts {
            let Some(&place) = self.places.get(part) else {
                if wanted.is_optional {
                    return Ok(None);
                }
                return Err(ConvertError::MissingTensor {
                    path: folder.into(),
                    tensor: part.clone(),
                    expected: wanted.source.clone(),
                });
            };
            let tensor = &self.weights.tensors[place];
            let is_scale = part.ends_with("_scales");
            let expected = match is_scale {
                // One dimension is the bytes of a block.
                true => &wanted.source[..wanted.source.len() - 1],
                false => &wanted.source,
            };
            if tensor.entry.shape != expected {
                return Err(ConvertError::WrongShape {
                    path: self.weights.path_of(tensor).into(),
                    tensor: tensor.entry.name.clone(),
                    found: tensor.entry.shape.clone(),
                    expected: expected.into(),
                });
            }
            self.check_dtype(part, tensor)?;
            last = last.max(Some(place));
        }
        Ok(last)
    }

    fn check_dtype(&self, part: &str, tensor: &Tensor) -> Result<(), ConvertError> {
        let is_blocks = part.ends_with("_blocks") || part.ends_with("_scales");
        match tensor.entry.dtype {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 if !is_blocks => Ok(()),
            Dtype::U8 if is_blocks => Ok(()),
            Dtype::F8_E4M3
                if Scale::names(part)
                    .iter()
                    .any(|name| self.places.contains_key(name)) =>
            {
                Ok(())
            }
            dtype => Err(ConvertError::UnsupportedDtype {
                path: self.weights.path_of(tensor).into(),
                tensor: tensor.entry.name.clone(),
                dtype,
            }),
        }
    }

    fn add(&mut self, wanted: Wanted, type_of: &TypeOf<'_>) -> Result<(), ConvertError> {
        let places: Vec<_> = wanted.parts.iter().map(|part| self.places[part]).collect();
        for &place in &places {
            self.used[place] = true;
        }
        let mut dims: Vec<u64> = wanted.shape.iter().rev().copied().collect();
        if let ([blocks, scales], true) = (&places[..], wanted.parts[0].ends_with("_blocks")) {
            let (start, step) = match &wanted.change {
                Change::Rows(slices) => (slices[0].start, slices[0].of),
                _ => (0, 1),
            };
            self.header.add_tensor(&wanted.name, &dims, GgmlType::MXFP4);
            self.sources.push(Source::Mxfp4(Mxfp4 {
                blocks: *blocks,
                scales: *scales,
                rows: dims[1..].iter().product(),
                columns: dims[0],
                start,
                step,
            }));
            return Ok(());
        }
        if wanted.name.ends_with("_exps.weight") && dims.len() == 2 {
            dims.push(places.len() as u64);
        }
        let ty = type_of(&wanted.name, &dims);
        if !can_encode(ty) || ty.row_bytes(dims[0]).is_none() {
            return Err(ConvertError::CannotEncode {
                tensor: wanted.name,
                row_len: dims[0],
                ty,
            });
        }
        self.header.add_tensor(&wanted.name, &dims, ty);
        let mut parts = Vec::with_capacity(places.len());
        for (&tensor, name) in places.iter().zip(&wanted.parts) {
            let scale = self.scale_of(name, tensor)?;
            parts.push(Part { tensor, scale });
        }
        self.sources.push(Source::Parts(arrange(&wanted, parts)));
        Ok(())
    }

    /// The scales of an 8-bit tensor.
    fn scale_of(&mut self, name: &str, place: usize) -> Result<Option<Scale>, ConvertError> {
        let tensor = &self.weights.tensors[place];
        if tensor.entry.dtype != Dtype::F8_E4M3 {
            return Ok(None);
        }
        let names = Scale::names(name);
        let found = names.iter().find_map(|name| self.places.get(name));
        let &scale = found.expect("types were checked");
        self.used[scale] = true;
        Scale::read(self.weights, tensor, scale, self.scale_block).map(Some)
    }

    /// Names the tensors that are left out because of config.json.
    pub(super) fn warn_of_ignored(&self, warnings: &mut Vec<String>) {
        if let Some(&first) = self.ignored.first() {
            let name = &self.weights.tensors[first].entry.name;
            warnings.push(format!(
                "{} biases are omitted, such as {name}: the model's class has none, or none according to config.json \
                 (attention_bias, mlp_bias, qkv_bias)",
                self.ignored.len()
            ));
        }
    }

    /// For a folder that says that the output matrix and the embedding are one: whether they differ, in which case
    /// transformers uses both. If it has only the output matrix, that is the embedding too.
    pub(super) fn has_own_head(&mut self, family: &Family) -> Result<bool, ConvertError> {
        let (Some(&head), Some(name)) = (self.places.get(HEAD), family.embedding()) else {
            return Ok(false);
        };
        match self.places.get(&name) {
            Some(&embedding) => Ok(!self.weights.are_equal(head, embedding)?),
            None => {
                self.places.insert(name, head);
                Ok(false)
            }
        }
    }

    /// Checks the unused tensors: empty ones, ones that the engine computes itself, and the output matrix of a model
    /// with tied embeddings, which is equal to them, are dropped; anything else is an error.
    pub(super) fn check_rest(&self, family: &Family, is_tied: bool) -> Result<(), ConvertError> {
        let rest = self.places.iter().filter(|(name, place)| {
            let shape = &self.weights.tensors[**place].entry.shape;
            let is_dropped = shape.contains(&0)
                || is_tied && *name == HEAD
                || COMPUTED.iter().any(|end| name.ends_with(end));
            !self.used[**place] && !is_dropped
        });
        match rest.map(|(_, place)| *place).min() {
            Some(place) => {
                let tensor = &self.weights.tensors[place];
                Err(ConvertError::ExtraTensor {
                    path: self.weights.path_of(tensor).into(),
                    tensor: tensor.entry.name.clone(),
                    architecture: family.architecture,
                })
            }
            None => Ok(()),
        }
    }
}

/// The families' name of the output matrix.
const HEAD: &str = "lm_head.weight";

/// Suffixes of tensors that the engine computes itself, and of scales for 8-bit activations, which it does not use.
const COMPUTED: [&str; 8] = words(
    "rotary_emb.inv_freq .attention.bias .attention.masked_bias position_ids .input_scale \
     .activation_scale .k_scale .v_scale",
);

/// How the parts are arranged in a tensor.
fn arrange(wanted: &Wanted, parts: Vec<Part>) -> Parts {
    let by_element = matches!(wanted.change, Change::PairRows(_) | Change::Rows(_));
    let (rows, columns) = match *wanted.shape {
        // Elements of a reordered vector are treated as rows of length 1.
        [rows] if by_element => (rows, 1),
        [columns] => (1, columns),
        [n, rows] if by_element && wanted.name.ends_with(".bias") => (n * rows, 1),
        [rows, columns] => (rows, columns),
        [n, rows, columns] => (n * rows, columns),
        _ => unreachable!("families have vectors, matrices and stacks of them"),
    };
    let unit = match wanted.change {
        Change::PairRows(n_head) => rows / u64::from(n_head),
        Change::Turned { .. } => wanted.shape[1],
        _ => 1,
    };
    Parts {
        parts,
        rows,
        columns,
        change: wanted.change.clone(),
        map: wanted.map,
        unit,
        width: wanted.source.last().copied().unwrap_or(columns),
    }
}

//! Writing llama.cpp's GGUF file of an adapter.
//!
//! The file has a single α. If a pair's scale differs from α / r, its B is multiplied; in a stack, matrices without a
//! pair are zeros, and ranks are padded to the largest.

use super::{LoraError, Matrices};
use crate::convert::{FloatType, encode};
use sluice::adapter::{AdapterFile, Factors, transposed};
use sluice::file::{GgufHeader, OutputFile};
use sluice_core::kernels::quantize::Quantizer;
use std::collections::BTreeMap;

/// Options of the file.
#[derive(Clone, Copy, Debug)]
pub struct GgufOptions<'o> {
    /// The type of the matrices; rows that are not a whole number of blocks are F16.
    pub float: FloatType,
    /// The model's matrices, if known: they determine the height of stacks.
    pub matrices: Option<&'o Matrices>,
    /// `general.name`.
    pub name: Option<&'o str>,
}

/// Writes an adapter as a GGUF file.
///
/// # Errors
/// [`LoraError::CannotSay`], [`LoraError::Numbers`], [`LoraError::Output`]; no file remains.
pub fn write_gguf(
    file: &AdapterFile,
    options: GgufOptions<'_>,
    output: OutputFile,
) -> Result<(), LoraError> {
    let groups = groups(file)?;
    let alpha = alpha_of(&groups);
    let mut header = GgufHeader::new();
    header.set("general.architecture", file.architecture.as_str());
    header.set("general.type", "adapter");
    header.set("adapter.type", "lora");
    if let Some(name) = options.name {
        header.set("general.name", name);
    }
    if let Some(base) = &file.base_model {
        header.set("general.base_model.count", 1_u32);
        header.set("general.base_model.0.name", base.as_str());
    }
    header.set("general.file_type", options.float.file_type());
    header.set("adapter.lora.alpha", alpha);
    header.set("general.quantization_version", QUANTIZATION_VERSION);
    let mut planned = Vec::new();
    for group in &groups {
        let n_parts = group.n_parts(options.matrices)?;
        for (end, row_len, n_rows) in group.shapes() {
            let mut dims = vec![row_len as u64, n_rows as u64];
            dims.extend(n_parts);
            let name = format!("{}.{end}", group.tensor);
            let ty = options.float.type_of("matrix.weight", &dims);
            header.add_tensor(&name, &dims, ty);
            planned.push((group, end == "lora_a", n_parts.unwrap_or(1), ty));
        }
    }
    let writer = header.start(output)?;
    let quantizer = Quantizer::detect();
    for (index, (group, is_a, n_parts, ty)) in planned.into_iter().enumerate() {
        let mut bytes = Vec::new();
        let name = &writer.tensors()[index].name;
        for part in 0..n_parts {
            let (numbers, row_len) = group.matrix(part, is_a, alpha);
            encode(quantizer, ty, &numbers, row_len, &mut bytes).map_err(|error| {
                let tensor = name.clone();
                LoraError::Numbers { tensor, error }
            })?;
        }
        writer.write(index, 0, &bytes)?;
    }
    Ok(writer.finish()?)
}

/// The pairs for one tensor.
struct Group<'f> {
    tensor: &'f str,
    /// The pairs by matrix index, or 0 for a single matrix.
    parts: BTreeMap<u32, &'f Factors>,
    is_stack: bool,
    /// The largest rank.
    rank: usize,
}

fn groups(file: &AdapterFile) -> Result<Vec<Group<'_>>, LoraError> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut places = BTreeMap::new();
    for factors in &file.factors {
        let place = *places.entry(factors.tensor.as_str()).or_insert_with(|| {
            groups.push(Group {
                tensor: &factors.tensor,
                parts: BTreeMap::new(),
                is_stack: factors.part.is_some(),
                rank: 0,
            });
            groups.len() - 1
        });
        let group = &mut groups[place];
        group.rank = group.rank.max(factors.rank);
        let other = group.parts.insert(factors.part.unwrap_or(0), factors);
        let shape = |own: &Factors| [own.n_rows(), own.n_cols()];
        let is_alike = shape(group.first()) == shape(factors);
        if !is_alike || other.is_some() || group.is_stack != factors.part.is_some() {
            return Err(LoraError::CannotSay {
                tensor: factors.tensor.clone(),
                what: "is adapted twice, or in matrices of different shapes".into(),
            });
        }
    }
    Ok(groups)
}

impl Group<'_> {
    fn first(&self) -> &Factors {
        let first = self.parts.values().next();
        first.expect("a group is made of a pair")
    }

    /// Suffixes, row lengths and numbers of rows of both tensors.
    fn shapes(&self) -> [(&'static str, usize, usize); 2] {
        let (rows, columns) = (self.first().n_rows(), self.first().n_cols());
        let a = match self.is_embedding() {
            true => ("lora_a", self.rank, columns),
            false => ("lora_a", columns, self.rank),
        };
        [a, ("lora_b", self.rank, rows)]
    }

    fn is_embedding(&self) -> bool {
        self.tensor == "token_embd.weight"
    }

    /// The height of the stack: from the model, or else from the pairs if none is missing.
    fn n_parts(&self, matrices: Option<&Matrices>) -> Result<Option<u64>, LoraError> {
        if !self.is_stack {
            return Ok(None);
        }
        let last = self.parts.keys().last().copied().unwrap_or(0);
        let own = u64::from(last) + 1;
        let known = matrices.and_then(|all| all.find(self.tensor)?.n_parts);
        match known {
            Some(n) if n >= own => Ok(Some(n)),
            Some(n) => Err(LoraError::CannotSay {
                tensor: self.tensor.into(),
                what: format!("has {n} matrices in the model, but number {last} is adapted"),
            }),
            None if own == self.parts.len() as u64 => Ok(Some(own)),
            None => Err(LoraError::CannotSay {
                tensor: self.tensor.into(),
                what: "is adapted in some of its matrices, but their number is unknown: give the model".into(),
            }),
        }
    }

    /// A matrix in its output form, and its row length.
    fn matrix(&self, part: u64, is_a: bool, alpha: f32) -> (Vec<f32>, usize) {
        let [(_, a_len, a_rows), (_, b_len, b_rows)] = self.shapes();
        let (row_len, n_rows) = if is_a {
            (a_len, a_rows)
        } else {
            (b_len, b_rows)
        };
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        let Some(own) = self.parts.get(&part) else {
            return (vec![0.0; row_len * n_rows], row_len);
        };
        if !is_a {
            let by = own.scale / (alpha / to_f32(self.rank));
            let is_one = by.to_bits() == 1_f32.to_bits();
            let rows = own.b.chunks_exact(own.rank);
            let zeros = vec![0.0; self.rank - own.rank];
            let row = |row: &[f32]| {
                // A factor of 1 is skipped, so that numbers stay bit-identical.
                let scaled = row.iter().map(|x| if is_one { *x } else { x * by });
                scaled.chain(zeros.clone()).collect::<Vec<_>>()
            };
            return (rows.flat_map(row).collect(), row_len);
        }
        let mut a = own.a.clone();
        a.resize(self.rank * own.n_cols(), 0.0);
        if self.is_embedding() {
            a = transposed(&a, self.rank);
        }
        (a, row_len)
    }
}

/// The α that fits most pairs without a change.
fn alpha_of(groups: &[Group<'_>]) -> f32 {
    let mut counts: Vec<(f32, usize)> = Vec::new();
    for group in groups {
        for own in group.parts.values() {
            let alpha = exact_alpha(own.scale, group.rank);
            match counts
                .iter_mut()
                .find(|(other, _)| other.to_bits() == alpha.to_bits())
            {
                Some((_, count)) => *count += 1,
                None => counts.push((alpha, 1)),
            }
        }
    }
    // 0 has a special meaning.
    let usable = counts.into_iter().filter(|(alpha, _)| alpha.is_normal());
    let best = usable.rev().max_by_key(|(_, count)| *count);
    best.map_or(1.0, |(alpha, _)| alpha)
}

/// The number that results in `scale` when divided by the rank.
fn exact_alpha(scale: f32, rank: usize) -> f32 {
    let rank = to_f32(rank);
    let near = scale * rank;
    let candidates = [near.round(), near, near.next_up(), near.next_down()];
    let is_exact = |alpha: &f32| (alpha / rank).to_bits() == scale.to_bits();
    candidates.into_iter().find(is_exact).unwrap_or(near)
}

#[expect(clippy::cast_precision_loss, reason = "ranks are small")]
const fn to_f32(n: usize) -> f32 {
    n as f32
}

/// Version of the layout of quantised blocks; 2 since 2023 (`GGML_QNT_VERSION`).
const QUANTIZATION_VERSION: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(part: Option<u32>, rows: usize) -> Factors {
        Factors {
            tensor: "blk.0.ffn_up_exps.weight".into(),
            part,
            rank: 2,
            a: vec![1.0; 6],
            b: vec![1.0; 2 * rows],
            scale: 1.5,
        }
    }

    #[test]
    fn pairs_of_one_tensor_go_together() {
        let file = |factors: [Factors; 2]| AdapterFile {
            factors: factors.into(),
            ..AdapterFile::default()
        };
        let sound = file([pair(Some(0), 4), pair(Some(1), 4)]);
        assert_eq!(groups(&sound).map(|groups| groups.len()).ok(), Some(1));
        for bad in [
            [pair(Some(0), 4), pair(Some(1), 5)],
            [pair(Some(0), 4), pair(Some(0), 4)],
            [pair(None, 4), pair(Some(1), 4)],
        ] {
            assert!(groups(&file(bad)).is_err());
        }
    }

    #[test]
    fn alpha_gives_the_scale_back() {
        for rank in 1..=300 {
            for alpha in [1.0_f32, 8.0, 16.0, 3.3, 0.1, 24.0] {
                let scale = alpha / to_f32(rank);
                let found = exact_alpha(scale, rank);
                assert_eq!((found / to_f32(rank)).to_bits(), scale.to_bits());
            }
        }
    }
}

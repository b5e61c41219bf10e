//! The layout of a `.slc` file.

use super::{FfnLayout, NoFormReason, SlcFileError, pieces};
use sluice_core::gguf::source::TensorSource;
use sluice_core::gguf::{Gguf, TensorInfo};
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::neuron::Form;
use sluice_core::kernels::panel::PanelLayout;
use sluice_core::slc::{
    FileHeader, GAP_ZEROS_MAX, Gap, Layout, RECORD_MATRICES_MAX, SlcError, TensorHeader,
    TensorProblem, place_records, seal,
};

/// Offsets of everything in the file.
pub(super) struct Plan {
    pub(super) header: FileHeader,
    pub(super) tensors: Vec<TensorHeader>,
    pub(super) gaps: Vec<Gap>,
    /// For each tensor, the checksums of its matrices in records.
    pub(super) matrices: Vec<Vec<u64>>,
}

impl Plan {
    pub(super) fn new(
        source: &dyn TensorSource,
        gguf: &Gguf<'_>,
        ffn: FfnLayout,
    ) -> Result<Self, SlcFileError> {
        let mut gaps = gaps(source, gguf)?;
        let count = |n: usize| {
            u32::try_from(n).map_err(|_| SlcError::OverLimit {
                what: "tensor count",
                value: n as u64,
                max: u32::MAX.into(),
            })
        };
        let mut header = FileHeader {
            file_len: 0,
            gguf_len: source.len_bytes(),
            gguf_header_len: gguf.header_bytes().len() as u64,
            n_tensors: count(gguf.tensors().len())?,
            n_gaps: count(gaps.len())?,
            gguf_sha256: [0; 32],
            n_matrices: 0,
        };
        let layouts = layouts(gguf, ffn)?;
        // The number of checksums does not depend on the offsets.
        let (unplaced, _) = tensors(gguf, &layouts, 0)?;
        header.n_matrices = unplaced.iter().map(TensorHeader::n_checksums).sum();
        let (tensors, mut end) = tensors(gguf, &layouts, header.payload_offset())?;
        for gap in &mut gaps {
            gap.offset = end;
            end = end
                .checked_add(gap.len_bytes)
                .ok_or(SlcFileError::Changed)?;
        }
        header.file_len = end;
        Ok(Self {
            header,
            matrices: vec![Vec::new(); tensors.len()],
            tensors,
            gaps,
        })
    }

    /// Everything before the payloads.
    pub(super) fn head(&self, gguf: &Gguf<'_>) -> Vec<u8> {
        let padded = |bytes: &mut Vec<u8>, len: u64| {
            bytes.resize(usize::try_from(len).expect("a header is below 5 GiB"), 0);
        };
        let mut head = self.header.to_bytes().to_vec();
        head.extend(gguf.header_bytes());
        padded(&mut head, self.header.table_offset());
        head.extend(self.tensors.iter().flat_map(TensorHeader::to_bytes));
        head.extend(self.gaps.iter().flat_map(Gap::to_bytes));
        let matrices = self.matrices.iter().flatten();
        head.extend(matrices.flat_map(|sum| sum.to_le_bytes()));
        padded(&mut head, self.header.payload_offset());
        seal(&mut head);
        head
    }
}

/// The layouts of all tensors, in table order.
fn layouts(gguf: &Gguf<'_>, ffn: FfnLayout) -> Result<Vec<Layout>, SlcFileError> {
    let own_output = gguf.tensor("output.weight").is_some();
    let mut has_ffn = false;
    let layout = |info: TensorInfo<'_>| {
        let by_neuron = match ffn {
            FfnLayout::Panels => None,
            FfnLayout::Neurons if is_gate(info.name) => None,
            FfnLayout::Neurons | FfnLayout::Predicted => by_neuron(gguf, &info)?,
        };
        has_ffn |= by_neuron.is_some();
        Ok::<_, SlcFileError>(by_neuron.unwrap_or_else(|| Layout::of(&info, own_output)))
    };
    let layouts = gguf.tensors().map(layout).collect::<Result<_, _>>()?;
    match ffn != FfnLayout::Panels && !has_ffn {
        true => Err(SlcFileError::NoFeedForward),
        false => Ok(layouts),
    }
}

fn is_gate(name: &str) -> bool {
    name.ends_with(".ffn_gate.weight")
}

/// The layout by row or by neuron of a tensor that gets one.
fn by_neuron(gguf: &Gguf<'_>, info: &TensorInfo<'_>) -> Result<Option<Layout>, SlcFileError> {
    let layout = match info.n_dims {
        2 => Layout::Neurons,
        3 => Layout::NeuronRecords,
        _ => return Ok(None),
    };
    let Some(form) = layout.form(info.name) else {
        return Ok(None);
    };
    // Without a gate of its own, no neuron is known to be zero before up is multiplied.
    let gate = || info.name.replace(".ffn_up", ".ffn_gate");
    if form == Form::Rows && gguf.tensor(&gate()).is_none() {
        return Ok(None);
    }
    let [n_cols, n_rows, ..] = info.dims;
    let reason = match info.ty {
        GgmlType::F64 | GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => {
            NoFormReason::Float(info.ty)
        }
        ty if !has_form(ty) => NoFormReason::Type(ty),
        _ if TensorHeader::new(info, layout, 0).is_err() => NoFormReason::Shape {
            n_rows,
            n_cols,
            unit: if form == Form::Rows { 16 } else { 32 },
        },
        _ => return Ok(Some(layout)),
    };
    Err(no_form(info, reason))
}

/// Whether matrices of a type can be stored by row or by neuron.
fn has_form(ty: GgmlType) -> bool {
    let n_cols = 2 * ty.block_len();
    PanelLayout::new(ty, 32, n_cols).is_ok_and(|panels| panels.with_form(Form::Neurons).is_ok())
}

/// The headers of all tensors, in table order, and the end of their payloads, which start at `start`.
fn tensors(
    gguf: &Gguf<'_>,
    layouts: &[Layout],
    start: u64,
) -> Result<(Vec<TensorHeader>, u64), SlcFileError> {
    let infos: Vec<_> = gguf.tensors().collect();
    let header = |(info, layout): (_, &Layout)| {
        TensorHeader::new(info, *layout, start).map_err(|problem| tensor_error(info, problem))
    };
    let headers = infos.iter().zip(layouts).map(header);
    let mut headers: Vec<_> = headers.collect::<Result<_, _>>()?;
    let has_records = |&index: &usize| headers[index].layout.has_records();
    let experts: Vec<_> = (0..infos.len()).filter(has_records).collect();
    // Experts of a block are placed where its first tensor would be.
    let mut blocks = experts
        .chunk_by(|&a, &b| share_records(&infos[a], &infos[b]))
        .peekable();
    let mut end = start;
    for (index, info) in infos.iter().enumerate() {
        if !headers[index].layout.has_records() {
            headers[index] = TensorHeader::new(info, headers[index].layout, end)
                .map_err(|problem| tensor_error(info, problem))?;
            end = headers[index].end();
        } else if let Some(block) = blocks.next_if(|block| block[0] == index) {
            let mut block = block.to_vec();
            block.sort_by_key(|&index| part(&infos[index]).map(|(_, part)| part));
            let mut members: Vec<_> = block.iter().map(|&index| headers[index]).collect();
            end =
                place_records(&mut members, end).map_err(|problem| tensor_error(info, problem))?;
            for (index, member) in block.into_iter().zip(members) {
                headers[index] = member;
            }
        }
    }
    Ok((headers, end))
}

/// Whether two adjacent expert tensors have their matrices in the same records.
fn share_records(a: &TensorInfo<'_>, b: &TensorInfo<'_>) -> bool {
    let block = |tensor| part(tensor).map(|(block, _)| block);
    block(a).is_some() && block(a) == block(b) && a.dims[2] == b.dims[2]
}

/// The block of a tensor of experts, and its number in [`PARTS`].
fn part<'a>(tensor: &TensorInfo<'a>) -> Option<(&'a str, usize)> {
    let (block, name) = tensor.name.rsplit_once(".ffn_")?;
    let number = PARTS.iter().position(|part| *part == name)?;
    Some((block, number))
}

/// The matrices of an expert in record order: a single read fetches the ones that are multiplied first.
const PARTS: [&str; RECORD_MATRICES_MAX] = [
    "gate_up_exps.weight",
    "gate_exps.weight",
    "up_exps.weight",
    "down_exps.weight",
];

/// The gaps that have to be stored, in order.
fn gaps(source: &dyn TensorSource, gguf: &Gguf<'_>) -> Result<Vec<Gap>, SlcFileError> {
    let mut ranges: Vec<_> = gguf
        .tensors()
        .map(|tensor| tensor.offset..tensor.offset + tensor.len_bytes)
        .collect();
    ranges.sort_by_key(|range| range.start);
    ranges.push(source.len_bytes()..source.len_bytes());
    let mut gaps = Vec::new();
    let mut end = gguf.header_bytes().len() as u64;
    for range in ranges {
        let len_bytes = range.start.saturating_sub(end);
        let mut zero = true;
        if len_bytes > 0 && len_bytes <= GAP_ZEROS_MAX {
            pieces(source, end, len_bytes, &mut |_, piece| {
                zero &= piece.iter().all(|&byte| byte == 0);
                Ok(())
            })?;
        }
        if !zero || len_bytes > GAP_ZEROS_MAX {
            gaps.push(Gap {
                gguf_offset: end,
                len_bytes,
                offset: 0,
                checksum: 0,
            });
        }
        end = range.end;
    }
    Ok(gaps)
}

fn tensor_error(tensor: &TensorInfo<'_>, problem: TensorProblem) -> SlcFileError {
    let name = tensor.name.escape_debug().to_string();
    SlcFileError::Tensor { name, problem }
}

pub(super) fn no_form(tensor: &TensorInfo<'_>, reason: NoFormReason) -> SlcFileError {
    let name = tensor.name.escape_debug().to_string();
    SlcFileError::NoNeuronForm { name, reason }
}

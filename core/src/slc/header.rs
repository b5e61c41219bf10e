//! The Unified Tensor Header and the record of a gap: 64 and 32 bytes.

use super::error::TensorProblem;
use super::{ALIGN, LARGE_ALIGN, LARGE_BYTES_MIN, u32_at};
use crate::gguf::TensorInfo;
use crate::kernels::GgmlType;
use crate::kernels::neuron::Form;
use crate::kernels::panel::{PANEL_ROWS, PanelLayout};
use static_assertions::const_assert_eq;

/// Bytes of a Unified Tensor Header.
pub const TENSOR_HEADER_BYTES: usize = 64;
/// Bytes of a gap's record.
pub const GAP_BYTES: usize = 32;
/// Bytes of the checksum of a matrix in a record.
pub const MATRIX_BYTES: usize = 8;
/// Revision of the panel formats in `sluice_kernels::panel`.
pub const PANEL_REVISION: u8 = 2;
/// Revision of the forms in `sluice_kernels::neuron`; panels have their own, which these files have, too.
pub const NEURON_REVISION: u8 = 3;
/// Maximum length of a row that is laid out in panels, in elements: 16 rows are held in memory at once.
pub const PANEL_COLUMNS_MAX: u64 = 1 << 24;

const VERSION: u8 = 1;
/// Rows of a panel, as a hint.
const TILE_ROWS: u8 = 16;
const_assert_eq!(TILE_ROWS as usize, PANEL_ROWS);

/// Byte ranges of a Unified Tensor Header.
mod field {
    use core::ops::Range;
    pub(super) const VERSION: usize = 0;
    pub(super) const LAYOUT: usize = 1;
    pub(super) const N_DIMS: usize = 2;
    pub(super) const PANEL_REVISION: usize = 3;
    pub(super) const TYPE: Range<usize> = 4..8;
    pub(super) const DIMS: Range<usize> = 8..24;
    pub(super) const OFFSET: Range<usize> = 24..32;
    pub(super) const LEN: Range<usize> = 32..40;
    pub(super) const SCALES: Range<usize> = 40..48;
    pub(super) const TILE_ROWS: usize = 48;
    pub(super) const NEURON_REVISION: usize = 49;
    pub(super) const TILE_COLS: Range<usize> = 50..52;
    pub(super) const RECORD_PAGES: Range<usize> = 52..56;
    pub(super) const CHECKSUM: Range<usize> = 56..64;
}

const_assert_eq!(field::PANEL_REVISION + 1, field::TYPE.start);
const_assert_eq!(field::TYPE.end, field::DIMS.start);
const_assert_eq!(field::DIMS.end, field::OFFSET.start);
const_assert_eq!(field::OFFSET.end, field::LEN.start);
const_assert_eq!(field::LEN.end, field::SCALES.start);
const_assert_eq!(field::SCALES.end, field::TILE_ROWS);
const_assert_eq!(field::TILE_COLS.end, field::RECORD_PAGES.start);
const_assert_eq!(field::RECORD_PAGES.end, field::CHECKSUM.start);
const_assert_eq!(field::CHECKSUM.end, TENSOR_HEADER_BYTES);

/// The layout of a tensor's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Layout {
    /// As in the GGUF file.
    Raw = 0,
    /// Panels of 16 rows, then the remaining rows.
    Panels = 1,
    /// A matrix of a feed-forward network, by row or by neuron: its name decides ([`Self::form`]).
    Neurons = 2,
    /// The panels of several matrices, one after the other, each starting at a multiple of 4096 bytes.
    Stack = 3,
    /// A matrix for each expert, in one record with the expert's matrices from other tensors.
    ExpertRecords = 4,
    /// As [`Self::ExpertRecords`], and in the same records, but by row or by neuron.
    NeuronRecords = 5,
}

/// Name suffixes of tensors that hold a matrix for each head.
const HEADS: [&str; 2] = ["attn_k_b.weight", "attn_v_b.weight"];
/// Name suffix of tensors that hold a matrix for each expert.
const EXPERTS: &str = "_exps.weight";

impl Layout {
    /// The layout that `tensor` is packed in; `own_output` is whether the file has an output
    /// layer in addition to the embedding, which is then only looked up, row by row. The taps of a
    /// convolution are not multiplied as a matrix either.
    pub fn of(tensor: &TensorInfo<'_>, own_output: bool) -> Self {
        let name = tensor.name;
        let looked_up = match name {
            "token_embd.weight" => own_output,
            _ => {
                let is_vector = |part: &&str| name.contains(*part);
                ["embd", "norm", "conv.weight", "conv1d.weight"]
                    .iter()
                    .any(is_vector)
                    || !name.ends_with(".weight")
            }
        };
        let layout = match tensor.n_dims {
            2 => Self::Panels,
            // A matrix of one row.
            1 if name.ends_with("ffn_gate_inp_shexp.weight") => Self::Panels,
            3 if name.ends_with(EXPERTS) => Self::ExpertRecords,
            3 if HEADS.iter().any(|end| name.ends_with(end)) => Self::Stack,
            _ => return Self::Raw,
        };
        if looked_up
            || layout
                .len_bytes(Form::Panels, tensor.ty, &tensor.dims)
                .is_none()
        {
            return Self::Raw;
        }
        layout
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Panels => "panels",
            Self::Stack => "stack",
            Self::ExpertRecords => "expert records",
            Self::Neurons => "neurons",
            Self::NeuronRecords => "neuron records",
        }
    }

    /// Whether the tensor has a matrix in the record of each expert.
    pub const fn has_records(self) -> bool {
        matches!(self, Self::ExpertRecords | Self::NeuronRecords)
    }

    /// The form of the matrices of the tensor called `name` in this layout: one by row or by neuron follows from what
    /// the matrix is in its feed-forward network. `None` if it is nothing there, and the layout is for such matrices.
    pub fn form(self, name: &str) -> Option<Form> {
        let is_record = match self {
            Self::Neurons => false,
            Self::NeuronRecords => true,
            Self::Raw | Self::Panels | Self::Stack | Self::ExpertRecords => {
                return Some(Form::Panels);
            }
        };
        let (_, part) = name.rsplit_once(".ffn_")?;
        match (part.strip_suffix(".weight")?, is_record) {
            ("gate" | "up" | "up_shexp", false) | ("up_exps", true) => Some(Form::Rows),
            ("down" | "down_shexp", false) | ("down_exps", true) => Some(Form::Neurons),
            _ => None,
        }
    }

    const fn from_id(id: u8) -> Option<Self> {
        match id {
            0 => Some(Self::Raw),
            1 => Some(Self::Panels),
            2 => Some(Self::Neurons),
            3 => Some(Self::Stack),
            4 => Some(Self::ExpertRecords),
            5 => Some(Self::NeuronRecords),
            _ => None,
        }
    }

    /// Bytes of a tensor in this layout and form, or `None` if they do not apply to it.
    fn len_bytes(self, form: Form, ty: GgmlType, dims: &[u64; 4]) -> Option<u64> {
        let [n_cols, n_rows, n_matrices, n_outer] = *dims;
        if self == Self::Raw {
            let outer = [n_rows, n_matrices, n_outer];
            let row_bytes = ty.row_bytes(n_cols)?;
            return outer
                .iter()
                .try_fold(row_bytes, |n, &dim| n.checked_mul(dim));
        }
        let of_one = matrix_layout(form, ty, n_rows, n_cols)?.bytes() as u64;
        match self {
            Self::Panels | Self::Neurons if n_matrices == 1 && n_outer == 1 => Some(of_one),
            Self::Stack | Self::ExpertRecords | Self::NeuronRecords
                if n_matrices > 0 && n_outer == 1 =>
            {
                of_one
                    .checked_next_multiple_of(ALIGN)?
                    .checked_mul(n_matrices)
            }
            _ => None,
        }
    }
}

/// A matrix in a form, if it can have it.
fn matrix_layout(form: Form, ty: GgmlType, n_rows: u64, n_cols: u64) -> Option<PanelLayout> {
    if n_cols > PANEL_COLUMNS_MAX {
        return None;
    }
    let (n_rows, n_cols) = (usize::try_from(n_rows).ok()?, usize::try_from(n_cols).ok()?);
    let panels = PanelLayout::new(ty, n_rows, n_cols).ok()?;
    panels.with_form(form).ok()
}

/// A Unified Tensor Header: what a tensor is and where its payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorHeader {
    /// How the payload is laid out.
    pub layout: Layout,
    /// The form of its matrices, which layout and name decide; without effect on a raw payload.
    pub form: Form,
    /// The elements' type.
    pub ty: GgmlType,
    /// Number of dimensions in the GGUF, 0 to 4.
    pub n_dims: u8,
    /// Elements along each dimension, the row length first; unused ones are 1.
    pub dims: [u32; 4],
    /// Where the payload starts, in bytes from the file's start; with several matrices, the first one.
    pub offset: u64,
    /// Bytes of the payload: all its matrices, including the zero padding after each.
    pub len_bytes: u64,
    /// Distance from one expert's record to the next, in units of [`ALIGN`]; 0 in other layouts.
    pub record_pages: u32,
    /// [`crate::hash::Hash64`] of the payload, matrix by matrix.
    pub checksum: u64,
}

impl TensorHeader {
    /// The header of `tensor` in `layout`, placed at the first suitable byte at or
    /// after `from`. The checksum is still 0. Records hold only this tensor until
    /// [`place_records`](super::place_records) combines it with others.
    ///
    /// # Errors
    /// The tensor cannot have that layout, or is too large.
    pub fn new(tensor: &TensorInfo<'_>, layout: Layout, from: u64) -> Result<Self, TensorProblem> {
        let mut dims = [1; 4];
        for (dim, of_gguf) in dims.iter_mut().zip(tensor.dims) {
            *dim = u32::try_from(of_gguf).map_err(|_| TensorProblem::TooLarge)?;
        }
        let form = layout.form(tensor.name);
        let form = form.ok_or(TensorProblem::LayoutImpossible)?;
        let len_bytes = layout.len_bytes(form, tensor.ty, &tensor.dims);
        let len_bytes = len_bytes.ok_or(TensorProblem::LayoutImpossible)?;
        let offset = from.checked_next_multiple_of(alignment(len_bytes));
        let end = offset.and_then(|offset| offset.checked_add(len_bytes));
        let record_pages = match layout.has_records() {
            true => u32::try_from(len_bytes / tensor.dims[2] / ALIGN),
            false => Ok(0),
        };
        Ok(Self {
            layout,
            form,
            ty: tensor.ty,
            // At most `DIMS_MAX`.
            n_dims: u8::try_from(tensor.n_dims).map_err(|_| TensorProblem::TooLarge)?,
            dims,
            offset: end.ok_or(TensorProblem::TooLarge)? - len_bytes,
            len_bytes,
            record_pages: record_pages.map_err(|_| TensorProblem::TooLarge)?,
            checksum: 0,
        })
    }

    /// The number of its matrices that have checksums of their own.
    pub fn n_checksums(&self) -> u64 {
        match self.layout.has_records() {
            true => self.n_matrices(),
            false => 0,
        }
    }

    /// The first byte after the payload.
    pub const fn end(&self) -> u64 {
        let last = self.matrix_offset(self.n_matrices() - 1);
        last.saturating_add(self.matrix_bytes())
    }

    /// Shape, type and form of each matrix of the payload; `None` for raw ones.
    pub fn matrix_layout(&self) -> Option<PanelLayout> {
        let [n_cols, n_rows, ..] = self.dims;
        match self.layout {
            Layout::Raw => None,
            _ => matrix_layout(self.form, self.ty, n_rows.into(), n_cols.into()),
        }
    }

    /// Matrices in the payload: experts, heads, or 1.
    pub const fn n_matrices(&self) -> u64 {
        match self.layout {
            // There is at least one, or the tensor is raw.
            Layout::Stack | Layout::ExpertRecords | Layout::NeuronRecords => self.dims[2] as u64,
            Layout::Raw | Layout::Panels | Layout::Neurons => 1,
        }
    }

    /// Bytes of a matrix, including the zero padding after it; of a raw payload, all bytes.
    pub const fn matrix_bytes(&self) -> u64 {
        self.len_bytes / self.n_matrices()
    }

    /// Distance from the start of a matrix to the next, in bytes.
    pub const fn matrix_stride_bytes(&self) -> u64 {
        match self.layout.has_records() {
            true => self.record_pages as u64 * ALIGN,
            false => self.matrix_bytes(),
        }
    }

    /// Where matrix `index` (of an expert, or of a head) starts, in bytes from the file's start.
    pub const fn matrix_offset(&self, index: u64) -> u64 {
        let from_first = index.saturating_mul(self.matrix_stride_bytes());
        self.offset.saturating_add(from_first)
    }

    /// The bytes in the file.
    pub fn to_bytes(&self) -> [u8; TENSOR_HEADER_BYTES] {
        let mut bytes = [0; TENSOR_HEADER_BYTES];
        bytes[field::VERSION] = VERSION;
        bytes[field::LAYOUT] = self.layout as u8;
        bytes[field::N_DIMS] = self.n_dims;
        bytes[field::TYPE].copy_from_slice(&(self.ty as u32).to_le_bytes());
        let (dims, _) = bytes[field::DIMS].as_chunks_mut::<4>();
        for (out, dim) in dims.iter_mut().zip(self.dims) {
            *out = dim.to_le_bytes();
        }
        bytes[field::OFFSET].copy_from_slice(&self.offset.to_le_bytes());
        bytes[field::LEN].copy_from_slice(&self.len_bytes.to_le_bytes());
        if self.layout != Layout::Raw {
            bytes[field::PANEL_REVISION] = PANEL_REVISION;
            bytes[field::TILE_ROWS] = TILE_ROWS;
            bytes[field::TILE_COLS].copy_from_slice(&tile_cols(self.ty).to_le_bytes());
        }
        if self.form != Form::Panels {
            bytes[field::NEURON_REVISION] = NEURON_REVISION;
        }
        bytes[field::RECORD_PAGES].copy_from_slice(&self.record_pages.to_le_bytes());
        bytes[field::CHECKSUM].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// Reads a header and compares it with the GGUF's tensor info. Tile hints are ignored.
    ///
    /// # Errors
    /// Any fault except in the payload's position, which [`Slc::parse`](super::Slc::parse) checks.
    pub fn from_bytes(
        bytes: &[u8; TENSOR_HEADER_BYTES],
        tensor: &TensorInfo<'_>,
    ) -> Result<Self, TensorProblem> {
        if bytes[field::VERSION] != VERSION {
            return Err(TensorProblem::Version(bytes[field::VERSION]));
        }
        let layout = Layout::from_id(bytes[field::LAYOUT])
            .ok_or(TensorProblem::Layout(bytes[field::LAYOUT]))?;
        let alone = Self::new(tensor, layout, 0)?;
        let header = Self {
            offset: u64_at(bytes, field::OFFSET.start),
            len_bytes: u64_at(bytes, field::LEN.start),
            record_pages: u32_at(bytes, field::RECORD_PAGES.start),
            checksum: u64_at(bytes, field::CHECKSUM.start),
            ..alone
        };
        let expected = alone.to_bytes();
        if bytes[field::N_DIMS] != header.n_dims
            || bytes[field::TYPE] != expected[field::TYPE]
            || bytes[field::DIMS] != expected[field::DIMS]
        {
            return Err(TensorProblem::NotTheGgufs);
        }
        if bytes[field::PANEL_REVISION] != expected[field::PANEL_REVISION] {
            return Err(TensorProblem::PanelRevision(bytes[field::PANEL_REVISION]));
        }
        if bytes[field::NEURON_REVISION] != expected[field::NEURON_REVISION] {
            return Err(match header.form {
                Form::Panels => TensorProblem::Reserved,
                _ => TensorProblem::NeuronRevision(bytes[field::NEURON_REVISION]),
            });
        }
        if bytes[field::LEN] != expected[field::LEN] {
            return Err(TensorProblem::Length {
                stated: header.len_bytes,
                expected: u64_at(&expected, field::LEN.start),
            });
        }
        if bytes[field::SCALES] != [0; 8] {
            return Err(TensorProblem::Scales);
        }
        if !layout.has_records() && header.record_pages != 0 {
            return Err(TensorProblem::Reserved);
        }
        if header.record_pages < alone.record_pages {
            return Err(TensorProblem::RecordTooSmall {
                record_bytes: header.matrix_stride_bytes(),
                matrix_bytes: alone.matrix_bytes(),
            });
        }
        Ok(header)
    }
}

/// The alignment of a payload of `len_bytes`.
pub(super) const fn alignment(len_bytes: u64) -> u64 {
    if len_bytes >= LARGE_BYTES_MIN {
        LARGE_ALIGN
    } else {
        ALIGN
    }
}

/// Columns in 16 lines of 4 bytes per row, as the kernels see them: bytes, except for floats.
const fn tile_cols(ty: GgmlType) -> u16 {
    match ty {
        GgmlType::F32 => 16,
        GgmlType::F16 | GgmlType::BF16 => 32,
        _ => 64,
    }
}

/// A part of the GGUF file that is neither header nor tensor, and not implied zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Where it is in the GGUF file.
    pub gguf_offset: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Where its payload is in the `.slc` file.
    pub offset: u64,
    /// [`crate::hash::Hash64`] of the payload.
    pub checksum: u64,
}

impl Gap {
    /// The bytes in the file.
    pub fn to_bytes(&self) -> [u8; GAP_BYTES] {
        let fields = [self.gguf_offset, self.len_bytes, self.offset, self.checksum];
        let mut bytes = [0; GAP_BYTES];
        for (out, field) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(fields) {
            *out = field.to_le_bytes();
        }
        bytes
    }

    /// Reads a record without checking it.
    pub(super) fn from_bytes(bytes: &[u8; GAP_BYTES]) -> Self {
        Self {
            gguf_offset: u64_at(bytes, 0),
            len_bytes: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            checksum: u64_at(bytes, 24),
        }
    }
}

/// The u64 at byte `at`.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes[at..].first_chunk();
    u64::from_le_bytes(*eight.expect("every caller reads inside a fixed record"))
}

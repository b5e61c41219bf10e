//! Placing: every tensor gets its place in the caller's memory, or is found where it is stored.

mod ends;
mod layer;
mod matrix;

use super::arch::{Family, NextTokenName, Tensor};
use super::check::check_shape;
use super::config::ModelConfig;
use super::error::{ModelError, Name};
use super::refs::{MatrixRef, NormKind, NormRef, RowsRef, VectorRef};
use super::site::Site;
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::GgmlType;
use crate::kernels::neuron::Form;
use crate::kernels::panel::PanelLayout;
use crate::memory::{ALIGN, MemoryError, MemoryPlan};
use crate::slc::{Layout, Slc, TensorHeader};

/// Which weights the loader puts into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residency {
    /// All weights.
    #[default]
    All,
    /// All but the matrices of experts, which every step takes from an
    /// [`crate::engine::ExpertSource`].
    WithoutExperts,
}

/// Maximum product of layers and tensors in the file. Tensors are looked up by walking the
/// directory, so this bounds the time that a hostile file costs to about a second; the largest
/// models have a tenth of it.
const LAYERS_TIMES_TENSORS_MAX: u64 = 1 << 20;

/// Whether the model's tensors can be found in reasonable time.
pub(super) fn check_size(gguf: &Gguf<'_>, config: &ModelConfig) -> Result<(), ModelError> {
    config.check()?;
    let (n_layer, n_tensors) = (config.n_layer(), gguf.tensor_count());
    if n_tensors.saturating_mul(n_layer as u64) > LAYERS_TIMES_TENSORS_MAX {
        return Err(ModelError::TooManyTensors { n_layer, n_tensors });
    }
    refuse_factors(gguf, config)
}

/// Refuses factors on whole matrices, `NAME.scale`, if the family has no such matrix: they would be
/// ignored. (llama.cpp loads `NAME.input_scale` and does not use it.)
fn refuse_factors(gguf: &Gguf<'_>, config: &ModelConfig) -> Result<(), ModelError> {
    for tensor in gguf.tensors() {
        let Some(stem) = tensor.name.strip_suffix(FACTOR) else {
            continue;
        };
        let is_read = match layer_and_part(stem) {
            // Other blocks are skipped entirely: those after the layers, or a trunk's.
            Some((block, part)) => !config.has_block(block) || has_factor(config, part),
            None => config.next_token.is_some() || stem == "output" && !config.tied_output,
        };
        if !is_read {
            return Err(ModelError::NotImplemented {
                what: "a factor on a matrix",
                name: Name::format(format_args!("{}", tensor.name)),
            });
        }
    }
    Ok(())
}

/// Whether factors of that part of a layer are read.
fn has_factor(config: &ModelConfig, part: &str) -> bool {
    let family = config.architecture.family();
    let is_it = |tensor: &Tensor| match tensor {
        Tensor::Matrix(stem, parts) => match config.fused.instead(parts) {
            Some(instead) => instead.iter().any(|(stem, _)| part == *stem),
            None => part == *stem,
        },
        // If gates and ups are one tensor, their factors are named after the ups.
        Tensor::Experts(stem, site) => {
            part == *stem && !(*site == Site::FfnGate && config.fused.has(*site))
        }
        _ => is_factor(tensor, part),
    };
    let of_head = config.next_token.is_some() && NextTokenName::has_factor(part);
    of_head
        || family.tensors().any(is_it)
        || family.beside_experts.iter().any(|(stem, _)| part == *stem)
}

/// Whether `tensor`, although named like the factor of `part`, has another meaning in the family.
fn is_factor(tensor: &Tensor, part: &str) -> bool {
    matches!(tensor, Tensor::Named(name, _) if name.strip_suffix(FACTOR) == Some(part))
}

/// N and `part` of `blk.N.part`.
fn layer_and_part(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

/// Where tables that are looked up row by row are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tables {
    /// In weight memory.
    #[default]
    Loaded,
    /// In the GGUF file, which is in memory or mapped: rows are read as tokens need them.
    InFile,
}

/// What a tensor is converted to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Panels(MatrixRef),
    /// Panels of the transposed tensor.
    Turned(MatrixRef),
    /// One of several matrices, and its number: a head's, or an expert's at that site.
    OneOf(MatrixRef, usize, Option<Site>),
    Vector(VectorRef),
    Rows(RowsRef),
    /// Rows that stay in the file; offsets count from its first byte.
    FileRows(RowsRef),
}

impl Target {
    /// Offset in weight memory, and length.
    pub(super) fn range(&self) -> (usize, usize) {
        match self {
            Self::Panels(matrix) | Self::Turned(matrix) | Self::OneOf(matrix, ..) => {
                (matrix.offset, matrix.layout().bytes())
            }
            Self::Vector(vector) => (vector.offset, 4 * vector.len),
            Self::Rows(rows) | Self::FileRows(rows) => (rows.offset, rows.n_rows * rows.row_bytes),
        }
    }
}

/// The last part of the name of a factor.
const FACTOR: &str = ".scale";

/// Assigns every tensor its offset, always in the same order.
pub(super) struct Placer<'g, 'a> {
    gguf: &'g Gguf<'a>,
    family: &'static Family,
    plan: MemoryPlan,
    /// Where the tensors are already stored, if they are.
    in_place: Option<&'g Slc<'a>>,
    /// Whether to look for biases at all: most files have none.
    has_bias: bool,
    /// Whether to look for factors.
    has_factor: bool,
    residency: Residency,
    tables: Tables,
}

/// Called for every tensor with its index in the file, what it is, and what it becomes.
pub(super) type Placed<'c, 'a> = &'c mut dyn FnMut(usize, &TensorInfo<'a>, Target);

impl<'g, 'a> Placer<'g, 'a> {
    pub(super) fn new(gguf: &'g Gguf<'a>, config: &ModelConfig, residency: Residency) -> Self {
        Self {
            gguf,
            family: config.architecture.family(),
            residency,
            tables: Tables::Loaded,
            plan: MemoryPlan::new(),
            in_place: None,
            has_bias: gguf.tensors().any(|tensor| tensor.name.ends_with(".bias")),
            has_factor: gguf.tensors().any(|tensor| tensor.name.ends_with(FACTOR)),
        }
    }

    /// The layout with its tables elsewhere.
    pub(super) const fn with_tables(mut self, tables: Tables) -> Self {
        self.tables = tables;
        self
    }

    /// For tensors that stay where `slc` has them; offsets count from its first payload.
    pub(super) fn in_place(slc: &'g Slc<'a>, config: &ModelConfig, residency: Residency) -> Self {
        Self {
            in_place: Some(slc),
            ..Self::new(slc.gguf(), config, residency)
        }
    }

    /// Bytes of weight memory taken so far.
    pub(super) const fn bytes(&self) -> usize {
        self.plan.bytes()
    }

    /// The offset at which `bytes` of the tensor at `index` are or will be stored in `layout`.
    fn place(
        &mut self,
        index: usize,
        tensor: &TensorInfo<'_>,
        name: Name,
        layout: Layout,
        bytes: usize,
    ) -> Result<usize, ModelError> {
        let Some(slc) = self.in_place else {
            let offset = self.plan.bytes();
            self.plan.slice::<u8>(bytes)?;
            return Ok(offset);
        };
        let header = slc.tensor_header(index, tensor);
        let header = header.ok_or(ModelError::MissingTensor { name })?;
        if header.layout != layout || header.len_bytes != bytes as u64 {
            return Err(ModelError::NotInPlace {
                name,
                expected: layout.name(),
                found: header.layout.name(),
            });
        }
        let offset = usize::try_from(header.offset - slc.header().payload_offset());
        offset.map_err(|_| MemoryError::TooLarge.into())
    }

    /// A tensor and its index in the file.
    fn find(&self, name: &Name) -> Result<(usize, TensorInfo<'a>), ModelError> {
        self.gguf
            .tensors()
            .enumerate()
            .find(|(_, tensor)| tensor.name == name.as_str())
            .ok_or(ModelError::MissingTensor { name: *name })
    }

    fn vector(
        &mut self,
        name: Name,
        len: usize,
        placed: Placed<'_, 'a>,
    ) -> Result<VectorRef, ModelError> {
        self.table(name, [1, len], placed)
    }

    /// An f32 tensor that is used as it is.
    fn table(
        &mut self,
        name: Name,
        shape: [usize; 2],
        placed: Placed<'_, 'a>,
    ) -> Result<VectorRef, ModelError> {
        let (index, tensor) = self.find(&name)?;
        check_shape(&tensor, name, shape)?;
        let len = shape[0] * shape[1];
        if tensor.ty != GgmlType::F32 {
            return Err(ModelError::TensorType {
                name,
                expected: GgmlType::F32,
                found: tensor.ty,
            });
        }
        let offset = self.place(index, &tensor, name, Layout::Raw, 4 * len)?;
        let vector = VectorRef { offset, len };
        placed(index, &tensor, Target::Vector(vector));
        Ok(vector)
    }

    /// An RMSNorm of one row.
    fn rms_norm(
        &mut self,
        name: Name,
        len: usize,
        placed: Placed<'_, 'a>,
    ) -> Result<NormRef, ModelError> {
        Ok(NormRef {
            weight: self.vector(name, len, placed)?,
            kind: NormKind::RMS,
        })
    }

    /// A layer norm (`name` without `.weight`) with its optional bias.
    fn layer_norm(
        &mut self,
        stem: &Name,
        shape: [usize; 2],
        placed: Placed<'_, 'a>,
    ) -> Result<NormRef, ModelError> {
        let name = Name::format(format_args!("{}.weight", stem.as_str()));
        Ok(NormRef {
            weight: self.table(name, shape, placed)?,
            kind: NormKind::layer(self.bias(stem, shape, placed)?),
        })
    }

    /// The matrices of all experts at a site, or of all heads (`name` without `.weight`); returns the first. Their
    /// factors may have another name.
    fn stack(
        &mut self,
        stem: &Name,
        factors: &Name,
        n_expert: usize,
        experts: Option<Site>,
        [n_rows, n_cols]: [usize; 2],
        placed: Placed<'_, 'a>,
    ) -> Result<MatrixRef, ModelError> {
        let name = Name::format(format_args!("{}.weight", stem.as_str()));
        let (index, tensor) = self.find(&name)?;
        let [found_cols, found_rows, found_experts, outer] = tensor.dims;
        let found = [found_experts.saturating_mul(outer), found_rows, found_cols];
        let expected = [n_expert as u64, n_rows as u64, n_cols as u64];
        if found != expected {
            return Err(ModelError::ExpertShape {
                name,
                expected,
                found,
            });
        }
        let header = self.header_in_file(index, &tensor);
        let layout = layout_of(tensor.ty, name, [n_rows, n_cols], header.as_ref())?;
        let align = match self.in_place {
            Some(_) => usize::try_from(crate::slc::ALIGN).map_err(|_| MemoryError::TooLarge)?,
            None => ALIGN,
        };
        let stride = layout.bytes().next_multiple_of(align);
        let bytes = stride.checked_mul(n_expert);
        let bytes = bytes.ok_or(MemoryError::TooLarge)?;
        let bias = self.bias(stem, [n_expert, n_rows], placed)?;
        let factor = self.factor(factors, n_expert, placed)?;
        if experts.is_some() && self.residency == Residency::WithoutExperts {
            return Ok(MatrixRef::new(&layout, 0, bias)
                .with_stride(stride)
                .with_factor(factor));
        }
        let (kind, stride) = match header.filter(|header| header.layout.has_records()) {
            Some(header) => {
                let stride = usize::try_from(header.matrix_stride_bytes());
                (header.layout, stride.map_err(|_| MemoryError::TooLarge)?)
            }
            None => (Layout::Stack, stride),
        };
        let offset = self.place(index, &tensor, name, kind, bytes)?;
        let first = MatrixRef::new(&layout, offset, bias)
            .with_stride(stride)
            .with_factor(factor);
        for expert in 0..n_expert {
            placed(
                index,
                &tensor,
                Target::OneOf(first.of_expert(expert), expert, experts),
            );
        }
        Ok(first)
    }

    /// The header of a tensor that stays in its file.
    fn header_in_file(&self, index: usize, tensor: &TensorInfo<'_>) -> Option<TensorHeader> {
        self.in_place
            .and_then(|slc| slc.tensor_header(index, tensor))
    }

    /// A tensor that is looked up row by row.
    fn rows(
        &mut self,
        name: Name,
        shape: [usize; 2],
        placed: Placed<'_, 'a>,
    ) -> Result<RowsRef, ModelError> {
        let (index, tensor) = self.find(&name)?;
        check_shape(&tensor, name, shape)?;
        let layout = PanelLayout::new(tensor.ty, shape[0], shape[1])
            .map_err(|error| ModelError::Panel { name, error })?;
        let row_bytes = layout.gguf_row_bytes();
        let stays = self.tables == Tables::InFile;
        let rows = RowsRef {
            ty: layout.ty(),
            offset: match stays {
                true => usize::try_from(tensor.offset).map_err(|_| MemoryError::TooLarge)?,
                false => self.place(index, &tensor, name, Layout::Raw, shape[0] * row_bytes)?,
            },
            n_rows: shape[0],
            row_bytes,
        };
        let target = if stays {
            Target::FileRows
        } else {
            Target::Rows
        };
        placed(index, &tensor, target(rows));
        Ok(rows)
    }

    /// The bias of a norm, of a matrix, or of all experts (experts, rows), if the file has one.
    fn bias(
        &mut self,
        stem: &Name,
        shape: [usize; 2],
        placed: Placed<'_, 'a>,
    ) -> Result<Option<VectorRef>, ModelError> {
        if !self.has_bias {
            return Ok(None);
        }
        let name = Name::format(format_args!("{}.bias", stem.as_str()));
        match self.gguf.tensor(name.as_str()) {
            Some(_) => self.table(name, shape, placed).map(Some),
            None => Ok(None),
        }
    }

    /// The factor of a matrix's products (`stem.scale`), or one for each expert, if the file has one and the family
    /// gives it no other meaning.
    fn factor(
        &mut self,
        stem: &Name,
        n: usize,
        placed: Placed<'_, 'a>,
    ) -> Result<Option<VectorRef>, ModelError> {
        let is_own = |(_, part)| self.family.tensors().any(|tensor| is_factor(tensor, part));
        let name = Name::format(format_args!("{}{FACTOR}", stem.as_str()));
        let is_there = self.has_factor && self.gguf.tensor(name.as_str()).is_some();
        if !is_there || layer_and_part(stem.as_str()).is_some_and(is_own) {
            return Ok(None);
        }
        self.vector(name, n, placed).map(Some)
    }
}

/// The layout of a tensor's matrices of `n_rows` × `n_cols`, in the form that its file has them in.
fn layout_of(
    ty: GgmlType,
    name: Name,
    [n_rows, n_cols]: [usize; 2],
    header: Option<&TensorHeader>,
) -> Result<PanelLayout, ModelError> {
    let form = header.map_or(Form::Panels, |header| header.form);
    PanelLayout::new(ty, n_rows, n_cols)
        .and_then(|panels| panels.with_form(form))
        .map_err(|error| ModelError::Panel { name, error })
}

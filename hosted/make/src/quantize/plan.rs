//! The type of each tensor, chosen before any data is read.

use super::file_type::FileType;
use super::importance::ImportanceMatrix;
use super::mix::{Facts, Subject, fallback, is_embedding, site};
use core::fmt;
use regex_lite::Regex;
use sluice::file::{GgufHeader, MetaValue};
use sluice_core::gguf::{Gguf, TensorInfo};
use sluice_core::kernels::quantize::can_quantize;
use sluice_core::kernels::words;
use sluice_core::kernels::{GgmlType, WeightType};
use sluice_core::model::Site;
use std::collections::HashMap;

/// The options of a quantisation.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command"
)]
pub struct QuantizeRequest {
    /// The type of the file.
    pub file_type: FileType,
    /// Every tensor gets the file type's base type, without a mix.
    pub pure: bool,
    /// `output.weight` is not changed.
    pub leave_output: bool,
    /// Tensors that are already quantised may be quantised again.
    pub allow_requantize: bool,
    /// The type of `output.weight`.
    pub output_type: Option<GgmlType>,
    /// The type of the token embedding.
    pub embedding_type: Option<GgmlType>,
    /// Types of tensors whose names match a pattern; the first match counts.
    pub tensor_types: Vec<(Regex, GgmlType)>,
    /// Types chosen for tensors by name; they take precedence over patterns and mixes.
    pub chosen: HashMap<String, GgmlType>,
    /// Whether columns are weighted by importance.
    pub has_importance: bool,
    /// Whether the file becomes a `.slc` file, which can hold precision lanes.
    pub into_slc: bool,
}

/// Why a request cannot be met.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "the fields are a tensor's name, type and row length"
)]
pub enum PlanError {
    /// Quantising again loses more than quantising once.
    Requantize { tensor: String, ty: GgmlType },
    /// This build cannot write the type.
    NoQuantizer { tensor: String, ty: GgmlType },
    /// A type whose values are not weights.
    NotNumbers { tensor: String, ty: GgmlType },
    /// The type is too small to be used without importance, and the matrix does not have the tensor.
    NeedsImportance { tensor: String, ty: GgmlType },
    /// A precision lane in a GGUF file.
    LaneInGguf { tensor: String, ty: GgmlType },
    /// A precision lane for rows that are not a whole number of its blocks.
    LaneWidth {
        tensor: String,
        ty: GgmlType,
        row_len: u64,
    },
    /// The file has no tensors.
    NoTensors,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requantize { tensor, ty } => write!(
                f,
                "{tensor} is already {ty}: quantize from F16, BF16 or F32, or use --allow-requantize"
            ),
            Self::NoQuantizer { tensor, ty } => {
                write!(
                    f,
                    "{tensor} would become {ty}, which is supported only for reading"
                )
            }
            Self::NotNumbers { tensor, ty } => {
                write!(f, "{tensor} is of type {ty}, which cannot be quantized")
            }
            Self::NeedsImportance { tensor, ty } => write!(
                f,
                "{tensor} would become {ty}, which has too few bits without importance: use an importance matrix \
                 that contains it (--imatrix)"
            ),
            Self::LaneInGguf { tensor, ty } => write!(
                f,
                "{tensor} would become {ty}, which GGUF has no number for: write a .slc file (name an output that ends in \
                 .slc), or choose another type"
            ),
            Self::LaneWidth {
                tensor,
                ty,
                row_len,
            } => write!(
                f,
                "{tensor} would become {ty}, but its rows of {row_len} are not a multiple of {}: give it another type, for \
                 example with --tensor-type '{tensor}=F16'",
                ty.block_len()
            ),
            Self::NoTensors => f.write_str("the file contains only a vocabulary, no tensors"),
        }
    }
}

impl core::error::Error for PlanError {}

/// A tensor and its planned type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Its name in both files.
    pub name: String,
    /// Elements along each dimension, the row length first.
    pub dims: Vec<u64>,
    /// Its current type.
    pub source: GgmlType,
    /// Its new type.
    pub target: GgmlType,
    /// The chosen type, if the rows are not a whole number of its blocks.
    pub wanted: Option<GgmlType>,
    /// Offset of its data in the source file.
    pub offset: u64,
    /// Bytes of data in the source file.
    pub len_bytes: u64,
}

/// Every tensor of a file, in the file's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The tensors.
    pub tensors: Vec<PlannedTensor>,
}

impl PlannedTensor {
    /// Elements of a row.
    #[must_use]
    pub fn row_len(&self) -> u64 {
        self.dims[0]
    }

    /// Total rows of all matrices.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// Number of elements.
    #[must_use]
    pub fn n_elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Checks that a precision lane fits the rows: nothing takes its place, as it does for other types.
    ///
    /// # Errors
    /// [`PlanError::LaneWidth`].
    pub fn check_width(&self, ty: GgmlType) -> Result<(), PlanError> {
        if ty.is_lane() && ty.row_bytes(self.row_len()).is_none() {
            return Err(PlanError::LaneWidth {
                tensor: self.name.clone(),
                ty,
                row_len: self.row_len(),
            });
        }
        Ok(())
    }

    /// Bytes of the quantised data.
    #[must_use]
    pub fn target_bytes(&self) -> u64 {
        bytes(self.target, self.row_len()) * self.n_rows()
    }

    /// Whether the data is copied unchanged.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.source == self.target
    }
}

/// Bytes of a row.
fn bytes(ty: GgmlType, row_len: u64) -> u64 {
    ty.row_bytes(row_len)
        .expect("types are chosen to fit the rows")
}

impl Plan {
    /// Assigns a type to every tensor of `gguf`, whether or not this build can write it: see [`Self::check`].
    ///
    /// # Errors
    /// [`PlanError::NoTensors`].
    pub fn new(gguf: &Gguf<'_>, request: &QuantizeRequest) -> Result<Self, PlanError> {
        if gguf.tensor_count() == 0 {
            return Err(PlanError::NoTensors);
        }
        let facts = facts(gguf, request);
        let indices = attn_v_indices(gguf);
        let mut tensors = Vec::new();
        for tensor in gguf.tensors() {
            let wanted = if is_weight(&tensor) {
                let index = match site(tensor.name) {
                    Some(Site::AttnV) => indices[tensor.name],
                    _ => layer(tensor.name).unwrap_or(0),
                };
                request.choose(&facts, &tensor, index)
            } else {
                tensor.ty
            };
            let target = if wanted == tensor.ty {
                wanted
            } else {
                fallback(wanted, tensor.dims[0])
            };
            let planned = PlannedTensor {
                name: tensor.name.into(),
                dims: tensor.dims[..tensor.n_dims.max(1)].into(),
                source: tensor.ty,
                target,
                wanted: (target != wanted).then_some(wanted),
                offset: tensor.offset,
                len_bytes: tensor.len_bytes,
            };
            tensors.push(planned);
        }
        Ok(Self { tensors })
    }

    /// Checks that the plan can be carried out with `importance`.
    ///
    /// # Errors
    /// [`PlanError`], naming the first tensor at fault.
    pub fn check(
        &self,
        request: &QuantizeRequest,
        importance: Option<&ImportanceMatrix>,
    ) -> Result<(), PlanError> {
        let knows = |name: &str| importance.is_some_and(|known| known.weights.contains_key(name));
        self.tensors
            .iter()
            .try_for_each(|tensor| request.check(tensor, knows(&tensor.name)))
    }

    /// The weights quantised without importance although `importance` has others. The embedding and the output layer
    /// are often missing from it.
    #[must_use]
    pub fn unknown_to(&self, importance: &ImportanceMatrix) -> Vec<&str> {
        let is_unknown = |tensor: &&PlannedTensor| {
            let is_float = matches!(
                tensor.target,
                GgmlType::F32 | GgmlType::F16 | GgmlType::BF16
            );
            let is_known = importance.weights.contains_key(&tensor.name);
            !tensor.is_copied() && !is_float && !is_known && !is_edge(&tensor.name)
        };
        let unknown = self.tensors.iter().filter(is_unknown);
        unknown.map(|tensor| &*tensor.name).collect()
    }

    /// Bytes of all tensors before and after.
    #[must_use]
    pub fn total_bytes(&self) -> (u64, u64) {
        let sizes = self.tensors.iter().map(|t| (t.len_bytes, t.target_bytes()));
        sizes.fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1))
    }

    /// Elements of all tensors.
    #[must_use]
    pub fn n_elements(&self) -> u64 {
        self.tensors.iter().map(PlannedTensor::n_elements).sum()
    }

    /// The header of the new file: all metadata of `gguf`, except for the keys that quantisation changes.
    #[must_use]
    pub fn header(
        &self,
        gguf: &Gguf<'_>,
        file_type: FileType,
        importance: Option<&ImportanceMatrix>,
        overrides: &[(String, MetaValue)],
    ) -> GgufHeader {
        let mut header = GgufHeader::with_metadata_of(gguf);
        header.set("general.quantization_version", QUANTIZATION_VERSION);
        header.set("general.file_type", file_type.number);
        for key in ["split.no", "split.count", "split.tensors.count"] {
            header.remove(key);
        }
        if let Some(importance) = importance {
            importance.describe(&mut header);
        }
        for (key, value) in overrides {
            header.set(key, value.clone());
        }
        for tensor in &self.tensors {
            header.add_tensor(&tensor.name, &tensor.dims, tensor.target);
        }
        header
    }
}

impl QuantizeRequest {
    /// A request for `file_type`, with default options.
    #[must_use]
    pub fn new(file_type: FileType) -> Self {
        Self {
            file_type,
            pure: false,
            leave_output: false,
            allow_requantize: false,
            output_type: None,
            embedding_type: None,
            tensor_types: Vec::new(),
            chosen: HashMap::new(),
            has_importance: false,
            into_slc: false,
        }
    }

    /// The type requested for a tensor by name, if any. Patterns only apply to quantised file types.
    #[must_use]
    pub fn asked(&self, name: &str) -> Option<GgmlType> {
        let by_site = match site(name) {
            Some(Site::Output) => self.output_type,
            None if is_embedding(name) => self.embedding_type,
            _ => None,
        };
        let base = self.file_type.base;
        let float = matches!(base, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16);
        let matches = |(pattern, _): &&(Regex, GgmlType)| !float && pattern.is_match(name);
        let by_pattern = || self.tensor_types.iter().find(matches).map(|(_, ty)| *ty);
        by_site.or_else(by_pattern)
    }

    fn choose(&self, facts: &Facts, tensor: &TensorInfo<'_>, index: u32) -> GgmlType {
        let site = site(tensor.name);
        if site == Some(Site::Output) && self.leave_output {
            return tensor.ty;
        }
        if let Some(ty) = self.chosen.get(tensor.name) {
            return *ty;
        }
        if let Some(ty) = self.asked(tensor.name) {
            return ty;
        }
        let base = self.file_type.base;
        // Mixes only exist for quantised types; F16 stays F16 throughout.
        if matches!(base, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
            return base;
        }
        if self.pure {
            return base;
        }
        facts.choose(Subject {
            site,
            is_embedding: is_embedding(tensor.name),
            index,
            row_len: tensor.dims[0],
            n_matrices: tensor.dims[2],
        })
    }

    fn check(&self, tensor: &PlannedTensor, is_known: bool) -> Result<(), PlanError> {
        let (name, source) = (|| tensor.name.clone(), tensor.source);
        tensor.wanted.map_or(Ok(()), |ty| tensor.check_width(ty))?;
        if tensor.target.is_lane() && !self.into_slc {
            let (tensor, ty) = (name(), tensor.target);
            return Err(PlanError::LaneInGguf { tensor, ty });
        }
        if tensor.is_copied() {
            return Ok(());
        }
        if WeightType::from_ggml(source).is_none() {
            let (tensor, ty) = (name(), source);
            return Err(PlanError::NotNumbers { tensor, ty });
        }
        let is_float = matches!(source, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16);
        if !is_float && !self.allow_requantize {
            let (tensor, ty) = (name(), source);
            return Err(PlanError::Requantize { tensor, ty });
        }
        let ty = tensor.target;
        if !can_quantize(ty) {
            return Err(PlanError::NoQuantizer { tensor: name(), ty });
        }
        let rough = match ty {
            GgmlType::IQ1_S
            | GgmlType::IQ1_M
            | GgmlType::IQ2_XXS
            | GgmlType::IQ2_XS
            | GgmlType::IQ2_S
            | GgmlType::IQ3_XXS => true,
            GgmlType::Q2_K => self.file_type.is(&["Q2_K_S"]),
            _ => false,
        };
        // A type chosen by its measured error is known to be acceptable.
        let is_measured = self.chosen.contains_key(&tensor.name);
        if rough && !is_edge(&tensor.name) && !is_known && !is_measured {
            return Err(PlanError::NeedsImportance { tensor: name(), ty });
        }
        Ok(())
    }
}

/// Whether a tensor is the token embedding or the output layer.
fn is_edge(name: &str) -> bool {
    site(name) == Some(Site::Output) || is_embedding(name)
}

/// Whether a tensor is a weight matrix. Vectors, norms, routers, small convolutions, positions and similar tensors are
/// not quantised.
fn is_weight(tensor: &TensorInfo<'_>) -> bool {
    let matrix = tensor.dims[1..].iter().any(|&n| n > 1);
    matrix && tensor.name.ends_with("weight") && !KEPT.iter().any(|part| tensor.name.contains(part))
}

/// Name parts of tensors that llama.cpp does not quantise: small, and sensitive to errors.
const KEPT: &[&str] = words!(
    "_norm.weight ffn_gate_inp.weight ffn_gate_tid2eid.weight altup laurel per_layer_model_proj \
     position_embd token_types ssm_conv1d shortconv.conv.weight indexer.k_proj.weight \
     indexer.q_proj.weight time_mix_first.weight time_mix_w0.weight time_mix_w1.weight \
     time_mix_w2.weight time_mix_v0.weight time_mix_v1.weight time_mix_v2.weight \
     time_mix_a0.weight time_mix_a1.weight time_mix_a2.weight time_mix_g1.weight \
     time_mix_g2.weight time_mix_decay_w1.weight time_mix_decay_w2.weight \
     time_mix_lerp_fused.weight attn_rel_b.weight sam.pos_embd sam.neck. sam.net_ .rel_pos \
     .patch_embd .patch_merger a.rvq.codebook mm.a.code_embd"
);

fn facts(gguf: &Gguf<'_>, request: &QuantizeRequest) -> Facts {
    let arch = gguf.str("general.architecture").unwrap_or_default();
    // Some models have one number per layer; the first is used for all.
    let number = |key: &str| {
        let key = format!("{arch}.{key}");
        let in_array = || gguf.get(&key)?.as_array()?.get(0)?.as_u32();
        gguf.u32(&key).ok().or_else(in_array).unwrap_or(0)
    };
    let n_head = number("attention.head_count");
    let n_head_kv = match number("attention.head_count_kv") {
        0 => n_head,
        n => n,
    };
    let n_layer = number("block_count");
    let n_attn_v = gguf.tensors().filter(|t| is_values(t.name)).count();
    Facts {
        file_type: request.file_type,
        falcon: arch == "falcon",
        n_gqa: n_head.checked_div(n_head_kv).unwrap_or(1),
        n_expert: number("expert_count"),
        n_layer,
        n_attn_v: u32::try_from(n_attn_v).unwrap_or(u32::MAX),
        is_70b: ["llama", "qwen2", "deci"].contains(&arch) && n_layer == 80 && n_head != n_head_kv,
        has_importance: request.has_importance,
        tied: gguf.tensor("output.weight").is_none(),
    }
}

fn is_values(name: &str) -> bool {
    site(name) == Some(Site::AttnV)
}

/// The layer number in a tensor's name.
fn layer(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Number of value tensors before each one, by layer: hybrid models only have them in some layers.
fn attn_v_indices<'a>(gguf: &Gguf<'a>) -> HashMap<&'a str, u32> {
    let names = gguf.tensors().map(|tensor| tensor.name);
    let mut names: Vec<_> = names.filter(|name| is_values(name)).collect();
    names.sort_by_key(|name| (layer(name), *name));
    names.into_iter().zip(0..).collect()
}

/// Version of ggml's block formats.
const QUANTIZATION_VERSION: u32 = 2;

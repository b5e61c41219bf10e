//! The type of each tensor in a mix.
//!
//! A mix assigns more bits where errors cost more: the output layer, values, the FFN's down projection, the first and
//! last layers. The choices are llama.cpp's (`llama-quant.cpp`), so a file has the size and the quality that its type's
//! name is known for.

use super::file_type::FileType;
use sluice_core::kernels::GgmlType;
use sluice_core::model::Site;

/// The kind of matrix that a tensor of this name holds, as far as mixes distinguish them. Tensors that hold values
/// among other things (fused QKV, latent KV) count as values.
pub(super) fn site(name: &str) -> Option<Site> {
    if name == "output.weight" {
        return Some(Site::Output);
    }
    let by_part = [
        ("attn_qkv.weight", Site::AttnV),
        ("attn_kv_b.weight", Site::AttnV),
        ("attn_v.weight", Site::AttnV),
        ("attn_k.weight", Site::AttnK),
        ("attn_q.weight", Site::AttnQ),
        ("attn_output.weight", Site::AttnOutput),
        ("ffn_up", Site::FfnUp),
        ("ffn_gate", Site::FfnGate),
        ("ffn_down", Site::FfnDown),
    ];
    let found = by_part.iter().find(|(part, _)| name.contains(part));
    found.map(|(_, site)| *site)
}

/// Whether a tensor of this name is an embedding table, indexed by token.
pub(super) fn is_embedding(name: &str) -> bool {
    ["token_embd.weight", "per_layer_token_embd.weight"].contains(&name)
}

/// The facts on which the choices depend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) file_type: FileType,
    /// The architecture is falcon, which has its own rules.
    pub(super) falcon: bool,
    /// Query heads per KV head.
    pub(super) n_gqa: u32,
    pub(super) n_expert: u32,
    /// Decoder layers.
    pub(super) n_layer: u32,
    /// Number of [`Site::AttnV`] tensors.
    pub(super) n_attn_v: u32,
    /// 80 layers with grouped heads: values are small, and cheap to keep precise.
    pub(super) is_70b: bool,
    pub(super) has_importance: bool,
    /// The embedding is tied to the output layer.
    pub(super) tied: bool,
}

/// A tensor to be given a type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    /// The result of [`site`] for its name.
    pub(super) site: Option<Site>,
    pub(super) is_embedding: bool,
    /// Its layer; for values, the number of earlier tensors of that site.
    pub(super) index: u32,
    pub(super) row_len: u64,
    /// Number of matrices in it: experts, or 1.
    pub(super) n_matrices: u64,
}

impl Facts {
    /// The type of a tensor, before a fallback for its shape.
    pub(super) fn choose(&self, subject: Subject) -> GgmlType {
        let base = self.file_type.base;
        let is = |names: &[&str]| self.file_type.is(names);
        match subject.site {
            Some(Site::Output) => self.output(subject),
            None if subject.is_embedding && self.tied => self.output(subject),
            _ if is(&["MXFP4_MOE"]) && subject.n_matrices > 1 => GgmlType::MXFP4,
            _ if is(&["MXFP4_MOE"]) => GgmlType::Q8_0,
            None if subject.is_embedding => self.embedding(),
            _ if is(TWO_BITS) => self.two_bits(subject),
            Some(Site::AttnV) => self.attn_v(subject.index),
            Some(site @ (Site::AttnQ | Site::AttnK)) => self.attn_qk(site),
            Some(Site::AttnOutput) => self.attn_output(),
            Some(Site::FfnDown) => self.ffn_down(subject.index),
            Some(Site::FfnGate | Site::FfnUp)
                if is(&["IQ3_XS"]) && self.is_middle(subject.index) =>
            {
                GgmlType::IQ3_XXS
            }
            _ => base,
        }
    }

    fn output(&self, subject: Subject) -> GgmlType {
        let base = self.file_type.base;
        let fits = subject.row_len.is_multiple_of(base.block_len() as u64);
        if self.file_type.is(&["MXFP4_MOE"]) || self.falcon || !fits {
            return GgmlType::Q8_0;
        }
        let small = [
            "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS",
        ];
        match base {
            _ if self.file_type.is(&small) => GgmlType::Q5_K,
            GgmlType::Q8_0 | GgmlType::LANE7 => base,
            _ => GgmlType::Q6_K,
        }
    }

    fn embedding(&self) -> GgmlType {
        match self.file_type.name {
            "IQ1_S" | "IQ1_M" | "IQ2_XXS" | "IQ2_XS" => GgmlType::Q2_K,
            "IQ2_S" | "IQ2_M" | "IQ3_XXS" => GgmlType::IQ3_S,
            "TQ1_0" | "TQ2_0" => GgmlType::Q4_K,
            _ => self.file_type.base,
        }
    }

    /// The types around two bits share their exceptions.
    fn two_bits(&self, subject: Subject) -> GgmlType {
        let larger = self.file_type.is(&["IQ2_S", "IQ2_M"]);
        let more = if larger {
            GgmlType::IQ3_S
        } else {
            GgmlType::Q2_K
        };
        match subject.site {
            Some(Site::AttnV) if self.n_gqa >= 4 || self.n_expert >= 4 => GgmlType::Q4_K,
            Some(Site::AttnV) => more,
            Some(Site::AttnK) if self.n_expert == 8 => GgmlType::Q4_K,
            Some(Site::FfnDown) if subject.index < self.n_layer / 8 => more,
            Some(Site::AttnOutput) if self.n_expert == 8 => GgmlType::Q5_K,
            Some(Site::AttnOutput) if larger => GgmlType::IQ3_S,
            Some(Site::AttnOutput) if self.file_type.is(&["IQ1_S", "IQ1_M"]) => GgmlType::IQ2_XXS,
            _ => self.file_type.base,
        }
    }

    fn attn_v(&self, index: u32) -> GgmlType {
        let grouped = self.n_gqa >= 4;
        let chosen = match self.file_type.name {
            "Q2_K" if grouped => GgmlType::Q4_K,
            "Q2_K" => GgmlType::Q3_K,
            "Q2_K_S" | "IQ3_XXS" | "IQ3_XS" | "IQ3_S" if grouped => GgmlType::Q4_K,
            "IQ3_XXS" if !self.has_importance => GgmlType::IQ3_S,
            "IQ3_M" => GgmlType::Q4_K,
            "Q3_K_M" if index < 2 => GgmlType::Q5_K,
            "Q3_K_M" => GgmlType::Q4_K,
            "Q3_K_L" => GgmlType::Q5_K,
            "IQ4_NL" | "IQ4_XS" if grouped => GgmlType::Q5_K,
            "Q4_K_M" | "Q5_K_M" if more_bits(index, self.n_attn_v) => GgmlType::Q6_K,
            "Q4_K_S" if index < 4 => GgmlType::Q5_K,
            _ => self.file_type.base,
        };
        match chosen {
            _ if self.n_expert == 8 => GgmlType::Q8_0,
            GgmlType::Q3_K | GgmlType::Q4_K if self.is_70b => GgmlType::Q5_K,
            chosen => chosen,
        }
    }

    fn attn_qk(&self, site: Site) -> GgmlType {
        match self.file_type.name {
            _ if site == Site::AttnK && self.n_expert == 8 => GgmlType::Q8_0,
            "IQ3_XS" => GgmlType::IQ3_XXS,
            "IQ3_XXS" => GgmlType::IQ2_S,
            _ => self.file_type.base,
        }
    }

    fn attn_output(&self) -> GgmlType {
        let with_experts = [
            "Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S",
            "IQ3_M", "IQ4_XS",
        ];
        match self.file_type.name {
            "Q3_K_L" if self.falcon => GgmlType::Q4_K,
            _ if self.falcon => self.file_type.base,
            _ if self.n_expert == 8 && self.file_type.is(&with_experts) => GgmlType::Q5_K,
            _ if self.n_expert == 8 => self.file_type.base,
            "Q2_K" => GgmlType::Q3_K,
            "IQ3_XXS" => GgmlType::IQ3_S,
            "Q3_K_M" | "IQ3_M" => GgmlType::Q4_K,
            "Q3_K_L" => GgmlType::Q5_K,
            _ => self.file_type.base,
        }
    }

    fn ffn_down(&self, layer: u32) -> GgmlType {
        let n = self.n_layer;
        let (first_8th, first_16th) = (layer < n / 8, layer < n / 16);
        let more = more_bits(layer, n);
        match self.file_type.name {
            "Q2_K" => GgmlType::Q3_K,
            "Q2_K_S" if first_8th => GgmlType::Q4_K,
            "IQ3_XXS" if !self.has_importance && first_8th => GgmlType::Q4_K,
            "IQ3_XXS" if !self.has_importance => GgmlType::Q3_K,
            "Q3_K_M" if first_16th => GgmlType::Q5_K,
            "Q3_K_M" if !self.falcon || more => GgmlType::Q4_K,
            "IQ3_M" if first_8th || (self.n_expert == 8 && more) => GgmlType::Q4_K,
            "Q3_K_L" if self.falcon => GgmlType::Q4_K,
            "Q3_K_L" => GgmlType::Q5_K,
            "Q4_K_M" if self.falcon && first_16th => GgmlType::Q6_K,
            "Q4_K_M" if self.falcon && more => GgmlType::Q5_K,
            "Q4_K_M" if !self.falcon && more => GgmlType::Q6_K,
            "IQ4_NL" | "IQ4_XS" if first_8th && !self.has_importance => GgmlType::Q5_K,
            "Q5_K_M" if more => GgmlType::Q6_K,
            "Q4_K_S" if !self.falcon && first_8th => GgmlType::Q5_K,
            "Q4_0" if self.has_importance && first_8th => GgmlType::Q4_1,
            "Q5_0" if self.has_importance && first_8th => GgmlType::Q5_1,
            _ => self.file_type.base,
        }
    }

    /// Outside the first and last eighth of the layers.
    const fn is_middle(&self, layer: u32) -> bool {
        layer >= self.n_layer / 8 && layer < 7 * self.n_layer / 8
    }
}

/// The first and last eighth of `n` layers, and every third in between.
const fn more_bits(i: u32, n: u32) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// The type for rows that are not a whole number of blocks: the closest type with blocks of 32, or F16.
pub(super) fn fallback(ty: GgmlType, row_len: u64) -> GgmlType {
    let fits = |ty: GgmlType| row_len.is_multiple_of(ty.block_len() as u64);
    if fits(ty) {
        return ty;
    }
    let smaller_blocks = match ty {
        GgmlType::IQ1_S
        | GgmlType::IQ1_M
        | GgmlType::IQ2_XXS
        | GgmlType::IQ2_XS
        | GgmlType::IQ2_S
        | GgmlType::IQ3_XXS
        | GgmlType::IQ3_S
        | GgmlType::IQ4_XS => GgmlType::IQ4_NL,
        GgmlType::Q2_K | GgmlType::Q3_K | GgmlType::TQ1_0 | GgmlType::TQ2_0 => GgmlType::Q4_0,
        GgmlType::Q4_K => GgmlType::Q5_0,
        GgmlType::Q5_K => GgmlType::Q5_1,
        GgmlType::Q6_K => GgmlType::Q8_0,
        _ => GgmlType::F16,
    };
    if fits(smaller_blocks) {
        smaller_blocks
    } else {
        GgmlType::F16
    }
}

/// Types whose rules are in [`Facts::two_bits`].
const TWO_BITS: &[&str] = &["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"];

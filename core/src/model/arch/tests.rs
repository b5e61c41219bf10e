//! The tables of families.

use super::*;

#[test]
fn tables_name_every_part_at_most_once() {
    for family in FAMILIES {
        // A layer has a feed-forward network or experts.
        let mut seen = [0; Site::IN_LAYER.len()];
        let mut of_experts = [0; Site::IN_LAYER.len()];
        for tensor in family.tensors() {
            match tensor {
                Tensor::Matrix(_, parts) => parts.iter().for_each(|p| seen[*p as usize] += 1),
                Tensor::Experts(_, matrix) => of_experts[*matrix as usize] += 1,
                Tensor::Heads(_, matrix) => seen[*matrix as usize] += 1,
                _ => {}
            }
        }
        let once = |seen: &[i32]| seen.iter().all(|&n| n <= 1);
        assert!(once(&seen) && once(&of_experts), "{}", family.name);
        for site in [Site::AttnQ, Site::AttnOutput, Site::FfnUp, Site::FfnDown] {
            let n = seen[site as usize] + of_experts[site as usize];
            assert!(n >= 1, "{}", family.name);
        }
        let has_router = seen[Site::FfnGateInp as usize] == 1;
        assert_eq!(has_router, family.has_experts());
        let mut seen = [0; Vector::COUNT];
        for tensor in family.tensors() {
            if let Tensor::Vector(_, norm)
            | Tensor::Named(_, norm)
            | Tensor::LayerNorm(_, norm)
            | Tensor::LayerNormAfterFirst(_, norm)
            | Tensor::OutputNormBefore(_, _, norm) = tensor
            {
                seen[*norm as usize] += 1;
            }
        }
        assert!(seen.iter().all(|&n| n <= 1), "{}", family.name);
        let count = |vector: Vector| seen[vector as usize];
        assert_eq!(count(Vector::QueryNorm), count(Vector::KeyNorm));
        assert_eq!(count(Vector::MixerPostNorm), count(Vector::ChannelPostNorm));
        let has_qk_norm = count(Vector::QueryNorm) == 1;
        assert_eq!(
            has_qk_norm,
            family.qk_norm != QkNorm::None,
            "{}",
            family.name
        );
    }
}

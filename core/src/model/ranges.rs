//! Checks that the numbers of a configuration are in range.

use super::config::ModelConfig;
use super::error::{ModelError, Name};
use super::kind::{Channel, Mixer};
use super::shape::{
    Attention, DeltaKeys, DeltaNet, Experts, Latent, Mamba2, QkNorm, Router, SLOPES_MAX,
};

/// Maximum dimension, so that products of two stay far from overflow.
const DIM_MAX: usize = 1 << 24;
/// Maximum experts.
const EXPERTS_MAX: usize = 1024;
/// Maximum rotated dimensions of a head.
const ROT_MAX: usize = 4096;
/// Maximum taps of a short convolution.
const TAPS_MAX: usize = 64;
/// Maximum taps of a convolution before a recurrence.
pub(crate) const SSM_TAPS_MAX: usize = 16;
/// Maximum elements of a head with a state.
const STATE_DIM_MAX: usize = 1 << 12;
/// Maximum length of a value head that is divided by its root mean square.
pub(crate) const HEAD_DIM_NORMED_MAX: usize = 1024;

impl ModelConfig {
    /// Checks that every number is in range. Code that relies on it repeats the check, because the
    /// fields are public.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        let dims = [
            ("embedding_length", self.n_embd),
            ("vocab_size", self.n_vocab),
        ];
        self.check_dims(&dims)?;
        let is_of_a_kind = |index: &u8| usize::from(*index) < self.kinds.len();
        if self.layers.is_empty() || !self.layers.iter().all(is_of_a_kind) {
            return Err(self.fail("block_count", self.layers.len(), "1 to 512"));
        }
        let is_whole = |n: usize| n == 0 || n == self.n_embd_layer;
        for kind in &self.kinds {
            if kind.channel != Channel::None {
                self.check_dims(&[("feed_forward_length", kind.n_ff())])?;
            }
            let all = self.n_embd_layer.saturating_mul(self.n_layer());
            if !is_whole(kind.n_embd_layer) || all > DIM_MAX {
                let key = "embedding_length_per_layer_input";
                return Err(self.fail(key, self.n_embd_layer, "at most 2^24 in all layers"));
            }
            match &kind.mixer {
                Mixer::Attention(shape) => self.check_attention(shape)?,
                Mixer::ShortConv(shape) => {
                    if !(1..=TAPS_MAX).contains(&shape.n_taps) {
                        return Err(self.fail("shortconv.l_cache", shape.n_taps, "1 to 64"));
                    }
                }
                Mixer::DeltaNet(shape) => self.check_delta_net(shape)?,
                Mixer::Mamba2(shape) => self.check_mamba2(shape)?,
                Mixer::None => {}
            }
            if let Channel::Experts(shape) = &kind.channel {
                self.check_experts(shape)?;
                if kind.has_post_norms != shape.has_norms {
                    return Err(ModelError::NotImplemented {
                        what: "a norm behind experts",
                        name: self.architecture.name().into(),
                    });
                }
                // Pending rows would be added by the router's reading and by the mixer's norm at the same time.
                let has_pending = kind.has_post_norms
                    || kind.is_parallel
                    || kind.has_second_norm
                    || kind.has_output_scale
                    || self.norms_replace_stream;
                if shape.routes_input && (has_pending || shape.n_latent > 0) {
                    return Err(ModelError::NotImplemented {
                        what: "a router of a layer's input among such norms",
                        name: self.architecture.name().into(),
                    });
                }
            }
        }
        for rope in &self.ropes {
            if !rope.n_rot.is_multiple_of(2) || rope.n_rot > ROT_MAX {
                return Err(self.fail("rope.dimension_count", rope.n_rot, "even, at most 4096"));
            }
        }
        self.check_keys_of()?;
        self.check_numbers()
    }

    fn fail(&self, key: &str, value: usize, expected: &'static str) -> ModelError {
        #[expect(clippy::cast_precision_loss, reason = "for a message")]
        self.refuse(key, value as f64, expected)
    }

    fn refuse(&self, key: &str, value: f64, expected: &'static str) -> ModelError {
        ModelError::Setting {
            key: Name::format(format_args!("{}.{key}", self.architecture.name())),
            value,
            expected,
        }
    }

    fn check_dims(&self, dims: &[(&str, usize)]) -> Result<(), ModelError> {
        let bad = dims.iter().find(|(_, n)| *n == 0 || *n > DIM_MAX);
        match bad {
            None => Ok(()),
            Some((key, value)) => Err(self.fail(key, *value, "1 to 2^24")),
        }
    }

    fn check_attention(&self, shape: &Attention) -> Result<(), ModelError> {
        self.check_dims(&[
            ("attention.key_length", shape.head_dim_k),
            ("attention.value_length", shape.head_dim_v),
            ("attention.head_count", shape.n_head),
            ("attention.head_count_kv", shape.n_head_kv),
        ])?;
        if !shape.n_head.is_multiple_of(shape.n_head_kv) {
            return Err(self.fail(
                "attention.head_count_kv",
                shape.n_head_kv,
                "a divisor of head_count",
            ));
        }
        let head_dim = shape.head_dim_k.max(shape.head_dim_v);
        if shape.n_head.saturating_mul(head_dim) > DIM_MAX {
            return Err(self.fail(
                "attention.head_count",
                shape.n_head,
                "heads of at most 2^24 in all",
            ));
        }
        if shape.has_gate && (shape.head_dim_k != shape.head_dim_v || shape.qk_norm == QkNorm::Row)
        {
            return Err(ModelError::NotImplemented {
                what: "gates of heads whose keys and values differ in length, or of norms over rows",
                name: self.architecture.name().into(),
            });
        }
        if let Some(rope) = shape.rope {
            let n_rot = self.ropes.get(rope).map_or(usize::MAX, |rope| rope.n_rot);
            if !n_rot.is_multiple_of(2) || n_rot > shape.head_dim_k {
                return Err(self.fail(
                    "rope.dimension_count",
                    n_rot,
                    "even, at most the head's length",
                ));
            }
        }
        self.check_options(shape)?;
        // A window of 0 would leave a query without its own key.
        if shape.window == Some(0) {
            return Err(self.fail("attention.sliding_window", 0, "1 or more"));
        }
        Ok(())
    }

    /// The options of attention other than heads.
    fn check_options(&self, shape: &Attention) -> Result<(), ModelError> {
        let has_slopes = shape.max_alibi_bias != 0.0;
        if has_slopes && shape.n_gqa() > SLOPES_MAX {
            return Err(self.fail(
                "attention.head_count",
                shape.n_head,
                "at most 64 to a KV head",
            ));
        }
        if let Some(latent) = &shape.latent {
            self.check_latent(shape, latent)?;
        }
        if shape.norms_values && shape.head_dim_v > HEAD_DIM_NORMED_MAX {
            return Err(self.fail(
                "attention.value_length",
                shape.head_dim_v,
                "at most 1024 where values have norms",
            ));
        }
        if shape.norms_rotated && shape.qk_norm == QkNorm::Row {
            return Err(ModelError::NotImplemented {
                what: "norms over whole queries behind their rotation",
                name: self.architecture.name().into(),
            });
        }
        if let Some(temperature) = shape.temperature {
            let is_sound = temperature.scale.is_finite() && temperature.length > 0;
            if !is_sound {
                return Err(self.refuse(
                    "attention.temperature_scale",
                    temperature.scale.into(),
                    "finite, with an original context length",
                ));
            }
        }
        Ok(())
    }

    fn check_delta_net(&self, shape: &DeltaNet) -> Result<(), ModelError> {
        self.check_dims(&[
            ("ssm.group_count", shape.n_head_k),
            ("ssm.time_step_rank", shape.n_head_v),
        ])?;
        if !shape.n_head_v.is_multiple_of(shape.n_head_k) {
            return Err(self.fail(
                "ssm.group_count",
                shape.n_head_k,
                "a divisor of time_step_rank",
            ));
        }
        if shape.is_joint && shape.keys != DeltaKeys::Neighbours {
            return Err(ModelError::NotImplemented {
                what: "joint projections of heads that are no neighbours",
                name: self.architecture.name().into(),
            });
        }
        self.check_states(
            shape.n_taps,
            shape.n_head_v,
            shape.head_dim_k,
            shape.head_dim_v,
        )
    }

    fn check_mamba2(&self, shape: &Mamba2) -> Result<(), ModelError> {
        self.check_dims(&[
            ("ssm.group_count", shape.n_group),
            ("ssm.time_step_rank", shape.n_head),
        ])?;
        if !shape.n_head.is_multiple_of(shape.n_group) {
            return Err(self.fail(
                "ssm.group_count",
                shape.n_group,
                "a divisor of time_step_rank",
            ));
        }
        self.check_states(shape.n_taps, shape.n_head, shape.n_state, shape.head_dim)
    }

    /// Taps, and heads with states of `n_key` × `n_value`.
    fn check_states(
        &self,
        n_taps: usize,
        n_head: usize,
        n_key: usize,
        n_value: usize,
    ) -> Result<(), ModelError> {
        let key = "ssm.state_size";
        if !(1..=SSM_TAPS_MAX).contains(&n_taps) {
            return Err(self.fail("ssm.conv_kernel", n_taps, "1 to 16"));
        }
        if !(1..=STATE_DIM_MAX).contains(&n_key) {
            return Err(self.fail(key, n_key, "1 to 4096"));
        }
        let n_inner = n_head.saturating_mul(n_value);
        if !(1..=STATE_DIM_MAX).contains(&n_value) || n_inner > DIM_MAX {
            let expected = "1 to 4096 for each head, 2^24 in all";
            return Err(self.fail("ssm.inner_size", n_inner, expected));
        }
        if n_head.saturating_mul(n_key) > DIM_MAX {
            return Err(self.fail(key, n_key, "heads of at most 2^24 in all"));
        }
        Ok(())
    }

    fn check_latent(&self, shape: &Attention, latent: &Latent) -> Result<(), ModelError> {
        self.check_dims(&[
            ("attention.key_length_mla", latent.head_dim_nope),
            ("rope.dimension_count", latent.head_dim_rope),
            ("attention.value_length_mla", latent.head_dim_v),
        ])?;
        let width = latent.head_dim_nope.max(latent.head_dim_v) + latent.head_dim_rope;
        if latent.q_rank > DIM_MAX || shape.n_head.saturating_mul(width) > DIM_MAX {
            return Err(self.fail("attention.q_lora_rank", latent.q_rank, "at most 2^24"));
        }
        let key = latent.kv_rank + latent.head_dim_rope;
        let is_row = (shape.n_head_kv, shape.head_dim_k, shape.head_dim_v)
            == (1, key, latent.kv_rank)
            && shape.keys_of.is_none();
        if !is_row {
            let expected = "one KV head, of attention.key_length - rope.dimension_count";
            return Err(self.fail("attention.kv_lora_rank", latent.kv_rank, expected));
        }
        Ok(())
    }

    /// Checks that each layer whose keys are read precedes its reader, has the same shape and window, and
    /// has keys of its own.
    fn check_keys_of(&self) -> Result<(), ModelError> {
        for reader in 0..self.n_layer() {
            let Some(shape) = self.kind(reader).attention() else {
                continue;
            };
            let Some(owner) = shape.keys_of else {
                continue;
            };
            let keys = |shape: &Attention| {
                let dims = (shape.head_dim_k, shape.head_dim_v);
                (shape.n_head_kv, dims, shape.window)
            };
            let is_sound = owner < reader
                && self
                    .kind(owner)
                    .attention()
                    .is_some_and(|other| other.keys_of.is_none() && keys(other) == keys(shape));
            if !is_sound {
                return Err(self.fail(
                    "attention.shared_kv_layers",
                    owner,
                    "an earlier layer with keys of the same shape",
                ));
            }
        }
        Ok(())
    }

    fn check_experts(&self, shape: &Experts) -> Result<(), ModelError> {
        if shape.n_expert > EXPERTS_MAX || shape.n_expert == 0 {
            return Err(self.fail("expert_count", shape.n_expert, "1 to 1024"));
        }
        if shape.n_expert_used > shape.n_expert || shape.n_expert_used == 0 {
            return Err(self.fail(
                "expert_used_count",
                shape.n_expert_used,
                "1 to expert_count",
            ));
        }
        if shape.has_norms && shape.shared.is_none() {
            return Err(self.fail("expert_count", shape.n_expert, "0 without a network beside"));
        }
        if shape.n_latent > DIM_MAX || shape.has_norms && shape.n_latent > 0 {
            let expected = "at most 2^24, 0 where norms stand behind experts";
            return Err(self.fail("moe_latent_size", shape.n_latent, expected));
        }
        if let Some(shared) = shape.shared {
            self.check_dims(&[("expert_shared_feed_forward_length", shared.n_ff)])?;
        }
        let Router {
            n_group,
            n_group_used,
            scale,
            ..
        } = shape.router;
        let is_whole = n_group > 0 && shape.n_expert.is_multiple_of(n_group);
        // A group's score is the sum of two.
        if n_group != 1 && !(is_whole && shape.n_expert / n_group > 1) {
            return Err(self.fail("expert_group_count", n_group, "groups of equal size"));
        }
        let n_left = shape.n_expert / n_group * n_group_used;
        if n_group_used == 0 || n_group_used > n_group || n_left < shape.n_expert_used {
            return Err(self.fail(
                "expert_group_used_count",
                n_group_used,
                "groups with expert_used_count experts, at most expert_group_count",
            ));
        }
        if !(scale.is_normal() && scale > 0.0) {
            return Err(self.refuse("expert_weights_scale", scale.into(), "above 0"));
        }
        Ok(())
    }

    /// Checks that every number that is not a count is in range.
    fn check_numbers(&self) -> Result<(), ModelError> {
        let positive = |x: f32| x.is_normal() && x > 0.0;
        let cap = |x: f32| x == 0.0 || positive(x);
        let check = |key: &str, value: f32, is_sound: bool, expected| match is_sound {
            true => Ok(()),
            false => Err(self.refuse(key, value.into(), expected)),
        };
        for (i, rope) in self.ropes.iter().enumerate() {
            let key = ["rope.freq_base", "rope.freq_base_swa"][i.min(1)];
            let is_base = rope.freq_base.is_normal() && rope.freq_base >= 1.0;
            check(key, rope.freq_base, is_base, "at least 1")?;
        }
        let scaling = &self.rope_scaling;
        for (key, value) in [
            ("rope.scaling.factor", scaling.factor),
            ("rope.scaling.attn_factor", scaling.attn_factor),
        ] {
            check(key, value, positive(value), "above 0")?;
        }
        let is_eps = self.norm_eps > 0.0 && self.norm_eps < 1.0;
        let key = "attention.layer_norm_rms_epsilon";
        check(key, self.norm_eps, is_eps, "between 0 and 1")?;
        for shape in self.attentions() {
            let key = "attn_logit_softcapping";
            check(key, shape.soft_cap, cap(shape.soft_cap), "0 or above")?;
            let (key, bias) = ("attention.max_alibi_bias", shape.max_alibi_bias);
            check(key, bias, cap(bias) && bias <= 64.0, "0 to 64")?;
            // It follows from the heads' length.
            let key = "attention.key_length";
            check(key, shape.scale, positive(shape.scale), "a scale above 0")?;
        }
        let key = "final_logit_softcapping";
        let logits = self.logit_soft_cap;
        check(key, logits, cap(logits), "0 or above")?;
        for (key, scale) in [
            ("logit_scale", self.logit_scale),
            ("embedding_scale", self.embedding_scale),
            ("residual_scale", self.residual_scale),
        ] {
            check(key, scale, positive(scale), "a scale above 0")?;
        }
        Ok(())
    }
}

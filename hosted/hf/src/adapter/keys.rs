//! Names of the tensors of a PEFT adapter.
/// The role of a tensor, from its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A or B of a module.
    Half {
        module: String,
        half: Half,
        is_embedding: bool,
    },
    /// The weights of an adapted module itself, which PEFT saves for embeddings.
    Base { module: String },
}

/// Which of the two matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    A,
    B,
}

impl Key {
    /// Parses a name; an error describes a tensor that is not supported.
    pub(super) fn parse(name: &str) -> Result<Self, &'static str> {
        let own = name.strip_prefix("base_model.model.").unwrap_or(name);
        for (marker, half, is_embedding) in [
            (".lora_A", Half::A, false),
            (".lora_B", Half::B, false),
            (".lora_embedding_A", Half::A, true),
            (".lora_embedding_B", Half::B, true),
        ] {
            let Some((module, end)) = own.rsplit_once(marker) else {
                continue;
            };
            // An adapter's name may follow, and `.weight` if it is a module.
            let end = match is_embedding {
                true => Some(end),
                false => end.strip_suffix(".weight"),
            };
            let is_name = |end: &str| match end.strip_prefix('.') {
                Some(name) => !name.is_empty() && !name.contains('.'),
                None => end.is_empty(),
            };
            return match end.is_some_and(is_name) && !module.is_empty() {
                true => Ok(Self::Half {
                    module: module.into(),
                    half,
                    is_embedding,
                }),
                false if own.ends_with(".bias") => {
                    Err("is a bias of an adapter (lora_bias), which is not supported")
                }
                false => Err("has an unknown name"),
            };
        }
        if let Some(module) = own.strip_suffix(".base_layer.weight") {
            let module = module.into();
            return Ok(Self::Base { module });
        }
        let has = |part: &str| own.contains(part);
        Err(match () {
            () if has("lora_magnitude_vector") => "is a magnitude of DoRA, which is not supported",
            () if has("modules_to_save") || has("original_module") => {
                "is part of a module that was trained as a whole (modules_to_save), which is not supported"
            }
            () if has("trainable_tokens") || has("token_adapter") => {
                "has trained rows of the embedding (trainable_token_indices), which is not supported"
            }
            () if has("lora_") => "is an unknown part of an adapter",
            () => {
                "is a whole tensor, not a matrix of an adapter: tensors trained or resized with the adapter are not \
                 supported"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_several_years_are_read() {
        let half = |module: &str, half, is_embedding| {
            let module = module.to_owned();
            Ok(Key::Half {
                module,
                half,
                is_embedding,
            })
        };
        let q = "model.layers.0.self_attn.q_proj";
        let cases = [
            (
                format!("base_model.model.{q}.lora_A.weight"),
                half(q, Half::A, false),
            ),
            (
                format!("base_model.model.{q}.lora_B.default.weight"),
                half(q, Half::B, false),
            ),
            (format!("{q}.lora_B.weight"), half(q, Half::B, false)),
            (
                "base_model.model.model.embed_tokens.lora_embedding_A".into(),
                half("model.embed_tokens", Half::A, true),
            ),
            (
                "base_model.model.model.embed_tokens.lora_embedding_B.mine".into(),
                half("model.embed_tokens", Half::B, true),
            ),
            (
                "base_model.model.lm_head.base_layer.weight".into(),
                Ok(Key::Base {
                    module: "lm_head".into(),
                }),
            ),
        ];
        for (name, expected) in cases {
            assert_eq!(Key::parse(&name), expected, "{name}");
        }
    }

    #[test]
    fn what_is_no_matrix_of_an_adapter_is_said() {
        for (name, expected) in [
            ("q_proj.lora_B.bias", "a bias"),
            ("q_proj.lora_A.a.b.weight", "unknown name"),
            ("q_proj.lora_A", "unknown name"),
            (".lora_A.weight", "unknown name"),
            ("q_proj.lora_magnitude_vector.weight", "DoRA"),
            ("score.modules_to_save.weight", "modules_to_save"),
            ("embed_tokens.trainable_tokens_delta", "trained rows"),
            ("model.norm.weight", "whole tensor"),
            ("q_proj.lora_E", "part of an adapter"),
        ] {
            let error = Key::parse(name).expect_err(name);
            assert!(error.contains(expected), "{name}: {error}");
        }
    }
}

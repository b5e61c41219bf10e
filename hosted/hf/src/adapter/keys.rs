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
    /// A tensor of the model itself: trained as a whole, or saved next to an adapted embedding.
    Whole { tensor: String },
    /// What only a merge can apply.
    Part { module: String, part: Part },
}

/// What a module may have besides its two matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// DoRA's lengths of rows.
    Magnitude,
    /// The bias of B (`lora_bias`).
    Bias,
    /// Trained rows of an embedding (`trainable_token_indices`).
    Rows,
}

impl Part {
    pub(super) const fn told(self) -> &'static str {
        match self {
            Self::Magnitude => "is a magnitude of DoRA",
            Self::Bias => "is a bias of an adapter (lora_bias)",
            Self::Rows => "has trained rows of the embedding (trainable_token_indices)",
        }
    }
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
            if end.is_some_and(is_name) && !module.is_empty() {
                return Ok(Self::Half {
                    module: module.into(),
                    half,
                    is_embedding,
                });
            }
            return match module_of(own, &[".lora_B"], "bias") {
                Some(module) => Ok(Self::part(module, Part::Bias)),
                None => Err("has an unknown name"),
            };
        }
        if let Some(module) = module_of(own, &[".lora_magnitude_vector"], "weight") {
            return Ok(Self::part(module, Part::Magnitude));
        }
        let rows = [
            ".token_adapter.trainable_tokens_delta",
            ".trainable_tokens_delta",
        ];
        if let Some(module) = module_of(own, &rows, "weight") {
            return Ok(Self::part(module, Part::Rows));
        }
        match own.contains("lora_")
            || own.contains("original_module")
            || own.contains("trainable_tokens_")
        {
            true => Err("is an unknown part of an adapter"),
            false => Ok(Self::Whole {
                tensor: model_tensor(own),
            }),
        }
    }

    fn part(module: &str, part: Part) -> Self {
        let module = module.into();
        Self::Part { module, part }
    }
}

/// The module of `MODULE MARKER [.ADAPTER] [.END]`.
fn module_of<'n>(name: &'n str, markers: &[&str], end: &str) -> Option<&'n str> {
    let (module, rest) = markers.iter().find_map(|marker| name.rsplit_once(marker))?;
    let rest = rest
        .strip_suffix(end)
        .and_then(|rest| rest.strip_suffix('.'))
        .unwrap_or(rest);
    let is_name = rest.is_empty() || rest.starts_with('.') && !rest[1..].contains('.');
    let is_bias = end != "bias" || name.ends_with(".bias");
    (is_name && is_bias && !module.is_empty()).then_some(module)
}

/// A tensor's name without PEFT's wrappers: `lm_head.modules_to_save.default.weight` is the model's `lm_head.weight`.
fn model_tensor(name: &str) -> String {
    let mut parts: Vec<&str> = name.split('.').collect();
    if let Some(at) = parts.iter().position(|part| *part == "modules_to_save") {
        // An adapter's name may follow.
        let n = (parts.len() - at).saturating_sub(1).min(2);
        parts.drain(at..at + n);
    }
    parts.retain(|part| !matches!(*part, "base_layer" | "token_adapter"));
    parts.join(".")
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
        let whole = |tensor: &str| Key::Whole {
            tensor: tensor.into(),
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
                Ok(whole("lm_head.weight")),
            ),
            (
                "base_model.model.lm_head.modules_to_save.weight".into(),
                Ok(whole("lm_head.weight")),
            ),
            (
                "base_model.model.score.modules_to_save.default.dense.weight".into(),
                Ok(whole("score.dense.weight")),
            ),
            (
                format!("base_model.model.{q}.base_layer.bias"),
                Ok(whole("model.layers.0.self_attn.q_proj.bias")),
            ),
            (
                format!("{q}.lora_B.default.bias"),
                Ok(Key::part(q, Part::Bias)),
            ),
            (
                format!("{q}.lora_magnitude_vector"),
                Ok(Key::part(q, Part::Magnitude)),
            ),
            (
                format!("{q}.lora_magnitude_vector.default.weight"),
                Ok(Key::part(q, Part::Magnitude)),
            ),
            (
                "model.embed_tokens.token_adapter.trainable_tokens_delta".into(),
                Ok(Key::part("model.embed_tokens", Part::Rows)),
            ),
        ];
        for (name, expected) in cases {
            assert_eq!(Key::parse(&name), expected, "{name}");
        }
    }

    #[test]
    fn what_is_no_matrix_of_an_adapter_is_said() {
        for (name, expected) in [
            ("q_proj.lora_A.a.b.weight", "unknown name"),
            ("q_proj.lora_A", "unknown name"),
            (".lora_A.weight", "unknown name"),
            ("q_proj.lora_A.bias", "unknown name"),
            (
                "q_proj.lora_magnitude_vector.a.b.weight",
                "part of an adapter",
            ),
            ("score.original_module.weight", "part of an adapter"),
            (
                "embed_tokens.token_adapter.trainable_tokens_original",
                "part of an adapter",
            ),
            ("q_proj.lora_E", "part of an adapter"),
        ] {
            let error = Key::parse(name).expect_err(name);
            assert!(error.contains(expected), "{name}: {error}");
        }
    }
}

//! Which matrices of a model are adapted, with which rank and scale.

use super::TrainError;
use crate::config::{AdapterSettings, TargetModules};
use regex_lite::Regex;
use sluice::training::TrainedMatrix;
use sluice_core::model::{Channel, Mixer, ModelConfig, Site};

/// The matrices that can be adapted: their names in Transformers' models, and in GGUF files.
const SITES: [(Site, &str, &str); 7] = [
    (Site::AttnQ, "self_attn.q_proj", "attn_q"),
    (Site::AttnK, "self_attn.k_proj", "attn_k"),
    (Site::AttnV, "self_attn.v_proj", "attn_v"),
    (Site::AttnOutput, "self_attn.o_proj", "attn_output"),
    (Site::FfnGate, "mlp.gate_proj", "ffn_gate"),
    (Site::FfnUp, "mlp.up_proj", "ffn_up"),
    (Site::FfnDown, "mlp.down_proj", "ffn_down"),
];

/// A matrix that is adapted, and the name of its module.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) matrix: TrainedMatrix,
    /// `model.layers.0.self_attn.q_proj`
    pub(super) module: String,
    /// `blk.0.attn_q.weight`
    pub(super) tensor: String,
}

/// The matrices that settings name, by layer and site.
///
/// # Errors
/// [`TrainError::Targets`]: no matrix has such a name; a layer that the model does not have.
pub(super) fn targets(
    settings: &AdapterSettings,
    model: &ModelConfig,
) -> Result<Vec<Target>, TrainError> {
    let n_layer = model.n_layer();
    if let Some(layer) = settings
        .layers
        .iter()
        .flatten()
        .find(|layer| **layer >= n_layer)
    {
        let what = format!("layers_to_transform has layer {layer}, and the model has {n_layer}");
        return Err(TrainError::Targets(what));
    }
    let names = Names::new(&settings.target_modules)?;
    let mut targets = Vec::new();
    let mut used = vec![false; names.n()];
    for layer in 0..n_layer {
        let is_adapted = settings
            .layers
            .as_ref()
            .is_none_or(|layers| layers.contains(&layer));
        for (site, name, tensor) in SITES {
            let module = format!("model.layers.{layer}.{name}");
            if !has(model, layer, site) || !is_adapted || !names.has(&module, &mut used) {
                continue;
            }
            let rank = find(&settings.rank_pattern, &module)?.unwrap_or(settings.r);
            let alpha = find(&settings.alpha_pattern, &module)?.unwrap_or(settings.alpha);
            targets.push(Target {
                matrix: TrainedMatrix {
                    layer,
                    site,
                    rank,
                    scale: scale(alpha, rank, settings.use_rslora),
                },
                module,
                tensor: format!("blk.{layer}.{tensor}.weight"),
            });
        }
    }
    let unknown = names.list().iter().zip(&used).find(|(_, used)| !**used);
    match (unknown, targets.is_empty()) {
        (Some((name, _)), _) => Err(TrainError::Targets(format!(
            "target_modules names {name}, which no matrix is called that can be adapted: {}",
            known()
        ))),
        (None, true) => Err(TrainError::Targets(format!(
            "target_modules matches no matrix; those that can be adapted: {}",
            known()
        ))),
        (None, false) => Ok(targets),
    }
}

fn known() -> String {
    let last = |(_, name, _): &(Site, &'static str, &str)| name.rsplit('.').next().unwrap_or(name);
    SITES.iter().map(last).collect::<Vec<_>>().join(", ")
}

/// α / r, or α / √r.
fn scale(alpha: f64, rank: usize, is_rank_stabilised: bool) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "ranks are small")]
    let rank = rank as f64;
    let scale = alpha
        / if is_rank_stabilised {
            libm::sqrt(rank)
        } else {
            rank
        };
    #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
    let scale = scale as f32;
    scale
}

/// Whether a layer has a matrix.
fn has(model: &ModelConfig, layer: usize, site: Site) -> bool {
    let kind = model.kind(layer);
    match site {
        Site::FfnGate => matches!(&kind.channel, Channel::Ffn(shape) if shape.is_gated),
        Site::FfnUp | Site::FfnDown => matches!(kind.channel, Channel::Ffn(_)),
        _ => matches!(kind.mixer, Mixer::Attention(_)),
    }
}

/// The value of the first pattern that matches the end of a module's name, after a dot, as PEFT reads them.
fn find<T: Copy>(patterns: &[(String, T)], module: &str) -> Result<Option<T>, TrainError> {
    for (pattern, value) in patterns {
        if regex(&format!(r"(?:.*\.)?(?:{pattern})$"))?.is_match(module) {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

fn regex(text: &str) -> Result<Regex, TrainError> {
    Regex::new(&format!("^{text}")).map_err(|error| TrainError::Targets(error.to_string()))
}

/// How modules are named.
enum Names<'a> {
    All,
    List(&'a [String]),
    Pattern(Regex),
}

impl<'a> Names<'a> {
    fn new(modules: &'a TargetModules) -> Result<Self, TrainError> {
        Ok(match modules {
            TargetModules::AllLinear => Self::All,
            TargetModules::Names(names) => Self::List(names),
            TargetModules::Pattern(pattern) => Self::Pattern(regex(&format!("(?:{pattern})$"))?),
        })
    }

    const fn list(&self) -> &'a [String] {
        match self {
            Self::List(names) => names,
            Self::All | Self::Pattern(_) => &[],
        }
    }

    const fn n(&self) -> usize {
        self.list().len()
    }

    /// Whether it names a module; marks the name that does.
    fn has(&self, module: &str, used: &mut [bool]) -> bool {
        match self {
            Self::All => true,
            Self::Pattern(pattern) => pattern.is_match(module),
            Self::List(names) => {
                let ends = |name: &String| module == name || module.ends_with(&format!(".{name}"));
                let found = names.iter().position(ends);
                if let Some(i) = found {
                    used[i] = true;
                }
                found.is_some()
            }
        }
    }
}

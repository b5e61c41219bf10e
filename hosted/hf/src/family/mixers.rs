//! The mixers of layers, as `layer_types` lists them.

use crate::HfError;
use crate::config::Config;

/// How a layer mixes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mixer {
    /// Attention over the whole text.
    Full,
    /// Attention over a window.
    Window,
    /// A convolution, or a state carried from token to token.
    Recurrent,
    /// Nothing: the layer is a feed-forward network.
    Feed,
}

/// The mixers that `layer_types` lists, all of them attention; empty if it is absent.
pub(super) fn listed(config: &Config, n_layer: u32) -> Result<Vec<Mixer>, HfError> {
    let mixers = with_states(config, n_layer)?;
    if mixers.contains(&Mixer::Recurrent) {
        let what = "has layers without attention, which this architecture does not support";
        return Err(config.error(&["layer_types"], what));
    }
    Ok(mixers)
}

/// The mixers that `layer_types` lists; empty if it is absent.
pub(super) fn with_states(config: &Config, n_layer: u32) -> Result<Vec<Mixer>, HfError> {
    let Some(types) = config.texts("layer_types")? else {
        return Ok(Vec::new());
    };
    let mixers = types.iter().map(|&ty| match ty {
        "full_attention" | "attention" => Ok(Mixer::Full),
        "sliding_attention" => Ok(Mixer::Window),
        "linear_attention" | "mamba" | "conv" => Ok(Mixer::Recurrent),
        other => {
            let what = format!("has the unknown value {other:?}");
            Err(config.error(&["layer_types"], &what))
        }
    });
    let mixers = mixers.collect::<Result<Vec<_>, _>>()?;
    check_len(config, "layer_types", mixers.len(), n_layer)?;
    Ok(mixers)
}

/// The mixers that `layer_types` lists, or else full attention in every `period`th layer.
pub(super) fn listed_or_every(
    period: u32,
    config: &Config,
    n_layer: u32,
) -> Result<Vec<Mixer>, HfError> {
    let mut mixers = listed(config, n_layer)?;
    if mixers.is_empty() {
        mixers = all_but_every(period, n_layer);
    }
    Ok(mixers)
}

/// The mixers that `layer_types` lists, which must be full attention in every `period`th layer: the file cannot say
/// otherwise.
pub(super) fn only_every(
    period: u32,
    config: &Config,
    n_layer: u32,
) -> Result<Vec<Mixer>, HfError> {
    let mixers = listed(config, n_layer)?;
    if mixers.is_empty() || mixers == all_but_every(period, n_layer) {
        return Ok(mixers);
    }
    let what = format!(
        "is not full attention in one layer of {period}, as this architecture in GGUF implies"
    );
    Err(config.error(&["layer_types"], &what))
}

/// Whether a list has an entry for each layer.
pub(super) fn check_len(
    config: &Config,
    key: &str,
    len: usize,
    n_layer: u32,
) -> Result<(), HfError> {
    if len == n_layer as usize {
        return Ok(());
    }
    let what = format!("has {len} entries for {n_layer} layers");
    Err(config.error(&[key], &what))
}

/// Every `period`th layer attends to the whole text, the others to a window.
pub(super) fn all_but_every(period: u32, n_layer: u32) -> Vec<Mixer> {
    let layers = (1..=n_layer).map(|layer| match layer % period {
        0 => Mixer::Full,
        _ => Mixer::Window,
    });
    layers.collect()
}

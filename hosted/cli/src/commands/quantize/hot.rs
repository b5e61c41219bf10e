//! `sluice quantize --hot`: neurons in the order of their activity.

use super::QuantizeArgs;
use crate::ui::output::note;
use anyhow::{Context as _, bail};
use core::str::FromStr;
use sluice::core::gguf::Gguf;
use sluice::core::model::ModelConfig;
use sluice::file::ModelFile;
use sluice::neurons::NeuronOrder;
use sluice_make::quantize::{Hot, ImportanceMatrix};

/// A share of all neurons, above 0 and below 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share(f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = match text.strip_suffix('%') {
            Some(percent) => percent.parse().map(|percent: f64| percent / 100.0),
            None => text.parse(),
        };
        let share = share.ok().filter(|share| *share > 0.0 && *share < 1.0);
        share
            .map(Self)
            .ok_or_else(|| "expected a share between 0 and 1, such as 0.2 or 20%".into())
    }
}

/// The order that the flags ask for.
pub(super) fn ordered(
    args: &QuantizeArgs,
    file: &ModelFile,
    gguf: &Gguf<'_>,
) -> anyhow::Result<Option<Hot>> {
    let (Some(Share(share)), Some(profile)) = (args.hot, &args.profile) else {
        return Ok(None);
    };
    let profile = ImportanceMatrix::open(profile)?;
    let hot = Hot::new(gguf, &profile, share).with_context(|| file.name().to_owned())?;
    let (n, n_hot) = hot.order().n_neurons();
    let counts = hot.order().hot_counts();
    let least = counts.iter().min().copied().unwrap_or(0);
    let most = counts.iter().max().copied().unwrap_or(0);
    note(format_args!(
        "{n_hot} of {n} neurons are hot, {least} to {most} a layer: {:.1}% of those that were active in {}",
        100.0 * hot.hot_activity(),
        profile.file
    ));
    let density = hot.density();
    if density > DENSE {
        note(format_args!(
            "warning: {:.1}% of the neurons were active for each token: this model gains nothing from the order",
            100.0 * density
        ));
    }
    Ok(Some(hot))
}

/// Checks that an importance matrix was collected on a file with this order of neurons.
pub(super) fn check_order(
    importance: &ImportanceMatrix,
    file: &ModelFile,
    gguf: &Gguf<'_>,
) -> anyhow::Result<()> {
    // Only models that run have an order.
    let order = match ModelConfig::from_gguf(gguf) {
        Ok(config) => NeuronOrder::of(gguf, &config).with_context(|| file.name().to_owned())?,
        Err(_) => None,
    };
    if importance.neuron_order != order.map(|order| order.digest()) {
        bail!(
            "{}: its model has another order of neurons than {}: collect it on that file",
            importance.file,
            file.name()
        );
    }
    Ok(())
}

/// Above this share of active neurons hardly one is inactive.
const DENSE: f64 = 0.95;

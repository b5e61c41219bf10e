//! Who takes the pairs of an adapter as they are read.
#![forbid(unsafe_code)]

use super::LoraError;
use super::experts::Order;
use sluice::adapter::{Adapter, AdapterFile, Factors, Packing, Precision};
use sluice_core::model::ModelConfig;
use std::path::Path;

/// What a file says of its adapter as a whole.
#[derive(Debug, Default)]
pub(super) struct About {
    /// `general.architecture` of the models that it is for; empty if the file does not say.
    pub(super) architecture: String,
    pub(super) base_model: Option<String>,
}

/// Takes an adapter pair by pair.
pub(super) trait Taker {
    /// Before the first pair.
    fn begin(&mut self, about: About) -> Result<(), LoraError>;

    /// A pair. `order` is where it stands in the whole: they come in any order.
    fn take(&mut self, order: Order, factors: &Factors) -> Result<(), LoraError>;
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Collected {
    about: About,
    pairs: Vec<(Order, Factors)>,
}

impl Collected {
    /// In their order.
    pub(super) fn into_file(mut self, path: &Path, warnings: Vec<String>) -> AdapterFile {
        self.pairs.sort_by_key(|(order, _)| *order);
        AdapterFile {
            path: path.display().to_string(),
            architecture: self.about.architecture,
            base_model: self.about.base_model,
            factors: self.pairs.into_iter().map(|(_, own)| own).collect(),
            warnings,
        }
    }
}

impl Taker for Collected {
    fn begin(&mut self, about: About) -> Result<(), LoraError> {
        self.about = about;
        Ok(())
    }

    fn take(&mut self, order: Order, factors: &Factors) -> Result<(), LoraError> {
        self.pairs.push((order, factors.clone()));
        Ok(())
    }
}

/// Packed for a model.
#[derive(Debug)]
pub(super) struct Packed<'m> {
    config: &'m ModelConfig,
    path: String,
    precision: Precision,
    /// Since the adapter has begun.
    packing: Option<Packing<'m>>,
}

impl<'m> Packed<'m> {
    pub(super) fn new(config: &'m ModelConfig, path: &Path, precision: Precision) -> Self {
        Self {
            config,
            path: path.display().to_string(),
            precision,
            packing: None,
        }
    }

    pub(super) fn finish(self) -> Result<Adapter, LoraError> {
        let packing = self.packing.expect("every file begins its adapter");
        Ok(packing.finish()?)
    }
}

impl Taker for Packed<'_> {
    fn begin(&mut self, about: About) -> Result<(), LoraError> {
        let about = about.architecture;
        let packing = Packing::new(self.config, &self.path, &about, self.precision)?;
        self.packing = Some(packing);
        Ok(())
    }

    fn take(&mut self, _: Order, factors: &Factors) -> Result<(), LoraError> {
        let packing = self.packing.as_mut();
        Ok(packing.expect("it has begun").add(factors)?)
    }
}

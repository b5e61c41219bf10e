//! Consumers of an adapter's pairs as they are read.
#![forbid(unsafe_code)]

use super::LoraError;
use super::experts::Order;
use sluice::adapter::{Adapter, AdapterFile, Factors, Packing, Precision};
use sluice_core::model::ModelConfig;
use std::path::Path;

/// Information about an adapter as a whole.
#[derive(Debug, Default)]
pub(super) struct About {
    /// `general.architecture` of the models that it is for; empty if unknown.
    pub(super) architecture: String,
    pub(super) base_model: Option<String>,
}

/// Consumes an adapter pair by pair.
pub(super) trait Taker {
    /// Called before the first pair.
    fn begin(&mut self, about: About) -> Result<(), LoraError>;

    /// Takes a pair. `order` is its position in the whole: pairs may arrive in any order.
    fn take(&mut self, order: Order, factors: &Factors) -> Result<(), LoraError>;
}

/// Collects all pairs.
#[derive(Debug, Default)]
pub(super) struct Collected {
    about: About,
    pairs: Vec<(Order, Factors)>,
}

impl Collected {
    /// The pairs, sorted by position.
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

/// Packs the pairs for a model.
#[derive(Debug)]
pub(super) struct Packed<'m> {
    config: &'m ModelConfig,
    path: String,
    precision: Precision,
    /// Set by `begin`.
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

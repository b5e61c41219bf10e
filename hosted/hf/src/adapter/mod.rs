//! LoRA adapters of all formats: PEFT's folders here, others by [`sluice::adapter`].
//!
//! PEFT uses Hugging Face's names and row orders; they are converted as `sluice convert` converts the model's weights.
//! That needs the model's sizes, from its `config.json` or from its GGUF file.
//!
//! A setting in a file is honoured or refused by name; an unknown one that does not change the computation causes a
//! warning.

mod config;
mod copies;
mod edits;
mod experts;
mod hints;
mod keys;
mod merge_config;
mod peft;
mod torch;
mod turn;
mod whole;

pub use edits::{Edit, MergeAdapter, TensorEdit};
pub use hints::BaseHints;
pub use merge_config::AdapterStart;
pub use turn::Pair;
pub use whole::WholeTensor;

use sluice::adapter::{
    AdapterFile, AdapterFormat, AdapterLoadError, AdapterOrigin, Factors, LoadedAdapter, Packing,
    PairOrder, PairSink, Precision, read_pairs,
};
use sluice::file::ModelFile;
use sluice::model::ModelSource;
use sluice::neurons::NeuronOrder;
use std::path::Path;

/// Reads an adapter as [`read()`] does and packs it for `model`, one pair of matrices at a time, which takes less
/// memory and time. Also returns warnings about settings that have no effect, a sentence each.
///
/// # Errors
/// [`AdapterLoadError`]: it cannot be read, or does not fit the model.
pub fn load(
    path: &Path,
    base: Option<&Path>,
    model: &ModelSource,
    precision: Precision,
) -> Result<(LoadedAdapter, Vec<String>), AdapterLoadError> {
    let order = NeuronOrder::of(model.gguf(), model.config());
    let order =
        order.map_err(|error| AdapterLoadError::key(model.name(), error.key, error.what))?;
    let packing = Packing::new(model.config(), &path.display().to_string(), precision);
    let mut packing = packing.ordered(order);
    let warnings = read_into(path, base, Some(model.file()), &mut packing)?;
    Ok((packing.finish()?, warnings))
}

/// Reads an adapter: a PEFT folder, a GGUF file or an INFQ directory. `base` is the folder of the model that it is for,
/// `model` the model's GGUF file; a PEFT folder needs one of them, unless it names a folder itself.
///
/// # Errors
/// [`AdapterLoadError`], with the file and the tensor.
pub fn read(
    path: &Path,
    base: Option<&Path>,
    model: Option<&ModelFile>,
) -> Result<AdapterFile, AdapterLoadError> {
    let mut all = Collected::default();
    let warnings = read_into(path, base, model, &mut all)?;
    Ok(all.file(path, warnings))
}

/// Reads an adapter as [`read()`] does, with everything that only a merge into `model` can apply: tensors trained as a
/// whole, biases, DoRA's magnitudes, rows of embeddings, and what PiSSA and OLoRA took out of the weights.
///
/// # Errors
/// [`AdapterLoadError`], with the file and the tensor.
pub fn read_to_merge(
    path: &Path,
    base: Option<&Path>,
    model: &ModelFile,
) -> Result<MergeAdapter, AdapterLoadError> {
    let mut all = Collected::default();
    let rest = match AdapterFormat::of(path)? {
        AdapterFormat::Peft => peft::read(path, base, Some(model), true, &mut all)?,
        _ => peft::Rest {
            warnings: read_pairs(path, &mut all)?,
            ..peft::Rest::default()
        },
    };
    Ok(MergeAdapter {
        file: all.file(path, rest.warnings),
        edits: rest.edits,
        is_tying: rest.is_tying,
    })
}

/// Reads a PEFT folder as it is, with Hugging Face's tensor names and row order. Use it to inspect an adapter whose
/// model is not available; an engine cannot run it.
///
/// # Errors
/// [`AdapterLoadError`].
pub fn read_as_named(path: &Path) -> Result<AdapterFile, AdapterLoadError> {
    match AdapterFormat::of(path)? {
        AdapterFormat::Peft => peft::read_as_named(path),
        _ => read(path, None, None),
    }
}

/// Passes the pairs of an adapter to `sink`; returns warnings.
fn read_into(
    path: &Path,
    base: Option<&Path>,
    model: Option<&ModelFile>,
    sink: &mut dyn PairSink,
) -> Result<Vec<String>, AdapterLoadError> {
    match AdapterFormat::of(path)? {
        AdapterFormat::Peft => Ok(peft::read(path, base, model, false, sink)?.warnings),
        _ => read_pairs(path, sink),
    }
}

/// All pairs of an adapter.
#[derive(Default)]
struct Collected {
    origin: AdapterOrigin,
    pairs: Vec<(PairOrder, Factors)>,
}

impl Collected {
    fn file(mut self, path: &Path, warnings: Vec<String>) -> AdapterFile {
        self.pairs.sort_by_key(|(order, _)| *order);
        AdapterFile {
            path: path.display().to_string(),
            architecture: self.origin.architecture,
            base_model: self.origin.base_model,
            factors: self.pairs.into_iter().map(|(_, own)| own).collect(),
            warnings,
        }
    }
}

impl PairSink for Collected {
    fn begin(&mut self, origin: AdapterOrigin) -> Result<(), AdapterLoadError> {
        self.origin = origin;
        Ok(())
    }

    fn take(&mut self, order: PairOrder, factors: &Factors) -> Result<(), AdapterLoadError> {
        self.pairs.push((order, factors.clone()));
        Ok(())
    }
}

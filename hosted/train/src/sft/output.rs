//! The files of adapters and checkpoints.

use super::Loop;
use super::record::Record;
use crate::checkpoint::Checkpoint;
use crate::run::TrainError;
use sluice::adapter::{AdapterFile, AdapterLoadError, Factors};
use sluice::file::{LoadMode, ModelFile, OutputFile};
use sluice_make::convert::FloatType;
use sluice_make::lora::{
    GgufOptions, InfqOptions, LoraError, OUTLIER_THRESHOLD, PeftOptions, write_gguf, write_infq,
    write_peft,
};
use std::path::{Path, PathBuf};

/// The adapter as files hold it.
fn file(run: &Loop<'_>) -> AdapterFile {
    let values = &run.factors.values;
    let pairs = run.factors.matrices().zip(&run.targets);
    let factors = pairs.map(|((matrix, [a, b], _), target)| Factors {
        tensor: target.tensor.clone(),
        part: None,
        rank: matrix.rank,
        a: values[a].to_vec(),
        b: values[b].to_vec(),
        scale: matrix.scale,
    });
    AdapterFile {
        path: run.config.model.output_dir.display().to_string(),
        architecture: run.model.config().architecture.name().to_owned(),
        base_model: Some(run.config.model.path.display().to_string()),
        factors: factors.collect(),
        warnings: Vec::new(),
    }
}

fn model_file(run: &Loop<'_>) -> Result<ModelFile, LoraError> {
    let model = ModelFile::open(&run.config.model.path, LoadMode::Map);
    model.map_err(|error| AdapterLoadError::from(error).into())
}

const fn peft(model: &ModelFile) -> PeftOptions<'_> {
    PeftOptions {
        float: FloatType::F32,
        base: None,
        model: Some(model),
        overwrite: true,
    }
}

/// Writes the adapter's folder as PEFT saves it, and the other formats that the settings name.
///
/// # Errors
/// [`TrainError::Write`].
pub(super) fn write(run: &Loop<'_>) -> Result<(), TrainError> {
    let (model, adapter, folder) = (model_file(run)?, file(run), &run.config.model.output_dir);
    write_peft(&adapter, peft(&model), folder)?;
    for format in &run.config.model.export {
        match &**format {
            "gguf" => {
                let options = GgufOptions {
                    float: FloatType::F32,
                    matrices: None,
                    name: None,
                };
                let output = OutputFile::create(&folder.join("adapter.gguf"), true);
                write_gguf(&adapter, options, output.map_err(LoraError::from)?)?;
            }
            _ => {
                let options = InfqOptions {
                    name: "adapter",
                    is_int4: false,
                    outlier_threshold: OUTLIER_THRESHOLD,
                    overwrite: true,
                };
                write_infq(&adapter, options, &folder.join("infq"))?;
            }
        }
    }
    Ok(())
}

/// Writes a checkpoint, and removes those that are too many. Returns its folder.
///
/// # Errors
/// [`TrainError::Checkpoint`].
pub(super) fn with_checkpoint(
    run: &Loop<'_>,
    record: &mut Record<'_>,
) -> Result<PathBuf, TrainError> {
    let (model, adapter) = (model_file(run)?, file(run));
    let state = record.checkpoint_state();
    let path = record.folder.save(&Checkpoint {
        adapter: &adapter,
        peft: peft(&model),
        optimizer: &run.optimizer,
        state: &state,
        identity: record.identity,
    })?;
    let best = record.state.best.as_ref();
    let best = best.and_then(|best| best.checkpoint.as_deref());
    record
        .folder
        .prune(run.config.checkpoints.total_limit, best)?;
    record.draw()?;
    Ok(path)
}

/// Reads the values of an adapter of the same matrices and ranks.
///
/// # Errors
/// [`TrainError::Start`]: it has other matrices, ranks or scales.
pub(super) fn read(run: &mut Loop<'_>, path: &Path) -> Result<(), TrainError> {
    let model = model_file(run)?;
    let adapter = sluice_hf::adapter::read(path, None, Some(&model)).map_err(LoraError::from)?;
    let other = |what: String| TrainError::Start {
        path: path.to_path_buf(),
        what,
    };
    let n = run.targets.len();
    if adapter.factors.len() != n {
        let found = adapter.factors.len();
        return Err(other(format!(
            "has {found} adapted matrices, and the run {n}"
        )));
    }
    let places: Vec<_> = run.factors.matrices().collect();
    for ((matrix, [a, b], _), target) in places.into_iter().zip(&run.targets) {
        let tensor = &target.tensor;
        let found = adapter
            .factors
            .iter()
            .find(|factors| factors.tensor == *tensor);
        let found = found.ok_or_else(|| other(format!("does not adapt {}", target.module)))?;
        if found.rank != matrix.rank {
            let (found, rank) = (found.rank, matrix.rank);
            return Err(other(format!(
                "has rank {found} for {}, and the run {rank}",
                target.module
            )));
        }
        if found.scale.to_bits() != matrix.scale.to_bits() {
            let (found, scale) = (found.scale, matrix.scale);
            return Err(other(format!(
                "has scale {found} for {}, and the run {scale}: set lora_alpha alike",
                target.module
            )));
        }
        run.factors.values[a].copy_from_slice(&found.a);
        run.factors.values[b].copy_from_slice(&found.b);
    }
    Ok(())
}

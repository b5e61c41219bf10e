//! `sluice sparsify --predictor`: makes a predictor of active neurons.

use super::SparsifyArgs;
use crate::flags::reading::Reading;
use crate::outcome::Ending;
use crate::ui::output::{TextOutput, note};
use crate::ui::progress::WorkBar;
use core::fmt::Write as _;
use sluice::evaluate::EvaluateError;
use sluice::file::OutputFile;
use sluice::sparse::predictor_beside;
use sluice_make::predictor::{
    LayerOutcome, PredictorError, PredictorKind, PredictorOptions, TrainedPredictor, train,
};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    kind: PredictorKind,
    /// 0 for the default.
    rank: usize,
}

/// A kind of predictor and its rank, as in `ridge:128`.
pub(super) fn parse(text: &str) -> Result<Asked, String> {
    let (name, rank) = match text.split_once(':') {
        Some((name, rank)) => (name, Some(rank)),
        None => (text, None),
    };
    let kind = PredictorKind::ALL
        .into_iter()
        .find(|kind| kind.name() == name);
    let kind = kind.ok_or_else(|| format!("expected svd, ridge or sign, found {name:?}"))?;
    let rank = match rank {
        None => 0,
        Some(_) if kind == PredictorKind::Sign => return Err("sign has no rank".to_owned()),
        Some(rank) => {
            let rank = rank
                .parse()
                .ok()
                .filter(|rank| (1..=1 << 16).contains(rank));
            rank.ok_or_else(|| "expected a rank from 1 to 65536".to_owned())?
        }
    };
    Ok(Asked { kind, rank })
}

pub(super) fn make(
    args: &SparsifyArgs,
    asked: Asked,
    reading: &mut Reading,
) -> anyhow::Result<Ending> {
    let model = reading.session.model().clone();
    let path = args.output.clone();
    let path = path.unwrap_or_else(|| predictor_beside(model.name().as_ref()));
    // Before the work, so that it is not in vain.
    let output = OutputFile::create_model(&path, args.overwrite, *b"GGUF")?;
    #[expect(clippy::cast_possible_truncation, reason = "a share")]
    let options = PredictorOptions {
        kind: asked.kind,
        rank: asked.rank,
        recall: args.recall.unwrap_or(RECALL),
        density: args.density.map(|share| share as f32),
        n_threads: reading.session.team().count(),
    };
    let chunks = reading.chunks.slices();
    let mut bar: Option<WorkBar> = None;
    let progress = |done: usize, total: usize| {
        let bar = bar.get_or_insert_with(|| WorkBar::new("training", total as u64));
        bar.update(done as u64);
    };
    let trained = match train(&mut reading.session, &chunks, &options, progress) {
        Err(PredictorError::Read(EvaluateError::Stopped)) => {
            let path = path.display();
            note(format_args!("interrupted; {path} was not written"));
            return Ok(Ending::Interrupted);
        }
        result => result?,
    };
    let fingerprint = model.calibrated_fingerprint()?.to_string();
    TextOutput::new().write(&table(&trained)?)?;
    let written = trained.write(&options, &fingerprint, output);
    let dense: Vec<String> = (0..)
        .zip(&trained.layers)
        .filter(|(_, layer)| layer.trained.is_none() && layer.measured.is_some())
        .map(|(i, _): (usize, _)| i.to_string())
        .collect();
    if !dense.is_empty() {
        note(format_args!(
            "dense, because their predictors miss a recall of {} or save nothing: layers {}",
            options.recall,
            dense.join(", ")
        ));
    }
    written?;
    note(format_args!(
        "{}: {} of {} layers, from {} chunks of {} tokens",
        path.display(),
        trained
            .layers
            .iter()
            .filter(|layer| layer.trained.is_some())
            .count(),
        trained.layers.len(),
        chunks.len(),
        reading.chunks.len
    ));
    Ok(Ending::Done)
}

/// A line for each layer.
fn table(trained: &TrainedPredictor) -> Result<String, core::fmt::Error> {
    let mut table = format!(
        "{:>5} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        "layer", "active", "chosen", "recall", "energy", "error"
    );
    for (i, LayerOutcome { trained, measured }) in trained.layers.iter().enumerate() {
        let Some(measured) = measured else {
            writeln!(table, "{i:>5}  no dense network")?;
            continue;
        };
        let kind = match trained {
            None => "  left dense",
            Some(layer) if layer.is_refined => "  refined",
            Some(_) => "",
        };
        writeln!(
            table,
            "{i:>5} {:>7.1}% {:>7.1}% {:>8.4} {:>8.4} {:>7.2}%{kind}",
            100.0 * measured.active,
            100.0 * measured.selected,
            measured.recall,
            measured.energy_recall,
            100.0 * measured.output_error
        )?;
    }
    Ok(table)
}

/// The recall that a layer's predictor has to reach.
const RECALL: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_ranks_are_read() {
        let asked = |kind, rank| Ok(Asked { kind, rank });
        assert_eq!(parse("ridge"), asked(PredictorKind::Ridge, 0));
        assert_eq!(parse("svd:128"), asked(PredictorKind::Svd, 128));
        for (text, part) in [
            ("pca", "expected svd, ridge or sign, found \"pca\""),
            ("sign:32", "sign has no rank"),
            ("svd:0", "expected a rank from 1 to 65536"),
            ("svd:x", "expected a rank"),
        ] {
            assert!(
                parse(text).is_err_and(|error| error.contains(part)),
                "{text}"
            );
        }
    }
}

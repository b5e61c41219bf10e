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
    EXPERT_ROWS_MIN, NetworkOutcome, PredictorError, PredictorKind, PredictorMeasure,
    PredictorOptions, TrainedPredictor, train,
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
    let missed = dense(&trained, |network| network.measured.is_some());
    if !missed.is_empty() {
        note(format_args!(
            "dense, because their predictors miss a recall of {} or save nothing: {missed}",
            options.recall,
        ));
    }
    let short = dense(&trained, |network| network.measured.is_none());
    if !short.is_empty() {
        note(format_args!(
            "dense, because they work on too few tokens of the text (fewer than {EXPERT_ROWS_MIN} to train with): {short}"
        ));
    }
    written?;
    let with_one = |networks: &mut dyn Iterator<Item = &NetworkOutcome>| {
        networks.filter(|network| network.trained.is_some()).count()
    };
    let n_layer = (0..trained.n_layer)
        .filter(|layer| with_one(&mut trained.of_layer(*layer)) > 0)
        .count();
    let mut experts = trained.networks.iter().filter(|it| it.expert.is_some());
    let of_experts = match experts.clone().count() {
        0 => String::new(),
        n => format!(", {} of {n} experts", with_one(&mut experts)),
    };
    note(format_args!(
        "{}: {n_layer} of {} layers{of_experts}, from {} chunks of {} tokens",
        path.display(),
        trained.n_layer,
        chunks.len(),
        reading.chunks.len
    ));
    Ok(Ending::Done)
}

/// Networks without a predictor, as a list: layers, and `layer 3: experts 1, 5`.
fn dense(trained: &TrainedPredictor, is_listed: fn(&NetworkOutcome) -> bool) -> String {
    let mut all: Vec<String> = Vec::new();
    for layer in 0..trained.n_layer {
        let networks = trained.of_layer(layer);
        let listed: Vec<_> = networks
            .filter(|network| network.trained.is_none() && is_listed(network))
            .collect();
        let experts: Vec<String> = listed
            .iter()
            .filter_map(|network| network.expert.map(|expert| expert.to_string()))
            .collect();
        match experts.len() {
            0 if listed.is_empty() => {}
            0 => all.push(format!("layer {layer}")),
            1 => all.push(format!("layer {layer}: expert {}", experts[0])),
            _ => all.push(format!("layer {layer}: experts {}", experts.join(", "))),
        }
    }
    all.join("; ")
}

/// A line for each layer: of experts that were measured, their means by the rows that they were trained with.
fn table(trained: &TrainedPredictor) -> Result<String, core::fmt::Error> {
    let mut table = format!(
        "{:>5} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        "layer", "active", "chosen", "recall", "energy", "error"
    );
    for i in 0..trained.n_layer {
        let all: Vec<_> = trained.of_layer(i).collect();
        let measured = all.iter().filter_map(|network| network.measured);
        let rows = all.iter().filter(|network| network.measured.is_some());
        let rows: Vec<f64> = rows.map(|network| network.n_rows as f64).collect();
        if rows.is_empty() {
            let why = if all.is_empty() {
                "no network"
            } else {
                "too few tokens for any expert"
            };
            writeln!(table, "{i:>5}  {why}")?;
            continue;
        }
        let n_rows: f64 = rows.iter().sum();
        let mean = |of: fn(&PredictorMeasure) -> f64| -> f64 {
            let each = measured.clone().zip(&rows);
            each.map(|(measured, n)| of(&measured) * n).sum::<f64>() / n_rows.max(1.0)
        };
        let with_one = all.iter().filter_map(|network| network.trained.as_ref());
        let is_refined = with_one.clone().any(|trained| trained.is_refined);
        let kind = match (with_one.count(), all.len()) {
            (0, 1) => "  left dense".to_owned(),
            (n, all) if all > 1 => format!("  {n} of {all} experts"),
            _ if is_refined => "  refined".to_owned(),
            _ => String::new(),
        };
        writeln!(
            table,
            "{i:>5} {:>7.1}% {:>7.1}% {:>8.4} {:>8.4} {:>7.2}%{kind}",
            100.0 * mean(|measured| measured.active),
            100.0 * mean(|measured| measured.selected),
            mean(|measured| measured.recall),
            mean(|measured| measured.energy_recall),
            100.0 * mean(|measured| measured.output_error)
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

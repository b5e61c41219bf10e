//! `--sparse`: density, bytes, recall and time of each layer's feed-forward network.

use super::choices::{Choices, Recall};
use super::measure::{Halt, Runner, Samples, Watch, steps};
use super::plan::Test;
use core::fmt::Write as _;
use core::time::Duration;
use serde_json::{Value, json};
use sluice::Limits;
use sluice::core::engine::{NeuronCounts, Neurons};
use sluice::host::profile::Profile;
use sluice::sparse::{SparseMode, SparseRule};

/// Figures of a layer's network in a repetition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LayerFigures {
    pub(super) layer: usize,
    pub(super) n_steps: u64,
    /// Neurons that could be left unread or out, and bytes of files by neuron.
    pub(super) neurons: Neurons,
    /// Bytes of the network's matrices, with its predictor or router.
    pub(super) bytes: u64,
    pub(super) time: Duration,
    /// Where a predictor runs.
    pub(super) recall: Option<Recall>,
}

impl LayerFigures {
    /// Share of neurons that are computed, or that count.
    fn density(&self) -> Option<f64> {
        let Neurons { n, n_skipped, .. } = self.neurons;
        let counted = (n > 0).then(|| (n - n_skipped) as f64 / n as f64);
        counted.or(self.recall.map(|recall| recall.chosen))
    }

    fn bytes_read(&self) -> u64 {
        self.bytes.saturating_sub(self.neurons.bytes_skipped as u64)
    }
}

/// Runs a test once more with a profile, and once with an observer where a predictor runs.
pub(super) fn measure(
    runner: &mut Runner,
    test: &Test,
    limits: Limits,
) -> Result<Vec<LayerFigures>, Halt> {
    let n_layer = runner.session.model().config().n_layer();
    runner.watch.neurons = counts(n_layer);
    let profile = Profile::new(n_layer, runner.session.team().count());
    runner.session.set_profile(Some(profile));
    let repeated = runner.repeat(test, &mut Samples::new());
    let watch = core::mem::take(&mut runner.watch);
    let networks: Vec<_> = runner
        .session
        .profile()
        .map(|profile| profile.networks().collect())
        .unwrap_or_default();
    runner.session.set_profile(None);
    repeated?;
    let choices = match runner.session.sparse() {
        SparseMode::Approximate(SparseRule::Predictor, _) => Some(choices(runner, test, limits)?),
        _ => None,
    };
    let layers = watch.neurons.iter().zip(networks).enumerate();
    let figures = layers.map(|(layer, (neurons, (time, bytes)))| LayerFigures {
        layer,
        n_steps: steps(test).count() as u64,
        neurons: neurons.get(),
        bytes,
        time,
        recall: choices.as_ref().and_then(|choices| choices.of(layer)),
    });
    Ok(figures.collect())
}

fn counts(n_layer: usize) -> Vec<NeuronCounts> {
    (0..n_layer).map(|_| NeuronCounts::default()).collect()
}

/// Compares what a predictor chooses with the active neurons, on a session that can be observed.
fn choices(runner: &mut Runner, test: &Test, limits: Limits) -> Result<Choices, Halt> {
    let model = runner.session.model().clone();
    let limits = Limits {
        observes: true,
        ..limits
    };
    let team = runner.session.team().clone();
    let session = model.session_on(&team, limits);
    let mut observed = session.map_err(|error| Halt::Failed(error.into()))?;
    observed.set_stop(runner.session.stop().clone());
    let config = model.config();
    // Weights on disk have no norms: their energy is not shown.
    let norms = model.neuron_norms(team.count()).unwrap_or_default();
    let has_zeros = config.activation().is_some_and(|it| it.has_zeros());
    let own = core::mem::replace(&mut runner.session, observed);
    let depth = core::mem::take(&mut runner.depth);
    let mut result = runner.fill(test);
    runner.watch.choices = Some(Choices::new(config.n_layer(), norms, has_zeros));
    if result.is_ok() {
        result = runner.repeat(test, &mut Samples::new());
    }
    (runner.session, runner.depth) = (own, depth);
    let Watch { choices, .. } = core::mem::take(&mut runner.watch);
    result?;
    Ok(choices.expect("set above"))
}

/// A line for each layer, and one for all of them, of a model and a test; empty without figures.
pub(super) fn table(layers: &[LayerFigures], of: &str) -> String {
    if layers.is_empty() {
        return String::new();
    }
    let mut table = format!("networks of layers, per step ({of}):\n");
    let has_recall = layers.iter().any(|layer| layer.recall.is_some());
    let _ = write!(
        table,
        "{:>5} {:>8} {:>10} {:>10} {:>10}",
        "layer", "density", "MB", "MB read", "µs"
    );
    table += if has_recall {
        "   recall   energy\n"
    } else {
        "\n"
    };
    let all = sum(layers);
    let names = layers.iter().map(|layer| layer.layer.to_string());
    let lines = names.zip(layers).chain([("all".to_owned(), &all)]);
    for (name, figures) in lines {
        let n_steps = figures.n_steps.max(1) as f64;
        let megabytes = |bytes: u64| bytes as f64 / n_steps / 1e6;
        let _ = write!(
            table,
            "{name:>5} {:>8} {:>10.3} {:>10.3} {:>10.1}",
            percent(figures.density()),
            megabytes(figures.bytes),
            megabytes(figures.bytes_read()),
            figures.time.as_secs_f64() * 1e6 / n_steps,
        );
        if let Some(recall) = figures.recall {
            let shown = |share: Option<f64>| share.map_or("-".into(), |x| format!("{x:.4}"));
            let _ = write!(
                table,
                " {:>8} {:>8}",
                shown(recall.recall),
                shown(recall.energy)
            );
        }
        table.push('\n');
    }
    table
}

/// All layers together; their recall is not a sum.
fn sum(layers: &[LayerFigures]) -> LayerFigures {
    let mut all = LayerFigures {
        layer: 0,
        n_steps: layers.first().map_or(0, |layer| layer.n_steps),
        neurons: Neurons::default(),
        bytes: 0,
        time: Duration::ZERO,
        recall: None,
    };
    for layer in layers {
        all.neurons += layer.neurons;
        all.bytes += layer.bytes;
        all.time += layer.time;
    }
    all
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{:.1}%", 100.0 * share))
}

/// A layer as an object: sums of a repetition.
pub(super) fn json(figures: &LayerFigures) -> String {
    let recall = figures.recall;
    let of = |value: Option<f64>| value.map_or(Value::Null, Value::from);
    json!({
        "layer": figures.layer,
        "n_steps": figures.n_steps,
        "density": of(figures.density()),
        "neurons": figures.neurons.n,
        "neurons_skipped": figures.neurons.n_skipped,
        "bytes": figures.bytes,
        "bytes_read": figures.bytes_read(),
        "recall": of(recall.and_then(|recall| recall.recall)),
        "energy_recall": of(recall.and_then(|recall| recall.energy)),
        "ns": u64::try_from(figures.time.as_nanos()).unwrap_or(u64::MAX),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_lines_of_a_table_and_objects() {
        let figures = LayerFigures {
            layer: 0,
            n_steps: 2,
            neurons: Neurons {
                n: 200,
                n_skipped: 150,
                bytes: 3_000_000,
                bytes_skipped: 2_000_000,
            },
            bytes: 4_000_000,
            time: Duration::from_micros(100),
            recall: None,
        };
        let recall = Recall {
            chosen: 0.5,
            recall: Some(0.96),
            energy: None,
        };
        let second = LayerFigures {
            layer: 1,
            neurons: Neurons::default(),
            recall: Some(recall),
            ..figures
        };
        assert_eq!(table(&[], "m, tg8"), "");
        let found = table(&[figures, second], "m, tg8");
        let lines: Vec<Vec<&str>> = found
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[2], ["0", "25.0%", "2.000", "1.000", "50.0"]);
        assert_eq!(
            lines[3],
            ["1", "50.0%", "2.000", "2.000", "50.0", "0.9600", "-"]
        );
        assert_eq!(lines[4], ["all", "25.0%", "4.000", "3.000", "100.0"]);
        let object: Value = serde_json::from_str(&json(&second)).unwrap();
        assert_eq!(object["recall"], 0.96);
        assert_eq!(object["energy_recall"], Value::Null);
        assert_eq!(object["bytes_read"], 4_000_000);
    }
}

//! Calibration files of `sluice sparsify`: MODEL.sparse.json.

use super::mode::{signal_name, signal_of};
use serde_json::{Map, Value, json};
use sluice_core::engine::NeuronSignal;
use std::path::{Path, PathBuf};

/// Thresholds and shares of a model's layers, and what they were measured on.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseFile {
    /// The fingerprint of the model.
    pub fingerprint: String,
    /// The model's name, for people.
    pub model: String,
    /// What the thresholds are compared with.
    pub signal: NeuronSignal,
    /// Share of neurons that the thresholds keep over all layers.
    pub density: f64,
    /// Number of chunks of the text, and tokens of each.
    pub chunks: (usize, usize),
    /// Neurons of a network.
    pub n_ff: usize,
    /// A threshold for each layer.
    pub thresholds: Vec<f32>,
    /// The share of neurons that each threshold keeps.
    pub densities: Vec<f64>,
    /// Shares of the layers for densities of the whole model, in ascending order.
    pub shares: Vec<(f64, Vec<f32>)>,
    /// The divergence with a half and with a quarter of the active neurons of each layer alone, in nats per token.
    pub alone: Vec<[f64; 2]>,
    /// The measured divergence from the whole model, in nats per token, if it was asked for.
    pub kl: Option<f64>,
}

/// Why a calibration file is not used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub struct SparseFileError {
    /// The file.
    pub path: String,
    /// Why not.
    pub why: String,
}

impl SparseFile {
    /// Where the file of the model at `model` is found by itself: `MODEL.sparse.json` next to it.
    #[must_use]
    pub fn next_to(model: &Path) -> PathBuf {
        model.with_extension("sparse.json")
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or a field is missing or out of range.
    pub fn open(path: &Path) -> Result<Self, SparseFileError> {
        let error = |why: String| SparseFileError {
            path: path.display().to_string(),
            why,
        };
        let is_text = path.extension().is_some_and(|end| end == "json");
        if !is_text {
            let why =
                "expected a .json file of sluice sparsify: --sparse predictor reads other files";
            return Err(error(why.into()));
        }
        let text = std::fs::read(path).map_err(|reason| error(reason.to_string()))?;
        let value = serde_json::from_slice(&text).map_err(|reason| error(reason.to_string()))?;
        Self::parse(&value).map_err(error)
    }

    fn parse(value: &Value) -> Result<Self, String> {
        let wrong = |name: &str| format!("{name} is missing or not as sluice sparsify writes it");
        let text = |name: &str| value[name].as_str().ok_or_else(|| wrong(name));
        let number = |name: &str| value[name].as_f64().ok_or_else(|| wrong(name));
        let count = |name: &str| {
            let n = value[name].as_u64().and_then(|n| usize::try_from(n).ok());
            n.ok_or_else(|| wrong(name))
        };
        let version = text("schema_version")?;
        if version != SCHEMA_VERSION {
            return Err(format!(
                "schema_version is {version:?}, expected {SCHEMA_VERSION:?}"
            ));
        }
        let of_layers = |name: &str| -> Result<Vec<f64>, String> {
            let layers = value[name].as_object().ok_or_else(|| wrong(name))?;
            let layer = |i: usize| layers.get(&i.to_string())?.as_f64();
            let values = (0..layers.len()).map(|i| layer(i).filter(|x| *x >= 0.0));
            values.map(|x| x.ok_or_else(|| wrong(name))).collect()
        };
        let thresholds: Vec<f32> = of_layers("thresholds")?.into_iter().map(narrow).collect();
        let n_layer = thresholds.len();
        let shares = value["shares"].as_object().ok_or_else(|| wrong("shares"))?;
        let row = |(density, row): (&String, &Value)| {
            let row: Option<Vec<f32>> = row
                .as_array()?
                .iter()
                .map(|x| Some(narrow(x.as_f64()?)))
                .collect();
            let row = row.filter(|row| row.len() == n_layer)?;
            let is_share = row.iter().all(|x| (0.0..=1.0).contains(x));
            Some((density.parse().ok()?, row)).filter(|_| is_share)
        };
        let mut shares: Vec<(f64, Vec<f32>)> = shares
            .iter()
            .map(|pair| row(pair).ok_or_else(|| wrong("shares")))
            .collect::<Result<_, _>>()?;
        shares.sort_by(|a, b| a.0.total_cmp(&b.0));
        let pair = |pair: &Value| Some([pair[0].as_f64()?, pair[1].as_f64()?]);
        let alone = value["divergence_alone"].as_object();
        let alone = alone.ok_or_else(|| wrong("divergence_alone"))?;
        let of_layer = |i: usize| alone.get(&i.to_string()).and_then(pair);
        let alone: Option<Vec<_>> = (0..n_layer).map(of_layer).collect();
        Ok(Self {
            fingerprint: text("generated_at")?.to_owned(),
            model: text("model")?.to_owned(),
            signal: signal_of(text("signal")?).ok_or_else(|| wrong("signal"))?,
            density: 1.0 - number("target_sparsity")?,
            chunks: (count("calibration_prompts_used")?, count("chunk_tokens")?),
            n_ff: count("ffn_intermediate_dim")?,
            densities: of_layers("densities")?,
            thresholds,
            shares,
            alone: alone.ok_or_else(|| wrong("divergence_alone"))?,
            kl: value["kl_divergence"].as_f64(),
        })
    }

    /// The file's text: the same for the same values.
    #[must_use]
    pub fn to_text(&self) -> String {
        let by_layer = |values: &[f64]| -> Map<String, Value> {
            let pairs = values.iter().enumerate();
            pairs.map(|(i, x)| (i.to_string(), json!(x))).collect()
        };
        let taus: Vec<f64> = self.thresholds.iter().map(|x| f64::from(*x)).collect();
        #[expect(clippy::cast_precision_loss, reason = "few layers")]
        let mean = taus.iter().sum::<f64>() / taus.len().max(1) as f64;
        let shares: Map<String, Value> = self
            .shares
            .iter()
            .map(|(density, row)| (density.to_string(), json!(row)))
            .collect();
        let alone: Map<String, Value> = self
            .alone
            .iter()
            .enumerate()
            .map(|(i, pair)| (i.to_string(), json!(pair)))
            .collect();
        let value = json!({
            "schema_version": SCHEMA_VERSION,
            "generated_at": self.fingerprint,
            "model": self.model,
            "target_sparsity": 1.0 - self.density,
            "quick_mode": false,
            "prompt_mode": "chunks",
            "n_layers_calibrated": self.thresholds.len(),
            "calibration_prompts_used": self.chunks.0,
            "chunk_tokens": self.chunks.1,
            "ffn_intermediate_dim": self.n_ff,
            "thresholds": by_layer(&taus),
            "statistics": {
                "mean_tau": mean,
                "min_tau": taus.iter().copied().reduce(f64::min),
                "max_tau": taus.iter().copied().reduce(f64::max),
            },
            "signal": signal_name(self.signal),
            "densities": by_layer(&self.densities),
            "shares": shares,
            "divergence_alone": alone,
            "kl_divergence": self.kl,
        });
        format!("{value:#}\n")
    }

    /// The shares of the layers for a density of the whole model, between the file's; `None` outside of them.
    #[must_use]
    pub fn shares_at(&self, density: f64) -> Option<Vec<f32>> {
        shares_between(&self.shares, density)
    }
}

/// Shares for a density between the densities of a list in ascending order; `None` outside of them.
#[must_use]
pub fn shares_between(shares: &[(f64, Vec<f32>)], density: f64) -> Option<Vec<f32>> {
    let above = shares
        .iter()
        .position(|(known, _)| *known >= density - 1e-9)?;
    let (high, upper) = &shares[above];
    if (high - density).abs() < 1e-9 {
        return Some(upper.clone());
    }
    let (low, lower) = &shares[above.checked_sub(1)?];
    let part = narrow((density - low) / (high - low));
    let between = lower.iter().zip(upper).map(|(a, b)| a + part * (b - a));
    Some(between.collect())
}

#[expect(clippy::cast_possible_truncation, reason = "rounded")]
const fn narrow(x: f64) -> f32 {
    x as f32
}

/// The version of the schema.
const SCHEMA_VERSION: &str = "1.0";

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> SparseFile {
        SparseFile {
            fingerprint: "ab".repeat(32),
            model: "tale".into(),
            signal: NeuronSignal::Product,
            density: 0.3,
            chunks: (8, 512),
            n_ff: 96,
            thresholds: vec![0.1, 1e-9, 3.5],
            densities: vec![0.2, 0.3, 0.4],
            shares: vec![(0.25, vec![0.2, 0.3, 0.25]), (0.5, vec![0.4, 0.6, 0.5])],
            alone: vec![[0.01, 0.1]; 3],
            kl: Some(0.01),
        }
    }

    #[test]
    fn files_are_read_as_they_are_written() {
        let text = file().to_text();
        let read = SparseFile::parse(&serde_json::from_str(&text).unwrap_or_default());
        assert_eq!(read.as_ref().map(SparseFile::to_text), Ok(text));
        assert_eq!(read.map(|file| file.thresholds), Ok(file().thresholds));
    }

    #[test]
    fn shares_lie_between_those_of_the_file() {
        let close = |found: Option<Vec<f32>>, expected: [f32; 3]| {
            let found = found.unwrap_or_default();
            assert!(
                found
                    .iter()
                    .zip(expected)
                    .all(|(a, b)| (a - b).abs() < 1e-6),
                "{found:?}"
            );
        };
        close(file().shares_at(0.25), [0.2, 0.3, 0.25]);
        close(file().shares_at(0.3), [0.24, 0.36, 0.3]);
        close(file().shares_at(0.5), [0.4, 0.6, 0.5]);
        assert_eq!((file().shares_at(0.2), file().shares_at(0.6)), (None, None));
    }

    #[test]
    fn a_missing_field_is_named() {
        let whole: Value = serde_json::from_str(&file().to_text()).unwrap_or_default();
        for name in [
            "schema_version",
            "generated_at",
            "model",
            "target_sparsity",
            "thresholds",
            "densities",
            "shares",
            "signal",
            "divergence_alone",
        ] {
            let mut value = whole.clone();
            value[name] = Value::Null;
            let why = SparseFile::parse(&value).err().unwrap_or_default();
            assert!(why.contains(name), "{name}: {why}");
        }
    }
}

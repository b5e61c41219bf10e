//! Modes fitted to a model.

use super::error::{SparseError, Subject};
use super::file::SparseFile;
use super::mode::{SparseMode, SparseRule, signal_name};
use super::predictor::LoadedPredictor;
use crate::host::memory::{AlignedMemory, OutOfMemory};
use crate::identity::Identity;
use core::fmt::Write as _;
use core::sync::atomic::{AtomicUsize, Ordering};
use sha2::{Digest as _, Sha256};
use sluice_core::engine::{Approximation, NeuronRule, NeuronSignal, Sparse};
use sluice_core::model::{Channel, LayerKind, ModelConfig, ModelError, ModelWeights};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A mode with the values of a model's layers.
#[derive(Debug)]
pub(crate) struct SparseSetup {
    mode: SparseMode,
    signal: NeuronSignal,
    rule: Rule,
    /// What stands for it in the model's identity.
    pub(crate) text: String,
}

/// [`NeuronRule`] with its own values.
#[derive(Debug)]
enum Rule {
    Threshold(Vec<f32>),
    Share(Vec<f32>),
    Count(usize),
    Budget(f32),
    Predictor(LoadedPredictor),
}

/// A mode with all that steps of a loaded model need for it.
#[derive(Clone, Debug)]
pub struct SparsePlan {
    setup: Arc<SparseSetup>,
    norms: Arc<Vec<f32>>,
}

impl SparsePlan {
    /// The mode, as it was asked for.
    #[must_use]
    pub fn mode(&self) -> SparseMode {
        self.setup.mode
    }

    /// What tells how much a neuron matters.
    #[must_use]
    pub fn signal(&self) -> NeuronSignal {
        self.setup.signal
    }

    /// For the options of a step.
    #[must_use]
    pub fn sparse(&self) -> Sparse<'_> {
        let rule = match &self.setup.rule {
            Rule::Threshold(values) => NeuronRule::Threshold(values),
            Rule::Share(values) => NeuronRule::Share(values),
            Rule::Count(n) => NeuronRule::Count(*n),
            Rule::Budget(share) => NeuronRule::Budget(*share),
            Rule::Predictor(predictor) => return Sparse::Predictor(predictor.get()),
        };
        Sparse::Approximate(Approximation {
            signal: self.setup.signal,
            rule,
            norms: &self.norms,
        })
    }

    pub(crate) fn new(
        setup: &Arc<SparseSetup>,
        weights: &ModelWeights<'_>,
        n_threads: usize,
        has_cold: bool,
    ) -> Result<Self, SparseError> {
        let config = weights.config();
        if setup.signal == NeuronSignal::Contribution && has_cold {
            return Err(SparseError::Model {
                mode: setup.mode,
                why: "contributions need all neurons in memory: use the signal product or gate, or omit --expert-cache",
            });
        }
        let is_local = matches!(setup.rule, Rule::Threshold(_));
        if setup.signal == NeuronSignal::Gate
            && !is_local
            && config.has_experts()
            && !weights.has_experts()
        {
            return Err(SparseError::Model {
                mode: setup.mode,
                why: "gates are not compared with experts on disk: use the signal product, or omit --expert-cache",
            });
        }
        let norms = match setup.signal {
            NeuronSignal::Contribution => neuron_norms(weights, n_threads).map_err(|error| match error {
                NormsError::Memory(error) => SparseError::Memory(error),
                NormsError::OnDisk => SparseError::Model {
                    mode: setup.mode,
                    why: "contributions need experts in memory: use the signal product or gate, or omit --expert-cache",
                },
            })?,
            _ => Vec::new(),
        };
        Ok(Self {
            setup: Arc::clone(setup),
            norms: Arc::new(norms),
        })
    }
}

/// Why there are no norms.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NormsError {
    /// Not enough memory.
    #[error("not enough memory for the norms of neurons: {0}")]
    Memory(OutOfMemory),
    /// Experts, or cold neurons, stay on disk.
    #[error("weights stay on disk, but norms need all of them")]
    OnDisk,
}

/// Norms of the columns of all down matrices, as [`Approximation::norms`] has them.
///
/// # Errors
/// [`NormsError`].
pub(crate) fn neuron_norms(
    weights: &ModelWeights<'_>,
    n_threads: usize,
) -> Result<Vec<f32>, NormsError> {
    let (stride, n_layer) = (weights.config().neurons_max(), weights.config().n_layer());
    let mut norms = vec![0f32; stride * n_layer];
    let room_bytes = weights.neuron_norms_room().unwrap_or(usize::MAX);
    let layers: Vec<_> = norms
        .chunks_exact_mut(stride.max(1))
        .map(Mutex::new)
        .collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || -> Result<(), NormsError> {
        let mut room = AlignedMemory::zeroed(room_bytes).map_err(NormsError::Memory)?;
        loop {
            let layer = next.fetch_add(1, Ordering::Relaxed);
            let Some(out) = layers.get(layer) else {
                return Ok(());
            };
            let mut out = out.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match weights.neuron_norms(layer, &mut room, &mut out) {
                Ok(()) => {}
                Err(ModelError::NotLoaded) => return Err(NormsError::OnDisk),
                Err(error) => unreachable!("the room is as large as the model asks for: {error}"),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..n_threads.clamp(1, n_layer.max(1)) {
            scope.spawn(|| {
                if let Err(error) = work() {
                    *failed
                        .lock()
                        .unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(error);
                }
            });
        }
    });
    match failed
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
    {
        Some(error) => Err(error),
        None => Ok(norms),
    }
}

/// The signal that a model's neurons are chosen by where none is named: gates where the activation has zeros.
#[must_use]
pub fn default_signal(config: &ModelConfig) -> NeuronSignal {
    let has_zeros = config
        .activation()
        .is_some_and(|activation| activation.has_zeros());
    match has_zeros && has_gates(config) {
        true => NeuronSignal::Gate,
        false => NeuronSignal::Contribution,
    }
}

/// Whether all networks have gates.
fn has_gates(config: &ModelConfig) -> bool {
    config.kinds.iter().all(|kind| match &kind.channel {
        Channel::Ffn(shape) => shape.is_gated,
        Channel::Experts(shape) => shape.is_gated,
        _ => true,
    })
}

impl SparseSetup {
    pub(crate) fn new(
        source: &Subject<'_>,
        mode: SparseMode,
        path: Option<&Path>,
    ) -> Result<Self, SparseError> {
        let SparseMode::Approximate(rule, signal) = mode else {
            return Err(SparseError::NeedlessFile(mode));
        };
        let config = source.config;
        if config.kinds.iter().all(|kind: &LayerKind| kind.n_ff() == 0) {
            let why = "the model has no feed-forward networks";
            return Err(SparseError::Model { mode, why });
        }
        if rule == SparseRule::Predictor {
            let predictor = LoadedPredictor::open(source, path)?;
            return Ok(Self {
                text: format!("sparse {}", predictor.text),
                mode,
                signal: NeuronSignal::Gate,
                rule: Rule::Predictor(predictor),
            });
        }
        let file = match mode.needs_file() {
            true => Some(read_file(source, mode, path)?),
            false if path.is_some() => return Err(SparseError::NeedlessFile(mode)),
            false => None,
        };
        let n_layer = config.n_layer();
        let (signal, rule) = match (rule, file) {
            (SparseRule::Threshold(None), Some((_, file))) => {
                (file.signal, Rule::Threshold(file.thresholds))
            }
            (SparseRule::Target(asked), Some((path, file))) => {
                let density = asked.map_or(file.density, f64::from);
                let shares = file.shares_at(density).ok_or_else(|| SparseError::Lacks {
                    path,
                    why: format!("it has no shares for a density of {density}"),
                })?;
                (file.signal, Rule::Share(shares))
            }
            (SparseRule::Threshold(tau), _) => {
                let tau = tau.unwrap_or_default();
                (
                    own_signal(signal, config),
                    Rule::Threshold(vec![tau; n_layer]),
                )
            }
            (SparseRule::TopK(n), _) => (ranked_signal(signal, config), Rule::Count(n)),
            (SparseRule::Budget(share), _) => (NeuronSignal::Contribution, Rule::Budget(share)),
            (SparseRule::Target(_) | SparseRule::Predictor, _) => {
                unreachable!("these modes have read their files")
            }
        };
        let is_local = matches!(rule, Rule::Threshold(_));
        let is_gate = signal == NeuronSignal::Gate;
        if is_gate && !has_gates(config) {
            let why = "the model's networks have no gates: use the signal product or contribution";
            return Err(SparseError::Model { mode, why });
        }
        if is_gate && !is_local && !compares_gates(config) {
            let why = "gates are not compared in models with an expert for all tokens: use the signal product or contribution, or threshold";
            return Err(SparseError::Model { mode, why });
        }
        Ok(Self {
            text: text(signal, &rule),
            mode,
            signal,
            rule,
        })
    }
}

fn own_signal(asked: Option<NeuronSignal>, config: &ModelConfig) -> NeuronSignal {
    asked.unwrap_or_else(|| default_signal(config))
}

/// As [`own_signal`], where neurons of a row are compared.
fn ranked_signal(asked: Option<NeuronSignal>, config: &ModelConfig) -> NeuronSignal {
    match compares_gates(config) {
        true => own_signal(asked, config),
        false => asked.unwrap_or(NeuronSignal::Contribution),
    }
}

/// Whether gates of a row can be compared before up is computed, if experts are in memory.
#[must_use]
pub fn compares_gates(config: &ModelConfig) -> bool {
    config.experts().all(|shape| shape.shared.is_none())
}

/// Reads a calibration file, and compares it with the model.
fn read_file(
    source: &Subject<'_>,
    mode: SparseMode,
    path: Option<&Path>,
) -> Result<(String, SparseFile), SparseError> {
    let model = Path::new(source.name);
    let path = match path {
        Some(path) => path.to_path_buf(),
        None => SparseFile::next_to(model),
    };
    let shown = path.display().to_string();
    if !path.exists() {
        return Err(SparseError::NoFile {
            mode,
            path: shown,
            model: source.name.to_owned(),
        });
    }
    let file = SparseFile::open(&path)?;
    let expected = (source.fingerprint)()?.to_string();
    if file.fingerprint != expected {
        return Err(SparseError::OtherModel {
            path: shown,
            model: source.name.to_owned(),
            expected,
            found: file.fingerprint,
        });
    }
    let n_layer = source.config.n_layer();
    if file.thresholds.len() != n_layer {
        let why = format!(
            "it has {} layers, the model {n_layer}",
            file.thresholds.len()
        );
        return Err(SparseError::Lacks { path: shown, why });
    }
    if let SparseMode::Approximate(_, Some(asked)) = mode
        && asked != file.signal
    {
        let (asked, own) = (signal_name(asked), signal_name(file.signal));
        let why = format!(
            "it was made for the signal {own}, not {asked}: make another one with --signal {asked}"
        );
        return Err(SparseError::Lacks { path: shown, why });
    }
    Ok((shown, file))
}

/// What stands for a mode's values.
fn text(signal: NeuronSignal, rule: &Rule) -> String {
    let of = |values: &[f32]| {
        let mut hash = Sha256::new();
        values.iter().for_each(|x| hash.update(x.to_le_bytes()));
        Identity(hash.finalize().into()).to_string()
    };
    let rule = match rule {
        Rule::Threshold(values) => format!("threshold {}", of(values)),
        Rule::Share(values) => format!("share {}", of(values)),
        Rule::Count(n) => format!("top-k {n}"),
        Rule::Budget(share) => format!("budget {share}"),
        Rule::Predictor(predictor) => predictor.text.clone(),
    };
    let mut text = String::new();
    let _infallible = write!(text, "sparse {} {rule}", signal_name(signal));
    text
}

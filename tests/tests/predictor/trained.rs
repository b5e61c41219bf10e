//! Predictors of a model trained with ReLU, made from a text, and what they change.

use super::SHAPE;
use super::files::with_fc;
use sluice::file::{LoadMode, OutputFile};
use sluice::host::topology::Cores;
use sluice::model::ModelSource;
use sluice::sparse::{SparseMode, SparseRule, predictor_beside};
use sluice::{Limits, Model, Session, Team};
use sluice_core::gguf::Gguf;
use sluice_core::model::{PREDICTOR_DENSE, PREDICTOR_THRESHOLDS};
use sluice_make::predictor::{PredictorKind, PredictorOptions, TrainedPredictor, train};
use sluice_tests::build::{Shape, Vocab};
use sluice_tests::shared;
use std::path::{Path, PathBuf};

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/fixtures/sparse/tale-relu-5.8m-Q8_0.gguf"
);
const CHUNK: usize = 256;
const PREDICTOR: SparseMode = SparseMode::Approximate(SparseRule::Predictor, None);

/// A folder with a copy of a model, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, model: &[u8]) -> Self {
        let folder = std::env::temp_dir().join(format!("sluice-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let folder = Self(folder);
        std::fs::write(folder.model(), model).unwrap();
        folder
    }

    fn model(&self) -> PathBuf {
        self.0.join("m.gguf")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

fn load(path: &Path, mode: SparseMode) -> Result<(Model, Team), String> {
    let team = Team::new(2, &Cores::detect()).unwrap();
    let opened = ModelSource::open(path, LoadMode::Read).unwrap();
    let opened = opened.with_sparse(mode, None);
    let opened = opened.map_err(|error| error.to_string())?;
    Ok((opened.load(&team).unwrap(), team))
}

fn session(model: &Model, team: &Team, observed: bool) -> Session {
    let limits = Limits::for_reading(model.config(), CHUNK, observed);
    model.session_on(team, limits).unwrap()
}

/// The natural logarithms of the probabilities after every token of chunks.
fn log_probabilities(session: &mut Session, chunks: &[&[u32]]) -> Vec<Vec<f64>> {
    let mut rows = Vec::new();
    let each = |_, _, logits: &[f32]| {
        let top = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from(x - top).exp()).sum();
        let shift = f64::from(top) + sum.ln();
        rows.push(logits.iter().map(|x| f64::from(*x) - shift).collect());
    };
    session.read(chunks, 0, None, each).unwrap();
    rows
}

fn options(kind: PredictorKind, n_threads: usize) -> PredictorOptions {
    PredictorOptions {
        kind,
        rank: 64,
        recall: 0.95,
        density: None,
        n_threads,
    }
}

fn write(trained: &TrainedPredictor, options: &PredictorOptions, model: &Model) -> Vec<u8> {
    let path = predictor_beside(model.name().as_ref());
    let output = OutputFile::create_model(&path, true, *b"GGUF").unwrap();
    let fingerprint = model.calibrated_fingerprint().unwrap().to_string();
    trained.write(options, &fingerprint, output).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn predictors_of_a_trained_model_find_its_active_neurons() {
    let Some(text) = shared("data/tinystories_1000.txt") else {
        return;
    };
    let folder = Folder::new("trained", &std::fs::read(MODEL).unwrap());
    let (model, team) = load(&folder.model(), SparseMode::Off).unwrap();
    let missing = load(&folder.model(), PREDICTOR).err().unwrap();
    assert!(
        missing.contains("m.sparse.gguf does not exist"),
        "{missing}"
    );
    let text = std::fs::read_to_string(text).unwrap();
    let tokens = model.encode(&text[..120_000], false).unwrap();
    let chunks: Vec<&[u32]> = tokens.chunks_exact(CHUNK).take(36).collect();
    let (chunks, others) = chunks.split_at(32);
    let mut reading = session(&model, &team, true);
    let dense = log_probabilities(&mut reading, others);
    for kind in PredictorKind::ALL {
        let options = options(kind, 1);
        let trained = train(&mut reading, chunks, &options, |_, _| ()).unwrap();
        assert_eq!((trained.networks.len(), trained.n_layer), (6, 6));
        for layer in &trained.networks {
            let found = layer.measured.unwrap();
            assert!(found.recall >= 0.95, "{kind:?} {found:?}");
            assert!(found.energy_recall >= 0.98, "{kind:?} {found:?}");
            assert!(found.output_error < 0.15, "{kind:?} {found:?}");
            // Chance would choose as large a share of the active neurons as of all.
            let of_active = found.selected / found.active;
            let bound = if kind == PredictorKind::Sign {
                2.6
            } else {
                2.0
            };
            assert!(of_active < bound, "{kind:?} {found:?}");
            assert!(layer.trained.is_some());
        }
        let bytes = write(&trained, &options, &model);
        let (sparse, team) = load(&folder.model(), PREDICTOR).unwrap();
        assert_ne!(sparse.identity().at_load(), model.identity().at_load());
        let found = log_probabilities(&mut session(&sparse, &team, false), others);
        let kl: f64 = dense
            .iter()
            .zip(&found)
            .map(|(p, q)| divergence(p, q))
            .sum();
        let kl = kl / dense.len() as f64;
        assert!(kl > 1e-6 && kl <= 0.01, "{kind:?} {kl}");
        if kind == PredictorKind::Svd {
            let again = train(&mut reading, chunks, &self::options(kind, 3), |_, _| ()).unwrap();
            assert!(again == trained);
            assert!(write(&again, &options, &model) == bytes);
            let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
            assert_eq!(gguf.str("predictor.kind"), Ok("svd"));
            assert_eq!(gguf.array(PREDICTOR_THRESHOLDS).unwrap().len(), 6);
        }
    }
    let few = train(
        &mut reading,
        &chunks[..7],
        &options(PredictorKind::Svd, 1),
        |_, _| (),
    );
    assert_eq!(
        few.unwrap_err().to_string(),
        "the text has 7 chunks: a predictor needs 8"
    );
    // A recall that no layer reaches: thresholds are set on other chunks than it is measured on.
    let mut strict = options(PredictorKind::Svd, 1);
    (strict.recall, strict.rank) = (1.0, 32);
    let trained = train(&mut reading, &chunks[..8], &strict, |_, _| ()).unwrap();
    let mut networks = trained.networks.iter();
    assert!(networks.any(|network| network.trained.is_none()));
}

/// A mixture of which one expert is never chosen: the router has two opposite rows and two of zeros.
#[test]
fn each_expert_has_a_predictor_or_is_left_dense() {
    let shape = Shape {
        vocab: Vocab::SentencePiece,
        n_vocab: 24,
        n_expert: 4,
        n_expert_used: 2,
        ..SHAPE
    };
    let mut file = shape.file();
    file.set("llama.activation", "relu");
    for layer in 0..shape.n_layer {
        let router = file.tensor(&format!("blk.{layer}.ffn_gate_inp.weight"));
        let row_bytes = router.data.len() / 4;
        let floats = router.data[..row_bytes].as_chunks().0.to_vec();
        let opposite = floats
            .iter()
            .flat_map(|x| (-f32::from_le_bytes(*x)).to_le_bytes());
        let opposite: Vec<u8> = opposite.collect();
        router.data[row_bytes..2 * row_bytes].copy_from_slice(&opposite);
        router.data[2 * row_bytes..].fill(0);
    }
    let folder = Folder::new("experts", &file.bytes());
    let (model, team) = load(&folder.model(), SparseMode::Off).unwrap();
    let ids: Vec<u32> = (0..42 * 64u32).map(|i| (i * i / 7 + 3 * i) % 24).collect();
    let chunks: Vec<&[u32]> = ids.chunks_exact(64).collect();
    let (chunks, others) = chunks.split_at(40);
    let mut reading = session(&model, &team, true);
    let dense = log_probabilities(&mut reading, others);
    for kind in [PredictorKind::Ridge, PredictorKind::Svd] {
        // Random gates have no few directions: the whole rank.
        let options = |n_threads| PredictorOptions {
            rank: 288,
            ..options(kind, n_threads)
        };
        let trained = train(&mut reading, chunks, &options(1), |_, _| ()).unwrap();
        assert_eq!((trained.networks.len(), trained.n_layer), (8, 2));
        for network in &trained.networks {
            let is_starved = network.expert == Some(3);
            assert_eq!(network.measured.is_none(), is_starved, "{network:?}");
            assert_eq!(network.n_rows == 0, is_starved);
            let Some(found) = network.measured else {
                assert!(network.trained.is_none());
                continue;
            };
            assert!(found.recall >= 0.95, "{kind:?} {found:?}");
            assert!(found.energy_recall > 0.98, "{kind:?} {found:?}");
            // One whose neurons are nearly all active saves nothing.
            assert_eq!(
                network.trained.is_some(),
                found.selected <= 0.9,
                "{network:?}"
            );
        }
        let experts = trained.networks.iter();
        let with_one: Vec<_> = experts.filter(|it| it.trained.is_some()).collect();
        assert!((0..2).all(|layer| with_one.iter().any(|it| it.layer == layer)));
        let bytes = write(&trained, &options(1), &model);
        let again = train(&mut reading, chunks, &options(3), |_, _| ()).unwrap();
        assert!(write(&again, &options(3), &model) == bytes, "{kind:?}");
        let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
        let thresholds = gguf.tensor("blk.1.ffn_pred_up_exps.threshold").unwrap();
        let at = usize::try_from(thresholds.offset).unwrap();
        assert_eq!(bytes[at + 12..at + 16], PREDICTOR_DENSE.to_le_bytes());
        let (sparse, team) = load(&folder.model(), PREDICTOR).unwrap();
        let found = log_probabilities(&mut session(&sparse, &team, false), others);
        let pairs = dense.iter().zip(&found);
        let kl = pairs.map(|(p, q)| divergence(p, q)).sum::<f64>() / dense.len() as f64;
        assert!(kl > 0.0 && kl <= 0.01, "{kind:?} {kl}");
    }
}

fn divergence(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
}

#[test]
fn files_of_powerinfer_have_a_predictor_of_their_own() {
    let shape = Shape {
        vocab: Vocab::SentencePiece,
        n_vocab: 24,
        ..SHAPE
    };
    let file = with_fc(&shape, 0.5).bytes();
    let folder = Folder::new("powerinfer", &file);
    let ids: Vec<u32> = super::ids(40).iter().map(|id| id % 24).collect();
    let chunks = [&ids[..]];
    let run = |mode| {
        let (model, team) = load(&folder.model(), mode).unwrap();
        let rows = log_probabilities(&mut session(&model, &team, false), &chunks);
        (rows, model.identity().at_load())
    };
    let (dense, predicted) = (run(SparseMode::Off), run(PREDICTOR));
    assert_ne!(dense.0, predicted.0);
    assert_ne!(dense.1, predicted.1);
}

//! Adapters of every matrix of every family: as good as weights that have the product added.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

mod goldens;
mod hot;
mod merges;

use sluice::adapter::{
    AdapterBlend, AdapterFile, AdapterLoadError, Factors, LoadedAdapter, Precision,
};
use sluice::file::GgufHeader;
use sluice_core::engine::{BatchEntry, EngineLimits, StepOptions, Wants};
use sluice_core::gguf::{Gguf, TensorInfo};
use sluice_core::kernels::lora::LoraType;
use sluice_core::kernels::{GgmlType, KvType};
use sluice_core::model::ModelConfig;
use sluice_core::team::StopFlag;
use sluice_tests::build::Random;
use sluice_tests::reference::dequant::dequantise;
use sluice_tests::run::{self, Room, Weights, YieldWait};
use std::path::{Path, PathBuf};

/// A model file whose weights are all in f32.
struct Wide {
    header: GgufHeader,
    /// Names, dimensions (the row length first) and numbers.
    tensors: Vec<(String, Vec<u64>, Vec<f32>)>,
}

impl Wide {
    /// `None` if weights are in blocks, or have separate scale factors.
    fn of(bytes: &[u8]) -> Option<Self> {
        let gguf = Gguf::parse(bytes, bytes.len() as u64).unwrap();
        let is_float = |tensor: &TensorInfo<'_>| {
            matches!(tensor.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
        };
        // Products are multiplied by such factors before adapters add theirs.
        let has_factors = gguf.tensors().any(|tensor| tensor.name.ends_with(".scale"));
        if has_factors || !gguf.tensors().all(|tensor| is_float(&tensor)) {
            return None;
        }
        let mut header = GgufHeader::with_metadata_of(&gguf);
        let mut tensors = Vec::new();
        for tensor in gguf.tensors() {
            let n_dims = tensor
                .dims
                .iter()
                .rposition(|n| *n != 1)
                .map_or(1, |at| at + 1);
            let dims = tensor.dims[..n_dims].to_vec();
            let start = usize::try_from(tensor.offset).unwrap();
            let data = &bytes[start..][..usize::try_from(tensor.len_bytes).unwrap()];
            let n = usize::try_from(tensor.n_elements()).unwrap();
            let values = dequantise(tensor.ty as u32, data, n).unwrap();
            header.add_tensor(tensor.name, &dims, GgmlType::F32);
            tensors.push((tensor.name.to_owned(), dims, values));
        }
        Some(Self { header, tensors })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.bytes();
        let start = bytes.len();
        for ((_, _, values), entry) in self.tensors.iter().zip(self.header.tensors()) {
            bytes.resize(start + usize::try_from(entry.offset).unwrap(), 0);
            bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        }
        bytes
    }

    /// Adds `scale · B · A` of every pair to its tensor.
    fn merge(&mut self, factors: &[Factors], weight: f32) {
        for pair in factors {
            let tensor = self
                .tensors
                .iter_mut()
                .find(|(name, ..)| *name == pair.tensor);
            let (name, dims, values) = tensor.unwrap();
            let (n_cols, n_rows) = (pair.n_cols(), pair.n_rows());
            let n = usize::try_from(dims[0] * dims[1]).unwrap();
            let first = pair.part.unwrap_or(0) as usize * n;
            let is_embedding = name == "token_embd.weight";
            for row in 0..n_rows {
                for column in 0..n_cols {
                    let ranks = 0..pair.rank;
                    let sum: f64 = ranks
                        .map(|r| {
                            let (a, b) = (pair.a[r * n_cols + column], pair.b[row * pair.rank + r]);
                            f64::from(a) * f64::from(b)
                        })
                        .sum();
                    let at = match is_embedding {
                        true => column * n_rows + row,
                        false => first + row * n_cols + column,
                    };
                    let x = &mut values[at];
                    #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
                    let sum = (sum * f64::from(pair.scale) * f64::from(weight)) as f32;
                    *x += sum;
                }
            }
        }
    }
}

/// Pairs for every matrix of a file that has two dimensions or is a stack of matrices.
fn all_factors(wide: &Wide, rank: usize, random: &mut Random) -> Vec<Factors> {
    let mut all = Vec::new();
    for (name, dims, _) in &wide.tensors {
        if !name.ends_with(".weight") || dims.len() < 2 {
            continue;
        }
        let is_embedding = name == "token_embd.weight";
        let [n_cols, n_rows] = [0, 1].map(|i| usize::try_from(dims[i]).unwrap());
        let (n_cols, n_rows) = match is_embedding {
            true => (n_rows, n_cols),
            false => (n_cols, n_rows),
        };
        let n_parts = dims.get(2).map(|n| u32::try_from(*n).unwrap());
        let parts = match n_parts {
            None => vec![None],
            Some(n) => (0..n).map(Some).collect(),
        };
        for part in parts {
            let mut vector = |n, size: f32| (0..n).map(|_| size * random.signed()).collect();
            all.push(Factors {
                tensor: name.clone(),
                part,
                rank,
                a: vector(rank * n_cols, 0.3),
                b: vector(n_rows * rank, 0.05),
                scale: 1.5,
            });
        }
    }
    all
}

/// Logits, or hidden states of an encoder, of `ids` in steps of `chunk`, as one vector.
fn outputs(
    bytes: &[u8],
    (n_workers, chunk): (usize, usize),
    blend: Option<&AdapterBlend>,
    ids: &[u32],
) -> Vec<f32> {
    let mut weights = Weights::plan(bytes).unwrap();
    let model = weights.load(bytes, 1).unwrap();
    let is_causal = model.config().is_causal;
    let chunk = if is_causal { chunk } else { ids.len() };
    let limits = EngineLimits {
        n_batch: 64,
        n_outputs: 64,
        type_k: KvType::F32,
        type_v: KvType::F32,
        adapter_rank: blend.map_or(0, AdapterBlend::rank),
        ..EngineLimits::single(64, n_workers)
    };
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model, run::table(), &limits).unwrap();
    engine.fit(0, ids.len()).unwrap();
    let parts = blend.map(AdapterBlend::parts);
    let mut all = Vec::new();
    for (first, ids) in (0..).step_by(chunk).zip(ids.chunks(chunk)) {
        let entry = |(position, id): (u32, &u32)| BatchEntry {
            adapter: blend.map(|_| 0),
            ..BatchEntry::new(
                *id,
                0,
                position,
                if is_causal {
                    Wants::Logits
                } else {
                    Wants::Hidden
                },
            )
        };
        let batch: Vec<_> = (first..).zip(ids).map(entry).collect();
        let stop = StopFlag::new();
        let mut options = StepOptions::new(&YieldWait, &stop);
        options.adapters = parts.as_slice();
        let step = engine.step(&batch, options).unwrap();
        std::thread::scope(|scope| {
            for rank in 0..n_workers {
                let step = &step;
                scope.spawn(move || step.join(rank).unwrap().run().unwrap());
            }
        });
        let outputs = step.finish().unwrap();
        for i in 0..batch.len() {
            let row = if is_causal {
                outputs.logits(i)
            } else {
                outputs.hidden(i)
            };
            all.extend_from_slice(row.unwrap());
        }
    }
    all
}

fn relative(actual: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let both = actual.iter().zip(expected);
    let distance = both.map(|(a, b)| square(f64::from(*a) - f64::from(*b)));
    let norm = expected.iter().map(|x| square(f64::from(*x)));
    (distance.sum::<f64>() / norm.sum::<f64>()).sqrt()
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "gguf"))
        .collect();
    files.sort();
    files
}

/// What has two dimensions and cannot be adapted: taps, positions, token types, heads, what makes a layer's own
/// embedding.
const NOT_ADAPTED: [&str; 11] = [
    "conv",
    "position_embd",
    "token_types",
    "cls",
    "per_layer_",
    "ssm_a",
    "ssm_d",
    "ssm_norm",
    // Norms of each head.
    "attn_q_norm",
    "attn_k_norm",
    "nextn",
];

/// Whether a model has the matrix of a pair; what it has not must be known not to be one.
fn can_be_adapted(name: &str, config: &ModelConfig, pair: &Factors) -> bool {
    let file = AdapterFile {
        factors: vec![pair.clone()],
        ..AdapterFile::default()
    };
    match LoadedAdapter::load(config, &file, Precision::Exact) {
        Ok(_) => true,
        // Keys that no layer reads.
        Err(AdapterLoadError::Empty { .. }) => false,
        Err(AdapterLoadError::NoMatrix { tensor, .. }) => {
            let layer = tensor.split('.').nth(1);
            let layer = layer.and_then(|n| n.parse::<usize>().ok());
            let is_behind = layer.is_some_and(|layer| layer >= config.n_layer());
            let is_known = NOT_ADAPTED.iter().any(|part| tensor.contains(part));
            assert!(is_known || is_behind, "{name}: {tensor}");
            false
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn an_adapter_of_every_matrix_is_as_good_as_merged_weights() {
    let mut n_models = 0;
    for path in files() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).unwrap();
        let Some(mut wide) = Wide::of(&bytes) else {
            continue;
        };
        let base = wide.bytes();
        // Some fixtures are meant to be refused.
        let Ok(mut weights) = Weights::plan(&base) else {
            continue;
        };
        let config = weights.load(&base, 1).unwrap().config().clone();
        let mut factors = all_factors(&wide, 3, &mut Random(5));
        factors.retain(|pair| can_be_adapted(&name, &config, pair));
        if config.tied_output {
            // Merging would change the output layer, too.
            factors.retain(|pair| pair.tensor != "token_embd.weight");
        }
        let file = AdapterFile {
            path: name.clone(),
            factors,
            ..AdapterFile::default()
        };
        let adapter = LoadedAdapter::load(&config, &file, Precision::Exact).unwrap();
        let blend = AdapterBlend::new(vec![(adapter, 0.8)]);
        let n_vocab = u32::try_from(config.n_vocab).unwrap();
        let ids: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % n_vocab).collect();
        let plain = outputs(&base, (2, 20), None, &ids);
        let adapted = outputs(&base, (2, 20), Some(&blend), &ids);
        wide.merge(&file.factors, 0.8);
        let merged = outputs(&wide.bytes(), (2, 20), None, &ids);
        let (moved, distance) = (relative(&adapted, &plain), relative(&adapted, &merged));
        println!("{name}: moved {moved:.1e}, from merged {distance:.1e}");
        assert!(moved > 1e-2, "{name}: {moved}");
        assert!(
            distance < 1e-4 * moved.max(0.1),
            "{name}: {distance} {moved}"
        );
        if config.is_causal {
            for cut in [(1, 20), (3, 7), (2, 1)] {
                let again = outputs(&base, cut, Some(&blend), &ids);
                let is_same = again
                    .iter()
                    .zip(&adapted)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(is_same, "{name}: {cut:?}");
            }
        }
        n_models += 1;
    }
    assert!(n_models > 40, "{n_models}");
}

/// Coarser types are near the exact adapter.
#[test]
fn types_are_near_each_other() {
    let path = files()
        .into_iter()
        .find(|path| path.ends_with("llama-F32.gguf"));
    let bytes = std::fs::read(path.unwrap()).unwrap();
    let wide = Wide::of(&bytes).unwrap();
    let base = wide.bytes();
    let mut weights = Weights::plan(&base).unwrap();
    let config = weights.load(&base, 1).unwrap().config().clone();
    let file = AdapterFile {
        factors: all_factors(&wide, 8, &mut Random(5)),
        ..AdapterFile::default()
    };
    let ids = [3, 9, 27, 81, 5, 15, 45];
    let run = |precision| {
        let adapter = LoadedAdapter::load(&config, &file, precision).unwrap();
        outputs(&base, (1, 7), Some(&adapter.into()), &ids)
    };
    let plain = outputs(&base, (1, 7), None, &ids);
    let exact = run(Precision::Exact);
    let moved = relative(&exact, &plain);
    for (ty, most) in [
        (LoraType::F32, 0.0),
        (LoraType::F16, 1e-3),
        (LoraType::Bf16, 1e-2),
        (LoraType::Int8, 2e-2),
    ] {
        let distance = relative(&run(Precision::Type(ty)), &exact);
        println!("{}: {distance:.1e} of {moved:.1e}", ty.name());
        assert!(distance <= most * moved, "{} {distance} {moved}", ty.name());
    }
}

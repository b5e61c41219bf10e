//! A small run, for tests.

use super::{Checkpoint, CheckpointError, RunFolder, RunIdentity, TrainerState};
use crate::optimizer::{AdamW, AdamWOptions, TrainedTensor};
use core::num::NonZeroU64;
use serde_json::{Value, json};
use sluice::adapter::{AdapterFile, Factors};
use sluice_core::state::Identity;
use sluice_make::convert::FloatType;
use sluice_make::lora::PeftOptions;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of its own, removed at the end.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let name = format!("sluice-checkpoint-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _gone = fs::remove_dir_all(&path);
        Self(path)
    }

    pub(super) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

/// A run of one adapted matrix of the tale.
pub(super) struct Run {
    pub(super) adapter: AdapterFile,
    pub(super) optimizer: AdamW,
    pub(super) state: TrainerState,
    pub(super) identity: RunIdentity,
}

pub(super) const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tale-hf");
const N: usize = 256;
/// 1/3 and what JSON readers may take for its neighbour.
pub(super) const AWKWARD: f64 = 0.1 + 0.2 + 1.0 / 3.0;

impl Run {
    pub(super) fn new(rank: usize) -> Self {
        let tensor = |matrix: &str, shape, start| TrainedTensor {
            name: format!("base_model.model.model.layers.0.self_attn.q_proj.lora_{matrix}.weight"),
            shape,
            range: start..start + N * rank,
            is_b: matrix == "B",
        };
        let tensors = vec![tensor("A", [rank, N], 0), tensor("B", [N, rank], N * rank)];
        let options = AdamWOptions {
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: None,
            b_ratio: 1.0,
        };
        Self {
            adapter: AdapterFile::default(),
            optimizer: AdamW::new(options, tensors),
            state: TrainerState {
                max_steps: 100,
                ..TrainerState::default()
            },
            identity: identity(&[], 1, 2),
        }
    }

    pub(super) fn step(&mut self) {
        let n = self.optimizer.moments()[0].len();
        self.state.global_step += 1;
        let step = self.state.global_step;
        let mut gradients: Vec<f32> = (0_u16..)
            .map(|i| f32::from(i).sqrt() / step as f32)
            .take(n)
            .collect();
        let mut values: Vec<f32> = (0_u16..).map(|i| f32::from(i) + 0.1).take(n).collect();
        let applied = self
            .optimizer
            .apply(&mut values, &mut gradients, NonZeroU64::MIN, 1e-3);
        applied.unwrap();
        let (a, b) = values.split_at(n / 2);
        self.adapter.factors = vec![Factors {
            tensor: "blk.0.attn_q.weight".to_owned(),
            part: None,
            rank: n / 2 / N,
            a: a.to_vec(),
            b: b.to_vec(),
            scale: 2.0,
        }];
        self.state.epoch = AWKWARD * step as f64;
        self.state
            .log_history
            .push(json!({"step": step, "loss": 1.5}));
    }

    pub(super) fn save(&self, folder: &RunFolder) -> Result<PathBuf, CheckpointError> {
        folder.save(&Checkpoint {
            adapter: &self.adapter,
            peft: PeftOptions {
                float: FloatType::F32,
                base: Some(Path::new(BASE)),
                model: None,
                overwrite: false,
            },
            optimizer: &self.optimizer,
            state: &self.state,
            identity: &self.identity,
        })
    }
}

pub(super) fn identity(settings: &[(&'static str, Value)], model: u8, data: u8) -> RunIdentity {
    let [model, data] = [model, data].map(|byte| Identity([byte; 32]));
    let mut all = vec![("learning_rate", json!(AWKWARD)), ("seed", json!(42))];
    all.retain(|(key, _)| settings.iter().all(|(other, _)| other != key));
    all.extend(settings.iter().cloned());
    RunIdentity::of(&all, model, data)
}

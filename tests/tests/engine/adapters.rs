//! Adapters: equivalent to weights with their product added, whatever else is in the batch.

use super::selectors::Mask;
use super::{F32, Q8_0, ids, limits, logits, plain, refusal};
use sluice_core::engine::{
    Adapter, AdapterEmbedding, AdapterError, AdapterPair, BatchEntry, Blend, BlendPart,
    EngineError, EngineLimits, StepOptions, Wants,
};
use sluice_core::kernels::KvType;
use sluice_core::kernels::activation::ActivationKinds;
use sluice_core::kernels::lora::{LoraMatrix, LoraType};
use sluice_core::model::Site;
use sluice_core::team::StopFlag;
use sluice_tests::build::{File, Random, Shape};
use sluice_tests::drive::{Bench, Rows, step_with};
use sluice_tests::run::{YieldWait, entries};

/// The matrices of an adapter: `a` is (rank, n_cols), `b` is (n_rows, rank).
pub(super) struct Pair {
    rank: usize,
    a: Vec<f32>,
    b: Vec<f32>,
    ty: LoraType,
    memory: [Vec<u8>; 2],
}

impl Pair {
    fn new(seed: u64, rank: usize, n_cols: usize, n_rows: usize) -> Self {
        Self::of(LoraType::F32, seed, rank, n_cols, n_rows)
    }

    pub(super) fn of(ty: LoraType, seed: u64, rank: usize, n_cols: usize, n_rows: usize) -> Self {
        let mut random = Random(seed);
        let mut vector = |n| (0..n).map(|_| 0.2 * random.signed()).collect();
        let (a, b): (Vec<f32>, Vec<f32>) = (vector(rank * n_cols), vector(n_rows * rank));
        let pack = |shape: [usize; 2], values: &[f32]| {
            let n = LoraMatrix::bytes_of(ty, shape[0], shape[1]).expect("a small one");
            let mut memory = vec![0; n];
            LoraMatrix::pack(ty, shape, values, &mut memory).expect("sound numbers");
            memory
        };
        let memory = [pack([rank, n_cols], &a), pack([n_rows, rank], &b)];
        Self {
            rank,
            a,
            b,
            ty,
            memory,
        }
    }

    fn matrices(&self) -> [LoraMatrix<'_>; 2] {
        let (rank, [a, b]) = (self.rank, &self.memory);
        let shapes = [[rank, self.a.len() / rank], [self.b.len() / rank, rank]];
        [
            LoraMatrix::new(self.ty, shapes[0], a).expect("as it was packed"),
            LoraMatrix::new(self.ty, shapes[1], b).expect("as it was packed"),
        ]
    }

    pub(super) fn at(&self, layer: usize, site: Site, part: Option<u32>) -> AdapterPair<'_> {
        let [a, b] = self.matrices();
        AdapterPair {
            layer,
            site,
            part,
            a,
            b,
            scale: 1.0,
        }
    }

    /// What it adds to weight (row, column).
    fn product(&self, row: usize, column: usize) -> f32 {
        let n_cols = self.a.len() / self.rank;
        let of_rank = |r: usize| self.b[row * self.rank + r] * self.a[r * n_cols + column];
        (0..self.rank).map(of_rank).sum()
    }
}

/// Every linear layer of layer 1 and the output layer: name, inputs, outputs.
pub(super) const SITES: [(Site, &str, usize, usize); 8] = [
    (Site::AttnQ, "blk.1.attn_q", 256, 256),
    (Site::AttnK, "blk.1.attn_k", 256, 128),
    (Site::AttnV, "blk.1.attn_v", 256, 128),
    (Site::AttnOutput, "blk.1.attn_output", 256, 256),
    (Site::FfnGate, "blk.1.ffn_gate", 256, 768),
    (Site::FfnUp, "blk.1.ffn_up", 256, 768),
    (Site::FfnDown, "blk.1.ffn_down", 768, 256),
    (Site::Output, "output", 256, 300),
];

/// A blend of one adapter.
pub(super) fn alone<'a>(adapter: &'a Adapter<'a>) -> [BlendPart<'a>; 1] {
    [BlendPart {
        adapter,
        scale: 1.0,
    }]
}

/// The layer of a matrix of [`SITES`].
pub(super) fn layer_of(site: Site) -> usize {
    usize::from(site != Site::Output)
}

fn relative(actual: &[f32], expected: &[f32]) -> f32 {
    let distance = actual.iter().zip(expected).map(|(a, b)| (a - b) * (a - b));
    let norm = expected.iter().map(|x| x * x);
    (distance.sum::<f32>() / norm.sum::<f32>()).sqrt()
}

/// An adapter is worth the same as adding its product to the weights, for the entries that name
/// it, and nothing for the others.
#[test]
fn adapters_act_as_if_added_to_the_weights() {
    let limits = EngineLimits {
        adapter_rank: 16,
        type_k: KvType::F32,
        type_v: KvType::F32,
        ..limits(2)
    };
    for (site, name, n_cols, n_rows) in SITES {
        let layer = layer_of(site);
        let pair = Pair::new(3, 3, n_cols, n_rows);
        let mut file = F32.file();
        let tensor = file.tensor(&format!("{name}.weight"));
        for (i, bytes) in tensor.data.chunks_exact_mut(4).enumerate() {
            let x = f32::from_le_bytes(bytes.try_into().unwrap());
            let x = x + pair.product(i / n_cols, i % n_cols);
            bytes.copy_from_slice(&x.to_le_bytes());
        }
        // Two sequences of the same tokens in one batch, of which one is adapted.
        let ids = ids(10);
        let batch = |adapted: Option<u32>| {
            let mut batch = entries(&ids, 0, 0);
            batch.extend(entries(&ids, 1, 0));
            batch[10..]
                .iter_mut()
                .for_each(|entry| entry.adapter = adapted);
            batch
        };
        let merged =
            Bench::of(&file).with(&limits, |engine| step_with(engine, &batch(None), |_| ()));
        Bench::new(&F32).with(&limits, |engine| {
            let plain = step_with(engine, &batch(None), |_| ());
            engine.state_mut().clear(0).unwrap();
            engine.state_mut().clear(1).unwrap();
            let (entry, n) = (10, 0);
            let unknown = EngineError::UnknownAdapter { entry, adapter: n };
            assert_eq!(refusal(engine, &batch(Some(n))), unknown);
            let pairs = [pair.at(layer, site, None)];
            let adapter = Adapter::new(engine.model().config(), &pairs, None).unwrap();
            let parts = alone(&adapter);
            let adapters = [Blend { parts: &parts }];
            let mixed = step_with(engine, &batch(Some(n)), |options| {
                options.adapters = &adapters
            });
            assert_eq!(mixed.logits[..10], plain.logits[..10], "{name}");
            for i in 10..20 {
                let row = |rows: &Rows| rows.logits[i].clone().unwrap();
                // Whatever query and key are, the first token attends to itself alone.
                let moved = relative(&row(&mixed), &row(&plain));
                assert!(moved > 1e-4 || i == 10, "{name}: {moved}");
                let distance = relative(&row(&mixed), &row(&merged));
                assert!(distance < 1e-5, "{name}: {distance}");
            }
        });
    }
}

/// Several adapters of several ranks at all matrices of a layer, mixed in a batch: each row has the bits
/// that it has alone, with any number of workers and any cut.
#[test]
fn a_row_with_an_adapter_has_the_bits_that_it_has_alone() {
    // In the order of pairs: the output layer counts as layer 0.
    let mut sites = SITES;
    sites.rotate_right(1);
    let of_rank = |rank: usize| -> Vec<Pair> {
        let sites = sites.iter().zip(7 * rank as u64..);
        sites
            .map(|((_, _, n_cols, n_rows), seed)| Pair::new(seed, rank, *n_cols, *n_rows))
            .collect()
    };
    let pairs = [1, 5, 16].map(of_rank);
    let pairs = pairs.each_ref().map(|pairs| {
        let sites = sites.map(|(site, ..)| site);
        let pairs = pairs.iter().zip(sites);
        let at = pairs.map(|(pair, site)| pair.at(layer_of(site), site, None));
        at.collect::<Vec<AdapterPair<'_>>>()
    });
    let config = Bench::new(&Q8_0).with(&limits(1), |engine| engine.model().config().clone());
    let adapters = pairs
        .each_ref()
        .map(|pairs| Adapter::new(&config, pairs, None).unwrap());
    let parts = adapters.each_ref().map(alone);
    let adapters: Vec<_> = parts.iter().map(|parts| Blend { parts }).collect();
    let ids = ids(12);
    let adapter_of = |sequence: u32| sequence.checked_sub(1);
    let run = |n_workers, sequences: &[u32], chunk: usize| {
        let limits = EngineLimits {
            adapter_rank: 16,
            n_batch: 64,
            n_outputs: 64,
            n_seq: 4,
            ..limits(n_workers)
        };
        Bench::new(&Q8_0).with(&limits, |engine| {
            let mut last = Vec::new();
            for (i, part) in ids.chunks(chunk).enumerate() {
                // Interleaved: neighbours have other adapters.
                let mut batch = Vec::new();
                for (j, &id) in part.iter().enumerate() {
                    for &sequence in sequences {
                        let position = u32::try_from(i * chunk + j).unwrap();
                        let mut entry = BatchEntry::new(id, sequence, position, Wants::Logits);
                        entry.adapter = adapter_of(sequence);
                        batch.push(entry);
                    }
                }
                let rows = step_with(engine, &batch, |options| options.adapters = &adapters);
                last = logits(&rows);
            }
            last.split_off(last.len() - sequences.len())
        })
    };
    let together = run(2, &[0, 1, 2, 3], 12);
    for sequence in 0..4 {
        for (n_workers, chunk) in [(1, 12), (3, 5), (2, 1)] {
            let alone = run(n_workers, &[sequence], chunk);
            assert_eq!(alone[0], together[sequence as usize], "{sequence} {chunk}");
        }
    }
    assert_ne!(together[1], together[0]);
    assert_ne!(together[2], together[1]);
}

/// Adapters of experts and of attention, over more rows than a product takes: the bits do not depend on how the text is
/// cut, and the result equals weights with the product added.
#[test]
fn adapters_of_experts_are_like_other_weights() {
    let shape = Shape {
        n_expert: 5,
        n_expert_used: 3,
        ..F32
    };
    let limits = |n_workers| EngineLimits {
        adapter_rank: 16,
        n_batch: 200,
        n_outputs: 200,
        ..limits(n_workers)
    };
    let (mut file, mut random) = (shape.file(), 9..);
    let mut of = |file: &mut File, (site, name, n_cols, n_rows), expert: Option<u32>| {
        let pair = Pair::new(random.next().unwrap(), 3, n_cols, n_rows);
        let first = expert.unwrap_or(0) as usize * n_rows * n_cols;
        let data = &mut file.tensor(name).data[4 * first..][..4 * n_rows * n_cols];
        for (i, bytes) in data.chunks_exact_mut(4).enumerate() {
            let x = f32::from_le_bytes(bytes.try_into().unwrap());
            let x = x + pair.product(i / n_cols, i % n_cols);
            bytes.copy_from_slice(&x.to_le_bytes());
        }
        (pair, site, expert)
    };
    let query = (Site::AttnQ, "blk.1.attn_q.weight", 256, 256);
    let mut pairs = vec![of(&mut file, query, None)];
    for matrix in [
        (Site::FfnGate, "blk.1.ffn_gate_exps.weight", 256, 768),
        (Site::FfnUp, "blk.1.ffn_up_exps.weight", 256, 768),
        (Site::FfnDown, "blk.1.ffn_down_exps.weight", 768, 256),
    ] {
        // The fourth has none.
        let experts = [0, 1, 2, 4].map(Some);
        pairs.extend(experts.map(|expert| of(&mut file, matrix, expert)));
    }
    let pairs: Vec<AdapterPair<'_>> = pairs
        .iter()
        .map(|(pair, site, expert)| pair.at(1, *site, *expert))
        .collect();
    let ids = ids(150);
    let run = |bench: &mut Bench, n_workers, chunk: usize, adapter: Option<u32>| {
        bench.with(&limits(n_workers), |engine| {
            let own = Adapter::new(engine.model().config(), &pairs, None).unwrap();
            let parts = alone(&own);
            let adapters = [Blend { parts: &parts }];
            let mut last = Vec::new();
            for (i, part) in ids.chunks(chunk).enumerate() {
                let mut batch = entries(part, 0, i * chunk);
                batch.iter_mut().for_each(|entry| entry.adapter = adapter);
                let rows = step_with(engine, &batch, |options| options.adapters = &adapters);
                last = logits(&rows);
            }
            last.pop().unwrap()
        })
    };
    let whole = run(&mut Bench::new(&shape), 2, 150, Some(0));
    for (n_workers, chunk) in [(1, 150), (3, 67), (2, 1)] {
        let cut = run(&mut Bench::new(&shape), n_workers, chunk, Some(0));
        assert_eq!(cut, whole, "{n_workers} {chunk}");
    }
    let of_bits = |bits: &[u32]| -> Vec<f32> { bits.iter().copied().map(f32::from_bits).collect() };
    let merged = run(&mut Bench::of(&file), 2, 150, None);
    let plain = run(&mut Bench::new(&shape), 2, 150, None);
    assert!(relative(&of_bits(&whole), &of_bits(&merged)) < 1e-5);
    assert!(relative(&of_bits(&plain), &of_bits(&merged)) > 1e-2);
}

/// A pair for a matrix that the model does not have, of another shape, or out of order is refused by name.
#[test]
fn adapters_are_checked_against_the_model() {
    let config = Bench::new(&F32).with(&limits(1), |engine| engine.model().config().clone());
    let (a, b, c) = (
        Pair::new(1, 2, 256, 256),
        Pair::new(2, 2, 256, 256),
        Pair::new(3, 2, 256, 768),
    );
    let sound = [
        a.at(0, Site::AttnQ, None),
        b.at(1, Site::AttnQ, None),
        c.at(1, Site::FfnGate, None),
    ];
    Adapter::new(&config, &sound, None).unwrap();
    let refused = |index: usize, change: fn(&mut AdapterPair<'_>)| {
        let mut pairs = sound;
        change(&mut pairs[index]);
        Adapter::new(&config, &pairs, None).map(drop).unwrap_err()
    };
    let (not_sorted, no_matrix, shape) = (
        |index| AdapterError::NotSorted { index },
        |index| AdapterError::NoMatrix { index },
        |index| AdapterError::Shape { index },
    );
    assert_eq!(refused(1, |pair| pair.layer = 0), not_sorted(1));
    assert_eq!(refused(2, |pair| pair.layer = 9), no_matrix(2));
    assert_eq!(refused(2, |pair| pair.part = Some(0)), no_matrix(2));
    assert_eq!(
        refused(2, |pair| pair.site = Site::FfnGateInp),
        no_matrix(2)
    );
    assert_eq!(refused(2, |pair| pair.site = Site::FfnDown), shape(2));
    assert_eq!(refused(0, |pair| pair.a = pair.b), shape(0));
    assert_eq!(refused(1, |pair| pair.scale = f32::NAN), shape(1));
    let embedding = |pair: &Pair| {
        let [a, b] = pair.matrices();
        let embedding = AdapterEmbedding { a, b, scale: 1.0 };
        Adapter::new(&config, &sound, Some(embedding)).map(drop)
    };
    let sound_one = Pair::new(4, 2, 300, 256);
    embedding(&sound_one).unwrap();
    assert_eq!(embedding(&a).unwrap_err(), AdapterError::EmbeddingShape);
}

/// Room for adapters alone changes no bit, and without room they are refused.
#[test]
fn room_for_adapters_changes_no_bit() {
    for shape in [F32, Q8_0] {
        let run = |adapter_rank| {
            let limits = EngineLimits {
                adapter_rank,
                observes: adapter_rank > 0,
                selects: adapter_rank > 0,
                ..limits(2)
            };
            Bench::new(&shape).with(&limits, |engine| plain(engine, &entries(&ids(12), 0, 0)))
        };
        assert_eq!(run(8), run(0));
    }
    Bench::new(&F32).with(&limits(1), |engine| {
        let pair = Pair::new(1, 2, 256, 256);
        let pairs = [pair.at(1, Site::AttnQ, None)];
        let adapter = Adapter::new(engine.model().config(), &pairs, None).unwrap();
        let parts = alone(&adapter);
        let adapters = [Blend { parts: &parts }];
        let stop = StopFlag::new();
        let batch = entries(&ids(3), 0, 0);
        let mut options = StepOptions::new(&YieldWait, &stop);
        options.adapters = &adapters;
        let error = EngineError::AdapterRank { rank: 16, max: 0 };
        assert_eq!(engine.step(&batch, options).map(drop).unwrap_err(), error);
        let mask = Mask(vec![None, None]);
        options.adapters = &[];
        options.selector = Some(&mask);
        let error = EngineError::NotMadeFor { what: "selects" };
        assert_eq!(engine.step(&batch, options).map(drop).unwrap_err(), error);
    });
}

/// Inputs kept in just the kind that adapters multiply give the bits of inputs in all kinds, and adapters of
/// another kind are refused.
#[test]
fn inputs_are_kept_for_the_adapters_that_there_are() {
    let of = |ty, kinds: Option<ActivationKinds>| {
        let mut limits = EngineLimits {
            adapter_rank: 16,
            ..limits(2)
        };
        limits.adapter_kinds = kinds.unwrap_or(limits.adapter_kinds);
        let pairs = SITES.map(|(site, _, n_cols, n_rows)| {
            (layer_of(site), site, Pair::of(ty, 7, 4, n_cols, n_rows))
        });
        let mut pairs = pairs
            .each_ref()
            .map(|(layer, site, pair)| pair.at(*layer, *site, None));
        pairs.sort_by_key(|pair| (pair.layer, pair.site));
        Bench::new(&Q8_0).with(&limits, |engine| {
            let adapter = Adapter::new(engine.model().config(), &pairs, None).unwrap();
            let parts = alone(&adapter);
            let adapters = [Blend { parts: &parts }];
            let mut batch = entries(&ids(20), 0, 0);
            batch.iter_mut().for_each(|entry| entry.adapter = Some(0));
            let stop = StopFlag::new();
            let mut options = StepOptions::new(&YieldWait, &stop);
            options.adapters = &adapters;
            if !limits.adapter_kinds.contains(adapters[0].kinds()) {
                return Err(engine.step(&batch, options).map(drop).unwrap_err());
            }
            let rows = step_with(engine, &batch, |options| options.adapters = &adapters);
            Ok(logits(&rows))
        })
    };
    for ty in LoraType::ALL {
        assert_eq!(of(ty, Some(ty.activations())), of(ty, None));
        let others = ActivationKinds::all().difference(ty.activations());
        let what = "adapter_kinds";
        assert_eq!(of(ty, Some(others)), Err(EngineError::NotMadeFor { what }));
    }
}

/// Blends add the products of their adapters, one after the other.
#[test]
fn blends_are_sums_of_adapters() {
    let pairs = [Pair::new(1, 3, 256, 256), Pair::new(2, 5, 256, 256)];
    let mut file = F32.file();
    for (i, bytes) in file
        .tensor("blk.1.attn_q.weight")
        .data
        .chunks_exact_mut(4)
        .enumerate()
    {
        let x = f32::from_le_bytes(bytes.try_into().unwrap());
        let products = pairs.each_ref().map(|pair| pair.product(i / 256, i % 256));
        let x = x + 0.5 * products[0] - 2.0 * products[1];
        bytes.copy_from_slice(&x.to_le_bytes());
    }
    let limits = EngineLimits {
        adapter_rank: 32,
        type_k: KvType::F32,
        type_v: KvType::F32,
        ..limits(2)
    };
    let batch = |adapter| {
        let mut batch = entries(&ids(10), 0, 0);
        batch.iter_mut().for_each(|entry| entry.adapter = adapter);
        batch
    };
    let merged = Bench::of(&file).with(&limits, |engine| step_with(engine, &batch(None), |_| ()));
    Bench::new(&F32).with(&limits, |engine| {
        let config = engine.model().config().clone();
        let at = pairs.each_ref().map(|pair| [pair.at(1, Site::AttnQ, None)]);
        let both = at
            .each_ref()
            .map(|pairs| Adapter::new(&config, pairs, None).unwrap());
        let scales = [0.5, -2.0];
        let parts = [0, 1].map(|i| BlendPart {
            adapter: &both[i],
            scale: scales[i],
        });
        let adapters = [Blend { parts: &parts }];
        assert_eq!(adapters[0].rank(), 32);
        let blended = step_with(engine, &batch(Some(0)), |options| {
            options.adapters = &adapters;
        });
        for i in 0..10 {
            let row = |rows: &Rows| rows.logits[i].clone().unwrap();
            assert!(relative(&row(&blended), &row(&merged)) < 1e-5);
        }
    });
}

//! Adapters: worth the same as weights with their product added, whoever shares the batch.

use super::selectors::Mask;
use super::{F32, Q8_0, ids, limits, logits, plain, refusal};
use sluice_core::engine::{
    Adapter, AdapterError, AdapterPair, BatchEntry, EngineError, Limits, StepOptions, Wants,
};
use sluice_core::kernels::KvType;
use sluice_core::model::{Site, Weight};
use sluice_core::team::StopFlag;
use sluice_tests::build::{File, Random, Shape};
use sluice_tests::drive::{Bench, Rows, step_with};
use sluice_tests::run::{Aligned, YieldWait, entries};

/// The matrices of an adapter: `a` is (rank, n_cols), `b` is (n_rows, rank).
struct Pair {
    rank: usize,
    a: Vec<f32>,
    b: Vec<f32>,
    memory: [Aligned; 2],
}

impl Pair {
    fn new(seed: u64, rank: usize, n_cols: usize, n_rows: usize) -> Self {
        let mut random = Random(seed);
        let mut vector = |n| (0..n).map(|_| 0.2 * random.signed()).collect();
        let (a, b) = (vector(rank * n_cols), vector(n_rows * rank));
        let bytes = |rows, cols| Aligned::new(Weight::f32_bytes(rows, cols).expect("a small one"));
        let memory = [bytes(rank, n_cols), bytes(n_rows, rank)];
        Self { rank, a, b, memory }
    }

    fn at(&mut self, layer: usize, site: Site, expert: Option<u32>) -> AdapterPair<'_> {
        let (rank, [a, b]) = (self.rank, &mut self.memory);
        let shapes = [(rank, self.a.len() / rank), (self.b.len() / rank, rank)];
        AdapterPair {
            layer,
            site,
            expert,
            a: Weight::pack_f32(shapes[0], &self.a, a.bytes_mut()).expect("room for it"),
            b: Weight::pack_f32(shapes[1], &self.b, b.bytes_mut()).expect("room for it"),
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
const SITES: [(Site, &str, usize, usize); 8] = [
    (Site::AttnQ, "blk.1.attn_q", 256, 256),
    (Site::AttnK, "blk.1.attn_k", 256, 128),
    (Site::AttnV, "blk.1.attn_v", 256, 128),
    (Site::AttnOutput, "blk.1.attn_output", 256, 256),
    (Site::FfnGate, "blk.1.ffn_gate", 256, 768),
    (Site::FfnUp, "blk.1.ffn_up", 256, 768),
    (Site::FfnDown, "blk.1.ffn_down", 768, 256),
    (Site::Output, "output", 256, 300),
];

fn relative(actual: &[f32], expected: &[f32]) -> f32 {
    let distance = actual.iter().zip(expected).map(|(a, b)| (a - b) * (a - b));
    let norm = expected.iter().map(|x| x * x);
    (distance.sum::<f32>() / norm.sum::<f32>()).sqrt()
}

/// An adapter is worth the same as adding its product to the weights, for the entries that name
/// it, and nothing for the others.
#[test]
fn adapters_act_as_if_added_to_the_weights() {
    let limits = Limits {
        adapter_rank: 3,
        type_k: KvType::F32,
        type_v: KvType::F32,
        ..limits(2)
    };
    for (site, name, n_cols, n_rows) in SITES {
        let layer = usize::from(site != Site::Output);
        let mut pair = Pair::new(3, 3, n_cols, n_rows);
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
            let adapters = [Adapter::new(engine.model().config(), &pairs).unwrap()];
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
    let mut pairs = [1, 5, 16].map(of_rank);
    let pairs = pairs.each_mut().map(|pairs| -> Vec<AdapterPair<'_>> {
        let at = |(pair, site): (_, Site)| {
            let pair: &mut Pair = pair;
            pair.at(usize::from(site != Site::Output), site, None)
        };
        pairs
            .iter_mut()
            .zip(sites.map(|(site, ..)| site))
            .map(at)
            .collect()
    });
    let config = Bench::new(&Q8_0).with(&limits(1), |engine| engine.model().config().clone());
    let adapters: Vec<Adapter<'_>> = pairs
        .iter()
        .map(|pairs| Adapter::new(&config, pairs).unwrap())
        .collect();
    let ids = ids(12);
    let adapter_of = |sequence: u32| sequence.checked_sub(1);
    let run = |n_workers, sequences: &[u32], chunk: usize| {
        let limits = Limits {
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

/// Adapters of experts and of attention, over more rows than a product takes: the bits do not depend on how the
/// text is cut, and the result is that of weights with the product added.
#[test]
fn adapters_of_experts_are_like_other_weights() {
    let shape = Shape {
        n_expert: 5,
        n_expert_used: 3,
        ..F32
    };
    let limits = |n_workers| Limits {
        adapter_rank: 3,
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
        .iter_mut()
        .map(|(pair, site, expert)| pair.at(1, *site, *expert))
        .collect();
    let ids = ids(150);
    let run = |bench: &mut Bench, n_workers, chunk: usize, adapter: Option<u32>| {
        bench.with(&limits(n_workers), |engine| {
            let adapters = [Adapter::new(engine.model().config(), &pairs).unwrap()];
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
    let (mut a, mut b, mut c) = (
        Pair::new(1, 2, 256, 256),
        Pair::new(2, 2, 256, 256),
        Pair::new(3, 2, 256, 768),
    );
    let sound = [
        a.at(0, Site::AttnQ, None),
        b.at(1, Site::AttnQ, None),
        c.at(1, Site::FfnGate, None),
    ];
    Adapter::new(&config, &sound).unwrap();
    let refused = |index: usize, change: fn(&mut AdapterPair<'_>)| {
        let mut pairs = sound;
        change(&mut pairs[index]);
        Adapter::new(&config, &pairs).map(drop).unwrap_err()
    };
    let (not_sorted, no_matrix, shape) = (
        |index| AdapterError::NotSorted { index },
        |index| AdapterError::NoMatrix { index },
        |index| AdapterError::Shape { index },
    );
    assert_eq!(refused(1, |pair| pair.layer = 0), not_sorted(1));
    assert_eq!(refused(2, |pair| pair.layer = 9), no_matrix(2));
    assert_eq!(refused(2, |pair| pair.expert = Some(0)), no_matrix(2));
    assert_eq!(
        refused(2, |pair| pair.site = Site::FfnGateInp),
        no_matrix(2)
    );
    assert_eq!(refused(2, |pair| pair.site = Site::FfnDown), shape(2));
    assert_eq!(refused(0, |pair| pair.a.first_row = 16), shape(0));
    assert_eq!(refused(0, |pair| pair.b.n_rows = 16), shape(0));
}

/// Room for adapters alone changes no bit, and without room they are refused.
#[test]
fn room_for_adapters_changes_no_bit() {
    for shape in [F32, Q8_0] {
        let run = |adapter_rank| {
            let limits = Limits {
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
        let mut pair = Pair::new(1, 2, 256, 256);
        let pairs = [pair.at(1, Site::AttnQ, None)];
        let adapters = [Adapter::new(engine.model().config(), &pairs).unwrap()];
        let stop = StopFlag::new();
        let batch = entries(&ids(3), 0, 0);
        let mut options = StepOptions::new(&YieldWait, &stop);
        options.adapters = &adapters;
        let error = EngineError::AdapterRank { rank: 2, max: 0 };
        assert_eq!(engine.step(&batch, options).map(drop).unwrap_err(), error);
        let mask = Mask(vec![None, None]);
        options.adapters = &[];
        options.selector = Some(&mask);
        let error = EngineError::NotMadeFor { what: "selects" };
        assert_eq!(engine.step(&batch, options).map(drop).unwrap_err(), error);
    });
}

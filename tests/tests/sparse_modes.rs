//! Modes that leave out neurons that matter little: what they leave out against a reference that sorts, the error bound of
//! budgets, and the same bits in any company.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice_core::engine::{
    Approximation, EngineError, EngineLimits, NeuronRule, NeuronSignal, Neurons, Observer,
    SiteInput, Sparse, StepOptions, Wants,
};
use sluice_core::kernels::{GgmlType, KernelTable, KvType};
use sluice_core::model::{ModelWeights, Site};
use sluice_core::team::StopFlag;
use sluice_make::slc::FfnLayout;
use sluice_tests::build::{File, Random, Shape};
use sluice_tests::packing::{InPlace, packed};
use sluice_tests::reference::dequant::dequantise;
use sluice_tests::run::{self, Aligned, Room, Weights, YieldWait, entries};
use std::sync::Mutex;

const SIGNALS: [NeuronSignal; 3] = [
    NeuronSignal::Gate,
    NeuronSignal::Product,
    NeuronSignal::Contribution,
];

/// What a layer reads and shows.
#[derive(Default)]
struct Seen {
    /// Input of gate, (n_embd).
    input: Mutex<Vec<f32>>,
    /// Input of down, (n_ff).
    neurons: Mutex<Vec<f32>>,
    /// Signals in the order of neurons: of one row and one worker.
    signals: Mutex<Vec<f32>>,
}

impl Observer for Seen {
    fn sees(&self, seen: SiteInput<'_>) {
        let room = match seen.site {
            Site::FfnGate => &self.input,
            Site::FfnDown => &self.neurons,
            _ => return,
        };
        *room.lock().unwrap() = seen.input.to_vec();
    }

    fn sees_signals(&self, _: usize, signals: &[f32]) {
        self.signals.lock().unwrap().extend(signals);
    }
}

fn limits(n_workers: usize) -> EngineLimits {
    EngineLimits {
        n_batch: 64,
        n_outputs: 64,
        type_k: KvType::F32,
        type_v: KvType::F32,
        observes: true,
        ranks_gates: true,
        ..EngineLimits::single(64, n_workers)
    }
}

const fn ask<'s>(signal: NeuronSignal, rule: NeuronRule<'s>, norms: &'s [f32]) -> Sparse<'s> {
    Sparse::Approximate(Approximation {
        signal,
        rule,
        norms,
    })
}

/// The norms of all layers.
fn norms(model: &ModelWeights<'_>) -> Vec<f32> {
    let n = model.config().neurons_max();
    let mut norms = vec![0.0; n * model.config().n_layer()];
    let mut room = Aligned::new(model.neuron_norms_room().unwrap());
    for (layer, norms) in norms.chunks_exact_mut(n).enumerate() {
        model.neuron_norms(layer, room.bytes_mut(), norms).unwrap();
    }
    norms
}

/// The stream after the only layer, from one row before it; what was seen; neurons.
fn layer(model: ModelWeights<'_>, stream: &[f32], sparse: Sparse<'_>) -> (Vec<f32>, Seen, Neurons) {
    let (limits, seen, stop) = (limits(1), Seen::default(), StopFlag::new());
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model, run::table(), &limits).unwrap();
    let mut batch = entries(&[1], 0, 0);
    batch[0].wants = Wants::Hidden;
    let options = StepOptions {
        sparse,
        observer: Some(&seen),
        ..StepOptions::new(&YieldWait, &stop)
    };
    let step = engine.step_layers(0..1, stream, &batch, options).unwrap();
    step.join(0).unwrap().run().unwrap();
    let outputs = step.finish().unwrap();
    let neurons = outputs.report().neurons;
    (outputs.hidden(0).unwrap().to_vec(), seen, neurons)
}

fn file(shape: &Shape, activation: Option<&str>) -> File {
    let mut file = shape.file();
    if let Some(name) = activation {
        file.set("llama.activation", name);
    }
    file
}

fn one_layer(ty: GgmlType) -> Shape {
    Shape {
        ty,
        n_layer: 1,
        n_embd: 256,
        n_ff: 768,
        ..Shape::SMALL
    }
}

/// A tensor's values, (rows, columns).
fn values(file: &File, name: &str) -> Vec<f32> {
    let tensor = file
        .tensors
        .iter()
        .find(|tensor| tensor.name == name)
        .unwrap();
    let n = usize::try_from(tensor.dims.iter().product::<u64>()).unwrap();
    dequantise(tensor.ty as u32, &tensor.data, n).unwrap()
}

/// The values that int8 codes with a scale for `block` columns stand for.
fn quantised(x: &[f32], block: usize) -> Vec<f32> {
    let of_block = |x: &[f32]| {
        let amax = x.iter().fold(0f32, |max, x| max.max(x.abs()));
        let (d, inverse) = match amax < 1e-30 {
            true => (0.0, 0.0),
            false => (amax / 127.0, 127.0 / amax),
        };
        x.iter()
            .map(|x| (x * inverse).round_ties_even() * d)
            .collect::<Vec<f32>>()
    };
    x.chunks(block).flat_map(of_block).collect()
}

/// Which neurons a rule keeps, by sorting.
fn kept(signals: &[f32], rule: NeuronRule<'_>) -> Vec<bool> {
    let mut order: Vec<usize> = (0..signals.len()).collect();
    order.sort_by(|&a, &b| signals[b].total_cmp(&signals[a]).then(a.cmp(&b)));
    let n_kept = match rule {
        NeuronRule::Threshold(values) => signals.iter().filter(|x| **x > values[0]).count(),
        NeuronRule::Count(n) => n,
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "small"
        )]
        NeuronRule::Share(values) => (f64::from(values[0]) * signals.len() as f64).round() as usize,
        NeuronRule::Budget(share) => {
            let squares: f64 = signals.iter().map(|x| f64::from(*x).powi(2)).sum();
            let (max, mut sum) = (f64::from(share) * squares.sqrt(), 0.0);
            let left_out = order.iter().rev().take_while(|i| {
                sum += f64::from(signals[**i]);
                sum <= max
            });
            signals.len() - left_out.count()
        }
    };
    let mut keeps = vec![false; signals.len()];
    order[..n_kept].iter().for_each(|i| keeps[*i] = true);
    keeps
}

/// Rows before a layer: ordinary, with outliers, mostly zero, all of one sign.
fn streams(n: usize) -> Vec<Vec<f32>> {
    let mut random = Random(5);
    let mut row = |f: fn(usize, f32) -> f32| (0..n).map(|i| f(i, random.signed())).collect();
    vec![
        row(|_, x| x),
        row(|i, x| if i % 97 == 3 { 300.0 * x } else { x }),
        row(|i, x| if i % 31 == 0 { x } else { 0.0 }),
        row(|_, x| x.abs() + 0.5),
    ]
}

/// Norm of the difference of two streams.
fn distance(a: &[f32], b: &[f64]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| (f64::from(*a) - b).powi(2))
        .sum::<f64>()
        .sqrt()
}

/// Norms are the roots of the sums of squares of `down`'s columns, or just above.
fn check_norms(norms: &[f32], down: &[f32]) {
    for (i, norm) in norms.iter().enumerate() {
        let rows = down.chunks_exact(norms.len());
        let exact = rows
            .map(|row| f64::from(row[i]).powi(2))
            .sum::<f64>()
            .sqrt();
        let above = f64::from(*norm) / exact - 1.0;
        assert!((0.0..2.5e-7).contains(&above), "{above}");
    }
}

/// Calls `check` with rules that leave out few and many neurons of a row.
fn for_each_rule(signal: NeuronSignal, signals: &[f32], mut check: impl FnMut(NeuronRule<'_>)) {
    let mut sorted = signals.to_vec();
    sorted.sort_by(f32::total_cmp);
    for threshold in [sorted[500], sorted[767], 0.0] {
        check(NeuronRule::Threshold(&[threshold]));
    }
    for share in [0.25, 0.0] {
        check(NeuronRule::Share(&[share]));
    }
    for n in [1, 300, 767, 768] {
        check(NeuronRule::Count(n));
    }
    if signal == NeuronSignal::Contribution {
        for share in [0.001, 0.05, 0.5, 30.0] {
            check(NeuronRule::Budget(share));
        }
    }
}

#[test]
fn rules_keep_what_sorting_keeps_and_budgets_hold() {
    for (ty, block) in [
        (GgmlType::Q8_0, 32),
        (GgmlType::Q4_K, 256),
        (GgmlType::Q4_1, 32),
    ] {
        for activation in [None, Some("relu"), Some("drelu")] {
            let file = file(&one_layer(ty), activation);
            for stream in streams(256) {
                check_rules(&file, activation, block, &stream);
            }
        }
    }
}

/// Each signal and rule on a row, against sorted signals of values quantised by hand.
fn check_rules(file: &File, activation: Option<&str>, block: usize, stream: &[f32]) {
    let bytes = file.bytes();
    let mut weights = Weights::plan(&bytes).unwrap();
    let norms = norms(&weights.load(&bytes, 1).unwrap());
    let down = values(file, "blk.0.ffn_down.weight");
    check_norms(&norms, &down);
    let mut run = |sparse: Sparse<'_>| layer(weights.load(&bytes, 1).unwrap(), stream, sparse);
    let (dense, seen, _) = run(Sparse::Off);
    let h = seen.neurons.into_inner().unwrap();
    let codes = quantised(&h, block);
    for signal in SIGNALS {
        let (_, seen, _) = run(ask(signal, NeuronRule::Threshold(&[-1.0]), &norms));
        let signals = seen.signals.into_inner().unwrap();
        let sizes = codes.iter().map(|x| x.abs());
        match signal {
            NeuronSignal::Gate => {
                let input = quantised(&seen.input.into_inner().unwrap(), block);
                check_gates(file, activation, &input, &signals);
            }
            NeuronSignal::Product => assert!(sizes.eq(signals.iter().copied())),
            NeuronSignal::Contribution => {
                let expected = sizes.zip(&norms).map(|(x, norm)| x * norm);
                assert!(expected.eq(signals.iter().copied()));
            }
        }
        for_each_rule(signal, &signals, |rule| {
            let case = format!("{activation:?} {block} {signal:?} {rule:?}");
            let keeps = kept(&signals, rule);
            let (found, seen, neurons) = run(ask(signal, rule, &norms));
            let n_out = keeps.iter().filter(|keeps| !**keeps).count();
            assert_eq!((neurons.n, neurons.n_skipped), (768, n_out), "{case}");
            let expected = h
                .iter()
                .zip(&keeps)
                .map(|(h, keeps)| if *keeps { *h } else { 0.0 });
            let left = seen.neurons.into_inner().unwrap();
            assert!(expected.eq(left.iter().copied()), "{case}");
            let streams = (&*dense, &*found);
            check_output(&case, signal, rule, streams, (&keeps, &codes, &down));
        });
    }
}

/// The stream differs by what was left out, and by a budget's share at most.
fn check_output(
    case: &str,
    signal: NeuronSignal,
    rule: NeuronRule<'_>,
    (dense, found): (&[f32], &[f32]),
    (keeps, codes, down): (&[bool], &[f32], &[f32]),
) {
    if signal == NeuronSignal::Gate {
        return;
    }
    let n_ff = keeps.len();
    let without: Vec<f64> = dense
        .iter()
        .zip(down.chunks_exact(n_ff))
        .map(|(x, row)| {
            let out = (0..n_ff).filter(|i| !keeps[*i]);
            f64::from(*x)
                - out
                    .map(|i| f64::from(codes[i]) * f64::from(row[i]))
                    .sum::<f64>()
        })
        .collect();
    let size = distance(dense, &vec![0.0; dense.len()]);
    assert!(distance(found, &without) < 2e-6 * size, "{case}");
    if let NeuronRule::Budget(share) = rule {
        let squares = (0..n_ff).map(|i| {
            let column = down
                .iter()
                .skip(i)
                .step_by(n_ff)
                .map(|x| f64::from(*x).powi(2));
            f64::from(codes[i]).powi(2) * column.sum::<f64>()
        });
        let bound = f64::from(share) * squares.sum::<f64>().sqrt();
        let dense: Vec<f64> = dense.iter().map(|x| f64::from(*x)).collect();
        assert!(distance(found, &dense) <= bound + 2e-6 * size, "{case}");
        let error = without.iter().zip(&dense).map(|(a, b)| (a - b).powi(2));
        assert!(error.sum::<f64>().sqrt() <= bound, "{case}");
    }
}

/// Signals are near the activated gates of the dequantised matrix.
fn check_gates(file: &File, activation: Option<&str>, input: &[f32], signals: &[f32]) {
    let gate = values(file, "blk.0.ffn_gate.weight");
    let expected: Vec<f64> = gate
        .chunks_exact(input.len())
        .map(|row| {
            let g: f64 = row
                .iter()
                .zip(input)
                .map(|(w, x)| f64::from(*w) * f64::from(*x))
                .sum();
            match activation {
                None => (g / (1.0 + (-g).exp())).abs(),
                Some(_) => g.max(0.0),
            }
        })
        .collect();
    let most = expected.iter().copied().fold(0.0, f64::max);
    for (x, expected) in signals.iter().zip(expected) {
        assert!(
            (f64::from(*x) - expected).abs() < 1e-5 * most + 1e-6,
            "{x} {expected}"
        );
    }
}

/// The logits of all tokens and the neurons of all steps.
fn logits(
    model: ModelWeights<'_>,
    table: &'static KernelTable,
    (n_workers, chunk): (usize, usize),
    sparse: Sparse<'_>,
) -> (Vec<Vec<f32>>, Neurons) {
    let limits = EngineLimits {
        observes: false,
        ..limits(n_workers)
    };
    let ids: Vec<u32> = (0..16).map(|i| (7 * i * i + 11 * i + 5) % 300).collect();
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model, table, &limits).unwrap();
    let stop = StopFlag::new();
    let options = StepOptions {
        sparse,
        ..StepOptions::new(&YieldWait, &stop)
    };
    run::in_steps(&mut engine, &ids, chunk, options).unwrap()
}

/// Networks and mixtures with partial groups.
fn shapes(ty: GgmlType) -> [Shape; 2] {
    let dense = Shape {
        ty,
        n_embd: if ty.block_len() > 32 { 256 } else { 288 },
        n_ff: if ty.block_len() > 32 { 768 } else { 352 },
        ..Shape::SMALL
    };
    let mixture = Shape {
        n_expert: 4,
        n_expert_used: 2,
        ..dense
    };
    [dense, mixture]
}

#[test]
fn modes_have_the_same_bits_in_any_company() {
    for ty in [GgmlType::Q4_0, GgmlType::Q6_K] {
        for (shape, activation) in shapes(ty)
            .into_iter()
            .flat_map(|s| [(s, None), (s, Some("relu"))])
        {
            let bytes = file(&shape, activation).bytes();
            let mut weights = Weights::plan(&bytes).unwrap();
            let mut in_place = InPlace::new(packed(&bytes, FfnLayout::Neurons).unwrap()).unwrap();
            let norms = norms(&weights.load(&bytes, 1).unwrap());
            let by_neuron = self::norms(&in_place.model().unwrap());
            assert!(norms == by_neuron);
            let plain = |weights: &mut Weights, sparse: Sparse<'_>| {
                logits(
                    weights.load(&bytes, 1).unwrap(),
                    run::table(),
                    (1, 1),
                    sparse,
                )
                .0
            };
            let exact = plain(&mut weights, Sparse::Exact);
            for signal in SIGNALS {
                let values = vec![0.1; shape.n_layer as usize];
                let shares = vec![0.3, 0.6];
                let mut rules = vec![NeuronRule::Threshold(&values)];

                rules.extend([NeuronRule::Share(&shares), NeuronRule::Count(100)]);
                if signal == NeuronSignal::Contribution {
                    rules.push(NeuronRule::Budget(0.2));
                }
                for rule in rules {
                    let sparse = Sparse::Approximate(Approximation {
                        signal,
                        rule,
                        norms: &norms,
                    });
                    let expected = plain(&mut weights, sparse);
                    let case =
                        format!("{ty} {} {activation:?} {signal:?} {rule:?}", shape.n_expert);
                    assert!(expected != exact, "{case}");
                    for table in run::tables() {
                        for way in [(1, 1), (3, 2), (2, 5), (2, 16)] {
                            let found =
                                logits(weights.load(&bytes, 1).unwrap(), table, way, sparse);
                            assert!(found.0 == expected, "{case} {} {way:?}", table.name());
                            let other = logits(in_place.model().unwrap(), table, way, sparse);
                            assert!(
                                other.0 == expected,
                                "{case} {} {way:?} by neuron",
                                table.name()
                            );
                            assert_eq!(other.1, found.1, "{case}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rules_that_leave_out_nothing_are_exact() {
    let shape = shapes(GgmlType::Q4_0)[0];
    let bytes = file(&shape, None).bytes();
    let mut weights = Weights::plan(&bytes).unwrap();
    let norms = norms(&weights.load(&bytes, 1).unwrap());
    let mut run = |sparse: Sparse<'_>| {
        logits(
            weights.load(&bytes, 1).unwrap(),
            run::table(),
            (1, 1),
            sparse,
        )
    };
    let exact = run(Sparse::Exact).0;
    for signal in SIGNALS {
        let mut rules = vec![
            NeuronRule::Threshold(&[0.0; 2]),
            NeuronRule::Threshold(&[-1.0; 2]),
            NeuronRule::Share(&[1.0; 2]),
            NeuronRule::Count(usize::MAX),
        ];
        if signal == NeuronSignal::Contribution {
            rules.push(NeuronRule::Budget(0.0));
        }
        for rule in rules {
            let sparse = Sparse::Approximate(Approximation {
                signal,
                rule,
                norms: &norms,
            });
            assert!(run(sparse).0 == exact, "{signal:?} {rule:?}");
        }
    }
}

#[test]
fn rows_that_overflow_are_dense() {
    for shape in shapes(GgmlType::Q8_0) {
        let mut file = file(&shape, Some("relu"));
        for tensor in file
            .tensors
            .iter_mut()
            .filter(|tensor| tensor.name.ends_with("ffn_norm.weight"))
        {
            for value in tensor.data.as_chunks_mut::<4>().0 {
                *value = (f32::from_le_bytes(*value) * 1e36).to_le_bytes();
            }
        }
        let bytes = file.bytes();
        let mut weights = Weights::plan(&bytes).unwrap();
        let norms = norms(&weights.load(&bytes, 1).unwrap());
        let mut run = |sparse: Sparse<'_>| {
            let model = weights.load(&bytes, 1).unwrap();
            logits(model, run::table(), (1, 1), sparse).0.concat()
        };
        let exact = run(Sparse::Exact);
        assert!(exact.iter().any(|x| x.is_nan()));
        let rule = NeuronRule::Count(3);
        for signal in [NeuronSignal::Product, NeuronSignal::Contribution] {
            let found = run(Sparse::Approximate(Approximation {
                signal,
                rule,
                norms: &norms,
            }));
            for (found, exact) in found.iter().zip(&exact) {
                assert!(found.to_bits() == exact.to_bits() || found.is_nan() && exact.is_nan());
            }
        }
    }
}

#[test]
fn modes_that_do_not_fit_are_refused() {
    let bytes = one_layer(GgmlType::Q4_0).file().bytes();
    let mut weights = Weights::plan(&bytes).unwrap();
    let model = weights.load(&bytes, 1).unwrap();
    let norms = norms(&model);
    let limits = EngineLimits {
        ranks_gates: false,
        ..limits(1)
    };
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model, run::table(), &limits).unwrap();
    let stop = StopFlag::new();
    let mut error = |signal, rule, norms| {
        let sparse = Sparse::Approximate(Approximation {
            signal,
            rule,
            norms,
        });
        let options = StepOptions {
            sparse,
            ..StepOptions::new(&YieldWait, &stop)
        };
        engine
            .step(&entries(&[1], 0, 0), options)
            .err()
            .map(|error: EngineError| error.to_string())
    };
    let cases = [
        (
            NeuronSignal::Product,
            NeuronRule::Share(&[0.1, 0.2]),
            &norms[..],
            "one value for each layer",
        ),
        (
            NeuronSignal::Contribution,
            NeuronRule::Count(3),
            &[],
            "norms of all neurons",
        ),
        (
            NeuronSignal::Gate,
            NeuronRule::Budget(0.1),
            &norms,
            "a budget is of contributions",
        ),
        (
            NeuronSignal::Gate,
            NeuronRule::Count(3),
            &norms,
            "made without ranks_gates",
        ),
    ];
    for (signal, rule, norms, part) in cases {
        let found = error(signal, rule, norms).unwrap();
        assert!(found.contains(part), "{found}");
    }
    assert_eq!(
        error(NeuronSignal::Product, NeuronRule::Count(3), &[]),
        None
    );
}

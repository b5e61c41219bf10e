//! Selectors: which neurons are computed.

use super::{F32, Q8_0, ids, limits, logits};
use sluice_core::engine::{EngineLimits, Selector, Unit};
use sluice_tests::build::Random;
use sluice_tests::drive::{Bench, step_with};
use sluice_tests::run::entries;

/// One list of words for each layer; `None` means no mask.
pub(super) struct Mask(pub(super) Vec<Option<Vec<u64>>>);

impl Selector for Mask {
    fn select(&self, layer: usize, _: usize, _: Option<&[f32]>, units: &mut [u64]) -> bool {
        let Some(mask) = &self.0[layer] else {
            return false;
        };
        for (unit, mask) in units.iter_mut().zip(mask) {
            *unit = *mask;
        }
        true
    }
}

/// Each row chooses neurons of its own, one by one, by what the network reads.
struct Positive;

impl Selector for Positive {
    fn unit(&self) -> Unit {
        Unit::Neuron
    }

    fn select(&self, layer: usize, _: usize, input: Option<&[f32]>, units: &mut [u64]) -> bool {
        let input = input.expect("kept in f32");
        for neuron in 0..768 {
            let is_on = input[neuron % input.len()] > 0.0 || layer == 0;
            units[neuron / 64] |= u64::from(is_on) << (neuron % 64);
        }
        true
    }
}

#[test]
fn rows_choose_their_neurons_for_themselves() {
    let limits = EngineLimits {
        selects: true,
        observes: true,
        ..limits(2)
    };
    let ids = ids(11);
    let run = |chunk: usize, selector: Option<&dyn Selector>| {
        Bench::new(&Q8_0).with(&limits, |engine| {
            let mut all = Vec::new();
            for (i, part) in ids.chunks(chunk).enumerate() {
                let batch = entries(part, 0, i * chunk);
                let rows = step_with(engine, &batch, |options| options.selector = selector);
                all.extend(logits(&rows));
            }
            all
        })
    };
    let expected = run(1, Some(&Positive));
    for chunk in [2, 5, 11] {
        assert_eq!(run(chunk, Some(&Positive)), expected);
    }
    assert_ne!(run(11, None), expected);
}

#[test]
fn masked_neurons_count_as_zero() {
    // 768 neurons are 48 groups. Layer 0 is not masked.
    let keep = 0x0000_f00f_1234_5678u64;
    for shape in [F32, Q8_0] {
        let mut file = shape.file();
        let mut random = Random(11);
        let mut bias: Vec<f32> = (0..768).map(|_| random.signed()).collect();
        file.add_vector("blk.1.ffn_gate.bias", &bias);
        file.add_vector("blk.1.ffn_up.bias", &bias);
        let mut bench = Bench::of(&file);
        let run = |bench: &mut Bench, masks: Option<Vec<Option<Vec<u64>>>>| {
            let mask = masks.map(Mask);
            let limits = EngineLimits {
                selects: true,
                ..limits(2)
            };
            bench.with(&limits, |engine| {
                let batch = entries(&ids(11), 0, 0);
                let rows = step_with(engine, &batch, |options| {
                    options.selector = mask.as_ref().map(|mask| mask as &dyn Selector);
                });
                logits(&rows)
            })
        };
        let all = run(&mut bench, None);
        assert_eq!(run(&mut bench, Some(vec![None, None])), all);
        assert_eq!(run(&mut bench, Some(vec![None, Some(vec![u64::MAX])])), all);
        let some = run(&mut bench, Some(vec![None, Some(vec![keep])]));
        let none = run(&mut bench, Some(vec![None, Some(vec![])]));
        assert_ne!(some, all);
        assert_ne!(none, all);
        assert_ne!(none, some);

        // The same by weights: rows of `up`, and their biases, are zero.
        let row_bytes = 256 / shape.ty.block_len() * shape.ty.block_bytes();
        let masked = |keep: u64, bias: &mut [f32]| {
            let mut file = file.clone();
            let up = file.tensor("blk.1.ffn_up.weight");
            for (i, row) in up.data.chunks_exact_mut(row_bytes).enumerate() {
                if keep >> (i / 16) & 1 == 0 {
                    row.fill(0);
                    bias[i] = 0.0;
                }
            }
            file.fill("blk.1.ffn_up.bias", bias);
            Bench::of(&file)
        };
        assert_eq!(run(&mut masked(keep, &mut bias.clone()), None), some);
        assert_eq!(run(&mut masked(0, &mut bias), None), none);
    }
}

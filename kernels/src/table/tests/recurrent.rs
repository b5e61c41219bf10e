//! Recurrent mixers: states, convolutions, gates.

use crate::KernelTable;
use crate::contract::{self, Portable};
use crate::recurrent::{ConvSilu, Recurrence, RecurrentToken, Rule, state_floats};
use crate::tests::{Noise, bits, scalar, tables};
extern crate std;
use std::vec;
use std::vec::Vec;

/// A head with its tokens.
pub(super) struct Case {
    rule: Rule,
    n_key: usize,
    n_value: usize,
    state: Vec<f32>,
    keys: Vec<f32>,
    queries: Vec<f32>,
    values: Vec<f32>,
    /// Decays and rates, in 0..1.
    gates: Vec<[f32; 2]>,
}

impl Case {
    pub(super) fn random(rule: Rule, (n_key, n_value): (usize, usize), n_token: usize) -> Self {
        let noise = &mut Noise(0x70 + n_key as u64);
        let gate = |noise: &mut Noise| noise.value().abs() % 1.0;
        let mut state = noise.values(state_floats(n_key, n_value));
        for (i, x) in state.iter_mut().enumerate() {
            // Past the last value there are zeros.
            if i / (16 * n_key) * 16 + i % 16 >= n_value {
                *x = 0.0;
            }
        }
        Self {
            rule,
            n_key,
            n_value,
            state,
            keys: noise.values(n_token * n_key),
            queries: noise.values(n_token * n_key),
            values: noise.values(n_token * n_value),
            gates: (0..n_token).map(|_| [gate(noise), gate(noise)]).collect(),
        }
    }

    /// Outputs and the state after the last token, in calls of `n_at_once` tokens. The first reads its initial state
    /// from a separate buffer.
    pub(super) fn run(&self, table: &KernelTable, n_at_once: usize) -> (Vec<f32>, Vec<f32>) {
        let mut state = vec![f32::NAN; self.state.len()];
        let mut out = vec![f32::NAN; self.values.len()];
        let mut tokens: Vec<_> = (out.chunks_mut(self.n_value).zip(&self.gates).enumerate())
            .map(|(t, (out, gates))| RecurrentToken {
                key: &self.keys[t * self.n_key..][..self.n_key],
                query: &self.queries[t * self.n_key..][..self.n_key],
                value: &self.values[t * self.n_value..][..self.n_value],
                decay: gates[0],
                rate: gates[1],
                out,
            })
            .collect();
        let mut from = Some(&*self.state);
        for tokens in tokens.chunks_mut(n_at_once) {
            table.recurrence(&mut Recurrence {
                rule: self.rule,
                n_key: self.n_key,
                from,
                state: &mut state,
                tokens,
            });
            from = None;
        }
        (out, state)
    }

    /// The outputs in f64, column by column.
    fn exact(&self) -> Vec<f64> {
        let mut out = vec![0.0; self.values.len()];
        for column in 0..self.n_value {
            let mut s: Vec<f64> = (0..self.n_key)
                .map(|key| self.state[(column / 16 * self.n_key + key) * 16 + column % 16].into())
                .collect();
            for (t, [decay, rate]) in self.gates.iter().enumerate() {
                let row = |all: &[f32]| -> Vec<f64> {
                    let row = &all[t * self.n_key..][..self.n_key];
                    row.iter().map(|&x| f64::from(x)).collect()
                };
                let (k, q) = (row(&self.keys), row(&self.queries));
                s.iter_mut().for_each(|s| *s *= f64::from(*decay));
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                let mut d = f64::from(self.values[t * self.n_value + column]);
                if self.rule == Rule::Delta {
                    d -= dot(&k, &s);
                }
                d *= f64::from(*rate);
                s.iter_mut().zip(&k).for_each(|(s, k)| *s += k * d);
                out[t * self.n_value + column] = dot(&q, &s);
            }
        }
        out
    }
}

const SHAPES: [(usize, usize); 6] = [(128, 128), (32, 32), (7, 16), (1, 5), (64, 40), (130, 17)];

#[test]
fn states_and_outputs_are_the_references_however_tokens_come() {
    for rule in [Rule::Delta, Rule::Add] {
        for shape in SHAPES {
            let case = Case::random(rule, shape, 5);
            let (out, state) = case.run(scalar(), 5);
            for table in tables() {
                for n_at_once in [1, 2, 5] {
                    let found = case.run(table, n_at_once);
                    let name = (table.name(), rule, shape, n_at_once);
                    assert_eq!(bits(&found.0), bits(&out), "{name:?}");
                    assert_eq!(bits(&found.1), bits(&state), "{name:?}");
                }
            }
        }
    }
}

/// Values of a head apart have the bits that they have together.
#[test]
fn parts_of_a_head_are_those_of_the_whole() {
    let case = Case::random(Rule::Delta, (32, 40), 3);
    let (out, state) = case.run(scalar(), 3);
    let part = Case {
        n_value: 24,
        state: case.state[16 * 32..].to_vec(),
        values: (case.values.chunks(40))
            .flat_map(|row| row[16..].to_vec())
            .collect(),
        keys: case.keys.clone(),
        queries: case.queries.clone(),
        gates: case.gates.clone(),
        ..case
    };
    for table in tables() {
        let (found, of_part) = part.run(table, 3);
        let expected: Vec<f32> = out.chunks(40).flat_map(|row| row[16..].to_vec()).collect();
        assert_eq!(bits(&found), bits(&expected));
        assert_eq!(bits(&of_part), bits(&state[16 * 32..]));
    }
}

#[test]
fn recurrences_are_near_f64() {
    for (rule, shape) in [(Rule::Delta, (16, 24)), (Rule::Add, (128, 64))] {
        let mut case = Case::random(rule, shape, 20);
        // Keys of length 1, as models have them: else the delta rule may grow without bound.
        for key in case.keys.chunks_mut(shape.0) {
            scalar().l2_norm(key, 1e-6, 1.0);
        }
        let (out, _) = case.run(scalar(), 20);
        for (x, exact) in out.iter().zip(case.exact()) {
            assert!(
                (f64::from(*x) - exact).abs() <= 2e-5 * (1.0 + exact.abs()),
                "{x} {exact}"
            );
        }
    }
}

#[test]
fn convolutions_are_the_references_and_near_f64() {
    let mut noise = Noise(0x81);
    for n_taps in [1, 2, 3, 4, 5] {
        for n in [1, 5, 16, 33, 128] {
            let (taps, bias) = (noise.values(n * n_taps), noise.values(n));
            let rows: Vec<Vec<f32>> = (0..n_taps).map(|_| noise.values(n)).collect();
            let rows: Vec<&[f32]> = rows.iter().map(|row| &**row).collect();
            for bias in [None, Some(&*bias)] {
                let run = |table: &KernelTable| {
                    let mut out = vec![f32::NAN; n];
                    table.conv_silu(&mut ConvSilu {
                        taps: &taps,
                        rows: &rows,
                        bias,
                        out: &mut out,
                    });
                    out
                };
                let expected = run(scalar());
                for table in tables() {
                    assert_eq!(
                        bits(&run(table)),
                        bits(&expected),
                        "{} {n_taps} {n}",
                        table.name()
                    );
                }
                for (i, x) in expected.iter().enumerate() {
                    let mut sum = bias.map_or(0.0, |bias| f64::from(bias[i]));
                    for (tap, row) in rows.iter().enumerate() {
                        sum += f64::from(taps[i * n_taps + tap]) * f64::from(row[i]);
                    }
                    let exact = sum / (1.0 + libm::exp(-sum));
                    assert!((f64::from(*x) - exact).abs() <= 2e-5 * (0.1 + exact.abs()));
                }
            }
        }
    }
}

/// Gates, steps, decays and lengths.
pub(super) fn gates(table: &KernelTable, x: &[f32], y: &[f32], a: &[f32]) -> [Vec<u32>; 4] {
    let (mut gated, mut dt, mut decay) = (y.to_vec(), x.to_vec(), vec![0.0; x.len()]);
    table.sigmoid_mul(x, &mut gated);
    table.decays(&mut dt, y, a, &mut decay);
    let mut length = x.to_vec();
    table.l2_norm(&mut length, 1e-6, 0.25);
    [gated, dt, decay, length].map(|x| bits(&x))
}

#[test]
fn gates_and_lengths_are_the_references() {
    let mut noise = Noise(0x82);
    for n in (0..=3 * 16).chain([64, 128, 255]) {
        for (x, y) in [
            (noise.values(n), noise.values(n)),
            (noise.wide_values(n), noise.wide_values(n)),
        ] {
            let a: Vec<f32> = noise.values(n).iter().map(|a| -a.abs()).collect();
            let expected = gates(scalar(), &x, &y, &a);
            for table in tables() {
                let found = gates(table, &x, &y, &a);
                assert_eq!(found, expected, "{} n = {n}", table.name());
            }
        }
    }
}

#[test]
fn softplus_and_sigmoid_are_near_f64() {
    for i in -4000..4000 {
        let x = i as f32 * 0.02;
        let wide = f64::from(x);
        let exact = libm::log1p(libm::exp(-wide.abs())) + wide.max(0.0);
        let found = f64::from(contract::softplus::<Portable>(x));
        assert!(
            (found - exact).abs() <= 2.5e-7 * exact,
            "{x}: {found} {exact}"
        );
        let exact = 1.0 / (1.0 + libm::exp(-wide));
        let found = f64::from(contract::sigmoid::<Portable>(x));
        assert!(
            (found - exact).abs() <= 2.5e-7 * exact,
            "{x}: {found} {exact}"
        );
    }
    let pairs = [
        (0.0, core::f32::consts::LN_2),
        (30.0, 30.0),
        (f32::INFINITY, f32::INFINITY),
    ];
    for (x, expected) in pairs {
        let found = contract::softplus::<Portable>(x);
        assert_eq!(found.to_bits(), expected.to_bits(), "{x}");
    }
    assert!(contract::softplus::<Portable>(f32::NAN).is_nan());
}

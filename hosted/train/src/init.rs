//! Initial weights: a function of the seed and the tensor's name, whatever else is trained.

use crate::config::InitialWeights;
use crate::optimizer::TrainedTensor;
use core::f64::consts::TAU;
use sha2::{Digest as _, Sha256};
use sluice_core::sampler::philox4x32;

/// Sets the A matrices to random numbers and the B matrices to zeros, so that the adapter adds nothing at first.
///
/// As PEFT's `reset_lora_parameters`: uniform in ±1/√in (`kaiming_uniform_(a=√5)`), or normal with a standard deviation
/// of 1/r. The numbers are not torch's.
///
/// # Panics
/// If `values` is shorter than the tensors' ranges.
pub fn initialize(init: InitialWeights, seed: u64, tensors: &[TrainedTensor], values: &mut [f32]) {
    for tensor in tensors {
        let values = &mut values[tensor.range.clone()];
        match tensor.is_b {
            true => values.fill(0.0),
            false => fill_a(init, key(seed, &tensor.name), tensor.shape, values),
        }
    }
}

/// Fills an A matrix of the shape (rank, in).
fn fill_a(init: InitialWeights, key: [u32; 2], shape: [usize; 2], values: &mut [f32]) {
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    let [rank, n_in] = shape.map(|n| n as f64);
    let scale = match init {
        InitialWeights::Uniform => 1.0 / n_in.sqrt(),
        InitialWeights::Gaussian => 1.0 / rank,
    };
    for (block, out) in (0_u64..).zip(values.chunks_mut(4)) {
        let [high, low] = halves(block);
        let uniform = philox4x32([low, high, 0, INIT], key).map(between_0_and_1);
        let drawn = match init {
            InitialWeights::Uniform => uniform.map(|u| 2.0 * u - 1.0),
            InitialWeights::Gaussian => {
                let [a, b, c, d] = uniform;
                let [[w, x], [y, z]] = [normals(a, b), normals(c, d)];
                [w, x, y, z]
            }
        };
        for (out, drawn) in out.iter_mut().zip(drawn) {
            #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
            let value = (drawn * scale) as f32;
            *out = value;
        }
    }
}

/// Two normal numbers from two uniform ones (Box and Muller).
fn normals(a: f64, b: f64) -> [f64; 2] {
    let radius = (-2.0 * libm::log(a)).sqrt();
    let angle = TAU * b;
    [radius * libm::cos(angle), radius * libm::sin(angle)]
}

/// The middle of one of 2³² equal parts of 0..1, so that neither end is met.
fn between_0_and_1(bits: u32) -> f64 {
    (f64::from(bits) + 0.5) / 4_294_967_296.0
}

/// The key of a tensor: the first 64 bits of a hash.
fn key(seed: u64, name: &str) -> [u32; 2] {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(name.as_bytes());
    let hash = hash.finalize();
    [0, 4].map(|at| u32::from_le_bytes([hash[at], hash[at + 1], hash[at + 2], hash[at + 3]]))
}

fn halves(x: u64) -> [u32; 2] {
    [x >> 32, x & u64::from(u32::MAX)].map(|half| u32::try_from(half).unwrap_or_default())
}

/// What the draws are for, the last word of their counters: the order of rows uses others.
const INIT: u32 = 0x696e_6974;

#[cfg(test)]
mod tests {
    use super::{initialize, key};
    use crate::config::InitialWeights::{self, Gaussian, Uniform};
    use crate::optimizer::TrainedTensor;

    fn pair(module: &str, rank: usize, [n_out, n_in]: [usize; 2]) -> Vec<TrainedTensor> {
        let a = rank * n_in;
        [
            ("A", [rank, n_in], 0..a),
            ("B", [n_out, rank], a..a + n_out * rank),
        ]
        .map(|(matrix, shape, range)| TrainedTensor {
            name: format!("base_model.model.{module}.lora_{matrix}.weight"),
            shape,
            range,
            is_b: matrix == "B",
        })
        .to_vec()
    }

    fn drawn(init: InitialWeights, seed: u64, module: &str, rank: usize) -> Vec<f32> {
        let tensors = pair(module, rank, [30, 1000]);
        let mut values = vec![f32::NAN; tensors[1].range.end];
        initialize(init, seed, &tensors, &mut values);
        assert!(
            values[tensors[1].range.clone()]
                .iter()
                .all(|b| b.to_bits() == 0)
        );
        values.truncate(tensors[0].range.end);
        values
    }

    /// Moments of order 1, 2 and 4 over what they are expected to be.
    fn moments(values: &[f32]) -> [f64; 3] {
        [1, 2, 4].map(|power| {
            let of_one = |x: &f32| (0..power).fold(1.0, |product, _| product * f64::from(*x));
            values.iter().map(of_one).sum::<f64>() / values.len() as f64
        })
    }

    #[test]
    fn uniform_weights_fill_their_range_evenly() {
        let values = drawn(Uniform, 42, "layers.0.q_proj", 64);
        let bound = 1.0 / 1000_f64.sqrt();
        let largest = values.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        assert!(f64::from(largest) < bound * 1.000_001 && f64::from(largest) > bound * 0.999);
        let [mean, square, fourth] = moments(&values);
        assert!(mean.abs() < bound * 0.01, "{mean}");
        assert!(
            (square / (bound * bound / 3.0) - 1.0).abs() < 0.02,
            "{square}"
        );
        assert!(
            (fourth / (bound * bound * bound * bound / 5.0) - 1.0).abs() < 0.03,
            "{fourth}"
        );
    }

    #[test]
    fn gaussian_weights_have_a_deviation_of_1_over_r() {
        let values = drawn(Gaussian, 42, "layers.0.q_proj", 64);
        let variance = 1.0 / (64.0 * 64.0);
        let [mean, square, fourth] = moments(&values);
        assert!(mean.abs() < 0.02 / 64.0, "{mean}");
        assert!((square / variance - 1.0).abs() < 0.03, "{square}");
        assert!(
            (fourth / (3.0 * variance * variance) - 1.0).abs() < 0.06,
            "{fourth}"
        );
    }

    #[test]
    fn weights_are_a_function_of_seed_and_name() {
        let of = |seed, module| drawn(Uniform, seed, module, 8);
        assert_eq!(of(1, "a"), of(1, "a"));
        assert_ne!(of(1, "a"), of(2, "a"));
        assert_ne!(of(1, "a"), of(1, "b"));
        assert_ne!(key(1, "a"), key(1 << 32, "a"));
        // A tensor's numbers do not depend on those that are trained with it.
        let mut tensors = pair("b", 8, [30, 1000]);
        let mut values = vec![0.0; tensors[1].range.end];
        tensors.reverse();
        initialize(Uniform, 1, &tensors, &mut values);
        assert_eq!(values[..8000], of(1, "b"));
    }

    /// Initial weights are part of what makes adapter files equal: they must not change.
    #[test]
    fn weights_are_pinned() {
        let bits = |init, seed| -> Vec<u32> {
            let values = drawn(init, seed, "model.layers.3.mlp.down_proj", 16);
            [0, 1, 2, 3, 15_999].map(|i| values[i].to_bits()).to_vec()
        };
        assert_eq!(bits(Uniform, 42), PINNED[0]);
        assert_eq!(bits(Gaussian, 1 << 40), PINNED[1]);
    }

    /// From an independent program.
    const PINNED: [[u32; 5]; 2] = [
        [
            0xbca5_9c99,
            0x3cda_bbee,
            0x3cf2_a4b5,
            0xbc89_0ac4,
            0xbb00_0d74,
        ],
        [
            0xbbf7_7d12,
            0xbca6_4c16,
            0xbb23_ba4e,
            0xbbb9_e463,
            0xbd13_f3bb,
        ],
    ];
}

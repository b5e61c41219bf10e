//! AdamW as torch computes it, with torch's clipping of the gradient's norm.
//!
//! A step is `θ ← θ·(1 - η·λ)`, `m ← m + (1 - β₁)·(g - m)`, `v ← β₂·v + (1 - β₂)·g²`, and
//! `θ ← θ - η / (1 - β₁ᵗ) · m / (√v / √(1 - β₂ᵗ) + ε)` (torch's `_single_tensor_adam`). It is computed in f64, and θ, m and v
//! are rounded to f32 once a step: closer to torch's f64 than torch's f32 is, and the same bits on every CPU.

use crate::config::SftConfig;
use core::num::NonZeroU64;
use core::ops::Range;

/// A tensor that is trained: a range of the list of all values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainedTensor {
    /// The tensor's name in PEFT's files.
    pub name: String,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Its elements in the list, row by row.
    pub range: Range<usize>,
    /// Whether it is the B matrix of a pair, which has a learning rate of its own.
    pub is_b: bool,
}

/// Settings of [`AdamW`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// Decays of the moments, β₁ and β₂.
    pub betas: [f64; 2],
    /// ε, added to the root of the corrected second moment.
    pub epsilon: f64,
    /// Decoupled weight decay λ.
    pub weight_decay: f64,
    /// Maximum norm of the gradient; `None` for no clipping.
    pub max_grad_norm: Option<f64>,
    /// The factor from the learning rate of A matrices to the rate of B matrices (`LoRA+`).
    pub b_ratio: f64,
}

/// The optimizer and its state.
#[derive(Clone, Debug)]
pub struct AdamW {
    options: AdamWOptions,
    tensors: Vec<TrainedTensor>,
    moments: [Vec<f32>; 2],
    step: u64,
    /// β₁ᵗ and β₂ᵗ, by repeated multiplication.
    powers: [f64; 2],
}

/// A gradient that is not finite, and the tensor it is for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gradient of {tensor} is not finite")]
pub struct BadGradient {
    /// The first such tensor.
    pub tensor: String,
}

/// A state that does not fit the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a moment has {found} numbers, but {expected} are trained")]
pub struct BadMoments {
    /// Numbers that the state has.
    pub found: usize,
    /// Numbers that are trained.
    pub expected: usize,
}

impl AdamWOptions {
    /// The options that a configuration sets.
    #[must_use]
    pub fn of(config: &SftConfig) -> Self {
        let settings = &config.optimizer;
        Self {
            betas: settings.betas,
            epsilon: settings.epsilon,
            weight_decay: settings.weight_decay,
            max_grad_norm: settings.max_grad_norm,
            b_ratio: config.lora.loraplus_lr_ratio.unwrap_or(1.0),
        }
    }
}

impl AdamW {
    /// An optimizer that has taken no step. The tensors' ranges follow each other from 0.
    #[must_use]
    pub fn new(options: AdamWOptions, tensors: Vec<TrainedTensor>) -> Self {
        let len = tensors.last().map_or(0, |tensor| tensor.range.end);
        Self {
            options,
            tensors,
            moments: [vec![0.0; len], vec![0.0; len]],
            step: 0,
            powers: [1.0; 2],
        }
    }

    /// Continues after `step` steps with these moments, m and v.
    ///
    /// # Errors
    /// [`BadMoments`]; the state is then unchanged.
    pub fn restore(&mut self, step: u64, moments: [Vec<f32>; 2]) -> Result<(), BadMoments> {
        let expected = self.moments[0].len();
        let found = moments.iter().map(Vec::len).find(|len| *len != expected);
        if let Some(found) = found {
            return Err(BadMoments { found, expected });
        }
        self.powers = [1.0; 2];
        for _ in 0..step {
            self.count();
        }
        (self.step, self.moments) = (step, moments);
        Ok(())
    }

    /// Steps taken.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// The tensors.
    #[must_use]
    pub fn tensors(&self) -> &[TrainedTensor] {
        &self.tensors
    }

    /// The first and the second moment, m and v.
    #[must_use]
    pub const fn moments(&self) -> &[Vec<f32>; 2] {
        &self.moments
    }

    /// Takes a step: `gradients` are sums over `n_labels` labelled tokens, and are set to zero for the next step. Returns
    /// the norm of their mean before it is clipped.
    ///
    /// # Errors
    /// [`BadGradient`]; values and state are then unchanged.
    ///
    /// # Panics
    /// If the lists are shorter than the tensors' ranges.
    pub fn apply(
        &mut self,
        values: &mut [f32],
        gradients: &mut [f32],
        n_labels: NonZeroU64,
        learning_rate: f64,
    ) -> Result<f64, BadGradient> {
        let norm = self.norm_of_means(gradients, n_labels)?;
        let clip = self.options.max_grad_norm.map_or(1.0, |max| {
            // As torch's `clip_grads_with_norm_`.
            (max / (norm + 1e-6)).min(1.0)
        });
        self.count();
        self.step += 1;
        for tensor in &self.tensors {
            let rate = match tensor.is_b {
                true => learning_rate * self.options.b_ratio,
                false => learning_rate,
            };
            let update = Update::new(&self.options, self.powers, rate, clip);
            let [m, v] = &mut self.moments;
            let range = tensor.range.clone();
            let moments = m[range.clone()].iter_mut().zip(&mut v[range.clone()]);
            let numbers = values[range.clone()].iter_mut().zip(&gradients[range]);
            for ((value, gradient), (m, v)) in numbers.zip(moments) {
                update.apply(value, *gradient, m, v);
            }
        }
        gradients.fill(0.0);
        Ok(norm)
    }

    /// Divides the sums by the number of labels, and returns the norm of all.
    fn norm_of_means(
        &self,
        gradients: &mut [f32],
        n_labels: NonZeroU64,
    ) -> Result<f64, BadGradient> {
        #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 labels")]
        let inverse = 1.0 / n_labels.get() as f64;
        let mut all = 0.0;
        for tensor in &self.tensors {
            let mut sum = 0.0;
            for gradient in &mut gradients[tensor.range.clone()] {
                *gradient = narrow(f64::from(*gradient) * inverse);
                sum += f64::from(*gradient) * f64::from(*gradient);
            }
            // Squares of f32 cannot overflow an f64.
            if !sum.is_finite() {
                let tensor = tensor.name.clone();
                return Err(BadGradient { tensor });
            }
            all += sum;
        }
        Ok(all.sqrt())
    }

    fn count(&mut self) {
        for (power, beta) in self.powers.iter_mut().zip(self.options.betas) {
            *power *= beta;
        }
    }
}

/// What a step does with each element of a tensor.
struct Update {
    betas: [f64; 2],
    epsilon: f64,
    /// 1 - η·λ.
    kept: f64,
    /// η / (1 - β₁ᵗ).
    rate: f64,
    /// 1 / √(1 - β₂ᵗ).
    inverse_root: f64,
    clip: f64,
}

impl Update {
    fn new(options: &AdamWOptions, powers: [f64; 2], rate: f64, clip: f64) -> Self {
        Self {
            betas: options.betas,
            epsilon: options.epsilon,
            kept: 1.0 - rate * options.weight_decay,
            rate: rate / (1.0 - powers[0]),
            inverse_root: 1.0 / (1.0 - powers[1]).sqrt(),
            clip,
        }
    }

    fn apply(&self, value: &mut f32, gradient: f32, m: &mut f32, v: &mut f32) {
        let gradient = f64::from(gradient) * self.clip;
        let [old_m, old_v] = [*m, *v].map(f64::from);
        *m = narrow(old_m + (gradient - old_m) * (1.0 - self.betas[0]));
        *v = narrow(old_v * self.betas[1] + gradient * gradient * (1.0 - self.betas[1]));
        let divisor = f64::from(*v).sqrt() * self.inverse_root + self.epsilon;
        *value = narrow(f64::from(*value) * self.kept - self.rate * (f64::from(*m) / divisor));
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
const fn narrow(x: f64) -> f32 {
    x as f32
}

#[cfg(test)]
mod tests;

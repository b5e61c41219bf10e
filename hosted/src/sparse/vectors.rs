//! What core writes into the caller's slices, as vectors.

use super::error::SparseResult;
use sluice_core::sparse::pi::{
    AngularEmbedding, DeterministicJitter, HypersphericalProjection, PiChaos, PiContext,
    PiScheduler,
};
use sluice_core::sparse::{SparsityError, check_len};

/// [`AngularEmbedding`] with vectors. The velocity is the caller's: [`AngularEmbedding::update_velocity`].
pub trait AngularVectors {
    /// [`AngularEmbedding::project_into`]
    ///
    /// # Errors
    /// A value that is not finite.
    fn project(&self, values: &[f32]) -> SparseResult<Vec<f32>>;

    /// [`AngularEmbedding::unproject_into`]
    ///
    /// # Errors
    /// An angle that is not finite.
    fn unproject(&self, angles: &[f32], target_magnitude: f32) -> SparseResult<Vec<f32>>;

    /// [`AngularEmbedding::predict_next_into`]
    ///
    /// # Errors
    /// Lengths that differ, a value that is not finite.
    fn predict_next(&self, current: &[f32], velocity: &[f32]) -> SparseResult<Vec<f32>>;
}

impl AngularVectors for AngularEmbedding {
    fn project(&self, values: &[f32]) -> SparseResult<Vec<f32>> {
        filled(values.len(), |out| self.project_into(values, out))
    }

    fn unproject(&self, angles: &[f32], target_magnitude: f32) -> SparseResult<Vec<f32>> {
        filled(angles.len(), |out| {
            self.unproject_into(angles, target_magnitude, out)
        })
    }

    fn predict_next(&self, current: &[f32], velocity: &[f32]) -> SparseResult<Vec<f32>> {
        filled(current.len(), |out| {
            self.predict_next_into(current, velocity, out)
        })
    }
}

/// [`HypersphericalProjection`] with vectors.
pub trait SphericalVectors {
    /// [`HypersphericalProjection::to_spherical_into`]
    ///
    /// # Errors
    /// Another length than the dimension, a value that is not finite.
    fn to_spherical(&self, cartesian: &[f32]) -> SparseResult<Vec<f32>>;

    /// [`HypersphericalProjection::to_cartesian_into`]
    ///
    /// # Errors
    /// Another number of angles, one that is not finite.
    fn to_cartesian(&self, angles: &[f32], radius: f32) -> SparseResult<Vec<f32>>;
}

impl SphericalVectors for HypersphericalProjection {
    fn to_spherical(&self, cartesian: &[f32]) -> SparseResult<Vec<f32>> {
        check_len("cartesian", cartesian.len(), self.dimension())?;
        filled(self.n_angles(), |out| {
            self.to_spherical_into(cartesian, out)
        })
    }

    fn to_cartesian(&self, angles: &[f32], radius: f32) -> SparseResult<Vec<f32>> {
        check_len("angles", angles.len(), self.n_angles())?;
        filled(self.dimension(), |out| {
            self.to_cartesian_into(angles, radius, out)
        })
    }
}

/// [`PiChaos`] with vectors.
pub trait ChaosVectors {
    /// Jitters of `start` and the indices after it.
    fn jitter_vector(&self, start: usize, count: usize) -> Vec<f32>;

    /// [`PiChaos::permutation_into`]
    fn permutation(&mut self, n: usize) -> Vec<usize>;

    /// [`PiChaos::schedule_order_into`]
    fn schedule_order(&self, n: usize, round: usize) -> Vec<usize>;
}

impl ChaosVectors for PiChaos {
    fn jitter_vector(&self, start: usize, count: usize) -> Vec<f32> {
        let mut out = vec![0.0; count];
        self.jitter_into(start, &mut out);
        out
    }

    fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order = vec![0; n];
        self.permutation_into(&mut order);
        order
    }

    fn schedule_order(&self, n: usize, round: usize) -> Vec<usize> {
        let mut order = vec![0; n];
        self.schedule_order_into(round, &mut order);
        order
    }
}

/// [`DeterministicJitter`] with vectors.
pub trait JitterVectors {
    /// Each value with its jitter.
    fn apply_vector(&self, values: &[f32]) -> Vec<f32>;
}

impl JitterVectors for DeterministicJitter {
    fn apply_vector(&self, values: &[f32]) -> Vec<f32> {
        let mut out = values.to_vec();
        self.apply_in_place(&mut out);
        out
    }
}

/// [`PiScheduler`] with vectors.
pub trait SchedulerVectors {
    /// [`PiScheduler::order_into`]
    fn get_order(&self) -> Vec<usize>;

    /// [`PiScheduler::weighted_order_into`]
    fn get_weighted_order(&self) -> Vec<usize>;

    /// [`PiScheduler::lora_update_order_into`]
    fn get_lora_update_order(&self, round: usize) -> Vec<usize>;

    /// [`PiScheduler::sample_into`]
    fn sample_indices(&self, batch_size: usize, total: usize) -> Vec<usize>;
}

impl SchedulerVectors for PiScheduler<'_> {
    fn get_order(&self) -> Vec<usize> {
        ordered(self.num_items(), |order| self.order_into(order))
    }

    fn get_weighted_order(&self) -> Vec<usize> {
        ordered(self.num_items(), |order| self.weighted_order_into(order))
    }

    fn get_lora_update_order(&self, round: usize) -> Vec<usize> {
        let mut halves = vec![0; self.num_items()];
        ordered(self.num_items(), |order| {
            self.lora_update_order_into(round, &mut halves, order)
        })
    }

    fn sample_indices(&self, batch_size: usize, total: usize) -> Vec<usize> {
        let mut order = vec![0; total];
        ordered(batch_size.min(total), |batch| {
            self.sample_into(total, &mut order, batch).map(|_| ())
        })
    }
}

/// [`PiContext`] with vectors.
pub trait ContextVectors {
    /// [`PiContext::to_angular_into`]
    ///
    /// # Errors
    /// A value that is not finite.
    fn to_angular(&self, values: &[f32]) -> SparseResult<Vec<f32>>;
}

impl ContextVectors for PiContext {
    fn to_angular(&self, values: &[f32]) -> SparseResult<Vec<f32>> {
        self.angular.project(values)
    }
}

fn filled(
    n: usize,
    fill: impl FnOnce(&mut [f32]) -> Result<(), SparsityError>,
) -> SparseResult<Vec<f32>> {
    let mut out = vec![0.0; n];
    fill(&mut out)?;
    Ok(out)
}

fn ordered(n: usize, fill: impl FnOnce(&mut [usize]) -> Result<(), SparsityError>) -> Vec<usize> {
    let mut order = vec![0; n];
    fill(&mut order).expect("the order is as long as asked for");
    order
}

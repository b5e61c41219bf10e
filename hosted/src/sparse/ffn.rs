//! The two-layer network with weights of its own.

use super::aligned::AlignedFloats;
use super::error::{InferenceError, SparseResult};
use super::matrix::DenseMatrix;
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::sparse::pi::PiChaos;
use sluice_core::sparse::{
    ActivationType, FfnDims, FfnWeights, Selected, SparsityError, check_finite, check_len,
};

/// A network that can be computed for some of its neurons.
pub trait FeedForward: Send + Sync {
    /// The output of selected neurons, ascending.
    ///
    /// # Errors
    /// An input or a list that does not fit.
    fn forward_sparse(&self, input: &[f32], active_neurons: &[usize]) -> SparseResult<Vec<f32>>;

    /// The output of all neurons.
    ///
    /// # Errors
    /// An input that does not fit.
    fn forward_dense(&self, input: &[f32]) -> SparseResult<Vec<f32>>;
}

/// `y = b2 + Σ act(w1_i · x + b1_i) · w2_i`, with the products of the fastest kernel table.
#[derive(Clone, Debug)]
pub struct SparseFfn {
    dims: FfnDims,
    w1: AlignedFloats,
    w2_t: AlignedFloats,
    b1: Vec<f32>,
    b2: Vec<f32>,
    activation: ActivationType,
    table: &'static KernelTable,
}

impl SparseFfn {
    /// With weights from a fixed seed, within ± 1/√inputs: the same in every run. For measurements; networks with a
    /// purpose have weights ([`SparseFfn::from_weights`]).
    ///
    /// # Errors
    /// A dimension of 0, or beyond memory.
    pub fn new(
        input_dim: usize,
        hidden_dim: usize,
        output_dim: usize,
        activation: ActivationType,
    ) -> SparseResult<Self> {
        let dims = FfnDims {
            input: input_dim,
            hidden: hidden_dim,
            output: output_dim,
        };
        dims.check()?;
        let w1 = seeded(1, ["hidden_dim", "input_dim"], hidden_dim, input_dim)?;
        let w2 = seeded(2, ["output_dim", "hidden_dim"], output_dim, hidden_dim)?;
        let (b1, b2) = (vec![0.0; hidden_dim], vec![0.0; output_dim]);
        Self::from_weights(w1, &w2, b1, b2, activation)
    }

    /// From `w1` (hidden, input), `w2` (output, hidden), and biases.
    ///
    /// # Errors
    /// Shapes that do not go together, a bias that is not finite.
    pub fn from_weights(
        w1: DenseMatrix,
        w2: &DenseMatrix,
        b1: Vec<f32>,
        b2: Vec<f32>,
        activation: ActivationType,
    ) -> SparseResult<Self> {
        let ((hidden, input), (output, w2_hidden)) = (w1.dim(), w2.dim());
        if hidden != w2_hidden {
            return Err(InferenceError::Failed(format!(
                "w2 has {w2_hidden} columns: expected {hidden}, the rows of w1"
            ))
            .into());
        }
        for (what, bias) in [("b1", &b1), ("b2", &b2)] {
            check_finite(what, bias)?;
        }
        let ffn = Self {
            dims: FfnDims {
                input,
                hidden,
                output,
            },
            w1: AlignedFloats::new(&w1.into_vec()),
            w2_t: AlignedFloats::new(&w2.transposed().into_vec()),
            b1,
            b2,
            activation,
            table: KernelTable::best(CpuFeatures::detect()),
        };
        ffn.weights()?;
        Ok(ffn)
    }

    /// The same weights, as core takes them.
    ///
    /// # Errors
    /// None after construction.
    pub fn weights(&self) -> Result<FfnWeights<'_>, SparsityError> {
        FfnWeights::new(
            self.dims,
            &self.w1,
            &self.w2_t,
            &self.b1,
            &self.b2,
            self.activation,
        )
    }

    /// Elements of the input.
    #[must_use]
    pub const fn input_dim(&self) -> usize {
        self.dims.input
    }

    /// Neurons.
    #[must_use]
    pub const fn hidden_dim(&self) -> usize {
        self.dims.hidden
    }

    /// Elements of the output.
    #[must_use]
    pub const fn output_dim(&self) -> usize {
        self.dims.output
    }

    /// The kernels that multiply.
    #[must_use]
    pub const fn table(&self) -> &'static KernelTable {
        self.table
    }

    /// The length of what each neuron adds for an input: `|h_i| · |w2_i|`.
    pub(super) fn contributions(&self, input: &[f32]) -> Result<Vec<f32>, SparsityError> {
        check_len("input", input.len(), self.dims.input)?;
        let rows: Vec<&[f32]> = self.w1.chunks_exact(self.dims.input).collect();
        let mut values = vec![0.0; self.dims.hidden];
        self.table.float_rows().dots(&rows, input, &mut values);
        for (value, b) in values.iter_mut().zip(&self.b1) {
            *value += b;
        }
        self.activation.apply_slice(self.table, &mut values);
        let outputs = self.w2_t.chunks_exact(self.dims.output);
        for (value, w2) in values.iter_mut().zip(outputs) {
            *value = value.abs() * w2.iter().map(|w| w * w).sum::<f32>().sqrt();
        }
        Ok(values)
    }

    /// A neuron's row of `w1`, its bias, and its row of `w2` transposed.
    pub(super) fn bundle(&self, i: usize) -> impl Iterator<Item = f32> {
        let w1 = &self.w1[i * self.dims.input..][..self.dims.input];
        let w2 = &self.w2_t[i * self.dims.output..][..self.dims.output];
        w1.iter().chain([&self.b1[i]]).chain(w2).copied()
    }

    /// The rows of `w1`.
    pub(super) fn w1(&self) -> &[f32] {
        &self.w1
    }

    /// [`FeedForward::forward_sparse`]
    ///
    /// # Errors
    /// An input or a list that does not fit.
    pub fn forward_sparse(
        &self,
        input: &[f32],
        active_neurons: &[usize],
    ) -> SparseResult<Vec<f32>> {
        self.forward(input, Selected::Neurons(active_neurons))
    }

    /// [`FeedForward::forward_dense`]: the bits of [`SparseFfn::forward_sparse`] with all neurons.
    ///
    /// # Errors
    /// An input that does not fit.
    pub fn forward_dense(&self, input: &[f32]) -> SparseResult<Vec<f32>> {
        self.forward(input, Selected::All)
    }

    /// The mean absolute difference between the outputs of selected neurons and of all.
    ///
    /// # Errors
    /// An input or a list that does not fit.
    pub fn validate_sparse(&self, input: &[f32], active_neurons: &[usize]) -> SparseResult<f32> {
        let sparse = self.forward_sparse(input, active_neurons)?;
        let dense = self.forward_dense(input)?;
        let apart = sparse.iter().zip(&dense).map(|(a, b)| (a - b).abs());
        Ok(apart.sum::<f32>() / sparse.len() as f32)
    }

    fn forward(&self, input: &[f32], selected: Selected<'_>) -> SparseResult<Vec<f32>> {
        let mut out = vec![0.0; self.dims.output];
        self.weights()?
            .forward(self.table, input, selected, &mut out)?;
        Ok(out)
    }
}

impl FeedForward for SparseFfn {
    fn forward_sparse(&self, input: &[f32], active_neurons: &[usize]) -> SparseResult<Vec<f32>> {
        Self::forward_sparse(self, input, active_neurons)
    }

    fn forward_dense(&self, input: &[f32]) -> SparseResult<Vec<f32>> {
        Self::forward_dense(self, input)
    }
}

/// Numbers within ± 1/√columns.
fn seeded(
    seed: u64,
    names: [&'static str; 2],
    n_rows: usize,
    n_cols: usize,
) -> SparseResult<DenseMatrix> {
    let mut chaos = PiChaos::hashed(seed);
    let scale = 2.0 / (n_cols as f32).sqrt();
    DenseMatrix::generated(names, n_rows, n_cols, || (chaos.next_float() - 0.5) * scale)
}

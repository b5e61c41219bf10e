//! A two-layer network, computed for some of its neurons.

use super::error::{check_finite, check_len, setting};
use super::{ActivationType, SparsityError};
use crate::kernels::{KernelTable, prefetch_to_l2};

/// Bytes of a row that are fetched early: the processor follows a stream once it has begun.
const AHEAD_BYTES: usize = 256;

/// Neurons that are activated together.
const GROUP: usize = 16;

/// Sizes of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FfnDims {
    /// Elements of the input.
    pub input: usize,
    /// Neurons.
    pub hidden: usize,
    /// Elements of the output.
    pub output: usize,
}

impl FfnDims {
    /// Checks that each is at least 1, and that a network of these sizes fits into the addresses of this machine.
    ///
    /// # Errors
    /// [`SparsityError::Setting`], by the name of the size.
    pub const fn check(self) -> Result<(), SparsityError> {
        let name = match self {
            Self { input: 0, .. } => "input_dim",
            Self { hidden: 0, .. } => "hidden_dim",
            Self { output: 0, .. } => "output_dim",
            _ => return self.check_bytes(),
        };
        Err(setting(name, 0.0, "at least 1"))
    }

    /// Of each neuron a gate, a row of w1 and its bias, and a row of w2.
    const fn check_bytes(self) -> Result<(), SparsityError> {
        const MOST: usize = isize::MAX as usize / size_of::<f32>();
        let (name, value) = match self {
            Self { input, .. } if input > MOST / 8 => ("input_dim", input),
            Self { output, .. } if output > MOST / 8 => ("output_dim", output),
            _ => match self.hidden.checked_mul(2 * self.input + 1 + self.output) {
                Some(n) if n <= MOST => return Ok(()),
                _ => ("hidden_dim", self.hidden),
            },
        };
        Err(setting(name, value as f64, "a size in memory"))
    }

    /// Checks a list of neurons, without which none is computed.
    ///
    /// # Errors
    /// A neuron that does not exist or is out of order, by its place in the list; none.
    pub fn check_active(self, active: &[usize]) -> Result<(), SparsityError> {
        if active.is_empty() {
            return Err(SparsityError::NoneSelected);
        }
        let mut least = 0;
        for (index, &neuron) in active.iter().enumerate() {
            if neuron >= self.hidden {
                return Err(SparsityError::Neuron {
                    index,
                    neuron,
                    n_neurons: self.hidden,
                });
            }
            if neuron < least {
                return Err(SparsityError::Order { index, neuron });
            }
            least = neuron + 1;
        }
        Ok(())
    }
}

/// Which neurons are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selected<'a> {
    /// All of them.
    All,
    /// These, ascending, each once.
    Neurons(&'a [usize]),
}

/// A network in the caller's memory: `y = b2 + Σ h_i · w2_i` over the neurons i that are computed, with
/// `h_i = act(w1_i · x + b1_i)`, or `act(gate_i · x) · (w1_i · x + b1_i)` where it has gates.
///
/// A sum over all neurons is the dense result, bit for bit: neurons are added in ascending order either way.
#[derive(Clone, Copy, Debug)]
pub struct FfnWeights<'a> {
    dims: FfnDims,
    w1: Rows<'a>,
    gate: Option<Rows<'a>>,
    w2_t: Rows<'a>,
    b1: &'a [f32],
    b2: &'a [f32],
    activation: ActivationType,
}

/// Rows at equal distances.
#[derive(Clone, Copy, Debug)]
struct Rows<'a> {
    data: &'a [f32],
    n_cols: usize,
    stride: usize,
}

impl<'a> Rows<'a> {
    fn row(&self, i: usize) -> &'a [f32] {
        &self.data[i * self.stride..][..self.n_cols]
    }

    /// The rows of some neurons.
    fn list(&self, neurons: &[usize], rows: &mut [&'a [f32]]) {
        for (row, &i) in rows.iter_mut().zip(neurons) {
            *row = self.row(i);
        }
    }

    /// Fetches a row that is read soon.
    fn announce(&self, i: usize) {
        let row = self.row(i);
        prefetch_to_l2(row.as_ptr().cast(), size_of_val(row).min(AHEAD_BYTES));
    }
}

impl<'a> FfnWeights<'a> {
    /// From matrices, each row by row: `w1` (hidden, input), `w2_t` (hidden, output), and the biases `b1` (hidden) and
    /// `b2` (output).
    ///
    /// # Errors
    /// A dimension of 0, a slice of another length.
    pub fn new(
        dims: FfnDims,
        w1: &'a [f32],
        w2_t: &'a [f32],
        b1: &'a [f32],
        b2: &'a [f32],
        activation: ActivationType,
    ) -> Result<Self, SparsityError> {
        dims.check()?;
        check_len("w1", w1.len(), dims.hidden * dims.input)?;
        check_len("w2_t", w2_t.len(), dims.hidden * dims.output)?;
        let rows = |data, n_cols| Rows {
            data,
            n_cols,
            stride: n_cols,
        };
        Self {
            dims,
            w1: rows(w1, dims.input),
            gate: None,
            w2_t: rows(w2_t, dims.output),
            b1,
            b2,
            activation,
        }
        .checked()
    }

    /// From bundles, neuron after neuron: (gate, w1, w2) if the network has gates, else (w1, w2). A neuron is one piece
    /// of memory.
    ///
    /// # Errors
    /// A dimension of 0, a slice of another length.
    pub fn from_bundles(
        dims: FfnDims,
        bundles: &'a [f32],
        has_gates: bool,
        b1: &'a [f32],
        b2: &'a [f32],
        activation: ActivationType,
    ) -> Result<Self, SparsityError> {
        dims.check()?;
        let stride = Self::bundle_len(dims, has_gates);
        check_len("bundles", bundles.len(), dims.hidden * stride)?;
        let rows = |start: usize, n_cols| Rows {
            data: &bundles[start..],
            n_cols,
            stride,
        };
        let w1_at = if has_gates { dims.input } else { 0 };
        Self {
            dims,
            w1: rows(w1_at, dims.input),
            gate: has_gates.then(|| rows(0, dims.input)),
            w2_t: rows(w1_at + dims.input, dims.output),
            b1,
            b2,
            activation,
        }
        .checked()
    }

    /// Elements of a neuron's bundle.
    #[must_use]
    pub const fn bundle_len(dims: FfnDims, has_gates: bool) -> usize {
        let n_inputs = if has_gates { 2 } else { 1 };
        dims.input
            .saturating_mul(n_inputs)
            .saturating_add(dims.output)
    }

    fn checked(self) -> Result<Self, SparsityError> {
        check_len("b1", self.b1.len(), self.dims.hidden)?;
        check_len("b2", self.b2.len(), self.dims.output)?;
        Ok(self)
    }

    /// Its sizes.
    #[must_use]
    pub const fn dims(&self) -> FfnDims {
        self.dims
    }

    /// Computes selected neurons. `table` computes the activation.
    ///
    /// # Errors
    /// Lengths that do not fit, an input that is not finite, a neuron that does not exist or is out of order, or none.
    pub fn forward(
        &self,
        table: &KernelTable,
        x: &[f32],
        selected: Selected<'_>,
        out: &mut [f32],
    ) -> Result<(), SparsityError> {
        check_len("input", x.len(), self.dims.input)?;
        check_len("output", out.len(), self.dims.output)?;
        check_finite("input", x)?;
        if let Selected::Neurons(active) = selected {
            self.dims.check_active(active)?;
        }
        out.copy_from_slice(self.b2);
        let n = match selected {
            Selected::All => self.dims.hidden,
            Selected::Neurons(active) => active.len(),
        };
        let neuron = |i: usize| match selected {
            Selected::All => i,
            Selected::Neurons(active) => active[i],
        };
        let mut start = 0;
        while start < n {
            let n_group = GROUP.min(n - start);
            let mut group = [0; GROUP];
            for (i, place) in group[..n_group].iter_mut().enumerate() {
                *place = neuron(start + i);
            }
            if let Selected::Neurons(active) = selected {
                let next = &active[(start + n_group).min(n)..(start + 2 * GROUP).min(n)];
                self.announce(next);
            }
            self.add_group(table, x, &group[..n_group], out);
            start += n_group;
        }
        Ok(())
    }

    /// Fetches neurons that are computed next: where they lie is not what the processor guesses.
    fn announce(&self, neurons: &[usize]) {
        for &i in neurons {
            if let Some(gate) = self.gate {
                gate.announce(i);
            }
            self.w1.announce(i);
            self.w2_t.announce(i);
        }
    }

    /// Adds the contributions of up to [`GROUP`] neurons.
    fn add_group(&self, table: &KernelTable, x: &[f32], group: &[usize], out: &mut [f32]) {
        let n = group.len();
        let kernels = table.float_rows();
        let (mut values, mut rows) = ([0.0; GROUP], [&[][..]; GROUP]);
        let (values, rows) = (&mut values[..n], &mut rows[..n]);
        self.w1.list(group, rows);
        kernels.dots(rows, x, values);
        for (value, &i) in values.iter_mut().zip(group) {
            *value += self.b1[i];
        }
        match self.gate {
            None => self.activation.apply_slice(table, values),
            Some(gate) => {
                let mut gates = [0.0; GROUP];
                let gates = &mut gates[..n];
                gate.list(group, rows);
                kernels.dots(rows, x, gates);
                self.activation.apply_slice(table, gates);
                for (value, gate) in values.iter_mut().zip(gates) {
                    *value *= *gate;
                }
            }
        }
        self.w2_t.list(group, rows);
        kernels.add(values, rows, out);
    }
}

#[cfg(test)]
mod tests;

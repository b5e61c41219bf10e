//! A tensor of the GGUF file, and the tensors of the folder that it is made from.

/// A tensor to write, and its sources.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// GGUF's name.
    pub(crate) name: String,
    /// The names of the Hugging Face tensors, in order; more than one for a stack of experts.
    pub(crate) parts: Vec<String>,
    /// Shape of each part in the folder.
    pub(crate) source: Vec<u64>,
    /// Shape of each part in the GGUF file: (rows, columns), one dimension, or (experts, rows, columns).
    pub(crate) shape: Vec<u64>,
    pub(crate) change: Change,
    pub(crate) map: Map,
    pub(crate) is_optional: bool,
}

impl Wanted {
    /// The shape of the whole tensor, with the number of matrices first if each has its own source.
    pub(crate) fn stacked(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if self.is_stack_of_parts() {
            shape.insert(0, self.parts.len() as u64);
        }
        shape
    }

    /// Whether each of its matrices has its own source.
    pub(crate) fn is_stack_of_parts(&self) -> bool {
        self.shape.len() == 2 && self.name.ends_with("_exps.weight")
    }
}

/// How a tensor's rows are rearranged from its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Unchanged.
    None,
    /// The rows of each head are reordered from halves to pairs. The value is the number of heads.
    PairRows(u32),
    /// These rows, one slice after the other.
    Rows(Vec<Slice>),
    /// All rows, but only these columns.
    Columns(Vec<Slice>),
    /// Matrices are transposed: row i is column `start` + i · `step`, cut to the required length, of a matrix of `of`
    /// rows.
    Turned { start: u64, step: u64, of: u64 },
}

/// From `start` on, the first `len` of every `of`; `n` in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) of: u64,
    pub(crate) n: u64,
}

impl Slice {
    /// `n` in a row.
    pub(crate) const fn run(start: u64, n: u64) -> Self {
        Self {
            start,
            len: n,
            of: n,
            n,
        }
    }

    /// Where the `i`th of the slice is.
    pub(crate) const fn place(self, i: u64) -> u64 {
        self.start + i / self.len * self.of + i % self.len
    }
}

/// How each number is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Map {
    /// Unchanged.
    Same,
    /// x + 1.
    AddOne,
    /// -exp(x).
    NegExp,
}

pub(super) fn one(name: &str, source: &str, shape: &[u64]) -> Wanted {
    Wanted {
        name: name.into(),
        parts: vec![source.into()],
        source: shape.into(),
        shape: shape.into(),
        change: Change::None,
        map: Map::Same,
        is_optional: false,
    }
}

/// A matrix and its bias, which has as many numbers as the matrix has rows.
pub(super) fn with_bias(name: &str, source: &str, shape: &[u64]) -> [Wanted; 2] {
    ["weight", "bias"].map(|part| {
        let dims = if part == "bias" { &shape[..1] } else { shape };
        one(&format!("{name}.{part}"), &format!("{source}.{part}"), dims)
    })
}

//! A tensor of a model, and those of the folder that it is made of.

/// One tensor to be, and those it is made of.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// As GGUF names it.
    pub(crate) name: String,
    /// Hugging Face's tensors, one after the other; several are experts.
    pub(crate) parts: Vec<String>,
    /// Of each part as the folder has it.
    pub(crate) source: Vec<u64>,
    /// Of each part as the GGUF file has it: (rows, columns), one dimension, or (experts, rows,
    /// columns).
    pub(crate) shape: Vec<u64>,
    pub(crate) change: Change,
    pub(crate) map: Map,
    pub(crate) is_optional: bool,
}

impl Wanted {
    /// The shape of the whole tensor, with the number of matrices before it where each has a source of its own.
    pub(crate) fn stacked(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if self.is_stack_of_parts() {
            shape.insert(0, self.parts.len() as u64);
        }
        shape
    }

    /// Whether each of its matrices has a source of its own.
    pub(crate) fn is_stack_of_parts(&self) -> bool {
        self.shape.len() == 2 && self.name.ends_with("_exps.weight")
    }
}

/// Where the rows of a tensor are in its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// In their places.
    None,
    /// The rows of each of so many heads go from halves to pairs.
    PairRows(u32),
    /// These rows, one slice after the other.
    Rows(Vec<Slice>),
    /// All rows; of each, these columns.
    Columns(Vec<Slice>),
    /// Matrices are turned: row i is column `start` + i · `step`, cut to the wanted length, of a matrix of `of`
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

/// What becomes of each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Map {
    /// Itself.
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

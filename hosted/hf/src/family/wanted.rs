//! A tensor of the GGUF file, and the tensors of the folder that it is made from.

/// A tensor to write, and its sources.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// GGUF's name.
    pub name: String,
    /// The names of the Hugging Face tensors, in order; more than one for a stack of experts.
    pub parts: Vec<String>,
    /// Shape of each part in the folder.
    pub source: Vec<u64>,
    /// Shape of each part in the GGUF file: (rows, columns), one dimension, or (experts, rows, columns).
    pub shape: Vec<u64>,
    /// How rows and columns are rearranged.
    pub change: Change,
    /// How each number is changed.
    pub map: Map,
    /// Whether the folder may lack it.
    pub is_optional: bool,
    /// Whether the model does not have it according to config.json: transformers ignores it, too.
    pub is_ignored: bool,
}

impl Wanted {
    /// The shape of the whole tensor, with the number of matrices first if each has its own source.
    #[must_use]
    pub fn stacked(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if self.is_stack_of_parts() {
            shape.insert(0, self.parts.len() as u64);
        }
        shape
    }

    /// Whether each of its matrices has its own source.
    #[must_use]
    pub fn is_stack_of_parts(&self) -> bool {
        self.shape.len() == 2 && self.name.ends_with("_exps.weight")
    }
}

/// How a tensor's rows are rearranged from its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
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
    Turned {
        /// The first column.
        start: u64,
        /// From one column to the next.
        step: u64,
        /// Rows of a matrix.
        of: u64,
    },
}

/// From `start` on, the first `len` of every `of`; `n` in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The first row.
    pub start: u64,
    /// Rows of a run.
    pub len: u64,
    /// From the start of one run to the next.
    pub of: u64,
    /// Rows in all.
    pub n: u64,
}

impl Slice {
    /// `n` in a row.
    #[must_use]
    pub const fn run(start: u64, n: u64) -> Self {
        Self {
            start,
            len: n,
            of: n,
            n,
        }
    }

    /// Where the `i`th of the slice is.
    #[must_use]
    pub const fn place(self, i: u64) -> u64 {
        self.start + i / self.len * self.of + i % self.len
    }
}

/// How each number is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
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
        is_ignored: false,
    }
}

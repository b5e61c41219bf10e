//! Contents of an adapter's file, whatever its format: pairs of matrices, by the GGUF names of the tensors they adapt.
#![forbid(unsafe_code)]

/// An adapter as stored in its file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterFile {
    /// The file or folder, as it was given.
    pub path: String,
    /// `general.architecture` of the models that it is for.
    pub architecture: String,
    /// The model that it was made for, if the file says so: a name or a path.
    pub base_model: Option<String>,
    /// The pairs.
    pub factors: Vec<Factors>,
    /// Settings of the file that are not kept here, one sentence each.
    pub warnings: Vec<String>,
}

/// The matrices of an adapter for one matrix of a model: `y += scale · B · (A · x)`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Factors {
    /// The adapted tensor, such as `blk.0.attn_q.weight`, `output.weight` or `token_embd.weight`.
    pub tensor: String,
    /// The expert or the head, where the tensor is a stack of matrices.
    pub part: Option<u32>,
    /// The rank r.
    pub rank: usize,
    /// (rank, columns of the matrix) row by row; of `token_embd.weight` (rank, n_vocab), whose columns are tokens'.
    pub a: Vec<f32>,
    /// (rows of the matrix, rank) row by row; of `token_embd.weight` (n_embd, rank).
    pub b: Vec<f32>,
    /// α / r, or α / √r.
    pub scale: f32,
}

impl Factors {
    /// Columns of `A`.
    #[must_use]
    pub const fn n_cols(&self) -> usize {
        match self.rank {
            0 => 0,
            rank => self.a.len() / rank,
        }
    }

    /// Rows of `B`.
    #[must_use]
    pub const fn n_rows(&self) -> usize {
        match self.rank {
            0 => 0,
            rank => self.b.len() / rank,
        }
    }

    /// The key that identifies a pair.
    #[must_use]
    pub fn key(&self) -> (&str, Option<u32>) {
        (&self.tensor, self.part)
    }
}

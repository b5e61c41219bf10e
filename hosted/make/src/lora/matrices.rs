//! The number and shapes of the matrices in a model's tensors.

use sluice::adapter::{AdapterFile, AdapterLoadError, Factors};
use sluice::file::ModelFile;
use sluice_core::gguf::Gguf;
use sluice_hf::adapter::BaseHints;
use sluice_hf::{Base, Wanted};
use std::collections::HashMap;
use std::path::Path;

/// The matrices of a model, by GGUF's names.
#[derive(Clone, Debug, Default)]
pub struct Matrices {
    architecture: String,
    by_name: HashMap<String, Matrix>,
}

/// A tensor's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    /// The number of matrices in a stack; `None` for a single matrix.
    pub(super) n_parts: Option<u64>,
    pub(super) rows: u64,
    pub(super) columns: u64,
}

impl Matrices {
    /// The matrices of a GGUF file.
    ///
    /// # Errors
    /// [`AdapterLoadError::File`].
    pub fn of_model(model: &ModelFile) -> Result<Self, AdapterLoadError> {
        Ok(Self::of_gguf(&model.parse()?))
    }

    /// The matrices of the model that a PEFT folder is for, from a `config.json` found as by [`sluice_hf::adapter::read`];
    /// `None` without such a file.
    ///
    /// # Errors
    /// [`AdapterLoadError::Folder`].
    pub fn of_base(
        folder: &Path,
        named: Option<&str>,
        base: Option<&Path>,
    ) -> Result<Option<Self>, AdapterLoadError> {
        let hints = BaseHints {
            folder,
            base,
            named,
            model: None,
        };
        match hints.bases(&[]) {
            Ok(bases) => Ok(bases.first().map(Self::of)),
            Err(AdapterLoadError::NoBase { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn of_gguf(gguf: &Gguf<'_>) -> Self {
        let mut by_name = HashMap::new();
        for tensor in gguf.tensors() {
            let [columns, rows, n, _] = tensor.dims;
            let matrix = Matrix {
                n_parts: (tensor.n_dims == 3).then_some(n),
                rows,
                columns,
            };
            if matches!(tensor.n_dims, 2 | 3) {
                by_name.insert(tensor.name.to_owned(), matrix);
            }
        }
        Self::new(
            gguf.str("general.architecture").unwrap_or_default(),
            by_name,
        )
    }

    fn of(base: &Base) -> Self {
        let wanted = base.wanted();
        let matrix = |wanted: &Wanted| {
            let (n_parts, [rows, columns]) = match *wanted.stacked() {
                [rows, columns] => (None, [rows, columns]),
                [n, rows, columns] => (Some(n), [rows, columns]),
                _ => return None,
            };
            let matrix = Matrix {
                n_parts,
                rows,
                columns,
            };
            Some((wanted.name.clone(), matrix))
        };
        Self::new(
            base.architecture(),
            wanted.iter().filter_map(matrix).collect(),
        )
    }

    fn new(architecture: &str, mut by_name: HashMap<String, Matrix>) -> Self {
        // An embedding tied to the output matrix can be adapted as either.
        if let Some(&embedding) = by_name.get("token_embd.weight") {
            by_name.entry("output.weight".into()).or_insert(embedding);
        }
        Self {
            architecture: architecture.into(),
            by_name,
        }
    }

    pub(super) fn find(&self, tensor: &str) -> Option<Matrix> {
        self.by_name.get(tensor).copied()
    }

    /// Checks that an adapter fits such a model.
    ///
    /// # Errors
    /// [`AdapterLoadError::Family`], [`AdapterLoadError::Shape`], [`AdapterLoadError::Tensor`].
    pub fn check(&self, file: &AdapterFile) -> Result<(), AdapterLoadError> {
        self.check_family(file)?;
        file.factors
            .iter()
            .try_for_each(|factors| self.check_one(&file.path, factors))
    }

    pub(super) fn check_family(&self, file: &AdapterFile) -> Result<(), AdapterLoadError> {
        if !file.architecture.is_empty() && file.architecture != self.architecture {
            return Err(AdapterLoadError::Family {
                path: file.path.clone(),
                found: file.architecture.clone(),
                expected: self.architecture.clone(),
            });
        }
        Ok(())
    }

    pub(super) fn check_one(&self, path: &str, factors: &Factors) -> Result<(), AdapterLoadError> {
        let Some(matrix) = self.find(&factors.tensor) else {
            let what = "is adapted, but the model has no such matrix";
            return Err(AdapterLoadError::tensor(path, &*factors.tensor, what));
        };
        let is_there = match (matrix.n_parts, factors.part) {
            (None, None) => true,
            (Some(n), Some(part)) => u64::from(part) < n,
            _ => false,
        };
        if !is_there {
            let (own, n) = (factors.part, matrix.n_parts);
            let what = match (own, n) {
                (Some(part), Some(n)) => {
                    format!("has {n} matrices in the model, but number {part} is adapted")
                }
                (Some(_), None) => "is a single matrix in the model, but adapted as a stack".into(),
                _ => "is a stack of matrices in the model, but adapted as one".to_owned(),
            };
            return Err(AdapterLoadError::tensor(path, &*factors.tensor, what));
        }
        let found = match factors.tensor.as_str() {
            "token_embd.weight" => [factors.n_cols(), factors.n_rows()],
            _ => [factors.n_rows(), factors.n_cols()],
        };
        let (found, expected) = (found.map(|n| n as u64), [matrix.rows, matrix.columns]);
        match found == expected {
            true => Ok(()),
            false => Err(AdapterLoadError::Shape {
                path: path.into(),
                tensor: factors.tensor.clone(),
                found,
                expected,
            }),
        }
    }
}

//! What PiSSA and OLoRA took out of a model's weights before training, found again in them.
//!
//! PEFT does the same when it loads such an adapter: its product stands for that part of the weights.

use super::LoraError;
use super::added::{Added, By, narrow};
use super::dominant::Matrix;
use sluice::adapter::AdapterLoadError;
use sluice::file::ModelFile;
use sluice_core::gguf::TensorInfo;
use sluice_core::gguf::source::TensorSource as _;
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::blocks::dequantize_row;
use sluice_core::team::StopFlag;
use sluice_hf::adapter::AdapterStart;

/// The product that `added` takes out of its matrix, with a negative factor; `None` if `stop` was set meanwhile.
pub(super) fn product_at_start(
    model: &ModelFile,
    info: &TensorInfo<'_>,
    added: &Added<'_>,
    stop: &StopFlag,
) -> Result<Option<By<'static>>, LoraError> {
    let By::TakeOut { start, rank, scale } = added.by else {
        unreachable!("only those are looked for");
    };
    if !matches!(info.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
        let what = format!(
            "is {}: what {start:?} took out of the weights can be found only in F32, F16 or BF16",
            info.ty
        );
        return Err(AdapterLoadError::tensor(model.name(), info.name, what).into());
    }
    let fits = |n: u64| usize::try_from(n).expect("the tensor is in memory soon");
    let [n_cols, n_rows, ..] = info.dims;
    let len = n_rows * info.row_bytes();
    let mut bytes = vec![0; fits(len)];
    let read = model.read(info.offset + added.part * len, &mut bytes);
    read.map_err(|error| AdapterLoadError::data(model.name(), info.name, error))?;
    let mut numbers = vec![0.0; fits(n_rows * n_cols)];
    dequantize_row(info.ty, &bytes, &mut numbers);
    let matrix = Matrix {
        numbers: &numbers,
        n_rows: fits(n_rows),
        n_cols: fits(n_cols),
    };
    let rank = rank.min(matrix.n_rows).min(matrix.n_cols);
    let found = match start {
        AdapterStart::Pissa => matrix.largest(rank, stop),
        AdapterStart::Olora => Some(matrix.first_columns(rank)),
    };
    let Some(basis) = found else {
        return Ok(None);
    };
    // Q · Qᵀ · W, whose rows are taken from the side that Q belongs to.
    let n_rank = basis.len();
    let rows = matrix.times_turned(&basis);
    let a: Vec<f32> = rows.into_iter().flatten().map(narrow).collect();
    let mut b = vec![0.0; n_rank * matrix.n_rows];
    for (k, q) in basis.iter().enumerate() {
        for (row, x) in q.iter().enumerate() {
            b[row * n_rank + k] = narrow(*x);
        }
    }
    Ok(Some(By::Product {
        rank: n_rank,
        a: a.into(),
        b: b.into(),
        scale: -scale,
    }))
}

//! From one GGUF file to another with smaller weights.
//!
//! [`FileType`] is the requested type, with llama.cpp's name (`Q4_K_M`); [`Plan`] assigns a type to every tensor before
//! any data is read; [`quantize`] streams the weights through [`sluice_core::kernels::quantize`] with all workers, in
//! pieces, so that memory does not grow with the model. An [`ImportanceMatrix`] weights the columns, and a [`Budget`]
//! chooses types by measured error instead of by name. [`Hot`] puts the neurons that are active most first.

mod budget;
mod collect;
mod file_type;
mod hot;
mod importance;
mod mix;
mod ordered;
mod plan;
mod sensitivity;
mod stream;

pub use budget::{BUDGET_LANES, BUDGET_TYPES, Budget, BudgetCandidate, BudgetError};
pub use collect::Collector;
pub use file_type::{FILE_TYPES, FileType};
pub use hot::{Hot, HotError};
pub use importance::{Importance, ImportanceError, ImportanceFormat, ImportanceMatrix};
pub use ordered::Ordered;
pub use plan::{Plan, PlanError, PlannedTensor, QuantizeRequest};
pub use sensitivity::{Bench, Runner, SensitivityError, apply as apply_sensitivities};
pub use stream::{QuantizeFileError, quantize, read_rows};

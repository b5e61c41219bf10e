//! Extension points of a step: adapters, observers, selectors of neurons, sources of experts.

mod adapter;
mod observer;
mod options;
mod selector;
mod source;
mod sparse;

pub use adapter::{Adapter, AdapterEmbedding, AdapterError, AdapterPair, Blend, BlendPart};
pub use observer::{NeuronChoice, Observer, SiteInput, SiteProduct};
pub use options::StepOptions;
pub use selector::{Selector, Unit};
pub use source::{CLUSTER_NEURONS, ExpertPart, ExpertSource, ExpertWeights, Loan, NeededExperts};
pub(super) use source::{Lent, Waiter};
pub use sparse::{Approximation, NeuronRule, NeuronSignal, Sparse};

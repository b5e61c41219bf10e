//! The engine: batches of tokens in, logits out.
//!
//! ```text
//! Engine::step(&batch) ─▶ Step ─▶ every rank, each from a thread of its own:
//!                                   step.join(rank)?.run()
//!                         Step::finish() ─▶ Outputs: logits or hidden states of the rows asked for
//! ```
//!
//! A step is one forward pass that `n_workers` ranks run together ([`crate::team`]). It either
//! completes, and its tokens are in the KV cache, or it stops (cancelled, past its deadline, a
//! worker failed) and the cache is as before. Results do not depend on the number of workers,
//! on how a prompt is cut into steps, nor on the rest of a batch.
//!
//! Core owns no memory: [`EnginePlan`] gives the sizes of the KV and scratch memory that
//! [`Engine::new`] needs.

mod activate;
mod adapt;
pub mod backward;
mod batch;
mod blocks;
mod check;
mod epilogue;
mod forward;
mod keep;
mod limits;
mod linear;
mod lora;
mod neurons;
mod output;
mod pass;
mod plan;
mod rows;
mod runner;
mod scratch;
mod sites;
mod step;
mod stream;

pub use batch::{BatchEntry, EngineError, Wants};
pub use limits::EngineLimits;
pub use neurons::{NeuronCounts, Neurons};
pub use output::{Outputs, StepReport};
pub use plan::EnginePlan;
pub use sites::{
    Adapter, AdapterEmbedding, AdapterError, AdapterPair, Approximation, Blend, BlendPart,
    CLUSTER_NEURONS, ExpertPart, ExpertSource, ExpertWeights, Loan, NeededExperts, NeuronChoice,
    NeuronRule, NeuronSignal, Observer, Selector, SiteInput, SiteProduct, Sparse, StepOptions,
    Unit,
};
pub use step::{Engine, Step, Worker};

#[cfg(test)]
mod tests;

//! The options of a step: what it needs from its surroundings.

use super::super::neurons::NeuronCounts;
use super::{Blend, ExpertSource, Observer, Selector, Sparse};
use crate::kernels::table::Prefetch;
use crate::team::{Deadline, StopFlag, WaitPolicy};
use crate::trace::EventRing;
use core::fmt;

/// The options of a step.
#[derive(Clone, Copy)]
pub struct StepOptions<'s> {
    /// How workers wait for each other, and for experts.
    pub wait: &'s dyn WaitPolicy,
    /// Asks the step to stop.
    pub stop: &'s StopFlag,
    /// The time at which the step must stop.
    pub deadline: Option<Deadline<'s>>,
    /// Times the step ([`crate::engine::StepReport`]), in ticks of the caller's choice.
    pub clock: Option<&'s (dyn Fn() -> u64 + Sync)>,
    /// Records the workers' activity.
    pub trace: Option<&'s EventRing<'s>>,
    /// Blends of adapters that entries name by index.
    pub adapters: &'s [Blend<'s>],
    /// Looks at the inputs of linear layers.
    pub observer: Option<&'s dyn Observer>,
    /// The source of the experts' weights; `None` if they are the model's.
    pub experts: Option<&'s dyn ExpertSource>,
    /// Which neurons are computed.
    pub selector: Option<&'s dyn Selector>,
    /// Which neurons are left unread, or out.
    pub sparse: Sparse<'s>,
    /// Counts neurons of each layer, in addition to the report; layers beyond its end are not counted apart.
    pub neurons: &'s [NeuronCounts],
    /// The trunk's hidden state (after its output norm, [`crate::engine::Outputs::hidden`]) before each entry's
    /// token, or a head's own one: (entries, n_embd). For heads that predict a token further
    /// ([`crate::model::NextToken`]), and only for these.
    pub hidden: Option<&'s [f32]>,
    /// How far ahead products of few tokens prefetch weights: only their time depends on it. A host with a
    /// clock can measure which distance is fastest, as the hosted shell does.
    pub prefetch: Prefetch,
}

impl<'s> StepOptions<'s> {
    /// No deadline, no trace, no adapters, all neurons.
    pub const fn new(wait: &'s dyn WaitPolicy, stop: &'s StopFlag) -> Self {
        Self {
            wait,
            stop,
            deadline: None,
            clock: None,
            trace: None,
            adapters: &[],
            observer: None,
            experts: None,
            selector: None,
            sparse: Sparse::Exact,
            neurons: &[],
            hidden: None,
            prefetch: Prefetch::Near,
        }
    }
}

impl fmt::Debug for StepOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepOptions")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

//! Hooks of steps: flags, deadlines, adapters.

use core::fmt;
use core::ops::Deref;
use sluice_core::engine::{Blend, ExpertSource, NeuronCounts, Observer, Selector, Sparse};
use sluice_core::team::{Deadline, StopFlag};
use sluice_core::trace::EventRing;
use std::sync::Arc;

/// A flag that stops steps, shared or static.
#[derive(Clone, Debug)]
pub enum StopHandle {
    /// Shared with the thread that sets it.
    Shared(Arc<StopFlag>),
    /// For example a signal handler's.
    Static(&'static StopFlag),
}

impl Deref for StopHandle {
    type Target = StopFlag;

    fn deref(&self) -> &StopFlag {
        match self {
            Self::Shared(flag) => flag,
            Self::Static(flag) => flag,
        }
    }
}

impl From<Arc<StopFlag>> for StopHandle {
    fn from(flag: Arc<StopFlag>) -> Self {
        Self::Shared(flag)
    }
}

impl From<&'static StopFlag> for StopHandle {
    fn from(flag: &'static StopFlag) -> Self {
        Self::Static(flag)
    }
}

/// Inputs of a step in addition to its tokens.
#[derive(Clone, Copy, Default)]
pub struct StepHooks<'s> {
    /// Maximum tokens that each sequence may read, in the order of the sequences passed to
    /// [`Session::step_with`](crate::Session::step_with). `None` for as many as fit.
    pub shares: Option<&'s [usize]>,
    /// When the step must stop.
    pub deadline: Option<Deadline<'s>>,
    /// Records what workers do; by default the session's profile.
    pub trace: Option<&'s EventRing<'s>>,
    /// Blends of adapters that entries of a batch name by index. Sequences have their own.
    pub adapters: &'s [Blend<'s>],
    /// Looks at the inputs of linear layers.
    pub observer: Option<&'s dyn Observer>,
    /// The source of the experts' weights; `None` if they are the model's.
    pub experts: Option<&'s dyn ExpertSource>,
    /// Selects the neurons to compute.
    pub selector: Option<&'s dyn Selector>,
    /// Which neurons are left unread or out, instead of the session's mode.
    pub sparse: Option<Sparse<'s>>,
    /// Counts the neurons of each layer.
    pub neurons: &'s [NeuronCounts],
    /// For heads that predict a token further: the hidden state before each entry's token, of the trunk or of the head
    /// itself ([`Outputs::hidden`](sluice_core::engine::Outputs::hidden)); (entries, n_embd).
    pub hidden: Option<&'s [f32]>,
}

impl fmt::Debug for StepHooks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepHooks").finish_non_exhaustive()
    }
}

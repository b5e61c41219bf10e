//! What hangs in steps: flags, deadlines, adapters.

use core::fmt;
use core::ops::Deref;
use sluice_core::engine::{Blend, ExpertSource, Observer, Selector};
use sluice_core::team::{Deadline, StopFlag};
use sluice_core::trace::EventRing;
use std::sync::Arc;

/// A flag that asks to stop, owned or as long as the program.
#[derive(Clone, Debug)]
pub enum StopHandle {
    /// Shared with the thread that sets it.
    Shared(Arc<StopFlag>),
    /// A signal handler's, say.
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

/// What hangs in a step besides its tokens.
#[derive(Clone, Copy, Default)]
pub struct StepHooks<'s> {
    /// Most tokens that each sequence may read, in the order that [`Session::step_with`](crate::Session::step_with)
    /// is given them. `None` for as many as fit.
    pub shares: Option<&'s [usize]>,
    /// When the step must stop.
    pub deadline: Option<Deadline<'s>>,
    /// Records what workers do; by default the session's profile.
    pub trace: Option<&'s EventRing<'s>>,
    /// Blends of adapters that entries of a batch name by index. Sequences have their own.
    pub adapters: &'s [Blend<'s>],
    /// Looks at the inputs of linear layers.
    pub observer: Option<&'s dyn Observer>,
    /// Where the weights of experts are; `None` if they are the model's.
    pub experts: Option<&'s dyn ExpertSource>,
    /// Which neurons are computed.
    pub selector: Option<&'s dyn Selector>,
    /// What a head that predicts a token further reads with each entry's token: the hidden state before it of its
    /// trunk, or its own ([`Outputs::hidden`](sluice_core::engine::Outputs::hidden)); (entries, n_embd). For heads
    /// alone.
    pub hidden: Option<&'s [f32]>,
}

impl fmt::Debug for StepHooks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepHooks").finish_non_exhaustive()
    }
}

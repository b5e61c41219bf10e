//! The gate as a service: a pinned thread that takes samples from a ring, decides frame by frame,
//! and hands on what passes.
//!
//! [`FrameObserver`] runs a [`sluice_core::gate::Gate`] on a thread of its own; [`Intake`] takes the
//! samples. What the thread was granted (a core to itself, priority, locked memory and so on)
//! is in [`isolation`]'s report, read back from the kernel. [`source`] reads samples from files
//! and pipes, [`plot`] draws samples and decisions.

pub mod bench;
pub mod isolation;
mod observer;
pub mod plot;
pub mod sink;
pub mod source;

pub use observer::{
    Backpressure, Finished, FrameObserver, Idle, Intake, IntakeClosed, ObserverConfig,
    ObserverError, Snapshot,
};
pub use sink::{OwnedFrame, Sink, channel};

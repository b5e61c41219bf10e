//! The destination of an observer's frames.

use core::ops::ControlFlow;
use sluice_core::gate::Decision;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Takes an observer's frames, on its thread. A closure over (index, frame, decision) is one that
/// only sees frames that pass.
///
/// While a sink works the ring fills, and then the observer's backpressure decides: a slow sink
/// loses nothing uncounted. `Break` ends the observer; what is queued stays counted as queued.
pub trait Sink: Send + 'static {
    /// Frame number `index` of those processed passes.
    fn passed(&mut self, index: u64, frame: &[f32], decision: &Decision) -> ControlFlow<()>;

    /// Frame number `index` does not pass.
    fn silent(&mut self, index: u64, frame: &[f32], decision: &Decision) -> ControlFlow<()> {
        let _ = (index, frame, decision);
        ControlFlow::Continue(())
    }
}

impl<F> Sink for F
where
    F: FnMut(u64, &[f32], &Decision) -> ControlFlow<()> + Send + 'static,
{
    fn passed(&mut self, index: u64, frame: &[f32], decision: &Decision) -> ControlFlow<()> {
        self(index, frame, decision)
    }
}

/// A frame that passed, as a channel carries it.
#[derive(Clone, Debug)]
pub struct OwnedFrame {
    /// Its number among the frames processed.
    pub index: u64,
    /// Its samples.
    pub samples: Vec<f32>,
    /// The gate's decision.
    pub decision: Decision,
}

/// The sink of [`channel`].
#[derive(Debug)]
pub struct ChannelSink(SyncSender<OwnedFrame>);

impl Sink for ChannelSink {
    fn passed(&mut self, index: u64, frame: &[f32], decision: &Decision) -> ControlFlow<()> {
        let frame = OwnedFrame {
            index,
            samples: frame.to_vec(),
            decision: *decision,
        };
        // A full channel makes the sink wait; one without a reader ends the observer.
        match self.0.send(frame) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

/// A sink that sends passing frames to another thread. The observer waits once `capacity` of them are queued.
pub fn channel(capacity: usize) -> (ChannelSink, Receiver<OwnedFrame>) {
    let (sender, receiver) = sync_channel(capacity);
    (ChannelSink(sender), receiver)
}

//! Samples in, whole frames out: a ring with frames and counters.
//!
//! A stream is cut into frames from its first sample on, regardless of how it is pushed. Frames are dropped
//! whole, so later ones keep their boundaries. The ring holds a whole number of
//! frames, so a frame never wraps around and is processed in place.

use super::policy::GateError;
use super::telemetry::Meter;
use crate::ring::{Consumer, Gauge, Producer, Ring};
use static_assertions::{assert_impl_all, assert_not_impl_any};

/// How a producer handles samples that do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Overflow {
    /// Returns them to the caller, who offers them again or waits.
    #[default]
    Return,
    /// Drops the newest frame whole, as soon as not all of it fits, and counts it.
    DropNewest,
}

/// The half of a stream that accepts samples.
#[derive(Debug)]
pub struct FrameProducer<'r> {
    ring: Producer<'r, f32>,
    meter: &'r Meter,
    frame_len: usize,
    overflow: Overflow,
    /// Samples of the frame in progress that were offered.
    at: usize,
    /// Whether the frame in progress is being dropped.
    is_dropping: bool,
    /// Frames begun.
    pushed: u64,
    dropped: u64,
}

/// The two halves of a stream over `ring`, which must hold a whole number of frames.
///
/// # Errors
/// [`GateError::FrameLen`], [`GateError::RingLen`].
pub fn split<'r>(
    ring: &'r mut Ring<'_, f32>,
    meter: &'r mut Meter,
    frame_len: usize,
    overflow: Overflow,
) -> Result<(FrameProducer<'r>, FrameConsumer<'r>), GateError> {
    *meter = Meter::new();
    let meter = &*meter;
    let (producer, consumer) = ring.split();
    if frame_len == 0 {
        return Err(GateError::FrameLen);
    }
    if producer.capacity() == 0 || !producer.capacity().is_multiple_of(frame_len) {
        return Err(GateError::RingLen);
    }
    let producer = FrameProducer {
        ring: producer,
        meter,
        frame_len,
        overflow,
        at: 0,
        is_dropping: false,
        pushed: 0,
        dropped: 0,
    };
    let consumer = FrameConsumer {
        ring: consumer,
        meter,
        frame_len,
        processed: 0,
        skipped: 0,
        dropped: 0,
    };
    Ok((producer, consumer))
}

impl<'r> FrameProducer<'r> {
    /// Accepts samples, and returns their number: with [`Overflow::DropNewest`] all of them, with
    /// [`Overflow::Return`] the number that fits.
    pub fn push(&mut self, samples: &[f32]) -> usize {
        match self.overflow {
            Overflow::Return => self.accept(samples),
            Overflow::DropNewest => {
                self.push_or_drop(samples);
                samples.len()
            }
        }
    }

    /// Pushes the samples that fit.
    fn accept(&mut self, samples: &[f32]) -> usize {
        let n = self.ring.fill(samples);
        if n > 0 {
            self.offered(n);
            let tail = self.ring.tail().wrapping_add(n);
            self.meter.input(tail, self.pushed, self.dropped);
            self.ring.publish(n);
        }
        n
    }

    fn push_or_drop(&mut self, mut samples: &[f32]) {
        while !samples.is_empty() {
            if self.at == 0 {
                self.is_dropping = self.ring.free() < self.frame_len;
                if self.is_dropping {
                    self.dropped += 1;
                }
            }
            let n = samples.len().min(self.frame_len - self.at);
            let (now, later) = samples.split_at(n);
            if self.is_dropping {
                self.offered(n);
                self.meter
                    .input(self.ring.tail(), self.pushed, self.dropped);
            } else {
                // The frame fitted when it began, and only this half pushes.
                let taken = self.accept(now);
                assert_eq!(taken, n, "a frame's room is gone");
            }
            samples = later;
        }
    }

    /// Counts `n` samples of the stream.
    fn offered(&mut self, n: usize) {
        let end = self.at + n;
        let begun = end.div_ceil(self.frame_len) - self.at.div_ceil(self.frame_len);
        self.pushed += begun as u64;
        self.at = end % self.frame_len;
    }

    /// Samples of the frame in progress so far.
    pub const fn partial_len(&self) -> usize {
        self.at
    }

    /// Samples that fit now.
    pub fn free(&mut self) -> usize {
        self.ring.free()
    }

    /// Whether the frame in progress is being dropped.
    pub const fn is_dropping(&self) -> bool {
        self.is_dropping
    }

    /// The stream's counters.
    pub const fn meter(&self) -> &'r Meter {
        self.meter
    }

    /// A gauge of the ring, for [`Meter::read`].
    pub const fn gauge(&self) -> Gauge<'r> {
        self.ring.gauge()
    }
}

/// The outcome of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameOutcome {
    /// It passed; otherwise it was skipped.
    pub passed: bool,
    /// Whether to continue with the next frame.
    pub go_on: bool,
}

/// The half of a stream that takes frames out.
#[derive(Debug)]
pub struct FrameConsumer<'r> {
    ring: Consumer<'r, f32>,
    meter: &'r Meter,
    frame_len: usize,
    processed: u64,
    skipped: u64,
    dropped: u64,
}

impl FrameConsumer<'_> {
    /// Passes up to `n_max` whole frames to `handle`, oldest first, in place, and returns
    /// their number. Slots are released and counters published after every frame that passed and
    /// at the end.
    pub fn process(
        &mut self,
        n_max: usize,
        mut handle: impl FnMut(&[f32]) -> FrameOutcome,
    ) -> usize {
        let mut n_done = 0;
        while n_done < n_max {
            let wanted = (n_max - n_done).saturating_mul(self.frame_len);
            let [piece, _] = self.ring.items(wanted.min(self.ring.capacity()));
            let (mut n, mut skipped, mut handled) = (0, 0, None);
            // A frame never wraps around, so the second piece is left for the next iteration.
            for frame in piece.chunks_exact(self.frame_len) {
                n += 1;
                let outcome = *handled.insert(handle(frame));
                skipped += u64::from(!outcome.passed);
                if outcome.passed || !outcome.go_on {
                    break;
                }
            }
            let Some(handled) = handled else {
                break;
            };
            self.processed += n as u64;
            self.skipped += skipped;
            self.release(n);
            n_done += n;
            if !handled.go_on {
                break;
            }
        }
        n_done
    }

    /// Drops the oldest frames, up to `n` and only whole ones, and counts them. Returns their
    /// number.
    pub fn drop_oldest(&mut self, n: usize) -> usize {
        let n = n.min(self.ring.queued() / self.frame_len);
        if n > 0 {
            self.dropped += n as u64;
            self.release(n);
        }
        n
    }

    /// Whole frames in the ring at this moment.
    pub fn queued(&mut self) -> usize {
        self.ring.queued() / self.frame_len
    }

    /// Samples in a frame.
    pub const fn frame_len(&self) -> usize {
        self.frame_len
    }

    fn release(&mut self, n_frames: usize) {
        let n = n_frames * self.frame_len;
        let head = self.ring.head().wrapping_add(n);
        let (processed, skipped) = (self.processed, self.skipped);
        self.meter.output(head, processed, skipped, self.dropped);
        self.ring.release(n);
    }
}

// A half belongs to one thread at a time, and is moved to it.
assert_impl_all!(FrameProducer<'static>: Send);
assert_not_impl_any!(FrameProducer<'static>: Sync, Clone);
assert_impl_all!(FrameConsumer<'static>: Send);
assert_not_impl_any!(FrameConsumer<'static>: Sync, Clone);

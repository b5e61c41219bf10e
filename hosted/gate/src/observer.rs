//! The thread that drains a ring through the gate.

use super::isolation::{self, IsolationRequest, RingMemory};
use super::sink::Sink;
use core::cell::UnsafeCell;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use core::time::Duration;
use rustix::thread::futex;
use sluice::host::measures::Report;
use sluice_core::gate::{
    Decision, FRAME_LEN, FrameConsumer, FrameOutcome, FrameProducer, Gate, GateConfig, GateError,
    Meter, Overflow, Telemetry, intake,
};
use sluice_core::kernels::{FpEnv, FrameKernels};
use sluice_core::ring::{Gauge, Ring};
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// What happens to samples for which the ring has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Backpressure {
    /// The push waits. Nothing is lost.
    #[default]
    Block,
    /// The push returns how many samples it took. Nothing is lost.
    Return,
    /// Frames that arrive are dropped whole, and counted. The push never waits.
    DropNewest,
    /// The oldest frames in the ring are dropped whole, and counted. The push waits for the gate's
    /// decision about the frame in hand at most, never for the sink.
    DropOldest,
}

/// How a worker without work waits: it spins, then sleeps until the next push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Looks at the ring with one pause between two.
    pub spins: u32,
    /// Looks after that, with eight pauses between two.
    pub pauses: u32,
}

impl Default for Idle {
    /// About 20 µs at 3 GHz: a push that is close by finds the worker awake.
    fn default() -> Self {
        Self {
            spins: 64,
            pauses: 128,
        }
    }
}

/// The settings of an observer.
#[derive(Clone, Debug)]
pub struct ObserverConfig {
    /// How frames are judged.
    pub gate: GateConfig,
    /// Samples in a frame.
    pub frame_len: usize,
    /// Frames in the ring.
    pub capacity_frames: usize,
    /// What happens when the ring is full.
    pub backpressure: Backpressure,
    /// How the worker waits.
    pub idle: Idle,
    /// What the worker asks of the kernel.
    pub isolation: IsolationRequest,
}

impl Default for ObserverConfig {
    fn default() -> Self {
        Self {
            gate: GateConfig::default(),
            frame_len: FRAME_LEN,
            capacity_frames: 1024,
            backpressure: Backpressure::default(),
            idle: Idle::default(),
            isolation: IsolationRequest::none(),
        }
    }
}

/// Why an observer did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserverError {
    /// A setting makes no sense.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The ring would be larger than memory.
    #[error("a ring of {capacity_frames} frames of {frame_len} samples does not fit in memory")]
    TooLarge {
        /// The requested number of frames.
        capacity_frames: usize,
        /// The requested samples per frame.
        frame_len: usize,
    },
    /// No memory for the ring.
    #[error("cannot allocate the ring: {0}")]
    Memory(io::Error),
    /// No thread for the worker.
    #[error("cannot start the observer's thread: {0}")]
    Thread(io::Error),
}

/// The observer has ended: its sink did, or [`FrameObserver::finish`] was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the observer has ended; {taken} samples of this push were taken")]
pub struct IntakeClosed {
    /// Samples of the push that were taken before.
    pub taken: usize,
}

/// The worker runs.
const RUNNING: u32 = 0;
/// The worker ends once no whole frame is left.
const DRAINING: u32 = 1;
/// The worker ends at the next frame.
const STOPPING: u32 = 2;
/// The worker has ended.
const ENDED: u32 = 3;

/// What intake, worker and observer share. `ring`, `meter` and `memory` are borrowed by the
/// stream's halves for as long as this lives.
#[derive(Debug)]
struct Shared {
    state: AtomicU32,
    /// 1 while the worker sleeps or is about to.
    worker_sleeps: AtomicU32,
    /// 1 while a push waits for room.
    intake_sleeps: AtomicU32,
    /// Locked by the worker as long as it works; with [`Backpressure::DropOldest`] frame by frame.
    consumer: Mutex<Option<FrameConsumer<'static>>>,
    ring: UnsafeCell<Option<Ring<'static, f32>>>,
    meter: UnsafeCell<Meter>,
    memory: RingMemory,
}

// SAFETY: `ring` and `meter` are accessed once, before the value is shared; afterwards through
// the halves and gauges, which are made for several threads.
unsafe impl Sync for Shared {}
// SAFETY: as for Sync.
unsafe impl Send for Shared {}

impl Shared {
    fn consumer(&self) -> MutexGuard<'_, Option<FrameConsumer<'static>>> {
        self.consumer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// Asks the worker to end, unless it is further already.
    fn ask(&self, state: u32) {
        self.state.fetch_max(state, Ordering::SeqCst);
        wake(&self.worker_sleeps);
        wake(&self.intake_sleeps);
    }
}

/// Wakes the thread that sleeps on `word`. It sees what was published before: this looks at the word after a full
/// fence, and the sleeper looks for work again after setting the word and a fence.
#[inline]
fn wake(word: &AtomicU32) {
    fence(Ordering::SeqCst);
    if word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::SeqCst) != 0 {
        // Fails for no address of ours.
        let _count = futex::wake(word, futex::Flags::PRIVATE, 1);
    }
}

/// Wakes the thread that sleeps on `word` between two frames, at most once in [`EARLY`] since `last`: a push that
/// waits for a slow sink continues as soon as there is room, and one that waits for a fast sink finds room for many
/// frames. Looks without a fence, so it may see the sleeper one frame late.
#[inline]
fn wake_early(word: &AtomicU32, last: &mut Instant) {
    if word.load(Ordering::Relaxed) != 0 && last.elapsed() >= EARLY {
        wake(word);
        *last = Instant::now();
    }
}

/// Sleeps on `word` until woken; returns without sleeping if `is_over` is true.
fn sleep(word: &AtomicU32, mut is_over: impl FnMut() -> bool) {
    word.store(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    while !is_over() && word.load(Ordering::SeqCst) == 1 {
        // EAGAIN (the word has changed) and EINTR are reasons to look again.
        let _woken = futex::wait(word, futex::Flags::PRIVATE, 1, None);
    }
    word.store(0, Ordering::SeqCst);
}

/// The input for samples. One thread at a time; may move between threads.
#[derive(Debug)]
pub struct Intake {
    producer: FrameProducer<'static>,
    shared: Arc<Shared>,
    backpressure: Backpressure,
    frame_len: usize,
    idle: Idle,
}

impl Intake {
    /// Offers samples, and returns how many were taken: all of them, except with
    /// [`Backpressure::Return`], where the rest is the caller's to offer again. Frames are cut
    /// from the stream's first sample on, whatever the sizes of the pushes.
    ///
    /// # Errors
    /// [`IntakeClosed`].
    pub fn push(&mut self, samples: &[f32]) -> Result<usize, IntakeClosed> {
        let mut taken = 0;
        loop {
            if self.shared.state() != RUNNING {
                return Err(IntakeClosed { taken });
            }
            let before = self.producer.partial_len();
            let n = self.producer.push(&samples[taken..]);
            taken += n;
            if before + n >= self.frame_len {
                wake(&self.shared.worker_sleeps);
            }
            if taken == samples.len() {
                return Ok(taken);
            }
            match self.backpressure {
                Backpressure::Return | Backpressure::DropNewest => return Ok(taken),
                Backpressure::Block => self.wait_for_room(),
                Backpressure::DropOldest => self.drop_oldest(samples.len() - taken),
            }
        }
    }

    /// Samples that the frame in progress lacks; 0 if there is none, or it is being dropped. There is room for them.
    #[must_use]
    pub const fn lacking(&self) -> usize {
        match (self.producer.partial_len(), self.producer.is_dropping()) {
            (0, _) | (_, true) => 0,
            (n, false) => self.frame_len - n,
        }
    }

    /// A push that leaves the worker busy while the next one is prepared, and the ring with room.
    pub const fn recommended_push_size(&self) -> usize {
        self.frame_len * 64
    }

    fn wait_for_room(&mut self) {
        for _ in 0..self.idle.spins {
            if self.producer.free() > 0 || self.shared.state() != RUNNING {
                return;
            }
            core::hint::spin_loop();
        }
        let (producer, shared) = (&mut self.producer, &*self.shared);
        sleep(&shared.intake_sleeps, || {
            producer.free() > 0 || shared.state() != RUNNING
        });
    }

    /// Makes room for `n_samples`, or for as many as the ring holds.
    fn drop_oldest(&mut self, n_samples: usize) {
        let n_frames = n_samples.div_ceil(self.frame_len);
        if let Some(consumer) = &mut *self.shared.consumer() {
            consumer.drop_oldest(n_frames);
        }
    }
}

/// The state of an observer's stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Snapshot {
    /// Counters, in frames.
    pub counts: Telemetry,
    /// Frames processed per second over the last window of at least 100 ms; 0 when idle.
    pub frames_per_second: f64,
    /// How full the ring is.
    pub buffer_fill_pct: f64,
    /// Whether the worker has not ended.
    pub is_running: bool,
    /// Whether everything that was asked of the kernel was granted.
    pub isolation_active: bool,
    /// Whether the ring is more than 90% full.
    pub backpressure_active: bool,
}

/// What is left of an observer.
#[derive(Debug)]
pub struct Finished<S> {
    /// The sink; `None` if it panicked.
    pub sink: Option<S>,
    /// The last counters.
    pub counts: Telemetry,
}

/// A gate on a thread of its own.
#[derive(Debug)]
pub struct FrameObserver<S> {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<S>>,
    gauge: Gauge<'static>,
    meter: &'static Meter,
    frame_len: usize,
    capacity: usize,
    report: Report,
    rate: Mutex<Rate>,
}

/// The window of the rate, and what counters were when they were reset.
#[derive(Debug)]
struct Rate {
    since: Instant,
    processed: u64,
    frames_per_second: f64,
    zero: Telemetry,
}

/// The shortest window of a rate.
const WINDOW: Duration = Duration::from_millis(100);

impl<S: Sink> FrameObserver<S> {
    /// Starts the worker, and waits until it has what it gets of what it asks of the kernel. The
    /// caller's thread is left as it is.
    ///
    /// # Errors
    /// [`ObserverError`]. A request that the kernel refuses is not an error: see [`Self::isolation`].
    pub fn start(
        config: &ObserverConfig,
        kernels: &'static FrameKernels,
        sink: S,
    ) -> Result<(Self, Intake), ObserverError> {
        let gate = Gate::new(config.gate, kernels)?;
        let (shared, producer, consumer) = stream(config)?;
        let (gauge, meter) = (producer.gauge(), producer.meter());
        *shared.consumer() = Some(consumer);
        let worker = Worker {
            shared: Arc::clone(&shared),
            gate,
            sink,
            idle: config.idle,
            index: 0,
        };
        let (send, receive) = sync_channel(1);
        let (request, backpressure) = (config.isolation.clone(), config.backpressure);
        let builder = std::thread::Builder::new().name("sluice-gate".into());
        let thread = builder.spawn(move || worker.live(&request, backpressure, &send));
        let thread = thread.map_err(ObserverError::Thread)?;
        // The worker sends before anything else can end it.
        let report = receive.recv().unwrap_or_default();
        let observer = Self {
            thread: Some(thread),
            gauge,
            meter,
            frame_len: config.frame_len,
            capacity: config.frame_len * config.capacity_frames,
            report,
            rate: Mutex::new(Rate {
                since: Instant::now(),
                processed: 0,
                frames_per_second: 0.0,
                zero: Telemetry::default(),
            }),
            shared: Arc::clone(&shared),
        };
        let intake = Intake {
            producer,
            shared,
            backpressure,
            frame_len: config.frame_len,
            idle: config.idle,
        };
        Ok((observer, intake))
    }

    /// What the worker asked of the kernel, and what it got.
    pub const fn isolation(&self) -> &Report {
        &self.report
    }

    /// The counters now. They add up at every look.
    pub fn snapshot(&self) -> Snapshot {
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = self.meter.read(self.gauge, self.frame_len);
        let elapsed = rate.since.elapsed();
        if elapsed >= WINDOW {
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let n = (counts.processed - rate.processed) as f64;
            rate.frames_per_second = n / elapsed.as_secs_f64();
            rate.processed = counts.processed;
            rate.since = Instant::now();
        }
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        let fill = 100.0 * counts.queued_samples as f64 / self.capacity as f64;
        Snapshot {
            counts: counts.since(&rate.zero),
            frames_per_second: rate.frames_per_second,
            buffer_fill_pct: fill,
            is_running: self.shared.state() != ENDED,
            isolation_active: self.report.is_held(),
            backpressure_active: fill > 90.0,
        }
    }

    /// Counts from 0 again. What is queued counts as pushed since.
    pub fn reset_telemetry(&self) {
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        rate.zero = self.meter.read(self.gauge, self.frame_len);
    }

    /// Whether the worker has ended by itself: its sink did.
    pub fn has_ended(&self) -> bool {
        self.shared.state() == ENDED
    }

    /// Lets the worker process every whole frame that is queued, and ends it. A partial frame at
    /// the stream's end stays counted as queued.
    pub fn finish(mut self) -> Finished<S> {
        self.shared.ask(DRAINING);
        let sink = self.thread.take().and_then(|thread| thread.join().ok());
        Finished {
            sink,
            counts: self.meter.read(self.gauge, self.frame_len),
        }
    }
}

impl<S> Drop for FrameObserver<S> {
    /// Ends the worker after the frame in hand.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.shared.ask(STOPPING);
            // A panicking sink has printed its message.
            let _ended = thread.join();
        }
    }
}

type Stream = (Arc<Shared>, FrameProducer<'static>, FrameConsumer<'static>);

/// Memory, ring, counters, and the two halves over them.
fn stream(config: &ObserverConfig) -> Result<Stream, ObserverError> {
    let (frame_len, capacity_frames) = (config.frame_len, config.capacity_frames);
    let too_large = || ObserverError::TooLarge {
        capacity_frames,
        frame_len,
    };
    let capacity = frame_len
        .checked_mul(capacity_frames)
        .ok_or_else(too_large)?;
    let bytes = capacity
        .checked_mul(4)
        .filter(|&n| isize::try_from(n).is_ok());
    let memory = RingMemory::new(bytes.ok_or_else(too_large)?).map_err(ObserverError::Memory)?;
    // SAFETY: `memory` is mapped, aligned and plain bytes for `capacity` samples; nothing else
    // uses them, and `Shared` keeps it as long as any half lives.
    let slots = unsafe { core::slice::from_raw_parts_mut(memory.start().cast(), capacity) };
    let shared = Arc::new(Shared {
        state: AtomicU32::new(RUNNING),
        worker_sleeps: AtomicU32::new(0),
        intake_sleeps: AtomicU32::new(0),
        consumer: Mutex::new(None),
        ring: UnsafeCell::new(Some(Ring::new(slots))),
        meter: UnsafeCell::new(Meter::new()),
        memory,
    });
    // SAFETY: the only access to the cell; the Arc keeps the value in place, and the halves below are moved only
    // together with a clone of that Arc.
    let ring: &'static mut Option<Ring<'static, f32>> = unsafe { &mut *shared.ring.get() };
    // SAFETY: as above.
    let meter: &'static mut Meter = unsafe { &mut *shared.meter.get() };
    let overflow = match config.backpressure {
        Backpressure::DropNewest => Overflow::DropNewest,
        _ => Overflow::Return,
    };
    let ring = ring.as_mut().expect("just made");
    let (producer, consumer) = intake::split(ring, meter, frame_len, overflow)?;
    Ok((shared, producer, consumer))
}

struct Worker<S> {
    shared: Arc<Shared>,
    gate: Gate,
    sink: S,
    idle: Idle,
    /// Frames processed.
    index: u64,
}

/// Marks the worker as ended, however it ended.
struct SayEnded(Arc<Shared>);

impl Drop for SayEnded {
    fn drop(&mut self) {
        self.0.ask(ENDED);
    }
}

/// Frames between two looks at what else there is to do.
const BATCH: usize = 64;
/// A push may wait this long although there is room: many times what a wake-up costs the worker.
const EARLY: Duration = Duration::from_micros(200);

impl<S: Sink> Worker<S> {
    fn live(
        mut self,
        request: &IsolationRequest,
        backpressure: Backpressure,
        report: &std::sync::mpsc::SyncSender<Report>,
    ) -> S {
        let _ended = SayEnded(Arc::clone(&self.shared));
        // Undone at the end, before the thread is.
        let (_isolation, found) = isolation::isolate(request, Some(&self.shared.memory));
        // The observer waits for it.
        let _received = report.send(found);
        match backpressure {
            Backpressure::DropOldest => self.work_on_copies(),
            _ => self.work_in_place(),
        }
        self.sink
    }

    /// Frames are judged and handed on in place.
    fn work_in_place(&mut self) {
        let env = FpEnv::enter();
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.consumer();
        let consumer = guard.as_mut().expect("set before the worker started");
        let mut woken = Instant::now();
        loop {
            let state = shared.state();
            if state >= STOPPING {
                return;
            }
            let mut ends = false;
            let n = consumer.process(BATCH, |frame| {
                wake_early(&shared.intake_sleeps, &mut woken);
                let decision = self.gate.process_in(&env, frame);
                let flow = self.hand_on(frame, &decision);
                ends = flow.is_break();
                FrameOutcome {
                    passed: decision.verdict.passes(),
                    go_on: !ends,
                }
            });
            if n > 0 {
                wake(&shared.intake_sleeps);
            }
            if ends || (n == 0 && state == DRAINING) {
                return;
            }
            if n == 0 {
                self.wait(|| consumer.queued() > 0 || shared.state() != RUNNING);
            }
        }
    }

    /// Frames are judged while the ring is locked, and handed on as copies while it is not: the
    /// other side may drop queued frames meanwhile.
    fn work_on_copies(&mut self) {
        let env = FpEnv::enter();
        let shared = Arc::clone(&self.shared);
        let mut copy = Vec::new();
        loop {
            let state = shared.state();
            if state >= STOPPING {
                return;
            }
            let mut judged = None;
            let n = match &mut *shared.consumer() {
                Some(consumer) => consumer.process(1, |frame| {
                    let decision = self.gate.process_in(&env, frame);
                    copy.clear();
                    copy.extend_from_slice(frame);
                    judged = Some(decision);
                    FrameOutcome {
                        passed: decision.verdict.passes(),
                        go_on: true,
                    }
                }),
                None => 0,
            };
            if let Some(decision) = judged
                && self.hand_on(&copy, &decision).is_break()
            {
                return;
            }
            if n == 0 && state == DRAINING {
                return;
            }
            if n == 0 {
                let has_work = || {
                    let mut consumer = shared.consumer();
                    consumer
                        .as_mut()
                        .is_some_and(|consumer| consumer.queued() > 0)
                };
                self.wait(|| has_work() || shared.state() != RUNNING);
            }
        }
    }

    fn hand_on(&mut self, frame: &[f32], decision: &Decision) -> ControlFlow<()> {
        let index = self.index;
        self.index += 1;
        if decision.verdict.passes() {
            self.sink.passed(index, frame, decision)
        } else {
            self.sink.silent(index, frame, decision)
        }
    }

    /// Spins, then sleeps, until `is_over`.
    fn wait(&self, mut is_over: impl FnMut() -> bool) {
        for look in 0..self.idle.spins + self.idle.pauses {
            if is_over() {
                return;
            }
            let pauses = if look < self.idle.spins { 1 } else { 8 };
            (0..pauses).for_each(|_| core::hint::spin_loop());
        }
        sleep(&self.shared.worker_sleeps, is_over);
    }
}

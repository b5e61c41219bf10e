//! How fast the gate is here: frames per second and core cycles per frame, against the rate at
//! which this core reads memory at all.

use core::hint::black_box;
use sluice::host::memory::{AlignedMemory, OutOfMemory};
use sluice_core::gate::{Gate, GateConfig, GateError};
use sluice_core::kernels::FrameKernels;
use sluice_core::kernels::cycles::{CHAIN, add_chain};
use std::time::Instant;

/// Shares of silent frames that are measured, in percent.
pub const SILENT_PCT: [u32; 7] = [0, 25, 50, 75, 90, 99, 100];

/// Frames of which some are silent, in random order.
#[derive(Debug)]
pub struct Stream {
    memory: AlignedMemory,
    frame_len: usize,
    /// Frames that are not silent.
    pub n_active: usize,
}

impl Stream {
    /// `n_frames` of about normal noise, of which `silent_pct` percent are zeros. Always the same
    /// for the same arguments. In huge pages, where the kernel has some.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(n_frames: usize, frame_len: usize, silent_pct: u32) -> Result<Self, OutOfMemory> {
        let mut noise = Noise(42);
        let mut memory = AlignedMemory::zeroed(4 * n_frames * frame_len)?;
        // Without them translation of addresses is part of what is measured.
        let _hint = memory.advise_huge_pages();
        let mut n_active = 0;
        for (i, frame) in memory.chunks_exact_mut(4 * frame_len).enumerate() {
            // Spread evenly in every hundred frames, at random places.
            let place = (i as u64 % 100 * 61 + 17) % 100;
            if place >= u64::from(silent_pct) {
                for sample in frame.as_chunks_mut().0 {
                    *sample = noise.value().to_ne_bytes();
                }
                n_active += 1;
            } else {
                // Written, or the kernel would show one page of zeros for all of them.
                black_box(frame).fill(0);
            }
        }
        Ok(Self {
            memory,
            frame_len,
            n_active,
        })
    }

    /// The samples.
    pub fn samples(&self) -> &[f32] {
        // SAFETY: any four bytes are an f32.
        let (before, samples, _) = unsafe { self.memory.align_to() };
        debug_assert!(before.is_empty(), "pages are aligned");
        samples
    }

    fn n_frames(&self) -> usize {
        self.samples().len() / self.frame_len
    }

    /// Bytes of samples.
    pub fn len_bytes(&self) -> usize {
        self.memory.len()
    }
}

/// A counter-based stream of numbers.
struct Noise(u64);

impl Noise {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The sum of four uniform numbers, scaled to a variance of 1.
    fn value(&mut self) -> f32 {
        let bits = self.bits();
        let parts = [0, 16, 32, 48].map(|shift| (bits >> shift & 0xffff) as u32);
        #[expect(clippy::cast_precision_loss, reason = "18 bits")]
        let sum = parts.iter().sum::<u32>() as f32 / 65536.0 - 2.0;
        sum * 1.732_050_8
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Frames a second, in the median run.
    pub frames_per_second: f64,
    /// Core cycles a frame, in the fastest tenth of the runs.
    pub cycles_per_frame: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Bytes a second at which the core reads the same memory, measured between the runs.
    pub probe_bytes_per_second: f64,
    /// The share of the probe's rate, 0 to about 1: the median over the runs, each with its own probe.
    pub of_probe: f64,
}

/// Core cycles a second, now.
pub fn clock() -> f64 {
    const ROUNDS: u64 = 20_000;
    let seconds = (0..3).map(|_| {
        let start = Instant::now();
        add_chain(ROUNDS);
        start.elapsed().as_secs_f64()
    });
    let least = seconds.fold(f64::INFINITY, f64::min);
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let cycles = (ROUNDS * CHAIN) as f64;
    cycles / least
}

/// A run is at least this long: the clock's own measurement and the core's change from scalar to
/// vector work do not show in it.
const RUN_SECONDS: f64 = 4e-3;

/// Runs `work`, over all of `stream`, and a probe that reads as much, in turn for at least
/// `seconds`, with the clock measured before and after every run. What memory gives changes from
/// one tenth of a second to the next where others use it, too.
fn measure(stream: &Stream, seconds: f64, mut work: impl FnMut()) -> Figure {
    let probe = fastest_probe(stream);
    work();
    let once = time(1, &mut work).max(1e-9);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates"
    )]
    let passes = (RUN_SECONDS / once).ceil().max(1.0) as u32;
    let mut runs = Vec::new();
    let begin = Instant::now();
    while runs.len() < 5 || (begin.elapsed().as_secs_f64() < seconds && runs.len() < 1001) {
        let probed = time(passes, || probe(black_box(stream.samples())));
        let before = clock();
        let elapsed = time(passes, &mut work);
        runs.push((elapsed, f64::midpoint(before, clock()), probed));
    }
    let mut shares: Vec<f64> = runs.iter().map(|run| run.2 / run.0).collect();
    let mut probes: Vec<f64> = runs.iter().map(|run| run.2).collect();
    shares.sort_by(f64::total_cmp);
    probes.sort_by(f64::total_cmp);
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let middle = runs.len() / 2;
    let (quick, clock, _) = runs[runs.len() / 10];
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let (n_frames, n_bytes) = (stream.n_frames() as f64, stream.len_bytes() as f64);
    Figure {
        frames_per_second: n_frames / runs[middle].0,
        cycles_per_frame: quick * clock / n_frames,
        bytes_per_second: n_bytes / runs[middle].0,
        probe_bytes_per_second: n_bytes / probes[middle],
        of_probe: shares[middle],
    }
}

/// Seconds of one of `passes` runs of `work`.
fn time(passes: u32, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..passes).for_each(|_| work());
    start.elapsed().as_secs_f64() / f64::from(passes)
}

/// The gate over `stream`, features and scaling of every active frame included.
///
/// # Errors
/// A setting out of its range.
///
/// # Panics
/// If the gate does not pass exactly the frames that are not silent.
pub fn gate(
    stream: &Stream,
    config: GateConfig,
    kernels: &'static FrameKernels,
    seconds: f64,
) -> Result<Figure, GateError> {
    let mut gate = Gate::new(config, kernels)?;
    let figure = measure(stream, seconds, || {
        let (mut n_passed, mut sum) = (0, 0.0);
        gate.process_all(stream.samples(), stream.frame_len, |_, _, decision| {
            n_passed += usize::from(decision.verdict.passes());
            sum += decision.scaling;
        });
        assert_eq!(n_passed, stream.n_active, "the gate passed other frames");
        black_box(sum);
    });
    Ok(figure)
}

/// The scan alone: the largest magnitude of every frame. With `asks`, memory is asked for as the
/// gate does.
pub fn scan(stream: &Stream, kernels: &'static FrameKernels, asks: bool, seconds: f64) -> Figure {
    measure(stream, seconds, || {
        let samples = black_box(stream.samples());
        let mut later = samples.chunks_exact(stream.frame_len).skip(2);
        for frame in samples.chunks_exact(stream.frame_len) {
            let soon = later.next().unwrap_or(frame);
            black_box(match asks {
                true => kernels.max_abs_before(frame, soon),
                false => kernels.max_abs(frame),
            });
        }
    })
}

/// The statistics alone, of every frame.
pub fn stats(stream: &Stream, kernels: &'static FrameKernels, seconds: f64) -> Figure {
    measure(stream, seconds, || {
        for frame in black_box(stream.samples()).chunks_exact(stream.frame_len) {
            black_box(kernels.stats(frame));
        }
    })
}

/// How fast this core reads `stream`: the faster of adding up all of it and of taking eight bytes
/// of every cache line, which is the least that anything must do.
pub fn read_probe(stream: &Stream, seconds: f64) -> Figure {
    let probe = fastest_probe(stream);
    measure(stream, seconds, || probe(black_box(stream.samples())))
}

fn fastest_probe(stream: &Stream) -> fn(&[f32]) {
    let mut best = (f64::INFINITY, add_all as fn(&[f32]));
    for _ in 0..3 {
        for probe in [add_all, touch_lines] {
            let elapsed = time(1, || probe(black_box(stream.samples())));
            if elapsed < best.0 {
                best = (elapsed, probe);
            }
        }
    }
    best.1
}

fn add_all(samples: &[f32]) {
    let (chunks, _) = samples.as_chunks::<32>();
    let mut sums = [0u32; 32];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(x.to_bits());
        }
    }
    black_box(sums);
}

fn touch_lines(samples: &[f32]) {
    let (lines, _) = samples.as_chunks::<16>();
    let sum = lines
        .iter()
        .fold(0u32, |sum, line| sum.wrapping_add(line[0].to_bits()));
    black_box(sum);
}

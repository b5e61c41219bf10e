//! The samples that a frame kernel reads next, prefetched while it works on others.

use crate::contract::LANES;
use crate::prefetch::{prefetch_line, prefetch_line_to_l2};
use crate::tuning::{SCAN_LINES_AHEAD, Tuning};

/// What is prefetched while a frame is scanned: the number of lines it has, further on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Soon {
    from: *const f32,
    is_far: bool,
}

impl Soon {
    /// While `x` is scanned from `x[at]` on: `next`, or what is a few lines away.
    #[inline(always)]
    pub(crate) fn new(x: &[f32], at: usize, next: &[f32]) -> Self {
        let is_far = Tuning::detect().scan.by_frames;
        let from = if is_far { next } else { x }.as_ptr().wrapping_add(at);
        Self { from, is_far }
    }

    /// Prefetches `n` lines, those that belong to `at`.
    #[inline(always)]
    pub(crate) fn prefetch(self, at: usize, n: usize) {
        if self.is_far {
            prefetch(self.from, at, n);
        } else {
            for line in 0..n {
                let [far, near] = SCAN_LINES_AHEAD.map(|ahead| at + (line + ahead) * LANES);
                prefetch_line_to_l2(self.from.wrapping_add(far).cast());
                prefetch_line(self.from.wrapping_add(near).cast());
            }
        }
    }
}

/// What is prefetched while features of a frame are computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// Later frames: `n` lines for each line of the frame.
    later: *const f32,
    n: usize,
    /// The end of the frame: the memory after it is prefetched into the first-level cache on CPUs whose scan is not
    /// tuned for whole frames.
    behind: Option<*const f32>,
}

impl Ahead {
    /// All of `next` while `x` is looked at.
    #[inline(always)]
    pub(crate) fn new(x: &[f32], next: &[f32]) -> Self {
        Self {
            later: next.as_ptr(),
            n: next.len().div_ceil(x.len().max(1)),
            behind: (!Tuning::detect().scan.by_frames).then_some(x.as_ptr_range().end),
        }
    }

    /// Prefetches what belongs to `LINES` times 16 samples from `at` on.
    #[inline(always)]
    pub(crate) fn prefetch<const LINES: usize>(self, at: usize) {
        if let Some(behind) = self.behind {
            for line in 0..LINES {
                prefetch_line(behind.wrapping_add(at + LANES * line).cast());
            }
        }
        // Mostly one line each, a constant number, so that no loop is left.
        if self.n == 1 {
            prefetch(self.later, at, LINES);
        } else {
            prefetch(self.later, self.n * at, LINES * self.n);
        }
    }
}

/// Prefetches `n` cache lines from `x[at]` on, or from where it would be, into the second-level cache: a
/// whole frame may be on its way, more than the first level can wait for at a time.
#[inline(always)]
fn prefetch(x: *const f32, at: usize, n: usize) {
    for line in 0..n {
        prefetch_line_to_l2(x.wrapping_add(at + line * LANES).cast());
    }
}

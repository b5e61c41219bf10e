//! Parts of shared work for cores of different speeds.

use super::WORKERS_MAX;
use core::ops::Range;
use heapless::Vec;

/// The fraction of shared work that each rank of a team begins with, for cores of different speeds. It affects
/// only times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The end of each rank's part, as a fraction of the last one's end.
    ends: Vec<u32, WORKERS_MAX>,
}

impl Shares {
    /// Parts in proportion to the ranks' speeds, in any unit. `None` if the list is empty or longer than
    /// [`WORKERS_MAX`], or one is not a finite number above 0.
    pub fn by_speed(speeds: &[f32]) -> Option<Self> {
        let fastest = speeds.iter().copied().fold(0.0, f32::max);
        let mut end = 0;
        let mut ends = Vec::new();
        for &speed in speeds {
            if !(speed > 0.0 && fastest.is_finite()) {
                return None;
            }
            // A sum of 256 stays below 2^24; the slowest has a part too.
            #[expect(clippy::cast_possible_truncation, reason = "at most 2^16")]
            #[expect(clippy::cast_sign_loss, reason = "positive")]
            let part = (speed / fastest * 65536.0) as u32;
            end += part.max(1);
            ends.push(end).ok()?;
        }
        (!ends.is_empty()).then_some(Self { ends })
    }

    /// The number of ranks.
    pub fn n_ranks(&self) -> usize {
        self.ends.len()
    }

    /// The part of `0..n` for `rank`. Parts are contiguous, in the order of ranks.
    pub(super) fn range(&self, rank: usize, n: usize) -> Range<usize> {
        let all = self.ends.last().map_or(1, |&end| u64::from(end));
        let at = |end: u32| {
            // n is a number of rows or strips, far below 2^40, and the result at most n.
            #[expect(clippy::cast_possible_truncation, reason = "said above")]
            let at = (n as u64 * u64::from(end) / all) as usize;
            at
        };
        at(rank.checked_sub(1).map_or(0, |before| self.ends[before]))..at(self.ends[rank])
    }
}

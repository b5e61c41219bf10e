//! Chooses the currently faster way of prefetching weights.
//!
//! On shared machines memory speed changes from second to second, and with it whether the CPU's
//! prefetchers keep up. So of every 64 steps of few tokens two are run the other way, and the
//! following steps use the faster one. Tokens do not depend on it.
#![forbid(unsafe_code)]

use core::time::Duration;
use sluice_core::kernels::table::Prefetch;

/// Maximum tokens of a step that is limited by reading weights: more of them take longer than memory does.
pub const FEW_TOKENS: usize = 8;
/// Steps from a trial to the next: two of them are 3%.
const PERIOD: u32 = 64;
/// Steps of a trial, all with the same number of tokens: as before, the other way twice, as before. So steps that
/// become slower or faster meanwhile favour neither way.
const TRIAL: u32 = 4;

/// Chooses by the time of the steps before, unless the way is fixed.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The fixed way, if there is one.
    fixed: Option<Prefetch>,
    /// The way of the last step of few tokens.
    last: Prefetch,
    way: Prefetch,
    /// Tokens of each step of this trial.
    n_tokens: usize,
    /// Steps of this period so far.
    step: u32,
    /// The shortest step of this trial as before, and the other way.
    shortest: [Duration; 2],
}

impl Pace {
    pub(crate) const fn new() -> Self {
        Self {
            fixed: None,
            last: Prefetch::Near,
            way: Prefetch::Near,
            n_tokens: 1,
            step: 0,
            shortest: [Duration::MAX; 2],
        }
    }

    /// Starts a period.
    const fn restart(&mut self) {
        self.step = 0;
        self.shortest = [Duration::MAX; 2];
    }

    /// Fixes the way; `None` chooses again.
    pub(crate) const fn fix(&mut self, way: Option<Prefetch>) {
        self.fixed = way;
    }

    /// The way for the next step, of `n_tokens` tokens.
    pub(crate) const fn next(&mut self, n_tokens: usize) -> Prefetch {
        if n_tokens != self.n_tokens && self.step < TRIAL {
            self.restart();
            self.n_tokens = n_tokens;
        }
        let is_few = n_tokens <= FEW_TOKENS;
        let way = match self.fixed {
            Some(way) => way,
            None if is_few && self.is_other_way() => other(self.way),
            None => self.way,
        };
        if is_few {
            self.last = way;
        }
        way
    }

    /// The way of the last step of few tokens.
    pub(crate) const fn last(&self) -> Prefetch {
        self.last
    }

    /// Notes the time of a step of `n_tokens` tokens that used the way given by [`Self::next`].
    pub(crate) fn note(&mut self, n_tokens: usize, time: Duration) {
        if n_tokens > FEW_TOKENS || self.fixed.is_some() {
            return;
        }
        if self.step < TRIAL {
            let shortest = &mut self.shortest[usize::from(self.is_other_way())];
            *shortest = time.min(*shortest);
        }
        self.step += 1;
        let [before, trial] = self.shortest;
        // A difference below 2% may be chance.
        if self.step == TRIAL && trial < before.mul_f32(0.98) {
            self.way = other(self.way);
        }
        if self.step == PERIOD {
            self.restart();
        }
    }

    const fn is_other_way(&self) -> bool {
        matches!(self.step, 1 | 2)
    }
}

const fn other(way: Prefetch) -> Prefetch {
    match way {
        Prefetch::Near => Prefetch::Far,
        Prefetch::Far => Prefetch::Near,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `n` steps that take `near` and `far` microseconds; returns how many were far.
    fn run(pace: &mut Pace, n: u32, near: u64, far: u64) -> u32 {
        let step = |_| {
            let is_far = pace.next(1) == Prefetch::Far;
            pace.note(1, Duration::from_micros(if is_far { far } else { near }));
            u32::from(is_far)
        };
        (0..n).map(step).sum()
    }

    #[test]
    fn the_faster_way_is_found_and_kept() {
        let mut pace = Pace::new();
        assert_eq!(run(&mut pace, PERIOD, 1500, 1000), PERIOD - 2);
        assert_eq!(run(&mut pace, 10 * PERIOD, 1500, 1000), 10 * (PERIOD - 2));
        let mut pace = Pace::new();
        assert_eq!(run(&mut pace, 10 * PERIOD, 1000, 1500), 20);
        assert_eq!(run(&mut Pace::new(), 10 * PERIOD, 1000, 990), 20, "chance");
    }

    #[test]
    fn what_changes_is_followed_within_a_period() {
        let mut pace = Pace::new();
        run(&mut pace, 10 * PERIOD + 7, 1500, 1000);
        run(&mut pace, PERIOD, 1000, 1500);
        assert_eq!(pace.next(1), Prefetch::Near);
        run(&mut pace, PERIOD, 1500, 1000);
        assert_eq!(pace.next(1), Prefetch::Far);
    }

    #[test]
    fn neither_a_step_that_was_held_up_nor_a_slow_start_decides() {
        for times in [
            [9000, 1000, 1000, 1000],
            [1000, 9000, 1000, 1000],
            [1000, 1000, 9000, 1000],
            [1000, 1000, 1000, 9000],
            [1300, 1200, 1100, 1000],
        ] {
            let mut pace = Pace::new();
            for time in times {
                pace.note(1, Duration::from_micros(time));
            }
            assert_eq!(pace.next(1), Prefetch::Near, "{times:?}");
        }
    }

    #[test]
    fn a_fixed_way_is_kept_whatever_the_times() {
        let mut pace = Pace::new();
        pace.fixed = Some(Prefetch::Far);
        assert_eq!(run(&mut pace, 3 * PERIOD, 1000, 1500), 3 * PERIOD);
        assert_eq!((pace.last(), pace.next(5)), (Prefetch::Far, Prefetch::Far));
        pace.fixed = Some(Prefetch::Near);
        assert_eq!(run(&mut pace, 3 * PERIOD, 1500, 1000), 0);
        assert_eq!(pace.last(), Prefetch::Near);
        pace.fixed = None;
        assert_eq!(run(&mut pace, PERIOD, 1500, 1000), PERIOD - 2, "a choice");
    }

    #[test]
    fn steps_of_many_tokens_go_as_before_and_end_a_trial() {
        let mut pace = Pace::new();
        for time in [1000, 100] {
            pace.note(1, Duration::from_micros(time));
        }
        assert_eq!(pace.next(512), Prefetch::Near);
        pace.note(512, Duration::from_micros(1));
        assert_eq!(pace.next(1), Prefetch::Near, "a new trial's first");
        run(&mut pace, TRIAL, 1500, 1000);
        assert_eq!(pace.next(512), Prefetch::Far);
        assert_eq!(run(&mut pace, PERIOD - TRIAL, 1500, 1000), PERIOD - TRIAL);
    }

    #[test]
    fn steps_of_few_tokens_have_trials_of_as_many() {
        let mut pace = Pace::new();
        let mut step = |n_tokens, near, far| {
            let way = pace.next(n_tokens);
            let time = if way == Prefetch::Far { far } else { near };
            pace.note(n_tokens, Duration::from_micros(time));
            way
        };
        for n_tokens in [4, FEW_TOKENS] {
            step(1, 100, 100);
            assert_eq!(
                step(1, 100, 50),
                Prefetch::Far,
                "a trial that {n_tokens} end"
            );
            let ways: [_; TRIAL as usize] = core::array::from_fn(|_| step(n_tokens, 1500, 2000));
            assert_eq!(ways[1..3], [Prefetch::Far; 2]);
            assert_eq!((ways[0], ways[3]), (Prefetch::Near, Prefetch::Near));
            for _ in TRIAL..PERIOD {
                assert_eq!(step(n_tokens, 1500, 2000), Prefetch::Near);
            }
        }
        for _ in 0..TRIAL {
            step(4, 2000, 1500);
        }
        assert_eq!(step(4, 2000, 1500), Prefetch::Far);
    }
}

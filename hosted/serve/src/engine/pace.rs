//! Divides a turn: texts that are being written come first, then as much of the waiting prompts as time allows.

use sluice::Model;
use sluice_core::costs::Costs;

/// Minimum number of prompt tokens in a turn, however long the texts take.
pub(super) const PROMPT_TOKENS_MIN: usize = 16;
/// Factor by which turns may be longer while no text is being written, since no client then waits for a token.
const ALONE: f64 = 4.0;
/// Prompts of which fewer tokens than this have been read take precedence over the others.
const QUANTUM: usize = 512;

/// The length of turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Length of a turn in nanoseconds.
    pub(super) turn: f64,
    /// Minimum fraction of it for prompts.
    pub(super) share: f64,
    /// Maximum number of tokens in a step.
    pub(super) n_batch: usize,
    /// Whether a step takes as many prompt tokens as fit into it, however long that takes.
    pub(super) is_whole: bool,
}

/// Whether prompts are read in whole steps: if not all experts are in memory, each is read from disk once for all
/// tokens of a step, so a step of half the tokens takes almost as long.
pub(crate) fn reads_whole(model: &Model) -> bool {
    let stats = model.experts().map(|experts| experts.stats());
    stats.is_some_and(|stats| stats.n_slots < stats.n_experts)
}

/// The part of a turn that is taken by texts being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WritingLoad {
    /// Number of tokens that they read.
    pub(super) n_rows: usize,
    /// Total number of positions that these attend to.
    pub(super) n_positions: usize,
}

/// A prompt that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// Lower values come first.
    pub(super) priority: i32,
    /// Number in the order of arrival.
    pub(super) arrival: u64,
    /// Number of tokens in its context.
    pub(super) position: usize,
    /// Number of its tokens that were computed, excluding those found in the cache.
    pub(super) n_computed: usize,
    /// Maximum number of tokens that it may read in this turn.
    pub(super) wanted: usize,
}

/// The number of tokens that each prompt reads in a turn, in addition to the texts being written.
///
/// Half of the room is given to the oldest of the most urgent prompts, so that a long one makes progress however
/// many short ones arrive; the rest to those that have had least, so that short ones do not wait for a long one.
pub(super) fn shares(
    pace: Pace,
    costs: &Costs,
    writing: WritingLoad,
    prompts: &[Reading],
) -> Vec<usize> {
    let mut shares = vec![0; prompts.len()];
    let mut room = room(pace, costs, writing, prompts);
    let mut order: Vec<usize> = (0..prompts.len()).collect();
    order.sort_by_key(|&i| (prompts[i].priority, prompts[i].arrival));
    if let Some(&oldest) = order.first() {
        let part = room.div_ceil(2).min(prompts[oldest].wanted);
        shares[oldest] = part;
        room -= part;
    }
    order.sort_by_key(|&i| {
        let prompt = &prompts[i];
        (prompt.priority, prompt.n_computed / QUANTUM, prompt.arrival)
    });
    for i in order {
        let part = room.min(prompts[i].wanted - shares[i]);
        shares[i] += part;
        room -= part;
    }
    shares
}

/// The number of prompt tokens that fit into a turn.
fn room(pace: Pace, costs: &Costs, writing: WritingLoad, prompts: &[Reading]) -> usize {
    let WritingLoad {
        n_rows,
        n_positions,
    } = writing;
    let most = pace.n_batch.saturating_sub(n_rows);
    let wanted = prompts.iter().map(|prompt| prompt.wanted).sum::<usize>();
    if pace.is_whole {
        return most.min(wanted);
    }
    let (before, time) = if n_rows == 0 {
        (0.0, ALONE * pace.turn)
    } else {
        let before = costs.predict(n_rows, n_positions);
        let turn = pace.turn.max(before);
        (before, (turn - before).max(pace.share * turn))
    };
    let position = prompts.iter().map(|prompt| prompt.position).max();
    let fitting = costs.fitting(
        before + time,
        n_rows,
        n_positions,
        position.unwrap_or(0),
        most,
    );
    fitting.max(PROMPT_TOKENS_MIN).min(most).min(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace {
        turn: 50e6,
        share: 0.25,
        n_batch: 512,
        is_whole: false,
    };

    fn prompt(arrival: u64, n_computed: usize, wanted: usize) -> Reading {
        Reading {
            priority: 0,
            arrival,
            position: n_computed,
            n_computed,
            wanted,
        }
    }

    fn writing(n_rows: usize) -> WritingLoad {
        WritingLoad {
            n_rows,
            n_positions: 0,
        }
    }

    /// One millisecond per row.
    fn costs() -> Costs {
        let mut costs = Costs::new();
        for n in 1..=512 {
            costs.note(n, 0, 1e6 * f64::from(u32::try_from(n).unwrap()));
        }
        costs
    }

    #[test]
    fn texts_leave_prompts_a_quarter() {
        let read = |n_writing| shares(PACE, &costs(), writing(n_writing), &[prompt(0, 0, 4000)])[0];
        let about = |n: usize, expected: usize| n.abs_diff(expected) <= 3;
        assert!(about(read(0), 200), "{}", read(0));
        assert!(about(read(10), 40), "{}", read(10));
        assert!(about(read(49), 16), "{}", read(49));
        assert!(about(read(200), 50), "{}", read(200));
        assert_eq!(read(511), 1);
    }

    #[test]
    fn whole_steps_do_not_look_at_the_time() {
        let pace = Pace {
            is_whole: true,
            ..PACE
        };
        let read = |n_writing, n| shares(pace, &costs(), writing(n_writing), &[prompt(0, 0, n)])[0];
        assert_eq!(
            [read(0, 4000), read(10, 4000), read(10, 90)],
            [512, 502, 90]
        );
    }

    #[test]
    fn the_oldest_has_half_and_the_least_served_the_rest() {
        let of = |prompts: &[Reading]| shares(PACE, &costs(), writing(10), prompts);
        let both = of(&[prompt(0, 3000, 4000), prompt(1, 0, 4000)]);
        assert!(both[0].abs_diff(both[1]) <= 1, "{both:?}");
        let short = of(&[prompt(0, 3000, 4000), prompt(1, 0, 10), prompt(2, 0, 4)]);
        assert_eq!(short[1..], [10, 4]);
        assert!(short[0] >= 20, "{short:?}");
        let urgent = Reading {
            priority: -1,
            ..prompt(7, 9000, 4000)
        };
        assert_eq!(of(&[prompt(0, 0, 4000), urgent])[0], 0);
        assert_eq!(of(&[]), [0; 0]);
    }
}

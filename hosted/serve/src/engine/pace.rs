//! Divides a turn: texts that are being written come first, then as much of the waiting prompts as time allows.

use super::request::Rank;
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

/// A share whose texts take part in a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Owner {
    /// The part of the turn that it gets, if it needs it.
    pub(super) part: f64,
    /// Number of its texts that are being written.
    pub(super) n_rows: usize,
}

/// A prompt that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// The index of its share.
    pub(super) owner: usize,
    /// Lower values come first; the lowest is the oldest, aged by its priority.
    pub(super) rank: Rank,
    pub(super) priority: i32,
    /// Number of tokens in its context.
    pub(super) position: usize,
    /// Number of its tokens that were computed, excluding those found in the cache.
    pub(super) n_computed: usize,
    /// Maximum number of tokens that it may read in this turn.
    pub(super) wanted: usize,
}

/// The number of tokens that each prompt reads in a turn, in addition to the texts being written. `owners` are the
/// shares of all of them.
///
/// Half of the room of a share is given to the oldest of its prompts, so that a long one makes progress however many
/// short ones arrive; the rest to those that have had least, so that short ones do not wait for a long one.
pub(super) fn shares(
    pace: Pace,
    costs: &Costs,
    writing: WritingLoad,
    prompts: &[Reading],
    owners: &[Owner],
) -> Vec<usize> {
    let mut shares = vec![0; prompts.len()];
    let turn = Turn::new(pace, costs, writing, prompts, owners);
    let rooms = turn.divide(pace, prompts, owners);
    for (owner, room) in rooms.into_iter().enumerate() {
        let own = (0..prompts.len()).filter(|&i| prompts[i].owner == owner);
        fill(room, prompts, own.collect(), &mut shares);
    }
    shares
}

/// Divides the room of a share among its prompts, those with the numbers `order`.
fn fill(mut room: usize, prompts: &[Reading], mut order: Vec<usize>, shares: &mut [usize]) {
    order.sort_by_key(|&i| prompts[i].rank);
    if let Some(&oldest) = order.first() {
        let part = room.div_ceil(2).min(prompts[oldest].wanted);
        shares[oldest] = part;
        room -= part;
    }
    order.sort_by_key(|&i| {
        let prompt = &prompts[i];
        (prompt.priority, prompt.n_computed / QUANTUM, prompt.rank)
    });
    for i in order {
        let part = room.min(prompts[i].wanted - shares[i]);
        shares[i] += part;
        room -= part;
    }
}

/// What fits into a turn.
struct Turn {
    /// Prompt tokens.
    n_prompt: usize,
    /// Time of the texts being written, and of prompts, in nanoseconds.
    writing: f64,
    reading: f64,
    n_rows: f64,
}

impl Turn {
    fn new(
        pace: Pace,
        costs: &Costs,
        writing: WritingLoad,
        prompts: &[Reading],
        owners: &[Owner],
    ) -> Self {
        let WritingLoad {
            n_rows,
            n_positions,
        } = writing;
        let (before, time) = if n_rows == 0 {
            (0.0, ALONE * pace.turn)
        } else {
            let before = costs.predict(n_rows, n_positions);
            let turn = pace.turn.max(before);
            // Who only reads gets a fair part, up to half, even if others fill the turn by writing.
            let readers = owners.iter().filter(|owner| owner.n_rows == 0);
            let part = readers.map(|owner| owner.part).sum::<f64>().min(0.5);
            let fair = before * part / (1.0 - part);
            let time = (turn - before).max(pace.share * turn).max(fair);
            (before, time)
        };
        let most = pace.n_batch.saturating_sub(n_rows);
        let wanted = prompts.iter().map(|prompt| prompt.wanted).sum::<usize>();
        let n_prompt = if pace.is_whole {
            most
        } else {
            let position = prompts.iter().map(|prompt| prompt.position).max();
            let position = position.unwrap_or(0);
            let fitting = costs.fitting(before + time, n_rows, n_positions, position, most);
            fitting.max(PROMPT_TOKENS_MIN).min(most)
        };
        let n_rows = owners.iter().map(|owner| owner.n_rows).sum();
        Self {
            n_prompt: n_prompt.min(wanted),
            writing: before,
            reading: time,
            n_rows: to_float(n_rows),
        }
    }

    /// The number of prompt tokens of each share: a share gets its part of the turn, less the time of its own texts
    /// that are being written. What one does not need, the others get.
    fn divide(&self, pace: Pace, prompts: &[Reading], owners: &[Owner]) -> Vec<usize> {
        let mut rooms = vec![0; owners.len()];
        let mut wanted = rooms.clone();
        for prompt in prompts {
            wanted[prompt.owner] += prompt.wanted;
        }
        let due = owners.iter().map(|owner| {
            let own = self.writing * to_float(owner.n_rows) / self.n_rows.max(1.0);
            let part = owner.part * (self.writing + self.reading) - own;
            part.max(pace.share * owner.part * self.reading)
                .max(f64::EPSILON)
        });
        let due: Vec<f64> = due.collect();
        let mut left = self.n_prompt;
        while left > 0 {
            let open: Vec<_> = (0..owners.len())
                .filter(|&i| rooms[i] < wanted[i])
                .collect();
            let whole: f64 = open.iter().map(|&i| due[i]).sum();
            let room = left;
            for i in open {
                #[expect(clippy::cast_possible_truncation, reason = "a part of `room`")]
                #[expect(clippy::cast_sign_loss, reason = "no part is negative")]
                let part = (to_float(room) * due[i] / whole).ceil() as usize;
                let part = part.min(wanted[i] - rooms[i]).min(left);
                rooms[i] += part;
                left -= part;
            }
        }
        rooms
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of tokens and texts")]
const fn to_float(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;
    use std::time::Instant;

    const PACE: Pace = Pace {
        turn: 50e6,
        share: 0.25,
        n_batch: 512,
        is_whole: false,
    };

    fn prompt(arrival: u64, n_computed: usize, wanted: usize) -> Reading {
        Reading {
            owner: 0,
            rank: rank(0, arrival),
            priority: 0,
            position: n_computed,
            n_computed,
            wanted,
        }
    }

    fn rank(priority: i32, arrival: u64) -> Rank {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        Rank::new(*START, priority, arrival)
    }

    fn alone(n_rows: usize) -> [Owner; 1] {
        [Owner { part: 1.0, n_rows }]
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
        let read = |n_writing| {
            let prompts = [prompt(0, 0, 4000)];
            shares(
                PACE,
                &costs(),
                writing(n_writing),
                &prompts,
                &alone(n_writing),
            )[0]
        };
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
        let read = |n_writing, n| {
            let prompts = [prompt(0, 0, n)];
            shares(
                pace,
                &costs(),
                writing(n_writing),
                &prompts,
                &alone(n_writing),
            )[0]
        };
        assert_eq!(
            [read(0, 4000), read(10, 4000), read(10, 90)],
            [512, 502, 90]
        );
    }

    #[test]
    fn the_oldest_has_half_and_the_least_served_the_rest() {
        let of = |prompts: &[Reading]| shares(PACE, &costs(), writing(10), prompts, &alone(10));
        let both = of(&[prompt(0, 3000, 4000), prompt(1, 0, 4000)]);
        assert!(both[0].abs_diff(both[1]) <= 1, "{both:?}");
        let short = of(&[prompt(0, 3000, 4000), prompt(1, 0, 10), prompt(2, 0, 4)]);
        assert_eq!(short[1..], [10, 4]);
        assert!(short[0] >= 20, "{short:?}");
        let urgent = Reading {
            priority: -1,
            rank: rank(-1, 7),
            ..prompt(7, 9000, 4000)
        };
        assert_eq!(of(&[prompt(0, 0, 4000), urgent])[0], 0);
        assert_eq!(of(&[]), [0; 0]);
    }

    #[test]
    fn a_share_has_its_part_of_a_turn_however_much_others_write_and_read() {
        let owners =
            |n_rows| [(0.5, n_rows), (0.5, 0)].map(|(part, n_rows)| Owner { part, n_rows });
        let mine = Reading {
            owner: 1,
            ..prompt(9, 0, 4000)
        };
        let all = [
            prompt(0, 0, 4000),
            prompt(1, 0, 4000),
            prompt(2, 0, 4000),
            mine,
        ];
        let read = |n_rows| shares(PACE, &costs(), writing(n_rows), &all, &owners(n_rows));
        // No text is written: half. Others write for 10 ms of 50 ms: 25 ms. They write for longer than a turn: as long.
        assert!(read(0)[3].abs_diff(100) <= 4, "{:?}", read(0));
        assert!(read(10)[3].abs_diff(25) <= 4, "{:?}", read(10));
        let part = read(100)[3];
        assert!((70..=100).contains(&part), "{:?}", read(100));
        // What one does not need, the others get.
        let short = [prompt(0, 0, 4000), Reading { wanted: 5, ..mine }];
        let read = shares(PACE, &costs(), writing(10), &short, &owners(10));
        assert_eq!(read[1], 5);
        assert!(read[0] >= 30, "{read:?}");
    }
}

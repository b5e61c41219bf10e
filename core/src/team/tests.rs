use super::*;
extern crate std;
use core::sync::atomic::{AtomicBool, AtomicUsize};
use core::time::Duration;
use std::sync::Barrier;
use std::time::Instant;
use std::vec::Vec;

/// Far more than any of these tests takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// Yields, so that teams larger than the machine make progress. A rank that waits too long fails
/// its test, instead of hanging it.
struct YieldWait(Instant);

impl YieldWait {
    fn new() -> Self {
        Self(Instant::now())
    }
}

impl WaitPolicy for YieldWait {
    fn spins(&self) -> u32 {
        10
    }

    fn park(&self, _: &AtomicU32, _: u32) {
        assert!(self.0.elapsed() < PATIENCE, "a rank waits too long");
        std::thread::yield_now();
    }

    fn wake(&self, _: &AtomicU32) {}
}

fn run<R: Send>(
    size: usize,
    stop: &StopFlag,
    (deadline, shares): (Option<Deadline<'_>>, Option<Shares>),
    program: impl Fn(&mut Member<'_>) -> R + Sync,
) -> (Vec<std::thread::Result<R>>, bool) {
    let mut team = Ranks::new(size);
    team.set_shares(shares);
    let team = &team;
    let meeting = Meeting {
        team,
        wait: &YieldWait::new(),
        stop,
        deadline,
    };
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                assert!(team.join(rank));
                let program = &program;
                scope.spawn(move || {
                    let mut member = Member::new(meeting, rank);
                    let result = program(&mut member);
                    // A rank that has seen a failure passes it on, as the engine does (see
                    // `a_failure_met_a_barrier_early_reaches_the_others`).
                    let _passed_on = member.finish(team.failed().map_or(Ok(()), Err));
                    result
                })
            })
            .collect();
        threads
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect()
    });
    (results, team.all_finished())
}

/// Speeds of `size` ranks: two kinds, and some in between.
fn speeds(size: usize) -> Vec<f32> {
    let of = |rank| [1.0, 0.45, 1e-3, 0.8][rank * 7 % 4];
    (0..size).map(of).collect()
}

#[test]
fn every_strip_is_done_exactly_once_in_every_phase() {
    for (size, by_speed) in [1, 2, 3, 5, 8, 64, 65, 130, WORKERS_MAX]
        .into_iter()
        .flat_map(|size| [(size, false), (size, true)])
    {
        let n = 237;
        let shares = Shares::by_speed(&speeds(size)).filter(|_| by_speed);
        let done: Vec<_> = (0..40 * n).map(|_| AtomicUsize::new(0)).collect();
        let how = (None, shares);
        let (results, finished) = run(size, &StopFlag::new(), how, |member| {
            for phase in 0..40 {
                member.share(n, |_, strips| {
                    for strip in strips {
                        done[phase * n + strip].fetch_add(1, Ordering::Relaxed);
                    }
                });
                if phase % 3 != 0 {
                    member.barrier().unwrap();
                }
            }
        });
        assert!(results.iter().all(Result::is_ok));
        assert!(finished);
        assert!(
            done.iter().all(|n| n.load(Ordering::Relaxed) == 1),
            "{size} workers, shares {by_speed}"
        );
    }
}

#[test]
fn shares_follow_speeds() {
    let shares = Shares::by_speed(&[2.0, 1.0, 1.0]).unwrap();
    let ranges = [0, 1, 2].map(|rank| shares.range(rank, 400));
    assert_eq!(ranges, [0..200, 200..300, 300..400]);
    for size in [1, 7, 64, WORKERS_MAX] {
        let shares = Shares::by_speed(&speeds(size)).unwrap();
        assert_eq!(shares.n_ranks(), size);
        for n in [0, 1, 5, 1000, 1 << 30] {
            let mut next = 0;
            for rank in 0..size {
                let range = shares.range(rank, n);
                assert_eq!(range.start, next);
                next = range.end;
            }
            assert_eq!(next, n);
        }
    }
    for wrong in [
        &[][..],
        &[1.0, 0.0],
        &[-1.0],
        &[f32::NAN],
        &[1.0, f32::INFINITY],
    ] {
        assert_eq!(Shares::by_speed(wrong), None, "{wrong:?}");
    }
    assert_eq!(Shares::by_speed(&[1.0; WORKERS_MAX + 1]), None);
}

/// Barriers of the largest team, and a failure that reaches all of it.
#[test]
fn a_team_of_256_meets_and_stops() {
    let at: Vec<_> = (0..WORKERS_MAX).map(|_| AtomicUsize::new(0)).collect();
    let (results, finished) = run(WORKERS_MAX, &StopFlag::new(), (None, None), |member| {
        for round in 1..8 {
            at[member.rank()].store(round, Ordering::Relaxed);
            member.barrier().unwrap();
            assert!(at.iter().all(|at| at.load(Ordering::Relaxed) == round));
            member.barrier().unwrap();
        }
    });
    assert!(results.iter().all(Result::is_ok));
    assert!(finished);
    let last = WORKERS_MAX - 1;
    let (results, _) = run(WORKERS_MAX, &StopFlag::new(), (None, None), |member| {
        if member.rank() == last {
            std::panic::resume_unwind(std::boxed::Box::new("on purpose"));
        }
        member.barrier()
    });
    for (rank, result) in results.into_iter().enumerate() {
        let met = (rank != last).then_some(Err(Stop::WorkerFailed { rank: last }));
        assert_eq!(result.ok(), met);
    }
}

#[test]
fn a_barrier_orders_writes_before_reads() {
    let cells: Vec<_> = (0..4).map(|_| AtomicUsize::new(0)).collect();
    let (results, _) = run(4, &StopFlag::new(), (None, None), |member| {
        for round in 1..2000 {
            cells[member.rank()].store(round, Ordering::Relaxed);
            member.barrier().unwrap();
            assert!(cells.iter().all(|c| c.load(Ordering::Relaxed) == round));
            member.barrier().unwrap();
        }
    });
    assert!(results.iter().all(Result::is_ok));
}

#[test]
fn all_ranks_stop_at_the_same_barrier() {
    let stop = StopFlag::new();
    let (results, _) = run(5, &stop, (None, None), |member| {
        for round in 0..100_000 {
            if round == 500 && member.rank() == 3 {
                stop.stop();
            }
            if let Err(reason) = member.barrier() {
                return (round, reason);
            }
        }
        unreachable!("the stop is seen");
    });
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert!(results.iter().all(|r| *r == results[0]), "{results:?}");
    assert_eq!(results[0].1, Stop::Cancelled);
}

#[test]
fn a_deadline_stops_all() {
    let ticks = AtomicUsize::new(0);
    let clock = || ticks.fetch_add(1, Ordering::Relaxed) as u64;
    let deadline = Some(Deadline {
        clock: &clock,
        ticks: 10,
    });
    let (results, _) = run(3, &StopFlag::new(), (deadline, None), |member| {
        (0..).find_map(|round| member.barrier().err().map(|reason| (round, reason)))
    });
    for result in results {
        assert_eq!(result.unwrap(), Some((10, Stop::DeadlinePassed)));
    }
}

#[test]
fn a_worker_that_panics_takes_the_others_with_it() {
    for size in [2, 3, 8] {
        let (results, finished) = run(size, &StopFlag::new(), (None, None), |member| {
            for round in 0..50 {
                if round == 20 && member.rank() == 1 {
                    std::panic::resume_unwind(std::boxed::Box::new("on purpose"));
                }
                if let Err(reason) = member.barrier() {
                    assert_eq!(reason, Stop::WorkerFailed { rank: 1 });
                    return true;
                }
            }
            false
        });
        assert!(!finished);
        for (rank, result) in results.into_iter().enumerate() {
            assert_eq!(result.ok(), (rank != 1).then_some(true));
        }
    }
}

/// A rank that waits for something other than a barrier, such as an expert, learns that another has failed.
#[test]
fn a_failure_reaches_a_rank_that_waits_elsewhere() {
    let start = Instant::now();
    let (results, finished) = run(2, &StopFlag::new(), (None, None), |member| {
        if member.rank() == 1 {
            std::panic::resume_unwind(std::boxed::Box::new("on purpose"));
        }
        while !member.must_stop() {
            assert!(start.elapsed() < PATIENCE, "a rank waits too long");
            std::thread::yield_now();
        }
        member.barrier()
    });
    assert!(!finished);
    let stopped = Err(Stop::WorkerFailed { rank: 1 });
    assert_eq!(results.into_iter().next().unwrap().unwrap(), stopped);
}

/// Parks by reaching a point of a schedule and staying there until another is reached.
struct WaitFor<'a> {
    reached: &'a Barrier,
    left: &'a Barrier,
    once: AtomicBool,
}

impl WaitPolicy for WaitFor<'_> {
    fn spins(&self) -> u32 {
        0
    }

    fn park(&self, _: &AtomicU32, _: u32) {
        if !self.once.swap(true, Ordering::Relaxed) {
            self.reached.wait();
            self.left.wait();
        }
        std::thread::yield_now();
    }

    fn wake(&self, _: &AtomicU32) {}
}

/// A rank that fails withdraws the flags it has set. Here rank 0 still waits for one of them at
/// the first barrier when rank 2 is past it: rank 0 leaves, and rank 2 then waits for rank 0 at a
/// barrier that it never reaches. Rank 2 continues because rank 0's flag says that it has left.
#[test]
fn a_failure_met_a_barrier_early_reaches_the_others() {
    let (team, stop) = (&Ranks::new(3), &StopFlag::new());
    let (reached, passed, left) = (&Barrier::new(2), &Barrier::new(2), &Barrier::new(2));
    let slow = WaitFor {
        reached,
        left,
        once: AtomicBool::new(false),
    };
    let patient = &YieldWait::new();
    let member = |rank, wait| {
        assert!(team.join(rank));
        let deadline = None;
        Member::new(
            Meeting {
                team,
                wait,
                stop,
                deadline,
            },
            rank,
        )
    };
    let (mut slow, mut fails, mut fast) = (
        member(0, &slow as &dyn WaitPolicy),
        member(1, patient),
        member(2, patient),
    );
    let failed = Err(Stop::WorkerFailed { rank: 1 });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let result = slow.barrier();
            assert_eq!(result, failed);
            assert_eq!(slow.finish(result), failed);
        });
        scope.spawn(move || {
            reached.wait();
            assert_eq!(fails.barrier(), Ok(()));
            passed.wait();
            drop(fails);
            left.wait();
        });
        scope.spawn(move || {
            assert_eq!(fast.barrier(), Ok(()));
            passed.wait();
            assert_eq!(fast.barrier(), failed);
            assert_eq!(fast.finish(failed), failed);
        });
    });
    assert!(!team.all_finished());
}

#[test]
fn a_rank_is_taken_once() {
    let team = Ranks::new(2);
    assert!(team.join(1));
    assert!(!team.join(1));
    assert!(team.join(0));
}

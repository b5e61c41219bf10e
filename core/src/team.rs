//! A team of workers: barriers, claimed work, agreed stops.
//!
//! A forward pass is a program that every worker runs with its rank, meeting the others at
//! barriers. The team uses only atomics. *How to wait* is up to the shell ([`WaitPolicy`]):
//! workers spin a moment, then ask the policy to park them, so that a busy machine never
//! degrades to spinning.
//!
//! ```text
//! barrier: rank r stores  epoch << 3 | stop bits  in flag[r][epoch & 1], then waits until every
//!          other flag of that parity shows the epoch. Two parities, because a fast rank may be
//!          one barrier ahead while a slow one still reads; it cannot be two ahead.
//! ```
//!
//! Every rank sees the same flags at a barrier, so all agree whether to continue: a request to
//! stop is acted on by all ranks at the same barrier, or by none.

mod shares;
mod stop;

pub use shares::Shares;
pub use stop::{Deadline, Stop, StopFlag};

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use static_assertions::{assert_impl_all, const_assert_eq};
use stop::{BITS, CANCELLED, DEADLINE, SOURCE_FAILED};

/// Maximum workers in a team.
pub const WORKERS_MAX: usize = 256;

/// How a worker waits when spinning did not help.
pub trait WaitPolicy: Sync {
    /// Spins before the first call of [`Self::park`]. Long enough for a barrier between busy
    /// cores, short enough not to burn a shared one.
    fn spins(&self) -> u32 {
        2000
    }

    /// Waits until `word` may no longer hold `seen`. May return early without a reason.
    fn park(&self, word: &AtomicU32, seen: u32);

    /// As [`Self::park`], for a worker that has to check other conditions, such as a deadline: returns within
    /// milliseconds, and immediately if a policy has no clock.
    fn park_briefly(&self, word: &AtomicU32, seen: u32) {
        let _ = (word, seen);
        core::hint::spin_loop();
    }

    /// Wakes every worker parked on `word`, whose value has just changed.
    fn wake(&self, word: &AtomicU32);
}

/// Waits only by spinning: for workers that own their cores (bare metal, tests).
#[derive(Clone, Copy, Debug, Default)]
pub struct SpinWait;

impl WaitPolicy for SpinWait {
    fn park(&self, _: &AtomicU32, _: u32) {
        core::hint::spin_loop();
    }

    fn wake(&self, _: &AtomicU32) {}
}

/// Two cache lines, so that neighbours and the adjacent-line prefetcher do not share.
#[repr(align(128))]
struct Padded<T>(T);

/// The flags of the ranks `i`, `i + 64`, `i + 128` and `i + 192`, the first two on a cache line of
/// their own: teams of up to [`BLOCKS`] workers share no line, and larger ones take no more memory.
#[repr(align(128))]
struct FlagBlock([FlagLine; 2]);

/// Flags of two ranks, each by parity.
#[repr(align(64))]
struct FlagLine([[AtomicU32; 2]; 2]);

impl FlagBlock {
    const fn new() -> Self {
        Self([const { FlagLine([const { [const { AtomicU32::new(0) }; 2] }; 2]) }; 2])
    }
}

const BLOCKS: usize = WORKERS_MAX / 4;

/// A flag's value after its worker has left early.
const LEFT: u32 = u32::MAX;
/// Counters of claimed strips, used in turns.
const CLAIM_SLOTS: usize = 8;

/// The shared state of up to [`WORKERS_MAX`] workers.
pub struct Ranks {
    size: usize,
    flags: [FlagBlock; BLOCKS],
    claims: [Padded<AtomicUsize>; CLAIM_SLOTS],
    /// Workers parked or about to park.
    parked: AtomicU32,
    /// Rank + 1 of the first worker that failed.
    failed: AtomicU32,
    /// The agreed reason to stop, as flag bits.
    stopped: AtomicU32,
    /// Ranks that have joined, a bit each. Not every CPU has atomics of 64 bits.
    joined: [AtomicU32; WORKERS_MAX / 32],
    /// Ranks that ran to the end.
    finished: AtomicU32,
    /// For as many ranks as the team has; `None` shares equally.
    shares: Option<Shares>,
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranks")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl Ranks {
    /// A team of `size` workers, `1..=256`.
    ///
    /// # Panics
    /// If `size` is out of range.
    // In place: as a call it would take its 9 KB on the stack once more.
    #[inline(always)]
    pub const fn new(size: usize) -> Self {
        assert!(size >= 1, "a team has a worker");
        assert!(size <= WORKERS_MAX, "a team has at most 256 workers");
        Self {
            size,
            flags: [const { FlagBlock::new() }; BLOCKS],
            claims: [const { Padded(AtomicUsize::new(0)) }; CLAIM_SLOTS],
            parked: AtomicU32::new(0),
            failed: AtomicU32::new(0),
            stopped: AtomicU32::new(0),
            joined: [const { AtomicU32::new(0) }; WORKERS_MAX / 32],
            finished: AtomicU32::new(0),
            shares: None,
        }
    }

    /// Sets how work is shared from now on; `None` is equally, the initial setting.
    ///
    /// # Panics
    /// If the shares are for another number of ranks.
    pub(crate) fn set_shares(&mut self, shares: Option<Shares>) {
        assert!(shares.as_ref().is_none_or(|s| s.n_ranks() == self.size));
        self.shares = shares;
    }

    /// Workers in the team.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Makes the team ready for another run. Exclusive: no rank is running. In place: a new team
    /// would be 9 KB on the stack, copied for every token.
    pub(crate) fn reset(&mut self) {
        let Self {
            size,
            flags,
            claims,
            parked,
            failed,
            stopped,
            joined,
            finished,
            shares: _,
        } = self;
        for block in &mut flags[..BLOCKS.min(*size)] {
            *block = FlagBlock::new();
        }
        for Padded(claim) in claims {
            *claim = AtomicUsize::new(0);
        }
        *joined = Default::default();
        for number in [parked, failed, stopped, finished] {
            *number = AtomicU32::new(0);
        }
    }

    /// The flags of `rank`, by parity.
    const fn flags(&self, rank: usize) -> &[AtomicU32; 2] {
        let FlagBlock(lines) = &self.flags[rank % BLOCKS];
        &lines[rank / BLOCKS % 2].0[rank / (2 * BLOCKS)]
    }

    /// Takes `rank`; once per run.
    pub(crate) fn join(&self, rank: usize) -> bool {
        assert!(rank < self.size, "rank {rank} of a team of {}", self.size);
        let bit = 1 << (rank % 32);
        self.joined[rank / 32].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Whether every rank ran to the end.
    pub(crate) fn all_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire) as usize == self.size
    }

    /// Why the run stopped, if it did.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.failed()
            .or_else(|| Stop::from_bits(self.stopped.load(Ordering::Acquire)))
    }

    /// The worker that failed first, if one did.
    pub(crate) fn failed(&self) -> Option<Stop> {
        let rank = self.failed.load(Ordering::Acquire).checked_sub(1)? as usize;
        Some(Stop::WorkerFailed { rank })
    }
}

/// What ranks share at a barrier in addition to the team.
#[derive(Clone, Copy)]
pub(crate) struct Meeting<'a> {
    pub(crate) team: &'a Ranks,
    pub(crate) wait: &'a dyn WaitPolicy,
    pub(crate) stop: &'a StopFlag,
    pub(crate) deadline: Option<Deadline<'a>>,
}

/// One rank's place in a run. If dropped before [`Member::finish`], the team fails.
pub(crate) struct Member<'a> {
    meeting: Meeting<'a>,
    rank: usize,
    epoch: u32,
    claim: usize,
    /// Reasons to stop that this rank reports at the next barrier.
    bits: u32,
    done: bool,
}

impl<'a> Member<'a> {
    /// `rank` must have been taken by [`Ranks::join`].
    pub(crate) const fn new(meeting: Meeting<'a>, rank: usize) -> Self {
        Self {
            meeting,
            rank,
            epoch: 0,
            claim: 0,
            bits: 0,
            done: false,
        }
    }

    pub(crate) const fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) const fn size(&self) -> usize {
        self.meeting.team.size
    }

    /// How this rank waits.
    pub(crate) const fn wait(&self) -> &'a dyn WaitPolicy {
        self.meeting.wait
    }

    /// Waits for the other ranks; all return the same result.
    ///
    /// # Errors
    /// The reason to stop, the same for all ranks unless a worker failed.
    pub(crate) fn barrier(&mut self) -> Result<(), Stop> {
        let team = self.meeting.team;
        self.epoch += 1;
        let parity = (self.epoch & 1) as usize;
        let mut bits = self.bits | self.reasons_to_stop(self.rank == 0);
        self.publish(parity, self.epoch << BITS | bits);
        for rank in 0..team.size {
            if rank != self.rank {
                bits |= self.wait_for(rank, parity)? & ((1 << BITS) - 1);
            }
        }
        team.stopped.fetch_or(bits, Ordering::AcqRel);
        Stop::from_bits(bits).map_or(Ok(()), Err)
    }

    /// Whether there is a reason to stop, or a rank has failed, for a rank that waits for something other than a
    /// barrier. If so, all ranks stop at the next one.
    pub(crate) fn must_stop(&mut self) -> bool {
        self.bits |= self.reasons_to_stop(true);
        self.bits != 0 || self.meeting.team.failed().is_some()
    }

    /// The source of experts has failed: all ranks stop at the next barrier.
    pub(crate) const fn source_failed(&mut self) {
        self.bits |= SOURCE_FAILED;
    }

    fn reasons_to_stop(&self, look_at_clock: bool) -> u32 {
        let mut bits = 0;
        if self.meeting.stop.is_set() {
            bits |= CANCELLED;
        }
        if let Some(deadline) = self.meeting.deadline
            && look_at_clock
            && (deadline.clock)() >= deadline.ticks
        {
            bits |= DEADLINE;
        }
        bits
    }

    /// Stores a flag of this rank and wakes the ranks that wait for it.
    fn publish(&self, parity: usize, value: u32) {
        let team = self.meeting.team;
        let flag = &team.flags(self.rank)[parity];
        // SeqCst on both sides: either the waiter sees the flag, or we see the waiter.
        flag.store(value, Ordering::SeqCst);
        if team.parked.load(Ordering::SeqCst) > 0 {
            self.meeting.wait.wake(flag);
        }
    }

    /// Waits until `rank` has reached this epoch; returns its flag.
    fn wait_for(&self, rank: usize, parity: usize) -> Result<u32, Stop> {
        let team = self.meeting.team;
        let flag = &team.flags(rank)[parity];
        let mut spins = 0;
        loop {
            let seen = flag.load(Ordering::Acquire);
            if seen >> BITS == self.epoch {
                return Ok(seen);
            }
            if seen == LEFT {
                return Err(team.failed().unwrap_or(Stop::WorkerFailed { rank }));
            }
            if spins < self.meeting.wait.spins() {
                spins += 1;
                core::hint::spin_loop();
                continue;
            }
            team.parked.fetch_add(1, Ordering::SeqCst);
            if flag.load(Ordering::SeqCst) == seen {
                self.meeting.wait.park(flag, seen);
            }
            team.parked.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Runs `work` for this rank's share of `0..n`: a contiguous home range, sized by
    /// [`Shares`], then strips of the common tail (15%), each claimed by the first rank to reach it,
    /// so that a disturbed core costs its share and not everybody's time. `work` takes the home range in one call, and
    /// each strip of the tail in another. Up to three calls between two barriers.
    pub(crate) fn share(&mut self, n: usize, mut work: impl FnMut(&mut Self, Range<usize>)) {
        let claim = self.claim;
        self.claim += 1;
        let team = self.meeting.team;
        if self.rank == 0 {
            // Half the slots ahead: all ranks have left it, and none has reached it again.
            let ahead = &team.claims[(claim + CLAIM_SLOTS / 2) % CLAIM_SLOTS].0;
            ahead.store(0, Ordering::Relaxed);
        }
        let tail = if team.size == 1 { 0 } else { n * 15 / 100 };
        let home = match &team.shares {
            Some(shares) => shares.range(self.rank, n - tail),
            None => self.home_range(n - tail),
        };
        if !home.is_empty() {
            work(self, home);
        }
        if tail == 0 {
            return;
        }
        let next = &team.claims[claim % CLAIM_SLOTS].0;
        loop {
            let strip = n - tail + next.fetch_add(1, Ordering::Relaxed);
            if strip >= n {
                break;
            }
            work(self, strip..strip + 1);
        }
    }

    /// This rank's contiguous part of `0..n`, of equal size whatever the shares: ranks
    /// that keep their KV heads must agree on the number.
    pub(crate) const fn home_range(&self, n: usize) -> Range<usize> {
        let size = self.meeting.team.size;
        n * self.rank / size..n * (self.rank + 1) / size
    }

    /// The rank has done all its work, or leaves with the others' agreement.
    pub(crate) fn finish(mut self, result: Result<(), Stop>) -> Result<(), Stop> {
        self.done = !matches!(result, Err(Stop::WorkerFailed { .. }));
        if self.done {
            self.meeting.team.finished.fetch_add(1, Ordering::AcqRel);
        }
        result
    }
}

impl Drop for Member<'_> {
    /// A rank that leaves early stops the others.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        #[expect(clippy::cast_possible_truncation, reason = "ranks are below 256")]
        let code = self.rank as u32 + 1;
        let failed = &self.meeting.team.failed;
        let _first_wins = failed.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed);
        self.publish(0, LEFT);
        self.publish(1, LEFT);
    }
}

// Workers share the team and the flag; a rank's place in a run belongs to one thread.
assert_impl_all!(Ranks: Send, Sync);
assert_impl_all!(StopFlag: Send, Sync);
assert_impl_all!(Member<'static>: Send);
const_assert_eq!(size_of::<FlagBlock>(), 128);

#[cfg(test)]
mod tests;

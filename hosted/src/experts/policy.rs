//! Eviction policies: the worth of an expert in a slot, for the live cache and for the replay of traces.
//!
//! Both use the same [`Worth`], so a hit rate that the replay promises is the rate of the live cache. An expert is a
//! dense id, `layer * n_expert + expert` by convention. Nothing is allocated after [`Worth::new`].
#![forbid(unsafe_code)]

pub use super::profile::{ExpertProfile, ProfileError};

use core::error::Error;
use core::fmt;
use core::str::FromStr;

/// Why an expert is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EvictionPolicy {
    /// Evicts the least used expert, where a use counts half after eight times as many uses as there are slots: experts
    /// used often stay, and those that a text no longer needs are evicted.
    #[default]
    Aged,
    /// Evicts the expert whose last use is the longest ago.
    Lru,
    /// Evicts the expert with the fewest uses, among equals by [`Self::Lru`].
    Lfu,
    /// Evicts the expert that was read the longest ago.
    Fifo,
    /// Evicts the expert with the least heat: each use adds 1, each insertion of any expert takes 2%.
    Heat,
    /// Evicts the experts of a profile last, the least counted of them first; all others by [`Self::Lru`].
    Static,
}

impl EvictionPolicy {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Aged,
        Self::Lru,
        Self::Lfu,
        Self::Fifo,
        Self::Heat,
        Self::Static,
    ];

    /// Its name in flags and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aged => "aged",
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Fifo => "fifo",
            Self::Heat => "heat",
            Self::Static => "static",
        }
    }
}

impl fmt::Display for EvictionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for EvictionPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or(UnknownPolicy)
    }
}

/// Unknown policy name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected aged, lru, lfu, fifo, heat or static")
    }
}

impl Error for UnknownPolicy {}

/// The worth of each expert to a cache.
///
/// The worth of an expert changes only when it is used or inserted itself, so an order by worth stays right between.
#[derive(Clone, Debug)]
pub struct Worth {
    policy: EvictionPolicy,
    experts: Box<[Known]>,
    /// Counts uses and insertions. Far below 2^52 in any run.
    now: u64,
    /// The events that cool heat: uses, or insertions with [`EvictionPolicy::Heat`].
    n_ticks: u64,
    /// The share of heat that remains after a tick.
    cooling: f64,
}

/// The usage of an expert.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// When it was used or inserted last; 0 for never.
    last: u64,
    /// When it was inserted last.
    inserted: u64,
    n_uses: u64,
    heat: f64,
    /// `n_ticks` when the heat was computed.
    heat_at: u64,
    /// The logarithm of what the heat would have been before the first tick: an order that holds as all cool.
    heat_log: f64,
    /// Among the experts of the profile: 1 for the least counted, 0 for one that is not there.
    rank: u32,
}

impl Worth {
    /// For experts `0..n_ids` and a cache of `n_slots`. Only [`EvictionPolicy::Static`] looks at the profile; without one it is [`EvictionPolicy::Lru`].
    ///
    /// All experts of the profile are held, so it should have fewer than there are slots:
    /// [`ExpertProfile::for_slots`] cuts it.
    #[must_use]
    pub fn new(
        policy: EvictionPolicy,
        n_ids: usize,
        n_slots: usize,
        profile: Option<&ExpertProfile>,
    ) -> Self {
        let unknown = Known {
            heat_log: f64::NEG_INFINITY,
            ..Known::default()
        };
        let mut experts = vec![unknown; n_ids].into_boxed_slice();
        if let (EvictionPolicy::Static, Some(profile)) = (policy, profile) {
            for (id, rank) in profile.most_counted().rev().zip(1..) {
                if let Some(known) = experts.get_mut(id as usize) {
                    known.rank = rank;
                }
            }
        }
        Self {
            policy,
            experts,
            now: 0,
            n_ticks: 0,
            cooling: match policy {
                EvictionPolicy::Heat => COOLING,
                _ => cooling_of_half_life(HALF_LIFE_PER_SLOT * n_slots.max(1)),
            },
        }
    }

    /// The policy that it follows.
    #[must_use]
    pub const fn policy(&self) -> EvictionPolicy {
        self.policy
    }

    /// Ids are below this.
    #[must_use]
    pub const fn n_ids(&self) -> usize {
        self.experts.len()
    }

    /// An expert was used in the foreground, whether it was in a slot or not.
    ///
    /// # Panics
    /// If `id` is out of range.
    pub fn used(&mut self, id: u32) {
        self.now += 1;
        self.n_ticks += u64::from(self.policy != EvictionPolicy::Heat);
        let known = &mut self.experts[id as usize];
        known.last = self.now;
        known.n_uses += 1;
        let heat = known.heat_after(self.n_ticks, self.cooling) + 1.0;
        known.warm(heat, self.n_ticks, self.cooling);
    }

    /// An expert was put into a slot, for a use or ahead of one.
    ///
    /// With [`EvictionPolicy::Heat`] all others cool by that. One that was read ahead has never been used perhaps: it has the heat of one use, and
    /// is as recent as if it had been used, lest it is evicted before it is wanted.
    ///
    /// # Panics
    /// If `id` is out of range.
    pub fn inserted(&mut self, id: u32) {
        self.now += 1;
        self.n_ticks += u64::from(self.policy == EvictionPolicy::Heat);
        let known = &mut self.experts[id as usize];
        (known.last, known.inserted) = (self.now, self.now);
        let heat = known.heat_after(self.n_ticks, self.cooling).max(1.0);
        known.warm(heat, self.n_ticks, self.cooling);
    }

    /// The worth of an expert: the lowest is evicted first, and among equals the one with the smaller id.
    ///
    /// # Panics
    /// If `id` is out of range.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "clocks and counts are below 2^52"
    )]
    pub fn of(&self, id: u32) -> f64 {
        let known = &self.experts[id as usize];
        match self.policy {
            EvictionPolicy::Lru => known.last as f64,
            EvictionPolicy::Fifo => known.inserted as f64,
            EvictionPolicy::Lfu => known.n_uses as f64 + known.last.min(LAST_MAX) as f64 / TWO_32,
            EvictionPolicy::Aged | EvictionPolicy::Heat => known.heat_log,
            EvictionPolicy::Static if known.rank > 0 => STATIC + f64::from(known.rank),
            EvictionPolicy::Static => known.last as f64,
        }
    }
}

impl Known {
    /// The heat when there have been `n_ticks`.
    fn heat_after(&self, n_ticks: u64, cooling: f64) -> f64 {
        let since = i32::try_from(n_ticks - self.heat_at).unwrap_or(i32::MAX);
        self.heat * cooling.powi(since)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
    fn warm(&mut self, heat: f64, n_ticks: u64, cooling: f64) {
        self.heat = heat;
        self.heat_at = n_ticks;
        self.heat_log = heat.ln() - n_ticks as f64 * cooling.ln();
    }
}

/// With [`EvictionPolicy::Heat`], what an insertion leaves of the heat of all experts.
const COOLING: f64 = 0.98;
/// With [`EvictionPolicy::Aged`], uses for each slot until a use counts half.
const HALF_LIFE_PER_SLOT: usize = 8;

#[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
fn cooling_of_half_life(n_ticks: usize) -> f64 {
    (-core::f64::consts::LN_2 / n_ticks as f64).exp()
}

/// Above every clock, and exact with any rank added.
const STATIC: f64 = (1_u64 << 52) as f64;
const TWO_32: f64 = (1_u64 << 32) as f64;
/// Limit of the last use, which is added as a fraction to a whole number of uses.
const LAST_MAX: u64 = u32::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    /// The experts in the order of their eviction.
    fn order(worth: &Worth, n_ids: u32) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..n_ids).collect();
        ids.sort_by(|&a, &b| worth.of(a).total_cmp(&worth.of(b)).then(a.cmp(&b)));
        ids
    }

    fn after(policy: EvictionPolicy, profile: Option<&ExpertProfile>, uses: &[u32]) -> Worth {
        let mut worth = Worth::new(policy, 4, 2, profile);
        for &id in uses {
            worth.used(id);
        }
        worth
    }

    #[test]
    fn names_are_read_back() {
        for policy in EvictionPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "LRU".parse::<EvictionPolicy>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "expected aged, lru, lfu, fifo, heat or static"
        );
    }

    #[test]
    fn each_policy_has_its_order() {
        let uses = [0, 0, 0, 1, 2, 2, 1, 3];
        assert_eq!(
            order(&after(EvictionPolicy::Lru, None, &uses), 4),
            [0, 2, 1, 3]
        );
        // Two uses each of 1 and 2: the older is evicted first.
        assert_eq!(
            order(&after(EvictionPolicy::Lfu, None, &uses), 4),
            [3, 2, 1, 0]
        );
        assert_eq!(
            order(&after(EvictionPolicy::Static, None, &uses), 4),
            [0, 2, 1, 3]
        );
        let profile: ExpertProfile = [(0, 5), (2, 7)].into_iter().collect();
        let worth = after(EvictionPolicy::Static, Some(&profile), &uses);
        assert_eq!(order(&worth, 4), [1, 3, 0, 2]);
        // A profile of another model's size.
        let profile: ExpertProfile = [(9, 5), (1, 1)].into_iter().collect();
        let worth = after(EvictionPolicy::Static, Some(&profile), &uses);
        assert_eq!(order(&worth, 4), [0, 2, 3, 1]);
    }

    #[test]
    fn heat_is_uses_that_cool_with_insertions() {
        let mut worth = Worth::new(EvictionPolicy::Heat, 3, 2, None);
        worth.used(0);
        worth.used(0);
        for _ in 0..50 {
            worth.inserted(1);
        }
        // 2 * 0.98^50 = 0.7283, and 1 of a use of now.
        worth.used(2);
        let heat = |id: u32| worth.experts[id as usize].heat_after(worth.n_ticks, worth.cooling);
        assert!((heat(0) - 0.728_339_5).abs() < 1e-6, "{}", heat(0));
        assert!((heat(2) - 1.0).abs() < 1e-12);
        assert!((heat(1) - 1.0).abs() < 1e-12);
        assert_eq!(order(&worth, 3), [0, 1, 2]);
        // The order by worth is the order by heat.
        let ratio = (worth.of(0) - worth.of(2)).exp();
        assert!((ratio - heat(0) / heat(2)).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn a_use_counts_half_after_eight_uses_for_each_slot() {
        let mut worth = Worth::new(EvictionPolicy::Aged, 3, 2, None);
        worth.used(0);
        for _ in 0..16 {
            worth.used(1);
            worth.inserted(2);
        }
        let heat = |id: u32| worth.experts[id as usize].heat_after(worth.n_ticks, worth.cooling);
        assert!((heat(0) - 0.5).abs() < 1e-12, "{}", heat(0));
        // What was only read ahead is worth a use of now.
        assert!((heat(2) - 1.0).abs() < 1e-12, "{}", heat(2));
        assert_eq!(order(&worth, 3), [0, 2, 1]);
        // Rarely used, but lately, is worth less than often used: not so with LRU.
        let often_then_once = [0, 0, 0, 0, 1];
        assert_eq!(
            order(&after(EvictionPolicy::Aged, None, &often_then_once), 2),
            [1, 0]
        );
        assert_eq!(
            order(&after(EvictionPolicy::Lru, None, &often_then_once), 2),
            [0, 1]
        );
    }

    #[test]
    fn first_in_is_first_out_whatever_is_used() {
        let mut worth = Worth::new(EvictionPolicy::Fifo, 3, 3, None);
        for id in [1, 0, 2] {
            worth.inserted(id);
        }
        for id in [1, 1, 0] {
            worth.used(id);
        }
        assert_eq!(order(&worth, 3), [1, 0, 2]);
        worth.inserted(1);
        assert_eq!(order(&worth, 3), [0, 2, 1]);
    }

    #[test]
    fn what_was_read_ahead_is_not_the_first_to_go() {
        for policy in [
            EvictionPolicy::Aged,
            EvictionPolicy::Lru,
            EvictionPolicy::Heat,
            EvictionPolicy::Static,
        ] {
            let mut worth = Worth::new(policy, 2, 2, None);
            worth.used(0);
            worth.inserted(0);
            worth.inserted(1);
            assert_eq!(order(&worth, 2), [0, 1], "{policy}");
        }
    }
}

//! Whose a request is: the engine divides its places and its time fairly among shares.

use core::hash::{Hash, Hasher};
use core::num::NonZeroU32;
use std::collections::HashMap;
use std::sync::Arc;

/// Whose a request is: a key's, and among requests with the same key, a peer's. By default one share for all requests
/// of the own process. Shares of the same key and peer are equal, whatever their weights.
#[derive(Clone, Debug)]
pub struct Share {
    key: Arc<str>,
    peer: Arc<str>,
    weight: NonZeroU32,
}

impl Default for Share {
    fn default() -> Self {
        Self::of_peer("")
    }
}

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.peer) == (&other.key, &other.peer)
    }
}

impl Eq for Share {}

impl Hash for Share {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.key, &self.peer).hash(hasher);
    }
}

impl Share {
    /// The share of a peer without a key: an address, or a user of this machine.
    #[must_use]
    pub fn of_peer(peer: impl Into<Arc<str>>) -> Self {
        Self {
            key: "".into(),
            peer: peer.into(),
            weight: NonZeroU32::MIN,
        }
    }

    /// The same peer with the key called `name`, which gets `weight` times as much as a key of weight 1.
    #[must_use]
    pub fn with_key(self, name: impl Into<Arc<str>>, weight: NonZeroU32) -> Self {
        Self {
            key: name.into(),
            weight,
            ..self
        }
    }

    fn weight(&self) -> f64 {
        self.weight.get().into()
    }
}

/// Of `shares`, the part of the whole that each gets: keys by their weights, peers of a key alike.
pub(super) fn parts(shares: &[Share]) -> Vec<f64> {
    let mut n_peers = HashMap::<&str, f64>::new();
    for share in shares {
        *n_peers.entry(&share.key).or_default() += 1.0;
    }
    let parts = shares
        .iter()
        .map(|share| share.weight() / n_peers[&*share.key]);
    let parts: Vec<f64> = parts.collect();
    let whole: f64 = parts.iter().sum();
    parts.iter().map(|part| part / whole).collect()
}

/// How much a share has at a moment: places of its key for each unit of weight, places of its own, then time that was
/// spent on both. Who has least is next.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Standing {
    key_load: f64,
    peer_load: usize,
    key_time: f64,
    peer_time: f64,
}

/// The places that shares have now.
#[derive(Debug, Default)]
pub(super) struct Places {
    keys: HashMap<Arc<str>, usize>,
    peers: HashMap<Share, usize>,
}

impl Places {
    pub(super) fn take(&mut self, share: &Share) {
        *self.keys.entry(Arc::clone(&share.key)).or_default() += 1;
        *self.peers.entry(share.clone()).or_default() += 1;
    }

    pub(super) fn give(&mut self, share: &Share) {
        if let Some(n) = self.keys.get_mut(&share.key) {
            *n -= 1;
        }
        if let Some(n) = self.peers.get_mut(share) {
            *n -= 1;
        }
    }

    pub(super) fn of(&self, share: &Share) -> usize {
        self.peers.get(share).copied().unwrap_or_default()
    }

    fn of_key(&self, share: &Share) -> usize {
        self.keys.get(&share.key).copied().unwrap_or_default()
    }

    /// Whether `owner` gives up a place for `share`, which has none: it keeps at least one, and a key that has places
    /// takes them from its own peers.
    pub(super) fn yields(&self, owner: &Share, share: &Share) -> bool {
        match self.of_key(share) {
            0 => self.of_key(owner) > 1,
            _ => owner.key == share.key && self.of(owner) > 1,
        }
    }

    /// How large a share is; the first of several to give up a place is the largest.
    pub(super) fn size(&self, share: &Share) -> (f64, usize) {
        (load(self.of_key(share), share), self.of(share))
    }
}

/// The number of places of a share's key, relative to its weight.
fn load(n_places: usize, share: &Share) -> f64 {
    u32::try_from(n_places).map_or(f64::MAX, f64::from) / share.weight()
}

/// The time that was spent on each share that has work, in seconds, for keys divided by their weights. A share that
/// returns begins with what the least served one has: it neither repays nor has saved anything.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    keys: HashMap<Arc<str>, f64>,
    peers: HashMap<Share, f64>,
}

impl Ledger {
    /// Adds a share that has work.
    pub(super) fn enter(&mut self, share: &Share) {
        if !self.keys.contains_key(&share.key) {
            let least = self.keys.values().copied().reduce(f64::min);
            self.keys
                .insert(Arc::clone(&share.key), least.unwrap_or_default());
        }
        if !self.peers.contains_key(share) {
            let same_key = self.peers.iter().filter(|(peer, _)| peer.key == share.key);
            let least = same_key.map(|(_, time)| *time).reduce(f64::min);
            self.peers.insert(share.clone(), least.unwrap_or_default());
        }
    }

    pub(super) fn charge(&mut self, share: &Share, seconds: f64) {
        if let Some(time) = self.keys.get_mut(&share.key) {
            *time += seconds / share.weight();
        }
        if let Some(time) = self.peers.get_mut(share) {
            *time += seconds;
        }
    }

    /// Whether there is anything to divide.
    pub(super) fn is_shared(&self) -> bool {
        self.peers.len() > 1
    }

    /// Forgets all shares but those that have work.
    pub(super) fn retain<'s>(&mut self, with_work: impl Iterator<Item = &'s Share>) {
        let with_work: std::collections::HashSet<_> = with_work.collect();
        self.peers.retain(|share, _| with_work.contains(share));
        let peers = &self.peers;
        self.keys
            .retain(|key, _| peers.keys().any(|peer| peer.key == *key));
    }

    pub(super) fn standing(&self, share: &Share, places: &Places) -> Standing {
        let (key_load, peer_load) = places.size(share);
        Standing {
            key_load,
            peer_load,
            key_time: self.keys.get(&share.key).copied().unwrap_or_default(),
            peer_time: self.peers.get(share).copied().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(key: &str, peer: &str, weight: u32) -> Share {
        Share::of_peer(peer).with_key(key, NonZeroU32::new(weight).unwrap())
    }

    #[test]
    fn keys_get_parts_by_weight_and_their_peers_alike() {
        let shares = [share("a", "1", 3), share("a", "2", 3), share("b", "1", 1)];
        assert_eq!(parts(&shares), [0.375, 0.375, 0.25]);
    }

    #[test]
    fn the_least_served_is_next_and_nothing_is_saved_up() {
        let (heavy, light) = (share("a", "", 3), share("b", "", 1));
        let (mut ledger, places) = (Ledger::default(), Places::default());
        ledger.enter(&heavy);
        ledger.charge(&heavy, 6.0);
        ledger.enter(&light);
        let next = |ledger: &Ledger| {
            let (a, b) = (
                ledger.standing(&heavy, &places),
                ledger.standing(&light, &places),
            );
            a.partial_cmp(&b).unwrap()
        };
        ledger.charge(&light, 1.0);
        ledger.charge(&heavy, 2.9);
        assert_eq!(next(&ledger), core::cmp::Ordering::Less);
        ledger.charge(&heavy, 0.2);
        assert_eq!(next(&ledger), core::cmp::Ordering::Greater);
        ledger.retain([&light].into_iter());
        assert!(!ledger.is_shared());
    }

    #[test]
    fn who_has_several_places_yields_one_to_who_has_none() {
        let mut places = Places::default();
        let (a1, a2, b, c) = (
            share("a", "1", 1),
            share("a", "2", 1),
            share("b", "", 9),
            share("c", "", 1),
        );
        for taken in [&a1, &a1, &b] {
            places.take(taken);
        }
        assert!(places.yields(&a1, &c) && places.yields(&a1, &a2));
        assert!(!places.yields(&b, &c) && !places.yields(&b, &a2));
        assert!(places.size(&a1) > places.size(&b));
        places.give(&a1);
        assert!(!places.yields(&a1, &c) && !places.yields(&a1, &a2));
    }
}

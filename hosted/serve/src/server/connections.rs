//! The connections of a server: whose they are, and which of them wait for a request.
//!
//! One client cannot keep out the others: the last eighth of the places is not for a client that has half of them, and
//! when all are taken, a newcomer gets the place of a connection that waits for a request. That is one of the client
//! with the most connections, and never of one with fewer than the newcomer's client has. Trusted proxies are exempt.

use crate::http::{Peer, Sent, TrustedProxies};
use core::convert::Infallible;
use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, oneshot};

/// The open connections, up to `max`.
pub(super) struct Connections {
    max: usize,
    trusted: TrustedProxies,
    table: Mutex<Table>,
    /// The last one has ended.
    ended: Notify,
}

#[derive(Default)]
struct Table {
    n_ever: u64,
    all: BTreeMap<u64, Connection>,
}

struct Connection {
    /// `None` for a trusted proxy.
    client: Option<Peer>,
    /// Since when it waits for a request, if it does.
    idle: Option<Instant>,
    sent: Sent,
    /// Dropped when its place is given away.
    _open: oneshot::Sender<Infallible>,
}

/// The place of a connection, for as long as it is open.
pub(super) struct Place {
    id: u64,
    sent: Sent,
    connections: Arc<Connections>,
}

/// A request on a connection, until the body of its answer is handed over.
pub(super) struct Busy(Arc<Place>);

/// Resolves when a connection's place is given away.
pub(super) type Taken = oneshot::Receiver<Infallible>;

impl Connections {
    pub(super) fn new(max: usize, trusted: TrustedProxies) -> Self {
        Self {
            max,
            trusted,
            table: Mutex::default(),
            ended: Notify::new(),
        }
    }

    /// A place for a connection of `peer`, if there is one.
    pub(super) fn admit(self: &Arc<Self>, peer: Peer, now: Instant) -> Option<(Place, Taken)> {
        let client = peer.client(&self.trusted);
        let mut table = self.lock();
        let n_free = self.max.saturating_sub(table.all.len());
        if n_free <= self.max / 8 {
            let is_large = client.is_some() && table.count(client) >= self.max.div_ceil(2);
            if n_free == 0 || is_large {
                let id = table.least_needed(client, is_large, now)?;
                table.all.remove(&id);
            }
        }
        let id = table.n_ever;
        table.n_ever += 1;
        let (open, taken) = oneshot::channel();
        let sent = Sent::new(now);
        let connection = Connection {
            client,
            idle: Some(now),
            sent: sent.clone(),
            _open: open,
        };
        table.all.insert(id, connection);
        let connections = Arc::clone(self);
        let place = Place {
            id,
            sent,
            connections,
        };
        Some((place, taken))
    }

    /// Waits until no connection is open.
    pub(super) async fn closed(&self) {
        while !self.lock().all.is_empty() {
            self.ended.notified().await;
        }
    }

    fn set_idle(&self, id: u64, idle: Option<Instant>) {
        if let Some(connection) = self.lock().all.get_mut(&id) {
            connection.idle = idle;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn count(&self, client: Option<Peer>) -> usize {
        let all = self.all.values();
        all.filter(|connection| connection.client == client).count()
    }

    /// The connection whose place a newcomer of `client` gets, one of its own if `own_only`.
    fn least_needed(&self, client: Option<Peer>, own_only: bool, now: Instant) -> Option<u64> {
        let mut counts = HashMap::new();
        for client in self.all.values().filter_map(|connection| connection.client) {
            *counts.entry(client).or_insert(0) += 1;
        }
        let count = |client: Option<Peer>| client.and_then(|client| counts.get(&client)).copied();
        let own = count(client).unwrap_or(0);
        let candidates = self.all.iter().filter_map(|(id, connection)| {
            let n = count(connection.client)?;
            let since = connection.idle?.max(connection.sent.since()?);
            let idle = now.checked_duration_since(since)?;
            let may_go = idle >= IDLE_MIN && n >= own && (!own_only || connection.client == client);
            may_go.then_some((n, idle, *id))
        });
        candidates.max().map(|(_, _, id)| id)
    }
}

impl Place {
    /// Tells of what is written to the connection.
    pub(super) const fn sent(&self) -> &Sent {
        &self.sent
    }

    /// Marks the connection as one with a request.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.connections.set_idle(self.id, None);
        Busy(Arc::clone(self))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.connections.set_idle(self.0.id, Some(Instant::now()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.connections.lock();
        table.all.remove(&self.id);
        if table.all.is_empty() {
            self.connections.ended.notify_one();
        }
    }
}

/// The end of an answer may still be on its way to the client.
const IDLE_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(max: usize) -> Arc<Connections> {
        Arc::new(Connections::new(max, "10.0.0.1".parse().unwrap()))
    }

    fn peer(address: &str) -> Peer {
        Peer::Address(address.parse().unwrap())
    }

    fn is_open(taken: &mut Taken) -> bool {
        matches!(taken.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    #[test]
    fn a_newcomer_gets_the_place_of_the_largest_client_that_waited_longest() {
        let all = connections(7);
        let begin = Instant::now();
        let at = |second| begin + Duration::from_secs(second);
        let small = all.admit(peer("1.1.1.1"), begin).unwrap();
        let mut large: Vec<_> = (1..7)
            .map(|n| all.admit(peer("2.2.2.2"), at(n)).unwrap())
            .collect();
        // None has waited long enough; then one has, and then it is too short for the next.
        assert!(all.admit(peer("3.3.3.3"), begin).is_none());
        let _third = all.admit(peer("3.3.3.3"), at(2)).unwrap();
        assert!(!is_open(&mut large[0].1) && is_open(&mut large[1].1));
        // The large client only replaces its own.
        let _again = all.admit(peer("2.2.2.2"), at(9)).unwrap();
        assert!(!is_open(&mut large[1].1));
        let (_place, mut taken) = small;
        assert!(is_open(&mut taken));
    }

    #[test]
    fn requests_keep_their_connections_and_one_client_never_has_all() {
        let all = connections(16);
        let now = Instant::now();
        let later = now + Duration::from_secs(9);
        let client = peer("2001:db8::1");
        let busy = |_| {
            all.admit(client, now)
                .map(|(place, taken)| (Arc::new(place).busy(), taken))
        };
        let held: Vec<_> = (0..16).filter_map(busy).collect();
        assert_eq!(held.len(), 14);
        // The same network is the same client.
        assert!(all.admit(peer("2001:db8::2"), later).is_none());
        let others = ["1.1.1.1", "10.0.0.1"].map(|other| all.admit(peer(other), later).unwrap());
        // All are in use, or too new.
        assert!(all.admit(peer("1.1.1.2"), later).is_none());
        drop(held);
        assert!(all.admit(client, later + IDLE_MIN).is_some());
        assert!(all.admit(peer("1.1.1.2"), later).is_some());
        drop(others);
        assert!(all.lock().all.is_empty());
    }

    #[test]
    fn a_trusted_proxy_may_have_all() {
        let all = connections(8);
        let now = Instant::now();
        let held: Vec<_> = (0..9)
            .filter_map(|_| all.admit(peer("10.0.0.1"), now))
            .collect();
        assert_eq!(held.len(), 8);
        assert!(
            all.admit(peer("1.1.1.1"), now + Duration::from_secs(9))
                .is_none()
        );
    }
}

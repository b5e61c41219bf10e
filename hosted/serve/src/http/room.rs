//! The memory that all request bodies together may take.

use crate::api::ApiError;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use sluice::host::memory::give_back;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// Memory for bodies. Half of it is for the first part of each body, so that large ones never keep out small ones: by
/// default that is the first part of as many bodies as there may be connections. A quarter is for the rest of all, and a
/// quarter for the rest of one body alone: the first that found no room. So one goes on, however much the others hold
/// while they wait.
#[derive(Clone, Debug)]
pub(super) struct Room {
    first: Arc<Semaphore>,
    rest: Arc<Semaphore>,
    alone: Arc<Semaphore>,
    /// Maximum memory of the rest of one body in bytes.
    rest_max: usize,
    /// Whether freed memory will soon be given back to the system.
    gives_back: Arc<AtomicBool>,
}

/// The memory of one body, until it is dropped.
#[derive(Debug)]
pub(crate) struct BodyRoom {
    first: OwnedSemaphorePermit,
    rest: OwnedSemaphorePermit,
    /// Whether it may take all that one body may.
    alone: Option<OwnedSemaphorePermit>,
    room: Room,
    /// Whether it was ever more than the first part.
    was_large: bool,
}

impl Room {
    pub(super) fn new(n_bytes: usize) -> Self {
        let of = |n_bytes: usize| {
            let kib = kib(n_bytes.max(FIRST_BYTES)).min(u32::MAX as usize);
            Arc::new(Semaphore::new(kib))
        };
        Self {
            first: of(n_bytes / 2),
            rest: of(n_bytes / 4),
            alone: Arc::new(Semaphore::new(1)),
            rest_max: (n_bytes / 4).max(FIRST_BYTES),
            gives_back: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Memory that is not taken, in KiB.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.first.available_permits() + self.rest.available_permits()
    }

    /// Maximum memory of one body in bytes.
    pub(super) const fn max(&self) -> usize {
        FIRST_BYTES + self.rest_max
    }

    /// No memory yet; `None` if the server ends.
    pub(super) async fn begin(&self) -> Option<BodyRoom> {
        Some(BodyRoom {
            first: self.first.clone().acquire_many_owned(0).await.ok()?,
            rest: self.rest.clone().acquire_many_owned(0).await.ok()?,
            alone: None,
            room: self.clone(),
            was_large: false,
        })
    }
}

impl BodyRoom {
    /// Takes memory until it is `n_bytes`, which is at most [`Room::max`]. Waits if others hold it.
    pub(super) async fn grow(&mut self, n_bytes: usize) -> Result<(), ApiError> {
        let rest = n_bytes.saturating_sub(FIRST_BYTES);
        self.was_large |= rest > 0;
        // Of what waits for the rest, a body that needs most of it would keep all others waiting.
        let is_shared = rest <= self.room.rest_max / 2;
        let parts = [
            (&mut self.first, n_bytes.min(FIRST_BYTES), true),
            (&mut self.rest, rest, is_shared),
        ];
        for (held, n_bytes, may_wait) in parts {
            if self.alone.is_some() {
                break;
            }
            let Some(taken) = more(held, n_bytes) else {
                continue;
            };
            let alone = Arc::clone(&self.room.alone);
            let either = async {
                tokio::select! {
                    biased;
                    taken = taken, if may_wait => held.merge(taken),
                    alone = alone.acquire_owned() => self.alone = alone.ok(),
                }
            };
            let waited = timeout(WAIT, either).await;
            waited.map_err(|_| {
                let what = "the memory for request bodies (--body-memory) is in use";
                ApiError::busy(what, RETRY)
            })?;
        }
        Ok(())
    }
}

/// What `held` lacks of `n_bytes`, once others have given it back; `None` if it is enough.
fn more(
    held: &OwnedSemaphorePermit,
    n_bytes: usize,
) -> Option<impl Future<Output = OwnedSemaphorePermit> + use<>> {
    let lacks = kib(n_bytes).saturating_sub(held.num_permits());
    let lacks = u32::try_from(lacks).ok().filter(|&lacks| lacks > 0)?;
    let taken = held.semaphore().clone().acquire_many_owned(lacks);
    // The semaphore is never closed.
    Some(async move { taken.await.expect("it is open") })
}

impl Drop for BodyRoom {
    fn drop(&mut self) {
        if !self.was_large || self.room.gives_back.swap(true, Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let gives_back = Arc::clone(&self.room.gives_back);
        runtime.spawn(async move {
            // What has just been freed is often needed again.
            sleep(GIVE_BACK).await;
            gives_back.store(false, Ordering::Relaxed);
            let _done = tokio::task::spawn_blocking(give_back).await;
        });
    }
}

const fn kib(n_bytes: usize) -> usize {
    n_bytes.div_ceil(1024)
}

/// The part of each body that large ones cannot take from it.
pub(super) const FIRST_BYTES: usize = 64 << 10;
/// Maximum time to wait for others' memory.
const WAIT: Duration = Duration::from_secs(60);
/// When to try again after that.
const RETRY: Duration = Duration::from_secs(10);
/// Time until freed memory is given back.
const GIVE_BACK: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_bodies_do_not_keep_out_small_ones() {
        let room = Room::new(1 << 20);
        let mut large = Vec::new();
        for n_bytes in [
            FIRST_BYTES + (128 << 10),
            FIRST_BYTES + (128 << 10),
            room.max(),
        ] {
            let mut body = room.begin().await.unwrap();
            body.grow(n_bytes).await.unwrap();
            large.push(body);
        }
        let mut other = room.begin().await.unwrap();
        let waits = timeout(Duration::from_millis(20), other.grow(FIRST_BYTES + 1));
        assert!(waits.await.is_err());
        let mut small = room.begin().await.unwrap();
        small.grow(FIRST_BYTES).await.unwrap();
        drop(large.swap_remove(0));
        other.grow(FIRST_BYTES + 1).await.unwrap();
    }

    #[tokio::test]
    async fn a_body_that_needs_most_of_the_rest_holds_up_no_other() {
        let room = Room::new(1 << 20);
        let mut alone = room.begin().await.unwrap();
        alone.grow(room.max()).await.unwrap();
        let mut next = room.begin().await.unwrap();
        let waits = timeout(Duration::from_millis(20), next.grow(room.max()));
        let mut other = room.begin().await.unwrap();
        let (waited, taken) = tokio::join!(waits, other.grow(FIRST_BYTES + (128 << 10)));
        taken.unwrap();
        assert!(waited.is_err());
        drop(alone);
        next.grow(room.max()).await.unwrap();
    }

    #[tokio::test]
    async fn first_parts_that_wait_for_each_other_go_on_one_by_one() {
        let room = Room::new(1 << 20);
        let mut all = Vec::new();
        for _ in 0..64 {
            let mut body = room.begin().await.unwrap();
            body.grow(FIRST_BYTES / 8).await.unwrap();
            all.push(body);
        }
        let read = all
            .into_iter()
            .map(|mut body| tokio::spawn(async move { body.grow(FIRST_BYTES).await }));
        let read: Vec<_> = read.collect();
        let whole = async {
            for body in read {
                body.await.unwrap().unwrap();
            }
        };
        timeout(Duration::from_secs(10), whole).await.unwrap();
    }

    #[tokio::test]
    async fn large_bodies_that_hold_what_others_wait_for_go_on_one_by_one() {
        let room = Room::new(1 << 20);
        let begun = tokio::time::Instant::now();
        let mut all = Vec::new();
        for _ in 0..20 {
            let mut body = room.begin().await.unwrap();
            body.grow(FIRST_BYTES / 8).await.unwrap();
            all.push(body);
        }
        // Each needs more than is left once all have begun.
        let read = all.into_iter().map(|mut body| {
            tokio::spawn(async move {
                for n_kib in (72..320).step_by(8) {
                    sleep(Duration::from_millis(1)).await;
                    body.grow(n_kib << 10).await?;
                }
                Ok::<_, ApiError>(())
            })
        });
        for body in read.collect::<Vec<_>>() {
            body.await.unwrap().unwrap();
        }
        assert!(begun.elapsed() < WAIT);
        assert_eq!(room.free(), Room::new(1 << 20).free());
    }
}

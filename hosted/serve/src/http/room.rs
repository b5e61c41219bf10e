//! The memory that all request bodies together may take.

use crate::api::ApiError;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use sluice::host::memory::give_back;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// Memory for bodies. Half of it is for the first part of each body, so that large ones never keep out small ones.
#[derive(Clone, Debug)]
pub(super) struct Room {
    first: Arc<Semaphore>,
    rest: Arc<Semaphore>,
    /// Maximum memory of one body in bytes.
    max: usize,
    /// Whether freed memory will soon be given back to the system.
    gives_back: Arc<AtomicBool>,
}

/// The memory of one body, until it is dropped.
#[derive(Debug)]
pub(crate) struct BodyRoom {
    first: OwnedSemaphorePermit,
    rest: OwnedSemaphorePermit,
    room: Room,
    /// Whether it was ever more than the first part.
    was_large: bool,
}

impl Room {
    pub(super) fn new(n_bytes: usize) -> Self {
        let half = (n_bytes / 2).max(FIRST_BYTES);
        let kib = kib(half).min(u32::MAX as usize);
        Self {
            first: Arc::new(Semaphore::new(kib)),
            rest: Arc::new(Semaphore::new(kib)),
            max: half,
            gives_back: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Maximum memory of one body in bytes.
    pub(super) const fn max(&self) -> usize {
        self.max
    }

    /// No memory yet; `None` if the server ends.
    pub(super) async fn begin(&self) -> Option<BodyRoom> {
        Some(BodyRoom {
            first: self.first.clone().acquire_many_owned(0).await.ok()?,
            rest: self.rest.clone().acquire_many_owned(0).await.ok()?,
            room: self.clone(),
            was_large: false,
        })
    }
}

impl BodyRoom {
    /// Takes memory until it is `n_bytes`. Waits if others hold it, but not for long: they may be waiting as well.
    pub(super) async fn grow(&mut self, n_bytes: usize) -> Result<(), ApiError> {
        let first = n_bytes.min(FIRST_BYTES);
        let rest = n_bytes - first;
        self.was_large |= rest > 0;
        for (held, wanted) in [(&mut self.first, first), (&mut self.rest, rest)] {
            let more = kib(wanted).saturating_sub(held.num_permits());
            let Some(more) = u32::try_from(more).ok().filter(|&more| more > 0) else {
                continue;
            };
            let taken = held.semaphore().clone().acquire_many_owned(more);
            let Ok(Ok(taken)) = timeout(WAIT, taken).await else {
                let what = "the memory for request bodies (--body-memory) is in use";
                return Err(ApiError::busy(what, WAIT));
            };
            held.merge(taken);
        }
        Ok(())
    }
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
const WAIT: Duration = Duration::from_secs(10);
/// Time until freed memory is given back.
const GIVE_BACK: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_bodies_do_not_keep_out_small_ones() {
        let room = Room::new(1 << 20);
        let mut large = room.begin().await.unwrap();
        large.grow(FIRST_BYTES + (512 << 10)).await.unwrap();
        let mut other = room.begin().await.unwrap();
        let waits = timeout(Duration::from_millis(20), other.grow(FIRST_BYTES + 1));
        assert!(waits.await.is_err());
        let mut small = room.begin().await.unwrap();
        small.grow(FIRST_BYTES).await.unwrap();
        drop(large);
        other.grow(FIRST_BYTES + 1).await.unwrap();
    }
}

//! Waits for a future on a thread without a runtime.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::task::Wake;
use std::thread::Thread;
use std::time::Instant;

/// Runs a future on this thread, which sleeps while the future is pending; `None` if it sleeps for longer than
/// `patience`. (A runtime would set a timer, and wake its own thread for that.)
pub(crate) fn wait_for<F: Future>(
    mut future: Pin<&mut F>,
    patience: Duration,
) -> Option<F::Output> {
    thread_local! {
        static WAKER: Waker = Waker::from(Arc::new(Sleeper(std::thread::current())));
    }
    let waker = WAKER.with(Waker::clone);
    let mut context = Context::from_waker(&waker);
    let end = Instant::now() + patience;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

/// A thread that sleeps until it is woken.
struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

//! Counts what a request uses.

use core::fmt;

/// Counts the tokens of a request on the engine's thread. It is dropped when the request has ended.
pub trait TokenMeter: fmt::Debug + Send + Sync {
    /// `n_read` tokens of a prompt are read, and `n_cached` were found in the cache.
    fn prompt(&self, n_read: usize, n_cached: usize);

    /// A token was written.
    fn token(&self);
}

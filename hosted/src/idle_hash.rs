//! Hashing a model's file while nothing else runs.
#![forbid(unsafe_code)]

use crate::Model;
use crate::host::activity;
use crate::host::placement::Priority;
use crate::identity::{HashError, identify};
use core::time::Duration;
use std::sync::Arc;
use std::thread;

impl Model {
    /// Hashes its file on a thread of the lowest priority, once the model has run and whenever no team of this process
    /// works, so that [`ModelIdentity::hash`](crate::identity::ModelIdentity::hash) becomes known. Returns at once. Does nothing
    /// where it is known already, and for a model whose experts stay on disk, which needs the disk for them.
    ///
    /// `log` is called with the reason if the file cannot be hashed.
    pub fn identify_when_idle(&self, log: impl Fn(&str) + Send + 'static) {
        if self.identity().hash().is_some()
            || self.experts().is_some()
            || !self.identity.known.is_of_file
        {
            return;
        }
        // The thread ends with the model.
        let (source, alive) = (self.opened.weak(), Arc::downgrade(&self.identity.known));
        let records = self.identity.known.records.clone();
        let runs = activity::n_runs();
        let hashing = move || {
            let _may_be_refused = Priority::Idle.apply("hashing");
            let is_alive = || alive.strong_count() > 0;
            while activity::n_runs() == runs {
                thread::park_timeout(PAUSE);
                if !is_alive() {
                    return;
                }
            }
            let Some(source) = source() else {
                return;
            };
            let found = identify(source.file(), records.as_ref(), |_| {
                while is_alive() && activity::quiet_for().is_none_or(|quiet| quiet < QUIET) {
                    thread::park_timeout(PAUSE);
                }
                is_alive()
            });
            match (found, alive.upgrade()) {
                (Ok(hash), Some(known)) => known.found(hash),
                (Ok(_), None) | (Err(HashError::Stopped), _) => {}
                (Err(error), _) => log(&format!("the model's file was not hashed: {error}")),
            }
        };
        // Without a thread, the file stays unknown.
        let _started = thread::Builder::new().name("hash".into()).spawn(hashing);
    }
}

/// How long nothing must have run.
const QUIET: Duration = Duration::from_millis(300);
/// How often the thread looks.
const PAUSE: Duration = Duration::from_millis(100);

//! The loading of the models named on the command line.

use super::listen::ServeError;
use crate::models::Models;
use core::time::Duration;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// The loading of the models named on the command line.
#[derive(Debug)]
pub struct Loading {
    loaded: watch::Receiver<Option<Result<(), String>>>,
    runtime: Handle,
}

impl Loading {
    /// Starts it on `runtime`, where folders of adapters and idle models are watched from then on.
    pub(super) fn start(models: &Arc<Models>, runtime: Handle) -> Self {
        let (sender, loaded) = watch::channel(None);
        let (models, known) = (Arc::clone(models), Arc::clone(models));
        let adapters = Arc::clone(models.adapters());
        let (looked, first_look) = oneshot::channel();
        let is_model = move |name: &str| known.find(name).is_ok();
        runtime.spawn(adapters.watch(0, is_model, looked));
        runtime.spawn(Arc::clone(&models).watch_idle());
        runtime.spawn(async move {
            let _looked = first_look.await;
            sender.send_replace(Some(models.load_named().await));
        });
        Self { loaded, runtime }
    }

    /// Waits up to `patience`; `None` if the models are not loaded yet.
    ///
    /// # Errors
    /// Why a model could not be loaded.
    pub fn wait(&mut self, patience: Duration) -> Option<Result<(), ServeError>> {
        let loaded = self.loaded.wait_for(Option::is_some);
        let found = self
            .runtime
            .block_on(async { timeout(patience, loaded).await })
            .ok()?;
        let found = found.map_or_else(
            |_| Err("the server is shutting down".to_owned()),
            |found| found.clone().unwrap_or(Ok(())),
        );
        Some(found.map_err(ServeError::Model))
    }
}

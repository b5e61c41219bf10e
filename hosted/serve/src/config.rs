//! What a server is configured with.

use crate::Log;
use crate::api::Defaults;
use crate::engine::EngineOptions;
use crate::models::ModelsOptions;
use core::fmt;
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address and a port; port 0 is any that is free.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Listen {
    /// A host that ends with `.sock` is a socket in the file system, as in llama-server.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        if host.ends_with(".sock") {
            Self::Unix(host.into())
        } else {
            Self::Tcp(host.to_owned(), port)
        }
    }
}

/// What clients may do, and how long they may take.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Keys of which every request must have one; empty, the default, for no check.
    pub keys: Vec<String>,
    /// Maximum connections at once, at least 1; 4096 by default. Further ones are closed.
    pub connections_max: usize,
    /// Maximum bytes of a request's body; 32 MiB by default.
    pub body_max: usize,
    /// Maximum time until a request's headers are complete; 30 s by default.
    pub header_timeout: Duration,
    /// Maximum time in which a client neither sends nor takes a byte that is waited for; 60 s by default.
    pub stall_timeout: Duration,
    /// Maximum silence of a stream before it is kept alive; 30 s by default, 0 for never.
    pub ping: Duration,
    /// Maximum time that answers may go on when the server ends; 30 s by default.
    pub patience: Duration,
    /// Requests that are prepared at once (templates, tokens, grammars), 1 to 256; 2 by default.
    pub threads: usize,
    /// The origin whose pages may use the server from a browser, `*` for all; `None` by default.
    pub cors: Option<String>,
    /// Enables `/metrics`; false by default.
    pub metrics: bool,
    /// Enables `/slots`; true by default.
    pub slots: bool,
    /// The folder where slots may be saved; `None`, the default, for nowhere.
    pub slot_save_path: Option<PathBuf>,
    /// Logs prompts; false by default.
    pub log_prompts: bool,
    /// The name of the instruction set in use, for `/metrics`.
    pub isa: String,
    /// Maximum adapters of a step, for `/metrics`; 0, the default, for no limit.
    pub max_adapters: usize,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            connections_max: 4096,
            body_max: 32 << 20,
            header_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            ping: Duration::from_secs(30),
            patience: Duration::from_secs(30),
            threads: 2,
            cors: None,
            metrics: false,
            slots: true,
            slot_save_path: None,
            log_prompts: false,
            isa: String::new(),
            max_adapters: 0,
        }
    }
}

/// The configuration of a server.
#[derive(Clone)]
pub struct ServerConfig {
    /// Where it listens; `127.0.0.1:8080` by default. A [`Service`](crate::Service) does not listen.
    pub listen: Listen,
    /// The models, and what they are run with.
    pub models: ModelsOptions,
    /// How steps are scheduled, and what is cached.
    pub engine: EngineOptions,
    /// What applies where requests leave a field out.
    pub defaults: Defaults,
    /// What clients may do, and how long they may take.
    pub http: HttpOptions,
    /// Called with each line of the log, from any thread.
    pub log: Log,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: Listen::Tcp("127.0.0.1".to_owned(), 8080),
            models: ModelsOptions::default(),
            engine: EngineOptions::default(),
            defaults: Defaults::default(),
            http: HttpOptions::default(),
            log: Arc::new(|_| {}),
        }
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            turn: Duration::from_millis(50),
            prompt_share: 0.25,
            max_queue: 256,
            cache_ram: 0,
            cache_dir: None,
            cache_disk: 32 << 30,
            checkpoint_every: 4096,
            telemetry: None,
            max_adapters: 0,
        }
    }
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are secret.
        f.debug_struct("ServerConfig")
            .field("listen", &self.listen)
            .field("models", &self.models)
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

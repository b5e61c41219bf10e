//! The configuration of a server.

use crate::Log;
use crate::api::Defaults;
use crate::engine::EngineOptions;
use crate::http::{CorsOrigins, TrustedProxies};
use crate::keys::KeysOptions;
use crate::models::{ModelsOptions, ReadLists};
use crate::pulls::PullOptions;
use core::fmt;
use core::time::Duration;
use sluice::host::process::available_memory_bytes;
use std::path::PathBuf;
use std::sync::Arc;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A host and a port; port 0 picks any free port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Listen {
    /// As in llama-server, a host that ends with `.sock` is a Unix socket.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        if host.ends_with(".sock") {
            Self::Unix(host.into())
        } else {
            Self::Tcp(host.to_owned(), port)
        }
    }
}

/// Limits and permissions for clients.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The keys, one of which each request must send; none by default.
    pub keys: KeysOptions,
    /// Maximum number of connections, at least 1; 4096 by default. Further ones are closed.
    pub connections_max: usize,
    /// Maximum size of a request's body in bytes; 32 MiB by default.
    pub body_max: usize,
    /// Maximum memory for the bodies of all requests that are being read or prepared, in bytes; 512 MiB by default.
    pub body_memory: usize,
    /// Maximum time until a request's headers are complete; 30 s by default.
    pub header_timeout: Duration,
    /// Maximum time without progress in sending or receiving; 60 s by default.
    pub stall_timeout: Duration,
    /// Silence after which a keep-alive is sent on a stream; 30 s by default, 0 for never.
    pub ping: Duration,
    /// How long a stream that broke is kept; 60 s by default. With 0 streams cannot be taken up again, and their events have
    /// no ids.
    pub resume: Duration,
    /// Maximum time for answers to finish when the server ends; 30 s by default.
    pub patience: Duration,
    /// Number of requests that are prepared in parallel (templates, tokens, grammars), 1 to 256; 2 by default.
    pub threads: usize,
    /// The proxies that name the address of a client; none by default.
    pub trusted_proxies: TrustedProxies,
    /// The origins whose pages may use the server from a browser (CORS); none by default.
    pub cors: CorsOrigins,
    /// Names of the server, which a request without a key may ask for, `*` for any; none by default. Addresses, names
    /// without a dot, and the machine's own name need not be listed.
    pub allowed_hosts: Vec<String>,
    /// Serves the page for people at `/`; true by default.
    pub page: bool,
    /// Enables `/metrics`; false by default.
    pub metrics: bool,
    /// Enables `/slots`; true by default.
    pub slots: bool,
    /// The folder where slots may be saved; `None` (the default) disables saving.
    pub slot_save_path: Option<PathBuf>,
    /// Logs prompts; false by default.
    pub log_prompts: bool,
    /// Keeps the line of Claude Code's system text that changes with every request; false by default.
    pub keep_billing_line: bool,
    /// Who may download models, and how much; by default no client.
    pub pull: PullOptions,
    /// The name of the instruction set in use, for `/metrics`.
    pub isa: String,
    /// Maximum number of adapters per step, for `/metrics`; 0 (the default) for no limit.
    pub max_adapters: usize,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            keys: KeysOptions::default(),
            connections_max: 4096,
            body_max: 32 << 20,
            body_memory: 512 << 20,
            header_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            ping: Duration::from_secs(30),
            resume: Duration::from_secs(60),
            patience: Duration::from_secs(30),
            threads: 2,
            trusted_proxies: TrustedProxies::default(),
            cors: CorsOrigins::default(),
            allowed_hosts: Vec::new(),
            page: true,
            metrics: false,
            slots: true,
            slot_save_path: None,
            log_prompts: false,
            keep_billing_line: false,
            pull: PullOptions::default(),
            isa: String::new(),
            max_adapters: 0,
        }
    }
}

/// The configuration of a server.
#[derive(Clone)]
pub struct ServerConfig {
    /// Where it listens, at least one address; `127.0.0.1:8080` by default. All with port 0 get the same free one. A
    /// [`Service`](crate::Service) does not listen.
    pub listen: Vec<Listen>,
    /// The models, and how to run them.
    pub models: ModelsOptions,
    /// Scheduling and caching.
    pub engine: EngineOptions,
    /// Values for the fields that requests leave out.
    pub defaults: Defaults,
    /// Limits and permissions for clients.
    pub http: HttpOptions,
    /// Reads again which models there are, for `GET /models?reload=1`; `None` (the default) if only the folder of models is.
    pub lists: Option<ReadLists>,
    /// Called with each line of the log, from any thread.
    pub log: Log,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: vec![Listen::Tcp("127.0.0.1".to_owned(), 8080)],
            models: ModelsOptions::default(),
            engine: EngineOptions::default(),
            defaults: Defaults::default(),
            http: HttpOptions::default(),
            lists: None,
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
            reader_buffer: 1 << 20,
            cache_ram: 0,
            cache_dir: None,
            cache_disk: 32 << 30,
            checkpoint_every: 4096,
            telemetry: None,
            max_adapters: 0,
        }
    }
}

impl EngineOptions {
    /// Bytes for [`Self::cache_ram`] from a number of MiB: -1 is a quarter of the available memory, `None` also that,
    /// but at most 8 GiB.
    #[must_use]
    pub fn cache_ram_bytes(mib: Option<i64>) -> u64 {
        let quarter = || available_memory_bytes() / 4;
        match mib.map(u64::try_from) {
            Some(Ok(mib)) => mib.saturating_mul(1 << 20),
            Some(Err(_)) => quarter(),
            None => quarter().min(8 << 30),
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

//! How a server is run.

use crate::Log;
use crate::api::request::Defaults;
use crate::engine::EngineOptions;
use crate::models::ModelsOptions;
use core::fmt;
use core::time::Duration;
use std::path::PathBuf;

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
    /// Keys of which requests must have one; none for no check.
    pub keys: Vec<String>,
    /// Most connections at once.
    pub connections_max: usize,
    /// Most bytes of a request's body.
    pub body_max: usize,
    /// Longest time until a request's headers are there.
    pub header_timeout: Duration,
    /// Longest time in which a client neither sends nor takes a byte that is waited for.
    pub stall_timeout: Duration,
    /// Longest silence of a stream before a comment is sent; 0 for no comments.
    pub ping: Duration,
    /// How long answers may go on when the server ends.
    pub patience: Duration,
    /// Requests that are prepared at once: templates, tokens, grammars.
    pub threads: usize,
    /// The origin whose pages may use the server from a browser; `*` for all.
    pub cors: Option<String>,
    /// Whether there is `/metrics`.
    pub metrics: bool,
    /// Whether there is `/slots`.
    pub slots: bool,
    /// Where slots are saved; `None` for nowhere.
    pub slot_save_path: Option<PathBuf>,
    /// Whether prompts are logged.
    pub log_prompts: bool,
    /// The instruction set in use, for `/metrics`.
    pub isa: String,
    /// Most adapters of a step, for `/metrics`; 0 for no limit.
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

/// How a server is run.
#[derive(Clone)]
pub struct ServerOptions {
    /// Where it listens.
    pub listen: Listen,
    /// What it serves.
    pub models: ModelsOptions,
    /// How it schedules.
    pub engine: EngineOptions,
    /// What requests need not say.
    pub defaults: Defaults,
    /// What clients may do.
    pub http: HttpOptions,
    /// Is told what happens, line by line.
    pub log: Log,
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are nobody's business.
        f.debug_struct("ServerOptions")
            .field("listen", &self.listen)
            .field("models", &self.models)
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

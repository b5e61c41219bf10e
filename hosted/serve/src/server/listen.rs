//! The server: binds its address, accepts connections and shuts down.

use super::connection;
use super::connections::Connections;
use crate::Log;
use crate::answer::{App, WrapSampler};
use crate::config::{Listen, ServerConfig};
use crate::engine::EngineHandle;
use crate::http::Peer;
use crate::keys::{Keys, KeysError};
use crate::models::Models;
use core::fmt;
use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use sluice::Team;
use sluice::file::{FolderKey, SharedFolder};
use sluice::host::process::allow_files;
use sluice::host::topology::bind_current_thread;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// A listening server.
pub struct Server {
    listeners: Vec<Listener>,
    address: String,
    app: Arc<App>,
    connections: Arc<Connections>,
    log: Log,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, std::path::PathBuf),
}

/// A connection that was accepted.
enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Listener {
    fn poll(&self, waiting: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        match self {
            Self::Tcp(listener) => {
                let accepted = listener.poll_accept(waiting);
                accepted.map_ok(|(stream, peer)| Accepted::Tcp(stream, peer))
            }
            Self::Unix(listener, _) => {
                let accepted = listener.poll_accept(waiting);
                accepted.map_ok(|(stream, _)| Accepted::Unix(stream))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _removed = std::fs::remove_file(path);
        }
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEnd {
    /// All answers were finished, or the time for them was over.
    Drained,
    /// A second signal ended it at once.
    AtOnce,
}

/// Why the server could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address is taken, or does not belong to this machine.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// The error.
        error: io::Error,
    },
    /// A model named on the command line could not be loaded.
    #[error("{0}")]
    Model(String),
    /// A key is empty, or the file of keys is not valid.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Another system error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Resolves when a server has to stop.
pub type StopSignal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves until a signal: the first SIGINT or SIGTERM lets answers finish, a second one ends them at once. `ready` gets
/// the address. The engine's thread runs where the caller is; the threads that serve clients run where the caller was
/// before `team` placed it.
///
/// # Errors
/// [`ServeError`].
pub fn serve(
    config: ServerConfig,
    team: Team,
    ready: &mut dyn FnMut(&str),
) -> Result<ServerEnd, ServeError> {
    let cpus = team.cpus_before();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(IO_THREADS)
        .thread_name("http")
        .on_thread_start(move || {
            // Otherwise they would run on the CPU of a computing rank. If the kernel refuses, they stay where they are.
            let _bound = bind_current_thread(&cpus);
        })
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async {
        let (mut interrupt, mut end) = (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        );
        let server = Server::bind(config, team).await?;
        if server.keys().has_file() {
            let (keys, mut hangup) = (server.keys().clone(), signal(SignalKind::hangup())?);
            tokio::spawn(async move {
                while hangup.recv().await.is_some() {
                    let keys = keys.clone();
                    let _read = tokio::task::spawn_blocking(move || keys.reload()).await;
                }
            });
        }
        ready(server.address());
        let (first, stop) = oneshot::channel();
        let signals = async move {
            tokio::select! { _ = interrupt.recv() => {}, _ = end.recv() => {} }
            let _stopping = first.send(());
            tokio::select! { _ = interrupt.recv() => {}, _ = end.recv() => {} }
        };
        // Spawned, so that the I/O threads accept connections: this thread is in the engine's place.
        let served = tokio::spawn(server.run(Box::pin(async {
            let _asked = stop.await;
        })));
        tokio::select! {
            served = served => served.map_err(io::Error::other)?.map(|()| ServerEnd::Drained),
            () = signals => Ok(ServerEnd::AtOnce),
        }
    });
    // Dropping the runtime would wait for work that is still running.
    runtime.shutdown_background();
    ended
}

/// Creates the folder of slots where it is missing. Logs why slots cannot be saved there, or who else may write to it.
fn check_slots(folder: &Path, log: &Log) {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    if let Err(error) = created {
        let folder = folder.display();
        log(&format!(
            "warning: slots cannot be saved: {folder}: {error}"
        ));
        return;
    }
    if let Some(shared) = SharedFolder::of(folder) {
        log(&format!("warning: slots: {shared}"));
    }
    if let Err(error) = FolderKey::existing(folder) {
        log(&format!("warning: slots cannot be saved: {error}"));
    }
}

impl Server {
    /// Checks the model files and listens. Models are not loaded yet.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn bind(config: ServerConfig, team: Team) -> Result<Self, ServeError> {
        let opened = config.models.open();
        let opened = opened.map_err(|error| ServeError::Model(error.to_string()))?;
        let keys = Keys::new(config.http.keys.clone(), config.log.clone())?;
        let (mut listeners, mut addresses, mut port) = (Vec::new(), Vec::new(), 0);
        for at in &config.listen {
            let (listener, address) = listen(at, port).await?;
            if let Listener::Tcp(listener) = &listener {
                let own = listener.local_addr()?;
                port = own.port();
                if !keys.are_needed() && !own.ip().to_canonical().is_loopback() {
                    (config.log)(&format!(
                        "warning: other machines can use {address} without a key (--api-key-file, --keys)"
                    ));
                }
            }
            listeners.push(listener);
            addresses.push(address);
        }
        let engine = EngineHandle::start(team, config.engine.clone(), config.log.clone())?;
        let log = config.log.clone();
        let (options, lists) = (config.models.clone(), config.lists.clone());
        let models = Models::new(engine, options, lists, opened, log.clone())?;
        if let Some(folder) = &config.http.slot_save_path {
            check_slots(folder, &log);
        }
        let n_connections = config.http.connections_max.max(1);
        if let Err(error) = allow_files(n_connections) {
            log(&format!(
                "warning: fewer than {n_connections} connections are possible: {error}"
            ));
        }
        Ok(Self {
            listeners,
            address: addresses.join(", "),
            app: Arc::new(App::new(Arc::new(models), keys, &config)),
            connections: Arc::new(Connections::new(
                n_connections,
                config.http.trusted_proxies.clone(),
            )),
            log,
        })
    }

    /// Its keys.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        self.app.keys()
    }

    /// Replaces the samplers of all requests, for tests with a model whose answers are known.
    #[doc(hidden)]
    #[must_use]
    pub fn with_samplers(mut self, wrap: WrapSampler) -> Self {
        if let Some(app) = Arc::get_mut(&mut self.app) {
            app.wrap_samplers(wrap);
        }
        self
    }

    /// The addresses it listens on, with `http://`, separated by `, `.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Loads models and answers requests until `stop`, then waits up to the configured time for answers to finish.
    ///
    /// # Errors
    /// A model named on the command line could not be loaded.
    pub async fn run(self, stop: StopSignal) -> Result<(), ServeError> {
        let models = self.app.models().clone();
        let adapters = Arc::clone(models.adapters());
        let known = Arc::clone(&models);
        let (looked, first_look) = oneshot::channel();
        let is_model = move |name: &str| known.find(name).is_ok();
        let watch = tokio::spawn(adapters.watch(0, is_model, looked));
        let idle = tokio::spawn(Arc::clone(&models).watch_idle());
        let named = tokio::spawn(async move {
            // A client that sees the models can use the folder's adapters, too. Without a folder this returns at once.
            let _looked = first_look.await;
            models.load_named().await
        });
        let named = async {
            match named.await {
                Ok(Err(why)) => ServeError::Model(why),
                // Loading has succeeded, so this branch must not end the server.
                _ => core::future::pending().await,
            }
        };
        let result = tokio::select! {
            () = stop => Ok(()),
            error = named => Err(error),
            never = self.accept_all() => match never {},
        };
        watch.abort();
        idle.abort();
        let Self {
            listeners,
            app,
            connections,
            ..
        } = self;
        // From now on, new connections are refused instead of kept waiting.
        drop(listeners);
        drain(&app, result.is_ok()).await;
        // Wait until the last replies have been sent.
        let patience = SENDING.min(app.options().patience);
        let _drained = timeout(patience, connections.closed()).await;
        result
    }

    async fn accept_all(&self) -> core::convert::Infallible {
        let mut quiet_until = Instant::now();
        for turn in 0_usize.. {
            // Each listener is the first to be asked in turn, so that a busy one does not keep others out.
            let accepted = poll_fn(|waiting| {
                let all = self
                    .listeners
                    .iter()
                    .cycle()
                    .skip(turn % self.listeners.len().max(1));
                let mut all = all.take(self.listeners.len());
                let ready = all.find_map(|listener| match listener.poll(waiting) {
                    Poll::Ready(accepted) => Some(accepted),
                    Poll::Pending => None,
                });
                ready.map_or(Poll::Pending, Poll::Ready)
            });
            let accepted = accepted.await.map(|accepted| match accepted {
                Accepted::Tcp(stream, peer) => {
                    // Tokens are small and must not be delayed by Nagle's algorithm.
                    let _set = stream.set_nodelay(true);
                    self.spawn(stream, Peer::Address(peer.ip()));
                }
                Accepted::Unix(stream) => {
                    let user = stream.peer_cred().map(|peer| peer.uid());
                    self.spawn(stream, Peer::User(user.ok()));
                }
            });
            if let Err(error) = accepted {
                if quiet_until <= Instant::now() {
                    (self.log)(&format!("cannot accept connections: {error}"));
                    quiet_until = Instant::now() + QUIET;
                }
                // Usually the process is out of file descriptors; some will soon be closed.
                sleep(ACCEPT_PAUSE).await;
            }
        }
        core::future::pending().await
    }

    fn spawn<T>(&self, stream: T, peer: Peer)
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        // At the limit, close the connection: if it waited, health probes would be kept out, too.
        let Some((place, taken)) = self.connections.admit(peer, Instant::now()) else {
            (self.log)("too many connections: closed one");
            return;
        };
        let app = self.app.clone();
        tokio::spawn(connection::serve(app, stream, peer, place, taken));
    }
}

/// Refuses new requests and waits for the running ones.
async fn drain(app: &App, is_patient: bool) {
    let patience = if is_patient {
        app.options().patience
    } else {
        Duration::ZERO
    };
    app.stopping().send_replace(true);
    app.models().stop();
    app.pulls().stop();
    let engine = app.models().engine().clone();
    let stopped = tokio::task::spawn_blocking(move || engine.stop(patience));
    let _stopped = timeout(patience + LAST_STEP, stopped).await;
    app.models().end();
}

/// Listens; on `free` in place of any free port, unless it is 0 too.
async fn listen(listen: &Listen, free: u16) -> Result<(Listener, String), ServeError> {
    match listen {
        Listen::Tcp(host, port) => {
            let port = if *port == 0 { free } else { *port };
            let failed = |error| ServeError::Listen {
                address: format!("{host}:{port}"),
                error,
            };
            let listener = TcpListener::bind((host.as_str(), port))
                .await
                .map_err(failed)?;
            let address = format!("http://{}", listener.local_addr().map_err(failed)?);
            Ok((Listener::Tcp(listener), address))
        }
        Listen::Unix(path) => {
            let failed = |error| ServeError::Listen {
                address: path.display().to_string(),
                error,
            };
            remove_dead(path).await.map_err(failed)?;
            let listener = UnixListener::bind(path).map_err(failed)?;
            let address = format!("unix:{}", path.display());
            Ok((Listener::Unix(listener, path.clone()), address))
        }
    }
}

/// Removes a stale socket, left by a server that has ended. Removes nothing else.
async fn remove_dead(path: &Path) -> io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::other("another file has this name"));
    }
    if UnixStream::connect(path).await.is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    std::fs::remove_file(path)
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Threads that serve clients; they only pass data on.
const IO_THREADS: usize = 2;
/// Minimum time between log lines about connections that cannot be accepted.
const QUIET: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time for the engine to finish its current step.
const LAST_STEP: Duration = Duration::from_secs(10);
const SENDING: Duration = Duration::from_secs(5);

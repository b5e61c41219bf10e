//! Fuzzed bodies for every route of a server, over a socket.
//!
//! Bodies are made from good ones of their route: values are replaced, removed, repeated, nested and renamed, and bytes
//! are changed. A server may refuse them, but by name: no panic, no status 500, and 400 tells which field is wrong.

mod bodies;
mod mutate;
mod wire;

use core::error::Error;
use core::sync::atomic::{AtomicU64, Ordering};
use mutate::Mutant;
use serde_json::Value;
use sluice::host::topology::Cores;
use sluice::{Limits, Team};
use sluice_serve::{HttpOptions, Listen, ModelsOptions, NamedModel, Server, ServerConfig};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use wire::Connection;

/// What became of all bodies.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Replies by status; 0 for those that were lost because the route does not read a long body.
    pub by_status: BTreeMap<u16, u64>,
    /// Routes that were asked.
    pub n_routes: usize,
    /// What may not be, the first ones: route, body and reply.
    pub faults: Vec<String>,
    /// The number of faults.
    pub n_faults: u64,
}

impl Tally {
    fn fault(&mut self, what: String) {
        self.n_faults += 1;
        if self.faults.len() < FAULTS_SHOWN {
            self.faults.push(what);
        }
    }

    fn add(&mut self, other: Self) {
        for (status, n) in other.by_status {
            *self.by_status.entry(status).or_default() += n;
        }
        self.n_faults += other.n_faults;
        self.faults.extend(other.faults);
        self.faults.truncate(FAULTS_SHOWN);
    }
}

/// Sends `n` bodies to a server with the model at `model`, from several connections. Equal seeds give equal bodies.
///
/// # Errors
/// The server does not start.
pub fn fuzz_routes(model: &Path, n: u64, seed: u64) -> Result<Tally, Box<dyn Error>> {
    let logged = Arc::new(Mutex::new(Vec::new()));
    let (address, stop, thread) = start(model, &logged)?;
    let routes: Vec<_> = sluice_serve::routes().collect();
    let next = AtomicU64::new(0);
    let mut tally = std::thread::scope(|scope| {
        let all: Vec<_> = (0..CONNECTIONS)
            .map(|_| scope.spawn(|| client(&address, &routes, &next, n, seed)))
            .collect();
        let mut tally = Tally::default();
        for one in all {
            match one.join() {
                Ok(of_client) => tally.add(of_client),
                Err(_) => tally.fault("a client panicked".to_owned()),
            }
        }
        tally
    });
    tally.n_routes = routes.len();
    // The server still answers.
    let mut last = Connection::new(&address);
    match last.ask("GET", "/health", b"") {
        Ok(reply) if reply.status == 200 => {}
        other => tally.fault(format!("afterwards, /health: {other:?}")),
    }
    drop(last);
    let _sent = stop.send(());
    if thread.join().is_err() {
        tally.fault("the server panicked".to_owned());
    }
    let logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
    for line in logged.iter().filter(|line| line.contains("panic")) {
        tally.fault(format!("logged: {line}"));
    }
    Ok(tally)
}

type Running = (String, oneshot::Sender<()>, std::thread::JoinHandle<()>);

fn start(model: &Path, logged: &Arc<Mutex<Vec<String>>>) -> Result<Running, Box<dyn Error>> {
    let lines = Arc::clone(logged);
    let config = ServerConfig {
        listen: vec![Listen::Tcp("127.0.0.1".to_owned(), 0)],
        models: ModelsOptions {
            named: vec![NamedModel {
                alias: Some("tale".to_owned()),
                path: model.into(),
            }],
            // Whatever is asked for, an answer is short.
            limits: Limits {
                n_ctx: 160,
                n_seq: 8,
                ..Limits::default()
            },
            chat_template: Some("chatml".to_owned()),
            ..ModelsOptions::default()
        },
        http: HttpOptions {
            metrics: true,
            body_max: 1 << 20,
            ..HttpOptions::default()
        },
        log: Arc::new(move |line| {
            let is_panic = line.contains("panic");
            if is_panic {
                lines
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line.to_owned());
            }
        }),
        ..ServerConfig::default()
    };
    let (stop, stopped) = oneshot::channel();
    let (told, ready) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let served = Runtime::new().map(|runtime| {
            runtime.block_on(async {
                let team = Team::new(1, &Cores::detect()).map_err(|error| error.to_string())?;
                let server = Server::bind(config, team)
                    .await
                    .map_err(|error| error.to_string())?;
                let _told = told.send(server.address().to_owned());
                let ended = server.run(Box::pin(async { drop(stopped.await) })).await;
                ended.map_err(|error| error.to_string())
            })
        });
        let failed = match served {
            Ok(Ok(())) => return,
            Ok(Err(why)) => why,
            Err(error) => error.to_string(),
        };
        panic!("{failed}");
    });
    let address = ready.recv().map_err(|_| "the server does not start")?;
    Ok((
        address.trim_start_matches("http://").to_owned(),
        stop,
        thread,
    ))
}

/// Sends one body after the other until `n` are sent by all clients together.
fn client(
    address: &str,
    routes: &[(&'static str, &'static str)],
    next: &AtomicU64,
    n: u64,
    seed: u64,
) -> Tally {
    let (mut tally, mut connection) = (Tally::default(), Connection::new(address));
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= n {
            return tally;
        }
        let mutant = Mutant::new(routes, seed, number);
        match connection.ask(mutant.method, &mutant.path, &mutant.body) {
            Ok(reply) => {
                *tally.by_status.entry(reply.status).or_default() += 1;
                if let Some(why) = fault(&mutant, reply.status, &reply.body) {
                    let shown = String::from_utf8_lossy(&mutant.body)
                        .chars()
                        .take(600)
                        .collect::<String>();
                    let body = String::from_utf8_lossy(&reply.body)
                        .chars()
                        .take(400)
                        .collect::<String>();
                    tally.fault(format!(
                        "{number}: {why}: {} {} {shown}\n    {} {body}",
                        mutant.method, mutant.path, reply.status
                    ));
                }
            }
            Err(error) => tally.fault(format!(
                "{number}: {} {}: {error}",
                mutant.method, mutant.path
            )),
        }
    }
}

/// What is wrong with a reply, if anything is.
fn fault(mutant: &Mutant, status: u16, body: &[u8]) -> Option<&'static str> {
    match status {
        0 | 200 | 401 | 403 | 404 | 405 | 409 | 413 | 429 | 501 | 503 | 504 | 529 => return None,
        400 => {}
        500.. => return Some("a server error"),
        _ => return Some("an unknown status"),
    }
    let Ok(reply) = serde_json::from_slice::<Value>(body) else {
        return Some("an error that is not JSON");
    };
    let error = &reply["error"];
    let message = error["message"]
        .as_str()
        .or_else(|| error.as_str())
        .unwrap_or_default();
    if message.is_empty() {
        return Some("an error without a message");
    }
    // Of the body as a whole, or of the prompt.
    let of_all = ["body", "JSON", "exceed", "too long", "empty"]
        .iter()
        .any(|word| message.contains(word));
    let named = error["param"]
        .as_str()
        .is_some_and(|param| !param.is_empty());
    let says = |field: &String| message.contains(field.as_str());
    (!of_all && !named && !mutant.fields.iter().any(says)).then_some("an error that names no field")
}

const CONNECTIONS: usize = 8;
const FAULTS_SHOWN: usize = 40;

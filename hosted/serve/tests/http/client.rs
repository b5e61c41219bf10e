//! A server in this process, and a minimal HTTP client.

use core::time::Duration;
use serde_json::Value;
use sluice::draft::SpeculationSetup;
use sluice::host::topology::Cores;
use sluice::{Limits, Team};
use sluice_serve::engine::EngineOptions;
use sluice_serve::{
    Defaults, HttpOptions, Keys, Listen, ModelsOptions, NamedModel, Server, ServerConfig,
};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::oneshot;

/// A server, which ends when this is dropped.
pub(crate) struct Running {
    address: String,
    keys: Keys,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The chunks of a stream, without the end marker.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let lines = self
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        let chunks = lines.filter(|line| *line != "[DONE]");
        chunks
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The field that an error is about.
    pub(crate) fn param(&self) -> String {
        let error = &self.json()["error"];
        error["param"].as_str().unwrap_or_default().to_owned()
    }

    /// Checks that the request is refused because of this field.
    pub(crate) fn is_refused_for(&self, param: &str) {
        assert_eq!((self.status, &*self.param()), (400, param), "{}", self.body);
    }
}

/// The small model.
pub(crate) const TALE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../models/tale-5.8m-Q4_K_M.gguf"
);

/// Options of a server with the small model, twice: as `tale` and as `other`, one in memory at a time.
pub(crate) fn options() -> ServerConfig {
    let path = PathBuf::from(TALE);
    let named = |alias: &str| NamedModel {
        alias: Some(alias.to_owned()),
        path: path.clone(),
    };
    ServerConfig {
        listen: vec![Listen::Tcp("127.0.0.1".to_owned(), 0)],
        models: ModelsOptions {
            named: vec![named("tale"), named("other")],
            max: 1,
            limits: Limits {
                n_ctx: 512,
                n_seq: 4,
                ..Limits::default()
            },
            chat_template: Some("chatml".to_owned()),
            speculation: Some(SpeculationSetup::default()),
            ..ModelsOptions::default()
        },
        engine: EngineOptions {
            turn: Duration::from_millis(50),
            prompt_share: 0.25,
            max_queue: 64,
            reader_buffer: 1 << 20,
            cache_ram: 8 << 20,
            cache_dir: None,
            cache_disk: 0,
            checkpoint_every: 4096,
            max_adapters: 0,
            telemetry: None,
        },
        defaults: Defaults::default(),
        http: HttpOptions {
            metrics: true,
            patience: Duration::from_secs(20),
            ..HttpOptions::default()
        },
        lists: None,
        log: Arc::new(|_: &str| {}),
    }
}

impl Running {
    pub(crate) fn start(options: ServerConfig) -> Self {
        let (told, ready) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let team = Team::new(1, &Cores::detect()).unwrap();
                let server = Server::bind(options, team).await.unwrap();
                let keys = server.keys().clone();
                told.send((server.address().to_owned(), keys)).unwrap();
                server
                    .run(Box::pin(async { drop(stopped.await) }))
                    .await
                    .unwrap();
            });
        });
        let (address, keys) = ready.recv().unwrap();
        Self {
            address: address.trim_start_matches("http://").to_owned(),
            keys,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Why a server with these options does not start.
    pub(crate) fn refusal(options: ServerConfig) -> String {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let team = Team::new(1, &Cores::detect()).unwrap();
        let bound = runtime.block_on(Server::bind(options, team));
        bound
            .err()
            .map_or_else(String::new, |error| error.to_string())
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Its keys, which can be read again.
    pub(crate) const fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        stream
    }

    pub(crate) fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let length = body.len();
        let text = format!(
            "{head}\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        receive(self.send(&format!("GET {path} HTTP/1.1"), ""))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        receive(self.send(&format!("POST {path} HTTP/1.1"), &body.to_string()))
    }

    /// Asks the server to end.
    pub(crate) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _sent = stop.send(());
        }
    }

    /// Waits until it has ended.
    pub(crate) fn join(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// Reads a whole reply, after which the connection is closed.
pub(crate) fn receive(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or(0);
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    Reply {
        status,
        head: head.to_lowercase(),
        body: if is_chunked {
            unchunked(body)
        } else {
            body.to_owned()
        },
    }
}

fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap();
        text.push_str(&rest[..length]);
        if length == 0 {
            break;
        }
        body = rest[length..].trim_start_matches("\r\n");
    }
    text
}

/// Waits until it is so. `what`: what is wrong if it never is.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

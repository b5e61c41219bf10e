//! A local hub with one repository, `u/m`, whose bytes are served from another port, as on Hugging Face.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where its server cannot go on"
)]
#![allow(
    dead_code,
    reason = "the program's tests need less of it than the crate's own"
)]

use core::fmt::Write as _;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Default)]
struct State {
    files: Vec<File>,
    token: Option<String>,
    cut_after: Option<usize>,
    ignores_ranges: bool,
    sends_other_bytes: bool,
    lists_names_only: bool,
    storage_saw_token: bool,
    commit: Option<&'static str>,
    failure: Option<Failure>,
    bytes_sent: usize,
    ranges: Vec<u64>,
}

struct File {
    path: String,
    bytes: Vec<u8>,
    etag: String,
    is_large: bool,
}

/// What the hub does instead of answering.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    /// Every request is refused with this status line.
    Status(&'static str),
    /// The list of files is this text.
    List(&'static str),
    /// The list is right, files are refused with this status line.
    Files(&'static str),
    /// Every connection is closed.
    HangUp,
}

pub(crate) struct StandIn {
    hub: u16,
    state: Arc<Mutex<State>>,
}

struct Asked {
    method: String,
    path: String,
    token: Option<String>,
    range: Option<u64>,
}

impl StandIn {
    pub(crate) fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let storage = serve(Arc::clone(&state), |state, asked, to| {
            state.storage_saw_token |= asked.token.is_some();
            send_bytes(state, asked, to);
        });
        let hub = serve(Arc::clone(&state), move |state, asked, to| {
            answer(state, asked, storage, to)
        });
        Self { hub, state }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.hub)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Adds a file that is stored on the other port, and returns its SHA-256.
    pub(crate) fn add(&self, path: &str, bytes: &[u8]) -> String {
        let etag = hex(&Sha256::digest(bytes));
        self.put(path, bytes, etag.clone(), true);
        etag
    }

    /// Adds a file that the hub stores itself, under a Git object's name.
    pub(crate) fn add_small(&self, path: &str, bytes: &[u8]) {
        let header = format!("blob {}\0", bytes.len());
        let etag = hex(&Sha1::new_with_prefix(header).chain_update(bytes).finalize());
        self.put(path, bytes, etag, false);
    }

    fn put(&self, path: &str, bytes: &[u8], etag: String, is_large: bool) {
        let (path, bytes) = (path.to_owned(), bytes.to_vec());
        self.state().files.push(File {
            path,
            bytes,
            etag,
            is_large,
        });
    }

    pub(crate) fn cut_after(&self, n_bytes: usize) {
        self.state().cut_after = Some(n_bytes);
    }

    pub(crate) fn ignore_ranges(&self) {
        self.state().ignores_ranges = true;
    }

    pub(crate) fn send_other_bytes(&self) {
        self.state().sends_other_bytes = true;
    }

    pub(crate) fn list_names_only(&self) {
        self.state().lists_names_only = true;
    }

    /// What happens to every request from now on.
    pub(crate) fn fail(&self, failure: Failure) {
        self.state().failure = Some(failure);
    }

    /// Requests are answered again.
    pub(crate) fn recover(&self) {
        self.state().failure = None;
    }

    /// The revision `main` is at `commit` now, with the file at `path` alone.
    pub(crate) fn move_on(&self, commit: &'static str, path: &str, bytes: &[u8]) {
        {
            let mut state = self.state();
            state.commit = Some(commit);
            state.files.clear();
        }
        self.add(path, bytes);
    }

    pub(crate) fn require_token(&self, token: &str) {
        self.state().token = Some(format!("Bearer {token}"));
    }

    pub(crate) fn storage_saw_token(&self) -> bool {
        self.state().storage_saw_token
    }

    pub(crate) fn bytes_sent(&self) -> usize {
        self.state().bytes_sent
    }

    /// The offsets at which requests started.
    pub(crate) fn ranges(&self) -> Vec<u64> {
        self.state().ranges.clone()
    }
}

fn serve(
    state: Arc<Mutex<State>>,
    answer: impl Fn(&mut State, &Asked, &mut TcpStream) + Send + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            if let Some(asked) = read(&stream) {
                answer(&mut state.lock().unwrap(), &asked, &mut stream);
            }
        }
    });
    port
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let mut asked = Asked {
        method: words.next()?.to_owned(),
        path: words.next()?.to_owned(),
        token: None,
        range: None,
    };
    for line in lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
    {
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "authorization" => asked.token = Some(value.to_owned()),
            "range" => {
                let from = value.strip_prefix("bytes=")?.strip_suffix('-')?;
                asked.range = from.parse().ok();
            }
            _ => {}
        }
    }
    Some(asked)
}

fn answer(state: &mut State, asked: &Asked, storage: u16, to: &mut TcpStream) {
    let is_list = asked.path == "/api/models/u/m/revision/main?blobs=true";
    match state.failure {
        Some(Failure::HangUp) => return,
        Some(Failure::Status(line)) => return head(to, line, ""),
        Some(Failure::Files(line)) if !is_list => return head(to, line, ""),
        Some(Failure::List(text)) if is_list => {
            head(to, "200 OK", &format!("Content-Length: {}\r\n", text.len()));
            return to.write_all(text.as_bytes()).unwrap();
        }
        _ => {}
    }
    if state.token.is_some() && state.token != asked.token {
        return head(
            to,
            "401 Unauthorized",
            "X-Error-Message: Invalid username or password.\r\n",
        );
    }
    if is_list {
        let list = list(state);
        head(to, "200 OK", &format!("Content-Length: {}\r\n", list.len()));
        return to.write_all(list.as_bytes()).unwrap();
    }
    let commit = state.commit.unwrap_or(COMMIT);
    let path = asked.path.strip_prefix(&format!("/u/m/resolve/{commit}/"));
    let file = state.files.iter().find(|file| path == Some(&file.path));
    match file {
        None => head(to, "404 Not Found", "X-Error-Code: EntryNotFound\r\n"),
        Some(file) if file.is_large => {
            let (etag, len) = (&file.etag, file.bytes.len());
            // Only the port differs: a token must not get there.
            let place = format!("http://127.0.0.1:{storage}/{etag}");
            let linked = format!("X-Linked-Etag: \"{etag}\"\r\nX-Linked-Size: {len}\r\n");
            head(to, "302 Found", &format!("Location: {place}\r\n{linked}"));
        }
        Some(_) => send_bytes(state, asked, to),
    }
}

fn list(state: &State) -> String {
    let files = state.files.iter().map(|file| {
        let (path, etag, len) = (&file.path, &file.etag, file.bytes.len());
        match (state.lists_names_only, file.is_large) {
            (true, _) => format!("{{\"rfilename\":\"{path}\"}}"),
            (false, true) => format!(
                "{{\"rfilename\":\"{path}\",\"size\":{len},\"blobId\":\"{COMMIT}\",\
                 \"lfs\":{{\"sha256\":\"{etag}\",\"size\":{len},\"pointerSize\":1}}}}"
            ),
            (false, false) => {
                format!("{{\"rfilename\":\"{path}\",\"size\":{len},\"blobId\":\"{etag}\"}}")
            }
        }
    });
    let files: Vec<String> = files.collect();
    format!(
        "{{\"sha\":\"{}\",\"siblings\":[{}]}}",
        state.commit.unwrap_or(COMMIT),
        files.join(",")
    )
}

fn send_bytes(state: &mut State, asked: &Asked, to: &mut TcpStream) {
    let name = asked
        .path
        .rsplit_once(COMMIT)
        .map_or(&*asked.path, |(_, path)| path);
    let name = name.trim_start_matches('/');
    let is_it = |file: &&File| file.etag == name || file.path == name;
    let Some(file) = state.files.iter().find(is_it) else {
        return head(to, "404 Not Found", "");
    };
    let mut bytes = file.bytes.clone();
    let from = asked.range.filter(|_| !state.ignores_ranges).unwrap_or(0);
    if state.sends_other_bytes {
        bytes[0] ^= 1;
    }
    let rest = bytes
        .get(usize::try_from(from).unwrap()..)
        .unwrap_or_default();
    let length = format!("Content-Length: {}\r\n", rest.len());
    match from {
        0 => head(to, "200 OK", &length),
        from => {
            let (last, len) = (bytes.len() - 1, bytes.len());
            let range = format!("Content-Range: bytes {from}-{last}/{len}\r\n");
            head(to, "206 Partial Content", &format!("{length}{range}"));
        }
    }
    let sent = &rest[..state.cut_after.unwrap_or(rest.len()).min(rest.len())];
    if asked.method == "GET" {
        state.ranges.push(from);
        state.bytes_sent += sent.len();
        // The other side may have closed the connection.
        let _sent = to.write_all(sent);
    }
}

fn head(to: &mut TcpStream, status: &str, headers: &str) {
    let length = if headers.contains("Content-Length") {
        ""
    } else {
        "Content-Length: 0\r\n"
    };
    let _sent = write!(
        to,
        "HTTP/1.1 {status}\r\nConnection: close\r\n{length}{headers}\r\n"
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

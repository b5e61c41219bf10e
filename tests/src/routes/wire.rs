//! A connection that is kept for many requests.

use core::time::Duration;
use std::io::{BufRead as _, BufReader, Error, ErrorKind, Read as _, Result, Write as _};
use std::net::TcpStream;

/// A reply.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Reply {
    /// The reply was lost when the connection was closed.
    const fn cut() -> Self {
        Self {
            status: 0,
            body: Vec::new(),
        }
    }
}

/// A connection, opened when it is needed.
pub(super) struct Connection {
    address: String,
    stream: Option<BufReader<TcpStream>>,
}

impl Connection {
    pub(super) fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            stream: None,
        }
    }

    /// Sends a request and reads its whole reply.
    pub(super) fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Reply> {
        let mut text = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        text.extend(body);
        // A kept connection may be closed at any time, such as after a reply to a body that was not read.
        if let Some(kept) = self.stream.take()
            && let Ok(reply) = self.send(kept, &text, method)
        {
            return Ok(reply);
        }
        let stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        self.send(BufReader::new(stream), &text, method)
    }

    fn send(
        &mut self,
        mut stream: BufReader<TcpStream>,
        text: &[u8],
        method: &str,
    ) -> Result<Reply> {
        let sent = stream.get_mut().write_all(text);
        let (reply, is_kept) = match (receive(&mut stream, method), sent) {
            (Ok(reply), _) => reply,
            // The route reads no body: it replied, and closed the connection before all of a long one was sent.
            (Err(_), Err(_)) if text.len() > LONG => (Reply::cut(), false),
            (Err(error), _) => return Err(error),
        };
        self.stream = is_kept.then_some(stream);
        Ok(reply)
    }
}

fn receive(stream: &mut BufReader<TcpStream>, method: &str) -> Result<(Reply, bool)> {
    let first = line(stream)?;
    let status = first
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| Error::other(format!("not HTTP: {first:?}")))?;
    let (mut length, mut is_chunked, mut is_kept) = (None, false, true);
    loop {
        let header = line(stream)?.to_lowercase();
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        match (name, value.trim()) {
            ("content-length", value) => length = value.parse().ok(),
            ("transfer-encoding", "chunked") => is_chunked = true,
            ("connection", "close") => is_kept = false,
            _ => {}
        }
    }
    let mut body = Vec::new();
    if method == "HEAD" {
        return Ok((Reply { status, body }, is_kept));
    }
    match length {
        Some(length) => {
            body.resize(length, 0);
            stream.read_exact(&mut body)?;
        }
        None if is_chunked => loop {
            let length = usize::from_str_radix(line(stream)?.trim(), 16).map_err(Error::other)?;
            let start = body.len();
            body.resize(start + length, 0);
            stream.read_exact(&mut body[start..])?;
            line(stream)?;
            if length == 0 {
                break;
            }
        },
        None => is_kept = stream.read_to_end(&mut body)? == 0,
    }
    Ok((Reply { status, body }, is_kept))
}

/// A line without its end.
fn line(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    match stream.read_line(&mut line)? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes that fit into a connection before anyone reads them.
const LONG: usize = 16 << 10;

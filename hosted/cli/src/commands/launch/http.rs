//! Questions to a server on this machine or in its network.

use anyhow::{Context as _, anyhow, bail};
use core::time::Duration;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};

/// A reply's status and body.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// Asks for `path` of the server at `url`. `None`: nothing listens there.
///
/// # Errors
/// The address is not one of `http://`, or what listens there does not speak HTTP.
pub(super) fn get(url: &str, path: &str, key: Option<&str>) -> anyhow::Result<Option<Answer>> {
    let bare = url.strip_prefix("http://");
    let bare =
        bare.ok_or_else(|| anyhow!("{url}: expected an address that begins with http://"))?;
    let (host, prefix) = bare.split_once('/').unwrap_or((bare, ""));
    let with_port = match host.rsplit_once(':') {
        Some((_, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host.to_owned(),
        _ => format!("{host}:80"),
    };
    let mut found = with_port
        .to_socket_addrs()
        .with_context(|| url.to_owned())?;
    let Some(mut stream) = found.find_map(|at| TcpStream::connect_timeout(&at, PATIENCE).ok())
    else {
        return Ok(None);
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let slash = if prefix.is_empty() { "" } else { "/" };
    let key = key.map_or_else(String::new, |key| {
        format!("Authorization: Bearer {key}\r\n")
    });
    let asked = format!("GET {slash}{prefix}{path} HTTP/1.0\r\nHost: {host}\r\n{key}\r\n");
    let mut reply = Vec::new();
    // HTTP/1.0: the server closes the connection at the end, and sends no chunks.
    let read = stream.write_all(asked.as_bytes());
    let read = read.and_then(|()| stream.take(REPLY_MAX).read_to_end(&mut reply));
    read.with_context(|| format!("{url}: no answer"))?;
    let reply = String::from_utf8_lossy(&reply);
    let status = reply
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.get(2..5)?.parse().ok());
    let (Some(status), Some((_, body))) = (status, reply.split_once("\r\n\r\n")) else {
        bail!("{url}: what listens there is not an HTTP server");
    };
    let body = serde_json::from_str(body).unwrap_or(Value::Null);
    Ok(Some(Answer { status, body }))
}

const PATIENCE: Duration = Duration::from_secs(10);
const REPLY_MAX: u64 = 16 << 20;

//! The server that hosts repositories.

use crate::address::{escaped, followed, host_of, is_loopback, origin, shown};
use crate::cache::{hub_home, setting};
use crate::error::PullError;
use crate::repo::{RepoId, is_inside};
use crate::revision::Revision;
use core::fmt::Write as _;
use core::time::Duration;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, Proxy};

/// A server of repositories: Hugging Face, or one with the same interface.
#[derive(Debug)]
pub struct Hub {
    agent: Agent,
    endpoint: String,
    authorization: Option<String>,
}

/// A file whose length and etag are known, so that it can be fetched.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) path: String,
    pub(crate) len_bytes: u64,
    pub(crate) etag: String,
}

impl Known {
    /// The hash of its bytes, if the etag is one.
    pub(crate) fn checksum(&self) -> Option<Checksum<'_>> {
        if !self.etag.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        match self.etag.len() {
            64 => Some(Checksum::Sha256(&self.etag)),
            40 => Some(Checksum::Blob(&self.etag)),
            _ => None,
        }
    }
}

/// The hash of a file, in hexadecimal digits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Checksum<'k> {
    /// Of a large file.
    Sha256(&'k str),
    /// The Git object ID of a small file: SHA-1 with a header.
    Blob(&'k str),
}

impl<'k> Checksum<'k> {
    pub(crate) const fn hex(self) -> &'k str {
        match self {
            Self::Sha256(hex) | Self::Blob(hex) => hex,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::Blob(_) => "Git object ID",
        }
    }
}

/// The bytes of a file from some offset on.
pub(crate) struct Incoming {
    /// The offset of the first byte: 0 if the server does not support ranges.
    pub(crate) from: u64,
    pub(crate) reader: Box<dyn Read + Send>,
}

impl Hub {
    /// The server at `endpoint` (`https://…`), accessed with `token` if there is one.
    ///
    /// # Errors
    /// [`PullError::Setting`]: the endpoint is not a valid address, the token has characters that a header cannot have,
    /// or the certificates of `SSL_CERT_FILE` cannot be read.
    pub fn new(endpoint: &str, token: Option<&str>) -> Result<Self, PullError> {
        let endpoint = endpoint.trim_end_matches('/');
        let host = host_of(endpoint).ok_or_else(|| PullError::Setting {
            name: "HF_ENDPOINT",
            why: format!(
                "{:?} does not begin with https:// or http:// and a host",
                shown(endpoint)
            ),
        })?;
        if token.is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(PullError::Setting {
                name: "HF_TOKEN",
                why: String::from("the token may contain only letters, digits and punctuation"),
            });
        }
        let mut config = Agent::config_builder()
            .user_agent(concat!("sluice/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .https_only(endpoint.starts_with("https:"))
            // Redirections are followed here: only the hub itself, by host and port, gets the token.
            .redirect_auth_headers(RedirectAuthHeaders::Never)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT))
            .tls_config(tls_config()?);
        if is_loopback(host) {
            config = config.proxy(None);
        } else {
            config = config.proxy(Proxy::try_from_env());
        }
        Ok(Self {
            agent: config.build().into(),
            endpoint: endpoint.to_owned(),
            authorization: token.map(|token| format!("Bearer {token}")),
        })
    }

    /// The server in `HF_ENDPOINT` (or `MODEL_ENDPOINT`), else Hugging Face; with `token`, else `HF_TOKEN`, else the
    /// token that `hf auth login` stored in `HF_TOKEN_PATH` or in `token` of `HF_HOME`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_env(token: Option<&str>) -> Result<Self, PullError> {
        let endpoint = match setting("HF_ENDPOINT")? {
            Some(endpoint) => Some(endpoint),
            None => setting("MODEL_ENDPOINT")?,
        };
        let token = match token {
            Some(token) => Some(token.to_owned()),
            None => setting("HF_TOKEN")?.or_else(kept_token),
        };
        let endpoint = endpoint.as_deref().unwrap_or("https://huggingface.co");
        Self::new(endpoint, token.as_deref())
    }

    /// The contents of `repo` at `revision`.
    ///
    /// # Errors
    /// [`PullError`]: the repository does not exist or is not accessible, or the server did not answer.
    pub fn revision(&self, repo: &RepoId, revision: &str) -> Result<Revision, PullError> {
        let revision = escaped(revision, true);
        let url = format!(
            "{}/api/models/{repo}/revision/{revision}?blobs=true",
            self.endpoint
        );
        let answer = self.get(&url, None)?;
        let mut text = String::new();
        let mut body = answer.into_body().into_reader().take(INFO_BYTES_MAX);
        body.read_to_string(&mut text)
            .map_err(|error| self.broken(&error))?;
        Revision::parse(&text).map_err(|why| PullError::Answer {
            url: shown(&url),
            why,
        })
    }

    /// The file at `path` of `revision` with its length and etag; the server is asked for them if its list does not
    /// include them.
    pub(crate) fn complete(
        &self,
        repo: &RepoId,
        revision: &Revision,
        path: &str,
    ) -> Result<Known, PullError> {
        let url = self.file_url(repo, &revision.commit, path);
        let listed = revision.files.iter().find(|file| file.path == path);
        let (mut len_bytes, mut etag) = (
            listed.and_then(|file| file.len_bytes),
            listed.and_then(|file| file.etag.clone()),
        );
        if len_bytes.is_none() || etag.is_none() {
            (len_bytes, etag) = self.head(&url)?;
        }
        let wrong = |why: &str| PullError::Answer {
            url: shown(&url),
            why: why.to_owned(),
        };
        if !is_inside(path) {
            return Err(wrong("the path leads out of its folder"));
        }
        let etag = etag.ok_or_else(|| wrong("no ETag"))?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if etag.is_empty() || etag.len() > 128 || !etag.chars().all(is_name) {
            return Err(wrong("the ETag is not usable as a file name"));
        }
        Ok(Known {
            path: path.to_owned(),
            len_bytes: len_bytes.ok_or_else(|| wrong("no length"))?,
            etag,
        })
    }

    /// Opens a file's bytes from `from` on.
    pub(crate) fn open(
        &self,
        repo: &RepoId,
        commit: &str,
        path: &str,
        from: u64,
    ) -> Result<Incoming, PullError> {
        let url = self.file_url(repo, commit, path);
        let answer = self.get(&url, (from > 0).then_some(from))?;
        let begins = match answer.status() {
            StatusCode::PARTIAL_CONTENT => {
                let begins = header(answer.headers(), "content-range")
                    .and_then(|range| range.strip_prefix("bytes ")?.split_once('-'))
                    .and_then(|(first, _)| first.parse().ok());
                begins
                    .filter(|&begins: &u64| begins == from)
                    .ok_or_else(|| PullError::Answer {
                        url: shown(&url),
                        why: String::from("received a different range than requested"),
                    })?
            }
            _ => 0,
        };
        Ok(Incoming {
            from: begins,
            reader: Box::new(answer.into_body().into_reader()),
        })
    }

    /// The error of a connection that broke, or was silent for too long.
    pub(crate) fn broken(&self, why: &dyn ToString) -> PullError {
        PullError::Unreachable {
            host: shown(&self.endpoint),
            why: why
                .to_string()
                .replace(&self.endpoint, &shown(&self.endpoint)),
        }
    }

    /// Requests a file's length and etag.
    fn head(&self, url: &str) -> Result<(Option<u64>, Option<String>), PullError> {
        let mut request = self.agent.head(url);
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        // If the bytes are hosted elsewhere, the redirection has the length and the etag.
        let answer = request.call().map_err(|error| self.broken(&error))?;
        let answer = checked(answer, url, self.authorization.is_some())?;
        let headers = answer.headers();
        let len_bytes = header(headers, "x-linked-size").or(header(headers, "content-length"));
        let etag = header(headers, "x-linked-etag").or(header(headers, "etag"));
        let bare = |etag: &str| etag.trim_start_matches("W/").trim_matches('"').to_owned();
        Ok((len_bytes.and_then(|text| text.parse().ok()), etag.map(bare)))
    }

    fn get(&self, url: &str, from: Option<u64>) -> Result<Response<Body>, PullError> {
        let mut place = url.to_owned();
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.agent.get(&place);
            let authorization = self.authorization.as_ref();
            if let Some(authorization) = authorization.filter(|_| origin(&place) == origin(url)) {
                request = request.header("Authorization", authorization);
            }
            if let Some(from) = from {
                request = request.header("Range", format!("bytes={from}-"));
            }
            let answer = request.call().map_err(|error| self.broken(&error))?;
            let answer = checked(answer, url, self.authorization.is_some())?;
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            let next = header(answer.headers(), "location").and_then(|next| followed(&place, next));
            place = next.ok_or_else(|| PullError::Answer {
                url: shown(url),
                why: String::from("the redirection leads nowhere"),
            })?;
        }
        Err(PullError::Answer {
            url: shown(url),
            why: String::from("too many redirections"),
        })
    }

    fn file_url(&self, repo: &RepoId, commit: &str, path: &str) -> String {
        format!(
            "{}/{repo}/resolve/{commit}/{}",
            self.endpoint,
            escaped(path, false)
        )
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
const REDIRECTS_MAX: usize = 10;
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum length of a file list, in bytes.
const INFO_BYTES_MAX: u64 = 64 << 20;

fn checked(
    answer: Response<Body>,
    url: &str,
    with_token: bool,
) -> Result<Response<Body>, PullError> {
    let status = answer.status();
    if status.is_success() || status.is_redirection() {
        return Ok(answer);
    }
    let said = header(answer.headers(), "x-error-message").unwrap_or_default();
    let mut why = format!("HTTP {}", status.as_u16());
    if !said.is_empty() {
        let _infallible = write!(why, ": {said}");
    }
    why.push_str(match (status.as_u16(), with_token) {
        (401 | 403, false) => "; it does not exist, or requires a token (HF_TOKEN)",
        (401, true) => "; it does not exist, or the token (HF_TOKEN) has no access to it",
        (403, true) => {
            "; the token (HF_TOKEN) has no access to it; request it on the repository's page"
        }
        (404, _) => "; no such repository, revision or file",
        (429, _) => "; too many requests",
        _ => "",
    });
    Err(PullError::Refused {
        url: shown(url),
        status: status.as_u16(),
        why,
    })
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// The token that `hf auth login` stored.
fn kept_token() -> Option<String> {
    let named = std::env::var_os("HF_TOKEN_PATH").map(PathBuf::from);
    let path = named.or_else(|| hub_home().map(|home| home.join("token")))?;
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|token| !token.is_empty())
}

/// Mozilla's certificates, which are built in, or the ones in `SSL_CERT_FILE`.
fn tls_config() -> Result<TlsConfig, PullError> {
    const NAME: &str = "SSL_CERT_FILE";
    let builder = TlsConfig::builder();
    let Some(path) = setting(NAME)? else {
        return Ok(builder.build());
    };
    let wrong = |why: String| PullError::Setting { name: NAME, why };
    let pem = fs::read(&path).map_err(|error| wrong(format!("{path}: {error}")))?;
    let mut certificates: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        let item = item.map_err(|error| wrong(format!("{path}: {error}")))?;
        if let PemItem::Certificate(certificate) = item {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(wrong(format!("{path} contains no certificate")));
    }
    let roots = RootCerts::Specific(Arc::new(certificates));
    Ok(builder.root_certs(roots).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_are_wrong_are_named() {
        for endpoint in ["huggingface.co", "ftp://x", "https://", ""] {
            let error = Hub::new(endpoint, None).unwrap_err();
            assert!(error.to_string().starts_with("HF_ENDPOINT: "), "{error}");
        }
        let error = Hub::new("https://x", Some("hf_\n")).unwrap_err();
        assert!(error.to_string().starts_with("HF_TOKEN: "), "{error}");
    }
}

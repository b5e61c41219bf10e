//! Pages in browsers: which of them may use the server, and by which names it can be called. Without a key, this is what
//! keeps other sites' pages from using a server on the reader's own machine.

use super::peer::Peer;
use super::reply::Request;
use crate::api::ApiError;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Method, Version};

/// The origins whose pages may use the server (`--cors-origins`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsOrigins(Vec<String>);

/// A text that does not name origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsOriginsError(String);

/// Who may use the server from a browser.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    origins: CorsOrigins,
    /// The names of the server that it was told, in addition to those that no stranger can own.
    given: Vec<String>,
    /// The machine's own names.
    own: Vec<String>,
}

impl Pages {
    /// Allows pages of `origins`, and requests to `hosts` and to the machine's own name.
    pub(crate) fn new(origins: CorsOrigins, hosts: &[String]) -> Self {
        // With a port or without.
        let hosts = hosts.iter().map(|host| {
            let authority = host.trim().parse::<Authority>();
            authority.map_or_else(|_| host.clone(), |authority| authority.host().to_owned())
        });
        let given = hosts.map(|host| host.trim().to_ascii_lowercase());
        let mut own = Vec::new();
        if let Ok(name) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
            let name = name.trim().to_ascii_lowercase();
            // The name in multicast DNS.
            let label = name.split('.').next().unwrap_or_default();
            own.push(format!("{label}.local"));
            own.push(name);
        }
        Self {
            origins,
            given: given.collect(),
            own,
        }
    }

    /// Refuses what a page of another site may have sent: a request for a name that anybody can own (DNS rebinding), or
    /// one from a page that is not allowed.
    ///
    /// # Errors
    /// The reason, with the flag that would allow it.
    pub(crate) fn check(&self, request: &Request, peer: Peer) -> Result<(), ApiError> {
        let host = host(request)?;
        if request.version() == Version::HTTP_11 && !matches!(peer, Peer::User(_)) {
            let named = host.as_ref();
            let named = named.ok_or_else(|| ApiError::invalid("the Host header is empty"))?;
            self.check_host(named.host())?;
        }
        let headers = request.headers();
        let Some(origin) = headers.get(header::ORIGIN) else {
            let site = headers.get("sec-fetch-site");
            return match site.is_some_and(|site| site == "cross-site") && !self.origins.has("*") {
                true => Err(ApiError::forbidden(
                    "this request comes from a page of another site, which --cors-origins ORIGIN would allow",
                )),
                false => Ok(()),
            };
        };
        let shown = String::from_utf8_lossy(origin.as_bytes());
        // A proxy may have replaced the name by the server's address.
        let given = self.given.iter().filter_map(|name| name.parse().ok());
        let is_own = host
            .into_iter()
            .chain(given)
            .any(|host| is_own(&shown, &host));
        if is_own || self.allows(origin) {
            return Ok(());
        }
        Err(ApiError::forbidden(format!(
            "pages of {shown:?} may not use this server; --cors-origins {shown} would allow them"
        )))
    }

    fn check_host(&self, host: &str) -> Result<(), ApiError> {
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let is_private =
            !name.contains('.') || is_below(&name, "localhost") || is_below(&name, "internal");
        let mut known = self.given.iter().chain(&self.own);
        match is_address || is_private || known.any(|host| host == "*" || *host == name) {
            true => Ok(()),
            false => Err(ApiError::forbidden(format!(
                "{host:?} is not a name of this server; --allowed-hosts {host} would allow it"
            ))),
        }
    }

    /// Whether pages of this origin may use the server: those of `--cors-origins`, and of installed programs.
    pub(crate) fn allows(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str() else {
            return false;
        };
        let scheme = origin.split_once(':').map(|(scheme, _)| scheme);
        scheme.is_some_and(|scheme| PROGRAMS.contains(&scheme)) || self.origins.has(origin)
    }

    /// Whether a request asks what a page of an allowed origin may send.
    pub(crate) fn is_preflight(&self, request: &Request) -> bool {
        let headers = request.headers();
        request.method() == Method::OPTIONS
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
            && headers
                .get(header::ORIGIN)
                .is_some_and(|origin| self.allows(origin))
    }
}

/// Adds what a page may send, which is anything that it asks for, to the answer to a preflight request.
pub(crate) fn allow_sending(asked: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let methods = HeaderValue::from_static("GET, POST, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    if let Some(asked) = asked {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    headers.insert(
        header::ACCESS_CONTROL_MAX_AGE,
        HeaderValue::from_static("600"),
    );
}

/// The host and port that a request asks for, if it names one.
///
/// # Errors
/// HTTP/1.1 requires exactly one header, which may be empty (RFC 9112, section 3.2).
pub(crate) fn host(request: &Request) -> Result<Option<Authority>, ApiError> {
    let mut given = request.headers().get_all(header::HOST).iter();
    let (first, second) = (given.next(), given.next());
    if second.is_some() {
        return Err(ApiError::invalid("the request has two Host headers"));
    }
    if first.is_none() && request.version() == Version::HTTP_11 {
        return Err(ApiError::invalid("the request has no Host header"));
    }
    let parsed = first
        .filter(|host| !host.is_empty())
        .map(|host| Authority::try_from(host.as_bytes()))
        .transpose();
    let parsed = parsed.map_err(|_| ApiError::invalid("the Host header is not a host"))?;
    // The target of a request to a proxy overrides the header.
    Ok(request.uri().authority().cloned().or(parsed))
}

/// Whether a page of `origin` came from the server itself, or from a proxy that keeps the name.
fn is_own(origin: &str, host: &Authority) -> bool {
    let (default, rest) = match origin.split_once("://") {
        Some(("http", rest)) => (80, rest),
        Some(("https", rest)) => (443, rest),
        _ => return false,
    };
    let port = |authority: &Authority| authority.port_u16().unwrap_or(default);
    rest.parse::<Authority>().is_ok_and(|page| {
        page.host().eq_ignore_ascii_case(host.host()) && port(&page) == port(host)
    })
}

/// Whether `name` is `domain` or below it.
fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

impl CorsOrigins {
    fn has(&self, origin: &str) -> bool {
        self.0.iter().any(|allowed| match &**allowed {
            "*" => true,
            "localhost" => is_local(origin),
            allowed => allowed.eq_ignore_ascii_case(origin),
        })
    }
}

/// Whether an origin is on this machine, on any port.
fn is_local(origin: &str) -> bool {
    let rest = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    let page = rest.and_then(|rest| rest.parse::<Authority>().ok());
    page.is_some_and(|page| {
        let host = page.host().to_ascii_lowercase();
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        is_below(&host, "localhost") || address.is_ok_and(|address| address.is_loopback())
    })
}

impl FromStr for CorsOrigins {
    type Err = CorsOriginsError;

    /// Origins (`https://app.example`) separated by commas; `localhost` stands for this machine on any port, `null` for
    /// pages without an origin, and `*` for all.
    fn from_str(text: &str) -> Result<Self, CorsOriginsError> {
        let origin = |part: &str| {
            let part = part.trim().trim_end_matches('/');
            let page = part.split_once("://").map(|(_, rest)| rest);
            let is_origin = page.is_some_and(|page| page.parse::<Authority>().is_ok());
            match is_origin || ["*", "localhost", "null"].contains(&part) {
                true => Ok(part.to_owned()),
                false => Err(CorsOriginsError(part.to_owned())),
            }
        };
        text.split(',')
            .map(origin)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl fmt::Display for CorsOriginsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not an origin such as https://app.example, localhost, null or *",
            self.0
        )
    }
}

impl core::error::Error for CorsOriginsError {}

/// The schemes of pages in installed programs.
const PROGRAMS: [&str; 4] = ["app", "tauri", "file", "vscode-webview"];

#[cfg(test)]
mod tests {
    use super::super::reply::boxed;
    use super::*;

    const NET: Peer = Peer::Address(IpAddr::V4(core::net::Ipv4Addr::LOCALHOST));

    fn asked(headers: &[(&str, &str)]) -> Request {
        let mut request = hyper::Request::builder().uri("/v1/models");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(boxed(http_body_util::Empty::new())).unwrap()
    }

    fn pages(origins: &str, hosts: &[&str]) -> Pages {
        let origins = match origins {
            "" => CorsOrigins::default(),
            origins => origins.parse().unwrap(),
        };
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        Pages::new(origins, &hosts)
    }

    /// What is said against a request, or nothing.
    fn refusal(pages: &Pages, headers: &[(&str, &str)]) -> String {
        let error = pages.check(&asked(headers), NET).err();
        error.map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_host_is_a_name_that_no_stranger_can_own() {
        let strict = pages("", &["LLM.example:8443 "]);
        for host in [
            "127.0.0.1:8080",
            "[::1]:8080",
            "192.168.1.7",
            "localhost",
            "LocalHost:1",
            "a.localhost",
            "host.docker.internal:8080",
            "sluice:8080",
            "llm.example:443",
            "llm.example.",
            "localhost.",
        ] {
            assert_eq!(refusal(&strict, &[("host", host)]), "", "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "notlocalhost.com",
            "1.2.3.4.evil.com",
            "evilinternal.com",
        ] {
            let said = refusal(&strict, &[("host", host)]);
            assert!(said.contains(&format!("--allowed-hosts {host}")), "{said}");
            assert_eq!(refusal(&pages("", &["*"]), &[("host", host)]), "");
        }
        let mut old = asked(&[("host", "evil.example")]);
        *old.version_mut() = Version::HTTP_10;
        assert!(strict.check(&old, NET).is_ok());
        let evil = asked(&[("host", "evil.example")]);
        assert!(strict.check(&evil, Peer::User(None)).is_ok());
    }

    /// nginx sends its own address of the server on, Caddy the name that the page has.
    #[test]
    fn one_flag_is_enough_for_a_proxy() {
        let pages = pages("", &["llm.example"]);
        let (nginx, caddy) = (("host", "127.0.0.1:8080"), ("host", "llm.example"));
        for host in [nginx, caddy] {
            assert_eq!(refusal(&pages, &[host]), "");
            let own = ("origin", "https://llm.example");
            assert_eq!(refusal(&pages, &[host, own]), "", "{host:?}");
            for other in [
                "https://llm.example.evil.example",
                "http://llm.example:3000",
                "null",
            ] {
                assert_ne!(refusal(&pages, &[host, ("origin", other)]), "", "{other}");
            }
        }
        // What a page could send itself proves nothing.
        let forged = [
            ("host", "evil.example"),
            ("x-forwarded-host", "evil.example"),
        ];
        assert_ne!(refusal(&pages, &forged), "");
        let any = self::pages("", &["*"]);
        assert_ne!(
            refusal(&any, &[nginx, ("origin", "https://evil.example")]),
            ""
        );
    }

    #[test]
    fn a_host_may_be_empty_where_its_name_is_not_asked() {
        let open = pages("", &["*"]);
        let empty = asked(&[("host", "")]);
        assert!(host(&empty).is_ok_and(|host| host.is_none()));
        assert!(open.check(&empty, Peer::User(None)).is_ok());
        assert!(refusal(&open, &[("host", "")]).contains("Host header is empty"));
        assert!(host(&asked(&[])).is_err());
    }

    #[test]
    fn a_page_of_another_site_is_refused_by_the_flag_that_would_allow_it() {
        let host = ("host", "127.0.0.1:8080");
        let strict = pages("", &[]);
        for origin in [
            "http://127.0.0.1:8080",
            "app://obsidian.md",
            "tauri://localhost",
            "file://",
            "vscode-webview://1a",
        ] {
            let site = ("sec-fetch-site", "cross-site");
            assert_eq!(
                refusal(&strict, &[host, ("origin", origin), site]),
                "",
                "{origin}"
            );
        }
        for (origin, flag) in [
            (
                "http://evil.example",
                "https://a.example,http://evil.example",
            ),
            ("http://localhost:3000", "localhost"),
            ("https://127.0.0.1:9", "localhost"),
            ("http://[::1]:5173", "localhost"),
            ("http://127.0.0.1", "http://127.0.0.1/"),
            ("null", "null"),
            ("http://evil.example", "*"),
        ] {
            let said = refusal(&strict, &[host, ("origin", origin)]);
            assert!(said.contains(&format!("--cors-origins {origin}")), "{said}");
            assert_eq!(refusal(&pages(flag, &[]), &[host, ("origin", origin)]), "");
        }
        let said = refusal(&strict, &[host, ("sec-fetch-site", "cross-site")]);
        assert!(said.contains("--cors-origins"), "{said}");
        assert_eq!(refusal(&strict, &[host, ("sec-fetch-site", "none")]), "");
        assert_ne!(
            refusal(
                &pages("localhost", &[]),
                &[host, ("origin", "http://localhost.evil.example")]
            ),
            ""
        );
    }

    #[test]
    fn a_list_of_origins_names_what_is_none() {
        for wrong in ["", "app.example", "https://", "https://a.example,b"] {
            assert!(CorsOrigins::from_str(wrong).is_err(), "{wrong:?}");
        }
    }
}

//! Addresses of the hub and of what it redirects to.

use core::fmt::Write as _;

/// Scheme, host and port of an address.
pub(crate) fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']);
    end.map_or(url, |end| &url[..start + end])
}

/// The address that a redirection from `place` leads to.
pub(crate) fn followed(place: &str, next: &str) -> Option<String> {
    if next.starts_with("https://") || next.starts_with("http://") {
        return Some(next.to_owned());
    }
    let is_path = next.starts_with('/') && !next.starts_with("//");
    is_path.then(|| format!("{}{next}", origin(place)))
}

/// An address without the name and password in it.
pub(crate) fn shown(url: &str) -> String {
    let scheme = url.find("://").map_or(0, |at| at + 3);
    match origin(url).rfind('@') {
        Some(at) => format!("{}{}", &url[..scheme], &url[at + 1..]),
        None => url.to_owned(),
    }
}

/// The host of an address.
pub(crate) fn host_of(endpoint: &str) -> Option<&str> {
    let rest = endpoint
        .strip_prefix("https://")
        .or_else(|| endpoint.strip_prefix("http://"))?;
    let authority = rest.split('/').next()?;
    let authority = authority.rsplit('@').next()?;
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next()?,
        None => authority.split(':').next()?,
    };
    (!host.is_empty()).then_some(host)
}

/// The local machine is never reached through a proxy.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.parse::<core::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// A path, escaped for an address; `whole` if slashes are part of a name.
pub(crate) fn escaped(path: &str, whole: bool) -> String {
    path.bytes().fold(String::new(), |mut escaped, byte| {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if is_plain || (byte == b'/' && !whole) {
            escaped.push(char::from(byte));
        } else {
            let _infallible = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(escaped("a b/ü.gguf", false), "a%20b/%C3%BC.gguf");
        assert_eq!(escaped("refs/pr/1", true), "refs%2Fpr%2F1");
        assert_eq!(host_of("http://[::1]:80/x"), Some("::1"));
        assert!(is_loopback("127.0.0.1") && is_loopback("::1") && !is_loopback("10.0.0.1"));
        assert_eq!(host_of("http://me:hush@x:80/"), Some("x"));
        assert_eq!(shown("http://me:h@sh@x/a@b"), "http://x/a@b");
        for (next, expected) in [
            ("/u/new", Some("https://x:1/u/new")),
            ("http://y/z", Some("http://y/z")),
            ("//y/z", None),
        ] {
            assert_eq!(followed("https://x:1/u/m?a=b", next).as_deref(), expected);
        }
        assert_ne!(origin("http://x:1/a"), origin("http://x:2/a"));
    }
}

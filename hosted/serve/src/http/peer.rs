//! Who sends a request: the other end of the connection, or the client of a trusted proxy.

use crate::engine::Share;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::str::FromStr;
use hyper::header::{self, HeaderMap};
use ipnet::IpNet;

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    Address(IpAddr),
    /// The user at the other end of a Unix socket, if the system names one.
    User(Option<u32>),
}

/// The proxies whose word about a client's address counts (`--trusted-proxies`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
    /// Whether peers of a Unix socket are proxies.
    has_unix: bool,
}

/// A text that does not name proxies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxiesError(String);

impl Peer {
    /// Whose a request with these headers is.
    pub(crate) fn share(self, headers: &HeaderMap, trusted: &TrustedProxies) -> Share {
        let client = match self.is_trusted(trusted) {
            true => forwarded(headers, trusted),
            false => None,
        };
        match client.map_or(self, Self::Address) {
            Self::Address(address) => Share::of_peer(network(address).to_string()),
            Self::User(Some(user)) => Share::of_peer(format!("user {user}")),
            Self::User(None) => Share::of_peer("user"),
        }
    }

    /// The client that its connections belong to; `None` for a trusted proxy, whose clients are many.
    pub(crate) fn client(self, trusted: &TrustedProxies) -> Option<Self> {
        (!self.is_trusted(trusted)).then_some(match self {
            Self::Address(address) => Self::Address(network(address)),
            user @ Self::User(_) => user,
        })
    }

    fn is_trusted(self, trusted: &TrustedProxies) -> bool {
        match self {
            Self::Address(address) => trusted.has(address),
            Self::User(_) => trusted.has_unix,
        }
    }
}

/// The network that counts as one client: an IPv4 address, or the 64 bits of an IPv6 address that are usually assigned
/// to one site.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => IpAddr::V6(Ipv6Addr::from_bits(
            address.to_bits() & !u128::from(u64::MAX),
        )),
        address => address,
    }
}

/// The last address that a trusted proxy was asked by and that is not a trusted proxy itself. `X-Forwarded-For` takes
/// precedence: most proxies add to it, and pass a client's own `Forwarded` on.
fn forwarded(headers: &HeaderMap, trusted: &TrustedProxies) -> Option<IpAddr> {
    let plain = header::HeaderName::from_static("x-forwarded-for");
    let (name, is_plain) = match headers.contains_key(&plain) {
        true => (plain, true),
        false => (header::FORWARDED, false),
    };
    let lines: Vec<_> = headers.get_all(name).iter().collect();
    let mut client = None;
    for line in lines.into_iter().rev() {
        for hop in line.to_str().ok()?.rsplit(',') {
            let node = if is_plain { Some(hop) } else { for_of(hop) };
            let Some(address) = node.and_then(address) else {
                return client;
            };
            client = Some(address);
            if !trusted.has(address) {
                return client;
            }
        }
    }
    client
}

/// The node of a `for=` parameter (RFC 7239, section 4).
fn for_of(hop: &str) -> Option<&str> {
    let parameters = hop
        .split(';')
        .filter_map(|part| part.trim().split_once('='));
    let mut named = parameters.filter(|(name, _)| name.eq_ignore_ascii_case("for"));
    named.next().map(|(_, node)| node.trim_matches('"'))
}

/// An address with or without a port.
fn address(node: &str) -> Option<IpAddr> {
    let node = node.trim();
    let bare = node.trim_matches(['[', ']']);
    let with_port = || node.parse().map(|node: SocketAddr| node.ip());
    bare.parse().or_else(|_| with_port()).ok()
}

impl TrustedProxies {
    fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|net| net.contains(&address))
    }
}

impl FromStr for TrustedProxies {
    type Err = TrustedProxiesError;

    /// Addresses and networks (`10.0.0.0/8`) separated by commas; `unix` stands for peers of a Unix socket.
    fn from_str(text: &str) -> Result<Self, TrustedProxiesError> {
        let mut all = Self::default();
        for part in text.split(',').map(str::trim) {
            let net = part.parse().or_else(|_| part.parse().map(IpAddr::into));
            match (part, net) {
                ("unix", _) => all.has_unix = true,
                (_, Ok(net)) => all.networks.push(net),
                (_, Err(_)) => return Err(TrustedProxiesError(part.to_owned())),
            }
        }
        Ok(all)
    }
}

impl fmt::Display for TrustedProxiesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(part) = self;
        write!(
            f,
            "{part:?} is not an IP address, a network such as 10.0.0.0/8, or unix"
        )
    }
}

impl core::error::Error for TrustedProxiesError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(peer: &str, headers: &[(&'static str, &str)]) -> Share {
        let trusted = "10.0.0.0/8, 192.168.1.7,::1".parse().unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        Peer::Address(peer.parse().unwrap()).share(&map, &trusted)
    }

    #[test]
    fn a_share_is_an_address_without_its_port() {
        let of = |peer: &str| Share::of_peer(peer);
        assert_eq!(share("127.0.0.2", &[]), of("127.0.0.2"));
        assert_eq!(share("::ffff:127.0.0.2", &[]), of("127.0.0.2"));
        assert_eq!(share("2001:db8:1:2:3:4:5:6", &[]), of("2001:db8:1:2::"));
        let none = TrustedProxies::default();
        let user = |id| Peer::User(id).share(&HeaderMap::new(), &none);
        assert_eq!(user(Some(1000)), of("user 1000"));
        assert_ne!(user(None), user(Some(0)));
    }

    #[test]
    fn only_a_trusted_proxy_speaks_for_its_clients() {
        let of = |peer: &str| Share::of_peer(peer);
        let plain = "x-forwarded-for";
        for (peer, headers, expected) in [
            ("1.1.1.1", vec![(plain, "2.2.2.2")], "1.1.1.1"),
            ("10.1.1.1", vec![(plain, "2.2.2.2")], "2.2.2.2"),
            ("10.1.1.1", vec![], "10.1.1.1"),
            // What the client itself wrote stands to the left of what the proxy saw.
            ("10.1.1.1", vec![(plain, "9.9.9.9, 2.2.2.2")], "2.2.2.2"),
            (
                "10.1.1.1",
                vec![(plain, "9.9.9.9"), (plain, "2.2.2.2")],
                "2.2.2.2",
            ),
            ("10.1.1.1", vec![(plain, "2.2.2.2, 192.168.1.7")], "2.2.2.2"),
            ("10.1.1.1", vec![(plain, "junk, 10.2.2.2")], "10.2.2.2"),
            ("10.1.1.1", vec![(plain, "junk")], "10.1.1.1"),
            ("10.1.1.1", vec![(plain, "2.2.2.2:80")], "2.2.2.2"),
            (
                "::1",
                vec![("forwarded", "for=2.2.2.2;proto=http")],
                "2.2.2.2",
            ),
            (
                "::1",
                vec![("forwarded", "For=\"[2001:db8::1]:47\"")],
                "2001:db8::",
            ),
            (
                "::1",
                vec![("forwarded", "for=9.9.9.9"), (plain, "2.2.2.2")],
                "2.2.2.2",
            ),
        ] {
            assert_eq!(share(peer, &headers), of(expected), "{peer} {headers:?}");
        }
        let unix = "unix".parse().unwrap();
        let mut map = HeaderMap::new();
        map.append(plain, "2.2.2.2".parse().unwrap());
        assert_eq!(Peer::User(Some(0)).share(&map, &unix), of("2.2.2.2"));
    }

    #[test]
    fn a_list_of_proxies_names_what_it_cannot_be() {
        for wrong in ["", "10.0.0.0/33", "proxy.example", "10.0.0.1,,"] {
            assert!(TrustedProxies::from_str(wrong).is_err(), "{wrong:?}");
        }
    }
}

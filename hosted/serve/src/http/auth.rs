//! API keys.

use hyper::header::{self, HeaderMap};
use sha2::{Digest as _, Sha256};

/// The keys, one of which each request must send.
#[derive(Clone, Default)]
pub(crate) struct Keys {
    digests: Vec<[u8; 32]>,
}

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        let digests = keys.iter().map(|key| Sha256::digest(key.as_bytes()).into());
        Self {
            digests: digests.collect(),
        }
    }

    /// Whether requests need no key.
    pub(crate) const fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// Whether a request with these headers may be answered.
    pub(crate) fn allow(&self, headers: &HeaderMap) -> bool {
        if self.digests.is_empty() {
            return true;
        }
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
        });
        let plain = headers
            .get("x-api-key")
            .and_then(|value| value.to_str().ok());
        bearer.or(plain).is_some_and(|key| self.has(key))
    }

    /// Compares the hash with those for all keys, so that the time taken does not depend on any of them.
    fn has(&self, key: &str) -> bool {
        let given: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let mut found = 0;
        for digest in &self.digests {
            let difference = digest
                .iter()
                .zip(&given)
                .fold(0, |all, (a, b)| all | (a ^ b));
            found |= u8::from(core::hint::black_box(difference) == 0);
        }
        found != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn any_of_the_keys_opens() {
        let keys = Keys::new(&["one".to_owned(), "two".to_owned()]);
        assert!(keys.allow(&with("authorization", "Bearer one")));
        assert!(keys.allow(&with("authorization", "bearer two")));
        assert!(keys.allow(&with("x-api-key", "two")));
        for wrong in [
            "Bearer three",
            "one",
            "Basic one",
            "Bearer ",
            "Bearer onetwo",
        ] {
            assert!(!keys.allow(&with("authorization", wrong)), "{wrong}");
        }
        assert!(!keys.allow(&HeaderMap::new()));
        assert!(Keys::default().allow(&HeaderMap::new()));
    }
}

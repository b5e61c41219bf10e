//! Hashes of keys.

use core::hint::black_box;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

/// The SHA-256 of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct KeyHash([u8; 32]);

impl KeyHash {
    pub(super) fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// Whether it is the hash of an empty key.
    pub(super) fn is_of_nothing(&self) -> bool {
        *self == Self::of("")
    }

    /// Takes the same time wherever they differ.
    pub(super) fn is(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        let difference = pairs.fold(0, |all, (a, b)| all | (a ^ b));
        black_box(difference) == 0
    }

    pub(super) fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for KeyHash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let digits = text.as_bytes().as_chunks::<2>().0.iter().map(|digits| {
            let digits = core::str::from_utf8(digits).ok()?;
            let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)
        });
        let bytes: Option<Vec<u8>> = digits.collect();
        let bytes = bytes
            .filter(|_| text.len() == 64)
            .and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Self)
            .ok_or("a SHA-256 hash has 64 hexadecimal digits")
    }
}

//! Which weights a saved state was computed with.

use core::fmt;

/// 32 bytes that a saved state and the model it is restored into must have in common. The host gives them: a
/// cryptographic hash of the model's whole file, and of the adapters over it. Core only compares them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(pub [u8; 32]);

/// 64 hexadecimal digits.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({self})")
    }
}

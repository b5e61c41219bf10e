//! The ids of streams and of their events, by which a stream that broke is taken up again.

use core::fmt;
use core::hash::{BuildHasher as _, Hasher as _};
use core::str::FromStr;
use sha2::{Digest as _, Sha256};
use std::hash::RandomState;

/// The identity of a stream: when it began, and a random number. The ids in its chunks are made of it, so they are the
/// same when it is computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId {
    /// Seconds since 1970.
    pub created: u64,
    random: u64,
}

impl StreamId {
    /// A new id for a stream that began at `created`.
    #[must_use]
    pub fn new(created: u64) -> Self {
        Self {
            created,
            // Each RandomState has its own keys.
            random: RandomState::new().build_hasher().finish(),
        }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:016x}", self.created, self.random)
    }
}

/// The header that takes up a stream.
pub(crate) const LAST_EVENT_ID: &str = "Last-Event-ID";

/// The id of an event of a stream: what is needed to compute the rest of it.
///
/// As text it is `FINGERPRINT.SEED.STREAM.BODY.SETTINGS.NUMBERS`; numbers are decimal, with commas between them, and all
/// else is hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    /// Hash of [`Start::fingerprint`](super::Start::fingerprint).
    pub(crate) fingerprint: u64,
    pub(crate) seed: u64,
    pub(crate) stream: StreamId,
    /// Hash of the request's body.
    pub(crate) body: u32,
    /// [`Start::settings`](super::Start::settings).
    pub(crate) settings: u32,
    /// The number of events so far; with several texts, of the stream itself and of each text.
    pub(crate) numbers: Vec<u32>,
}

impl EventId {
    /// The hash that stands for a fingerprint, which is long.
    pub(crate) fn fingerprint(text: &str) -> u64 {
        let digest = Sha256::digest(text);
        let bytes = digest.iter().take(8);
        bytes.fold(0, |hash, &byte| hash << 8 | u64::from(byte))
    }

    /// The id without its numbers.
    pub(crate) fn prefix(&self) -> String {
        let Self {
            fingerprint,
            seed,
            stream,
            body,
            settings,
            ..
        } = self;
        format!("{fingerprint:016x}.{seed:x}.{stream}.{body:08x}.{settings:08x}.")
    }
}

impl FromStr for EventId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.rsplitn(6, '.');
        let mut next = || parts.next().ok_or(());
        let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let hex = |digits: &str, n: usize| match digits.len() == n && is_hex(digits) {
            true => u64::from_str_radix(digits, 16).map_err(drop),
            false => Err(()),
        };
        let numbers = next()?
            .split(',')
            .map(|number| number.parse().map_err(drop));
        let numbers: Vec<u32> = numbers.collect::<Result<_, _>>()?;
        let settings = u32::try_from(hex(next()?, 8)?).map_err(drop)?;
        let body = u32::try_from(hex(next()?, 8)?).map_err(drop)?;
        let stream = next()?;
        let (created, random) = stream.split_at_checked(8).ok_or(())?;
        let stream = StreamId {
            created: hex(created, 8)?,
            random: hex(random, 16)?,
        };
        let seed = next()?;
        if !is_hex(seed) {
            return Err(());
        }
        let seed = u64::from_str_radix(seed, 16).map_err(drop)?;
        let fingerprint = hex(next()?, 16)?;
        Ok(Self {
            fingerprint,
            seed,
            stream,
            body,
            settings,
            numbers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let id = EventId {
            fingerprint: EventId::fingerprint("m-c1"),
            seed: u64::MAX,
            stream: StreamId::new(1_790_000_000),
            body: 7,
            settings: u32::MAX,
            numbers: vec![2, 30, 0],
        };
        let text = format!("{}2,30,0", id.prefix());
        assert_eq!(text.parse(), Ok(id.clone()));
        for wrong in [
            "",
            "3",
            "a.b.c.d.e.f",
            &text[..text.len() - 1],
            &text.replace("2,30,0", "2,-1,0"),
            &text.replacen("00000007", "+0000007", 1),
            &text.replacen("00000007", "é", 1),
        ] {
            assert_eq!(wrong.parse::<EventId>(), Err(()), "{wrong}");
        }
    }
}

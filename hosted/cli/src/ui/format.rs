//! Human-readable numbers.

use core::fmt;
use sluice::core::kernels::KvType;

/// A size in bytes, shown in B, KiB, MiB or GiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        #[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
        let mut size = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while size >= 1024.0 && unit + 1 < UNITS.len() {
            size /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{size:.2} {}", UNITS[unit]))
    }
}

/// The types of keys and values in a KV cache, shown once if they are equal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheTypes(pub(crate) KvType, pub(crate) KvType);

impl fmt::Display for CacheTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == self.1 {
            return f.pad(self.0.name());
        }
        write!(f, "{} and {}", self.0, self.1)
    }
}

/// A count, shown in full, in thousands (K), millions (M) or billions (B).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count(pub(crate) u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
        let n = self.0 as f64;
        let text = match self.0 {
            0..1_000 => self.0.to_string(),
            1_000..1_000_000 => format!("{:.2} K", n / 1e3),
            1_000_000..1_000_000_000 => format!("{:.2} M", n / 1e6),
            _ => format!("{:.2} B", n / 1e9),
        };
        f.pad(&text)
    }
}

/// Text from a file, escaped so that it cannot control a terminal, and truncated.
pub(crate) fn shown(bytes: &[u8], chars_max: usize) -> String {
    // A character takes at most 4 bytes, so the rest of a long string is not examined.
    let head = &bytes[..bytes.len().min(4 * (chars_max + 1))];
    let text = String::from_utf8_lossy(head);
    let mut shown: String = text
        .chars()
        .take(chars_max)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts() {
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(1024).to_string(), "1.00 KiB");
        assert_eq!(Bytes(3_777_536).to_string(), "3.60 MiB");
        assert_eq!(Bytes(1 << 40).to_string(), "1.00 TiB");
        assert_eq!(Bytes(u64::MAX).to_string(), "16777216.00 TiB");
        assert_eq!(format!("[{:>9}]", Bytes(1)), "[      1 B]");
        assert_eq!(Count(999).to_string(), "999");
        assert_eq!(Count(5_800_000).to_string(), "5.80 M");
        assert_eq!(Count(7_000_000_000).to_string(), "7.00 B");
    }

    #[test]
    fn text_is_escaped_and_cut() {
        assert_eq!(shown(b"a\x1b[2J\n", 10), "a\\u{1b}[2J\\n");
        assert_eq!(shown("äöü".as_bytes(), 2), "äö…");
        assert_eq!(shown("äöü".as_bytes(), 3), "äöü");
        assert_eq!(shown(b"\xff", 3), "\u{fffd}");
    }
}

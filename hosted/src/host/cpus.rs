//! Sets of CPUs, as users and the kernel write them.

use core::fmt;

/// A set of CPUs: from a hexadecimal mask or a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

/// Maximum number of CPUs that a mask can name, as in llama.cpp.
pub const CPUS_MAX: usize = 512;

impl CpuList {
    /// Reads `--cpu-mask`: hexadecimal, CPU 0 is the lowest bit, an optional `0x` before it.
    ///
    /// # Errors
    /// It is not hexadecimal, names no CPU, or more than [`CPUS_MAX`].
    pub fn from_mask(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let digits = digits.unwrap_or(text);
        if digits.is_empty() || digits.len() > CPUS_MAX / 4 {
            return Err(format!(
                "a mask has 1 to {} hexadecimal digits",
                CPUS_MAX / 4
            ));
        }
        let mut cpus = Vec::new();
        for (i, c) in digits.chars().rev().enumerate() {
            let value = c
                .to_digit(16)
                .ok_or_else(|| format!("{c:?} is not a hexadecimal digit"))?;
            cpus.extend(
                (0..4)
                    .filter(|bit| value & 1 << bit != 0)
                    .map(|bit| 4 * i + bit),
            );
        }
        if cpus.is_empty() {
            return Err("the mask is empty".into());
        }
        Ok(Self(cpus))
    }

    /// Reads `--cpu-range`: `lo-hi`, both included; if one is missing, from the first or to the
    /// last CPU.
    ///
    /// # Errors
    /// It is not a range, or not within 0 to [`CPUS_MAX`]` - 1`.
    pub fn from_range(text: &str) -> Result<Self, String> {
        let (low, high) = text
            .split_once('-')
            .ok_or("expected a range first-last, such as 0-3")?;
        let number = |digits: &str, default: usize| {
            if digits.is_empty() {
                return Ok(default);
            }
            let is_number = digits.bytes().all(|b| b.is_ascii_digit());
            let value = digits
                .parse()
                .ok()
                .filter(|&cpu| is_number && cpu < CPUS_MAX);
            value.ok_or_else(|| format!("{digits:?} is not a CPU, 0 to {}", CPUS_MAX - 1))
        };
        let (low, high) = (number(low, 0)?, number(high, CPUS_MAX - 1)?);
        if low > high {
            return Err(format!("the range {low}-{high} is empty"));
        }
        Ok(Self((low..=high).collect()))
    }

    /// Appends another list.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(&other.0);
        self.0.sort_unstable();
        self.0.dedup();
    }
}

/// CPUs in ranges, as the kernel writes them: `0-3,8`.
impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut comma = "";
        while let Some(&first) = rest.first() {
            let next_to = |pair: &(usize, &usize)| *pair.1 == first + pair.0;
            let run = rest.iter().enumerate().take_while(next_to).count();
            write!(f, "{comma}{first}")?;
            if run > 1 {
                write!(f, "-{}", first + run - 1)?;
            }
            (rest, comma) = (&rest[run..], ",");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_ranges() {
        let mask = |text: &str| CpuList::from_mask(text).map(|list| list.to_string());
        assert_eq!(mask("0x3"), Ok("0-1".into()));
        assert_eq!(mask("F0f"), Ok("0-3,8-11".into()));
        assert_eq!(mask("0X100000000000000000"), Ok("68".into()));
        for wrong in ["", "0x", "0", "0x0", "g", "-1", "0x3 ", &"f".repeat(129)] {
            assert!(mask(wrong).is_err(), "{wrong:?}");
        }
        let range = |text: &str| CpuList::from_range(text).map(|list| list.to_string());
        assert_eq!(range("0-3"), Ok("0-3".into()));
        assert_eq!(range("2-2"), Ok("2".into()));
        assert_eq!(range("-1"), Ok("0-1".into()));
        assert_eq!(range("510-"), Ok("510-511".into()));
        for wrong in ["", "3", "3-1", "a-b", "0-512", "+1-2", "1--2"] {
            assert!(range(wrong).is_err(), "{wrong:?}");
        }
        let mut both = CpuList(vec![4, 5]);
        both.extend(&CpuList(vec![0, 5, 6]));
        assert_eq!(both.to_string(), "0,4-6");
    }
}

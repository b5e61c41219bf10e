//! A number of things, or a share of all.

use super::settings::Settings;

/// A number of things, or a share of all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// This number.
    Count(u64),
    /// This share of the whole, from 0, below 1.
    Share(f64),
}

impl Amount {
    pub(super) fn of(settings: &Settings, key: &'static str) -> Option<Self> {
        let value = settings.value(key);
        let number = value.as_f64()?;
        match value.as_u64() {
            Some(count) => Some(Self::Count(count)),
            None if number < 1.0 => Some(Self::Share(number)),
            // 3.0 is written for 3.
            None => format!("{number:.0}").parse().ok().map(Self::Count),
        }
    }

    /// Whether it is nothing.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        match self {
            Self::Count(count) => count == 0,
            Self::Share(share) => share <= 0.0,
        }
    }

    /// The number that it is of `all`, rounded up.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a count is below it"
    )]
    pub fn of_all(self, all: u64) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Share(share) => libm::ceil(share * all as f64) as u64,
        }
    }
}

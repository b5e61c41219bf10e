//! The function `strftime_now`, with which templates write the date into a system prompt.

use core::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// A moment in UTC, broken down.
struct Moment {
    year: i64,
    /// From 1.
    month: u8,
    /// From 1.
    day: u8,
    /// From 0, which is Sunday.
    weekday: u8,
    /// From 0.
    day_of_year: i64,
    second_of_day: i64,
}

/// Formats `time` as C's `strftime` does in the C locale, in UTC. Conversions that templates
/// do not use are left unchanged.
#[must_use]
pub fn strftime(format: &str, time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let moment = Moment::new(i64::try_from(seconds).unwrap_or(0));
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut conversion = chars.next();
        // glibc's flag for a number without padding.
        let bare = conversion == Some('-');
        if bare {
            conversion = chars.next();
        }
        let mut field = String::new();
        let known = conversion.is_some_and(|c| moment.field(&mut field, c));
        if known {
            let trimmed = field.trim_start_matches(['0', ' ']);
            out.push_str(match bare {
                true if trimmed.is_empty() => "0",
                true => trimmed,
                false => &field,
            });
        } else {
            out.push_str(if bare { "%-" } else { "%" });
            out.extend(conversion);
        }
    }
    out
}

impl Moment {
    /// The calendar of days since 1970-01-01; the algorithm is Howard Hinnant's
    /// `civil_from_days` (chrono-compatible low-level date algorithms).
    fn new(seconds: i64) -> Self {
        let days = seconds.div_euclid(DAY_SECONDS);
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        // Counted from the first of March.
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 {
            march_month + 3
        } else {
            march_month - 9
        };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let since_january = if month <= 2 {
            day_of_year - 306
        } else {
            day_of_year + 59 + i64::from(leap)
        };
        let small = |x: i64| u8::try_from(x).expect("a month, a day or a weekday");
        Self {
            year,
            month: small(month),
            day: small(day),
            weekday: small((days + 4).rem_euclid(7)),
            day_of_year: since_january,
            second_of_day: seconds.rem_euclid(DAY_SECONDS),
        }
    }

    /// Writes the field for `conversion`, if it is supported.
    fn field(&self, out: &mut String, conversion: char) -> bool {
        let (month, weekday) = (
            MONTHS[usize::from(self.month) - 1],
            WEEKDAYS[usize::from(self.weekday)],
        );
        let (hour, minute) = (self.second_of_day / 3600, self.second_of_day / 60 % 60);
        let second = self.second_of_day % 60;
        let (year, day, number) = (self.year, self.day, self.month);
        let written = match conversion {
            'Y' => write!(out, "{year}"),
            'y' => write!(out, "{:02}", year % 100),
            'm' => write!(out, "{number:02}"),
            'B' => write!(out, "{month}"),
            'b' | 'h' => write!(out, "{}", &month[..3]),
            'd' => write!(out, "{day:02}"),
            'e' => write!(out, "{day:2}"),
            'j' => write!(out, "{:03}", self.day_of_year + 1),
            'A' => write!(out, "{weekday}"),
            'a' => write!(out, "{}", &weekday[..3]),
            'H' => write!(out, "{hour:02}"),
            'I' => write!(out, "{:02}", (hour + 11) % 12 + 1),
            'p' => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            'M' => write!(out, "{minute:02}"),
            'S' => write!(out, "{second:02}"),
            'F' => write!(out, "{year}-{number:02}-{day:02}"),
            'T' => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            'Z' => write!(out, "UTC"),
            'z' => write!(out, "+0000"),
            '%' => write!(out, "%"),
            _ => return false,
        };
        written.is_ok()
    }
}

const DAY_SECONDS: i64 = 86_400;
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

#[cfg(test)]
mod tests {
    use super::strftime;
    use core::time::Duration;
    use std::time::UNIX_EPOCH;

    /// Expected values from Python's `datetime.fromtimestamp(t, UTC).strftime`.
    #[test]
    fn dates_are_pythons() {
        let all = "%A %d %B %Y, %a %b %y, day %j, %H:%M:%S %I %p";
        for (seconds, expected) in [
            (
                0,
                "Thursday 01 January 1970, Thu Jan 70, day 001, 00:00:00 12 AM",
            ),
            (
                951_868_799,
                "Tuesday 29 February 2000, Tue Feb 00, day 060, 23:59:59 11 PM",
            ),
            (
                1_798_761_599,
                "Thursday 31 December 2026, Thu Dec 26, day 365, 23:59:59 11 PM",
            ),
            (
                1_721_952_000,
                "Friday 26 July 2024, Fri Jul 24, day 208, 00:00:00 12 AM",
            ),
        ] {
            assert_eq!(
                strftime(all, UNIX_EPOCH + Duration::from_secs(seconds)),
                expected
            );
        }
        assert_eq!(strftime("%-d %-H %Q %", UNIX_EPOCH), "1 0 %Q %");
    }
}

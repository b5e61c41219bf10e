//! Lists of numbers as llama-bench writes them.

use crate::outcome::UsageError;
use core::str::FromStr;

/// A list in llama-bench's notation: numbers and ranges `first-last`, `first-last+step` or
/// `first-last*factor`, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Numbers(Vec<u32>);

/// Maximum number of values in a list, and the largest value.
const VALUES_MAX: usize = 4096;
const VALUE_MAX: u32 = 1 << 24;

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut values = Vec::new();
        for part in text.split(',') {
            if part.starts_with('-') {
                return Err(format!("{part} is not in 0..={VALUE_MAX}"));
            }
            range(part, &mut values)?;
        }
        Ok(Self(values))
    }
}

/// Appends the numbers of one part of a list.
fn range(part: &str, values: &mut Vec<u32>) -> Result<(), String> {
    let number = |digits: &str| {
        let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let value = digits.parse::<u32>().ok();
        value
            .filter(|&value| all_digits && value <= VALUE_MAX)
            .ok_or_else(|| format!("{digits:?} is not a number from 0 to {VALUE_MAX}"))
    };
    let Some((first, rest)) = part.split_once('-') else {
        values.push(number(part)?);
        return Ok(());
    };
    let at = rest.find(['+', '*']).unwrap_or(rest.len());
    let (last, step) = rest.split_at(at);
    let (first, last) = (number(first)?, number(last)?);
    let step_value = if step.is_empty() {
        1
    } else {
        number(&step[1..])?
    };
    let mut value = first;
    while value <= last {
        if values.len() == VALUES_MAX {
            return Err(format!("{part:?} has more than {VALUES_MAX} values"));
        }
        values.push(value);
        let next = if step.starts_with('*') {
            value.saturating_mul(step_value)
        } else {
            value.saturating_add(step_value)
        };
        if next <= value {
            return Err(format!(
                "{part:?} never reaches its end: it stays at {value}"
            ));
        }
        value = next;
    }
    Ok(())
}

/// `pp,tg` of `-pg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PromptGen {
    pub(super) n_prompt: u32,
    pub(super) n_gen: u32,
}

impl FromStr for PromptGen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Numbers(values) = text.parse()?;
        match values[..] {
            [n_prompt, n_gen] if !text.contains('-') => Ok(Self { n_prompt, n_gen }),
            _ => Err("expected two numbers: prompt,generation".into()),
        }
    }
}

/// The values of one flag, or its default.
pub(super) fn numbers(lists: &[Numbers], default: u32) -> Vec<u32> {
    if lists.is_empty() {
        return vec![default];
    }
    lists
        .iter()
        .flat_map(|list| list.0.iter().copied())
        .collect()
}

/// `values`, if all are in `min..=max`.
pub(super) fn in_range(
    flag: &str,
    values: Vec<u32>,
    min: u32,
    max: usize,
) -> Result<Vec<u32>, UsageError> {
    match values.iter().find(|&&n| n < min || n as usize > max) {
        Some(value) => Err(UsageError(format!(
            "{flag} {value} is out of range: {min} to {max}"
        ))),
        None => Ok(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_as_llama_bench_reads_them() {
        let cases: [(&str, &[u32]); 8] = [
            ("512", &[512]),
            ("1,2,4", &[1, 2, 4]),
            ("1-4", &[1, 2, 3, 4]),
            ("0-1024+256", &[0, 256, 512, 768, 1024]),
            ("1-9*2", &[1, 2, 4, 8]),
            ("5-4", &[]),
            ("7,1-2,9", &[7, 1, 2, 9]),
            ("3-3*1", &[3]),
        ];
        for (text, expected) in cases {
            let found = Numbers::from_str(text).map(|list| list.0);
            if text == "3-3*1" {
                assert!(found.unwrap_err().contains("stays at 3"));
            } else {
                assert_eq!(found.unwrap(), expected, "{text}");
            }
        }
    }

    #[test]
    fn wrong_lists_are_named() {
        for text in [
            "",
            ",",
            "x",
            "1,",
            "-1",
            "1-",
            "1-2+",
            "1-2/2",
            "0-4*2",
            "1-4+0",
            "1-4*1",
            "+3",
            "99999999999",
            "16777217",
            "0-16777216",
            "1--2",
        ] {
            let error = Numbers::from_str(text).unwrap_err();
            assert!(!error.is_empty(), "{text}");
        }
        for text in ["1", "1,2,3", "1-2", "a,b", ""] {
            assert!(PromptGen::from_str(text).is_err(), "{text}");
        }
        let pair = PromptGen::from_str("512,128").unwrap();
        assert_eq!((pair.n_prompt, pair.n_gen), (512, 128));
    }
}

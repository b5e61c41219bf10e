//! Numbers as Python prints them.

use minijinja::Value;

/// A number as Python writes it: the shortest digits that parse to the same number, with an exponent
/// below 1e-4 and from 1e16.
pub(crate) fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(x) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    if !x.is_finite() {
        return x.to_string().to_lowercase();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if x != 0.0 && !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        // Display writes all digits, and no decimal point for integral values.
        _ => format!("{x:?}"),
    }
}

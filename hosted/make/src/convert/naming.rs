//! Names of a converted model.

use super::ConvertError;
use sluice_hf::{exists, read_text};
use std::path::Path;

/// A human-readable name from the folder's: separate words, each capitalised, except versions and
/// sizes (`tale-5.8m-hf` is `Tale 5.8m Hf`).
pub(super) fn title(folder: &Path) -> String {
    // "." and ".." do not name the folder.
    let path = folder.canonicalize();
    let path = path.as_deref().unwrap_or(folder);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.contains(' ') {
        return name.into_owned();
    }
    let words = name.split('-').filter(|word| !word.is_empty());
    let words = words.map(|word| {
        let is_lower =
            word.chars().any(char::is_lowercase) && !word.chars().any(char::is_uppercase);
        let rest = word.strip_prefix('v').unwrap_or(word);
        let is_number = rest.starts_with(|c: char| c.is_ascii_digit());
        match is_lower && !is_number {
            true => capitals(word),
            false => word.to_owned(),
        }
    });
    let title = words.collect::<Vec<_>>().join(" ");
    if title.is_empty() {
        "model".into()
    } else {
        title
    }
}

/// Capitalises each letter that follows a non-letter.
fn capitals(word: &str) -> String {
    let mut starts = true;
    let mut title = String::new();
    for c in word.chars() {
        match starts && c.is_alphabetic() {
            true => title.extend(c.to_uppercase()),
            false => title.push(c),
        }
        starts = !c.is_alphabetic();
    }
    title
}

/// A human-readable model size, such as `5.8M`, or `4x105K` with experts. `shared` counts the
/// weights outside the experts, `expert` the weights of one expert; `n_expert` may be 0.
pub(super) fn size_label(shared: u64, expert: u64, n_expert: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let n = (shared + expert) as f64;
    let (scaled, suffix) = match n {
        n if n > 1e12 => (n * 1e-12, "T"),
        n if n > 1e9 => (n * 1e-9, "B"),
        n if n > 1e6 => (n * 1e-6, "M"),
        n => (n * 1e-3, "K"),
    };
    let rounded = format!("{scaled:.0}");
    let digits = rounded.trim_start_matches('0').len();
    let label = format!("{scaled:.*}{suffix}", 2usize.saturating_sub(digits));
    match n_expert {
        0 => label,
        n => format!("{n}x{label}"),
    }
}

/// The licence that the model card's front matter names, if it is a plain word.
pub(super) fn license(folder: &Path) -> Result<Option<String>, ConvertError> {
    let path = folder.join("README.md");
    if !exists(&path) {
        return Ok(None);
    }
    let text = read_text(&path)?;
    let mut lines = text.lines();
    if lines.next() != Some("---") {
        return Ok(None);
    }
    let mut front = lines.take_while(|line| *line != "---");
    let value = front.find_map(|line| line.strip_prefix("license:"));
    let word = value.map(|value| value.trim().trim_matches(['"', '\'']));
    let is_plain = |word: &&str| !word.is_empty() && !word.starts_with(['[', '{', '|', '>']);
    Ok(word.filter(is_plain).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_titles() {
        for (name, expected) in [
            ("tale-5.8m-hf", "Tale 5.8m Hf"),
            ("qwen3moe", "Qwen3Moe"),
            ("Llama-3.2-1B-Instruct", "Llama 3.2 1B Instruct"),
            ("model-v2", "Model v2"),
            ("a model of mine", "a model of mine"),
        ] {
            assert_eq!(title(Path::new(name)), expected);
        }
    }

    #[test]
    fn sizes_have_two_digits() {
        for (shared, expert, n_expert, expected) in [
            (103_744, 0, 0, "104K"),
            (5_770_496, 0, 0, "5.8M"),
            (6_738_415_616, 0, 0, "6.7B"),
            (70_553_706_496, 0, 0, "71B"),
            (1_600_000_000, 5_600_000_000, 8, "8x7.2B"),
            (400, 0, 0, "0.40K"),
        ] {
            assert_eq!(size_label(shared, expert, n_expert), expected);
        }
    }
}

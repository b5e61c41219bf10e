//! Choosing the files of a repository.

use crate::glob::{glob, is_pattern};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Which files of a repository to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileChoice {
    /// The model in Q4_K_M, else in Q8_0, else the first one.
    Usual,
    /// The model whose file name contains this type, in any case.
    Quant(String),
    /// The file at this path in the repository. If it does not exist, the path is a case-sensitive pattern with `*`,
    /// `?` and `[…]` as in a shell (but `*` also matches slashes), which has to match one model.
    File(String),
    /// The files that `sluice convert` reads: safetensors, tokenizers and configurations.
    Folder,
}

/// The paths among `paths` that `choice` selects; the parts of a split model are in order.
///
/// # Errors
/// No file fits: a sentence that lists the available files.
pub(crate) fn choose<'p>(paths: &[&'p str], choice: &FileChoice) -> Result<Vec<&'p str>, String> {
    let models: Vec<_> = paths
        .iter()
        .copied()
        .filter(|path| is_model(path))
        .collect();
    let first = match choice {
        FileChoice::Folder => return folder(paths),
        FileChoice::File(path) => match paths.iter().copied().find(|there| there == path) {
            None if is_pattern(path) => Some(matching(paths, path)?),
            found => found,
        },
        FileChoice::Quant(_) | FileChoice::Usual => choice.of_models(&models),
    };
    let first = first.ok_or_else(|| missing(paths, &models, choice))?;
    parts(paths, first)
}

impl FileChoice {
    /// The one of `models`, paths of model files in a repository, that this selects by its type.
    #[must_use]
    pub fn of_models<'p>(&self, models: &[&'p str]) -> Option<&'p str> {
        let of = |quant: &str| models.iter().copied().find(|path| is_of(path, quant));
        match self {
            Self::Quant(quant) => of(quant),
            Self::Usual => USUAL
                .iter()
                .find_map(|quant| of(quant))
                .or_else(|| models.first().copied()),
            Self::File(_) | Self::Folder => None,
        }
    }
}

/// The file that `pattern` selects: the only match, or the only model among the matches.
fn matching<'p>(paths: &[&'p str], pattern: &str) -> Result<&'p str, String> {
    let matches = paths.iter().copied().filter(|path| glob(pattern, path));
    let all: Vec<_> = matches.collect();
    let mut models = all.iter().copied().filter(|path| is_model(path));
    match (&all[..], models.next(), models.next()) {
        (&[only], ..) | (_, Some(only), None) => Ok(only),
        ([], ..) => Err(format!("no file matches {pattern}; {}", there_is(paths))),
        _ => Err(format!("several files match {pattern}; {}", there_is(&all))),
    }
}

/// The default types, as with llama.cpp's `-hf`.
const USUAL: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Whether a file is a whole model, or the first part of one: not a projector, draft head or importance matrix.
pub(crate) fn is_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some(stem) = name.strip_suffix(".gguf") else {
        return false;
    };
    let is_part = OF_A_MODEL.iter().any(|word| name.contains(word));
    !is_part && split(stem).is_none_or(|(_, index, _)| index == 1)
}

/// Auxiliary files that llama.cpp loads together with a model.
const OF_A_MODEL: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

/// Whether `quant` is a word of the path, before a dot or a hyphen: `F16` does not match `model-BF16.gguf`.
fn is_of(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_ascii_uppercase(), quant.to_ascii_uppercase());
    path.match_indices(&quant).any(|(at, _)| {
        let before = path[..at].chars().next_back();
        let behind = path[at + quant.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && matches!(behind, Some('.' | '-' | '/'))
    })
}

/// Splits off `-00001-of-00003`; returns the name before it, 1 and 3.
pub(crate) fn split(stem: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, index) = rest.rsplit_once('-')?;
    let number = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    Some((name, number(index)?, number(count)?))
}

fn parts<'p>(paths: &[&'p str], first: &'p str) -> Result<Vec<&'p str>, String> {
    let of_split = first.strip_suffix(".gguf").and_then(split);
    let Some((name, _, count)) = of_split else {
        return Ok(vec![first]);
    };
    let part = |index| {
        let path = format!("{name}-{index:05}-of-{count:05}.gguf");
        let there = paths.iter().copied().find(|there| *there == path);
        there.ok_or_else(|| format!("{first} is one of {count} parts, but {path} is missing"))
    };
    (1..=count).map(part).collect()
}

/// The files that a conversion reads, without weights in other formats (PyTorch, ONNX, the author's own).
fn folder<'p>(paths: &[&'p str]) -> Result<Vec<&'p str>, String> {
    let is_wanted = |path: &&str| {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let ends = |end: &str| name.ends_with(end);
        match folder {
            "" => {
                ends(".safetensors")
                    || ends(".json")
                    || ends(".model")
                    || ends(".jinja")
                    || matches!(name, "merges.txt" | "vocab.txt")
            }
            // sentence-transformers: an encoder's pooling.
            folder => folder.ends_with("_Pooling") && name == "config.json",
        }
    };
    let wanted: Vec<_> = paths.iter().copied().filter(is_wanted).collect();
    if wanted.iter().any(|path| path.ends_with(".safetensors")) {
        return Ok(wanted);
    }
    Err(format!(
        "no .safetensors file in the root; {}",
        there_is(paths)
    ))
}

/// Checks that every file that the index of a folder's tensors names is among `paths`.
///
/// # Errors
/// A sentence that names the missing file, or the index that cannot be read.
pub(crate) fn shards_are_there(folder: &Path, paths: &[&str]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    for index in paths
        .iter()
        .filter(|path| path.ends_with(".safetensors.index.json"))
    {
        let text = fs::read_to_string(folder.join(index));
        let text = text.map_err(|error| format!("{index}: {error}"))?;
        let Index { weight_map } =
            serde_json::from_str(&text).map_err(|error| format!("{index}: {error}"))?;
        if let Some(shard) = weight_map
            .values()
            .find(|shard| !paths.contains(&shard.as_str()))
        {
            return Err(format!("{index} names {shard}, which is missing"));
        }
    }
    Ok(())
}

fn missing(paths: &[&str], models: &[&str], choice: &FileChoice) -> String {
    match choice {
        FileChoice::File(path) => format!("no file {path}; {}", there_is(paths)),
        FileChoice::Quant(quant) if !models.is_empty() => {
            format!("no model in {quant}; {}", there_is(models))
        }
        _ if paths.iter().any(|path| path.ends_with(".safetensors")) => {
            let fetch =
                "download its safetensors with --folder and convert them with `sluice convert`";
            format!("no GGUF model; {fetch}")
        }
        _ => format!("no GGUF model; {}", there_is(paths)),
    }
}

/// The first few names, so that the message fits a line.
fn there_is(paths: &[&str]) -> String {
    match paths {
        [] => String::from("the repository is empty"),
        few if few.len() <= NAMES_SHOWN => format!("available: {}", few.join(", ")),
        many => {
            let shown = many[..NAMES_SHOWN].join(", ");
            format!("available: {shown} and {} more", many.len() - NAMES_SHOWN)
        }
    }
}

const NAMES_SHOWN: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 9] = [
        "README.md",
        "m-BF16.gguf",
        "m-F16.gguf",
        "m-IQ4_NL.gguf",
        "m-Q8_0.gguf",
        "mmproj-Q4_K_M.gguf",
        "big/m-Q4_K_M-00001-of-00002.gguf",
        "big/m-Q4_K_M-00002-of-00002.gguf",
        "UD/m-UD-Q2_K_XL.gguf",
    ];

    fn quant(name: &str) -> Result<Vec<&'static str>, String> {
        choose(&FILES, &FileChoice::Quant(name.to_owned()))
    }

    #[test]
    fn a_type_is_a_word_of_the_name() {
        assert_eq!(quant("f16").unwrap(), ["m-F16.gguf"]);
        assert_eq!(quant("bf16").unwrap(), ["m-BF16.gguf"]);
        assert_eq!(quant("UD-Q2_K_XL").unwrap(), ["UD/m-UD-Q2_K_XL.gguf"]);
        assert_eq!(quant("q2_k_xl").unwrap(), ["UD/m-UD-Q2_K_XL.gguf"]);
        let error = quant("Q2_K").unwrap_err();
        assert!(
            error.contains("no model in Q2_K; available: m-BF16.gguf"),
            "{error}"
        );
        assert!(
            !error.contains("README") && !error.contains("mmproj"),
            "{error}"
        );
    }

    #[test]
    fn the_usual_one_with_all_its_parts() {
        let usual = choose(&FILES, &FileChoice::Usual).unwrap();
        assert_eq!(usual, FILES[6..8]);
        assert_eq!(
            choose(&FILES[..6], &FileChoice::Usual).unwrap(),
            ["m-Q8_0.gguf"]
        );
        assert_eq!(
            choose(&FILES[..4], &FileChoice::Usual).unwrap(),
            ["m-BF16.gguf"]
        );
        let error = choose(&FILES[..7], &FileChoice::Usual).unwrap_err();
        assert!(error.contains("00002-of-00002.gguf is missing"), "{error}");
    }

    #[test]
    fn a_file_by_name() {
        let file = |path: &str| choose(&FILES, &FileChoice::File(path.to_owned()));
        assert_eq!(file("mmproj-Q4_K_M.gguf").unwrap(), ["mmproj-Q4_K_M.gguf"]);
        assert_eq!(file(FILES[7]).unwrap(), FILES[6..8]);
        assert!(file("no.gguf").unwrap_err().contains("no file no.gguf"));
    }

    #[test]
    fn a_pattern_means_one_model() {
        let file = |path: &str| choose(&FILES, &FileChoice::File(path.to_owned()));
        assert_eq!(file("*Q8_0.gguf").unwrap(), ["m-Q8_0.gguf"]);
        assert_eq!(file("m-I*").unwrap(), ["m-IQ4_NL.gguf"]);
        // A star also matches slashes, one part selects all parts, and auxiliary files do not count as models.
        assert_eq!(file("*Q4_K_M*").unwrap(), FILES[6..8]);
        assert_eq!(file("*-00002-of-*").unwrap(), FILES[6..8]);
        assert_eq!(file("mm*Q4_K_M.gguf").unwrap(), ["mmproj-Q4_K_M.gguf"]);
        for (pattern, what) in [
            (
                "*q8_0.gguf",
                "no file matches *q8_0.gguf; available: README.md",
            ),
            (
                "*F16*",
                "several files match *F16*; available: m-BF16.gguf, m-F16.gguf",
            ),
        ] {
            let error = file(pattern).unwrap_err();
            assert!(error.starts_with(what), "{error}");
        }
    }

    #[test]
    fn a_folder_to_convert() {
        let paths = [
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "onnx/config.json",
            "1_Pooling/config.json",
            "tokenizer.model",
            "README.md",
        ];
        let chosen = choose(&paths, &FileChoice::Folder).unwrap();
        let expected = [paths[0], paths[1], paths[5], paths[6]];
        assert_eq!(chosen, expected);
        let error = choose(&paths, &FileChoice::Usual).unwrap_err();
        assert!(error.contains("--folder"), "{error}");
        assert!(choose(&FILES, &FileChoice::Folder).is_err());
    }
}

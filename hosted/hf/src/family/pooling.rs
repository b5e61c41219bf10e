//! How an encoder pools its token embeddings, as sentence-transformers describes it: `modules.json`
//! names a folder (`1_Pooling`) whose `config.json` gives the mode.

use super::Family;
use super::description::Description;
use crate::HfError;
use crate::config::Config;
use crate::files::{exists, read_json, read_object_if_there};
use crate::unread::warn_of_rest;
use serde_json::Value;
use std::path::Path;

/// Writes the pooling mode, if the folder is a sentence-transformers model.
pub(super) fn write(out: &mut Description<'_>) -> Result<(), HfError> {
    if let Some(pooling) = read(out.folder, out.family, out.warnings)? {
        out.set("pooling_type", pooling);
    }
    Ok(())
}

/// GGUF's number for the pooling mode; `None` if the folder is not a sentence-transformers model.
fn read(
    folder: &Path,
    family: &Family,
    warnings: &mut Vec<String>,
) -> Result<Option<u32>, HfError> {
    let path = folder.join("modules.json");
    if !exists(&path) {
        // The usual folder, in case the list was not downloaded.
        let usual = folder.join("1_Pooling/config.json");
        return exists(&usual)
            .then(|| read_mode(&usual, warnings))
            .transpose();
    }
    let modules: Vec<Value> = read_json(&path)?;
    let mut mode = None;
    for module in &modules {
        let text = |key| module.get(key).and_then(Value::as_str).unwrap_or_default();
        let class = text("type").rsplit('.').next().unwrap_or_default();
        match class {
            // Normalize only scales the vector: cosines do not change, and `sluice embed`
            // normalises anyway.
            "Transformer" | "Normalize" => {}
            "Dense" if family.has_dense() => {}
            "Pooling" if !text("path").contains("..") => {
                mode = Some(read_mode(
                    &folder.join(text("path")).join("config.json"),
                    warnings,
                )?);
            }
            other => {
                return Err(HfError::Config {
                    path,
                    key: format!("module {other:?}"),
                    what: format!(
                        "changes the embeddings, which {} in GGUF cannot express",
                        family.architecture
                    ),
                });
            }
        }
    }
    let path = folder.join("sentence_bert_config.json");
    let about = Config::new(&path, read_object_if_there(&path)?);
    warn_of_rest(
        &about,
        &["max_seq_length", "model_args", "tokenizer_args"],
        warnings,
    );
    if about.bool("do_lower_case") == Some(true) {
        let what = "is true, but in GGUF the tokenizer's own setting applies";
        return Err(about.error(&["do_lower_case"], what));
    }
    Ok(mode)
}

fn read_mode(path: &Path, warnings: &mut Vec<String>) -> Result<u32, HfError> {
    let config = Config::new(path, read_json(path)?);
    let modes = [
        ("pooling_mode_mean_tokens", "mean", Some(1)),
        ("pooling_mode_cls_token", "cls", Some(2)),
        ("pooling_mode_lasttoken", "lasttoken", Some(3)),
        ("pooling_mode_max_tokens", "max", None),
        (
            "pooling_mode_mean_sqrt_len_tokens",
            "mean_sqrt_len_tokens",
            None,
        ),
        ("pooling_mode_weightedmean_tokens", "weightedmean", None),
    ];
    let name = config.str("pooling_mode");
    let chosen: Vec<_> = modes
        .iter()
        .filter(|(key, short, _)| config.bool(key) == Some(true) || name == Some(short))
        .collect();
    warn_of_rest(
        &config,
        &["word_embedding_dimension", "embedding_dimension"],
        warnings,
    );
    match chosen.as_slice() {
        [(_, _, Some(number))] => Ok(*number),
        [] => Err(config.error(&["pooling_mode"], "is not one of mean, cls and lasttoken")),
        several => {
            let names: Vec<_> = several.iter().map(|(_, short, _)| *short).collect();
            let what = format!(
                "is {}; GGUF supports only one of mean, cls and lasttoken",
                names.join(" and ")
            );
            Err(config.error(&["pooling_mode"], &what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::FAMILIES;
    use super::*;
    use std::fs;

    /// The pooling mode read from a folder with these files, or the error.
    fn found(name: &str, files: &[(&str, &str)]) -> Result<Option<u32>, String> {
        let id = std::process::id();
        let folder = std::env::temp_dir().join(format!("sluice-pooling-{id}-{name}"));
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let family = FAMILIES.iter().find(|family| family.architecture == "bert");
        let family = family.expect("bert is a family");
        let found = read(&folder, family, &mut Vec::new()).map_err(|error| error.to_string());
        let _removed = fs::remove_dir_all(&folder);
        found
    }

    #[test]
    fn modes_by_name_and_by_flags() {
        let modules = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "pool", "type": "sentence_transformers.models.Pooling"}]"#;
        for (name, config, expected) in [
            ("mean", r#"{"pooling_mode_mean_tokens": true}"#, 1),
            (
                "cls",
                r#"{"pooling_mode_cls_token": true, "pooling_mode_max_tokens": false}"#,
                2,
            ),
            ("last", r#"{"pooling_mode": "lasttoken"}"#, 3),
        ] {
            let files = [("modules.json", modules), ("pool/config.json", config)];
            assert_eq!(found(name, &files), Ok(Some(expected)), "{name}");
            // Without the list, by the usual name.
            let files = [("1_Pooling/config.json", config)];
            assert_eq!(found(name, &files), Ok(Some(expected)), "{name}");
        }
        assert_eq!(found("none", &[("config.json", "{}")]), Ok(None));
    }

    #[test]
    fn what_has_no_place_is_refused() {
        let two = r#"{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}"#;
        for (name, config, word) in [
            ("two", two, "mean and max"),
            ("max", r#"{"pooling_mode": "max"}"#, "max"),
            ("no", "{}", "not one of"),
        ] {
            let error = found(name, &[("1_Pooling/config.json", config)]);
            let error = error.expect_err(name);
            assert!(error.contains(word), "{error}");
        }
        let dense = r#"[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]"#;
        let error = found("dense", &[("modules.json", dense)]).expect_err("another layer");
        assert!(error.contains("Dense"), "{error}");
    }
}

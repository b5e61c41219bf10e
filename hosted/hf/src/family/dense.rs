//! Matrices after the pooling of an encoder, which sentence-transformers stores in separate folders.

use crate::HfError;
use crate::config::Config;
use crate::files::{exists, read_json};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// One matrix.
#[derive(Clone, Debug)]
pub struct Dense {
    /// GGUF's name: `dense_2` or `dense_3`.
    pub name: &'static str,
    /// The file of its weights.
    pub weights: PathBuf,
    /// Columns.
    pub n_in: u32,
    /// Rows.
    pub n_out: u32,
}

/// Reads the matrices that `modules.json` lists.
///
/// # Errors
/// A module that does more than multiply, or a name other than these two.
pub fn read(folder: &Path) -> Result<Vec<Dense>, HfError> {
    let path = folder.join("modules.json");
    let modules: Vec<Value> = match exists(&path) {
        true => read_json(&path)?,
        false => return Ok(Vec::new()),
    };
    let mut all = Vec::new();
    for module in &modules {
        let text = |key| module.get(key).and_then(Value::as_str).unwrap_or_default();
        if !text("type").ends_with("Dense") {
            continue;
        }
        let at = text("path");
        let name = match at {
            "2_Dense" => "dense_2",
            "3_Dense" => "dense_3",
            _ => {
                let what = format!("is in {at:?}; GGUF supports only 2_Dense and 3_Dense");
                let key = "Dense".into();
                return Err(HfError::Config { path, key, what });
            }
        };
        let about_path = folder.join(at).join("config.json");
        let about = Config::new(&about_path, read_json(&about_path)?);
        let activation = about.str("activation_function").unwrap_or_default();
        if !activation.is_empty() && !activation.ends_with(".Identity") {
            let what = format!("is {activation:?}, which GGUF cannot express");
            return Err(about.error(&["activation_function"], &what));
        }
        if about.bool("bias") == Some(true) {
            return Err(about.error(&["bias"], "is true, which GGUF cannot express"));
        }
        all.push(Dense {
            name,
            weights: folder.join(at).join("model.safetensors"),
            n_in: about.count(&["in_features"])?,
            n_out: about.count(&["out_features"])?,
        });
    }
    Ok(all)
}

//! Settings of `adapter_config.json` that only a merge applies.

use crate::config::{Config, whole};
use crate::unread::short;
use serde_json::Value;
use sluice::adapter::AdapterLoadError;

/// What a merge applies in addition to matrices.
#[derive(Debug)]
pub(super) struct MergeSettings {
    /// Modules that were trained as a whole, by the ends of their names.
    saved: Vec<String>,
    /// Trained rows of embeddings, by the ends of their names; the token embedding's have none.
    rows: Vec<RowsOf>,
    pub(super) uses_dora: bool,
    pub(super) start: Option<AdapterStart>,
}

/// Trained rows of a module.
#[derive(Debug)]
struct RowsOf {
    module: Option<String>,
    rows: Vec<u64>,
}

/// What an initialisation took out of the model's matrices, so that the first product restores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterStart {
    /// The largest singular values and their vectors.
    Pissa,
    /// The first columns of Q and rows of R.
    Olora,
}

impl AdapterStart {
    /// The initialisation, if it follows from the model's weights alone.
    pub(super) fn of(config: &Config) -> Option<Self> {
        let name = config.str("init_lora_weights")?.to_lowercase();
        match name.as_str() {
            "olora" => Some(Self::Olora),
            "pissa" => Some(Self::Pissa),
            _ => None,
        }
    }
}

impl MergeSettings {
    pub(super) fn read(config: &Config) -> Result<Self, AdapterLoadError> {
        let (key, known) = ("bias", ["none", "all", "lora_only"]);
        let is_known = |value: &Value| value.as_str().is_some_and(|text| known.contains(&text));
        if let Some(other) = config.find(&[key]).filter(|value| !is_known(value)) {
            let what = format!("is {}, not one of {}", short(other), known.join(", "));
            return Err(config.error(&[key], &what).into());
        }
        // The tensors show whether there are such biases.
        flag(config, "lora_bias")?;
        let saved = config.texts("modules_to_save")?.unwrap_or_default();
        Ok(Self {
            saved: saved.into_iter().map(str::to_owned).collect(),
            rows: rows(config)?,
            uses_dora: flag(config, "use_dora")?,
            start: AdapterStart::of(config),
        })
    }

    /// Whether a module was trained as a whole, apart from what is tied to it.
    pub(super) fn saves(&self, module: &str) -> bool {
        self.saved.iter().any(|end| module.ends_with(end.as_str()))
    }

    /// The trained rows of a module.
    pub(super) fn rows(&self, module: &str, is_embedding: bool) -> Option<&[u64]> {
        let found = self.rows.iter().find(|own| match &own.module {
            Some(end) => module.ends_with(end.as_str()),
            None => is_embedding,
        });
        found.map(|own| &*own.rows)
    }

    /// Whether several modules have the same trained rows, or only one has any: tied ones then share them.
    pub(super) fn has_equal_rows(&self) -> bool {
        self.rows
            .windows(2)
            .all(|pair| pair[0].rows == pair[1].rows)
    }
}

/// A setting that is true or false; false by default.
pub(super) fn flag(config: &Config, key: &str) -> Result<bool, AdapterLoadError> {
    match config.find(&[key]) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => {
            let what = format!("is {}, not true or false", short(other));
            Err(config.error(&[key], &what).into())
        }
    }
}

/// `trainable_token_indices`: a list for the token embedding, or an object of lists by module.
fn rows(config: &Config) -> Result<Vec<RowsOf>, AdapterLoadError> {
    let key = "trainable_token_indices";
    let list =
        |value: &Value| -> Option<Vec<u64>> { value.as_array()?.iter().map(whole).collect() };
    let found = match config.find(&[key]) {
        None => Some(Vec::new()),
        Some(Value::Object(map)) => map
            .iter()
            .map(|(module, value)| {
                let module = Some(module.clone());
                list(value).map(|rows| RowsOf { module, rows })
            })
            .collect(),
        Some(value) => list(value).map(|rows| vec![RowsOf { module: None, rows }]),
    };
    found.ok_or_else(|| {
        let what = "is not a list of tokens, or an object of such lists";
        config.error(&[key], what).into()
    })
}

//! Finding the sizes of the model that an adapter is for.

use crate::base::Base;
use sluice::adapter::AdapterLoadError;
use sluice::file::ModelFile;
use std::path::{Path, PathBuf};

/// Sources that may give the model's sizes.
#[derive(Clone, Copy, Debug)]
pub struct BaseHints<'h> {
    /// The adapter's own folder.
    pub folder: &'h Path,
    /// The model's folder, if the caller gave one.
    pub base: Option<&'h Path>,
    /// The model's name or folder, as the adapter states it.
    pub named: Option<&'h str>,
    /// The model's GGUF file.
    pub model: Option<&'h ModelFile>,
}

impl BaseHints<'_> {
    /// The possible models, the likeliest first; never empty. `names` are the adapted tensors.
    ///
    /// # Errors
    /// [`AdapterLoadError`]; [`AdapterLoadError::NoBase`] if nothing gives the sizes.
    pub fn bases(&self, names: &[String]) -> Result<Vec<Base>, AdapterLoadError> {
        if let Some(base) = self.base {
            return Ok(vec![Base::of_folder(base, names)?]);
        }
        // The model in use takes precedence over the adapter's own statements.
        let of_model = self.model.map(|model| {
            let parsed = model.parse()?;
            Ok::<_, AdapterLoadError>(Base::of_gguf(Path::new(model.name()), &parsed))
        });
        if let Some(bases) = of_model.transpose()?.filter(|bases| !bases.is_empty()) {
            return Ok(bases);
        }
        if let Some(folder) = self.config_folder() {
            return Ok(vec![Base::of_folder(&folder, names)?]);
        }
        let error = |what| AdapterLoadError::NoBase {
            path: self.folder.display().to_string(),
            what,
        };
        if let Some(model) = self.model {
            return Err(error(format!(
                "{} does not describe the model completely: give its folder (--base DIR, its config.json is enough)",
                model.name()
            )));
        }
        let named = match self.named {
            Some(name) => format!("the adapter is for {name:?}, which is not a folder here"),
            None => "the adapter does not name its model".into(),
        };
        let how = "give the model's folder (--base DIR, its config.json is enough) or its GGUF file (-m FILE)";
        Err(error(format!("{named}: {how}")))
    }

    /// A folder with `config.json`: the one the adapter names, or its own.
    fn config_folder(&self) -> Option<PathBuf> {
        let has_config = |folder: &PathBuf| folder.join("config.json").is_file();
        let named = self.named.map(PathBuf::from).filter(has_config);
        named.or_else(|| Some(self.folder.to_path_buf()).filter(has_config))
    }
}

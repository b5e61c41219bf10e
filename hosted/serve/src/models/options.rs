//! Options: which models to serve, and how to run them.

use crate::adapters::AdaptersOptions;
use crate::api::ApiError;
use core::time::Duration;
use sluice::Limits;
use sluice::draft::SpeculationSetup;
use sluice::experts::ExpertOptions;
use sluice::file::LoadMode;
use sluice::model::{ModelSource, OpenError};
use sluice_core::pooling::Pooling;
use std::path::{Path, PathBuf};

/// A model named on the command line.
#[derive(Clone, Debug)]
pub struct NamedModel {
    /// The name that requests use; `None` for the file's name.
    pub alias: Option<String>,
    /// The file.
    pub path: PathBuf,
}

/// Which models to serve, and how to run them.
#[derive(Clone, Debug)]
pub struct ModelsOptions {
    /// Models to load at the start, up to `max`.
    pub named: Vec<NamedModel>,
    /// A folder of models, each loaded on first use.
    pub folder: Option<PathBuf>,
    /// Whether a request for a model that does not exist is answered by the first one; false by default.
    pub any_name: bool,
    /// Maximum number of models in memory; 4 by default, 0 for no limit.
    pub max: usize,
    /// How long a model may keep its place while another waits for it, before its texts are parked; 60 s by default.
    pub turn: Duration,
    /// The limits of each model; 4 texts at once by default.
    pub limits: Limits,
    /// Whether older tokens are dropped when the context is full, unless a request overrides it; false by default.
    pub context_shift: bool,
    /// Whether files are mapped (the default) or read.
    pub load_mode: LoadMode,
    /// Whether tables stay in the file, as [`LoadOptions::tables_stay`](sluice::model::LoadOptions::tables_stay).
    pub tables_stay: bool,
    /// Whether all weights are checked first.
    pub check_tensors: bool,
    /// A template's name or source, which replaces the one in the file.
    pub chat_template: Option<String>,
    /// How token vectors become an embedding, instead of the file's setting.
    pub pooling: Option<Pooling>,
    /// Adapters of the models.
    pub adapters: AdaptersOptions,
    /// How to speculate; `None` disables speculation. A draft model drafts for the first named model.
    pub speculation: Option<SpeculationSetup>,
    /// How to read experts that stay on disk; `None` if all weights are in memory. Folders of copies, the profile and
    /// the trace belong to the first named model.
    pub experts: Option<ExpertOptions>,
}

impl Default for ModelsOptions {
    fn default() -> Self {
        Self {
            named: Vec::new(),
            folder: None,
            any_name: false,
            max: 4,
            turn: Duration::from_secs(60),
            limits: Limits {
                n_seq: 4,
                ..Limits::default()
            },
            context_shift: false,
            load_mode: LoadMode::Map,
            tables_stay: false,
            check_tensors: false,
            chat_template: None,
            pooling: None,
            adapters: AdaptersOptions::default(),
            speculation: None,
            experts: None,
        }
    }
}

impl ModelsOptions {
    /// Opens the files that a server starts with, and checks their headers: the models to load at the start, and the
    /// draft model.
    ///
    /// # Errors
    /// A file is missing, or its header is invalid.
    pub(crate) fn open(&self) -> Result<Vec<ModelSource>, OpenError> {
        let draft = self.speculation.as_ref().and_then(|all| all.draft.as_ref());
        if let Some(draft) = draft {
            ModelSource::open(&draft.path, draft.load_mode)?;
        }
        let named = self.named.iter().take(self.eager_max());
        named
            .map(|named| ModelSource::open(&named.path, self.load_mode))
            .collect()
    }

    /// Maximum number of models to load at the start.
    pub(super) const fn eager_max(&self) -> usize {
        match self.max {
            0 => usize::MAX,
            max => max,
        }
    }
}

/// A model's name, other names of it, and its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) others: Vec<String>,
    pub(super) path: PathBuf,
    /// Whether it is loaded at the start.
    pub(super) eager: bool,
}

/// All models, named ones first.
pub(super) fn listed(options: &ModelsOptions) -> std::io::Result<Vec<Listed>> {
    let mut all: Vec<Listed> = Vec::new();
    for named in &options.named {
        let names = named.alias.as_deref().unwrap_or_default().split(',');
        let mut names = names.map(str::trim).filter(|name| !name.is_empty());
        let stem = stem(&named.path);
        let name = names.next().map_or_else(|| stem.clone(), str::to_owned);
        let mut others: Vec<_> = names.map(str::to_owned).collect();
        others.push(stem);
        others.extend(
            named
                .path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
        );
        others.push(named.path.to_string_lossy().into_owned());
        all.push(Listed {
            name,
            others,
            path: named.path.clone(),
            eager: true,
        });
    }
    if let Some(folder) = &options.folder {
        all.extend(in_folder(folder)?);
    }
    if let Some(twice) = all.iter().enumerate().find_map(|(i, model)| {
        let is_same = |other: &&Listed| other.name == model.name;
        all[..i].iter().find(is_same)
    }) {
        let message = format!("two models are named {:?}", twice.name);
        return Err(std::io::Error::other(message));
    }
    Ok(all)
}

/// All model files directly in a folder, sorted by name.
fn in_folder(folder: &Path) -> std::io::Result<Vec<Listed>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_model = path
            .extension()
            .is_some_and(|end| end == "gguf" || end == "slc");
        if is_model && path.is_file() && !is_later_part(&path) {
            found.push(Listed {
                name: stem(&path),
                others: path
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned())
                    .into_iter()
                    .collect(),
                path,
                eager: false,
            });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    // A packed file takes precedence over the one it was made from.
    found.dedup_by(|later, kept| {
        let is_same = later.name == kept.name;
        if is_same && later.path.extension().is_some_and(|end| end == "slc") {
            core::mem::swap(later, kept);
        }
        is_same
    });
    Ok(found)
}

/// Whether it is part of a split model, but not the first part.
fn is_later_part(path: &Path) -> bool {
    let stem = stem(path);
    let Some((rest, _)) = stem.rsplit_once("-of-") else {
        return false;
    };
    rest.rsplit_once('-')
        .is_some_and(|(_, n)| n.len() == 5 && n.parse().is_ok_and(|n: u32| n > 1))
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

/// The number of the model called `name` in `all`.
pub(super) fn find(all: &[Listed], name: Option<&str>) -> Result<usize, ApiError> {
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return if all.is_empty() {
            Err(ApiError::unavailable("no model is given"))
        } else {
            Ok(0)
        };
    };
    let by_name = all.iter().position(|model| model.name == name);
    let by_other = || {
        all.iter()
            .position(|model| model.others.iter().any(|other| other == name))
    };
    by_name.or_else(by_other).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|model| &*model.name).collect();
        ApiError::no_model(name, &names)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(alias: Option<&str>, path: &str) -> NamedModel {
        NamedModel {
            alias: alias.map(str::to_owned),
            path: path.into(),
        }
    }

    fn options(named: Vec<NamedModel>, folder: Option<PathBuf>) -> ModelsOptions {
        ModelsOptions {
            named,
            folder,
            ..ModelsOptions::default()
        }
    }

    #[test]
    fn models_have_several_names() {
        let models = vec![named(None, "/m/a.gguf"), named(Some("b,c"), "/m/x.slc")];
        let all = listed(&options(models, None)).unwrap();
        for (name, expected) in [
            (None, 0),
            (Some(""), 0),
            (Some("a"), 0),
            (Some("a.gguf"), 0),
            (Some("/m/a.gguf"), 0),
            (Some("b"), 1),
            (Some("c"), 1),
            (Some("x"), 1),
        ] {
            assert_eq!(find(&all, name).unwrap(), expected, "{name:?}");
        }
        let error = find(&all, Some("gpt-4")).unwrap_err();
        assert_eq!(error.kind, crate::api::ErrorKind::NotFound);
        let twice = vec![named(Some("a"), "/m/a.gguf"), named(Some("a"), "/m/b.gguf")];
        assert!(listed(&options(twice, None)).is_err());
    }

    #[test]
    fn a_folder_gives_the_models_that_lie_in_it() {
        let folder = std::env::temp_dir().join(format!("sluice-models-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        for name in [
            "b.gguf",
            "a.slc",
            "b.slc",
            "notes.txt",
            "sub/c.gguf",
            "d-00001-of-00002.gguf",
            "d-00002-of-00002.gguf",
        ] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let all = listed(&options(Vec::new(), Some(folder.clone()))).unwrap();
        let found: Vec<_> = all
            .iter()
            .map(|m| (&*m.name, m.path.extension().unwrap().to_str().unwrap()))
            .collect();
        assert_eq!(
            found,
            [("a", "slc"), ("b", "slc"), ("d-00001-of-00002", "gguf")]
        );
        std::fs::remove_dir_all(folder).unwrap();
    }
}

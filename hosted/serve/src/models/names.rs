//! The names of models.

use super::options::Listed;
use super::roster::Roster;
use crate::api::{ApiError, LATEST};
use sluice_pull::PullRequest;

/// The number of the model called `name` in `all`.
pub(super) fn find(all: &Roster<Listed>, name: Option<&str>) -> Result<usize, ApiError> {
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        let first = offered(all).next();
        return first
            .map(|(index, _)| index)
            .ok_or_else(|| ApiError::unavailable(NO_MODEL));
    };
    let first = |is_it: &dyn Fn(&Listed) -> bool| {
        let mut all = offered(all);
        all.find(|(_, model)| is_it(model)).map(|(index, _)| index)
    };
    let by_name = |name: &str| first(&|model| model.name == name);
    let by_other = |name: &str| first(&|model| model.others.iter().any(|other| other == name));
    let of = |name: &str| by_name(name).or_else(|| by_other(name));
    // Ollama's clients name each model's usual variant, and the place of models from Hugging Face.
    let plain = name.strip_suffix(LATEST).unwrap_or(name);
    let of_hub = || {
        let name = plain.strip_prefix(HUB)?;
        let by_name = first(&|model| model.name.eq_ignore_ascii_case(name));
        by_name.or_else(|| by_type(all, name))
    };
    let usual = || of(plain).or_else(of_hub);
    of(name).or_else(usual).ok_or_else(|| {
        let names: Vec<_> = offered(all).map(|(_, model)| &*model.name).collect();
        ApiError::no_model(name, &names)
    })
}

/// The models that requests may name, with their numbers.
pub(super) fn offered(all: &Roster<Listed>) -> impl Iterator<Item = (usize, &Listed)> {
    let all = all.iter().enumerate();
    all.filter(|(_, model)| !model.is_withdrawn)
}

/// The model that a download of `USER/NAME[:TYPE]` would choose among those that are there.
fn by_type(all: &Roster<Listed>, name: &str) -> Option<usize> {
    let asked = PullRequest::parse(name).ok()?;
    let files = offered(all).filter_map(|(index, model)| {
        let hub = model.hub.as_ref()?;
        let is_of_repo = hub.repo.eq_ignore_ascii_case(asked.repo.as_str());
        is_of_repo.then_some((index, &*hub.file))
    });
    let files: Vec<_> = files.collect();
    let paths: Vec<_> = files.iter().map(|&(_, file)| file).collect();
    let chosen = asked.choice.of_models(&paths)?;
    let found = files.iter().find(|&&(_, file)| file == chosen);
    found.map(|&(index, _)| index)
}

/// Whether a list of models that names `listed` means the model called `name`. With `hf.co/` before either, the other
/// form is meant, too, in any case of the letters; without a type, all models of the repository.
pub(crate) fn means(listed: &str, name: &str) -> bool {
    let (bare, plain) = (listed.strip_prefix(HUB), name.strip_prefix(HUB));
    if bare.is_none() && plain.is_none() {
        return listed == name;
    }
    let (listed, name) = (bare.unwrap_or(listed), plain.unwrap_or(name));
    let repo = name.split_once(':').map_or(name, |(repo, _)| repo);
    let is_repo = bare.is_some() && !listed.contains(':');
    listed.eq_ignore_ascii_case(name) || is_repo && listed.eq_ignore_ascii_case(repo)
}

/// What Ollama's clients begin names of models from Hugging Face with.
const HUB: &str = "hf.co/";
const NO_MODEL: &str = "the server has no model: start it with -m FILE, or download one with `sluice pull` and start it again";

#[cfg(test)]
mod tests {
    use super::super::options::{ModelsOptions, NamedModel, listed};
    use super::*;
    use crate::Log;
    use std::path::PathBuf;
    use std::sync::Arc;

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

    fn quiet() -> Log {
        Arc::new(|_: &str| {})
    }

    #[test]
    fn models_of_the_hub_are_found_as_a_download_chooses_them() {
        let place = |file: &str| format!("/c/models--u--m/snapshots/0123/{file}");
        let models = vec![
            named(None, &place("m-F16.gguf")),
            named(Some("u/m:Q8_0"), &place("m-Q8_0.gguf")),
            named(
                Some("u/n:Q4_0"),
                "/c/models--u--n/snapshots/45/small-Q4_0.gguf",
            ),
        ];
        let all = Roster::new(listed(&options(models, None), &quiet()).unwrap());
        for (name, expected) in [
            ("hf.co/u/m", Some(1)),
            ("hf.co/U/M:latest", Some(1)),
            ("hf.co/u/m:f16", Some(0)),
            ("hf.co/u/m:Q4_K_M", None),
            ("hf.co/u/n:small", Some(2)),
            ("hf.co/u/n", Some(2)),
            ("hf.co/u/o", None),
            ("u/m", None),
        ] {
            assert_eq!(find(&all, Some(name)).ok(), expected, "{name}");
        }
    }

    #[test]
    fn lists_of_models_may_have_either_name_of_the_hub() {
        for (listed, name, expected) in [
            ("u/m:Q8_0", "hf.co/u/m:q8_0", true),
            ("hf.co/u/m:Q8_0", "u/m:Q8_0", true),
            ("hf.co/u/m", "u/m:Q8_0", true),
            ("hf.co/u/m", "hf.co/u/m", true),
            ("u/m", "u/m:Q8_0", false),
            ("hf.co/u/m", "u/mm:Q8_0", false),
            ("u/m:q8_0", "u/m:Q8_0", false),
            ("hf.co/u/m:Q4_0", "u/m:Q8_0", false),
            ("tale", "tale", true),
        ] {
            assert_eq!(means(listed, name), expected, "{listed} {name}");
        }
    }

    #[test]
    fn an_offered_model_whose_name_is_taken_is_left_out() {
        let mut options = options(vec![named(Some("a"), "/m/a.gguf")], None);
        options.offered = vec![
            named(Some("a"), "/m/b.gguf"),
            named(Some("u/a:Q4_0"), "/m/a.gguf"),
            named(Some("c"), "/m/c.gguf"),
        ];
        let all = Roster::new(listed(&options, &quiet()).unwrap());
        assert_eq!(all.len(), 2);
        assert_eq!(find(&all, Some("u/a:Q4_0")).unwrap(), 0);
        assert_eq!(find(&all, Some("c")).unwrap(), 1);
    }

    #[test]
    fn models_have_several_names() {
        let models = vec![
            named(None, "/m/a.gguf"),
            named(Some("b,c"), "/m/x.slc"),
            named(Some("u/m:Q4_0"), "/m/y.gguf"),
        ];
        let all = Roster::new(listed(&options(models, None), &quiet()).unwrap());
        for (name, expected) in [
            (None, 0),
            (Some(""), 0),
            (Some("a"), 0),
            (Some("a:latest"), 0),
            (Some("a.gguf"), 0),
            (Some("/m/a.gguf"), 0),
            (Some("b"), 1),
            (Some("c"), 1),
            (Some("x"), 1),
            (Some("hf.co/u/m:q4_0"), 2),
            (Some("hf.co/u/m:Q4_0:latest"), 2),
        ] {
            assert_eq!(find(&all, name).unwrap(), expected, "{name:?}");
        }
        let error = find(&all, Some("gpt-4")).unwrap_err();
        assert_eq!(error.kind, crate::api::ErrorKind::NotFound);
        let twice = vec![named(Some("a"), "/m/a.gguf"), named(Some("a"), "/m/b.gguf")];
        assert!(listed(&options(twice, None), &quiet()).is_err());
    }
}

//! Which models are served, and how they are run.

use super::args::ServeArgs;
use super::each::{named, of_a_model};
use super::presets::{Presets, Reading, presets};
use crate::outcome::UsageError;
use crate::ui::output::note;
use core::time::Duration;
use sluice::core::kernels::KernelTable;
use sluice_pull::{Cache, CachedModel};
use sluice_serve::{
    AdaptersOptions, ModelLists, ModelPreset, ModelsOptions, NamedModel, ReadLists,
};
use std::sync::Arc;

/// The models of the flags. Without any, those of the cache, as llama-server offers them.
pub(super) fn models(
    args: &ServeArgs,
    table: &'static KernelTable,
) -> anyhow::Result<ModelsOptions> {
    let mut named: Vec<_> = args.model.iter().map(|text| named(text)).collect();
    if let Some(request) = args.hub.repo()? {
        let path = args.hub.fetch(&request)?;
        named.push(NamedModel { alias: None, path });
    }
    if let Some(alias) = &args.alias {
        let first = named.first_mut().filter(|model| model.alias.is_none());
        let message = "--alias names the first model: -m FILE, without a name of its own";
        let first = first.ok_or_else(|| UsageError(message.to_owned()))?;
        first.alias = Some(alias.clone());
    }
    let Lists {
        presets,
        offered,
        adapters,
    } = lists(args, named.is_empty(), table, Reading::AtStart)?;
    if named.is_empty() && args.models_dir.is_none() && presets.is_empty() {
        note(format_args!("{}", without_model(offered.len())));
    }
    Ok(ModelsOptions {
        named,
        presets,
        offered,
        folder: args.models_dir.clone(),
        autoload: !args.no_models_autoload,
        any_name: args.any_model,
        max: args.models_max,
        turn: Duration::from_secs(args.model_turn),
        adapters,
        ..of_a_model(args, table)?
    })
}

/// Which models there are in addition to the named ones, with the server's adapters.
struct Lists {
    presets: Vec<ModelPreset>,
    offered: Vec<NamedModel>,
    adapters: AdaptersOptions,
}

fn lists(
    args: &ServeArgs,
    is_router: bool,
    table: &'static KernelTable,
    reading: Reading,
) -> anyhow::Result<Lists> {
    // What clients have pulled is there again; the rest of the cache is the operator's.
    let may_pull = args.allow_pull || args.keys.is_some();
    let mut offered = match is_router && args.models_dir.is_none() {
        true => cached(Cache::models),
        false if may_pull => cached(Cache::pulled),
        false => Vec::new(),
    };
    let adapters = args.adapters.options()?;
    let Presets { models, adapters } = presets(args, &mut offered, adapters, table, reading)?;
    Ok(Lists {
        presets: models,
        offered,
        adapters,
    })
}

/// Reads the lists again for a server with `options`.
pub(super) fn again(
    args: Arc<ServeArgs>,
    options: &ModelsOptions,
    table: &'static KernelTable,
) -> ReadLists {
    let is_router = options.named.is_empty();
    let adapters = format!("{:?}", options.adapters.named);
    Arc::new(move || {
        let read = lists(&args, is_router, table, Reading::Again);
        let read = read.map_err(|error| format!("{error:#}"))?;
        if format!("{:?}", read.adapters.named) != adapters {
            let why = "adapters of --models-preset are read at the start: start the server again to change them";
            return Err(why.to_owned());
        }
        Ok(ModelLists {
            presets: read.presets,
            offered: read.offered,
        })
    })
}

/// Models of the cache.
fn cached(list: impl FnOnce(&Cache) -> Vec<CachedModel>) -> Vec<NamedModel> {
    let found = Cache::from_env().map(|cache| list(&cache));
    let found = found.unwrap_or_default().into_iter();
    let named = found.map(|model| NamedModel {
        alias: Some(model.name),
        path: model.path,
    });
    named.collect()
}

fn without_model(n_cached: usize) -> String {
    match n_cached {
        0 => "no model is given (-m FILE, -hf USER/NAME, --models-dir DIR), and the cache has none: `sluice pull \
              USER/NAME` downloads one; then start the server again"
            .to_owned(),
        n => format!("no model is given: offering {n} from the cache, each loaded when a request names it"),
    }
}

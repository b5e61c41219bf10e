//! Which models are served, and how they are run.

use super::args::ServeArgs;
use super::presets::{Presets, presets};
use crate::flags::speculation;
use crate::outcome::UsageError;
use crate::ui::input;
use crate::ui::output::note;
use anyhow::Context as _;
use core::time::Duration;
use sluice::Limits;
use sluice::core::kernels::KernelTable;
use sluice::core::pooling::Pooling;
use sluice_pull::Cache;
use sluice_serve::{ModelsOptions, NamedModel};
use sluice_text::chat::check_template;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

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
    let has_none = named.is_empty() && args.models_dir.is_none();
    // What clients have pulled is there again.
    let mut offered = match has_none || args.allow_pull {
        true => cached(),
        false => Vec::new(),
    };
    let adapters = args.adapters.options()?;
    let Presets {
        models: presets,
        adapters,
    } = presets(args, &mut offered, adapters, table)?;
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

/// The models of the cache.
fn cached() -> Vec<NamedModel> {
    let found = Cache::from_env().map(|cache| cache.models());
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

/// How models are run: the options that a model of `--models-preset` may have for itself.
pub(super) fn of_a_model(
    args: &ServeArgs,
    table: &'static KernelTable,
) -> anyhow::Result<ModelsOptions> {
    let drafts = args.speculation.options()?;
    let setup = drafts.setup(args.engine.load_mode());
    Ok(ModelsOptions {
        sleep_after: u64::try_from(args.sleep_idle_seconds)
            .ok()
            .map(Duration::from_secs),
        limits: Limits {
            n_ctx: args.engine.ctx_size as usize,
            n_seq: usize::try_from(args.parallel)
                .ok()
                .filter(|&n| n > 0)
                .unwrap_or(PARALLEL),
            n_batch: args.engine.n_batch(),
            types: Some(args.engine.cache_types()),
            kv_rotation: !args.engine.no_kv_rotation,
            longrope: args.engine.longrope.unwrap_or_default(),
            table: Some(table),
            ..Limits::default()
        },
        context_shift: args.context_shift && !args.no_context_shift,
        load_mode: args.engine.load_mode(),
        tables_stay: args.engine.gather_tables,
        check_tensors: args.engine.check_tensors,
        chat_template: chat_template(args)?,
        pooling: args.pooling.as_deref().and_then(Pooling::from_name),
        speculation: setup.map_err(speculation::usage)?,
        experts: args.engine.experts.options()?,
        ..ModelsOptions::default()
    })
}

/// Parses `NAME=FILE`, or a file alone, whose path may contain `=`.
pub(super) fn named(text: &OsStr) -> NamedModel {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|&byte| byte == b'=');
    let split = at.and_then(|at| Some((str::from_utf8(&bytes[..at]).ok()?, &bytes[at + 1..])));
    let split = split.filter(|(name, path)| {
        let is_name = !name.is_empty() && !name.contains('/');
        is_name && !path.is_empty() && !Path::new(text).exists()
    });
    match split {
        Some((name, path)) => NamedModel {
            alias: Some(name.to_owned()),
            path: OsStr::from_bytes(path).into(),
        },
        None => NamedModel {
            alias: None,
            path: text.into(),
        },
    }
}

fn chat_template(args: &ServeArgs) -> anyhow::Result<Option<String>> {
    if let Some(path) = &args.chat_template_file {
        return Ok(Some(input::text("file", path).context("chat template")?));
    }
    let Some(text) = &args.chat_template else {
        return Ok(None);
    };
    check_template(text).map_err(|error| UsageError(error.to_string()))?;
    Ok(Some(text.clone()))
}

/// As in llama-server.
const PARALLEL: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_may_have_names() {
        for (text, alias, path) in [
            ("a.gguf", None, "a.gguf"),
            ("small=a.gguf", Some("small"), "a.gguf"),
            ("/m/x=y.gguf", None, "/m/x=y.gguf"),
            ("=a.gguf", None, "=a.gguf"),
        ] {
            let model = named(OsStr::new(text));
            assert_eq!(
                (model.alias.as_deref(), model.path.to_str()),
                (alias, Some(path))
            );
        }
    }
}

//! How a model is run: what a model of `--models-preset` may have for itself.

use super::args::ServeArgs;
use crate::flags::speculation;
use crate::outcome::UsageError;
use crate::ui::input;
use anyhow::Context as _;
use core::time::Duration;
use sluice::Limits;
use sluice::core::kernels::KernelTable;
use sluice::core::pooling::Pooling;
use sluice_serve::{ModelsOptions, NamedModel};
use sluice_text::chat::check_template;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The options of a model, or of all models.
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
            sparse: args.engine.sparse.sparse,
            table: Some(table),
            ..Limits::default()
        },
        context_shift: args.context_shift && !args.no_context_shift,
        load_mode: args.engine.load_mode(),
        tables_stay: args.engine.gather_tables,
        activation: args.engine.activation,
        sparse_file: args.engine.sparse.sparse_file.clone(),
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

//! `GET /slots`, and `POST /slots/{id}?action=save|restore|erase`.

use super::super::drive::{body, last_part};
use super::super::error::json_reply;
use super::super::fields::Fields;
use super::super::generation::model as model_of;
use super::super::reply::millis;
use super::query;
use super::state::present;
use crate::answer::Context;
use crate::api::{ApiError, ModelChoice};
use crate::engine::{SlotAction, SlotView};
use crate::http::{Request, Response};
use serde_json::{Value, json};
use sluice::file::OutputError;
use sluice::generate::prompt_cache::{PromptCache, PromptCacheError, PromptCacheProblem};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;

pub(super) async fn list(context: Context, request: Request) -> Result<Response, ApiError> {
    if !context.app.options().slots {
        let message = "This server does not support slots endpoint. Start it with `--slots`";
        return Err(ApiError::unsupported(message));
    }
    let lease = present(&context, &request)?;
    let view = context.app.models().engine().view(lease.id());
    let view = view.ok_or_else(|| ApiError::unavailable("the model is not loaded"))?;
    let has_idle = view.slots.iter().any(|slot| !slot.is_processing);
    if query(&request, "fail_on_no_slot").is_some() && !has_idle {
        return Err(ApiError::unavailable("no slot available"));
    }
    let n_ctx = lease.n_ctx();
    let slots = view.slots.iter().map(|slot| match &slot.group {
        Some(group) if group != context.key.group() => {
            json!({"id": slot.id, "n_ctx": n_ctx, "is_processing": slot.is_processing})
        }
        _ => shown(slot, n_ctx),
    });
    Ok(json_reply(&slots.collect()))
}

fn shown(slot: &SlotView, n_ctx: usize) -> Value {
    let n_remain = slot
        .n_remain
        .map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
    json!({
        "id": slot.id,
        "n_ctx": n_ctx,
        "speculative": slot.speculates,
        "is_processing": slot.is_processing,
        "id_task": slot.request.as_deref(),
        "n_past": slot.n_past,
        "n_prompt_tokens": slot.n_prompt,
        "next_token": [{
            "has_next_token": slot.is_processing,
            "n_remain": n_remain,
            "n_decoded": slot.n_decoded,
        }],
    })
}

pub(super) async fn act(mut context: Context, request: Request) -> Result<Response, ApiError> {
    let slot = last_part(request.uri().path()).parse::<u32>().ok();
    let slot = slot.ok_or_else(|| ApiError::field("id_slot", "is not the number of a slot"))?;
    let lease = present(&context, &request)?;
    let action = query(&request, "action").unwrap_or_default();
    let model = query(&request, "model");
    let (app, key) = (Arc::clone(&context.app), Arc::clone(&context.key));
    let (engine, group) = (app.models().engine(), key.group());
    let act = |action| async {
        let done = engine
            .slot(lease.id(), slot, Arc::clone(group), action)
            .await;
        Ok::<_, ApiError>(done.map_err(|_| ApiError::unavailable("the model was unloaded"))??)
    };
    if action == "erase" {
        let done = act(SlotAction::Erase).await?;
        return Ok(json_reply(
            &json!({"id_slot": slot, "n_erased": done.n_tokens}),
        ));
    }
    if !["save", "restore"].contains(&&*action) {
        let shown: String = action.chars().take(40).collect();
        let what = format!("{shown:?} is not one of save, restore, erase");
        return Err(ApiError::field("action", what));
    }
    let folder = context.app.options().slot_save_path.clone();
    let folder = folder.ok_or_else(|| {
        let message = "This server does not support slots action. Start it with `--slot-save-path`";
        ApiError::unsupported(message)
    })?;
    let posted = body(&mut context, request, &[]).await?;
    let fields = Fields::of_body(&posted)?;
    let name = fields.str("filename")?.unwrap_or_default();
    let path = within(&folder, group, name)?;
    if action == "save" {
        let _turn = TEXTS.acquire().await;
        let start = Instant::now();
        let done = act(SlotAction::Save).await?;
        let n_written = match done.saved {
            Some(saved) => with_file(&context, path, move |path| saved.write(path)).await?,
            None => 0,
        };
        let (n, ms) = (done.n_tokens, millis(start.elapsed()));
        return Ok(json_reply(&json!({
            "id_slot": slot, "filename": name, "n_saved": n, "n_written": n_written, "timings": {"save_ms": ms}
        })));
    }
    // The file does not record which adapters a text was computed with, only whether they match.
    let adapters = model_of(fields)?.adapters;
    context.check_allowed(model.as_deref(), adapters.as_deref().unwrap_or_default())?;
    let choice = ModelChoice {
        name: model,
        adapters,
        keep_for: None,
    };
    let adapted = context.app.models().acquire_with(&choice).await?;
    let _turn = TEXTS.acquire().await;
    let start = Instant::now();
    let read = |path: &Path| {
        let n_bytes = path.metadata().map_or(0, |file| file.len());
        Ok(PromptCache::read(path)?.map(|cache| (cache, n_bytes)))
    };
    let read = with_file(&context, path, read).await?;
    let (cache, n_read) = read.ok_or_else(|| ApiError::field("filename", "does not exist"))?;
    let restore = SlotAction::Restore(Box::new(cache), adapted.blend().cloned());
    let (n, ms) = (act(restore).await?.n_tokens, millis(start.elapsed()));
    Ok(json_reply(&json!({
        "id_slot": slot, "filename": name, "n_restored": n, "n_read": n_read, "timings": {"restore_ms": ms}
    })))
}

/// Held by the action that reads or writes a file: until it is done, a text takes as much memory as its slot.
static TEXTS: Semaphore = Semaphore::const_new(1);

/// Reads or writes a file on a thread that may wait for the disk.
async fn with_file<T: Send + 'static>(
    context: &Context,
    path: PathBuf,
    act: impl FnOnce(&Path) -> Result<T, PromptCacheError> + Send + 'static,
) -> Result<T, ApiError> {
    let acted = tokio::task::spawn_blocking(move || act(&path)).await;
    let acted = acted.map_err(|error| ApiError::internal(error.to_string()))?;
    acted.map_err(|error| {
        let problem = error.problem;
        match &*problem {
            // The server's folders are its own affair: clients see no paths.
            PromptCacheProblem::Key(error) => {
                (context.app.log())(&format!("slots: {error}"));
                let problem = &error.problem;
                ApiError::internal(format!("the key of the slots' folder: {problem}"))
            }
            PromptCacheProblem::Write(OutputError::Foreign { .. }) => {
                ApiError::field("filename", "exists already and is not a saved slot")
            }
            PromptCacheProblem::Write(error) => {
                (context.app.log())(&format!("slots: {error}"));
                ApiError::internal("the file cannot be written; the server's log has the reason")
            }
            _ => ApiError::field("filename", problem.to_string()),
        }
    })
}

/// A file of `group` in `folder`. Names must not contain separators or begin with a dot.
fn within(folder: &Path, group: &str, name: &str) -> Result<PathBuf, ApiError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name =
        (1..=NAME_BYTES_MAX - group.len()).contains(&name.len()) && !name.starts_with('.');
    if !is_name || !name.chars().all(is_plain) {
        let what = "must be a file name of letters, digits, '-', '_' and '.', without a folder";
        return Err(ApiError::field("filename", what));
    }
    Ok(match group {
        "" => folder.join(name),
        // Names cannot contain the separator, so that no group reads or replaces what another one has saved.
        group => folder.join(format!("{group}~{name}")),
    })
}

const NAME_BYTES_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_in_the_folder() {
        let folder = Path::new("/slots");
        assert_eq!(
            within(folder, "", "a-1.bin").unwrap(),
            Path::new("/slots/a-1.bin")
        );
        let of_group = within(folder, "team", "a-1.bin").unwrap();
        assert_eq!(of_group, Path::new("/slots/team~a-1.bin"));
        assert!(within(folder, "", "team~a-1.bin").is_err());
        for wrong in [
            "", ".", "..", "../a", "/a", "a/b", "a\\b", ".a", "a\0", "\u{e4}",
        ] {
            assert!(within(folder, "", wrong).is_err(), "{wrong:?}");
        }
    }
}

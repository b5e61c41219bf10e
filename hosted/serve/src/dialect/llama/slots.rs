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
use std::path::{Path, PathBuf};

pub(super) async fn list(context: Context, request: Request) -> Result<Response, ApiError> {
    check(&context)?;
    let lease = present(&context, &request)?;
    let view = context.app.models().engine().view(lease.id());
    let view = view.ok_or_else(|| ApiError::unavailable("the model is not loaded"))?;
    let has_idle = view.slots.iter().any(|slot| !slot.is_processing);
    if query(&request, "fail_on_no_slot").is_some() && !has_idle {
        return Err(ApiError::unavailable("no slot available"));
    }
    let slots: Vec<_> = view
        .slots
        .iter()
        .map(|slot| shown(slot, lease.n_ctx()))
        .collect();
    Ok(json_reply(&slots.into()))
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
        "next_token": {
            "has_next_token": slot.is_processing,
            "n_remain": n_remain,
            "n_decoded": slot.n_decoded,
        },
    })
}

pub(super) async fn act(context: Context, request: Request) -> Result<Response, ApiError> {
    check(&context)?;
    let slot = last_part(request.uri().path()).parse::<u32>().ok();
    let slot = slot.ok_or_else(|| ApiError::field("id_slot", "is not the number of a slot"))?;
    let lease = present(&context, &request)?;
    let action = query(&request, "action").unwrap_or_default().to_owned();
    let model = query(&request, "model").map(str::to_owned);
    let mut name = None;
    let what = match &*action {
        "erase" => SlotAction::Erase,
        "save" | "restore" => {
            let folder = context.app.options().slot_save_path.clone();
            let folder = folder.ok_or_else(|| {
                let message =
                    "This server does not support slots action. Start it with `--slot-save-path`";
                ApiError::unsupported(message)
            })?;
            let posted = body(&context, request).await?;
            let given = Fields::of_body(&posted.value)?
                .str("filename")?
                .unwrap_or_default();
            let path = within(&folder, given)?;
            name = Some(given.to_owned());
            if action == "save" {
                SlotAction::Save(path)
            } else {
                // The file does not record which adapters a text was computed with, only whether they match.
                let models = context.app.models();
                let adapters = model_of(Fields::of_body(&posted.value)?)?.adapters;
                let name = model;
                let adapted = models.acquire_with(&ModelChoice { name, adapters }).await?;
                SlotAction::Restore(path, adapted.blend().cloned())
            }
        }
        other => {
            let shown: String = other.chars().take(40).collect();
            let what = format!("{shown:?} is not one of save, restore, erase");
            return Err(ApiError::field("action", what));
        }
    };
    let done = context.app.models().engine().slot(lease.id(), slot, what);
    let done = done
        .await
        .map_err(|_| ApiError::unavailable("the model was unloaded"))??;
    let (n, bytes, ms) = (done.n_tokens, done.n_bytes, millis(done.time));
    Ok(json_reply(&match &*action {
        "save" => {
            json!({"id_slot": slot, "filename": name, "n_saved": n, "n_written": bytes, "timings": {"save_ms": ms}})
        }
        "restore" => {
            json!({"id_slot": slot, "filename": name, "n_restored": n, "n_read": bytes, "timings": {"restore_ms": ms}})
        }
        _ => json!({"id_slot": slot, "n_erased": n}),
    }))
}

fn check(context: &Context) -> Result<(), ApiError> {
    if context.app.options().slots {
        return Ok(());
    }
    let message = "This server does not support slots endpoint. Start it with `--slots`";
    Err(ApiError::unsupported(message))
}

/// A file in `folder`. File names must not contain separators or begin with a dot.
fn within(folder: &Path, name: &str) -> Result<PathBuf, ApiError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('.');
    if !is_name || !name.chars().all(is_plain) {
        let what = "must be a file name of letters, digits, '-', '_' and '.', without a folder";
        return Err(ApiError::field("filename", what));
    }
    Ok(folder.join(name))
}

const NAME_BYTES_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_in_the_folder() {
        let folder = Path::new("/slots");
        assert_eq!(
            within(folder, "a-1.bin").unwrap(),
            Path::new("/slots/a-1.bin")
        );
        for wrong in [
            "", ".", "..", "../a", "/a", "a/b", "a\\b", ".a", "a\0", "\u{e4}",
        ] {
            assert!(within(folder, wrong).is_err(), "{wrong:?}");
        }
    }
}

//! Models that are loaded, unloaded, downloaded and deleted by requests, and a stream of what changes.

use super::super::drive::body;
use super::super::error::json_reply;
use super::super::fields::Fields;
use super::super::hub::download_name;
use super::super::openai::{EVENTS, progress, status};
use super::super::seam::ModelStatus;
use super::super::stream::server_sent;
use super::query;
use crate::answer::Context;
use crate::api::ApiError;
use crate::http::{Request, Response, Source, Step, Stream};
use crate::models::{DownloadStep, ModelChange};
use core::pin::Pin;
use core::task::{self, Poll, ready};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

pub(super) async fn load(mut context: Context, request: Request) -> Result<Response, ApiError> {
    context.key.check_models()?;
    let posted = body(&mut context, request, &[]).await?;
    let index = find(&context, model_of(&posted)?)?;
    context.app.models().begin_loading(index)?;
    Ok(json_reply(&json!({"success": true})))
}

/// Unloads a model, or cancels its download.
pub(super) async fn unload(mut context: Context, request: Request) -> Result<Response, ApiError> {
    if !context.may_pull() {
        context.key.check_models()?;
    }
    let posted = body(&mut context, request, &[]).await?;
    let name = model_of(&posted)?;
    let download = download_name(name);
    let is_pull = context.may_pull() && context.check_name(&download).is_ok();
    if is_pull && context.app.pulls().cancel(&download) {
        return Ok(json_reply(&json!({"success": true})));
    }
    let index = find(&context, name)?;
    context.app.models().begin_unloading(index)?;
    Ok(json_reply(&json!({"success": true})))
}

/// Downloads a model of the hub. Replies when the hub has named its files; `/models/sse` tells how far it is.
pub(super) async fn download(mut context: Context, request: Request) -> Result<Response, ApiError> {
    context.check_pull()?;
    let posted = body(&mut context, request, &[]).await?;
    let name = model_of(&posted)?;
    let models = context.app.models();
    if models.find(name).is_ok() {
        context.check_allowed(Some(name), &[])?;
        let what = "exists already; POST /api/pull asks for its newest revision";
        return Err(ApiError::field("model", what));
    }
    let name = download_name(name);
    let watch = context.pull(&name)?;
    context.app.pulls().go_on(&name, watch).await?;
    Ok(json_reply(&json!({"success": true})))
}

/// Deletes a model that a client has downloaded, or cancels its download.
pub(super) async fn delete(context: Context, request: Request) -> Result<Response, ApiError> {
    let name = query(&request, "model").filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ApiError::field("model", "is missing"))?;
    let download = download_name(&name);
    context.check_pull()?;
    let is_allowed = context.check_name(&download).is_ok();
    if !(is_allowed && context.app.pulls().cancel(&download)) {
        context.remove_model(&name).await?;
    }
    Ok(json_reply(&json!({"success": true})))
}

/// The name of a model in a body.
fn model_of(posted: &Value) -> Result<&str, ApiError> {
    let fields = Fields::of_body(posted)?;
    let name = fields.str("model")?.filter(|name| !name.is_empty());
    name.ok_or_else(|| ApiError::field("model", "is missing"))
}

/// The number of the model called `name`, which the request may load and unload.
fn find(context: &Context, name: &str) -> Result<usize, ApiError> {
    context.key.check_models()?;
    context.check_allowed(Some(name), &[])?;
    let found = context.app.models().find(name);
    found.map_err(|error| context.unknown(name, error))
}

/// The states of all models, and each change from then on.
pub(super) async fn changes(context: Context) -> Result<Response, ApiError> {
    let ping = context.app.options().ping;
    let changes = context.app.models().changes();
    let mut first = Vec::new();
    for model in context.app.models().all() {
        first.extend(status_event(&context, model.index));
    }
    let source = Changes {
        next: next(changes, context.clone()),
        context,
        first,
    };
    Ok(Stream::reply(source, EVENTS, ping))
}

/// The event of a change, if the key may see it.
fn event(context: &Context, change: ModelChange) -> Option<Value> {
    let may_use = |name: &str| context.key.may_use([name].into_iter());
    match change {
        ModelChange::State(index) => status_event(context, index),
        ModelChange::Listed => Some(json!({"model": "*", "event": "models_reload"})),
        ModelChange::Removed(name) => {
            may_use(&name).then(|| json!({"model": name, "event": "model_remove"}))
        }
        ModelChange::Download(name, step) => {
            may_use(&format!("hf.co/{name}")).then(|| match step {
                DownloadStep::Progress(files) => {
                    let data = progress(&files);
                    json!({"model": &*name, "event": "download_progress", "data": data})
                }
                DownloadStep::Finished => json!({"model": &*name, "event": "download_finished"}),
                DownloadStep::Failed => json!({"model": &*name, "event": "download_failed"}),
            })
        }
    }
}

/// The event of a model's state, if the key may use the model.
fn status_event(context: &Context, index: usize) -> Option<Value> {
    let models = context.app.models();
    if !context.key.may_use(models.names_of(index)) {
        return None;
    }
    let mut shown = status(&ModelStatus::of(&models.state_of(index)?));
    let about = shown.as_object_mut()?;
    let value = about.remove("value")?;
    about.insert("status".into(), value);
    Some(json!({"model": models.name_of(index), "event": "model_status", "data": shown}))
}

/// Waits for a change; `None` when the server ends.
type Next = Pin<Box<dyn Future<Output = Option<(ModelChange, Receiver<ModelChange>)>> + Send>>;

fn next(mut changes: Receiver<ModelChange>, context: Context) -> Next {
    Box::pin(async move {
        let mut stopping = context.app.stopping().subscribe();
        loop {
            let changed = tokio::select! {
                changed = changes.recv() => changed,
                _ = stopping.wait_for(|stops| *stops) => return None,
            };
            match changed {
                Ok(change) => return Some((change, changes)),
                // A listener that is far behind misses some changes, but not the last ones.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    })
}

struct Changes {
    context: Context,
    first: Vec<Value>,
    next: Next,
}

impl Source for Changes {
    fn poll_next(&mut self, waiting: &mut task::Context<'_>, text: &mut String) -> Poll<Step> {
        let first = core::mem::take(&mut self.first);
        if !first.is_empty() {
            first.iter().for_each(|event| server_sent(text, event));
            return Poll::Ready(Step::More);
        }
        let Some((change, changes)) = ready!(self.next.as_mut().poll(waiting)) else {
            return Poll::Ready(Step::End);
        };
        self.next = next(changes, self.context.clone());
        if let Some(event) = event(&self.context, change) {
            server_sent(text, &event);
        }
        Poll::Ready(Step::More)
    }
}

//! Models that are loaded and unloaded by requests, and a stream of their states.

use super::super::drive::body;
use super::super::error::json_reply;
use super::super::fields::Fields;
use super::super::openai::{EVENTS, status};
use super::super::seam::ModelStatus;
use super::super::stream::server_sent;
use crate::answer::Context;
use crate::api::ApiError;
use crate::http::{Request, Response, Source, Step, Stream};
use core::pin::Pin;
use core::task::{self, Poll, ready};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

pub(super) async fn load(mut context: Context, request: Request) -> Result<Response, ApiError> {
    let index = named(&mut context, request).await?;
    context.app.models().begin_loading(index)?;
    Ok(json_reply(&json!({"success": true})))
}

pub(super) async fn unload(mut context: Context, request: Request) -> Result<Response, ApiError> {
    let index = named(&mut context, request).await?;
    context.app.models().begin_unloading(index)?;
    Ok(json_reply(&json!({"success": true})))
}

/// The number of the model that the body names.
async fn named(context: &mut Context, request: Request) -> Result<usize, ApiError> {
    context.key.check_models()?;
    let posted = body(context, request, &[]).await?;
    let fields = Fields::of_body(&posted)?;
    let name = fields.str("model")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ApiError::field("model", "is missing"))?;
    context.check_allowed(Some(name), &[])?;
    let models = context.app.models();
    let found = models.find(name);
    found.map_err(|error| context.unknown(name, error))
}

/// The states of all models, and each change from then on.
pub(super) async fn changes(context: Context) -> Result<Response, ApiError> {
    let ping = context.app.options().ping;
    let changes = context.app.models().changes();
    let mut first = Vec::new();
    for (index, _) in context.app.models().all().enumerate() {
        first.extend(event(&context, index));
    }
    let source = Changes {
        next: next(changes, context.clone()),
        context,
        first,
    };
    Ok(Stream::reply(source, EVENTS, ping))
}

/// The event of a model's state, if the key may use the model.
fn event(context: &Context, index: usize) -> Option<Value> {
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
type Next = Pin<Box<dyn Future<Output = Option<(usize, Receiver<usize>)>> + Send>>;

fn next(mut changes: Receiver<usize>, context: Context) -> Next {
    Box::pin(async move {
        let mut stopping = context.app.stopping().subscribe();
        loop {
            let changed = tokio::select! {
                changed = changes.recv() => changed,
                _ = stopping.wait_for(|stops| *stops) => return None,
            };
            match changed {
                Ok(index) => return Some((index, changes)),
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
        let Some((index, changes)) = ready!(self.next.as_mut().poll(waiting)) else {
            return Poll::Ready(Step::End);
        };
        self.next = next(changes, self.context.clone());
        if let Some(event) = event(&self.context, index) {
            server_sent(text, &event);
        }
        Poll::Ready(Step::More)
    }
}

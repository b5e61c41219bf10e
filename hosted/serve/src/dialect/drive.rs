//! Handles requests on a dialect's routes, from parsing to the reply.

use super::error::{error_reply, json_reply};
use super::fields::asked_by;
use super::query;
use super::seam::{Action, Dialect, ModelInfo, ModelStatus, WriteText};
use super::stream::Chunks;
use crate::adapters::{self, Entry};
use crate::answer::{self, Context, TextAnswer};
use crate::api::{ApiError, Defaults, ErrorKind};
use crate::http::{Request, Response, Stream, reply};
use crate::models::{Loaded, State};
use core::future::poll_fn;
use serde_json::Value;
use std::sync::Arc;

type Result<T> = core::result::Result<T, ApiError>;

/// Answers a request.
pub(crate) async fn answer(
    context: Context,
    request: Request,
    dialect: &'static dyn Dialect,
    action: Action,
) -> Response {
    let id = context.request.clone();
    let done = act(context, request, dialect, action).await;
    done.unwrap_or_else(|error| error_reply(dialect, error, &id))
}

async fn act(
    mut context: Context,
    request: Request,
    dialect: &'static dyn Dialect,
    action: Action,
) -> Result<Response> {
    let path = request.uri().path().to_owned();
    match action {
        Action::Chat(parse) => {
            let asked = read(&mut context, request, parse).await?;
            let streams = asked.request.generation.streams;
            let begun = answer::chat(&context, asked.request).await;
            context.room = None;
            let begun = match (begun, asked.too_long.filter(|_| streams)) {
                (Err(error), Some(write)) if matches!(error.kind, ErrorKind::TooLong { .. }) => {
                    return Ok(failed(dialect, &write(&error)));
                }
                (begun, _) => begun.map_err(|error| error.renamed(&asked.names))?,
            };
            write(&context, dialect, asked.writer, begun, streams).await
        }
        Action::Complete(parse) => {
            let asked = read(&mut context, request, parse).await?;
            let streams = asked.request.generation.streams;
            let begun = answer::complete(&context, asked.request).await;
            context.room = None;
            let begun = begun.map_err(|error| error.renamed(&asked.names))?;
            write(&context, dialect, asked.writer, begun, streams).await
        }
        Action::Embed(parse) => {
            let asked = read(&mut context, request, parse).await?;
            let vectors = answer::embed(&context, asked.request).await;
            context.room = None;
            let vectors = vectors.map_err(|error| error.renamed(&asked.names))?;
            // Formatting many numbers takes time.
            let write = move || json_reply(&(asked.writer)(vectors));
            context.work(write).await
        }
        Action::Rank(parse) => {
            let asked = read(&mut context, request, parse).await?;
            let ranking = answer::rank(&context, asked.request).await;
            let ranking = ranking.map_err(|error| error.renamed(&asked.names))?;
            Ok(json_reply(&(asked.writer)(ranking)))
        }
        Action::Models(_) if query(&request, "reload").is_some() => {
            let what = "?reload: the models are those that the server was started with; start it again to change them";
            Err(ApiError::unsupported(what))
        }
        Action::Models(write) => Ok(models(&context, write)),
        Action::Model(write) => model(&context, last_part(&path), write),
        Action::Other(work) => work(context, request).await,
    }
}

/// The JSON body of a request, for routes without an [`Action`] of their own. Heavy fields are there only if they are
/// `wanted`.
pub(super) async fn body(
    context: &mut Context,
    request: Request,
    wanted: &'static [&'static str],
) -> Result<Value> {
    let names: Vec<_> = wanted.iter().map(|&name| name.to_owned()).collect();
    let read = move |body: &Value| (Ok(body.clone()), names.clone());
    context.read(request, read).await
}

/// Parses a request.
pub(super) async fn read<T: Send + 'static>(
    context: &mut Context,
    request: Request,
    parse: impl Fn(&Value, &Defaults) -> Result<T> + Send + Sync + 'static,
) -> Result<T> {
    let app = Arc::clone(&context.app);
    let read = move |body: &Value| {
        let model = body.get("model").and_then(Value::as_str);
        asked_by(|| parse(body, app.defaults_named(model)))
    };
    context.read(request, read).await
}

/// Writes an answer: streamed, or once it is complete.
async fn write(
    context: &Context,
    dialect: &'static dyn Dialect,
    write: WriteText,
    mut answer: TextAnswer,
    streams: bool,
) -> Result<Response> {
    let mut writer = write(answer.start());
    if streams {
        let chunks = Chunks {
            answer,
            writer,
            is_begun: false,
            dialect,
            request: Arc::clone(&context.request),
        };
        let ping = context.app.options().ping;
        return Ok(Stream::reply(chunks, dialect.framing().kind, ping));
    }
    while let Some(event) = poll_fn(|waiting| answer.poll_next(waiting)).await {
        writer.write(event?);
    }
    Ok(json_reply(&writer.whole(answer.total())))
}

/// A stream that has only these chunks.
fn failed(dialect: &dyn Dialect, chunks: &[Value]) -> Response {
    let framing = dialect.framing();
    let mut text = String::new();
    chunks
        .iter()
        .for_each(|chunk| (framing.frame)(&mut text, chunk));
    text.push_str(framing.end);
    reply(framing.kind.content_type, text)
}

/// The last segment of a path, unescaped.
pub(super) fn last_part(path: &str) -> String {
    let part = path.rsplit('/').next().unwrap_or_default();
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after
            .get(..2)
            .filter(|hex| first == b'%' && hex.iter().all(u8::is_ascii_hexdigit));
        let escaped = escaped.and_then(|hex| core::str::from_utf8(hex).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// All models, followed by all adapters.
fn models(context: &Context, write: fn(&[ModelInfo<'_>]) -> Value) -> Response {
    let models = context.app.models();
    let names = |others: &[String], name: &str| {
        let others = others.iter().map(String::as_str);
        context.key.may_use(others.chain([name]))
    };
    let all: Vec<_> = models
        .all()
        .filter(|(name, others, _)| names(others, name))
        .collect();
    let mut adapters = models.adapters().all();
    adapters.retain(|entry| names(&[], &entry.name));
    let shown = all
        .iter()
        .map(|(name, others, state)| of_model(context, name, others, state));
    let adapters = adapters.iter().map(|entry| of_adapter(context, entry));
    json_reply(&write(&shown.chain(adapters).collect::<Vec<_>>()))
}

/// One model, by any of its names.
fn model(context: &Context, name: String, write: fn(&ModelInfo<'_>) -> Value) -> Result<Response> {
    context.check_allowed(Some(&name), &[])?;
    let models = context.app.models();
    if let Some(entry) = models.adapters().find(&name) {
        return Ok(json_reply(&write(&of_adapter(context, &entry))));
    }
    let found = models.find(&name);
    let at = found.map_err(|error| context.unknown(&name, error))?;
    let found = models
        .all()
        .nth(at)
        .map(|(name, others, state)| write(&of_model(context, name, others, &state)));
    Ok(json_reply(&found.unwrap_or_default()))
}

fn of_model<'m>(
    context: &Context,
    name: &'m str,
    others: &'m [String],
    state: &'m State,
) -> ModelInfo<'m> {
    let aliases = others.iter().map(String::as_str);
    ModelInfo {
        name,
        // File paths are not shown.
        aliases: aliases.filter(|name| !name.contains('/')).collect(),
        created: context.app.started(),
        base: None,
        status: ModelStatus::of(state),
        loaded: match state {
            State::Loaded(loaded) => Some(loaded as &Loaded),
            _ => None,
        },
    }
}

fn of_adapter<'m>(context: &'m Context, entry: &'m Entry) -> ModelInfo<'m> {
    ModelInfo {
        name: &entry.name,
        aliases: Vec::new(),
        created: context.app.started(),
        base: Some(context.app.models().name_of(entry.model)),
        status: status_of_adapter(entry),
        loaded: None,
    }
}

/// The state of an adapter.
pub(super) fn status_of_adapter(entry: &Entry) -> ModelStatus {
    match &*entry.state.borrow() {
        adapters::State::Cold => ModelStatus::Unloaded,
        adapters::State::Loading => ModelStatus::Loading,
        adapters::State::Ready(_) => ModelStatus::Loaded,
        adapters::State::Failed(why) => ModelStatus::Failed(why.shown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_paths_are_unescaped() {
        for (path, name) in [
            ("/v1/models/a", "a"),
            ("/v1/models/a%20b%2Fc", "a b/c"),
            ("/v1/models/100%", "100%"),
            ("/v1/models/%zz", "%zz"),
        ] {
            assert_eq!(last_part(path), name);
        }
    }
}

//! Handles requests on a dialect's routes, from parsing to the reply.

use super::error::{error_reply, json_reply};
use super::fields::asked_by;
use super::numbered::{Numbered, check_body, last_event};
use super::seam::{
    Action, Dialect, MemoryRequest, ModelInfo, ModelStatus, Parse, TextRequest, TextWriter,
    WriteText,
};
use super::stream::Chunks;
use super::{query, unescaped};
use crate::adapters::{self, Entry};
use crate::answer::{self, Context, Resumable, TextAnswer};
use crate::api::{ApiError, Defaults, ErrorKind, EventId, Generation};
use crate::http::{LogNote, Request, Response, Stream, reply};
use crate::models::{Loaded, OfferedModel, State};
use core::future::poll_fn;
use hyper::header::{HeaderName, HeaderValue};
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
            let after = last_event(&request)?;
            let mut asked = read(&mut context, request, parse).await?;
            let streams = asked.request.generation.streams;
            resume(&mut context, dialect, after, &mut asked.request.generation)?;
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
            let after = last_event(&request)?;
            let mut asked = read(&mut context, request, parse).await?;
            let streams = asked.request.generation.streams;
            resume(&mut context, dialect, after, &mut asked.request.generation)?;
            let begun = answer::complete(&context, asked.request).await;
            context.room = None;
            let begun = begun.map_err(|error| error.renamed(&asked.names))?;
            write(&context, dialect, asked.writer, begun, streams).await
        }
        Action::Text(parse) => text(context, request, dialect, parse).await,
        Action::Embed(parse) => {
            let asked = read(&mut context, request, parse).await?;
            let wants = asked.request.wants_ctx;
            context.note(&asked.request.left_out);
            let vectors = answer::embed(&context, asked.request).await;
            context.room = None;
            let vectors = vectors.map_err(|error| error.renamed(&asked.names))?;
            let (n_cut, n_ctx) = (vectors.n_cut, vectors.n_ctx);
            // Formatting many numbers takes time.
            let write = move || json_reply(&(asked.writer)(vectors));
            let mut response = context.work(write).await?;
            tell_cut(&mut response, n_cut, "inputs");
            tell_context(&mut response, wants, n_ctx);
            Ok(response)
        }
        Action::Rank(parse) => {
            let asked = read(&mut context, request, parse).await?;
            let ranking = answer::rank(&context, asked.request).await;
            let ranking = ranking.map_err(|error| error.renamed(&asked.names))?;
            Ok(json_reply(&(asked.writer)(ranking)))
        }
        Action::Models(write) => {
            if query(&request, "reload").is_some_and(|value| !value.is_empty()) {
                context.key.check_models()?;
                context.app.models().reload().await?;
            }
            Ok(models(&context, write))
        }
        Action::Model(write) => model(&context, last_part(&path), write),
        Action::Other(work) => work(context, request).await,
    }
}

/// Answers a request on a route that has several kinds of them.
async fn text(
    mut context: Context,
    request: Request,
    dialect: &'static dyn Dialect,
    parse: Parse<TextRequest, WriteText>,
) -> Result<Response> {
    let after = last_event(&request)?;
    let asked = read(&mut context, request, parse).await?;
    if let Some(after) = after {
        check_body(&context, &after, true, false)?;
    }
    let of = |generation: &Generation| (generation.streams, generation.wants_ctx);
    let ((streams, wants), begun) = match asked.request {
        TextRequest::Chat(chat) => (of(&chat.generation), answer::chat(&context, chat).await),
        TextRequest::Complete(text) => {
            let of = of(&text.generation);
            context.note(&text.left_out);
            (of, answer::complete(&context, text).await)
        }
        TextRequest::Memory(memory) => return keep(&context, memory).await,
    };
    context.room = None;
    let (mut response, n_ctx) = match begun {
        Ok(begun) => {
            let n_ctx = begun.start().n_ctx;
            let written = write(&context, dialect, asked.writer, begun, streams).await?;
            (written, n_ctx)
        }
        Err(error) => {
            let ErrorKind::TooLong { n_ctx, .. } = error.kind else {
                return Err(error.renamed(&asked.names));
            };
            let error = error.renamed(&asked.names);
            (error_reply(dialect, error, &context.request), n_ctx)
        }
    };
    tell_context(&mut response, wants, n_ctx);
    Ok(response)
}

/// Loads a model, or unloads it.
async fn keep(context: &Context, memory: MemoryRequest) -> Result<Response> {
    let MemoryRequest {
        model,
        loads,
        reply,
        left_out,
    } = memory;
    context.note(&left_out);
    if loads {
        drop(context.adapted(&model).await?);
    } else {
        context.unload_unused(model.name.as_deref())?;
    }
    Ok(json_reply(&reply))
}

/// Says that some of what was sent does not fit into the context and was left out.
fn tell_cut(response: &mut Response, n: usize, what: &str) {
    if n > 0
        && let Ok(value) = HeaderValue::from_str(&format!("{what}={n}"))
    {
        response.headers_mut().insert(TRUNCATED, value);
    }
}

/// Logs that a client counts on a longer context than there is.
fn tell_context(response: &mut Response, wants: Option<usize>, n_ctx: usize) {
    if let Some(wants) = wants.filter(|&wants| wants > n_ctx) {
        let note = format!("num_ctx {wants} exceeds the context of {n_ctx} tokens (-c)");
        response.extensions_mut().insert(LogNote(note));
    }
}

/// The header with what was left out.
const TRUNCATED: HeaderName = HeaderName::from_static("x-sluice-truncated");

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

/// Prepares a stream to be taken up again, or takes one up after an event.
fn resume(
    context: &mut Context,
    dialect: &dyn Dialect,
    after: Option<Arc<EventId>>,
    generation: &mut Generation,
) -> Result<()> {
    let has_ids = dialect.framing().kind.content_type == EVENT_STREAM;
    if let Some(after) = &after {
        check_body(context, after, generation.streams, has_ids)?;
        generation.seed = Some(after.seed);
    }
    let is_resumable = generation.streams && has_ids && context.app.streams().is_on();
    context.stream = is_resumable.then_some(Resumable { after });
    Ok(())
}

/// Writes an answer: streamed, or once it is complete.
async fn write(
    context: &Context,
    dialect: &'static dyn Dialect,
    write: WriteText,
    answer: TextAnswer,
    streams: bool,
) -> Result<Response> {
    let n_left_out = answer.start().n_left_out;
    let mut response = written(context, dialect, write(answer.start()), answer, streams).await?;
    tell_cut(&mut response, n_left_out, "messages");
    Ok(response)
}

async fn written(
    context: &Context,
    dialect: &'static dyn Dialect,
    mut writer: Box<dyn TextWriter>,
    mut answer: TextAnswer,
    streams: bool,
) -> Result<Response> {
    let ids = Numbered::new(context, answer.start())?;
    if streams {
        let chunks = Chunks {
            ids,
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
    unescaped(path.rsplit('/').next().unwrap_or_default())
}

/// All models, those that are being downloaded, and all adapters.
fn models(context: &Context, write: fn(&[ModelInfo<'_>]) -> Value) -> Response {
    let models = context.app.models();
    let all: Vec<_> = models
        .all()
        .filter(|model| context.key.may_use(model.names()))
        .collect();
    let mut downloads = context.app.pulls().running();
    downloads.retain(|(name, _)| {
        let is_allowed = context.check_name(&format!("hf.co/{name}")).is_ok();
        is_allowed && models.find(name).is_err()
    });
    let mut adapters = models.adapters().all();
    adapters.retain(|entry| context.key.may_use([&*entry.name].into_iter()));
    let shown = all.iter().map(|model| of_model(context, model));
    let downloads = downloads.iter().map(|(name, state)| ModelInfo {
        name,
        aliases: Vec::new(),
        created: context.app.started(),
        base: None,
        status: ModelStatus::Downloading(state.files()),
        loaded: None,
    });
    let adapters = adapters.iter().map(|entry| of_adapter(context, entry));
    let shown: Vec<_> = shown.chain(downloads).chain(adapters).collect();
    json_reply(&write(&shown))
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
    let found = models.all().find(|model| model.index == at);
    let found = found.map(|model| write(&of_model(context, &model)));
    Ok(json_reply(&found.unwrap_or_default()))
}

fn of_model<'m>(context: &Context, model: &'m OfferedModel<'m>) -> ModelInfo<'m> {
    let aliases = model.others.iter().map(String::as_str);
    ModelInfo {
        name: model.name,
        // File paths are not shown.
        aliases: aliases.filter(|name| !name.contains('/')).collect(),
        created: context.app.started(),
        base: None,
        status: ModelStatus::of(&model.state),
        loaded: match &model.state {
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

/// The content type of server-sent events, which have ids.
const EVENT_STREAM: &str = "text/event-stream";

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

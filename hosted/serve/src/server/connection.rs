//! Serves one connection and each request on it.

use super::connections::{Place, Taken};
use super::routing;
use crate::answer::{App, Context, unique};
use crate::api::ApiError;
use crate::dialect::{self, Dialect};
use crate::http::{
    LogNote, Patient, Peer, Request, Response, UnreadBody, allow_sending, boxed, host, text_reply,
};
use crate::keys::ApiKey;
use crate::page;
use core::convert::Infallible;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::sync::Arc;
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite};

/// Answers the requests of a connection, one after the other, until the connection or the server ends, or its place is
/// taken.
pub(super) async fn serve<T>(app: Arc<App>, io: T, peer: Peer, place: Place, taken: Taken)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stopping = app.stopping().subscribe();
    // The watch guard must not be held while the last answer is sent.
    let stopped = async move { drop(stopping.wait_for(|&stops| stops).await) };
    let options = app.options();
    let (header_timeout, stall_timeout) = (options.header_timeout, options.stall_timeout);
    let io = Patient::new(io, stall_timeout, place.sent().clone());
    let place = Arc::new(place);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (app, busy) = (app.clone(), place.busy());
        async move {
            let response = answer(app, request.map(boxed), peer).await;
            // Until hyper has the whole body; `sent` tells when it has been sent. Unlike other adapters, `map_err` keeps
            // the body's length.
            let held = move |error| {
                let _busy = &busy;
                error
            };
            Ok::<_, Infallible>(response.map(|body| boxed(body.map_err(held))))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = core::pin::pin!(connection);
    // Connection errors are the client's concern and are not logged.
    tokio::select! {
        _ended = connection.as_mut() => {}
        _taken = taken => {}
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            let _ended = connection.await;
        }
    }
}

/// Checks a request, runs its route, and logs the result.
async fn answer(app: Arc<App>, request: Request, peer: Peer) -> Response {
    let (request, unread) = UnreadBody::watch(request);
    let id = request_id(request.headers());
    let arrived = Instant::now();
    let share = peer.share(request.headers(), &app.options().trusted_proxies);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let route = routing::find(&method, &path, request.headers());
    let page = Some(&request).filter(|_| app.options().page);
    let page = page.and_then(page::find);
    let is_preflight = app.pages().is_preflight(&request);
    let is_open = page.is_some() || OPEN.contains(&&*path);
    let checked = check(&app, &request, peer, is_open, is_preflight);
    let mut response = match (checked, page, route.action) {
        (Err(error), ..) => dialect::error_reply(route.dialect, error, &id),
        (Ok(_), Some(page), _) => page,
        (Ok(_), None, _) if is_preflight => preflight(request.headers()),
        (Ok(key), None, Ok(action)) => {
            let autoload = dialect::query(&request, "autoload");
            let context = Context {
                arrived,
                autoload: autoload.map(|value| ["true", "1"].contains(&&*value)),
                ..Context::new(app.clone(), id.clone(), share, key)
            };
            dialect::answer(context, request, route.dialect, action).await
        }
        (Ok(_), None, Err(error)) => refusal(route.dialect, &route.methods, error, &id),
    };
    if let Ok(value) = HeaderValue::from_str(&id) {
        if let Some(name) = route.dialect.id_header() {
            let name = HeaderName::from_static(name);
            response.headers_mut().insert(name, value.clone());
        }
        response.headers_mut().insert(REQUEST_ID, value);
    }
    allow_origin(&app, origin.as_ref(), response.headers_mut());
    unread.tell(&mut response);
    let is_probe = OPEN.contains(&&*path) && response.status() == StatusCode::OK;
    if !is_probe {
        let shown: String = path
            .chars()
            .take(PATH_CHARS)
            .flat_map(char::escape_default)
            .collect();
        let (status, ms) = (
            response.status().as_u16(),
            arrived.elapsed().as_secs_f64() * 1e3,
        );
        let note = response.extensions().get::<LogNote>();
        let note = note.map_or_else(String::new, |note| format!(": {}", note.0));
        (app.log())(&format!("{id} {method} {shown} {status} {ms:.1} ms{note}"));
    }
    response
}

fn check(
    app: &App,
    request: &Request,
    peer: Peer,
    is_open: bool,
    is_preflight: bool,
) -> Result<Arc<ApiKey>, ApiError> {
    host(request)?;
    if head_bytes(request) > HEAD_BYTES_MAX {
        return Err(ApiError::head_too_large(HEAD_BYTES_MAX));
    }
    // A page knows no key, so a key is enough.
    if !is_open && !app.keys().are_needed() {
        app.pages().check(request, peer)?;
    }
    let open = || (is_open || is_preflight).then(|| app.keys().open());
    let key = app.keys().find(request.headers()).or_else(open);
    let key = key.ok_or_else(ApiError::unauthorized)?;
    if *app.stopping().borrow() && request.method() == Method::POST {
        return Err(ApiError::unavailable("the server is shutting down"));
    }
    Ok(key)
}

/// The length of a request's line and headers. The buffer's limit bounds only what arrives before the last read.
fn head_bytes(request: &Request) -> usize {
    let headers = request.headers().iter();
    let lines = headers.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    request
        .uri()
        .path_and_query()
        .map_or(0, |path| path.as_str().len())
        + lines.sum::<usize>()
}

/// The reply if no route matches the path, or if the path does not support the method.
fn refusal(dialect: &dyn Dialect, methods: &[&str], error: ApiError, id: &str) -> Response {
    let mut response = dialect::error_reply(dialect, error, id);
    let allowed = HeaderValue::from_str(&methods.join(",")).ok();
    if let Some(allowed) = allowed.filter(|_| !methods.is_empty()) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

/// The client's request id if it is safe to log, or a new one.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    let given = headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    let is_sane = |id: &&str| (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(is_plain);
    match given.filter(is_sane) {
        Some(id) => id.into(),
        None => unique("req-").into(),
    }
}

/// The answer to a CORS preflight request.
fn preflight(asked: &HeaderMap) -> Response {
    // Not 204, which some browsers take to be about the route itself.
    let mut response = text_reply("");
    let asked = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
    allow_sending(asked, response.headers_mut());
    response
}

fn allow_origin(app: &App, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    if let Some(origin) = origin.filter(|origin| app.pages().allows(origin)) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
}

/// Routes that do not require a key.
const OPEN: [&str; 3] = ["/health", "/v1/health", "/"];
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const ID_BYTES_MAX: usize = 128;
const PATH_CHARS: usize = 200;
const HEAD_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_if_it_can_stand_in_a_log() {
        let id = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, value.parse().unwrap());
            request_id(&headers)
        };
        assert_eq!(&*id("abc-1.2:3_4"), "abc-1.2:3_4");
        for wrong in ["", "a b", "a\tb", &"x".repeat(129)] {
            assert!(id(wrong).starts_with("req-"), "{wrong:?}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}

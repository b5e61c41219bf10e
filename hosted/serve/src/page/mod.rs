//! The page for people: a chat in the browser at `/`, whose parts are under `/page/`.
//!
//! Its sources are in `hosted/serve/page`, and what they make is committed and built in, compressed. Every part but the
//! page itself has its hash in its name, so browsers keep parts and ask only whether the page has changed.

mod accept;
mod parts;

use crate::http::{Request, Response, reply};
use accept::{accepts_gzip, accepts_html, is_known};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use parts::Part;

/// The reply to a request of a browser for the page or one of its parts; `None` for all other requests, such as those
/// of programs for `/`.
pub(crate) fn find(request: &Request) -> Option<Response> {
    let headers = request.headers();
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return None;
    }
    let part = match request.uri().path() {
        "/" => Some(parts::page()).filter(|_| accepts_html(headers)),
        path => parts::named(path),
    }?;
    let mut response = if is_known(headers, &part.tag) {
        let mut response = reply(part.content_type, "");
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else if accepts_gzip(headers) {
        let mut response = reply(part.content_type, part.gzip);
        let encoding = HeaderValue::from_static("gzip");
        response
            .headers_mut()
            .insert(header::CONTENT_ENCODING, encoding);
        response
    } else {
        let mut response = reply("text/plain; charset=utf-8", UNCOMPRESSED);
        *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
        response
    };
    add_headers(&part, &mut response);
    Some(response)
}

fn add_headers(part: &Part, response: &mut Response) {
    let is_refused = response.status() == StatusCode::NOT_ACCEPTABLE;
    let headers = response.headers_mut();
    let cache = match (is_refused, part.is_page) {
        (true, _) => "no-store",
        (false, true) => "no-cache",
        (false, false) => "public, max-age=31536000, immutable",
    };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    let vary = HeaderValue::from_static("accept, accept-encoding");
    headers.insert(header::VARY, vary);
    if let Ok(tag) = HeaderValue::from_str(&part.tag)
        && !is_refused
    {
        headers.insert(header::ETAG, tag);
    }
    for (name, value) in SECURITY {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// A page that loads nothing but its own parts, runs nothing but its own script, sends nothing to others, and is shown
/// in no other page.
const SECURITY: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];
const UNCOMPRESSED: &str =
    "the page is only available compressed: send the header Accept-Encoding: gzip\n";

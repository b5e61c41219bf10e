//! Requests and replies, with any type of body.

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};

/// A body: complete or streamed.
pub(crate) type Body = UnsyncBoxBody<Bytes, Error>;
/// Why a body ended early.
pub(crate) type Error = Box<dyn core::error::Error + Send + Sync>;
/// A request.
pub(crate) type Request = hyper::Request<Body>;
/// A reply.
pub(crate) type Response = hyper::Response<Body>;

/// What the log's line of a request says in addition; an extension of the reply.
#[derive(Clone, Debug)]
pub(crate) struct LogNote(pub(crate) String);

/// Boxes a body of any type.
pub(crate) fn boxed<B>(body: B) -> Body
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Error>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// A complete reply with this content type.
pub(crate) fn reply(content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = text_reply(body);
    let content_type = HeaderValue::from_static(content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

/// A complete reply without a content type.
pub(crate) fn text_reply(body: impl Into<Bytes>) -> Response {
    Response::new(boxed(Full::new(body.into())))
}

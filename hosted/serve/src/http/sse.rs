//! Server-sent events, as OpenAI's clients read them.

use crate::api::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use core::convert::Infallible;
use core::fmt::Write as _;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use hyper::body::Frame;
use serde_json::Value;
use tokio::sync::mpsc;

/// Where chunks go.
pub(crate) struct Sender(mpsc::Sender<Bytes>);

/// A reply's body that comes in chunks. Dropped, its sender is told so.
pub(crate) struct Stream(mpsc::Receiver<Bytes>);

/// Nobody reads any more.
#[derive(Debug)]
pub(crate) struct Left;

pub(crate) fn channel() -> (Sender, Stream) {
    let (sender, receiver) = mpsc::channel(CHUNKS);
    (Sender(sender), Stream(receiver))
}

/// So long nothing is said; for ever if `ping` is 0.
pub(crate) async fn silence(ping: Duration) {
    if ping.is_zero() {
        core::future::pending().await
    } else {
        tokio::time::sleep(ping).await;
    }
}

impl Sender {
    /// Until nobody reads any more.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }

    /// A comment, which keeps the connection alive.
    pub(crate) async fn ping(&self) -> Result<(), Left> {
        self.send(":\n\n".into()).await
    }

    /// Waits until the client has taken what came before.
    pub(crate) async fn chunks(&self, chunks: &[Value]) -> Result<(), Left> {
        if chunks.is_empty() {
            return Ok(());
        }
        self.send(framed(chunks)).await
    }

    /// The last chunks, or an error, and the end.
    pub(crate) async fn finish(
        self,
        end: Result<Vec<Value>, ApiError>,
        says_done: bool,
    ) -> Result<(), Left> {
        let mut text = match end {
            Ok(chunks) => framed(&chunks),
            Err(error) => framed(&[error.to_value()]),
        };
        if says_done {
            text.push_str("data: [DONE]\n\n");
        }
        if text.is_empty() {
            return Ok(());
        }
        self.send(text).await
    }

    async fn send(&self, text: String) -> Result<(), Left> {
        self.0.send(text.into()).await.map_err(|_| Left)
    }
}

/// JSON without line breaks, as a line of its own each.
fn framed(chunks: &[Value]) -> String {
    let mut text = String::new();
    for chunk in chunks {
        // A string takes whatever is written to it.
        let _written = write!(text, "data: {chunk}\n\n");
    }
    text
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let received = self.0.poll_recv(context);
        received.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl IntoResponse for Stream {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::new(self));
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Proxies that collect replies are asked not to.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }
}

/// Chunks that may wait for a client.
const CHUNKS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use serde_json::json;

    async fn text_of(stream: Stream) -> String {
        let bytes = Body::new(stream).collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn chunks_are_lines_of_data() {
        let (sender, stream) = channel();
        sender
            .chunks(&[json!({"a": "x\ny"}), json!(1)])
            .await
            .unwrap();
        sender.ping().await.unwrap();
        sender
            .finish(Ok(vec![json!({"b": 2})]), true)
            .await
            .unwrap();
        let expected =
            "data: {\"a\":\"x\\ny\"}\n\ndata: 1\n\n:\n\ndata: {\"b\":2}\n\ndata: [DONE]\n\n";
        assert_eq!(text_of(stream).await, expected);
    }

    #[tokio::test]
    async fn errors_are_chunks_too() {
        let (sender, stream) = channel();
        sender.finish(Err(ApiError::late()), false).await.unwrap();
        let text = text_of(stream).await;
        assert!(text.starts_with("data: {\"error\":{"), "{text}");
        assert!(!text.contains("DONE"));
    }

    #[tokio::test]
    async fn a_sender_learns_that_nobody_reads() {
        let (sender, stream) = channel();
        drop(stream);
        sender.closed().await;
        assert!(sender.ping().await.is_err());
    }
}

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
use tokio::time::{Instant, Sleep, sleep_until};

/// What a stream tells. It is asked from the thread that sends it on, and dropped when nobody reads any more.
pub(crate) trait Source: Send + Unpin + 'static {
    /// The next of it; not again behind the end.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Said>;

    /// Whether it ends with `[DONE]`.
    fn says_done(&self) -> bool;
}

/// A part of a stream.
pub(crate) enum Said {
    /// Chunks, or nothing that a client is told.
    Chunks(Vec<Value>),
    /// The last chunks, or an error.
    End(Result<Vec<Value>, ApiError>),
}

/// A reply's body: written where and when it is read, so that no other thread is woken for it.
pub(crate) struct Stream<S> {
    /// Until its end.
    source: Option<S>,
    pings: Option<Pings>,
}

/// Comments keep a silent connection alive.
struct Pings {
    every: Duration,
    /// When there was something to say.
    last: Instant,
    /// Not set anew for each token: it looks at `last` when it rings.
    timer: Pin<Box<Sleep>>,
}

impl<S: Source> Stream<S> {
    /// After `ping` without a word it says something that means nothing; never if that is 0.
    pub(crate) fn new(source: S, ping: Duration) -> Self {
        let pings = (!ping.is_zero()).then(|| Pings::new(ping));
        Self {
            source: Some(source),
            pings,
        }
    }

    /// All that can be said now.
    fn poll_text(&mut self, context: &mut Context<'_>) -> Poll<Option<String>> {
        let mut text = String::new();
        while let Some(source) = &mut self.source
            && text.len() < FRAME_BYTES
        {
            let Poll::Ready(said) = source.poll_next(context) else {
                break;
            };
            if let Some(pings) = &mut self.pings {
                pings.last = Instant::now();
            }
            match said {
                Said::Chunks(chunks) => frame(&mut text, &chunks),
                Said::End(end) => {
                    match end {
                        Ok(chunks) => frame(&mut text, &chunks),
                        Err(error) => frame(&mut text, &[error.to_value()]),
                    }
                    if source.says_done() {
                        text.push_str("data: [DONE]\n\n");
                    }
                    self.source = None;
                }
            }
        }
        if !text.is_empty() {
            return Poll::Ready(Some(text));
        }
        if self.source.is_none() {
            return Poll::Ready(None);
        }
        match &mut self.pings {
            Some(pings) => pings.poll(context).map(|()| Some(":\n\n".into())),
            None => Poll::Pending,
        }
    }
}

impl Pings {
    fn new(every: Duration) -> Self {
        let last = Instant::now();
        Self {
            every,
            last,
            timer: Box::pin(sleep_until(last + every)),
        }
    }

    /// Ready when it has been silent for so long.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let is_silent = now >= self.last + self.every;
            if is_silent {
                self.last = now;
            }
            self.timer.as_mut().reset(self.last + self.every);
            if is_silent {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

/// JSON without line breaks, as a line of its own each.
fn frame(text: &mut String, chunks: &[Value]) {
    for chunk in chunks {
        // A string takes whatever is written to it.
        let _written = write!(text, "data: {chunk}\n\n");
    }
}

impl<S: Source> hyper::body::Body for Stream<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let text = self.poll_text(context);
        text.map(|text| text.map(|text| Ok(Frame::data(text.into()))))
    }
}

impl<S: Source> IntoResponse for Stream<S> {
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

/// What came meanwhile is sent in pieces of this size.
const FRAME_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use serde_json::json;
    use tokio::sync::mpsc;

    impl Source for mpsc::Receiver<Said> {
        fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Said> {
            let said = self.poll_recv(context);
            said.map(|said| said.unwrap_or(Said::End(Err(ApiError::late()))))
        }

        fn says_done(&self) -> bool {
            true
        }
    }

    fn stream(ping: Duration) -> (mpsc::Sender<Said>, Body) {
        let (sender, source) = mpsc::channel(8);
        (sender, Body::new(Stream::new(source, ping)))
    }

    async fn next(body: &mut Body) -> Option<String> {
        let frame = body.frame().await?.unwrap().into_data().unwrap();
        Some(String::from_utf8(frame.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn chunks_are_lines_of_data() {
        let (sender, mut body) = stream(Duration::ZERO);
        let chunks = vec![json!({"a": "x\ny"}), json!(1)];
        sender.try_send(Said::Chunks(chunks)).unwrap();
        sender.try_send(Said::Chunks(Vec::new())).unwrap();
        let text = "data: {\"a\":\"x\\ny\"}\n\ndata: 1\n\n";
        assert_eq!(next(&mut body).await.unwrap(), text);
        let end = Said::End(Ok(vec![json!({"b": 2})]));
        sender.try_send(end).unwrap();
        let text = "data: {\"b\":2}\n\ndata: [DONE]\n\n";
        assert_eq!(next(&mut body).await.unwrap(), text);
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test]
    async fn errors_are_chunks_too() {
        let (sender, mut body) = stream(Duration::ZERO);
        drop(sender);
        let text = next(&mut body).await.unwrap();
        assert!(text.starts_with("data: {\"error\":{"), "{text}");
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test]
    async fn silence_is_broken_and_words_put_that_off() {
        let ping = Duration::from_millis(40);
        let (sender, mut body) = stream(ping);
        let begun = Instant::now();
        for _ in 0..2 {
            assert_eq!(next(&mut body).await.unwrap(), ":\n\n");
        }
        assert!(begun.elapsed() >= 2 * ping);
        tokio::time::sleep(ping / 2).await;
        let said = Instant::now();
        sender.try_send(Said::Chunks(vec![json!(1)])).unwrap();
        assert_eq!(next(&mut body).await.unwrap(), "data: 1\n\n");
        assert_eq!(next(&mut body).await.unwrap(), ":\n\n");
        assert!(said.elapsed() >= ping);
    }

    #[tokio::test]
    async fn a_source_is_dropped_with_its_stream() {
        let (sender, body) = stream(Duration::ZERO);
        drop(body);
        sender.closed().await;
    }
}

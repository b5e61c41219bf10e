//! Streamed replies.

use super::reply::{Response, boxed};
use core::convert::Infallible;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use hyper::body::{Bytes, Frame};
use hyper::header::{self, HeaderValue};
use tokio::time::{Instant, Sleep, sleep_until};

/// Produces a stream's content. It is polled on the thread that sends it, and dropped when the client disconnects.
pub(crate) trait Source: Send + Unpin + 'static {
    /// Appends what is available to `text`. Must not be called again after the end.
    fn poll_next(&mut self, context: &mut Context<'_>, text: &mut String) -> Poll<Step>;
}

/// The state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    More,
    End,
}

/// The properties of a stream that are sent before its content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamKind {
    /// Its `content-type`.
    pub(crate) content_type: &'static str,
    /// A message that keeps a silent connection alive and has no meaning.
    pub(crate) keep_alive: &'static str,
    /// How long its clients bear silence.
    pub(crate) silence_max: Duration,
}

/// A reply's body, produced on the thread that sends it, so that no other thread has to be woken.
pub(crate) struct Stream<S> {
    /// `None` after the end.
    source: Option<S>,
    kind: StreamKind,
    pings: Option<Pings>,
}

/// When to keep a silent connection alive.
struct Pings {
    every: Duration,
    /// When something was last sent.
    last: Instant,
    /// Not reset for each token: when it fires, it checks `last`.
    timer: Pin<Box<Sleep>>,
}

impl<S: Source> Stream<S> {
    /// A reply that is kept alive after each `ping` of silence; 0 disables that.
    pub(crate) fn reply(source: S, kind: StreamKind, ping: Duration) -> Response {
        let mut response = Response::new(boxed(Self::new(source, kind, ping)));
        let headers = response.headers_mut();
        let content_type = HeaderValue::from_static(kind.content_type);
        headers.insert(header::CONTENT_TYPE, content_type);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Ask buffering proxies not to buffer.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    fn new(source: S, kind: StreamKind, ping: Duration) -> Self {
        let is_kept = !ping.is_zero() && !kind.keep_alive.is_empty();
        Self {
            source: Some(source),
            kind,
            pings: is_kept.then(|| Pings::new(ping.min(kind.silence_max))),
        }
    }

    /// All text that can be sent now.
    fn poll_text(&mut self, context: &mut Context<'_>) -> Poll<Option<String>> {
        let mut text = String::new();
        while let Some(source) = &mut self.source
            && text.len() < FRAME_BYTES
        {
            let Poll::Ready(step) = source.poll_next(context, &mut text) else {
                break;
            };
            if step == Step::End {
                self.source = None;
            }
        }
        if !text.is_empty() {
            if let Some(pings) = &mut self.pings {
                pings.last = Instant::now();
            }
            return Poll::Ready(Some(text));
        }
        if self.source.is_none() {
            return Poll::Ready(None);
        }
        match &mut self.pings {
            Some(pings) => {
                let ping = pings.poll(context);
                ping.map(|()| Some(self.kind.keep_alive.to_owned()))
            }
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

    /// Ready after a silence of the ping interval.
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

/// Maximum frame size for text that has accumulated.
const FRAME_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::super::reply::Body;
    use super::*;
    use http_body_util::BodyExt as _;
    use tokio::sync::mpsc;

    impl Source for mpsc::Receiver<&'static str> {
        fn poll_next(&mut self, context: &mut Context<'_>, text: &mut String) -> Poll<Step> {
            self.poll_recv(context).map(|sent| match sent {
                Some(sent) => {
                    text.push_str(sent);
                    Step::More
                }
                None => Step::End,
            })
        }
    }

    const EVENTS: StreamKind = StreamKind {
        content_type: "text/event-stream",
        keep_alive: ":\n\n",
        silence_max: Duration::MAX,
    };

    fn stream(ping: Duration) -> (mpsc::Sender<&'static str>, Body) {
        let (sender, source) = mpsc::channel(8);
        (sender, Stream::reply(source, EVENTS, ping).into_body())
    }

    async fn next(body: &mut Body) -> Option<String> {
        let frame = body.frame().await?.unwrap().into_data().unwrap();
        Some(String::from_utf8(frame.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn what_is_there_is_sent_together() {
        let (sender, mut body) = stream(Duration::ZERO);
        for text in ["a\n", "", "b\n"] {
            sender.try_send(text).unwrap();
        }
        assert_eq!(next(&mut body).await.unwrap(), "a\nb\n");
        sender.try_send("c").unwrap();
        drop(sender);
        assert_eq!(next(&mut body).await.unwrap(), "c");
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
        sender.try_send("data: 1\n\n").unwrap();
        assert_eq!(next(&mut body).await.unwrap(), "data: 1\n\n");
        assert_eq!(next(&mut body).await.unwrap(), ":\n\n");
        assert!(said.elapsed() >= ping);
    }

    /// An event of which nothing is written, such as how far a prompt has been read, is silence, too.
    #[tokio::test]
    async fn events_without_words_do_not_put_that_off() {
        let ping = Duration::from_millis(40);
        let (sender, mut body) = stream(ping);
        let begun = Instant::now();
        let sending = tokio::spawn(async move {
            while begun.elapsed() < 8 * ping && sender.send("").await.is_ok() {
                tokio::time::sleep(ping / 4).await;
            }
        });
        assert_eq!(next(&mut body).await.unwrap(), ":\n\n");
        assert!(begun.elapsed() < 4 * ping, "{:?}", begun.elapsed());
        sending.abort();
    }

    #[tokio::test]
    async fn a_client_s_patience_counts_if_it_is_shorter() {
        let (_sender, source) = mpsc::channel(1);
        let hasty = StreamKind {
            silence_max: Duration::from_millis(20),
            ..EVENTS
        };
        let begun = Instant::now();
        let mut body = Stream::reply(source, hasty, Duration::from_secs(60)).into_body();
        assert_eq!(next(&mut body).await.unwrap(), ":\n\n");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[tokio::test]
    async fn a_source_is_dropped_with_its_stream() {
        let (sender, body) = stream(Duration::ZERO);
        drop(body);
        sender.closed().await;
    }
}

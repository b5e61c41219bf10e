//! Whether the body of a request was read.

use super::reply::{Body, Error, Request, Response, boxed};
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, ready};
use hyper::body::{Body as _, Bytes, Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use std::sync::Arc;

/// Tells whether the body of a request was read to its end. If it was not, the connection ends with the reply, and a
/// client that does not know that would send its next request in vain.
#[derive(Debug)]
pub(crate) struct UnreadBody(Arc<AtomicBool>);

/// A body that notes its end.
struct Noted {
    body: Body,
    is_read: Arc<AtomicBool>,
}

impl UnreadBody {
    /// Watches the body of a request.
    pub(crate) fn watch(request: Request) -> (Request, Self) {
        let is_read = Arc::new(AtomicBool::new(request.body().is_end_stream()));
        let noted = |body| Noted {
            body,
            is_read: Arc::clone(&is_read),
        };
        (request.map(|body| boxed(noted(body))), Self(is_read))
    }

    /// Says in a reply that its connection ends, if it does.
    pub(crate) fn tell(&self, response: &mut Response) {
        if !self.0.load(Ordering::Relaxed) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
    }
}

impl hyper::body::Body for Noted {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.is_read.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

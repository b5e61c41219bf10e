//! HTTP without routes: keys, request bodies, streamed replies, slow clients, addresses.

mod auth;
mod body;
mod patient;
mod peer;
mod reply;
mod stream;

pub(crate) use auth::Keys;
pub(crate) use body::{Bodies, Posted};
pub(crate) use patient::Patient;
pub(crate) use peer::Peer;
pub use peer::{TrustedProxies, TrustedProxiesError};
pub(crate) use reply::{Request, Response, boxed, reply, text_reply};
pub(crate) use stream::{Source, Step, Stream, StreamKind};

//! HTTP without routes: keys, browsers, request bodies, streamed replies, slow clients, addresses.

mod body;
mod browser;
mod patient;
mod peer;
mod reply;
mod room;
mod stream;
mod unread;
mod weight;

pub(crate) use body::{Asked, Bodies};
pub use browser::{CorsOrigins, CorsOriginsError};
pub(crate) use browser::{Pages, allow_sending, host};
pub(crate) use patient::{Patient, Sent};
pub(crate) use peer::Peer;
pub use peer::{TrustedProxies, TrustedProxiesError};
pub(crate) use reply::{LogNote, Request, Response, boxed, reply, text_reply};
pub(crate) use room::BodyRoom;
pub(crate) use stream::{Source, Step, Stream, StreamKind};
pub(crate) use unread::UnreadBody;
pub(crate) use weight::is_heavy;

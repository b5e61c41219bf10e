//! What requests say and replies have, apart from any route.

pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod logprobs;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod sampling;
mod stops;
mod structural;

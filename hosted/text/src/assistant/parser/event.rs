//! What the inside of calls means, character by character.

/// What a reader found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A call of this function begins.
    Begin(String),
    /// Its arguments go on.
    Arguments(String),
    /// It is complete.
    End,
}

/// What a character meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The calls go on.
    More,
    /// The calls are over with it.
    Done,
    /// The calls were over before it, or before what [`Reader::unread`](super::reader::Reader::unread) has.
    Over,
    /// It is no call, since the last [`Event::End`].
    Bad,
}

//! Meanings of the characters inside calls.

/// What a reader found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A call of this function begins.
    Begin(String),
    /// More of its arguments.
    Arguments(String),
    /// It is complete.
    End,
}

/// The meaning of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The calls continue.
    More,
    /// The calls end with this character.
    Done,
    /// The calls ended before it, or before [`Reader::unread`](super::reader::Reader::unread).
    Over,
    /// The text since the last [`Event::End`] is not a call.
    Bad,
}

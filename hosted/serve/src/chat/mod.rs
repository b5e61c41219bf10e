//! From a conversation to tokens, and from an answer's text to what it says.

pub(crate) mod answer;
pub(crate) mod conversation;
pub(crate) mod prompt;

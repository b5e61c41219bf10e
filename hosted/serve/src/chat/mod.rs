//! Conversations: from messages to a prompt, and from an answer to its parts.

pub(crate) mod answer;
pub(crate) mod messages;
pub(crate) mod prompt;

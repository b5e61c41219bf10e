//! Converts conversations to tokens, and the text of answers to content, reasoning and calls.

pub(crate) mod answer;
pub(crate) mod billing;
pub(crate) mod conversation;
pub(crate) mod prompt;

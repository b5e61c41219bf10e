//! What a parser is asked for, and what it reports.

use crate::assistant::tool::Tool;

/// What is new in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// More content.
    Content(String),
    /// More reasoning.
    Reasoning(String),
    /// Call number `index` begins.
    CallBegin {
        /// From 0.
        index: usize,
        /// Identical for equal answers and [`ParserOptions::id_seed`]. The model's own id is not used: it may come
        /// last.
        id: String,
        /// The function's name.
        name: String,
    },
    /// More of its arguments, as JSON text.
    CallArguments {
        /// The call's index.
        index: usize,
        /// The next part.
        text: String,
    },
}

/// How to parse an answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParserOptions<'a> {
    /// The end of the prompt's text, which may have begun reasoning.
    pub prompt_end: &'a str,
    /// The tools; without tools, calls are not parsed.
    pub tools: &'a [Tool],
    /// Whether to report more than one call; if false, later ones are dropped.
    pub parallel: bool,
    /// Whether to separate reasoning; if false, it is part of the content, with its marks.
    pub split_reasoning: bool,
    /// Whether to report arguments as they arrive. Meant for answers that a grammar constrains, because the reported
    /// part of a malformed call cannot be taken back. If false, a call is reported once it is complete, and a malformed
    /// one becomes content.
    pub stream_arguments: bool,
    /// The seed for the ids of calls.
    pub id_seed: u64,
}

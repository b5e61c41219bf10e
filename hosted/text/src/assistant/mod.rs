//! The parts of a model's answer: content, reasoning and function calls, in the model's own format.
//!
//! A [`Dialect`] is such a format; it is detected from the model's chat template. An [`AnswerParser`] parses an
//! answer incrementally ([`Delta`]).
//!
//! The parser expects control tokens as text: `<|channel|>`, `[TOOL_CALLS]`.
#![forbid(unsafe_code)]

mod constrain;
mod dialect;
mod marks;
mod parser;
mod past;
#[cfg(test)]
mod tests;
mod tool;

pub use constrain::{CallGrammar, Reasoning, Trigger, Triggers};
pub use dialect::{Dialect, ReasoningState};
pub use parser::{AnswerParser, Delta, ParserOptions};
pub use tool::{Tool, ToolChoice, ToolError};

//! What a model's answer consists of: content, reasoning and calls of functions, in the model's own format.
//!
//! A [`Dialect`] is such a format; it is found from the model's chat template. An [`AnswerParser`] takes an
//! answer apart as it comes ([`Delta`]).
//!
//! The parser is given control tokens as their text: `<|channel|>`, `[TOOL_CALLS]`.
#![forbid(unsafe_code)]

mod constrain;
mod dialect;
mod parser;
#[cfg(test)]
mod tests;
mod tool;

pub use constrain::{CallGrammar, Reasoning, Trigger, Triggers};
pub use dialect::Dialect;
pub use parser::{AnswerParser, Delta, ParserOptions};
pub use tool::{Tool, ToolChoice, ToolError};

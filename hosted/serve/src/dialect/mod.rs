//! Client APIs. A [`Dialect`] has routes, parses requests, frames streams, and writes answers, errors and lists of
//! models; it converts from and to the plain values of [`api`](crate::api).
//!
//! To add one, write a module and add it to [`ALL`].

mod drive;
mod error;
mod fields;
mod generation;
mod grammar;
mod llama;
mod logprobs;
mod openai;
mod prompts;
mod reply;
mod sampling;
mod seam;
mod stream;
mod structural;
#[cfg(test)]
mod toy;

pub(crate) use drive::answer;
pub(crate) use error::error_reply;
pub use grammar::{json_schema, response_format};
pub use openai::messages;
pub(crate) use seam::{Action, Dialect};

/// All dialects. Paths that no dialect has are answered by the first one.
pub(crate) const ALL: &[&dyn Dialect] = &[
    &openai::OpenAi,
    &llama::LlamaServer,
    #[cfg(test)]
    &toy::Toy,
];

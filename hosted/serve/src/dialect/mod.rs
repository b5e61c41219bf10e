//! The languages of clients. A [`Dialect`] has routes, reads requests, frames and writes answers, errors and lists of
//! models; what it reads and writes are the plain values of [`api`](crate::api).
//!
//! A new one is a module and its line in [`ALL`].

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
pub(crate) use llama::generation as completion_generation;
pub(crate) use seam::{Action, Dialect};

/// All of them. Clients of paths that none has are spoken to in the first one.
pub(crate) const ALL: &[&dyn Dialect] = &[
    &openai::OpenAi,
    &llama::LlamaServer,
    #[cfg(test)]
    &toy::Toy,
];

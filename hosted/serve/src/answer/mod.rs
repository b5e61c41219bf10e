//! Turns typed requests into jobs of the engine, and the engine's events into events of an answer.

mod adapters;
mod app;
mod clock;
mod downloads;
mod kept;
mod prompts;
mod run;
mod running;
mod sampler;
mod streams;
mod text;
mod vectors;

pub(crate) use adapters::load_adapter;
pub use app::WrapSampler;
pub(crate) use app::{App, Context, Resumable, unique, unix_time};
pub(crate) use prompts::text_of;
pub(crate) use run::TextAnswer;
pub(crate) use streams::StreamFigures;
pub(crate) use text::{chat, complete, prompt, sampler_of};
pub(crate) use vectors::{embed, rank};

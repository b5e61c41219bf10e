//! Turns typed requests into jobs of the engine, and the engine's events into events of an answer.

mod app;
mod clock;
mod prompts;
mod run;
mod sampler;
mod text;
mod vectors;

pub use app::WrapSampler;
pub(crate) use app::{App, Context, unique};
pub(crate) use prompts::text_of;
pub use run::TextAnswer;
pub(crate) use text::{chat, complete, sampler_of};
pub(crate) use vectors::{embed, rank};

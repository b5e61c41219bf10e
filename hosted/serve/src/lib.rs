//! The server: OpenAI's routes over one engine.
//!
//! One thread steps ([`engine`]); it knows nothing of HTTP. Those that speak HTTP tokenise, render templates and
//! compile grammars, hand the engine a [`Job`](engine::Job) and get its events through a bounded channel.
//! Whatever runs beside a request, and whatever of it was computed before, its answer is the same.
#![forbid(unsafe_code)]

pub mod engine;
pub mod metrics;

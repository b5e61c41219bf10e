//! The thread that computes, and the handle through which other threads give it work.
//!
//! Each model has a scheduler with its own waiting work (`queue`), memory (`pool`) and running texts (`running`). A
//! turn admits texts (`admission`), chooses rows (`plan`), computes them (`step`), and then runs a step of one task of
//! each other kind (`tasks`: embeddings, scores). A file uses only those above it:
//!
//! ```text
//! share · job · options · slot · view · telemetry
//! entry                 what other threads know of a model
//! request               what a request's choices share, and where its events are sent
//! pace                  lengths of turns, and their parts
//! pool · tasks
//! queue · run
//! running
//! admission · plan · suspended
//! step
//! scheduler
//! thread                commands between turns, turns of all models
//! handle
//! ```

mod admission;
mod domain;
mod entry;
mod handle;
mod job;
mod meter;
mod options;
mod pace;
mod plan;
mod pool;
mod queue;
mod request;
mod run;
mod running;
mod scheduler;
mod share;
mod slot;
mod step;
mod suspended;
mod tasks;
mod telemetry;
mod thread;
mod view;

pub use domain::CacheDomain;
pub use handle::EngineHandle;
pub use job::{
    Choice, EmbedJob, Event, Job, JobError, ModelId, Score, ScoreJob, Stops, TextKeeper, Timings,
    Why,
};
pub use meter::TokenMeter;
pub use options::{EngineOptions, ModelOptions};
pub use share::Share;
pub use slot::{SlotAction, SlotDone};
pub use view::{ModelView, SlotView};

pub(crate) use pace::reads_whole;

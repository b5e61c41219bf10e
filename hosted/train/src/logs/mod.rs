//! What a run reports while it goes on: a progress line, `log.jsonl` and `log.csv` with TRL's names, files of events for
//! TensorBoard, and `curves.svg`.

mod curves;
mod error;
mod events;
mod line;
mod progress;
mod run_log;
mod window;

pub use error::LogError;
pub use line::{LogLine, Metric};
pub use progress::{Pace, ProgressLine};
pub use run_log::RunLog;
pub use window::LogWindow;

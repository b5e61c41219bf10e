//! What a run reports while it goes on.

mod window;

pub use window::LogWindow;

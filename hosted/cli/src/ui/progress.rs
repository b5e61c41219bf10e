//! Progress bars for loading and other work.

use core::time::Duration;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sluice::core::model::LoadProgress;
use std::time::Instant;

/// Shows the progress of loading on a terminal, if loading takes long enough. With `--quiet` or
/// `NO_COLOR` it shows nothing.
#[derive(Debug)]
pub(crate) struct LoadBar {
    since: Instant,
    is_terminal: bool,
    bar: Option<ProgressBar>,
}

/// Shorter loads show nothing.
const SHOW_AFTER: Duration = Duration::from_millis(300);

impl LoadBar {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            is_terminal: crate::ui::output::shows_progress(),
            bar: None,
        }
    }

    pub(crate) fn update(&mut self, progress: LoadProgress) {
        if !self.is_terminal {
            return;
        }
        // Hidden at first, so that the rate it shows later counts from the beginning.
        let bar = self.bar.get_or_insert_with(|| {
            let template = "loading [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            let style =
                ProgressStyle::with_template(template).expect("the template is well formed");
            let hidden = ProgressDrawTarget::hidden();
            ProgressBar::with_draw_target(Some(progress.total_bytes), hidden)
                .with_style(style.progress_chars("=> "))
        });
        if bar.is_hidden() && self.since.elapsed() > SHOW_AFTER {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.set_position(progress.done_bytes);
    }
}

impl Drop for LoadBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows the progress of a piece of work, as [`LoadBar`] does.
#[derive(Debug)]
pub(crate) struct WorkBar {
    since: Instant,
    bar: Option<ProgressBar>,
}

impl WorkBar {
    /// A bar of `total` steps named `name`.
    pub(crate) fn new(name: &'static str, total: u64) -> Self {
        Self::with_template(name, total, "{msg} [{bar:40}] {pos}/{len} {eta}")
    }

    /// A bar of `total` bytes.
    pub(crate) fn of_bytes(name: &'static str, total_bytes: u64) -> Self {
        let template = "{msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        Self::with_template(name, total_bytes, template)
    }

    fn with_template(name: &'static str, total: u64, template: &str) -> Self {
        let bar = crate::ui::output::shows_progress().then(|| {
            let style = ProgressStyle::with_template(template).expect("well formed");
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden())
                .with_style(style.progress_chars("=> "))
                .with_message(name)
        });
        Self {
            since: Instant::now(),
            bar,
        }
    }

    pub(crate) fn update(&mut self, done: u64) {
        let Some(bar) = &self.bar else { return };
        if bar.is_hidden() && self.since.elapsed() > SHOW_AFTER {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.set_position(done);
    }
}

impl Drop for WorkBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

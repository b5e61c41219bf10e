//! A bar for loading, where there is a person to see it.

use core::time::Duration;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sluice::core::model::LoadProgress;
use std::io::{self, IsTerminal as _};
use std::time::Instant;

/// Shows how far loading is on a terminal's stderr, if it takes long enough to be seen. Draws
/// no colours, so `NO_COLOR` holds always.
#[derive(Debug)]
pub(super) struct LoadBar {
    since: Instant,
    is_terminal: bool,
    bar: Option<ProgressBar>,
}

/// Loads that end sooner show nothing.
const SHOW_AFTER: Duration = Duration::from_millis(300);

impl LoadBar {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            is_terminal: io::stderr().is_terminal(),
            bar: None,
        }
    }

    pub(super) fn update(&mut self, progress: LoadProgress) {
        if !self.is_terminal {
            return;
        }
        // Hidden at first, so that the rate it will show counts from the beginning.
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

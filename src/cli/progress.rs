//! A progress bar for work that takes long.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time before the bar is shown.
const PATIENCE: Duration = Duration::from_millis(500);

/// A progress bar of long work on standard error, if that is a terminal.
pub(crate) struct WorkProgress {
    started: Instant,
    template: &'static str,
    bar: Option<ProgressBar>,
}

impl WorkProgress {
    pub(crate) fn new() -> Self {
        Self::with_template("reading messages {bar:30} {bytes}/{total_bytes} ({eta})")
    }

    /// Returns the bar of a command that counts sessions.
    pub(crate) fn of_sessions() -> Self {
        Self::with_template("keeping sessions {bar:30} {pos}/{len} ({eta})")
    }

    fn with_template(template: &'static str) -> Self {
        Self { started: Instant::now(), template, bar: None }
    }

    /// Shows that `done` of `total` bytes or sessions are done.
    pub(crate) fn update(&mut self, done: u64, total: u64) {
        if self.started.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| new_bar(self.template));
        bar.set_length(total.max(done));
        bar.set_position(done);
    }

    /// Removes the bar, so that the next text stands on a clean line.
    pub(crate) fn finish(&mut self) {
        // The bar clears itself when it is dropped.
        self.bar = None;
    }
}

fn new_bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

//! A progress bar for work that takes long.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time before the bar is shown.
const PATIENCE: Duration = Duration::from_millis(500);

/// A progress bar of the index on standard error, if that is a terminal.
pub(crate) struct IndexProgress {
    started: Instant,
    bar: Option<ProgressBar>,
}

impl IndexProgress {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), bar: None }
    }

    /// Shows that `done` of `total` bytes are read.
    pub(crate) fn update(&mut self, done: u64, total: u64) {
        if self.started.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_insert_with(new_bar);
        bar.set_length(total.max(done));
        bar.set_position(done);
    }

    /// Removes the bar, so that the next text stands on a clean line.
    pub(crate) fn finish(&mut self) {
        // The bar clears itself when it is dropped.
        self.bar = None;
    }
}

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let template = "reading messages {bar:30} {bytes}/{total_bytes} ({eta})";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

//! A progress bar for work that takes longer than a person waits without one.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work shorter than this shows nothing.
const PATIENCE: Duration = Duration::from_millis(500);

/// Shows how far the index is, on standard error, if that is a terminal.
pub(crate) struct IndexProgress {
    started: Instant,
    bar: Option<ProgressBar>,
}

impl IndexProgress {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), bar: None }
    }

    /// `done` of `total` bytes are read.
    pub(crate) fn update(&mut self, done: u64, total: u64) {
        if self.started.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_insert_with(new_bar);
        bar.set_length(total.max(done));
        bar.set_position(done);
    }

    /// Removes the bar, so that what is said next stands on a clean line.
    pub(crate) fn finish(&mut self) {
        // It clears itself when it is dropped.
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

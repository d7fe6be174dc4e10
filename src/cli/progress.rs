//! A progress bar for work that takes long.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time before the bar is shown.
const PATIENCE: Duration = Duration::from_millis(500);

/// The time between two looks at the progress of a search.
const LOOK: Duration = Duration::from_millis(20);

/// The forms of the bars.
const BYTES: &str = "reading messages {bar:30} {bytes}/{total_bytes} ({eta})";
const MESSAGES: &str = "indexing messages {bar:30} {pos}/{len} ({eta})";
const SESSIONS: &str = "keeping sessions {bar:30} {pos}/{len} ({eta})";

/// A progress bar of long work on standard error, if that is a terminal.
pub(crate) struct WorkProgress {
    started: Instant,
    template: &'static str,
    bar: Option<ProgressBar>,
}

impl WorkProgress {
    /// Makes a bar that counts bytes.
    pub(crate) fn new() -> Self {
        Self::with_template(BYTES)
    }

    /// Makes a bar of the index of search, which counts messages.
    pub(crate) fn of_search() -> Self {
        Self::with_template(MESSAGES)
    }

    /// Makes a bar that counts sessions.
    pub(crate) fn of_sessions() -> Self {
        Self::with_template(SESSIONS)
    }

    fn with_template(template: &'static str) -> Self {
        Self { started: Instant::now(), template, bar: None }
    }

    /// Shows that `done` of `total` are done.
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

/// Runs a search. Shows on a terminal how many messages are indexed for it, as `progress` tells.
pub(crate) fn show_search_progress<T>(
    progress: impl Fn() -> Option<(u64, u64)> + Send + Sync,
    search: impl FnOnce() -> T,
) -> T {
    if !std::io::stderr().is_terminal() {
        return search();
    }
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut bar = WorkProgress::of_search();
            while !is_done.load(Ordering::Relaxed) {
                if let Some((done, total)) = progress() {
                    bar.update(done, total);
                }
                thread::sleep(LOOK);
            }
        });
        let found = search();
        is_done.store(true, Ordering::Relaxed);
        found
    })
}

fn new_bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

//! The thread that writes the file of the index. It begins with the first search of a process that may write, and
//! follows the messages that come, a moment later and at low priority.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use rustix::thread::gettid;

use super::SearchIndex;
use super::error::TableError;
use super::state::{INDEXED_BY_SEARCH, OpenFileIndex, SearchState};
use super::titles::{TitleMark, list_titles};
use crate::index::{Index, IndexChanges};

/// The time after a change in which more changes are awaited.
const PAUSE: Duration = Duration::from_secs(1);
/// The time between two looks at those that wait.
const STEP: Duration = Duration::from_millis(50);
/// The longest sleep of the thread.
const SLEEP: Duration = Duration::from_secs(24 * 3600);
/// The most bytes of records that one transaction takes.
const BATCH_BYTES: usize = 16 << 20;
/// The most messages that one transaction takes.
const BATCH: usize = 20_000;
/// The lowest priority of a thread.
const LOWEST: i32 = 19;

impl SearchIndex {
    /// Starts to follow the index, and the thread if this process may write.
    pub(super) fn start(self: &Arc<Self>) {
        if self.is_started.swap(true, Ordering::Relaxed) {
            return;
        }
        let of_listener = Arc::downgrade(self);
        self.index.subscribe(move |changes| {
            if let Some(search) = of_listener.upgrade() {
                search.note_changes(changes);
            }
        });
        if !self.may_write || self.must_stop() {
            return;
        }
        let (of_thread, index) = (Arc::downgrade(self), Arc::clone(&self.index));
        let thread = std::thread::Builder::new().name("msgfs-search".into());
        match thread.spawn(move || run_builder(&of_thread, &index)) {
            Ok(thread) => *self.thread.lock() = Some(thread),
            Err(error) => {
                self.state.lock().set_fault(Some(self.describe_fault(&error.to_string())));
            }
        }
    }

    /// Notes messages whose text may have changed.
    fn note_changes(&self, changes: &IndexChanges) {
        if !changes.redrawn.is_empty() {
            self.changed.lock().extend(&changes.redrawn);
        }
    }

    fn must_stop(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Writes what the file lacks, and seals it. A damaged file is made once more.
    fn run(&self) {
        let mut done = self.write_missing();
        if let Err(error @ TableError::Damaged(_)) = &done {
            self.handle_fault(&mut self.state.lock(), error);
            done = self.write_missing();
        }
        let mut state = self.state.lock();
        if let Err(error) = &done {
            self.handle_fault(&mut state, error);
        }
        if self.may_write {
            let fault = done.err().map(|error| self.describe_fault(&error.to_string()));
            if fault.is_some() || state.file.is_some() {
                state.set_fault(fault);
            }
        }
        drop(state);
        self.progress.1.store(0, Ordering::Relaxed);
    }

    fn write_missing(&self) -> Result<(), TableError> {
        // They are listed first, so the rows of now have them or later ones.
        let titles = list_titles(&self.index);
        let mut missing = {
            let mut state = self.state.lock();
            self.refresh_file(&mut state);
            if !self.can_build(&mut state) {
                return Ok(());
            }
            if state.file.is_none() {
                self.file.create()?;
                self.refresh_file(&mut state);
            }
            self.list_unwritten(&mut state)
        };
        self.sort_by_location(&mut missing);
        self.progress.0.store(0, Ordering::Relaxed);
        self.progress.1.store(missing.len() as u64, Ordering::Relaxed);
        let mut rest = missing.as_slice();
        while !rest.is_empty() && (!self.must_stop() || rest.len() <= INDEXED_BY_SEARCH) {
            let some = rest.get(..BATCH).unwrap_or(rest);
            let (batch, behind) = rest.split_at(self.batch_len(some, BATCH_BYTES));
            let mut state = self.state.lock();
            self.refresh_file(&mut state);
            let Some(file) = state.file.as_mut().filter(|file| file.writes) else {
                return Err(TableError::Damaged(
                    "it was removed or changed while it was written".into(),
                ));
            };
            if std::mem::take(&mut file.is_sealed) {
                self.file.remove_seal()?;
            }
            let added = file.words.add_messages(&self.index, self.bodies.as_ref(), batch);
            if let Some(stamp) = self.file.stamp() {
                file.stamp = stamp;
            }
            state.note_unreadable(added?);
            drop(state);
            self.progress.0.fetch_add(batch.len() as u64, Ordering::Relaxed);
            rest = behind;
        }
        let mut state = self.state.lock();
        if rest.is_empty() {
            state.drop_memory_index();
            self.write_titles(&mut state, &titles)?;
        }
        if let Some(file) = state.file.as_mut().filter(|file| file.writes && !file.is_sealed) {
            self.file.write_seal()?;
            file.is_sealed = true;
        }
        Ok(())
    }

    /// Writes the titles of the rows, if they are not those that the file has.
    fn write_titles(
        &self,
        state: &mut SearchState,
        titles: &[TitleMark],
    ) -> Result<(), TableError> {
        let is_due = |file: &&mut OpenFileIndex| file.writes && file.words.has_other_titles(titles);
        let Some(file) = state.file.as_mut().filter(is_due) else { return Ok(()) };
        if std::mem::take(&mut file.is_sealed) {
            self.file.remove_seal()?;
        }
        let saved = file.words.save_titles(titles);
        if let Some(stamp) = self.file.stamp() {
            file.stamp = stamp;
        }
        saved
    }

    /// Ends a run for those who wait for it.
    fn publish_run(&self) {
        *self.runs.0.lock() += 1;
        self.runs.1.notify_all();
    }
}

fn run_builder(search: &Weak<SearchIndex>, index: &Index) {
    let mut is_first = true;
    loop {
        let seen = index.change_signal().count();
        {
            let Some(search) = search.upgrade() else { return };
            let must_stop = search.must_stop();
            let is_due = if must_stop { search.state.lock().has_memory_index() } else { !is_first };
            if search.is_wanted.swap(false, Ordering::Relaxed) && !must_stop || is_due {
                // Those who wait must hear of an end, also of that by a bug.
                if catch_unwind(AssertUnwindSafe(|| search.run())).is_err() {
                    let fault = search.describe_fault("a bug in msgfs, which its log describes");
                    search.state.lock().set_fault(Some(fault));
                }
                search.publish_run();
            }
            if must_stop {
                search.publish_run();
                return;
            }
        }
        if std::mem::take(&mut is_first) {
            // Somebody waits for the first index, and for nothing later.
            let _ = setpriority_process(Some(gettid()), LOWEST);
        }
        index.change_signal().wait(seen, Instant::now() + SLEEP);
        let until = Instant::now() + PAUSE;
        while Instant::now() < until {
            let Some(search) = search.upgrade() else { return };
            if search.must_stop() || search.is_wanted.load(Ordering::Relaxed) {
                break;
            }
            drop(search);
            std::thread::sleep(STEP);
        }
    }
}

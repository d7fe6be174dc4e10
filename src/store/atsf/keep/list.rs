//! The list of kept threads, in a file of msgfs's own.
//!
//! `thread.json` says itself that a thread was kept, but other programs drop the metadata that they do not know. Any
//! number of processes may add to the list at once, and it only grows.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::head::KeptSource;
use crate::model::locks::Mutex;
use crate::store::append_log::read_log;
use crate::store::engine::lines::append::{append_line, has_final_newline};
use crate::store::fs::{self, Stamp};
use crate::store::text::json_values::{as_text, pick_members};
use crate::store::{StoreError, append_log};

/// The name of the list in the folder of a store's own state.
pub const FILE: &str = "kept.jsonl";
/// The largest list, in bytes.
const LIMIT: u64 = 1 << 30;
/// The time for which an addition waits for another.
const PATIENCE: Duration = Duration::from_secs(10);

/// The list, as it was last read.
#[derive(Debug, Default)]
pub struct KeptList(Mutex<KeptListState>);

#[derive(Debug, Default)]
struct KeptListState {
    /// The file; `None` if there is no folder for state.
    path: Option<PathBuf>,
    stamp: Option<Stamp>,
    threads: HashMap<String, KeptSource>,
}

#[derive(Serialize)]
struct KeptListLine<'a> {
    thread: &'a str,
    #[serde(flatten)]
    source: &'a KeptSource,
}

impl KeptList {
    /// Sets the folder of the store's own state.
    pub(in crate::store::atsf) fn set_folder(&self, state: &Path) {
        self.0.lock().path = Some(state.join(FILE));
    }

    /// Returns the session from which a thread was kept, if the list has it.
    pub(in crate::store::atsf) fn find_thread(&self, thread: &str) -> Option<KeptSource> {
        let mut list = self.0.lock();
        let path = list.path.clone()?;
        let stamp = Stamp::from_path(&path).ok().flatten();
        if stamp != list.stamp {
            match read_threads(&path) {
                Ok(threads) => (list.threads, list.stamp) = (threads, stamp),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "the list of kept threads cannot be read");
                }
            }
        }
        list.threads.get(thread).cloned()
    }

    /// Adds a thread to the list in a file, unless it has the thread. It is on disk when this returns.
    ///
    /// # Errors
    /// As the system gave it.
    pub(super) fn add_thread(
        path: &Path,
        thread: &str,
        source: &KeptSource,
    ) -> Result<(), StoreError> {
        add_line(path, thread, source).map_err(|e| StoreError::io(path, e))
    }
}

fn add_line(path: &Path, thread: &str, source: &KeptSource) -> io::Result<()> {
    if read_threads(path)?.get(thread) == Some(source) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::make_dirs(folder, 0o700)?;
    let file = fs::open_append(path, 0o600)?;
    if !fs::lock_with_timeout(&file, PATIENCE)? {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "another program holds its lock"));
    }
    if read_threads(path)?.get(thread) == Some(source) {
        return Ok(());
    }
    let size = file.metadata()?.len();
    let reader = fs::open_regular(path)?;
    let is_torn = !has_final_newline(&reader, size)?;
    let line = serde_json::to_string(&KeptListLine { thread, source })?;
    append_line(&file, size, is_torn, &line)?;
    file.sync_data()?;
    fs::sync_dir(folder)
}

/// Returns the threads of the list. The last line of a thread counts.
fn read_threads(path: &Path) -> io::Result<HashMap<String, KeptSource>> {
    let bytes = read_log(path, LIMIT)?;
    let lines = append_log::split_log(&bytes);
    let parse = |line: append_log::AppendedLine<'_>| {
        let text = std::str::from_utf8(line.text).ok()?;
        let [thread] = pick_members(text, ["thread"])?;
        Some((as_text(thread.as_ref())?.into_owned(), KeptSource::parse(text)?))
    };
    Ok(lines.filter_map(parse).collect())
}

//! What people are told about the store, and which folders tell of changes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::Atsf;
use super::lost;
use super::roots::{AGENT, GIT, THREADS};
use super::table::{LOG, META, Source, State};
use crate::model::{ORIGIN, one_line};
use crate::store::fs;

/// Lines of one kind that are shown to people.
const SHOWN: usize = 50;
/// Single files remembered as being in trouble.
const MAX_TROUBLE: usize = 1000;

impl Atsf {
    /// Notes, or with `None` forgets, what is wrong with a file or folder.
    pub(super) fn set_trouble(&self, path: &str, what: Option<String>) {
        if what.is_none() && !self.trouble.read().contains_key(path) {
            return;
        }
        let mut trouble = self.trouble.write();
        match what {
            Some(what) if trouble.len() < MAX_TROUBLE => {
                drop(trouble.insert(path.to_owned(), what));
            }
            Some(_) => {}
            None => drop(trouble.remove(path)),
        }
    }

    /// Notes that something cannot be read now.
    pub(super) fn cannot(&self, path: &str, what: &str, error: &std::io::Error) {
        self.fault.note(error);
        self.set_trouble(path, Some(format!("cannot {what}: {error}")));
    }

    pub(super) fn health_lines(&self) -> Vec<String> {
        if let Some(gone) = fs::away_line(&self.project) {
            return vec![gone];
        }
        let mut out: Vec<String> = Vec::new();
        {
            let table = self.table.read();
            for thread in table.threads.iter().filter(|t| !t.gone) {
                let what = match &thread.state {
                    State::Misnamed(id) => format!(
                        "names the thread {:?}; the folder's name counts, and nothing is written there",
                        one_line(id)
                    ),
                    State::Refused(why) => why.clone(),
                    State::Foreign | State::Usable => continue,
                };
                out.push(format!("{} {what}", one_line(&table.raw_path(thread, META))));
            }
        }
        let trouble = self.trouble.read();
        out.extend(trouble.iter().map(|(path, what)| format!("{} {what}", one_line(path))));
        cut(out)
    }

    /// Messages of mine that no log has any more.
    pub(super) fn lost_lines(&self) -> Vec<String> {
        // While a scan is under way nobody waits for it; then the last one counts.
        if self.scanning.try_lock().is_some_and(|listed| !*listed) {
            return Vec::new();
        }
        let missing = {
            let table = self.table.read();
            self.kept.missing(|print| table.ids.has(print))
        };
        let line = |place: &lost::Place| {
            let bytes = self.kept.read(place.offset, place.len as usize).ok()?;
            let text = String::from_utf8_lossy(&bytes);
            let record = lost::record(&text)?;
            let thread = record.thread.replace(ORIGIN, "~");
            Some(format!(
                "my message {} of {} is not in the thread {} any more: another program rewrote or \
                 removed the log; it is shown in sent/ and not sent again",
                one_line(&record.line.id),
                one_line(&record.line.timestamp),
                one_line(&thread)
            ))
        };
        cut(missing.iter().filter_map(line).collect())
    }

    pub(super) fn path_of_source(&self, source: u32) -> Option<String> {
        let table = self.table.read();
        match Source::of(source) {
            Source::Kept => None,
            Source::Log(n) => Some(table.raw_path(table.get(n)?, LOG)),
            Source::Meta(n) => Some(table.raw_path(table.get(n)?, META)),
        }
    }

    /// The folders of threads; of a root that has none yet, the folder in which they will appear; and
    /// those of git's that tell of worktrees.
    pub(super) fn watched_folders(&self) -> Vec<PathBuf> {
        let mut out = self.repository.lock().watched(&self.project);
        let table = self.table.read();
        if table.roots.is_empty() {
            out.push(self.project.clone());
        }
        for root in table.roots.iter().filter(|root| root.here || root.label.is_empty()) {
            let agent = root.path.join(AGENT);
            let threads = agent.join(THREADS);
            let deepest = [threads, agent].into_iter().find(|folder| folder.is_dir());
            out.push(deepest.unwrap_or_else(|| root.path.clone()));
        }
        for thread in table.threads.iter().filter(|t| !t.gone) {
            if let Some(root) = table.roots.get(thread.root as usize) {
                out.push(root.path.join(AGENT).join(THREADS).join(&thread.name));
            }
        }
        out.sort_unstable();
        out.dedup();
        out
    }

    pub(super) fn is_of_concern(&self, folder: &Path, name: &OsStr) -> bool {
        let Some(name) = name.to_str() else { return false };
        let told = self.repository.lock().concerns(folder, name);
        let table = self.table.read();
        let of_root = table.roots.iter().find_map(|root| {
            let below = folder.strip_prefix(&root.path).ok()?;
            let parts: Vec<&OsStr> = below.iter().collect();
            match parts.as_slice() {
                [] => Some(name == AGENT || name == GIT),
                [agent] if *agent == AGENT => Some(name == THREADS),
                [agent, threads] if *agent == AGENT && *threads == THREADS => {
                    Some(!name.starts_with('.'))
                }
                [agent, threads, _] if *agent == AGENT && *threads == THREADS => {
                    Some(matches!(name, LOG | META))
                }
                _ => None,
            }
        });
        told.unwrap_or(false) || of_root.unwrap_or(told.is_none() && name == AGENT)
    }
}

/// The first lines, and how many more there are.
fn cut(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

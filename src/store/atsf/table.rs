//! All threads ever seen, and how far their logs were read.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ids::Ids;
use super::log::Tally;
use super::roots::{AGENT, Root, THREADS};
use crate::model::{ORIGIN, Timestamp};
use crate::store::fs::Stamp;
use crate::store::{EmptyThread, StoreError};

/// The files of a thread that have a name of their own.
pub(super) const LOG: &str = "messages.jsonl";
pub(super) const META: &str = "thread.json";

/// The source that stands for what is kept of my lost messages.
pub(super) const KEPT: u32 = 0;
/// The source numbers of an index go no further, and a thread has two.
const MAX_THREADS: usize = (1 << 23) - 1;

/// Whether a folder is a thread that can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    /// It has no `thread.json` of this format.
    #[default]
    Foreign,
    Usable,
    /// Its `thread.json` names another thread, this one.
    Misnamed(String),
    /// It must not be read: why.
    Refused(String),
}

/// A folder in `.agent/threads/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Thread {
    pub root: u32,
    /// The folder's name, which is the thread's id.
    pub name: String,
    /// Tells it from a thread of the same id in an earlier root; empty if there is none.
    pub label: String,
    pub gone: bool,
    pub state: State,
    pub title: Option<String>,
    /// Milliseconds.
    pub created: i64,
    pub updated: i64,
    pub meta: Stamp,
    /// The log as it was when it was read; `None` if there is none.
    pub log: Option<Stamp>,
    pub tally: Tally,
    /// The unterminated last line was a message and was delivered.
    pub tail: bool,
    /// Counts the readings of the whole log; 0 if it was never read.
    pub epoch: u32,
    /// Another thread has the plain id of one of its messages.
    pub shared: bool,
}

impl Thread {
    /// Its log could not be read to its end.
    pub fn is_unread(&self) -> bool {
        self.tally.offset == u64::MAX
    }

    /// Its messages are shown.
    pub fn is_read(&self) -> bool {
        !self.gone && matches!(self.state, State::Usable | State::Misnamed(_))
    }

    /// Its id in the mount.
    pub fn key(&self) -> String {
        if self.label.is_empty() {
            return self.name.clone();
        }
        format!("{}{ORIGIN}{}", self.name, self.label)
    }
}

/// What a source number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// What is kept of my lost messages.
    Kept,
    /// The log of this thread.
    Log(u32),
    /// The `thread.json` of this thread.
    Meta(u32),
}

impl Source {
    pub fn of(number: u32) -> Self {
        match (number.checked_sub(1), number % 2) {
            (None, _) => Self::Kept,
            (Some(n), 1) => Self::Log(n / 2),
            (Some(n), _) => Self::Meta(n / 2),
        }
    }

    pub fn number(self) -> u32 {
        match self {
            Self::Kept => KEPT,
            Self::Log(thread) => 1 + 2 * thread,
            Self::Meta(thread) => 2 + 2 * thread,
        }
    }
}

/// The tables.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub roots: Vec<Root>,
    pub threads: Vec<Thread>,
    by_name: HashMap<(u32, String), u32>,
    pub ids: Ids,
}

impl Table {
    pub fn get(&self, thread: u32) -> Option<&Thread> {
        self.threads.get(thread as usize)
    }

    pub fn put(&mut self, n: u32, thread: Thread) {
        if let Some(slot) = self.threads.get_mut(n as usize) {
            *slot = thread;
        }
    }

    pub fn find(&self, root: u32, name: &str) -> Option<u32> {
        // Borrowing half of a pair is not possible; names are short.
        self.by_name.get(&(root, name.to_owned())).copied()
    }

    /// The number of a folder; `None` if there are too many.
    pub fn number(&mut self, root: u32, name: &str) -> Option<u32> {
        if let Some(n) = self.find(root, name) {
            return Some(n);
        }
        if self.threads.len() >= MAX_THREADS {
            return None;
        }
        let n = self.threads.len() as u32;
        self.threads.push(Thread { root, name: name.to_owned(), gone: true, ..Thread::default() });
        self.by_name.insert((root, name.to_owned()), n);
        Some(n)
    }

    /// The folder of the root a thread lies in, and the names below it.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if there is no such thread.
    pub fn place(&self, thread: u32) -> Result<(PathBuf, [String; 3]), StoreError> {
        let thread = self.get(thread).ok_or(StoreError::Moved)?;
        let root = self.roots.get(thread.root as usize).ok_or(StoreError::Moved)?;
        Ok((root.path.clone(), [AGENT.into(), THREADS.into(), thread.name.clone()]))
    }

    /// A path in `raw/`: what lies in a worktree is under its label.
    pub fn raw_path(&self, thread: &Thread, file: &str) -> String {
        let label = self.roots.get(thread.root as usize).map_or("", |root| &root.label);
        let slash = if label.is_empty() { "" } else { "/" };
        format!("{label}{slash}{}/{file}", thread.name)
    }

    /// The thread of an id as the mount has it, or as its folder there is called.
    pub fn by_key(&self, key: &str) -> Option<u32> {
        let is = |spelled: &dyn Fn(&Thread) -> bool| {
            let all = (0u32..).zip(&self.threads);
            all.filter(|(_, t)| !t.gone && t.state != State::Foreign)
                .find(|(_, t)| spelled(t))
                .map(|(n, _)| n)
        };
        is(&|t| t.key() == key)
            .or_else(|| is(&|t| !t.label.is_empty() && format!("{}~{}", t.name, t.label) == key))
    }

    /// Gives labels to the threads of one id, but the one in the earliest root; those that have
    /// another now.
    pub fn relabel(&mut self) -> Vec<u32> {
        let mut first: HashMap<&str, u32> = HashMap::new();
        for thread in self.threads.iter().filter(|t| t.is_read()) {
            let root = first.entry(&thread.name).or_insert(thread.root);
            *root = thread.root.min(*root);
        }
        let mut changed = Vec::new();
        for (n, thread) in (0u32..).zip(&self.threads).filter(|(_, t)| t.is_read()) {
            let plain = first.get(thread.name.as_str()) == Some(&thread.root);
            let label = self.roots.get(thread.root as usize).map_or("", |root| &root.label);
            let label = if plain { "" } else { label };
            if thread.label != label {
                changed.push((n, label.to_owned()));
            }
        }
        for (n, label) in &changed {
            if let Some(thread) = self.threads.get_mut(*n as usize) {
                thread.label.clone_from(label);
            }
        }
        changed.into_iter().map(|(n, _)| n).collect()
    }

    /// Threads without messages: those whose log is empty, elsewhere or not here any more.
    pub fn empty(&self) -> Vec<EmptyThread> {
        let silent = |t: &&Thread| t.is_read() && t.tally.stats.messages == 0 && !t.tail;
        let shown = |t: &Thread| EmptyThread {
            id: t.key(),
            title: t.title.clone(),
            time: Timestamp::from_millis(t.updated),
        };
        self.threads.iter().filter(silent).map(shown).collect()
    }

    /// As bytes, for [`Table::restore`].
    pub fn save(&self) -> Vec<u8> {
        let Ok(text) = serde_json::to_vec(&(&self.roots, &self.threads)) else {
            return Vec::new();
        };
        let mut out = (text.len() as u64).to_le_bytes().to_vec();
        out.extend_from_slice(&text);
        out.extend_from_slice(&self.ids.save());
        out
    }

    /// From bytes; `None` if they cannot be used.
    pub fn restore(saved: &[u8]) -> Option<Self> {
        let (len, rest) = saved.split_first_chunk::<8>()?;
        let (text, ids) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        let (roots, threads): (Vec<Root>, Vec<Thread>) = serde_json::from_slice(text).ok()?;
        let by_name = (0u32..).zip(&threads).map(|(n, t)| ((t.root, t.name.clone()), n)).collect();
        Some(Self { roots, threads, by_name, ids: Ids::restore(ids)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(label: &str) -> Root {
        Root { path: format!("/{label}").into(), label: label.into(), here: true }
    }

    #[test]
    fn source_numbers_go_both_ways() {
        for n in 0..20 {
            assert_eq!(Source::of(n).number(), n);
        }
        assert_eq!(Source::of(1), Source::Log(0));
        assert_eq!(Source::of(2), Source::Meta(0));
        assert_eq!(Source::of(3), Source::Log(1));
    }

    #[test]
    fn the_same_id_in_two_roots_is_two_threads() {
        let mut table = Table { roots: vec![root(""), root("wt")], ..Table::default() };
        let [b, a, other] =
            [(1, "t"), (0, "t"), (1, "u")].map(|(r, n)| table.number(r, n).unwrap());
        for thread in &mut table.threads {
            (thread.gone, thread.state) = (false, State::Usable);
        }
        assert_eq!(table.relabel(), [b]);
        let key = |table: &Table, n| table.get(n).unwrap().key();
        assert_eq!([a, b, other].map(|n| key(&table, n)), ["t", "t\0wt", "u"]);
        assert_eq!(
            [table.by_key("t"), table.by_key("t\0wt"), table.by_key("t~wt")],
            [Some(a), Some(b), Some(b)]
        );
        assert_eq!(table.raw_path(table.get(b).unwrap(), LOG), "wt/t/messages.jsonl");
        // Alone it is plain again.
        table.threads[a as usize].gone = true;
        assert_eq!(table.relabel(), [b]);
        assert_eq!(key(&table, b), "t");
        let again = Table::restore(&table.save()).unwrap();
        assert_eq!(again.threads, table.threads);
        assert_eq!(again.find(1, "u"), Some(other));
        assert!(Table::restore(b"junk").is_none());
    }
}

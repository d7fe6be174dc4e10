//! The health of a link, for people.
//!
//! The thread that carries writes it; `status.txt` is rendered from it. A copy lies in the link's folder, so that
//! `msgfs link status` and `doctor` can report it without an open mount.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::secret;
use crate::model::locks::Mutex;
use crate::model::{Timestamp, sanitize_line};
use crate::store::{atomic_file, fs};

/// The name of the copy in the link's folder.
const FILE: &str = "standing.json";

/// The limit on the size of the copy.
const MAX_FILE: u64 = 1 << 20;

/// The limit on the number of notes.
const MAX_NOTES: usize = 32;

/// The shortest time between two copies for changed counts.
const SAVED_EVERY: Duration = Duration::from_millis(100);

/// The precision of the time of the last contact, in milliseconds.
const CONTACT_MS: i64 = 60_000;

/// The reason for which a link is stopped while no process carries.
pub(super) const NOT_CARRIED: &str = "neither a mount nor `msgfs carry --all` is running";

/// The current activity of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum LinkState {
    /// A link that has tried nothing yet.
    #[default]
    Starting,
    /// A link whose engine answers.
    Connected {
        /// The start of this state, in milliseconds since the epoch.
        since: i64,
    },
    /// A link whose engine does not answer, or refuses. It tries again by itself.
    Waiting {
        /// The start of this state, in milliseconds since the epoch.
        since: i64,
        /// The words of the engine or the system.
        why: String,
    },
    /// A link that carries nothing until a person does something.
    Stopped {
        /// The problem and the remedy.
        why: String,
    },
}

/// The health of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkHealth {
    /// The current activity.
    #[serde(flatten)]
    pub state: LinkState,
    /// A short description of the engine, without secrets: `nats://10.0.0.5:4222, space team`.
    pub engine: String,
    /// The time of the engine's last answer, in milliseconds since the epoch.
    pub last_contact: Option<i64>,
    /// The number of waiting messages, counted per recipient, or of waiting lines.
    pub waiting: u64,
    /// The number of messages or lines that were refused for good, here or by the engine.
    pub refused: u64,
    /// Further notes for people, one a line.
    pub notes: Vec<String>,
    /// The writers whose lines wait, and the first waiting byte of each log.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub behind: BTreeMap<String, LogBacklog>,
    /// True if another process of this machine carries, and this health is its report.
    #[serde(skip)]
    pub by_another: bool,
    /// The reason why my machines do not exchange marks, or not all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marks: Option<String>,
}

/// The waiting lines of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogBacklog {
    /// The offset of the first waiting line.
    pub from: u64,
    /// The reason, unless the engine cannot be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl LinkHealth {
    /// Removes users and passwords from the addresses in all texts.
    fn hide_logins(&mut self) {
        let why = match &mut self.state {
            LinkState::Waiting { why, .. } | LinkState::Stopped { why } => Some(why),
            LinkState::Starting | LinkState::Connected { .. } => None,
        };
        let behind = self.behind.values_mut().filter_map(|backlog| backlog.why.as_mut());
        let texts = [&mut self.engine].into_iter().chain(why).chain(&mut self.notes);
        for text in texts.chain(&mut self.marks).chain(behind) {
            *text = secret::hide_logins(text);
        }
    }

    /// Renders the health as lines for people. The first line begins with the link's name.
    pub fn render_lines(&self, name: &str) -> Vec<String> {
        let time = |ms: i64| Timestamp::from_millis(ms - ms.rem_euclid(1000)).rfc3339_short();
        let state = match &self.state {
            LinkState::Starting => "not started".to_owned(),
            LinkState::Connected { since } => format!("connected since {}", time(*since)),
            LinkState::Waiting { since, why } => {
                format!("not connected since {}, tried again by itself: {why}", time(*since))
            }
            LinkState::Stopped { why } => format!("stopped: {why}"),
        };
        let mut line = format!("{}: {}; {state}", sanitize_line(name), sanitize_line(&self.engine));
        if let (Some(at), LinkState::Waiting { .. }) = (self.last_contact, &self.state) {
            line = format!("{line}; last contact {}", time(at));
        }
        if self.by_another {
            line = format!("{line}; carried by another process of this machine");
        }
        for (number, what) in [(self.waiting, "waiting"), (self.refused, "refused")] {
            if number > 0 {
                line = format!("{line}; {number} {what}");
            }
        }
        let notes =
            self.notes.iter().chain(&self.marks).map(|note| format!("  {}", sanitize_line(note)));
        std::iter::once(line).chain(notes).collect()
    }
}

/// The health on a board.
#[derive(Debug)]
struct BoardHealth {
    health: LinkHealth,
    /// The time of the last change.
    changed_at: Timestamp,
    /// The moment from which on the copy may be written, if it lacks a change.
    copy_due: Option<Instant>,
    /// The moment of the last copy.
    copied: Option<Instant>,
}

/// The health of a link for a process that does not carry for it.
pub trait HealthReader: std::fmt::Debug + Send + Sync {
    /// Returns the health at this moment.
    fn read_health(&self) -> LinkHealth;
}

/// A link's health, shared between threads.
#[derive(Debug)]
pub struct HealthBoard {
    name: String,
    folder: PathBuf,
    /// The store whose logs the link carries, if it carries logs.
    store: Option<String>,
    /// The source of the health, if this process does not carry for the link.
    reader: Option<Box<dyn HealthReader>>,
    health: Mutex<BoardHealth>,
}

impl HealthBoard {
    /// Returns the board of a link whose folder keeps a copy.
    pub fn new(name: &str, folder: &Path, engine: &str) -> Self {
        let engine = secret::hide_logins(engine);
        let health = LinkHealth { engine, ..LinkHealth::default() };
        Self {
            name: name.to_owned(),
            folder: folder.to_owned(),
            store: None,
            reader: None,
            health: Mutex::new(BoardHealth {
                health,
                changed_at: Timestamp::now(),
                copy_due: None,
                copied: None,
            }),
        }
    }

    /// Returns the board of a link that is not opened, for this reason. The counts are those that an earlier process
    /// saved. The copy stays as it is until [`HealthBoard::save_now`].
    pub fn new_stopped(name: &str, folder: &Path, engine: &str, why: &str) -> Self {
        let board = Self::new(name, folder, engine);
        let before = read_saved_health(folder).unwrap_or_default();
        let why = sanitize_line(why).into_owned();
        board.update_counts(|health| {
            (health.waiting, health.refused) = (before.waiting, before.refused);
            health.state = LinkState::Stopped { why };
        });
        board
    }

    /// Returns the board of a link that carries the logs of a store.
    #[must_use]
    pub fn with_store(self, store: &str) -> Self {
        Self { store: Some(store.to_owned()), ..self }
    }

    /// Returns the board of a link for which this process does not carry. Nothing is saved.
    #[must_use]
    pub fn with_reader(self, reader: Box<dyn HealthReader>) -> Self {
        Self { reader: Some(reader), ..self }
    }

    /// Reads the health anew, if this process does not carry for the link.
    pub fn refresh(&self) {
        if let Some(reader) = &self.reader {
            let health = reader.read_health();
            let mut kept = self.health.lock();
            let engine = kept.health.engine.clone();
            kept.change_to(LinkHealth { engine, ..health });
        }
    }

    /// Returns true if lines wait.
    pub fn has_backlog(&self) -> bool {
        !self.health.lock().health.behind.is_empty()
    }

    /// Returns why the line at this byte of a writer's log in this store waits, if it does.
    pub fn explain_wait(&self, store: &str, writer: &str, at: u64) -> Option<String> {
        let kept = self.health.lock();
        let health = &kept.health;
        let behind = health.behind.get(writer).filter(|behind| behind.from <= at)?;
        if self.store.as_deref() != Some(store) {
            return None;
        }
        let since = |ms: i64| Timestamp::from_millis(ms - ms.rem_euclid(1000)).rfc3339_short();
        let (goes, why) = match (&health.state, &behind.why) {
            (LinkState::Stopped { why }, _) => (", which is stopped", why.clone()),
            (_, Some(why)) => (" and goes by itself", why.clone()),
            (LinkState::Waiting { since: at, why }, None) => {
                (" and goes by itself", format!("not connected since {}: {why}", since(*at)))
            }
            (LinkState::Starting | LinkState::Connected { .. }, None) => return None,
        };
        let (name, engine) = (sanitize_line(&self.name), sanitize_line(&health.engine));
        Some(format!("waits for the link {name} ({engine}){goes}: {}\n", sanitize_line(&why)))
    }

    /// Takes over the health that another process of this machine saved, which carries for the link.
    pub fn follow_other_process(&self) {
        let Some(told) = read_saved_health(&self.folder) else { return };
        let mut kept = self.health.lock();
        let (engine, marks) = (kept.health.engine.clone(), kept.health.marks.clone());
        kept.change_to(LinkHealth { by_another: true, marks, engine, ..told });
    }

    /// Reports this process's own state from now on.
    pub fn report_own_state(&self) {
        let mut kept = self.health.lock();
        if kept.health.by_another {
            let (engine, marks) = (kept.health.engine.clone(), kept.health.marks.clone());
            kept.change_to(LinkHealth { engine, marks, ..LinkHealth::default() });
        }
    }

    /// Returns the link's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the current health.
    pub fn health(&self) -> LinkHealth {
        self.health.lock().health.clone()
    }

    /// Returns the time of the last change.
    pub fn changed_at(&self) -> Timestamp {
        self.health.lock().changed_at
    }

    /// Changes the health, and saves the copy if anything changed.
    pub fn update_health(&self, change: impl FnOnce(&mut LinkHealth)) {
        let mut kept = self.health.lock();
        if kept.update(change) {
            self.save_copy(&mut kept);
        }
    }

    /// Changes the health. Counts change with each message, so the copy follows with [`HealthBoard::save_if_due`].
    pub fn update_counts(&self, change: impl FnOnce(&mut LinkHealth)) {
        let mut kept = self.health.lock();
        if kept.update(change) && kept.copy_due.is_none() {
            let last = kept.copied.map(|at| at + SAVED_EVERY);
            kept.copy_due = Some(last.unwrap_or_else(Instant::now));
        }
    }

    /// Saves the copy if it lacks a change and is old enough. Returns the time until the next save, if one is needed.
    pub fn save_if_due(&self) -> Option<Duration> {
        let mut kept = self.health.lock();
        let left = kept.copy_due?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.save_copy(&mut kept);
            return None;
        }
        Some(left)
    }

    /// Saves the copy if it lacks a change.
    pub fn save_now(&self) {
        let mut kept = self.health.lock();
        if kept.copy_due.is_some() {
            self.save_copy(&mut kept);
        }
    }

    /// Saves a first copy, if there is none: other processes know by it that there is a link.
    pub fn save_first(&self) {
        if read_saved_health(&self.folder).is_none() {
            let mut kept = self.health.lock();
            self.save_copy(&mut kept);
            // The first change is saved at once, too.
            kept.copied = None;
        }
    }

    /// Records that the engine answered.
    pub fn report_contact(&self) {
        let now = Timestamp::now().millis();
        self.update_health(|health| {
            // The time is coarse, so that not every answer changes the health.
            let is_known = health.last_contact.is_some_and(|at| now - at < CONTACT_MS);
            if !is_known {
                health.last_contact = Some(now);
            }
            if !matches!(health.state, LinkState::Connected { .. }) {
                health.state = LinkState::Connected { since: now };
            }
        });
    }

    /// Records that the engine did not answer, or refused.
    pub fn report_failure(&self, why: &str) {
        let why = sanitize_line(why).into_owned();
        let now = Timestamp::now().millis();
        self.update_health(|health| {
            let since = match health.state {
                LinkState::Waiting { since, .. } => since,
                _ => now,
            };
            health.state = LinkState::Waiting { since, why };
        });
    }

    /// Records that the link stopped until a person does something.
    pub fn report_stopped(&self, why: &str) {
        let why = sanitize_line(why).into_owned();
        self.update_health(|health| health.state = LinkState::Stopped { why });
    }

    /// Saves the copy. The lock is held, so that an older copy never replaces a newer one. While another process
    /// carries, the copy belongs to that process.
    fn save_copy(&self, kept: &mut BoardHealth) {
        (kept.copy_due, kept.copied) = (None, Some(Instant::now()));
        if kept.health.by_another {
            return;
        }
        let Ok(text) = serde_json::to_vec(&kept.health) else { return };
        let path = self.folder.join(FILE);
        let temp = atomic_file::temp_path(&path);
        // The copy is only for display, so no sender waits for the disk because of it.
        let written = fs::open_read_write(&temp, 0o600).and_then(|mut file| {
            file.set_len(0)?;
            file.write_all(&text)?;
            std::fs::rename(&temp, &path)
        });
        if let Err(error) = written {
            tracing::debug!(link = self.name, %error, "the state of the link cannot be saved");
        }
    }
}

impl BoardHealth {
    /// Changes the health. Returns true if anything changed.
    fn update(&mut self, change: impl FnOnce(&mut LinkHealth)) -> bool {
        let mut health = self.health.clone();
        change(&mut health);
        health.hide_logins();
        health.notes.truncate(MAX_NOTES);
        self.change_to(health)
    }

    fn change_to(&mut self, health: LinkHealth) -> bool {
        let is_changed = health != self.health;
        if is_changed {
            (self.health, self.changed_at) = (health, Timestamp::now());
        }
        is_changed
    }
}

/// Reads the copy in a link's folder; `None` if there is none.
pub fn read_saved_health(folder: &Path) -> Option<LinkHealth> {
    let bytes = fs::read_small_file(&folder.join(FILE), MAX_FILE).ok()?;
    let mut health: LinkHealth = serde_json::from_slice(&bytes).ok()?;
    // An earlier msgfs saved them.
    health.hide_logins();
    Some(health)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S1311: no line goes by itself while the link is stopped.
    #[test]
    fn s1311_a_line_of_a_stopped_link_says_why_it_waits() {
        let dir = tempfile::tempdir().unwrap();
        let board = HealthBoard::new("nats", dir.path(), "nats://h").with_store("samp");
        let backlog = LogBacklog { from: 7, why: None };
        board.update_health(|health| health.behind = [("a".to_owned(), backlog)].into());
        board.report_stopped("url: must begin with nats://");
        let why =
            "waits for the link nats (nats://h), which is stopped: url: must begin with nats://\n";
        assert_eq!(board.explain_wait("samp", "a", 7).as_deref(), Some(why));
        assert_eq!(board.explain_wait("samp", "a", 6), None);
        board.report_failure("no route");
        let waits = board.explain_wait("samp", "a", 7).unwrap();
        assert!(waits.contains("and goes by itself: not connected since"), "{waits}");
    }
}

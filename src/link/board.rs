//! Where a link stands, as people are told.
//!
//! The thread that carries writes it, whoever renders `status.txt` reads it. A copy lies in the link's
//! folder, so that `msgfs link status` and `doctor` can tell where no mount of theirs is open.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::model::locks::Mutex;
use crate::model::{Timestamp, sanitize_line};
use crate::store::{fs, place};

/// The file in the link's folder.
const FILE: &str = "standing.json";

/// No standing is larger.
const MAX_FILE: u64 = 1 << 20;

/// No more notes are kept.
const MAX_NOTES: usize = 32;

/// How exact the time of the last contact is, in milliseconds.
const CONTACT_MS: i64 = 60_000;

/// What a link does right now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum LinkState {
    /// Nothing was tried yet.
    #[default]
    Starting,
    /// The engine answers.
    Connected {
        /// Since when, in milliseconds since the epoch.
        since: i64,
    },
    /// The engine does not answer, or refuses; it is tried again by itself.
    Waiting {
        /// Since when, in milliseconds since the epoch.
        since: i64,
        /// What the engine or the system says.
        why: String,
    },
    /// It carries nothing until a person does something.
    Stopped {
        /// What is wrong, and what to do.
        why: String,
    },
}

/// Where a link stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkHealth {
    /// What it does right now.
    #[serde(flatten)]
    pub state: LinkState,
    /// The engine, in few words, without secrets: `nats://10.0.0.5:4222, space team`.
    pub engine: String,
    /// When the engine last answered, in milliseconds since the epoch.
    pub last_contact: Option<i64>,
    /// How much waits to be carried away: messages and recipients, or lines.
    pub waiting: u64,
    /// How much was refused for good, here or by the engine.
    pub refused: u64,
    /// What else people should know, a line each.
    pub notes: Vec<String>,
    /// The writers of lines that wait, and since which byte of their logs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub behind: BTreeMap<String, LogBacklog>,
    /// Another process of this machine carries, and tells this.
    #[serde(skip)]
    pub by_another: bool,
    /// Why my other machines and this one do not tell each other what was read, or not all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marks: Option<String>,
}

/// Lines of a log that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogBacklog {
    /// Where the first of them begins.
    pub from: u64,
    /// Why, if it is not that the engine cannot be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl LinkHealth {
    /// The same in lines for people, the first one with the link's name.
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

/// A link's standing, shared.
#[derive(Debug)]
pub struct HealthBoard {
    name: String,
    folder: PathBuf,
    /// The store whose logs the link carries, if it carries logs.
    store: Option<String>,
    health: Mutex<(LinkHealth, Timestamp)>,
}

impl HealthBoard {
    /// The board of a link, whose folder keeps a copy.
    pub fn new(name: &str, folder: &Path, engine: String) -> Self {
        let standing = LinkHealth { engine, ..LinkHealth::default() };
        Self {
            name: name.to_owned(),
            folder: folder.to_owned(),
            store: None,
            health: Mutex::new((standing, Timestamp::now())),
        }
    }

    /// The same for a link that carries the logs of a store.
    #[must_use]
    pub fn with_store(self, store: &str) -> Self {
        Self { store: Some(store.to_owned()), ..self }
    }

    /// Returns true if lines wait.
    pub fn has_backlog(&self) -> bool {
        !self.health.lock().0.behind.is_empty()
    }

    /// Why the line at this byte of a writer's log in this store waits, if it does.
    pub fn explain_wait(&self, store: &str, writer: &str, at: u64) -> Option<String> {
        let kept = self.health.lock();
        let standing = &kept.0;
        let behind = standing.behind.get(writer).filter(|behind| behind.from <= at)?;
        if self.store.as_deref() != Some(store) {
            return None;
        }
        let since = |ms: i64| Timestamp::from_millis(ms - ms.rem_euclid(1000)).rfc3339_short();
        let why = match (&standing.state, &behind.why) {
            (_, Some(why)) => why.clone(),
            (LinkState::Waiting { since: at, why }, None) => {
                format!("not connected since {}: {why}", since(*at))
            }
            _ => return None,
        };
        let (name, engine) = (sanitize_line(&self.name), sanitize_line(&standing.engine));
        Some(format!(
            "waits for the link {name} ({engine}) and goes by itself: {}\n",
            sanitize_line(&why)
        ))
    }

    /// Tells what another process of this machine tells, which carries for the link.
    pub fn follow_other_process(&self) {
        let Some(told) = read_saved_health(&self.folder) else { return };
        let mut kept = self.health.lock();
        let marks = kept.0.marks.clone();
        let standing =
            LinkHealth { by_another: true, marks, engine: kept.0.engine.clone(), ..told };
        if standing != kept.0 {
            *kept = (standing, Timestamp::now());
        }
    }

    /// Tells what this process knows from now on.
    pub fn report_own_state(&self) {
        let mut kept = self.health.lock();
        if kept.0.by_another {
            let (engine, marks) = (kept.0.engine.clone(), kept.0.marks.clone());
            *kept = (LinkHealth { engine, marks, ..LinkHealth::default() }, Timestamp::now());
        }
    }

    /// The link's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How things stand.
    pub fn health(&self) -> LinkHealth {
        self.health.lock().0.clone()
    }

    /// When that last changed.
    pub fn changed_at(&self) -> Timestamp {
        self.health.lock().1
    }

    /// Changes what is told, and the copy if anything did change.
    pub fn update_health(&self, change: impl FnOnce(&mut LinkHealth)) {
        let mut kept = self.health.lock();
        let mut standing = kept.0.clone();
        change(&mut standing);
        standing.notes.truncate(MAX_NOTES);
        if standing != kept.0 {
            // With the lock held, so that the copy is never older than one before it. While another process
            // carries, it is its copy.
            if !standing.by_another {
                self.save_copy(&standing);
            }
            *kept = (standing, Timestamp::now());
        }
    }

    /// The engine answered.
    pub fn report_contact(&self) {
        let now = Timestamp::now().millis();
        self.update_health(|standing| {
            // What is told does not change with every answer.
            let is_known = standing.last_contact.is_some_and(|at| now - at < CONTACT_MS);
            if !is_known {
                standing.last_contact = Some(now);
            }
            if !matches!(standing.state, LinkState::Connected { .. }) {
                standing.state = LinkState::Connected { since: now };
            }
        });
    }

    /// The engine did not answer, or refused.
    pub fn report_failure(&self, why: &str) {
        let why = sanitize_line(why).into_owned();
        let now = Timestamp::now().millis();
        self.update_health(|standing| {
            let since = match standing.state {
                LinkState::Waiting { since, .. } => since,
                _ => now,
            };
            standing.state = LinkState::Waiting { since, why };
        });
    }

    /// Nothing goes on until a person does something.
    pub fn report_stopped(&self, why: &str) {
        let why = sanitize_line(why).into_owned();
        self.update_health(|standing| standing.state = LinkState::Stopped { why });
    }

    fn save_copy(&self, standing: &LinkHealth) {
        let Ok(text) = serde_json::to_vec(standing) else { return };
        let path = self.folder.join(FILE);
        let temp = place::temp_path(&path);
        // Who reads it only shows it: nobody who sends waits for the disk because of it.
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

/// The copy in a link's folder; `None` if there is none.
pub fn read_saved_health(folder: &Path) -> Option<LinkHealth> {
    let bytes = fs::read_small_file(&folder.join(FILE), MAX_FILE).ok()?;
    serde_json::from_slice(&bytes).ok()
}

//! Where a link stands, as people are told.
//!
//! The thread that carries writes it, whoever renders `status.txt` reads it. A copy lies in the link's
//! folder, so that `msgfs link status` and `doctor` can tell where no mount of theirs is open.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::model::locks::Mutex;
use crate::model::{Timestamp, one_line};
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
pub enum State {
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
pub struct Standing {
    /// What it does right now.
    #[serde(flatten)]
    pub state: State,
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
    pub behind: BTreeMap<String, Behind>,
    /// Another process of this machine carries, and tells this.
    #[serde(skip)]
    pub by_another: bool,
    /// Why my other machines and this one do not tell each other what was read, or not all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marks: Option<String>,
}

/// Lines of a log that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behind {
    /// Where the first of them begins.
    pub from: u64,
    /// Why, if it is not that the engine cannot be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Standing {
    /// The same in lines for people, the first one with the link's name.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let time = |ms: i64| Timestamp::from_millis(ms - ms.rem_euclid(1000)).rfc3339_short();
        let state = match &self.state {
            State::Starting => "not started".to_owned(),
            State::Connected { since } => format!("connected since {}", time(*since)),
            State::Waiting { since, why } => {
                format!("not connected since {}, tried again by itself: {why}", time(*since))
            }
            State::Stopped { why } => format!("stopped: {why}"),
        };
        let mut line = format!("{}: {}; {state}", one_line(name), one_line(&self.engine));
        if let (Some(at), State::Waiting { .. }) = (self.last_contact, &self.state) {
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
            self.notes.iter().chain(&self.marks).map(|note| format!("  {}", one_line(note)));
        std::iter::once(line).chain(notes).collect()
    }
}

/// A link's standing, shared.
#[derive(Debug)]
pub struct Board {
    name: String,
    folder: PathBuf,
    /// The store whose logs the link carries, if it carries logs.
    store: Option<String>,
    standing: Mutex<(Standing, Timestamp)>,
}

impl Board {
    /// The board of a link, whose folder keeps a copy.
    pub fn new(name: &str, folder: &Path, engine: String) -> Self {
        let standing = Standing { engine, ..Standing::default() };
        Self {
            name: name.to_owned(),
            folder: folder.to_owned(),
            store: None,
            standing: Mutex::new((standing, Timestamp::now())),
        }
    }

    /// The same for a link that carries the logs of a store.
    #[must_use]
    pub fn of_logs(self, store: &str) -> Self {
        Self { store: Some(store.to_owned()), ..self }
    }

    /// Returns true if lines wait.
    pub fn is_behind(&self) -> bool {
        !self.standing.lock().0.behind.is_empty()
    }

    /// Why the line at this byte of a writer's log in this store waits, if it does.
    pub fn waits(&self, store: &str, writer: &str, at: u64) -> Option<String> {
        let kept = self.standing.lock();
        let standing = &kept.0;
        let behind = standing.behind.get(writer).filter(|behind| behind.from <= at)?;
        if self.store.as_deref() != Some(store) {
            return None;
        }
        let since = |ms: i64| Timestamp::from_millis(ms - ms.rem_euclid(1000)).rfc3339_short();
        let why = match (&standing.state, &behind.why) {
            (_, Some(why)) => why.clone(),
            (State::Waiting { since: at, why }, None) => {
                format!("not connected since {}: {why}", since(*at))
            }
            _ => return None,
        };
        let (name, engine) = (one_line(&self.name), one_line(&standing.engine));
        Some(format!(
            "waits for the link {name} ({engine}) and goes by itself: {}\n",
            one_line(&why)
        ))
    }

    /// Tells what another process of this machine tells, which carries for the link.
    pub fn follow(&self) {
        let Some(told) = kept(&self.folder) else { return };
        let mut kept = self.standing.lock();
        let marks = kept.0.marks.clone();
        let standing = Standing { by_another: true, marks, engine: kept.0.engine.clone(), ..told };
        if standing != kept.0 {
            *kept = (standing, Timestamp::now());
        }
    }

    /// Tells what this process knows from now on.
    pub fn lead(&self) {
        let mut kept = self.standing.lock();
        if kept.0.by_another {
            let (engine, marks) = (kept.0.engine.clone(), kept.0.marks.clone());
            *kept = (Standing { engine, marks, ..Standing::default() }, Timestamp::now());
        }
    }

    /// The link's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How things stand.
    pub fn standing(&self) -> Standing {
        self.standing.lock().0.clone()
    }

    /// When that last changed.
    pub fn changed(&self) -> Timestamp {
        self.standing.lock().1
    }

    /// Changes what is told, and the copy if anything did change.
    pub fn tell(&self, change: impl FnOnce(&mut Standing)) {
        let mut kept = self.standing.lock();
        let mut standing = kept.0.clone();
        change(&mut standing);
        standing.notes.truncate(MAX_NOTES);
        if standing != kept.0 {
            // With the lock held, so that the copy is never older than one before it. While another process
            // carries, it is its copy.
            if !standing.by_another {
                self.keep(&standing);
            }
            *kept = (standing, Timestamp::now());
        }
    }

    /// The engine answered.
    pub fn answered(&self) {
        let now = Timestamp::now().millis();
        self.tell(|standing| {
            // What is told does not change with every answer.
            let is_known = standing.last_contact.is_some_and(|at| now - at < CONTACT_MS);
            if !is_known {
                standing.last_contact = Some(now);
            }
            if !matches!(standing.state, State::Connected { .. }) {
                standing.state = State::Connected { since: now };
            }
        });
    }

    /// The engine did not answer, or refused.
    pub fn failed(&self, why: &str) {
        let why = one_line(why).into_owned();
        let now = Timestamp::now().millis();
        self.tell(|standing| {
            let since = match standing.state {
                State::Waiting { since, .. } => since,
                _ => now,
            };
            standing.state = State::Waiting { since, why };
        });
    }

    /// Nothing goes on until a person does something.
    pub fn stopped(&self, why: &str) {
        let why = one_line(why).into_owned();
        self.tell(|standing| standing.state = State::Stopped { why });
    }

    fn keep(&self, standing: &Standing) {
        let Ok(text) = serde_json::to_vec(standing) else { return };
        let path = self.folder.join(FILE);
        let temp = place::beside(&path);
        // Who reads it only shows it: nobody who sends waits for the disk because of it.
        let written = fs::open_own(&temp, 0o600).and_then(|mut file| {
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
pub fn kept(folder: &Path) -> Option<Standing> {
    let bytes = fs::read_small(&folder.join(FILE), MAX_FILE).ok()?;
    serde_json::from_slice(&bytes).ok()
}

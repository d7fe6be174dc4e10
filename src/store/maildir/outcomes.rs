//! The outcomes of mails that are not the same for all recipients: those on this machine have a mail while others wait
//! for it, or `sendmail` refused it for good. Nobody gets it again, whatever they did with it. A log in the state
//! folder tells it, so that this holds over restarts.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::store::append_log::{AppendLog, AppendSync, read_log, split_log};
use crate::store::fs::Stamp;

/// The name of the file.
const FILE: &str = "refused.jsonl";
/// A size that the file never reaches.
const LIMIT: u64 = 1 << 30;
/// The time for which `status.txt` tells of a refusal, in milliseconds, and the number of those that it tells.
const TOLD: (i64, usize) = (7 * 24 * 3600 * 1000, 5);

/// The outcome of a mail for these recipients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MailOutcome {
    id: String,
    to: BTreeSet<String>,
    /// The words of the program that refused it; empty if they have it.
    #[serde(default)]
    pub why: String,
    /// The time, in milliseconds since 1970.
    at: i64,
}

impl MailOutcome {
    /// Returns its recipients as a text.
    pub fn recipients(&self) -> String {
        self.to.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// The outcomes of the mails of a store.
#[derive(Debug, Default)]
pub(super) struct MailOutcomes(Mutex<OutcomeTable>);

#[derive(Debug, Default)]
struct OutcomeTable {
    /// The log; `None` for a store that has no state.
    log: Option<AppendLog>,
    /// The state of its file when that was read.
    seen: Option<Stamp>,
    /// By id, the refused mails.
    refused: HashMap<String, MailOutcome>,
    /// By id, the recipients who have a mail.
    served: HashMap<String, BTreeSet<String>>,
    /// The ids of refused mails whose notes no scan has reported.
    unreported: Vec<String>,
}

impl MailOutcomes {
    /// Keeps the log in a folder.
    pub fn keep_in(&self, dir: &Path) {
        self.0.lock().log = Some(AppendLog::new(dir.join(FILE)));
    }

    /// Looks at the outcomes. Another process may have written some.
    fn look<T>(&self, look: impl FnOnce(&mut OutcomeTable) -> T) -> io::Result<T> {
        let mut table = self.0.lock();
        table.load()?;
        Ok(look(&mut table))
    }

    /// Returns the refusal of a mail.
    pub fn find_refusal(&self, id: &str) -> Option<MailOutcome> {
        self.look(|table| table.refused.get(id).cloned()).ok().flatten()
    }

    /// Returns the recipients who have a mail that others wait for.
    ///
    /// # Errors
    /// The error of the system.
    pub fn find_served(&self, id: &str) -> io::Result<BTreeSet<String>> {
        self.look(|table| table.served.get(id).cloned().unwrap_or_default())
    }

    /// Notes an outcome. A refusal that cannot be saved does not count. The recipients who have a mail are then known
    /// only until this process ends.
    ///
    /// # Errors
    /// The error of the system.
    pub fn note(&self, id: &str, to: BTreeSet<String>, why: String) -> io::Result<()> {
        let outcome = MailOutcome { id: id.to_owned(), to, why, at: Timestamp::now().millis() };
        let line = serde_json::to_string(&outcome)? + "\n";
        let mut table = self.0.lock();
        let saved = match &mut table.log {
            Some(log) => log.append(line.as_bytes(), AppendSync::Now).map(drop),
            None => Ok(()),
        };
        if saved.is_ok() || outcome.why.is_empty() {
            table.add(outcome);
        }
        saved
    }

    /// Takes the ids of refused mails whose notes no scan has reported.
    pub fn take_unreported(&self) -> Vec<String> {
        self.look(|table| std::mem::take(&mut table.unreported)).unwrap_or_default()
    }

    /// Returns the refusals of the last days, newest first.
    pub fn list_recent(&self) -> Vec<MailOutcome> {
        let since = Timestamp::now().millis() - TOLD.0;
        let all = self.look(|table| table.refused.values().cloned().collect());
        let mut recent: Vec<MailOutcome> = all.unwrap_or_default();
        recent.retain(|mail| mail.at >= since);
        recent.sort_by_key(|mail| std::cmp::Reverse(mail.at));
        recent.truncate(TOLD.1);
        recent
    }
}

impl OutcomeTable {
    /// Reads the file if it has changed. It only grows.
    fn load(&mut self) -> io::Result<()> {
        let Some(file) = self.log.as_ref().map(|log| log.path().to_owned()) else { return Ok(()) };
        // The stamp is taken before the content, so that a later change is noticed.
        let stamp = Stamp::from_path(&file)?;
        if self.seen != stamp {
            for line in split_log(&read_log(&file, LIMIT)?) {
                if let Ok(outcome) = serde_json::from_slice(line.text) {
                    self.add(outcome);
                }
            }
            self.seen = stamp;
        }
        Ok(())
    }

    fn add(&mut self, outcome: MailOutcome) {
        let id = outcome.id.clone();
        if outcome.why.is_empty() {
            self.served.insert(id, outcome.to);
        } else if self.refused.insert(id.clone(), outcome).is_none() {
            self.unreported.push(id);
        }
    }
}

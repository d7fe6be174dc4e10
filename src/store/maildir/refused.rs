//! The mails that `sendmail` refused for good. They are in Sent and are not tried again. A file in the state folder lists
//! them, so that this holds over restarts.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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

/// A mail that was refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RefusedMail {
    id: String,
    /// The recipients to whom it was to go.
    pub to: Vec<String>,
    /// The words of the program.
    pub why: String,
    /// The time of the refusal, in milliseconds since 1970.
    at: i64,
}

/// The refused mails of a store.
#[derive(Debug, Default)]
pub(super) struct RefusedMails {
    /// The file; unset for a store that has no state.
    file: OnceLock<PathBuf>,
    mails: Mutex<RefusedMailTable>,
}

#[derive(Debug, Default)]
struct RefusedMailTable {
    /// The mails in the file of this stamp.
    saved: (Option<Stamp>, HashMap<String, RefusedMail>),
    /// Those that are not saved.
    unsaved: BTreeMap<String, RefusedMail>,
    /// The ids of mails whose notes no scan has reported.
    unreported: Vec<String>,
}

impl RefusedMails {
    /// Keeps the list in a folder.
    pub fn keep_in(&self, dir: &Path) {
        // A store has one state folder.
        let _ = self.file.set(dir.join(FILE));
    }

    /// Returns the refusal of a mail.
    pub fn find(&self, id: &str) -> Option<RefusedMail> {
        let mut mails = self.mails.lock();
        self.load_saved(&mut mails);
        mails.unsaved.get(id).or_else(|| mails.saved.1.get(id)).cloned()
    }

    /// Returns true if a mail was refused. A refusal that could not be saved is saved now.
    ///
    /// # Errors
    /// The error of the system.
    pub fn check(&self, id: &str) -> io::Result<bool> {
        let mut mails = self.mails.lock();
        if let Some(mail) = mails.unsaved.get(id).cloned() {
            if let Some(file) = self.file.get() {
                save_line(file, &mail)?;
                mails.unsaved.remove(id);
            }
            return Ok(true);
        }
        self.load_saved(&mut mails);
        Ok(mails.saved.1.contains_key(id))
    }

    /// Notes that a mail was refused.
    ///
    /// # Errors
    /// The error of the system. Then the refusal is known until this process ends.
    pub fn note(&self, id: &str, to: &[&str], why: String) -> io::Result<()> {
        let to = to.iter().map(|to| (*to).to_owned()).collect();
        let mail = RefusedMail { id: id.to_owned(), to, why, at: Timestamp::now().millis() };
        let mut mails = self.mails.lock();
        mails.unreported.push(id.to_owned());
        mails.unsaved.insert(id.to_owned(), mail);
        drop(mails);
        self.check(id).map(drop)
    }

    /// Takes the ids of mails whose notes no scan has reported.
    pub fn take_unreported(&self) -> Vec<String> {
        std::mem::take(&mut self.mails.lock().unreported)
    }

    /// Returns the refusals of the last days, newest first.
    pub fn list_recent(&self) -> Vec<RefusedMail> {
        let since = Timestamp::now().millis() - TOLD.0;
        let mut mails = self.mails.lock();
        self.load_saved(&mut mails);
        let all = mails.unsaved.values().chain(mails.saved.1.values());
        let mut recent: Vec<RefusedMail> = all.filter(|mail| mail.at >= since).cloned().collect();
        recent.sort_by_key(|mail| std::cmp::Reverse(mail.at));
        recent.truncate(TOLD.1);
        recent
    }

    /// Reads the file if it has changed: another process may write it.
    fn load_saved(&self, mails: &mut RefusedMailTable) {
        let Some(file) = self.file.get() else { return };
        // The stamp is taken before the content, so that a later change is noticed.
        let Ok(stamp) = Stamp::from_path(file) else { return };
        if mails.saved.0 == stamp {
            return;
        }
        let Ok(bytes) = read_log(file, LIMIT) else { return };
        let lines = split_log(&bytes).filter_map(|line| serde_json::from_slice(line.text).ok());
        let lines = lines.map(|mail: RefusedMail| (mail.id.clone(), mail));
        mails.saved = (stamp, lines.collect());
    }
}

fn save_line(file: &Path, mail: &RefusedMail) -> io::Result<()> {
    let mut line = serde_json::to_vec(mail)?;
    line.push(b'\n');
    AppendLog::new(file).append(&line, AppendSync::Now).map(drop)
}

//! Warnings about replies of mine: each was sent while newer messages to me in its thread were unread. They are in a
//! small log of the state folder, because nobody could tell later which messages were unread then. The log may lose its
//! last lines with the power; then only the warnings are gone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::address::ReplyParent;
use super::spool::SpoolParcel;
use crate::index::{IndexTables, MsgIx};
use crate::model::locks::Mutex;
use crate::model::{plain_id, push_json_line, sanitize_line};
use crate::store::Store;
use crate::store::append_log::{self, AppendLog, AppendSync};

/// The name of the log in the state folder.
pub const REPLY_WARNINGS_LOG: &str = "answer-warnings.jsonl";
/// Number of warnings that are kept when the log is made shorter, and the number of lines above which that is done.
const KEPT: usize = 1000;
const LINES_AT_MOST: usize = 2 * KEPT;
/// The longest log in bytes that is read.
const LOG_BYTES: u64 = 16 << 20;
/// Number of unread messages that a warning names.
const NAMED: usize = 5;

/// One warning.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ReplyWarning {
    /// Name of the store.
    store: String,
    /// The id of the record of mine.
    id: String,
    /// The warning, in one line.
    text: String,
}

/// Texts of warnings by the name of the store and the id of the record.
type WarningTexts = HashMap<(String, String), String>;

/// The warnings about replies, and their log.
#[derive(Debug)]
pub struct ReplyWarnings {
    log: Mutex<AppendLog>,
    texts: Mutex<WarningTexts>,
}

/// The warnings about replies in a log that another process writes. Nothing is written.
#[derive(Debug)]
pub struct FollowedReplyWarnings {
    path: PathBuf,
    read: Mutex<FollowedTexts>,
}

/// The warnings of such a log as they were read last.
#[derive(Debug, Default)]
struct FollowedTexts {
    texts: WarningTexts,
    /// The length and the time of the log when it was read.
    log: Option<(u64, SystemTime)>,
}

impl FollowedReplyWarnings {
    /// Follows the log at a path, which may be missing.
    pub fn new(path: PathBuf) -> Self {
        Self { path, read: Mutex::default() }
    }

    /// Calls `look` on the warnings that the log has now.
    fn look<T>(&self, look: impl FnOnce(&WarningTexts) -> T) -> T {
        let stat = std::fs::symlink_metadata(&self.path);
        let log = stat.and_then(|stat| Ok((stat.len(), stat.modified()?))).ok();
        let mut read = self.read.lock();
        if read.log != log {
            let bytes = read_bytes(&self.path);
            let lines = append_log::split_log(&bytes).map(|line| line.text);
            *read = FollowedTexts { texts: parse_texts(lines), log };
        }
        look(&read.texts)
    }

    /// Returns true if there is no warning.
    pub fn is_empty(&self) -> bool {
        self.look(WarningTexts::is_empty)
    }

    /// Returns the warning about a message of mine.
    pub fn find(&self, store: &str, id: &str) -> Option<String> {
        self.look(|texts| texts.get(&(store.to_owned(), id.to_owned())).cloned())
    }
}

/// Returns the bytes of the log; none if it cannot be read.
fn read_bytes(path: &Path) -> Vec<u8> {
    append_log::read_log(path, LOG_BYTES).unwrap_or_else(|error| {
        tracing::warn!(%error, "the warnings about answers cannot be read");
        Vec::new()
    })
}

/// Returns the warnings in lines of the log.
fn parse_texts<'a>(lines: impl Iterator<Item = &'a [u8]>) -> WarningTexts {
    let warnings = lines.filter_map(|line| serde_json::from_slice(line).ok());
    warnings.map(|ReplyWarning { store, id, text }| ((store, id), text)).collect()
}

impl ReplyWarnings {
    /// Opens the log. `shorten` permits to remove its oldest lines. A log that cannot be read has no warnings.
    pub fn open(path: &Path, shorten: bool) -> Self {
        let bytes = read_bytes(path);
        let lines: Vec<&[u8]> = append_log::split_log(&bytes).map(|line| line.text).collect();
        let kept = lines.get(lines.len().saturating_sub(KEPT)..).unwrap_or_default();
        let mut log = AppendLog::new(path);
        if shorten && lines.len() > LINES_AT_MOST {
            let text = kept.iter().flat_map(|line| [line, &b"\n"[..]]).collect::<Vec<_>>().concat();
            if let Err(error) = log.replace(&text) {
                tracing::debug!(%error, "the log of warnings about answers cannot be shortened");
            }
        }
        let texts = parse_texts(lines.iter().copied());
        Self { log: Mutex::new(log), texts: Mutex::new(texts) }
    }

    /// Records a warning about the records of a reply. A failure is only logged.
    pub(super) fn record(&self, parcels: &[SpoolParcel], text: &str) {
        let mut lines = Vec::new();
        for parcel in parcels {
            let key = (parcel.store.clone(), parcel.message.id.clone());
            let text = text.to_owned();
            if self.texts.lock().insert(key.clone(), text.clone()).as_ref() == Some(&text) {
                continue;
            }
            let (store, id) = key;
            push_json_line(&mut lines, &ReplyWarning { store, id, text });
        }
        if !lines.is_empty()
            && let Err(error) = self.log.lock().append(&lines, AppendSync::Later)
        {
            tracing::debug!(%error, "the warning about an answer cannot be saved");
        }
    }

    /// Returns true if there is no warning.
    pub fn is_empty(&self) -> bool {
        self.texts.lock().is_empty()
    }

    /// Returns the warning about a message of mine.
    pub fn find(&self, store: &str, id: &str) -> Option<String> {
        self.texts.lock().get(&(store.to_owned(), id.to_owned())).cloned()
    }
}

/// Returns a warning if messages to me in the thread are newer than the answered one and unread.
pub(super) fn describe_unread(
    tables: &IndexTables,
    store: &dyn Store,
    answered: ReplyParent,
) -> Option<String> {
    let entry = tables.messages.entry(answered.ix);
    let in_thread = tables.threads.thread_messages(&tables.messages, entry.thread());
    let newer = in_thread.into_iter().rev().take_while(|ix| *ix != answered.ix);
    let is_unread = |ix: &MsgIx| tables.messages.entry(*ix).is_unread();
    let mut unread: Vec<MsgIx> = newer.filter(is_unread).collect();
    unread.reverse();
    if unread.is_empty() {
        return None;
    }
    let spell = |ix: &MsgIx| {
        let (id, from) =
            (tables.messages.shown_id(*ix), tables.messages.sender(tables.messages.entry(*ix)));
        let id = format!("{}@{} from {from}", plain_id(&id), store.kind().as_str());
        sanitize_line(&id).into_owned()
    };
    let mut named: Vec<String> = unread.iter().take(NAMED).map(spell).collect();
    if let Some(more) = unread.len().checked_sub(NAMED).filter(|more| *more > 0) {
        named.push(format!("{more} more"));
    }
    let newer = match unread.len() {
        1 => "a newer message to you in the thread was".to_owned(),
        many => format!("{many} newer messages to you in the thread were"),
    };
    Some(format!("it answered {} while {newer} unread: {}", spell(&answered.ix), named.join(", ")))
}

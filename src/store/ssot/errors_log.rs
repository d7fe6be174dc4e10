//! `errors.log`: one JSON line for each rejected file. The mount of the recipient's role writes it; if the recipient is
//! unknown, any mount does (docs/formats/ssot.md, section 5).

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::Ssot;
use super::envelope::{FILE_BYTES, SsotMessage, SsotRejection};
use super::folder::{self, ERRORS};
use super::format::{SsotFileFacts, is_in_place};
use super::json_node::{JsonNode, quote_json};
use super::schema::{BreachList, RuleBreach};
use crate::model::{Timestamp, encode_hex, name_encoding};
use crate::store::engine::files::{self, FileRow};
use crate::store::fs::Stamp;
use crate::store::{StoreError, confined, digest, fs};

/// Number of bytes at the end of the log that are searched for repetitions.
const LOOK_BACK: u64 = 64 << 20;
/// Number of characters to which a message id is cut.
const MAX_ID: usize = 256;

/// A rejected file.
struct ErrorLogEntry {
    source: String,
    sha256: String,
    bytes: u64,
    id: Option<String>,
    rules: Vec<&'static str>,
}

/// The role that logs a rejected file.
enum LogDuty {
    /// Mine, with this entry.
    Mine(ErrorLogEntry),
    /// Another one.
    Others,
}

impl ErrorLogEntry {
    fn render_line(&self, receiver: &str, now: Timestamp) -> String {
        let rules: Vec<String> = self.rules.iter().map(|rule| quote_json(rule)).collect();
        let id = self.id.as_ref().map(|id| id.chars().take(MAX_ID).collect::<String>());
        format!(
            "{{\"ts\": \"{}\", \"receiver\": \"{receiver}\", \"source\": {}, \"msg_id\": {}, \
             \"rules\": [{}], \"sha256\": \"{}\", \"bytes\": {}}}\n",
            now.rfc3339(),
            quote_json(&self.source),
            id.map_or_else(|| "null".to_owned(), |id| quote_json(&id)),
            rules.join(", "),
            self.sha256,
            self.bytes
        )
    }
}

impl Ssot {
    /// Logs the new rejections of files that are mine to log. Returns true if there were any.
    pub(super) fn log_rejections(&self) -> Result<bool, StoreError> {
        let pending: Vec<u32> = {
            let table = self.table.read();
            let refused = |(_, row, kept): &(u32, &FileRow, &SsotFileFacts)| {
                row.is_rejected() || row.is_message() && kept.is_refused() == Some(true)
            };
            let due = table.iter_all().filter(refused).filter(|(_, _, kept)| !kept.is_logged());
            due.map(|(n, ..)| n).collect()
        };
        if pending.is_empty() {
            return Ok(false);
        }
        let (mut done, mut entries) = (Vec::new(), Vec::new());
        for n in pending {
            match self.judge_rejection(n) {
                Some(LogDuty::Mine(entry)) => entries.push(entry),
                Some(LogDuty::Others) => {}
                // It is judged again the next time.
                None => continue,
            }
            done.push(n);
        }
        let logged = if entries.is_empty() { false } else { self.append_log_entries(&entries)? };
        let mut table = self.table.write();
        for n in done {
            table.update_row(n, |_, kept| kept.set_logged());
        }
        Ok(logged)
    }

    /// Returns who logs a rejected file; `None` if that is unknown, because the file is gone, changes meanwhile, or
    /// cannot be read now.
    fn judge_rejection(&self, number: u32) -> Option<LogDuty> {
        let file = self.find_file(number).ok()?;
        let (_, bytes) = self.read_file_bytes(&file, FILE_BYTES + 1).ok()?;
        let fault = match SsotMessage::parse(&bytes) {
            Err(fault) => fault,
            Ok(message) => SsotRejection {
                breaches: BreachList::from(
                    if file.message_facts().and_then(SsotFileFacts::is_refused) == Some(true)
                        || file.row.is_rejected() && is_in_place(&file, &message)
                    {
                        RuleBreach::new("signature", "", "is refused")
                    } else {
                        self.format.find_misplacement(&message, &bytes)?
                    },
                ),
                is_incomplete: false,
                to: Some(message.to),
                id: Some(message.id),
            },
        };
        if fault.to.is_some_and(|to| to != self.format.role) {
            return Some(LogDuty::Others);
        }
        let mut rules: Vec<&'static str> = Vec::new();
        for breach in fault.breaches.iter() {
            if !rules.contains(&breach.rule) {
                rules.push(breach.rule);
            }
        }
        let (sha256, bytes) = if bytes.len() > FILE_BYTES {
            self.hash_whole_file(&file.path())?
        } else {
            (encode_hex(&Sha256::digest(&bytes)), bytes.len() as u64)
        };
        Some(LogDuty::Mine(ErrorLogEntry {
            source: name_encoding::display_name(&file.path()).into_owned(),
            sha256,
            bytes,
            id: fault.id,
            rules,
        }))
    }

    /// Returns the hash and the length of a file whose beginning alone was read.
    fn hash_whole_file(&self, path: &str) -> Option<(String, u64)> {
        let file = confined::open_path(&self.properties.dir, &files::path_parts(path)).ok()?;
        let before = Stamp::from_file(&file).ok()?;
        let digest = digest::hash_file(&file).ok()?;
        // A file that is still being written is logged later.
        let is_still = Stamp::from_file(&file).is_ok_and(|now| now == before);
        is_still.then(|| (encode_hex(&digest), before.size))
    }

    /// Appends the entries that are not there yet, in one write.
    fn append_log_entries(&self, entries: &[ErrorLogEntry]) -> Result<bool, StoreError> {
        folder::ensure_base(&self.properties.dir)?;
        let path = self.properties.dir.join(ERRORS);
        let io = |e| StoreError::io(&path, e);
        let file = fs::open_append(&path, 0o666).map_err(io)?;
        let lock = folder::acquire_lock(file, &path)?;
        let known = read_logged(&path).map_err(io)?;
        let now = Timestamp::now();
        let new =
            entries.iter().filter(|e| !known.keys.contains(&(e.source.clone(), e.sha256.clone())));
        let lines: String = new.map(|e| e.render_line(self.format.role.as_str(), now)).collect();
        if lines.is_empty() {
            return Ok(false);
        }
        // A torn line of a program that died must not swallow the new one.
        let text = if known.ends_in_line { lines } else { format!("\n{lines}") };
        let mut file = lock.file();
        file.write_all(text.as_bytes()).map_err(io)?;
        file.sync_data().map_err(io)?;
        Ok(true)
    }
}

/// The entries that `errors.log` has already.
struct LoggedRejections {
    keys: HashSet<(String, String)>,
    ends_in_line: bool,
}

fn read_logged(path: &Path) -> std::io::Result<LoggedRejections> {
    let file = fs::open_regular(path)?;
    let len = file.metadata()?.len();
    let mut bytes = Vec::new();
    let start = len.saturating_sub(LOOK_BACK);
    std::io::Seek::seek(&mut &file, std::io::SeekFrom::Start(start))?;
    (&file).take(LOOK_BACK).read_to_end(&mut bytes)?;
    let lines = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    let key = |line: &[u8]| {
        let node = JsonNode::parse(line).ok()?;
        Some((node.text("source")?.to_owned(), node.text("sha256")?.to_owned()))
    };
    Ok(LoggedRejections {
        keys: lines.filter_map(key).collect(),
        ends_in_line: bytes.last().is_none_or(|b| *b == b'\n'),
    })
}

//! `msgfs check` and its repair: violations of the format, and derived values made anew.

use std::borrow::Cow;
use std::os::fd::OwnedFd;

use rustix::fs::FileType;

use super::append::{AtsfThreadFolder, last_message_time, write_derived};
use super::edit::{derived_numbers, is_number};
use super::line::{self, AtsfCounts, AtsfThreadStats, AtsfTimestamp, parse_time};
use super::roots::{AGENT, THREADS};
use super::{AtsfFormat, AtsfStore, META, assets, schema, send, sign, thread, thread_facts};
use crate::model::{Timestamp, sanitize_line};
use crate::store::engine::lines::check::{LineCheck, LineReporter};
use crate::store::engine::lines::log::{BOM, LogCursor};
use crate::store::text::json_values::{as_object, as_text, pick_members};
use crate::store::{Store as _, StoreError, StoreUpkeep, confined};

/// Checks a `thread.json`. Returns its text if the thread can be read.
pub(super) fn check_meta(name: &str, dir: &OwnedFd, say: &mut LineReporter<'_>) -> Option<String> {
    match confined::stat(dir, META) {
        Ok((FileType::RegularFile, _)) => {}
        Ok((kind, _)) => {
            say(0, "file", format!("is {}, not a file", confined::describe_type(kind)));
            return None;
        }
        Err(_) => return None,
    }
    let bytes = match thread_facts::read_thread_file(dir) {
        Ok((_, bytes)) => bytes,
        Err(e) => {
            say(0, "file", format!("cannot be read: {e}"));
            return None;
        }
    };
    match thread::parse(&bytes) {
        thread::AtsfThreadFile::Foreign => return None,
        thread::AtsfThreadFile::Broken(why) => {
            say(0, "json", why);
            return None;
        }
        thread::AtsfThreadFile::Refused(why) => {
            say(0, "version", why);
            return None;
        }
        thread::AtsfThreadFile::Thread(meta) if meta.id.as_deref() != Some(name) => {
            let id = meta.id.unwrap_or_default();
            say(0, "thread-id", format!("names the thread {:?}", sanitize_line(&id)));
        }
        thread::AtsfThreadFile::Thread(_) => {}
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if std::str::from_utf8(&bytes).is_err() {
        say(0, "utf-8", "is not UTF-8".into());
    }
    if text.starts_with(BOM) {
        say(0, "bom", "begins with a byte order mark, which other programs cannot read".into());
    }
    check_members(text.trim_start_matches(BOM), say);
    Some(text)
}

/// Checks a line of a log.
pub(super) fn check_line(store: &AtsfStore, checked: &mut LineCheck<'_, AtsfFormat>) {
    if !checked.ended {
        return checked.report_unended();
    }
    // Readers skip empty lines.
    if checked.text.trim().is_empty() {
        return;
    }
    if matches!(checked.piece.text, Cow::Owned(_)) {
        checked.report_violation("utf-8", "the line is not UTF-8".into());
    }
    let line = match line::parse(checked.text) {
        Ok(line) => line,
        Err(e) => return checked.report_violation("schema", e.to_string()),
    };
    for wrong in schema::check_message(checked.text) {
        checked.report_violation("schema", wrong);
    }
    line::count_message(checked.tally, &line, Timestamp::default());
    checked.check_unique_id(&line.id);
    if !super::ROLES.contains(&&*line.role) {
        let role = sanitize_line(&line.role).into_owned();
        checked.report_violation("role", format!("{role:?} is none of user, agent, system"));
    }
    match line.parse_timestamp() {
        AtsfTimestamp::Zoned(_) => {}
        AtsfTimestamp::Naive(_) => {
            checked.report_violation("time", "the timestamp has no zone".into());
        }
        AtsfTimestamp::Unknown => {
            checked.report_violation("time", "the timestamp is not a time".into());
        }
    }
    for reference in send::list_asset_references(&line) {
        let parts = [AGENT, THREADS, checked.name];
        let opened = assets::open_asset(&store.format.digests, checked.root, &parts, &reference);
        if let Err(why) = opened {
            checked.report_violation("asset", format!("{}: {why}", sanitize_line(&reference)));
        }
    }
    checked.check_claim(sign::extract_claim(checked.text));
}

impl StoreUpkeep for AtsfStore {
    fn repair_files(&self) -> Result<Vec<String>, StoreError> {
        let _one = self.reader.appending.lock();
        let mut folders = Vec::new();
        self.for_each_log(
            |n, root, name, dir| {
                let Ok(dir) = dir.and_then(OwnedFd::try_clone) else { return };
                let number = self.table.read().find_log(n, name);
                let (root, name, key) = (root.to_owned(), name.to_owned(), name.to_owned());
                folders.push(AtsfThreadFolder { root, name, key, number, dir });
            },
            |_, _, _, _| {},
        )?;
        let mut done = Vec::new();
        for folder in folders {
            if Self::require_appendable(&folder).is_err() {
                continue;
            }
            let file = folder.lock_log(false)?;
            let counted = self.count_log(&folder, &file, None)?;
            if write_derived(&folder, &counted.tally)? {
                let path = folder.file_path(META);
                self.note_change(&path);
                done.push(format!("{}: numbers and time made anew", path.display()));
            }
        }
        Ok(done)
    }
}

/// Checks the shape and the times of a `thread.json`.
fn check_members(content: &str, say: &mut LineReporter<'_>) {
    for wrong in schema::check_thread(content) {
        say(0, "schema", wrong);
    }
    let names = ["createdAt", "updatedAt"];
    for (name, value) in names.into_iter().zip(pick_members(content, names).unwrap_or_default()) {
        match as_text(value.as_ref()).map(|t| parse_time(&t)) {
            Some(AtsfTimestamp::Unknown) => say(0, "schema", format!("it has no time {name:?}")),
            Some(AtsfTimestamp::Naive(_)) => say(0, "time", format!("{name} has no zone")),
            Some(AtsfTimestamp::Zoned(_)) | None => {}
        }
    }
}

/// Compares the cached numbers with the counts. Some programs count system messages as the agent's.
pub(super) fn check_derived(
    content: &str,
    tally: &LogCursor<AtsfCounts>,
    say: &mut LineReporter<'_>,
) {
    let content = content.trim_start_matches(BOM);
    let Some([stats, cached]) = pick_members(content, ["stats", "updatedAt"]) else { return };
    let Some(stats) = as_object(stats.as_ref()) else { return };
    let stats_of = &tally.count.stats;
    let with_system = AtsfThreadStats { agent: stats_of.agent + stats_of.system, ..*stats_of };
    for ((name, right), (_, also)) in
        derived_numbers(stats_of).into_iter().zip(derived_numbers(&with_system))
    {
        let [value] = pick_members(stats, [name]).unwrap_or_default();
        if !value.is_some_and(|v| is_number(&v, right) || is_number(&v, also)) {
            say(0, "stats", format!("{name} is not {right}, which the log has"));
        }
    }
    let cached = as_text(cached.as_ref()).and_then(|t| parse_time(&t).time());
    if let (Some(right), Some(cached)) = (last_message_time(tally), cached)
        && right != cached
    {
        say(0, "updated", "updatedAt is not the time of the last message".into());
    }
}

//! `msgfs check` and its repair: what in the files breaks the rules of the format, and derived values
//! made anew.

use std::borrow::Cow;
use std::os::fd::OwnedFd;

use rustix::fs::FileType;

use super::append::{Folder, updated, write_derived};
use super::edit::{numbers, says};
use super::line::{self, Counts, Stats, When, parse_time};
use super::roots::{AGENT, THREADS};
use super::values::{object, pick, text};
use super::{Atsf, META, Threads, assets, head, schema, send, sign, thread};
use crate::model::{Timestamp, one_line};
use crate::store::engine::lines::check::{Checked, Say};
use crate::store::engine::lines::log::{BOM, Tally};
use crate::store::{StoreError, Upkeep, below};

/// Checks a `thread.json`; its text, if it is one of a thread that can be read.
pub(super) fn meta(name: &str, dir: &OwnedFd, say: &mut Say<'_>) -> Option<String> {
    match below::look(dir, META) {
        Ok((FileType::RegularFile, _)) => {}
        Ok((kind, _)) => {
            say(0, "file", format!("is {}, not a file", below::describe_type(kind)));
            return None;
        }
        Err(_) => return None,
    }
    let bytes = match head::read(dir) {
        Ok((_, bytes)) => bytes,
        Err(e) => {
            say(0, "file", format!("cannot be read: {e}"));
            return None;
        }
    };
    match thread::read(&bytes) {
        thread::Reading::Foreign => return None,
        thread::Reading::Broken(why) => {
            say(0, "json", why);
            return None;
        }
        thread::Reading::Refused(why) => {
            say(0, "version", why);
            return None;
        }
        thread::Reading::Thread(meta) if meta.id.as_deref() != Some(name) => {
            let id = meta.id.unwrap_or_default();
            say(0, "thread-id", format!("names the thread {:?}", one_line(&id)));
        }
        thread::Reading::Thread(_) => {}
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
pub(super) fn line(store: &Atsf, checked: &mut Checked<'_, Threads>) {
    if !checked.ended {
        return checked.unended();
    }
    // Readers pass them over.
    if checked.text.trim().is_empty() {
        return;
    }
    if matches!(checked.piece.text, Cow::Owned(_)) {
        checked.say("utf-8", "the line is not UTF-8".into());
    }
    let line = match line::parse(checked.text) {
        Ok(line) => line,
        Err(e) => return checked.say("schema", e.to_string()),
    };
    for wrong in schema::message(checked.text) {
        checked.say("schema", wrong);
    }
    line::count(checked.tally, &line, Timestamp::default());
    checked.id(&line.id);
    if !super::ROLES.contains(&&*line.role) {
        let role = one_line(&line.role).into_owned();
        checked.say("role", format!("{role:?} is none of user, agent, system"));
    }
    match line.when() {
        When::At(_) => {}
        When::Naive(_) => checked.say("time", "the timestamp has no zone".into()),
        When::Unknown => checked.say("time", "the timestamp is not a time".into()),
    }
    for reference in send::references(&line) {
        let parts = [AGENT, THREADS, checked.name];
        let opened = assets::open(&store.format.digests, checked.root, &parts, &reference);
        if let Err(why) = opened {
            checked.say("asset", format!("{}: {why}", one_line(&reference)));
        }
    }
    checked.claim(sign::claim(checked.text));
}

impl Upkeep for Atsf {
    fn repair(&self) -> Result<Vec<String>, StoreError> {
        let _one = self.appending.lock();
        let mut folders = Vec::new();
        self.each_log(
            |n, root, name, dir| {
                let Ok(dir) = dir.and_then(OwnedFd::try_clone) else { return };
                let number = self.table.read().find(n, name);
                let (root, name, key) = (root.to_owned(), name.to_owned(), name.to_owned());
                folders.push(Folder { root, name, key, number, dir });
            },
            |_, _, _, _| {},
        )?;
        let mut done = Vec::new();
        for folder in folders {
            if Self::require_thread(&folder).is_err() {
                continue;
            }
            let file = folder.lock(false)?;
            let counted = self.count(&folder, &file, None)?;
            if write_derived(&folder, &counted.tally)? {
                let path = folder.path(META);
                self.remember(&path);
                done.push(format!("{}: numbers and time made anew", path.display()));
            }
        }
        Ok(done)
    }
}

/// The shape of a `thread.json`, and its times.
fn check_members(content: &str, say: &mut Say<'_>) {
    for wrong in schema::thread(content) {
        say(0, "schema", wrong);
    }
    let names = ["createdAt", "updatedAt"];
    for (name, value) in names.into_iter().zip(pick(content, names).unwrap_or_default()) {
        match text(value.as_ref()).map(|t| parse_time(&t)) {
            Some(When::Unknown) => say(0, "schema", format!("it has no time {name:?}")),
            Some(When::Naive(_)) => say(0, "time", format!("{name} has no zone")),
            Some(When::At(_)) | None => {}
        }
    }
}

/// Compares what is cached with what was counted. Some programs count system messages as the agent's.
pub(super) fn derived(content: &str, tally: &Tally<Counts>, say: &mut Say<'_>) {
    let content = content.trim_start_matches(BOM);
    let Some([stats, cached]) = pick(content, ["stats", "updatedAt"]) else { return };
    let Some(stats) = object(stats.as_ref()) else { return };
    let stats_of = &tally.count.stats;
    let with_system = Stats { agent: stats_of.agent + stats_of.system, ..*stats_of };
    for ((name, right), (_, also)) in numbers(stats_of).into_iter().zip(numbers(&with_system)) {
        let [value] = pick(stats, [name]).unwrap_or_default();
        if !value.is_some_and(|v| says(&v, right) || says(&v, also)) {
            say(0, "stats", format!("{name} is not {right}, which the log has"));
        }
    }
    let cached = text(cached.as_ref()).and_then(|t| parse_time(&t).time());
    if let (Some(right), Some(cached)) = (updated(tally), cached)
        && right != cached
    {
        say(0, "updated", "updatedAt is not the time of the last message".into());
    }
}

//! `msgfs check` and its repair: what in the files breaks the rules of the format, and derived values
//! made anew.

use std::collections::HashSet;

use rustix::fs::{Dir, FileType};

use super::append::{Folder, lock, updated, write_derived};
use super::edit::{numbers, says};
use super::line::{self, BOM, Line, When, parse_time};
use super::log::{Piece, Stats, Tally, pieces, read_lines};
use super::roots::{AGENT, Repository, THREADS};
use super::table::{LOG, META};
use super::values::{array, elements, object, pick, text};
use super::{Atsf, assets, sign, thread};
use crate::model::{Claim, Timestamp, one_line};
use crate::store::fs::Stamp;
use crate::store::{StoreError, Violation, below};

/// Reports a violation: line (0: the file), rule, sentence.
type Say<'a> = dyn FnMut(u64, &'static str, String) + 'a;

impl Atsf {
    /// Every folder that could be a thread, in all roots.
    fn every_folder(&self) -> Vec<Folder> {
        let mut roots = self.table.read().roots.clone();
        if roots.is_empty() {
            Repository::default().refresh(&self.project, &mut roots, true);
        }
        let mut out = Vec::new();
        for (n, root) in (0u32..).zip(&roots).filter(|(_, root)| root.here) {
            let Ok(threads) = below::open_dir(&root.path, &[AGENT, THREADS]) else { continue };
            let Ok(entries) = Dir::read_from(&threads) else { continue };
            let mut names: Vec<String> = entries
                .flatten()
                .filter_map(|e| Some(e.file_name().to_str().ok()?.to_owned()))
                .filter(|name| !name.starts_with('.'))
                .collect();
            names.sort_unstable();
            for name in names {
                if let Ok(dir) = below::open_dir(&root.path, &[AGENT, THREADS, &name]) {
                    let number = self.table.read().find(n, &name);
                    let root = root.path.clone();
                    out.push(Folder { root, key: name.clone(), name, number, dir });
                }
            }
        }
        out
    }

    pub(super) fn check_threads(
        &self,
        verify: &dyn Fn(&Claim) -> Option<String>,
        report: &mut dyn FnMut(Violation),
    ) {
        for folder in self.every_folder() {
            let file = |name: &str| {
                let path = folder.path(name);
                path.strip_prefix(&self.project).unwrap_or(&path).to_string_lossy().into_owned()
            };
            let (meta, log) = (file(META), file(LOG));
            let mut say_meta = |line, rule, detail| {
                report(Violation { file: meta.clone(), line, rule, detail });
            };
            let Some(text) = Self::check_meta(&folder, &mut say_meta) else { continue };
            let mut say_log = |line, rule, detail| {
                report(Violation { file: log.clone(), line, rule, detail });
            };
            let Some(tally) = self.check_log(&folder, verify, &mut say_log) else { continue };
            let mut say_meta = |line, rule, detail| {
                report(Violation { file: meta.clone(), line, rule, detail });
            };
            check_derived(&text, &tally, &mut say_meta);
        }
    }

    /// Checks a `thread.json`; its text, if it is one of a thread that can be read.
    fn check_meta(folder: &Folder, say: &mut Say<'_>) -> Option<String> {
        match below::look(&folder.dir, META) {
            Ok((FileType::RegularFile, _)) => {}
            Ok((kind, _)) => {
                say(0, "file", format!("is {}, not a file", below::describe_type(kind)));
                return None;
            }
            Err(_) => return None,
        }
        let read = below::open_file(&folder.dir, META)
            .and_then(|file| below::read_whole(&file, thread::MAX_BYTES + 1));
        let bytes = match read {
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
            thread::Reading::Thread(meta) if meta.id.as_deref() != Some(&folder.name) => {
                let id = meta.id.unwrap_or_default();
                say(0, "thread-id", format!("names the thread {:?}", one_line(&id)));
            }
            thread::Reading::Thread(_) => {}
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if text.starts_with(BOM) {
            say(0, "bom", "begins with a byte order mark, which other programs cannot read".into());
        }
        check_members(text.trim_start_matches(BOM), say);
        Some(text)
    }

    /// Checks a log; what is counted in it. `None` if it is not here.
    fn check_log(
        &self,
        folder: &Folder,
        verify: &dyn Fn(&Claim) -> Option<String>,
        say: &mut Say<'_>,
    ) -> Option<Tally> {
        let file = match below::open_file(&folder.dir, LOG) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
            Err(e) => {
                say(0, "file", format!("cannot be read: {e}"));
                return None;
            }
        };
        let end = Stamp::of(&file).ok()?.size;
        let mut tally = Tally::default();
        let mut ids: HashSet<String> = HashSet::new();
        let read = read_lines(&file, 0, end, |run, offset| {
            for piece in pieces(run, offset) {
                tally.lines += 1;
                self.check_line(folder, &piece, &mut tally, &mut ids, verify, say);
            }
        });
        match read {
            Ok((_, tail)) if !tail.is_empty() => {
                let text = "the last line does not end in a newline".to_owned();
                say(tally.lines + 1, "unterminated", text);
            }
            Ok(_) => {}
            Err(e) => {
                say(tally.lines + 1, "file", format!("cannot be read to its end: {e}"));
                return None;
            }
        }
        Some(tally)
    }

    fn check_line(
        &self,
        folder: &Folder,
        piece: &Piece<'_>,
        tally: &mut Tally,
        ids: &mut HashSet<String>,
        verify: &dyn Fn(&Claim) -> Option<String>,
        say: &mut Say<'_>,
    ) {
        let number = tally.lines;
        let mut text: &str = &piece.text;
        if let Some(rest) = text.strip_prefix(BOM).filter(|_| piece.offset == 0) {
            say(number, "bom", "a byte order mark, which other programs cannot read".into());
            text = rest;
        }
        if text.trim().is_empty() {
            return say(number, "blank", "an empty line".into());
        }
        let line = match line::parse(text) {
            Ok(line) => line,
            Err(e) => return say(number, "schema", e.to_string()),
        };
        tally.count(&line, Timestamp::default());
        if !ids.insert(line.id.clone().into_owned()) {
            let id = one_line(&line.id).into_owned();
            say(number, "duplicate", format!("the id {id:?} stands in this log before"));
        }
        if !super::ROLES.contains(&&*line.role) {
            let role = one_line(&line.role).into_owned();
            say(number, "role", format!("{role:?} is none of user, agent, system"));
        }
        match line.when() {
            When::At(_) => {}
            When::Naive(_) => say(number, "time", "the timestamp has no zone".into()),
            When::Unknown => say(number, "time", "the timestamp is not a time".into()),
        }
        self.check_assets(folder, &line, &mut |detail| say(number, "asset", detail));
        if let Some(wrong) = sign::claim(text).as_ref().and_then(verify) {
            say(number, "signature", wrong);
        }
    }

    fn check_assets(&self, folder: &Folder, line: &Line<'_>, say: &mut dyn FnMut(String)) {
        for block in elements(line.content) {
            let reference = pick(block, ["assetRef"]).and_then(|[r]| text(r.as_ref()));
            let Some(reference) = reference else { continue };
            let parts = [AGENT, THREADS, &folder.name];
            if let Err(why) = assets::open(&self.digests, &folder.root, &parts, &reference) {
                say(format!("{}: {why}", one_line(&reference)));
            }
        }
    }

    /// Makes the derived members of all threads anew where they are wrong.
    pub(super) fn repair_threads(&self) -> Result<Vec<String>, StoreError> {
        let mut done = Vec::new();
        for folder in self.every_folder() {
            if Self::require_thread(&folder).is_err() {
                continue;
            }
            let file = lock(&folder, false)?;
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

/// The members that every `thread.json` has.
fn check_members(content: &str, say: &mut Say<'_>) {
    let names = ["title", "createdAt", "updatedAt", "agent", "context", "stats"];
    let Some([title, created, updated, agent, context, stats]) = pick(content, names) else {
        return;
    };
    let mut missing = |name: &str| say(0, "schema", format!("it has no {name}"));
    if text(title.as_ref()).is_none() {
        missing("string \"title\"");
    }
    for (name, value) in [("createdAt", created), ("updatedAt", updated)] {
        let time = text(value.as_ref()).map(|t| parse_time(&t));
        if time.is_none_or(|time| time == When::Unknown) {
            missing(&format!("time \"{name}\""));
        }
    }
    let has = |outer: Option<&str>, name: &str| {
        let [value] = outer.and_then(|outer| pick(outer, [name])).unwrap_or_default();
        text(value.as_ref()).is_some()
    };
    let (agent, context) = (object(agent.as_ref()), object(context.as_ref()));
    for (outer, name, path) in [
        (agent, "id", "agent.id"),
        (agent, "name", "agent.name"),
        (context, "workingDir", "context.workingDir"),
    ] {
        if !has(outer, name) {
            missing(&format!("string \"{path}\""));
        }
    }
    if object(stats.as_ref()).is_none() || array(stats.as_ref()).is_some() {
        missing("object \"stats\"");
    }
}

/// Compares what is cached with what was counted. Some programs count system messages as the agent's.
fn check_derived(content: &str, tally: &Tally, say: &mut Say<'_>) {
    let content = content.trim_start_matches(BOM);
    let Some([stats, cached]) = pick(content, ["stats", "updatedAt"]) else { return };
    let Some(stats) = object(stats.as_ref()) else { return };
    let with_system = Stats { agent: tally.stats.agent + tally.stats.system, ..tally.stats };
    for ((name, right), (_, also)) in numbers(&tally.stats).into_iter().zip(numbers(&with_system)) {
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

//! SAMP v1: a shared folder with one append-only JSON-lines log per writer.
//!
//! - [`record`]: one line, its members, its id.
//! - [`thread`], [`alias`]: the rules for names and derived threads.
//! - `seen`: the read position that other readers of the folder share.
//! - `append`: the one write that this module ever makes to a log, its own.
//! - `recovery`: what other programs took out of that log, appended again. `kept`: where it comes from.
//!
//! The logs are followed by `engine::lines`.

pub mod alias;
mod append;
mod kept;
pub mod record;
mod recovery;
mod seen;
pub mod thread;

use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::engine::lines::check::{Checked, Say};
use super::engine::lines::table::LogOf;
use super::engine::lines::{Format, Lines, Named, Shape};
use super::{
    About, Again, Agents, Arrived, Behind, CopyOf, Facets, Fit, Found, Location, Outgoing,
    Position, Prepared, Preparing, Record, Remote, Spec, Store as _, StoreError, Told, Violation,
    Watermark, Ways, fs, refuse_headers,
};
use crate::model::{Draft, Message, Remedy, one_line, shown_path};
use alias::LogName;
use record::{Parsed, Scratch};

/// A SAMP folder, read and written as one alias.
pub type SampStore = Lines<Samp>;

/// A record of so many bytes goes by every link: nobody is asked.
const SHORT: u64 = 4 << 10;

/// The format of such a folder.
#[derive(Debug, Default)]
pub struct Samp {
    /// Where the lines go besides.
    ways: OnceLock<Arc<dyn Ways>>,
    /// It is only looked at, and nothing is made.
    looks: bool,
    /// Somebody named the folder, who makes it.
    is_named: bool,
    /// The recovery of lines that my log loses; `None` where nothing may be written.
    guarded: Option<recovery::Guarded>,
}

/// Why a name cannot be an alias, for people.
fn bad_alias(name: &str) -> String {
    format!(
        "{:?} is not a SAMP alias: it takes letters, digits, '.', '_' and '-', begins with a letter \
         or digit and has at most 64 characters",
        one_line(name)
    )
}

/// Whose log has this name, and whether it is a copy.
fn writer(name: &str) -> Option<(&str, bool)> {
    match alias::classify(name) {
        LogName::Main(alias) => Some((alias, false)),
        LogName::Conflict(alias) => Some((alias, true)),
        LogName::NotALog | LogName::BadAlias => None,
    }
}

impl Format for Samp {
    const SHAPE: Shape = Shape {
        folder: &[],
        file: None,
        beside: None,
        parts: None,
        rewritten: false,
        copies: true,
    };
    type Facts = ();
    type Count = ();
    type Shared = ();
    type Work = Scratch;
    type Said<'a> = ();
    type Head = ();

    /// Opens the folder, creating it as the reference does (`mkdir -p`) if it is missing, unless it is only
    /// looked at, or somebody named it.
    fn open(spec: &Spec) -> Result<(Self, About), StoreError> {
        let (dir, me) = (spec.dir.as_path(), spec.as_me.as_ref().unwrap_or(&spec.me));
        if !alias::is_valid(me) {
            return Err(StoreError::Invalid(bad_alias(me)));
        }
        let (looks, is_named) = (spec.state.is_none(), !spec.makes);
        if !looks && !is_named {
            fs::make_dirs(dir, 0o777).map_err(|e| StoreError::io(dir, e))?;
        }
        match super::below::open_dir(dir, &[]) {
            Err(e) if (looks || is_named) && e.kind() == std::io::ErrorKind::NotFound => {}
            opened => drop(opened.map_err(|e| StoreError::io(dir, e))?),
        }
        if spec.state.is_some()
            && let Err(error) = append::end_torn(dir, me)
        {
            // The next append ends it.
            tracing::debug!(%error, "the end of my log cannot be looked at");
        }
        let about = About { whole_seconds: true, repeats: false, ..About::new(spec, me, dir) };
        let guarded = spec.state.as_deref().map(recovery::Guarded::new);
        Ok((Self { looks, is_named, guarded, ..Self::default() }, about))
    }

    fn may_be_missing(&self) -> bool {
        self.looks || self.is_named
    }

    fn missing(store: &SampStore) -> Option<String> {
        let dir = store.dir();
        let is_missing = store.format.is_named && store.is_unborn() && fs::is_away(dir);
        is_missing.then(|| {
            format!(
                "the folder {} does not exist; if it is the right one, make it with: {}",
                shown_path(dir),
                Remedy::Make(dir.to_owned())
            )
        })
    }

    fn facets(store: &SampStore) -> Facets<'_> {
        Facets {
            outgoing: Some(store),
            position: Some(store),
            remote: Some(store),
            agents: Some(store),
            recovery: Some(store),
            ..Facets::default()
        }
    }

    fn classify(name: &str) -> Named {
        match alias::classify(name) {
            LogName::Main(_) | LogName::Conflict(_) => Named::Log,
            LogName::NotALog => Named::Other,
            LogName::BadAlias => Named::Bad("alias", "its name holds no valid alias"),
        }
    }

    fn key(log: &LogOf<Self>) -> String {
        writer(&log.name).map_or_else(String::new, |(alias, _)| alias.to_owned())
    }

    fn rank(log: &LogOf<Self>) -> i64 {
        writer(&log.name).is_some_and(|(_, copy)| copy).into()
    }

    fn remark(log: &LogOf<Self>) -> Option<String> {
        let copy = log.stamp.is_some() && writer(&log.name).is_some_and(|(_, copy)| copy);
        copy.then(|| {
            "is a conflict copy left by a sync program; messages only it holds are shown".to_owned()
        })
    }

    fn said<'a>(
        store: &Lines<Self>,
        work: &mut Scratch,
        key: &'a str,
        text: &'a str,
        at: Location,
        found: &mut Vec<Found<'a>>,
    ) -> Result<(), String> {
        let accepted = accept(store, work, key, text, at, found);
        if accepted.is_ok() || is_blank(text) {
            return Ok(());
        }
        // Some writers end lines with a bare CR. Offsets in a text that was repaired are not those of
        // the file.
        if text.trim_end().contains('\r') && text.len() == at.len as usize {
            let before = found.len();
            let mut offset = at.offset;
            let whole = text.split('\r').all(|piece| {
                let at = Location { offset, len: piece.len() as u32, ..at };
                offset += piece.len() as u64 + 1;
                is_blank(piece) || accept(store, work, key, piece, at, found).is_ok()
            });
            if whole {
                return Ok(());
            }
            found.truncate(before);
        }
        accepted
    }

    fn record(_: &Lines<Self>, _: &Location, text: &str) -> Result<Record, StoreError> {
        let (message, signed) = message(text).ok_or(StoreError::Moved)?;
        let claim = if signed { record::claim(text) } else { None };
        Ok(Record { message, claim, ..Record::default() })
    }

    fn noted(&self, about: &About, path: &Path) {
        self.guarded.iter().for_each(|guarded| guarded.noted(&about.me, path));
    }

    fn remarks(store: &Lines<Self>) -> Vec<String> {
        let guarded = store.format.guarded.as_ref();
        guarded.map_or_else(Vec::new, |guarded| guarded.lines(&store.about.me))
    }

    fn tells(store: &Lines<Self>, _folder: &Path, name: &str) -> bool {
        name.strip_prefix(".seen-") == Some(&store.about.me)
    }

    fn check_head(name: &str, _: &OwnedFd, say: &mut Say<'_>) -> Option<()> {
        if writer(name)?.1 {
            say(0, "conflict-copy", "left by a sync program beside the log it copies".into());
        }
        Some(())
    }

    fn check_line(_: &Lines<Self>, line: &mut Checked<'_, Self>) {
        let mut scratch = Scratch::default();
        let parsed = record::parse(line.text, &mut scratch);
        if parsed.is_err()
            && let Some(torn) = Violation::torn(line.piece.text.as_bytes())
        {
            return line.say(Violation::TORN, torn);
        }
        if !line.ended {
            line.unended();
        }
        if line.text.as_bytes().trim_ascii().is_empty() {
            return;
        }
        if matches!(line.piece.text, Cow::Owned(_)) {
            line.say("utf-8", "the line is not valid UTF-8".into());
        }
        match parsed {
            Ok(parsed) => check_record(line, &parsed),
            Err(e) => line.say("schema", e.to_string()),
        }
    }
}

/// The message on a line, and whether it carries a signature.
fn message(text: &str) -> Option<(Message, bool)> {
    let mut scratch = Scratch::default();
    let parsed = record::parse(text, &mut scratch).ok()?;
    let owned = |v: &Option<Cow<'_, str>>| v.as_deref().map(str::to_owned);
    let message = Message {
        from: Some(parsed.from.to_string()),
        to: parsed.everybody(),
        time: parsed.time(),
        subject: owned(&parsed.subject),
        thread: Some(parsed.thread.to_string()),
        in_reply_to: owned(&parsed.re),
        id: parsed.id.to_string(),
        body: parsed.body_text().into_owned(),
        ..Message::default()
    };
    Some((message, parsed.has_sig))
}

impl Outgoing for SampStore {
    fn fits(&self, address: &str) -> Fit {
        // No other kind writes addresses without `@` by itself.
        if alias::is_valid(address) { Fit::Exact } else { Fit::No }
    }

    fn registered(&self, address: &str) -> bool {
        self.table.read().logs.iter().any(|log| Samp::key(log) == address)
    }

    fn may_be_id(&self, id: &str) -> bool {
        id.len() == 16 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    }

    fn shown(&self, prepared: &Prepared) -> Option<Message> {
        message(&prepared.bytes).map(|(message, _)| message)
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        if let Some(why) = Samp::missing(self) {
            let error = io::Error::new(io::ErrorKind::NotFound, why);
            return Err(StoreError::io(self.dir(), error));
        }
        refuse_headers(
            "a SAMP record",
            &[("Priority", draft.priority.is_some()), ("Type", draft.kind.is_some())],
        )?;
        let all = append::prepare(self.me(), draft, with)?;
        let length = all.iter().map(|record| record.bytes.len() as u64 + 1).max().unwrap_or(0);
        let ways = self.format.ways.get().filter(|_| length > SHORT);
        match ways.and_then(|ways| ways.longest()) {
            Some((most, link)) if length > most => Err(StoreError::TooLarge(format!(
                "the record would have {length} bytes, and the link {} takes {most} at most: \
                 shorten the text, or raise the limit of its server",
                one_line(&link)
            ))),
            _ => Ok(all),
        }
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        append::possible(self.dir(), self.me())?;
        self.room_for(bytes)
    }

    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        self.append_line(message)?;
        // After it: a scan that takes the note sees the line.
        self.note(&self.dir().join(alias::log_name(self.me())));
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        let mut unsynced = self.appending.lock();
        append::my_log(self.dir(), self.me(), |log| unsynced.sync(log))
    }
}

impl Remote for SampStore {
    fn described_in(&self) -> Option<PathBuf> {
        None
    }

    fn join(&self, ways: Arc<dyn Ways>) {
        // The first ones stay: there is one set of links a mount.
        let _ = self.format.ways.set(ways);
    }

    /// Lines come by other ways: who brings them writes them into the logs.
    fn file(&self, _: &Arrived) -> Result<(), StoreError> {
        Err(StoreError::NotPermitted("a SAMP folder takes no single messages".to_owned()))
    }
}

impl Position for SampStore {
    fn watermark(&self) -> Option<Watermark> {
        seen::read(self.dir(), self.me())
    }

    fn set_watermark(&self, mark: &Watermark) -> Result<Option<Watermark>, StoreError> {
        seen::advance(self.dir(), self.me(), mark)
    }
}

impl Agents for SampStore {
    fn agents(&self) -> Vec<String> {
        let table = self.table.read();
        // What stands in a log makes its writer known, unless it was refused.
        let there = table.logs.iter().filter(|log| log.stamp.is_some() && log.tally.lines == 0);
        there.map(Samp::key).filter(|alias| !alias.is_empty()).collect()
    }

    fn told(&self, addresses: &[&str]) -> Vec<Option<Told>> {
        let told = |address: &&str| {
            // What is no alias is no part of a path.
            let mark = alias::is_valid(address).then(|| seen::read(self.dir(), address))??;
            let since = seen::modified(self.dir(), address);
            Some(Told { behind: Behind::Mark(mark), since })
        };
        addresses.iter().map(told).collect()
    }
}

fn is_blank(text: &str) -> bool {
    super::text::pytext::strip(text).is_empty()
}

fn accept<'a>(
    store: &Lines<Samp>,
    work: &mut Scratch,
    alias: &str,
    text: &'a str,
    at: Location,
    found: &mut Vec<Found<'a>>,
) -> Result<(), String> {
    let parsed = record::parse(text, work).map_err(|e| e.to_string())?;
    if parsed.from != alias {
        return Err(format!(
            "it says it is from {:?}, but it stands in the log of {alias:?}",
            one_line(&parsed.from)
        ));
    }
    let (time, from_me) = (parsed.time(), alias == store.about.me);
    let claim = if parsed.has_sig { record::claim(text).map(Box::new) } else { None };
    let copy_of = copy_of(&parsed, &store.about.me);
    let to_me = parsed.to == store.about.me.as_str();
    let to = if parsed.rcpt.is_empty() { parsed.to.clone() } else { parsed.rcpt.join(", ").into() };
    found.push(Found {
        at,
        to_me,
        from_me,
        time,
        // Told to the millisecond, the order of the log does not matter.
        name_time: parsed.ms.map(|_| time),
        plain: parsed.plain_length(&to),
        again: if parsed.id_verified { Again::Same } else { Again::Claimed },
        claim,
        idempotency_key: parsed.idem.filter(|_| from_me).map(Into::into),
        answers: parsed.re.filter(|_| from_me),
        copy_of,
        to,
        from: parsed.from,
        thread: parsed.thread,
        id: parsed.id,
        ..Found::default()
    });
    Ok(())
}

/// Which record of the same message stands for this one, which is to somebody else: mine, or that to
/// the first recipient.
fn copy_of(parsed: &Parsed<'_>, me: &str) -> Option<CopyOf> {
    let to_me = parsed.rcpt.iter().any(|to| to == me);
    let first = if to_me { me } else { parsed.rcpt.first()? };
    let is_copy = first != parsed.to && parsed.id_verified;
    is_copy.then(|| CopyOf { id: parsed.id_to(first), to_me })
}

fn check_record(line: &mut Checked<'_, Samp>, parsed: &Parsed<'_>) {
    let alias = writer(line.name).map_or("", |(alias, _)| alias);
    if parsed.from != alias {
        line.say("from", format!("from is {:?}, the log is that of {alias:?}", parsed.from));
    }
    if !alias::is_valid(&parsed.to) {
        line.say("to", format!("to is {:?}, which is not a valid alias", parsed.to));
    }
    if !parsed.id_verified {
        line.say("id", format!("the content does not hash to the id {:?}", parsed.id));
    }
    line.id(&parsed.id);
    if parsed.has_sig {
        line.claim(record::claim(line.text));
    }
}

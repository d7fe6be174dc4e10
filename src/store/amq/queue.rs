//! A queue root as files of the engine ([`crate::store::engine::files`]): what lies in the mailboxes of
//! all agents.
//!
//! One message may lie in several mailboxes and in `outbox/sent`: equal bytes under one id are one
//! message, other bytes under the same id are another, whose id carries a hash. Who came first, by the
//! time of the file, keeps the plain id.

use std::io;

use bytemuck::{Pod, Zeroable};
use rustix::fs::FileType;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::message::{self, FILE_BYTES, Fault, Message};
use super::{Amq, LEAVES, check};
use crate::model::locks::Mutex;
use crate::model::{Attachment, one_line, shell_word, twin_id};
use crate::store::digest::print;
use crate::store::engine::files::{
    self, Dirs, Facts, File, Format, Ids, Opened, Pass, Reading, Table, Taken, What,
};
use crate::store::{
    Advice, Facets, Found, Location, Record, Report, Store as _, StoreError, Verify,
};

/// What the table keeps of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Kept {
    /// Print of the id.
    key: u64,
    /// Print of the file.
    pub(super) content: u64,
    /// When it was written, in milliseconds since 1970.
    time: i64,
}

impl Facts for Kept {
    const SLOTS: u8 = 1;

    fn key(&self, _: u8, is_message: bool) -> u64 {
        if is_message { self.key } else { 0 }
    }

    fn time(&self) -> i64 {
        self.time
    }

    fn prints(&self) -> (u64, u64) {
        (self.key, self.content)
    }
}

/// Where in the queue a message lies; the place that shows it comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Read, in my mailbox.
    Cur,
    /// Unread, in my mailbox.
    New,
    /// My copy.
    Sent,
    /// Somebody else's mailbox or copy.
    Theirs,
    /// A dead letter of mine.
    Dead,
}

/// A queue as one agent sees it.
#[derive(Debug)]
pub struct Queue {
    /// My handle.
    pub(super) me: String,
    /// One message is claimed at a time.
    pub(super) claiming: Mutex<()>,
}

impl Queue {
    /// What lies in a folder of the queue.
    pub(super) fn place(&self, folder: &[&str]) -> Option<Place> {
        let ["agents", agent, rest @ ..] = folder else { return None };
        let mine = *agent == self.me;
        Some(match rest {
            ["inbox", "new"] if mine => Place::New,
            ["inbox", "cur"] if mine => Place::Cur,
            ["outbox", "sent"] if mine => Place::Sent,
            ["dlq", "new" | "cur"] if mine => Place::Dead,
            ["inbox", "new" | "cur"] | ["outbox", "sent"] => Place::Theirs,
            _ => return None,
        })
    }

    /// The place of a folder with messages.
    fn place_of(&self, folder: &str) -> Place {
        self.place(&files::parts(folder)).unwrap_or(Place::Theirs)
    }

    /// The files that hold the same message as this one, in the order of [`Place`].
    pub(super) fn copies(&self, table: &Table<Kept>, n: u32) -> Vec<(Place, u32)> {
        let Some(kept) = table.facts(n).copied() else { return Vec::new() };
        let mut all = files::others(table, n, (0, kept.key), |other| other.content == kept.content);
        all.push(n);
        let mut all: Vec<_> = all.iter().map(|n| (self.place_of(table.folder(*n)), *n)).collect();
        all.sort_unstable();
        all
    }

    /// Names that lie in `new/` and in `cur/` of my mailbox.
    pub(super) fn pairs(&self, table: &Table<Kept>) -> Vec<String> {
        let folder = |leaf: &str| table.find_folder(&format!("agents/{}/inbox/{leaf}", self.me));
        let (Some(new), Some(cur)) = (folder("new"), folder("cur")) else { return Vec::new() };
        let names = table.files_in(new).map(|n| table.name(n));
        names.filter(|name| table.find(cur, name).is_some()).map(str::to_owned).collect()
    }
}

/// Why something is a dead letter: the reason stands in its first header.
fn dead(bytes: &[u8]) -> String {
    let header = bytes.strip_prefix(b"---\n").unwrap_or(bytes);
    let mut values = serde_json::Deserializer::from_slice(header).into_iter::<Value>();
    let header = values.next().and_then(Result::ok).unwrap_or_default();
    let said = ["failure_reason", "failure_detail"];
    let said = said.iter().filter_map(|name| header.get(*name)?.as_str());
    ["it is a dead letter"].into_iter().chain(said).collect::<Vec<_>>().join(": ")
}

impl Format for Queue {
    type Facts = Kept;
    type Message<'a> = Box<(Message, Kept)>;
    type Context = ();

    const TAG: [u8; 8] = *b"amqfil01";
    const LONGEST: usize = FILE_BYTES;
    const HAS_ARRIVAL: bool = true;

    fn what(&self, path: &[&str], kind: FileType) -> What {
        let place = path.split_last().and_then(|(_, folder)| self.place(folder));
        let is_file = matches!(kind, FileType::RegularFile | FileType::Unknown);
        match path {
            ["agents", agent, ..] if !message::is_handle(agent) => What::Nothing,
            ["agents"] | ["agents", _] | ["agents", _, "inbox" | "outbox"] => What::Folder,
            ["agents", agent, "dlq"] if *agent == self.me => What::Folder,
            _ if self.place(path).is_some() => What::Folder,
            [.., name] if place.is_none() || name.starts_with('.') => What::Nothing,
            // What others have is theirs to mend.
            _ if place == Some(Place::Theirs) && !is_file => What::Nothing,
            [.., name] if name.strip_suffix(".md").is_some() => What::Message,
            _ if matches!(place, Some(Place::New | Place::Cur)) && is_file => What::Message,
            _ => What::Nothing,
        }
    }

    /// A claim moves a file from `new/` to `cur/`. A scan may know of the first half alone.
    fn also(&self, path: &[&str]) -> What {
        match path {
            [folder @ .., "new", name]
                if self.place(&[folder, &["new"]].concat()) == Some(Place::New) =>
            {
                What::Beside([folder, &["cur", name]].concat().join("/"))
            }
            _ => What::Nothing,
        }
    }

    fn refuses_in(&self, folder: &str) -> bool {
        self.place_of(folder) != Place::Theirs
    }

    fn facets(store: &Amq) -> Facets<'_> {
        Facets {
            outgoing: Some(store),
            agents: Some(store),
            deliveries: Some(store),
            marks: Some(store),
            parts: Some(store),
            ..Facets::default()
        }
    }

    fn record(store: &Amq, at: &Location) -> Result<Record, StoreError> {
        let mut read = store.message_in(&store.file(at.source)?)?;
        let twin = store.table.read().twins.get(&at.source).copied();
        read.shown.id = twin_id(read.shown.id, twin.as_ref()).into_owned();
        let parts =
            read.parts.iter().map(|(name, text)| Attachment::new(*name, text.len())).collect();
        Ok(Record { message: read.shown, claim: read.claim, parts, ..Record::default() })
    }

    fn check(store: &Amq, verify: Verify<'_>, report: Report<'_>) -> Result<(), StoreError> {
        check::check(store, verify, report)
    }

    fn health(store: &Amq) -> Vec<String> {
        let mut lines = store.usual_health();
        if store.missed().is_none() {
            lines.extend(Self::advice(store).into_iter().map(|advice| advice.problem));
        }
        lines
    }

    fn remarks(store: &Amq) -> Vec<String> {
        let inbox = format!("agents/{}/inbox", store.me());
        let line = |name: &String| {
            let name = one_line(name);
            format!(
                "{inbox}/new/{name} and {inbox}/cur/{name} have one name: `amq drain` stops at \
                 the first of them and does not read what comes after it; look at both and move \
                 one away"
            )
        };
        store.format.pairs(&store.table.read()).iter().map(line).collect()
    }

    fn advice(store: &Amq) -> Vec<Advice> {
        let Some(first) = store.missing().next() else { return Vec::new() };
        let root = shell_word(&store.about.dir.to_string_lossy());
        vec![Advice {
            problem: format!("{first} is not there; a mailbox has {LEAVES}"),
            command: Some(format!("amq init --root {root} --agents {}", store.me())),
            serious: true,
        }]
    }

    fn begin(&self, _: &Amq) -> Result<Option<((), u64)>, StoreError> {
        Ok(Some(((), print(self.me.as_bytes()))))
    }

    fn read<'a>(
        &self,
        (): &(),
        _: &mut Dirs<'_>,
        opened: &'a Opened<'a, Kept>,
    ) -> io::Result<Reading<Self::Message<'a>, Kept>> {
        let place = self.place_of(&opened.file.folder);
        if place == Place::Dead {
            return Ok(Reading::refused(dead(opened.bytes)));
        }
        if opened.file.name.strip_suffix(".md").is_none() {
            // Who writes here by another name first gives it the right one in a moment.
            let why = "it is not a message: the name of a message ends in .md";
            return Ok(Reading::incomplete(why.into()));
        }
        Ok(match message::parse(opened.bytes) {
            Ok(message) => {
                let (id, time) = (message.shown.id.as_bytes(), message.shown.time.millis());
                let kept = Kept { key: print(id), content: print(opened.bytes), time };
                let same = opened.file.message() == Some(&kept);
                Reading::message(Box::new((message, kept)), same)
            }
            Err(_) if place == Place::Theirs => Reading::nothing(),
            Err(Fault::Unfinished) => Reading::incomplete(Fault::Unfinished.to_string()),
            Err(fault) => Reading::refused(fault.to_string()),
        })
    }

    fn facts<'m>(message: &'m Self::Message<'_>) -> &'m Kept {
        &message.1
    }

    fn reported_from(store: &Amq, n: u32) -> u32 {
        let copies = store.format.copies(&store.table.read(), n);
        copies.first().map_or(n, |(_, first)| *first)
    }

    fn take<'a>(
        &self,
        (): &(),
        pass: &mut Pass<'_, Self>,
        taken: Taken<'a, Self>,
    ) -> Option<Found<'a>> {
        let Taken { n, opened, message, before, same } = taken;
        let (Message { shown, parts, claim, idem, .. }, kept) = *message;
        let Kept { key, content, .. } = kept;
        pass.table.change(n, |_, facts| *facts = kept);
        let replaces = !same && before.is_some_and(|old| old.key == key);
        let ids = Ids { key: (0, key), stays: same, replaces };
        let hash = || Sha256::digest(opened.bytes).into();
        let twin = pass.copies(n, ids, |kept| kept.content == content, hash).twin;
        let copies = self.copies(pass.table, n);
        let first = copies.first().map_or(n, |(_, first)| *first);
        if first != n {
            pass.look([first]);
            return None;
        }
        let lies = |places: &[Place]| copies.iter().any(|(place, _)| places.contains(place));
        let to_me = lies(&[Place::New, Place::Cur]);
        let pairs = self.pairs(pass.table);
        let open = copies.iter().filter(|(place, _)| *place == Place::New).map(|(_, n)| *n);
        let unmarked =
            files::unmarked(open.filter(|n| !pairs.iter().any(|name| name == pass.table.name(*n))));
        let from = shown.from.unwrap_or_default();
        let from_me = lies(&[Place::Sent]) && from == self.me;
        Some(Found {
            at: File::<Kept>::at(n, opened.bytes.len()),
            from: from.into(),
            to: shown.to.join(", ").into(),
            thread: shown.thread.unwrap_or_default().into(),
            id: twin_id(shown.id, twin.as_ref()),
            time: shown.time,
            to_me,
            from_me,
            read: to_me.then(|| lies(&[Place::Cur])),
            unmarked,
            parts: !parts.is_empty(),
            claim: claim.map(Box::new),
            idempotency_key: idem.filter(|_| from_me).map(Into::into),
            answers: shown.in_reply_to.filter(|_| from_me).map(Into::into),
            ..Found::default()
        })
    }

    /// Other files that hold the same message must be reported in its place.
    fn lost(&self, pass: &mut Pass<'_, Self>, n: u32) {
        let copies = self.copies(pass.table, n);
        pass.look(copies.into_iter().map(|(_, copy)| copy).filter(|copy| *copy != n));
    }

    fn is_shown(&self, path: &[&str], kind: FileType) -> bool {
        let of_others = matches!(path, ["agents", agent, ..] if *agent != self.me);
        !of_others && self.what(path, kind).is_shown(kind)
    }
}

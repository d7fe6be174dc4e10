//! A queue root as files of the engine ([`crate::store::engine::files`]): what lies in the mailboxes of all
//! agents, as far as I wrote it or it is written to me.
//!
//! One message may lie in several mailboxes and in `outbox/sent`: equal bytes under one id are one
//! message, other bytes under the same id are another, whose id carries a hash.

use bytemuck::{Pod, Zeroable};
use rustix::fs::FileType;
use sha2::{Digest as _, Sha256};

use super::message::{self, FILE_BYTES, Fault, Message, stem_of};
use crate::model::{TWIN, hex, one_line};
use crate::store::engine::files::{
    self, Facts, File, Files, Format, Ids, Opened, Pass, Reading, Refusal, Taken, Verdict, What,
};
use crate::store::{Found, StoreError};

/// What the table keeps of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Kept {
    /// Print of the id.
    pub key: u64,
    /// Print of the file.
    pub content: u64,
    /// When it was written, in milliseconds since 1970.
    pub time: i64,
}

impl Facts for Kept {
    const SLOTS: u8 = 1;

    fn key(&self, _: u8, is_message: bool) -> u64 {
        if is_message { self.key } else { 0 }
    }

    fn time(&self) -> i64 {
        self.time
    }
}

/// The first 8 bytes of a SHA-256, never 0.
pub(super) fn print(bytes: &[u8]) -> u64 {
    let full: [u8; 32] = Sha256::digest(bytes).into();
    u64::from_le_bytes(full.first_chunk::<8>().copied().unwrap_or_default()).max(1)
}

/// A queue as one agent sees it.
#[derive(Debug)]
pub struct Queue {
    /// My handle.
    pub me: String,
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

impl Queue {
    /// What lies in a folder of the queue.
    pub(super) fn place(&self, folder: &str) -> Option<Place> {
        let path = files::parts(folder);
        let ["agents", agent, rest @ ..] = path.as_slice() else { return None };
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

    fn found(&self, message: Message, places: &[Place], twin: Option<[u8; 32]>) -> Found<'static> {
        let to_me = places.iter().any(|p| matches!(p, Place::New | Place::Cur));
        let from_me = places.contains(&Place::Sent) && message.from == self.me;
        Found {
            from: message.from.into(),
            to: message.to.join(", ").into(),
            thread: message.thread.into(),
            id: id_of(&message.id, twin).into(),
            time: message.created,
            to_me,
            from_me,
            read: to_me.then(|| places.contains(&Place::Cur)),
            parts: !message.labels.is_empty() || message.context.is_some(),
            claim: message.claim.map(Box::new),
            idempotency_key: message.idem.filter(|_| from_me).map(Into::into),
            ..Found::default()
        }
    }
}

/// The id by which a message is known.
pub(super) fn id_of(id: &str, twin: Option<[u8; 32]>) -> String {
    twin.map_or_else(|| id.to_owned(), |hash| format!("{id}{TWIN}{}", hex(&hash)))
}

/// Why something is a dead letter: the reason stands in its first header.
fn dead(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let header = text.strip_prefix("---\n").unwrap_or(&text);
    let mut values = serde_json::Deserializer::from_str(header).into_iter::<serde_json::Value>();
    let header = values.next().and_then(Result::ok).unwrap_or_default();
    let said = |name: &str| header.get(name).and_then(serde_json::Value::as_str).map(one_line);
    let reason = said("failure_reason").unwrap_or("for an unknown reason".into());
    match said("failure_detail") {
        Some(detail) => format!("it is a dead letter: {reason}: {detail}"),
        None => format!("it is a dead letter: {reason}"),
    }
}

impl Format for Queue {
    type Facts = Kept;
    type Message<'a> = Box<Message>;
    type Context = ();

    const TAG: [u8; 8] = *b"amqfil01";
    const LONGEST: usize = FILE_BYTES;

    fn what(&self, path: &[&str], _: FileType) -> What {
        match path {
            ["agents"] => What::Folder,
            ["agents", agent, rest @ ..] if message::is_handle(agent) => match rest {
                [] | ["inbox" | "outbox"] | ["inbox", "new" | "cur"] | ["outbox", "sent"] => {
                    What::Folder
                }
                ["dlq"] | ["dlq", "new" | "cur"] if *agent == self.me => What::Folder,
                [above @ .., name] if stem_of(name).is_some() => {
                    let folder = format!("agents/{agent}/{}", above.join("/"));
                    self.place(&folder).map_or(What::Nothing, |_| What::Message)
                }
                _ => What::Nothing,
            },
            _ => What::Nothing,
        }
    }

    fn begin(&self, _: &Files<Self>) -> Result<((), u64), StoreError> {
        Ok(((), print(self.me.as_bytes())))
    }

    fn read<'a>(
        &self,
        (): &(),
        opened: &'a Opened<'a, Kept>,
    ) -> std::io::Result<Reading<Box<Message>, Kept>> {
        let place = self.place(&opened.file.folder).unwrap_or(Place::Theirs);
        if place == Place::Dead {
            return Ok(Reading::refused(dead(opened.bytes)));
        }
        let nothing = Reading { verdict: Verdict::Nothing, unfinished: false, depends: false };
        Ok(match message::parse(opened.bytes) {
            Ok(message) => {
                let is_mine = message.from == self.me || message.to.contains(&self.me);
                if place == Place::Theirs && !is_mine {
                    return Ok(nothing);
                }
                let now = (print(message.id.as_bytes()), print(opened.bytes));
                let same = opened.file.message().is_some_and(|old| (old.key, old.content) == now);
                Reading::message(Box::new(message), same)
            }
            // What others have and cannot be read is theirs to mend.
            Err(_) if place == Place::Theirs => nothing,
            Err(fault) => {
                let incomplete = fault == Fault::Unfinished;
                let refusal =
                    Refusal { reason: fault.to_string(), incomplete, ..Refusal::default() };
                let verdict = Verdict::Refused(refusal);
                Reading { verdict, unfinished: incomplete, depends: false }
            }
        })
    }

    fn take<'a>(
        &self,
        (): &(),
        pass: &mut Pass<'_, Self>,
        taken: Taken<'a, Self>,
    ) -> Option<Found<'a>> {
        let Taken { n, opened, message, before, same } = taken;
        let (key, content) = (print(message.id.as_bytes()), print(opened.bytes));
        let time = message.created.millis();
        pass.table.change(n, |_, kept| *kept = Kept { key, content, time });
        let replaces = !same && before.is_some_and(|old| old.key == key);
        let ids = Ids { key: (0, key), stays: same, replaces };
        let hash = || Sha256::digest(opened.bytes).into();
        let copies = pass.copies(n, ids, |kept| kept.content == content, hash);
        let place = |n: &u32| self.place(pass.table.folder(*n)).unwrap_or(Place::Theirs);
        let primary = copies.members.iter().copied().min_by_key(|n| (place(n), *n)).unwrap_or(n);
        if primary != n {
            pass.look([primary]);
            return None;
        }
        let places: Vec<Place> = copies.members.iter().map(place).collect();
        let mut found = self.found(*message, &places, copies.twin);
        found.at = File::<Kept>::at(n, opened.bytes.len());
        Some(found)
    }

    /// Other files that hold the same message must be reported in its place.
    fn lost(&self, pass: &mut Pass<'_, Self>, n: u32) {
        let Some(old) = pass.table.facts(n).copied() else { return };
        let same = |kept: &Kept| kept.content == old.content;
        let copies = files::others(pass.table, n, (0, old.key), same);
        pass.look(copies);
    }

    fn is_shown(&self, path: &[&str], kind: FileType) -> bool {
        let of_others = matches!(path, ["agents", agent, ..] if *agent != self.me);
        !of_others
            && match self.what(path, kind) {
                What::Folder => kind == FileType::Directory,
                What::Message => kind == FileType::RegularFile,
                _ => false,
            }
    }
}

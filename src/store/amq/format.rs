//! A queue root as files of the engine ([`crate::store::engine::files`]): the mailboxes of all agents.
//!
//! One message may lie in several mailboxes and in `outbox/sent`. Equal bytes under one id are one message. Other bytes
//! under the same id are another message, whose id carries a hash. The first by the time of the file keeps the plain
//! id.

use std::io;

use bytemuck::{Pod, Zeroable};
use rustix::fs::FileType;
use serde_json::Value;

use super::message::{self, AmqMessage, AmqParseError, FILE_BYTES};
use super::{AmqStore, LEAVES, check};
use crate::model::locks::Mutex;
use crate::model::{Attachment, display_path, qualify_id, quote_shell_word, sanitize_line};
use crate::store::digest::secure_hash64;
use crate::store::engine::Format;
use crate::store::engine::files::{
    self, DirCache, FileFacts, FileFormat, FileInput, FileReading, FileTable, IdLookup, PathRole,
    PendingReport, ScanPass, StoreFile,
};
use crate::store::{
    Advice, ClaimVerifier, Facets, FoundMessage, Location, Record, Store as _, StoreError,
    ViolationReporter, fs,
};

/// The facts about a message that the table keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct AmqTableFacts {
    /// The hash of the id.
    key: u64,
    /// The hash of the file.
    pub(super) content: u64,
    /// The time of writing, in milliseconds since 1970.
    time: i64,
}

impl FileFacts for AmqTableFacts {
    const SLOTS: u8 = 1;

    fn slot_key(&self, _: u8, is_message: bool) -> u64 {
        if is_message { self.key } else { 0 }
    }

    fn time(&self) -> i64 {
        self.time
    }

    fn hashes(&self) -> (u64, u64) {
        (self.key, self.content)
    }
}

/// The kind of a folder in the queue. If several folders hold a message, the first kind here shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AmqFolderKind {
    /// Read, in my mailbox.
    Cur,
    /// Unread, in my mailbox.
    New,
    /// My copy.
    Sent,
    /// Another agent's mailbox or copy.
    OtherAgent,
    /// A dead letter of mine.
    DeadLetter,
}

/// A queue as one agent sees it.
#[derive(Debug)]
pub struct AmqFormat {
    /// My handle.
    pub(super) me: String,
    /// Allows one claim at a time.
    pub(super) claim_lock: Mutex<()>,
}

impl AmqFormat {
    /// Returns the kind of a folder of the queue.
    pub(super) fn classify_folder(&self, folder: &[&str]) -> Option<AmqFolderKind> {
        let ["agents", agent, rest @ ..] = folder else { return None };
        let mine = *agent == self.me;
        Some(match rest {
            ["inbox", "new"] if mine => AmqFolderKind::New,
            ["inbox", "cur"] if mine => AmqFolderKind::Cur,
            ["outbox", "sent"] if mine => AmqFolderKind::Sent,
            ["dlq", "new" | "cur"] if mine => AmqFolderKind::DeadLetter,
            ["inbox", "new" | "cur"] | ["outbox", "sent"] => AmqFolderKind::OtherAgent,
            _ => return None,
        })
    }

    /// Returns the kind of a folder with messages.
    fn classify_path(&self, folder: &str) -> AmqFolderKind {
        self.classify_folder(&files::path_parts(folder)).unwrap_or(AmqFolderKind::OtherAgent)
    }

    /// Returns the files that hold the same message as this one, in the order of [`AmqFolderKind`].
    pub(super) fn find_copies(
        &self,
        table: &FileTable<AmqTableFacts>,
        n: u32,
    ) -> Vec<(AmqFolderKind, u32)> {
        let Some(kept) = table.facts(n).copied() else { return Vec::new() };
        let mut all =
            files::other_copies(table, n, (0, kept.key), |other| other.content == kept.content);
        all.push(n);
        let mut all: Vec<_> =
            all.iter().map(|n| (self.classify_path(table.folder(*n)), *n)).collect();
        all.sort_unstable();
        all
    }

    /// Returns the number of `new/` or `cur/` of my mailbox.
    fn find_inbox_folder(&self, table: &FileTable<AmqTableFacts>, leaf: &str) -> Option<u32> {
        table.find_folder(&format!("agents/{}/inbox/{leaf}", self.me))
    }

    /// Says that a name lies both in `new/` and in `cur/` of my mailbox.
    pub(super) fn describe_name_clash(&self, name: &str) -> String {
        let (inbox, name) = (format!("agents/{}/inbox", self.me), sanitize_line(name));
        format!("{inbox}/new/{name} and {inbox}/cur/{name} have one name")
    }

    /// Returns the names that lie both in `new/` and in `cur/` of my mailbox.
    pub(super) fn find_name_clashes(&self, table: &FileTable<AmqTableFacts>) -> Vec<String> {
        let folder = |leaf: &str| self.find_inbox_folder(table, leaf);
        let (Some(new), Some(cur)) = (folder("new"), folder("cur")) else { return Vec::new() };
        let names = table.files_in(new).map(|n| table.name(n));
        names.filter(|name| table.find_file(cur, name).is_some()).map(str::to_owned).collect()
    }
}

/// Returns the reason for a dead letter, which is in its first header.
fn dead_letter_reason(bytes: &[u8]) -> String {
    let header = bytes.strip_prefix(b"---\n").unwrap_or(bytes);
    let mut values = serde_json::Deserializer::from_slice(header).into_iter::<Value>();
    let header = values.next().and_then(Result::ok).unwrap_or_default();
    let said = ["failure_reason", "failure_detail"];
    let said = said.iter().filter_map(|name| header.get(*name)?.as_str());
    ["it is a dead letter"].into_iter().chain(said).collect::<Vec<_>>().join(": ")
}

impl Format<AmqStore> for AmqFormat {
    fn facets(store: &AmqStore) -> Facets<'_> {
        Facets {
            appender: Some(store),
            directory: Some(store),
            deliveries: Some(store),
            marks: Some(store),
            parts: Some(store),
            ..Facets::default()
        }
    }

    fn describe_missing(store: &AmqStore) -> Option<String> {
        Self::advice(store).first().map(Advice::to_line)
    }

    fn remarks(store: &AmqStore) -> Vec<String> {
        let line = |name: &String| {
            format!(
                "{}: `amq drain` stops at the first of them and does not read what comes after it; \
                 look at both and move one away",
                store.format.describe_name_clash(name)
            )
        };
        store.format.find_name_clashes(&store.table.read()).iter().map(line).collect()
    }

    fn advice(store: &AmqStore) -> Vec<Advice> {
        let Some(first) = store.missing_folders().next() else { return Vec::new() };
        let dir = &store.properties.dir;
        let problem = if fs::is_folder_missing(dir) {
            format!(
                "the queue {} does not exist; if it is another one, correct dir in its [[store]]",
                display_path(dir)
            )
        } else {
            format!("{} is not there; a mailbox has {LEAVES}", display_path(&dir.join(first)))
        };
        let root = quote_shell_word(&dir.to_string_lossy());
        vec![Advice {
            problem,
            command: Some(format!("amq init --root {root} --agents {}", store.me())),
            serious: true,
        }]
    }
}

impl FileFormat for AmqFormat {
    type Facts = AmqTableFacts;
    type Message<'a> = Box<(AmqMessage, AmqTableFacts)>;
    type Context = ();

    const TAG: [u8; 8] = *b"amqfil01";
    const LONGEST: usize = FILE_BYTES;
    const HAS_ARRIVAL: bool = true;

    fn determine_role(&self, path: &[&str], kind: FileType) -> PathRole {
        let place = path.split_last().and_then(|(_, folder)| self.classify_folder(folder));
        let is_file = matches!(kind, FileType::RegularFile | FileType::Unknown);
        match path {
            ["agents", agent, ..] if !message::is_handle(agent) => PathRole::Nothing,
            ["agents"] | ["agents", _] | ["agents", _, "inbox" | "outbox"] => PathRole::Folder,
            ["agents", agent, "dlq"] if *agent == self.me => PathRole::Folder,
            _ if self.classify_folder(path).is_some() => PathRole::Folder,
            [.., name] if place.is_none() || name.starts_with('.') => PathRole::Nothing,
            // Other agents mend their own folders.
            _ if place == Some(AmqFolderKind::OtherAgent) && !is_file => PathRole::Nothing,
            [.., name] if name.strip_suffix(".md").is_some() => PathRole::Message,
            _ if matches!(place, Some(AmqFolderKind::New | AmqFolderKind::Cur)) && is_file => {
                PathRole::Message
            }
            _ => PathRole::Nothing,
        }
    }

    /// Returns the companion in `cur/` of a file in `new/`. A claim moves a file there, and a scan may see only half of
    /// it.
    fn determine_related_role(&self, path: &[&str]) -> PathRole {
        match path {
            [folder @ .., "new", name]
                if self.classify_folder(&[folder, &["new"]].concat())
                    == Some(AmqFolderKind::New) =>
            {
                PathRole::Companion([folder, &["cur", name]].concat().join("/"))
            }
            _ => PathRole::Nothing,
        }
    }

    fn may_reject_in(&self, folder: &str) -> bool {
        self.classify_path(folder) != AmqFolderKind::OtherAgent
    }

    fn read_record(store: &AmqStore, at: &Location) -> Result<Record, StoreError> {
        let mut read = store.read_message_in(&store.find_file(at.source)?)?;
        let qualifier = store.table.read().qualifiers.get(&at.source).copied();
        read.message.id = qualify_id(read.message.id, qualifier.as_ref()).into_owned();
        let parts =
            read.parts.iter().map(|(name, text)| Attachment::new(*name, text.len())).collect();
        Ok(Record { message: read.message, claim: read.claim, parts, ..Record::default() })
    }

    fn check_files(
        store: &AmqStore,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        check::check_messages(store, verify, report)
    }

    fn load_context(&self, _: &AmqStore) -> Result<Option<((), u64)>, StoreError> {
        Ok(Some(((), secure_hash64(self.me.as_bytes()))))
    }

    fn parse_file<'a>(
        &self,
        (): &(),
        _: &mut DirCache<'_>,
        opened: &'a FileInput<'a, AmqTableFacts>,
    ) -> io::Result<FileReading<Self::Message<'a>, AmqTableFacts>> {
        let place = self.classify_path(&opened.file.folder);
        if place == AmqFolderKind::DeadLetter {
            return Ok(FileReading::rejected(dead_letter_reason(opened.bytes)));
        }
        if opened.file.name.strip_suffix(".md").is_none() {
            // A program that writes the file under another name renames it in a moment.
            let why = "it is not a message: the name of a message ends in .md";
            return Ok(FileReading::incomplete(why.into()));
        }
        Ok(match message::parse(opened.bytes) {
            Ok(message) => {
                let (id, time) = (message.message.id.as_bytes(), message.message.time.millis());
                let kept = AmqTableFacts {
                    key: secure_hash64(id),
                    content: secure_hash64(opened.bytes),
                    time,
                };
                let same = opened.file.message_facts() == Some(&kept);
                FileReading::message(Box::new((message, kept)), same)
            }
            Err(_) if place == AmqFolderKind::OtherAgent => FileReading::nothing(),
            Err(AmqParseError::Incomplete) => {
                FileReading::incomplete(AmqParseError::Incomplete.to_string())
            }
            Err(fault) => FileReading::rejected(fault.to_string()),
        })
    }

    fn message_facts<'m>(message: &'m Self::Message<'_>) -> &'m AmqTableFacts {
        &message.1
    }

    fn report_source(store: &AmqStore, n: u32) -> u32 {
        let copies = store.format.find_copies(&store.table.read(), n);
        copies.first().map_or(n, |(_, first)| *first)
    }

    fn accept_message<'a>(
        &self,
        (): &(),
        pass: &mut ScanPass<'_, Self>,
        taken: PendingReport<'a, Self>,
    ) -> Option<FoundMessage<'a>> {
        let PendingReport { n, opened, message, previous_facts: before, is_same: same } = taken;
        let (AmqMessage { message: shown, parts, claim, idempotency_key: idem, .. }, kept) =
            *message;
        let AmqTableFacts { key, content, .. } = kept;
        pass.table.update_row(n, |_, facts| *facts = kept);
        let replaced = before.filter(|old| !same && old.key == key).map(|old| old.content);
        let ids = IdLookup { key: (0, key), content, is_same: same, replaced };
        let qualifier = pass.find_copies(n, ids, opened.bytes).qualifier;
        let copies = self.find_copies(pass.table, n);
        let first = copies.first().map_or(n, |(_, first)| *first);
        if first != n {
            pass.queue_files([first]);
            return None;
        }
        let lies =
            |places: &[AmqFolderKind]| copies.iter().any(|(place, _)| places.contains(place));
        let to_me = lies(&[AmqFolderKind::New, AmqFolderKind::Cur]);
        let cur = self.find_inbox_folder(pass.table, "cur");
        let is_claimable = |n: &u32| {
            cur.is_none_or(|cur| pass.table.find_file(cur, pass.table.name(*n)).is_none())
        };
        let open = copies.iter().filter(|(place, _)| *place == AmqFolderKind::New).map(|(_, n)| *n);
        let unmarked = files::hash_unmarked_files(open.filter(is_claimable));
        let from = shown.from.unwrap_or_default();
        let from_me = lies(&[AmqFolderKind::Sent]) && from == self.me;
        Some(FoundMessage {
            at: StoreFile::<AmqTableFacts>::location(n, opened.bytes.len()),
            from: from.into(),
            to: shown.to.join(", ").into(),
            thread: shown.thread.unwrap_or_default().into(),
            id: qualify_id(shown.id, qualifier.as_ref()),
            time: shown.time,
            to_me,
            from_me,
            read: to_me.then(|| lies(&[AmqFolderKind::Cur])),
            unmarked_hash: unmarked,
            has_parts: !parts.is_empty(),
            claim: claim.map(Box::new),
            idempotency_key: idem.filter(|_| from_me).map(Into::into),
            in_reply_to: shown.in_reply_to.filter(|_| from_me || to_me).map(Into::into),
            ..FoundMessage::default()
        })
    }

    /// Queues other files that hold the same message, so that they are reported in its place.
    fn forget_message(&self, pass: &mut ScanPass<'_, Self>, n: u32) {
        let copies = self.find_copies(pass.table, n);
        pass.queue_files(copies.into_iter().map(|(_, copy)| copy).filter(|copy| *copy != n));
    }

    fn is_shown(&self, path: &[&str], kind: FileType) -> bool {
        let of_others = matches!(path, ["agents", agent, ..] if *agent != self.me);
        !of_others && self.determine_role(path, kind).is_shown(kind)
    }
}

//! The check of every message file of the agent for `msgfs check`.

use std::collections::HashMap;

use rustix::fs::FileType;

use super::AmpStore;
use super::address;
use super::attachments::resolve_attachments;
use super::envelope::{self, AmpMessage};
use super::facts::{self, collect_facts};
use super::format::{AmpMailFolder, message_file_stem};
use super::limits::is_over_limit;
use super::roster::Roster;
use super::table_facts::AmpFlag;
use crate::model::{Timestamp, sanitize_line};
use crate::store::engine::files::{
    self, ArrivalOrder, FileFormat as _, PathRole, WalkEntry, file_violation,
};
use crate::store::fs::Stamp;
use crate::store::text::time::parse_time;
use crate::store::{ClaimVerifier, StoreError, ViolationReporter};

struct AmpChecker<'a> {
    amp: &'a AmpStore,
    roster: &'a Roster,
    verify: ClaimVerifier<'a>,
    report: ViolationReporter<'a>,
    seen: Vec<AmpCheckedMessage>,
}

/// A message that is compared with the others at the end.
struct AmpCheckedMessage {
    arrival: ArrivalOrder,
    /// The path in the store.
    path: String,
    id: String,
    content: u64,
    /// It is signed, and the same signed bytes under another id are a replay. A link delivers one message under several
    /// ids.
    has_one_id: bool,
}

impl AmpStore {
    /// Checks all messages; see [`MessageReader::check`](crate::store::MessageReader::check).
    pub(super) fn check_messages(
        &self,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        let roster = &self.format.home.refresh_roster()?;
        let mut checker = AmpChecker { amp: self, roster, verify, report, seen: Vec::new() };
        self.visit_entries(&mut |visit| match visit {
            WalkEntry::Message { folder, name, stamp, bytes } => {
                checker.check_file(folder, name, &stamp, bytes);
            }
            // The folder of a correspondent holds nothing but messages.
            WalkEntry::Other { path, what: PathRole::Nothing }
                if is_in_correspondent_folder(path) =>
            {
                checker.report_violation(
                    path,
                    "file",
                    files::describe_non_message(FileType::RegularFile),
                );
            }
            WalkEntry::Other { .. } => {}
            WalkEntry::Wrong(violation) => (checker.report)(violation),
        })?;
        checker.report_duplicates();
        Ok(())
    }
}

/// Returns true if a visible file lies in the folder of a correspondent.
fn is_in_correspondent_folder(path: &str) -> bool {
    let hidden = path.split('/').any(|name| name.starts_with('.'));
    AmpMailFolder::from_path(path).is_some() && path.split('/').count() == 4 && !hidden
}

impl AmpChecker<'_> {
    fn report_violation(&mut self, file: &str, rule: &'static str, detail: String) {
        (self.report)(file_violation(file, rule, detail));
    }

    fn check_file(&mut self, folder: &str, name: &str, stamp: &Stamp, bytes: &[u8]) {
        let path = &format!("{folder}/{name}");
        let stored = match envelope::parse(bytes) {
            Ok(stored) => stored,
            Err(e) => {
                return self.report_violation(
                    path,
                    "schema",
                    sanitize_line(&e.to_string()).into_owned(),
                );
            }
        };
        let facts = collect_facts(&stored, stamp, Timestamp::now());
        let mailbox = AmpMailFolder::from_path(folder).unwrap_or(AmpMailFolder::Inbox);
        self.check_members(path, &stored, mailbox);
        let admitted = facts::admit_message(&stored, &facts, mailbox, self.roster);
        if admitted.is_ok() {
            let table_facts = &facts.table_facts;
            let is_carried = table_facts.has_flag(AmpFlag::Carried);
            self.seen.push(AmpCheckedMessage {
                arrival: self.amp.format.arrival_order(folder, stamp, bytes),
                path: path.clone(),
                id: stored.id.to_string(),
                content: table_facts.content,
                has_one_id: table_facts.has_flag(AmpFlag::Signed) && !is_carried,
            });
        }
        match admitted {
            Err(why) => self.report_violation(path, "refused", why),
            Ok(None) => self.report_violation(path, "unsigned", "the message is not signed".into()),
            Ok(Some(claim)) => {
                if let Some(wrong) = (self.verify)(&claim) {
                    self.report_violation(path, "signature", wrong);
                }
            }
        }
        let (dir, digests) = (&self.amp.properties.dir, &self.amp.format.digests);
        for piece in resolve_attachments(&stored, dir, self.roster, digests) {
            if let Some(why) = piece.attachment.withheld {
                let name = sanitize_line(&piece.attachment.name).into_owned();
                self.report_violation(path, "attachment", format!("{name} ({why})"));
            }
        }
    }

    fn check_members(&mut self, path: &str, stored: &AmpMessage<'_>, mailbox: AmpMailFolder) {
        let parts = files::path_parts(path);
        if parts.last().and_then(|name| message_file_stem(name)) != Some(&*stored.id) {
            let id = sanitize_line(&stored.id).into_owned();
            self.report_violation(path, "name", format!("the file is not named after its id {id}"));
        }
        let other = if mailbox == AmpMailFolder::Inbox { &stored.from } else { &stored.to };
        let folder = address::correspondent_folder(other);
        if let [_, _, own, _] = parts.as_slice()
            && !own.eq_ignore_ascii_case(&folder)
        {
            let other = sanitize_line(other).into_owned();
            self.report_violation(path, "folder", format!("the folder of {other} is {folder}"));
        }
        if stored.timestamp.as_deref().and_then(parse_time).is_none() {
            self.report_violation(path, "timestamp", "envelope.timestamp is not a time".into());
        }
        if stored.subject.as_deref().is_none_or(str::is_empty) {
            self.report_violation(path, "subject", "envelope.subject is empty".into());
        }
        if is_over_limit(stored) {
            self.report_violation(
                path,
                "limit",
                "the message is larger than the format allows".into(),
            );
        }
    }

    /// Reports ids and signed bytes that occur twice. The order is that of arrival, so the first message here is the
    /// first in the mount too.
    fn report_duplicates(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        seen.sort_by(|a, b| (a.arrival, &a.path).cmp(&(b.arrival, &b.path)));
        let mut ids: HashMap<&str, &AmpCheckedMessage> = HashMap::new();
        let mut signed: HashMap<u64, &str> = HashMap::new();
        for s in &seen {
            let id = sanitize_line(&s.id);
            let first = *ids.entry(&s.id).or_insert(s);
            if first.content != s.content {
                let earlier = sanitize_line(&first.path);
                let detail = format!("the id {id} is that of another message in {earlier}");
                self.report_violation(&s.path, "duplicate", detail);
            }
            if s.has_one_id {
                let earlier = *signed.entry(s.content).or_insert(&s.id);
                if earlier != s.id {
                    let detail =
                        format!("the same signed bytes have the id {}", sanitize_line(earlier));
                    self.report_violation(&s.path, "replay", detail);
                }
            }
        }
    }
}

//! `msgfs check`: every message file of the agent against the rules of the format.

use std::collections::HashMap;

use rustix::fs::FileType;

use super::Amp;
use super::address;
use super::boxes::{Bit, Mailbox, stem_of};
use super::envelope::{self, Stored};
use super::facts::{self, facts};
use super::limits::over_limit;
use super::parts::pieces;
use super::roster::Roster;
use crate::model::{Timestamp, one_line};
use crate::store::engine::files::{self, Arrival, Format as _, Visit, What, violation};
use crate::store::fs::Stamp;
use crate::store::text::time::parse_time;
use crate::store::{Report, StoreError, Verify};

struct Checker<'a> {
    amp: &'a Amp,
    roster: &'a Roster,
    verify: Verify<'a>,
    report: Report<'a>,
    seen: Vec<Seen>,
}

/// A message, to be compared with the others once all are known.
struct Seen {
    arrival: Arrival,
    /// Path in the store.
    path: String,
    id: String,
    content: u64,
    signed: bool,
}

impl Amp {
    /// See [`Store::check`](crate::store::Store::check).
    pub(super) fn check_boxes(
        &self,
        verify: Verify<'_>,
        report: Report<'_>,
    ) -> Result<(), StoreError> {
        let roster = &self.format.home.roster()?;
        let mut checker = Checker { amp: self, roster, verify, report, seen: Vec::new() };
        self.visit(&mut |visit| match visit {
            Visit::Message { folder, name, stamp, bytes } => {
                checker.file(folder, name, &stamp, bytes);
            }
            // In the folder of a correspondent there is nothing but messages.
            Visit::Other { path, what: What::Nothing } if is_inside(path) => {
                checker.say(path, "file", files::no_message(FileType::RegularFile));
            }
            Visit::Other { .. } => {}
            Visit::Wrong(violation) => (checker.report)(violation),
        })?;
        checker.twice();
        Ok(())
    }
}

/// Whether something that is not hidden lies in the folder of a correspondent.
fn is_inside(path: &str) -> bool {
    let hidden = path.split('/').any(|name| name.starts_with('.'));
    Mailbox::of(path).is_some() && path.split('/').count() == 4 && !hidden
}

impl Checker<'_> {
    fn say(&mut self, file: &str, rule: &'static str, detail: String) {
        (self.report)(violation(file, rule, detail));
    }

    fn file(&mut self, folder: &str, name: &str, stamp: &Stamp, bytes: &[u8]) {
        let path = &format!("{folder}/{name}");
        let stored = match envelope::parse(bytes) {
            Ok(stored) => stored,
            Err(e) => return self.say(path, "schema", one_line(&e.to_string()).into_owned()),
        };
        let facts = facts(&stored, stamp, Timestamp::now());
        let mailbox = Mailbox::of(folder).unwrap_or(Mailbox::Inbox);
        self.members(path, &stored, mailbox);
        let admitted = facts::admit(&stored, &facts, mailbox, self.roster);
        if admitted.is_ok() {
            self.seen.push(Seen {
                arrival: self.amp.format.arrival(folder, stamp, bytes),
                path: path.clone(),
                id: stored.id.to_string(),
                content: facts.kept.content,
                signed: facts.kept.has(Bit::Signed),
            });
        }
        match admitted {
            Err(why) => self.say(path, "refused", why),
            Ok(None) => self.say(path, "unsigned", "the message is not signed".into()),
            Ok(Some(claim)) => {
                if let Some(wrong) = (self.verify)(&claim) {
                    self.say(path, "signature", wrong);
                }
            }
        }
        let (dir, digests) = (&self.amp.about.dir, &self.amp.format.digests);
        for piece in pieces(&stored, dir, self.roster, digests) {
            if let Some(why) = piece.shown.withheld {
                let name = one_line(&piece.shown.name).into_owned();
                self.say(path, "attachment", format!("{name} ({why})"));
            }
        }
    }

    fn members(&mut self, path: &str, stored: &Stored<'_>, mailbox: Mailbox) {
        let parts = files::parts(path);
        if parts.last().and_then(|name| stem_of(name)) != Some(&*stored.id) {
            let id = one_line(&stored.id).into_owned();
            self.say(path, "name", format!("the file is not named after its id {id}"));
        }
        let other = if mailbox == Mailbox::Inbox { &stored.from } else { &stored.to };
        let folder = address::folder(other);
        if let [_, _, own, _] = parts.as_slice()
            && !own.eq_ignore_ascii_case(&folder)
        {
            let other = one_line(other).into_owned();
            self.say(path, "folder", format!("the folder of {other} is {folder}"));
        }
        if stored.timestamp.as_deref().and_then(parse_time).is_none() {
            self.say(path, "timestamp", "envelope.timestamp is not a time".into());
        }
        if stored.subject.as_deref().is_none_or(str::is_empty) {
            self.say(path, "subject", "envelope.subject is empty".into());
        }
        if over_limit(stored) {
            self.say(path, "limit", "the message is larger than the format allows".into());
        }
    }

    /// Ids and signed bytes that are there twice, in the order in which messages came: what the mount
    /// takes for the first is the first here too.
    fn twice(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        seen.sort_by(|a, b| (a.arrival, &a.path).cmp(&(b.arrival, &b.path)));
        let mut ids: HashMap<&str, &Seen> = HashMap::new();
        let mut signed: HashMap<u64, &str> = HashMap::new();
        for s in &seen {
            let id = one_line(&s.id);
            let first = *ids.entry(&s.id).or_insert(s);
            if first.content != s.content {
                let earlier = one_line(&first.path);
                let detail = format!("the id {id} is that of another message in {earlier}");
                self.say(&s.path, "duplicate", detail);
            }
            if s.signed {
                let earlier = *signed.entry(s.content).or_insert(&s.id);
                if earlier != s.id {
                    let detail = format!("the same signed bytes have the id {}", one_line(earlier));
                    self.say(&s.path, "replay", detail);
                }
            }
        }
    }
}

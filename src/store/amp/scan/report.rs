//! What the index is told of a message, and which messages it must be told of again.

use super::super::envelope;
use super::super::facts::{Facts, link};
use super::super::relate::{Relation, id_of, mailbox_of, relate, spelled, thread_of};
use super::super::table::{File, Flags, Mailbox, stamp_print};
use super::super::{filename, id, verify};
use super::{Parsed, Scan};
use crate::model::{Claim, verify::verify_claim};
use crate::store::{Found, Location};

impl Parsed<'_> {
    /// What the table keeps of the file itself.
    pub(super) fn file(&self) -> File {
        File {
            stamp: stamp_print(&self.read.stamp),
            time: self.facts.time.millis(),
            ..File::default()
        }
    }
}

impl Scan<'_> {
    /// Notes a message and reports it, or has the file reported in which the same message lies. `old`
    /// is what the table says of the file so far.
    pub(super) fn accept<'r>(
        &mut self,
        p: Parsed<'r>,
        claim: Option<Claim>,
        old: &File,
        found: &mut Vec<Found<'r>>,
        next: &mut Vec<u32>,
    ) {
        let source = p.read.source;
        let (key, content) = (p.facts.key, p.facts.content);
        let was = old.flags.has(Flags::MESSAGE) && !old.flags.has(Flags::GONE);
        let same = (old.key, old.content) == (key, content);
        let seen = was && (same || !self.was_never_shown(source, old));
        self.files.keep(source, &p.read.bytes);
        if !(was && same) {
            self.note_turned(&p.stored.id);
        }
        let mut table = self.files.table.write();
        let before = seen.then_some((old.key, old.content));
        let place = relate(&table, (source, key, content), before, &p.read.bytes);
        let to_me = mailbox_of(&table, source) == Some(Mailbox::Inbox);
        let mut file = File { key, content, ..p.file() };
        self.date(&mut file, &p.facts, to_me);
        file.flags.set(Flags::MESSAGE, true);
        file.flags.set(Flags::SIGNED, p.facts.signed);
        file.flags.set(Flags::MALFORMED, matches!(claim, Some(Claim::Malformed(_))));
        file.flags.set(Flags::TWIN, place.twin.is_some());
        file.flags.set(Flags::COPY, place.primary != source);
        table.put(source, file);
        match place.twin {
            Some(hash) => drop(table.twins.insert(source, hash)),
            None => drop(table.twins.remove(&source)),
        }
        if place.primary != source {
            next.push(place.primary);
            return;
        }
        for copy in &place.copies {
            if let Some(f) = table.get_mut(*copy) {
                f.flags.set(Flags::COPY, true);
            }
        }
        drop(table);
        let at = Location { source, offset: 0, len: p.read.bytes.len() as u32 };
        let stale = file.flags.has(Flags::EXPIRED);
        found.push(self.found(p, at, &place, claim, to_me, stale));
    }

    fn found<'r>(
        &self,
        p: Parsed<'r>,
        at: Location,
        place: &Relation,
        claim: Option<Claim>,
        to_me: bool,
        stale: bool,
    ) -> Found<'r> {
        let parts = p.stored.attachments.iter().any(|a| filename::check_attachment(a).is_none());
        let key = p.stored.idempotency_key.as_deref().filter(|_| place.from_me);
        let path = self.files.table.read().path(at.source);
        let answers = p.facts.answers.map(|id| spelled(&self.files.table.read(), id));
        Found {
            name_time: None,
            noted: false,
            at,
            line: 0,
            thread: thread_of(&p.stored.id, place.twin.as_ref()).into_owned().into(),
            id: id_of(&p.stored, place.twin.as_ref()),
            to: p.facts.to.into(),
            answers: answers.map(Into::into),
            time: p.facts.time,
            to_me,
            from_me: place.from_me && self.roster.may_write_as(&p.facts.from),
            from: p.facts.from.into(),
            path: path.unwrap_or_default().into(),
            read: to_me.then_some(p.facts.read || stale),
            parts,
            claim: claim.map(Box::new),
            idempotency_key: key.map(Into::into),
            ..Found::default()
        }
    }

    fn date(&mut self, file: &mut File, facts: &Facts, to_me: bool) {
        file.flags.set(Flags::FUTURE, facts.future);
        file.flags.set(Flags::FILE_TIME, facts.file_time);
        file.flags.set(Flags::ANSWERS, facts.answers.is_some());
        let Some(expires) = facts.expires else { return };
        if expires <= self.now {
            file.flags.set(Flags::EXPIRED, true);
        } else if to_me && let Ok(secs) = u32::try_from(expires.secs()) {
            // The next second: at this one it is not past yet.
            file.expires = secs.saturating_add(1);
            self.next_expiry = self.next_expiry.into_iter().chain([file.expires]).min();
        }
    }

    /// Whether nobody ever saw what a file held: its signature is none, or not by the key of its
    /// writer. What replaces it is not put in the place of a message.
    fn was_never_shown(&self, source: u32, old: &File) -> bool {
        if !old.flags.has(Flags::SIGNED) || old.flags.has(Flags::MALFORMED) {
            return old.flags.has(Flags::MALFORMED);
        }
        let Some(bytes) = self.files.kept(source) else { return false };
        let Ok(stored) = envelope::parse(&bytes) else { return false };
        let Some(key) = self.roster.key_of(&stored.from.to_ascii_lowercase()) else { return false };
        let claim = verify::claim(&stored, Some(key)).ok().flatten();
        claim.is_some_and(|claim| !verify_claim(&key, &claim))
    }

    /// Takes note of a new message whose id is spelled with dashes: replies that came before it name
    /// it otherwise.
    fn note_turned(&mut self, message: &str) {
        if message.starts_with("msg-") || message.starts_with("receipt-") {
            self.turned.insert(id::fold(message).into_owned());
        }
    }

    /// Files that answer one of the messages noted by [`Scan::note_turned`].
    pub(super) fn answering_turned(&mut self) -> Vec<u32> {
        let turned = std::mem::take(&mut self.turned);
        if turned.is_empty() {
            return Vec::new();
        }
        let candidates: Vec<u32> = {
            let table = self.files.table.read();
            let answers = |f: &File| f.flags.has(Flags::ANSWERS) && !f.flags.has(Flags::GONE);
            (0u32..).zip(&table.files).filter(|(_, f)| answers(f)).map(|(n, _)| n).collect()
        };
        let mut out = Vec::new();
        for source in candidates {
            let Ok(read) = self.read(source) else { continue };
            let Ok(stored) = envelope::parse(&read.bytes) else { continue };
            let answers = stored.in_reply_to.as_deref().map(link);
            out.extend(answers.filter(|id| turned.contains(id)).map(|_| source));
        }
        out
    }
}

//! From what a scan reports to the tables: who signed, what is refused, what is gone.

use std::collections::HashSet;

use super::Index;
use super::core::{Core, Inserted};
use super::entry::{Flags, MsgIx, Sig};
use crate::identity::{Keyring, Verdict};
use crate::model::{Claim, PublicKey, Timestamp, Unsigned};
use crate::store::{Found, Rejected, Sink, Store};

/// What changed in the tables, for those who cache what a view showed.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Messages that are new or came back.
    pub added: Vec<MsgIx>,
    /// Messages that are gone or refused.
    pub removed: Vec<MsgIx>,
    /// Messages whose mark changed.
    pub marked: Vec<MsgIx>,
    /// Something else that a view shows changed (rejects, raw files).
    pub other: bool,
}

impl Changes {
    /// Nothing changed.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.marked.is_empty() && !self.other
    }
}

/// Trust decisions for one store.
pub(super) struct Judge<'a> {
    pub keyring: &'a Keyring,
    pub unsigned: Unsigned,
    pub store: &'a str,
    pub me: &'a str,
    pub my_key: Option<PublicKey>,
}

/// What became of a message's signature.
pub(super) enum Judgement {
    Accepted(Sig, Option<PublicKey>),
    Refused(String),
}

impl Judge<'_> {
    /// Decides about a message. `signed_before` tells whether its writer had validly signed an
    /// earlier one.
    pub fn judge(&self, from: &str, claim: Option<&Claim>, signed_before: bool) -> Judgement {
        let Some(claim) = claim else {
            let sig = if signed_before { Sig::Missing } else { Sig::None };
            return self.unsigned(from, sig, signed_before);
        };
        match self.keyring.judge(from, self.store, claim) {
            Verdict::Valid(key) => Judgement::Accepted(Sig::Valid, Some(key)),
            Verdict::Unknown => self.unsigned(from, Sig::Unknown, signed_before),
            // My own key needs no pin: nobody else can have it.
            Verdict::Rejected(reason) => match self.my_key {
                Some(key)
                    if from == self.me && crate::identity::verify::verify_claim(&key, claim) =>
                {
                    Judgement::Accepted(Sig::Valid, Some(key))
                }
                _ => Judgement::Refused(reason),
            },
        }
    }

    fn unsigned(&self, from: &str, sig: Sig, signed_before: bool) -> Judgement {
        let pinned = || signed_before || self.keyring.pinned_by_hand(from);
        let refused = from != self.me
            && match self.unsigned {
                Unsigned::Accept => false,
                Unsigned::Known => pinned(),
                Unsigned::Refuse => true,
            };
        if !refused {
            return Judgement::Accepted(sig, None);
        }
        let what =
            if sig == Sig::Unknown { "signed by a key nobody vouches for" } else { "not signed" };
        Judgement::Refused(format!(
            "it is {what}, and the configuration says unsigned = \"{}\"{}",
            self.unsigned,
            if pinned() { "; this sender has a pinned key" } else { "" }
        ))
    }
}

/// Receives one scan of one store.
pub(super) struct Applier<'a> {
    pub index: &'a Index,
    pub number: usize,
    pub store: &'a dyn Store,
    /// First load: nobody looks yet, so lists are sorted once at the end.
    pub bulk: bool,
    /// Room was made for a bulk load.
    pub reserved: bool,
    pub changes: Changes,
    pub progress: &'a mut dyn FnMut(u64, u64),
}

impl Sink for Applier<'_> {
    fn batch(&mut self, found: &mut Vec<Found<'_>>, rejected: &mut Vec<Rejected>) {
        let judge = self.index.judge(self.number);
        let mut core = self.index.core.write();
        for f in found.drain(..) {
            self.take_in(&mut core, &judge, &f);
        }
        for r in rejected.drain(..) {
            let path = self.store.source_path_or_number(r.at.source);
            log_reject(self.store, &path, r.line, &r.reason);
            core.add_reject(self.number, r, &path, None);
            self.changes.other = true;
        }
    }

    fn begin_rescan(&mut self, sources: &[u32]) {
        let sources = self.global(sources);
        let mut core = self.index.core.write();
        for e in core.entries.iter_mut().filter(|e| sources.contains(&e.source)) {
            if !e.flags.has(Flags::GONE) {
                e.flags.set(Flags::STALE, true);
            }
        }
        core.remove_rejects(|key, r| sources.contains(&key.0) && r.message.is_none());
        self.changes.other = true;
    }

    fn end_rescan(&mut self, sources: &[u32]) {
        let sources = self.global(sources);
        let mut core = self.index.core.write();
        let gone: Vec<MsgIx> = (0u32..)
            .zip(&core.entries)
            .filter(|(_, e)| e.flags.has(Flags::STALE) && sources.contains(&e.source))
            .map(|(ix, _)| ix)
            .collect();
        for ix in &gone {
            core.dismiss(*ix);
        }
        let gone_set: HashSet<MsgIx> = gone.iter().copied().collect();
        core.remove_rejects(|_, r| r.message.is_some_and(|ix| gone_set.contains(&ix)));
        self.changes.removed.extend(gone);
    }

    fn resume(&mut self, source: u32) {
        let source = (self.number as u32) << 24 | source;
        let mut core = self.index.core.write();
        core.remove_rejects(|key, r| key.0 == source && r.incomplete);
        self.changes.other = true;
    }

    fn progress(&mut self, done: u64, total: u64) {
        if self.bulk && !self.reserved {
            self.reserved = true;
            let mut core = self.index.core.write();
            // What the first piece of the store held says what the rest will hold.
            let per_byte = core.entries.len() as f64 / done.max(1) as f64;
            core.reserve((per_byte * total.saturating_sub(done) as f64) as usize);
        }
        (self.progress)(done, total);
    }
}

impl Applier<'_> {
    fn global(&self, sources: &[u32]) -> HashSet<u32> {
        sources.iter().map(|s| (self.number as u32) << 24 | s).collect()
    }

    fn take_in(&mut self, core: &mut Core, judge: &Judge<'_>, found: &Found<'_>) {
        match core.insert(self.number, found) {
            Inserted::Known => {}
            Inserted::New(ix) => {
                self.settle(core, judge, ix, found);
                core.admit(ix, !self.bulk);
                if !self.bulk {
                    self.changes.added.push(ix);
                }
            }
            Inserted::IdTaken => {
                let reason = format!(
                    "it carries the id {:?} of another message of this writer, and its text does \
                     not hash to that id",
                    crate::model::one_line(&found.id)
                );
                self.reject(core, found, reason, None);
            }
        }
    }

    /// Judges the signature of a new message and notes the result in its entry.
    fn settle(&mut self, core: &mut Core, judge: &Judge<'_>, ix: MsgIx, found: &Found<'_>) {
        let signed_before = core.has_signed(ix);
        if found.claim.is_none() && !signed_before && judge.unsigned == Unsigned::Accept {
            return;
        }
        match judge.judge(&found.from, found.claim.as_deref(), signed_before) {
            Judgement::Accepted(sig, key) => core.note_signature(ix, sig, key),
            Judgement::Refused(reason) => {
                core.refuse(ix);
                self.reject(core, found, reason, Some(ix));
            }
        }
    }

    fn reject(
        &mut self,
        core: &mut Core,
        found: &Found<'_>,
        reason: String,
        message: Option<MsgIx>,
    ) {
        let path = self.store.source_path_or_number(found.at.source);
        log_reject(self.store, &path, 0, &reason);
        let rejected = Rejected {
            at: found.at,
            line: found.line,
            reason,
            time: found.time,
            incomplete: false,
        };
        core.add_reject(self.number, rejected, &path, message);
        self.changes.other = true;
    }
}

/// Every refusal is one line in the log (contract, section 6).
fn log_reject(store: &dyn Store, path: &str, line: u64, reason: &str) {
    tracing::warn!(
        store = store.name(),
        file = %crate::model::one_line(path),
        line,
        reason = %crate::model::one_line(reason),
        "message rejected"
    );
}

impl Core {
    /// Whether the writer of this message has validly signed one before.
    pub(super) fn has_signed(&self, ix: MsgIx) -> bool {
        let writer = self.entry(ix).and_then(|e| self.writers.get(e.writer as usize));
        writer.is_some_and(|w| !w.keys.is_empty())
    }

    /// Keeps a message that was not admitted yet out of every view but `rejected/`.
    fn refuse(&mut self, ix: MsgIx) {
        if let Some(entry) = self.entries.get_mut(ix as usize) {
            entry.flags.set(Flags::REJECTED, true);
        }
    }

    pub(super) fn note_signature(&mut self, ix: MsgIx, sig: Sig, key: Option<PublicKey>) {
        let Some(entry) = self.entries.get_mut(ix as usize) else { return };
        let Some(writer) = self.writers.get_mut(entry.writer as usize) else { return };
        let number = match key {
            Some(key) => writer.keys.iter().position(|k| *k == key.0).unwrap_or_else(|| {
                writer.keys.push(key.0);
                writer.keys.len() - 1
            }),
            None => writer.keys.len().saturating_sub(1),
        };
        entry.flags.set_signature(sig, number);
    }

    /// Lifts the refusal of a message whose signature is now accepted.
    pub(super) fn accept_rejected(&mut self, ix: MsgIx, sig: Sig, key: Option<PublicKey>) {
        self.note_signature(ix, sig, key);
        if let Some(entry) = self.entries.get_mut(ix as usize) {
            entry.flags.set(Flags::REJECTED, false);
        }
        self.remove_rejects(|_, r| r.message == Some(ix));
        self.admit(ix, true);
    }

    /// The time of the newest message or reject, for folders.
    pub fn newest(&self) -> Option<Timestamp> {
        let last = |list: &[MsgIx]| {
            list.iter()
                .rev()
                .filter_map(|ix| self.entry(*ix))
                .find(|e| e.is_live())
                .map(|e| e.time_ms)
        };
        last(&self.to_me).max(last(&self.from_me)).map(Timestamp::from_millis)
    }
}

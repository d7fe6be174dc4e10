//! Scan reports applied to the tables: signatures, rejections, and messages that are gone.

use std::collections::HashSet;

use super::Index;
use super::entry::{EntryFlags, IndexEntry, MANY_KEYS, MsgIx, SignatureKind};
use super::judge::{TrustDecision, TrustJudge, TrustQuery};
use super::source::{BitSet, SourceId};
use super::tables::{IndexTables, InsertOutcome, ThreadIx};
use crate::model::{PublicKey, SignatureClaim, Timestamp, Unsigned, verify};
use crate::store::{FoundMessage, Rejection, RepeatKind, ScanSink, Store, digest, parallel};

/// Number of messages whose table entries are prefetched together. It is small enough that they are still in the
/// processor's cache when the last message is added.
const TOGETHER: usize = 64;

/// The changes in the tables, for views that cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexChanges {
    /// Messages that are new or came back.
    pub added: Vec<MsgIx>,
    /// Messages that are shown differently: with another time, recipient, attachment or signature.
    pub redrawn: Vec<MsgIx>,
    /// Messages that are gone or rejected.
    pub removed: Vec<MsgIx>,
    /// Messages whose mark changed.
    pub marked: Vec<MsgIx>,
    /// Messages that are in another thread now, and the thread that each of them left.
    pub moved: Vec<(MsgIx, ThreadIx)>,
    /// Threads without messages that came, changed or went.
    pub empty_threads: Vec<ThreadIx>,
    /// True if stores were added.
    pub stores: bool,
    /// True if something else changed that a view shows (rejections, raw files).
    pub other: bool,
}

impl IndexChanges {
    /// Returns true if nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if nothing changed but marks.
    pub fn is_marks_only(&self) -> bool {
        let Self {
            added,
            redrawn,
            removed,
            marked: _,
            moved,
            empty_threads: emptied,
            stores,
            other,
        } = self;
        let listed = [added, redrawn, removed].iter().any(|list| !list.is_empty());
        !listed && !*stores && !*other && moved.is_empty() && emptied.is_empty()
    }
}

/// The reason for rejecting a message in a log that lost its signature and has another text now.
const CHANGED: &str = "it was changed after it was verified: it had a valid signature, and now it \
    has no signature and another text";

/// The receiver of one scan of one store.
pub(super) struct ScanApplier<'a> {
    pub index: &'a Index,
    pub number: usize,
    pub store: &'a dyn Store,
    /// True during the first load. No reader exists yet, so lists are sorted once at the end.
    pub bulk: bool,
    /// True if room was made for a bulk load.
    pub reserved: bool,
    /// Messages that the scan will report again.
    pub stale: Vec<MsgIx>,
    pub changes: IndexChanges,
    pub progress: &'a mut (dyn FnMut(u64, u64) + Send),
}

impl ScanSink for ScanApplier<'_> {
    fn report_batch(&mut self, found: &mut Vec<FoundMessage<'_>>, rejected: &mut Vec<Rejection>) {
        check_signatures(found);
        let judge = self.index.trust_judge(self.number);
        let mut judged = Vec::new();
        let mut core = self.index.core.write();
        let known = self.changes.added.len();
        // The caller drops the found messages later. Decrementing a reference count here would wait for all
        // writes to the tables.
        for some in found.chunks(TOGETHER) {
            core.prefetch_messages(self.number, some);
            for f in some {
                let refused = self.apply_found(&mut core, &judge, f);
                judged.push((f.at, refused));
            }
        }
        for r in rejected.drain(..) {
            log_reject(self.store, &r);
            core.add_reject(self.number, r, None);
            self.changes.other = true;
        }
        if !self.bulk {
            let mut moved = core.relink_threads();
            if !moved.is_empty() {
                // A new message was never seen in the thread that it left.
                let new: HashSet<&MsgIx> = self.changes.added.iter().skip(known).collect();
                moved.retain(|(ix, _)| !new.contains(ix));
                self.changes.moved.extend(moved);
            }
            self.changes.redrawn.extend(core.update_missing_signatures(&self.index.keyring, false));
        }
        if let Some(hearing) = self.store.facets().trust_listener {
            hearing.note_judgements(&judged);
        }
    }

    fn begin_rescan(&mut self, sources: &[u32]) {
        let is_among = source_filter(self.number, sources);
        let mut core = self.index.core.write();
        let known = (0u32..).zip(&core.entries);
        let stale = known.filter(|(_, e)| is_among(e.source) && !e.flags.has(EntryFlags::GONE));
        let stale: Vec<MsgIx> = stale.map(|(ix, _)| ix).collect();
        for ix in &stale {
            if let Some(entry) = core.entries.get_mut(*ix as usize) {
                entry.flags.set(EntryFlags::STALE, true);
            }
        }
        self.stale.extend(stale);
        core.remove_rejects(|key, r| is_among(key.0) && r.message.is_none());
        self.changes.other = true;
    }

    fn verified_sources(&mut self, sources: &[u32]) -> HashSet<u32> {
        let is_among = source_filter(self.number, sources);
        let core = self.index.core.read();
        let valid = |ix: MsgIx, e: &IndexEntry| {
            e.flags.signature().0 == SignatureKind::Valid || core.stripped.contains_key(&ix)
        };
        let entries =
            (0u32..).zip(&core.entries).filter(|(_, e)| e.is_live() && is_among(e.source));
        entries.filter(|(ix, e)| valid(*ix, e)).map(|(_, e)| e.source.file()).collect()
    }

    fn end_rescan(&mut self, sources: &[u32]) {
        let is_among = source_filter(self.number, sources);
        let mut core = self.index.core.write();
        let mut gone = Vec::new();
        self.stale.retain(|ix| {
            let entry = core.entry(*ix).filter(|e| e.flags.has(EntryFlags::STALE));
            let lost = entry.is_some_and(|e| is_among(e.source));
            if lost {
                gone.push(*ix);
            }
            entry.is_some() && !lost
        });
        // A message may have been marked stale twice.
        gone.sort_unstable();
        gone.dedup();
        core.dismiss_gone(&gone);
        if !self.bulk {
            self.changes.redrawn.extend(core.update_missing_signatures(&self.index.keyring, false));
        }
        core.remove_rejects(|_, r| r.message.is_some_and(|ix| gone.binary_search(&ix).is_ok()));
        self.changes.removed.extend(gone);
    }

    fn abort_rescan(&mut self, sources: &[u32]) {
        self.unmark_stale(source_filter(self.number, sources));
    }

    fn resume_source(&mut self, source: u32) {
        let source = SourceId::new(self.number, source);
        let mut core = self.index.core.write();
        core.remove_rejects(|key, r| key.0 == source && r.incomplete);
        self.changes.other = true;
    }

    fn report_progress(&mut self, done: u64, total: u64) {
        if self.bulk && !self.reserved {
            self.reserved = true;
            let mut core = self.index.core.write();
            // The first piece of the store predicts the size of the rest.
            let per_byte = core.entries.len() as f64 / done.max(1) as f64;
            core.reserve((per_byte * total.saturating_sub(done) as f64) as usize);
        }
        (self.progress)(done, total);
    }
}

/// Checks the signatures by the keys they name, unless the store has done so. It uses all cores, while no thread
/// waits for the tables. The claims cache the results for the judge.
fn check_signatures(found: &[FoundMessage<'_>]) {
    let is_open = |claim: &&SignatureClaim| matches!(claim, SignatureClaim::Signed { covered, .. } if !covered.is_checked());
    let claims = found.iter().filter_map(|f| f.claim.as_deref());
    let open: Vec<&SignatureClaim> = claims.filter(is_open).collect();
    parallel::map(&open, |claim| verify::check_claim(claim));
}

/// Returns a predicate for sources that are among these files of a store. It is fast, because a rescan calls it
/// for every message.
fn source_filter(store: usize, files: &[u32]) -> impl Fn(SourceId) -> bool + use<> {
    let numbers: BitSet = files.iter().collect();
    move |source| source.store() == store && numbers.contains(source.file())
}

impl ScanApplier<'_> {
    /// Keeps messages that the scan should report again but could not read.
    pub fn unmark_stale(&mut self, which: impl Fn(SourceId) -> bool) {
        let mut core = self.index.core.write();
        self.stale.retain(|ix| {
            let entry = core.entries.get_mut(*ix as usize).filter(|e| which(e.source));
            entry.map(|e| e.flags.set(EntryFlags::STALE, false)).is_none()
        });
    }

    /// Applies a found message to the tables. Returns true if it is rejected.
    fn apply_found(
        &mut self,
        core: &mut IndexTables,
        judge: &TrustJudge<'_>,
        found: &FoundMessage<'_>,
    ) -> bool {
        let refused = |core: &IndexTables, ix| {
            core.entry(ix).is_some_and(|e| e.flags.has(EntryFlags::REJECTED))
        };
        match core.insert_message(self.number, found) {
            InsertOutcome::Known => false,
            InsertOutcome::New(ix) => {
                self.judge_new(core, judge, ix, found);
                self.note_verified_text(core, ix, found);
                core.set_reported_size(ix, found);
                if !refused(core, ix) {
                    core.note_answer(self.number, found);
                }
                core.admit_message(ix, !self.bulk);
                if !self.bulk {
                    self.changes.added.push(ix);
                }
                refused(core, ix)
            }
            InsertOutcome::Updated(ix, what) => {
                let judged = self.rejudge_found(core, judge, ix, found);
                self.note_verified_text(core, ix, found);
                if !refused(core, ix) {
                    core.note_answer(self.number, found);
                }
                if !self.bulk && (what.shown || judged) {
                    self.changes.redrawn.push(ix);
                }
                if !self.bulk && what.marked {
                    self.changes.marked.push(ix);
                }
                refused(core, ix)
            }
            InsertOutcome::IdTaken => {
                let reason = format!(
                    "it carries the id {:?} of another message of this writer, and its text does \
                     not hash to that id",
                    crate::model::sanitize_line(&found.id)
                );
                self.reject_message(core, found, reason, None);
                true
            }
        }
    }

    /// Judges the signature of a new message and stores the result in its entry.
    fn judge_new(
        &mut self,
        core: &mut IndexTables,
        judge: &TrustJudge<'_>,
        ix: MsgIx,
        found: &FoundMessage<'_>,
    ) {
        core.set_refused(ix, false);
        // It may have been there before.
        let changed = self.is_text_changed(core, ix, found);
        core.note_stripped(ix, found.claim.is_none() && !changed);
        if found.claim.is_none() && !changed && judge.unsigned == Unsigned::Accept {
            core.note_unsigned(ix);
            return;
        }
        match judge_found(judge, found, changed) {
            TrustDecision::Accepted(sig, key) => {
                core.note_signature(ix, sig, key);
                core.note_unvouched(ix, found.claim.is_some() && sig != SignatureKind::Valid);
                core.queue_relink(ix);
            }
            TrustDecision::Refused(reason) => {
                core.set_refused(ix, true);
                core.note_unvouched(ix, false);
                core.queue_relink(ix);
                self.reject_message(core, found, reason, Some(ix));
            }
        }
    }

    /// Returns a hash of the text that a message's signature covers, in stores whose logs may be rewritten.
    fn signed_text_hash(&self, found: &FoundMessage<'_>) -> Option<u64> {
        let covers = self.store.properties().signed_text?;
        covers(found.record).map(|bytes| digest::secure_hash64(&bytes))
    }

    /// Stores the hash of the text of a verified message.
    fn note_verified_text(&self, core: &mut IndexTables, ix: MsgIx, found: &FoundMessage<'_>) {
        if core.signature_kind_at(ix).0 == SignatureKind::Valid
            && found.claim.is_some()
            && let Some(text) = self.signed_text_hash(found)
        {
            core.texts.insert(ix, text);
        }
    }

    /// Returns true if a message was verified, is not signed any more, and has another text now.
    fn is_text_changed(&self, core: &IndexTables, ix: MsgIx, found: &FoundMessage<'_>) -> bool {
        let was_valid =
            core.signature_kind_at(ix).0 == SignatureKind::Valid || core.stripped.contains_key(&ix);
        if !was_valid || found.claim.is_some() {
            return false;
        }
        match found.repeat_kind {
            // The id proves it, or the store vouches for it.
            RepeatKind::Same | RepeatKind::Restated => false,
            RepeatKind::Claimed => true,
            RepeatKind::Rewritten => core.texts.get(&ix).copied() != self.signed_text_hash(found),
        }
    }

    /// Judges a message again after its file changed. Returns true if it is shown differently now.
    fn rejudge_found(
        &mut self,
        core: &mut IndexTables,
        judge: &TrustJudge<'_>,
        ix: MsgIx,
        found: &FoundMessage<'_>,
    ) -> bool {
        let Some(entry) = core.entry(ix).copied() else { return false };
        let refused = entry.flags.has(EntryFlags::REJECTED);
        let unsigned =
            matches!(core.signature_kind_at(ix).0, SignatureKind::None | SignatureKind::Missing);
        let changed = self.is_text_changed(core, ix, found);
        if found.claim.is_none() && unsigned && !refused && !changed {
            return false;
        }
        match judge_found(judge, found, changed) {
            TrustDecision::Accepted(sig, key) => {
                core.note_stripped(ix, found.claim.is_none() && sig == SignatureKind::None);
                core.accept_signature(ix, sig, key, found.claim.is_some())
            }
            TrustDecision::Refused(reason) => {
                if !refused {
                    core.withhold_message(ix);
                    self.changes.removed.push(ix);
                }
                core.remove_rejects(|_, r| r.message == Some(ix));
                self.reject_message(core, found, reason, Some(ix));
                false
            }
        }
    }

    fn reject_message(
        &mut self,
        core: &mut IndexTables,
        found: &FoundMessage<'_>,
        reason: String,
        message: Option<MsgIx>,
    ) {
        let (at, path, line) = (found.at, found.path.to_string(), found.line);
        let rejected = Rejection { at, path, line, reason, time: found.time, incomplete: false };
        log_reject(self.store, &rejected);
        core.add_reject(self.number, rejected, message);
        self.changes.other = true;
    }
}

/// Judges a message. If its text `changed` after it was verified, it is rejected whatever signs it now.
fn judge_found(judge: &TrustJudge<'_>, found: &FoundMessage<'_>, changed: bool) -> TrustDecision {
    if changed {
        TrustDecision::Refused(CHANGED.to_owned())
    } else {
        judge.judge_message(trust_query(found))
    }
}

/// Returns the values of a message that the judge needs.
fn trust_query<'a>(found: &'a FoundMessage<'_>) -> TrustQuery<'a> {
    TrustQuery {
        from: &found.from,
        id: &found.id,
        from_me: found.from_me,
        claim: found.claim.as_deref(),
    }
}

/// Logs one line for a rejection (docs/SEMANTICS.md, S68).
pub(super) fn log_reject(store: &dyn Store, rejected: &Rejection) {
    tracing::warn!(
        store = store.name(),
        file = %crate::model::sanitize_line(&crate::model::name_encoding::display_name(&rejected.path)),
        line = rejected.line,
        reason = %crate::model::sanitize_line(&rejected.reason),
        "message rejected"
    );
}

impl IndexTables {
    /// Sets whether only `rejected/` shows a message that is not admitted yet.
    pub(super) fn set_refused(&mut self, ix: MsgIx, refused: bool) {
        if let Some(entry) = self.entries.get_mut(ix as usize) {
            entry.flags.set(EntryFlags::REJECTED, refused);
        }
    }

    /// Sets whether a signature would count if somebody vouched for its key.
    pub(super) fn note_unvouched(&mut self, ix: MsgIx, unvouched: bool) {
        if unvouched {
            self.unvouched.insert(ix);
        } else {
            self.unvouched.remove(&ix);
        }
    }

    /// Stores a new verdict on a message that was judged before, and updates all that depends on it. Returns
    /// true if the message is shown differently.
    pub(super) fn accept_signature(
        &mut self,
        ix: MsgIx,
        sig: SignatureKind,
        key: Option<PublicKey>,
        signed: bool,
    ) -> bool {
        self.note_unvouched(ix, signed && sig != SignatureKind::Valid);
        let before = self.signature_kind_at(ix);
        if self.entry(ix).is_some_and(|e| e.flags.has(EntryFlags::REJECTED)) {
            self.set_refused(ix, false);
            self.note_signature(ix, sig, key);
            self.remove_rejects(|_, r| r.message == Some(ix));
            self.admit_message(ix, !self.unsorted);
            self.queue_relink(ix);
            return true;
        }
        self.note_signature(ix, sig, key);
        if self.signature_kind_at(ix) == before {
            return false;
        }
        self.invalidate_rendering(ix);
        self.queue_relink(ix);
        true
    }

    /// Marks the rendered text of a message as changed.
    pub(super) fn invalidate_rendering(&mut self, ix: MsgIx) {
        if let Some(entry) = self.entries.get_mut(ix as usize) {
            entry.size = 0;
            self.generation += 1;
        }
    }

    pub(super) fn note_signature(&mut self, ix: MsgIx, sig: SignatureKind, key: Option<PublicKey>) {
        if sig == SignatureKind::None {
            self.note_unsigned(ix);
        } else {
            let number = key.and_then(|key| self.message_key_number(ix, key)).unwrap_or(0);
            self.set_signature(ix, sig, number);
        }
        self.queue_signer_review(ix);
    }

    /// Returns the number of a key among the keys of the message's writer.
    fn message_key_number(&mut self, ix: MsgIx, key: PublicKey) -> Option<usize> {
        let writer = self.entry(ix)?.writer;
        self.key_number(writer, key)
    }

    /// Returns the number of a key among the keys of a writer.
    pub(super) fn key_number(&mut self, writer: u32, key: PublicKey) -> Option<usize> {
        let keys = &mut self.writers.get_mut(writer as usize)?.keys;
        // Search from the end: a key that signed a moment ago probably signs again.
        keys.iter().rposition(|k| *k == key.0).or_else(|| {
            keys.push(key.0);
            Some(keys.len() - 1)
        })
    }

    pub(super) fn set_signature(&mut self, ix: MsgIx, sig: SignatureKind, number: usize) {
        let Some(entry) = self.entries.get_mut(ix as usize) else { return };
        if entry.flags.signature().0 != sig {
            // The rendered text says so, perhaps in fewer bytes.
            entry.size = 0;
        }
        entry.flags.set_signature(sig, number);
        if number >= MANY_KEYS {
            self.many_keys.insert(ix, number as u32);
        } else if !self.many_keys.is_empty() {
            self.many_keys.remove(&ix);
        }
    }

    /// Returns the time in the name of my newest message that is not after `end`.
    pub fn newest_from_me(&self, end: Timestamp) -> Option<Timestamp> {
        self.find_newest_time(self.from_me.get(..self.count_from_me_until(end))?, |_| true)
    }

    /// Returns the same for my messages in a thread that are after `start`.
    pub fn newest_from_me_in(&self, thread: ThreadIx, start: Timestamp) -> Option<Timestamp> {
        self.find_newest_time(self.from_me.get(self.count_from_me_until(start)..)?, |e| {
            e.thread == thread
        })
    }

    fn count_from_me_until(&self, end: Timestamp) -> usize {
        let name_time = |ix: &MsgIx| self.entry(*ix).map(|e| self.name_time(e));
        self.from_me.partition_point(|ix| name_time(ix) <= Some(end))
    }

    fn find_newest_time(
        &self,
        list: &[MsgIx],
        fits: impl Fn(&IndexEntry) -> bool,
    ) -> Option<Timestamp> {
        let mut entries = list.iter().rev().filter_map(|ix| self.entry(*ix));
        entries.find(|e| e.is_from_me() && fits(e)).map(|e| self.name_time(e))
    }

    /// Returns the time of the newest message, for folders.
    pub fn newest_time(&self) -> Option<Timestamp> {
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

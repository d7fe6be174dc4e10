//! Scan reports applied to the tables: signatures, rejections, and messages that are gone.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use super::Index;
use super::messages::SignatureKind;
use super::position::{MsgIx, ThreadIx};
use super::source::{BitSet, SourceId};
use super::tables::{IndexTables, InsertOutcome};
use super::trust::{TrustDecision, TrustJudge, TrustQuery};
use crate::model::{SignatureClaim, Unsigned, verify};
use crate::store::{
    FoundMessage, Location, Rejection, RepeatKind, ScanSink, Store, digest, parallel,
};

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
    /// Messages that count as there, although their store has lost their texts.
    pub textless: Vec<MsgIx>,
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
            textless,
            removed,
            marked: _,
            moved,
            empty_threads: emptied,
            stores,
            other,
        } = self;
        let listed = [added, redrawn, textless, removed].iter().any(|list| !list.is_empty());
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
    /// The number of messages in the index when the scan began.
    pub messages_before: usize,
    /// Messages that the scan will report again.
    pub stale: Vec<MsgIx>,
    pub changes: IndexChanges,
    pub progress: &'a mut (dyn FnMut(u64, u64) + Send),
}

impl ScanSink for ScanApplier<'_> {
    fn report_batch(
        &mut self,
        found: &mut Vec<FoundMessage<'_>>,
        rejected: &mut Vec<Rejection>,
    ) -> Vec<(Location, bool)> {
        check_signatures(found);
        let judge = self.index.trust_judge(self.number);
        let mut decided = Vec::with_capacity(found.len());
        let mut tables = self.index.tables.write();
        let known = self.changes.added.len();
        // The caller drops the found messages later. Decrementing a reference count here would wait for all
        // writes to the tables.
        for some in found.chunks(TOGETHER) {
            tables.prefetch_messages(self.number, some);
            for f in some {
                let refused = self.apply_found(&mut tables, &judge, f);
                decided.push((f.at, refused));
            }
        }
        for r in rejected.drain(..) {
            log_reject(self.store, &r);
            tables.add_reject(self.number, r, None);
            self.changes.other = true;
        }
        if !self.bulk {
            let (mut moved, mut redrawn) = (tables.relink_threads(), tables.settle_multicasts());
            if !moved.is_empty() || !redrawn.is_empty() {
                // A new message was never seen in the thread that it left, or under another id.
                let new: HashSet<&MsgIx> = self.changes.added.iter().skip(known).collect();
                moved.retain(|(ix, _)| !new.contains(ix));
                redrawn.retain(|ix| !new.contains(ix));
                self.changes.moved.extend(moved);
                self.changes.redrawn.extend(redrawn);
            }
            self.changes
                .redrawn
                .extend(tables.update_missing_signatures(&self.index.keyring, false));
        }
        decided
    }

    fn begin_rescan(&mut self, sources: &[u32]) {
        let is_among = source_filter(self.number, sources);
        let mut tables = self.index.tables.write();
        let known = tables.messages.all_entries();
        let stale = known.filter(|(_, e)| is_among(e.source()) && !e.is_gone());
        let stale: Vec<MsgIx> = stale.map(|(ix, _)| ix).collect();
        for ix in &stale {
            tables.messages.entry_mut(*ix).set_stale(true);
        }
        self.stale.extend(stale);
        tables.messages.mark_stale_copies(&is_among, true);
        tables.trust.remove_rejects(|key, r| is_among(key.0) && r.message.is_none());
        self.changes.other = true;
    }

    fn verified_sources(&mut self, sources: &[u32]) -> HashSet<u32> {
        let is_among = source_filter(self.number, sources);
        let tables = self.index.tables.read();
        let entries =
            tables.messages.all_entries().filter(|(_, e)| e.is_live() && is_among(e.source()));
        let verified = entries.filter(|(ix, _)| tables.trust.was_verified(&tables.messages, *ix));
        verified.map(|(_, e)| e.source().file()).collect()
    }

    fn end_rescan(&mut self, sources: &[u32]) {
        let is_among = source_filter(self.number, sources);
        let mut tables = self.index.tables.write();
        let mut gone = Vec::new();
        self.stale.retain(|ix| {
            let entry = tables.messages.entry(*ix);
            let is_stale = entry.is_stale();
            let lost = is_stale && is_among(entry.source());
            if lost {
                gone.push(*ix);
            }
            is_stale && !lost
        });
        // A message may have been marked stale twice.
        gone.sort_unstable();
        gone.dedup();
        let kept = tables.dismiss_gone(&mut gone);
        tables.messages.drop_stale_copies(is_among);
        if !self.bulk {
            self.changes.moved.extend(tables.relink_threads());
            self.changes.redrawn.extend(kept);
            self.changes.redrawn.extend(tables.settle_multicasts());
            self.changes
                .redrawn
                .extend(tables.update_missing_signatures(&self.index.keyring, false));
        }
        tables
            .trust
            .remove_rejects(|_, r| r.message.is_some_and(|ix| gone.binary_search(&ix).is_ok()));
        self.changes.removed.extend(gone);
    }

    fn abort_rescan(&mut self, sources: &[u32]) {
        self.unmark_stale(source_filter(self.number, sources));
    }

    fn note_lost_texts(&mut self, sources: &[u32]) {
        let is_among = source_filter(self.number, sources);
        let mut tables = self.index.tables.write();
        let lost =
            tables.messages.all_entries().filter(|(_, e)| e.is_live() && is_among(e.source()));
        self.changes.textless.extend(lost.map(|(ix, _)| ix));
        // A transcript has another length now.
        tables.messages.note_change();
    }

    fn resume_source(&mut self, source: u32) {
        let source = SourceId::new(self.number, source);
        let mut tables = self.index.tables.write();
        tables.trust.remove_rejects(|key, r| key.0 == source && r.incomplete);
        self.changes.other = true;
    }

    fn report_progress(&mut self, done: u64, total: u64) {
        if self.bulk && !self.reserved {
            self.reserved = true;
            let mut tables = self.index.tables.write();
            // The first batch of the store predicts the size of the rest.
            let of_store = tables.messages.messages_so_far().saturating_sub(self.messages_before);
            let per_unit = of_store as f64 / done.max(1) as f64;
            tables.messages.reserve((per_unit * total.saturating_sub(done) as f64) as usize);
        }
        (self.progress)(done, total);
    }

    fn is_watched(&self) -> bool {
        self.index.watched.load(Ordering::Relaxed)
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
        let mut tables = self.index.tables.write();
        tables.messages.mark_stale_copies(&which, false);
        self.stale.retain(|ix| {
            let entry = tables.messages.entry_mut(*ix);
            let is_meant = which(entry.source());
            if is_meant {
                entry.set_stale(false);
            }
            !is_meant
        });
    }

    /// Applies a found message to the tables. Returns true if it is rejected.
    fn apply_found(
        &mut self,
        tables: &mut IndexTables,
        judge: &TrustJudge<'_>,
        found: &FoundMessage<'_>,
    ) -> bool {
        let refused = |tables: &IndexTables, ix| tables.messages.entry(ix).is_rejected();
        let outcome = match tables.insert_message(self.number, found) {
            InsertOutcome::Repeated(ix, is_log_itself) => {
                self.weigh_repeat(tables, judge, (ix, is_log_itself), found)
            }
            outcome => outcome,
        };
        match outcome {
            InsertOutcome::Known | InsertOutcome::Repeated(..) => false,
            InsertOutcome::New(ix) => {
                self.judge_new(tables, judge, ix, found);
                self.note_verified_text(tables, ix, found);
                tables.messages.set_reported_size(ix, found);
                if !refused(tables, ix) {
                    tables.marks.note_answer(&tables.messages, self.number, found);
                }
                tables.admit_message(ix);
                if !self.bulk {
                    self.changes.added.push(ix);
                }
                refused(tables, ix)
            }
            InsertOutcome::Updated(ix, what) => {
                let was_refused = refused(tables, ix);
                let judged = self.rejudge_found(tables, judge, ix, found);
                self.note_verified_text(tables, ix, found);
                if !refused(tables, ix) {
                    tables.marks.note_answer(&tables.messages, self.number, found);
                }
                if !self.bulk && was_refused && !refused(tables, ix) {
                    self.note_admitted(ix);
                } else if !self.bulk && (what.shown || judged) {
                    self.changes.redrawn.push(ix);
                }
                if !self.bulk && what.marked {
                    self.changes.marked.push(ix);
                }
                refused(tables, ix)
            }
            InsertOutcome::IdTaken => {
                let reason = format!(
                    "it carries the id {:?} of another message of this writer, and its text does \
                     not hash to that id",
                    crate::model::sanitize_line(&found.id)
                );
                self.reject_message(tables, found, reason, None);
                true
            }
        }
    }

    /// Notes the change that a rejected message is shown now. The same scan may have rejected it a moment before.
    fn note_admitted(&mut self, ix: MsgIx) {
        let removed = self.changes.removed.len();
        self.changes.removed.retain(|other| *other != ix);
        let is_new = self.changes.removed.len() == removed;
        let shown = if is_new { &mut self.changes.added } else { &mut self.changes.redrawn };
        shown.push(ix);
    }

    /// Compares two locations of one message. The better verdict counts, and of equal ones that of the log itself. If
    /// the id proves nothing, a signed line of the log counts before a copy, whichever came first. So the verdict and
    /// the location do not depend on the order of arrival.
    fn weigh_repeat(
        &self,
        tables: &mut IndexTables,
        judge: &TrustJudge<'_>,
        (ix, is_log_itself): (MsgIx, bool),
        found: &FoundMessage<'_>,
    ) -> InsertOutcome {
        let entry = tables.messages.entry(ix);
        // `None` is a rejection, and `true` a valid signature.
        let before = (!entry.is_rejected()).then(|| entry.is_verified());
        let after = match judge_found(judge, found, false) {
            TrustDecision::Refused(_) => None,
            TrustDecision::Accepted(sig, _) => Some(sig == SignatureKind::Valid),
        };
        let is_log_first = found.repeat_kind == RepeatKind::Claimed && found.claim.is_some();
        if after > before || is_log_itself && (after == before || is_log_first) {
            tables.apply_restated(ix, self.number, found)
        } else {
            InsertOutcome::Known
        }
    }

    /// Judges the signature of a new message and stores the result in its entry.
    fn judge_new(
        &mut self,
        tables: &mut IndexTables,
        judge: &TrustJudge<'_>,
        ix: MsgIx,
        found: &FoundMessage<'_>,
    ) {
        tables.messages.entry_mut(ix).set_rejected(false);
        // It may have been there before.
        let changed = self.check_lost_signature(tables, ix, found);
        if !changed {
            tables.trust.note_stripped(&tables.messages, ix, found.claim.is_none());
        }
        if found.claim.is_none() && !changed && judge.unsigned == Unsigned::Accept {
            tables.trust.note_unsigned(&mut tables.messages, ix);
            return;
        }
        match judge_found(judge, found, changed) {
            TrustDecision::Accepted(sig, key) => {
                tables.trust.note_signature(&mut tables.messages, ix, sig, key);
                let unvouched = found.claim.is_some() && sig != SignatureKind::Valid;
                tables.trust.note_unvouched(ix, unvouched);
                tables.threads.queue_relink(&tables.messages, ix);
            }
            TrustDecision::Refused(reason) => {
                tables.messages.entry_mut(ix).set_rejected(true);
                tables.trust.note_unvouched(ix, false);
                tables.threads.queue_relink(&tables.messages, ix);
                self.reject_message(tables, found, reason, Some(ix));
                if changed {
                    tables.trust.note_changed_text(&tables.messages, ix);
                }
            }
        }
    }

    /// Returns a hash of the part of a message that must stay as it was verified, in stores whose logs may be
    /// rewritten.
    fn signed_text_hash(&self, found: &FoundMessage<'_>) -> Option<u64> {
        let covers = self.store.properties().signed_text?;
        covers(found.record).map(|bytes| digest::secure_hash64(&bytes))
    }

    /// Stores the hash of the text of a verified message.
    fn note_verified_text(&self, tables: &mut IndexTables, ix: MsgIx, found: &FoundMessage<'_>) {
        if tables.messages.entry(ix).is_verified()
            && found.claim.is_some()
            && let Some(text) = self.signed_text_hash(found)
        {
            tables.trust.note_verified_text(ix, text);
        }
    }

    /// Records that a message lost its signature, if it did. Returns true if the message was verified, and has another
    /// text now.
    fn check_lost_signature(
        &self,
        tables: &mut IndexTables,
        ix: MsgIx,
        found: &FoundMessage<'_>,
    ) -> bool {
        if found.claim.is_some() {
            return false;
        }
        let verified = tables.trust.find_verified_text(&tables.messages, ix);
        tables.trust.note_lost_signature(&tables.messages, ix);
        let Some(verified) = verified else { return false };
        match found.repeat_kind {
            // The id proves it, or the store vouches for it.
            RepeatKind::Same | RepeatKind::Restated => false,
            RepeatKind::Claimed => true,
            RepeatKind::Rewritten => verified.hash != self.signed_text_hash(found),
        }
    }

    /// Judges a message again after its file changed. Returns true if it is shown differently now.
    fn rejudge_found(
        &mut self,
        tables: &mut IndexTables,
        judge: &TrustJudge<'_>,
        ix: MsgIx,
        found: &FoundMessage<'_>,
    ) -> bool {
        let entry = tables.messages.entry(ix);
        let (refused, unsigned) = (entry.is_rejected(), entry.is_unsigned());
        let changed = self.check_lost_signature(tables, ix, found);
        // It may have lost the copy whose place proved that I wrote it.
        let was_proven = found.is_my_name_unproven && judge.unsigned != Unsigned::Accept;
        if found.claim.is_none() && unsigned && !refused && !changed && !was_proven {
            return false;
        }
        match judge_found(judge, found, changed) {
            TrustDecision::Accepted(sig, key) => {
                let stripped = found.claim.is_none() && sig == SignatureKind::None;
                tables.trust.note_stripped(&tables.messages, ix, stripped);
                tables.accept_signature(ix, sig, key, found.claim.is_some())
            }
            TrustDecision::Refused(reason) => {
                if !refused {
                    tables.withhold_message(ix);
                    self.changes.removed.push(ix);
                }
                tables.trust.remove_rejects(|_, r| r.message == Some(ix));
                self.reject_message(tables, found, reason, Some(ix));
                if changed {
                    tables.trust.note_changed_text(&tables.messages, ix);
                }
                false
            }
        }
    }

    fn reject_message(
        &mut self,
        tables: &mut IndexTables,
        found: &FoundMessage<'_>,
        reason: String,
        message: Option<MsgIx>,
    ) {
        let (at, path, line) = (found.at, found.path.to_string(), found.line);
        let rejected = Rejection { at, path, line, reason, time: found.time, incomplete: false };
        log_reject(self.store, &rejected);
        tables.add_reject(self.number, rejected, message);
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
        from_me: found.from_me && !found.is_my_name_unproven,
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

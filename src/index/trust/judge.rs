//! Trust in messages, as their signatures and the keyring decide it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::identity::{
    Keyring, MessageDigest, SignatureVerdict, SignedMessage, describe_other_own_key,
};
use crate::index::apply::log_reject;
use crate::index::messages::{IndexEntry, MessageTable, SignatureKind};
use crate::index::position::MsgIx;
use crate::index::source::SourceId;
use crate::index::{Index, IndexChanges, IndexTables, column};
use crate::model::locks::Mutex;
use crate::model::{PublicKey, SignatureClaim, SignatureScope, Unsigned, verify};
use crate::store::{Rejection, Store};

/// Number of files that fail in one retry after which the other messages wait for the next one.
const FAILURES_AT_MOST: usize = 16;

/// The trust decisions for one store.
pub(in crate::index) struct TrustJudge<'a> {
    pub keyring: &'a Keyring,
    pub unsigned: Unsigned,
    pub store: &'a str,
    /// My addresses in the store.
    pub mine: Vec<&'a str>,
    /// The key that signs what I send there.
    pub my_key: Option<PublicKey>,
    /// True if its addresses are roles
    /// ([`StoreProperties::uses_roles`](crate::store::StoreProperties::uses_roles)).
    pub roles: bool,
}

/// The values of a message that the judge needs.
#[derive(Clone, Copy)]
pub(in crate::index) struct TrustQuery<'a> {
    pub from: &'a str,
    pub id: &'a str,
    /// True if the store knows that I wrote it, and not only by the message's own words.
    pub from_me: bool,
    pub claim: Option<&'a SignatureClaim>,
}

/// The decision on a message.
pub(in crate::index) enum TrustDecision {
    Accepted(SignatureKind, Option<PublicKey>),
    Refused(String),
}

impl TrustJudge<'_> {
    /// Judges a message. The decision depends only on the message, the keyring and the policy, so it is the same
    /// with and without a snapshot.
    pub fn judge_message(&self, message: TrustQuery<'_>) -> TrustDecision {
        if self.roles {
            return self.judge_role_message(message);
        }
        let Some(claim) = message.claim else {
            return self.judge_unsigned(message, SignatureKind::None);
        };
        let signed = SignedMessage { store: self.store, from: message.from, id: message.id };
        match self.keyring.judge_signature(signed, claim) {
            SignatureVerdict::Valid(key) => {
                TrustDecision::Accepted(SignatureKind::Valid, Some(key))
            }
            // My own key needs no pin: nobody else can have it.
            SignatureVerdict::Rejected(_) | SignatureVerdict::Unknown
                if self.is_mine(message, claim) =>
            {
                TrustDecision::Accepted(SignatureKind::Valid, self.my_key)
            }
            SignatureVerdict::Unknown if is_partial(claim) => {
                self.judge_unsigned(message, SignatureKind::None)
            }
            SignatureVerdict::Unknown => self.judge_unsigned(message, SignatureKind::Unknown),
            SignatureVerdict::Rejected(reason) => TrustDecision::Refused(reason),
        }
    }

    /// Judges a message where several agents may fill a role. The holder of the key that a signature carries
    /// wrote the message. That key proves nothing about the next message, and none is pinned.
    fn judge_role_message(&self, message: TrustQuery<'_>) -> TrustDecision {
        let Some(claim) = message.claim.filter(|claim| !is_partial(claim)) else {
            return self.judge_unsigned(message, SignatureKind::None);
        };
        match (verify::find_claim_fault(claim), claim) {
            (Some(reason), _) => TrustDecision::Refused(reason),
            (None, SignatureClaim::Signed { key: Some(key), .. }) => {
                TrustDecision::Accepted(SignatureKind::Valid, Some(*key))
            }
            (None, _) => self.judge_unsigned(message, SignatureKind::Unknown),
        }
    }

    fn is_mine(&self, message: TrustQuery<'_>, claim: &SignatureClaim) -> bool {
        let says_so = message.from_me || self.mine.contains(&message.from);
        says_so && self.my_key.is_some_and(|key| verify::verify_claim(&key, claim))
    }

    /// Judges a message that counts as unsigned. Roles have no pinned key, so only a policy against all unsigned
    /// messages rejects any of theirs.
    fn judge_unsigned(&self, message: TrustQuery<'_>, sig: SignatureKind) -> TrustDecision {
        let pinned = || !self.roles && self.keyring.is_pinned(message.from);
        let refused = match self.unsigned {
            Unsigned::Accept => false,
            Unsigned::Known => pinned(),
            Unsigned::Refuse => true,
        };
        if message.from_me || !refused {
            return TrustDecision::Accepted(sig, None);
        }
        let what = if sig == SignatureKind::Unknown {
            "signed by a key nobody vouches for"
        } else {
            "not signed"
        };
        TrustDecision::Refused(format!(
            "it is {what}, and the configuration says unsigned = \"{}\"{}",
            self.unsigned,
            if pinned() { "; this sender has a pinned key" } else { "" }
        ))
    }
}

/// Returns true if the signature covers only a part of the text.
fn is_partial(claim: &SignatureClaim) -> bool {
    matches!(claim, SignatureClaim::Signed { scope: SignatureScope::Part, .. })
}

impl Index {
    /// Judges messages again after the keyring changed: all messages of senders whose keys changed, and all
    /// rejected messages. A message may have been rejected for a key that belonged to another sender.
    pub fn rejudge_changed(&self) {
        let changed = self.keyring.take_changed_addresses();
        if changed.is_empty() {
            return;
        }
        let candidates: Vec<MsgIx> = {
            self.queue_key_review(&changed);
            let IndexTables { messages, trust, .. } = &*self.tables.read();
            let theirs = messages_by_addresses(messages, &changed);
            let theirs = theirs.filter(|ix| messages.entry(*ix).is_live());
            let rejected = trust.rejects().filter_map(|(_, r)| r.message);
            self.sort_as_scanned(messages, rejected.chain(theirs).collect())
        };
        self.rejudge_messages(candidates);
        self.keyring.finish_review(&changed);
    }

    /// Sorts messages in the order in which a scan without a snapshot reports them, each once. The first one may pin a
    /// key.
    fn sort_as_scanned(&self, messages: &MessageTable, mut list: Vec<MsgIx>) -> Vec<MsgIx> {
        let turns = self.stores.scan_order();
        // A file is read from its start, and files are read in the order in which they came.
        let mut first_in: HashMap<SourceId, MsgIx> = HashMap::new();
        for ix in &list {
            let first = first_in.entry(messages.entry(*ix).source()).or_insert(*ix);
            *first = (*first).min(*ix);
        }
        list.sort_by_cached_key(|ix| {
            let entry = messages.entry(*ix);
            let turn = turns.iter().position(|number| *number == entry.store());
            (turn, first_in.get(&entry.source()).copied(), entry.location().offset, *ix)
        });
        list.dedup();
        list
    }

    /// Judges messages again whose senders just got their first key and that waited for it. The verdict on a
    /// message must not depend on the order of arrival.
    pub(in crate::index) fn judge_first_uses(&self) {
        let pinned = self.keyring.take_first_uses();
        if pinned.is_empty() {
            return;
        }
        let known = self.settings.unsigned == Unsigned::Known;
        let waited: Vec<MsgIx> = {
            let IndexTables { messages, trust, .. } = &*self.tables.read();
            let waits = |ix: &MsgIx| {
                let entry = messages.entry(*ix);
                trust.unvouched.contains(ix) || known && entry.is_unsigned() || entry.is_rejected()
            };
            if known || !trust.unvouched.is_empty() || !trust.rejects.is_empty() {
                messages_by_addresses(messages, &pinned).filter(waits).collect()
            } else {
                Vec::new()
            }
        };
        self.queue_key_review(&pinned);
        self.rejudge_messages(waited);
        self.keyring.finish_review(&pinned);
    }

    /// Judges the messages of a store again that a review could not read. A file that fails again is left alone until
    /// the next call, which begins behind the last failure of this one.
    pub(in crate::index) fn rejudge_unreviewed(&self, number: usize) {
        let waiting: Vec<(MsgIx, SourceId)> = {
            let IndexTables { messages, trust, .. } = &*self.tables.read();
            let sources = trust.list_unreviewed().map(|ix| (ix, messages.entry(ix).source()));
            sources.filter(|(_, source)| source.store() == number).collect()
        };
        if waiting.is_empty() {
            return;
        }
        let (mut changes, mut failed, mut last) = (IndexChanges::default(), HashSet::new(), None);
        for (ix, source) in waiting {
            if !failed.contains(&source) && !self.rejudge_message(ix, &mut changes) {
                failed.insert(source);
                last = Some(ix);
                if failed.len() >= FAILURES_AT_MOST {
                    break;
                }
            }
        }
        self.tables.write().trust.note_failed_retry(last);
        self.finish_rejudging(changes);
    }

    fn queue_key_review(&self, addresses: &BTreeSet<String>) {
        let IndexTables { messages, trust, .. } = &mut *self.tables.write();
        trust.queue_key_review(messages, addresses);
    }

    /// Describes each store in which another key than mine signs messages under my name, with the remedy.
    pub fn describe_others_as_me(&self) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        let stores = self.stores().iter().enumerate();
        let mine = stores.filter(|(_, store)| !store.properties().uses_roles).flat_map(
            |(number, store)| store.properties().my_addresses().map(move |me| (number, store, me)),
        );
        for (number, store, me) in mine {
            let Some(other) = self.keyring.refused_key(me) else { continue };
            let is_there = {
                let IndexTables { messages, trust, .. } = &*self.tables.read();
                let mut rejected = trust.rejects().filter_map(|(_, r)| r.message);
                rejected.any(|ix| {
                    let entry = messages.entry(ix);
                    entry.store() == number && messages.sender(entry) == me
                })
            };
            let text = describe_other_own_key(me, other, store.facets().keys.is_none());
            if is_there && !out.contains(&text) {
                out.push(text);
            }
        }
        out
    }

    /// Returns the digests of all messages of an address in all stores, including rejected ones. The keyring
    /// stores these digests when it forgets the keys of the address.
    pub fn keyring_digests(&self, address: &str) -> BTreeSet<MessageDigest> {
        let messages = &self.tables.read().messages;
        let theirs = BTreeSet::from([address.to_owned()]);
        let prints = messages_by_addresses(messages, &theirs).map(|ix| {
            let entry = messages.entry(ix);
            let store = self.store_of(entry).name();
            SignedMessage { store, from: address, id: &messages.id(entry) }.digest()
        });
        prints.collect()
    }

    fn rejudge_messages(&self, candidates: impl IntoIterator<Item = MsgIx>) {
        let mut changes = IndexChanges::default();
        for ix in candidates {
            self.rejudge_message(ix, &mut changes);
        }
        self.finish_rejudging(changes);
    }

    /// Applies what follows from new verdicts on messages, and publishes the changes.
    fn finish_rejudging(&self, mut changes: IndexChanges) {
        {
            let mut tables = self.tables.write();
            changes.moved.extend(tables.relink_threads());
            changes.redrawn.extend(tables.settle_multicasts());
            changes.redrawn.extend(tables.update_missing_signatures(&self.keyring, false));
        }
        self.save_pins();
        self.publish_changes(&changes);
    }

    /// Judges a message again. Returns false if it could not be read.
    fn rejudge_message(&self, ix: MsgIx, changes: &mut IndexChanges) -> bool {
        let (entry, is_unvouched, was_unreviewed) = {
            let IndexTables { messages, trust, .. } = &*self.tables.read();
            (*messages.entry(ix), trust.unvouched.contains(&ix), trust.unreviewed.contains(&ix))
        };
        let is_plain = entry.is_unsigned() && !is_unvouched && entry.is_live();
        if entry.is_gone() || is_plain && self.settings.unsigned != Unsigned::Known {
            if was_unreviewed {
                self.tables.write().trust.note_unreviewed(ix, false);
            }
            return true;
        }
        let store = self.store_of(&entry);
        let dependent = store.facets().upkeep.filter(|upkeep| upkeep.depends_on_trust());
        // The store gets the decisions of scans after the tables are unlocked, and the last one counts there.
        let _turn = dependent.and(self.scanning.get(entry.store())).map(Mutex::lock);
        let Ok(record) = store.read_record(&entry.location()) else {
            if !was_unreviewed {
                self.tables.write().trust.note_unreviewed(ix, true);
            }
            return false;
        };
        let path = store.source_path(entry.location().source).unwrap_or_default();
        let line = if entry.is_rejected() { 0 } else { store.line_number(&entry.location()) };
        let mut tables = self.tables.write();
        tables.trust.note_unreviewed(ix, false);
        let refused = entry.is_rejected();
        // The record was read without a lock. Meanwhile the message may have been judged, or its file replaced.
        let state = |e: &IndexEntry| (e.location(), e.is_rejected(), e.signature());
        let now = tables.messages.entry(ix);
        let is_stale = state(now) != state(&entry) || now.is_gone();
        if is_stale || tables.trust.is_changed_text(&tables.messages, ix) {
            return true;
        }
        let decision = self.trust_judge(entry.store()).judge_message(TrustQuery {
            from: tables.messages.sender(&entry),
            id: &tables.messages.id(&entry),
            from_me: entry.is_mine() && !record.is_my_name_unproven,
            claim: record.claim.as_ref(),
        });
        let now_refused = matches!(decision, TrustDecision::Refused(_));
        match decision {
            TrustDecision::Accepted(sig, key) => {
                if tables.accept_signature(ix, sig, key, record.claim.is_some()) {
                    let shown = if refused { &mut changes.added } else { &mut changes.redrawn };
                    shown.push(ix);
                }
            }
            TrustDecision::Refused(reason) if !refused => {
                let (at, time) = (entry.location(), entry.time());
                let why = Rejection { at, path, line, reason, time, incomplete: false };
                log_reject(store.as_ref(), &why);
                tables.withhold_message(ix);
                tables.add_reject(entry.store(), why, Some(ix));
                changes.removed.push(ix);
                changes.other = true;
            }
            TrustDecision::Refused(_) => {}
        }
        drop(tables);
        if let Some(upkeep) = dependent.filter(|_| now_refused != refused) {
            upkeep.apply_decision(&entry.location(), now_refused);
        }
        true
    }
}

impl IndexTables {
    /// Returns true if the keyring has lost all keys of an address since `before`, and a message that is known may pin
    /// one again. If a person forgot the keys, no message from before pins any.
    pub(in crate::index) fn has_lost_pins(
        &self,
        stores: &[Arc<dyn Store>],
        keyring: &Keyring,
        before: &BTreeMap<String, u64>,
    ) -> bool {
        let unpinned = keyring.find_unpinned_since(before);
        let may_pin = |ix: MsgIx| {
            let entry = self.messages.entry(ix);
            let (from, id) = (self.messages.sender(entry), &self.messages.id(entry));
            let store = column::at(stores, entry.store()).name();
            !keyring.is_forgotten(SignedMessage { store, from, id })
        };
        !unpinned.is_empty() && messages_by_addresses(&self.messages, &unpinned).any(may_pin)
    }
}

/// Returns the messages of these writers that are not gone, in order of arrival.
fn messages_by_addresses<'a>(
    messages: &'a MessageTable,
    addresses: &BTreeSet<String>,
) -> impl Iterator<Item = MsgIx> + use<'a> {
    let names = messages.names();
    let writers = (0u32..).zip(names.writers());
    let theirs: HashSet<u32> = writers
        .filter(|(_, writer)| addresses.contains(names.text(writer.name)))
        .map(|(number, _)| number)
        .collect();
    messages
        .all_entries()
        .filter(move |(_, e)| theirs.contains(&e.writer()) && !e.is_gone())
        .map(|(ix, _)| ix)
}

#[cfg(test)]
mod tests;

//! Trust in messages, as their signatures and the keyring decide it.

use std::collections::{BTreeSet, HashSet};

use super::apply::log_reject;
use super::entry::{EntryFlags, IndexEntry, MsgIx, SignatureKind};
use super::tables::IndexTables;
use super::{Index, IndexChanges};
use crate::identity::{
    Keyring, MessageDigest, SignatureVerdict, SignedMessage, describe_other_own_key,
};
use crate::model::{PublicKey, SignatureClaim, SignatureScope, Unsigned, verify};
use crate::store::Rejection;

/// The trust decisions for one store.
pub(super) struct TrustJudge<'a> {
    pub keyring: &'a Keyring,
    pub unsigned: Unsigned,
    pub store: &'a str,
    /// My address in the store.
    pub me: &'a str,
    /// The key that signs what I send there.
    pub my_key: Option<PublicKey>,
    /// True if its addresses are roles
    /// ([`StoreProperties::uses_roles`](crate::store::StoreProperties::uses_roles)).
    pub roles: bool,
}

/// The values of a message that the judge needs.
#[derive(Clone, Copy)]
pub(super) struct TrustQuery<'a> {
    pub from: &'a str,
    pub id: &'a str,
    /// True if the store knows that I wrote it.
    pub from_me: bool,
    pub claim: Option<&'a SignatureClaim>,
}

/// The decision on a message.
pub(super) enum TrustDecision {
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
        let says_so = message.from_me || message.from == self.me;
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
            self.core.write().queue_key_review(&changed);
            let core = self.core.read();
            let theirs = core
                .messages_by_addresses(&changed)
                .filter(|ix| core.entry(*ix).is_some_and(IndexEntry::is_live));
            core.rejects().filter_map(|(_, r)| r.message).chain(theirs).collect()
        };
        self.rejudge_messages(candidates);
    }

    /// Judges messages again whose senders just got their first key and that waited for it. The verdict on a
    /// message must not depend on the order of arrival.
    pub(super) fn judge_first_uses(&self) {
        let pinned: BTreeSet<String> = self.keyring.take_first_uses().into_iter().collect();
        if pinned.is_empty() {
            return;
        }
        let known = self.settings.unsigned == Unsigned::Known;
        let waited: Vec<MsgIx> = {
            let core = self.core.read();
            let waits = |ix: &MsgIx| {
                core.unvouched.contains(ix)
                    || known
                        && matches!(
                            core.signature_kind_at(*ix).0,
                            SignatureKind::None | SignatureKind::Missing
                        )
                    || core.entry(*ix).is_some_and(|e| e.flags.has(EntryFlags::REJECTED))
            };
            if known || !core.unvouched.is_empty() || core.rejects().next().is_some() {
                core.messages_by_addresses(&pinned).filter(waits).collect()
            } else {
                Vec::new()
            }
        };
        self.core.write().queue_key_review(&pinned);
        self.rejudge_messages(waited);
    }

    /// Describes each store in which another key than mine signs messages under my name, with the remedy.
    pub fn describe_others_as_me(&self) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        for (number, store) in self.stores().iter().enumerate() {
            let me = store.me();
            let Some(other) =
                self.keyring.refused_key(me).filter(|_| !store.properties().uses_roles)
            else {
                continue;
            };
            let is_there = {
                let core = self.core.read();
                let mut refused = core.rejects().filter_map(|(_, r)| core.entry(r.message?));
                refused.any(|e| e.store() == number && core.sender(e) == me)
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
        let core = self.core.read();
        let theirs = BTreeSet::from([address.to_owned()]);
        let prints = core.messages_by_addresses(&theirs).filter_map(|ix| {
            let entry = core.entry(ix)?;
            let store = self.store_of(entry)?.name();
            Some(SignedMessage { store, from: address, id: &core.id(entry) }.digest())
        });
        prints.collect()
    }

    fn rejudge_messages(&self, candidates: impl IntoIterator<Item = MsgIx>) {
        let mut changes = IndexChanges::default();
        for ix in candidates {
            self.rejudge_message(ix, &mut changes);
        }
        {
            let mut core = self.core.write();
            changes.moved.extend(core.relink_threads());
            changes.redrawn.extend(core.update_missing_signatures(&self.keyring, false));
        }
        self.save_pins();
        self.publish_changes(&changes);
    }

    fn rejudge_message(&self, ix: MsgIx, changes: &mut IndexChanges) {
        let Some(entry) = self.core.read().entry(ix).copied() else { return };
        let unsigned =
            matches!(entry.flags.signature().0, SignatureKind::None | SignatureKind::Missing)
                && !self.core.read().unvouched.contains(&ix);
        if unsigned && entry.is_live() && self.settings.unsigned != Unsigned::Known {
            return;
        }
        let Some(store) = self.store_of(&entry) else { return };
        let Ok(record) = store.read_record(&entry.location()) else { return };
        let path = store.source_path(entry.location().source).unwrap_or_default();
        let mut core = self.core.write();
        let refused = entry.flags.has(EntryFlags::REJECTED);
        // The record was read without a lock. Meanwhile the message may have been judged, or its file replaced.
        let same = core.entry(ix).is_some_and(|now| {
            let state = |e: &IndexEntry| {
                (e.location(), e.flags.has(EntryFlags::REJECTED), e.flags.signature())
            };
            state(now) == state(&entry)
        });
        if !same || entry.flags.has(EntryFlags::GONE) {
            return;
        }
        let hearing = store.facets().trust_listener;
        let judgement = self.trust_judge(entry.store()).judge_message(TrustQuery {
            from: core.sender(&entry),
            id: &core.id(&entry),
            from_me: entry.flags.has(EntryFlags::FROM_ME),
            claim: record.claim.as_ref(),
        });
        let now_refused = matches!(judgement, TrustDecision::Refused(_));
        match judgement {
            TrustDecision::Accepted(sig, key) => {
                if core.accept_signature(ix, sig, key, record.claim.is_some()) {
                    let shown = if refused { &mut changes.added } else { &mut changes.redrawn };
                    shown.push(ix);
                }
            }
            TrustDecision::Refused(reason) if !refused => {
                let (at, time) = (entry.location(), entry.time());
                let why = Rejection { at, path, reason, time, ..Rejection::default() };
                log_reject(store.as_ref(), &why);
                core.withhold_message(ix);
                core.add_reject(entry.store(), why, Some(ix));
                changes.removed.push(ix);
                changes.other = true;
            }
            TrustDecision::Refused(_) => {}
        }
        let Some(hearing) = hearing.filter(|_| now_refused != refused) else { return };
        hearing.note_judgements(&[(entry.location(), now_refused)]);
        drop(core);
        hearing.apply_judgement(&entry.location());
    }
}

impl IndexTables {
    /// Returns the messages of these writers that are not gone, in order of arrival.
    fn messages_by_addresses(&self, addresses: &BTreeSet<String>) -> impl Iterator<Item = MsgIx> {
        let writers = (0u32..).zip(&self.writers);
        let theirs: HashSet<u32> = writers
            .filter(|(_, writer)| addresses.contains(self.strings.get(writer.name)))
            .map(|(number, _)| number)
            .collect();
        (0u32..)
            .zip(&self.entries)
            .filter(move |(_, e)| theirs.contains(&e.writer) && !e.flags.has(EntryFlags::GONE))
            .map(|(ix, _)| ix)
    }
}

#[cfg(test)]
mod tests;

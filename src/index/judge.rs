//! Trust: what the signature of a message is worth.

use std::collections::{BTreeSet, HashSet};

use super::apply::log_reject;
use super::core::Core;
use super::entry::{Entry, Flags, MsgIx, Sig};
use super::{Changes, Index};
use crate::identity::{Keyring, Print, Signed, Verdict, other_key_of_mine};
use crate::model::{Claim, ClaimScope, PublicKey, Unsigned, verify};
use crate::store::Rejected;

/// Trust decisions for one store.
pub(super) struct Judge<'a> {
    pub keyring: &'a Keyring,
    pub unsigned: Unsigned,
    pub store: &'a str,
    /// Who I am in the store.
    pub me: &'a str,
    /// The key that signs what I send there.
    pub my_key: Option<PublicKey>,
    /// Its addresses are roles ([`About::roles`](crate::store::About::roles)).
    pub roles: bool,
}

/// A message as far as trust asks for it.
#[derive(Clone, Copy)]
pub(super) struct Judged<'a> {
    pub from: &'a str,
    pub id: &'a str,
    /// The store knows that I wrote it.
    pub from_me: bool,
    pub claim: Option<&'a Claim>,
}

/// What became of a message's signature.
pub(super) enum Judgement {
    Accepted(Sig, Option<PublicKey>),
    Refused(String),
}

impl Judge<'_> {
    /// Decides about a message. What is decided follows from the message, the keyring and the policy
    /// alone, so that it is the same with and without a snapshot.
    pub fn judge(&self, message: Judged<'_>) -> Judgement {
        if self.roles {
            return self.judge_role(message);
        }
        let Some(claim) = message.claim else { return self.unsigned(message, Sig::None) };
        let signed = Signed { store: self.store, from: message.from, id: message.id };
        match self.keyring.judge(signed, claim) {
            Verdict::Valid(key) => Judgement::Accepted(Sig::Valid, Some(key)),
            // My own key needs no pin: nobody else can have it.
            Verdict::Rejected(_) | Verdict::Unknown if self.is_mine(message, claim) => {
                Judgement::Accepted(Sig::Valid, self.my_key)
            }
            Verdict::Unknown if is_part(claim) => self.unsigned(message, Sig::None),
            Verdict::Unknown => self.unsigned(message, Sig::Unknown),
            Verdict::Rejected(reason) => Judgement::Refused(reason),
        }
    }

    /// The same where several may fill a role: whoever holds the key that a signature carries wrote
    /// the message, that one key says nothing of the next message, and none is pinned.
    fn judge_role(&self, message: Judged<'_>) -> Judgement {
        let Some(claim) = message.claim.filter(|claim| !is_part(claim)) else {
            return self.unsigned(message, Sig::None);
        };
        match (verify::fault(claim), claim) {
            (Some(reason), _) => Judgement::Refused(reason),
            (None, Claim::Signed { key: Some(key), .. }) => {
                Judgement::Accepted(Sig::Valid, Some(*key))
            }
            (None, _) => self.unsigned(message, Sig::Unknown),
        }
    }

    fn is_mine(&self, message: Judged<'_>, claim: &Claim) -> bool {
        let says_so = message.from_me || message.from == self.me;
        says_so && self.my_key.is_some_and(|key| verify::verify_claim(&key, claim))
    }

    /// Where addresses are roles nobody has a pinned key, so that only a policy against all unsigned
    /// mail refuses any.
    fn unsigned(&self, message: Judged<'_>, sig: Sig) -> Judgement {
        let pinned = || !self.roles && self.keyring.is_pinned(message.from);
        let refused = match self.unsigned {
            Unsigned::Accept => false,
            Unsigned::Known => pinned(),
            Unsigned::Refuse => true,
        };
        if message.from_me || !refused {
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

/// The signature speaks for a part of the text only.
fn is_part(claim: &Claim) -> bool {
    matches!(claim, Claim::Signed { scope: ClaimScope::Part, .. })
}

impl Index {
    /// Judges again, after the keyring changed, everything of those whose keys did, and what was
    /// refused from anybody: it may have been for a key that was somebody else's.
    pub fn judge_again(&self) {
        let changed = self.keyring.take_changed();
        if changed.is_empty() {
            return;
        }
        let candidates: Vec<MsgIx> = {
            self.core.write().keys_may_differ(&changed);
            let core = self.core.read();
            let theirs =
                core.written_by(&changed).filter(|ix| core.entry(*ix).is_some_and(Entry::is_live));
            core.rejects().filter_map(|(_, r)| r.message).chain(theirs).collect()
        };
        self.judge_each_again(candidates);
    }

    /// Judges again what waited for a first key of those who got one a moment ago: what is said of a
    /// message must not depend on the order in which they came.
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
                    || known && matches!(core.signed_by(*ix).0, Sig::None | Sig::Missing)
                    || core.entry(*ix).is_some_and(|e| e.flags.has(Flags::REJECTED))
            };
            if known || !core.unvouched.is_empty() || core.rejects().next().is_some() {
                core.written_by(&pinned).filter(waits).collect()
            } else {
                Vec::new()
            }
        };
        self.core.write().keys_may_differ(&pinned);
        self.judge_each_again(waited);
    }

    /// That another key than mine signs messages under my name, by store: what it is, and what to do.
    pub fn others_as_me(&self) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        for (number, store) in self.stores().iter().enumerate() {
            let me = store.me();
            let Some(other) = self.keyring.refused(me).filter(|_| !store.about().roles) else {
                continue;
            };
            let is_there = {
                let core = self.core.read();
                let mut refused = core.rejects().filter_map(|(_, r)| core.entry(r.message?));
                refused.any(|e| e.store() == number && core.from(e) == me)
            };
            let text = other_key_of_mine(me, other, store.facets().keys.is_none());
            if is_there && !out.contains(&text) {
                out.push(text);
            }
        }
        out
    }

    /// Every message of an address that any store holds, also refused ones, as the keyring remembers
    /// it when the keys of the address are forgotten.
    pub fn prints_of(&self, address: &str) -> BTreeSet<Print> {
        let core = self.core.read();
        let theirs = BTreeSet::from([address.to_owned()]);
        let prints = core.written_by(&theirs).filter_map(|ix| {
            let entry = core.entry(ix)?;
            let store = self.store_of(entry)?.name();
            Some(Signed { store, from: address, id: &core.id(entry) }.print())
        });
        prints.collect()
    }

    fn judge_each_again(&self, candidates: impl IntoIterator<Item = MsgIx>) {
        let mut changes = Changes::default();
        for ix in candidates {
            self.judge_one_again(ix, &mut changes);
        }
        {
            let mut core = self.core.write();
            changes.moved.extend(core.relink());
            changes.redrawn.extend(core.find_missing(&self.keyring, false));
        }
        self.save_pins();
        self.publish(&changes);
    }

    fn judge_one_again(&self, ix: MsgIx, changes: &mut Changes) {
        let Some(entry) = self.core.read().entry(ix).copied() else { return };
        let unsigned = matches!(entry.flags.signature().0, Sig::None | Sig::Missing)
            && !self.core.read().unvouched.contains(&ix);
        if unsigned && entry.is_live() && self.settings.unsigned != Unsigned::Known {
            return;
        }
        let Some(store) = self.store_of(&entry) else { return };
        let Ok(record) = store.read(&entry.location()) else { return };
        let path = store.source_path(entry.location().source).unwrap_or_default();
        let mut core = self.core.write();
        let refused = entry.flags.has(Flags::REJECTED);
        // It was read without a lock: meanwhile it may have been judged, or be another file.
        let same = core.entry(ix).is_some_and(|now| {
            let state =
                |e: &Entry| (e.location(), e.flags.has(Flags::REJECTED), e.flags.signature());
            state(now) == state(&entry)
        });
        if !same || entry.flags.has(Flags::GONE) {
            return;
        }
        let hearing = store.facets().hearing;
        let judgement = self.judge(entry.store()).judge(Judged {
            from: core.from(&entry),
            id: &core.id(&entry),
            from_me: entry.flags.has(Flags::FROM_ME),
            claim: record.claim.as_ref(),
        });
        let now_refused = matches!(judgement, Judgement::Refused(_));
        match judgement {
            Judgement::Accepted(sig, key) => {
                if core.accept(ix, sig, key, record.claim.is_some()) {
                    let shown = if refused { &mut changes.added } else { &mut changes.redrawn };
                    shown.push(ix);
                }
            }
            Judgement::Refused(reason) if !refused => {
                let (at, time) = (entry.location(), entry.time());
                let why = Rejected { at, path, reason, time, ..Rejected::default() };
                log_reject(store.as_ref(), &why);
                core.withhold(ix);
                core.add_reject(entry.store(), why, Some(ix));
                changes.removed.push(ix);
                changes.other = true;
            }
            Judgement::Refused(_) => {}
        }
        let Some(hearing) = hearing.filter(|_| now_refused != refused) else { return };
        hearing.hear(&[(entry.location(), now_refused)]);
        drop(core);
        hearing.heed(&entry.location());
    }
}

impl Core {
    /// The messages of these writers that are not gone, in the order in which they came.
    fn written_by(&self, addresses: &BTreeSet<String>) -> impl Iterator<Item = MsgIx> {
        let writers = (0u32..).zip(&self.writers);
        let theirs: HashSet<u32> = writers
            .filter(|(_, writer)| addresses.contains(self.strings.get(writer.name)))
            .map(|(number, _)| number)
            .collect();
        (0u32..)
            .zip(&self.entries)
            .filter(move |(_, e)| theirs.contains(&e.writer) && !e.flags.has(Flags::GONE))
            .map(|(ix, _)| ix)
    }
}

#[cfg(test)]
mod tests;
